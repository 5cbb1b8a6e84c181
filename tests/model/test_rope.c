/* Rotation frequencies and tables against cases that tools/make_rope_cases.py computed with 50 digits, against
 * published values, and against the float32 arithmetic of other implementations.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "model/rope.h"

enum { MOST_PAIRS = 512 };

static double number(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static model_config config_of(const json *object) {
    model_config config;
    assert_ok(config_from_json(&config, object, "case"));
    return config;
}

static model_config config_of_text(const char *text, json_doc **doc) {
    assert_ok(json_parse(doc, text, strlen(text), JSON_PYTHON, "case"));
    return config_of(json_root(*doc));
}

static void assert_near(const char *what, int64_t j, double got, double expected, double relative) {
    if (!(fabs(got - expected) <= relative * fabs(expected)))
        fail_msg("%s[%d]: %.17g, expected %.17g", what, (int)j, got, expected);
}

static void frequencies_equal_the_cases(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("rope/cases.json"));
    const json *cases = json_get(json_root(doc), "frequencies");
    bool seen[N_ROPE_TYPES] = {false};
    for (size_t i = 0; i < cases->n; i++) {
        const json *c = &cases->items[i], *expected = json_get(c, "inverse_frequencies");
        const char *name = json_get(c, "name")->string;
        model_config config = config_of(json_get(c, "config"));
        int64_t length = json_get(c, "total_length")->integer;
        double f[MOST_PAIRS], factor = 0;
        rope_frequencies(&config, length, f, &factor);
        assert_int_equal(expected->n, config.rotary_dim / 2);
        for (size_t j = 0; j < expected->n; j++)
            assert_near(name, (int64_t)j, f[j], number(&expected->items[j]), 1e-13);
        assert_near(name, -1, factor, number(json_get(c, "attention_factor")), 1e-14);
        assert_int_equal(rope_regime(&config, length), json_get(c, "regime")->integer);
        seen[config.rope_scaling.rope_type] = true;
        model_config_clear(&config);
    }
    for (int type = 0; type < N_ROPE_TYPES; type++) assert_true(seen[type]);
    json_close(&doc);
}

#define SIZES                                                                                                          \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":1,"                    \
    "\"num_attention_heads\":1,\"vocab_size\":9,"

/* Values of the reference implementation in float32. */
static void frequencies_equal_published_values(void **state) {
    (void)state;
    double f[MOST_PAIRS], factor = 0;
    json_doc *doc = NULL;
    model_config config = config_of_text(
        "{" SIZES
        "\"rope_theta\":500000.0,\"max_position_embeddings\":131072,\"rope_scaling\":{\"rope_type\":\"llama3\","
        "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
        &doc);
    const struct {
        int j;
        double f;
    } llama3[] = {{0, 1},
                  {1, 0.663601238},
                  {8, 0.0376060309},
                  {14, 0.00321144599},
                  {15, 0.00129054793},
                  {16, 4.29556797e-4},
                  {17, 9.7082878e-5},
                  {18, 1.94616382e-5},
                  {19, 1.29147672e-5},
                  {31, 9.41830673e-8}};
    rope_frequencies(&config, 1, f, &factor);
    for (size_t i = 0; i < sizeof llama3 / sizeof *llama3; i++)
        assert_near("llama3", llama3[i].j, f[llama3[i].j], llama3[i].f, 2e-6);
    model_config_clear(&config);
    json_close(&doc);

    config = config_of_text("{" SIZES
                            "\"max_position_embeddings\":8192,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                            "\"original_max_position_embeddings\":2048}}",
                            &doc);
    const struct {
        int j;
        double f;
    } yarn[] = {{5, 0.237137371},    {8, 0.1},           {10, 0.0497455788}, {12, 0.0243252128}, {16, 0.00538461538},
                {20, 9.73008511e-4}, {31, 3.33380358e-5}};
    rope_frequencies(&config, 1, f, &factor);
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn; i++)
        assert_near("yarn", yarn[i].j, f[yarn[i].j], yarn[i].f, 1e-6);
    assert_near("yarn", -1, factor, 1.13862944, 1e-8);
    model_config_clear(&config);
    json_close(&doc);

    config = config_of_text(
        "{" SIZES "\"max_position_embeddings\":2048,\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}}",
        &doc);
    rope_frequencies(&config, 4096, f, &factor);
    assert_near("dynamic", 1, pow(f[1], -32), 31082.2367, 1e-8);
    model_config_clear(&config);
    json_close(&doc);
}

static void regimes_change_where_frequencies_do(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("rope/cases.json"));
    const json *cases = json_get(json_root(doc), "frequencies");
    const int64_t lengths[] = {1, 64, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 4097, 8192, 8193, 131072};
    enum { N = sizeof lengths / sizeof *lengths };
    for (size_t i = 0; i < cases->n; i++) {
        const json *object = json_get(&cases->items[i], "config");
        const json *scaling = json_get(object, "rope_scaling"), *given = json_get(scaling, "factor");
        if (given && number(given) == 1) continue; /* dynamic by 1 changes nothing at any length */
        model_config config = config_of(object);
        double f[N][MOST_PAIRS], factor = 0;
        for (size_t a = 0; a < N; a++) {
            rope_frequencies(&config, lengths[a], f[a], &factor);
            for (size_t b = 0; b < a; b++) {
                bool same = memcmp(f[a], f[b], sizeof(double) * (size_t)(config.rotary_dim / 2)) == 0;
                assert_int_equal(same, rope_regime(&config, lengths[a]) == rope_regime(&config, lengths[b]));
            }
        }
        model_config_clear(&config);
    }
    json_close(&doc);
}

static void rope_freqs_divide_the_frequencies(void **state) {
    (void)state;
    json_doc *doc = NULL;
    model_config config = config_of_text("{" SIZES "\"rope_theta\":500000.0}", &doc);
    double plain[MOST_PAIRS], f[MOST_PAIRS], factor = 0;
    rope_frequencies(&config, 1, plain, &factor);
    config.rope_scaling.divisors = mem_alloc(32, sizeof(double));
    assert_non_null(config.rope_scaling.divisors);
    for (int j = 0; j < 32; j++) config.rope_scaling.divisors[j] = 1 + j;
    rope_frequencies(&config, 1, f, &factor);
    for (int j = 0; j < 32; j++) assert_near("divided", j, f[j] * (1 + j), plain[j], 1e-15);
    model_config_clear(&config);
    json_close(&doc);
}

static void tables_are_exact_at_large_positions(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("rope/cases.json"));
    const json *tables = json_get(json_root(doc), "tables");
    double worst = 0;
    for (size_t i = 0; i < tables->n; i++) {
        const json *c = &tables->items[i], *cosines = json_get(c, "cos"), *sines = json_get(c, "sin");
        model_config config = config_of(json_get(c, "config"));
        int64_t n = config.rotary_dim / 2, position = json_get(c, "position")->integer;
        double f[MOST_PAIRS], factor = 0;
        float cos_row[2 * MOST_PAIRS], sin_row[2 * MOST_PAIRS];
        rope_frequencies(&config, 1, f, &factor);
        rope_table(f, n, factor, position, 1, cos_row, sin_row);
        for (int64_t j = 0; j < n; j++) {
            worst = fmax(worst, fabs((double)cos_row[j] - number(&cosines->items[j])));
            worst = fmax(worst, fabs((double)sin_row[j] - number(&sines->items[j])));
        }
        if (position > 0) { /* row 1 of a table that starts one position earlier */
            float cos_two[2 * MOST_PAIRS], sin_two[2 * MOST_PAIRS];
            rope_table(f, n, factor, position - 1, 2, cos_two, sin_two);
            assert_memory_equal(cos_two + n, cos_row, sizeof(float) * (size_t)n);
            assert_memory_equal(sin_two + n, sin_row, sizeof(float) * (size_t)n);
        }
        model_config_clear(&config);
    }
    assert_true(tables->n >= 18);
    if (worst > 7e-8) fail_msg("worst difference %g, allowed 7e-8: one rounding to float of a value up to 1.14", worst);
    json_close(&doc);
}

/* Other implementations multiply position and frequency in float32. Up to 512 positions this changes no entry by more
 * than the rounding of the angle: 511 x 2^-24 from the frequency and as much from the product. */
static void float32_angles_differ_by_their_rounding(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("rope/cases.json"));
    const json *cases = json_get(json_root(doc), "frequencies");
    double worst = 0;
    for (size_t i = 0; i < cases->n; i++) {
        model_config config = config_of(json_get(&cases->items[i], "config"));
        int64_t n = config.rotary_dim / 2;
        double f[MOST_PAIRS], factor = 0;
        static float cosines[512 * MOST_PAIRS], sines[512 * MOST_PAIRS];
        rope_frequencies(&config, json_get(&cases->items[i], "total_length")->integer, f, &factor);
        rope_table(f, n, factor, 0, 512, cosines, sines);
        for (int64_t p = 0; p < 512; p++) {
            for (int64_t j = 0; j < n; j++) {
                volatile float angle = (float)p * (float)f[j];
                worst = fmax(worst, fabs(cos((double)angle) * factor - (double)cosines[p * n + j]) / factor);
                worst = fmax(worst, fabs(sin((double)angle) * factor - (double)sines[p * n + j]) / factor);
            }
        }
        model_config_clear(&config);
    }
    printf("largest difference to float32 angles over 512 positions: %.3g\n", worst);
    assert_true(worst > 1e-7 && worst < 2 * 512 * 0x1p-24 + 1e-7);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_equal_the_cases),
        cmocka_unit_test(frequencies_equal_published_values),
        cmocka_unit_test(regimes_change_where_frequencies_do),
        cmocka_unit_test(rope_freqs_divide_the_frequencies),
        cmocka_unit_test(tables_are_exact_at_large_positions),
        cmocka_unit_test(float32_angles_differ_by_their_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
