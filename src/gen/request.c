/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/cache_request.h"
#include "gen/request.h"

#include <stdio.h>
#include <string.h>

#include "gen/search/dola.h"
#include "gen/config/validation.h"
#include "kv/plan_rows.h"

struct shared_constraint {
    constraint *constraint;
    size_t n_users;
};

/* ---- limits ---- */

enum { MOST_NEW = 1 << 20 }; /* default where nothing else limits the number */

/* Positions that the model was trained for. RoPE scaling by length extends them, and they are unlimited when every
 * query has a window. */
static int64_t context_of(const mn_session *session) {
    const model_config *c = &session->model->net.config;
    if (session_has_unbounded_context(session) || c->max_position_embeddings == CONFIG_UNBOUNDED)
        return (int64_t)1 << 40;
    double scale = c->rope_scaling.rope_type == ROPE_DYNAMIC ? c->rope_scaling.factor : 1;
    return (int64_t)((double)c->max_position_embeddings * scale);
}

/* The most tokens of a sequence; the last one is never fed, so it needs no room in the cache. */
static mn_status plan_length(search_setup *setup) {
    const mn_generation_config *config = setup->config;
    const kv_options *kv = &setup->session->plan.options;
    int64_t prompt = (int64_t)setup->n_prompt, context = context_of(setup->session), max_new = -1;
    if (config->max_length >= 0) max_new = config->max_length - prompt;
    if (config->max_new_tokens >= 0) max_new = config->max_new_tokens;
    if (!kv->limit && prompt > context) { /* an explicit limit may exceed the trained context */
        MN_FAIL(MN_E_ARG, "the prompt has %lld tokens, the model's context %lld", (long long)prompt,
                (long long)context);
    }
    if (config->max_new_tokens < 0 && config->max_length >= 0 && max_new <= 0) {
        MN_FAIL(MN_E_ARG, "max_length is %lld but the prompt has %lld tokens already", (long long)config->max_length,
                (long long)prompt);
    }
    if (kv->limit) {
        int64_t most = kv->limit - prompt + 1;
        if (most < 1 || (max_new > most && setup->session->plan.self.preallocates)) {
            MN_FAIL(MN_E_FULL, "max_cache_len is %lld: too small for a prompt of %lld tokens and %lld new ones",
                    (long long)kv->limit, (long long)prompt, (long long)(max_new > 0 ? max_new : 1));
        }
        if (max_new < 0 || max_new > most) max_new = most;
    } else {
        int64_t most = context - prompt + 1;
        if (max_new < 0)
            max_new = min_i64(most, min_i64(setup->session->model->net.config.max_position_embeddings, MOST_NEW));
        if (max_new > most) max_new = most;
    }
    setup->max_new = (size_t)max_new;
    return MN_OK;
}

/* ---- opening ---- */

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Whether two configurations have the same constraint, which includes their end tokens. */
static bool same_form(const mn_generation_config *a, const mn_generation_config *b) {
    const id_list *x = &a->eos_token_id, *y = &b->eos_token_id;
    return same_text(a->json_schema, b->json_schema) && same_text(a->regex, b->regex) &&
           same_text(a->grammar, b->grammar) && x->n == y->n &&
           (x->n == 0 || memcmp(x->ids, y->ids, x->n * sizeof *x->ids) == 0);
}

mn_status request_make_constraint(constraint **out, const mn_generation_config *config, const tokenizer *text,
                                  size_t vocab) {
    const id_list *end = &config->eos_token_id;
    if (!text)
        MN_FAIL(MN_E_ARG, "%s needs a tokenizer, and this checkpoint has none", generation_config_constraint(config));
    if (config->regex)
        return constraint_open_regex(out, config->regex, strlen(config->regex), text, end->ids, end->n, vocab);
    if (config->grammar)
        return constraint_open_grammar(out, config->grammar, strlen(config->grammar), text, end->ids, end->n, vocab);
    json_doc *schema = NULL;
    MN_TRY(json_parse(&schema, config->json_schema, strlen(config->json_schema), JSON_STRICT, "json_schema"));
    mn_status status = constraint_open_schema(out, json_root(schema), text, end->ids, end->n, vocab);
    json_close(&schema);
    return status;
}

static request *same_form_among(const request *r, request *const *others, size_t n_others) {
    for (size_t i = 0; i < n_others; i++) {
        if (others[i] != r && others[i]->constraint && same_form(others[i]->setup.config, r->setup.config))
            return others[i];
    }
    return NULL;
}

/* Requests with equal constraints share one object, which they use in turn. */
static mn_status open_constraint(request *r, request *const *others, size_t n_others) {
    const mn_generation_config *config = r->setup.config;
    const tokenizer *text = r->setup.session->owner->text;
    if (!generation_config_constraint(config)) return MN_OK;
    const request *other = same_form_among(r, others, n_others);
    if (other) {
        r->constraint = other->constraint;
    } else {
        r->constraint = mem_alloc(1, sizeof *r->constraint);
        if (!r->constraint) return MN_E_NOMEM;
    }
    r->constraint->n_users++;
    if (!r->constraint->constraint)
        MN_TRY(request_make_constraint(&r->constraint->constraint, config, text,
                                       (size_t)r->setup.session->model->net.config.vocab_size));
    r->setup.constraint = r->constraint->constraint;
    return MN_OK;
}

static void close_constraint(request *r) {
    shared_constraint *shared = r->constraint;
    r->constraint = NULL;
    if (!shared || --shared->n_users > 0) return;
    constraint_close(&shared->constraint);
    mem_free(shared);
}

void request_share_constraint(request *r, request *const *others, size_t n_others) {
    const request *other = r->constraint ? same_form_among(r, others, n_others) : NULL;
    if (!other) return;
    close_constraint(r);
    r->constraint = other->constraint;
    r->constraint->n_users++;
    r->setup.constraint = r->constraint->constraint;
}

static mn_status open_sequences(request *r) {
    search_setup *setup = &r->setup;
    r->sequences = mem_alloc(setup->n_sequences, sizeof *r->sequences);
    if (!r->sequences) return MN_E_NOMEM;
    setup->sequences = r->sequences;
    for (; r->n_opened < setup->n_sequences; r->n_opened++) {
        sequence *s = &r->sequences[r->n_opened];
        mn_status status = sequence_open(s, setup->session, setup->config, setup->options, setup->prompt,
                                         setup->n_prompt, setup->max_new);
        s->row = setup->row;
        s->index = (int)r->n_opened;
        if (status != MN_OK) {
            sequence_close(s);
            return status;
        }
    }
    setup->prompt = r->sequences[0].all; /* a copy, which stays */
    return MN_OK;
}

static mn_status check_prompt(const search_setup *setup) {
    size_t vocab = (size_t)setup->session->model->net.config.vocab_size;
    if (setup->n_prompt == 0) MN_FAIL(MN_E_ARG, "the prompt is empty");
    for (size_t i = 0; i < setup->n_prompt; i++) {
        if (setup->prompt[i] >= 0 && (size_t)setup->prompt[i] < vocab) continue;
        MN_FAIL(MN_E_ARG, "token %zu of the prompt is %d, allowed: 0 to %zu", i, setup->prompt[i], vocab - 1);
    }
    return MN_OK;
}

/* Outputs of the prompt's computation besides the session's logits. */
static mn_status open_prompt_results(request *r) {
    search_setup *setup = &r->setup;
    const model_config *config = &setup->session->model->net.config;
    if (r->kind->wants_states) {
        r->prompt_states = mem_alloc_raw(setup->n_prompt * (size_t)config->hidden_size, sizeof *r->prompt_states);
        if (!r->prompt_states) return MN_E_NOMEM;
        setup->prompt_states = r->prompt_states;
    }
    MN_TRY(dola_read(&r->exits, &setup->n_exits, &setup->config->dola_layers, config));
    setup->exits = r->exits;
    if (setup->n_exits == 0) return MN_OK;
    setup->exit_logits = mem_alloc_raw((size_t)setup->n_exits * (size_t)config->vocab_size, sizeof *setup->exit_logits);
    return setup->exit_logits ? MN_OK : MN_E_NOMEM;
}

mn_status request_open(request *r, const mn_generate_options *options, uint64_t seed, request *const *others,
                       size_t n_others) {
    search_setup *setup = &r->setup;
    int32_t vocab = (int32_t)setup->session->model->net.config.vocab_size;
    r->options = *options;
    if (options->assistant) r->assistant = model_hold(options->assistant);
    r->pool = setup->session->model->pool;
    kv_pool_watch(r->pool, &r->watch);
    r->vocab = (size_t)vocab;
    r->started = r->prompt_ended = clock_ms();
    r->prefill.is_done = true; /* not started */
    setup->options = &r->options;
    setup->seed = seed;
    setup->steps = &r->steps;
    setup->started = r->started;
    if (options->top_logprobs < -1 || options->top_logprobs > vocab)
        MN_FAIL(MN_E_ARG, "top_logprobs is %d, allowed: -1 (none) to %d", options->top_logprobs, vocab);
    MN_TRY(check_prompt(setup));
    MN_TRY(validation_check(setup->config, setup->options));
    MN_TRY(plan_length(setup));
    MN_TRY(open_constraint(r, others, n_others));
    setup->n_sequences = (size_t)setup->config->num_return_sequences;
    r->kind = search_choose(setup->config, setup->options);
    if (r->kind->check) MN_TRY(r->kind->check(setup));
    r->feeds.capacity = r->kind->most_feeds(setup);
    r->feeds.feeds = mem_alloc(r->feeds.capacity, sizeof *r->feeds.feeds);
    if (!r->feeds.feeds) return MN_E_NOMEM;
    MN_TRY(open_prompt_results(r));
    return open_sequences(r);
}

mn_status request_session(mn_session **out, mn_model *model, const mn_cache_options *cache, const mn_batch_row *row,
                          const mn_generation_config *config) {
    const mn_session *prefix = row->prefix;
    *out = NULL;
    if (!prefix) return cache_request_open(out, model, cache, config, row->n_prompt);
    if (prefix->owner != model) MN_FAIL(MN_E_ARG, "the prefix is a session of another model");
    MN_TRY(mn_session_fork(out, prefix));
    mn_status status = cache_request_follow(*out, config, row->n_prompt);
    if (status != MN_OK) {
        mn_session_close(out);
        return status;
    }
    for (int i = 0; i < kv_entries((*out)->cache); i++) {
        if (kv_entry_spec((*out)->cache, i)->flush) session_empty(*out);
    }
    return MN_OK;
}

mn_status request_copy_negative(request *r) {
    size_t n = r->options.n_negative_prompt;
    if (n == 0) return MN_OK;
    r->own_negative = mem_alloc_raw(n, sizeof *r->own_negative);
    if (!r->own_negative) return MN_E_NOMEM;
    memcpy(r->own_negative, r->options.negative_prompt, n * sizeof *r->own_negative);
    r->options.negative_prompt = r->own_negative;
    return MN_OK;
}

uint64_t request_seed(const mn_generation_config *config) {
    if (config->seed >= 0) return (uint64_t)config->seed;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec) & 0xFFFFFFFFu;
}

/* ---- going on ---- */

static mn_status begin(request *r) {
    search_setup *setup = &r->setup;
    size_t keep = r->kind->wants_states ? 0 : setup->n_prompt - (setup->n_exits > 0);
    r->has_started = true;
    r->prompt_started = clock_ms();
    MN_TRY(feed_sync(&r->prefill, setup->session, setup->prompt, setup->n_prompt, keep, &r->cached_tokens));
    r->prefill.is_prompt = true;
    r->prefill.states = r->prompt_states;
    r->prefill.pause = r->branch;
    r->prefill.exits = setup->exits;
    r->prefill.n_exits = setup->n_exits;
    r->prefill.exit_logits = setup->exit_logits;
    r->prompt_tokens = setup->n_prompt - r->cached_tokens;
    if (r->prefill.is_done) return MN_OK;
    mn_status status = feed_begin(&r->prefill);
    if (status != MN_OK) r->prefill.is_done = true; /* nothing to undo */
    return status;
}

static bool has_feeds(const request *r) {
    for (size_t i = 0; i < r->feeds.n; i++) {
        if (!r->feeds.feeds[i].is_done) return true;
    }
    return !r->prefill.is_done;
}

static void undo(request *r) {
    if (r->prefill.session) feed_undo(&r->prefill);
    r->prefill.is_done = true;
    for (size_t f = 0; f < r->feeds.n; f++) feed_undo(&r->feeds.feeds[f]);
    r->feeds.n = 0;
}

static void unwatch(request *r) {
    if (r->pool) kv_pool_unwatch(r->pool, &r->watch);
    r->pool = NULL;
}

/* Kept sessions belong to the caller. */
static void leave_relatives(request *r) {
    mn_session *first = r->setup.session;
    while (first->next_in_ring && first->next_in_ring != first) session_leave_ring(first->next_in_ring);
    session_leave_ring(first);
}

/* A finished request frees everything but its sequences, so that running requests can use its pages. */
static void end(request *r) {
    mn_cache_info *cache = &r->cache;
    r->is_done = true;
    r->ended = clock_ms();
    cache->size = sizeof *cache;
    if (r->setup.session->cache) mn_session_cache(r->setup.session, cache);
    unwatch(r); /* the result may outlive the model; others of the pool write the watch until here */
    cache->peak_bytes = r->watch.most;
    snprintf(r->implementation, sizeof r->implementation, "%s", r->setup.session->plan.name);
    snprintf(r->original_implementation, sizeof r->original_implementation, "%s",
             cache->original_implementation ? cache->original_implementation : "");
    cache->implementation = r->implementation; /* texts that outlive the session */
    if (cache->original_implementation) cache->original_implementation = r->original_implementation;
    if (r->state) r->kind->close(r->state);
    r->state = NULL;
    mn_model_close(&r->assistant);
    close_constraint(r); /* other requests may use it */
    r->setup.constraint = NULL;
    prefix_end(&r->announced);
    if (r->root && r->status == MN_OK) prefix_keep(r->root, r->setup.session, r->owner->name);
    prefix_root_release(&r->root);
    leave_relatives(r);
    r->setup.session = NULL;
    if (r->options.keep_sessions && r->n_opened) {
        r->sequences[0].session_kept = r->own_session;
        r->own_session = NULL;
    }
    mn_session_close(&r->own_session);
}

bool request_can_choose(const request *r) {
    return r->state && r->kind->choose && !r->options.process && !r->options.prefix_allowed && !has_feeds(r);
}

void request_choose(request *r) {
    r->kind->choose(r->state);
}

mn_status request_advance(request *r) {
    if (!r->has_started) MN_TRY(begin(r));
    if (r->is_done || has_feeds(r)) return MN_OK;
    if (!r->is_prefilled) {
        MN_TRY(r->kind->open(&r->state, &r->setup));
        r->is_prefilled = true;
    }
    r->feeds.n = 0;
    mn_status status = r->kind->advance(r->state, &r->feeds);
    size_t n = r->feeds.n;
    r->feeds.n = 0; /* feeds that were not started need no undo */
    MN_TRY(status);
    for (; r->feeds.n < n; r->feeds.n++) MN_TRY(feed_begin(&r->feeds.feeds[r->feeds.n]));
    if (n == 0) end(r);
    return MN_OK;
}

bool request_is_aborted(const request *r) {
    return !r->is_done && r->options.abort_callback && r->options.abort_callback(r->options.user);
}

bool request_is_cancelled(request *r) {
    if (r->setup.session && atomic_exchange(&r->setup.session->cancelled, false)) return true;
    for (size_t k = 0; k < r->n_opened; k++) {
        if (r->sequences[k].cancelled) return true;
    }
    return false;
}

/* The partial result of a cancelled request. */
static mn_status cut(request *r) {
    if (r->state) MN_TRY(r->kind->end(r->state, "cancelled"));
    for (size_t k = 0; k < r->n_opened; k++) MN_TRY(sequence_end(&r->sequences[k], "cancelled"));
    return MN_OK;
}

void request_stop(request *r, mn_status status) {
    r->was_cancelled = r->was_cancelled || status == MN_E_CANCELLED;
    if (r->is_done) return;
    undo(r);
    if (status == MN_E_CANCELLED) status = cut(r);
    r->status = status;
    if (status != MN_OK) snprintf(r->error, sizeof r->error, "%s", mn_last_error());
    end(r);
}

mn_status request_status(const request *r) {
    return r->status == MN_OK ? MN_OK : status_fail(r->status, "%s", r->error);
}

void request_close(request *r) {
    unwatch(r);
    undo(r);
    prefix_end(&r->announced);
    prefix_root_release(&r->root);
    if (r->state) r->kind->close(r->state);
    mn_model_close(&r->assistant);
    mn_session_close(&r->own_session);
    for (size_t i = 0; i < r->n_opened; i++) sequence_close(&r->sequences[i]);
    close_constraint(r);
    mem_free(r->sequences);
    mem_free(r->prompt_states);
    mem_free(r->setup.exit_logits);
    mem_free(r->exits);
    mem_free(r->feeds.feeds);
    mem_free(r->steps.scores);
    mem_free(r->steps.logits);
    mem_free(r->own_negative);
    mem_free(r->cache_salt);
    mn_generation_config_close(&r->own_config);
}

/* ---- memory ---- */

/* Pages of rows that share a prompt and add `own` tokens each. */
static mn_status count_pages(size_t *need, const mn_session *s, const kv_spec *specs, int n, int64_t prompt,
                             int64_t own, size_t rows) {
    kv_run_bytes pages;
    MN_TRY(session_plan_run(&pages, s, specs, n, prompt, own, (int64_t)rows));
    *need = pages.prompt > pages.rows ? pages.prompt : pages.rows;
    return MN_OK;
}

/* A draft model has a cache of its own kind for each returned sequence. */
static mn_status count_draft_pages(size_t *need, const request *r, int64_t own) {
    const search_setup *setup = &r->setup;
    mn_session *s = NULL;
    kv_spec *specs = NULL;
    int n = 0;
    *need = 0;
    if (!setup->options->assistant) return MN_OK;
    MN_TRY(session_open_plan(&s, setup->options->assistant, NULL));
    mn_status status = session_specs(&specs, &n, s);
    if (status == MN_OK) status = count_pages(need, s, specs, n, (int64_t)setup->n_prompt, own, setup->n_sequences);
    mem_free(specs);
    mn_session_close(&s);
    return status;
}

mn_status request_need(const request *r, int64_t ahead, size_t *need, size_t *draft_need) {
    const search_setup *setup = &r->setup;
    const mn_session *s = setup->session;
    kv_spec *specs = NULL;
    int n = 0;
    *need = *draft_need = SIZE_MAX;
    MN_TRY(session_specs(&specs, &n, s));
    bool flushes = false;
    for (int i = 0; i < n; i++) flushes = flushes || specs[i].flush;
    int64_t prompt = (int64_t)setup->n_prompt, most = (int64_t)setup->max_new,
            own = max_i64((int64_t)s->n_ids - prompt, 0) + ahead;
    if (flushes || s->plan.self.preallocates || own > most) own = most;
    mn_status status = count_pages(need, s, specs, n, prompt, own, r->feeds.capacity);
    mem_free(specs);
    return status == MN_OK ? count_draft_pages(draft_need, r, own) : status;
}

bool request_may_be_preempted(const request *r) {
    const mn_session *s = r->setup.session;
    return s->cache && session_may_drop_pages(s);
}

void request_preempt(request *r) {
    mn_session *first = r->setup.session, *s = first;
    if (!r->has_started) request_leave_prefix(r);
    prefix_end(&r->announced);
    r->resumes = r->is_prefilled && !first->model->net.config.encoder;
    if (r->root && r->has_started) prefix_keep(r->root, first, r->owner->name); /* until the memory is needed */
    if (r->state && r->kind->drop_draft_pages) r->kind->drop_draft_pages(r->state);
    do {
        session_drop_pages(s);
        s = s->next_in_ring;
    } while (s && s != first);
}

bool request_compute_apart(request *r) {
    if (r->is_apart || !r->root || !request_may_be_preempted(r)) return false;
    request_preempt(r);
    r->is_apart = true;
    return true;
}

void request_retry(request *r) {
    r->prefill.has_failed = false;
    for (size_t i = 0; i < r->feeds.n; i++) r->feeds.feeds[i].has_failed = false;
}

/* ---- what it shares ---- */

static bool shares_prefixes(const request *r) {
    bool has_encoder = r->setup.session->model->net.config.encoder;
    return r->prefixes && r->own_session && !has_encoder && !r->kind->wants_states;
}

mn_status request_find_prefix(request *r, prefix_match *match) {
    *match = (prefix_match){0};
    if (!shares_prefixes(r)) return MN_OK;
    if (!r->root) {
        MN_TRY(prefix_root_of(&r->root, r->prefixes, r->setup.session, r->cache_salt));
        if (r->root) prefix_root_use(r->root);
    }
    const mn_session *s = r->setup.session;
    /* The last token's logits are needed. */
    if (r->root && !r->has_started) *match = prefix_find(r->root, r->setup.prompt, r->setup.n_prompt - 1);
    if (r->root && r->has_started && s->n_ids > 1) *match = prefix_find(r->root, s->ids, s->n_ids - 1);
    return MN_OK;
}

mn_status request_begin_prefix(request *r, const prefix_match *match) {
    if (!r->root) {
        if (r->prefixes) r->match = (prefix_end_reason){"strategy", -1};
        return MN_OK;
    }
    r->match = prefix_explain(r->root, r->setup.prompt, r->setup.n_prompt - 1, match);
    MN_TRY(prefix_begin(r->root, r->setup.session, r->setup.prompt, match));
    r->branch = match->branch;
    if (r->has_waited && match->entry && prefix_is_from_file(match->entry) && match->now > r->in_memory)
        r->file_tokens = (size_t)(match->now - r->in_memory);
    return prefix_announce(&r->announced, r->root, r->setup.session, r->setup.prompt, r->setup.n_prompt);
}

void request_leave_prefix(request *r) {
    prefix_end(&r->announced);
    r->file_tokens = 0;
    if (r->root) session_empty(r->setup.session);
}

void request_resume_prefixes(request *r) {
    mn_session *first = r->setup.session, *s = first;
    if (!r->root || r->is_apart) return;
    do {
        prefix_resume(r->root, s);
        s = s->next_in_ring;
    } while (s && s != first);
}

mn_status request_shared_bytes(request *r, size_t *shared) {
    const mn_session *s = r->setup.session;
    const int64_t page = s->plan.options.page_tokens;
    prefix_match match;
    kv_spec *specs = NULL;
    int n = 0;
    *shared = 0;
    MN_TRY(request_find_prefix(r, &match));
    if (match.now < page) return MN_OK;
    prefix_touch(&match);
    MN_TRY(session_specs(&specs, &n, s));
    *shared = kv_plan_bytes(specs, n, &s->plan.options, match.now / page * page);
    mem_free(specs);
    return MN_OK;
}

void request_keep_prefix(request *r) {
    const mn_session *s = r->setup.session;
    if (!r->root || r->is_done || !prefix_needs_entries(r->root)) return;
    int64_t n = kv_length(s->cache);
    if (n == r->branch || n == (int64_t)r->setup.n_prompt) prefix_keep(r->root, s, r->owner->name);
}

/* ---- its feeds ---- */

size_t request_most_feeds(const request *r) {
    return r->feeds.capacity + 1;
}

/* How many tokens before those of the feed another session begins with, too; 0: their pages cannot be the same. */
static size_t in_common(const feed *f, const mn_session *other) {
    const mn_session *s = f->session;
    const size_t most = f->before < other->n_ids ? f->before : other->n_ids;
    size_t n = 0;
    if (s->model != other->model || s->regime != other->regime) return 0;
    if (*s->original_implementation || *other->original_implementation) return 0;
    while (n < most && s->ids[n] == other->ids[n]) n++;
    return n;
}

/* The feed that a preempted request computes next. Where other rows go on with other tokens, they become forks of it,
 * as they were before: so what they have in common is computed and held once. NULL: all are done. */
static feed *next_to_resume(request *r) {
    feed *next = NULL;
    for (size_t i = 0; i < r->feeds.n; i++) {
        feed *f = &r->feeds.feeds[i];
        if (f->is_done || f->is_draft) continue;
        if (!next) {
            next = f;
            next->pause = 0;
            continue;
        }
        const int64_t n = (int64_t)in_common(f, next->session), has = kv_length(next->session->cache);
        if (n == has && n > kv_length(f->session->cache)) session_refork_cache(f->session, next->session);
        if (n > has && (next->pause == 0 || n < next->pause)) next->pause = n;
    }
    return next;
}

size_t request_list_feeds(request *r, feed **list, size_t n) {
    if (r->resumes && r->prefill.is_done) {
        feed *next = next_to_resume(r);
        r->resumes = next != NULL;
        if (next) {
            list[n++] = next;
            return n;
        }
    }
    if (!r->prefill.is_done) list[n++] = &r->prefill;
    for (size_t i = 0; i < r->feeds.n; i++) {
        if (!r->feeds.feeds[i].is_done) list[n++] = &r->feeds.feeds[i];
    }
    return n;
}

bool request_has_failed(const request *r) {
    bool failed = r->prefill.has_failed;
    for (size_t i = 0; i < r->feeds.n; i++) failed = failed || r->feeds.feeds[i].has_failed;
    return failed;
}

bool request_has_failed_itself(const request *r) {
    bool failed = r->prefill.has_failed;
    for (size_t i = 0; i < r->feeds.n; i++)
        failed = failed || (r->feeds.feeds[i].has_failed && !r->feeds.feeds[i].is_draft);
    return failed;
}

size_t request_prompt_done(const request *r) {
    const feed *f = &r->prefill;
    size_t left = f->is_done ? 0 : f->session->n_ids - (size_t)kv_length(f->session->cache);
    return r->prompt_tokens > left ? r->prompt_tokens - left : 0;
}
