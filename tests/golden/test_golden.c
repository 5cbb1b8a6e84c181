/* The tiny golden checkpoints: logits and ids through every cache strategy, for prompts fed in one piece and in chunks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"
#include "support/families.h"

#include <math.h>

#include "mneme.h"
#include "tensor/safetensors.h"

static const char *const strategies[] = {"dynamic", "static", "none"};

/* A cache and the piece size of the prompt (0: at once). tests/engine/test_families has the other caches; pieces and
 * caches are independent, so few pairs suffice. */
typedef struct way {
    const char *strategy;
    size_t chunk;
} way;
static const way score_ways[] = {{"dynamic", 0}, {"dynamic", 1}, {"dynamic", 3},
                                 {"dynamic", 7}, {"static", 7},  {"none", 24}},
                 generate_ways[] = {{"dynamic", 3}, {"static", 1}, {"none", 0}};

enum { N_STRATEGIES = 3, N_SCORE_WAYS = 6, N_GENERATE_WAYS = 3, CAPACITY = 128, MOST_IDS = 256 };
static const float tolerance = 2e-4f;

static mn_model *open_family(const char *family, const char *cpu) {
    char name[128];
    snprintf(name, sizeof name, "golden/%s", family);
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.compute_type = "f32";
    options.cpu = cpu;
    options.threads = engine_threads();
    mn_model *model = NULL;
    assert_ok(mn_model_open(&model, data_path(name), &options));
    return model;
}

static mn_session *open_session(mn_model *model, const char *strategy) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = strategy;
    options.page_tokens = 4; /* many page edges */
    if (strcmp(strategy, "static") == 0) options.max_cache_len = CAPACITY;
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, model, &options));
    return session;
}

/* Feeds ids in pieces; logits [n][vocab] or NULL. */
static void feed(mn_session *session, const int32_t *ids, size_t n, size_t chunk, float *logits, size_t vocab) {
    for (size_t at = 0; at < n;) {
        size_t piece = chunk && chunk < n - at ? chunk : n - at;
        assert_ok(mn_session_step(session, ids + at, piece, logits ? logits + at * vocab : NULL));
        at += piece;
    }
}

static const tensor *open_tensor(tensor_set **set, const char *family, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "golden/%s/tensors.safetensors", family);
    assert_ok(safetensors_open(set, data_path(path)));
    const tensor *t = tensor_set_find(*set, name);
    assert_non_null(t);
    return t;
}

static void check_score(mn_model *model, const char *family) {
    tensor_set *set = NULL;
    const tensor *wanted = open_tensor(&set, family, "score.logits"), *ids_tensor = tensor_set_find(set, "score.ids");
    size_t n = (size_t)wanted->shape[0], vocab = (size_t)wanted->shape[1];
    int32_t ids[MOST_IDS];
    memcpy(ids, ids_tensor->data, n * sizeof *ids);
    float *reference = malloc(n * vocab * sizeof *reference), *logits = malloc(n * vocab * sizeof *logits);
    memcpy(reference, wanted->data, n * vocab * sizeof *reference);
    /* longrope chooses its frequencies by the length at the end of a call: pieces that end below the limit compute
     * another function. */
    bool one_piece = strcmp(family, "phi3-longrope") == 0;
    for (int w = 0; w < N_SCORE_WAYS; w++) {
        const way *how = &score_ways[w];
        if ((one_piece && how->chunk) || !test_samples(w, 3)) continue;
        mn_session *session = open_session(model, how->strategy);
        memset(logits, 0xFF, n * vocab * sizeof *logits);
        feed(session, ids, n, how->chunk, logits, vocab);
        float worst = 0;
        for (size_t i = 0; i < n * vocab; i++) {
            float difference = fabsf(logits[i] - reference[i]);
            if (!(difference <= tolerance)) {
                fail_msg("%s, %s, chunk %zu: logit %zu of token %zu is %g, golden %g", family, how->strategy,
                         how->chunk, i % vocab, i / vocab, (double)logits[i], (double)reference[i]);
            }
            worst = fmaxf(worst, difference);
        }
        assert_true(worst > 0);
        mn_session_close(&session);
    }
    free(reference);
    free(logits);
    tensor_set_close(&set);
}

static void check_ids(const mn_sequence *sequence, const json *wanted, const char *family, const char *name,
                      const char *strategy) {
    assert_int_equal(sequence->n_ids, wanted->n);
    for (size_t i = 0; i < wanted->n; i++) {
        if (sequence->ids[i] != wanted->items[i].integer) {
            fail_msg("%s, %s, %s: new token %zu is %d, golden %d", family, name, strategy, i, sequence->ids[i],
                     (int)wanted->items[i].integer);
        }
    }
}

static void check_generate(mn_model *model, const char *family, const json *test) {
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(test, "ids"), ids, MOST_IDS);
    const char *name = json_get(test, "name")->string;
    mn_generation_config *config = engine_config(model, json_get(test, "args"));
    for (int w = 0; w < N_GENERATE_WAYS; w++) {
        if (!test_samples(w, N_GENERATE_WAYS)) continue;
        const way *how = &generate_ways[w];
        mn_session *session = open_session(model, how->strategy);
        feed(session, ids, n, how->chunk, NULL, 0);
        mn_generation *generation = NULL;
        assert_ok(mn_generate(session, ids, n, config, NULL, &generation));
        check_ids(generation->sequences[0], &json_get(test, "new")->items[0], family, name, how->strategy);
        assert_string_equal(generation->sequences[0]->finish_reason, "length");
        mn_generation_close(&generation);
        mn_session_close(&session);
    }
    mn_generation_config_close(&config);
}

static void check_batch(mn_model *model, const char *family, const json *test) {
    const json *prompts = json_get(test, "rows");
    mn_generation_config *config = engine_config(model, json_get(test, "args"));
    int32_t ids[8][MOST_IDS];
    mn_batch_row rows[8];
    assert_true(prompts->n <= 8);
    for (size_t i = 0; i < prompts->n; i++) {
        rows[i] = (mn_batch_row){.size = sizeof(mn_batch_row),
                                 .prompt = ids[i],
                                 .n_prompt = engine_read_ids(&prompts->items[i], ids[i], MOST_IDS)};
    }
    for (int s = 0; s < N_STRATEGIES; s++) {
        mn_cache_options cache;
        mn_cache_options_init(&cache, sizeof cache);
        cache.implementation = strategies[s];
        cache.max_cache_len = strcmp(strategies[s], "static") == 0 ? CAPACITY : 0;
        mn_generation *generation = NULL;
        assert_ok(mn_generate_batch(model, &cache, rows, prompts->n, config, NULL, &generation));
        assert_int_equal(generation->n_sequences, prompts->n);
        for (size_t i = 0; i < prompts->n; i++) {
            check_ids(generation->sequences[i], &json_get(test, "new")->items[i], family, "batch", strategies[s]);
        }
        mn_generation_close(&generation);
    }
    mn_generation_config_close(&config);
}

static void check_family(const char *family, int n_wanted) {
    char path[128];
    snprintf(path, sizeof path, "golden/%s/cases.json", family);
    json_doc *doc = open_json(data_path(path));
    const json *cases = json_get(json_root(doc), "cases");
    mn_model *model = open_family(family, "auto");
    check_score(model, family);
    int n_checked = 0;
    for (size_t i = 0; i < cases->n; i++) {
        const json *test = &cases->items[i], *kind = json_get(test, "kind");
        if (json_is_string(kind, "score") || json_get(json_get(test, "args"), "num_beams"))
            continue; /* test_beams has those */
        if (json_is_string(kind, "generate")) check_generate(model, family, test);
        if (json_is_string(kind, "batch")) check_batch(model, family, test);
        n_checked++;
    }
    assert_int_equal(n_checked, n_wanted);
    mn_model_close(&model);
    json_close(&doc);
}

static void family_equals_golden(void **state) {
    const char *const *at = *state;
    check_family(*at, at - golden_families < N_GOLDEN_BEAMS ? N_GOLDEN_CASES : N_GOLDEN_SMALL_CASES);
}

static void scalar_reference_equals_golden(void **state) {
    (void)state;
    mn_model *model = open_family("llama", "scalar");
    check_score(model, "llama");
    mn_model_close(&model);
}

static void every_model_type_is_there(void **state) {
    (void)state;
    families_need_every_type("golden_families", golden_families, sizeof *golden_families, N_GOLDEN_FAMILIES);
}

int main(void) {
    struct CMUnitTest tests[N_GOLDEN_FAMILIES + 2];
    for (int i = 0; i < N_GOLDEN_FAMILIES; i++) {
        tests[i] = (struct CMUnitTest){.name = golden_families[i],
                                       .test_func = family_equals_golden,
                                       .initial_state = (void *)(uintptr_t)&golden_families[i]};
    }
    tests[N_GOLDEN_FAMILIES] = (struct CMUnitTest)cmocka_unit_test(scalar_reference_equals_golden);
    tests[N_GOLDEN_FAMILIES + 1] = (struct CMUnitTest)cmocka_unit_test(every_model_type_is_there);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
