/* Normalization forms against Python's unicodedata and utf8proc, in linear time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"
#include "support/support.h"

#include <utf8proc.h>

#include "text/tokenizer/unicode.h"

enum { N_FORMS = 4 };

static const char *const form_names[N_FORMS] = {"NFC", "NFD", "NFKC", "NFKD"};

static const int map_options[N_FORMS] = {
    [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static void append_code(bytes *out, uint32_t code) {
    char sequence[4];
    bytes_append(out, sequence, utf8_encode(sequence, code));
}

/* ---- recorded forms ---- */

/* Hexadecimal numbers up to a semicolon or the line's end; *at moves past it. */
static void read_field(const char **at, bytes *out) {
    out->n = 0;
    while (**at && **at != ';' && **at != '\n') {
        char *end;
        unsigned long code = strtoul(*at, &end, 16);
        assert_true(end > *at);
        append_code(out, (uint32_t)code);
        *at = end;
    }
    *at += **at == ';';
}

static void forms_equal_those_of_python(void **state) {
    (void)state;
    bytes file = {0}, fields[1 + N_FORMS] = {{0}}, seen = {0};
    size_t n_lines = 0;
    assert_ok(file_read(&file, data_path("unicode/normalization.txt"), 1 << 20));
    const char *at = strchr(bytes_text(&file), '\n');
    assert_non_null(at);
    for (at++; *at; at++, n_lines++) {
        for (int i = 0; i <= N_FORMS; i++) read_field(&at, &fields[i]);
        for (int form = 0; form < N_FORMS; form++) {
            seen.n = 0;
            assert_ok(unicode_normalize((unicode_form)form, fields[0].data, fields[0].n, &seen));
            if (strcmp(bytes_text(&seen), bytes_text(&fields[1 + form])) != 0)
                fail_msg("case %zu, %s: '%s', expected '%s'", n_lines, form_names[form], seen.data,
                         fields[1 + form].data);
        }
        assert_int_equal(*at, '\n');
    }
    assert_true(n_lines > 1000);
    for (int i = 0; i <= N_FORMS; i++) bytes_clear(&fields[i]);
    bytes_clear(&seen);
    bytes_clear(&file);
}

/* ---- utf8proc's normalization: correct (except U+11A7) and slow ---- */

static void forms_equal_those_of_utf8proc(void **state) {
    (void)state;
    static const uint32_t blocks[][2] = {{0x20, 0x17F},    {0x300, 0x36F},     {0x483, 0x487},   {0x591, 0x5C7},
                                         {0x610, 0x65F},   {0x900, 0x97F},     {0xE30, 0xE4E},   {0xF71, 0xF84},
                                         {0x1100, 0x11FF}, {0x1AB0, 0x1ABE},   {0x1E00, 0x1FFF}, {0x302A, 0x309A},
                                         {0xAC00, 0xAC80}, {0x1D15E, 0x1D1AD}, {0xFB1D, 0xFBFF}, {0x2460, 0x24FF}};
    uint64_t seed = 7;
    bytes text = {0}, seen = {0};
    for (int round = 0; round < 4000; round++) {
        size_t n = 1 + test_random(&seed) % (round % 8 ? 12 : 80);
        text.n = 0;
        for (size_t i = 0; i < n; i++) {
            const uint32_t *block = blocks[round % 3 ? 1 + test_random(&seed) % 4 : test_random(&seed) % 16];
            uint32_t code = block[0] + (uint32_t)(test_random(&seed) % (block[1] - block[0] + 1));
            append_code(&text, code == 0x11A7 ? 0x11A8 : code);
        }
        for (int form = 0; form < N_FORMS; form++) {
            utf8proc_uint8_t *expected = NULL;
            seen.n = 0;
            assert_ok(unicode_normalize((unicode_form)form, text.data, text.n, &seen));
            utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text.data, (utf8proc_ssize_t)text.n,
                                                   &expected, (utf8proc_option_t)map_options[form]);
            assert_int_equal(length, seen.n);
            assert_memory_equal(seen.data, expected, seen.n);
            free(expected);
        }
    }
    bytes_clear(&text);
    bytes_clear(&seen);
}

/* ---- linear time ---- */

enum { MANY = 100000 };

/* 'a' and MANY marks, which canonical ordering sorts by class. */
static void many_marks_are_ordered_in_linear_time(void **state) {
    (void)state;
    static const uint32_t marks[] = {0x345, 0x315, 0x301, 0x316,
                                     0x327, 0x334, 0x308}; /* classes 240 down to 1, then 230 */
    static const uint32_t ordered[][2] = {{0x334}, {0x327}, {0x316}, {0x301, 0x308}, {0x315}, {0x345}};
    enum { N_MARKS = sizeof marks / sizeof *marks, N_ORDERED = sizeof ordered / sizeof *ordered };
    bytes text = {0}, expected = {0}, seen = {0};
    append_code(&text, 'x');
    append_code(&expected, 'x');
    for (size_t i = 0; i < MANY; i++) append_code(&text, marks[i % N_MARKS]);
    for (size_t k = 0; k < N_ORDERED; k++) {
        for (size_t i = 0; i < MANY; i++) {
            if (marks[i % N_MARKS] == ordered[k][0] || marks[i % N_MARKS] == ordered[k][1])
                append_code(&expected, marks[i % N_MARKS]);
        }
    }
    for (int form = 0; form < N_FORMS; form++) {
        double from = processor_seconds();
        seen.n = 0;
        assert_ok(unicode_normalize((unicode_form)form, text.data, text.n, &seen));
        assert_within(from, 0.003, form_names[form]);
        assert_int_equal(seen.n, expected.n);
        assert_memory_equal(seen.data, expected.data, seen.n);
    }
    bytes_clear(&text);
    bytes_clear(&expected);
    bytes_clear(&seen);
}

/* Texts that compose at every character, at the last of many, and never. */
static void composition_is_linear(void **state) {
    (void)state;
    static const uint32_t patterns[][3] = {
        {'e', 0x323, 0x302}, {0x1112, 0x1161, 0x11AB}, {'x', 0x334, 0x338}, {0xFDFA, 0xFDFA, 0x1D160}};
    bytes text = {0}, seen = {0};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        text.n = 0;
        for (size_t k = 0; k < MANY; k++) append_code(&text, patterns[i][k % 3]);
        append_code(&text, 'q');
        for (int form = 0; form < N_FORMS; form++) {
            double from = processor_seconds();
            seen.n = 0;
            assert_ok(unicode_normalize((unicode_form)form, text.data, text.n, &seen));
            assert_within(from, 0.025, form_names[form]);
            assert_true(seen.n > MANY / 3);
        }
    }
    bytes_clear(&text);
    bytes_clear(&seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_equal_those_of_python),
        cmocka_unit_test(forms_equal_those_of_utf8proc),
        cmocka_unit_test(many_marks_are_ordered_in_linear_time),
        cmocka_unit_test(composition_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
