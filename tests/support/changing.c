/* SPDX-License-Identifier: Apache-2.0 */
#include "support/changing.h"

#include "kv/group.h"

changing changing_open(const char *path, int threads) {
    changing w = {.seed = 3};
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.compute_type = "f32";
    options.threads = threads;
    assert_ok(mn_model_open(&w.model, strncmp(path, "golden/", 7) ? path : data_path(path), &options));
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, CHANGING_IDS, (int32_t)w.vocab);
    return w;
}

void changing_close(changing *w) {
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

int changing_note_live(void **state) {
    static int64_t live;
    live = mem_count().live;
    *state = &live;
    return 0;
}
int changing_check_live(void **state) {
    int64_t *live = *state;
    if (mem_count().live == *live) return 0;
    print_error("%lld blocks are left\n", (long long)(mem_count().live - *live));
    return 1;
}

mn_session *changing_fed(changing *w, engine_cache cache, size_t n) {
    mn_session *session = engine_session(w->model, cache);
    engine_feed(session, w->ids, n, -1, &w->seed, NULL);
    return session;
}

mn_status changing_set(mn_session *session, engine_cache cache) {
    mn_cache_options options = engine_cache_options(cache);
    return mn_session_set_cache(session, &options);
}

void changing_go_on_alike(changing *w, mn_session *got, mn_session *wanted, size_t n, int piece, const char *what) {
    size_t from = (size_t)mn_session_length(wanted);
    float *logits[2];
    assert_int_equal(mn_session_length(got), from);
    for (int i = 0; i < 2; i++) {
        uint64_t seed = 8;
        logits[i] = malloc((n - from) * w->vocab * sizeof(float));
        engine_feed(i ? wanted : got, w->ids + from, n - from, piece, &seed, logits[i]);
    }
    engine_same_bits(logits[0], logits[1], n - from, w->vocab, "%s", what);
    assert_ok(kv_check(got->cache));
    for (int i = 0; i < 2; i++) free(logits[i]);
}
