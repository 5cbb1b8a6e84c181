/* SmolLM2-135M-Instruct, a real model, where its GGUF file is installed ($MNEME_TEST_SMOLLM2, else the model of that
 * name in the models folder), against Transformers in float32. Tests that take minutes run only with MNEME_LONG=1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/real_model.h"

static int open_fixture(void **state) {
    static real_model w;
    real_model_open(&w, getenv("MNEME_TEST_SMOLLM2"), "SmolLM2-135M-Instruct.Q4_1",
                    "golden/smollm2-135m-instruct-q4_1.json");
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
    real_model_check_continuations(*state, "f32", "agree_until", 0);
}

static void fast_continuations_equal_golden(void **state) {
    real_model_check_continuations(*state, "auto", "agree_until_025", 0);
}

static void float32_log_probabilities_equal_golden(void **state) {
    real_model_check_log_probabilities(*state);
}

static void float32_perplexity_equals_golden(void **state) {
    if (!real_model_is_long()) skip();
    real_model_check_perplexity(*state, "f32", 0.0005);
}

static void fast_perplexity_is_near_golden(void **state) {
    if (real_model_is_brief()) skip();
    if (real_model_is_long())
        real_model_check_perplexity(*state, "auto", 0.01); /* 3,999 ids */
    else
        real_model_check_part(*state, "auto", "long-tale", 640, 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_golden_ids),      cmocka_unit_test(float32_continuations_equal_golden),
        cmocka_unit_test(fast_continuations_equal_golden),  cmocka_unit_test(float32_log_probabilities_equal_golden),
        cmocka_unit_test(float32_perplexity_equals_golden), cmocka_unit_test(fast_perplexity_is_near_golden),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
