/* Processors and the choice of a token: against an implementation in double that follows the definitions one
 * by one, against Transformers' results, and against the distribution that draws must follow.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits.h"

#include <math.h>

#include "support/engine.h"
#include "tensor/safetensors.h"

enum { MOST_VOCAB = 400, MOST_IDS = 64 };

typedef struct settings {
    bool do_sample;
    double temperature, top_p, min_p, repetition_penalty;
    int top_k, min_length, min_new_tokens;
    int32_t end[2];
    int n_end;
} settings;

static void set(mn_generation_config *config, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set(mn_generation_config *config, const char *name, const char *format, ...) {
    char value[64];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    assert_ok(mn_generation_config_set(config, name, value));
}

static mn_generation_config *make_config(const settings *s) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, NULL));
    set(config, "do_sample", "%s", s->do_sample ? "true" : "false");
    set(config, "temperature", "%.17g", s->temperature);
    set(config, "top_p", "%.17g", s->top_p);
    set(config, "min_p", "%.17g", s->min_p);
    set(config, "top_k", "%d", s->top_k);
    set(config, "repetition_penalty", "%.17g", s->repetition_penalty);
    set(config, "min_length", "%d", s->min_length);
    set(config, "min_new_tokens", "%d", s->min_new_tokens);
    if (s->n_end == 1) set(config, "eos_token_id", "%d", s->end[0]);
    if (s->n_end == 2) set(config, "eos_token_id", "[%d,%d]", s->end[0], s->end[1]);
    return config;
}

/* ---- the definitions, one by one ---- */

static int rank_of(const double *scores, int n, int id) {
    int better = 0;
    for (int i = 0; i < n; i++) better += scores[i] > scores[id] || (scores[i] == scores[id] && i < id);
    return better;
}

static double probability(const double *scores, int n, int id) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(scores[i] - scores[id]);
    return scores[id] == -INFINITY ? 0 : 1 / sum;
}

static void expect(const settings *s, const float *logits, int n, const int32_t *ids, int n_ids, int n_prompt,
                   double *out) {
    double before[MOST_VOCAB];
    for (int i = 0; i < n; i++) out[i] = (double)logits[i];
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int j = 0; j < n_ids; j++) seen |= ids[j] == i;
        float penalty = (float)s->repetition_penalty, score = logits[i];
        if (seen && s->repetition_penalty != 1)
            out[i] = (double)(score < 0 ? score * penalty : score / penalty);
    }
    if (n_ids < s->min_length || n_ids - n_prompt < s->min_new_tokens) {
        for (int i = 0; i < s->n_end; i++)
            if (s->end[i] < n) out[s->end[i]] = -INFINITY;
    }
    if (!s->do_sample) return;
    for (int i = 0; i < n; i++) out[i] = (double)((float)out[i] / (float)s->temperature);
    memcpy(before, out, sizeof before);
    if (s->top_k > 0) { /* as good as the k-th best */
        for (int i = 0; i < n; i++) {
            int better = 0;
            for (int j = 0; j < n; j++) better += before[j] > before[i];
            if (better >= s->top_k) out[i] = -INFINITY;
        }
    }
    memcpy(before, out, sizeof before);
    if (s->top_p < 1) { /* what the worse ones and itself add up to must exceed 1 - p, or it is the best */
        for (int i = 0; i < n; i++) {
            double tail = 0;
            int rank = rank_of(before, n, i);
            for (int j = 0; j < n; j++)
                if (rank_of(before, n, j) >= rank) tail += probability(before, n, j);
            if (rank > 0 && tail <= 1 - s->top_p) out[i] = -INFINITY;
        }
    }
    memcpy(before, out, sizeof before);
    if (s->min_p > 0) {
        double best = 0;
        for (int i = 0; i < n; i++) best = fmax(best, probability(before, n, i));
        for (int i = 0; i < n; i++)
            if (probability(before, n, i) < s->min_p * best) out[i] = -INFINITY;
    }
}

static settings random_settings(uint64_t *seed, int vocab) {
    settings s = {
        .do_sample = test_random(seed) % 4 != 0, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (test_random(seed) % 2) s.temperature = test_uniform(seed, 0.1, 3);
    if (test_random(seed) % 2) s.top_p = test_random(seed) % 8 ? test_uniform(seed, 0.05, 1) : 0;
    if (test_random(seed) % 3 == 0) s.min_p = test_uniform(seed, 0, 0.5);
    if (test_random(seed) % 2) s.repetition_penalty = test_uniform(seed, 0.5, 2.5);
    if (test_random(seed) % 2) s.top_k = 1 + (int)(test_random(seed) % (uint64_t)(vocab + 5));
    if (test_random(seed) % 2) s.min_length = (int)(test_random(seed) % 20);
    if (test_random(seed) % 2) s.min_new_tokens = (int)(test_random(seed) % 8);
    s.n_end = (int)(test_random(seed) % 3);
    for (int i = 0; i < s.n_end; i++) s.end[i] = (int32_t)(test_random(seed) % (uint64_t)(vocab + 2));
    return s;
}

static void processors_follow_their_definitions(void **state) {
    (void)state;
    uint64_t seed = 99;
    for (int round = 0; round < 600; round++) {
        int vocab = 3 + (int)(test_random(&seed) % 120), n_ids = 1 + (int)(test_random(&seed) % 20),
            n_prompt = 1 + (int)(test_random(&seed) % (uint64_t)n_ids);
        float logits[MOST_VOCAB];
        int32_t ids[MOST_IDS];
        double wanted[MOST_VOCAB];
        settings s = random_settings(&seed, vocab);
        bool has_ties = round % 3 == 0;
        for (int i = 0; i < vocab; i++) {
            logits[i] = (float)test_uniform(&seed, -6, 6);
            if (has_ties) logits[i] = floorf(logits[i]);
        }
        engine_ids(&seed, ids, (size_t)n_ids, vocab);
        mn_generation_config *config = make_config(&s);
        logits_row row;
        assert_ok(logits_open(&row, config, (size_t)vocab, 7, ids, (size_t)n_prompt));
        for (int i = n_prompt; i < n_ids; i++) logits_accept(&row, ids[i]);
        logits_process(&row, logits);
        expect(&s, logits, vocab, ids, n_ids, n_prompt, wanted);
        for (int i = 0; i < vocab; i++) {
            if ((double)row.scores[i] != wanted[i])
                fail_msg("round %d: score %d of %d is %g, expected %g (top_k %d, top_p %g, min_p %g)", round,
                         i, vocab, (double)row.scores[i], wanted[i], s.top_k, s.top_p, s.min_p);
        }
        int32_t id = logits_choose(&row);
        if (s.do_sample) {
            assert_true(wanted[id] > -INFINITY);
        } else {
            assert_int_equal(rank_of(wanted, vocab, id), 0);
        }
        logits_close(&row);
        mn_generation_config_close(&config);
    }
}

/* ---- Transformers' results ---- */

static mn_generation_config *read_arguments(const json *arguments) {
    mn_generation_config *config = NULL;
    bytes text = {0};
    assert_ok(mn_generation_config_open(&config, NULL));
    set(config, "eos_token_id", "2");
    set(config, "top_k", "0");
    json_put(&text, arguments);
    assert_ok(mn_generation_config_load(config, bytes_text(&text), text.n));
    bytes_clear(&text);
    return config;
}

static size_t read_ids(const json *list, int32_t *ids) {
    assert_true(list && list->n <= MOST_IDS);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->items[i].integer;
    return list->n;
}

static const void *find(const tensor_set *set, const json *name, size_t *rows, size_t *columns) {
    const tensor *t = tensor_set_find(set, name->string);
    assert_non_null(t);
    *rows = t->n_dims == 2 ? (size_t)t->shape[0] : 1;
    *columns = (size_t)t->shape[t->n_dims - 1];
    return t->data;
}

static void processors_equal_transformers(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("golden/decoding/processors.json"));
    const json *cases = json_get(json_root(doc), "cases");
    tensor_set *set_ = NULL;
    assert_ok(safetensors_open(&set_, data_path("golden/decoding/processors.safetensors")));
    assert_int_equal(cases->n, 28);
    for (size_t c = 0; c < cases->n; c++) {
        const json *test = &cases->items[c];
        size_t rows, vocab;
        const float *in = find(set_, json_get(test, "scores_in"), &rows, &vocab),
                    *out = find(set_, json_get(test, "scores_out"), &rows, &vocab);
        mn_generation_config *config = read_arguments(json_get(test, "args"));
        size_t n_prompt = (size_t)json_get(test, "prompt_len")->integer;
        for (size_t r = 0; r < rows; r++, in += vocab, out += vocab) {
            int32_t ids[MOST_IDS];
            float logits[MOST_VOCAB], wanted[MOST_VOCAB];
            size_t n = read_ids(&json_get(test, "input_ids")->items[r], ids);
            logits_row row;
            memcpy(logits, in, vocab * sizeof *logits);
            memcpy(wanted, out, vocab * sizeof *wanted);
            assert_ok(logits_open(&row, config, vocab, 0, ids, n_prompt));
            for (size_t i = n_prompt; i < n; i++) logits_accept(&row, ids[i]);
            logits_process(&row, logits);
            for (size_t i = 0; i < vocab; i++) {
                bool same = row.scores[i] == wanted[i] ||
                            fabsf(row.scores[i] - wanted[i]) <= 1e-5f * fabsf(wanted[i]);
                if (!same)
                    fail_msg("%s: score %zu of row %zu is %g, Transformers has %g",
                             json_get(test, "name")->string, i, r, (double)row.scores[i], (double)wanted[i]);
            }
            logits_close(&row);
        }
        mn_generation_config_close(&config);
    }
    tensor_set_close(&set_);
    json_close(&doc);
}

/* ---- draws ---- */

/* Pearson's statistic of n draws against probabilities, rare outcomes taken together, must be within six
 * standard deviations of its mean; what has probability 0 must not be drawn. */
static void check_draws(const int *counts, const double *p, int n_outcomes, int n, const char *what) {
    double statistic = 0, rest_p = 0;
    int cells = 0, rest = 0;
    for (int i = 0; i < n_outcomes; i++) {
        if (p[i] == 0 && counts[i] > 0) fail_msg("%s: %d was drawn with probability 0", what, i);
        double wanted = p[i] * n;
        if (wanted < 10) {
            rest_p += p[i];
            rest += counts[i];
            continue;
        }
        statistic += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
        cells++;
    }
    if (rest_p * n > 10) {
        statistic += (rest - rest_p * n) * (rest - rest_p * n) / (rest_p * n);
        cells++;
    }
    double freedom = cells - 1;
    if (freedom < 1) return;
    if (fabs(statistic - freedom) > 6 * sqrt(2 * freedom))
        fail_msg("%s: chi-square %.1f with %d degrees of freedom", what, statistic, (int)freedom);
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    enum { VOCAB = 40, DRAWS = 100000 };
    settings s = {.do_sample = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    mn_generation_config *config = make_config(&s);
    float logits[VOCAB];
    double scores[VOCAB], p[VOCAB];
    int by_seed[VOCAB] = {0}, by_step[VOCAB] = {0}, pairs[4] = {0};
    uint64_t seed = 4;
    for (int i = 0; i < VOCAB; i++) scores[i] = (double)(logits[i] = (float)test_uniform(&seed, -3, 3));
    for (int i = 0; i < VOCAB; i++) p[i] = probability(scores, VOCAB, i);
    logits_row row;
    int32_t prompt[] = {1};
    for (int i = 0; i < DRAWS; i++) {
        assert_ok(logits_open(&row, config, VOCAB, (uint64_t)i, prompt, 1));
        logits_process(&row, logits);
        by_seed[logits_choose(&row)]++;
        logits_close(&row);
    }
    check_draws(by_seed, p, VOCAB, DRAWS, "one draw of each seed");
    assert_ok(logits_open(&row, config, VOCAB, 123, prompt, 1));
    int last = 0;
    for (int i = 0; i < DRAWS; i++) {
        logits_process(&row, logits);
        int32_t id = logits_choose(&row);
        assert_int_equal(logits_choose(&row), id); /* until the next token is counted */
        logits_accept(&row, id);
        by_step[id]++;
        int low = id < VOCAB / 2;
        pairs[last * 2 + low] += i > 0;
        last = low;
    }
    logits_close(&row);
    check_draws(by_step, p, VOCAB, DRAWS, "many draws of one seed");
    /* Neighbouring draws are independent. */
    double low = 0, of_pairs[4];
    for (int i = 0; i < VOCAB / 2; i++) low += p[i];
    for (int i = 0; i < 4; i++) of_pairs[i] = (i / 2 ? low : 1 - low) * (i % 2 ? low : 1 - low);
    check_draws(pairs, of_pairs, 4, DRAWS - 1, "pairs of draws");
    mn_generation_config_close(&config);
}

/* The draws of neighbouring seeds have nothing in common, in step or one step apart. */
static void seeds_are_independent(void **state) {
    (void)state;
    enum { VOCAB = 16, DRAWS = 4000, SEEDS = 3 };
    settings s = {.do_sample = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    mn_generation_config *config = make_config(&s);
    float logits[VOCAB] = {0};
    int32_t drawn[SEEDS][DRAWS];
    for (int i = 0; i < SEEDS; i++) {
        logits_row row;
        assert_ok(logits_open(&row, config, VOCAB, (uint64_t)i, (int32_t[]){0}, 1));
        for (int t = 0; t < DRAWS; t++) {
            logits_process(&row, logits);
            drawn[i][t] = logits_choose(&row);
            logits_accept(&row, drawn[i][t]);
        }
        logits_close(&row);
    }
    double wanted = (double)(DRAWS - 2) / VOCAB, spread = sqrt(wanted * (1 - 1.0 / VOCAB));
    for (int i = 0; i < SEEDS; i++) {
        for (int j = 0; j < SEEDS; j++) {
            for (int shift = i == j; shift < 3; shift++) {
                int n_same = 0;
                for (int t = 0; t + 2 < DRAWS; t++) n_same += drawn[i][t] == drawn[j][t + shift];
                if (fabs(n_same - wanted) > 5 * spread)
                    fail_msg("seeds %d and %d, %d steps apart: %d of %d draws are the same", i, j, shift,
                             n_same, DRAWS);
            }
        }
    }
    mn_generation_config_close(&config);
}

/* The whole path on a checkpoint: probabilities of the first and the second new token, and draws of them. */
static void sampling_equals_transformers(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    json_doc *doc = open_json(data_path("golden/decoding/sampling.json"));
    const json *cases = json_get(json_root(doc), "cases");
    tensor_set *set_ = NULL;
    assert_ok(safetensors_open(&set_, data_path("golden/decoding/sampling.safetensors")));
    mn_model *model = engine_model("golden/llama", "f32", "auto", 1);
    assert_true(cases->n >= 8);
    for (size_t c = 0; c < cases->n; c++) {
        const json *test = &cases->items[c];
        mn_generation_config *config = read_arguments(json_get(test, "args"));
        int32_t ids[MOST_IDS], given = (int32_t)json_get(test, "given")->integer;
        size_t n = read_ids(json_get(test, "ids"), ids), rows, vocab;
        mn_session *session = engine_session(model, (engine_cache){0});
        assert_ok(mn_session_step(session, ids, n, NULL));
        for (int second = 0; second < 2; second++) {
            const void *data = find(set_, json_get(test, second ? "second" : "first"), &rows, &vocab);
            double wanted[MOST_VOCAB], scores[MOST_VOCAB];
            int counts[MOST_VOCAB] = {0};
            memcpy(wanted, data, vocab * sizeof *wanted);
            logits_row row;
            for (int i = 0; i < DRAWS; i++) {
                assert_ok(logits_open(&row, config, vocab, (uint64_t)i, ids, n));
                if (second) logits_accept(&row, given);
                logits_process(&row, mn_session_logits(session));
                counts[logits_choose(&row)]++;
                if (i == 0) {
                    for (size_t j = 0; j < vocab; j++) scores[j] = (double)row.scores[j];
                    for (size_t j = 0; j < vocab; j++) {
                        double p = probability(scores, (int)vocab, (int)j);
                        if ((p == 0) != (wanted[j] == 0) || !(fabs(p - wanted[j]) <= 2e-4 * wanted[j] + 1e-7))
                            fail_msg("%s: probability of %zu is %.9g, Transformers has %.9g",
                                     json_get(test, "name")->string, j, p, wanted[j]);
                    }
                }
                logits_close(&row);
            }
            check_draws(counts, wanted, (int)vocab, DRAWS, json_get(test, "name")->string);
            if (!second) assert_ok(mn_session_step(session, &given, 1, NULL));
        }
        mn_session_close(&session);
        mn_generation_config_close(&config);
    }
    mn_model_close(&model);
    tensor_set_close(&set_);
    json_close(&doc);
}

/* ---- corners ---- */

static void damaged_logits_give_some_token(void **state) {
    (void)state;
    static const float kinds[] = {NAN, INFINITY, -INFINITY, 0, 3.4e38f};
    uint64_t seed = 17;
    for (int round = 0; round < 500; round++) {
        float logits[30];
        settings s = random_settings(&seed, 30);
        int32_t prompt[] = {3};
        for (int i = 0; i < 30; i++) logits[i] = kinds[test_random(&seed) % (round % 2 ? 5 : 1)];
        mn_generation_config *config = make_config(&s);
        logits_row row;
        assert_ok(logits_open(&row, config, 30, 1, prompt, 1));
        logits_process(&row, logits);
        int32_t id = logits_choose(&row);
        assert_in_range(id, 0, 29);
        logits_close(&row);
        mn_generation_config_close(&config);
    }
}

static void ties_go_to_the_lowest_id(void **state) {
    (void)state;
    settings s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    mn_generation_config *config = make_config(&s);
    float logits[] = {1, 5, 2, 5, 5};
    logits_row row;
    assert_ok(logits_open(&row, config, 5, 0, (int32_t[]){0}, 1));
    logits_process(&row, logits);
    assert_int_equal(logits_choose(&row), 1);
    logits_close(&row);
    mn_generation_config_close(&config);
}

static void sums_of_exponentials(void **state) {
    (void)state;
    float scores[4] = {1000, 1000, -INFINITY, 999};
    double wanted = 1000 + log(2 + exp(-1));
    assert_true(fabs(logits_log_sum(scores, 4) - wanted) < 1e-12);
    float none[2] = {-INFINITY, -INFINITY};
    assert_true(logits_log_sum(none, 2) == -INFINITY);
}

static void failed_allocations(void **state) {
    (void)state;
    settings s = {.do_sample = true, .temperature = 2, .top_p = 0.5, .repetition_penalty = 2, .top_k = 3};
    mn_generation_config *config = make_config(&s);
    int64_t live = mem_count().live;
    int n_failures = 0;
    for (int64_t k = 1;; k++) {
        logits_row row;
        mem_fail_after(k);
        mn_status status = logits_open(&row, config, 50, 0, (int32_t[]){0}, 1);
        mem_fail_after(0);
        if (status == MN_OK) {
            logits_close(&row);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(mem_count().live, live);
        n_failures++;
    }
    assert_int_equal(n_failures, 4);
    mn_generation_config_close(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_follow_their_definitions),
        cmocka_unit_test(processors_equal_transformers),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(seeds_are_independent),
        cmocka_unit_test(sampling_equals_transformers),
        cmocka_unit_test(damaged_logits_give_some_token),
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(sums_of_exponentials),
        cmocka_unit_test(failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
