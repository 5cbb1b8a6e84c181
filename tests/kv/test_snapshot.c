/* Caches as entries of archives: invalid files, lack of memory, and mapped pages. That a loaded cache equals the saved
 * one after any history is tested by test_laws.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/snapshot.h"

#include <unistd.h>

#include "kv/group.h"
#include "support/kv/kv_fixture.h"
#include "support/scratch.h"

enum { PAGE = 16, TOKENS = 70, MOST_ENTRIES = 200 };

/* Quantized pages with a head, a window that has dropped pages, a state, an entry that is filled once. */
static fixture_setting rich_setting(void) {
    kv_form form = {.codec = KV_QUANTO, .bits = 4}, exact = kv_form_exact(KV_F32);
    fixture_setting set = {.n_entries = 4, .options = {.page_tokens = PAGE}, .alone = true};
    for (int i = 0; i < 4; i++)
        set.specs[i] = (kv_spec){.n_heads = 1, .k_dim = 16, .v_dim = 16, .key = exact, .value = exact};
    set.specs[0].key = set.specs[0].value = form;
    set.specs[0].exact_first = 3;
    set.specs[1].window = 20;
    set.specs[1].sinks = 2;
    set.specs[2] = (kv_spec){.kind = KV_STATE, .state_bytes = 40, .checkpoints = 2};
    set.specs[3].write_once = true;
    return set;
}

static fixture_member *open_rich(fixture *w, const fixture_setting *set) {
    fixture_open(w, set, NULL);
    fixture_member *m = fixture_new(w);
    fixture_do(w, &(fixture_op){.kind = FIXTURE_FILL, .amount = 20});
    for (int n = 0; n < TOKENS; n += 2) fixture_put(w, m, fixture_tokens() + n, 2, 2);
    return m;
}

static mn_status write_entries(const archive_entry *entries, size_t n) {
    unlink(scratch_path("cache"));
    return archive_write(scratch_path("cache"), entries, n, NULL, 0);
}

static void save(const kv_cache *cache, bool compress) {
    kv_snapshot *snapshot = NULL;
    size_t n;
    assert_ok(kv_snapshot_open(&snapshot, cache, compress));
    const archive_entry *entries = kv_snapshot_entries(snapshot, &n);
    assert_ok(write_entries(entries, n));
    kv_snapshot_close(&snapshot);
}

static mn_status load(kv_cache **out, const fixture *w, const fixture_setting *set, int64_t n_tokens) {
    archive *saved = NULL;
    *out = (kv_cache *)(uintptr_t)w;
    assert_ok(archive_open(&saved, scratch_path("cache")));
    return kv_restore(out, w->pool, set->specs, set->n_entries, &set->options, saved, n_tokens);
}

/* ---- saving and loading ---- */

static void assert_same_entries(const kv_cache *a, const kv_cache *b) {
    kv_snapshot *of[2] = {NULL, NULL};
    size_t n[2];
    assert_ok(kv_snapshot_open(&of[0], a, false));
    assert_ok(kv_snapshot_open(&of[1], b, false));
    const archive_entry *x = kv_snapshot_entries(of[0], &n[0]), *y = kv_snapshot_entries(of[1], &n[1]);
    assert_int_equal(n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++) {
        assert_string_equal(x[i].name, y[i].name);
        assert_int_equal(x[i].type, y[i].type);
        assert_int_equal(x[i].n_bytes, y[i].n_bytes);
        assert_memory_equal(x[i].data, y[i].data, x[i].n_bytes);
    }
    kv_snapshot_close(&of[0]);
    kv_snapshot_close(&of[1]);
}

/* Compressed or not, from resident or offloaded pages, preallocated or not: the same bytes at the same offsets. */
static void what_is_saved_is_loaded(void **state) {
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        static fixture w;
        bool compress = kind & 1, is_offloaded = kind & 2, preallocates = kind & 4;
        fixture_setting set = rich_setting();
        if (is_offloaded) set.is_offloaded = set.specs[0].is_offloaded = set.specs[3].is_offloaded = true;
        if (preallocates && !is_offloaded) set.options.reserve = 90;
        fixture_member *m = open_rich(&w, &set);
        kv_cache *loaded = NULL;
        if (is_offloaded) assert_true(kv_offloaded_held(m->cache) > 0);
        save(m->cache, compress);
        size_t used = kv_pool_used(w.pool);
        assert_ok(load(&loaded, &w, &set, TOKENS));
        assert_ok(kv_check(loaded));
        assert_same_entries(m->cache, loaded);
        fixture_assert_same(&w, m->cache, loaded);
        assert_int_equal(kv_bytes(loaded), kv_bytes(m->cache));
        assert_int_equal(kv_peak_bytes(loaded), kv_bytes(loaded));
        assert_int_equal(kv_filled(loaded, 3), 21);
        /* Only what is still written takes memory, when nothing had to be expanded. */
        const kv_group *g = loaded->groups;
        size_t last = g[0].page_bytes[PAGE_EXACT] + g[1].page_bytes[PAGE_EXACT] + g[3].page_bytes[PAGE_EXACT];
        if (!compress && !preallocates) assert_int_equal(kv_pool_used(w.pool), used + last);
        kv_close(&loaded);
        assert_int_equal(kv_pool_used(w.pool), used);
        fixture_check(&w, m);
        fixture_close(&w);
        if (w.problem) fail_msg("kind %d: %s", kind, w.problem);
    }
}

/* Mapped pages, which cannot be written, are copied before they are written, for the loaded cache and its forks; and a
 * loaded cache is saved as the same file again. */
static void mapped_pages_are_never_written(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = rich_setting();
    set.n_entries = 2; /* tokens may be taken back */
    set.specs[1].window = 60;
    fixture_open(&w, &set, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 64, 16);
    save(m->cache, false);
    bytes before = {0}, after = {0};
    assert_ok(file_read(&before, scratch_path("cache"), 1 << 24));
    fixture_do(&w, &(fixture_op){.kind = FIXTURE_SAVE}); /* the member is a loaded cache now */
    fixture_member *fork = fixture_fork_of(&w, m);
    save(m->cache, false);
    assert_ok(file_read(&after, scratch_path("cache"), 1 << 24));
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.data, after.data, after.n);
    bytes_clear(&before);
    bytes_clear(&after);
    fixture_cut(m, 60);
    uint32_t other[20];
    for (uint32_t i = 0; i < 20; i++) other[i] = 900000 + i;
    fixture_put(&w, m, other, 20, 7);
    fixture_put(&w, fork, other, 5, 5);
    fixture_check_all(&w);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- refusals ---- */

static void refused(const fixture *w, const fixture_setting *set, int64_t n_tokens, mn_status wanted,
                    const char *what) {
    kv_cache *loaded = NULL;
    size_t used = kv_pool_used(w->pool);
    mn_status status = load(&loaded, w, set, n_tokens);
    if (status != wanted) fail_msg("%s gave %d: %s", what, (int)status, status ? mn_last_error() : "");
    if (status == MN_OK) {
        assert_ok(kv_check(loaded));
    } else {
        assert_null(loaded);
    }
    kv_close(&loaded);
    assert_int_equal(kv_pool_used(w->pool), used);
}

/* Numbers of a file, each changed to every other kind of number; a page left out; a page of another size. */
static void lies_are_refused(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = rich_setting();
    fixture_member *m = open_rich(&w, &set);
    kv_snapshot *snapshot = NULL;
    size_t n;
    archive_entry changed[MOST_ENTRIES];
    assert_ok(kv_snapshot_open(&snapshot, m->cache, false));
    const archive_entry *entries = kv_snapshot_entries(snapshot, &n);
    assert_true(n < MOST_ENTRIES);
    int n_refused = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_numbers = entries[i].type != DTYPE_U8;
        size_t width = entries[i].type == DTYPE_I32 ? 4 : 8, n_numbers = is_numbers ? entries[i].n_bytes / width : 0;
        /* Missing; of another type; shorter. */
        memcpy(changed, entries, i * sizeof *entries);
        memcpy(changed + i, entries + i + 1, (n - i - 1) * sizeof *entries);
        assert_ok(write_entries(changed, n - 1));
        refused(&w, &set, TOKENS, MN_E_REFUSED, entries[i].name);
        memcpy(changed, entries, n * sizeof *entries);
        changed[i].type = DTYPE_BOOL;
        changed[i].n_dims = 1;
        changed[i].shape[0] = (int64_t)entries[i].n_bytes;
        assert_ok(write_entries(changed, n));
        refused(&w, &set, TOKENS, MN_E_REFUSED, entries[i].name);
        memcpy(changed, entries, n * sizeof *entries);
        changed[i].n_dims = 1;
        changed[i].n_bytes -= is_numbers ? width : 1;
        changed[i].shape[0] = (int64_t)(changed[i].n_bytes / (is_numbers ? width : 1));
        assert_ok(write_entries(changed, n));
        refused(&w, &set, TOKENS, MN_E_REFUSED, entries[i].name);
        /* Other numbers. */
        for (size_t j = 0; j < n_numbers; j++) {
            const int64_t lies[] = {-1, 1, INT32_MIN, INT32_MAX, INT64_MIN / 2, INT64_C(1) << 40};
            char *data = malloc(entries[i].n_bytes);
            for (size_t l = 0; l < sizeof lies / sizeof lies[0]; l++) {
                int64_t wide = 0, other;
                int32_t narrow;
                memcpy(data, entries[i].data, entries[i].n_bytes);
                memcpy(&wide, data + j * width, width);
                other = l < 2 ? wide + lies[l] : lies[l];
                narrow = (int32_t)other;
                if (width == 4 && l > 3) continue;
                memcpy(data + j * width, width == 4 ? (void *)&narrow : (void *)&other, width);
                memcpy(changed, entries, n * sizeof *entries);
                changed[i].data = data;
                assert_ok(write_entries(changed, n));
                kv_cache *loaded = NULL;
                size_t used = kv_pool_used(w.pool);
                mn_status status = load(&loaded, &w, &set, TOKENS);
                if (status == MN_OK) { /* a number without a meaning for its group, or one that another cache
                                          could have */
                    assert_ok(kv_check(loaded));
                } else {
                    assert_int_equal(status, MN_E_REFUSED);
                    n_refused++;
                }
                kv_close(&loaded);
                assert_int_equal(kv_pool_used(w.pool), used);
            }
            free(data);
        }
    }
    /* The others are numbers that groups of a kind do not have (tokens filled, states, pages of a state), fewer or more
     * tokens filled in as many pages, and states of other steps. */
    assert_int_equal(n_refused, 96);
    kv_snapshot_close(&snapshot);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

static void other_strategies_are_refused(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = rich_setting(), other;
    fixture_member *m = open_rich(&w, &set);
    save(m->cache, false);
    refused(&w, &set, TOKENS, MN_OK, "the saved cache");
    refused(&w, &set, TOKENS - 1, MN_E_REFUSED, "fewer tokens");
    refused(&w, &set, TOKENS + 1, MN_E_REFUSED, "more tokens");
    refused(&w, &set, TOKENS + PAGE, MN_E_REFUSED, "a page more");
    refused(&w, &set, 0, MN_E_REFUSED, "no tokens");
    refused(&w, &set, -1, MN_E_REFUSED, "-1 tokens");
    refused(&w, &set, INT64_MAX, MN_E_REFUSED, "2^63 - 1 tokens");
    for (int i = 0; i < 12; i++) {
        other = set;
        switch (i) {
        case 0: other.specs[0].value.bits = 2; break;
        case 1: other.specs[0].key = other.specs[0].value = kv_form_exact(KV_F32); break;
        case 2: other.specs[0].exact_first = 6; break;
        case 3: other.specs[1].window = 40; break;
        case 4: other.specs[1].window = 0; break;
        case 5: other.specs[1].n_heads = 2; break;
        case 6: other.specs[2].state_bytes = 80; break;
        case 7: other.specs[2].checkpoints = 1; break;
        case 8: other.specs[3].k_dim = 32; break;
        case 9: other.options.page_tokens = 2 * PAGE; break;
        case 10: other.options.limit = TOKENS - 1; break;
        default: other.n_entries = 3;
        }
        refused(&w, &other, TOKENS, MN_E_REFUSED, "another strategy");
    }
    other = set;
    other.specs[0].n_heads = 0;
    refused(&w, &other, TOKENS, MN_E_UNSUPPORTED, "specs that are none");
    other = set;
    other.options.limit = TOKENS;
    refused(&w, &other, TOKENS, MN_OK, "a limit that is kept");
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- without memory ---- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        static fixture w;
        fixture_setting set = rich_setting();
        if (compress) set.is_offloaded = set.specs[0].is_offloaded = true;
        fixture_member *m = open_rich(&w, &set);
        kv_snapshot *snapshot = NULL;
        kv_cache *loaded = NULL;
        int64_t live = mem_count().live, k = 0;
        mn_status status = MN_E_NOMEM;
        while (status != MN_OK) {
            mem_fail_after(++k);
            status = kv_snapshot_open(&snapshot, m->cache, compress);
            mem_fail_after(0);
            if (status == MN_OK) break;
            assert_int_equal(status, MN_E_NOMEM);
            assert_null(snapshot);
            assert_int_equal(mem_count().live, live);
        }
        kv_snapshot_close(&snapshot);
        assert_true(k > 4);
        save(m->cache, compress);
        size_t used = kv_pool_used(w.pool);
        for (k = 0, status = MN_E_NOMEM; status != MN_OK;) {
            archive *saved = NULL;
            assert_ok(archive_open(&saved, scratch_path("cache")));
            mem_fail_after(++k);
            status = kv_restore(&loaded, w.pool, set.specs, set.n_entries, &set.options, saved, TOKENS);
            mem_fail_after(0);
            if (status == MN_OK) break;
            assert_int_equal(status, MN_E_NOMEM);
            assert_null(loaded);
            assert_int_equal(kv_pool_used(w.pool), used);
        }
        assert_true(k > 20);
        assert_same_entries(m->cache, loaded);
        kv_close(&loaded);
        fixture_check(&w, m);
        fixture_close(&w);
        if (w.problem) fail_msg("%s", w.problem);
    }
}

static void budgets_hold_for_loaded_caches(void **state) {
    (void)state;
    static fixture w;
    fixture_setting set = rich_setting();
    fixture_member *m = open_rich(&w, &set);
    save(m->cache, false);
    fixture_close(&w);
    kv_pool *pool = NULL;
    size_t need = 0;
    for (size_t budget = 1 << 12; budget < 1 << 20 && need == 0; budget += 1 << 10) {
        kv_cache *loaded = NULL;
        archive *saved = NULL;
        assert_ok(kv_pool_open(&pool, budget));
        assert_ok(archive_open(&saved, scratch_path("cache")));
        mn_status status = kv_restore(&loaded, pool, set.specs, set.n_entries, &set.options, saved, TOKENS);
        if (status == MN_OK) need = kv_pool_used(pool);
        if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
        if (need) assert_true(need <= budget && need + (1 << 10) > budget);
        kv_close(&loaded);
        assert_int_equal(kv_pool_used(pool), 0);
        kv_pool_close(&pool);
    }
    assert_true(need > 1 << 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded),   cmocka_unit_test(mapped_pages_are_never_written),
        cmocka_unit_test(lies_are_refused),          cmocka_unit_test(other_strategies_are_refused),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(budgets_hold_for_loaded_caches),
    };
    fixture_files_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
