/* The laws of caches: random sequences of operations against a model (support/kv/kv_fixture.h), each law by itself on
 * random specs, and two threads on one prefix. MNEME_LONG=1 runs a million operations; MNEME_SEED=n one sequence.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_fixture.h"

#include <math.h>
#include <pthread.h>

#include "base/num.h"

/* The thread sanitizer is ten times slower, and only one test has threads: fewer than test_stride allows. */
#if defined(__SANITIZE_THREAD__)
enum { SLOWNESS = 5 };
#else
enum { SLOWNESS = 1 };
#endif

static void run_random(void (*make)(fixture_setting *, uint64_t), int wanted, fixture_counts *counts) {
    const char *only = getenv("MNEME_SEED");
    int done = 0;
    for (uint64_t seed = only ? strtoull(only, NULL, 10) : 1; done < wanted; seed++) {
        fixture_setting set;
        make(&set, seed);
        done += fixture_run_random(&set, counts);
        if (only) return;
    }
    /* Otherwise the test would show little. */
    assert_true(counts->quantized > wanted);
    assert_true(counts->converted > wanted / 200);
    assert_true(counts->kept > wanted / 1000);
    assert_true(counts->saved > wanted / 200);
}

static void random_operations(void **state) {
    (void)state;
    int wanted = test_is_long() ? 1000000 : 20000 / SLOWNESS / test_stride(2);
    fixture_counts counts = {0};
    run_random(fixture_setting_make, wanted, &counts);
    if (!getenv("MNEME_SEED")) assert_true(counts.refused > wanted / 100);
}

/* The same caches with offloading are equal to those without. In the last setting forks share pages in parts that are
 * offloaded, become whole there, and come back. */
static void random_operations_offloaded(void **state) {
    (void)state;
    int wanted = test_is_long() ? 100000 : 3000 / SLOWNESS;
    fixture_counts counts = {0};
    run_random(fixture_setting_offloaded, wanted, &counts);
    fixture_setting parts;
    fixture_setting_offloaded(&parts, 693);
    fixture_run_random(&parts, &counts);
    if (!getenv("MNEME_SEED")) assert_true(counts.offload > (size_t)wanted * 100);
}

/* ---- each law by itself ---- */

enum { N_SETTINGS = 120 / SLOWNESS, MOST = 120 };

/* A fixture of its own for each setting; `w` is empty. */
typedef void (*law)(fixture *w, uint64_t seed);

typedef enum law_specs { ANY, BY_PAGES, EXACT_ONLY } law_specs; /* BY_PAGES: without Transformers' flush */

static void each_setting(law check, law_specs wanted) {
    static fixture w;
    for (uint64_t seed = 1; seed <= N_SETTINGS; seed++) {
        fixture_setting set;
        fixture_setting_free(&set, seed);
        for (int i = 0; i < set.n_entries; i++) {
            kv_spec *s = &set.specs[i];
            if (wanted != ANY) s->flush = false;
            if (wanted == EXACT_ONLY) {
                s->key = s->value = kv_form_exact(s->exact);
                s->calibration = NULL;
            }
        }
        fixture_open(&w, &set, NULL);
        check(&w, seed);
        fixture_check_all(&w);
        fixture_close(&w);
        if (w.problem) fail_msg("seed %d: %s", (int)seed, w.problem);
    }
}

/* Any division of a prompt into calls and steps gives the same cache, quantized pages included. */
static void chunks_do_not_matter(fixture *w, uint64_t seed) {
    fixture_member *one_by_one = fixture_new(w), *whole = fixture_new(w), *mixed = fixture_new(w);
    const uint32_t *tokens = fixture_tokens();
    uint64_t random = seed << 8;
    fixture_put(w, whole, tokens, MOST, MOST);
    for (int n = 0; n < MOST; n++) fixture_put(w, one_by_one, tokens + n, 1, 1);
    for (int n = 0; n < MOST;) {
        int step = 1 + (int)(test_random(&random) % 40);
        if (step > MOST - n) step = MOST - n;
        fixture_put(w, mixed, tokens + n, step, 1 + (int)(test_random(&random) % 40));
        n += step;
    }
    fixture_assert_same(w, one_by_one->cache, whole->cache);
    fixture_assert_same(w, one_by_one->cache, mixed->cache);
}

static void chunking(void **state) {
    (void)state;
    each_setting(chunks_do_not_matter, BY_PAGES);
}

/* Any division of the same calls into steps gives the same cache, also where quantization depends on the calls. */
static void steps_do_not_matter(fixture *w, uint64_t seed) {
    fixture_member *whole = fixture_new(w), *one_by_one = fixture_new(w), *mixed = fixture_new(w);
    const uint32_t *tokens = fixture_tokens();
    uint64_t random = seed << 8;
    for (int n = 0; n < MOST;) {
        int size = n == 0 ? 70 : 1 + (int)(test_random(&random) % (test_random(&random) % 2 ? 3 : 30));
        if (size > MOST - n) size = MOST - n;
        fixture_put(w, whole, tokens + n, size, MOST);
        fixture_put(w, one_by_one, tokens + n, size, 1);
        fixture_put(w, mixed, tokens + n, size, 1 + (int)(test_random(&random) % 40));
        n += size;
    }
    fixture_assert_same(w, whole->cache, one_by_one->cache);
    fixture_assert_same(w, whole->cache, mixed->cache);
}

static void steps(void **state) {
    (void)state;
    each_setting(steps_do_not_matter, ANY);
}

/* A cache with other options over the same pool, with the tokens of `m` in one call. */
static kv_cache *with_other_options(fixture *w, const fixture_member *m, kv_options options) {
    kv_cache *cache = NULL;
    assert_ok(kv_open(&cache, w->pool, w->set->specs, w->set->n_entries, &options));
    fixture_member bare = {cache, NULL};
    static model_pool pool;
    model_pool_open(&pool, 0);
    assert_true(model_open(&bare.model, &pool, w->set->specs, w->set->n_entries, &options, &w->kernels));
    fixture other = *w;
    fixture_setting set = *w->set;
    set.alone = false;
    set.options = options;
    other.set = &set;
    other.model_pool = &pool;
    fixture_put(&other, &bare, fixture_tokens(), (int)m->model->n, 11);
    fixture_check(&other, &bare);
    if (other.problem) fail_msg("%s", other.problem);
    model_close(&bare.model);
    return cache;
}

static void options_do_not_matter(fixture *w, uint64_t seed) {
    fixture_member *m = fixture_new(w);
    fixture_put(w, m, fixture_tokens(), MOST, 30);
    kv_options reserved = w->set->options, pages = w->set->options;
    reserved.reserve = reserved.limit = MOST + (int64_t)(seed % 50);
    pages.page_tokens = 2 + 2 * (int)(seed % 30);
    kv_options others[] = {reserved, pages};
    for (int i = 0; i < 2; i++) {
        kv_cache *other = with_other_options(w, m, others[i]);
        fixture_assert_same(w, m->cache, other);
        kv_close(&other);
    }
}

/* dynamic = static; exact pages of any size. */
static void preallocation_and_page_sizes(void **state) {
    (void)state;
    each_setting(options_do_not_matter, EXACT_ONLY);
}

/* Windows that are longer than the sequence hold all of it, residuals that are longer leave everything exact. */
static void wide_limits_change_nothing(fixture *w, uint64_t seed) {
    fixture_setting wide = *w->set, full = *w->set;
    for (int i = 0; i < w->set->n_entries; i++) {
        kv_spec *a = &wide.specs[i], *b = &full.specs[i];
        if (a->kind == KV_STATE) continue;
        a->window = a->write_once ? 0 : MOST + (int)(seed % 3);
        a->residual = MOST + (int)(seed % 20);
        b->window = b->sinks = 0;
        if (a->write_once) continue;
        b->key = b->value = kv_form_exact(b->exact);
        b->calibration = NULL;
    }
    const fixture_setting *before = w->set, *settings[] = {&wide, &full};
    for (int i = 0; i < 2; i++) {
        w->set = settings[i];
        fixture_member *m = fixture_new(w);
        fixture_put(w, m, fixture_tokens(), MOST, 30);
        for (int e = 0; e < w->set->n_entries; e++) {
            if (kv_entry_spec(m->cache, e)->kind == KV_PAGES) assert_int_equal(kv_first_held(m->cache, e), 0);
        }
    }
    w->set = before;
    fixture_assert_same(w, w->members[0].cache, w->members[1].cache);
}

static void wide_limits(void **state) {
    (void)state;
    each_setting(wide_limits_change_nothing, BY_PAGES);
}

static void truncation_leaves_no_trace(fixture *w, uint64_t seed) {
    fixture_member *straight = fixture_new(w), *back = fixture_new(w);
    uint32_t *tokens = fixture_tokens(), wrong[40];
    int n = 20 + (int)(seed % 60), n_wrong = 1 + (int)(seed % 39);
    for (int i = 0; i < n_wrong; i++) wrong[i] = 500000u + (unsigned)i;
    fixture_put(w, straight, tokens, n, 13);
    fixture_put(w, straight, tokens + n, MOST - n, 13);
    fixture_put(w, back, tokens, n, 13);
    fixture_put(w, back, wrong, n_wrong, 13);
    if (kv_reachable(back->cache, n) < n) { /* a window or a state has dropped tokens: from the beginning */
        fixture_cut(back, kv_reachable(back->cache, n));
        fixture_put(w, back, tokens + kv_length(back->cache), n - (int)kv_length(back->cache), 13);
    } else {
        fixture_cut(back, n);
    }
    fixture_put(w, back, tokens + n, MOST - n, 13);
    fixture_assert_same(w, straight->cache, back->cache);
}

static void truncation(void **state) {
    (void)state;
    each_setting(truncation_leaves_no_trace, EXACT_ONLY);
}

/* Quantized tokens stay quantized: after truncation inside the quantized part the rest reads as before. */
static void codes_survive_cuts(fixture *w, uint64_t seed) {
    fixture_member *m = fixture_new(w);
    fixture_put(w, m, fixture_tokens(), MOST, 17);
    fixture_member *cut_one = fixture_fork_of(w, m);
    fixture_cut(cut_one, kv_reachable(cut_one->cache, MOST - 1 - (int64_t)(seed % 60)));
    fixture_member *longer = fixture_fork_of(w, m);
    for (int i = 0; i < kv_entries(m->cache); i++) {
        const model_entry *e = &m->model->entries[i];
        if (e->spec.kind == KV_STATE || e->spec.write_once) continue;
        for (int is_key = 0; is_key < 2; is_key++) {
            int64_t first = max_i64(kv_first_held(m->cache, i), kv_first_held(cut_one->cache, i));
            fixture_assert_same_stream(w, longer->cache, cut_one->cache, i, is_key, first, kv_length(cut_one->cache));
        }
    }
}

static void truncated_quantized_pages(void **state) {
    (void)state;
    each_setting(codes_survive_cuts, ANY);
}

/* What the pool has in use are the pages of its caches, each counted once, and staging areas. */
static void pages_are_counted_once(fixture *w) {
    kv_cache *caches[sizeof w->members / sizeof *w->members + 1] = {NULL};
    size_t n = 1; /* the first is none */
    for (int i = 0; i < w->n_members; i++) caches[n++] = w->members[i].cache;
    const size_t used = kv_pool_used(w->pool);
    assert_int_equal(kv_bytes_together(caches, n), used);
    assert_int_equal(kv_bytes_together(caches, n), used);
}

static void forks_leave_parents_alone(fixture *w, uint64_t seed) {
    fixture_member *parent = fixture_new(w), *twin = fixture_new(w);
    int n = 10 + (int)(seed % 90);
    fixture_put(w, parent, fixture_tokens(), n, 23);
    fixture_put(w, twin, fixture_tokens(), n, 23);
    size_t n_bytes = kv_bytes(parent->cache), used = kv_pool_used(w->pool);
    fixture_member *fork = fixture_fork_of(w, parent);
    assert_int_equal(kv_pool_used(w->pool), used);
    pages_are_counted_once(w);
    uint32_t other[60];
    for (int i = 0; i < 60; i++) other[i] = 700000u + (unsigned)i;
    fixture_put(w, fork, other, 1 + (int)(seed % 59), 7);
    if (seed % 2) fixture_cut(fork, kv_reachable(fork->cache, n / 2));
    fixture_put(w, fork, other, 20, 7);
    pages_are_counted_once(w);
    fixture_assert_same(w, parent->cache, twin->cache);
    assert_int_equal(kv_bytes(parent->cache), n_bytes);
    fixture_drop(&w->members[--w->n_members]);
    assert_int_equal(kv_pool_used(w->pool), used);
    fixture_assert_same(w, parent->cache, twin->cache);
}

static void forks_outlive_parents(fixture *w, uint64_t seed) {
    fixture_member *parent = fixture_new(w);
    fixture_put(w, parent, fixture_tokens(), 10 + (int)(seed % 90), 23);
    fixture_member *fork = fixture_fork_of(w, parent);
    fixture_put(w, fork, fixture_tokens(), 1 + (int)(seed % 5), 7);
    fixture_member gone = *parent;
    *parent = *fork;
    w->n_members--;
    fixture_drop(&gone);
    pages_are_counted_once(w);
}

static void forks(void **state) {
    (void)state;
    each_setting(forks_leave_parents_alone, ANY);
    each_setting(forks_outlive_parents, ANY);
}

static void abandoned_steps_leave_nothing(fixture *w, uint64_t seed) {
    fixture_member *m = fixture_new(w), *twin = fixture_new(w);
    uint32_t other[60];
    for (int i = 0; i < 60; i++) other[i] = 800000u + (unsigned)i;
    for (int n = 0; n < MOST;) {
        int step = 1 + (int)(seed * 13 + (uint64_t)n) % 37, wrong = 1 + (int)(seed * 7 + (uint64_t)n) % 50;
        if (step > MOST - n) step = MOST - n;
        wrong = (int)min_i64(wrong, kv_step_limit(m->cache, n) - n);
        kv_call_begin(m->cache);
        model_call_begin(m->model);
        if (wrong % 2) {
            kv_call_ends(m->cache, true);
            m->model->call_ends = true;
        }
        if (!fixture_step(w, m, other, wrong, 0, 1)) fail_msg("%s", w->problem);
        kv_abandon(m->cache);
        model_abandon(m->model);
        fixture_check(w, m);
        fixture_put(w, m, fixture_tokens() + n, step, 20);
        fixture_put(w, twin, fixture_tokens() + n, step, 20);
        n += step;
    }
    fixture_assert_same(w, m->cache, twin->cache);
}

static void abandoned_steps(void **state) {
    (void)state;
    each_setting(abandoned_steps_leave_nothing, ANY);
}

/* Values that share no side data with other tokens, with even levels, are off by half a step at most: of what the group
 * of a token spans, and of the f16 in which scale and shift are kept. */
static void rounding_is_half_a_step(fixture *w, uint64_t seed) {
    enum { BITS = 4, N = 64, DIM = 16 };
    kv_form form = {.codec = KV_QUANTO, .bits = BITS, .f32_scales = true};
    kv_spec spec = {.n_heads = 2, .k_dim = DIM, .v_dim = DIM, .exact = KV_F32, .key = form, .value = form};
    kv_cache *cache = NULL;
    if (seed > 3) return;
    fixture_setting set = {.n_entries = 1, .specs = {spec}, .options = {.page_tokens = 16}, .alone = true};
    const fixture_setting *before = w->set;
    w->set = &set;
    fixture_member *m = fixture_new(w);
    cache = m->cache;
    fixture_put(w, m, fixture_tokens(), N, N);
    static float rows[2 * N * DIM];
    assert_ok(kv_read(cache, &w->kernels, 0, true, 0, N, rows));
    for (int i = 0; i < 2 * N; i++) {
        float lo = INFINITY, hi = -INFINITY, exact[DIM];
        for (int d = 0; d < DIM; d++) {
            exact[d] = model_value(fixture_tokens()[i % N], 0, i / N, true, d, KV_F32);
            lo = exact[d] < lo ? exact[d] : lo;
            hi = exact[d] > hi ? exact[d] : hi;
        }
        bool differs = false;
        for (int d = 0; d < DIM; d++) {
            float off = fabsf(rows[i * DIM + d] - exact[d]);
            assert_true(off <= (hi - lo) / ((1 << BITS) - 1) * 0.5f * 1.0001f);
            differs = differs || off > 0;
        }
        assert_true(differs);
    }
    fixture_drop(&w->members[--w->n_members]);
    w->set = before;
}

static void rounding(void **state) {
    (void)state;
    each_setting(rounding_is_half_a_step, ANY);
}

/* ---- batches: arrays of caches ---- */

static void batch_close(kv_cache **rows, int n) {
    for (int i = 0; i < n; i++) kv_close(&rows[i]);
}

/* out[i] = a fork of rows[order[i]]. */
static void batch_of(kv_cache **out, kv_cache *const *rows, const int *order, int n) {
    for (int i = 0; i < n; i++) assert_ok(kv_fork(&out[i], rows[order[i]]));
}

static void batches_commute(fixture *w, uint64_t seed) {
    enum { ROWS = 3, TIMES = 2 };
    kv_cache *rows[ROWS], *a[ROWS], *b[ROWS], *crops[ROWS], *many[ROWS * TIMES], *selected[ROWS];
    uint64_t random = seed << 8;
    int order[ROWS], twice[ROWS * TIMES], picks[ROWS], n = 30 + (int)(seed % 80);
    for (int i = 0; i < ROWS; i++) {
        rows[i] = fixture_new(w)->cache;
        fixture_put(w, &w->members[i], fixture_tokens() + 10 * i, n, 19);
        order[i] = (int)(test_random(&random) % ROWS);
        picks[i] = i * TIMES;
    }
    for (int i = 0; i < ROWS * TIMES; i++) twice[i] = i / TIMES;
    size_t used = kv_pool_used(w->pool);
    int64_t keep = kv_reachable(rows[0], n - (int64_t)(seed % 30));
    batch_of(a, rows, order, ROWS); /* reorder, then crop */
    for (int i = 0; i < ROWS; i++) assert_ok(kv_truncate(a[i], keep));
    for (int i = 0; i < ROWS; i++) { /* crop, then reorder */
        assert_ok(kv_fork(&crops[i], rows[i]));
        assert_ok(kv_truncate(crops[i], keep));
    }
    batch_of(b, crops, order, ROWS);
    batch_of(many, rows, twice, ROWS * TIMES);
    batch_of(selected, many, picks, ROWS);
    assert_int_equal(kv_pool_used(w->pool), used); /* none of this has copied a page */
    for (int i = 0; i < ROWS; i++) {
        fixture_assert_same(w, a[i], b[i]);
        assert_int_equal(kv_bytes(a[i]), kv_bytes(b[i]));
        fixture_assert_same(w, selected[i], rows[i]);
        assert_int_equal(kv_bytes(selected[i]), kv_bytes(rows[i]));
        assert_ok(kv_check(a[i]));
        assert_ok(kv_check(b[i]));
        assert_ok(kv_check(selected[i]));
    }
    batch_close(a, ROWS);
    batch_close(b, ROWS);
    batch_close(crops, ROWS);
    batch_close(many, ROWS * TIMES);
    batch_close(selected, ROWS);
    assert_int_equal(kv_pool_used(w->pool), used);
}

static void batches(void **state) {
    (void)state;
    each_setting(batches_commute, ANY);
}

/* ---- threads ---- */

typedef struct thread_work {
    fixture w;
    fixture_op ops[200];
    int n_ops;
} thread_work;

static void *work(void *arg) {
    thread_work *t = arg;
    for (int i = 0; i < t->n_ops && !t->w.problem; i++) {
        fixture_do(&t->w, &t->ops[i]);
        fixture_check_all(&t->w);
    }
    return NULL;
}

/* A fixture whose only cache is a fork of `parent`, with a model of its own of the same past. */
static void open_beside(thread_work *t, const fixture_setting *set, kv_pool *pool, const kv_cache *parent,
                        uint64_t seed) {
    fixture_open(&t->w, set, pool);
    fixture_member *m = fixture_new(&t->w);
    fixture_put(&t->w, m, fixture_tokens(), 50, 20);
    kv_close(&m->cache);
    assert_ok(kv_fork(&m->cache, parent));
    m->model->peak = model_bytes(m->model);
    t->w.next_token = (uint32_t)(1000000 * (seed + 1));
    t->n_ops = (int)(sizeof t->ops / sizeof t->ops[0]);
    fixture_random_ops(t->ops, t->n_ops, seed);
}

static void two_threads_on_one_prefix(void **state) {
    (void)state;
    enum { THREADS = 2 };
    static thread_work threads[THREADS];
    for (uint64_t seed = 1; seed <= 16; seed++) {
        fixture_setting set;
        pthread_t ids[THREADS];
        fixture_setting_free(&set, seed);
        set.alone = false;
        kv_pool *pool = NULL;
        static fixture prefix;
        assert_ok(kv_pool_open(&pool, 0));
        fixture_open(&prefix, &set, pool);
        fixture_member *parent = fixture_new(&prefix);
        fixture_put(&prefix, parent, fixture_tokens(), 50, 20);
        for (int i = 0; i < THREADS; i++)
            open_beside(&threads[i], &set, pool, parent->cache, seed * THREADS + (unsigned)i);
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&ids[i], NULL, work, &threads[i]), 0);
        fixture_close(&prefix); /* a third thread returns its references meanwhile */
        for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            fixture_close(&threads[i].w);
            if (threads[i].w.problem) fail_msg("seed %d, thread %d: %s", (int)seed, i, threads[i].w.problem);
        }
        assert_int_equal(kv_pool_used(pool), 0);
        kv_pool_close(&pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunking),
        cmocka_unit_test(steps),
        cmocka_unit_test(preallocation_and_page_sizes),
        cmocka_unit_test(wide_limits),
        cmocka_unit_test(truncation),
        cmocka_unit_test(truncated_quantized_pages),
        cmocka_unit_test(forks),
        cmocka_unit_test(abandoned_steps),
        cmocka_unit_test(rounding),
        cmocka_unit_test(batches),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(random_operations_offloaded),
        cmocka_unit_test(two_threads_on_one_prefix),
    };
    fixture_files_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
