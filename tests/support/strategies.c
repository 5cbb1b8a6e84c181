/* SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "gen/session.h"

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
    {CACHE("sink", 4, "window_length=22,num_sink_tokens=5"), .forgets = true},
    {CACHE("sink", 16, "window_length=2,num_sink_tokens=1"), .forgets = true},
    {CACHE("sink+offloaded_static", 4, "window_length=40,num_sink_tokens=8"), .forgets = true},
    {CACHE("quantized", 16, "nbits=4,residual_length=24"), .is_lossy = true},
    {CACHE("quantized", 64, "nbits=2,residual_length=0,first_exact=0"), .is_lossy = true},
    {CACHE("quantized", 64, "key_nbits=8,value_nbits=3,residual_length=20"), .is_lossy = true},
    {CACHE("quantized", 16, "layers=0:f32,2:8bit,rest:k3v2bit,residual_length=16,first_exact=9"), .is_lossy = true},
    {CACHE("quantized+static", 16, "nbits=5,residual_length=16"), .is_lossy = true},
    {CACHE("quantized+offloaded", 16, "nbits=4,residual_length=16"), .is_lossy = true},
    {CACHE("quantized+sliding_window", 16, "nbits=4,residual_length=16,window_length=50"), .is_lossy = true, .forgets = true},
    {CACHE("quantized+sink+offloaded", 16, "nbits=4,residual_length=0,window_length=60,num_sink_tokens=5"), .is_lossy = true, .forgets = true},
    {CACHE("quantized", 16, "backend=quanto,nbits=4,q_group_size=16,residual_length=8"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+offloaded_static", 16, "backend=quanto,nbits=2,q_group_size=16,residual_length=20,axis_key=-1,axis_value=-1"), .is_lossy = true, .flushes = true},
    {CACHE("quantized", 16, "backend=hqq,nbits=4,q_group_size=16,residual_length=8,axis_key=1,axis_value=1,first_exact=3"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+offloaded", 16, "backend=hqq,nbits=3,q_group_size=8,residual_length=12"), .is_lossy = true, .flushes = true},
    {CACHE("quantized+sink", 16, "backend=quanto,nbits=4,q_group_size=16,residual_length=8,window_length=50,num_sink_tokens=4"), .is_lossy = true, .flushes = true, .forgets = true},
    {CACHE("quantized+sliding_window+static", 32, "backend=hqq,nbits=8,residual_length=1,axis_value=1,window_length=30"), .is_lossy = true, .flushes = true, .forgets = true},
};
/* clang-format on */

engine_cache strategy_cache(int i, const char *exact) {
    engine_cache cache = engine_strategies[i].cache;
    cache.dtype = exact;
    return cache;
}

void strategy_feed(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n_prompt,
                   size_t n, int piece, uint64_t *seed, float *logits) {
    if (!strategy->flushes) {
        engine_feed(session, ids, n, piece, seed, logits);
        return;
    }
    size_t vocab = (size_t)session->model->config.vocab_size;
    engine_feed(session, ids, n_prompt, 0, NULL, logits);
    engine_feed(session, ids + n_prompt, n - n_prompt, 1, NULL, logits ? logits + n_prompt * vocab : NULL);
}

int64_t strategy_sealed(const mn_session *session) {
    int64_t n = 0;
    for (int entry = 0; entry < kv_entries(session->cache); entry++) {
        kv_view view = kv_look(session->cache, entry);
        for (int i = 0; i < view.n_pages; i++) n += view.n_sealed[i];
    }
    return n;
}
