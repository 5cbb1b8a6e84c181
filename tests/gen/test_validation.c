/* Generation settings that select a mode, contradict each other, or have no effect.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/validation.h"

#include "support/support.h"

/* A draft model of which only the presence matters. */
static mn_generate_options with_assistant(bool is_given) {
    static char somewhere;
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    options.assistant = is_given ? (mn_model *)(void *)&somewhere : NULL;
    return options;
}

static mn_generation_config *config_of(const char *settings) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, NULL));
    assert_ok(mn_generation_config_load(config, settings, strlen(settings)));
    return config;
}

static void settings_select_the_mode(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool assistant;
        decoding_mode mode;
    } cases[] = {
        {"{}", false, DECODING_GREEDY},
        {"{\"penalty_alpha\": 0.6}", false, DECODING_CONTRASTIVE}, /* top_k is 50 */
        {"{\"penalty_alpha\": 0.6, \"top_k\": 1}", false, DECODING_GREEDY},
        {"{\"penalty_alpha\": 0, \"top_k\": 4}", false, DECODING_GREEDY},
        {"{\"penalty_alpha\": 0.6, \"do_sample\": true}", false, DECODING_SAMPLE},
        {"{\"do_sample\": true, \"num_return_sequences\": 5}", false, DECODING_SAMPLE},
        {"{\"num_beams\": 2}", false, DECODING_BEAM},
        {"{\"num_beams\": 2, \"penalty_alpha\": 0.6}", false, DECODING_BEAM},
        {"{\"num_beams\": 2, \"do_sample\": true}", false, DECODING_BEAM_SAMPLE},
        {"{\"num_beams\": 6, \"num_beam_groups\": 3, \"diversity_penalty\": 0.5}", false, DECODING_GROUP_BEAM},
        {"{\"num_beam_groups\": 3, \"diversity_penalty\": 0.5}", false, DECODING_GREEDY},
        {"{\"num_beams\": 2, \"force_words_ids\": [[5]]}", false, DECODING_CONSTRAINED_BEAM},
        {"{\"num_beams\": 2, \"force_words_ids\": [[5], [[5, 6], [5, 7], [6]]]}", false, DECODING_CONSTRAINED_BEAM},
        {"{}", true, DECODING_ASSISTED},
        {"{\"do_sample\": true}", true, DECODING_ASSISTED},
        {"{\"prompt_lookup_num_tokens\": 4}", false, DECODING_PROMPT_LOOKUP},
        {"{\"prompt_lookup_num_tokens\": 4, \"do_sample\": true}", false, DECODING_PROMPT_LOOKUP},
        {"{\"dola_layers\": \"low\"}", false, DECODING_DOLA},
        {"{\"dola_layers\": [1], \"do_sample\": true}", false, DECODING_DOLA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_generation_config *config = config_of(cases[i].settings);
        mn_generate_options options = with_assistant(cases[i].assistant);
        decoding_mode mode = decoding_mode_of(config, &options);
        if (mode != cases[i].mode)
            fail_msg("%s selects %s, expected %s", cases[i].settings, decoding_mode_name(mode),
                     decoding_mode_name(cases[i].mode));
        if (validation_check(config, &options) != MN_OK) fail_msg("%s: %s", cases[i].settings, mn_last_error());
        mn_generation_config_close(&config);
    }
}

static void contradictory_settings_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool assistant;
        const char *message;
    } cases[] = {
        {"{\"num_return_sequences\": 2}", false, "num_return_sequences is 2, but greedy search has one answer"},
        {"{\"num_return_sequences\": 2, \"penalty_alpha\": 0.6}", false, "but contrastive search has one answer"},
        {"{\"num_return_sequences\": 2, \"dola_layers\": \"low\"}", false, "greedy search has one answer"},
        {"{\"num_return_sequences\": 2}", true, "greedy search has one answer"},
        {"{\"num_return_sequences\": 4, \"num_beams\": 3}", false,
         "num_return_sequences is 4, allowed with num_beams 3: 1 to 3"},
        {"{\"num_return_sequences\": 4, \"num_beams\": 3, \"do_sample\": true}", false, "1 to 3"},
        {"{\"num_beams\": 4, \"num_beam_groups\": 3, \"diversity_penalty\": 1}", false, "num_beam_groups is 3"},
        {"{\"num_beams\": 4, \"num_beam_groups\": 8, \"diversity_penalty\": 1}", false, "num_beam_groups is 8"},
        {"{\"num_beams\": 4, \"num_beam_groups\": 2}", false, "diversity_penalty is 0"},
        {"{\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 1, \"do_sample\": true}", false,
         "do_sample is true, but groups of beams"},
        {"{\"force_words_ids\": [[5]]}", false, "num_beams is 1, allowed: 2 or more"},
        {"{\"force_words_ids\": [[5], [[7, 9], [8], [7]]], \"num_beams\": 2}", false,
         "force_words_ids: form 0 of phrase 1 begins with form 2; leave one of the two out"},
        {"{\"force_words_ids\": [[[3, 4], [3, 4]]], \"num_beams\": 2}", false, "of phrase 0 begins with form"},
        {"{\"force_words_ids\": [[5]], \"num_beams\": 2, \"do_sample\": true}", false, "are not sampled"},
        {"{\"force_words_ids\": [[5]], \"num_beams\": 2, \"num_beam_groups\": 2, \"diversity_penalty\": 1}", false,
         "num_beam_groups is 2, allowed with force_words_ids: 1"},
        {"{\"json_schema\": true, \"regex\": \"a\"}", false, "json_schema and regex"},
        {"{\"json_schema\": true, \"grammar\": \"a\"}", false, "json_schema and grammar are both set"},
        {"{\"grammar\": \"a\", \"regex\": \"a\"}", false, "regex and grammar are both set"},
        {"{\"num_beams\": 2}", true,
         "a draft model needs greedy search or sampling, but these settings select "
         "beam search"},
        {"{\"num_beams\": 2, \"prompt_lookup_num_tokens\": 4}", false, "prompt_lookup_num_tokens needs"},
        {"{\"num_beams\": 2, \"do_sample\": true, \"dola_layers\": \"low\"}", false, "select beam sampling"},
        {"{\"penalty_alpha\": 0.5}", true, "select contrastive search"},
        {"{\"prompt_lookup_num_tokens\": 4}", true, "a draft model and prompt_lookup_num_tokens were both"},
        {"{\"dola_layers\": \"low\", \"regex\": \"a\"}", false,
         "dola_layers leaves only tokens near the best one, and regex may"},
        {"{\"dola_layers\": \"low\", \"grammar\": \"a\"}", false, "and grammar may allow none of them"},
        {"{\"dola_layers\": \"low\"}", true, "dola_layers and a draft model were both given"},
        {"{\"dola_layers\": \"low\", \"prompt_lookup_num_tokens\": 4}", false, "were both given"},
        {"{\"guidance_scale\": 1.5, \"penalty_alpha\": 0.5}", false, "allowed for contrastive search"},
        {"{\"guidance_scale\": 1.5, \"prompt_lookup_num_tokens\": 4}", false, "allowed for prompt lookup"},
        {"{\"guidance_scale\": 1.5, \"do_sample\": true}", true, "allowed for assisted decoding"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_generation_config *config = config_of(cases[i].settings);
        mn_generate_options options = with_assistant(cases[i].assistant);
        char *warnings = NULL;
        if (validation_check(config, &options) != MN_E_ARG) fail_msg("%s was accepted", cases[i].settings);
        assert_fails(MN_E_ARG, cases[i].message, mn_generation_config_check(config, &options, &warnings));
        assert_null(warnings);
        mn_generation_config_close(&config);
    }
}

static void forced_phrases_have_1024_forms_at_most(void **state) {
    (void)state;
    bytes text = {0};
    bytes_append_text(&text, "{\"num_beams\": 2, \"force_words_ids\": [[7]");
    for (int i = 1; i < 1024; i++) bytes_printf(&text, i < 512 ? ", [%d]" : i == 512 ? ", [[%d]" : ", [%d]", i);
    for (int more = 0; more < 2; more++) {
        bytes settings = {0};
        bytes_printf(&settings, "%.*s%s]]}", (int)text.n, text.data, more ? ", [1024]" : "");
        mn_generation_config *config = config_of(settings.data);
        mn_generate_options options = with_assistant(false);
        mn_status status = validation_check(config, &options);
        assert_int_equal(status, more ? MN_E_ARG : MN_OK);
        if (more) assert_non_null(strstr(mn_last_error(), "force_words_ids has 1025 forms, allowed: at most 1024"));
        mn_generation_config_close(&config);
        bytes_clear(&settings);
    }
    bytes_clear(&text);
}

static void settings_without_effect_are_reported(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool assistant;
        const char *warnings;
    } cases[] = {
        {"{}", false, ""},
        {"{\"temperature\": 0.7, \"do_sample\": true}", false, ""},
        {"{\"temperature\": 1.0, \"top_k\": 50, \"num_beam_groups\": 1}", false, ""}, /* standard values */
        {"{\"temperature\": 0.7}", false, "temperature is 0.7 but has no effect: do_sample is false\n"},
        {"{\"top_p\": 0.9, \"top_k\": 0, \"num_beams\": 2}", false,
         "top_k is 0 but has no effect: do_sample is false\ntop_p is 0.9 but has no effect: do_sample is false\n"},
        {"{\"top_k\": 4, \"penalty_alpha\": 0.6}", false, ""},
        {"{\"top_k\": 1, \"penalty_alpha\": 0.6}", false,
         "top_k is 1 but has no effect: do_sample is false\n"
         "penalty_alpha is 0.6 but has no effect: contrastive search is without sampling, beams and forced words, "
         "with top_k of 2 or more\n"},
        {"{\"early_stopping\": \"never\", \"length_penalty\": 2}", false,
         "early_stopping is \"never\" but has no effect: num_beams is 1\n"
         "length_penalty is 2 but has no effect: num_beams is 1\n"},
        {"{\"early_stopping\": true, \"num_beams\": 2}", false, ""},
        {"{\"guidance_scale\": 2, \"num_beams\": 2}", false, ""},
        {"{\"diversity_penalty\": 2}", false, "diversity_penalty is 2 but has no effect: num_beams is 1\n"},
        {"{\"diversity_penalty\": 2, \"num_beams\": 2}", false,
         "diversity_penalty is 2 but has no effect: num_beam_groups is 1\n"},
        {"{\"num_assistant_tokens\": 5}", false,
         "num_assistant_tokens is 5 but has no effect: there is no draft model\n"},
        {"{\"num_assistant_tokens\": 5}", true, ""},
        {"{\"max_matching_ngram_size\": 3}", false,
         "max_matching_ngram_size is 3 but has no effect: prompt_lookup_num_tokens is not set\n"},
        {"{\"min_new_tokens\": 3}", false, "min_new_tokens is 3 but has no effect: eos_token_id is not set\n"},
        {"{\"min_new_tokens\": 9, \"max_new_tokens\": 8, \"eos_token_id\": 2}", false,
         "min_new_tokens is 9 but has no effect: max_new_tokens ends the text before\n"},
        {"{\"min_length\": 9, \"max_length\": 8, \"eos_token_id\": 2}", false,
         "min_length is 9 but has no effect: max_length ends the text before\n"},
        {"{\"min_length\": 9, \"min_new_tokens\": 3, \"eos_token_id\": 2}", false,
         "min_length is 9 but has no effect: min_new_tokens counts\n"},
        {"{\"max_length\": 9, \"max_new_tokens\": 8}", false,
         "max_length is 9 but has no effect: max_new_tokens counts\n"},
        {"{\"transformers_version\": \"4.46\", \"return_dict_in_generate\": false, \"return_legacy_cache\": false, "
         "\"output_scores\": null, \"generation_kwargs\": {}, \"compile_config\": null}",
         false, ""},
        {"{\"return_legacy_cache\": true, \"output_attentions\": true, \"output_hidden_states\": true}", false,
         "return_legacy_cache was given but has no effect: the cache stays in its session; mn_sessions_export writes the legacy "
         "form\n"
         "output_attentions was given but has no effect: attention weights are not handed out\n"
         "output_hidden_states was given but has no effect: hidden states are not handed out\n"},
        {"{\"forced_decoder_ids\": [[1, 2]], \"return_dict_in_generate\": true, \"disable_compile\": true}", false,
         "forced_decoder_ids was given but has no effect: the prompt begins the text\n"
         "return_dict_in_generate was given but has no effect: results always have every field\n"
         "disable_compile was given but has no effect: nothing is compiled\n"},
        {"{\"output_scores\": true, \"output_logits\": true}", false,
         "output_scores was given but has no effect: scores are requested with keep_scores (--scores-out)\n"
         "output_logits was given but has no effect: logits are requested with keep_logits (--logits-out)\n"},
        {"{\"cache_implementation\": \"quantized\", \"cache_config\": {\"compute_dtype\": \"float16\", \"device\": \"cuda\"}}",
         false,
         "cache option compute_dtype has no effect: computation with quantized numbers is in float32\n"
         "cache option device is 'cuda' but has no effect: caches are in the memory of the CPU\n"},
        {"{\"cache_implementation\": \"static\", \"use_cache\": false}", false,
         "cache_implementation has no effect: use_cache is false\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_generation_config *config = config_of(cases[i].settings);
        mn_generate_options options = with_assistant(cases[i].assistant);
        char *warnings = NULL;
        assert_ok(mn_generation_config_check(config, &options, &warnings));
        if (strcmp(warnings, cases[i].warnings) != 0)
            fail_msg("%s: '%s', expected '%s'", cases[i].settings, warnings, cases[i].warnings);
        mn_free(warnings);
        mn_generation_config_close(&config);
    }
}

static mn_generation_config *checkpoint_of(const char *settings) {
    mn_generation_config *config = NULL;
    json_doc *doc = NULL;
    assert_ok(mn_generation_config_open(&config, NULL));
    assert_ok(json_parse(&doc, settings, strlen(settings), JSON_STRICT, "settings"));
    assert_ok(generation_config_load(config, json_root(doc), true, "checkpoint"));
    json_close(&doc);
    return config;
}

/* Fields of a checkpoint's file that have no effect are one line; where the program decided it, there is none. */
static void fields_of_a_checkpoint_are_one_line(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        const char *set[2]; /* by the program; NULL: nothing */
        const char *warnings;
    } cases[] = {
        {"{\"do_sample\": true, \"temperature\": 0.6, \"transformers_version\": \"4.46\", \"_commit_hash\": \"a\"}",
         {0},
         ""},
        {"{\"temperature\": 0.6, \"top_k\": 50, \"disable_compile\": true, \"return_dict_in_generate\": true, \"made_up\": 3, "
         "\"forced_decoder_ids\": [[1, 2]], \"output_scores\": true, \"made_too\": [1], \"low_memory\": false}",
         {0},
         "generation_config.json has fields that have no effect here: temperature, forced_decoder_ids, "
         "return_dict_in_generate, disable_compile, output_scores, made_up, made_too\n"},
        {"{\"temperature\": 0.6, \"top_p\": 0.9}", {"do_sample", "true"}, ""},
        {"{\"temperature\": 0.6, \"top_p\": 0.9}", {"do_sample", "false"}, ""},
        {"{\"temperature\": 0.6, \"top_p\": 0.9}",
         {"top_p", "0.8"},
         "top_p is 0.8 but has no effect: do_sample is false\n"
         "generation_config.json has fields that have no effect here: temperature\n"},
        {"{\"max_length\": 20}", {"max_new_tokens", "9"}, ""},
        {"{\"max_length\": 20, \"max_new_tokens\": 9, \"num_assistant_tokens\": 5}",
         {0},
         "generation_config.json has fields that have no effect here: num_assistant_tokens, max_length\n"},
        {"{\"return_legacy_cache\": true}", {"return_legacy_cache", "false"}, ""},
        {"{\"low_memory\": true, \"disable_compile\": true}",
         {"low_memory", "true"},
         "low_memory was given but has no effect: contrastive search has one form\n"
         "generation_config.json has fields that have no effect here: disable_compile\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_generation_config *config = checkpoint_of(cases[i].settings), *copy = NULL;
        char *warnings = NULL;
        if (cases[i].set[0]) assert_ok(mn_generation_config_set(config, cases[i].set[0], cases[i].set[1]));
        assert_ok(generation_config_copy(&copy, config));
        assert_ok(mn_generation_config_check(copy, NULL, &warnings));
        assert_string_equal(warnings, cases[i].warnings);
        mn_free(warnings);
        mn_generation_config_close(&copy);
        mn_generation_config_close(&config);
    }
}

#define NONE_HERE "generation_config.json has fields that have no effect here: "

/* Values of a checkpoint that Transformers 5.24 loads: what has no effect there has none here, with one warning; what
 * it refuses when it generates is an error, until the program sets the field. */
static void odd_values_of_a_checkpoint(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        const char *set[2];      /* by the program; NULL: nothing */
        const char *field, *has; /* what a field then has */
        const char *error;       /* in place of warnings; NULL: none */
        const char *warnings;
    } cases[] = {
        {"{\"temperature\": 0, \"do_sample\": false}", {0}, "temperature", "1", NULL, NONE_HERE "temperature\n"},
        {"{\"temperature\": -1}", {0}, "temperature", "1", NULL, NONE_HERE "temperature\n"},
        {"{\"temperature\": \"0.7\"}", {0}, "temperature", "1", NULL, NONE_HERE "temperature\n"},
        {"{\"temperature\": 0}", {"do_sample", "false"}, "temperature", "1", NULL, ""},
        {"{\"temperature\": 0, \"do_sample\": true}",
         {0},
         0,
         0,
         "checkpoint: temperature is 0, allowed: 1e-6 to 1e6",
         0},
        {"{\"temperature\": 0}", {"do_sample", "true"}, 0, 0, "checkpoint: temperature is 0, allowed: 1e-6 to 1e6", 0},
        {"{\"temperature\": 0, \"do_sample\": true}", {"temperature", "0.5"}, "temperature", "0.5", NULL, ""},
        {"{\"temperature\": 0, \"do_sample\": true}", {"do_sample", "false"}, "temperature", "1", NULL, ""},
        {"{\"temperature\": null, \"do_sample\": true}", {0}, "temperature", "1", NULL, ""},
        {"{\"top_k\": -1}", {0}, "top_k", "50", NULL, NONE_HERE "top_k\n"},
        {"{\"top_k\": -1, \"do_sample\": true}",
         {0},
         0,
         0,
         "checkpoint: top_k is -1, allowed: 0 (off) to 1000000000",
         0},
        {"{\"top_k\": -1, \"do_sample\": true}", {"top_k", "0"}, "top_k", "0", NULL, ""},
        {"{\"top_k\": null, \"do_sample\": true}", {0}, "top_k", "0", NULL, ""},
        {"{\"top_p\": 5, \"do_sample\": true}", {0}, "top_p", "1", NULL, NONE_HERE "top_p 5\n"},
        {"{\"top_p\": 5, \"do_sample\": true}", {"top_p", "0.9"}, "top_p", "0.9", NULL, ""},
        {"{\"top_p\": -0.5, \"do_sample\": true}", {0}, 0, 0, "checkpoint: top_p is -0.5, allowed: 0 to 1", 0},
        {"{\"top_p\": -0.5}", {0}, "top_p", "1", NULL, NONE_HERE "top_p\n"},
        {"{\"min_p\": null, \"do_sample\": true}", {0}, "min_p", "0", NULL, ""},
        {"{\"min_p\": 1.5, \"do_sample\": true}", {0}, 0, 0, "checkpoint: min_p is 1.5, allowed: 0 to 1", 0},
        {"{\"min_p\": 1.5}", {0}, "min_p", "0", NULL, NONE_HERE "min_p\n"},
        {"{\"typical_p\": 0}", {0}, "typical_p", "1", NULL, NONE_HERE "typical_p\n"},
        {"{\"typical_p\": 0, \"do_sample\": true}", {0}, 0, 0, "checkpoint: typical_p is 0, allowed: 1e-6 to 1", 0},
        {"{\"typical_p\": 1, \"do_sample\": true}", {0}, "typical_p", "1", NULL, ""},
        {"{\"typical_p\": 1.5, \"do_sample\": true}", {0}, "typical_p", "1", NULL, NONE_HERE "typical_p 1.5\n"},
        {"{\"epsilon_cutoff\": -1, \"eta_cutoff\": 3, \"do_sample\": true}",
         {0},
         "eta_cutoff",
         "0",
         NULL,
         NONE_HERE "epsilon_cutoff -1, eta_cutoff 3\n"},
        {"{\"repetition_penalty\": 0}", {0}, 0, 0, "checkpoint: repetition_penalty is 0, allowed: 1e-6 to 1e6", 0},
        {"{\"repetition_penalty\": 0}", {"repetition_penalty", "1.1"}, "repetition_penalty", "1.1", NULL, ""},
        {"{\"repetition_penalty\": null}", {0}, "repetition_penalty", "1", NULL, ""},
        {"{\"no_repeat_ngram_size\": -1, \"encoder_no_repeat_ngram_size\": -1}",
         {0},
         "no_repeat_ngram_size",
         "0",
         NULL,
         NONE_HERE "no_repeat_ngram_size -1, encoder_no_repeat_ngram_size -1\n"},
        {"{\"min_length\": -1, \"min_new_tokens\": -5, \"eos_token_id\": 1}",
         {0},
         "min_new_tokens",
         "0",
         NULL,
         NONE_HERE "min_length -1, min_new_tokens -5\n"},
        {"{\"max_length\": 0, \"max_new_tokens\": 5}", {0}, "max_length", "null", NULL, NONE_HERE "max_length\n"},
        {"{\"max_length\": 0}", {0}, 0, 0, "checkpoint: max_length is 0, allowed: 1 to 1000000000", 0},
        {"{\"max_length\": 0}", {"max_new_tokens", "5"}, "max_length", "null", NULL, ""},
        {"{\"max_new_tokens\": 0}", {0}, 0, 0, "checkpoint: max_new_tokens is 0, allowed: 1 to 1000000000", 0},
        {"{\"num_beams\": 0}", {0}, 0, 0, "checkpoint: num_beams is 0, allowed: 1 to ", 0},
        {"{\"num_beams\": 0}", {"num_beams", "2"}, "num_beams", "2", NULL, ""},
        {"{\"num_beams\": null, \"num_beam_groups\": 0, \"length_penalty\": \"x\", \"early_stopping\": 1}",
         {0},
         "num_beams",
         "1",
         NULL,
         NONE_HERE "num_beam_groups, length_penalty, early_stopping\n"},
        {"{\"penalty_alpha\": -0.1}", {0}, "penalty_alpha", "0", NULL, NONE_HERE "penalty_alpha -0.1\n"},
        {"{\"do_sample\": null}", {0}, "do_sample", "false", NULL, ""},
        {"{\"do_sample\": \"yes\"}", {0}, 0, 0, "checkpoint: do_sample is \"yes\", allowed: true or false", 0},
        {"{\"do_sample\": \"yes\"}", {"do_sample", "true"}, "do_sample", "true", NULL, ""},
        {"{\"pad_token_id\": -1, \"bos_token_id\": -1}",
         {0},
         "pad_token_id",
         "null",
         NULL,
         NONE_HERE "pad_token_id -1, bos_token_id -1\n"},
        {"{\"eos_token_id\": -1}", {0}, "eos_token_id", "[]", NULL, NONE_HERE "eos_token_id -1\n"},
        {"{\"eos_token_id\": [1, -1, 7]}", {0}, "eos_token_id", "[1,7]", NULL, NONE_HERE "eos_token_id -1\n"},
        {"{\"eos_token_id\": [1, -1]}", {"eos_token_id", "[2]"}, "eos_token_id", "[2]", NULL, ""},
        {"{\"eos_token_id\": [1, \"2\"]}", {0}, 0, 0, "checkpoint: eos_token_id is [1,\"2\"], allowed: token ids", 0},
        {"{\"eos_token_id\": null}", {0}, "eos_token_id", "[]", NULL, ""},
        {"{\"suppress_tokens\": [-1], \"begin_suppress_tokens\": [220, -1]}",
         {0},
         "begin_suppress_tokens",
         "[220]",
         NULL,
         NONE_HERE "suppress_tokens -1, begin_suppress_tokens -1\n"},
        {"{\"forced_bos_token_id\": -1}", {0}, 0, 0, "checkpoint: forced_bos_token_id is -1, allowed: a token id", 0},
        {"{\"bad_words_ids\": [[-1]]}", {"bad_words_ids", "null"}, "bad_words_ids", "[]", NULL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_generation_config *config = checkpoint_of(cases[i].settings), *copy = NULL;
        char *warnings = NULL;
        if (cases[i].set[0]) assert_ok(mn_generation_config_set(config, cases[i].set[0], cases[i].set[1]));
        assert_ok(generation_config_copy(&copy, config));
        mn_status status = mn_generation_config_check(copy, NULL, &warnings);
        if (cases[i].error) {
            if (status != MN_E_FORMAT || strstr(mn_last_error(), cases[i].error) != mn_last_error())
                fail_msg("%s: status %d, '%s'", cases[i].settings, status, mn_last_error());
        } else {
            char *has = mn_generation_config_get(copy, cases[i].field);
            if (status != MN_OK || strcmp(warnings, cases[i].warnings) != 0 || strcmp(has, cases[i].has) != 0)
                fail_msg("%s: status %d, %s %s, '%s'", cases[i].settings, status, cases[i].field, has, warnings);
            mn_free(has);
        }
        mn_free(warnings);
        mn_generation_config_close(&copy);
        mn_generation_config_close(&config);
    }
}

static void what_the_program_decides_is_not_reported(void **state) {
    (void)state;
    mn_generation_config *config = checkpoint_of("{\"temperature\": 0.6, \"top_p\": 0.9, \"do_sample\": true}");
    char *warnings = NULL;
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_check(config, NULL, &warnings));
    assert_string_equal(warnings, "");
    mn_free(warnings);
    assert_ok(mn_generation_config_set(config, "top_p", "0.8"));
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    int32_t prompt[] = {3};
    options.negative_prompt = prompt;
    options.n_negative_prompt = 1;
    assert_ok(mn_generation_config_check(config, &options, &warnings));
    assert_string_equal(warnings, "top_p is 0.8 but has no effect: do_sample is false\n"
                                  "the negative prompt has no effect: guidance_scale is not set\n");
    mn_free(warnings);
    options.keep_scores = true;
    assert_ok(mn_generation_config_set(config, "output_scores", "true"));
    assert_ok(mn_generation_config_set(config, "top_p", "1"));
    assert_ok(mn_generation_config_check(config, &options, &warnings));
    assert_string_equal(warnings, "the negative prompt has no effect: guidance_scale is not set\n");
    mn_free(warnings);
    options.size = 3;
    assert_fails(MN_E_ARG, "mn_generate_options.size is 3", mn_generation_config_check(config, &options, &warnings));
    mn_generation_config_close(&config);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char own[] = "{\"temperature\": 0.7, \"min_new_tokens\": 4}";
    mn_generation_config *config = checkpoint_of("{\"top_p\": 0.7, \"made_up\": 3, \"top_k\": -1}");
    assert_ok(mn_generation_config_load(config, own, strlen(own)));
    int64_t k = 1, live = mem_count().live;
    for (;; k++) {
        char *warnings = NULL;
        mem_fail_after(k);
        mn_status status = mn_generation_config_check(config, NULL, &warnings);
        mem_fail_after(0);
        if (status == MN_OK) {
            assert_string_equal(warnings,
                                "temperature is 0.7 but has no effect: do_sample is false\n"
                                "min_new_tokens is 4 but has no effect: eos_token_id is not set\n"
                                "generation_config.json has fields that have no effect here: top_p, top_k, made_up\n");
            mn_free(warnings);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_null(warnings);
        assert_int_equal(mem_count().live, live);
    }
    assert_true(k > 10);
    mn_generation_config_close(&config);
}

/* A field that only sampling uses is named when nothing is sampled, and not when something is; no other field is. */
static void fields_of_sampling_need_it(void **state) {
    (void)state;
    static const char *const of_sampling[] = {"temperature", "top_k",          "top_p",     "min_p",
                                              "typical_p",   "epsilon_cutoff", "eta_cutoff"};
    const size_t n_of_sampling = sizeof of_sampling / sizeof *of_sampling;
    size_t n = 0;
    const mn_generation_field *field;
    for (int i = 0; (field = mn_generation_field_at(i)) != NULL; i++) {
        const bool is_count = strcmp(field->kind, "integer") == 0;
        if (!is_count && strcmp(field->kind, "number") != 0) continue;
        for (int samples = 0; samples < 2; samples++) {
            char *warnings = NULL, wanted[128];
            mn_generation_config *config = config_of(samples ? "{\"do_sample\": true}" : "{}");
            snprintf(wanted, sizeof wanted, "%s is %s but has no effect: do_sample is false", field->name,
                     is_count ? "7" : "0.5");
            mn_status status = mn_generation_config_set(config, field->name, is_count ? "7" : "0.5");
            if (status == MN_OK) status = mn_generation_config_check(config, NULL, &warnings);
            const bool is_named = status == MN_OK && strstr(warnings, wanted);
            if (is_named != (field->only_samples && !samples))
                fail_msg("%s, do_sample %d: '%s'", field->name, samples, warnings ? warnings : mn_last_error());
            mn_free(warnings);
            mn_generation_config_close(&config);
        }
        bool is_of_sampling = false;
        for (size_t k = 0; k < n_of_sampling; k++) is_of_sampling |= strcmp(field->name, of_sampling[k]) == 0;
        if (field->only_samples != is_of_sampling) fail_msg("%s: only_samples is %d", field->name, field->only_samples);
        n += is_of_sampling;
    }
    assert_int_equal(n, n_of_sampling);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_select_the_mode),
        cmocka_unit_test(contradictory_settings_are_refused),
        cmocka_unit_test(forced_phrases_have_1024_forms_at_most),
        cmocka_unit_test(settings_without_effect_are_reported),
        cmocka_unit_test(fields_of_sampling_need_it),
        cmocka_unit_test(fields_of_a_checkpoint_are_one_line),
        cmocka_unit_test(odd_values_of_a_checkpoint),
        cmocka_unit_test(what_the_program_decides_is_not_reported),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
