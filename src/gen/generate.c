/* One prompt with a session of the caller's, and rows of a batch: requests that begin together, stepped until all have
 * ended.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "gen/config/cache_request.h"
#include "gen/result.h"
#include "gen/steps.h"

typedef struct gen_run {
    mn_generate_options options;
    void (*on_prefill)(void *user, size_t done,
                       size_t total); /* of the options; receives the progress of all rows together */
    gen_result *result;
    size_t n_open; /* requests of the result that are opened */
    steps steps;
    size_t prompt_done;
    double started, prompt_ended;
} gen_run;

void mn_generate_options_init(mn_generate_options *options, size_t size) {
    const mn_generate_options full = {.top_logprobs = -1};
    options_init(options, size, &full, sizeof full);
}

/* ---- the loop ---- */

static void report_prefill(gen_run *run) {
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
static mn_status judge(gen_run *run) {
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

static mn_status run_all(gen_run *run) {
    while (run->steps.n > 0) {
        steps_choose(&run->steps);
        MN_TRY(judge(run));
        if (run->steps.n == 0) break; /* cancelled: what these steps would compute is closed */
        steps_compute(&run->steps);
        report_prefill(run);
        MN_TRY(judge(run));
    }
    return MN_OK;
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

static mn_status begin(gen_run *run, size_t n_rows, const mn_generate_options *given) {
    mn_generate_options_init(&run->options, sizeof run->options);
    MN_TRY(options_take(&run->options, sizeof run->options, given, "mn_generate_options"));
    run->on_prefill = run->options.on_prefill;
    run->options.on_prefill = NULL;
    run->started = run->prompt_ended = clock_ms();
    return result_open(&run->result, n_rows);
}

/* Opens the next row, with the caller's session or a new one. */
static mn_status add(gen_run *run, const mn_batch_row *row, const mn_generation_config *config, mn_session *session,
                     bool is_own) {
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

static mn_status finish(gen_run *run, mn_status status, mn_generation **generation) {
    gen_result *result = run->result;
    if (status == MN_OK) status = result_reserve(result);
    if (status == MN_OK) status = run_all(run);
    steps_clear(&run->steps);
    if (status == MN_OK) {
        result->public.prompt_ms = run->prompt_ended - run->started;
        result->public.predicted_ms = clock_ms() - run->prompt_ended;
        status = result_publish(result);
    }
    if (status != MN_OK) result_close(&result);
    *generation = result ? &result->public : NULL;
    return status;
}

mn_status mn_generate(mn_session *session, const int32_t *prompt, size_t n_prompt, const mn_generation_config *config,
                      const mn_generate_options *options, mn_generation **generation) {
    gen_run run = {0};
    const mn_batch_row row = {.size = sizeof(mn_batch_row), .prompt = prompt, .n_prompt = n_prompt, .config = config};
    mn_status status = begin(&run, 1, options);
    const mn_generation_config *own = config ? config : session->owner->generation;
    if (status == MN_OK) status = cache_request_follow(session, own, n_prompt);
    if (status == MN_OK) status = add(&run, &row, own, session, false);
    return finish(&run, status, generation);
}

mn_status mn_generate_batch(mn_model *model, const mn_cache_options *cache, const mn_batch_row *rows, size_t n_rows,
                            const mn_generation_config *config, const mn_generate_options *options,
                            mn_generation **generation) {
    gen_run run = {0};
    *generation = NULL;
    if (n_rows == 0 || n_rows > 65536) MN_FAIL(MN_E_ARG, "a batch of %zu rows, allowed: 1 to 65536", n_rows);
    mn_status status = begin(&run, n_rows, options);
    for (size_t i = 0; status == MN_OK && i < n_rows; i++) {
        mn_batch_row row;
        mn_session *session = NULL;
        status = row_at(&row, rows, i);
        if (status != MN_OK) break;
        const mn_generation_config *own = row.config ? row.config : config ? config : model->generation;
        status = request_session(&session, model, cache, &row, own);
        if (status == MN_OK) status = add(&run, &row, own, session, true);
        if (status != MN_OK && n_rows > 1) status = status_context(status, "row %zu", i);
    }
    return finish(&run, status, generation);
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
