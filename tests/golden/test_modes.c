/* Other modes than greedy and beam search against golden runs of Transformers: prompt lookup, assisted decoding,
 * guidance, contrastive search, DoLa; with several caches.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include "gen/config/generation_config.h"

enum { MOST_IDS = 64, MOST_CASES = 16 };

typedef struct mode_case {
    const char *name;
    int32_t prompt[MOST_IDS], negative[MOST_IDS], wanted[MOST_IDS];
    size_t n_prompt, n_negative, n_wanted;
    mn_generation_config *config;
    bool is_assisted;
} mode_case;

static size_t read_cases(const mn_model *model, const json_doc *doc, mode_case *cases) {
    const json *list = json_get(json_root(doc), "cases");
    assert_true(list && list->n > 0 && list->n <= MOST_CASES);
    for (size_t i = 0; i < list->n; i++) {
        const json *item = &list->items[i];
        mode_case *c = &cases[i];
        *c = (mode_case){.name = json_get(item, "name")->string, .is_assisted = json_get(item, "assistant") != NULL};
        c->n_prompt = engine_read_ids(&json_get(item, "rows")->items[0], c->prompt, MOST_IDS);
        c->n_negative = engine_read_ids(json_get(item, "negative_prompt_ids"), c->negative, MOST_IDS);
        c->n_wanted = engine_read_ids(&json_get(item, "new")->items[0], c->wanted, MOST_IDS);
        c->config = engine_config(model, json_get(item, "args"));
    }
    return list->n;
}

static void check_case(const mode_case *c, const mn_sequence *got, const char *how) {
    assert_int_equal(got->n_ids, c->n_wanted);
    for (size_t i = 0; i < c->n_wanted; i++) {
        if (got->ids[i] != c->wanted[i])
            fail_msg("%s, %s: token %zu is %d, golden %d", c->name, how, i, got->ids[i], c->wanted[i]);
    }
    if (c->is_assisted) assert_true(got->draft_accepted > 0 && got->draft_accepted < got->draft_tokens);
}

static mn_generate_options options_of(const mode_case *c, mn_model *draft) {
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    if (c->is_assisted) options.assistant = draft;
    options.negative_prompt = c->negative;
    options.n_negative_prompt = c->n_negative;
    return options;
}

static void check_file(const char *file) {
    static const engine_cache caches[] = {
        {.implementation = "dynamic", .page_tokens = 4},
        {.implementation = "none", .page_tokens = 4},
        {.implementation = "static", .page_tokens = 16, .max_cache_len = 64},
        {.implementation = "offloaded", .page_tokens = 4},
    };
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    mn_model *draft = engine_model("golden/decoding/draft", "f32", "auto", engine_threads());
    json_doc *doc = open_json(data_path(file));
    mode_case cases[MOST_CASES];
    size_t n = read_cases(model, doc, cases);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof caches / sizeof caches[0]; k++) {
            mn_generate_options options = options_of(&cases[i], draft);
            mn_session *session = engine_session(model, caches[k]);
            mn_generation *generation = NULL;
            assert_ok(mn_generate(session, cases[i].prompt, cases[i].n_prompt, cases[i].config, &options, &generation));
            check_case(&cases[i], generation->sequences[0], caches[k].implementation);
            assert_int_equal(mn_session_length(session), cases[i].n_prompt + cases[i].n_wanted - 1);
            mn_generation_close(&generation);
            mn_session_close(&session);
        }
    }
    for (size_t i = 0; i < n; i++) mn_generation_config_close(&cases[i].config);
    json_close(&doc);
    mn_model_close(&draft);
    mn_model_close(&model);
}

static void assisted_and_guided_decoding_equal_golden(void **state) {
    (void)state;
    check_file("golden/decoding/assisted.json");
}

static void contrastive_search_equals_golden(void **state) {
    (void)state;
    check_file("golden/decoding/contrastive.json");
}

static void dola_equals_golden(void **state) {
    (void)state;
    check_file("golden/decoding/dola.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assisted_and_guided_decoding_equal_golden),
        cmocka_unit_test(contrastive_search_equals_golden),
        cmocka_unit_test(dola_equals_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
