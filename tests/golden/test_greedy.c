/* Greedy search against golden runs of Transformers: end tokens, allowed next ids, scores and logits of every step.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "tensor/safetensors.h"

enum { MOST_ROWS = 4, MOST_IDS = 32, MOST_ALLOWED = 16 };

typedef struct table {
    const json *lists; /* allowed next ids by the last id; NULL: all are */
    int32_t allowed[MOST_ALLOWED];
} table;

static bool allow(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed, size_t *n_allowed) {
    table *t = user;
    const json *list = &t->lists->items[(size_t)ids[n - 1] % t->lists->n];
    (void)row;
    for (*n_allowed = 0; *n_allowed < list->n; ++*n_allowed)
        t->allowed[*n_allowed] = (int32_t)list->items[*n_allowed].integer;
    *allowed = t->allowed;
    return true;
}

static void check_near(double got, const float *wanted, const char *what) {
    if (isinf(*wanted) ? got != (double)*wanted : !(fabs(got - (double)*wanted) <= 1e-4))
        fail_msg("%s is %g, golden %g", what, got, (double)*wanted);
}

/* Tensors are [steps][rows][vocab], the chosen tokens' scores [rows][steps]. Transformers applies the repetition
 * penalty to the padding of the shorter row (the first), which lowers id 0 and shifts every probability slightly; here
 * there is no padding. */
static void check_scores(const mn_generation *got, size_t vocab) {
    tensor_set *set = NULL;
    assert_ok(safetensors_open(&set, data_path("golden/decoding/greedy.safetensors")));
    const float *scores = (const float *)(const void *)tensor_set_find(set, "greedy_scores.scores")->data,
                *logits = (const float *)(const void *)tensor_set_find(set, "greedy_scores.logits")->data,
                *chosen = (const float *)(const void *)tensor_set_find(set, "greedy_scores.transition")->data,
                *normalized =
                    (const float *)(const void *)tensor_set_find(set, "greedy_scores.transition_normalized")->data;
    for (size_t r = 0; r < got->n_sequences; r++) {
        const mn_sequence *s = got->sequences[r];
        for (size_t step = 0; step < s->n_ids; step++) {
            size_t at = (step * got->n_sequences + r) * vocab, own = step * vocab, one = r * s->n_ids + step;
            for (size_t i = 0; i < vocab; i++) {
                if (i > 0 || r > 0) check_near((double)s->scores[own + i], &scores[at + i], "a score");
                check_near((double)s->logits[own + i], &logits[at + i], "a logit");
            }
            check_near((double)s->scores[own + (size_t)s->ids[step]], &chosen[one], "a chosen token's score");
            if (r > 0) check_near((double)s->logprobs[step], &normalized[one], "a chosen token's log-probability");
        }
    }
    tensor_set_close(&set);
}

static void check_case(mn_model *model, const json *test) {
    const json *prompts = json_get(test, "rows"), *wanted = json_get(test, "new"), *lengths = json_get(test, "lengths");
    const char *name = json_get(test, "name")->string;
    mn_generation_config *config = engine_config(model, json_get(test, "args"));
    int32_t ids[MOST_ROWS][MOST_IDS];
    mn_batch_row rows[MOST_ROWS];
    table t = {.lists = json_get(test, "prefix_table")};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_scores = how.keep_logits = true;
    how.top_logprobs = 0;
    how.prefix_allowed = t.lists ? allow : NULL;
    how.user = &t;
    assert_true(prompts->n <= MOST_ROWS);
    for (size_t r = 0; r < prompts->n; r++)
        rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row),
                                 .prompt = ids[r],
                                 .n_prompt = engine_read_ids(&prompts->items[r], ids[r], MOST_IDS)};
    mn_generation *got = NULL;
    assert_ok(mn_generate_batch(model, NULL, rows, prompts->n, config, &how, &got));
    assert_int_equal(got->n_sequences, prompts->n);
    for (size_t r = 0; r < prompts->n; r++) {
        const mn_sequence *s = got->sequences[r];
        size_t n = lengths ? (size_t)lengths->items[r].integer : wanted->items[r].n; /* padding follows it */
        if (s->n_ids != n) fail_msg("%s, row %zu: %zu tokens, golden %zu", name, r, s->n_ids, n);
        for (size_t i = 0; i < n; i++) assert_int_equal(s->ids[i], wanted->items[r].items[i].integer);
        if (lengths) assert_string_equal(s->finish_reason, "eos");
    }
    if (strcmp(name, "greedy_scores") == 0) check_scores(got, (size_t)engine_vocab(model));
    mn_generation_close(&got);
    mn_generation_config_close(&config);
}

static void greedy_equals_golden(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("golden/decoding/greedy.json"));
    const json *cases = json_get(json_root(doc), "cases");
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    assert_int_equal(cases->n, 7);
    for (size_t i = 0; i < cases->n; i++) check_case(model, &cases->items[i]);
    mn_model_close(&model);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_equals_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
