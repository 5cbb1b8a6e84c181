/* Processors and warpers: against results of Transformers, against a direct implementation of the definitions in double
 * precision, and edge cases.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/processors.h"

#include <math.h>

#include "gen/logits/scores.h"
#include "session/session.h"
#include "gen/logits/watermark.h"
#include "support/support.h"
#include "tensor/safetensors.h"

enum { MOST_VOCAB = 3000, MOST_IDS = 64, END = 2 };

static void set(mn_generation_config *config, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set(mn_generation_config *config, const char *name, const char *format, ...) {
    char value[256];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    assert_ok(mn_generation_config_set(config, name, value));
}

/* One end token, and no setting that changes scores. */
static mn_generation_config *open_config(void) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, NULL));
    set(config, "eos_token_id", "%d", END);
    set(config, "top_k", "0");
    return config;
}

static mn_status run(const processor_setup *setup, const processor_step *step, float *scores) {
    processors *p = NULL;
    mn_status status = processors_open(&p, setup);
    if (status == MN_OK) status = processors_run(p, step, scores);
    processors_close(&p);
    return status;
}

/* Applies the settings to a row whose text is all prompt. */
static mn_status run_config(const mn_generation_config *config, const int32_t *ids, size_t n, float *scores,
                            size_t vocab) {
    processor_setup setup = {.config = config, .vocab = vocab, .prompt = ids, .n_prompt = n};
    return run(&setup, &(processor_step){.ids = ids, .n = n}, scores);
}

/* ---- Transformers' results ---- */

typedef struct golden {
    json_doc *doc;
    tensor_set *tensors;
} golden;

static size_t read_ids(const json *list, int32_t *ids) {
    assert_true(list && list->n <= MOST_IDS);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->items[i].integer;
    return list->n;
}

static const float *find(const golden *g, const json *test, const char *what, size_t *rows, size_t *columns) {
    const json *name = json_get(test, what);
    assert_non_null(name);
    const tensor *t = tensor_set_find(g->tensors, name->string);
    assert_non_null(t);
    *rows = (size_t)t->shape[0];
    *columns = (size_t)t->shape[1];
    return (const float *)(const void *)t->data;
}

static void compare(const char *name, size_t row, const float *scores, const float *wanted, size_t vocab) {
    for (size_t i = 0; i < vocab; i++) {
        bool is_near = isfinite(wanted[i]) && fabsf(scores[i] - wanted[i]) <= 1e-5f * fabsf(wanted[i]);
        bool same = scores[i] == wanted[i] || is_near; /* removed tokens must agree exactly */
        if (!same)
            fail_msg("%s: score %zu of row %zu is %.9g, Transformers has %.9g", name, i, row, (double)scores[i],
                     (double)wanted[i]);
    }
}

static bool allow_by_table(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed,
                           size_t *n_allowed) {
    static int32_t list[MOST_IDS];
    const json *table = user;
    (void)row;
    *n_allowed = read_ids(&table->items[(size_t)ids[n - 1] % table->n], list);
    *allowed = list;
    return true;
}

/* Tokens that the row's earlier groups chose: current_tokens is [items][beams], the rows are those of one group. */
static size_t read_chosen(const json *test, size_t row, int32_t *chosen) {
    int32_t all[MOST_IDS];
    const json *tokens = json_get(test, "current_tokens"), *args = json_get(test, "args");
    if (!tokens) return 0;
    read_ids(tokens, all);
    size_t beams = (size_t)json_get(args, "num_beams")->integer,
           group_size = beams / (size_t)json_get(args, "num_beam_groups")->integer,
           n = (size_t)json_get(test, "beam_group_idx")->integer * group_size;
    memcpy(chosen, all + row / group_size * beams, n * sizeof *chosen);
    return n;
}

static void check_processor(const golden *g, const json *test) {
    size_t rows, vocab;
    const float *in = find(g, test, "scores_in", &rows, &vocab), *out = find(g, test, "scores_out", &rows, &vocab);
    mn_generation_config *config = open_config();
    bytes text = {0};
    json_put(&text, json_get(test, "args"));
    assert_ok(mn_generation_config_load(config, bytes_text(&text), text.n));
    size_t n_prompt = (size_t)json_get(test, "prompt_len")->integer;
    for (size_t r = 0; r < rows; r++, in += vocab, out += vocab) {
        int32_t ids[MOST_IDS], encoder[MOST_IDS], chosen[MOST_IDS];
        float scores[MOST_VOCAB], wanted[MOST_VOCAB];
        const json *encoders = json_get(test, "encoder_ids"), *table = json_get(test, "prefix_table");
        processor_setup setup = {.config = config, .vocab = vocab, .prompt = ids, .n_prompt = n_prompt};
        processor_step step = {.ids = ids, .chosen = chosen};
        if (config->max_new_tokens > 0) setup.max_length = (int64_t)n_prompt + config->max_new_tokens;
        if (encoders) {
            setup.n_encoder = read_ids(&encoders->items[r], encoder);
            setup.encoder = encoder;
        }
        if (table) {
            setup.prefix_allowed = allow_by_table;
            setup.user = (void *)(uintptr_t)table;
        }
        step.n = read_ids(&json_get(test, "input_ids")->items[r], ids);
        step.n_chosen = read_chosen(test, r, chosen);
        memcpy(scores, in, vocab * sizeof *scores);
        memcpy(wanted, out, vocab * sizeof *wanted);
        assert_ok(run(&setup, &step, scores));
        compare(json_get(test, "name")->string, r, scores, wanted, vocab);
    }
    bytes_clear(&text);
    mn_generation_config_close(&config);
}

/* The terms may cancel, so the rounding error is relative to the terms, not to the result. */
static void compare_guided(const char *name, const float *scores, const float *wanted, const float *in,
                           const float *without, size_t vocab, double scale) {
    double log_sum = 0, log_sum_without = 0;
    for (size_t i = 0; i < vocab; i++) log_sum += exp((double)in[i]);
    for (size_t i = 0; i < vocab; i++) log_sum_without += exp((double)without[i]);
    for (size_t i = 0; i < vocab; i++) {
        double c = (double)in[i] - log(log_sum), u = (double)without[i] - log(log_sum_without);
        double terms = scale * (fabs(c) + fabs(u)) + fabs(u);
        if (!(fabs((double)scores[i] - (double)wanted[i]) <= 4 * 0x1p-23 * terms))
            fail_msg("%s: score %zu is %.9g, Transformers has %.9g", name, i, (double)scores[i], (double)wanted[i]);
    }
}

static void check_guidance(const golden *g, const json *test) {
    size_t rows, vocab;
    const float *in = find(g, test, "scores_in", &rows, &vocab), *without = find(g, test, "uncond_in", &rows, &vocab),
                *out = find(g, test, "scores_out", &rows, &vocab);
    double scale = json_get(json_get(test, "args"), "guidance_scale")->real;
    for (size_t r = 0; r < rows; r++) {
        float scores[MOST_VOCAB], before[MOST_VOCAB], unconditional[MOST_VOCAB], wanted[MOST_VOCAB];
        memcpy(before, in + r * vocab, vocab * sizeof *scores);
        memcpy(scores, before, vocab * sizeof *scores);
        memcpy(unconditional, without + r * vocab, vocab * sizeof *scores);
        memcpy(wanted, out + r * vocab, vocab * sizeof *scores);
        scores_guide(scores, unconditional, vocab, scale);
        compare_guided(json_get(test, "name")->string, scores, wanted, before, unconditional, vocab, scale);
    }
}

static void check_watermark(const golden *g, const json *test) {
    size_t rows, vocab;
    const float *in = find(g, test, "scores_in", &rows, &vocab), *out = find(g, test, "scores_out", &rows, &vocab);
    const json *lists = json_get(test, "greenlist");
    for (size_t r = 0; r < rows; r++) {
        int32_t green[MOST_IDS];
        float scores[MOST_VOCAB], wanted[MOST_VOCAB];
        size_t n = read_ids(&lists->items[lists->n == rows ? r : 0], green);
        memcpy(scores, in + r * vocab, vocab * sizeof *scores);
        memcpy(wanted, out + r * vocab, vocab * sizeof *scores);
        watermark_add(scores, green, n, json_get(json_get(test, "args"), "bias")->real);
        compare(json_get(test, "name")->string, r, scores, wanted, vocab);
    }
}

static void processors_equal_those_of_transformers(void **state) {
    (void)state;
    golden g = {.doc = open_json(data_path("golden/decoding/processors.json"))};
    const json *cases = json_get(json_root(g.doc), "cases");
    assert_ok(safetensors_open(&g.tensors, data_path("golden/decoding/processors.safetensors")));
    int n_guidance = 0, n_watermark = 0;
    for (size_t c = 0; c < cases->n; c++) {
        const json *test = &cases->items[c], *kind = json_get(test, "kind");
        if (json_is_string(kind, "cfg")) {
            check_guidance(&g, test);
            n_guidance++;
        } else if (json_is_string(kind, "watermark")) {
            check_watermark(&g, test);
            n_watermark++;
        } else {
            assert_true(json_is_string(kind, "processor"));
            check_processor(&g, test);
        }
    }
    assert_int_equal(cases->n, 92);
    assert_int_equal(n_guidance, 3);
    assert_int_equal(n_watermark, 2);
    tensor_set_close(&g.tensors);
    json_close(&g.doc);
}

/* ---- the definitions in double precision, with full sorting ---- */

typedef struct ranked {
    double key;
    size_t id;
} ranked;

static int by_key(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void softmax(const double *scores, double *p, size_t n) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, scores[i]);
    for (size_t i = 0; i < n; i++) sum += p[i] = exp(scores[i] - most);
    for (size_t i = 0; i < n; i++) p[i] /= sum;
}

static double entropy_of(const double *p, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    return sum;
}

/* In order of the keys: keeps those before which the sum is below `mass`, and at least the first min_keep. */
static void keep_mass(double *s, const double *p, ranked *order, size_t n, double mass, size_t min_keep,
                      bool with_equals) {
    double before = 0, last = -INFINITY;
    qsort(order, n, sizeof *order, by_key);
    for (size_t i = 0; i < n; i++) {
        bool stays = before < mass;
        before += p[order[i].id];
        if (stays) last = order[i].key;
        if (!stays && i >= min_keep && !(with_equals && order[i].key == last)) s[order[i].id] = -INFINITY;
    }
}

static void expect_top_k(double *s, size_t n, size_t k) {
    static ranked order[MOST_VOCAB];
    for (size_t i = 0; i < n; i++) order[i] = (ranked){-s[i], i};
    qsort(order, n, sizeof *order, by_key);
    double least = -order[(k < n ? k : n) - 1].key;
    for (size_t i = 0; i < n; i++)
        if (s[i] < least) s[i] = -INFINITY;
}

static void expect_top_p(double *s, size_t n, double top, size_t min_keep) {
    static ranked order[MOST_VOCAB];
    static double p[MOST_VOCAB];
    softmax(s, p, n);
    for (size_t i = 0; i < n; i++) order[i] = (ranked){-s[i], i};
    keep_mass(s, p, order, n, top, min_keep, false);
}

static void expect_typical(double *s, size_t n, double mass, size_t min_keep) {
    static ranked order[MOST_VOCAB];
    static double p[MOST_VOCAB];
    softmax(s, p, n);
    double entropy = entropy_of(p, n);
    for (size_t i = 0; i < n; i++) order[i] = (ranked){fabs(-log(p[i]) - entropy), i};
    keep_mass(s, p, order, n, mass, min_keep, true);
}

/* Removes tokens with a probability below `cut`, but not the min_keep best, with or without their ties. */
static void expect_cut(double *s, const double *p, size_t n, double cut, size_t min_keep, bool with_equals) {
    static ranked order[MOST_VOCAB];
    for (size_t i = 0; i < n; i++) order[i] = (ranked){-s[i], i};
    qsort(order, n, sizeof *order, by_key);
    double least = -order[(min_keep < n ? min_keep : n) - 1].key;
    for (size_t i = 0; i < n; i++) {
        size_t id = order[i].id;
        bool is_best = i < min_keep || (with_equals && s[id] >= least);
        if (p[id] < cut && !is_best) s[id] = -INFINITY;
    }
}

static void expect_cuts(const mn_generation_config *c, double *s, size_t n, size_t min_keep) {
    static double p[MOST_VOCAB];
    if (c->epsilon_cutoff > 0) {
        softmax(s, p, n);
        expect_cut(s, p, n, c->epsilon_cutoff, min_keep, true);
    }
    if (c->eta_cutoff > 0) {
        softmax(s, p, n);
        double eta = fmin(c->eta_cutoff, sqrt(c->eta_cutoff) * exp(-entropy_of(p, n)));
        expect_cut(s, p, n, eta, min_keep, true);
    }
}

static void expect_warpers(const mn_generation_config *c, double *s, size_t n) {
    static double p[MOST_VOCAB];
    size_t min_keep = c->num_beams == 1 ? 1 : c->eos_token_id.n ? c->eos_token_id.n + 1 : 2;
    for (size_t i = 0; i < n; i++) s[i] = (double)((float)s[i] / (float)c->temperature);
    if (c->top_k > 0) expect_top_k(s, n, (size_t)c->top_k > min_keep ? (size_t)c->top_k : min_keep);
    if (c->top_p < 1) expect_top_p(s, n, c->top_p, min_keep);
    if (c->min_p > 0) {
        double best = 0;
        softmax(s, p, n);
        for (size_t i = 0; i < n; i++) best = fmax(best, p[i]);
        expect_cut(s, p, n, c->min_p * best, min_keep, false);
    }
    if (c->typical_p < 1) expect_typical(s, n, c->typical_p, min_keep);
    expect_cuts(c, s, n, min_keep);
}

static int count_of(const int32_t *ids, size_t n, size_t id) {
    int count = 0;
    for (size_t i = 0; i < n; i++) count += (size_t)ids[i] == id;
    return count;
}

static void expect(const mn_generation_config *c, const int32_t *ids, size_t n_ids, size_t n_prompt, double *s,
                   size_t n) {
    for (size_t i = 0; i < n; i++) {
        float penalty = (float)c->repetition_penalty, score = (float)s[i];
        if (count_of(ids, n_ids, i) && c->repetition_penalty != 1)
            s[i] = (double)(score < 0 ? score * penalty : score / penalty);
        int count = count_of(ids + n_prompt, n_ids - n_prompt, i);
        if (count) s[i] = (double)((float)s[i] - (float)(c->presence_penalty + count * c->frequency_penalty));
    }
    for (size_t i = 0; i < c->eos_token_id.n; i++) {
        size_t end = (size_t)c->eos_token_id.ids[i];
        bool is_early =
            c->min_new_tokens > 0 ? (int64_t)(n_ids - n_prompt) < c->min_new_tokens : (int64_t)n_ids < c->min_length;
        if (is_early && end < n) s[end] = -INFINITY;
    }
    if (c->do_sample) expect_warpers(c, s, n);
}

static mn_generation_config *random_config(uint64_t *seed, size_t vocab) {
    mn_generation_config *c = open_config();
    size_t n_ends = (size_t)(test_random(seed) % 3);
    int32_t end = (int32_t)(test_random(seed) % (vocab + 2));
    if (n_ends == 0) set(c, "eos_token_id", "null");
    if (n_ends == 2) set(c, "eos_token_id", "[%d,%d]", END, end == END ? 0 : end);
    set(c, "do_sample", "%s", test_random(seed) % 4 ? "true" : "false");
    if (test_random(seed) % 4 == 0) set(c, "num_beams", "3");
    if (test_random(seed) % 2) set(c, "temperature", "%.17g", test_uniform(seed, 0.1, 3));
    if (test_random(seed) % 2) set(c, "top_k", "%d", 1 + (int)(test_random(seed) % (vocab + 5)));
    if (test_random(seed) % 3 == 0) set(c, "top_p", "%.17g", test_random(seed) % 8 ? test_uniform(seed, 0, 1) : 0.0);
    if (test_random(seed) % 3 == 0) set(c, "min_p", "%.17g", test_uniform(seed, 0, 0.4));
    if (test_random(seed) % 3 == 0) set(c, "typical_p", "%.17g", test_uniform(seed, 0.05, 0.99));
    if (test_random(seed) % 4 == 0) set(c, "epsilon_cutoff", "%.17g", test_uniform(seed, 1e-5, 0.05));
    if (test_random(seed) % 4 == 0) set(c, "eta_cutoff", "%.17g", test_uniform(seed, 1e-5, 0.05));
    if (test_random(seed) % 2) set(c, "repetition_penalty", "%.17g", test_uniform(seed, 0.5, 2.5));
    if (test_random(seed) % 3 == 0) set(c, "presence_penalty", "%.17g", test_uniform(seed, -2, 2));
    if (test_random(seed) % 3 == 0) set(c, "frequency_penalty", "%.17g", test_uniform(seed, -2, 2));
    if (test_random(seed) % 2) set(c, "min_length", "%d", (int)(test_random(seed) % 20));
    if (test_random(seed) % 2) set(c, "min_new_tokens", "%d", (int)(test_random(seed) % 8));
    return c;
}

/* Distributions of every shape: flat, peaked, with ties, with outliers, with many removed tokens. */
static void random_scores(uint64_t *seed, float *scores, size_t n) {
    double spread = (double[]){0, 0.01, 2, 6, 30}[test_random(seed) % 5];
    int kind = (int)(test_random(seed) % 5);
    for (size_t i = 0; i < n; i++) {
        scores[i] = (float)test_uniform(seed, -spread, spread);
        if (kind == 0) scores[i] = floorf(scores[i]);
        if (kind == 1 && test_random(seed) % 3 == 0) scores[i] = -1e9f * (float)(1 + test_random(seed) % 3);
        if (kind == 2 && test_random(seed) % 2) scores[i] = -INFINITY;
    }
    scores[test_random(seed) % n] = (float)spread;
}

static void processors_equal_their_definitions_in_double_precision(void **state) {
    (void)state;
    static float scores[MOST_VOCAB], before[MOST_VOCAB];
    static double wanted[MOST_VOCAB];
    uint64_t seed = 99;
    for (int round = 0; round < 1500; round++) {
        size_t vocab = 3 + test_random(&seed) % (round % 10 ? 150 : MOST_VOCAB - 3);
        size_t n = 1 + test_random(&seed) % 20, n_prompt = 1 + test_random(&seed) % n;
        int32_t ids[MOST_IDS];
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(test_random(&seed) % vocab);
        random_scores(&seed, scores, vocab);
        for (size_t i = 0; i < vocab; i++) wanted[i] = (double)(before[i] = scores[i]);
        mn_generation_config *config = random_config(&seed, vocab);
        processor_setup setup = {.config = config, .vocab = vocab, .prompt = ids, .n_prompt = n_prompt};
        expect(config, ids, n, n_prompt, wanted, vocab);
        mn_status status = run(&setup, &(processor_step){.ids = ids, .n = n}, scores);
        size_t n_left = 0;
        for (size_t i = 0; i < vocab; i++) n_left += wanted[i] > -INFINITY;
        if (n_left == 0 && config->num_beams == 1) {
            assert_int_equal(status, MN_E_ARG);
        } else {
            assert_ok(status);
            for (size_t i = 0; i < vocab; i++) {
                if ((double)scores[i] != wanted[i])
                    fail_msg("round %d: score %zu of %zu (%.9g) is %.9g, expected %.9g", round, i, vocab,
                             (double)before[i], (double)scores[i], wanted[i]);
            }
        }
        mn_generation_config_close(&config);
    }
}

/* ---- edge cases ---- */

static void check_scores(const float *scores, const float *wanted, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (scores[i] != wanted[i])
            fail_msg("%s: score %zu is %g, expected %g", what, i, (double)scores[i], (double)wanted[i]);
    }
}

#define NONE (-INFINITY)

enum { N_SMALL = 6 };

/* Settings as JSON, the text so far, scores before and after. */
static const struct {
    const char *settings;
    int32_t ids[4];
    size_t n;
    float before[N_SMALL], after[N_SMALL];
} small_cases[] = {
    {"{\"do_sample\": true, \"top_p\": 0}", {3}, 1, {1, 5, 5, 2, 0, 1}, {NONE, 5, NONE, NONE, NONE, NONE}},
    {"{\"do_sample\": true, \"top_k\": 1}", {3}, 1, {1, 5, 5, 2, 0, 1}, {NONE, 5, 5, NONE, NONE, NONE}},
    {"{\"do_sample\": true, \"top_k\": 99}", {3}, 1, {1, 5, 5, 2, 0, 1}, {1, 5, 5, 2, 0, 1}},
    {"{\"do_sample\": true, \"top_k\": 3, \"num_beams\": 2}",
     {3},
     1,
     {1, 5, NONE, NONE, NONE, NONE},
     {1, 5, NONE, NONE, NONE, NONE}},
    {"{\"do_sample\": true, \"top_p\": 0.5, \"num_beams\": 2, \"eos_token_id\": [1, 2, 3]}",
     {3},
     1,
     {9, 1, 1, 1, 1, 1},
     {9, 1, 1, 1, NONE, NONE}},
    {"{\"do_sample\": true, \"epsilon_cutoff\": 0.9, \"num_beams\": 2, \"eos_token_id\": null}",
     {3},
     1,
     {9, 1, 1, 0, 0, 0},
     {9, 1, 1, NONE, NONE, NONE}},
    {"{\"do_sample\": true, \"min_p\": 1}", {3}, 1, {4, 1, 4, 0, 3, 4}, {4, NONE, 4, NONE, NONE, 4}},
    /* Sampling settings have no effect in greedy search. */
    {"{\"top_k\": 1, \"top_p\": 0.1, \"temperature\": 5}", {3}, 1, {1, 5, 5, 2, 0, 1}, {1, 5, 5, 2, 0, 1}},
    {"{\"repetition_penalty\": 2}", {1, 1, 3}, 3, {1, 4, 4, -2, 0, 1}, {1, 2, 4, -4, 0, 1}},
    {"{\"min_length\": 5, \"eos_token_id\": [2, 900]}", {3}, 1, {1, 2, 3, 4, 5, 6}, {1, 2, NONE, 4, 5, 6}},
    {"{\"suppress_tokens\": [0, 6, 5000]}", {3}, 1, {1, 2, 3, 4, 5, 6}, {NONE, 2, 3, 4, 5, 6}},
    {"{\"logit_bias\": {\"1\": 100, \"4\": -100, \"5\": 0.5}}", {3}, 1, {1, 2, 3, 4, 5, 6}, {1, 102, 3, 4, -95, 6.5f}},
    {"{\"no_repeat_ngram_size\": 1}", {0, 4, 4}, 3, {1, 2, 3, 4, 5, 6}, {NONE, 2, 3, 4, NONE, 6}},
    {"{\"no_repeat_ngram_size\": 4}", {1, 2, 3}, 3, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}},
    {"{\"bad_words_ids\": [[1, 0], [2], [5]], \"eos_token_id\": 5}",
     {3, 1},
     2,
     {1, 2, 3, 4, 5, 6},
     {NONE, 2, NONE, 4, 5, 6}},
    /* A sequence longer than the text so far has no effect, although the text is a prefix of it. */
    {"{\"bad_words_ids\": [[3, 1, 0]], \"sequence_bias\": [[[3, 1, 4], 9]]}",
     {3, 1},
     2,
     {1, 2, 3, 4, 5, 6},
     {1, 2, 3, 4, 5, 6}},
    /* A removed end token stays removed. */
    {"{\"min_new_tokens\": 9, \"exponential_decay_length_penalty\": [0, 2]}",
     {3, 1},
     2,
     {1, 2, 3, 4, 5, 6},
     {1, 2, NONE, 4, 5, 6}},
    {"{\"remove_invalid_values\": true}",
     {3},
     1,
     {NAN, INFINITY, NONE, 1, 2, 3},
     {0, 3.402823466e38f, -3.402823466e38f, 1, 2, 3}},
    {"{\"do_sample\": true, \"temperature\": 1e-6}",
     {3},
     1,
     {-1, 3e38f, 3e38f, -3e38f, 1, 0},
     {NONE, 0, 0, NONE, NONE, NONE}},
    {"{\"do_sample\": true, \"typical_p\": 0.5}",
     {3},
     1,
     {NAN, INFINITY, 5, NONE, 2, 3},
     {NONE, 0, NONE, NONE, NONE, NONE}},
};

static void settings_change_the_scores_of_a_small_vocabulary(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof small_cases / sizeof *small_cases; c++) {
        mn_generation_config *config = open_config();
        float scores[N_SMALL];
        memcpy(scores, small_cases[c].before, sizeof scores);
        assert_ok(mn_generation_config_load(config, small_cases[c].settings, strlen(small_cases[c].settings)));
        assert_ok(run_config(config, small_cases[c].ids, small_cases[c].n, scores, N_SMALL));
        check_scores(scores, small_cases[c].after, N_SMALL, small_cases[c].settings);
        mn_generation_config_close(&config);
    }
}

/* Penalties of generated tokens do not apply to the prompt. */
static void penalties_of_generated_tokens_exclude_the_prompt(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    int32_t ids[] = {0, 1, 2, 3, 3, 1, 3};
    float scores[] = {1, 1, 1, 1, 1}, wanted[] = {1, 0.25f, 1, -0.75f, 1};
    set(config, "presence_penalty", "0.25");
    set(config, "frequency_penalty", "0.5");
    processor_setup setup = {.config = config, .vocab = 5, .prompt = ids, .n_prompt = 3};
    assert_ok(run(&setup, &(processor_step){.ids = ids, .n = 7}, scores));
    check_scores(scores, wanted, 5, "penalties");
    mn_generation_config_close(&config);
}

/* As in Transformers, which warns that min_new_tokens takes precedence. */
static void min_new_tokens_takes_precedence_over_min_length(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    int32_t ids[] = {3, 1, 1};
    set(config, "min_length", "9");
    set(config, "min_new_tokens", "2");
    set(config, "eos_token_id", "2");
    processor_setup setup = {.config = config, .vocab = 4, .prompt = ids, .n_prompt = 1};
    for (size_t n = 2; n <= 3; n++) {
        float scores[] = {1, 1, 1, 1}, wanted[] = {1, 1, n == 2 ? NONE : 1, 1};
        assert_ok(run(&setup, &(processor_step){.ids = ids, .n = n}, scores));
        check_scores(scores, wanted, 4, "min_new_tokens");
    }
    mn_generation_config_close(&config);
}

static void ids_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    static const char *const fields[][2] = {
        {"sequence_bias", "[[[1, 50], 2.0]]"}, {"sequence_bias", "[[[50, 1], 2.0]]"},
        {"logit_bias", "{\"50\": 1}"},         {"bad_words_ids", "[[3], [4, 50]]"},
        {"forced_bos_token_id", "50"},         {"forced_eos_token_id", "[2, 50]"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        mn_generation_config *config = open_config();
        float scores[50] = {0};
        int32_t ids[] = {3};
        set(config, fields[i][0], "%s", fields[i][1]);
        assert_fails(MN_E_ARG, fields[i][0], run_config(config, ids, 1, scores, 50));
        assert_non_null(strstr(mn_last_error(), "50, allowed: 0 to 49"));
        mn_generation_config_close(&config);
    }
}

static void removing_every_token_is_an_error(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    int32_t ids[] = {1};
    float scores[] = {1, 2, 3}, damaged[] = {NAN, NONE, NAN};
    set(config, "suppress_tokens", "[0, 1, 2]");
    assert_fails(MN_E_ARG, "no token is left at position 1", run_config(config, ids, 1, scores, 3));
    assert_ok(run_config(config, ids, 1, damaged, 3)); /* all scores were removed before */
    set(config, "num_beams", "2");
    assert_ok(run_config(config, ids, 1, scores, 3)); /* other beams may continue */
    assert_true(scores_max(scores, 3) == NONE);
    mn_generation_config_close(&config);
}

static void non_finite_scores_are_handled(void **state) {
    (void)state;
    static const float kinds[] = {NAN, INFINITY, -INFINITY, 0, 3.4e38f, -3.4e38f};
    uint64_t seed = 17;
    for (int round = 0; round < 1000; round++) {
        float scores[200];
        int32_t ids[] = {3};
        size_t vocab = 1 + test_random(&seed) % 200, n_kinds = 1 + test_random(&seed) % 6;
        mn_generation_config *config = random_config(&seed, vocab);
        bool any = false, left = false;
        ids[0] = (int32_t)(test_random(&seed) % vocab);
        for (size_t i = 0; i < vocab; i++) scores[i] = kinds[test_random(&seed) % n_kinds];
        for (size_t i = 0; i < vocab; i++) any |= scores[i] > NONE;
        mn_status status = run_config(config, ids, 1, scores, vocab);
        for (size_t i = 0; i < vocab; i++) left |= scores[i] > NONE;
        if (status != MN_OK) assert_int_equal(status, MN_E_ARG);
        if (status == MN_OK && any && config->num_beams == 1) assert_true(left);
        for (size_t i = 0; status == MN_OK && config->do_sample && i < vocab; i++)
            assert_true(scores[i] < INFINITY || config->temperature == 1);
        mn_generation_config_close(&config);
    }
}

/* ---- callbacks and the constraint ---- */

typedef struct caller {
    int row;
    size_t n;
    int32_t allowed[2];
    size_t n_allowed;
    bool fails;
} caller;

static bool double_scores(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    caller *c = user;
    c->row = row;
    c->n = n;
    for (size_t i = 0; i < vocab; i++) scores[i] *= ids[n - 1] == 3 ? 2 : 1;
    return !c->fails;
}

static bool give_allowed(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed,
                         size_t *n_allowed) {
    caller *c = user;
    (void)ids;
    c->row = row;
    c->n = n;
    *allowed = c->allowed;
    *n_allowed = c->n_allowed;
    return !c->fails;
}

static void callbacks_change_and_restrict_scores(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    caller c = {.n_allowed = 2, .allowed = {4, 1}};
    int32_t ids[] = {0, 3};
    float scores[] = {1, 2, 3, 4, 5}, wanted[] = {NONE, 2.5f, NONE, NONE, 10};
    set(config, "repetition_penalty", "2");
    set(config, "do_sample", "true");
    set(config, "temperature", "2");
    set(config, "sequence_bias", "[[[1], 0.5], [[3], 7], [[4], 5]]");
    /* After the biases, before the temperature. */
    processor_setup setup = {.config = config,
                             .vocab = 5,
                             .row = 7,
                             .prompt = ids,
                             .n_prompt = 1,
                             .process = double_scores,
                             .prefix_allowed = give_allowed,
                             .user = &c};
    processor_step step = {.ids = ids, .n = 2};
    assert_ok(run(&setup, &step, scores));
    check_scores(scores, wanted, 5, "callbacks");
    assert_true(c.row == 7 && c.n == 2);
    c.fails = true;
    assert_fails(MN_E_ARG, "callback for allowed tokens failed at position 2", run(&setup, &step, scores));
    setup.prefix_allowed = NULL;
    assert_fails(MN_E_ARG, "callback for scores failed at position 2", run(&setup, &step, scores));
    setup.process = NULL;
    setup.prefix_allowed = give_allowed;
    c = (caller){.n_allowed = 0};
    assert_fails(MN_E_ARG, "allows none", run(&setup, &step, scores));
    c = (caller){.n_allowed = 2, .allowed = {1, 5}};
    assert_fails(MN_E_ARG, "gave 5 at position 2, allowed: 0 to 4", run(&setup, &step, scores));
    c = (caller){.n_allowed = 1, .allowed = {-1}};
    assert_fails(MN_E_ARG, "gave -1", run(&setup, &step, scores));
    mn_generation_config_close(&config);
}

/* Every remaining token continues the answer in a way that the expression allows. */
static void constraints_remove_tokens_that_do_not_fit(void **state) {
    (void)state;
    static float scores[MOST_VOCAB];
    mn_model *model = NULL;
    constraint *c = NULL;
    assert_ok(mn_model_open(&model, "embedded", NULL));
    size_t vocab = (size_t)model->core->net.config.vocab_size, n_left = 0;
    assert_ok(constraint_open_regex(&c, "[0-9]{3}", 8, model->text, (int32_t[]){END}, 1, vocab));
    const mn_tokenizer *text = mn_model_tokenizer(model);
    mn_generation_config *config = open_config();
    int32_t ids[] = {1, -1, -1}; /* the first id is the prompt's and is ignored */
    processor_setup setup = {.config = config, .vocab = vocab, .prompt = ids, .n_prompt = 1, .constraint = c};
    for (size_t n = 1; n <= 3; n++) {
        for (size_t i = 0; i < vocab; i++) scores[i] = 1;
        assert_ok(run(&setup, &(processor_step){.ids = ids, .n = n}, scores));
        n_left = 0;
        for (int32_t id = 0; id < (int32_t)vocab; id++) {
            if (scores[id] == NONE) continue;
            char *piece = NULL;
            size_t n_piece = 0;
            assert_ok(mn_detokenize(text, &id, 1, 0, &piece, &n_piece));
            for (size_t j = 0; j < n_piece; j++) assert_in_range(piece[j], '0', '9');
            mn_free(piece);
            if (n < 3) ids[n] = id;
            n_left++;
        }
        assert_true(n_left >= 10);
    }
    ids[2] = END; /* an answer that does not match */
    assert_int_equal(run(&setup, &(processor_step){.ids = ids, .n = 3}, scores), MN_E_ARG);
    constraint_close(&c);
    mn_generation_config_close(&config);
    mn_model_close(&model);
}

/* ---- the watermark ---- */

static size_t green_tokens(const watermark_config *w, const int32_t *ids, size_t n, size_t vocab, bool *green) {
    static float scores[MOST_VOCAB];
    size_t count = 0;
    memset(scores, 0, sizeof scores);
    watermark_apply(w, ids, n, scores, vocab);
    for (size_t i = 0; i < vocab; i++) {
        green[i] = scores[i] != 0;
        count += green[i];
        if (green[i]) assert_true(scores[i] == (float)w->bias);
    }
    return count;
}

/* A share of the vocabulary, as the detector computes it, different for other contexts and keys. */
static void watermark_lists_depend_on_context_and_key(void **state) {
    (void)state;
    static bool green[MOST_VOCAB], other[MOST_VOCAB];
    static const size_t vocabs[] = {1, 2, 3, 16, 17, 1000, 1024, 1025};
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        size_t vocab = vocabs[v];
        watermark_config w = {true, 0.25, 1.5, 15485863, WATERMARK_LEFT_HASH, 1};
        int32_t ids[] = {0, (int32_t)(vocab - 1)};
        assert_int_equal(green_tokens(&w, ids, 2, vocab, green), vocab / 4);
        for (size_t i = 0; i < vocab; i++)
            assert_int_equal(green[i], watermark_is_green(&w, ids, 2, (int32_t)i, vocab));
    }
    const size_t vocab = 1024;
    int32_t ids[] = {5, 700, 31};
    watermark_config w = {true, 0.5, 2, 15485863, WATERMARK_LEFT_HASH, 1};
    green_tokens(&w, ids, 3, vocab, green);
    for (int change = 0; change < 3; change++) { /* the last id, another key, an id outside the context */
        int32_t changed[] = {change == 2 ? 6 : 5, 700, change == 0 ? 32 : 31};
        watermark_config with = w;
        size_t n_same = 0;
        if (change == 1) with.hashing_key++;
        green_tokens(&with, changed, 3, vocab, other);
        for (size_t i = 0; i < vocab; i++) n_same += green[i] == other[i];
        if (change == 2) {
            assert_int_equal(n_same, vocab);
        } else {
            assert_in_range(n_same, vocab / 2 - 80, vocab / 2 + 80); /* five standard deviations */
        }
    }
}

static void selfhash_watermarks_depend_on_the_candidate(void **state) {
    (void)state;
    enum { N = 300 };
    float scores[N], before[N];
    uint64_t seed = 3;
    watermark_config w = {true, 0.5, 2, 15485863, WATERMARK_SELF_HASH, 3};
    int32_t ids[] = {5, 70, 31, 8};
    for (int i = 0; i < N; i++) before[i] = scores[i] = (float)test_uniform(&seed, -5, 5);
    watermark_apply(&w, ids, 2, scores, N); /* the context is longer */
    check_scores(scores, before, N, "short");
    watermark_apply(&w, ids, 4, scores, N);
    int n_green = 0;
    for (int i = 0; i < N; i++) {
        int better = 0;
        for (int j = 0; j < N; j++) better += before[j] > before[i];
        bool is_green = better < 40 && watermark_is_green(&w, ids, 4, i, N);
        n_green += is_green;
        assert_true(scores[i] == before[i] + (is_green ? 2 : 0));
    }
    assert_in_range(n_green, 5, 35);
    for (int changed = 0; changed < 4; changed++) { /* the ids of the context matter, the one before it does not */
        int n_other = 0;
        for (int by = 1; by <= 20; by++) { /* the minimum of several hashes does not always change */
            int32_t with[] = {5, 70, 31, 8};
            with[changed] += by;
            for (int i = 0; i < N; i++)
                n_other += watermark_is_green(&w, ids, 4, i, N) != watermark_is_green(&w, with, 4, i, N);
        }
        assert_true(changed > 0 ? n_other > 0 : n_other == 0);
    }
}

/* ---- arithmetic and memory ---- */

static void sums_of_exponentials_equal_double_precision(void **state) {
    (void)state;
    float scores[4] = {1000, 1000, NONE, 999}, none[2] = {NONE, NONE}, infinite[2] = {INFINITY, 1};
    assert_true(fabs(scores_log_sum(scores, 4) - (1000 + log(2 + exp(-1)))) < 1e-6);
    assert_true(scores_log_sum(none, 2) == (double)NONE);
    assert_true(scores_log_sum(infinite, 2) == (double)INFINITY);
    scores_log_softmax(scores, 4);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += exp((double)scores[i]);
    assert_true(fabs(sum - 1) < 1e-6 && scores[2] == NONE);
    scores_log_softmax(none, 2);
    assert_true(none[0] == NONE && none[1] == NONE);
}

static void exponentials_are_exact_to_rounding(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        float x = -(float)i * 87.0f / 400000.0f, y;
        double exact = exp((double)x), sum = scores_exp(&y, &x, 1, 0);
        worst = fmax(worst, fabs((double)y - exact) / exact);
        assert_true(sum == (double)y);
    }
    assert_true(worst < 2 * 0x1p-23);
    float low[] = {-88, NONE, NAN, -1e30f, 0}, out[5];
    assert_true(scores_exp(out, low, 5, 0) == 1);
    for (int i = 0; i < 4; i++) assert_true(out[i] == 0);
}

static void the_largest_scores_are_found(void **state) {
    (void)state;
    float scores[67];
    for (size_t n = 1; n <= 67; n++) {
        for (size_t at = 0; at < n; at++) {
            for (size_t i = 0; i < n; i++) scores[i] = i % 3 ? -5.0f - (float)i : NAN;
            scores[at] = -4;
            assert_true(scores_max(scores, n) == -4);
        }
    }
    assert_true(scores_max(scores, 0) == NONE);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    int32_t ids[] = {0};
    set(config, "do_sample", "true");
    set(config, "temperature", "2");
    set(config, "repetition_penalty", "2");
    processor_setup setup = {
        .config = config, .vocab = 50, .prompt = ids, .n_prompt = 1, .prefix_allowed = give_allowed};
    int64_t live = mem_count().live;
    int n_failures = 0;
    for (int64_t k = 1;; k++) {
        processors *p = NULL;
        mem_fail_after(k);
        mn_status status = processors_open(&p, &setup);
        mem_fail_after(0);
        if (status == MN_OK) {
            int64_t allocations = mem_count().allocations;
            float scores[50] = {0};
            caller c = {.n_allowed = 1};
            setup.user = &c;
            processors_close(&p);
            assert_ok(processors_open(&p, &setup));
            allocations = mem_count().allocations;
            assert_ok(processors_run(p, &(processor_step){.ids = ids, .n = 1}, scores));
            assert_int_equal(mem_count().allocations, allocations);
            processors_close(&p);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_null(p);
        assert_int_equal(mem_count().live, live);
        n_failures++;
    }
    assert_int_equal(n_failures, 8);
    processors *none = NULL;
    processors_close(&none);
    mn_generation_config_close(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_equal_those_of_transformers),
        cmocka_unit_test(processors_equal_their_definitions_in_double_precision),
        cmocka_unit_test(settings_change_the_scores_of_a_small_vocabulary),
        cmocka_unit_test(penalties_of_generated_tokens_exclude_the_prompt),
        cmocka_unit_test(min_new_tokens_takes_precedence_over_min_length),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(removing_every_token_is_an_error),
        cmocka_unit_test(non_finite_scores_are_handled),
        cmocka_unit_test(callbacks_change_and_restrict_scores),
        cmocka_unit_test(constraints_remove_tokens_that_do_not_fit),
        cmocka_unit_test(watermark_lists_depend_on_context_and_key),
        cmocka_unit_test(selfhash_watermarks_depend_on_the_candidate),
        cmocka_unit_test(sums_of_exponentials_equal_double_precision),
        cmocka_unit_test(exponentials_are_exact_to_rounding),
        cmocka_unit_test(the_largest_scores_are_found),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
