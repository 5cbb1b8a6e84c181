/* Gemma 3 270M, a real model with windows of 512 tokens in five of six layers, where its GGUF file is installed
 * ($MNEME_TEST_GEMMA3, else the model "gemma-3-270m"), against Transformers in float32. Tests that take minutes run
 * only with MNEME_LONG=1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/real_model.h"

enum { WINDOW = 512, MOST_IDS = 4096 };

static int open_fixture(void **state) {
    static real_model w;
    real_model_open(&w, getenv("MNEME_TEST_GEMMA3"), "gemma-3-270m", "golden/gemma-3-270m-q4_k_m.json");
    *state = &w;
    return 0;
}

static int close_fixture(void **state) {
    real_model_close(*state);
    return 0;
}

static void prompts_have_the_golden_ids(void **state) {
    real_model_check_ids(*state);
}

static void float32_continuations_equal_golden(void **state) {
    real_model_check_continuations(*state, "f32", "agree_until", real_model_is_long() ? 0 : 12);
}

static void fast_continuations_equal_golden(void **state) {
    real_model_check_continuations(*state, "auto", "agree_until_025", 0);
}

static void float32_log_probabilities_equal_golden(void **state) {
    real_model_check_log_probabilities(*state);
}

/* Tokens that a window drops are visible to no later query: the same bits and ids as without a cache. */
static void tokens_beyond_the_window_change_nothing(void **state) {
    const real_model *w = *state;
    static const char *const caches[] = {"dynamic", "hybrid", "static"};
    mn_model *model = real_model_load(w, "auto");
    const json *prompt = real_model_prompt(w, "passkey");
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(prompt, "ids"), ids, MOST_IDS), vocab = (size_t)engine_vocab(model);
    assert_true(n > 3 * WINDOW / 2);
    mn_session *whole = engine_session(model, (engine_cache){.implementation = "none"});
    engine_feed(whole, ids, n, 0, NULL, NULL);
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        engine_cache cache = {.implementation = caches[i], .max_cache_len = MOST_IDS};
        mn_session *session = engine_session(model, cache);
        engine_feed(session, ids, n, i % 2 ? 300 : 0, NULL, NULL);
        engine_same_bits(mn_session_logits(session), mn_session_logits(whole), 1, vocab, "%s", caches[i]);
        mn_session_close(&session);
    }
    mn_session_close(&whole);
    static const char *const prompts[] = {"passkey", "long-tale"};
    for (int i = 0; i < 2; i++)
        real_model_check_continuation(model, real_model_prompt(w, prompts[i]),
                                      (engine_cache){.implementation = "hybrid"}, "agree_until_025", 0);
    mn_model_close(&model);
}

static void quantized_caches_keep_the_continuation(void **state) {
    const real_model *w = *state;
    const json *prompt = real_model_prompt(w, "passkey");
    mn_model *model = real_model_load(w, "auto");
    real_model_check_continuation(model, prompt, (engine_cache){.implementation = "quantized", .config = "nbits=8"},
                                  "agree_until_025", 0);
    real_model_check_continuation(
        model, prompt, (engine_cache){.implementation = "hybrid+quantized", .config = "nbits=4"}, "agree_until_025", 0);
    mn_model_close(&model);
}

static void a_part_of_a_text_has_the_golden_likelihood(void **state) {
    real_model_check_part(*state, "auto", "long-tale", 700, 0.02);
}

static void float32_perplexity_equals_golden(void **state) {
    if (!real_model_is_long()) skip();
    real_model_check_perplexity(*state, "f32", 0.0005);
}

static void fast_perplexity_is_near_golden(void **state) {
    if (!real_model_is_long()) skip();
    real_model_check_perplexity(*state, "auto", 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_golden_ids),
        cmocka_unit_test(float32_continuations_equal_golden),
        cmocka_unit_test(fast_continuations_equal_golden),
        cmocka_unit_test(float32_log_probabilities_equal_golden),
        cmocka_unit_test(tokens_beyond_the_window_change_nothing),
        cmocka_unit_test(quantized_caches_keep_the_continuation),
        cmocka_unit_test(a_part_of_a_text_has_the_golden_likelihood),
        cmocka_unit_test(float32_perplexity_equals_golden),
        cmocka_unit_test(fast_perplexity_is_near_golden),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
