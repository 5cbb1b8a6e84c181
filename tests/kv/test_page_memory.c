/* Memory of pages that are not in use: kept by size, returned to the system when idle.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/page_memory.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "support/support.h"

enum { SMALL = 4096, MIDDLE = 256 << 10 };

static page_block take(page_memory *m, size_t n_bytes) {
    bool in_slab = page_memory_in_slab(n_bytes);
    page_block block = page_memory_take(m, n_bytes, in_slab);
    if (block.data) return block;
    if (in_slab) return page_memory_take_new_slab(m, n_bytes);
    return (page_block){mem_alloc_raw(n_bytes, 1), NULL};
}

static void returned_blocks_are_taken_again(void **state) {
    (void)state;
    page_memory m = {0};
    int64_t live = mem_count().live;
    for (int round = 0; round < 2; round++) {
        page_block blocks[200];
        size_t n_bytes = round ? MIDDLE : SMALL;
        for (int i = 0; i < 200; i++) {
            blocks[i] = take(&m, n_bytes);
            assert_non_null(blocks[i].data);
            assert_int_equal((uintptr_t)blocks[i].data % 64, 0);
            memset(blocks[i].data, i, n_bytes);
        }
        for (int i = 0; i < 200; i++) /* no two overlap */
            for (size_t b = 0; b < n_bytes; b += 1021) assert_int_equal((uint8_t)blocks[i].data[b], i);
        int64_t held = mem_count().live;
        for (int again = 0; again < 5; again++) {
            for (int i = 0; i < 200; i += 2) page_memory_give(&m, blocks[i], n_bytes);
            for (int i = 0; i < 200; i += 2) blocks[i] = take(&m, n_bytes);
            assert_int_equal(mem_count().live, held);
        }
        assert_null(page_memory_take(&m, n_bytes + 64, round == 1).data);
        for (int i = 0; i < 200; i++) page_memory_give(&m, blocks[i], n_bytes);
    }
    page_memory_release(&m);
    assert_int_equal(mem_count().live, live);
}

/* Of n blocks only n_busy are needed: the others are freed after PAGE_IDLE_MS, and not before. */
static void check_idle(size_t n_bytes, int n, int n_busy) {
    page_memory m = {0};
    int64_t live = mem_count().live;
    page_block blocks[400];
    assert_null(page_memory_detach_idle(&m, 1e6));
    for (int i = 0; i < n; i++) blocks[i] = take(&m, n_bytes);
    int64_t most = mem_count().live;
    for (int i = 0; i < n; i++) page_memory_give(&m, blocks[i], n_bytes);
    page_memory_free(page_memory_detach_idle(&m, 1e6 + PAGE_IDLE_MS - 1));
    assert_int_equal(mem_count().live, most);
    page_memory_free(page_memory_detach_idle(&m, 1e6 + PAGE_IDLE_MS)); /* all were in use since the last search */
    assert_int_equal(mem_count().live, most);
    for (int i = 0; i < n_busy; i++) blocks[i] = take(&m, n_bytes);
    for (int i = 0; i < n_busy; i++) page_memory_give(&m, blocks[i], n_bytes);
    page_memory_free(page_memory_detach_idle(&m, 1e6 + 2 * PAGE_IDLE_MS));
    assert_true(mem_count().live < most);
    for (int i = 0; i < n_busy; i++) { /* those that were needed are still kept */
        blocks[i] = page_memory_take(&m, n_bytes, page_memory_in_slab(n_bytes));
        assert_non_null(blocks[i].data);
    }
    for (int i = 0; i < n_busy; i++) page_memory_give(&m, blocks[i], n_bytes);
    page_memory_free(page_memory_detach_idle(&m, 1e6 + 3 * PAGE_IDLE_MS));
    page_memory_free(page_memory_detach_idle(&m, 1e6 + 4 * PAGE_IDLE_MS));
    assert_int_equal(mem_count().live, live);
}

static void idle_blocks_go_back_to_the_system(void **state) {
    (void)state;
    check_idle(SMALL, 10, 7);
    check_idle(MIDDLE, 200, 100);
}

static void pages_in_use_hold_their_slab(void **state) {
    (void)state;
    page_memory m = {0};
    int64_t live = mem_count().live;
    page_block kept = take(&m, MIDDLE), other = take(&m, MIDDLE);
    memset(kept.data, 7, MIDDLE);
    page_memory_give(&m, other, MIDDLE);
    page_memory_release(&m);
    assert_true(mem_count().live > live);
    for (size_t b = 0; b < MIDDLE; b++) assert_int_equal(kept.data[b], 7);
    page_memory_give(&m, kept, MIDDLE);
    page_memory_release(&m);
    assert_int_equal(mem_count().live, live);
}

static void more_sizes_than_classes(void **state) {
    (void)state;
    page_memory m = {0};
    int64_t live = mem_count().live;
    for (int round = 0; round < 3; round++) {
        page_block blocks[2 * PAGE_SIZES];
        for (size_t i = 0; i < 2 * PAGE_SIZES; i++) blocks[i] = take(&m, 64 * (i + 1));
        for (size_t i = 0; i < 2 * PAGE_SIZES; i++) page_memory_give(&m, blocks[i], 64 * (i + 1));
        assert_int_equal(mem_count().live, live + PAGE_SIZES);
    }
    assert_null(page_memory_take_new_slab(&m, MIDDLE).data);
    page_memory_free(page_memory_detach(&m));
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(returned_blocks_are_taken_again),
        cmocka_unit_test(idle_blocks_go_back_to_the_system),
        cmocka_unit_test(pages_in_use_hold_their_slab),
        cmocka_unit_test(more_sizes_than_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
