/* The tokenizers of the real Whisper models, as scripts/get-model installs them, on recorded transcripts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/segments.h"

#include "support/speech/transcripts.h"
#include "text/tokenizer/tokenizer.h"

typedef struct tally {
    tokenizer *tokenizer;
    const char *model;
    int n_texts, n_usual;
} tally;

/* The ids of a run below the end token decode to its text; the text encodes to these ids where the model used the
 * canonical tokens. */
static void check_run(const transcript *t, const json *run, tally *all) {
    int32_t ids[MOST_IDS], words[MOST_IDS];
    const json *text = json_get(run, "text");
    size_t n = speech_text_ids(words, &t->tokens, ids, transcript_ids(json_get(run, "tokens"), ids));
    bytes out = {0};
    token_list back = {0};
    assert_ok(tokenizer_decode(all->tokenizer, words, n, 0, &out));
    if (out.n != text->n || memcmp(out.data, text->string, out.n) != 0)
        fail_msg("%s: '%s', expected '%s'", t->name, bytes_text(&out), text->string);
    assert_ok(tokenizer_encode(all->tokenizer, text->string, text->n, 0, &back));
    all->n_usual += back.n == n && memcmp(back.ids, words, n * sizeof *words) == 0;
    all->n_texts++;
    bytes_clear(&out);
    token_list_clear(&back);
}

static void visit_texts(const transcript *t, void *user) {
    static const char *const runs[] = {"greedy", "greedy_timestamps", "greedy_translate", "beam5",
                                       "plain",  "conditioned"};
    tally *all = user;
    if (strcmp(t->model, all->model) != 0) return;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const json *run = transcript_run(t, runs[i]), *segments = run ? json_get(run, "segments") : NULL;
        if (run && json_get(run, "text")) check_run(t, run, all);
        for (size_t k = 0; segments && k < segments->n; k++) {
            if (json_get(&segments->items[k], "text")->n) check_run(t, &segments->items[k], all);
        }
    }
}

static void check_model(const char *model) {
    const char *path = whisper_path(model);
    if (!path) skip();
    tally all = {.model = model};
    assert_ok(tokenizer_open(&all.tokenizer, path));
    transcripts_visit(visit_texts, &all);
    assert_true(all.n_texts > 100 && all.n_usual * 10 > all.n_texts * 9);
    tokenizer_close(&all.tokenizer);
}

static void texts_of_whisper_tiny_are_reproduced(void **state) {
    (void)state;
    check_model("whisper-tiny.en");
}

static void texts_of_whisper_base_are_reproduced(void **state) {
    (void)state;
    check_model("whisper-base");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_whisper_tiny_are_reproduced),
        cmocka_unit_test(texts_of_whisper_base_are_reproduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
