/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/beams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gen/search/guidance.h"
#include "gen/logits/scores.h"

enum { RESERVED_STEPS = 1024 }; /* for which the tree has room initially */

/* ---- opening ---- */

static size_t count_ends(const mn_generation_config *config) {
    return config->ignore_eos ? 0 : config->eos_token_id.n;
}

static mn_status open_stops(beams *b) {
    b->text.stops = &b->setup->config->stop_strings;
    if (b->text.stops->n == 0) return MN_OK;
    return tokenizer_stream_open(&b->stream, b->setup->session->owner->text, TOKENIZER_SKIP_SPECIAL);
}

/* Outputs of the sequences besides ids and text. */
static mn_status open_origins(const search_setup *setup) {
    for (size_t i = 0; i < setup->n_sequences; i++) {
        sequence *s = &setup->sequences[i];
        s->beam_indices = mem_alloc_raw(setup->max_new, sizeof *s->beam_indices);
        s->transitions = mem_alloc_raw(setup->max_new, sizeof *s->transitions);
        if (!s->beam_indices || !s->transitions) return MN_E_NOMEM;
    }
    return MN_OK;
}

static mn_status grow_nodes(beams *b, size_t n) {
    if (b->setup->options->top_logprobs >= 0) {
        size_t each = 1 + (size_t)b->setup->options->top_logprobs;
        MN_TRY(mem_grow(&b->logprob_ids, &b->logprob_id_capacity, n * each, sizeof *b->logprob_ids));
        MN_TRY(mem_grow(&b->logprobs, &b->logprob_capacity, n * each, sizeof *b->logprobs));
    }
    return mem_grow(&b->nodes, &b->node_capacity, n, sizeof *b->nodes);
}

mn_status beams_open(beams *b, const search_setup *setup, size_t group, bool draws) {
    size_t width = (size_t)setup->config->num_beams, vocab = (size_t)setup->session->model->net.config.vocab_size;
    *b = (beams){.setup = setup, .width = width, .vocab = vocab, .best_node = -1};
    b->n_ends = count_ends(setup->config);
    b->n_ranked = (b->n_ends > 1 ? 1 + b->n_ends : 2) * width;
    b->running = mem_alloc(width, sizeof *b->running);
    b->next = mem_alloc(width, sizeof *b->next);
    b->candidates = mem_alloc(b->n_ranked, sizeof *b->candidates);
    b->sessions = mem_alloc(width + 1, sizeof *b->sessions);
    b->taken = mem_alloc(width, sizeof *b->taken);
    b->scores = mem_alloc_raw(width * vocab, sizeof *b->scores);
    b->ids = mem_alloc_raw(setup->n_prompt + setup->max_new, sizeof *b->ids);
    if (!b->running || !b->next || !b->candidates || !b->sessions || !b->taken || !b->scores || !b->ids)
        return MN_E_NOMEM;
    if (draws) {
        b->sums = mem_alloc_raw(width * vocab, sizeof *b->sums);
        b->drawn = mem_alloc(b->n_ranked, sizeof *b->drawn);
        if (!b->sums || !b->drawn) return MN_E_NOMEM;
        MN_TRY(choice_open(&b->choice, width * vocab));
    }
    const processor_setup inputs = search_processors(setup);
    MN_TRY(processors_open(&b->processors, &inputs));
    MN_TRY(open_stops(b));
    MN_TRY(open_origins(setup));
    MN_TRY(grow_nodes(b, width * (setup->max_new < RESERVED_STEPS ? setup->max_new : RESERVED_STEPS)));
    b->sessions[0] = setup->session;
    if (guidance_is_on(setup)) {
        b->unconditional = mem_alloc(width, sizeof *b->unconditional);
        if (!b->unconditional) return MN_E_NOMEM;
        MN_TRY(session_open_like(&b->unconditional[0], setup->session));
    }
    for (size_t i = 0; i < width; i++) {
        b->running[i] = (beam){.session = i % group ? -1 : 0, .node = -1};
        b->next[i].session = -1;
    }
    return MN_OK;
}

void beams_close(beams *b) {
    for (size_t i = 1; b->sessions && i <= b->width; i++) mn_session_close(&b->sessions[i]);
    for (size_t i = 0; b->unconditional && i < b->width; i++) mn_session_close(&b->unconditional[i]);
    processors_close(&b->processors);
    choice_close(&b->choice);
    tokenizer_stream_close(&b->stream);
    bytes_clear(&b->piece);
    stop_text_clear(&b->text);
    mem_free(b->running);
    mem_free(b->next);
    mem_free(b->candidates);
    mem_free(b->sessions);
    mem_free(b->unconditional);
    mem_free(b->taken);
    mem_free(b->scores);
    mem_free(b->sums);
    mem_free(b->drawn);
    mem_free(b->ids);
    mem_free(b->nodes);
    mem_free(b->logprob_ids);
    mem_free(b->logprobs);
}

size_t beams_most_feeds(const search_setup *setup) {
    return (size_t)setup->config->num_beams * (guidance_is_on(setup) ? 2 : 1);
}

static bool has_started(const beams *b) {
    return !b->unconditional || b->unconditional[0]->n_ids > 0 || b->n_new > 0;
}

bool beams_may_score_ahead(const beams *b) {
    const mn_generate_options *options = b->setup->options;
    return has_started(b) && !options->keep_scores && !options->keep_logits;
}

bool beams_begin(beams *b, feed_list *feeds) {
    size_t n = 0;
    if (has_started(b)) return false;
    const int32_t *ids = guidance_ids(b->setup, &n);
    feed_list_add(feeds, b->unconditional[0], ids, n);
    return true;
}

/* ---- scores ---- */

/* Room for one more step, which holds no numbers yet. */
static mn_status grow_log(const beams *b, float **log, size_t *capacity) {
    size_t step = b->width * b->vocab, begin = b->n_new * step;
    MN_TRY(mem_grow(log, capacity, begin + step, sizeof **log));
    for (size_t i = 0; i < step; i++) (*log)[begin + i] = NAN;
    return MN_OK;
}

static mn_status begin_log(beams *b) {
    step_log *log = b->setup->steps;
    if (log->n_steps > b->n_new) return MN_OK;
    if (b->setup->options->keep_scores) MN_TRY(grow_log(b, &log->scores, &b->score_capacity));
    if (b->setup->options->keep_logits) MN_TRY(grow_log(b, &log->logits, &b->logit_capacity));
    log->n_beams = b->width;
    log->n_steps = b->n_new + 1;
    return MN_OK;
}

/* A row of a step's log; after the prompt, where the beams of a group do not differ yet, it serves all of them. */
static void log_row(const beams *b, float *log, size_t place, size_t end, const float *row) {
    size_t last = b->n_new == 0 ? end : place + 1;
    for (size_t i = place; log && i < last; i++)
        memcpy(log + (b->n_new * b->width + i) * b->vocab, row, b->vocab * sizeof *row);
}

mn_status beams_score(beams *b, size_t first, size_t n, const int32_t *chosen, size_t n_chosen) {
    const step_log *log = b->setup->steps;
    MN_TRY(begin_log(b));
    b->time_is_over = search_time_is_over(b->setup);
    for (size_t i = first; i < first + n; i++) {
        if (b->running[i].session < 0) continue;
        const mn_session *session = b->sessions[b->running[i].session];
        const processor_step step = {.ids = session->ids, .n = session->n_ids, .chosen = chosen, .n_chosen = n_chosen};
        float *scores = b->scores + i * b->vocab;
        memcpy(scores, session->logits, b->vocab * sizeof *scores);
        scores_log_softmax(scores, b->vocab);
        if (b->unconditional) {
            scores_guide(scores, b->unconditional[b->running[i].session]->logits, b->vocab,
                         b->setup->config->guidance_scale);
        }
        MN_TRY(processors_run(b->processors, &step, scores));
        log_row(b, log->scores, i, first + n, scores);
        log_row(b, log->logits, i, first + n, session->logits);
    }
    return MN_OK;
}

/* ---- the best continuations ---- */

static void draw_sums(beams *b, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) {
        const float *scores = b->scores + i * b->vocab;
        float *sums = b->sums + i * b->vocab;
        bool is_open = b->running[i].session >= 0;
        for (size_t t = 0; t < b->vocab; t++)
            sums[t] = is_open ? (float)(b->running[i].sum + (double)scores[t]) : -INFINITY;
    }
}

beam_candidate beams_candidate(const beams *b, size_t place, size_t id) {
    float score = b->scores[place * b->vocab + id];
    return (beam_candidate){
        .sum = b->running[place].sum + (double)score, .score = score, .id = (int32_t)id, .from = (int32_t)place};
}

static size_t rank_drawn(beams *b, size_t first, size_t n, size_t n_wanted, beam_candidate *out) {
    draw_sums(b, first, n);
    size_t count = choice_sample_several(&b->choice, b->sums + first * b->vocab, n * b->vocab, b->setup->seed, 0,
                                         b->n_new, b->drawn, n_wanted);
    for (size_t i = 0; i < count; i++)
        out[i] = beams_candidate(b, first + b->drawn[i] / b->vocab, b->drawn[i] % b->vocab);
    return count;
}

/* Keeps `c` among the best n_wanted; later candidates lose ties. */
static size_t insert(beam_candidate *best, size_t n, size_t n_wanted, beam_candidate c) {
    size_t at = n < n_wanted ? n++ : n - 1;
    for (; at > 0 && best[at - 1].sum < c.sum; at--) best[at] = best[at - 1];
    best[at] = c;
    return n;
}

size_t beams_rank(beams *b, size_t first, size_t n, size_t n_wanted, beam_candidate *out) {
    enum { BLOCK = 256 }; /* searched only if its best one is good enough */
    size_t count = 0;
    if (b->sums) return rank_drawn(b, first, n, n_wanted, out);
    for (size_t i = first; i < first + n; i++) {
        if (b->running[i].session < 0) continue;
        const float *scores = b->scores + i * b->vocab;
        double sum = b->running[i].sum, least = count < n_wanted ? -INFINITY : out[count - 1].sum;
        for (size_t begin = 0; begin < b->vocab; begin += BLOCK) {
            size_t end = begin + BLOCK < b->vocab ? begin + BLOCK : b->vocab;
            if (!(sum + (double)scores_max(scores + begin, end - begin) > least)) continue;
            for (size_t id = begin; id < end; id++) {
                if (!(sum + (double)scores[id] > least)) continue;
                count = insert(out, count, n_wanted, beams_candidate(b, i, id));
                if (count == n_wanted) least = out[count - 1].sum;
            }
        }
    }
    return count;
}

/* ---- keeping and ending ---- */

size_t beams_ids(beams *b, int32_t node) {
    size_t n = b->setup->n_prompt, end;
    for (int32_t at = node; at >= 0; at = b->nodes[at].before) n++;
    end = n;
    memcpy(b->ids, b->setup->prompt, b->setup->n_prompt * sizeof *b->ids);
    for (; node >= 0; node = b->nodes[node].before) b->ids[--n] = b->nodes[node].id;
    return end;
}

static mn_status find_stop(beams *b, size_t n, bool *found) {
    const tokenizer *text = b->setup->session->owner->text;
    stop_text_restart(&b->text);
    for (size_t i = b->setup->n_prompt; i < n && !b->text.stopped; i++)
        MN_TRY(stop_text_push_token(&b->text, text, b->stream, b->ids[i], &b->piece));
    *found = b->text.stopped;
    return tokenizer_stream_finish(b->stream, &b->piece);
}

mn_status beams_judge(beams *b, beam_candidate *c) {
    const search_setup *setup = b->setup;
    mn_stopping stop = setup->options->stop;
    size_t n = 0;
    bool stops = false;
    c->finish = NULL;
    if (b->n_ends && id_list_has(&setup->config->eos_token_id, c->id)) c->finish = "eos";
    if (c->finish || (!b->stream && !stop)) return MN_OK;
    n = beams_ids(b, b->running[c->from].node);
    b->ids[n++] = c->id;
    if (b->stream) MN_TRY(find_stop(b, n, &stops));
    if (stops) c->finish = "stop_string";
    if (!stops && stop && stop(setup->options->user, setup->row, b->ids, n)) c->finish = "callback";
    return MN_OK;
}

const char *beams_limit(const beams *b) {
    if (b->time_is_over) return "time";
    return b->n_new + 1 == b->setup->max_new ? "length" : NULL;
}

mn_status beams_add_node(beams *b, const beam_candidate *c, int32_t *node) {
    int top = b->setup->options->top_logprobs;
    if (b->n_nodes == INT32_MAX) MN_FAIL(MN_E_FULL, "beams of %zu tokens altogether are too many", b->n_nodes);
    MN_TRY(grow_nodes(b, b->n_nodes + 1));
    if (top >= 0) {
        const float *scores = b->scores + (size_t)c->from * b->vocab;
        size_t at = b->n_nodes * (1 + (size_t)top);
        sequence_rank(b->logprob_ids + at, b->logprobs + at, (size_t)top, c->id, scores, b->vocab);
    }
    *node = (int32_t)b->n_nodes;
    b->nodes[b->n_nodes++] =
        (beam_node){.before = b->running[c->from].node, .id = c->id, .from = c->from, .score = c->score};
    return MN_OK;
}

mn_status beams_keep(beams *b, size_t place, const beam_candidate *c) {
    beam *next = &b->next[place];
    MN_TRY(beams_add_node(b, c, &next->node));
    next->session = b->running[c->from].session;
    next->from = c->from;
    next->sum = c->sum;
    return MN_OK;
}

double beams_normalize(const beams *b, double sum, size_t length) {
    return length ? sum / pow((double)length, b->setup->config->length_penalty) : 0;
}

mn_status beams_end(beams *b, const beam_candidate *c, hypothesis *out) {
    const mn_session *from = b->sessions[b->running[c->from].session];
    mn_session **best = &b->sessions[b->width];
    *out = (hypothesis){.score = beams_normalize(b, c->sum, b->n_new + 1), .session = -1, .finish = c->finish};
    MN_TRY(beams_add_node(b, c, &out->node));
    if (b->setup->options->keep_sessions) MN_TRY(session_fork(&out->kept, from, true));
    if (b->best_node >= 0 && !(out->score > b->best_score)) return MN_OK;
    MN_TRY(*best ? session_refork(*best, from, true) : session_fork(best, from, true));
    b->best_node = out->node;
    b->best_score = out->score;
    return MN_OK;
}

void beams_drop(hypothesis *text) {
    mn_session_close(&text->kept);
}

hypothesis beams_open_text(const beams *b, const beam *open, size_t length, const char *finish) {
    return (hypothesis){
        .score = beams_normalize(b, open->sum, length), .node = open->node, .session = open->session, .finish = finish};
}

/* ---- the next step ---- */

static mn_status fork_into(mn_session **to, const mn_session *from) {
    return *to ? session_refork(*to, from, false) : session_fork(to, from, false);
}

/* A session for another beam that continues `from`: a fork, in a session that no beam uses. */
static mn_status fork_beam(beams *b, int32_t from, int32_t *to, size_t *at) {
    while (b->taken[*at]) ++*at;
    b->taken[*at] = true;
    *to = (int32_t)*at;
    if (b->unconditional) MN_TRY(fork_into(&b->unconditional[*at], b->unconditional[from]));
    return fork_into(&b->sessions[*at], b->sessions[from]);
}

/* Dropped beams hold no pages. */
static void empty_rest(beams *b) {
    for (size_t i = 0; i < b->width; i++) {
        if (b->taken[i]) continue;
        if (b->sessions[i]) session_empty(b->sessions[i]);
        if (b->unconditional && b->unconditional[i]) session_empty(b->unconditional[i]);
    }
}

mn_status beams_move(beams *b, feed_list *feeds) {
    size_t at = 0;
    memset(b->taken, 0, b->width * sizeof *b->taken);
    for (size_t i = 0; i < b->width; i++) {
        b->running[i].from = b->next[i].session; /* the parent beam */
        if (b->next[i].session < 0) continue;
        if (b->taken[b->next[i].session]) {
            b->next[i].session = -1;
        } else {
            b->taken[b->next[i].session] = true;
        }
    }
    for (size_t i = 0; i < b->width; i++) {
        if (b->next[i].session < 0 && b->running[i].from >= 0)
            MN_TRY(fork_beam(b, b->running[i].from, &b->next[i].session, &at));
    }
    empty_rest(b);
    beam *used = b->running;
    b->running = b->next;
    b->next = used;
    b->n_new++;
    for (size_t i = 0; i < b->width; i++) {
        const beam *now = &b->running[i];
        b->next[i].session = -1;
        if (now->session < 0) continue;
        const int32_t *id = &b->nodes[now->node].id;
        feed_list_add(feeds, b->sessions[now->session], id, 1)->shares_pages_with = b->sessions[b->width];
        if (b->unconditional) feed_list_add(feeds, b->unconditional[now->session], id, 1);
    }
    return MN_OK;
}

/* ---- results ---- */

static int by_score(const void *a, const void *b) {
    const hypothesis *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static const float *row_of(const beams *b, const float *log, size_t step, int32_t place) {
    return log ? log + (step * b->width + (size_t)place) * b->vocab : NULL;
}

static mn_status write_text(beams *b, sequence *to, const hypothesis *text) {
    const step_log *log = b->setup->steps;
    size_t n = 0, each = 1 + (size_t)b->setup->options->top_logprobs;
    for (int32_t node = text->node; node >= 0; node = b->nodes[node].before) n++;
    int32_t *nodes = b->ids; /* no longer than the ids */
    for (int32_t node = text->node, i = (int32_t)n; node >= 0; node = b->nodes[node].before) nodes[--i] = node;
    to->has_score = true;
    to->score = text->score;
    for (size_t i = 0; i < n && !to->finish; i++) {
        const beam_node *node = &b->nodes[nodes[i]];
        to->beam_indices[i] = node->from;
        to->transitions[i] = node->score;
        if (to->logprobs) {
            size_t from = (size_t)nodes[i] * each;
            memcpy(to->logprob_ids + i * each, b->logprob_ids + from, each * sizeof *b->logprob_ids);
            memcpy(to->logprobs + i * each, b->logprobs + from, each * sizeof *b->logprobs);
        }
        if (i + 1 == n && strcmp(text->finish, "eos") == 0) to->finish = text->finish;
        MN_TRY(sequence_append(to, node->id, row_of(b, log->scores, i, node->from),
                               row_of(b, log->logits, i, node->from)));
    }
    return sequence_end(to, text->finish);
}

static size_t text_length(const beams *b, int32_t node) {
    size_t n = b->setup->n_prompt;
    for (; node >= 0; node = b->nodes[node].before) n++;
    return n;
}

/* Whether the last of n tokens was fed. */
static void hold_but_last(mn_session *session, size_t n) {
    if (session->n_ids < n) return;
    session->n_ids = n - 1;
    session->has_logits = false;
    session_go_back(session, (int64_t)n - 1);
}

/* Makes the session of the best text the setup's. */
static void give_session(beams *b, const hypothesis *best) {
    int32_t at = best->node == b->best_node && best->node >= 0 ? (int32_t)b->width : best->session;
    mn_session *session = b->setup->session;
    if (at > 0) session_exchange(session, b->sessions[at]);
    if (best->node >= 0) hold_but_last(session, text_length(b, best->node));
}

/* Gives the other texts' sessions to their sequences; the session of a running beam may belong to several texts. */
static mn_status keep_sessions(const beams *b, hypothesis *texts, size_t n) {
    if (!b->setup->options->keep_sessions) return MN_OK;
    for (size_t i = 1; i < n; i++) {
        sequence *to = &b->setup->sequences[i];
        if (!texts[i].kept && texts[i].session >= 0)
            MN_TRY(session_fork(&texts[i].kept, b->sessions[texts[i].session], true));
        if (texts[i].kept && texts[i].node >= 0) hold_but_last(texts[i].kept, text_length(b, texts[i].node));
        to->session_kept = texts[i].kept;
        texts[i].kept = NULL;
    }
    return MN_OK;
}

mn_status beams_write(beams *b, hypothesis *texts, size_t n) {
    if (n == 0) return MN_OK;
    qsort(texts, n, sizeof *texts, by_score);
    size_t n_returned = n < b->setup->n_sequences ? n : b->setup->n_sequences;
    mn_status status = keep_sessions(b, texts, n_returned);
    for (size_t i = 0; i < n; i++) beams_drop(&texts[i]);
    MN_TRY(status);
    give_session(b, &texts[0]);
    for (size_t i = 0; i < n_returned; i++) MN_TRY(write_text(b, &b->setup->sequences[i], &texts[i]));
    return MN_OK;
}
