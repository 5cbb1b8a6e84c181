/* Attention kernels of every level of this machine against softmax attention in double over unpaged keys and values,
 * and the bits of a row against those of the same row among other rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include "attend_fixture.h"

static const int dims[][2] = {{64, 64}, {128, 128}, {256, 256}, {96, 96}, {80, 80},  {32, 32},   {16, 16}, {8, 8},
                              {2, 2},   {192, 128}, {64, 6},    {6, 70},  {34, 130}, {512, 512}, {40, 512}};
static const int page_sizes[] = {2, 4, 6, 16, 24, 40, 128, 256};
enum { N_DIMS = sizeof dims / sizeof dims[0], N_PAGE_SIZES = sizeof page_sizes / sizeof page_sizes[0] };

typedef void (*level_check)(const kernel_table *table, const fixture_shape *shape);

static void every_level(const fixture_shape *shape, level_check check) {
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        check(&table, shape);
    }
}

/* Shapes with everything varied: `count` of them, in the short tier half as many, each given to check at every level.
 */
static void random_shapes(uint64_t seed, int count, level_check check) {
    uint64_t state = seed;
    for (int i = 0; i < (test_is_long() ? count : count / 2); i++) {
        const int *dim = dims[test_random(&state) % (i % 5 ? N_DIMS - 2 : N_DIMS)];
        fixture_shape shape = {
            .form = (form)(i % N_FORMS), .k_dim = dim[0], .v_dim = dim[1], .seed = seed + (uint64_t)i};
        shape.page_tokens = page_sizes[test_random(&state) % N_PAGE_SIZES];
        shape.group = 1 + (int)(test_random(&state) % 5);
        shape.n_queries = 1 + (int)(test_random(&state) % 13);
        shape.n_tokens = shape.n_queries + (int)(test_random(&state) % (shape.page_tokens < 16 ? 60 : 300));
        shape.range = (range_kind)(test_random(&state) % N_RANGES);
        shape.softcap = test_random(&state) % 4 ? 0 : 5;
        shape.spread = (float)test_uniform(&state, 0.5, 6);
        every_level(&shape, check);
    }
}

static void check_oracle(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result r;
    fixture_open(&w, shape);
    result_open(&r, w.n_rows, w.v_dim);
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &r);
    check_against_oracle(&w, table, &r);
    result_close(&r);
    fixture_close(&w);
}

/* The addresses of the parts of a page do not change any bit. */
static void check_parts(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result whole, parts;
    uint64_t state = shape->seed + 5;
    fixture_shape own = *shape;
    own.page_tokens = 16 * (1 + (int)(shape->seed % 8));
    fixture_open(&w, &own);
    result_open(&whole, w.n_rows, w.v_dim);
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &whole);
    for (int i = 0; i < 3; i++) {
        page_cut cut;
        cut_last_page(&w, &cut, &state);
        result_open(&parts, w.n_rows, w.v_dim);
        fixture_run_cut(&w, table, 0, w.n_rows, 0, w.n_pages, &cut, &parts);
        assert_memory_equal(parts.block, whole.block, whole.n * sizeof(float));
        result_close(&parts);
        cut_close(&cut);
    }
    result_close(&whole);
    fixture_close(&w);
}

static void pages_in_parts_give_the_same_bits(void **state) {
    (void)state;
    random_shapes(7000, 120, check_parts);
}

/* kernels: attend_f32, attend_bf16 */
static void random_shapes_match_the_oracle(void **state) {
    (void)state;
    random_shapes(1000, 160, check_oracle);
}

static void every_dimension_and_page_size_matches_the_oracle(void **state) {
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        for (int j = 0; j < N_PAGE_SIZES; j++) {
            fixture_shape shape = {
                .form = (form)((i + j) % N_FORMS), .k_dim = dims[i][0], .v_dim = dims[i][1], .group = 1 + j % 4};
            shape.page_tokens = page_sizes[j], shape.n_queries = 1 + i % 2, shape.n_tokens = page_sizes[j] / 2 + 9;
            shape.range = i % 2 ? RANGE_WHOLE : RANGE_CAUSAL, shape.seed = (uint64_t)(i * 10 + j);
            every_level(&shape, check_oracle);
            shape.form = (form)((i + j + 1) % N_FORMS);
            every_level(&shape, check_oracle);
        }
    }
}

/* ---- bits ---- */

static void run_exact(const void *kernels, fixture *w, int row, int n, int page, int n_pages, result *r) {
    fixture_run(w, kernels, row, n, page, n_pages, r);
}

static void check_company(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    fixture_open(&w, shape);
    fixture_check_company(&w, run_exact, table);
    fixture_close(&w);
}

static void a_row_has_the_same_bits_among_any_rows(void **state) {
    (void)state;
    random_shapes(2000, 60, check_company);
    for (int group = 1; group <= 9; group += group < 4 ? 1 : 4) {
        fixture_shape shape = {
            .k_dim = 64, .v_dim = 64, .page_tokens = 128, .group = group, .n_queries = 20, .n_tokens = 300};
        shape.form = (form)(group % N_FORMS), shape.range = group % 3 ? RANGE_CAUSAL : RANGE_WINDOW;
        every_level(&shape, check_company);
    }
}

/* The ranges of the other rows change, then every slot invisible to a row. */
static void check_neighbours(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result before, after;
    uint64_t state = 9;
    fixture_open(&w, shape);
    result_open(&before, w.n_rows, w.v_dim);
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &before);
    int64_t firsts[65], lasts[65];
    assert_in_range(w.n_rows, 1, 65);
    memcpy(firsts, w.first, (size_t)w.n_rows * sizeof *firsts);
    memcpy(lasts, w.last, (size_t)w.n_rows * sizeof *lasts);
    for (int row = 0; row < w.n_rows; row += 5) {
        int64_t first = firsts[row], last = lasts[row];
        fixture_shape other = *shape;
        other.range = (range_kind)(test_random(&state) % N_RANGES);
        fixture_ranges(&w, &other, &state);
        w.first[row] = first, w.last[row] = last;
        fixture_junk(&w, &state);
        kernel_table reference;
        kernel_table_fill(&reference, CPU_SCALAR);
        for (int64_t t = max_i64(first - w.position, 0); t <= min_i64(last - w.position, w.n_tokens - 1); t++) {
            fixture_store(&w, &reference, (int)(t / w.page_tokens), (int)t, 1);
        }
        result_open(&after, w.n_rows, w.v_dim);
        fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &after);
        assert_row_bits(&w, &before, row, &after, row);
        result_close(&after);
    }
    result_close(&before);
    fixture_close(&w);
}

static void invisible_slots_do_not_change_the_bits(void **state) {
    (void)state;
    random_shapes(3000, 60, check_neighbours);
}

/* A weighted value that underflows to -0 must not tell whether the tokens after it, of weight 0, were added. */
static void check_negative_zero(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result all, some;
    fixture_open(&w, shape);
    for (int i = 0; i < w.n_rows * w.k_dim; i++) w.q[i] = i % w.k_dim == 0 ? 1 : 0;
    for (int t = 0; t < w.n_tokens; t++) {
        w.k[t * w.k_dim] = t == 1 ? 20 : 0;
        for (int d = 0; d < w.v_dim; d++) {
            w.v[t * w.v_dim + d] = t == 0 ? -(shape->form == FORM_F32 ? 0x1p-149f : 0x1p-133f) : t == 1 ? -0.0f : 1;
        }
    }
    kernel_table reference;
    kernel_table_fill(&reference, CPU_SCALAR);
    fixture_store_all(&w, &reference);
    w.last[0] = w.position + 1; /* the other rows see all */
    result_open(&all, w.n_rows, w.v_dim);
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &all);
    result_open(&some, 1, w.v_dim);
    fixture_run(&w, table, 0, 1, 0, w.n_pages, &some);
    assert_row_bits(&w, &all, 0, &some, 0);
    result_close(&all);
    result_close(&some);
    fixture_close(&w);
}

static void underflow_does_not_change_the_bits(void **state) {
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        fixture_shape shape = {.form = (form)i, .k_dim = 8, .v_dim = 22, .page_tokens = 16, .group = 3, .n_queries = 1};
        shape.n_tokens = 16;
        every_level(&shape, check_negative_zero);
    }
}

static void check_untouched(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result r, copy;
    uint64_t state = 5;
    fixture_open(&w, shape);
    result_open(&r, w.n_rows, w.v_dim);
    result_open(&copy, w.n_rows, w.v_dim);
    for (int row = 0; row < w.n_rows; row++) {
        if (row % 3 == 1) w.first[row] = w.position + w.n_tokens, w.last[row] = INT64_MAX; /* later */
        if (row % 3 == 2) w.first[row] = INT64_MIN, w.last[row] = w.position - 1;          /* earlier */
        if (row % 7 == 5) w.first[row] = INT64_MAX, w.last[row] = INT64_MIN;               /* nothing */
        r.state.m[row] = (float)test_uniform(&state, -1, 1), r.state.l[row] = 3;
        for (int d = 0; d < w.v_dim; d++)
            r.state.acc[row * w.v_dim + d] = d % 3 ? (float)test_uniform(&state, -1, 1) : -0.0f;
    }
    memcpy(copy.block, r.block, r.n * sizeof(float));
    /* The tokens of the last page end before its end. */
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_tokens / w.page_tokens, &r);
    for (int row = 0; row < w.n_rows; row++) {
        if (row % 3 || row % 7 == 5) assert_row_bits(&w, &r, row, &copy, row);
    }
    result_close(&r);
    result_close(&copy);
    fixture_close(&w);
}

static void rows_without_visible_tokens_do_not_change(void **state) {
    (void)state;
    random_shapes(4000, 60, check_untouched);
}

/* ---- parts ---- */

static void check_merge(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result total, part, copy;
    fixture_open(&w, shape);
    result_open(&total, w.n_rows, w.v_dim);
    for (int page = 0, n; page < w.n_pages; page += n) {
        n = (int)min_i64(ATTEND_SEGMENT_PAGES, w.n_pages - page);
        result_open(&part, w.n_rows, w.v_dim);
        fixture_run(&w, table, 0, w.n_rows, page, n, &part);
        table->attend_merge(&total.state, &part.state, w.n_rows, w.v_dim);
        result_close(&part);
    }
    result_check_guards(&total, w.n_rows, w.v_dim);
    check_against_oracle(&w, table, &total);

    /* An empty part changes nothing; into an empty total a part goes unchanged. */
    result_open(&part, w.n_rows, w.v_dim);
    result_open(&copy, w.n_rows, w.v_dim);
    table->attend_merge(&copy.state, &total.state, w.n_rows, w.v_dim);
    table->attend_merge(&copy.state, &part.state, w.n_rows, w.v_dim);
    for (int row = 0; row < w.n_rows; row++) assert_row_bits(&w, &total, row, &copy, row);
    result_close(&part);
    result_close(&copy);
    result_close(&total);
    fixture_close(&w);
}

/* kernels: attend_merge, attend_finish */
static void segments_merge_to_the_whole(void **state) {
    (void)state;
    random_shapes(5000, 60, check_merge);
}

/* ---- extremes ---- */

/* Scores of one size, or one far above the others. */
static void check_extreme(const kernel_table *table, const fixture_shape *shape) {
    static const double sizes[] = {1e4, -1e4, 0, 1e30, -1e30};
    for (int kind = 0; kind < 10; kind++) {
        fixture w;
        result r;
        fixture_open(&w, shape);
        double score = sizes[kind % 5];
        for (int i = 0; i < w.n_rows * w.k_dim; i++) w.q[i] = i % w.k_dim == 0 ? 1 : 0;
        for (int t = 0; t < w.n_tokens; t++) {
            w.k[t * w.k_dim] = kind < 5 || t == w.n_tokens / 2 ? stored(w.form, score) : 0;
        }
        kernel_table reference;
        kernel_table_fill(&reference, CPU_SCALAR);
        fixture_store_all(&w, &reference);
        result_open(&r, w.n_rows, w.v_dim);
        fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &r);
        check_against_oracle(&w, table, &r);
        result_close(&r);
        fixture_close(&w);
    }
}

static void extreme_scores_give_numbers(void **state) {
    (void)state;
    for (int i = 0; i < 2 * N_FORMS; i++) {
        fixture_shape shape = {.form = (form)(i % N_FORMS), .k_dim = 16, .v_dim = 24, .page_tokens = 32, .group = 2};
        shape.n_queries = 4, shape.n_tokens = 150, shape.range = i / N_FORMS ? RANGE_CAUSAL : RANGE_WHOLE;
        every_level(&shape, check_extreme);
        shape.softcap = 30;
        every_level(&shape, check_extreme);
    }
}

/* Scores of minus infinity weigh nothing: the mean of the values whose scores are 0, and 0 when there are none. */
static void check_infinite(const kernel_table *table, const fixture_shape *shape) {
    for (int all = 0; all < 2; all++) {
        fixture w;
        result r;
        fixture_open(&w, shape);
        for (int i = 0; i < w.n_rows * w.k_dim; i++) w.q[i] = i % w.k_dim == 0 ? 1 : 0;
        for (int t = 0; t < w.n_tokens; t++) {
            w.k[t * w.k_dim] = all || t % 2 ? -INFINITY : 0;
            for (int d = 0; d < w.v_dim; d++) w.v[t * w.v_dim + d] = t % 2 ? 100 : 2;
        }
        kernel_table reference;
        kernel_table_fill(&reference, CPU_SCALAR);
        fixture_store_all(&w, &reference);
        result_open(&r, w.n_rows, w.v_dim);
        fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &r);
        float *out = mem_alloc((size_t)w.n_rows * (size_t)w.v_dim, sizeof(float));
        table->attend_finish(out, &r.state, w.n_rows, w.v_dim);
        for (int i = 0; i < w.n_rows * w.v_dim; i++) assert_true(all ? out[i] == 0 : fabsf(out[i] - 2) < 1e-5f);
        mem_free(out);
        result_close(&r);
        fixture_close(&w);
    }
}

static void scores_of_minus_infinity_have_weight_0(void **state) {
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        fixture_shape shape = {
            .form = (form)i, .k_dim = 8, .v_dim = 8, .page_tokens = 16, .group = 3, .n_queries = 1, .n_tokens = 50};
        every_level(&shape, check_infinite);
    }
}

/* With one token and a cap of 1 the largest score is tanh of the score: 4 units in the last place. */
static void the_softcap_is_accurate(void **state) {
    (void)state;
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        uint64_t random = 8;
        kernel_table_fill(&table, (cpu_level)level);
        fixture_shape shape = {
            .form = FORM_F32, .k_dim = 2, .v_dim = 2, .page_tokens = 2, .group = 500, .n_queries = 1};
        shape.n_tokens = 1, shape.softcap = 1;
        fixture w;
        result r;
        fixture_open(&w, &shape);
        w.k[0] = 1, w.k[1] = 0;
        fixture_store_all(&w, &table);
        for (int row = 0; row < w.n_rows; row++) {
            double size = exp2(test_uniform(&random, -30, 5));
            w.q[2 * row] = (float)(row % 2 ? size : -size), w.q[2 * row + 1] = 0;
        }
        result_open(&r, w.n_rows, w.v_dim);
        fixture_run(&w, &table, 0, w.n_rows, 0, 1, &r);
        for (int row = 0; row < w.n_rows; row++) {
            double x = (double)w.q[2 * row], expected = tanh(x), got = (double)r.state.m[row];
            if (!(fabs(got - expected) <= 4 * ldexp(1, ilogb(expected) - 23))) fail_msg("tanh %.9g is %.9g", x, got);
        }
        result_close(&r);
        fixture_close(&w);
    }
}

/* ---- storing ---- */

/* Every value of the page is at its place in the layout, and nothing else has changed. */
static void check_store(const kernel_table *table, form f, int P, int k_dim, int v_dim, int slot, int n) {
    uint64_t state = (uint64_t)(P * 1000 + slot * 31 + n);
    size_t keys = (size_t)P * (size_t)k_dim, values = (size_t)P * (size_t)v_dim, unit = form_bytes(f);
    char *page = mem_alloc((keys + values) * unit, 1);
    memset(page, 0x3C, (keys + values) * unit);
    int k_stride = k_dim + 3, v_stride = v_dim + 1;
    float *k = mem_alloc((size_t)(n * k_stride + 1), 4), *v = mem_alloc((size_t)(n * v_stride + 1), 4);
    for (int i = 0; i < n * k_stride; i++) k[i] = (float)test_uniform(&state, -9, 9);
    for (int i = 0; i < n * v_stride; i++) v[i] = (float)test_uniform(&state, -9, 9);
    if (n > 0) k[0] = NAN, k[1] = INFINITY, v[0] = -INFINITY, v[1] = 0x1p-140f;
    store_job job = {page, page + keys * unit, P, slot, n, k_dim, v_dim, k, v, k_stride, v_stride};
    (f == FORM_F32 ? table->store_f32 : table->store_bf16)(&job);
    for (int t = 0; t < P; t++) {
        for (int d = 0; d < k_dim + v_dim; d++) {
            int e = d - k_dim, i = t - slot, inside = i >= 0 && i < n;
            int f32_at = d < k_dim ? d * P + t : (int)keys + t * v_dim + e;
            int bf16_at = d < k_dim ? (d / 2 * P + t) * 2 + d % 2 : (int)keys + (t / 2 * v_dim + e) * 2 + t % 2;
            float x = !inside ? 0 : d < k_dim ? k[i * k_stride + d] : v[i * v_stride + e];
            uint32_t expected = f == FORM_F32 ? f32_bits(x) : bf16_from_f32(x), got = 0;
            if (!inside) expected = f == FORM_F32 ? 0x3C3C3C3Cu : 0x3C3Cu;
            memcpy(&got, page + (size_t)(f == FORM_F32 ? f32_at : bf16_at) * unit, unit);
            assert_int_equal(got, expected);
        }
    }
    mem_free(page), mem_free(k), mem_free(v);
}

/* kernels: store_f32, store_bf16 */
static void stored_tokens_are_where_the_layout_says(void **state) {
    (void)state;
    static const int shapes[][3] = {{2, 8, 8}, {4, 16, 2}, {16, 64, 64}, {40, 6, 70}, {128, 64, 64}, {128, 80, 34}};
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        for (int f = 0; f < N_FORMS; f++) {
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                int P = shapes[i][0];
                for (int slot = 0; slot < P; slot += slot < 4 ? 1 : 13) {
                    for (int n = 0; slot + n <= P; n += n < 4 ? 1 : 17) {
                        check_store(&table, (form)f, P, shapes[i][1], shapes[i][2], slot, n);
                    }
                    check_store(&table, (form)f, P, shapes[i][1], shapes[i][2], slot, P - slot);
                }
            }
        }
    }
}

/* Tokens stored one at a time or many at once by a level are the same page bytes as the reference's. */
static void check_round_trip(const kernel_table *table, const fixture_shape *shape) {
    fixture w;
    result r;
    uint64_t state = 3;
    fixture_open(&w, shape);
    size_t n_bytes = w.page_bytes * (size_t)w.n_pages;
    char *expected = mem_alloc(n_bytes, 1);
    memcpy(expected, w.memory, n_bytes);
    for (int from = 0, n; from < w.n_tokens; from += n) {
        n = 1 + (int)(test_random(&state) % 9);
        n = (int)min_i64(n, min_i64(w.n_tokens - from, w.page_tokens - from % w.page_tokens));
        fixture_store(&w, table, from / w.page_tokens, from, n);
    }
    assert_memory_equal(w.memory, expected, n_bytes);
    result_open(&r, w.n_rows, w.v_dim);
    fixture_run(&w, table, 0, w.n_rows, 0, w.n_pages, &r);
    check_against_oracle(&w, table, &r);
    result_close(&r);
    mem_free(expected);
    fixture_close(&w);
}

static void what_is_stored_is_attended(void **state) {
    (void)state;
    random_shapes(6000, 30, check_round_trip);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes_match_the_oracle),
        cmocka_unit_test(pages_in_parts_give_the_same_bits),
        cmocka_unit_test(every_dimension_and_page_size_matches_the_oracle),
        cmocka_unit_test(a_row_has_the_same_bits_among_any_rows),
        cmocka_unit_test(invisible_slots_do_not_change_the_bits),
        cmocka_unit_test(underflow_does_not_change_the_bits),
        cmocka_unit_test(rows_without_visible_tokens_do_not_change),
        cmocka_unit_test(segments_merge_to_the_whole),
        cmocka_unit_test(extreme_scores_give_numbers),
        cmocka_unit_test(scores_of_minus_infinity_have_weight_0),
        cmocka_unit_test(the_softcap_is_accurate),
        cmocka_unit_test(stored_tokens_are_where_the_layout_says),
        cmocka_unit_test(what_is_stored_is_attended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
