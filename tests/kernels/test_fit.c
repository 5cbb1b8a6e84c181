/* Fitting rows to grids: against formulas in double, and every level against plain C to the bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/attend/codes.h"
#include "support/kernel_check.h"

enum { ROWS = 5, LONGEST = 256 };

static const int lengths[] = {16, 32, 48, 64, 80, 128, 256};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

/* Rows of several kinds: normal numbers about a mean, few values, all equal, one far away, zeros. */
static void make_rows(float *x, int n, uint64_t *seed) {
    for (int row = 0; row < ROWS; row++) {
        double mean = test_uniform(seed, -3, 3), size = test_uniform(seed, 0.01, 5);
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int k = 0; k < 12; k++) sum += test_uniform(seed, -0.5, 0.5);
            x[row * n + i] = (float)(mean + size * (row == 1 ? floor(sum) : row == 2 ? 0 : sum));
        }
        if (row == 3) x[row * n + n / 2] = 300;
        if (row == 4) memset(x + row * n, 0, (size_t)n * sizeof *x);
    }
}

/* ---- formulas ---- */

static int nearest(const int8_t *levels, int bits, double u) {
    int best = bits == 8; /* the level without a partner is not used */
    for (int code = best; code < 1 << bits; code++) {
        if (fabs(u - levels[code]) < fabs(u - levels[best])) best = code;
    }
    return best;
}

static double row_error(const float *x, int n, const int8_t *levels, int bits, double scale, double mean) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double u = scale > 0 ? (x[i] - mean) / scale : 0, y = scale * levels[nearest(levels, bits, u)] + mean;
        sum += (x[i] - y) * (x[i] - y);
    }
    return sum;
}

/* Three refits by least squares, from mean and deviation; the start needs the level that stands for one deviation. */
static void refit(const float *x, int n, const int8_t *levels, int bits, bool has_mean, double per_deviation,
                  double *scale, double *mean) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    *mean = has_mean ? sum / n : 0;
    for (int i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *scale = sqrt(squares / n) / per_deviation;
    for (int round = 0; round < 3 && *scale > 0; round++) {
        double g = 0, gg = 0, xg = 0, sx = 0;
        for (int i = 0; i < n; i++) {
            double level = levels[nearest(levels, bits, (x[i] - *mean) / *scale)];
            g += level;
            gg += level * level;
            sx += x[i];
            xg += x[i] * level;
        }
        if (!has_mean) {
            *scale = xg / gg;
        } else if (n * gg - g * g > 0) {
            *scale = (n * xg - sx * g) / (n * gg - g * g);
            *mean = (sx - *scale * g) / n;
        }
    }
}

typedef struct fixture {
    fit_grid grid;
    const int8_t *levels;
    int bits, n;
    bool has_mean;
    float *x, scale[ROWS], mean[ROWS];
    guarded codes;
} fixture;

static void fixture_open(fixture *f, int bits, int n, bool has_mean, uint64_t *seed) {
    *f = (fixture){.bits = bits, .n = n, .has_mean = has_mean, .levels = code_levels(CODE_NORMAL, bits)};
    fit_grid_make(&f->grid, f->levels, bits);
    f->x = mem_alloc((size_t)(ROWS * n), sizeof *f->x);
    make_rows(f->x, n, seed);
    f->codes = guarded_make((size_t)(ROWS * n), 3);
}

static void fixture_close(fixture *f) {
    mem_free(f->x);
    guarded_free(&f->codes);
}

static fit_job fixture_job(fixture *f) {
    return (fit_job){.grid = &f->grid,
                     .n_rows = ROWS,
                     .n = f->n,
                     .x = f->x,
                     .scale = f->scale,
                     .mean = f->has_mean ? f->mean : NULL,
                     .codes = f->codes.data};
}

typedef void (*fixture_check)(fixture *f, const kernel_table *table);

static void every_fixture(fixture_check check) {
    uint64_t seed = 5;
    for (int bits = 1; bits <= 8; bits++) {
        for (int i = 0; i < N_LENGTHS; i++) {
            for (int has_mean = 0; has_mean < 2; has_mean++) {
                fixture f;
                fixture_open(&f, bits, lengths[i], has_mean, &seed);
                FOR_LEVELS(level, CPU_SCALAR) {
                    kernel_table table;
                    kernel_table_fill(&table, level);
                    check(&f, &table);
                }
                fixture_close(&f);
            }
        }
    }
}

static void check_codes(fixture *f, const kernel_table *table) {
    fit_job job = fixture_job(f);
    const uint8_t *codes = f->codes.data;
    uint64_t seed = (uint64_t)f->n;
    for (int row = 0; row < ROWS; row++) {
        f->scale[row] = row == 1 ? 0 : (float)test_uniform(&seed, 0.001, 0.1);
        f->mean[row] = (float)test_uniform(&seed, -2, 2);
    }
    table->code_rows(&job);
    for (int i = 0; i < ROWS * f->n; i++) {
        int row = i / f->n;
        double mean = f->has_mean ? f->mean[row] : 0, scale = f->scale[row];
        double u = scale > 0 ? (f->x[i] - mean) / scale : 0;
        assert_true(f->bits == 8 ? codes[i] > 0 : codes[i] < 1 << f->bits);
        double got = fabs(u - f->levels[codes[i]]), best = fabs(u - f->levels[nearest(f->levels, f->bits, u)]);
        if (!(got <= best + 2e-6 * (fabs(u) + fabs(mean / fmax(scale, 1e-9)))))
            fail_msg("%d bits: %g is coded as %d, %g away instead of %g", f->bits, u, f->levels[codes[i]], got, best);
    }
}

/* kernels: code_rows */
static void codes_are_the_nearest(void **state) {
    (void)state;
    every_fixture(check_codes);
}

static void check_fit(fixture *f, const kernel_table *table) {
    static const double outermost[] = {1, 0.797885, 1.510418, 2.151946, 2.732590, 3.260732};
    fit_job job = fixture_job(f);
    table->fit_rows(&job);
    for (int row = 0; row < ROWS; row++) {
        const float *x = f->x + row * f->n;
        double mean = f->has_mean ? f->mean[row] : 0, scale = f->scale[row], size = 0;
        for (int i = 0; i < f->n; i++) size = fmax(size, fabs((double)x[i]));
        if (f->grid.is_even) {
            for (int i = 0; i < f->n; i++) {
                double step = f->bits == 8 ? scale : 2 * scale;
                double u = scale > 0 ? (x[i] - mean) / scale : 0,
                       off = fabs(x[i] - mean - scale * f->levels[nearest(f->levels, f->bits, u)]);
                if (!(off <= step / 2 + 1e-6 * size))
                    fail_msg("%d bits, row %d: %g is cut off by %g", f->bits, row, (double)x[i], off);
            }
            continue;
        }
        double own_scale, own_mean;
        refit(x, f->n, f->levels, f->bits, f->has_mean, f->levels[(1 << f->bits) - 1] / outermost[f->bits], &own_scale,
              &own_mean);
        double got = row_error(x, f->n, f->levels, f->bits, scale, mean);
        double expected = row_error(x, f->n, f->levels, f->bits, own_scale, own_mean);
        if (!(got <= expected * 1.01 + 1e-10 * size * size * f->n))
            fail_msg("%d bits, %d numbers, row %d: squared error %g, expected %g", f->bits, f->n, row, got, expected);
    }
}

/* kernels: fit_rows */
static void fits_are_as_good_as_in_double(void **state) {
    (void)state;
    every_fixture(check_fit);
}

static void check_bits(fixture *f, const kernel_table *table) {
    kernel_table plain;
    kernel_table_fill(&plain, CPU_SCALAR);
    fit_job job = fixture_job(f);
    float scale[ROWS], mean[ROWS];
    uint8_t codes[ROWS * LONGEST];
    plain.fit_rows(&job);
    plain.code_rows(&job);
    memcpy(scale, f->scale, sizeof scale);
    memcpy(mean, f->mean, sizeof mean);
    memcpy(codes, f->codes.data, (size_t)(ROWS * f->n));
    table->fit_rows(&job);
    table->code_rows(&job);
    assert_memory_equal(f->scale, scale, sizeof scale);
    assert_memory_equal(f->mean, mean, sizeof mean);
    assert_memory_equal(f->codes.data, codes, (size_t)(ROWS * f->n));
}

static void levels_agree_to_the_bit(void **state) {
    (void)state;
    every_fixture(check_bits);
}

/* NaN and infinity cause no crash and no code out of range, and do not affect other rows. */
static void nan_and_infinity_affect_their_row_only(void **state) {
    (void)state;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        kernel_table_fill(&table, level);
        for (int bits = 1; bits <= 8; bits++) {
            uint64_t seed = 3;
            fixture f;
            fixture_open(&f, bits, 64, true, &seed);
            fit_job job = fixture_job(&f);
            uint8_t before[ROWS * 64];
            table.fit_rows(&job);
            table.code_rows(&job);
            memcpy(before, f.codes.data, sizeof before);
            f.x[64] = NAN;
            f.x[130] = INFINITY;
            table.fit_rows(&job);
            table.code_rows(&job);
            assert_memory_equal(f.codes.data, before, 64);
            assert_memory_equal((char *)f.codes.data + 3 * 64, before + 3 * 64, 2 * 64);
            for (int i = 0; i < ROWS * 64; i++) assert_true(((uint8_t *)f.codes.data)[i] < 1 << bits);
            fixture_close(&f);
        }
    }
}

/* kernels: fit_product */
static void products_are_chains_in_order(void **state) {
    (void)state;
    static const int sizes[][3] = {{16, 16, 16}, {64, 64, 128}, {7, 48, 32}, {3, 5, 16}, {128, 80, 80}};
    kernel_table plain;
    kernel_table_fill(&plain, CPU_SCALAR);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int n_rows = sizes[s][0], dim = sizes[s][1], n = sizes[s][2];
        uint64_t seed = 9;
        float *a = mem_alloc((size_t)(n_rows * dim), sizeof *a), *x = mem_alloc((size_t)(dim * n), sizeof *x);
        float *y = mem_alloc((size_t)(n_rows * n), sizeof *y);
        random_floats(&seed, a, (size_t)(n_rows * dim));
        random_floats(&seed, x, (size_t)(dim * n));
        plain.fit_product(y, a, x, n_rows, dim, n);
        for (int i = 0; i < n_rows * n; i++) {
            double sum = 0, terms = 0;
            for (int d = 0; d < dim; d++) {
                double term = (double)a[i / n * dim + d] * x[d * n + i % n];
                sum += term;
                terms += fabs(term);
            }
            check_close(y[i], sum, terms, dim + 1, "product of %d, element %d", dim, i);
        }
        FOR_LEVELS(level, CPU_SCALAR) {
            kernel_table table;
            kernel_table_fill(&table, level);
            guarded out = guarded_make((size_t)(n_rows * n) * sizeof(float), 4);
            table.fit_product(out.data, a, x, n_rows, dim, n);
            assert_memory_equal(out.data, y, (size_t)(n_rows * n) * sizeof(float));
            guarded_free(&out);
        }
        mem_free(a);
        mem_free(x);
        mem_free(y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_nearest),        cmocka_unit_test(fits_are_as_good_as_in_double),
        cmocka_unit_test(levels_agree_to_the_bit),      cmocka_unit_test(nan_and_infinity_affect_their_row_only),
        cmocka_unit_test(products_are_chains_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
