/* SPDX-License-Identifier: Apache-2.0 */
#include "session/session.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/options.h"
#include "model/encoder.h"
#include "model/rope.h"

enum { DEFAULT_CHUNK = 512 };

void mn_cache_options_init(mn_cache_options *options, size_t size) {
    const mn_cache_options full = {.dtype = "auto"};
    options_init(options, size, &full, sizeof full);
}

mn_status mn_cache_check(const mn_cache_options *given, mn_cache_summary *summary) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    kv_plan plan;
    on_oom on_oom_change;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(kv_plan_make(&plan, &options, KV_BF16));
    MN_TRY(on_oom_read(&on_oom_change, options.on_oom));
    if (!summary) return MN_OK;
    mn_cache_summary full = {
        .preallocates = plan.self.preallocates,
        .max_cache_len = plan.options.limit,
        .page_tokens = plan.options.page_tokens,
        .prefill_chunk = plan.prefill_chunk ? plan.prefill_chunk : DEFAULT_CHUNK,
        .has_unbounded_context = kv_plan_window(&plan) > 0,
    };
    static_assert(sizeof full.path == sizeof plan.path, "both hold a value of the configuration");
    memcpy(full.path, plan.path, sizeof full.path);
    return options_give(summary, &full, sizeof full, "mn_cache_summary");
}

/* Preallocated bytes are compared with the available memory before any of them is touched. */
static mn_status check_reserve(const kv_plan *plan, const kv_spec *specs, int n_specs) {
    if (!plan->options.reserve || plan->self.is_offloaded)
        return MN_OK; /* offloaded entries are not
                       * preallocated */
    size_t need = kv_plan_bytes(specs, n_specs, &plan->options, plan->options.reserve), available = memory_available();
    if (need <= available) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "a static cache of %lld tokens needs %zu MiB, %zu MiB are available",
            (long long)plan->options.reserve, need >> 20, available >> 20);
}

int64_t session_limit(const mn_session *s) {
    if (s->plan.options.limit) return s->plan.options.limit;
    return s->model->net.config.positions == POSITIONS_LEARNED ? s->model->net.config.max_position_embeddings : 0;
}

bool session_has_unbounded_context(const mn_session *s) {
    return kv_plan_window(&s->plan) > 0 && s->model->net.config.positions != POSITIONS_LEARNED;
}

/* Learned positions limit the context whatever the cache holds. */
static mn_status check_limit(const model_core *model, const kv_plan *plan) {
    const model_config *c = &model->net.config;
    int64_t limit = plan->options.limit, most = c->max_position_embeddings;
    if (c->positions != POSITIONS_LEARNED || limit <= most) return MN_OK;
    MN_FAIL(MN_E_ARG, "max_cache_len is %lld, allowed: up to %lld, for which the model has learned positions",
            (long long)limit, (long long)most);
}

mn_status session_plan_specs(kv_spec **specs, int *n, const model_core *model, const kv_plan *plan,
                             const kv_calibration *calibration) {
    *specs = NULL;
    MN_TRY(check_limit(model, plan));
    MN_TRY(model_cache_specs(specs, n, model, plan->exact));
    mn_status status = kv_plan_specs(plan, *specs, *n, (int)model->net.config.num_hidden_layers, calibration);
    if (status == MN_OK) return MN_OK;
    mem_free(*specs);
    *specs = NULL;
    return status;
}

mn_status session_specs(kv_spec **specs, int *n, const mn_session *s) {
    return session_plan_specs(specs, n, s->model, &s->plan, s->calibration);
}

size_t session_plan_bytes(const model_core *model, const kv_options *options, const kv_spec *specs, int n,
                          int64_t n_tokens) {
    const model_config *from = model->net.config.encoder;
    const int64_t n_encoded = from ? from->max_position_embeddings : 0; /* cross attention holds all of them */
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t need = kv_plan_bytes(&specs[i], 1, options, specs[i].write_once ? n_encoded : n_tokens);
        if (!size_add(total, need, &total)) return SIZE_MAX;
    }
    return total;
}

static mn_status open_cache(mn_session *s) {
    kv_spec *specs = NULL;
    int n = 0;
    mn_status status = session_specs(&specs, &n, s);
    if (status == MN_OK && s->plan.self.is_offloaded)
        status = kv_pool_open_offload(s->model->pool, *s->plan.path ? s->plan.path : NULL);
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
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    *out = NULL;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    mn_session *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    s->owner = model_hold(model);
    s->model = model->core;
    mn_status status = kv_plan_make(&s->plan, &options, s->model->reference ? KV_F32 : KV_BF16);
    s->prefill_chunk = s->plan.prefill_chunk ? s->plan.prefill_chunk : DEFAULT_CHUNK;
    if (status == MN_OK) status = on_oom_read(&s->on_oom, options.on_oom);
    if (status == MN_OK && options.key_file) status = mac_key_read(&s->key, options.key_file);
    s->requested = (requested_cache){options.implementation || options.config, options.max_cache_len,
                                     options.page_tokens, options.prefill_chunk};
    if (status == MN_OK && s->plan.self.is_quantized) status = model_calibration(&s->calibration, s->model);
    if (status != MN_OK) mn_session_close(&s);
    *out = s;
    return status;
}

mn_status session_open_cache(mn_session *s) {
    if (!s->logits) s->logits = mem_alloc((size_t)s->model->net.config.vocab_size, sizeof *s->logits);
    if (!s->logits) return MN_E_NOMEM;
    MN_TRY(open_cache(s));
    mn_status status = session_make_room(s, 0);
    if (status != MN_OK) kv_close(&s->cache);
    return status;
}

mn_status mn_session_open(mn_session **session, mn_model *model, const mn_cache_options *given) {
    *session = NULL;
    mn_session *s = NULL;
    MN_TRY(session_open_plan(&s, model, given));
    mn_status status = session_open_cache(s);
    if (status != MN_OK) {
        mn_session_close(&s);
        return status;
    }
    *session = s;
    return MN_OK;
}

void mn_session_close(mn_session **session) {
    if (!*session) return;
    session_leave_ring(*session);
    kv_close(&(*session)->cache);
    mac_key_wipe(&(*session)->key);
    mn_model_close(&(*session)->owner);
    mem_free((*session)->ids);
    mem_free((*session)->logits);
    mem_free(*session);
    *session = NULL;
}

/* ---- pages that others may move ---- */

/* Runs work on the pages of a session. Where its cache offloads, a pass of another session that shares pages may move
 * them: then between passes. */
static mn_status with_pages(const mn_session *s, mn_status (*work)(void *), void *arg) {
    return kv_moves_pages(s->cache) ? model_between_passes(s->model, work, arg) : work(arg);
}

typedef struct fork_call {
    kv_cache **fork;
    const kv_cache *cache;
} fork_call;

static mn_status fork_pages(void *arg) {
    const fork_call *call = arg;
    return kv_fork(call->fork, call->cache);
}

static mn_status refork_pages(void *arg) {
    const fork_call *call = arg;
    return kv_refork(call->fork, call->cache);
}

mn_status session_fork_cache(kv_cache **fork, const mn_session *s) {
    *fork = NULL;
    return with_pages(s, fork_pages, &(fork_call){fork, s->cache});
}

mn_status session_refork_cache(mn_session *fork, const mn_session *s) {
    return with_pages(s, refork_pages, &(fork_call){&fork->cache, s->cache});
}

typedef struct truncate_call {
    kv_cache *cache;
    int64_t n_keep;
} truncate_call;

static mn_status truncate_pages(void *arg) {
    const truncate_call *call = arg;
    return kv_truncate(call->cache, call->n_keep);
}

typedef struct size_call {
    const kv_cache *cache;
    session_sizes sizes;
} size_call;

static mn_status count_pages(void *arg) {
    size_call *call = arg;
    call->sizes = (session_sizes){.bytes = kv_bytes(call->cache),
                                  .offloaded = kv_offloaded_held(call->cache),
                                  .unique = kv_unique_bytes(call->cache)};
    return MN_OK;
}

session_sizes session_count(const mn_session *s) {
    size_call call = {.cache = s->cache};
    if (s->cache) with_pages(s, count_pages, &call);
    return call.sizes;
}

typedef struct read_call {
    const mn_session *s;
    int entry;
    bool is_key;
    int64_t begin;
    int n;
    float *rows;
} read_call;

static mn_status read_pages(void *arg) {
    const read_call *c = arg;
    return kv_read(c->s->cache, &c->s->model->compute.kernels, c->entry, c->is_key, c->begin, c->n, c->rows);
}

mn_status session_read_rows(const mn_session *s, int entry, bool is_key, int64_t begin, int n, float *rows) {
    return with_pages(s, read_pages, &(read_call){s, entry, is_key, begin, n, rows});
}

/* ---- encoder-decoder models ---- */

mn_status mn_session_encode(mn_session *s, const float *features, size_t num_mel_bins, size_t n_frames) {
    const model_config *own = s->model->net.config.encoder;
    if (own && num_mel_bins != (size_t)own->num_mel_bins)
        MN_FAIL(MN_E_ARG, "features of %zu mel bands, '%s' takes %lld", num_mel_bins, s->model->what,
                (long long)own->num_mel_bins);
    if (s->n_ids > 0) MN_FAIL(MN_E_ARG, "the session holds %zu tokens already; encode before the first", s->n_ids);
    return model_encode(s->model, s->cache, features, (int64_t)n_frames, NULL);
}

mn_status session_cross_weights(const mn_session *s, const int32_t *ids, size_t n, const cross_head *heads,
                                size_t n_heads, float *out) {
    kv_cache *cache = NULL;
    MN_TRY(session_fork_cache(&cache, s));
    size_t positions = (size_t)s->model->net.config.encoder->max_position_embeddings;
    mn_status status = with_pages(s, truncate_pages, &(truncate_call){cache, 0});
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
    if (kv_length(s->cache) > n) with_pages(s, truncate_pages, &(truncate_call){s->cache, kv_reachable(s->cache, n)});
}

int64_t session_revertible_tokens(const mn_session *s, int64_t most) {
    const model_config *config = &s->model->net.config;
    int64_t n = kv_revertible_tokens(s->cache, most), length = (int64_t)s->n_ids;
    int64_t regime = rope_regime(config, session_angle_length(s, length + 1));
    if (regime != s->regime) return 1; /* the next call computes everything again */
    while (n > 1 && rope_regime(config, session_angle_length(s, length + n)) != regime) n--;
    return n;
}

void session_take_back(mn_session *s, size_t n, const float *logits) {
    assert(n <= s->n_ids);
    s->n_ids = n;
    session_go_back(s, (int64_t)n);
    memcpy(s->logits, logits, (size_t)s->model->net.config.vocab_size * sizeof *logits);
    s->has_logits = true;
}

void session_empty(mn_session *s) {
    s->n_ids = 0;
    s->has_logits = false;
    session_go_back(s, 0);
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
            "cannot truncate to %lld tokens: the cache has dropped tokens that they attend to; allowed: 0, or mn_session_sync()",
            (long long)keep);
    }
    if (keep < length) s->has_logits = false;
    s->n_ids = (size_t)keep;
    session_go_back(s, keep);
    return MN_OK;
}

/* ---- sessions that share pages ---- */

void session_begin_ring(mn_session *s) {
    s->next_in_ring = s->previous_in_ring = s;
}

static void join_ring(mn_session *s, mn_session *next) {
    s->next_in_ring = next;
    s->previous_in_ring = next->previous_in_ring;
    s->previous_in_ring->next_in_ring = s;
    next->previous_in_ring = s;
}

void session_leave_ring(mn_session *s) {
    if (!s->next_in_ring) return;
    s->next_in_ring->previous_in_ring = s->previous_in_ring;
    s->previous_in_ring->next_in_ring = s->next_in_ring;
    s->next_in_ring = s->previous_in_ring = NULL;
}

bool session_may_drop_pages(const mn_session *s) {
    if (*s->original_implementation || s->plan.self.preallocates) return false;
    for (int i = 0; i < kv_entries(s->cache); i++) {
        if (kv_entry_spec(s->cache, i)->flush) return false;
    }
    return true;
}

void session_drop_pages(mn_session *s) {
    session_go_back(s, 0);
}

/* ---- forks ---- */

/* The strategy of another session of the same model. */
static void take_strategy(mn_session *s, const mn_session *like) {
    s->plan = like->plan;
    s->calibration = like->calibration;
    s->on_oom = like->on_oom;
    s->requested = like->requested;
    memcpy(s->original_implementation, like->original_implementation, sizeof s->original_implementation);
    s->prefill_chunk = like->prefill_chunk;
}

/* A session of the same model and strategy without a cache and without memory for logits, with capacity for n ids. */
static mn_status open_bare(mn_session **out, const mn_session *like, size_t n) {
    mn_session *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return MN_E_NOMEM;
    s->owner = model_hold(like->owner);
    s->model = like->model;
    s->key = like->key;
    if (like->next_in_ring) join_ring(s, like->next_in_ring);
    MN_TRY(mem_grow(&s->ids, &s->ids_capacity, n, sizeof *s->ids));
    take_strategy(s, like);
    return MN_OK;
}

/* The same with memory for logits. */
static mn_status open_blank(mn_session **out, const mn_session *like, size_t n) {
    MN_TRY(open_bare(out, like, n));
    (*out)->logits = mem_alloc_raw((size_t)like->model->net.config.vocab_size, sizeof *(*out)->logits);
    return (*out)->logits ? MN_OK : MN_E_NOMEM;
}

mn_status session_open_empty(mn_session **out, const mn_session *like) {
    mn_status status = open_bare(out, like, 1);
    if (status != MN_OK)
        mn_session_close(out);
    else
        session_leave_ring(*out);
    return status;
}

mn_status session_open_over(mn_session **out, const mn_session *empty, const int32_t *ids, size_t n, int64_t regime,
                            const kv_cache *cache) {
    mn_status status = open_blank(out, empty, n);
    if (status == MN_OK) status = kv_fork(&(*out)->cache, cache);
    if (status != MN_OK) {
        mn_session_close(out);
        return status;
    }
    memcpy((*out)->ids, ids, n * sizeof *ids);
    (*out)->n_ids = n;
    (*out)->regime = regime;
    return MN_OK;
}

mn_status session_open_like(mn_session **out, const mn_session *like) {
    mn_status status = open_blank(out, like, 1);
    if (status == MN_OK) status = open_cache(*out);
    if (status != MN_OK) mn_session_close(out);
    return status;
}

/* Copies what a fork has besides its cache; the memory is allocated already. */
static void take_text(mn_session *f, const mn_session *s, bool with_logits) {
    f->regime = s->regime;
    f->has_logits = s->has_logits && with_logits;
    f->n_ids = s->n_ids;
    if (s->n_ids) memcpy(f->ids, s->ids, s->n_ids * sizeof *f->ids);
    if (f->has_logits) memcpy(f->logits, s->logits, (size_t)s->model->net.config.vocab_size * sizeof *f->logits);
}

mn_status session_refork(mn_session *f, const mn_session *s, bool with_logits) {
    assert(f->model == s->model);
    session_empty(f);
    MN_TRY(mem_grow(&f->ids, &f->ids_capacity, s->n_ids, sizeof *f->ids));
    MN_TRY(session_refork_cache(f, s));
    take_strategy(f, s);
    take_text(f, s, with_logits);
    return MN_OK;
}

mn_status session_fork(mn_session **fork, const mn_session *s, bool with_logits) {
    mn_status status = open_blank(fork, s, s->n_ids);
    if (status == MN_OK) status = session_fork_cache(&(*fork)->cache, s);
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

static void exchange(void *a, void *b, size_t n) {
    char *x = a, *y = b;
    for (size_t i = 0; i < n; i++) {
        char was = x[i];
        x[i] = y[i];
        y[i] = was;
    }
}

void session_exchange(mn_session *a, mn_session *b) {
    assert(a->model == b->model);
#define EXCHANGE(member) exchange(&a->member, &b->member, sizeof a->member)
    EXCHANGE(plan);
    EXCHANGE(original_implementation);
    EXCHANGE(calibration);
    EXCHANGE(cache);
    EXCHANGE(regime);
    EXCHANGE(ids);
    EXCHANGE(n_ids);
    EXCHANGE(ids_capacity);
    EXCHANGE(logits);
    EXCHANGE(has_logits);
    EXCHANGE(prefill_chunk);
#undef EXCHANGE
}

int64_t session_entry_limit(const mn_session *s, const kv_spec *spec) {
    int64_t limit = s->plan.options.limit, window = spec->window ? (int64_t)spec->window + spec->sinks : 0;
    if (window == 0 || spec->write_once) return limit;
    return limit ? min_i64(limit, window) : window;
}

/* The same for the self attention with the longest window; states have no limit. */
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
    const session_sizes sizes = keeps ? session_count(s) : (session_sizes){0};
    mn_cache_info full = {
        .implementation = s->plan.name,
        .dtype = kv_codec_name(s->plan.exact),
        .tokens = most ? min_i64(most, seen) : seen,
        .next_position = (int64_t)s->n_ids,
        .bytes = sizes.bytes,
        .peak_bytes = kv_peak_bytes(s->cache),
        .bytes_per_token = kv_cache_token_bytes(s->cache),
        .max_cache_len = most,
        .num_layers = kv_entries(s->cache),
        .offloaded_bytes = sizes.offloaded,
        .original_implementation = *s->original_implementation ? s->original_implementation : NULL,
        .has_unbounded_context = session_has_unbounded_context(s),
        .limit = s->plan.options.limit,
        .seen = seen,
        .unique_bytes = sizes.unique,
    };
    return options_give(info, &full, sizeof full, "mn_cache_info");
}

void mn_session_cancel(mn_session *session) {
    atomic_store(&session->cancelled, true);
}
