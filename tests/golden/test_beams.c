/* Beams, groups of beams and beams with forced phrases against Transformers: ids, scores, origins, the scores of every
 * step; alone and in batches, through the exact caches.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "support/engine.h"
#include "support/families.h"
#include "tensor/safetensors.h"

static const char *const caches[] = {"dynamic", "static", "none", "offloaded"};

enum { N_CACHES = 4, MOST_IDS = 64, MOST_ROWS = 4 };
static const double tolerance = 1e-4;

static mn_cache_options cache_options(const char *name) {
    return engine_cache_options((engine_cache){
        .implementation = name, .dtype = "f32", .page_tokens = 4, .max_cache_len = strstr(name, "static") ? 64 : 0});
}

static double number(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static void check_close(double got, double wanted, const char *what, const char *name) {
    double most = tolerance * fmax(1, fabs(wanted));
    if (!(fabs(got - wanted) <= most)) fail_msg("%s: %s is %.7g, golden %.7g", name, what, got, wanted);
}

static bool is_end(const json *ends, int32_t id) {
    for (size_t i = 0; ends && i < ends->n; i++) {
        if (ends->items[i].integer == id) return true;
    }
    return !ends && id == 2;
}

/* The golden rows are padded after an end token; ours end with it. Groups of beams and beams with phrases of
 * Transformers always write the first of several end tokens; ours write the one that was chosen. */
static void check_ids(const mn_sequence *sequence, const json *wanted, const json *args, const char *name) {
    const json *ends = json_get(args, "eos_token_id"), *groups = json_get(args, "num_beam_groups");
    bool writes_first = groups || json_get(args, "force_words_ids");
    int64_t first = ends && ends->n ? ends->items[0].integer : 2;
    size_t n = sequence->n_ids;
    assert_true(n <= wanted->n);
    for (size_t i = 0; i < n; i++) {
        if (sequence->ids[i] == wanted->items[i].integer) continue;
        if (writes_first && i == n - 1 && is_end(ends, sequence->ids[i]) && wanted->items[i].integer == first) continue;
        fail_msg("%s, text %d: token %zu is %d, golden %d", name, sequence->index, i, sequence->ids[i],
                 (int)wanted->items[i].integer);
    }
    for (size_t i = n; i < wanted->n; i++)
        assert_true(wanted->items[i].integer == first || wanted->items[i].integer == 0);
    assert_true(n == wanted->n || is_end(ends, sequence->ids[n - 1]));
    assert_string_equal(sequence->finish_reason, is_end(ends, sequence->ids[n - 1]) ? "eos" : "length");
}

/* Golden beam indices count through the batch, those of groups inside their group; there, texts that ended early have
 * the indices of other texts. */
static void check_origins(const mn_sequence *sequence, const json *test, size_t i, int n_beams, int group) {
    const json *wanted = &json_get(test, "beam_indices")->items[i];
    if (group < n_beams && sequence->n_ids < json_get(test, "new")->items[i].n) return;
    for (size_t k = 0; k < wanted->n; k++) {
        if (k >= sequence->n_ids) {
            assert_int_equal(wanted->items[k].integer, -1);
        } else if (group < n_beams) {
            assert_int_equal(sequence->beam_indices[k] % group, wanted->items[k].integer);
        } else {
            assert_int_equal(sequence->beam_indices[k] + sequence->row * n_beams, wanted->items[k].integer);
        }
    }
}

static void check_steps(const mn_generation *g, const json *test, const tensor_set *set, size_t vocab) {
    const tensor *steps = tensor_set_find(set, json_get(test, "step_scores")->string);
    const tensor *transitions = tensor_set_find(set, json_get(test, "transition_scores")->string);
    const char *name = json_get(test, "name")->string;
    assert_int_equal(steps->shape[1], g->n_beams);
    assert_int_equal(transitions->shape[0], g->n_sequences);
    assert_true((int64_t)g->n_steps <= steps->shape[0]);
    const float *wanted = (const float *)(const void *)steps->data;
    size_t n_missing = 0, n = g->n_steps * g->n_beams * vocab;
    for (size_t i = 0; i < n; i++) {
        if (isnan(g->beam_scores[i])) {
            n_missing++;
        } else if (isinf(wanted[i])) {
            assert_true(g->beam_scores[i] == wanted[i]);
        } else {
            check_close((double)g->beam_scores[i], (double)wanted[i], "a score of a step", name);
        }
    }
    if (json_get(test, "rows")->n == 1) assert_int_equal(n_missing, 0);
    assert_true(n_missing < n / 4); /* rows that had ended */
    wanted = (const float *)(const void *)transitions->data;
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        size_t width = (size_t)transitions->shape[1], row = (size_t)s->row * (g->n_beams / json_get(test, "rows")->n);
        for (size_t k = 0; k < s->n_ids; k++) {
            size_t at = (k * g->n_beams + row + (size_t)s->beam_indices[k]) * vocab;
            check_close((double)s->transition_scores[k], (double)wanted[i * width + k], "a transition", name);
            assert_true(s->transition_scores[k] == g->beam_scores[at + (size_t)s->ids[k]]);
            assert_memory_equal(s->scores + k * vocab, g->beam_scores + at, vocab * sizeof *s->scores);
        }
    }
}

/* The score is the sum of the transition scores. */
static void check_sums(const mn_generation *g, const json *args, const char *name) {
    const json *penalty = json_get(args, "length_penalty");
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        double sum = 0;
        for (size_t k = 0; k < s->n_ids; k++) sum += (double)s->transition_scores[k];
        check_close(sum / pow((double)s->n_ids, penalty ? number(penalty) : 1), s->score, "a sum of transitions", name);
    }
}

static bool allowed_by_table(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed,
                             size_t *n_allowed) {
    static int32_t list[MOST_IDS];
    const json *table = user;
    (void)row;
    *n_allowed = engine_read_ids(&table->items[(size_t)ids[n - 1] % table->n], list, MOST_IDS);
    *allowed = list;
    return true;
}

typedef struct rows {
    int32_t ids[MOST_ROWS][MOST_IDS];
    mn_batch_row list[MOST_ROWS];
    size_t n;
} rows;

static void read_rows(rows *r, const json *test) {
    const json *several = json_get(test, "rows"), *one = json_get(test, "ids");
    r->n = several ? several->n : 1;
    assert_true(r->n <= MOST_ROWS);
    for (size_t i = 0; i < r->n; i++)
        r->list[i] =
            (mn_batch_row){sizeof(mn_batch_row), r->ids[i],
                           engine_read_ids(several ? &several->items[i] : one, r->ids[i], MOST_IDS), NULL, NULL};
}

/* which: a bit set of indices in the list. */
static void check_case(mn_model *model, const char *family, const json *test, const tensor_set *set, unsigned which) {
    rows r;
    const json *args = json_get(test, "args"), *wanted = json_get(test, "new"), *scores = json_get(test, "scores"),
               *table = json_get(test, "prefix_table"), *groups = json_get(args, "num_beam_groups");
    char name[128];
    snprintf(name, sizeof name, "%s, %s", family, json_get(test, "name")->string);
    int n_beams = (int)json_get(args, "num_beams")->integer, group = groups ? n_beams / (int)groups->integer : n_beams;
    mn_generation_config *config = engine_config(model, args);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_scores = true;
    how.user = (void *)(uintptr_t)table;
    if (table) how.prefix_allowed = allowed_by_table;
    read_rows(&r, test);
    for (int c = 0; c < N_CACHES; c++) {
        if (!(which >> c & 1)) continue;
        mn_cache_options options = cache_options(caches[c]);
        mn_generation *g = NULL;
        assert_ok(mn_generate_batch(model, &options, r.list, r.n, config, &how, &g));
        assert_int_equal(g->n_sequences, wanted->n);
        assert_int_equal(g->n_beams, r.n * (size_t)n_beams);
        for (size_t i = 0; i < wanted->n; i++) {
            check_ids(g->sequences[i], &wanted->items[i], args, name);
            assert_true(g->sequences[i]->has_score);
            check_close(g->sequences[i]->score, number(&scores->items[i]), "a text's score", name);
            if (json_get(test, "beam_indices")) check_origins(g->sequences[i], test, i, n_beams, group);
        }
        check_sums(g, args, name);
        if (set && json_get(test, "step_scores")) check_steps(g, test, set, (size_t)engine_vocab(model));
        mn_generation_close(&g);
    }
    mn_generation_config_close(&config);
}

static bool has_beams(const json *test) {
    const json *args = json_get(test, "args");
    return args && json_get(args, "num_beams");
}

/* The dynamic cache, and one of the others in turn; Mamba has no keys and values to offload. */
static void families_equal_golden(void **state) {
    const char *const *at = *state, *family = *at;
    unsigned which = 2u << (at - golden_families) % (strcmp(family, "mamba") == 0 ? 2 : 3);
    if (test_samples(1, 2)) which |= 1u;
    char path[128];
    int n_checked = 0;
    snprintf(path, sizeof path, "golden/%s", family);
    mn_model *model = engine_model(path, "f32", "auto", engine_threads());
    snprintf(path, sizeof path, "golden/%s/cases.json", family);
    json_doc *doc = open_json(data_path(path));
    const json *cases = json_get(json_root(doc), "cases");
    for (size_t i = 0; i < cases->n; i++) {
        if (!has_beams(&cases->items[i])) continue;
        check_case(model, family, &cases->items[i], NULL, which);
        n_checked++;
    }
    assert_int_equal(n_checked, 4);
    json_close(&doc);
    mn_model_close(&model);
}

static void modes_equal_golden(void **state) {
    (void)state;
    tensor_set *set = NULL;
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    json_doc *doc = open_json(data_path("golden/decoding/beams.json"));
    assert_ok(safetensors_open(&set, data_path("golden/decoding/beams.safetensors")));
    const json *cases = json_get(json_root(doc), "cases");
    assert_int_equal(cases->n, 12);
    for (size_t i = 0; i < cases->n; i++) {
        unsigned which = test_samples(1, 2) ? ~0u : 1u << i % N_CACHES;
        check_case(model, "llama", &cases->items[i], set, which);
    }
    tensor_set_close(&set);
    json_close(&doc);
    mn_model_close(&model);
}

static void phrases_equal_golden(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    json_doc *doc = open_json(data_path("golden/decoding/phrases.json"));
    const json *cases = json_get(json_root(doc), "cases");
    assert_int_equal(cases->n, 8);
    for (size_t i = 0; i < cases->n; i++) check_case(model, "llama", &cases->items[i], NULL, 1u << i % N_CACHES);
    json_close(&doc);
    mn_model_close(&model);
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_BEAMS + 2];
    for (int i = 0; i < N_GOLDEN_BEAMS; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_families[i],
                                       .test_func = families_equal_golden,
                                       .initial_state = (void *)(uintptr_t)&golden_families[i]};
    }
    tests[N_GOLDEN_BEAMS] = (struct CMUnitTest)cmocka_unit_test(modes_equal_golden);
    tests[N_GOLDEN_BEAMS + 1] = (struct CMUnitTest)cmocka_unit_test(phrases_equal_golden);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
