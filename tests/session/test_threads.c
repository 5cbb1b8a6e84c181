/* What mneme.h allows several threads to do with one session at once: fork, save and read it, while each thread
 * computes with its own fork, which shares pages with all others.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/scratch.h"

/* The parent shares its first tokens with another session, so its last page is in parts. */
enum { N_THREADS = 4, N_FIRST = 150, N_PAST = 160, N_NEXT = 40, N_ROUNDS = 3, N_READ = 40 };

static const engine_cache caches[] = {
    {.implementation = "dynamic", .dtype = "f32", .page_tokens = 16},
    {.implementation = "static", .dtype = "bf16", .page_tokens = 16},
    {.implementation = "quantized", .dtype = "bf16", .config = "nbits=4,residual_length=16"},
    {.implementation = "offloaded", .dtype = "f32", .page_tokens = 16},
    {.implementation = "sliding_window", .dtype = "f32", .config = "window_length=48", .page_tokens = 16},
};

typedef struct worker {
    const mn_session *parent;
    atomic_int *n_ready;
    size_t vocab;
    int32_t ids[N_NEXT];
    float *past, *wanted; /* logits after the parent's tokens, and after the ids that follow */
    float *keys;          /* of the parent's first layer, the last N_READ tokens, [n_keys] */
    size_t n_keys;
    char path[256];
    const char *failed; /* NULL: nothing */
} worker;

static bool same(const worker *w, const float *logits, const float *wanted) {
    return logits && memcmp(logits, wanted, w->vocab * sizeof *wanted) == 0;
}

/* The keys are allocated by malloc. */
static float *keys_of(const mn_session *session, size_t *n) {
    mn_layer_info layer = {.size = sizeof layer};
    if (mn_session_layer(session, 0, &layer) != MN_OK) return NULL;
    *n = (size_t)layer.num_key_value_heads * N_READ * (size_t)layer.k_head_dim;
    float *keys = malloc(*n * sizeof *keys);
    if (keys && mn_session_read(session, 0, true, N_PAST - N_READ, N_READ, keys) == MN_OK) return keys;
    free(keys);
    return NULL;
}

static bool keys_are_the_same(const worker *w) {
    size_t n = 0;
    float *keys = keys_of(w->parent, &n);
    bool is_same = keys && n == w->n_keys && memcmp(keys, w->keys, n * sizeof *keys) == 0;
    free(keys);
    return is_same;
}

static const char *round_of(worker *w) {
    mn_session *fork = NULL;
    mn_cache_info info = {.size = sizeof info};
    if (mn_session_fork(&fork, w->parent) != MN_OK) return "mn_session_fork";
    bool is_past = same(w, mn_session_logits(w->parent), w->past) && same(w, mn_session_logits(fork), w->past);
    mn_status status = mn_session_step(fork, w->ids, N_NEXT, NULL);
    bool is_wanted = status == MN_OK && same(w, mn_session_logits(fork), w->wanted);
    status = mn_session_truncate(fork, N_PAST);
    mn_session_close(&fork);
    if (status != MN_OK && status != MN_E_UNSUPPORTED) return "mn_session_truncate"; /* windows drop tokens */
    if (!is_past) return "the past's logits";
    if (!is_wanted) return "a fork's logits";
    if (mn_session_length(w->parent) != N_PAST) return "mn_session_length";
    if (mn_session_cache(w->parent, &info) != MN_OK || info.next_position != N_PAST) return "mn_session_cache";
    if (!keys_are_the_same(w)) return "mn_session_read";
    return mn_session_save(w->parent, w->path, false) == MN_OK ? NULL : "mn_session_save";
}

static void *work(void *argument) {
    worker *w = argument;
    atomic_fetch_add(w->n_ready, 1);
    while (atomic_load(w->n_ready) < N_THREADS) usleep(10);
    for (int i = 0; i < N_ROUNDS && !w->failed; i++) w->failed = round_of(w);
    return NULL;
}

static float *copy_of(const float *logits, size_t n) {
    float *copy = malloc(n * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, logits, n * sizeof *copy);
    return copy;
}

static void threads_fork_save_and_read_one_session(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof caches / sizeof caches[0]; c++) {
        mn_model *model = engine_model("golden/llama", "f32", "auto", 2);
        mn_session *first = engine_session(model, caches[c]), *parent = NULL;
        uint64_t seed = 31;
        int32_t past[N_PAST];
        atomic_int n_ready = 0;
        size_t vocab = (size_t)engine_vocab(model);
        static worker workers[N_THREADS];
        pthread_t threads[N_THREADS];
        engine_ids(&seed, past, N_PAST, (int32_t)vocab);
        assert_ok(mn_session_step(first, past, N_FIRST, NULL));
        assert_ok(mn_session_fork(&parent, first));
        assert_ok(mn_session_step(parent, past + N_FIRST, N_PAST - N_FIRST, NULL));
        for (int i = 0; i < N_THREADS; i++) {
            worker *w = &workers[i];
            *w = (worker){.parent = parent, .n_ready = &n_ready, .vocab = vocab};
            engine_ids(&seed, w->ids, N_NEXT, (int32_t)vocab);
            w->past = copy_of(mn_session_logits(parent), vocab);
            w->keys = keys_of(parent, &w->n_keys);
            assert_non_null(w->keys);
            mn_session *alone = engine_session(model, caches[c]); /* shares nothing with the parent */
            assert_ok(mn_session_step(alone, past, N_PAST, NULL));
            assert_ok(mn_session_step(alone, w->ids, N_NEXT, NULL));
            w->wanted = copy_of(mn_session_logits(alone), vocab);
            mn_session_close(&alone);
            snprintf(w->path, sizeof w->path, "%s.%d", scratch_path("saved"), i);
        }
        for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < N_THREADS; i++) {
            worker *w = &workers[i];
            if (w->failed) fail_msg("%s, thread %d: %s", caches[c].implementation, i, w->failed);
            mn_session *loaded = NULL; /* what was saved meanwhile is whole */
            assert_ok(mn_session_load(&loaded, model, w->path, NULL));
            assert_memory_equal(mn_session_logits(loaded), w->past, vocab * sizeof *w->past);
            mn_session_close(&loaded);
            unlink(w->path);
            free(w->past);
            free(w->wanted);
            free(w->keys);
        }
        mn_session_close(&first);
        mn_session_close(&parent);
        mn_model_close(&model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_fork_save_and_read_one_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
