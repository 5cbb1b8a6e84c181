/* Caches whose full pages rest in a far home: which are sent there and when, tables that grow, and disks that
 * fail. That such caches are what they are without one is asked by test_laws.c. SPDX-License-Identifier:
 * Apache-2.0 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/group.h"
#include "kv/stage.h"
#include "support/kv_world.h"
#include "support/scratch.h"

enum { PAGE = 4 };

static kv_spec far_spec(void) {
    kv_form form = kv_form_exact(KV_F32);
    return (kv_spec){.n_heads = 2, .k_dim = 6, .v_dim = 4, .key = form, .value = form, .is_far = true};
}

/* A far group of four entries and a near one; two areas hold a share of two. */
enum { ENTRIES = 5, NEAR = 2 };

static world_setting far_setting(void) {
    world_setting set = {
        .n_entries = ENTRIES, .options = {.page_tokens = PAGE}, .alone = true, .is_far = true};
    for (int i = 0; i < ENTRIES; i++) {
        set.specs[i] = far_spec();
        set.specs[i].is_far = i != NEAR;
    }
    return set;
}

/* Near bytes of full pages of the far groups, and far ones; far pages come before near ones, as
 * `oldest_first` says in every group. */
static void count_pages(const kv_cache *cache, size_t *near, size_t *far, bool oldest_first) {
    *near = *far = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        bool seen_near = false;
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[PAGE_EXACT][slot];
            bool is_full = (group->first_page + (int64_t)slot + 1) * PAGE <= cache->n_tokens;
            if (page->region) assert_true(group->spec.is_far && is_full && !(oldest_first && seen_near));
            if (page->region) *far += page->bytes;
            if (!page->region && group->spec.is_far && is_full) *near += page->bytes;
            seen_near = seen_near || !page->region;
        }
    }
}

/* ---- what is sent ---- */

/* Without a budget everything that is full goes when the next step begins. */
static void full_pages_are_sent(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    size_t near, far;
    world_open(&w, &set, NULL);
    world_member *m = world_new(&w);
    for (int n = 0; n < 60; n += 3) {
        world_put(&w, m, world_tokens() + n, 3, 3);
        world_check(&w, m);
        count_pages(m->cache, &near, &far, true);
        assert_int_equal(kv_far_held(m->cache), far);
        assert_true(near == 0 || (n + 3) % PAGE < 3); /* full since the last step began */
        assert_true(n < PAGE || far > 0);
    }
    world_cut(m, 0);
    assert_int_equal(kv_far_held(m->cache), 0);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Under a budget pages go one by one, oldest first, and only when room is wanted. */
static void a_budget_sends_what_it_must(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    size_t near, far, before = 0, largest = 0;
    set.budget = kv_plan_bytes(set.specs, ENTRIES, &set.options, 80);
    set.fails = true; /* so that refusals are no problem */
    world_open(&w, &set, NULL);
    w.model_pool->budget = 0;
    world_member *m = world_new(&w);
    for (int g = 0; g < m->cache->n_groups; g++) {
        size_t page = m->cache->groups[g].page_bytes[PAGE_EXACT];
        largest = page > largest ? page : largest;
    }
    for (int n = 0; n < 120; n++) {
        size_t used = kv_pool_used(w.pool);
        world_put(&w, m, world_tokens() + n, 1, 1);
        world_check(&w, m);
        count_pages(m->cache, &near, &far, true);
        assert_int_equal(kv_far_held(m->cache), far);
        assert_true(kv_pool_used(w.pool) <= set.budget);
        if (n < 80) assert_int_equal(far, 0);
        if (n % PAGE) assert_int_equal(far, before); /* no room is wanted */
        /* Two groups want a page each, and the areas theirs. */
        size_t areas = m->cache->stage->areas[0].capacity + m->cache->stage->areas[1].capacity;
        if (far > before) assert_true(used + 2 * largest + areas > set.budget);
        assert_true(n < 80 || near > 0);
        before = far;
    }
    assert_true(before > 0);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* No budget is kept by sending what a step needs: then it is refused and all stays. */
static void too_small_a_budget_refuses(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    set.budget = kv_plan_bytes(set.specs, ENTRIES, &set.options, 24);
    set.fails = true;
    world_open(&w, &set, NULL);
    w.model_pool->budget = 0;
    world_member *m = world_new(&w);
    int n = 0;
    while (n < 150 && world_call(&w, m, world_tokens() + n, 1, 1)) n++;
    assert_true(n > 24 && n < 150);
    world_check(&w, m);
    world_cut(m, n / 2);
    world_put(&w, m, world_tokens() + n / 2, n - n / 2, 1);
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Tables grow with their groups also while nothing is far any more. */
static void tables_grow_without_far_pages(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    world_open(&w, &set, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 9, 9);
    world_put(&w, m, world_tokens() + 9, 1, 1);
    assert_true(kv_far_held(m->cache) > 0);
    world_cut(m, 0);
    world_put(&w, m, world_tokens(), 150, 150);
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- disks that fail ---- */

/* The one regular file without a name that this process has open. */
static int far_file(void) {
    int found = -1, n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct stat info;
        if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0) continue;
        found = fd;
        n++;
    }
    assert_int_equal(n, 1);
    return found;
}

/* Puts another file in the place of the far one; gives what undoes it. */
static int replace_file(int fd, const char *path, int flags) {
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, 300), other = open(path, flags);
    assert_true(kept >= 0 && other >= 0);
    assert_true(dup2(other, fd) == fd);
    close(other);
    return kept;
}

static void put_back(int fd, int kept) {
    assert_true(dup2(kept, fd) == fd);
    close(kept);
}

static void failing_disks_lose_nothing(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    float rows[2 * 6];
    world_open(&w, &set, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 26, 5); /* every full page is far */
    int fd = far_file();
    /* Nothing can be read: an empty file. */
    int kept = replace_file(fd, "/dev/null", O_RDWR);
    assert_ok(kv_reserve(m->cache, 1));
    for (int i = 0; i < ENTRIES; i++) kv_stage(m->cache, i);
    assert_fails(MN_E_IO, NULL, kv_fault(m->cache));
    assert_ok(kv_fault(m->cache)); /* said once */
    kv_stage(m->cache, 0);
    kv_abandon(m->cache);
    assert_ok(kv_fault(m->cache)); /* it belonged to that step */
    assert_fails(MN_E_IO, NULL, kv_read(m->cache, &w.kernels, 0, true, 0, 1, rows));
    put_back(fd, kept);
    m->model->peak = kv_peak_bytes(m->cache);
    world_check(&w, m);
    world_put(&w, m, world_tokens() + 26, 6, 6);
    world_check(&w, m);
    /* Nothing can be written. */
    kept = replace_file(fd, "/dev/null", O_RDONLY);
    size_t used = kv_pool_used(w.pool), far = kv_far_held(m->cache);
    assert_fails(MN_E_IO, NULL, kv_reserve(m->cache, 1));
    assert_int_equal(kv_pool_used(w.pool), used);
    assert_int_equal(kv_far_held(m->cache), far);
    assert_ok(kv_check(m->cache));
    put_back(fd, kept);
    world_check(&w, m);
    world_put(&w, m, world_tokens() + 32, 10, 6);
    world_check(&w, m);
    assert_true(kv_far_held(m->cache) > far);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- staging ---- */

/* kv_look gives what is staged now; entries may come in any order, and again. */
static void entries_are_staged_in_any_order(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    world_open(&w, &set, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 30, 5);
    assert_ok(kv_reserve(m->cache, 1));
    assert_null(stage_bases(m->cache, 3, PAGE_EXACT));
    assert_true(m->cache->stage->areas[0].pending && m->cache->stage->areas[0].entry == 0); /* read ahead */
    const int orders[] = {0, 1, 3, 3, 1, 0, 2, 0, 0, 3, 2, 1};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        int entry = orders[i];
        float wanted[6], seen[6];
        kv_stage(m->cache, entry);
        assert_ok(kv_fault(m->cache));
        const stage_area *ahead = &m->cache->stage->areas[1 - m->cache->stage->current];
        if (entry != NEAR && entry != 4) assert_int_equal(ahead->entry, entry == 1 ? 3 : entry + 1);
        kv_view view = kv_look(m->cache, entry);
        assert_true((stage_bases(m->cache, entry, PAGE_EXACT) != NULL) == (entry != NEAR));
        for (int other = 0; other < ENTRIES; other++) {
            if (other != entry && entry != NEAR) assert_null(stage_bases(m->cache, other, PAGE_EXACT));
        }
        for (int t = 0; t < 30; t++) {
            const char *page = view.exact[t / PAGE] + view.exact_place.k_offset;
            for (int d = 0; d < 6; d++) {
                memcpy(&seen[d], page + sizeof(float) * (size_t)(d * PAGE + t % PAGE), sizeof(float));
                wanted[d] = model_value(world_tokens()[t], entry, 0, true, d, KV_F32);
            }
            assert_memory_equal(seen, wanted, sizeof seen);
        }
    }
    kv_abandon(m->cache);
    assert_null(stage_bases(m->cache, 0, PAGE_EXACT));
    world_close(&w);
}

/* Areas are counted against the pool, and given back. */
static void areas_are_counted(void **state) {
    (void)state;
    static world w;
    world_setting set = far_setting();
    world_open(&w, &set, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 50, 5);
    const kv_stage_areas *stage = m->cache->stage;
    size_t near = 0;
    for (int g = 0; g < m->cache->n_groups; g++) {
        const kv_group *group = &m->cache->groups[g];
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[PAGE_EXACT][slot];
            near += page->region ? 0 : page->bytes;
            /* Room for the far slices of an entry in both areas, and for a few more of them. */
            assert_true(stage->areas[0].capacity >=
                        slot * (group->spec.is_far ? group->entry_bytes[PAGE_EXACT] : 0));
        }
    }
    assert_int_equal(stage->areas[0].capacity, stage->areas[1].capacity);
    assert_true(stage->areas[0].capacity <= (50 / PAGE + 9) * m->cache->groups[0].entry_bytes[PAGE_EXACT]);
    assert_int_equal(kv_pool_used(w.pool), near + 2 * stage->areas[0].capacity);
    world_close(&w); /* nothing is left */
    if (w.problem) fail_msg("%s", w.problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pages_are_sent),        cmocka_unit_test(a_budget_sends_what_it_must),
        cmocka_unit_test(too_small_a_budget_refuses), cmocka_unit_test(tables_grow_without_far_pages),
        cmocka_unit_test(failing_disks_lose_nothing), cmocka_unit_test(entries_are_staged_in_any_order),
        cmocka_unit_test(areas_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
