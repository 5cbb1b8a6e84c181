/* The bytes of an answer that wait for its client: limited, and without an end where something is missing.
 * SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"
#include "support/support.h"

static bool put(reply *r, size_t n) {
    bytes text = {0};
    char *zeros = mem_alloc(n, 1);
    bytes_append(&text, zeros, n);
    mem_free(zeros);
    bool fits = reply_put(r, &text);
    assert_int_equal(text.n, 0);
    return fits;
}

static void end(reply *r) {
    bytes text = {0};
    bytes_append_text(&text, "end");
    reply_end(r, 200, &text);
    assert_int_equal(text.n, 0);
}

static void what_fits_has_its_end(void **state) {
    (void)state;
    reply *r = reply_open(true, NULL, NULL);
    assert_true(put(r, MOST_WAITING - 1));
    assert_true(put(r, 1));
    r->sent = 1; /* the client has read a byte */
    assert_true(put(r, 1));
    end(r);
    assert_true(r->is_ended && !r->is_cut);
    assert_memory_equal(r->out.data + r->out.n - 3, "end", 3);
    reply_release(r);
}

static void behind_a_gap_nothing_comes(void **state) {
    (void)state;
    reply *r = reply_open(true, NULL, NULL);
    assert_true(put(r, MOST_WAITING));
    assert_false(put(r, 1));
    r->sent = MOST_WAITING; /* the client has read all there is */
    assert_false(put(r, 1));
    end(r);
    assert_true(r->is_ended && r->is_cut);
    assert_int_equal(r->out.n, MOST_WAITING);
    reply_release(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_fits_has_its_end),
                                       cmocka_unit_test(behind_a_gap_nothing_comes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
