/* The choice of a token: draws follow the distribution, on a checkpoint that of Transformers; independence of seeds and
 * steps; ties.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/choice.h"

#include <math.h>

#include "base/num.h"
#include "gen/logits/processors.h"
#include "support/engine.h"
#include "tensor/safetensors.h"

enum { MOST_VOCAB = 400, MOST_IDS = 64 };

/* ---- chi-square ---- */

/* Probability that a chi-square variable of `freedom` degrees is above x: the upper regularised gamma function, by its
 * series below and its continued fraction above (Abramowitz and Stegun 6.5.29, 6.5.31). */
static double chi_square_tail(double x, double freedom) {
    double a = freedom / 2, z = x / 2, front = exp(a * log(z) - z - lgamma(a));
    if (x <= 0) return 1;
    if (z < a + 1) {
        double term = 1 / a, sum = term;
        for (double n = 1; term > sum * 1e-15; n++) sum += term *= z / (a + n);
        return 1 - front * sum;
    }
    double b = z + 1 - a, c = 1e300, d = 1 / b, product = d;
    for (int n = 1; n < 10000; n++) {
        double factor = n * (a - n);
        b += 2;
        d = 1 / (factor * d + b);
        c = b + factor / c;
        product *= c * d;
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return front * product;
}

/* Pearson's test of n draws with rare outcomes pooled: p above 0.001. Outcomes of probability 0 must not be drawn. */
static void check_draws(const int *counts, const double *p, size_t n_outcomes, int n, const char *what) {
    double statistic = 0, rest_p = 0;
    int cells = 0, rest = 0;
    for (size_t i = 0; i < n_outcomes; i++) {
        if (p[i] == 0 && counts[i] > 0) fail_msg("%s: %zu was drawn with probability 0", what, i);
        double wanted = p[i] * n;
        if (wanted < 10) {
            rest_p += p[i];
            rest += counts[i];
            continue;
        }
        statistic += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
        cells++;
    }
    if (rest_p * n >= 5) {
        statistic += (rest - rest_p * n) * (rest - rest_p * n) / (rest_p * n);
        cells++;
    }
    if (cells < 2) return;
    double tail = chi_square_tail(statistic, cells - 1);
    if (!(tail > 0.001))
        fail_msg("%s: chi-square %.1f with %d degrees of freedom, p = %.2g", what, statistic, cells - 1, tail);
}

static void the_chi_square_tail_equals_published_values(void **state) {
    (void)state;
    static const double known[][3] = {{3.841459, 1, 0.05},    {10.827566, 1, 0.001},   {18.307038, 10, 0.05},
                                      {29.588298, 10, 0.001}, {124.342113, 100, 0.05}, {149.449253, 100, 0.001},
                                      {2, 2, 0.36787944},     {77.929465, 100, 0.95}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(fabs(chi_square_tail(known[i][0], known[i][1]) / known[i][2] - 1) < 1e-5);
}

static void softmax(const float *scores, double *p, size_t n) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, (double)scores[i]);
    for (size_t i = 0; i < n; i++) sum += p[i] = exp((double)scores[i] - most);
    for (size_t i = 0; i < n; i++) p[i] /= sum;
}

/* ---- draws ---- */

static void random_scores(float *scores, size_t n, uint64_t seed, double spread) {
    for (size_t i = 0; i < n; i++) scores[i] = (float)test_uniform(&seed, -spread, spread);
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    enum { VOCAB = 40, DRAWS = 200000 };
    float scores[VOCAB];
    double p[VOCAB];
    int by_seed[VOCAB] = {0}, by_step[VOCAB] = {0}, by_stream[VOCAB] = {0}, pairs[4] = {0}, last = 0;
    random_scores(scores, VOCAB, 4, 3);
    softmax(scores, p, VOCAB);
    choice c;
    assert_ok(choice_open(&c, VOCAB));
    for (uint64_t i = 0; i < DRAWS; i++) {
        by_seed[choice_sample(&c, scores, VOCAB, i, 0, 0)]++;
        by_stream[choice_sample(&c, scores, VOCAB, 5, i, 3)]++;
        int32_t id = choice_sample(&c, scores, VOCAB, 123, 0, i);
        assert_int_equal(choice_sample(&c, scores, VOCAB, 123, 0, i), id);
        by_step[id]++;
        int low = id < VOCAB / 2;
        pairs[last * 2 + low] += i > 0;
        last = low;
    }
    choice_close(&c);
    check_draws(by_seed, p, VOCAB, DRAWS, "one draw of each seed");
    check_draws(by_stream, p, VOCAB, DRAWS, "one draw of each stream");
    check_draws(by_step, p, VOCAB, DRAWS, "many draws of one seed");
    double low = 0, of_pairs[4]; /* neighbouring draws are independent */
    for (int i = 0; i < VOCAB / 2; i++) low += p[i];
    for (int i = 0; i < 4; i++) of_pairs[i] = (i / 2 ? low : 1 - low) * (i % 2 ? low : 1 - low);
    check_draws(pairs, of_pairs, 4, DRAWS - 1, "pairs of draws");
}

/* Many blocks of tokens, most of them removed. */
static void draws_of_large_vocabularies_follow_the_distribution(void **state) {
    (void)state;
    enum { VOCAB = 5000, DRAWS = 200000 };
    static float scores[VOCAB];
    static double p[VOCAB];
    static int counts[VOCAB];
    random_scores(scores, VOCAB, 9, 1);
    for (size_t i = 0; i < VOCAB; i++)
        if (i / 700 % 2 || i % 7) scores[i] = -INFINITY;
    softmax(scores, p, VOCAB);
    choice c;
    assert_ok(choice_open(&c, VOCAB));
    choice_weigh(&c, scores, VOCAB);
    for (uint64_t i = 0; i < DRAWS; i++) counts[choice_draw(&c, random_uniform(77, 0, i))]++;
    for (size_t i = 0; i < VOCAB; i++) assert_true(fabs(choice_probability(&c, i) - p[i]) < 1e-6 * p[i] + 1e-12);
    /* The ends of the range give a token with nonzero probability, in the first and the last block that has one. */
    size_t first = 0, last = VOCAB - 1, low = choice_draw(&c, 0), high = choice_draw(&c, 1 - 0x1p-53);
    while (p[first] == 0) first++;
    while (p[last] == 0) last--;
    assert_int_equal(low, first);
    assert_true(p[high] > 0 && high + 256 > last);
    choice_close(&c);
    check_draws(counts, p, VOCAB, DRAWS, "a large vocabulary");
}

/* Draws of neighbouring seeds and streams are independent, at equal steps and some steps apart. */
static void seeds_and_streams_are_independent(void **state) {
    (void)state;
    enum { VOCAB = 16, DRAWS = 4000, SOURCES = 6 };
    float scores[VOCAB] = {0};
    static int32_t drawn[SOURCES][DRAWS];
    choice c;
    assert_ok(choice_open(&c, VOCAB));
    for (uint64_t i = 0; i < SOURCES; i++) {
        for (uint64_t t = 0; t < DRAWS; t++) drawn[i][t] = choice_sample(&c, scores, VOCAB, i / 2, i % 2, t);
    }
    choice_close(&c);
    double wanted = (double)(DRAWS - 2) / VOCAB, spread = sqrt(wanted * (1 - 1.0 / VOCAB));
    for (int i = 0; i < SOURCES; i++) {
        for (int j = 0; j < SOURCES; j++) {
            for (int shift = i == j; shift < 3; shift++) {
                int n_same = 0;
                for (int t = 0; t + 2 < DRAWS; t++) n_same += drawn[i][t] == drawn[j][t + shift];
                if (fabs(n_same - wanted) > 5 * spread)
                    fail_msg("sources %d and %d, %d steps apart: %d of %d draws are the same", i, j, shift, n_same,
                             DRAWS);
            }
        }
    }
}

/* Ordered pairs without replacement: p_i p_j / (1 - p_i). */
static void several_draws_are_without_replacement(void **state) {
    (void)state;
    enum { VOCAB = 7, DRAWS = 200000 };
    float scores[VOCAB];
    double p[VOCAB], of_pairs[VOCAB * VOCAB];
    static int counts[VOCAB * VOCAB];
    size_t drawn[VOCAB + 2];
    random_scores(scores, VOCAB, 21, 2);
    scores[3] = -INFINITY;
    softmax(scores, p, VOCAB);
    for (size_t i = 0; i < VOCAB * VOCAB; i++)
        of_pairs[i] = i / VOCAB == i % VOCAB ? 0 : p[i / VOCAB] * p[i % VOCAB] / (1 - p[i / VOCAB]);
    choice c;
    assert_ok(choice_open(&c, VOCAB));
    for (uint64_t i = 0; i < DRAWS; i++) {
        assert_int_equal(choice_sample_several(&c, scores, VOCAB, 31, 0, i, drawn, 2), 2);
        counts[drawn[0] * VOCAB + drawn[1]]++;
    }
    check_draws(counts, of_pairs, VOCAB * VOCAB, DRAWS, "pairs without replacement");
    /* More draws than tokens: each token once. */
    assert_int_equal(choice_sample_several(&c, scores, VOCAB, 1, 0, 0, drawn, VOCAB + 2), VOCAB - 1);
    unsigned seen = 0;
    for (int i = 0; i < VOCAB - 1; i++) seen |= 1u << drawn[i];
    assert_int_equal(seen, 0x7F & ~(1u << 3));
    for (int i = 0; i < VOCAB; i++) scores[i] = -INFINITY;
    assert_int_equal(choice_sample_several(&c, scores, VOCAB, 1, 0, 0, drawn, 2), 0);
    choice_close(&c);
}

/* ---- Transformers' distributions ---- */

static size_t read_ids(const json *list, int32_t *ids) {
    assert_true(list && list->n <= MOST_IDS);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->items[i].integer;
    return list->n;
}

static mn_generation_config *read_arguments(const json *arguments) {
    mn_generation_config *config = NULL;
    bytes text = {0};
    assert_ok(mn_generation_config_open(&config, NULL));
    json_put(&text, arguments);
    assert_ok(mn_generation_config_load(config, bytes_text(&text), text.n));
    bytes_clear(&text);
    return config;
}

static void check_distribution(const float *scores, const double *wanted, size_t vocab, uint64_t seed,
                               const char *name) {
    enum { DRAWS = 200000 };
    int counts[MOST_VOCAB] = {0};
    choice c;
    assert_ok(choice_open(&c, vocab));
    choice_weigh(&c, scores, vocab);
    for (size_t i = 0; i < vocab; i++) {
        double p = choice_probability(&c, i);
        if ((p == 0) != (wanted[i] == 0) || !(fabs(p - wanted[i]) <= 2e-4 * wanted[i] + 1e-7))
            fail_msg("%s: probability of %zu is %.9g, Transformers has %.9g", name, i, p, wanted[i]);
    }
    for (uint64_t i = 0; i < DRAWS; i++) counts[choice_draw(&c, random_uniform(seed, 0, i))]++;
    choice_close(&c);
    check_draws(counts, wanted, vocab, DRAWS, name);
}

/* The whole path on a checkpoint: probabilities and draws of the first and the second new token. */
static void distributions_equal_those_of_transformers(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("golden/decoding/sampling.json"));
    const json *cases = json_get(json_root(doc), "cases");
    tensor_set *tensors = NULL;
    assert_ok(safetensors_open(&tensors, data_path("golden/decoding/sampling.safetensors")));
    mn_model *model = engine_model("golden/llama", "f32", "auto", 1);
    assert_int_equal(cases->n, 12);
    for (size_t k = 0; k < cases->n; k++) {
        const json *test = &cases->items[k];
        mn_generation_config *config = read_arguments(json_get(test, "args"));
        int32_t ids[MOST_IDS];
        size_t n = read_ids(json_get(test, "ids"), ids);
        ids[n] = (int32_t)json_get(test, "given")->integer;
        mn_session *session = engine_session(model, (engine_cache){0});
        assert_ok(mn_session_step(session, ids, n, NULL));
        for (size_t second = 0; second < 2; second++) {
            const tensor *t = tensor_set_find(tensors, json_get(test, second ? "second" : "first")->string);
            size_t vocab = (size_t)t->shape[0];
            double wanted[MOST_VOCAB];
            float scores[MOST_VOCAB];
            processors *p = NULL;
            processor_setup setup = {.config = config, .vocab = vocab, .prompt = ids, .n_prompt = n};
            memcpy(wanted, t->data, vocab * sizeof *wanted);
            memcpy(scores, mn_session_logits(session), vocab * sizeof *scores);
            assert_ok(processors_open(&p, &setup));
            assert_ok(processors_run(p, &(processor_step){.ids = ids, .n = n + second}, scores));
            processors_close(&p);
            check_distribution(scores, wanted, vocab, 2 * k + second, json_get(test, "name")->string);
            if (!second) assert_ok(mn_session_step(session, &ids[n], 1, NULL));
        }
        mn_session_close(&session);
        mn_generation_config_close(&config);
    }
    mn_model_close(&model);
    tensor_set_close(&tensors);
    json_close(&doc);
}

/* ---- edge cases ---- */

static void ties_go_to_the_lowest_id(void **state) {
    (void)state;
    float scores[] = {1, 7, 3, 7, 7}, flat[50] = {0}, removed[] = {-INFINITY, -3, -3};
    float damaged[] = {NAN, 2, INFINITY, INFINITY}, none[] = {NAN, NAN}, gone[] = {-INFINITY, -INFINITY};
    assert_int_equal(choice_best(scores, 5), 1);
    assert_int_equal(choice_best(flat, 50), 0);
    assert_int_equal(choice_best(removed, 3), 1);
    assert_int_equal(choice_best(damaged, 4), 2);
    assert_int_equal(choice_best(none, 2), 0);
    assert_int_equal(choice_best(gone, 2), 0);
}

static void non_finite_scores_give_a_token(void **state) {
    (void)state;
    static const float kinds[] = {NAN, INFINITY, -INFINITY, 0, 3.4e38f};
    uint64_t seed = 17;
    choice c;
    assert_ok(choice_open(&c, 300));
    for (int round = 0; round < 2000; round++) {
        float scores[300];
        size_t n = 1 + test_random(&seed) % 300, n_kinds = 1 + test_random(&seed) % 5;
        bool any = false;
        for (size_t i = 0; i < n; i++) {
            scores[i] = kinds[test_random(&seed) % n_kinds];
            any |= scores[i] > -INFINITY;
        }
        int32_t id = choice_sample(&c, scores, n, 1, 0, (uint64_t)round);
        assert_in_range(id, 0, n - 1);
        if (any) assert_true(scores[id] > -INFINITY);
        if (any) assert_true(scores[choice_best(scores, n)] > -INFINITY);
    }
    choice_close(&c);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t live = mem_count().live;
    int n_failures = 0;
    for (int64_t k = 1;; k++) {
        choice c;
        mem_fail_after(k);
        mn_status status = choice_open(&c, 50);
        mem_fail_after(0);
        if (status == MN_OK) {
            choice_close(&c);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(mem_count().live, live);
        n_failures++;
    }
    assert_int_equal(n_failures, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chi_square_tail_equals_published_values),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draws_of_large_vocabularies_follow_the_distribution),
        cmocka_unit_test(seeds_and_streams_are_independent),
        cmocka_unit_test(several_draws_are_without_replacement),
        cmocka_unit_test(distributions_equal_those_of_transformers),
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(non_finite_scores_give_a_token),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
