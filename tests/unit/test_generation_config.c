/* GenerationConfig: every field set, read back, refused; files of checkpoints.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/generation_config.h"

#include "support/support.h"

/* What each field takes (value, and how it reads afterwards) and refuses; the first is the standard value. */
typedef struct field_case {
    const char *name, *kind;
    struct {
        const char *value, *reads;
    } good[6];
    const char *bad[9];
} field_case;

#define WRONG_KINDS "\"1\"", "[1]", "{}", "true"

static const field_case cases[] = {
    {"max_new_tokens",
     "integer",
     {{"null", "null"}, {"1", "1"}, {"1000000000", "1000000000"}, {"20.0", "20"}},
     {"0", "-1", "1.5", "1e10", WRONG_KINDS}},
    {"min_new_tokens",
     "integer",
     {{"0", "0"}, {"7", "7"}, {"null", "0"}},
     {"-1", "0.5", "1e300", WRONG_KINDS}},
    {"max_length", "integer", {{"null", "null"}, {"4096", "4096"}}, {"0", "-4", "2.25", WRONG_KINDS}},
    {"min_length", "integer", {{"0", "0"}, {"10", "10"}, {"null", "0"}}, {"-10", "1e-3", WRONG_KINDS}},
    {"max_time", "number", {{"null", "0"}, {"0.25", "0.25"}, {"3", "3"}}, {"-0.5", "1e10", WRONG_KINDS}},
    {"do_sample",
     "boolean",
     {{"false", "false"}, {"true", "true"}, {"null", "false"}},
     {"1", "0", "\"true\"", "[]", "{}"}},
    {"temperature",
     "number",
     {{"1", "1"}, {"0.7", "0.7"}, {"100", "100"}, {"0.000001", "1e-06"}, {"null", "1"}},
     {"0", "-1", "1e7", WRONG_KINDS}},
    {"top_k", "integer", {{"50", "50"}, {"0", "0"}, {"1", "1"}, {"null", "0"}}, {"-1", "2.5", WRONG_KINDS}},
    {"top_p",
     "number",
     {{"1", "1"}, {"0.9", "0.9"}, {"0", "0"}, {"null", "1"}},
     {"-0.1", "1.0001", "90", WRONG_KINDS}},
    {"min_p", "number", {{"null", "0"}, {"0.05", "0.05"}, {"1", "1"}}, {"-0.1", "1.5", WRONG_KINDS}},
    {"repetition_penalty",
     "number",
     {{"1", "1"}, {"1.1", "1.1"}, {"0.5", "0.5"}},
     {"0", "-1.2", WRONG_KINDS}},
    {"stop_strings",
     "strings",
     {{"null", "[]"}, {"[\"a\", \"\\n\\n\"]", "[\"a\",\"\\n\\n\"]"}, {"\"end\"", "[\"end\"]"}, {"[]", "[]"}},
     {"[\"\"]", "\"\"", "3", "[3]", "[\"a\", null]", "true", "{}", "\"\\u0000\"", "[\"a\\u0000b\"]"}},
    {"eos_token_id",
     "integers",
     {{"null", "[]"}, {"2", "[2]"}, {"[2, 7]", "[2,7]"}, {"[]", "[]"}, {"0", "[0]"}},
     {"-1", "[2, -7]", "2.5", "[\"2\"]", "2147483648", "\"2\"", "true", "{}", "[[2]]"}},
    {"ignore_eos", "boolean", {{"false", "false"}, {"true", "true"}}, {"1", "\"false\"", "[true]"}},
    {"bos_token_id",
     "integer",
     {{"null", "null"}, {"1", "1"}, {"0", "0"}},
     {"-1", "1.5", "4294967296", WRONG_KINDS}},
    {"pad_token_id", "integer", {{"null", "null"}, {"0", "0"}}, {"-1", "1.5", WRONG_KINDS}},
    {"seed",
     "integer",
     {{"null", "null"}, {"0", "0"}, {"9007199254740992", "9007199254740992"}},
     {"-1", "0.5", "1e17", WRONG_KINDS}},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

static mn_generation_config *open_config(void) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, NULL));
    return config;
}

static void check_reads(const mn_generation_config *config, const char *name, const char *wanted) {
    char *text = mn_generation_config_get(config, name);
    assert_non_null(text);
    if (strcmp(text, wanted) != 0) fail_msg("%s reads %s, expected %s", name, text, wanted);
    mn_free(text);
}

static void fields_take_what_they_say(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        const field_case *f = &cases[c];
        mn_generation_config *config = open_config();
        check_reads(config, f->name, f->good[0].reads);
        for (int i = 0; i < 6 && f->good[i].value; i++) {
            assert_ok(mn_generation_config_set(config, f->name, f->good[i].value));
            check_reads(config, f->name, f->good[i].reads);
            for (int j = 0; j < 9 && f->bad[j]; j++) {
                mn_status status = mn_generation_config_set(config, f->name, f->bad[j]);
                if (status != MN_E_ARG) fail_msg("%s took %s", f->name, f->bad[j]);
                if (!strstr(mn_last_error(), f->name) || !strstr(mn_last_error(), "allowed: "))
                    fail_msg("%s, %s: '%s' says too little", f->name, f->bad[j], mn_last_error());
                check_reads(config, f->name, f->good[i].reads);
            }
        }
        /* The other fields are as they were. */
        for (int other = 0; other < N_CASES; other++)
            if (other != c) check_reads(config, cases[other].name, cases[other].good[0].reads);
        mn_generation_config_close(&config);
    }
}

static void the_list_of_fields_is_complete(void **state) {
    (void)state;
    int n = 0;
    for (const mn_generation_field *f = mn_generation_fields(); f->name; f++, n++) {
        const field_case *found = NULL;
        for (int c = 0; c < N_CASES; c++)
            if (strcmp(cases[c].name, f->name) == 0) found = &cases[c];
        if (!found) fail_msg("%s is not tested", f->name);
        assert_string_equal(f->kind, found->kind);
        assert_true(f->help[0] && f->allowed[0]);
        mn_generation_config *config = open_config();
        assert_ok(mn_generation_config_set(config, f->name, f->standard));
        check_reads(config, f->name, found->good[0].reads);
        mn_generation_config_close(&config);
    }
    assert_int_equal(n, N_CASES);
}

static void values_that_are_no_json_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"", "tru", "NaN", "Infinity", "1,2", "[1", "'a'", "\xff", "01"};
    mn_generation_config *config = open_config();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(MN_E_ARG, "top_k", mn_generation_config_set(config, "top_k", texts[i]));
    check_reads(config, "top_k", "50");
    mn_generation_config_close(&config);
}

static void unknown_names_get_the_nearest(void **state) {
    (void)state;
    static const char *const names[][2] = {{"temprature", "'temperature'"},
                                           {"topk", "'top_k'"},
                                           {"max_tokens", "'max_new_tokens'"},
                                           {"repetition_penality", "'repetition_penalty'"},
                                           {"stop_string", "'stop_strings'"},
                                           {"num_beam", "'num_beams'"},
                                           {"Seed", "'seed'"},
                                           {"", "'"}};
    mn_generation_config *config = open_config();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_fails(MN_E_ARG, names[i][1], mn_generation_config_set(config, names[i][0], "1"));
        assert_null(mn_generation_config_get(config, names[i][0]));
    }
    char name[5000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    assert_fails(MN_E_ARG, "nearest", mn_generation_config_set(config, name, "1"));
    mn_generation_config_close(&config);
}

/* Transformers' fields that are not offered: their standard value is taken, another is refused by name. */
static void fixed_fields_keep_their_standard(void **state) {
    (void)state;
    static const char *const fixed[][3] = {
        {"num_beams", "1", "4"},
        {"num_beam_groups", "1", "2"},
        {"diversity_penalty", "0.0", "0.5"},
        {"length_penalty", "1.0", "2"},
        {"early_stopping", "false", "true"},
        {"num_return_sequences", "1", "3"},
        {"penalty_alpha", "null", "0.6"},
        {"typical_p", "1.0", "0.9"},
        {"epsilon_cutoff", "0.0", "0.1"},
        {"eta_cutoff", "0", "0.1"},
        {"encoder_repetition_penalty", "1.0", "1.5"},
        {"no_repeat_ngram_size", "0", "3"},
        {"bad_words_ids", "null", "[[5]]"},
        {"renormalize_logits", "false", "true"},
        {"forced_bos_token_id", "null", "0"},
        {"forced_eos_token_id", "null", "2"},
        {"suppress_tokens", "null", "[1, 2]"},
        {"sequence_bias", "null", "[[[1], 2.0]]"},
        {"guidance_scale", "null", "1.5"},
        {"prompt_lookup_num_tokens", "null", "10"},
        {"use_cache", "true", "false"},
    };
    mn_generation_config *config = open_config();
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        assert_ok(mn_generation_config_set(config, fixed[i][0], fixed[i][1]));
        assert_ok(mn_generation_config_set(config, fixed[i][0], "null"));
        assert_fails(MN_E_ARG, fixed[i][0], mn_generation_config_set(config, fixed[i][0], fixed[i][2]));
    }
    for (int c = 0; c < N_CASES; c++) check_reads(config, cases[c].name, cases[c].good[0].reads);
    mn_generation_config_close(&config);
}

static void objects_are_loaded_whole_or_not_at_all(void **state) {
    (void)state;
    const char *good =
        "{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"eos_token_id\": [128001, 128009],"
        " \"stop_strings\": [\"x\"], \"bos_token_id\": 128000, \"transformers_version\": \"4.42.3\"}";
    mn_generation_config *config = open_config(), *copy = NULL;
    assert_ok(mn_generation_config_load(config, good, strlen(good)));
    static const char *const wanted[][2] = {{"do_sample", "true"},
                                            {"temperature", "0.6"},
                                            {"top_p", "0.9"},
                                            {"eos_token_id", "[128001,128009]"},
                                            {"stop_strings", "[\"x\"]"},
                                            {"bos_token_id", "128000"},
                                            {"top_k", "50"}};
    static const char *const wrong[] = {"{\"temperature\": 2, \"top_k\": -5}",
                                        "{\"temperature\": 2, \"nonsense\": 1}",
                                        "{\"temperature\": 2,}",
                                        "[\"temperature\"]",
                                        "\"text\"",
                                        "",
                                        "{\"eos_token_id\": [1], \"num_beams\": 4}",
                                        "null"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mn_status status = mn_generation_config_load(config, wrong[i], strlen(wrong[i]));
        if (status != MN_E_ARG && status != MN_E_FORMAT) fail_msg("%s was taken", wrong[i]);
        for (size_t j = 0; j < 7; j++) check_reads(config, wanted[j][0], wanted[j][1]);
    }
    assert_ok(generation_config_copy(&copy, config));
    mn_generation_config_close(&config);
    for (size_t j = 0; j < 7; j++) check_reads(copy, wanted[j][0], wanted[j][1]);
    mn_generation_config_close(&copy);
}

static void copies_hold_every_field(void **state) {
    (void)state;
    mn_generation_config *config = open_config(), *copy = NULL;
    for (int c = 0; c < N_CASES; c++)
        assert_ok(mn_generation_config_set(config, cases[c].name, cases[c].good[1].value));
    assert_ok(generation_config_copy(&copy, config));
    for (int c = 0; c < N_CASES; c++) check_reads(copy, cases[c].name, cases[c].good[1].reads);
    mn_generation_config_close(&copy);
    mn_generation_config_close(&config);
    mn_generation_config_close(&config);
}

static void load_file(const char *path) {
    mn_generation_config *config = open_config();
    bytes text = {0};
    assert_ok(file_read(&text, path, 1 << 20));
    if (mn_generation_config_load(config, text.data, text.n) != MN_OK)
        fail_msg("%s: %s", path, mn_last_error());
    json_doc *doc = open_json(path);
    const json *root = json_root(doc), *end = json_get(root, "eos_token_id");
    if (end && end->kind == JSON_INT) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "[%d]", (int)end->integer);
        check_reads(config, "eos_token_id", wanted);
    }
    json_close(&doc);
    bytes_clear(&text);
    mn_generation_config_close(&config);
}

static void files_of_checkpoints(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "mistral-full", "mistral-window",   "qwen2",
                                           "qwen3", "phi3",         "llama-untied-bias"};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char name[128];
        snprintf(name, sizeof name, "golden/%s/generation_config.json", families[i]);
        load_file(data_path(name));
    }
    load_file(TESTS_DIR "/../models-embedded/stories260K/generation_config.json");
}

static void files_of_published_checkpoints(void **state) {
    (void)state;
    static const char *const names[] = {"mistral-7b-v0.1", "llama-2-7b-chat-hf", "tinyllama-1.1b-chat"};
    for (size_t i = 0; i < 3; i++) {
        char name[128];
        snprintf(name, sizeof name, "data/tokenizers/%s/generation_config.json", names[i]);
        const char *path = shared_path(name);
        if (!path) skip();
        load_file(path);
    }
}

static void failed_allocations_change_nothing(void **state) {
    (void)state;
    const char *text = "{\"eos_token_id\": [1, 2, 3], \"stop_strings\": [\"one\", \"two\"], \"top_k\": 3}";
    mn_generation_config *config = open_config();
    assert_ok(mn_generation_config_set(config, "stop_strings", "[\"old\"]"));
    int64_t live = mem_count().live;
    int64_t k = 1;
    for (;; k++) {
        mem_fail_after(k);
        mn_status status = mn_generation_config_load(config, text, strlen(text));
        mem_fail_after(0);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(mem_count().live, live);
        check_reads(config, "stop_strings", "[\"old\"]");
        check_reads(config, "eos_token_id", "[]");
        check_reads(config, "top_k", "50");
    }
    assert_true(k > 10);
    check_reads(config, "stop_strings", "[\"one\",\"two\"]");
    for (k = 1;; k++) {
        mem_fail_after(k);
        mn_status status = mn_generation_config_set(config, "eos_token_id", "[5, 6]");
        mem_fail_after(0);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
        check_reads(config, "eos_token_id", "[1,2,3]");
    }
    for (k = 1;; k++) {
        mn_generation_config *copy = NULL;
        live = mem_count().live;
        mem_fail_after(k);
        mn_status status = generation_config_copy(&copy, config);
        mem_fail_after(0);
        if (status == MN_OK) {
            mn_generation_config_close(&copy);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_null(copy);
        assert_int_equal(mem_count().live, live);
    }
    mn_generation_config_close(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_take_what_they_say),
        cmocka_unit_test(the_list_of_fields_is_complete),
        cmocka_unit_test(values_that_are_no_json_are_refused),
        cmocka_unit_test(unknown_names_get_the_nearest),
        cmocka_unit_test(fixed_fields_keep_their_standard),
        cmocka_unit_test(objects_are_loaded_whole_or_not_at_all),
        cmocka_unit_test(copies_hold_every_field),
        cmocka_unit_test(files_of_checkpoints),
        cmocka_unit_test(files_of_published_checkpoints),
        cmocka_unit_test(failed_allocations_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
