/* Families with experts and states give the same bits for any number of threads, any chunking, and any other rows in
 * the pass.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <stdlib.h>

enum { N_TOKENS = 150, N_ROWS = 7, N_STEPS = 6, N_THREADS = 3 };

static const char *const models[] = {"golden/mixtral", "golden/jamba", "golden/mamba"};
static const char *const computes[] = {"f32", "bf16", "int8", "int8_a8"};
static const int threads[N_THREADS] = {1, 2, 5};
static const engine_cache cache = {.page_tokens = 16};

static void check_cuts(mn_model *model, const int32_t *ids, const float *wanted, const char *what) {
    static const int pieces[] = {0, -1, 97}; /* a block of rows is 96 */
    size_t vocab = (size_t)engine_vocab(model);
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        uint64_t seed = 3;
        float *got = engine_logits(model, cache, ids, N_TOKENS, pieces[p], &seed);
        engine_same_bits(got, wanted, N_TOKENS, vocab, "%s, pieces of %d", what, pieces[p]);
        free(got);
    }
}

/* Rows begin at different tokens of the text, so that they have different lengths and choose different experts. */
static void check_rows(mn_model *model, const int32_t *ids, mn_model *one, const char *what) {
    mn_session *rows[N_ROWS], *alone[N_ROWS];
    for (size_t r = 0; r < N_ROWS; r++) {
        rows[r] = engine_session(model, cache);
        alone[r] = engine_session(one, cache);
        engine_feed(rows[r], ids + 11 * r, r + 1, 0, NULL, NULL);
        engine_feed(alone[r], ids + 11 * r, r + 1, 0, NULL, NULL);
    }
    for (size_t i = 0; i < N_STEPS; i++) {
        int32_t next[N_ROWS];
        for (size_t r = 0; r < N_ROWS; r++) next[r] = ids[12 * r + 1 + i];
        assert_ok(mn_sessions_step(rows, N_ROWS, next));
        for (size_t r = 0; r < N_ROWS; r++) {
            assert_ok(mn_session_step(alone[r], &next[r], 1, NULL));
            engine_ends_with(rows[r], mn_session_logits(alone[r]), what);
        }
    }
    for (size_t r = 0; r < N_ROWS; r++) {
        mn_session_close(&rows[r]);
        mn_session_close(&alone[r]);
    }
}

static void check_model(const char *path, const char *compute) {
    mn_model *one = engine_model(path, compute, "auto", 1);
    int32_t ids[N_TOKENS];
    uint64_t seed = 9;
    engine_ids(&seed, ids, N_TOKENS, engine_vocab(one));
    float *wanted = engine_logits(one, cache, ids, N_TOKENS, 1, NULL);
    for (int t = 0; t < N_THREADS; t++) {
        char what[80];
        snprintf(what, sizeof what, "%s, %s, %d threads", path, compute, threads[t]);
        mn_model *model = engine_model(path, compute, "auto", threads[t]);
        check_cuts(model, ids, wanted, what);
        check_rows(model, ids, one, what);
        mn_model_close(&model);
    }
    free(wanted);
    mn_model_close(&one);
}

static void experts_and_states_have_the_same_bits(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        for (size_t c = 0; c < sizeof computes / sizeof computes[0]; c++) check_model(models[m], computes[c]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_and_states_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
