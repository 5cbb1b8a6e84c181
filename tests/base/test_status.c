/* Error messages, allocation, growing text buffers and option structs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/options.h"
#include "base/status.h"
#include "base/utf8.h"

enum { MESSAGE = 1023 }; /* bytes of the longest message */

static void every_code_has_a_text_of_its_own(void **state) {
    (void)state;
#define CODE(name, value, text) {MN_##name, value},
    static const struct {
        mn_status code;
        int value;
    } codes[] = {MN_STATUS_LIST(CODE)};
#undef CODE
    const size_t n = sizeof codes / sizeof *codes;
    for (size_t i = 0; i < n; i++) {
        const char *text = mn_status_text(codes[i].code);
        assert_int_equal(codes[i].code, codes[i].value);
        assert_true(strlen(text) > 3);
        assert_string_not_equal(text, "unknown status");
        for (size_t k = 0; k < i; k++) assert_string_not_equal(text, mn_status_text(codes[k].code));
    }
    assert_string_equal(mn_status_text((mn_status)12345), "unknown status");
    assert_string_equal(mn_status_text((mn_status)-10), "unknown status");
}

/* Characters of one to four bytes across the end of the message. */
static void long_messages_end_with_a_whole_character(void **state) {
    (void)state;
    static const char *const characters[] = {"a", "\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x98\x80"};
    char text[2 * MESSAGE];
    for (size_t c = 0; c < 4; c++) {
        for (size_t before = 0; before < 5; before++) {
            size_t n = before, width = c + 1;
            memset(text, 'x', before);
            for (; n + width < sizeof text; n += width) memcpy(text + n, characters[c], width);
            text[n] = 0;
            assert_int_equal(status_fail(MN_E_IO, "%s", text), MN_E_IO);
            size_t kept = strlen(mn_last_error()), whole = (MESSAGE - before) / width * width + before;
            if (whole == MESSAGE && width > 1)
                whole -= width; /* whether the character is complete is not visible there */
            assert_int_equal(kept, whole);
            assert_memory_equal(mn_last_error(), text, kept);
            for (size_t at = 0; at < kept;) {
                size_t length = utf8_sequence(mn_last_error() + at, kept - at);
                assert_true(length > 0);
                at += length;
            }
            status_context(MN_E_IO, "in %s", text);
            kept = strlen(mn_last_error());
            assert_true(kept < MESSAGE + 1);
            assert_memory_equal(mn_last_error(), "in ", 3);
            assert_int_equal(utf8_valid_prefix(mn_last_error(), kept), kept);
        }
    }
}

static void context_is_prepended_to_failures_only(void **state) {
    (void)state;
    status_fail(MN_E_FORMAT, "value is %d, allowed: %d", 7, 3);
    assert_int_equal(status_context(MN_OK, "nobody reads this"), MN_OK);
    assert_string_equal(mn_last_error(), "value is 7, allowed: 3");
    assert_int_equal(status_context(MN_E_FORMAT, "field '%s'", "x"), MN_E_FORMAT);
    assert_string_equal(mn_last_error(), "field 'x': value is 7, allowed: 3");
    status_fail(MN_E_IO, "again: %s", mn_last_error()); /* the old message may be an argument */
    assert_string_equal(mn_last_error(), "again: field 'x': value is 7, allowed: 3");
}

static void a_path_appears_once_in_a_message(void **state) {
    (void)state;
    static const struct {
        const char *message, *wanted;
    } cases[] = {
        {"it is empty", "a/b.json: it is empty"},
        {"a/b.json: it is empty", "a/b.json: it is empty"},
        {"cannot open 'a/b.json'", "cannot open 'a/b.json'"},
        {"cannot open 'a/b.json.part'", "a/b.json: cannot open 'a/b.json.part'"},
        {"cannot open 'x' beside 'a/b.json'", "cannot open 'x' beside 'a/b.json'"},
        {"a/b.jsonl: it is empty", "a/b.json: a/b.jsonl: it is empty"},
        {"'", "a/b.json: '"},
        {"", "a/b.json: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        status_fail(MN_E_FORMAT, "%s", cases[i].message);
        assert_int_equal(status_in_file(MN_E_FORMAT, "a/b.json"), MN_E_FORMAT);
        assert_string_equal(mn_last_error(), cases[i].wanted);
    }
}

static void allocation_sizes_do_not_overflow(void **state) {
    (void)state;
    int64_t live = mem_count().live;
    static const size_t counts[][2] = {
        {SIZE_MAX, 2}, {2, SIZE_MAX}, {SIZE_MAX / 2 + 2, 1}, {SIZE_MAX, 1}, {SIZE_MAX / 8 + 1, 8}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char wanted[128];
        snprintf(wanted, sizeof wanted, "out of memory: %zu elements of %zu bytes", counts[i][0], counts[i][1]);
        assert_null(mem_alloc(counts[i][0], counts[i][1]));
        assert_non_null(strstr(mn_last_error(), wanted));
    }
    assert_null(mem_copy_text("", SIZE_MAX));
    char *block = NULL;
    size_t capacity = 0;
    assert_int_equal(mem_grow(&block, &capacity, SIZE_MAX / 2 + 2, 1), MN_E_NOMEM);
    assert_int_equal(mem_grow(&block, &capacity, SIZE_MAX, 8), MN_E_NOMEM);
    assert_null(block);
    assert_int_equal(capacity, 0);
    size_t out;
    assert_true(size_mul(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_false(size_mul(SIZE_MAX, 2, &out));
    assert_true(size_add(SIZE_MAX, 0, &out) && out == SIZE_MAX);
    assert_false(size_add(SIZE_MAX, 1, &out));
    assert_int_equal(mem_count().live, live);
}

/* Short and long lines, with every allocation failing: earlier text is kept, and the failure is recorded. */
static void a_failed_append_is_recorded(void **state) {
    (void)state;
    char longer[1000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    int64_t live = mem_count().live;
    for (int64_t k = 1;; k++) {
        bytes b = {0};
        mem_fail_after(k);
        bytes_append(&b, "ab", 2);
        bytes_append(&b, NULL, 0);
        bytes_append_text(&b, "cd");
        bytes_printf(&b, "%d;", 5);
        bytes_printf(&b, "%s;", longer);
        bytes_printf(&b, "%s;", longer);
        bytes_append_text(&b, "end");
        bool whole = !b.failed;
        const char *text = bytes_text(&b);
        mem_fail_after(0);
        if (bytes_status(&b) == MN_OK) {
            assert_true(whole);
            assert_int_equal(b.n, 2 + 2 + 2 + 2 * sizeof longer + 3);
            assert_memory_equal(text, "abcd5;yy", 8);
            assert_string_equal(text + b.n - 5, "y;end");
            bytes_clear(&b);
            assert_true(k > 3);
            break;
        }
        assert_string_equal(text, "");
        assert_int_equal(bytes_status(&b), MN_E_NOMEM);
        size_t before = b.n;
        bytes_append_text(&b, "more");
        bytes_printf(&b, "%s", longer);
        assert_int_equal(b.n, before);
        bytes_clear(&b);
        assert_int_equal(mem_count().live, live);
    }
    /* The zero behind a text of any length needs no memory. */
    for (size_t n = 1; n < 200; n++) {
        bytes text = {0};
        for (size_t i = 0; i < n; i++) bytes_append(&text, "x", 1);
        assert_ok(bytes_status(&text));
        mem_fail_after(1);
        assert_int_equal(strlen(bytes_text(&text)), n);
        mem_fail_after(0);
        bytes_clear(&text);
    }
    bytes b = {.n = SIZE_MAX - 1}; /* only the length matters: nothing is read */
    bytes_append(&b, "ab", 2);
    assert_int_equal(bytes_status(&b), MN_E_NOMEM);
}

typedef struct grown_options {
    size_t size;
    int first, second, third, fourth;
} grown_options;

/* Callers older and newer than the library: members that one side does not have are left unchanged, or must be zero. */
static void options_of_older_and_newer_callers_are_accepted(void **state) {
    (void)state;
    enum { N = sizeof(grown_options), BEHIND = 4096, ROOM = N + BEHIND + 16 };
    const grown_options defaults = {N, 1, 2, 3, 4}, given = {0, 6, 7, 8, 9};
    static unsigned char bytes_of[ROOM + 1], expected[ROOM + 1];
    for (size_t size = 0; size <= ROOM; size += size < 64 || size > N + BEHIND - 16 ? 1 : 31) {
        bool right = size >= sizeof size && size <= N + BEHIND;
        size_t known = size < N ? size : N;
        grown_options full = defaults, wanted = defaults;
        memset(bytes_of, 0, sizeof bytes_of);
        memcpy(bytes_of, &given, sizeof given);
        memcpy(bytes_of, &size, sizeof size);
        assert_int_equal(options_take(&full, N, bytes_of, "grown"), right ? MN_OK : MN_E_ARG);
        if (right) memcpy((char *)&wanted + sizeof size, bytes_of + sizeof size, known - sizeof size);
        if (!right) assert_non_null(strstr(mn_last_error(), "grown.size is"));
        assert_memory_equal(&full, &wanted, N);
        if (right && size > N) { /* a member that this library does not know */
            bytes_of[size - 1] = 1;
            assert_fails(MN_E_ARG, "is not zero: this version of the library knows the first",
                         options_take(&full, N, bytes_of, "grown"));
        }

        memset(bytes_of, 0x55, sizeof bytes_of);
        memcpy(bytes_of, &size, sizeof size);
        memcpy(expected, bytes_of, sizeof expected);
        assert_int_equal(options_give(bytes_of, &defaults, N, "grown"), right ? MN_OK : MN_E_ARG);
        if (right) {
            memset(expected + sizeof size, 0, size - sizeof size);
            memcpy(expected + sizeof size, (const char *)&defaults + sizeof size, known - sizeof size);
        }
        assert_memory_equal(bytes_of, expected, sizeof expected);
    }
    grown_options full = defaults;
    assert_ok(options_take(&full, N, NULL, "grown"));
    assert_int_equal(full.second, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_text_of_its_own),
        cmocka_unit_test(long_messages_end_with_a_whole_character),
        cmocka_unit_test(context_is_prepended_to_failures_only),
        cmocka_unit_test(a_path_appears_once_in_a_message),
        cmocka_unit_test(allocation_sizes_do_not_overflow),
        cmocka_unit_test(a_failed_append_is_recorded),
        cmocka_unit_test(options_of_older_and_newer_callers_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
