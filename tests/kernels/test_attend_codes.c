/* Attention on quantized streams at every level of this machine against softmax attention in double on the decoded
 * values, and the bits of a row against those of the same row among other rows; the Hadamard transform.
 * SPDX-License-Identifier: Apache-2.0 */
#include "code_fixture.h"

typedef void (*level_check)(const kernel_table *table, const coded_shape *shape);

static void every_level(const coded_shape *shape, level_check check) {
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        check(&table, shape);
    }
}

static int divisor(uint64_t *state, int n) {
    for (;;) {
        int d = 1 + (int)(test_random(state) % (uint64_t)n);
        if (n % d == 0) return d;
    }
}

/* A random layout of a stream. bits_of_dim: [k_dim], filled for half of the keys. */
static code_shape random_codes(uint64_t *state, bool is_key, int dim, int page_tokens, uint8_t *bits_of_dim) {
    code_shape shape = {.axis = (code_axis)(test_random(state) % 2), .grid = (code_grid)(test_random(state) % 3)};
    int whole = shape.axis == CODE_TOKEN ? dim : page_tokens;
    shape.group = test_random(state) % 2 ? whole : divisor(state, whole);
    shape.scale = (code_side)(1 + test_random(state) % 3);
    shape.shift = (code_side)(test_random(state) % 3);
    do shape.bits = (int)(test_random(state) % 9);
    while (shape.bits == 7 && shape.grid == CODE_UNSIGNED);
    if (!is_key) return shape;
    shape.mean = (code_side)(test_random(state) % 3);
    if (test_random(state) % 2) return shape;
    for (int d = 0, b = 1 + (int)(test_random(state) % 8); d < dim; d++) {
        if (d % 4 == 0 && b > 0 && test_random(state) % (uint64_t)dim < 16) b -= 1 + (int)(test_random(state) % 2);
        if (b < 0) b = 0;
        if (b == 7 && shape.grid == CODE_UNSIGNED) b = 6;
        bits_of_dim[d] = (uint8_t)b;
    }
    shape.bits_of_dim = bits_of_dim;
    return shape;
}

static const int dims[][2] = {{64, 64}, {128, 128}, {96, 96}, {80, 80},  {32, 32},
                              {16, 16}, {192, 128}, {48, 16}, {16, 112}, {256, 256}};
static const int page_sizes[] = {16, 32, 64, 128, 256};
enum { N_DIMS = sizeof dims / sizeof dims[0], N_PAGE_SIZES = sizeof page_sizes / sizeof page_sizes[0] };

/* Shapes with everything varied: `count` of them, each given to check at every level. One stream is exact now and
 * then. */
static void random_shapes(uint64_t seed, int count, level_check check) {
    uint64_t state = seed;
    static uint8_t bits[512];
    for (int i = 0; i < count; i++) {
        const int *dim = dims[test_random(&state) % (i % 5 ? N_DIMS - 1 : N_DIMS)];
        coded_shape shape = {.shape = {.form = (form)(i % N_FORMS), .k_dim = dim[0], .v_dim = dim[1]}};
        fixture_shape *s = &shape.shape;
        s->seed = seed + (uint64_t)i;
        s->page_tokens = page_sizes[test_random(&state) % N_PAGE_SIZES];
        s->group = 1 + (int)(test_random(&state) % 9);
        s->n_queries = s->group > 3 ? 1 : 1 + (int)(test_random(&state) % 9);
        s->n_tokens = s->n_queries + (int)(test_random(&state) % (s->page_tokens < 32 ? 60 : 200));
        s->range = (range_kind)(test_random(&state) % N_RANGES);
        s->softcap = test_random(&state) % 4 ? 0 : 5;
        s->spread = (float)test_uniform(&state, 0.5, 4);
        for (int j = 0; j < 2; j++) {
            shape.is_coded[j] = test_random(&state) % 6 != 0;
            shape.codes[j] = random_codes(&state, j == 0, dim[j], s->page_tokens, bits);
        }
        every_level(&shape, check);
    }
}

static void check_oracle(const kernel_table *table, const coded_shape *shape) {
    coded_fixture c;
    result r;
    coded_open(&c, shape);
    result_open(&r, c.w.n_rows, c.w.v_dim);
    coded_run(&c, table->attend_codes, 0, c.w.n_rows, 0, c.w.n_pages, 0, INT64_MAX, &r);
    coded_check(&c, table, &r, 0, INT64_MAX);
    result_close(&r);
    coded_close(&c);
}

static void random_shapes_match_the_oracle(void **state) {
    (void)state;
    random_shapes(1000, 150, check_oracle);
}

/* Every number of bits on every grid, on both axes, keys and values. */
/* kernels: attend_codes */
static void every_kind_of_code_matches_the_oracle(void **state) {
    (void)state;
    for (int bits = 0; bits <= 8; bits++) {
        for (int grid = 0; grid < 3; grid++) {
            if (bits == 7 && grid == CODE_UNSIGNED) continue;
            for (int axis = 0; axis < 2; axis++) {
                coded_shape shape = {
                    .shape = {.k_dim = 32, .v_dim = 80, .page_tokens = 32, .group = 3, .n_queries = 1}};
                shape.shape.n_tokens = 90, shape.shape.seed = (uint64_t)(bits * 10 + grid), shape.shape.spread = 2;
                for (int i = 0; i < 2; i++) {
                    shape.is_coded[i] = true;
                    shape.codes[i] = (code_shape){.bits = bits, .grid = (code_grid)grid, .axis = (code_axis)axis};
                    shape.codes[i].group = axis == CODE_TOKEN && i ? 80 : 32;
                    shape.codes[i].scale = CODE_SIDE_LOG8;
                }
                every_level(&shape, check_oracle);
            }
        }
    }
}

static void many_rows_and_large_heads_match_the_oracle(void **state) {
    (void)state;
    coded_shape shape = {.shape = {.k_dim = 64, .v_dim = 64, .page_tokens = 128, .group = 3, .n_queries = 32}};
    shape.shape.n_tokens = 140, shape.shape.range = RANGE_CAUSAL, shape.is_coded[0] = shape.is_coded[1] = true;
    shape.codes[0] = (code_shape){.bits = 4, .grid = CODE_NORMAL, .axis = CODE_CHANNEL, .group = 128};
    shape.codes[0].scale = CODE_SIDE_LOG8, shape.codes[0].mean = CODE_SIDE_F16;
    shape.codes[1] = (code_shape){.bits = 4, .grid = CODE_NORMAL, .axis = CODE_TOKEN, .group = 64};
    shape.codes[1].scale = CODE_SIDE_F16;
    every_level(&shape, check_oracle);
    shape.shape.k_dim = shape.shape.v_dim = 512, shape.shape.page_tokens = 256, shape.shape.n_queries = 1;
    shape.shape.n_tokens = 300;
    shape.codes[0].group = 256, shape.codes[0].bits = 8, shape.codes[1].group = 256, shape.codes[1].bits = 3;
    every_level(&shape, check_oracle);
}

/* Scores so far apart that all weight is on one token, and queries of 0. */
static void check_extreme(const kernel_table *table, const coded_shape *shape) {
    static const float sizes[] = {0, 1e-30f, 1e4f, -1e30f};
    for (int kind = 0; kind < 4; kind++) {
        coded_fixture c;
        result r;
        coded_open(&c, shape);
        for (int i = 0; i < c.w.n_rows * c.w.k_dim; i++) c.w.q[i] *= sizes[kind];
        result_open(&r, c.w.n_rows, c.w.v_dim);
        coded_run(&c, table->attend_codes, 0, c.w.n_rows, 0, c.w.n_pages, 0, INT64_MAX, &r);
        coded_check(&c, table, &r, 0, INT64_MAX);
        for (int i = 0; i < c.w.n_rows * c.w.v_dim; i++) assert_true(isfinite(r.state.acc[i]));
        result_close(&r);
        coded_close(&c);
    }
}

static void extreme_queries_give_numbers(void **state) {
    (void)state;
    random_shapes(1500, 30, check_extreme);
}

/* ---- bits ---- */

typedef struct coded_call {
    coded_fixture *c;
    const kernel_table *table;
} coded_call;

static void run_codes(const void *call, fixture *w, int row, int n, int page, int n_pages, result *r) {
    (void)w;
    const coded_call *own = call;
    coded_run(own->c, own->table->attend_codes, row, n, page, n_pages, 0, INT64_MAX, r);
}

static void check_company(const kernel_table *table, const coded_shape *shape) {
    coded_fixture c;
    coded_open(&c, shape);
    fixture_check_company(&c.w, run_codes, &(coded_call){&c, table});
    coded_close(&c);
}

static void a_row_has_the_same_bits_among_any_rows(void **state) {
    (void)state;
    random_shapes(2000, 50, check_company);
    coded_shape shape = {.shape = {.k_dim = 64, .v_dim = 64, .page_tokens = 64, .group = 3, .n_queries = 20}};
    shape.shape.n_tokens = 130, shape.shape.range = RANGE_WINDOW, shape.is_coded[0] = shape.is_coded[1] = true;
    shape.codes[0] = (code_shape){.bits = 4, .axis = CODE_CHANNEL, .group = 64, .scale = CODE_SIDE_LOG8};
    shape.codes[1] = (code_shape){.bits = 2, .axis = CODE_TOKEN, .group = 64, .scale = CODE_SIDE_LOG8};
    every_level(&shape, check_company);
}

/* The ranges of the other rows change, then all bytes that hold no token visible to a row. */
static void check_neighbours(const kernel_table *table, const coded_shape *shape) {
    coded_fixture c;
    result before, after;
    uint64_t state = 9;
    coded_open(&c, shape);
    fixture *w = &c.w;
    result_open(&before, w->n_rows, w->v_dim);
    coded_run(&c, table->attend_codes, 0, w->n_rows, 0, w->n_pages, 0, INT64_MAX, &before);
    int64_t firsts[64], lasts[64];
    assert_in_range(w->n_rows, 1, 64);
    memcpy(firsts, w->first, (size_t)w->n_rows * sizeof *firsts);
    memcpy(lasts, w->last, (size_t)w->n_rows * sizeof *lasts);
    for (int row = 0; row < w->n_rows; row += 5) {
        fixture_shape other = shape->shape;
        other.range = (range_kind)(test_random(&state) % N_RANGES);
        fixture_ranges(w, &other, &state);
        w->first[row] = firsts[row], w->last[row] = lasts[row];
        coded_junk_except(&c, firsts[row] - w->position, lasts[row] - w->position, &state);
        result_open(&after, w->n_rows, w->v_dim);
        coded_run(&c, table->attend_codes, 0, w->n_rows, 0, w->n_pages, 0, INT64_MAX, &after);
        assert_row_bits(w, &before, row, &after, row);
        result_close(&after);
    }
    result_close(&before);
    coded_close(&c);
}

static void invisible_slots_do_not_change_the_bits(void **state) {
    (void)state;
    random_shapes(3000, 40, check_neighbours);
}

/* Positions outside [lo, hi): the same bits as rows whose own ranges end there; the two sides merge to the whole. */
static void check_clipping(const kernel_table *table, const coded_shape *shape) {
    coded_fixture c;
    result below, above, clipped;
    uint64_t state = shape->shape.seed;
    coded_open(&c, shape);
    fixture *w = &c.w;
    int64_t border = w->position + (int64_t)(test_random(&state) % (uint64_t)w->n_tokens);
    result_open(&below, w->n_rows, w->v_dim);
    result_open(&above, w->n_rows, w->v_dim);
    result_open(&clipped, w->n_rows, w->v_dim);
    coded_run(&c, table->attend_codes, 0, w->n_rows, 0, w->n_pages, 0, border, &below);
    coded_run(&c, table->attend_codes, 0, w->n_rows, 0, w->n_pages, border, INT64_MAX, &above);
    coded_check(&c, table, &below, 0, border);
    coded_check(&c, table, &above, border, INT64_MAX);
    for (int row = 0; row < w->n_rows; row++) w->last[row] = min_i64(w->last[row], border - 1);
    coded_run(&c, table->attend_codes, 0, w->n_rows, 0, w->n_pages, 0, INT64_MAX, &clipped);
    for (int row = 0; row < w->n_rows; row++) assert_row_bits(w, &below, row, &clipped, row);
    result_close(&below), result_close(&above), result_close(&clipped);
    coded_close(&c);
}

static void positions_can_be_clipped(void **state) {
    (void)state;
    random_shapes(4000, 40, check_clipping);
}

/* With both streams exact the bits are those of the kernel for that form. */
static void check_exact(const kernel_table *table, const coded_shape *shape) {
    coded_fixture c;
    result a, b;
    coded_shape exact = *shape;
    exact.is_coded[0] = exact.is_coded[1] = false;
    coded_open(&c, &exact);
    result_open(&a, c.w.n_rows, c.w.v_dim);
    result_open(&b, c.w.n_rows, c.w.v_dim);
    coded_run(&c, table->attend_codes, 0, c.w.n_rows, 0, c.w.n_pages, 0, INT64_MAX, &a);
    attend_kernel kernel = c.w.form == FORM_F32 ? table->attend_f32 : table->attend_bf16;
    coded_run(&c, kernel, 0, c.w.n_rows, 0, c.w.n_pages, 0, INT64_MAX, &b);
    for (int row = 0; row < c.w.n_rows; row++) assert_row_bits(&c.w, &a, row, &b, row);
    result_close(&a), result_close(&b);
    coded_close(&c);
}

static void exact_streams_are_attended_as_before(void **state) {
    (void)state;
    random_shapes(5000, 40, check_exact);
}

/* ---- Hadamard ---- */

/* kernels: hadamard */
static void hadamard_is_the_matrix_and_its_own_inverse(void **state) {
    (void)state;
    static const int sizes[] = {2, 6, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024};
    uint64_t seed = 6;
    kernel_table reference;
    kernel_table_fill(&reference, CPU_SCALAR);
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            int dim = sizes[s], block = dim & -dim, n = 3 * dim;
            float *x = mem_alloc((size_t)n + 2, 4), *y = mem_alloc((size_t)n + 2, 4), *z = mem_alloc((size_t)n, 4);
            for (int i = 0; i < n + 2; i++) x[i] = y[i] = (float)test_uniform(&seed, -1, 1);
            memcpy(z, x + 1, (size_t)n * 4);
            table.hadamard(y + 1, 3, dim);
            reference.hadamard(z, 3, dim);
            assert_true(y[0] == x[0] && y[n + 1] == x[n + 1]);
            assert_memory_equal(y + 1, z, (size_t)n * 4);
            for (int i = 0; i < n; i++) {
                double sum = 0, size = 0;
                int first = i / block * block;
                for (int j = 0; j < block; j++) {
                    double term = (double)x[1 + first + j] / sqrt(block);
                    sum += __builtin_popcount((unsigned)((i - first) & j)) % 2 ? -term : term;
                    size += fabs(term);
                }
                assert_true(fabs((double)y[1 + i] - sum) <= 0x1p-24 * 14 * size);
            }
            table.hadamard(y + 1, 3, dim);
            for (int i = 0; i < n; i++) assert_true(fabsf(y[1 + i] - x[1 + i]) <= 0x1p-20f);
            mem_free(x), mem_free(y), mem_free(z);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes_match_the_oracle),
        cmocka_unit_test(every_kind_of_code_matches_the_oracle),
        cmocka_unit_test(many_rows_and_large_heads_match_the_oracle),
        cmocka_unit_test(extreme_queries_give_numbers),
        cmocka_unit_test(a_row_has_the_same_bits_among_any_rows),
        cmocka_unit_test(invisible_slots_do_not_change_the_bits),
        cmocka_unit_test(positions_can_be_clipped),
        cmocka_unit_test(exact_streams_are_attended_as_before),
        cmocka_unit_test(hadamard_is_the_matrix_and_its_own_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
