/* One prompt with a session of the caller's, and rows of a batch: requests that begin together, stepped by the caller
 * or in one call until all have ended.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "gen/config/cache_request.h"
#include "gen/result.h"
#include "gen/steps.h"

struct mn_generator {
    mn_generate_options options;
    void (*on_prefill)(void *user, size_t done,
                       size_t total); /* of the options; receives the progress of all rows together */
    gen_result *result;               /* NULL: taken, or lost to a failure */
    size_t n_open;                    /* requests of the result that are opened */
    steps steps;
    size_t prompt_done;
    double started, prompt_ended;
    bool is_stepping; /* callbacks are called */
};

void mn_generate_options_init(mn_generate_options *options, size_t size) {
    const mn_generate_options full = {.top_logprobs = -1};
    options_init(options, size, &full, sizeof full);
}

/* ---- the loop ---- */

static void report_prefill(mn_generator *run) {
    size_t done = 0, total = 0;
    for (size_t i = 0; i < run->n_open; i++) {
        done += run->result->requests[i]->prompt_done;
        total += run->result->requests[i]->prompt_tokens;
    }
    if (done == run->prompt_done) return;
    run->prompt_done = done;
    if (done == total) run->prompt_ended = clock_ms();
    if (run->on_prefill) run->on_prefill(run->options.user, done, total);
}

/* A failed request fails all; a cancelled one cancels all. */
static mn_status judge(mn_generator *run) {
    bool cancelled = false;
    for (size_t i = 0; i < run->n_open; i++) {
        MN_TRY(request_status(run->result->requests[i]));
        cancelled = cancelled || run->result->requests[i]->was_cancelled;
    }
    while (cancelled && run->steps.n > 0) {
        request *r = run->steps.requests[0];
        steps_stop(&run->steps, r, MN_E_CANCELLED);
        MN_TRY(request_status(r));
    }
    return MN_OK;
}

static mn_status step(mn_generator *run) {
    steps_choose(&run->steps);
    MN_TRY(judge(run));
    if (run->steps.n == 0) return MN_OK; /* ended, or cancelled: what these steps would compute is closed */
    steps_compute(&run->steps);
    report_prefill(run);
    return judge(run);
}

/* ---- entry points ---- */

/* Row i of the caller's array, whose rows have the size that the first one gives. */
static mn_status row_at(mn_batch_row *row, const mn_batch_row *rows, size_t i) {
    const char *at = (const char *)rows + i * rows->size;
    size_t size;
    memcpy(&size, at, sizeof size);
    if (size != rows->size) MN_FAIL(MN_E_ARG, "mn_batch_row.size is %zu, allowed: %zu, as in row 0", size, rows->size);
    *row = (mn_batch_row){.size = sizeof *row};
    return options_take(row, sizeof *row, at, "mn_batch_row");
}

static mn_status begin(mn_generator *run, size_t n_rows, const mn_generate_options *given) {
    mn_generate_options_init(&run->options, sizeof run->options);
    MN_TRY(options_take(&run->options, sizeof run->options, given, "mn_generate_options"));
    run->on_prefill = run->options.on_prefill;
    run->options.on_prefill = NULL;
    run->started = run->prompt_ended = clock_ms();
    return result_open(&run->result, n_rows);
}

/* Opens the next row, with the caller's session or a new one. */
static mn_status add(mn_generator *run, const mn_batch_row *row, const mn_generation_config *config,
                     mn_session *session, bool is_own) {
    gen_result *result = run->result;
    request *r = mem_alloc(1, sizeof *r);
    if (!r) {
        if (is_own) mn_session_close(&session);
        return MN_E_NOMEM;
    }
    size_t i = run->n_open++;
    result->requests[i] = r;
    if (is_own) r->own_session = session;
    if (i == 0) result->public.seed = request_seed(config);
    bool has_seed = row->config && row->config->seed >= 0;
    r->setup = (search_setup){
        .session = session, .prompt = row->prompt, .n_prompt = row->n_prompt, .config = config, .row = (int)i};
    MN_TRY(request_open(r, &run->options, has_seed ? (uint64_t)row->config->seed : result->public.seed,
                        result->requests, i));
    return steps_add(&run->steps, r);
}

static mn_status open_one(mn_generator *run, mn_session *session, const int32_t *prompt, size_t n_prompt,
                          const mn_generation_config *config, const mn_generate_options *options) {
    const mn_batch_row row = {.size = sizeof(mn_batch_row), .prompt = prompt, .n_prompt = n_prompt, .config = config};
    const mn_generation_config *own = config ? config : session->owner->generation;
    MN_TRY(begin(run, 1, options));
    MN_TRY(cache_request_follow(session, own, n_prompt));
    MN_TRY(add(run, &row, own, session, false));
    return result_reserve(run->result);
}

static mn_status open_rows(mn_generator *run, mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows,
                           size_t n_rows, const mn_generation_config *config, const mn_generate_options *options) {
    if (n_rows == 0 || n_rows > 65536) MN_FAIL(MN_E_ARG, "a batch of %zu rows, allowed: 1 to 65536", n_rows);
    MN_TRY(begin(run, n_rows, options));
    for (size_t i = 0; i < n_rows; i++) {
        mn_batch_row row;
        mn_session *session = NULL;
        MN_TRY(row_at(&row, rows, i));
        const mn_generation_config *own = row.config ? row.config : config ? config : model->generation;
        mn_status status = request_session(&session, model, cache, &row, own);
        if (status == MN_OK) status = add(run, &row, own, session, true);
        if (status != MN_OK) return n_rows > 1 ? status_context(status, "row %zu", i) : status;
    }
    return result_reserve(run->result);
}

static void drop(mn_generator *run) {
    steps_clear(&run->steps);
    result_close(&run->result);
}

/* The result of requests that have ended. */
static mn_status publish(mn_generator *run, mn_generation **generation) {
    gen_result *result = run->result;
    result->public.prompt_ms = run->prompt_ended - run->started;
    result->public.predicted_ms = clock_ms() - run->prompt_ended;
    MN_TRY(result_publish(result));
    run->result = NULL;
    *generation = &result->public;
    return MN_OK;
}

/* In one call: all steps of a run that was opened with `status`. */
static mn_status finish(mn_generator *run, mn_status status, mn_generation **generation) {
    *generation = NULL;
    while (status == MN_OK && run->steps.n > 0) status = step(run);
    if (status == MN_OK) status = publish(run, generation);
    drop(run);
    return status;
}

mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt, const mn_generation_config *config,
                      const mn_generate_options *options, mn_generation **generation) {
    mn_generator run = {0};
    return finish(&run, open_one(&run, session, prompt, n_prompt, config, options), generation);
}

mn_status mn_generate_batch(mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows, size_t n_rows,
                            const mn_generation_config *config, const mn_generate_options *options,
                            mn_generation **generation) {
    mn_generator run = {0};
    return finish(&run, open_rows(&run, model, cache, rows, n_rows, config, options), generation);
}

/* ---- step by step ---- */

/* The opened generator, or nothing. */
static mn_status give(mn_generator **out, mn_generator *run, mn_status status) {
    if (status == MN_OK)
        *out = run;
    else
        mn_generator_close(&run);
    return status;
}

mn_status mn_generator_open(mn_generator **generator, mn_session *session, const int32_t *prompt, size_t n_prompt,
                            const mn_generation_config *config, const mn_generate_options *options) {
    *generator = NULL;
    mn_generator *run = mem_alloc(1, sizeof *run);
    if (!run) return MN_E_NOMEM;
    return give(generator, run, open_one(run, session, prompt, n_prompt, config, options));
}

mn_status mn_generator_open_batch(mn_generator **generator, mn_model *model, const mn_cache_options *cache,
                                  const mn_batch_row *rows, size_t n_rows, const mn_generation_config *config,
                                  const mn_generate_options *options) {
    *generator = NULL;
    mn_generator *run = mem_alloc(1, sizeof *run);
    if (!run) return MN_E_NOMEM;
    return give(generator, run, open_rows(run, model, cache, rows, n_rows, config, options));
}

/* Refuses calls in a callback and those behind the result or a failure. */
static mn_status is_open(const mn_generator *run, const char *call) {
    if (run->is_stepping) MN_FAIL(MN_E_ARG, "%s in a callback of the generator", call);
    if (!run->result) MN_FAIL(MN_E_ARG, "%s: this generator has given its result, or failed", call);
    return MN_OK;
}

mn_status mn_generator_step(mn_generator *generator, bool *is_done) {
    MN_TRY(is_open(generator, "mn_generator_step"));
    generator->is_stepping = true;
    mn_status status = generator->steps.n > 0 ? step(generator) : MN_OK;
    generator->is_stepping = false;
    if (status != MN_OK) drop(generator);
    *is_done = generator->steps.n == 0;
    return status;
}

mn_status mn_generator_finish(mn_generator *generator, mn_generation **generation) {
    *generation = NULL;
    MN_TRY(is_open(generator, "mn_generator_finish"));
    mn_status status = MN_OK;
    while (status == MN_OK && generator->steps.n > 0) {
        request *r = generator->steps.requests[0];
        steps_stop(&generator->steps, r, MN_E_CANCELLED);
        status = request_status(r);
    }
    if (status == MN_OK) status = publish(generator, generation);
    drop(generator);
    return status;
}

void mn_generator_close(mn_generator **generator) {
    if (*generator) drop(*generator);
    mem_free(*generator);
    *generator = NULL;
}

mn_status mn_generation_take_session(mn_generation *generation, size_t i, mn_session **session) {
    gen_result *result = (gen_result *)(void *)generation;
    *session = NULL;
    if (i >= generation->n_sequences)
        MN_FAIL(MN_E_ARG, "sequence is %zu, the generation has %zu", i, generation->n_sequences);
    const mn_sequence *given = generation->sequences[i];
    for (size_t r = 0; r < result->n_requests; r++) {
        request *of_row = result->requests[r];
        if (of_row->setup.row != given->row) continue;
        sequence *s = &of_row->sequences[given->index];
        *session = s->session_kept;
        s->session_kept = NULL;
    }
    if (!*session)
        MN_FAIL(
            MN_E_ARG,
            "no session of sequence %zu is kept: keep_sessions was not set, it was taken before, or it is the one that mn_generate was given",
            i);
    return MN_OK;
}

void mn_generation_close(mn_generation **generation) {
    gen_result *result = (gen_result *)(void *)*generation;
    *generation = NULL;
    result_close(&result);
}
