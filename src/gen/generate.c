/* The loop: prompts in, every row's search asked what it needs, all of it computed in one pass, until each has its sequences.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "gen/dola.h"
#include "gen/search.h"
#include "gen/validation.h"

/* One input row: its prompt is computed first, then its search goes on. */
typedef struct gen_row {
    search_setup setup;
    bool owns_session, is_prefilled, is_done;
    size_t cached_tokens;
    mn_cache_info cache; /* when it was done */
    const search_kind *kind;
    void *state; /* of the search */
    feed prefill;
    float *prompt_states; /* owned; NULL: not wanted */
    int *exits;           /* owned; NULL: none */
    feed_list feeds;      /* in flight */
    sequence *sequences;  /* [n_opened] */
    size_t n_opened;
    step_log steps;
    constraint *constraint; /* owned */
} gen_row;

typedef struct gen_result {
    mn_generation public; /* first member: the handle points here */
    gen_row *rows;
    size_t n_rows;
    mn_sequence *sequences;
    float *beam_scores, *beam_logits;
} gen_result;

typedef struct gen_run {
    mn_generate_options options;
    gen_result *result;
    feed **active;                     /* [sum of the rows' feeds] scratch of a pass */
    size_t prompt_tokens, prompt_done; /* to be computed, computed */
    double started, prompt_ended;
} gen_run;

mn_generate_options mn_generate_options_default(void) {
    return (mn_generate_options){.size = sizeof(mn_generate_options), .top_logprobs = -1};
}

/* ---- limits ---- */

enum { MOST_NEW = 1 << 20 }; /* where nothing else says how many */

/* Positions that the model was made for; rules that stretch the rotation with the length reach further, and a window that
 * every query looks through makes them endless. */
static int64_t context_of(const mn_session *session) {
    const model_config *c = &session->model->config;
    if (session_is_endless(session) || c->max_position_embeddings == CONFIG_ENDLESS) return (int64_t)1 << 40;
    double stretch = c->rope_scaling.rope_type == ROPE_DYNAMIC ? c->rope_scaling.factor : 1;
    return (int64_t)((double)c->max_position_embeddings * stretch);
}

/* How many tokens a row may get; the last one is never fed, so it needs no room. */
static mn_status plan_length(search_setup *row) {
    const mn_generation_config *config = row->config;
    const kv_options *kv = &row->session->plan.options;
    int64_t prompt = (int64_t)row->n_prompt, context = context_of(row->session), wanted = -1;
    if (config->max_length >= 0) wanted = config->max_length - prompt;
    if (config->max_new_tokens >= 0) wanted = config->max_new_tokens;
    if (!kv->limit && prompt > context) { /* a limit of one's own may pass the trained context */
        MN_FAIL(MN_E_ARG, "the prompt has %lld tokens, the model's context %lld", (long long)prompt,
                (long long)context);
    }
    if (config->max_new_tokens < 0 && config->max_length >= 0 && wanted <= 0) {
        MN_FAIL(MN_E_ARG, "max_length is %lld but the prompt has %lld tokens already",
                (long long)config->max_length, (long long)prompt);
    }
    if (kv->limit) {
        int64_t most = kv->limit - prompt + 1;
        if (most < 1 || (wanted > most && kv->reserve)) {
            MN_FAIL(MN_E_FULL,
                    "max_cache_len is %lld: too small for a prompt of %lld tokens and %lld new ones",
                    (long long)kv->limit, (long long)prompt, (long long)(wanted > 0 ? wanted : 1));
        }
        if (wanted < 0 || wanted > most) wanted = most;
    } else {
        int64_t most = context - prompt + 1;
        if (wanted < 0)
            wanted = min_i64(most, min_i64(row->session->model->config.max_position_embeddings, MOST_NEW));
        if (wanted > most) wanted = most;
    }
    row->max_new = (size_t)wanted;
    return MN_OK;
}

/* ---- rows ---- */

/* Rows with one configuration share the constraint: it is asked by one row after the other. */
static mn_status open_constraint(gen_run *run, gen_row *row) {
    const mn_generation_config *config = row->setup.config;
    const tokenizer *text = row->setup.session->owner->text;
    const id_list *end = &config->eos_token_id;
    size_t vocab = (size_t)row->setup.session->model->config.vocab_size;
    if (!config->json_schema && !config->regex) return MN_OK;
    if (!text)
        MN_FAIL(MN_E_ARG, "%s needs a tokenizer, and this checkpoint has none",
                config->regex ? "regex" : "json_schema");
    for (const gen_row *other = run->result->rows; other < row; other++) {
        if (other->setup.config == config) {
            row->setup.constraint = other->setup.constraint;
            return MN_OK;
        }
    }
    mn_status status;
    if (config->regex) {
        status = constraint_open_regex(&row->constraint, config->regex, strlen(config->regex), text, end->ids,
                                       end->n, vocab);
    } else {
        json_doc *schema = NULL;
        MN_TRY(json_parse(&schema, config->json_schema, strlen(config->json_schema), JSON_STRICT,
                          "json_schema"));
        status = constraint_open_schema(&row->constraint, json_root(schema), text, end->ids, end->n, vocab);
        json_close(&schema);
    }
    row->setup.constraint = row->constraint;
    return status;
}

static mn_status open_sequences(gen_row *row) {
    search_setup *setup = &row->setup;
    row->sequences = mem_alloc(setup->n_sequences, sizeof *row->sequences);
    if (!row->sequences) return MN_E_NOMEM;
    setup->sequences = row->sequences;
    for (; row->n_opened < setup->n_sequences; row->n_opened++) {
        sequence *s = &row->sequences[row->n_opened];
        mn_status status = sequence_open(s, setup->session, setup->config, setup->options, setup->prompt,
                                         setup->n_prompt, setup->max_new);
        s->row = setup->row;
        s->index = (int)row->n_opened;
        if (status != MN_OK) {
            sequence_close(s);
            return status;
        }
    }
    return MN_OK;
}

/* Everything that can be refused before anything is computed. */
static mn_status open_row(gen_run *run, gen_row *row, const mn_batch_row *input, uint64_t seed) {
    search_setup *setup = &row->setup;
    size_t vocab = (size_t)setup->session->model->config.vocab_size;
    setup->prompt = input->prompt;
    setup->n_prompt = input->n_prompt;
    setup->options = &run->options;
    setup->row = (int)(row - run->result->rows);
    setup->seed = seed;
    setup->steps = &row->steps;
    if (setup->n_prompt == 0) MN_FAIL(MN_E_ARG, "the prompt is empty");
    for (size_t i = 0; i < setup->n_prompt; i++) {
        if (setup->prompt[i] < 0 || (size_t)setup->prompt[i] >= vocab) {
            MN_FAIL(MN_E_ARG, "token %zu of the prompt is %d, allowed: 0 to %zu", i, setup->prompt[i],
                    vocab - 1);
        }
    }
    MN_TRY(validation_check(setup->config, setup->options));
    MN_TRY(plan_length(setup));
    MN_TRY(open_constraint(run, row));
    setup->n_sequences = (size_t)setup->config->num_return_sequences;
    row->kind = search_choose(setup->config, setup->options);
    if (row->kind->check) MN_TRY(row->kind->check(setup));
    row->feeds.capacity = row->kind->most_feeds(setup);
    row->feeds.feeds = mem_alloc(row->feeds.capacity, sizeof *row->feeds.feeds);
    if (!row->feeds.feeds) return MN_E_NOMEM;
    if (row->kind->wants_states) {
        size_t hidden = (size_t)setup->session->model->config.hidden_size;
        row->prompt_states = mem_alloc_raw(setup->n_prompt * hidden, sizeof *row->prompt_states);
        if (!row->prompt_states) return MN_E_NOMEM;
        setup->prompt_states = row->prompt_states;
    }
    MN_TRY(
        dola_read(&row->exits, &setup->n_exits, &setup->config->dola_layers, &setup->session->model->config));
    setup->exits = row->exits;
    if (setup->n_exits > 0) {
        setup->exit_logits = mem_alloc_raw((size_t)setup->n_exits * vocab, sizeof *setup->exit_logits);
        if (!setup->exit_logits) return MN_E_NOMEM;
    }
    return open_sequences(row);
}

static void close_row(gen_row *row) {
    if (row->kind) row->kind->close(row->state);
    if (row->setup.session && row->owns_session) mn_session_close(&row->setup.session);
    for (size_t i = 0; i < row->n_opened; i++) sequence_close(&row->sequences[i]);
    mem_free(row->sequences);
    mem_free(row->prompt_states);
    mem_free(row->setup.exit_logits);
    mem_free(row->exits);
    mem_free(row->feeds.feeds);
    mem_free(row->steps.scores);
    mem_free(row->steps.logits);
    constraint_close(&row->constraint);
}

/* ---- the loop ---- */

static mn_status begin_prefill(gen_run *run, gen_row *row) {
    search_setup *setup = &row->setup;
    size_t keep = row->kind->wants_states ? 0 : setup->n_prompt - (setup->n_exits > 0);
    MN_TRY(
        feed_sync(&row->prefill, setup->session, setup->prompt, setup->n_prompt, keep, &row->cached_tokens));
    row->prefill.states = row->prompt_states;
    row->prefill.exits = setup->exits;
    row->prefill.n_exits = setup->n_exits;
    row->prefill.exit_logits = setup->exit_logits;
    run->prompt_tokens += setup->n_prompt - row->cached_tokens;
    if (row->prefill.is_done) return MN_OK;
    mn_status status = feed_begin(&row->prefill);
    if (status != MN_OK) row->prefill.is_done = true; /* nothing to undo */
    return status;
}

static bool has_feeds(const gen_row *row) {
    for (size_t i = 0; i < row->feeds.n; i++) {
        if (!row->feeds.feeds[i].is_done) return true;
    }
    return !row->prefill.is_done;
}

/* A row that is done gives its pages back when its session is not the caller's. */
static void end_row(gen_row *row) {
    mn_session *session = row->setup.session;
    row->is_done = true;
    row->cache = (mn_cache_info){.size = sizeof row->cache};
    mn_session_cache(session, &row->cache);
    if (row->owns_session) session_go_back(session, 0);
}

/* Lets the row's search choose, when all that it asked for is computed, and begins what it asks for next. */
static mn_status advance(gen_row *row) {
    if (row->is_done || has_feeds(row)) return MN_OK;
    if (!row->is_prefilled) {
        MN_TRY(row->kind->open(&row->state, &row->setup));
        row->is_prefilled = true;
    }
    row->feeds.n = 0;
    mn_status status = row->kind->advance(row->state, &row->feeds);
    size_t n = row->feeds.n;
    row->feeds.n = 0; /* those that are not begun are not undone */
    MN_TRY(status);
    if (n == 0) end_row(row);
    for (; row->feeds.n < n; row->feeds.n++) MN_TRY(feed_begin(&row->feeds.feeds[row->feeds.n]));
    return MN_OK;
}

static void undo(gen_result *result) {
    for (size_t i = 0; i < result->n_rows; i++) {
        gen_row *row = &result->rows[i];
        if (row->prefill.session) feed_undo(&row->prefill);
        for (size_t f = 0; f < row->feeds.n; f++) feed_undo(&row->feeds.feeds[f]);
        row->feeds.n = 0;
        row->prefill.is_done = true;
    }
}

/* What there is when a run is cancelled. */
static mn_status end_all(gen_run *run) {
    gen_result *result = run->result;
    undo(result);
    for (size_t i = 0; i < result->n_rows; i++) {
        gen_row *row = &result->rows[i];
        if (row->is_done) continue;
        if (row->state) MN_TRY(row->kind->end(row->state, "cancelled"));
        for (size_t k = 0; k < row->n_opened; k++) MN_TRY(sequence_end(&row->sequences[k], "cancelled"));
        end_row(row);
    }
    return MN_OK;
}

static bool was_cancelled(const gen_run *run) {
    for (size_t i = 0; i < run->result->n_rows; i++) {
        const gen_row *row = &run->result->rows[i];
        if (atomic_exchange(&row->setup.session->cancelled, false)) return true;
        for (size_t k = 0; k < row->n_opened; k++) {
            if (row->sequences[k].cancelled) return true;
        }
    }
    return false;
}

/* Feeds of a row that are not done, appended to those of the pass. */
static size_t list_active(gen_run *run, gen_row *row, size_t n) {
    if (!row->prefill.is_done) run->active[n++] = &row->prefill;
    for (size_t i = 0; i < row->feeds.n; i++) {
        if (!row->feeds.feeds[i].is_done) run->active[n++] = &row->feeds.feeds[i];
    }
    return n;
}

static void note_prefill(gen_run *run) {
    size_t left = 0;
    for (size_t i = 0; i < run->result->n_rows; i++) {
        const feed *f = &run->result->rows[i].prefill;
        if (!f->is_done) left += f->session->n_ids - (size_t)kv_length(f->session->cache);
    }
    size_t done = run->prompt_tokens > left ? run->prompt_tokens - left : 0;
    if (done == run->prompt_done) return;
    run->prompt_done = done;
    if (left == 0) run->prompt_ended = clock_ms();
    if (run->options.on_prefill) run->options.on_prefill(run->options.user, done, run->prompt_tokens);
}

static mn_status loop(gen_run *run) {
    gen_result *result = run->result;
    for (;;) {
        size_t n = 0;
        for (size_t i = 0; i < result->n_rows; i++) {
            MN_TRY(advance(&result->rows[i]));
            n = list_active(run, &result->rows[i], n);
        }
        if (n == 0) return MN_OK;
        if (was_cancelled(run)) return MN_E_CANCELLED;
        MN_TRY(feeds_pass(run->active, n));
        note_prefill(run);
    }
}

static uint64_t fresh_seed(const mn_generation_config *config) {
    if (config->seed >= 0) return (uint64_t)config->seed;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec) & 0xFFFFFFFFu;
}

static mn_status run_rows(gen_run *run, const mn_batch_row *inputs) {
    gen_result *result = run->result;
    size_t n_feeds = 0, n_sequences = 0;
    result->public.seed = fresh_seed(result->rows[0].setup.config);
    run->started = run->prompt_ended = clock_ms();
    for (size_t i = 0; i < result->n_rows; i++) {
        gen_row *row = &result->rows[i];
        const mn_generation_config *own = inputs[i].config;
        uint64_t seed = own && own->seed >= 0 ? (uint64_t)own->seed : result->public.seed;
        row->setup.started = run->started;
        mn_status status = open_row(run, row, &inputs[i], seed);
        if (status != MN_OK) return result->n_rows > 1 ? status_context(status, "row %zu", i) : status;
        n_feeds += row->feeds.capacity + 1;
        n_sequences += row->n_opened;
    }
    run->active = mem_alloc(n_feeds, sizeof *run->active);
    result->sequences =
        mem_alloc(n_sequences, sizeof *result->sequences); /* so that nothing fails at the end */
    mn_status status = run->active && result->sequences ? MN_OK : MN_E_NOMEM;
    for (size_t i = 0; status == MN_OK && i < result->n_rows; i++)
        status = begin_prefill(run, &result->rows[i]);
    if (status == MN_OK) status = loop(run);
    if (status == MN_E_CANCELLED) return end_all(run);
    undo(result);
    return status;
}

/* ---- what comes out ---- */

static void sum_caches(gen_result *result) {
    mn_cache_info *sum = &result->public.cache;
    for (size_t i = 0; i < result->n_rows; i++) {
        mn_cache_info before = *sum;
        *sum = result->rows[i].cache;
        sum->tokens += before.tokens;
        sum->bytes += before.bytes;
        sum->far_bytes += before.far_bytes;
        if (before.before) sum->before = before.before;
    }
}

static mn_sequence view_of(const gen_row *row, sequence *s) {
    return (mn_sequence){
        .row = s->row,
        .index = s->index,
        .ids = s->ids,
        .n_ids = s->n_ids,
        .text = s->stream ? bytes_text(&s->text.text) : NULL,
        .n_text = s->text.text.n,
        .finish_reason = s->finish,
        .logprobs = s->logprobs,
        .scores = s->scores,
        .logits = s->raw,
        .prompt_tokens = row->setup.n_prompt,
        .cached_tokens = row->cached_tokens,
        .has_score = s->has_score,
        .score = s->score,
        .beam_indices = s->beam_indices,
        .transition_scores = s->transitions,
        .draft_tokens = s->n_drafted,
        .draft_accepted = s->n_draft_accepted,
    };
}

/* The rows' step logs side by side. *out is owned by the result. */
static mn_status join_steps(gen_result *result, bool raw, float **out) {
    mn_generation *public = &result->public;
    size_t vocab = (size_t)result->rows[0].setup.session->model->config.vocab_size, at = 0;
    bool kept = false;
    for (size_t i = 0; i < result->n_rows; i++) {
        const step_log *log = &result->rows[i].steps;
        kept = kept || (raw ? log->logits : log->scores) != NULL;
    }
    if (!kept) return MN_OK;
    float *all = mem_alloc_raw(public->n_steps * public->n_beams * vocab, sizeof *all);
    *out = all;
    if (!all) return MN_E_NOMEM;
    for (size_t i = 0; i < public->n_steps * public->n_beams * vocab; i++) all[i] = NAN;
    for (size_t i = 0; i < result->n_rows; i++) {
        const step_log *log = &result->rows[i].steps;
        const float *from = raw ? log->logits : log->scores;
        for (size_t step = 0; from && step < log->n_steps; step++) {
            memcpy(all + (step * public->n_beams + at) * vocab, from + step * log->n_beams * vocab,
                   log->n_beams * vocab * sizeof *all);
        }
        at += log->n_beams;
    }
    return MN_OK;
}

static mn_status publish(gen_result *result) {
    mn_generation *public = &result->public;
    for (size_t i = 0; i < result->n_rows; i++) {
        const step_log *log = &result->rows[i].steps;
        public->n_beams += log->n_beams;
        if (log->n_steps > public->n_steps) public->n_steps = log->n_steps;
    }
    for (size_t i = 0; i < result->n_rows; i++) {
        gen_row *row = &result->rows[i];
        for (size_t k = 0; k < row->n_opened; k++) {
            if (row->sequences[k].finish) /* else beams found fewer texts */
                result->sequences[public->n_sequences++] = view_of(row, &row->sequences[k]);
        }
    }
    public->sequences = result->sequences;
    sum_caches(result);
    MN_TRY(join_steps(result, false, &result->beam_scores));
    MN_TRY(join_steps(result, true, &result->beam_logits));
    public->beam_scores = result->beam_scores;
    public->beam_logits = result->beam_logits;
    return MN_OK;
}

/* ---- entry points ---- */

static mn_status open_result(gen_result **out, size_t n_rows) {
    gen_result *result = mem_alloc(1, sizeof *result);
    *out = result;
    if (!result) return MN_E_NOMEM;
    result->rows = mem_alloc(n_rows, sizeof *result->rows);
    if (!result->rows) return MN_E_NOMEM;
    result->n_rows = n_rows;
    return MN_OK;
}

/* Takes the rows' sessions and configurations as they are set up in `result`. */
static mn_status generate(gen_result *result, const mn_batch_row *inputs, const mn_generate_options *given) {
    gen_run run = {.options = mn_generate_options_default(), .result = result};
    int32_t vocab = (int32_t)result->rows[0].setup.session->model->config.vocab_size;
    MN_TRY(options_take(&run.options, sizeof run.options, given, "mn_generate_options"));
    if (run.options.top_logprobs < -1 || run.options.top_logprobs > vocab)
        MN_FAIL(MN_E_ARG, "top_logprobs is %d, allowed: -1 (none) to %d", run.options.top_logprobs, vocab);
    kv_pool *pool = result->rows[0].setup.session->model->pool;
    kv_watch watch;
    kv_pool_watch(pool, &watch);
    mn_status status = run_rows(&run, inputs);
    kv_pool_unwatch(pool, &watch);
    mem_free(run.active);
    result->public.prompt_ms = run.prompt_ended - run.started;
    result->public.predicted_ms = clock_ms() - run.prompt_ended;
    for (size_t i = 0; i < result->n_rows; i++) { /* nothing of the caller's is looked at any more */
        gen_row *row = &result->rows[i];
        if (row->kind) row->kind->close(row->state);
        row->state = NULL;
    }
    if (status == MN_OK) status = publish(result);
    result->public.cache.peak_bytes = watch.most;
    return status;
}

mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt,
                      const mn_generation_config *config, const mn_generate_options *options,
                      mn_generation **generation) {
    *generation = NULL;
    gen_result *result = NULL;
    mn_status status = open_result(&result, 1);
    if (status == MN_OK) {
        search_setup *row = &result->rows[0].setup;
        row->session = session;
        row->config = config ? config : session->owner->generation;
        mn_batch_row input = {.prompt = prompt, .n_prompt = n_prompt, .config = config};
        status = generate(result, &input, options);
    }
    *generation = result ? &result->public : NULL;
    if (status != MN_OK) mn_generation_close(generation);
    return status;
}

/* A past whose codes depend on what was one call is not shared: the row computes its whole prompt, as it would alone. What was encoded
 * is no part of that past. */
static mn_status open_session(mn_session **out, mn_model *model, const mn_cache_options *cache,
                              const mn_session *prefix) {
    if (!prefix) return mn_session_open(out, model, cache);
    if (prefix->owner != model) MN_FAIL(MN_E_ARG, "the prefix is a session of another model");
    MN_TRY(mn_session_fork(out, prefix));
    for (int i = 0; i < kv_entries(prefix->cache); i++) {
        if (kv_entry_spec(prefix->cache, i)->flush) session_empty(*out);
    }
    return MN_OK;
}

mn_status mn_generate_batch(mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows,
                            size_t n_rows, const mn_generation_config *config,
                            const mn_generate_options *options, mn_generation **generation) {
    *generation = NULL;
    if (n_rows == 0 || n_rows > 65536) MN_FAIL(MN_E_ARG, "a batch of %zu rows, allowed: 1 to 65536", n_rows);
    gen_result *result = NULL;
    mn_status status = open_result(&result, n_rows);
    for (size_t i = 0; status == MN_OK && i < n_rows; i++) {
        gen_row *row = &result->rows[i];
        row->setup.config = rows[i].config ? rows[i].config : config ? config : model->generation;
        row->owns_session = true;
        status = open_session(&row->setup.session, model, cache, rows[i].prefix);
        if (status != MN_OK && n_rows > 1) status = status_context(status, "row %zu", i);
    }
    if (status == MN_OK) status = generate(result, rows, options);
    *generation = result ? &result->public : NULL;
    if (status != MN_OK) mn_generation_close(generation);
    return status;
}

void mn_generation_close(mn_generation **generation) {
    if (!*generation) return;
    gen_result *result = (gen_result *)(void *)*generation;
    for (size_t i = 0; i < result->n_rows; i++) close_row(&result->rows[i]);
    mem_free(result->rows);
    mem_free(result->sequences);
    mem_free(result->beam_scores);
    mem_free(result->beam_logits);
    mem_free(result);
    *generation = NULL;
}
