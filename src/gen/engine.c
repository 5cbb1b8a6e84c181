/* The engine of a program: requests come and leave at any step, each with its own result.
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>

#include "base/mem.h"
#include "base/options.h"
#include "gen/cache_request.h"
#include "gen/result.h"
#include "gen/steps.h"

struct mn_engine {
    mn_model *model;
    mn_session *like; /* what sessions of requests are like; it has no cache */
    steps steps;
    int next_id;
};

mn_engine_options mn_engine_options_default(void) {
    return (mn_engine_options){.size = sizeof(mn_engine_options)};
}

mn_request mn_request_default(void) {
    return (mn_request){.size = sizeof(mn_request)};
}

mn_status mn_engine_open(mn_engine **engine, mn_model *model, const mn_engine_options *given) {
    mn_engine_options options = mn_engine_options_default();
    *engine = NULL;
    MN_TRY(options_take(&options, sizeof options, given, "mn_engine_options"));
    mn_engine *e = mem_alloc(1, sizeof *e);
    if (!e) return MN_E_NOMEM;
    e->model = model;
    mn_status status = session_open_plan(&e->like, model, options.cache);
    if (status != MN_OK) {
        mn_engine_close(&e);
        return status;
    }
    *engine = e;
    return MN_OK;
}

void mn_engine_close(mn_engine **engine) {
    mn_engine *e = *engine;
    *engine = NULL;
    if (!e) return;
    for (size_t i = 0; i < e->steps.n; i++) result_close(&e->steps.requests[i]->result);
    while (e->steps.ended) {
        gen_result *result = e->steps.ended->result;
        e->steps.ended = e->steps.ended->next;
        result_close(&result);
    }
    steps_clear(&e->steps);
    mn_session_close(&e->like);
    mem_free(e);
}

/* ---- adding ---- */

static mn_status open_own(mn_engine *e, request *r, const mn_request *given) {
    mn_generate_options options = mn_generate_options_default();
    const mn_generation_config *config = given->config ? given->config : e->model->generation;
    MN_TRY(options_take(&options, sizeof options, given->options, "mn_generate_options"));
    MN_TRY(generation_config_copy(&r->own_config, config));
    if (given->cache || given->prefix) {
        const mn_batch_row row = {.n_prompt = given->n_prompt, .prefix = given->prefix};
        MN_TRY(request_session(&r->own_session, e->model, given->cache, &row, config));
    } else {
        MN_TRY(session_open_like(&r->own_session, e->like));
        MN_TRY(cache_request_follow(r->own_session, config, given->n_prompt));
    }
    r->setup = (search_setup){.session = r->own_session,
                              .prompt = given->prompt,
                              .n_prompt = given->n_prompt,
                              .config = r->own_config,
                              .row = e->next_id};
    MN_TRY(request_open(r, &options, request_seed(config), e->steps.requests, e->steps.n));
    return request_copy_negative(r);
}

mn_status mn_engine_add(mn_engine *e, const mn_request *given, int *id) {
    mn_request full = mn_request_default();
    gen_result *result = NULL;
    request *r = NULL;
    MN_TRY(options_take(&full, sizeof full, given, "mn_request"));
    mn_status status = result_open(&result, 1);
    if (status == MN_OK) {
        r = result->requests[0] = mem_alloc(1, sizeof *r);
        status = r ? open_own(e, r, &full) : MN_E_NOMEM;
    }
    if (status == MN_OK) status = result_reserve(result);
    if (status == MN_OK) status = steps_add(&e->steps, r);
    if (status != MN_OK) {
        result_close(&result);
        return status;
    }
    r->result = result;
    *id = e->next_id;
    e->next_id = e->next_id == INT_MAX ? 0 : e->next_id + 1;
    return MN_OK;
}

/* ---- going on ---- */

mn_status mn_engine_step(mn_engine *e, size_t *n_running) {
    steps_choose(&e->steps);
    steps_compute(&e->steps);
    if (n_running) *n_running = e->steps.n;
    return MN_OK;
}

mn_status mn_engine_cancel(mn_engine *e, int id) {
    for (size_t i = 0; i < e->steps.n; i++) {
        if (e->steps.requests[i]->setup.row != id) continue;
        steps_stop(&e->steps, e->steps.requests[i], MN_E_CANCELLED);
        return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "no request %d is running", id);
}

mn_status mn_engine_take(mn_engine *e, int *id, mn_generation **generation) {
    request *r = e->steps.ended;
    *generation = NULL;
    *id = -1;
    if (!r) return MN_OK;
    e->steps.ended = r->next;
    if (!r->next) e->steps.last_ended = &e->steps.ended;
    gen_result *result = r->result;
    *id = r->setup.row;
    result->public.seed = r->setup.seed;
    result->public.prompt_ms = r->prompt_ended - r->started;
    result->public.predicted_ms = r->ended - r->prompt_ended;
    mn_status status = request_status(r);
    if (status == MN_OK) status = result_publish(result);
    if (status != MN_OK) result_close(&result);
    *generation = result ? &result->public : NULL;
    return status;
}
