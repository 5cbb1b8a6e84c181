/* The tiny golden Whisper checkpoints: encoder, teacher-forced logits, greedy search, beams, batches, operations on
 * encoder-decoder caches, with strategies of the self and the cross cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/whisper_golden.h"

#include <math.h>

#include "session/session.h"
#include "model/encoder.h"

static const char *const folders[] = {"golden/whisper/tiny80", "golden/whisper/tiny128"};
/* Exact caches: the same numbers as without a cache. */
static const char *const strategies[] = {"dynamic", "static", "none", "offloaded", "self=dynamic,cross=offloaded"};

enum { N_STRATEGIES = 5, MOST_IDS = 128, MOST_ROWS = 8 };

/* ---- cases ---- */

static void check_encoder(const golden *g) {
    for (int i = 0; i < MOST_INPUTS; i++) {
        size_t n;
        float *wanted = golden_values(golden_tensor(g, "encoder.%lld", i, 0), &n), *got = malloc(n * sizeof *got);
        mn_session *session = NULL;
        assert_ok(mn_session_open(&session, g->model, NULL));
        assert_ok(model_encode(session->model, session->cache, g->features[i], (int64_t)g->frames, got));
        golden_near(got, wanted, n, 1e-4f, "encoder");
        mn_session_close(&session);
        free(wanted);
        free(got);
    }
}

static void check_score(const golden *g, const json *test, const char *strategy, size_t chunk) {
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(test, "ids"), ids, MOST_IDS), n_wanted;
    const char *name = json_get(test, "name")->string;
    float *wanted = golden_values(golden_tensor(g, "score.%lld.logits", name[strlen(name) - 1] - '0', 0), &n_wanted),
          *got = malloc(n_wanted * sizeof *got);
    assert_int_equal(n_wanted, n * g->vocab);
    mn_session *session = golden_session(g, strategy, NULL, json_get(test, "input")->integer);
    for (size_t at = 0; at < n; at += chunk)
        assert_ok(mn_session_step(session, ids + at, chunk < n - at ? chunk : n - at, got + at * g->vocab));
    golden_near(got, wanted, n_wanted, 2e-4f, name);
    mn_session_close(&session);
    free(wanted);
    free(got);
}

static void check_sequences(const mn_generation *got, const json *test, int32_t end, const char *strategy) {
    const json *wanted = json_get(test, "new"), *scores = json_get(test, "scores");
    const char *name = json_get(test, "name")->string;
    assert_int_equal(got->n_sequences, wanted->n);
    for (size_t i = 0; i < wanted->n; i++) {
        const mn_sequence *s = got->sequences[i];
        const json *ids = &wanted->items[i];
        for (size_t k = 0; k < ids->n && k < s->n_ids; k++) {
            if (s->ids[k] != ids->items[k].integer)
                fail_msg("%s, %s: sequence %zu, id %zu is %d, golden %d", name, strategy, i, k, s->ids[k],
                         (int)ids->items[k].integer);
        }
        /* Golden rows that end early are padded with the end token. */
        assert_true(s->n_ids <= ids->n);
        if (s->n_ids < ids->n) assert_int_equal(s->ids[s->n_ids - 1], end);
        for (size_t k = s->n_ids; k < ids->n; k++) assert_int_equal(ids->items[k].integer, end);
        if (scores && !(fabs((double)s->score - scores->items[i].real) <= 1e-3))
            fail_msg("%s, %s: score %zu is %g, golden %g", name, strategy, i, (double)s->score, scores->items[i].real);
    }
}

static void check_generate(const golden *g, const json *test, const char *strategy) {
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(test, "ids"), ids, MOST_IDS);
    const json *inputs = json_get(test, "inputs");
    size_t n_rows = inputs ? inputs->n : 1;
    mn_generation_config *config = engine_config(g->model, json_get(test, "args"));
    /* These cases were made without the rules of the checkpoint's generation_config.json. */
    assert_ok(mn_generation_config_set(config, "suppress_tokens", "null"));
    assert_ok(mn_generation_config_set(config, "begin_suppress_tokens", "null"));
    mn_session *sessions[MOST_ROWS];
    mn_batch_row rows[MOST_ROWS];
    for (size_t i = 0; i < n_rows; i++) {
        sessions[i] =
            golden_session(g, strategy, NULL, inputs ? inputs->items[i].integer : json_get(test, "input")->integer);
        rows[i] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = ids, .n_prompt = n, .prefix = sessions[i]};
    }
    mn_generation *got = NULL;
    assert_ok(mn_generate_batch(g->model, NULL, rows, n_rows, config, NULL, &got));
    check_sequences(got, test, g->end, strategy);
    mn_generation_close(&got);
    for (size_t i = 0; i < n_rows; i++) mn_session_close(&sessions[i]);
    mn_generation_config_close(&config);
}

/* Attention over the encoder's positions of the first ids of score.0, of every head. */
static void check_cross_weights(const golden *g) {
    enum { N_IDS = 8 };
    const json *test = NULL;
    for (size_t i = 0; i < g->cases->n && !test; i++) {
        if (json_is_string(json_get(&g->cases->items[i], "name"), "score.0")) test = &g->cases->items[i];
    }
    assert_non_null(test);
    int32_t ids[MOST_IDS];
    engine_read_ids(json_get(test, "ids"), ids, MOST_IDS);
    for (int s = 0; s < N_STRATEGIES; s++) {
        mn_session *session = golden_session(g, strategies[s], NULL, json_get(test, "input")->integer);
        for (int32_t layer = 0; layer < 2; layer++) {
            size_t n;
            const tensor *t = golden_tensor(g, "score.0.cross_attention.%lld", layer, 0);
            float *wanted = golden_values(t, &n), *got = malloc(n * sizeof *got);
            cross_head heads[16];
            for (int32_t h = 0; h < t->shape[0]; h++) heads[h] = (cross_head){layer, h};
            assert_int_equal(n, (size_t)t->shape[0] * N_IDS * g->frames / 2);
            assert_ok(session_cross_weights(session, ids, N_IDS, heads, (size_t)t->shape[0], got));
            golden_near(got, wanted, n, 1e-4f, "cross attention");
            free(wanted);
            free(got);
        }
        mn_session_close(&session);
    }
}

static void equals_golden(void **state) {
    golden g = golden_open(*state);
    int n_checked = 0;
    check_encoder(&g);
    check_cross_weights(&g);
    for (size_t i = 0; i < g.cases->n; i++) {
        const json *test = &g.cases->items[i], *kind = json_get(test, "kind");
        bool is_checked = false;
        for (int s = 0; s < N_STRATEGIES; s++) {
            if (!test_samples((int)i + s, 3)) continue;
            if (json_is_string(kind, "score")) {
                check_score(&g, test, strategies[s], MOST_IDS);
                check_score(&g, test, strategies[s], 3);
            } else if (json_is_string(kind, "generate") || json_is_string(kind, "batch")) {
                check_generate(&g, test, strategies[s]);
            } else {
                break;
            }
            is_checked = true;
        }
        n_checked += is_checked;
    }
    assert_true(n_checked >= 10);
    golden_close(&g);
}

/* After a failed encoding the session can be encoded again and gives the same results. */
static void a_session_can_be_encoded_after_a_failure(void **state) {
    (void)state;
    golden g = golden_open(folders[0]);
    int32_t ids[] = {201, 203, 207, 211};
    mn_cache_options options = golden_options("self=quantized,cross=quantized", "nbits=4,residual_length=4");
    mn_session *whole = NULL;
    assert_ok(mn_session_open(&whole, g.model, &options));
    assert_ok(mn_session_encode(whole, g.features[1], g.mels, g.frames));
    assert_ok(mn_session_step(whole, ids, 4, NULL));
    int n_failed = 0;
    for (bool failed = true; failed;) {
        mn_model *model = engine_model(folders[0], "f32", "auto", 1);
        mn_session *session = NULL;
        assert_ok(mn_session_open(&session, model, &options));
        size_t before = kv_bytes(session->cache);
        mem_fail_after(n_failed + 1);
        mn_status status = mn_session_encode(session, g.features[1], g.mels, g.frames);
        mem_fail_after(0);
        failed = status != MN_OK;
        if (failed) {
            n_failed++;
            assert_int_equal(status, MN_E_NOMEM);
            assert_int_equal(kv_bytes(session->cache), before);
            assert_ok(kv_check(session->cache));
            assert_ok(mn_session_encode(session, g.features[1], g.mels, g.frames));
        }
        assert_ok(mn_session_step(session, ids, 4, NULL));
        engine_same_bits(mn_session_logits(session), mn_session_logits(whole), 1, g.vocab, "failure %d", n_failed);
        mn_session_close(&session);
        mn_model_close(&model);
    }
    assert_true(n_failed > 3);
    mn_session_close(&whole);
    golden_close(&g);
}

int main(void) {
    enum { N = sizeof folders / sizeof *folders };
    struct CMUnitTest tests[N + 1];
    for (int i = 0; i < N; i++) {
        tests[i] = (struct CMUnitTest){
            .name = folders[i], .test_func = equals_golden, .initial_state = (void *)(uintptr_t)folders[i]};
    }
    tests[N] = (struct CMUnitTest)cmocka_unit_test(a_session_can_be_encoded_after_a_failure);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
