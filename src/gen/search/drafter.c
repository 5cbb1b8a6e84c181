/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/drafter.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "gen/search/vocabulary_translation.h"
#include "gen/logits/scores.h"

/* A kind of drafter. */
typedef struct draft_kind {
    mn_status (*begin)(drafter *d, feed_list *next);
    /* With a draft model: chooses the next token from the session's logits and lists what to compute next. */
    mn_status (*choose)(drafter *d);
    mn_status (*add)(drafter *d, feed_list *next);
} draft_kind;

/* The draft model's next token. */
typedef struct draft_token {
    int32_t id; /* -1: nothing */
    double confidence;
} draft_token;

struct drafter {
    const draft_kind *kind;
    chooser *chooser;
    const search_setup *setup;
    const sequence *to;
    size_t n_next, most; /* tokens to be proposed next; ever */
    int32_t *proposals;  /* [n] of at most `goal` */
    size_t n, goal;
    draft_token next;    /* once it is chosen */
    bool is_chosen;      /* `next` was chosen and not yet taken */
    mn_session *session; /* of the draft model; NULL: none */
    float *
        distributions; /* [most][vocab] distribution that each proposal was drawn from; NULL: proposals are not drawn */
    uint64_t n_draws;
    vocabulary_translation translation;
    size_t n_translated, room; /* of the translated ids: those of the text; how many may follow */
    size_t *repeats;           /* scratch of prompt lookup */
    size_t repeats_capacity;
};

static size_t length_of(const drafter *d) {
    return d->to->n_prompt + d->to->n_ids;
}

static bool is_end(const drafter *d, int32_t id) {
    const mn_generation_config *config = d->setup->config;
    return !config->ignore_eos && id_list_has(&config->eos_token_id, id);
}

/* ---- prompt lookup ---- */

/* repeats[i]: how many of the last tokens also occur i places earlier (the Z algorithm, backwards). */
static void count_repeats(size_t *repeats, const int32_t *ids, size_t n) {
    const int32_t *last = ids + n - 1;
    size_t begin = 0, end = 0; /* the match that extends furthest back */
    for (size_t i = 1; i < n; i++) {
        size_t known = i < end ? (repeats[i - begin] < end - i ? repeats[i - begin] : end - i) : 0;
        while (i + known < n && *(last - known) == *(last - i - known)) known++;
        repeats[i] = known;
        if (i + known > end) {
            begin = i;
            end = i + known;
        }
    }
}

/* Proposes what follows the first occurrence of the longest n-gram, up to max_matching_ngram_size, that ends the text;
 * up to an end token. */
static mn_status begin_window(drafter *d, feed_list *next) {
    const int32_t *ids = d->to->all;
    size_t length = length_of(d), widest = (size_t)d->setup->config->max_matching_ngram_size, width = 0, at = length;
    (void)next;
    MN_TRY(mem_grow(&d->repeats, &d->repeats_capacity, length, sizeof *d->repeats));
    count_repeats(d->repeats, ids, length);
    for (size_t i = length - 1; i > 0 && width < widest; i--) {
        if (d->repeats[i] <= width) continue;
        width = d->repeats[i] < widest ? d->repeats[i] : widest;
        at = length - i;
    }
    for (; at < length && d->n < d->goal && !is_end(d, ids[at]); at++) d->proposals[d->n++] = ids[at];
    return MN_OK;
}

static const draft_kind by_window = {.begin = begin_window};

/* ---- draft models ---- */

static size_t vocab_of(const mn_session *session) {
    return (size_t)session->model->net.config.vocab_size;
}

/* Equal vocabularies may be padded to different sizes, and tokenizers may have more tokens than their models have rows.
 */
static bool all_below(const int32_t *ids, size_t n, size_t vocab) {
    size_t i = 0;
    while (i < n && (size_t)ids[i] < vocab) i++;
    return i == n;
}

/* How many tokens the draft model may append to n. */
static size_t room_of(const drafter *d, size_t n, size_t most) {
    size_t context = (size_t)d->session->model->net.config.max_position_embeddings;
    if (n >= context) return 0;
    return most < context - n ? most : context - n;
}

/* Lists the tokens of a text that the draft model has not computed, if any. */
static mn_status list_text(drafter *d, const int32_t *ids, size_t n, feed_list *next) {
    feed *f = feed_list_add(next, d->session, ids, n);
    MN_TRY(feed_sync(f, d->session, ids, n, n, NULL));
    f->is_draft = true;
    if (!f->is_done) return MN_OK;
    next->n--;
    return drafter_advance(d, next);
}

static void list_token(drafter *d, const int32_t *id, feed_list *next) {
    feed_list_add(next, d->session, id, 1)->is_draft = true;
}

/* ---- a draft model of the same vocabulary ---- */

/* Its logits as scores of the target's vocabulary, of which one may have more rows than the other. */
static void take_logits(drafter *d) {
    size_t own = vocab_of(d->session), n = own < d->chooser->vocab ? own : d->chooser->vocab;
    memcpy(d->chooser->scores, mn_session_logits(d->session), n * sizeof(float));
    for (size_t i = n; i < d->chooser->vocab; i++) d->chooser->scores[i] = -INFINITY;
}

/* The next token by the chooser's scores, and its probability. */
static draft_token next_token(drafter *d) {
    chooser *c = d->chooser;
    if (!d->distributions) {
        draft_token best = {.id = choice_best(c->scores, c->vocab), .confidence = 1};
        if (d->setup->config->assistant_confidence_threshold <= 0) return best;
        choice_weigh(&c->choice, c->scores, c->vocab);
        best.confidence = choice_probability(&c->choice, (size_t)best.id);
        return best;
    }
    enum {
        DRAFT_STREAM = 3
    }; /* its upper half; no random number is used twice, so rejected proposals do not influence later ones */
    uint64_t stream = (uint64_t)d->to->index + ((uint64_t)DRAFT_STREAM << 32);
    choice_weigh(&c->choice, c->scores, c->vocab);
    size_t drawn = choice_draw(&c->choice, random_uniform(d->setup->seed, stream, d->n_draws++));
    if (drawn == c->vocab) return (draft_token){.id = -1};
    float *distribution = d->distributions + d->n * c->vocab;
    for (size_t k = 0; k < c->vocab; k++) distribution[k] = (float)choice_probability(&c->choice, k);
    return (draft_token){.id = (int32_t)drawn, .confidence = choice_probability(&c->choice, drawn)};
}

static mn_status begin_tokens(drafter *d, feed_list *next) {
    const int32_t *ids = d->to->all;
    size_t length = length_of(d);
    d->goal = room_of(d, length, d->goal);
    if (d->goal == 0 || !all_below(ids, length, vocab_of(d->session))) return MN_OK;
    return list_text(d, ids, length, next);
}

static mn_status choose_token(drafter *d) {
    take_logits(d);
    /* Proposals are stored after the ids. */
    mn_status status = chooser_process(d->chooser, d->to->all, length_of(d) + d->n, NULL);
    d->next = (draft_token){.id = -1};
    if (status == MN_E_ARG) return MN_OK; /* no token is allowed: the target model reports that if it gets this far */
    MN_TRY(status);
    d->next = next_token(d);
    return MN_OK;
}

static mn_status add_token(drafter *d, feed_list *next) {
    if (d->next.id < 0) return MN_OK;
    int32_t *added = &d->proposals[d->n++];
    *added = d->next.id;
    bool is_last =
        d->n == d->goal || is_end(d, *added) || d->next.confidence < d->setup->config->assistant_confidence_threshold;
    if (!is_last) list_token(d, added, next);
    return MN_OK;
}

static const draft_kind by_tokens = {begin_tokens, choose_token, add_token};

/* ---- a draft model of another vocabulary ---- */

static mn_status begin_text(drafter *d, feed_list *next) {
    vocabulary_translation *r = &d->translation;
    MN_TRY(vocabulary_translation_update(r, d->to->all, length_of(d)));
    d->n_translated = r->ids.n;
    d->room = room_of(d, d->n_translated, d->goal);
    if (d->n_translated == 0 || d->room == 0 || !all_below(r->ids.ids, d->n_translated, vocab_of(d->session)))
        return MN_OK;
    return list_text(d, r->ids.ids, d->n_translated, next);
}

static mn_status choose_text(drafter *d) {
    const float *logits = mn_session_logits(d->session);
    size_t n_ends = 0, vocab = vocab_of(d->session);
    const int32_t *ends = tokenizer_end_ids(d->translation.to, &n_ends);
    int32_t id = choice_best(logits, vocab);
    bool is_text = (size_t)id < tokenizer_size(d->translation.to);
    for (size_t k = 0; k < n_ends; k++) is_text = is_text && ends[k] != id;
    d->next = (draft_token){.id = is_text ? id : -1, .confidence = 1};
    if (is_text && d->setup->config->assistant_confidence_threshold > 0)
        d->next.confidence = exp((double)logits[id] - scores_log_sum(logits, vocab));
    return MN_OK;
}

/* Appends it to the translated ids; those after the text become proposals when they are complete. */
static mn_status add_text(drafter *d, feed_list *next) {
    token_list *ids = &d->translation.ids;
    if (d->next.id >= 0) {
        MN_TRY(mem_grow(&ids->ids, &ids->capacity, ids->n + 1, sizeof *ids->ids));
        ids->ids[ids->n++] = d->next.id;
        bool is_last = ids->n == d->n_translated + d->room ||
                       d->next.confidence < d->setup->config->assistant_confidence_threshold;
        if (!is_last) {
            list_token(d, &d->next.id, next);
            return MN_OK;
        }
    }
    return vocabulary_translation_reverse(&d->translation, d->to->all, length_of(d), d->n_translated, d->goal,
                                          d->proposals, &d->n);
}

static const draft_kind by_text = {begin_text, choose_text, add_text};

/* ---- opening ---- */

static bool is_same_vocabulary(const tokenizer *a, const tokenizer *b) {
    size_t n = tokenizer_size(a);
    if (n != tokenizer_size(b)) return false;
    for (size_t i = 0; i < n; i++) {
        size_t n_a = 0, n_b = 0;
        const char *x = tokenizer_piece(a, (int32_t)i, &n_a), *y = tokenizer_piece(b, (int32_t)i, &n_b);
        if (!x != !y || (x && (n_a != n_b || memcmp(x, y, n_a) != 0))) return false;
    }
    return true;
}

static const draft_kind *kind_of(const search_setup *setup) {
    const mn_model *draft = setup->options->assistant, *target = setup->session->owner;
    if (!draft) return &by_window;
    if (draft->text && target->text && !is_same_vocabulary(draft->text, target->text)) return &by_text;
    return &by_tokens;
}

mn_status drafter_check(const search_setup *setup) {
    const mn_model *draft = setup->options->assistant, *target = setup->session->owner;
    if (!draft || (draft->text && target->text)) return MN_OK;
    long long theirs = (long long)draft->core->net.config.vocab_size,
              ours = (long long)target->core->net.config.vocab_size;
    if (theirs == ours) return MN_OK;
    MN_FAIL(
        MN_E_ARG,
        "the draft model has another vocabulary, %lld tokens, than the model, %lld; that takes a tokenizer of both, and %s has none",
        theirs, ours, draft->text ? "the model" : "the draft model");
}

size_t drafter_most(const search_setup *setup) {
    const mn_generation_config *config = setup->config;
    bool grows = setup->options->assistant && config->num_assistant_tokens_schedule != DRAFT_CONSTANT;
    int64_t n = setup->options->assistant ? config->num_assistant_tokens : config->prompt_lookup_num_tokens;
    if (grows || n > MOST_DRAFT) n = MOST_DRAFT;
    if (n > (int64_t)setup->max_new) n = (int64_t)setup->max_new;
    return (size_t)n;
}

static mn_status open_model(drafter *d, const drafter *like) {
    const search_setup *setup = d->setup;
    mn_model *model = setup->options->assistant;
    if (setup->config->do_sample && d->kind == &by_tokens) {
        d->distributions = mem_alloc_raw(d->most * d->chooser->vocab, sizeof *d->distributions);
        if (!d->distributions) return MN_E_NOMEM;
    }
    if (d->kind == &by_text)
        MN_TRY(vocabulary_translation_open(&d->translation, setup->session->owner->text, model->text));
    return like ? session_open_like(&d->session, like->session) : mn_session_open(&d->session, model, NULL);
}

mn_status drafter_open(drafter **out, chooser *c, const sequence *to, const drafter *like) {
    const search_setup *setup = c->setup;
    const mn_generation_config *config = setup->config;
    drafter *d = mem_alloc(1, sizeof *d);
    *out = d;
    if (!d) return MN_E_NOMEM;
    *d = (drafter){.kind = like ? like->kind : kind_of(setup),
                   .chooser = c,
                   .setup = setup,
                   .to = to,
                   .most = drafter_most(setup)};
    d->n_next = d->most;
    if (!setup->options->assistant) return MN_OK;
    if ((int64_t)d->n_next > config->num_assistant_tokens) d->n_next = (size_t)config->num_assistant_tokens;
    return open_model(d, like);
}

void drafter_close(drafter **d) {
    if (!*d) return;
    mn_session_close(&(*d)->session);
    vocabulary_translation_close(&(*d)->translation);
    mem_free((*d)->distributions);
    mem_free((*d)->repeats);
    mem_free(*d);
    *d = NULL;
}

void drafter_drop_pages(drafter *d) {
    if (d && d->session) session_drop_pages(d->session);
}

void drafter_list_prompt(drafter *d, feed_list *next) {
    const search_setup *setup = d->setup;
    bool is_shared = d->kind == &by_tokens && room_of(d, setup->n_prompt, 1) > 0 &&
                     all_below(setup->prompt, setup->n_prompt, vocab_of(d->session));
    if (is_shared) feed_list_add(next, d->session, setup->prompt, setup->n_prompt)->is_draft = true;
}

mn_status drafter_share(drafter *d, const drafter *from) {
    return session_refork(d->session, from->session, false);
}

mn_status drafter_begin(drafter *d, size_t most, int32_t *proposals, feed_list *next) {
    d->proposals = proposals;
    d->n = 0;
    d->goal = most < d->n_next ? most : d->n_next;
    return d->goal > 0 ? d->kind->begin(d, next) : MN_OK;
}

void drafter_choose(drafter *d) {
    d->is_chosen = d->kind->choose(d) == MN_OK;
}

mn_status drafter_advance(drafter *d, feed_list *next) {
    if (!d->is_chosen) MN_TRY(d->kind->choose(d));
    d->is_chosen = false;
    return d->kind->add(d, next);
}

size_t drafter_count(const drafter *d) {
    size_t n = d->n;
    while (!all_below(d->proposals, n, d->chooser->vocab)) n--;
    return n;
}

const float *drafter_distribution(const drafter *d, size_t i) {
    return d->distributions ? d->distributions + i * d->chooser->vocab : NULL;
}

void drafter_learn(drafter *d, size_t n_proposed, size_t n_accepted) {
    enum { MORE = 2 };
    if (!d->session || n_proposed == 0 || d->setup->config->num_assistant_tokens_schedule == DRAFT_CONSTANT) return;
    if (n_accepted < n_proposed) {
        d->n_next = d->n_next > 1 ? d->n_next - 1 : 1;
    } else {
        d->n_next = d->n_next + MORE < d->most ? d->n_next + MORE : d->most;
    }
}
