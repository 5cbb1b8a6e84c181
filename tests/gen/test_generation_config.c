/* GenerationConfig: every field is set, read back and validated; files of checkpoints.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/generation_config.h"

#include "support/support.h"

/* Accepted values of each field with the text that is read back, and refused values; the first accepted one is the
 * default. */
typedef struct field_case {
    const char *name, *kind;
    struct {
        const char *value, *reads;
    } good[6];
    const char *bad[9];
} field_case;

#define WRONG_KINDS "\"1\"", "[1]", "{}", "true"

/* clang-format off */
static const field_case cases[] = {
    {"max_new_tokens", "integer",
     {{"null", "null"}, {"1", "1"}, {"1000000000", "1000000000"}, {"20.0", "20"}},
     {"0", "-1", "1.5", "1e10", WRONG_KINDS}},
    {"min_new_tokens", "integer",
     {{"0", "0"}, {"7", "7"}, {"null", "0"}},
     {"-1", "0.5", "1e300", WRONG_KINDS}},
    {"max_length", "integer",
     {{"null", "null"}, {"4096", "4096"}},
     {"0", "-4", "2.25", WRONG_KINDS}},
    {"min_length", "integer",
     {{"0", "0"}, {"10", "10"}, {"null", "0"}},
     {"-10", "1e-3", WRONG_KINDS}},
    {"max_time", "number",
     {{"null", "0"}, {"0.25", "0.25"}, {"3", "3"}},
     {"-0.5", "1e10", WRONG_KINDS}},
    {"do_sample", "boolean",
     {{"false", "false"}, {"true", "true"}, {"null", "false"}},
     {"1", "0", "\"true\"", "[]", "{}"}},
    {"temperature", "number",
     {{"1", "1"}, {"0.7", "0.7"}, {"100", "100"}, {"0.000001", "1e-06"}, {"null", "1"}},
     {"0", "-1", "1e7", WRONG_KINDS}},
    {"top_k", "integer",
     {{"50", "50"}, {"0", "0"}, {"1", "1"}, {"null", "0"}},
     {"-1", "2.5", WRONG_KINDS}},
    {"top_p", "number",
     {{"1", "1"}, {"0.9", "0.9"}, {"0", "0"}, {"null", "1"}},
     {"-0.1", "1.0001", "90", WRONG_KINDS}},
    {"min_p", "number",
     {{"null", "0"}, {"0.05", "0.05"}, {"1", "1"}},
     {"-0.1", "1.5", WRONG_KINDS}},
    {"typical_p", "number",
     {{"1", "1"}, {"0.2", "0.2"}, {"null", "1"}},
     {"0", "1.1", "-0.5", WRONG_KINDS}},
    {"epsilon_cutoff", "number",
     {{"0", "0"}, {"0.0003", "0.0003"}, {"null", "0"}},
     {"-0.1", "1.5", WRONG_KINDS}},
    {"eta_cutoff", "number",
     {{"0", "0"}, {"0.002", "0.002"}, {"null", "0"}},
     {"-0.1", "1.5", WRONG_KINDS}},
    {"repetition_penalty", "number",
     {{"1", "1"}, {"1.1", "1.1"}, {"0.5", "0.5"}},
     {"0", "-1.2", WRONG_KINDS}},
    {"encoder_repetition_penalty", "number",
     {{"1", "1"}, {"1.5", "1.5"}, {"null", "1"}},
     {"0", "-1.2", WRONG_KINDS}},
    {"presence_penalty", "number",
     {{"0", "0"}, {"-1.5", "-1.5"}, {"null", "0"}},
     {"101", "-101", WRONG_KINDS}},
    {"frequency_penalty", "number",
     {{"0", "0"}, {"0.25", "0.25"}, {"null", "0"}},
     {"101", "-101", WRONG_KINDS}},
    {"logit_bias", "object",
     {{"null", "{}"}, {"{\"15\": -5, \"3\": 0.5}", "{\"15\":-5,\"3\":0.5}"}, {"{}", "{}"}, {"{\"0\": 100}", "{\"0\":100}"}},
     {"{\"a\": 1}", "{\"-1\": 1}", "{\"1\": 101}", "{\"1\": \"x\"}", "{\"4294967296\": 1}", "[[1, 2]]", "{\"\": 1}", "3", "\"{}\""}},
    {"sequence_bias", "biases",
     {{"null", "[]"}, {"[[[5, 6], -10.5], [[7], 3]]", "[[[5,6],-10.5],[[7],3]]"}, {"[[[4], \"-inf\"]]", "[[[4],\"-inf\"]]"}, {"[[[4], \"-Infinity\"]]", "[[[4],\"-inf\"]]"}},
     {"[[[], 1]]", "[[[1]]]", "[[[1], 2, 3]]", "[[1, 2]]", "[[[1.5], 2]]", "[[[1], \"inf\"]]", "[[[-1], 1]]", "{\"5\": 1}", "[[[1], 1e31]]"}},
    {"no_repeat_ngram_size", "integer",
     {{"0", "0"}, {"3", "3"}, {"null", "0"}},
     {"-1", "1.5", WRONG_KINDS}},
    {"encoder_no_repeat_ngram_size", "integer",
     {{"0", "0"}, {"3", "3"}, {"null", "0"}},
     {"-1", "1.5", WRONG_KINDS}},
    {"bad_words_ids", "lists of integers",
     {{"null", "[]"}, {"[[5], [6, 7]]", "[[5],[6,7]]"}, {"[]", "[]"}},
     {"[[]]", "[5]", "[[5], 6]", "[[-1]]", "[[1.5]]", "[[\"a\"]]", "{}", "[[[1]]]", "5"}},
    {"force_words_ids", "lists of integers",
     {{"null", "[]"}, {"[[5], [6, 7]]", "[[5],[6,7]]"}, {"[[[5], [6, 7]], [8], [[9]]]", "[[[5],[6,7]],[8],[[9]]]"}, {"[]", "[]"}},
     {"[[]]", "[5]", "[[5], 6]", "[[[]]]", "[[[5], 6]]", "[[6, [5]]]", "[[[[5]]]]", "[[-1]]", "[[[5], [1.5]]]", "{}", "true"}},
    {"suppress_tokens", "integers",
     {{"null", "[]"}, {"[0, 3]", "[0,3]"}, {"7", "[7]"}},
     {"-1", "[2, -7]", "2.5", "[\"2\"]", "true", "{}"}},
    {"begin_suppress_tokens", "integers",
     {{"null", "[]"}, {"[220, 50256]", "[220,50256]"}},
     {"-1", "[2, -7]", "2.5", "[\"2\"]", "true", "{}"}},
    {"forced_bos_token_id", "integer",
     {{"null", "null"}, {"0", "0"}, {"12", "12"}},
     {"-1", "1.5", "4294967296", WRONG_KINDS}},
    {"forced_eos_token_id", "integers",
     {{"null", "[]"}, {"2", "[2]"}, {"[2, 3]", "[2,3]"}},
     {"-1", "[2, -7]", "2.5", "[\"2\"]", "true", "{}"}},
    {"exponential_decay_length_penalty", "pair",
     {{"null", "null"}, {"[3, 1.5]", "[3,1.5]"}, {"[0, 1]", "[0,1]"}},
     {"[3]", "[3, 1, 1]", "[-1, 1]", "[1.5, 1]", "[3, 0]", "[3, \"1\"]", "3", "{\"start\": 3}", "[\"3\", 1]"}},
    {"json_schema", "schema",
     {{"null", "null"}, {"{\"type\": \"object\", \"properties\": {\"b\": {}, \"a\": true}}", "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":true}}"}, {"true", "true"}, {"\"{\\\"type\\\": \\\"string\\\"}\"", "{\"type\":\"string\"}"}, {"false", "false"}},
     {"1", "[]", "\"nonsense\"", "\"3\"", "\"[{}]\"", "\"{\"", "\"\""}},
    {"regex", "string",
     {{"null", "null"}, {"\"[0-9]+\\\\.\"", "\"[0-9]+\\\\.\""}},
     {"\"\"", "1", "[\"a\"]", "{}", "true", "\"\\u0000\"", "\"a\\u0000\""}},
    {"grammar", "grammar",
     {{"null", "null"}, {"\"root ::= [0-9]\\n\"", "\"root ::= [0-9]\\n\""}},
     {"\"\"", "1", "[\"a\"]", "{}", "true", "\"\\u0000\"", "\"a\\u0000\""}},
    {"guidance_scale", "number",
     {{"null", "1"}, {"1.5", "1.5"}, {"0", "0"}},
     {"-1", "1e7", WRONG_KINDS}},
    {"watermarking_config", "object",
     {{"null", "null"}, {"{}", "{\"greenlist_ratio\":0.25,\"bias\":2,\"hashing_key\":15485863,\"seeding_scheme\":\"lefthash\",\"context_width\":1}"}, {"{\"bias\": 2.5, \"seeding_scheme\": \"selfhash\", \"context_width\": 4, \"hashing_key\": 7, \"greenlist_ratio\": 0.5}", "{\"greenlist_ratio\":0.5,\"bias\":2.5,\"hashing_key\":7,\"seeding_scheme\":\"selfhash\",\"context_width\":4}"}},
     {"{\"ngram_len\": 5}", "{\"greenlist_ratio\": 2}", "{\"seeding_scheme\": \"righthash\"}", "{\"context_width\": 0}", "{\"bias\": \"2\"}", "[]", "true", "\"lefthash\""}},
    {"remove_invalid_values", "boolean",
     {{"false", "false"}, {"true", "true"}, {"null", "false"}},
     {"1", "\"false\"", "[true]"}},
    {"renormalize_logits", "boolean",
     {{"false", "false"}, {"true", "true"}, {"null", "false"}},
     {"1", "\"false\"", "[true]"}},
    {"num_return_sequences", "integer",
     {{"1", "1"}, {"3", "3"}, {"null", "1"}},
     {"0", "-1", "4097", "1.5", WRONG_KINDS}},
    {"num_beams", "integer",
     {{"1", "1"}, {"40", "40"}, {"null", "1"}},
     {"0", "-1", "4097", "1.5", WRONG_KINDS}},
    {"num_beam_groups", "integer",
     {{"1", "1"}, {"40", "40"}, {"null", "1"}},
     {"0", "-1", "4097", "1.5", WRONG_KINDS}},
    {"diversity_penalty", "number",
     {{"0", "0"}, {"0.5", "0.5"}, {"null", "0"}},
     {"-0.1", "1e7", WRONG_KINDS}},
    {"length_penalty", "number",
     {{"1", "1"}, {"-2.5", "-2.5"}, {"null", "1"}},
     {"1e7", "-1e7", WRONG_KINDS}},
    {"early_stopping", "choice",
     {{"false", "false"}, {"true", "true"}, {"\"never\"", "\"never\""}, {"null", "false"}},
     {"1", "\"true\"", "\"always\"", "[]", "{}", "\"never|\"", "\"\""}},
    {"penalty_alpha", "number",
     {{"null", "0"}, {"0.6", "0.6"}, {"0", "0"}},
     {"-0.1", "1.5", WRONG_KINDS}},
    {"dola_layers", "layers",
     {{"null", "null"}, {"\"low\"", "\"low\""}, {"\"high\"", "\"high\""}, {"[2, 4]", "[2,4]"}},
     {"\"middle\"", "2", "[]", "[1.5]", "[-1]", "{}", "true", "[\"low\"]"}},
    {"prompt_lookup_num_tokens", "integer",
     {{"null", "null"}, {"10", "10"}},
     {"0", "-1", "1.5", WRONG_KINDS}},
    {"max_matching_ngram_size", "integer",
     {{"2", "2"}, {"5", "5"}, {"null", "2"}},
     {"0", "-1", "1.5", WRONG_KINDS}},
    {"num_assistant_tokens", "integer",
     {{"20", "20"}, {"5", "5"}, {"null", "20"}},
     {"0", "-1", "1.5", WRONG_KINDS}},
    {"num_assistant_tokens_schedule", "choice",
     {{"\"constant\"", "\"constant\""}, {"\"heuristic_transient\"", "\"heuristic_transient\""}, {"\"heuristic\"", "\"heuristic\""}},
     {"\"heuristics\"", "1", "true", "[]", "{}"}},
    {"assistant_confidence_threshold", "number",
     {{"0.4", "0.4"}, {"0", "0"}, {"1", "1"}},
     {"-0.1", "1.5", WRONG_KINDS}},
    {"cache_implementation", "string",
     {{"null", "null"}, {"\"quantized+sink\"", "\"quantized+sink\""}, {"\"HQQQuantizedCache\"", "\"HQQQuantizedCache\""}, {"\"self=static,cross=dynamic\"", "\"self=static,cross=dynamic\""}},
     {"\"\"", "\"quantised\"", "\"sink+hybrids\"", "1", "[\"sink\"]", "{}", "true", "\"sta\\u0000tic\""}},
    {"cache_config", "options",
     {{"null", "null"}, {"{\"nbits\": 4, \"axis-key\": 0}", "{\"nbits\":4,\"axis-key\":0}"}, {"\"nbits=4,window_length=9\"", "\"nbits=4,window_length=9\""}, {"\" {\\\"nbits\\\": 4}\"", "{\"nbits\":4}"}, {"{}", "{}"}, {"\"\"", "\"\""}},
     {"1", "[1]", "true", "\"{\"", "\"{\\\"nbits\\\": 4\"", "{\"nbits\": 0}", "{\"nbit\": 4}", "\"nbits=x\"", "\"nbits\""}},
    {"use_cache", "boolean",
     {{"true", "true"}, {"false", "false"}, {"null", "true"}},
     {"1", "\"false\"", "[true]"}},
    {"stop_strings", "strings",
     {{"null", "[]"}, {"[\"a\", \"\\n\\n\"]", "[\"a\",\"\\n\\n\"]"}, {"\"end\"", "[\"end\"]"}, {"[]", "[]"}},
     {"[\"\"]", "\"\"", "3", "[3]", "[\"a\", null]", "true", "{}", "\"\\u0000\"", "[\"a\\u0000b\"]"}},
    {"eos_token_id", "integers",
     {{"null", "[]"}, {"2", "[2]"}, {"[2, 7]", "[2,7]"}, {"[]", "[]"}, {"0", "[0]"}},
     {"-1", "[2, -7]", "2.5", "[\"2\"]", "2147483648", "\"2\"", "true", "{}", "[[2]]"}},
    {"ignore_eos", "boolean",
     {{"false", "false"}, {"true", "true"}},
     {"1", "\"false\"", "[true]"}},
    {"bos_token_id", "integer",
     {{"null", "null"}, {"1", "1"}, {"0", "0"}},
     {"-1", "1.5", "4294967296", WRONG_KINDS}},
    {"pad_token_id", "integer",
     {{"null", "null"}, {"0", "0"}},
     {"-1", "1.5", WRONG_KINDS}},
    {"seed", "integer",
     {{"null", "null"}, {"0", "0"}, {"9007199254740992", "9007199254740992"}},
     {"-1", "0.5", "1e17", WRONG_KINDS}},
};
/* clang-format on */

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

static void fields_accept_and_refuse_the_listed_values(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        const field_case *f = &cases[c];
        mn_generation_config *config = open_config();
        check_reads(config, f->name, f->good[0].reads);
        for (int i = 0; i < 6 && f->good[i].value; i++) {
            assert_ok(mn_generation_config_set(config, f->name, f->good[i].value));
            check_reads(config, f->name, f->good[i].reads);
            assert_ok(
                mn_generation_config_set(config, f->name, f->good[i].reads)); /* the text that is read can be set */
            check_reads(config, f->name, f->good[i].reads);
            for (int j = 0; j < 9 && f->bad[j]; j++) {
                mn_status status = mn_generation_config_set(config, f->name, f->bad[j]);
                if (status != MN_E_ARG) fail_msg("%s accepted %s", f->name, f->bad[j]);
                if (!strstr(mn_last_error(), f->name) || !strstr(mn_last_error(), "allowed: "))
                    fail_msg("%s, %s: the message '%s' is too short", f->name, f->bad[j], mn_last_error());
                check_reads(config, f->name, f->good[i].reads);
            }
        }
        /* The other fields are unchanged. */
        for (int other = 0; other < N_CASES; other++)
            if (other != c) check_reads(config, cases[other].name, cases[other].good[0].reads);
        mn_generation_config_close(&config);
    }
}

static void the_list_of_fields_is_complete(void **state) {
    (void)state;
    int n = 0;
    for (const mn_generation_field *f; (f = mn_generation_field_at(n)); n++) {
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

static void values_that_are_not_JSON_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"", "tru", "NaN", "Infinity", "1,2", "[1", "'a'", "\xff", "01"};
    mn_generation_config *config = open_config();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(MN_E_ARG, "top_k", mn_generation_config_set(config, "top_k", texts[i]));
    check_reads(config, "top_k", "50");
    mn_generation_config_close(&config);
}

static void errors_suggest_the_nearest_name(void **state) {
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

/* is_set is true for fields that the program set, not for defaults, fields of checkpoints or refused values. */
static void only_fields_set_by_the_program_count_as_set(void **state) {
    (void)state;
    mn_generation_config *config = open_config(), *copy = NULL;
    const char *object = "{\"num_beams\": 4, \"transformers_version\": \"4.46\"}";
    json_doc *doc = open_json(data_path("golden/llama/generation_config.json"));
    assert_ok(generation_config_load(config, json_root(doc), true, "checkpoint"));
    json_close(&doc);
    for (int c = 0; c < N_CASES; c++) assert_false(generation_config_is_set(config, cases[c].name));
    assert_ok(mn_generation_config_set(config, "top_k", "50"));
    assert_int_equal(mn_generation_config_set(config, "top_p", "7"), MN_E_ARG);
    assert_ok(mn_generation_config_load(config, object, strlen(object)));
    assert_ok(generation_config_copy(&copy, config));
    for (int c = 0; c < N_CASES; c++) {
        bool is_set = strcmp(cases[c].name, "top_k") == 0 || strcmp(cases[c].name, "num_beams") == 0;
        assert_int_equal(generation_config_is_set(config, cases[c].name), is_set);
        assert_int_equal(generation_config_is_set(copy, cases[c].name), is_set);
    }
    mn_generation_config_close(&copy);
    mn_generation_config_close(&config);
}

static char *value_of(const mn_generation_config *config, const char *name) {
    static char kept[200];
    char *text = mn_generation_config_get(config, name);
    snprintf(kept, sizeof kept, "%s", text);
    mn_free(text);
    return kept;
}

static mn_status load_text(mn_generation_config *config, const char *text) {
    return mn_generation_config_load(config, text, strlen(text));
}

/* A new cache_implementation resets the cache fields that were set before, except those set in the same call. */
static void another_cache_resets_the_cache_fields(void **state) {
    (void)state;
    mn_generation_config *config = open_config();
    assert_ok(load_text(config, "{\"cache_implementation\": \"quantized\", \"cache_config\": {\"nbits\": 2}}"));
    assert_ok(load_text(config, "{\"cache_implementation\": \"quantized\"}"));
    assert_string_equal(value_of(config, "cache_config"), "{\"nbits\":2}");
    assert_ok(load_text(config, "{\"cache_config\": {\"nbits\": 3}}"));
    assert_string_equal(value_of(config, "cache_implementation"), "\"quantized\"");
    assert_ok(load_text(config, "{\"cache_implementation\": \"static\"}"));
    assert_string_equal(value_of(config, "cache_config"), "null");
    assert_ok(load_text(config, "{\"use_cache\": false}"));
    assert_ok(load_text(config, "{\"cache_implementation\": \"static\"}"));
    assert_string_equal(value_of(config, "use_cache"), "true");
    assert_ok(load_text(config, "{\"use_cache\": false, \"cache_implementation\": \"sink\"}"));
    assert_string_equal(value_of(config, "use_cache"), "false");
    mn_generation_config_close(&config);
    /* One field at a time: values that the program set are kept, values of a checkpoint are reset. */
    json_doc *doc = NULL;
    static const char checkpoint[] = "{\"cache_implementation\": \"quantized\", \"cache_config\": {\"nbits\": 2}}";
    config = open_config();
    assert_ok(json_parse(&doc, checkpoint, strlen(checkpoint), JSON_STRICT, "checkpoint"));
    assert_ok(generation_config_load(config, json_root(doc), true, "checkpoint"));
    assert_ok(mn_generation_config_set(config, "cache_implementation", "\"sink\""));
    assert_string_equal(value_of(config, "cache_config"), "null");
    assert_ok(mn_generation_config_set(config, "cache_config", "\"window_length=9\""));
    assert_ok(mn_generation_config_set(config, "cache_implementation", "\"sliding_window\""));
    assert_string_equal(value_of(config, "cache_config"), "\"window_length=9\"");
    json_close(&doc);
    mn_generation_config_close(&config);
}

/* A checkpoint may name an unknown cache: using it fails, naming another one does not. */
static void an_unknown_cache_of_a_checkpoint_fails_only_when_used(void **state) {
    (void)state;
    static const char text[] =
        "{\"cache_implementation\": \"paged\", \"made_up\": 1, \"made_too\": null, \"made_again\": [2]}";
    json_doc *doc = NULL;
    mn_generation_config *config = open_config(), *copy = NULL;
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    char *warnings = NULL;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_STRICT, "checkpoint"));
    assert_ok(generation_config_load(config, json_root(doc), true, "checkpoint"));
    assert_ok(mn_generation_config_cache(config, &options));
    assert_fails(MN_E_ARG, "'paged'", mn_cache_check(&options, NULL));
    assert_fails(MN_E_ARG, "'paged'", mn_generation_config_check(config, NULL, &warnings));
    assert_ok(mn_generation_config_set(config, "cache_implementation", "\"sink\""));
    assert_ok(generation_config_copy(&copy, config));
    assert_ok(mn_generation_config_check(copy, NULL, &warnings));
    assert_non_null(strstr(warnings, "have no effect here: made_up, made_again\n"));
    mn_free(warnings);
    json_close(&doc);
    mn_generation_config_close(&copy);
    mn_generation_config_close(&config);
}

/* The configuration sets exactly the options that the caller left open. */
static void the_configuration_fills_open_cache_options(void **state) {
    (void)state;
    static const struct {
        const char *config, *implementation, *details, *wanted, *wanted_details;
    } mixes[] = {
        {"{}", NULL, NULL, NULL, NULL},
        {"{}", "sink", "window_length=9", "sink", "window_length=9"},
        {"{\"cache_implementation\": \"static\"}", NULL, NULL, "static", NULL},
        {"{\"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", NULL, NULL, "quantized",
         "nbits=2"},
        {"{\"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", NULL, "nbits=3", "quantized",
         "nbits=3"},
        {"{\"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", "quantized", NULL, "quantized",
         NULL},
        {"{\"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", "static", NULL, "static", NULL},
        {"{\"cache_config\": {\"max_cache_len\": 9}}", NULL, NULL, NULL, "{\"max_cache_len\":9}"},
        {"{\"use_cache\": false}", NULL, NULL, "none", NULL},
        {"{\"use_cache\": false}", "dynamic", NULL, "dynamic", NULL},
        {"{\"use_cache\": false, \"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", NULL, NULL,
         "none", NULL},
    };
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        mn_generation_config *config = open_config();
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        options.implementation = mixes[i].implementation;
        options.config = mixes[i].details;
        assert_ok(load_text(config, mixes[i].config));
        assert_ok(mn_generation_config_cache(config, &options));
        const char *got[] = {options.implementation, options.config};
        const char *wanted[] = {mixes[i].wanted, mixes[i].wanted_details};
        for (int k = 0; k < 2; k++) {
            if (!got[k] != !wanted[k] || (got[k] && strcmp(got[k], wanted[k]) != 0))
                fail_msg("case %zu: '%s', expected '%s'", i, got[k] ? got[k] : "nothing",
                         wanted[k] ? wanted[k] : "nothing");
        }
        mn_generation_config_close(&config);
    }
    mn_generation_config *config = open_config();
    mn_cache_options short_one = {.size = 4};
    char *warnings = NULL;
    assert_ok(load_text(config, "{\"cache_implementation\": \"sink\", \"cache_config\": {\"nbits\": 4}}"));
    assert_fails(MN_E_ARG, "nbits belongs to quantized", mn_generation_config_check(config, NULL, &warnings));
    assert_fails(MN_E_ARG, "mn_cache_options.size is 4", mn_generation_config_cache(config, &short_one));
    /* Options of a program that was built with a shorter or a longer struct keep their size, and memory after them does
     * not change. */
    enum { GROWTH = 64 };
    char memory[sizeof(mn_cache_options) + GROWTH];
    mn_cache_options *options = mem_alloc(1, sizeof memory);
    const size_t sizes[] = {offsetof(mn_cache_options, config), sizeof memory};
    for (size_t i = 0; i < 2; i++) {
        memset(options, 0, sizeof memory);
        options->size = sizes[i];
        if (sizes[i] < sizeof *options) memset((char *)options + sizes[i], 0x5a, sizeof memory - sizes[i]);
        memcpy(memory, options, sizeof memory);
        assert_ok(mn_generation_config_cache(config, options));
        assert_int_equal(options->size, sizes[i]);
        assert_string_equal(options->implementation, "sink");
        assert_memory_equal((char *)options + sizes[i], memory + sizes[i], sizeof memory - sizes[i]);
    }
    mem_free(options);
    mn_generation_config_close(&config);
}

/* -Infinity, as Python writes it, is read from files. */
static void infinite_biases_are_read_from_files(void **state) {
    (void)state;
    const char *object = "{\"sequence_bias\": [[[5], -Infinity], [[6], \"-inf\"]]}";
    mn_generation_config *config = open_config();
    assert_ok(mn_generation_config_load(config, object, strlen(object)));
    check_reads(config, "sequence_bias", "[[[5],\"-inf\"],[[6],\"-inf\"]]");
    mn_generation_config_close(&config);
}

static void an_object_with_a_bad_field_changes_nothing(void **state) {
    (void)state;
    const char *good = "{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"eos_token_id\": [128001, 128009],"
                       " \"stop_strings\": [\"x\"], \"bos_token_id\": 128000, \"transformers_version\": \"4.42.3\"}";
    mn_generation_config *config = open_config(), *copy = NULL;
    assert_ok(mn_generation_config_load(config, good, strlen(good)));
    static const char *const wanted[][2] = {
        {"do_sample", "true"},       {"temperature", "0.6"},     {"top_p", "0.9"}, {"eos_token_id", "[128001,128009]"},
        {"stop_strings", "[\"x\"]"}, {"bos_token_id", "128000"}, {"top_k", "50"}};
    static const char *const wrong[] = {"{\"temperature\": 2, \"top_k\": -5}",
                                        "{\"temperature\": 2, \"nonsense\": 1}",
                                        "{\"temperature\": 2,}",
                                        "[\"temperature\"]",
                                        "\"text\"",
                                        "",
                                        "{\"eos_token_id\": [1], \"num_beams\": 0}",
                                        "null"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mn_status status = mn_generation_config_load(config, wrong[i], strlen(wrong[i]));
        if (status != MN_E_ARG && status != MN_E_FORMAT) fail_msg("%s was accepted", wrong[i]);
        for (size_t j = 0; j < 7; j++) check_reads(config, wanted[j][0], wanted[j][1]);
    }
    assert_ok(generation_config_copy(&copy, config));
    mn_generation_config_close(&config);
    for (size_t j = 0; j < 7; j++) check_reads(copy, wanted[j][0], wanted[j][1]);
    mn_generation_config_close(&copy);
}

static void copies_have_every_field(void **state) {
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
    if (mn_generation_config_load(config, text.data, text.n) != MN_OK) fail_msg("%s: %s", path, mn_last_error());
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

static void generation_config_files_are_loaded(void **state) {
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

static void published_generation_config_files_are_loaded(void **state) {
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
    mn_generation_config_close(&config);
    for (int c = 0; c < N_CASES; c++) { /* every kind of value, set over another one */
        const field_case *f = &cases[c];
        for (k = 1;; k++) {
            config = open_config();
            assert_ok(mn_generation_config_set(config, f->name, f->good[1].value));
            live = mem_count().live;
            mem_fail_after(k);
            mn_status status = mn_generation_config_set(config, f->name, f->good[1].value);
            mem_fail_after(0);
            check_reads(config, f->name, f->good[1].reads);
            assert_int_equal(mem_count().live, live);
            mn_generation_config_close(&config);
            if (status == MN_OK) break;
            assert_int_equal(status, MN_E_NOMEM);
        }
    }
    config = open_config();
    for (int c = 0; c < N_CASES; c++)
        assert_ok(mn_generation_config_set(config, cases[c].name, cases[c].good[1].value));
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
        cmocka_unit_test(fields_accept_and_refuse_the_listed_values),
        cmocka_unit_test(the_list_of_fields_is_complete),
        cmocka_unit_test(values_that_are_not_JSON_are_refused),
        cmocka_unit_test(errors_suggest_the_nearest_name),
        cmocka_unit_test(only_fields_set_by_the_program_count_as_set),
        cmocka_unit_test(infinite_biases_are_read_from_files),
        cmocka_unit_test(an_object_with_a_bad_field_changes_nothing),
        cmocka_unit_test(copies_have_every_field),
        cmocka_unit_test(generation_config_files_are_loaded),
        cmocka_unit_test(published_generation_config_files_are_loaded),
        cmocka_unit_test(failed_allocations_change_nothing),
        cmocka_unit_test(another_cache_resets_the_cache_fields),
        cmocka_unit_test(an_unknown_cache_of_a_checkpoint_fails_only_when_used),
        cmocka_unit_test(the_configuration_fills_open_cache_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
