/* The special token ids of a checkpoint's files, and the prompts that follow from them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/tokens.h"

#include "support/scratch.h"
#include "support/speech/transcripts.h"

static void published_values_are_read(void **state) {
    (void)state;
    speech_tokens t;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper-real/whisper-base")));
    const int32_t got[] = {
        t.vocab_size, t.end,           t.start,      t.previous,        t.transcribe,           t.translate,
        t.no_speech,  t.no_timestamps, t.max_length, t.first_timestamp, t.max_initial_timestamp};
    const int32_t wanted[] = {51865, 50257, 50258, 50361, 50359, 50358, 50362, 50363, 448, 50364, 50};
    assert_memory_equal(got, wanted, sizeof wanted);
    assert_int_equal(t.n_suppress, 88);
    assert_int_equal(t.n_begin_suppress, 2);
    assert_int_equal(t.n_languages, 99);
    assert_int_equal(t.n_heads, 8);
    assert_int_equal(t.heads[0].layer, 3);
    assert_int_equal(t.heads[0].head, 1);
    assert_int_equal(speech_tokens_language(&t, "en")->id, 50259);
    assert_int_equal(speech_tokens_language(&t, "haw")->id, 50352);
    assert_null(speech_tokens_language(&t, "e"));
    speech_tokens_close(&t);
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper-real/whisper-tiny.en")));
    assert_int_equal(t.n_languages, 0);
    assert_int_equal(t.transcribe, -1);
    assert_int_equal(t.first_timestamp, 50363);
    speech_tokens_close(&t);
}

/* ---- prompts ---- */

typedef struct tally {
    int n;
} tally;

static void check_prompt(const transcript *t, const json *prompt, const char *what) {
    int32_t wanted[MOST_IDS], got[MOST_IDS];
    size_t n_wanted = transcript_ids(prompt, wanted);
    const speech_language *language = NULL;
    for (size_t i = 0; i < t->tokens.n_languages && n_wanted > 1; i++) {
        if (t->tokens.languages[i].id == wanted[1]) language = &t->tokens.languages[i];
    }
    bool timestamps = wanted[n_wanted - 1] != t->tokens.no_timestamps;
    speech_task task = n_wanted > 2 && wanted[2] == t->tokens.translate ? SPEECH_TRANSLATE : SPEECH_TRANSCRIBE;
    size_t n = speech_prompt(got, &t->tokens, language, task, timestamps, NULL);
    if (n != n_wanted || memcmp(got, wanted, n * sizeof *got) != 0)
        fail_msg("%s: another prompt for %s", t->name, what);
}

static void visit_prompts(const transcript *t, void *user) {
    static const char *const runs[] = {"greedy", "greedy_timestamps", "beam5", "greedy_translate"};
    tally *all = user;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const json *run = transcript_run(t, runs[i]);
        if (!run || !json_get(run, "prompt")) continue;
        check_prompt(t, json_get(run, "prompt"), runs[i]);
        all->n++;
    }
    if (!json_is_string(json_get(t->root, "kind"), "whisper")) return;
    check_prompt(t, json_get(t->root, "prompt"), "whisper");
    all->n++;
}

static void recorded_prompts_are_reproduced(void **state) {
    (void)state;
    tally all = {0};
    transcripts_visit(visit_prompts, &all);
    assert_true(all.n >= 40);
}

static void prompts_include_previous_text(void **state) {
    (void)state;
    speech_tokens t;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    int32_t history[100], out[100];
    for (int i = 0; i < 100; i++) history[i] = i;
    const speech_language *en = speech_tokens_language(&t, "en");
    size_t n =
        speech_prompt(out, &t, en, SPEECH_TRANSLATE, true, &(speech_context){.history = history, .n_history = 2});
    const int32_t some[] = {209, 0, 1, 201, 202, 206};
    assert_int_equal(n, 6);
    assert_memory_equal(out, some, sizeof some);
    n = speech_prompt(out, &t, en, SPEECH_TRANSCRIBE, false, &(speech_context){.history = history, .n_history = 100});
    assert_int_equal(n, 1 + 47 + 4); /* 96 / 2 - 1 of them */
    assert_int_equal(out[0], 209);
    assert_int_equal(out[1], 53);
    assert_int_equal(out[47], 99);
    assert_int_equal(out[51], 211);
    t.previous = -1; /* a model without a token for previous text */
    const speech_context five = {.history = history, .n_history = 5};
    assert_int_equal(speech_prompt(out, &t, NULL, SPEECH_TRANSCRIBE, true, &five), 1);
    assert_int_equal(out[0], 201);
    speech_tokens_close(&t);
}

/* As faster-whisper has them, but cut so that both have half of the context. */
static void prompts_begin_with_hotwords(void **state) {
    (void)state;
    static const struct {
        size_t n_hotwords, n_history, kept_hotwords, kept_history;
    } cases[] = {{2, 0, 2, 0},   {2, 3, 2, 3},   {0, 3, 0, 3},   {40, 7, 40, 7}, {40, 8, 40, 7},
                 {47, 9, 47, 0}, {90, 9, 47, 0}, {7, 90, 7, 40}, {48, 0, 47, 0}, {46, 90, 46, 1}};
    speech_tokens t;
    int32_t hotwords[90], history[90], out[100];
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    for (int i = 0; i < 90; i++) {
        hotwords[i] = i;
        history[i] = 100 + i;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n_hotwords = cases[i].kept_hotwords, n_history = cases[i].kept_history, n = n_hotwords + n_history;
        const speech_context context = {hotwords, history, cases[i].n_hotwords, cases[i].n_history};
        assert_int_equal(speech_prompt(out, &t, NULL, SPEECH_TRANSCRIBE, true, &context), n + 2);
        assert_int_equal(out[0], 209);
        for (size_t k = 0; k < n_hotwords; k++) assert_int_equal(out[1 + k], k);
        for (size_t k = 0; k < n_history; k++)
            assert_int_equal(out[1 + n_hotwords + k], 100 + cases[i].n_history - n_history + k);
        assert_int_equal(out[1 + n], 201);
    }
    speech_tokens_close(&t);
}

/* ---- bad files ---- */

#define CONFIG "\"vocab_size\": 300, \"max_target_positions\": 96"
#define IDS    "\"eos_token_id\": 200, \"decoder_start_token_id\": 201, \"no_timestamps_token_id\": 211"

static mn_status read_texts(speech_tokens *t, const char *config, const char *generation) {
    json_doc *a = NULL, *b = NULL;
    assert_ok(json_parse(&a, config, strlen(config), JSON_PYTHON, "config.json"));
    if (generation) assert_ok(json_parse(&b, generation, strlen(generation), JSON_PYTHON, "generation_config.json"));
    mn_status status = speech_tokens_read(t, json_root(a), b ? json_root(b) : NULL);
    json_close(&a);
    json_close(&b);
    return status;
}

static void values_of_generation_config_have_precedence(void **state) {
    (void)state;
    speech_tokens t;
    assert_ok(read_texts(&t, "{" CONFIG "," IDS ", \"suppress_tokens\": [1, 2]}", NULL));
    assert_int_equal(t.n_suppress, 2);
    assert_int_equal(t.max_initial_timestamp, -1);
    assert_int_equal(t.previous, -1);
    speech_tokens_close(&t);
    assert_ok(read_texts(&t, "{" CONFIG "," IDS ", \"suppress_tokens\": [1, 2]}",
                         "{\"suppress_tokens\": [], \"eos_token_id\": 199, \"begin_suppress_tokens\": null}"));
    assert_int_equal(t.n_suppress, 0);
    assert_int_equal(t.end, 199);
    speech_tokens_close(&t);
}

static void errors_name_the_invalid_value(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation, *part;
    } cases[] = {
        {"{}", "{" IDS "}", "config.json: 'vocab_size' is missing"},
        {"{\"vocab_size\": 0}", "{" IDS "}", "vocab_size"},
        {"{\"vocab_size\": 1e300}", "{" IDS "}", "vocab_size"},
        {"{\"vocab_size\": 300}", "{" IDS "}", "'max_target_positions' is missing"},
        {"{" CONFIG "}", "{}", "generation_config.json: 'eos_token_id' is missing"},
        {"{" CONFIG "}", "{\"eos_token_id\": 2, \"decoder_start_token_id\": 3}", "'no_timestamps_token_id' is missing"},
        {"{" CONFIG "}", "{\"eos_token_id\": [2]}", "eos_token_id"},
        {"{" CONFIG "}", "{\"eos_token_id\": 300}", "eos_token_id is 300"},
        {"{" CONFIG "}", "{\"eos_token_id\": 250, \"decoder_start_token_id\": 3, \"no_timestamps_token_id\": 211}",
         "no_timestamps_token_id is 211"},
        {"{" CONFIG "}", "{\"eos_token_id\": 250, \"decoder_start_token_id\": 3, \"no_timestamps_token_id\": 299}",
         "no_timestamps_token_id is 299"},
        {"{" CONFIG "}", "{" IDS ", \"suppress_tokens\": 5}", "suppress_tokens is 5, allowed: a list"},
        {"{" CONFIG "}", "{" IDS ", \"suppress_tokens\": [5, -1]}", "suppress_tokens is -1"},
        {"{" CONFIG ", \"begin_suppress_tokens\": [300]}", "{" IDS "}", "config.json: begin_suppress_tokens is 300"},
        {"{" CONFIG "}", "{" IDS ", \"lang_to_id\": [1]}", "lang_to_id"},
        {"{" CONFIG "}", "{" IDS ", \"lang_to_id\": {\"<|en|>\": 300}}", "<|en|>"},
        {"{" CONFIG "}", "{" IDS ", \"lang_to_id\": {\"en\": 3}}", "lang_to_id has the key 'en'"},
        {"{" CONFIG "}", "{" IDS ", \"lang_to_id\": {\"<|eightlet|>\": 3}}", "lang_to_id has the key '<|eightlet|>'"},
        {"{" CONFIG "}", "{" IDS ", \"task_to_id\": {\"translate\": -5}}", "translate is -5"},
        {"{" CONFIG "}", "{" IDS ", \"task_to_id\": 7}", "task_to_id is 7"},
        {"{" CONFIG "}", "{" IDS ", \"alignment_heads\": {}}", "alignment_heads"},
        {"{" CONFIG "}", "{" IDS ", \"alignment_heads\": [[1]]}", "alignment_heads"},
        {"{" CONFIG ", \"decoder_layers\": 2}", "{" IDS ", \"alignment_heads\": [[1, 0], [2, 0]]}", "alignment_heads"},
        {"{" CONFIG ", \"decoder_attention_heads\": 4}", "{" IDS ", \"alignment_heads\": [[1, 4]]}", "alignment_heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        speech_tokens t;
        assert_fails(MN_E_FORMAT, cases[i].part, read_texts(&t, cases[i].config, cases[i].generation));
        assert_null(t.suppress);
        assert_null(t.languages);
    }
    speech_tokens t;
    assert_fails(MN_E_NOT_FOUND, "config.json", speech_tokens_open(&t, scratch_path("nothing")));
    speech_tokens_close(&t);
    speech_tokens_close(NULL);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t live = mem_count().live;
    for (int64_t k = 1;; k++) {
        speech_tokens t;
        mem_fail_after(k);
        mn_status status = speech_tokens_open(&t, data_path("golden/whisper/tiny80"));
        mem_fail_after(0);
        if (status == MN_OK) {
            assert_true(k > 6);
            speech_tokens_close(&t);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(mem_count().live, live);
    }
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values_are_read),
        cmocka_unit_test(recorded_prompts_are_reproduced),
        cmocka_unit_test(prompts_include_previous_text),
        cmocka_unit_test(prompts_begin_with_hotwords),
        cmocka_unit_test(values_of_generation_config_have_precedence),
        cmocka_unit_test(errors_name_the_invalid_value),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
