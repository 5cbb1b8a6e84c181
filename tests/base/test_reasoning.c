/* Reasoning and answer are told apart, whole and in pieces of any size.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/reasoning.h"

typedef struct told {
    const char *template, *prompt;  /* prompt: its end */
    const char *reasoning, *answer; /* what a whole text is divided into */
    const char *alone;              /* the reasoning without markers and blanks around it */
} told;

#define QWEN "{% if '</think>' in content %}"

static const told cases[] = {
    {QWEN, "assistant\n", "<think>\nOne <b>.\n</think>\n\n", "Two.", "One <b>."},
    {QWEN, "assistant\n", "", "Two.", ""},
    {QWEN, "assistant\n", "", "", ""},
    {QWEN, "assistant\n", "", "<thin", ""},
    {QWEN, "assistant\n", "", " \n", ""},
    {QWEN, "assistant\n", "", "It is <think>x</think>.", ""},
    {QWEN, "assistant\n", " \n<think></think>", "a<think>b</think>c", ""},
    {QWEN, "assistant\n", "<think>cut <", "", "cut <"},
    {QWEN, "assistant\n", "<think>cut </thin", "", "cut </thin"},
    {QWEN, "assistant\n", "<think>a</thin</think>\n", "b", "a</thin"},
    {QWEN, "assistant\n", "<think>a</think> \n", "", "a"},
    {QWEN, "assistant\n<think>\n", "a</think>\n", "b", "a"},
    {QWEN, "assistant\n<think>\n", "<think>a</think>", "b", "a"},
    {QWEN, "assistant\n<think>\n", "never", "", "never"},
    {QWEN, "assistant\n<think>\n", " \n<thin a \n b \n </think>\n", "c", "<thin a \n b"},
    {QWEN, "assistant\n<think>\n", " <thin ", "", "<thin"},
    {QWEN, "assistant\n<think>\n", " \n", "", ""},
    {QWEN, "<think>\n\n</think>\n\n", "", "b", ""},
    {"{% for m in messages %}", "assistant:", "<think>a</think>", "b", "a"},
    {"'[THINK]' + m.thinking", "[/INST]", "[THINK]a</think>[/THINK]", "b", "a</think>"},
    {"'[THINK]' + m.thinking", "[/INST]", "", "<think>a</think>b", ""},
    {"<seed:think>", "assistant\n", "<seed:think>a</seed:think>", "b", "a"},
};

enum { N_CASES = sizeof cases / sizeof *cases };

static reasoning open_case(const told *c, bytes *whole) {
    whole->n = 0;
    bytes_append_text(whole, c->reasoning);
    bytes_append_text(whole, c->answer);
    bytes_text(whole);
    return reasoning_of(c->template, c->prompt, strlen(c->prompt));
}

static void whole_texts_are_divided(void **state) {
    (void)state;
    bytes whole = {0}, alone = {0};
    for (int i = 0; i < N_CASES; i++) {
        const reasoning r = open_case(&cases[i], &whole);
        const reasoning_place at = reasoning_find(&r, whole.data, whole.n);
        assert_int_equal(at.answer, strlen(cases[i].reasoning));
        alone.n = 0;
        bytes_append(&alone, whole.data + at.begin, at.end - at.begin);
        assert_string_equal(bytes_text(&alone), cases[i].alone);
    }
    const reasoning none = {0};
    assert_int_equal(reasoning_find(&none, "<think>a</think>", 16).answer, 0);
    bytes_clear(&whole);
    bytes_clear(&alone);
}

typedef struct taken {
    bytes answer, reasoning, alone; /* reasoning: with markers */
} taken;

static bool take(void *user, reasoning_part part, const char *text, size_t n) {
    taken *t = user;
    assert_true(n > 0);
    assert_false(part != REASONING_ANSWER && t->answer.n); /* the answer comes behind it */
    bytes_append(part == REASONING_ANSWER ? &t->answer : &t->reasoning, text, n);
    if (part == REASONING_TEXT) bytes_append(&t->alone, text, n);
    return true;
}

static void pieces_are_divided_as_the_whole(void **state) {
    (void)state;
    bytes whole = {0};
    for (int i = 0; i < N_CASES; i++) {
        const reasoning r = open_case(&cases[i], &whole);
        for (size_t first = 0; first <= whole.n; first++) {
            for (size_t step = 1; step <= 9; step += 4) {
                taken t = {0};
                reasoning_stream s = {0};
                assert_true(reasoning_push(&s, &r, whole.data, first, take, &t));
                for (size_t at = first; at < whole.n; at += step)
                    assert_true(
                        reasoning_push(&s, &r, whole.data + at, step < whole.n - at ? step : whole.n - at, take, &t));
                assert_true(reasoning_finish(&s, &r, take, &t));
                assert_string_equal(bytes_text(&t.reasoning), cases[i].reasoning);
                assert_string_equal(bytes_text(&t.answer), cases[i].answer);
                assert_string_equal(bytes_text(&t.alone), cases[i].alone);
                bytes_clear(&t.reasoning);
                bytes_clear(&t.answer);
                bytes_clear(&t.alone);
            }
        }
    }
    bytes_clear(&whole);
}

static bool record_lengths(void *user, reasoning_part part, const char *text, size_t n) {
    bytes *lengths = user;
    (void)text;
    bytes_printf(lengths, "%c%zu ", "mra"[part], n);
    return n != 7;
}

/* Nothing is held back that cannot be a marker, and a taker that has enough ends it. */
static void pieces_are_given_at_once(void **state) {
    (void)state;
    static const char *const pieces[] = {"\n", "<th", "ink>", "a", " < b", "</", "think", ">", "\n\n", "Yes", ", no"};
    const reasoning r = reasoning_of(QWEN, "", 0);
    reasoning_stream s = {0};
    bytes lengths = {0};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        assert_true(reasoning_push(&s, &r, pieces[i], strlen(pieces[i]), record_lengths, &lengths));
        bytes_append_text(&lengths, "|");
    }
    assert_false(reasoning_push(&s, &r, "1234567", 7, record_lengths, &lengths));
    assert_true(reasoning_finish(&s, &r, record_lengths, &lengths));
    assert_string_equal(bytes_text(&lengths), "||m8 |r1 |r4 |||m8 |m2 |a3 |a4 |a7 ");
    bytes_clear(&lengths);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_texts_are_divided),
        cmocka_unit_test(pieces_are_divided_as_the_whole),
        cmocka_unit_test(pieces_are_given_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
