/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/pass.h"

#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "model/encoder.h"
#include "model/rope.h"

enum { DEFAULT_CHUNK = 512 };

mn_cache_options mn_cache_options_default(void) {
    return (mn_cache_options){.size = sizeof(mn_cache_options), .dtype = "auto"};
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
        .is_endless = kv_plan_window(&plan) > 0,
    };
    return options_give(summary, &full, sizeof full, "mn_cache_summary");
}

/* What is allocated at once is compared with the machine's memory before any of it is touched. */
static mn_status check_reserve(const kv_plan *plan, const kv_spec *specs, int n_specs) {
    if (!plan->options.reserve || plan->self.is_far) return MN_OK; /* what rests far is not reserved near */
    size_t need = kv_plan_bytes(specs, n_specs, &plan->options, plan->options.reserve),
           available = memory_available();
    if (need <= available) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "a static cache of %lld tokens needs %zu MiB, %zu MiB are available",
            (long long)plan->options.reserve, need >> 20, available >> 20);
}

int64_t session_limit(const mn_session *s) {
    if (s->plan.options.limit) return s->plan.options.limit;
    return s->model->config.positions == POSITIONS_LEARNED ? s->model->config.max_position_embeddings : 0;
}

bool session_is_endless(const mn_session *s) {
    return kv_plan_window(&s->plan) > 0 && s->model->config.positions != POSITIONS_LEARNED;
}

/* Positions that were learned end, whatever the cache holds. */
static mn_status check_limit(const mn_session *s) {
    const model_config *c = &s->model->config;
    int64_t limit = s->plan.options.limit, most = c->max_position_embeddings;
    if (c->positions != POSITIONS_LEARNED || limit <= most) return MN_OK;
    MN_FAIL(MN_E_ARG, "max_cache_len is %lld, allowed: up to %lld, for which the model has learned positions",
            (long long)limit, (long long)most);
}

mn_status session_specs(kv_spec **specs, int *n, const mn_session *s) {
    *specs = NULL;
    MN_TRY(check_limit(s));
    MN_TRY(model_cache_specs(specs, n, s->model, s->plan.exact));
    mn_status status = kv_plan_specs(&s->plan, *specs, *n, (int)s->model->config.num_hidden_layers, s->bases);
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

mn_status session_make_room(mn_session *s, size_t n) {
    size_t paged = (size_t)kv_room(s->cache);
    return mem_grow(&s->ids, &s->ids_capacity, n > paged ? n : paged, sizeof *s->ids);
}

mn_status session_open_plan(mn_session **out, mn_model *model, const mn_cache_options *given) {
    mn_cache_options options = mn_cache_options_default();
    *out = NULL;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    mn_session *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    s->owner = model;
    s->model = model->core;
    mn_status status = kv_plan_make(&s->plan, &options, s->model->reference ? KV_F32 : KV_BF16);
    s->prefill_chunk = s->plan.prefill_chunk ? s->plan.prefill_chunk : DEFAULT_CHUNK;
    if (status == MN_OK) status = on_oom_read(&s->on_oom, options.on_oom);
    if (status == MN_OK && options.key_file) status = mac_key_read(&s->key, options.key_file);
    s->asked = (asked_cache){options.implementation || options.config, options.max_cache_len,
                             options.page_tokens, options.prefill_chunk};
    if (status == MN_OK) status = kv_plan_config(&s->config, &s->plan, options.config);
    if (status == MN_OK && s->plan.self.codes) {
        status = model_load_bases(model);
        s->bases = s->model->bases;
    }
    if (status != MN_OK) mn_session_close(&s);
    *out = s;
    return status;
}

mn_status mn_session_open(mn_session **session, mn_model *model, const mn_cache_options *given) {
    *session = NULL;
    mn_session *s = NULL;
    MN_TRY(session_open_plan(&s, model, given));
    mn_status status = open_cache(s);
    if (status == MN_OK) {
        s->logits = mem_alloc((size_t)s->model->config.vocab_size, sizeof *s->logits);
        if (!s->logits) status = MN_E_NOMEM;
    }
    if (status == MN_OK) status = session_make_room(s, 0);
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
    mac_key_wipe(&(*session)->key);
    mem_free((*session)->config);
    mem_free((*session)->ids);
    mem_free((*session)->logits);
    mem_free(*session);
    *session = NULL;
}

mn_status mn_session_encode(mn_session *s, const float *features, size_t num_mel_bins, size_t n_frames) {
    const model_config *own = s->model->config.encoder;
    if (own && num_mel_bins != (size_t)own->num_mel_bins)
        MN_FAIL(MN_E_ARG, "features of %zu mel bands, '%s' takes %lld", num_mel_bins, s->model->what,
                (long long)own->num_mel_bins);
    if (s->n_ids > 0)
        MN_FAIL(MN_E_ARG, "the session holds %zu tokens already; encode before the first", s->n_ids);
    return model_encode(s->model, s->cache, features, (int64_t)n_frames, NULL);
}

mn_status session_cross_weights(const mn_session *s, const int32_t *ids, size_t n, const cross_head *heads,
                                size_t n_heads, float *out) {
    kv_cache *cache = NULL;
    MN_TRY(kv_fork(&cache, s->cache));
    size_t positions = (size_t)s->model->config.encoder->max_position_embeddings;
    mn_status status = kv_truncate(cache, 0);
    kv_call_begin(cache);
    for (size_t at = 0; status == MN_OK && at < n;) {
        size_t end = (size_t)min_i64(kv_step_limit(cache, (int64_t)at), (int64_t)n);
        kv_call_ends(cache, end == n);
        const forward_row row = {.cache = cache,
                                 .ids = ids + at,
                                 .n = (int)(end - at),
                                 .total_length = (int64_t)n,
                                 .cross_heads = heads,
                                 .n_cross_heads = (int)n_heads,
                                 .cross_weights = out + at * positions,
                                 .cross_rows = (int)n};
        status = model_forward(s->model, &row, 1);
        at = end;
    }
    kv_close(&cache);
    return status;
}

void session_go_back(mn_session *s, int64_t n) {
    if (kv_length(s->cache) > n) kv_truncate(s->cache, kv_reachable(s->cache, n));
}

int64_t session_quiet_tokens(const mn_session *s, int64_t most) {
    const model_config *config = &s->model->config;
    int64_t n = kv_quiet_tokens(s->cache, most), length = (int64_t)s->n_ids;
    int64_t regime = rope_regime(config, session_angle_length(s, length + 1));
    if (regime != s->regime) return 1; /* the next call computes everything again */
    while (n > 1 && rope_regime(config, session_angle_length(s, length + n)) != regime) n--;
    return n;
}

void session_take_back(mn_session *s, size_t n, const float *logits) {
    s->n_ids = n;
    session_go_back(s, (int64_t)n);
    memcpy(s->logits, logits, (size_t)s->model->config.vocab_size * sizeof *logits);
    s->has_logits = true;
}

void session_empty(mn_session *s) {
    s->n_ids = 0;
    s->has_logits = false;
    session_go_back(s, 0);
}

mn_status mn_session_step(mn_session *s, const int32_t *ids, size_t n, float *all_logits) {
    feed f = {.session = s, .ids = ids, .n = n, .logits = all_logits};
    return feed_run(&f);
}

mn_status mn_session_sync(mn_session *s, const int32_t *ids, size_t n, size_t *n_reused) {
    feed f;
    size_t reused = 0;
    MN_TRY(feed_sync(&f, s, ids, n, n, &reused));
    if (!f.is_done) MN_TRY(feed_run(&f));
    if (n_reused) *n_reused = reused;
    return MN_OK;
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
    if (keep > 0 && s->plan.self.keeps && kv_length(s->cache) > keep && kv_reachable(s->cache, keep) == 0) {
        MN_FAIL(
            MN_E_UNSUPPORTED,
            "cannot truncate to %lld tokens: the cache has forgotten what they see; 0 and synchronising are possible",
            (long long)keep);
    }
    if (keep < length) s->has_logits = false;
    s->n_ids = (size_t)keep;
    session_go_back(s, keep);
    return MN_OK;
}

/* The strategy of another session of the same model; config: a copy of its own text. */
static void take_strategy(mn_session *s, const mn_session *like, char *config) {
    mem_free(s->config);
    s->config = config;
    s->plan = like->plan;
    s->bases = like->bases;
    s->on_oom = like->on_oom;
    s->asked = like->asked;
    memcpy(s->before, like->before, sizeof s->before);
    s->prefill_chunk = like->prefill_chunk;
}

static mn_status copy_config(char **out, const mn_session *s) {
    *out = s->config ? mem_copy_text(s->config, strlen(s->config)) : NULL;
    return s->config && !*out ? MN_E_NOMEM : MN_OK;
}

/* A session of the same model and strategy without a cache; room for n ids. */
static mn_status open_bare(mn_session **out, const mn_session *like, size_t n) {
    mn_session *s = mem_alloc(1, sizeof *s);
    char *config = NULL;
    *out = s;
    if (!s) return MN_E_NOMEM;
    s->owner = like->owner;
    s->model = like->model;
    s->key = like->key;
    MN_TRY(mem_grow(&s->ids, &s->ids_capacity, n, sizeof *s->ids));
    MN_TRY(copy_config(&config, like));
    take_strategy(s, like, config);
    s->logits = mem_alloc_raw((size_t)s->model->config.vocab_size, sizeof *s->logits);
    return s->logits ? MN_OK : MN_E_NOMEM;
}

mn_status session_open_like(mn_session **out, const mn_session *like) {
    mn_status status = open_bare(out, like, 1);
    if (status == MN_OK) status = open_cache(*out);
    if (status != MN_OK) mn_session_close(out);
    return status;
}

/* What a fork has besides its cache, for which there is room. */
static void take_text(mn_session *f, const mn_session *s, bool with_logits) {
    f->regime = s->regime;
    f->has_logits = s->has_logits && with_logits;
    f->n_ids = s->n_ids;
    if (s->n_ids) memcpy(f->ids, s->ids, s->n_ids * sizeof *f->ids);
    if (f->has_logits) memcpy(f->logits, s->logits, (size_t)s->model->config.vocab_size * sizeof *f->logits);
}

mn_status session_refork(mn_session *f, const mn_session *s, bool with_logits) {
    bool is_alike =
        f->config && s->config && strcmp(f->config, s->config) == 0; /* then nothing is allocated */
    char *config = is_alike ? f->config : NULL;
    session_empty(f);
    MN_TRY(mem_grow(&f->ids, &f->ids_capacity, s->n_ids, sizeof *f->ids));
    if (!is_alike) MN_TRY(copy_config(&config, s));
    mn_status status = kv_refork(&f->cache, s->cache);
    if (status != MN_OK) {
        if (!is_alike) mem_free(config);
        return status;
    }
    if (is_alike) f->config = NULL; /* it stays */
    take_strategy(f, s, config);
    take_text(f, s, with_logits);
    return MN_OK;
}

mn_status session_fork(mn_session **fork, const mn_session *s, bool with_logits) {
    mn_status status = open_bare(fork, s, s->n_ids);
    if (status == MN_OK) status = kv_fork(&(*fork)->cache, s->cache);
    if (status != MN_OK) {
        mn_session_close(fork);
        return status;
    }
    take_text(*fork, s, with_logits);
    return MN_OK;
}

mn_status mn_session_fork(mn_session **fork, const mn_session *s) {
    return session_fork(fork, s, true);
}

void session_exchange(mn_session *a, mn_session *b) {
    enum { PART = offsetof(mn_session, cancelled) };
    char part[PART];
    memcpy(part, a, PART);
    memcpy(a, b, PART);
    memcpy(b, part, PART);
}

int64_t session_entry_limit(const mn_session *s, const kv_spec *spec) {
    int64_t limit = s->plan.options.limit, window = spec->window ? (int64_t)spec->window + spec->sinks : 0;
    if (window == 0 || spec->write_once) return limit;
    return limit ? min_i64(limit, window) : window;
}

/* The same of the self attention that looks furthest back; states have no end of their own. */
static int64_t furthest_limit(const mn_session *s) {
    int64_t most = 0;
    for (int i = 0; i < kv_entries(s->cache); i++) {
        const kv_spec *spec = kv_entry_spec(s->cache, i);
        if (spec->kind != KV_PAGES || spec->write_once) continue;
        int64_t limit = session_entry_limit(s, spec);
        if (limit == 0) return 0;
        most = max_i64(most, limit);
    }
    return most ? most : s->plan.options.limit;
}

mn_status mn_session_cache(const mn_session *s, mn_cache_info *info) {
    bool keeps = s->plan.self.keeps;
    int64_t most = furthest_limit(s), seen = keeps ? kv_length(s->cache) : 0;
    mn_cache_info full = {
        .implementation = s->plan.name,
        .dtype = kv_codec_name(s->plan.exact),
        .tokens = most ? min_i64(most, seen) : seen,
        .next_position = (int64_t)s->n_ids,
        .bytes = keeps ? kv_bytes(s->cache) : 0,
        .peak_bytes = kv_peak_bytes(s->cache),
        .bytes_per_token = kv_cache_token_bytes(s->cache),
        .max_cache_len = most,
        .num_layers = kv_entries(s->cache),
        .far_bytes = keeps ? kv_far_held(s->cache) : 0,
        .before = *s->before ? s->before : NULL,
        .is_endless = session_is_endless(s),
        .limit = s->plan.options.limit,
        .seen = seen,
    };
    return options_give(info, &full, sizeof full, "mn_cache_info");
}

void mn_session_cancel(mn_session *session) {
    atomic_store(&session->cancelled, true);
}
