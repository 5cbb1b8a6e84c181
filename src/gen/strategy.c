/* Changing a session's cache while it holds tokens, by wish or because memory ended.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "gen/session.h"

static const struct {
    const char *name, *adds; /* the strategy that is joined to the one there is */
} relief[N_OOM] = {
    [OOM_FAIL] = {"fail", NULL},
    [OOM_OFFLOAD] = {"offload", "offloaded"},
    [OOM_QUANTIZE] = {"quantize", "quantized"},
    [OOM_EVICT] = {"evict", "sink"},
};

mn_status on_oom_read(on_oom *out, const char *text) {
    *out = OOM_FAIL;
    for (int i = 0; text && i < N_OOM; i++) {
        if (strcmp(text, relief[i].name) != 0) continue;
        *out = (on_oom)i;
        return MN_OK;
    }
    if (!text) return MN_OK;
    MN_FAIL(MN_E_ARG, "on_oom is '%.40s', allowed: fail, offload, quantize, evict", text);
}

/* All of session_change_cache but the end of the conversion. beside: a session whose change has begun already, or NULL. */
static mn_status begin_change(mn_session *session, const mn_cache_options *given, const mn_session *beside) {
    mn_session changed =
        *session; /* what a session of these options is made of; its cache and ids stay the old ones */
    mn_cache_options options = mn_cache_options_default();
    kv_spec *specs = NULL;
    int n = 0;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(kv_plan_make(&changed.plan, &options, session->plan.exact));
    int64_t limit = changed.plan.options.limit;
    if (limit && (int64_t)session->n_ids > limit)
        MN_FAIL(MN_E_UNSUPPORTED, "the session holds %zu tokens, max_cache_len would be %lld", session->n_ids,
                (long long)limit);
    if (!session->plan.self.keeps || !changed.plan.self.keeps)
        MN_FAIL(MN_E_UNSUPPORTED, "a session without a cache has nothing to keep; open another one");
    if (changed.plan.self.codes && !session->plan.self.codes) {
        MN_TRY(model_load_bases(session->owner));
        changed.bases = session->model->bases;
    }
    char *config = NULL;
    MN_TRY(kv_plan_config(&config, &changed.plan, options.config));
    mn_status status = session_specs(&specs, &n, &changed);
    if (status == MN_OK && changed.plan.self.is_far)
        status = kv_pool_open_far(session->model->pool, *changed.plan.path ? changed.plan.path : NULL);
    if (status == MN_OK) {
        pthread_mutex_lock(
            &session->model->lock); /* pages may be sent away by other sessions that share them */
        status = kv_convert_begin(&session->cache, &session->model->compute.kernels, specs, n,
                                  &changed.plan.options, beside ? beside->cache : NULL);
        pthread_mutex_unlock(&session->model->lock);
    }
    mem_free(specs);
    if (status != MN_OK) {
        mem_free(config);
        return status;
    }
    mem_free(session->config);
    session->config = config;
    session->bases = changed.bases;
    session->plan = changed.plan;
    return MN_OK;
}

static void end_change(const mn_session *session, kv_cache *const *caches, int n) {
    pthread_mutex_lock(&session->model->lock);
    kv_convert_end(caches, n, &session->model->compute.kernels);
    pthread_mutex_unlock(&session->model->lock);
}

mn_status session_change_cache(mn_session *session, const mn_cache_options *given) {
    MN_TRY(begin_change(session, given, NULL));
    end_change(session, &session->cache, 1);
    return MN_OK;
}

mn_status mn_session_set_cache(mn_session *session, const mn_cache_options *options) {
    MN_TRY(session_change_cache(session, options));
    session->asked.names_cache = true;
    return MN_OK;
}

/* Tokens that a window keeps when memory has ended: half of those held, in whole pages, and more than sinks
 * alone. */
static int64_t window_of(const mn_session *s) {
    enum { LEAST = 16 };
    int64_t page = s->plan.options.page_tokens, half = kv_length(s->cache) / 2 / page * page;
    return max_i64(half, max_i64(page, LEAST));
}

/* The session's config and, for a new window, its length. */
static mn_status put_config(bytes *b, const mn_session *s) {
    char window[24];
    snprintf(window, sizeof window, "%lld", (long long)window_of(s));
    if (s->on_oom == OOM_EVICT)
        return kv_config_add(b, s->config, config_rows[CONFIG_WINDOW_LENGTH].name, window);
    if (s->config) bytes_append_text(b, s->config);
    return bytes_status(b);
}

/* Begins the change that a session wishes for. */
static mn_status begin_relief(mn_session *s, const mn_session *beside) {
    char name[sizeof s->before], before[sizeof s->before];
    const char *adds = relief[s->on_oom].adds;
    bytes config = {0};
    if (!adds || *s->before || !s->plan.self.keeps) return MN_E_NOMEM;
    bool plain = !(s->plan.self.traits & ~(unsigned)(KV_TRAIT_NATURAL | KV_TRAIT_GROWS));
    snprintf(name, sizeof name, "%.120s%s%s", plain ? "" : s->plan.name, plain ? "" : "+", adds);
    mn_cache_options options = mn_cache_options_default();
    options.implementation = name;
    options.page_tokens = s->plan.options.page_tokens;
    options.dtype = kv_codec_name(s->plan.exact);
    options.max_cache_len = s->plan.options.limit;
    memcpy(before, s->plan.name, sizeof before);
    mn_status status = put_config(&config, s);
    if (config.n) options.config = bytes_text(&config);
    if (status == MN_OK) status = begin_change(s, &options, beside);
    bytes_clear(&config);
    if (status == MN_OK) memcpy(s->before, before, sizeof before);
    return status;
}

mn_status session_relieve(mn_session *const *sessions, size_t n) {
    char failure[256];
    mn_session *first = sessions[0];
    snprintf(failure, sizeof failure, "%s", mn_last_error());
    kv_cache **caches = mem_alloc(n, sizeof *caches); /* without it the first one is changed alone */
    mn_status status = begin_relief(first, NULL);
    int n_changed = 0;
    if (status == MN_OK && caches) caches[n_changed++] = first->cache;
    for (size_t i = 1; n_changed > 0 && i < n; i++) {
        if (!kv_shares_pages(first->cache, sessions[i]->cache) || begin_relief(sessions[i], first) != MN_OK)
            continue;
        caches[n_changed++] = sessions[i]->cache;
    }
    if (status == MN_OK) end_change(first, caches ? caches : &first->cache, caches ? n_changed : 1);
    mem_free(caches);
    return status == MN_OK ? MN_OK : status_fail(MN_E_NOMEM, "%s", failure);
}
