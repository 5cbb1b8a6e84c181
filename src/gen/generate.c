/* The loop: prompts in, tokens chosen, shown and fed back, row by row leaving the batch when it ends.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/session.h"

#include <string.h>
#include <time.h>

#include "base/options.h"
#include "gen/logits.h"
#include "gen/stop.h"

/* One row of a batch while it is generated, and its result. */
typedef struct gen_row {
    mn_session *session;
    bool owns_session;
    const mn_generation_config *config;
    logits_row logits;
    tokenizer_stream *stream; /* NULL without a tokenizer */
    bytes piece;              /* scratch: what the last token decoded to */
    stop_text text;
    int32_t *ids; /* [max_new] */
    size_t n_ids, max_new;
    mn_logprob *logprobs;
    float *scores, *raw;
    size_t prompt_tokens, cached_tokens;
    const char *finish; /* NULL: goes on */
} gen_row;

typedef struct gen_result {
    mn_generation public; /* first member: the handle points here */
    gen_row *rows;
    mn_sequence *sequences;
    size_t n_rows;
} gen_result;

typedef struct gen_run {
    const mn_generate_options *options;
    gen_result *result;
    mn_session **active; /* [n_rows] scratch of a step */
    int32_t *next;       /* [n_rows] */
    double started;
    bool cancelled;
} gen_run;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

mn_generate_options mn_generate_options_default(void) {
    return (mn_generate_options){.size = sizeof(mn_generate_options), .top_logprobs = -1};
}

/* ---- limits ---- */

/* Positions that the model was made for; rules that stretch the rotation with the length reach further, and a window that
 * every query looks through makes them endless. */
static int64_t context_of(const mn_session *session) {
    const model_config *c = &session->model->config;
    if (session->plan.self.windows && session->plan.self.window_length > 0) return (int64_t)1 << 40;
    double stretch = c->rope_scaling.rope_type == ROPE_DYNAMIC ? c->rope_scaling.factor : 1;
    return (int64_t)((double)c->max_position_embeddings * stretch);
}

/* How many tokens a row may get; the last one is never fed, so it needs no room. */
static mn_status plan_length(gen_row *row, size_t n_prompt) {
    const mn_generation_config *config = row->config;
    const kv_options *kv = &row->session->plan.options;
    int64_t prompt = (int64_t)n_prompt, context = context_of(row->session), wanted = -1;
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
        if (wanted < 0) wanted = min_i64(most, row->session->model->config.max_position_embeddings);
        if (wanted > most) wanted = most;
    }
    row->max_new = (size_t)wanted;
    return MN_OK;
}

/* ---- rows ---- */

/* The decoder and its buffers, large enough that ordinary text never grows them. */
static mn_status open_text(gen_row *row, const tokenizer *text) {
    enum { PIECE_BYTES = 512, TOKEN_BYTES = 8, MOST_TOKENS = 65536 };
    size_t n = row->max_new < MOST_TOKENS ? row->max_new : MOST_TOKENS;
    MN_TRY(tokenizer_stream_open(&row->stream, text, TOKENIZER_SKIP_SPECIAL));
    MN_TRY(tokenizer_stream_reserve(row->stream, PIECE_BYTES));
    MN_TRY(mem_grow(&row->piece.data, &row->piece.capacity, PIECE_BYTES, 1));
    return mem_grow(&row->text.text.data, &row->text.text.capacity, n * TOKEN_BYTES + PIECE_BYTES, 1);
}

static mn_status open_row(gen_row *row, const gen_run *run, const int32_t *prompt, size_t n_prompt,
                          uint64_t seed) {
    const mn_model *model = row->session->owner;
    size_t vocab = (size_t)model->core->config.vocab_size;
    if (n_prompt == 0) MN_FAIL(MN_E_ARG, "the prompt is empty");
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (size_t)prompt[i] >= vocab) {
            MN_FAIL(MN_E_ARG, "token %zu of the prompt is %d, allowed: 0 to %zu", i, prompt[i], vocab - 1);
        }
    }
    MN_TRY(plan_length(row, n_prompt));
    row->prompt_tokens = n_prompt;
    row->text.stops = &row->config->stop_strings;
    if (row->text.stops->n && !model->text)
        MN_FAIL(MN_E_ARG, "stop_strings need a tokenizer, and this checkpoint has none");
    MN_TRY(logits_open(&row->logits, row->config, vocab, seed, prompt, n_prompt));
    if (model->text) MN_TRY(open_text(row, model->text));
    int top = run->options->top_logprobs;
    row->ids = mem_alloc_raw(row->max_new, sizeof *row->ids);
    if (top >= 0) row->logprobs = mem_alloc(row->max_new * (size_t)(1 + top), sizeof *row->logprobs);
    if (run->options->keep_scores) row->scores = mem_alloc_raw(row->max_new * vocab, sizeof *row->scores);
    if (run->options->keep_logits) row->raw = mem_alloc_raw(row->max_new * vocab, sizeof *row->raw);
    bool complete = row->ids && (top < 0 || row->logprobs) && (!run->options->keep_scores || row->scores) &&
                    (!run->options->keep_logits || row->raw);
    return complete ? MN_OK : MN_E_NOMEM;
}

static void close_row(gen_row *row) {
    if (row->owns_session) mn_session_close(&row->session);
    logits_close(&row->logits);
    tokenizer_stream_close(&row->stream);
    bytes_clear(&row->piece);
    bytes_clear(&row->text.text);
    mem_free(row->ids);
    mem_free(row->logprobs);
    mem_free(row->scores);
    mem_free(row->raw);
}

/* Shows what may be shown now. */
static void show(gen_run *run, gen_row *row, int32_t id, size_t until) {
    mn_token_event event = {
        .row = (int)(row - run->result->rows), .id = id, .text = "", .n_text = until - row->text.shown};
    if (event.n_text) event.text = row->text.text.data + row->text.shown;
    row->text.shown = until;
    if (run->options->on_token && !run->options->on_token(run->options->user, &event)) run->cancelled = true;
}

/* Text of a chosen token, or with id -1 what the decoder still holds. */
static mn_status add_text(gen_run *run, gen_row *row, int32_t id) {
    size_t until = 0;
    if (row->stream) {
        /* Models may have more rows than the tokenizer has tokens (padded embeddings): those ids say nothing.
         */
        bool is_known = id < (int64_t)tokenizer_size(row->session->owner->text);
        row->piece.n = 0;
        if (id < 0) MN_TRY(tokenizer_stream_finish(row->stream, &row->piece));
        if (id >= 0 && is_known) MN_TRY(tokenizer_stream_push(row->stream, id, &row->piece));
        until = stop_text_push(&row->text, row->piece.data, row->piece.n);
        MN_TRY(bytes_status(&row->text.text));
        /* At the end nothing can complete a stop string any more. */
        if (id < 0) until = row->text.text.n;
    }
    if (id >= 0 || until > row->text.shown) show(run, row, id, until);
    if (row->text.stopped && !row->finish) row->finish = "stop_string";
    return MN_OK;
}

/* The chosen token's log-probability and the best ones', best first. */
static void note_logprobs(const gen_run *run, gen_row *row, int32_t id) {
    size_t vocab = row->logits.vocab, top = (size_t)run->options->top_logprobs;
    mn_logprob *out = row->logprobs + row->n_ids * (1 + top);
    const float *scores = row->logits.scores;
    double log_sum = logits_log_sum(scores, vocab);
    out[0] = (mn_logprob){id, (float)((double)scores[id] - log_sum)};
    size_t n = 0;
    for (size_t i = 0; i < vocab && top > 0; i++) {
        float value = (float)((double)scores[i] - log_sum);
        if (n == top && value <= out[n].logprob) continue;
        size_t at = n < top ? ++n : n;
        for (; at > 1 && out[at - 1].logprob < value; at--) out[at] = out[at - 1];
        out[at] = (mn_logprob){(int32_t)i, value};
    }
}

/* Chooses one token from the session's logits and decides whether the row goes on. */
static mn_status choose_token(gen_run *run, gen_row *row) {
    const float *logits = mn_session_logits(row->session);
    size_t vocab = row->logits.vocab;
    logits_process(&row->logits, logits);
    int32_t id = logits_choose(&row->logits);
    if (row->raw) memcpy(row->raw + row->n_ids * vocab, logits, vocab * sizeof *logits);
    if (row->scores) memcpy(row->scores + row->n_ids * vocab, row->logits.scores, vocab * sizeof *logits);
    if (row->logprobs) note_logprobs(run, row, id);
    logits_accept(&row->logits, id);
    row->ids[row->n_ids++] = id;
    bool ends = !row->config->ignore_eos && id_list_has(&row->config->eos_token_id, id);
    if (ends) row->finish = "eos";
    MN_TRY(add_text(run, row, id));
    if (!row->finish && row->n_ids == row->max_new) row->finish = "length";
    if (!row->finish && row->config->max_time > 0 && now_ms() - run->started > row->config->max_time * 1e3)
        row->finish = "time";
    return row->finish ? add_text(run, row, -1) : MN_OK;
}

/* ---- the loop ---- */

static mn_status prefill(gen_run *run, gen_row *row, const int32_t *prompt) {
    row->session->on_prefill = run->options->on_prefill;
    row->session->prefill_user = run->options->user;
    mn_status status = mn_session_sync(row->session, prompt, row->prompt_tokens, &row->cached_tokens);
    row->session->on_prefill = NULL;
    return status;
}

static void cancel_all(gen_result *result) {
    for (size_t i = 0; i < result->n_rows; i++) {
        if (!result->rows[i].finish) result->rows[i].finish = "cancelled";
    }
}

static bool was_cancelled(const gen_run *run) {
    if (run->cancelled) return true;
    for (size_t i = 0; i < run->result->n_rows; i++) {
        if (atomic_exchange(&run->result->rows[i].session->cancelled, false)) return true;
    }
    return false;
}

/* Chooses and feeds until every row has finished. */
static mn_status decode(gen_run *run) {
    gen_result *result = run->result;
    for (;;) {
        int n = 0;
        for (size_t i = 0; i < result->n_rows; i++) {
            gen_row *row = &result->rows[i];
            if (row->finish) continue;
            MN_TRY(choose_token(run, row));
            if (row->finish) continue;
            run->active[n] = row->session;
            run->next[n++] = row->ids[row->n_ids - 1];
        }
        if (n > 0 && was_cancelled(run)) {
            cancel_all(result);
            return MN_OK;
        }
        if (n == 0) return MN_OK;
        MN_TRY(session_step_together(run->active, run->next, n));
    }
}

static void publish(gen_result *result) {
    mn_cache_info *sum = &result->public.cache;
    for (size_t i = 0; i < result->n_rows; i++) {
        gen_row *row = &result->rows[i];
        mn_cache_info info = {.size = sizeof info};
        mn_session_cache(row->session, &info);
        mn_cache_info before = *sum;
        *sum = info;
        sum->tokens += before.tokens;
        sum->bytes += before.bytes;
        sum->peak_bytes += before.peak_bytes;
        sum->far_bytes += before.far_bytes;
        if (before.before) sum->before = before.before;
        result->sequences[i] = (mn_sequence){
            .row = (int)i,
            .ids = row->ids,
            .n_ids = row->n_ids,
            .text = row->stream ? bytes_text(&row->text.text) : NULL,
            .n_text = row->text.text.n,
            .finish_reason = row->finish,
            .logprobs = row->logprobs,
            .scores = row->scores,
            .logits = row->raw,
            .prompt_tokens = row->prompt_tokens,
            .cached_tokens = row->cached_tokens,
        };
    }
    result->public.sequences = result->sequences;
    result->public.n_sequences = result->n_rows;
}

static uint64_t fresh_seed(const mn_generation_config *config) {
    if (config->seed >= 0) return (uint64_t)config->seed;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec) & 0xFFFFFFFFu;
}

static mn_status run_rows(gen_run *run, const mn_batch_row *inputs) {
    gen_result *result = run->result;
    result->public.seed = fresh_seed(result->rows[0].config);
    for (size_t i = 0; i < result->n_rows; i++) {
        const mn_generation_config *own = inputs[i].config;
        uint64_t seed = own && own->seed >= 0 ? (uint64_t)own->seed : result->public.seed;
        mn_status status = open_row(&result->rows[i], run, inputs[i].prompt, inputs[i].n_prompt, seed);
        if (status != MN_OK) return result->n_rows > 1 ? status_context(status, "row %zu", i) : status;
    }
    run->started = now_ms();
    mn_status status = MN_OK;
    for (size_t i = 0; status == MN_OK && i < result->n_rows; i++)
        status = prefill(run, &result->rows[i], inputs[i].prompt);
    double prompt_done = now_ms();
    result->public.prompt_ms = prompt_done - run->started;
    if (status == MN_OK) status = decode(run);
    result->public.predicted_ms = now_ms() - prompt_done;
    if (status == MN_E_CANCELLED) {
        cancel_all(result);
        status = MN_OK;
    }
    return status;
}

static mn_status open_result(gen_result **out, size_t n_rows) {
    gen_result *result = mem_alloc(1, sizeof *result);
    *out = NULL;
    if (!result) return MN_E_NOMEM;
    result->rows = mem_alloc(n_rows, sizeof *result->rows);
    result->sequences = mem_alloc(n_rows, sizeof *result->sequences);
    if (result->rows && result->sequences) result->n_rows = n_rows;
    *out = result;
    return result->n_rows ? MN_OK : MN_E_NOMEM;
}

/* Takes the rows' sessions as they are set up in `result`. */
static mn_status generate(gen_result *result, const mn_batch_row *inputs, const mn_generate_options *given,
                          mn_generation **generation) {
    mn_generate_options options = mn_generate_options_default();
    int32_t vocab = (int32_t)result->rows[0].session->model->config.vocab_size;
    MN_TRY(options_take(&options, sizeof options, given, "mn_generate_options"));
    if (options.top_logprobs < -1 || options.top_logprobs > vocab)
        MN_FAIL(MN_E_ARG, "top_logprobs is %d, allowed: -1 (none) to %d", options.top_logprobs, vocab);
    gen_run run = {.options = &options, .result = result};
    run.active = mem_alloc(result->n_rows, sizeof *run.active);
    run.next = mem_alloc(result->n_rows, sizeof *run.next);
    mn_status status = run.active && run.next ? run_rows(&run, inputs) : MN_E_NOMEM;
    mem_free(run.active);
    mem_free(run.next);
    if (status == MN_OK) {
        publish(result);
        *generation = &result->public;
    }
    return status;
}

mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt,
                      const mn_generation_config *config, const mn_generate_options *options,
                      mn_generation **generation) {
    *generation = NULL;
    gen_result *result = NULL;
    mn_status status = open_result(&result, 1);
    if (status == MN_OK) {
        result->rows[0].session = session;
        result->rows[0].config = config ? config : session->owner->generation;
        mn_batch_row input = {.prompt = prompt, .n_prompt = n_prompt, .config = config};
        status = generate(result, &input, options, generation);
    }
    if (status != MN_OK && result) {
        mn_generation *partial = &result->public;
        mn_generation_close(&partial);
    }
    return status;
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
        row->config = rows[i].config ? rows[i].config : config ? config : model->generation;
        row->owns_session = true;
        status = mn_session_open(&row->session, model, cache);
    }
    if (status == MN_OK) status = generate(result, rows, options, generation);
    if (status != MN_OK && result) {
        mn_generation *partial = &result->public;
        mn_generation_close(&partial);
    }
    return status;
}

void mn_generation_close(mn_generation **generation) {
    if (!*generation) return;
    gen_result *result = (gen_result *)(void *)*generation;
    for (size_t i = 0; i < result->n_rows; i++) close_row(&result->rows[i]);
    mem_free(result->rows);
    mem_free(result->sequences);
    mem_free(result);
    *generation = NULL;
}
