/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/session.h"

#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "model/rope.h"

enum { DEFAULT_CHUNK = 512 };

mn_cache_options mn_cache_options_default(void) {
    return (mn_cache_options){.size = sizeof(mn_cache_options),
                              .implementation = "dynamic",
                              .dtype = "auto"};
}

mn_status mn_cache_check(const mn_cache_options *given, mn_cache_summary *summary) {
    mn_cache_options options = mn_cache_options_default();
    kv_plan plan;
    on_oom relief;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(kv_plan_make(&plan, &options, KV_BF16));
    MN_TRY(on_oom_read(&relief, options.on_oom));
    if (!summary) return MN_OK;
    mn_cache_summary full = {
        .reserves = plan.self.reserves,
        .max_cache_len = plan.options.limit,
        .page_tokens = plan.options.page_tokens,
        .prefill_chunk = plan.prefill_chunk ? plan.prefill_chunk : DEFAULT_CHUNK,
        .is_endless = plan.self.windows && plan.self.window_length > 0,
    };
    return options_give(summary, &full, sizeof full, "mn_cache_summary");
}

/* What is allocated at once is compared with the machine's memory before any of it is touched. */
static mn_status check_reserve(const kv_plan *plan, const kv_spec *specs, int n_specs) {
    if (!plan->options.reserve) return MN_OK;
    size_t need = kv_plan_bytes(specs, n_specs, &plan->options, plan->options.reserve),
           available = memory_available();
    if (need <= available) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "a static cache of %lld tokens needs %zu MiB, %zu MiB are available",
            (long long)plan->options.reserve, need >> 20, available >> 20);
}

mn_status session_specs(kv_spec **specs, int *n, const mn_session *s) {
    MN_TRY(model_cache_specs(specs, n, s->model, s->plan.exact));
    mn_status status = kv_plan_specs(&s->plan, *specs, *n, *n, s->bases);
    if (status == MN_OK) return MN_OK;
    mem_free(*specs);
    *specs = NULL;
    return status;
}

static mn_status open_cache(mn_session *s) {
    kv_spec *specs = NULL;
    int n = 0;
    mn_status status = session_specs(&specs, &n, s);
    if (status == MN_OK && s->plan.self.is_far)
        status = kv_pool_open_far(s->model->pool, *s->plan.path ? s->plan.path : NULL);
    if (status == MN_OK) status = check_reserve(&s->plan, specs, n);
    if (status == MN_OK) status = kv_open(&s->cache, s->model->pool, specs, n, &s->plan.options);
    mem_free(specs);
    return status;
}

/* Room for n ids; as many as the cache's pages hold are made room for at once, so that steps inside them do
 * not allocate. */
static mn_status make_room(mn_session *s, size_t n) {
    size_t paged = (size_t)kv_room(s->cache);
    return mem_grow(&s->ids, &s->ids_capacity, n > paged ? n : paged, sizeof *s->ids);
}

mn_status mn_session_open(mn_session **session, mn_model *model, const mn_cache_options *given) {
    *session = NULL;
    mn_cache_options full = mn_cache_options_default(), *options = &full;
    MN_TRY(options_take(&full, sizeof full, given, "mn_cache_options"));
    mn_session *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    s->owner = model;
    s->model = model->core;
    mn_status status = kv_plan_make(&s->plan, options, s->model->reference ? KV_F32 : KV_BF16);
    s->prefill_chunk = s->plan.prefill_chunk ? s->plan.prefill_chunk : DEFAULT_CHUNK;
    if (status == MN_OK) status = on_oom_read(&s->on_oom, options->on_oom);
    if (status == MN_OK && options->config) {
        s->config = mem_copy_text(options->config, strlen(options->config));
        if (!s->config) status = MN_E_NOMEM;
    }
    if (status == MN_OK && s->plan.self.codes) {
        status = model_load_bases(model);
        s->bases = s->model->bases;
    }
    if (status == MN_OK) status = open_cache(s);
    if (status == MN_OK) {
        s->logits = mem_alloc((size_t)s->model->config.vocab_size, sizeof *s->logits);
        if (!s->logits) status = MN_E_NOMEM;
    }
    if (status == MN_OK) status = make_room(s, 0);
    if (status != MN_OK) {
        mn_session_close(&s);
        return status;
    }
    *session = s;
    return MN_OK;
}

void mn_session_close(mn_session **session) {
    if (!*session) return;
    kv_close(&(*session)->cache);
    mem_free((*session)->config);
    mem_free((*session)->ids);
    mem_free((*session)->logits);
    mem_free(*session);
    *session = NULL;
}

static mn_status check_ids(const mn_session *s, const int32_t *ids, size_t n) {
    if (n == 0) MN_FAIL(MN_E_ARG, "no token was given, at least one is needed");
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->model->config.vocab_size) {
            MN_FAIL(MN_E_ARG, "token %zu is %d, allowed: 0 to %lld", i, ids[i],
                    (long long)s->model->config.vocab_size - 1);
        }
    }
    return MN_OK;
}

int64_t session_angle_length(const mn_session *s, int64_t total) {
    int64_t window = s->plan.self.windows ? s->plan.self.window_length : 0;
    return window > 0 ? min_i64(total, window) : total;
}

/* Drops cached keys that a text of `total` tokens cannot use: those of a cache-less session, and those
 * rotated by angles of another length. */
static void drop_unusable(mn_session *s, int64_t total) {
    int64_t regime = rope_regime(&s->model->config, session_angle_length(s, total));
    if (!s->plan.self.keeps || regime != s->regime) kv_truncate(s->cache, 0);
    s->regime = regime;
}

/* End of the chunk that begins at `position`: chunks end at multiples of the chunk size, so a prompt is cut
 * at page edges wherever it begins, and where tokens are to be sealed before the next one is computed. */
static int64_t chunk_end(const mn_session *s, int64_t position, int64_t end) {
    int64_t next = (position / s->prefill_chunk + 1) * s->prefill_chunk;
    return min_i64(min_i64(next, kv_step_limit(s->cache, position)), end);
}

/* Takes the cache back to `n` tokens, or further where what they see is gone; the ids bring it up to date again. */
static void go_back(mn_session *s, int64_t n) {
    if (kv_length(s->cache) > n) kv_truncate(s->cache, kv_reachable(s->cache, n));
}

/* Computes ids [cached, n_ids). Logits of the last go to s->logits, or those of all tokens from `all_from` on
 * to `all`. */
static mn_status catch_up(mn_session *s, size_t all_from, float *all) {
    int64_t total = (int64_t)s->n_ids, start = kv_length(s->cache);
    size_t vocab = (size_t)s->model->config.vocab_size;
    int64_t most = total; /* tokens of a step; fewer when memory is short */
    kv_call_begin(s->cache);
    while (kv_length(s->cache) < total) {
        if (atomic_exchange(&s->cancelled, false)) MN_FAIL(MN_E_CANCELLED, "cancelled");
        int64_t position = kv_length(s->cache), end = min_i64(chunk_end(s, position, total), position + most);
        /* Old tokens that are computed again want no logits of their own. */
        if (all && position < (int64_t)all_from && end > (int64_t)all_from) end = (int64_t)all_from;
        forward_row row = {
            .cache = s->cache, .ids = s->ids + position, .n = (int)(end - position), .total_length = session_angle_length(s, total)};
        if (all && position >= (int64_t)all_from) {
            row.want = WANT_ALL;
            row.logits = all + (size_t)(position - (int64_t)all_from) * vocab;
        } else if (!all && end == total) {
            row.want = WANT_LAST;
            row.logits = s->logits;
        }
        kv_call_ends(s->cache, end == total);
        mn_status status = model_forward(s->model, &row, 1);
        if (status == MN_E_NOMEM) { /* the step is planned again: shorter, or for a smaller cache */
            if (row.n > s->plan.options.page_tokens) {
                most = row.n / 2;
            } else {
                MN_TRY(session_relieve(s));
                most = total;
            }
            continue;
        }
        MN_TRY(status);
        if (s->on_prefill) s->on_prefill(s->prefill_user, (size_t)(end - start), (size_t)(total - start));
    }
    if (all) memcpy(s->logits, all + (s->n_ids - 1 - all_from) * vocab, vocab * sizeof *all);
    return MN_OK;
}

mn_status mn_session_step(mn_session *s, const int32_t *ids, size_t n, float *all_logits) {
    MN_TRY(check_ids(s, ids, n));
    size_t before = s->n_ids;
    int64_t limit = s->plan.options.limit;
    if (limit && (int64_t)(before + n) > limit) {
        MN_FAIL(MN_E_FULL, "the cache holds %zu tokens of at most %lld: no room for %zu more", before,
                (long long)limit, n);
    }
    MN_TRY(make_room(s, before + n));
    memcpy(s->ids + before, ids, n * sizeof *ids);
    s->n_ids += n;
    drop_unusable(s, (int64_t)s->n_ids);
    mn_status status = catch_up(s, before, all_logits);
    if (status != MN_OK) {
        s->n_ids = before;
        go_back(s, (int64_t)before);
        return status;
    }
    s->has_logits = true;
    return MN_OK;
}

mn_status mn_session_sync(mn_session *s, const int32_t *ids, size_t n, size_t *n_reused) {
    MN_TRY(check_ids(s, ids, n));
    size_t common = 0;
    while (common < n && common < s->n_ids && s->ids[common] == ids[common]) common++;
    if (common == n && s->n_ids == n && s->has_logits) {
        if (n_reused) *n_reused = n;
        return MN_OK;
    }
    if (common == n) common = n - 1; /* the last token's logits are wanted */
    if (common < s->n_ids) s->has_logits = false;
    s->n_ids = common;
    go_back(s, (int64_t)common);
    drop_unusable(s, (int64_t)n);
    size_t cached = (size_t)kv_length(s->cache);
    MN_TRY(mn_session_step(s, ids + common, n - common, NULL));
    if (n_reused) *n_reused = cached;
    return MN_OK;
}

static bool steps_alone(const mn_session *s) {
    int64_t total = (int64_t)s->n_ids + 1;
    return !s->plan.self.keeps || kv_length(s->cache) != (int64_t)s->n_ids ||
           rope_regime(&s->model->config, session_angle_length(s, total)) != s->regime;
}

/* A pass for the sessions that need one token more, in groups that fit on the stack. */
static mn_status step_group(mn_session *const *sessions, const int32_t *ids, int n) {
    enum { MOST = 64 };
    for (int begin = 0; begin < n; begin += MOST) {
        forward_row rows[MOST];
        int count = n - begin < MOST ? n - begin : MOST;
        for (int i = 0; i < count; i++) {
            mn_session *s = sessions[begin + i];
            kv_call_begin(s->cache);
            kv_call_ends(s->cache, true);
            rows[i] = (forward_row){.cache = s->cache,
                                    .ids = &ids[begin + i],
                                    .n = 1,
                                    .total_length = session_angle_length(s, (int64_t)s->n_ids + 1),
                                    .want = WANT_LAST,
                                    .logits = s->logits};
        }
        mn_status status = model_forward(sessions[0]->model, rows, count);
        for (int i = 0; status == MN_E_NOMEM && i < count; i++) {
            MN_TRY(session_relieve(sessions[begin + i]));
            rows[i].cache = sessions[begin + i]->cache;
            if (i + 1 == count) status = model_forward(sessions[0]->model, rows, count);
        }
        MN_TRY(status);
        for (int i = 0; i < count; i++) {
            mn_session *s = sessions[begin + i];
            s->ids[s->n_ids++] = ids[begin + i];
            s->has_logits = true;
        }
    }
    return MN_OK;
}

mn_status session_step_together(mn_session **sessions, int32_t *ids, int n_sessions) {
    int n_together = 0;
    for (int i = 0; i < n_sessions; i++) {
        mn_session *s = sessions[i];
        MN_TRY(make_room(s, s->n_ids + 1));
        if (steps_alone(s)) {
            MN_TRY(mn_session_step(s, &ids[i], 1, NULL));
            continue;
        }
        sessions[n_together] = s;
        ids[n_together++] = ids[i];
    }
    return step_group(sessions, ids, n_together);
}

const float *mn_session_logits(const mn_session *s) {
    return s->has_logits ? s->logits : NULL;
}
int64_t mn_session_length(const mn_session *s) {
    return (int64_t)s->n_ids;
}
const int32_t *mn_session_ids(const mn_session *s) {
    return s->ids;
}

mn_status mn_session_truncate(mn_session *s, int64_t n_keep) {
    int64_t length = (int64_t)s->n_ids, keep = n_keep < 0 ? max_i64(length + n_keep, 0) : n_keep;
    if (keep > length) {
        MN_FAIL(MN_E_ARG, "cannot truncate to %lld: the session holds %lld tokens", (long long)n_keep,
                (long long)length);
    }
    if (keep > 0 && kv_length(s->cache) > keep && kv_reachable(s->cache, keep) == 0) {
        MN_FAIL(MN_E_UNSUPPORTED,
                "cannot truncate to %lld tokens: the cache has forgotten what they see; 0 and synchronising are possible",
                (long long)keep);
    }
    if (keep < length) s->has_logits = false;
    s->n_ids = (size_t)keep;
    go_back(s, keep);
    return MN_OK;
}

mn_status mn_session_fork(mn_session **fork, const mn_session *s) {
    *fork = NULL;
    mn_session *f = mem_alloc(1, sizeof *f);
    if (!f) return MN_E_NOMEM;
    size_t vocab = (size_t)s->model->config.vocab_size;
    f->owner = s->owner;
    f->model = s->model;
    f->plan = s->plan;
    f->bases = s->bases;
    f->on_oom = s->on_oom;
    memcpy(f->before, s->before, sizeof f->before);
    f->regime = s->regime;
    f->prefill_chunk = s->prefill_chunk;
    f->has_logits = s->has_logits;
    f->n_ids = s->n_ids;
    mn_status status = mem_grow(&f->ids, &f->ids_capacity, s->n_ids, sizeof *f->ids);
    if (status == MN_OK && s->config) {
        f->config = mem_copy_text(s->config, strlen(s->config));
        if (!f->config) status = MN_E_NOMEM;
    }
    f->logits = mem_alloc_raw(vocab, sizeof *f->logits);
    if (status == MN_OK && !f->logits) status = MN_E_NOMEM;
    if (status == MN_OK) status = kv_fork(&f->cache, s->cache);
    if (status != MN_OK) {
        mn_session_close(&f);
        return status;
    }
    if (s->n_ids) memcpy(f->ids, s->ids, s->n_ids * sizeof *f->ids);
    memcpy(f->logits, s->logits, vocab * sizeof *f->logits);
    *fork = f;
    return MN_OK;
}

mn_status mn_session_cache(const mn_session *s, mn_cache_info *info) {
    bool keeps = s->plan.self.keeps;
    mn_cache_info full = {
        .implementation = s->plan.name,
        .dtype = kv_codec_name(s->plan.exact),
        .tokens = keeps ? kv_length(s->cache) : 0,
        .next_position = (int64_t)s->n_ids,
        .bytes = keeps ? kv_bytes(s->cache) : 0,
        .peak_bytes = kv_peak_bytes(s->cache),
        .bytes_per_token = kv_cache_token_bytes(s->cache),
        .max_cache_len = s->plan.options.limit,
        .num_layers = kv_entries(s->cache),
        .far_bytes = keeps ? kv_far_held(s->cache) : 0,
        .before = *s->before ? s->before : NULL,
    };
    return options_give(info, &full, sizeof full, "mn_cache_info");
}

void mn_session_cancel(mn_session *session) {
    atomic_store(&session->cancelled, true);
}
