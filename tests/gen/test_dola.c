/* DoLa: the candidate layers, and the contrast against the same arithmetic in double precision.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "gen/search/dola.h"

enum { MOST = 24 };

static void candidate_layers_follow_from_the_depth(void **state) {
    (void)state;
    static const struct {
        int64_t n_layers;
        bool tied;
        layer_side side;
        int n, layers[MOST];
    } cases[] = {
        {30, true, LAYERS_LOW, 7, {2, 4, 6, 8, 10, 12, 14}},
        {30, false, LAYERS_LOW, 8, {0, 2, 4, 6, 8, 10, 12, 14}},
        {30, true, LAYERS_HIGH, 8, {15, 17, 19, 21, 23, 25, 27, 29}},
        {32, false, LAYERS_HIGH, 8, {16, 18, 20, 22, 24, 26, 28, 30}},
        {40, true, LAYERS_LOW, 9, {2, 4, 6, 8, 10, 12, 14, 16, 18}},
        {48, false, LAYERS_LOW, 10, {0, 2, 4, 6, 8, 10, 12, 14, 16, 18}},
        {48, false, LAYERS_HIGH, 10, {28, 30, 32, 34, 36, 38, 40, 42, 44, 46}},
        {4, true, LAYERS_LOW, 1, {2}},
        {3, true, LAYERS_LOW, 1, {2}},
        {2, true, LAYERS_LOW, 1, {1}},
        {1, true, LAYERS_LOW, 1, {0}},
        {1, false, LAYERS_HIGH, 1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config model = {.num_hidden_layers = cases[i].n_layers, .tie_word_embeddings = cases[i].tied};
        layer_choice choice = {.side = cases[i].side};
        int *layers = NULL, n = 0;
        assert_ok(dola_read(&layers, &n, &choice, &model));
        if (n != cases[i].n) fail_msg("case %zu: %d layers, expected %d", i, n, cases[i].n);
        assert_memory_equal(layers, cases[i].layers, (size_t)n * sizeof *layers);
        mem_free(layers);
    }
}

static void listed_candidate_layers_are_checked(void **state) {
    (void)state;
    int32_t some[] = {7, 2, 2, 12, 0}, late[] = {12, 40};
    model_config model = {.num_hidden_layers = 12};
    layer_choice choice = {.side = LAYERS_LISTED, .layers = {some, 5}};
    int *layers = NULL, n = 0;
    assert_ok(dola_read(&layers, &n, &choice, &model));
    assert_int_equal(n, 3);
    assert_memory_equal(layers, ((const int[]){0, 2, 7}), 3 * sizeof *layers);
    mem_free(layers);
    choice.layers = (id_list){late, 2};
    assert_fails(MN_E_ARG, "allowed: 0 to 11", dola_read(&layers, &n, &choice, &model));
    assert_null(layers);
    choice.side = LAYERS_NONE;
    assert_ok(dola_read(&layers, &n, &choice, &model));
    assert_int_equal(n, 0);
}

enum { VOCAB = 37, LAYERS = 3 };

static void log_softmax(double *out, const float *x) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)x[i]);
    for (int i = 0; i < VOCAB; i++) out[i] = (double)x[i] - log(sum);
}

static double divergence(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        double middle = (exp(a[i]) + exp(b[i])) / 2;
        sum += middle * (log(middle) - a[i]) / 2 + middle * (log(middle) - b[i]) / 2;
    }
    return sum;
}

static void the_contrast_equals_double_precision(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int round = 0; round < 200; round++) {
        float logits[VOCAB], early[LAYERS * VOCAB], scores[VOCAB], scratch[VOCAB];
        double wanted[VOCAB], last[VOCAB], layer[VOCAB], chosen[VOCAB], most = -1, best = -INFINITY;
        int n_layers = 1 + round % LAYERS;
        for (int i = 0; i < VOCAB; i++) logits[i] = (float)test_uniform(&seed, -3, 4);
        for (int i = 0; i < LAYERS * VOCAB; i++) early[i] = (float)test_uniform(&seed, -2, 2) * (float)(1 + i / VOCAB);
        log_softmax(last, logits);
        for (int l = 0; l < n_layers; l++) {
            log_softmax(layer, early + l * VOCAB);
            if (divergence(last, layer) <= most) continue;
            most = divergence(last, layer);
            memcpy(chosen, layer, sizeof layer);
        }
        for (int i = 0; i < VOCAB; i++) best = fmax(best, last[i]);
        for (int i = 0; i < VOCAB; i++) wanted[i] = last[i] < best + log(0.1) ? -INFINITY : last[i] - chosen[i];
        dola_contrast(scores, logits, early, (size_t)n_layers, VOCAB, scratch);
        for (int i = 0; i < VOCAB; i++) {
            if (isinf(wanted[i])) {
                assert_true(isinf(scores[i]));
            } else if (!(fabs((double)scores[i] - wanted[i]) < 1e-5)) {
                fail_msg("round %d: score %d is %g, expected %g", round, i, (double)scores[i], wanted[i]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidate_layers_follow_from_the_depth),
        cmocka_unit_test(listed_candidate_layers_are_checked),
        cmocka_unit_test(the_contrast_equals_double_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
