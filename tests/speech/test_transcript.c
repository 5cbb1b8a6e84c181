/* Segments, texts and words of a transcript as they are added; failed allocations.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/transcript.h"

#include "support/engine.h"

/* "Once upon a time" in the embedded vocabulary, with timestamps (ids beyond the text) around it. */
typedef struct fixture {
    mn_model *model;
    tokenizer *tokenizer;
    speech_tokens tokens;
    int32_t ids[64];
    size_t n;
} fixture;

static const char text[] = "Once upon a time";

static int set_up(void **state) {
    static fixture w;
    token_list list = {0};
    w.model = engine_model("embedded", "f32", "auto", 1);
    w.tokenizer = (tokenizer *)(uintptr_t)mn_model_tokenizer(w.model);
    w.tokens = (speech_tokens){.vocab_size = 600, .end = 512, .first_timestamp = 520};
    assert_ok(tokenizer_encode(w.tokenizer, text, strlen(text), 0, &list));
    assert_true(list.n + 2 <= 64);
    w.ids[0] = 520;
    memcpy(w.ids + 1, list.ids, list.n * sizeof *list.ids);
    w.ids[list.n + 1] = 530;
    w.n = list.n + 2;
    token_list_clear(&list);
    *state = &w;
    return 0;
}

static int tear_down(void **state) {
    mn_model_close(&((fixture *)*state)->model);
    return 0;
}

static mn_status add(transcript *t, const fixture *w, double start) {
    static const speech_word words[] = {{.text_end = 4, .start = 0.1, .end = 0.5},
                                        {.text_begin = 4, .text_end = 9, .start = 0.5, .end = 0.75}};
    const transcript_words timed = {.words = words, .n = 2, .text = text, .offset = start};
    const mn_segment segment = {.start = start, .end = start + 1, .ids = w->ids, .n_ids = w->n, .avg_logprob = -0.5};
    return transcript_add(t, &segment, &timed);
}

static void segments_texts_and_words_are_collected(void **state) {
    const fixture *w = *state;
    transcript t = {.tokenizer = w->tokenizer, .tokens = &w->tokens};
    assert_ok(add(&t, w, 0));
    assert_ok(add(&t, w, 2));
    assert_ok(transcript_finish(&t, MN_OK));
    const mn_transcript *p = &t.public;
    assert_true(p->n_segments == 2 && p->n_ids == 2 * w->n && p->status == MN_OK && !*p->error && !p->language);
    for (size_t i = 0; i < 2; i++) {
        const mn_segment *s = p->segments[i];
        assert_memory_equal(s->ids, w->ids, w->n * sizeof *w->ids);
        assert_memory_equal(p->ids + i * w->n, w->ids, w->n * sizeof *w->ids);
        assert_string_equal(s->text, text); /* timestamps give no text */
        assert_true(s->avg_logprob == -0.5 && s->n_words == 2);
        assert_true(s->words[0]->n_text == 4 && memcmp(s->words[0]->text, "Once", 4) == 0);
        assert_true(s->words[1]->n_text == 5 && memcmp(s->words[1]->text, " upon", 5) == 0);
        assert_true(s->words[0]->start == s->start + 0.1 && s->words[1]->end == s->start + 0.75);
    }
    assert_int_equal(strncmp(p->text, text, strlen(text)), 0);
    assert_true(p->n_text > strlen(text));
    transcript_clear(&t);
}

static void every_allocation_may_fail(void **state) {
    const fixture *w = *state;
    int64_t live = mem_count().live;
    int n_failed = 0;
    for (int64_t k = 1;; k++) {
        transcript t = {.tokenizer = w->tokenizer, .tokens = &w->tokens};
        assert_ok(add(&t, w, 0));
        mem_fail_after(k);
        mn_status status = add(&t, w, 2);
        mem_fail_after(0);
        assert_int_equal(t.public.n_segments, status == MN_OK ? 2 : 1);
        assert_int_equal(t.public.n_ids, status == MN_OK ? 2 * w->n : w->n);
        transcript_clear(&t);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
        n_failed++;
    }
    assert_true(n_failed >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_texts_and_words_are_collected),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
