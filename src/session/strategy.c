/* Changing a session's cache while it holds tokens, on request or when memory runs out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "session/session.h"

static const struct {
    const char *name;
    kv_trait adds; /* trait added to the current strategy; 0: none */
} on_oom_change[N_OOM] = {
    [OOM_FAIL] = {"fail", 0},
    [OOM_OFFLOAD] = {"offload", KV_TRAIT_OFFLOADED},
    [OOM_QUANTIZE] = {"quantize", KV_TRAIT_QUANTIZED},
    [OOM_EVICT] = {"evict", KV_TRAIT_SINKS},
};

mn_status on_oom_read(on_oom *out, const char *text) {
    *out = OOM_FAIL;
    for (int i = 0; text && i < N_OOM; i++) {
        if (strcmp(text, on_oom_change[i].name) != 0) continue;
        *out = (on_oom)i;
        return MN_OK;
    }
    if (!text) return MN_OK;
    MN_FAIL(MN_E_ARG, "on_oom is '%.40s', allowed: fail, offload, quantize, evict", text);
}

/* All of session_change_cache but the end of the conversion. beside: a session whose change has begun already, or
 * NULL. */
static mn_status begin_change(mn_session *session, const kv_plan *plan, const mn_session *beside) {
    const kv_calibration *calibration = session->calibration;
    kv_spec *specs = NULL;
    int n = 0;
    int64_t limit = plan->options.limit;
    if (limit && (int64_t)session->n_ids > limit)
        MN_FAIL(MN_E_UNSUPPORTED, "the session holds %zu tokens, max_cache_len would be %lld", session->n_ids,
                (long long)limit);
    if (!session->plan.self.keeps || !plan->self.keeps)
        MN_FAIL(MN_E_UNSUPPORTED, "a session without a cache has nothing to keep; open another one");
    if (plan->self.is_quantized && !session->plan.self.is_quantized)
        MN_TRY(model_calibration(&calibration, session->model));
    MN_TRY(session_plan_specs(&specs, &n, session->model, plan, calibration));
    mn_status status = MN_OK;
    if (plan->self.is_offloaded) status = kv_pool_open_offload(session->model->pool, *plan->path ? plan->path : NULL);
    if (status == MN_OK)
        status = model_convert_begin(session->model, &session->cache, specs, n, &plan->options,
                                     beside ? beside->cache : NULL);
    mem_free(specs);
    MN_TRY(status);
    session->calibration = calibration;
    session->plan = *plan;
    return MN_OK;
}

mn_status session_change_cache(mn_session *session, const kv_plan *plan) {
    MN_TRY(begin_change(session, plan, NULL));
    model_convert_end(session->model, &session->cache, 1);
    return MN_OK;
}

mn_status mn_session_set_cache(mn_session *session, const mn_cache_options *given) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    kv_plan plan;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(kv_plan_make(&plan, &options, session->plan.exact));
    MN_TRY(session_change_cache(session, &plan));
    session->requested.names_cache = true;
    return MN_OK;
}

/* Tokens that a window keeps when memory has run out: half of those held, in whole pages, and more than the sinks
 * alone. */
static int64_t window_of(const mn_session *s) {
    enum { LEAST = 16 };
    int64_t page = s->plan.options.page_tokens, half = kv_length(s->cache) / 2 / page * page;
    return max_i64(half, max_i64(page, LEAST));
}

/* Begins the change that a session's on_oom names. */
static mn_status begin_on_oom(mn_session *s, const mn_session *beside) {
    kv_trait adds = on_oom_change[s->on_oom].adds;
    char original[sizeof s->original_implementation];
    kv_plan plan;
    if (!adds || *s->original_implementation || !s->plan.self.keeps) return MN_E_NOMEM;
    MN_TRY(kv_plan_add(&plan, &s->plan, adds, window_of(s)));
    memcpy(original, s->plan.name, sizeof original);
    MN_TRY(begin_change(s, &plan, beside));
    memcpy(s->original_implementation, original, sizeof original);
    return MN_OK;
}

mn_status session_name_on_oom(const mn_session *s) {
    char failure[256], names[64] = "";
    const char *allowed[N_OOM];
    int n = 0;
    kv_plan plan;
    snprintf(failure, sizeof failure, "%s", mn_last_error());
    for (int i = 0; s->plan.self.keeps && i < N_OOM; i++) {
        kv_trait adds = on_oom_change[i].adds;
        kv_spec *specs = NULL;
        int n_specs = 0;
        bool is_allowed = adds && kv_plan_add(&plan, &s->plan, adds, window_of(s)) == MN_OK &&
                          session_plan_specs(&specs, &n_specs, s->model, &plan, NULL) == MN_OK;
        mem_free(specs);
        if (is_allowed) allowed[n++] = on_oom_change[i].name;
    }
    for (int i = 0; i < n; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", allowed[i]);
    }
    if (n == 0) return status_fail(MN_E_NOMEM, "%s", failure);
    MN_FAIL(MN_E_NOMEM, "%s; --on-oom %s converts the cache then, and the run goes on", failure, names);
}

mn_status session_apply_on_oom(mn_session *const *sessions, size_t n) {
    assert(n > 0);
    char failure[256];
    mn_session *first = sessions[0];
    snprintf(failure, sizeof failure, "%s", mn_last_error());
    kv_cache **caches = mem_alloc(n, sizeof *caches); /* without it the first one is changed alone */
    mn_status status = begin_on_oom(first, NULL);
    int n_changed = 0;
    if (status == MN_OK && caches) caches[n_changed++] = first->cache;
    for (size_t i = 1; n_changed > 0 && i < n; i++) {
        if (!kv_shares_pages(first->cache, sessions[i]->cache) || begin_on_oom(sessions[i], first) != MN_OK) continue;
        caches[n_changed++] = sessions[i]->cache;
    }
    if (status == MN_OK) model_convert_end(first->model, caches ? caches : &first->cache, caches ? n_changed : 1);
    mem_free(caches);
    return status == MN_OK ? MN_OK : status_fail(MN_E_NOMEM, "%s", failure);
}
