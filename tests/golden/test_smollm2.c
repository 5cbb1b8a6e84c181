/* SmolLM2-135M-Instruct, a real model, where its GGUF file is at hand ($MNEME_TEST_SMOLLM2, else the model
 * "smollm2"), against Transformers' in float32. What takes minutes runs only with MNEME_LONG=1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/real_model.h"

static int open_world(void **state) {
    static real_model w;
    real_model_open(&w, "MNEME_TEST_SMOLLM2", "smollm2", "golden/smollm2-135m-instruct-q4_1.json");
    *state = &w;
    return 0;
}

static int close_world(void **state) {
    real_model_close(*state);
    return 0;
}

static void prompts_have_the_same_ids(void **state) {
    real_model_check_ids(*state);
}

static void float32_continuations(void **state) {
    real_model_check_continuations(*state, "f32", "agree_until", 0);
}

static void fast_continuations(void **state) {
    real_model_check_continuations(*state, "auto", "agree_until_025", 0);
}

static void float32_log_probabilities(void **state) {
    real_model_check_log_probabilities(*state);
}

static void float32_perplexity(void **state) {
    if (!real_model_is_long()) skip();
    real_model_check_perplexity(*state, "f32", 0.0005);
}

static void fast_perplexity(void **state) {
    real_model_check_perplexity(*state, "auto", 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_same_ids), cmocka_unit_test(float32_continuations),
        cmocka_unit_test(fast_continuations),        cmocka_unit_test(float32_log_probabilities),
        cmocka_unit_test(float32_perplexity),        cmocka_unit_test(fast_perplexity),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
