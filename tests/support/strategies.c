/* SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <unistd.h>

#include "session/session.h"
#include "support/scratch.h"

/* clang-format off */
#define CACHE(name, page, text) .cache = {.implementation = name, .page_tokens = page, .config = text}
const engine_strategy engine_strategies[N_ENGINE_STRATEGIES] = {
    {CACHE("dynamic", 4, NULL)},
    {CACHE("static", 4, NULL)},
    {CACHE("offloaded", 4, NULL)},
    {CACHE("offloaded_static", 4, NULL)},
    {CACHE("sliding_window", 4, "window_length=21"), .forgets = true},
    {CACHE("sliding_window+static", 2, "window_length=5"), .forgets = true},
    {CACHE("sliding_window+offloaded", 4, "window_length=30"), .forgets = true},
    {CACHE("hybrid", 4, NULL)},
    {CACHE("sink", 4, "window_length=22,num_sink_tokens=5"), .forgets = true},
    {CACHE("sink", 16, "window_length=2,num_sink_tokens=1"), .forgets = true},
    {CACHE("sink+offloaded_static", 4, "window_length=40,num_sink_tokens=8"), .forgets = true},
    {CACHE("quantized", 16, "nbits=4,residual_length=24"), .is_lossy = true},
    {CACHE("quantized", 64, "nbits=2,residual_length=0,first_exact=0"), .is_lossy = true},
    {CACHE("quantized", 64, "key_nbits=8,value_nbits=3,residual_length=20"), .is_lossy = true},
    {CACHE("quantized", 16, "layers=0:f32,2:8bit,rest:k3v2bit,residual_length=16,first_exact=9"), .is_lossy = true},
    {CACHE("quantized", 16, "layers=0-1:bf16,rest:4bit,residual_length=16"), .is_lossy = true},
    {CACHE("hybrid+quantized", 16, "key_nbits=6,value_nbits=1,residual_length=16,first_exact=5"), .is_lossy = true},
    {CACHE("quantized+static", 16, "nbits=5,residual_length=16"), .is_lossy = true},
    {CACHE("quantized+offloaded", 16, "nbits=4,residual_length=16"), .is_lossy = true},
    {CACHE("quantized+sliding_window", 16, "nbits=4,residual_length=16,window_length=50"), .is_lossy = true, .forgets = true},
    {CACHE("quantized+sink+offloaded", 16, "nbits=4,residual_length=0,window_length=60,num_sink_tokens=5"), .is_lossy = true, .forgets = true},
    {CACHE("quantized", 16, "backend=quanto,nbits=4,q_group_size=16,residual_length=8"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+offloaded_static", 16, "backend=quanto,nbits=2,q_group_size=16,residual_length=20,axis_key=-1,axis_value=-1"), .is_lossy = true, .flushes = true},
    {CACHE("quantized", 16, "backend=hqq,nbits=4,q_group_size=16,residual_length=8,axis_key=1,axis_value=1,first_exact=3"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+offloaded", 16, "backend=hqq,nbits=3,q_group_size=8,residual_length=12"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+sink", 16, "backend=quanto,nbits=4,q_group_size=16,residual_length=8,window_length=50,num_sink_tokens=4"), .is_lossy = true, .flushes = true, .forgets = true},
    {CACHE("quantized+sliding_window+static", 32, "backend=hqq,nbits=8,residual_length=1,axis_value=1,window_length=70"), .is_lossy = true, .flushes = true, .forgets = true},
};
/* clang-format on */

const char *const strategy_models[N_STRATEGY_MODELS] = {"golden/llama",       "golden/llama-untied-bias",
                                                        "golden/qwen3",       "golden/mistral-window",
                                                        "golden/phi3-window", "golden/llama-rope-yarn"};
const char *const strategy_dtypes[2] = {"f32", "bf16"};

enum { ONE_IN = TEST_IS_SANITIZED ? 2 * N_STRATEGY_MODELS : 3, ONE_IN_LONG = TEST_IS_SANITIZED ? 2 : 1 };

static int one_in(void) {
    return test_is_long() ? ONE_IN_LONG : ONE_IN;
}

unsigned strategy_traits(const char *joined) {
    unsigned traits = 0;
    for (const char *at = joined; *at;) {
        size_t n = strcspn(at, "+");
        const kv_strategy *s = kv_strategies;
        while (s->name && (strlen(s->name) != n || memcmp(s->name, at, n) != 0)) s++;
        if (!s->name) fail_msg("no strategy is '%.*s'", (int)n, at);
        traits |= s->traits;
        at += n + (at[n] == '+');
    }
    return traits;
}

void strategy_need_rows(const char *table, const char *const *first, size_t size, size_t n, const char *except) {
    for (const kv_strategy *s = kv_strategies; s->name; s++) {
        size_t i = 0;
        while (i < n && strcmp(*(const char *const *)(const void *)((const char *)first + i * size), s->name) != 0) i++;
        if (i == n && (!except || !strstr(except, s->name))) fail_msg("%s: no row is '%s'", table, s->name);
    }
}

bool strategy_is_long(void) {
    return test_is_long() && !TEST_IS_SANITIZED;
}

bool strategy_is_brief(void) {
    return TEST_IS_SANITIZED && one_in() > 2;
}

bool strategy_tries(int i, int form, int j) {
    /* With as many members as there are pairs of a form and a model, each strategy has one of the pairs. */
    int pair = one_in() == 2 * N_STRATEGY_MODELS ? N_STRATEGY_MODELS * form + j : form + j;
    return (i + pair) % one_in() == 0;
}

/* ---- fixtures ---- */

strategy_fixture strategy_fixture_open(const char *path, const char *cpu, int threads) {
    strategy_fixture w = {.path = path, .model = engine_model(path, "f32", cpu, threads), .seed = 41};
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, N_STRATEGY_IDS, (int32_t)w.vocab);
    return w;
}

void strategy_fixture_close(strategy_fixture *w) {
    mn_model_close(&w->model);
}

const char *strategy_hybrid_folder(void) {
    static const char *const types =
        "{ \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"], ";
    static char folder[1024];
    if (*folder) return folder;
    const char *natural = data_path("golden/mistral-window");
    char path[1024], text[4096], changed[8192];
    snprintf(path, sizeof path, "%s/config.json", natural);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    snprintf(changed, sizeof changed, "%s%s", types, strchr(text, '{') + 1);
    scratch_file("config.json", changed, strlen(changed));
    snprintf(path, sizeof path, "%s/model.safetensors", natural);
    assert_int_equal(symlink(path, scratch_path("model.safetensors")), 0);
    snprintf(folder, sizeof folder, "%s", scratch_path("."));
    return folder;
}

/* ---- feeding ---- */

engine_cache strategy_cache(int i, const char *exact) {
    engine_cache cache = engine_strategies[i].cache;
    cache.dtype = exact;
    return cache;
}

enum { TURN_BEGIN = STRATEGY_PROMPT + 14, TURN_END = TURN_BEGIN + 12 };

bool strategy_call_ends(size_t n) {
    return n >= STRATEGY_PROMPT && !(n > TURN_BEGIN && n < TURN_END);
}

static size_t piece_size(const engine_strategy *strategy, size_t at, int piece, uint64_t *seed) {
    enum { MOST_PIECE = 9 };
    size_t size = 1;
    if (!strategy->flushes) {
        if (piece < 0) return 1 + (size_t)(test_random(seed) % MOST_PIECE);
        return piece > 0 ? (size_t)piece : SIZE_MAX;
    }
    while (!strategy_call_ends(at + size)) size++;
    return size;
}

mn_status strategy_try(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                       uint64_t *seed, float *logits) {
    size_t vocab = (size_t)session->model->net.config.vocab_size;
    for (size_t at = (size_t)mn_session_length(session), size; at < n; at += size) {
        size = piece_size(strategy, at, piece, seed);
        if (size > n - at) size = n - at;
        MN_TRY(mn_session_step(session, ids + at, size, logits ? logits + at * vocab : NULL));
    }
    return MN_OK;
}

void strategy_feed(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                   uint64_t *seed, float *logits) {
    assert_ok(strategy_try(strategy, session, ids, n, piece, seed, logits));
}

float *strategy_logits(const strategy_fixture *w) {
    float *logits = malloc(N_STRATEGY_IDS * w->vocab * sizeof *logits);
    assert_non_null(logits);
    memset(logits, 0xFF, N_STRATEGY_IDS * w->vocab * sizeof *logits);
    return logits;
}

float *strategy_run(strategy_fixture *w, const engine_strategy *strategy, const char *exact, int chunk, int piece) {
    engine_cache cache = strategy->cache;
    cache.dtype = exact;
    cache.prefill_chunk = chunk;
    float *logits = strategy_logits(w);
    mn_session *session = engine_session(w->model, cache);
    strategy_feed(strategy, session, w->ids, N_STRATEGY_IDS, piece, &w->seed, logits);
    assert_ok(kv_check(session->cache));
    mn_session_close(&session);
    return logits;
}

/* ---- quantized tokens ---- */

int64_t strategy_quantized(const mn_session *session) {
    int64_t n = 0;
    for (int entry = 0; entry < kv_entries(session->cache); entry++) {
        kv_view view = kv_attention_view(session->cache, entry);
        for (int i = 0; i < view.n_pages; i++) n += view.n_quantized[i];
    }
    return n;
}

/* At most the residual and two parts of a page stay exact in longer sequences. */
bool strategy_must_quantize(const mn_session *session) {
    for (int entry = 0; entry < kv_entries(session->cache); entry++) {
        const kv_spec *spec = kv_entry_spec(session->cache, entry);
        int exact = spec->residual + 2 * session->plan.options.page_tokens;
        if (!kv_form_is_coded(spec->key) && !kv_form_is_coded(spec->value)) continue;
        if ((spec->window == 0 || spec->window >= exact) && kv_length(session->cache) > exact) return true;
    }
    return false;
}

int64_t strategy_quantize_ends(const mn_session *session) {
    int64_t sum = 0;
    for (int entry = 0; entry < kv_entries(session->cache); entry++) {
        kv_view view = kv_attention_view(session->cache, entry);
        int last = view.n_pages - 1;
        while (last >= 0 && view.n_quantized[last] == 0) last--;
        if (last >= 0) sum += (view.first_page + last) * view.page_tokens + view.n_quantized[last];
    }
    return sum;
}
