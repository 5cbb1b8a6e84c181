/* Caches with offloaded pages: which pages are offloaded and when, tables that grow, and disks that fail. That such
 * caches equal resident ones is tested by test_laws.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/group.h"
#include "kv/stage.h"
#include "support/kv/kv_fixture.h"
#include "support/scratch.h"

enum { PAGE = 4 };

static kv_spec far_spec(void) {
    kv_form form = kv_form_exact(KV_F32);
    return (kv_spec){.n_heads = 2, .k_dim = 6, .v_dim = 4, .key = form, .value = form, .is_offloaded = true};
}

/* An offloaded group of four entries and a resident one; two areas hold a share of two. */
enum { ENTRIES = 5, NEAR = 2 };

static fixture_setting far_setting(void) {
    fixture_setting set = {.n_entries = ENTRIES, .options = {.page_tokens = PAGE}, .alone = true, .is_offloaded = true};
    for (int i = 0; i < ENTRIES; i++) {
        set.specs[i] = far_spec();
        set.specs[i].is_offloaded = i != NEAR;
    }
    return set;
}

/* Resident and offloaded bytes of full pages of the offloaded groups. oldest_first: in every group offloaded pages come
 * before resident ones. */
static void count_pages(const kv_cache *cache, size_t *resident, size_t *offload, bool oldest_first) {
    *resident = *offload = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        bool seen_resident = false;
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[PAGE_EXACT][slot];
            bool is_full = (group->first_page + (int64_t)slot + 1) * PAGE <= cache->n_tokens;
            if (page->region) assert_true(group->spec.is_offloaded && is_full && !(oldest_first && seen_resident));
            if (page->region) *offload += page->bytes;
            if (!page->region && group->spec.is_offloaded && is_full) *resident += page->bytes;
            seen_resident = seen_resident || !page->region;
        }
    }
}

/* ---- offloading ---- */

/* Without a budget every full page is offloaded when the next step begins. */
static void full_pages_are_sent(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    size_t resident, offload;
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    for (int n = 0; n < 60; n += 3) {
        fixture_put(&w, m, fixture_tokens() + n, 3, 3);
        fixture_check(&w, m);
        count_pages(m->cache, &resident, &offload, true);
        assert_int_equal(kv_offloaded_held(m->cache), offload);
        assert_true(resident == 0 || (n + 3) % PAGE < 3); /* full since the last step began */
        assert_true(n < PAGE || offload > 0);
    }
    fixture_cut(m, 0);
    assert_int_equal(kv_offloaded_held(m->cache), 0);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Under a budget pages are offloaded one by one, oldest first, and only when room is needed. */
static void a_budget_offloads_the_oldest_pages(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    size_t resident, offload, before = 0, largest = 0;
    set.budget = kv_plan_bytes(set.specs, ENTRIES, &set.options, 80);
    set.fails = true; /* refusals are allowed */
    fixture_open(&w, &set, NULL);
    w.model_pool->budget = 0;
    fixture_member *m = fixture_new(&w);
    for (int g = 0; g < m->cache->n_groups; g++) {
        size_t page = m->cache->groups[g].page_bytes[PAGE_EXACT];
        largest = page > largest ? page : largest;
    }
    for (int n = 0; n < 120; n++) {
        size_t used = kv_pool_used(w.pool);
        fixture_put(&w, m, fixture_tokens() + n, 1, 1);
        fixture_check(&w, m);
        count_pages(m->cache, &resident, &offload, true);
        assert_int_equal(kv_offloaded_held(m->cache), offload);
        assert_true(kv_pool_used(w.pool) <= set.budget);
        if (n < 80) assert_int_equal(offload, 0);
        if (n % PAGE) assert_int_equal(offload, before); /* no room is needed */
        /* Two groups need a page each, and the areas theirs. */
        size_t areas = m->cache->stage->areas[0].capacity + m->cache->stage->areas[1].capacity;
        if (offload > before) assert_true(used + 2 * largest + areas > set.budget);
        assert_true(n < 80 || resident > 0);
        before = offload;
    }
    assert_true(before > 0);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Pages that a step needs are not offloaded to stay within a budget: the step is refused and nothing changes. */
static void too_small_a_budget_refuses(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    set.budget = kv_plan_bytes(set.specs, ENTRIES, &set.options, 24);
    set.fails = true;
    fixture_open(&w, &set, NULL);
    w.model_pool->budget = 0;
    fixture_member *m = fixture_new(&w);
    int n = 0;
    while (n < 150 && fixture_call(&w, m, fixture_tokens() + n, 1, 1)) n++;
    assert_true(n > 24 && n < 150);
    fixture_check(&w, m);
    fixture_cut(m, n / 2);
    fixture_put(&w, m, fixture_tokens() + n / 2, n - n / 2, 1);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Tables grow with their groups also when no page is offloaded any more. */
static void tables_grow_without_offloaded_pages(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 9, 9);
    fixture_put(&w, m, fixture_tokens() + 9, 1, 1);
    assert_true(kv_offloaded_held(m->cache) > 0);
    fixture_cut(m, 0);
    fixture_put(&w, m, fixture_tokens(), 150, 150);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- disks that fail ---- */

/* Replaces the offload file by another one; returns the descriptor that undoes it. */
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
    static fixture w;
    fixture_setting set = far_setting();
    float rows[2 * 6];
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 26, 5); /* every full page is offloaded */
    int fd = scratch_unnamed_file();
    /* Nothing can be read: an empty file. */
    int kept = replace_file(fd, "/dev/null", O_RDWR);
    assert_ok(kv_reserve(m->cache, 1));
    for (int i = 0; i < ENTRIES; i++) kv_stage(m->cache, i);
    assert_fails(MN_E_IO, NULL, kv_fault(m->cache));
    assert_ok(kv_fault(m->cache)); /* reported once */
    kv_stage(m->cache, 0);
    kv_abandon(m->cache);
    assert_ok(kv_fault(m->cache)); /* it belonged to that step */
    assert_fails(MN_E_IO, NULL, kv_read(m->cache, &w.kernels, 0, true, 0, 1, rows));
    put_back(fd, kept);
    m->model->peak = kv_peak_bytes(m->cache);
    fixture_check(&w, m);
    fixture_put(&w, m, fixture_tokens() + 26, 6, 6);
    fixture_check(&w, m);
    /* Nothing can be written. */
    kept = replace_file(fd, "/dev/null", O_RDONLY);
    size_t used = kv_pool_used(w.pool), offload = kv_offloaded_held(m->cache);
    assert_fails(MN_E_IO, NULL, kv_reserve(m->cache, 1));
    assert_int_equal(kv_pool_used(w.pool), used);
    assert_int_equal(kv_offloaded_held(m->cache), offload);
    assert_ok(kv_check(m->cache));
    put_back(fd, kept);
    fixture_check(&w, m);
    fixture_put(&w, m, fixture_tokens() + 32, 10, 6);
    fixture_check(&w, m);
    assert_true(kv_offloaded_held(m->cache) > offload);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- staging ---- */

/* kv_attention_view gives the staged pages; entries may be viewed in any order, and repeatedly. */
static void entries_are_staged_in_any_order(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 30, 5);
    assert_ok(kv_reserve(m->cache, 1));
    assert_null(stage_addresses(m->cache, 3, PAGE_EXACT));
    assert_true(m->cache->stage->areas[0].pending && m->cache->stage->areas[0].entry == 0); /* read ahead */
    const int orders[] = {0, 1, 3, 3, 1, 0, 2, 0, 0, 3, 2, 1};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        int entry = orders[i];
        float wanted[6], seen[6];
        kv_stage(m->cache, entry);
        assert_ok(kv_fault(m->cache));
        const stage_area *ahead = &m->cache->stage->areas[1 - m->cache->stage->current];
        if (entry != NEAR && entry != 4) assert_int_equal(ahead->entry, entry == 1 ? 3 : entry + 1);
        kv_view view = kv_attention_view(m->cache, entry);
        assert_true((stage_addresses(m->cache, entry, PAGE_EXACT) != NULL) == (entry != NEAR));
        for (int other = 0; other < ENTRIES; other++) {
            if (other != entry && entry != NEAR) assert_null(stage_addresses(m->cache, other, PAGE_EXACT));
        }
        for (int t = 0; t < 30; t++) {
            const char *page = view.exact[t / PAGE] + view.exact_place.k_offset;
            for (int d = 0; d < 6; d++) {
                memcpy(&seen[d], page + sizeof(float) * (size_t)(d * PAGE + t % PAGE), sizeof(float));
                wanted[d] = model_value(fixture_tokens()[t], entry, 0, true, d, KV_F32);
            }
            assert_memory_equal(seen, wanted, sizeof seen);
        }
    }
    kv_abandon(m->cache);
    assert_null(stage_addresses(m->cache, 0, PAGE_EXACT));
    fixture_close(&w);
}

/* Areas are counted against the pool, and returned. */
static void areas_are_counted(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = far_setting();
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 50, 5);
    const kv_stage_areas *stage = m->cache->stage;
    size_t resident = 0;
    for (int g = 0; g < m->cache->n_groups; g++) {
        const kv_group *group = &m->cache->groups[g];
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[PAGE_EXACT][slot];
            resident += page->region ? 0 : page->bytes;
            /* Room for the offloaded slices of an entry in both areas, and for a few more of them. */
            assert_true(stage->areas[0].capacity >=
                        slot * (group->spec.is_offloaded ? group->entry_bytes[PAGE_EXACT] : 0));
        }
    }
    assert_int_equal(stage->areas[0].capacity, stage->areas[1].capacity);
    assert_true(stage->areas[0].capacity <= (50 / PAGE + 9) * m->cache->groups[0].entry_bytes[PAGE_EXACT]);
    assert_int_equal(kv_pool_used(w.pool), resident + 2 * stage->areas[0].capacity);
    fixture_close(&w); /* nothing is left */
    if (w.problem) fail_msg("%s", w.problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pages_are_sent),        cmocka_unit_test(a_budget_offloads_the_oldest_pages),
        cmocka_unit_test(too_small_a_budget_refuses), cmocka_unit_test(tables_grow_without_offloaded_pages),
        cmocka_unit_test(failing_disks_lose_nothing), cmocka_unit_test(entries_are_staged_in_any_order),
        cmocka_unit_test(areas_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
