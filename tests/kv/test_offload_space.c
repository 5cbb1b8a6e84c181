/* The ranges of the offload file against a map with the owner of every unit.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "kv/offload_space.h"

enum { UNITS = 400, MOST_BLOCKS = 64, STEPS = 20000 };

/* Walks the chain of blocks: gapless, as the map says, no two free neighbours, every free block in the list of its
 * size. */
static void check(const offload_space *space, const int64_t *owner, uint64_t end) {
    uint64_t at = 0;
    bool before_is_free = false;
    int n_free = 0;
    assert_int_equal(space->end, end);
    for (int64_t i = space->blocks[0].after, before = 0; i; before = i, i = space->blocks[i].after) {
        const offload_block *b = &space->blocks[i];
        assert_int_equal(b->before, before);
        assert_int_equal(b->offset, at);
        assert_true(b->bytes > 0);
        bool is_free = !b->is_taken;
        assert_false(is_free && before_is_free);
        for (uint64_t u = at; u < at + b->bytes; u++) assert_int_equal(owner[u], is_free ? 0 : i);
        at += b->bytes;
        before_is_free = is_free;
        n_free += is_free;
    }
    assert_int_equal(at, end);
    for (int list = 0; list < FAR_SIZES; list++) {
        for (int64_t i = space->free[list], previous = 0; i; previous = i, i = space->blocks[i].next, n_free--) {
            assert_int_equal(space->blocks[i].previous, previous);
            assert_false(space->blocks[i].is_taken);
            assert_int_equal(space->blocks[i].bytes >> list, 1);
        }
    }
    assert_int_equal(n_free, 0);
}

static void set_owner(const offload_space *space, int64_t *owner, int64_t block, int64_t value) {
    for (uint64_t u = 0; u < space->blocks[block].bytes; u++) owner[space->blocks[block].offset + u] = value;
}

/* The longest run of units that nobody owns. */
static uint64_t longest_free(const int64_t *owner, uint64_t end) {
    uint64_t longest = 0, run = 0;
    for (uint64_t u = 0; u < end; u++) {
        run = owner[u] ? 0 : run + 1;
        if (run > longest) longest = run;
    }
    return longest;
}

static void ranges_follow_the_map(void **state) {
    (void)state;
    offload_space space = {0};
    static int64_t owner[UNITS];
    int64_t taken[MOST_BLOCKS];
    size_t n_taken = 0;
    uint64_t random = 7, end = 0;
    int n_refused = 0, n_grown = 0;
    for (int step = 0; step < STEPS; step++) {
        if (n_taken < MOST_BLOCKS && test_random(&random) % 9 < 5) {
            uint64_t size = 1 + test_random(&random) % 20;
            assert_ok(offload_space_reserve(&space));
            int64_t block = offload_space_take(&space, size);
            assert_true((block != 0) == (longest_free(owner, end) >= size));
            uint64_t missing = offload_space_missing(&space, size);
            if (!block && end + missing <= UNITS) {
                offload_space_grow(&space, missing);
                end += missing;
                n_grown++;
                block = offload_space_take(&space, size);
                assert_true(block != 0);
            }
            n_refused += !block;
            if (!block) continue;
            assert_int_equal(space.blocks[block].bytes, size);
            for (uint64_t u = 0; u < size; u++) assert_int_equal(owner[space.blocks[block].offset + u], 0);
            set_owner(&space, owner, block, block);
            taken[n_taken++] = block;
        } else if (n_taken > 0) {
            size_t i = test_random(&random) % n_taken;
            set_owner(&space, owner, taken[i], 0);
            offload_space_return(&space, taken[i]);
            taken[i] = taken[--n_taken];
        }
        if (space.blocks) check(&space, owner, end);
    }
    assert_true(n_refused > 100 && n_grown > 20);
    while (n_taken > 0) offload_space_return(&space, taken[--n_taken]);
    assert_ok(offload_space_reserve(&space));
    assert_true(offload_space_take(&space, end) != 0);  /* one block again */
    assert_true(space.n_blocks <= 2 * MOST_BLOCKS + 3); /* records were used again */
    offload_space_clear(&space);
}

static void an_emptied_space_begins_at_zero(void **state) {
    (void)state;
    offload_space space = {0};
    for (int round = 0; round < 3; round++) {
        assert_ok(offload_space_reserve(&space));
        assert_int_equal(offload_space_take(&space, 5), 0);
        assert_int_equal(offload_space_missing(&space, 5), 5);
        offload_space_grow(&space, 5);
        int64_t block = offload_space_take(&space, 5);
        assert_int_equal(space.blocks[block].offset, 0);
        offload_space_empty(&space);
    }
    offload_space_clear(&space);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_follow_the_map),
                                       cmocka_unit_test(an_emptied_space_begins_at_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
