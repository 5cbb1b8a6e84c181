/* The embedded model against llama2.c: ids, logits, encodings, log-probabilities, text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

enum { MOST_IDS = 512, VOCAB = 512 };

static double real_of(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static mn_generation *generate(mn_model *model, const char *implementation, const char *n_new) {
    mn_generation_config *config = NULL;
    mn_session *session = engine_session(model, (engine_cache){.implementation = implementation});
    mn_generation *generation = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", n_new));
    assert_ok(mn_generate(session, (int32_t[]){1}, 1, config, NULL, &generation));
    mn_generation_config_close(&config);
    mn_session_close(&session);
    return generation;
}

static void greedy_ids_equal_golden(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("stories260k/golden.json"));
    int32_t wanted[MOST_IDS];
    size_t n = engine_read_ids(json_get(json_get(json_root(doc), "greedy"), "ids"), wanted, MOST_IDS);
    static const char *const strategies[] = {"dynamic", "static", "none"};
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    assert_int_equal(n, 301);
    for (int s = 0; s < 3; s++) {
        mn_generation *generation = generate(model, strategies[s], "300");
        assert_int_equal(generation->sequences[0]->n_ids, 300);
        for (size_t i = 0; i < 300; i++) {
            if (generation->sequences[0]->ids[i] != wanted[i + 1])
                fail_msg("%s: token %zu is %d, golden %d", strategies[s], i, generation->sequences[0]->ids[i],
                         wanted[i + 1]);
        }
        mn_generation_close(&generation);
    }
    mn_model_close(&model);
    json_close(&doc);
}

/* llama2.c stops after 200 positions and does not print the last. */
static void greedy_text_equals_golden(void **state) {
    (void)state;
    bytes wanted = {0};
    assert_ok(file_read(&wanted, data_path("stories260k/expected-greedy-200.txt"), 1 << 16));
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    mn_generation *generation = generate(model, "dynamic", "200");
    const mn_sequence *s = generation->sequences[0];
    assert_true(s->n_text >= wanted.n);
    assert_memory_equal(s->text, wanted.data, wanted.n);
    mn_generation_close(&generation);
    mn_model_close(&model);
    bytes_clear(&wanted);
}

static void logits_equal_golden(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("stories260k/golden.json"));
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(json_get(json_root(doc), "greedy"), "ids"), ids, MOST_IDS);
    const json *places = json_get(json_root(doc), "logits");
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    float *logits = engine_logits(model, (engine_cache){0}, ids, n, 0, NULL);
    assert_int_equal(places->n, 8);
    for (size_t p = 0; p < places->n; p++) {
        size_t position = (size_t)json_get(&places->items[p], "position")->integer;
        const json *wanted = json_get(&places->items[p], "logits");
        assert_int_equal(json_get(&places->items[p], "input_id")->integer, ids[position]);
        assert_int_equal(wanted->n, VOCAB);
        for (size_t i = 0; i < VOCAB; i++) {
            double got = (double)logits[position * VOCAB + i];
            if (!(fabs(got - real_of(&wanted->items[i])) < 1e-4))
                fail_msg("logit %zu at %zu is %.6f, golden %.6f", i, position, got, real_of(&wanted->items[i]));
        }
    }
    free(logits);
    mn_model_close(&model);
    json_close(&doc);
}

static void encodings_equal_golden(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("stories260k/golden.json"));
    const json *cases = json_get(json_root(doc), "encode");
    mn_tokenizer *tokenizer = NULL;
    assert_ok(mn_tokenizer_open(&tokenizer, "embedded"));
    assert_int_equal(cases->n, 12);
    for (size_t i = 0; i < cases->n; i++) {
        const json *text = json_get(&cases->items[i], "text");
        int32_t wanted[MOST_IDS], *ids = NULL;
        size_t n_wanted = engine_read_ids(json_get(&cases->items[i], "ids_with_bos"), wanted, MOST_IDS), n = 0;
        assert_ok(mn_tokenize(tokenizer, text->string, text->n, MN_ADD_SPECIAL, &ids, &n));
        assert_int_equal(n, n_wanted);
        assert_memory_equal(ids, wanted, n * sizeof *ids);
        mn_free(ids);
    }
    mn_tokenizer_close(&tokenizer);
    json_close(&doc);
}

static void log_probabilities_equal_golden(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("stories260k/golden.json"));
    const json *nll = json_get(json_root(doc), "nll"), *wanted = json_get(nll, "token_nll");
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(nll, "ids"), ids, MOST_IDS);
    double mean = 0;
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    float *logits = engine_logits(model, (engine_cache){0}, ids, n, 0, NULL);
    assert_int_equal(wanted->n, n - 1);
    for (size_t t = 0; t + 1 < n; t++) {
        const float *row = logits + t * VOCAB;
        double sum = 0;
        for (int i = 0; i < VOCAB; i++) sum += exp((double)row[i]);
        double got = log(sum) - (double)row[ids[t + 1]];
        if (!(fabs(got - real_of(&wanted->items[t])) < 2e-4)) /* twice the tolerance of logits */
            fail_msg("token %zu: %.6f, golden %.6f", t, got, real_of(&wanted->items[t]));
        mean += got / (double)(n - 1);
    }
    assert_true(fabs(mean - real_of(json_get(nll, "mean_nll"))) < 1e-5);
    free(logits);
    mn_model_close(&model);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_ids_equal_golden),
        cmocka_unit_test(greedy_text_equals_golden),
        cmocka_unit_test(logits_equal_golden),
        cmocka_unit_test(encodings_equal_golden),
        cmocka_unit_test(log_probabilities_equal_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
