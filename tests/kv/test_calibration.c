/* Calibrations: properties of the maps, planted spectra, and files.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/attend/codes.h"
#include "kv/calibration.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "support/support.h"
#include "tensor/safetensors.h"

enum { LAYERS = 2, HEADS = 3, DIM = 32, PAGE = 64, PAGES = 6 };

static double normal(uint64_t *seed) {
    double u = test_uniform(seed, 1e-12, 1), v = test_uniform(seed, 0, 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Keys [PAGES * PAGE][DIM] and queries [PAGE][DIM] of a head: correlated, with means that drift from page to page. */
typedef struct head_rows {
    float keys[PAGES * PAGE * DIM], queries[PAGE * DIM];
} head_rows;

static void make_rows(head_rows *rows, uint64_t seed) {
    for (int t = 0; t < PAGES * PAGE; t++) {
        double shared = normal(&seed), other = normal(&seed);
        for (int d = 0; d < DIM; d++) {
            rows->keys[t * DIM + d] = (float)(normal(&seed) * (0.2 + d % 4) + shared * (d % 7 - 3) + other * (d % 3) +
                                              10 * sin(t / PAGE + d));
        }
    }
    for (int t = 0; t < PAGE; t++) {
        double shared = normal(&seed);
        for (int d = 0; d < DIM; d++)
            rows->queries[t * DIM + d] = (float)(normal(&seed) * (1 + d % 5) + shared * (d % 6));
    }
}

static uint64_t seed_of(int layer, int head) {
    return (uint64_t)(1 + layer * HEADS + head);
}

static kv_calibrator *calibrate(void) {
    kv_calibrator *c;
    head_rows *rows = mem_alloc(1, sizeof *rows);
    assert_ok(kv_calibrator_open(&c, LAYERS, HEADS, DIM));
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int head = 0; head < HEADS; head++) {
            make_rows(rows, seed_of(layer, head));
            for (int page = 0; page < PAGES; page++)
                kv_calibration_add_keys(c, layer, head, rows->keys + page * PAGE * DIM, DIM, PAGE);
            kv_calibration_add_queries(c, layer, head, rows->queries, 10); /* in two parts */
            kv_calibration_add_queries(c, layer, head, rows->queries + 10 * DIM, PAGE - 10);
        }
    }
    mem_free(rows);
    return c;
}

static kv_calibration *make_set(void) {
    kv_calibration *set;
    kv_calibrator *c = calibrate();
    assert_ok(kv_calibrator_finish(&set, c));
    kv_calibrator_close(&c);
    return set;
}

static double dot(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < DIM; i++) sum += a[i] * b[i];
    return sum;
}

static void apply(double *y, const float *matrix, const double *x) {
    for (int i = 0; i < DIM; i++) {
        y[i] = 0;
        for (int j = 0; j < DIM; j++) y[i] += (double)matrix[i * DIM + j] * x[j];
    }
}

/* <A^-T q, A k> = <q, k>, and A^T A is W: (S + 2 (tr S / d) I) / (3 tr S / d) with the S of the queries. */
static void scores_are_kept(void **state) {
    (void)state;
    kv_calibration *set = make_set();
    head_rows *rows = mem_alloc(1, sizeof *rows);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int head = 0; head < HEADS; head++) {
            const kv_head_calibration *b = kv_calibration_of(set, layer, head);
            double s[DIM][DIM] = {{0}}, trace = 0;
            uint64_t seed = 99;
            assert_int_equal(b->dim, DIM);
            for (int trial = 0; trial < 20; trial++) {
                double q[DIM], k[DIM], bq[DIM], bk[DIM];
                for (int i = 0; i < DIM; i++) q[i] = normal(&seed), k[i] = normal(&seed);
                apply(bq, b->query, q);
                apply(bk, b->key, k);
                assert_true(fabs(dot(bq, bk) - dot(q, k)) < 1e-5 * sqrt(dot(bq, bq) * dot(bk, bk)));
            }
            make_rows(rows, seed_of(layer, head));
            for (int i = 0; i < DIM; i++) {
                for (int j = 0; j < DIM; j++) {
                    for (int t = 0; t < PAGE; t++)
                        s[i][j] += (double)rows->queries[t * DIM + i] * rows->queries[t * DIM + j] / PAGE;
                }
                trace += s[i][i];
            }
            for (int i = 0; i < DIM; i++) {
                for (int j = 0; j < DIM; j++) {
                    double got = 0, wanted = (s[i][j] + (i == j ? 2 * trace / DIM : 0)) / (3 * trace / DIM);
                    for (int k = 0; k < DIM; k++) got += (double)b->key[k * DIM + i] * b->key[k * DIM + j];
                    assert_true(fabs(got - wanted) < 1e-5);
                }
            }
        }
    }
    mem_free(rows);
    kv_calibration_close(&set);
}

/* The covariance of A k inside pages is diagonal and has lambda on the diagonal, falling. */
static void components_are_not_correlated(void **state) {
    (void)state;
    kv_calibration *set = make_set();
    head_rows *rows = mem_alloc(1, sizeof *rows);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int head = 0; head < HEADS; head++) {
            const kv_head_calibration *b = kv_calibration_of(set, layer, head);
            double c[DIM][DIM] = {{0}};
            make_rows(rows, seed_of(layer, head));
            for (int page = 0; page < PAGES; page++) {
                double y[PAGE][DIM], mean[DIM] = {0};
                for (int t = 0; t < PAGE; t++) {
                    double k[DIM];
                    for (int i = 0; i < DIM; i++) k[i] = rows->keys[(page * PAGE + t) * DIM + i];
                    apply(y[t], b->key, k);
                    for (int i = 0; i < DIM; i++) mean[i] += y[t][i] / PAGE;
                }
                for (int i = 0; i < DIM; i++) {
                    for (int j = 0; j < DIM; j++) {
                        for (int t = 0; t < PAGE; t++)
                            c[i][j] += (y[t][i] - mean[i]) * (y[t][j] - mean[j]) / (PAGE * PAGES);
                    }
                }
            }
            for (int i = 0; i < DIM; i++) {
                assert_true(fabs(c[i][i] - (double)b->lambda[i]) < 1e-5 * (double)b->lambda[0]);
                assert_true(i == 0 || b->lambda[i] <= b->lambda[i - 1]);
                for (int j = 0; j < DIM; j++)
                    assert_true(i == j || fabs(c[i][j]) < 1e-5 * sqrt(c[i][i] * c[j][j]) + 1e-6 * c[0][0]);
            }
        }
    }
    mem_free(rows);
    kv_calibration_close(&set);
}

/* Keys of two tokens a page at plus and minus a direction have that direction's variance and no other; equal second
 * moments of the queries leave it as it is. */
static void planted_spectra_are_found(void **state) {
    (void)state;
    static const int sizes[] = {16, 48, 64, 96};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int dim = sizes[s], n_planted = dim / 2;
        kv_calibrator *c;
        kv_calibration *set;
        uint64_t seed = 5;
        double *u = mem_alloc((size_t)(dim * dim), sizeof *u);
        float *rows = mem_alloc((size_t)(2 * dim), sizeof *rows);
        for (int i = 0; i < dim; i++) { /* orthonormal directions by Gram and Schmidt */
            double size = 0;
            for (int d = 0; d < dim; d++) u[i * dim + d] = normal(&seed);
            for (int j = 0; j < i; j++) {
                double along = 0;
                for (int d = 0; d < dim; d++) along += u[i * dim + d] * u[j * dim + d];
                for (int d = 0; d < dim; d++) u[i * dim + d] -= along * u[j * dim + d];
            }
            for (int d = 0; d < dim; d++) size += u[i * dim + d] * u[i * dim + d];
            for (int d = 0; d < dim; d++) u[i * dim + d] /= sqrt(size);
        }
        assert_ok(kv_calibrator_open(&c, 1, 1, dim));
        for (int i = 0; i < n_planted; i++) {
            for (int d = 0; d < dim; d++) {
                float move = (float)(u[i * dim + d] * pow(1.3, -i)), centre = (float)(i + d % 3);
                rows[d] = centre + move;
                rows[dim + d] = centre - move;
            }
            kv_calibration_add_keys(c, 0, 0, rows, dim, 2);
        }
        for (int i = 0; i < dim; i++) {
            for (int d = 0; d < dim; d++) rows[d] = i == d ? 3.0f : 0.0f;
            kv_calibration_add_queries(c, 0, 0, rows, 1);
        }
        assert_ok(kv_calibrator_finish(&set, c));
        const kv_head_calibration *b = kv_calibration_of(set, 0, 0);
        for (int i = 0; i < dim; i++) {
            double wanted = i < n_planted ? pow(1.3, -2 * i) / n_planted : 0, along = 0;
            if (!(fabs((double)b->lambda[i] - wanted) < 1e-6 / n_planted + 2e-4 * wanted))
                fail_msg("dim %d: lambda %d is %g, expected %g", dim, i, (double)b->lambda[i], wanted);
            for (int d = 0; d < dim && i < n_planted; d++) along += u[i * dim + d] * (double)b->key[i * dim + d];
            if (i < 8) assert_true(fabs(fabs(along) - 1) < 1e-3);
        }
        kv_calibration_close(&set);
        kv_calibrator_close(&c);
        mem_free(rows);
        mem_free(u);
    }
}

static void heads_without_keys_are_named(void **state) {
    (void)state;
    kv_calibrator *c;
    kv_calibration *set;
    float rows[2 * 16] = {1, 2, 3};
    assert_fails(MN_E_ARG, "multiples of 16", kv_calibrator_open(&c, 1, 1, 24));
    assert_null(c);
    assert_fails(MN_E_ARG, "0 heads", kv_calibrator_open(&c, 1, 0, 16));
    assert_ok(kv_calibrator_open(&c, 1, 2, 16));
    kv_calibration_add_keys(c, 0, 0, rows, 16, 2);
    kv_calibration_add_queries(c, 0, 0, rows, 1);
    kv_calibration_add_keys(c, 0, 1, rows, 16, 2);
    assert_fails(MN_E_ARG, "layer 0, head 1: the calibration text gave 2 keys and 0 queries",
                 kv_calibrator_finish(&set, c));
    assert_null(set);
    rows[3] = NAN;
    kv_calibration_add_queries(c, 0, 1, rows, 1);
    assert_fails(MN_E_ARG, "layer 0, head 1: keys or queries", kv_calibrator_finish(&set, c));
    kv_calibrator_close(&c);
    /* Queries of zeros have no direction. */
    memset(rows, 0, sizeof rows);
    assert_ok(kv_calibrator_open(&c, 1, 1, 16));
    kv_calibration_add_keys(c, 0, 0, rows, 16, 2);
    kv_calibration_add_queries(c, 0, 0, rows, 2);
    assert_ok(kv_calibrator_finish(&set, c));
    for (int i = 0; i < 16; i++) assert_true(set->calibration[0].lambda[i] == 0);
    kv_calibration_close(&set);
    kv_calibrator_close(&c);
}

/* ---- files ---- */

static void assert_equal_sets(const kv_calibration *a, const kv_calibration *b) {
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_heads, b->n_heads);
    assert_int_equal(a->dim, b->dim);
    for (int i = 0; i < a->n_layers * a->n_heads; i++) {
        assert_memory_equal(a->calibration[i].key, b->calibration[i].key, sizeof(float) * DIM * DIM);
        assert_memory_equal(a->calibration[i].query, b->calibration[i].query, sizeof(float) * DIM * DIM);
        assert_memory_equal(a->calibration[i].lambda, b->calibration[i].lambda, sizeof(float) * DIM);
    }
}

static void files_are_read_as_written(void **state) {
    (void)state;
    kv_calibration *set = make_set(), *read;
    const char *path = scratch_path("calibration.safetensors");
    assert_ok(kv_calibration_save(set, path, "abc"));
    assert_ok(kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM));
    assert_equal_sets(set, read);
    kv_calibration_close(&read);
    assert_fails(MN_E_REFUSED, "fingerprint abc, this one has abd",
                 kv_calibration_load(&read, path, "abd", LAYERS, HEADS, DIM));
    assert_null(read);
    assert_fails(MN_E_FORMAT, "tensor 'key' is not f32 of 3 layers",
                 kv_calibration_load(&read, path, "abc", 3, HEADS, DIM));
    assert_fails(MN_E_FORMAT, "rows of 64 values", kv_calibration_load(&read, path, "abc", LAYERS, HEADS, 64));
    assert_fails(MN_E_NOT_FOUND, NULL,
                 kv_calibration_load(&read, scratch_path("none.safetensors"), "abc", LAYERS, HEADS, DIM));
    kv_calibration_close(&set);
}

/* Values that are no calibration: each is refused with its place. */
static void unsound_calibrations_are_refused(void **state) {
    (void)state;
    const char *path = scratch_path("unsound.safetensors");
    for (int kind = 0; kind < 6; kind++) {
        kv_calibration *set = make_set(), *read;
        float *memory = set->memory + 4 * (3 * DIM * DIM + DIM); /* of layer 1, head 1 */
        float *query = memory + DIM * DIM, *lambda = query + DIM * DIM;
        switch (kind) {
        case 0: memory[5] = NAN; break;
        case 1: query[DIM + 1] += 0.01f; break;
        case 2: query[7] = INFINITY; break;
        case 3: lambda[3] = -1; break;
        case 4: lambda[3] = lambda[2] * 1.5f; break;
        default: lambda[0] = INFINITY; break;
        }
        assert_ok(kv_calibration_save(set, path, "abc"));
        assert_fails(MN_E_FORMAT, "the calibration of layer 1, head 1 is damaged",
                     kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM));
        assert_null(read);
        kv_calibration_close(&set);
    }
    float one = 1;
    tensor alone = {
        .name = "key", .type = DTYPE_F32, .n_dims = 1, .shape = {1}, .data = (const uint8_t *)&one, .bytes = 4};
    kv_calibration *read;
    assert_ok(safetensors_write(path, &alone, 1, NULL));
    assert_fails(MN_E_FORMAT, "no 'fingerprint'", kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM));
    assert_ok(safetensors_write(path, &alone, 1, (const char *const[]){"fingerprint", "abc", NULL}));
    assert_fails(MN_E_FORMAT, "'key' is not", kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM));
    alone.name = "other";
    assert_ok(safetensors_write(path, &alone, 1, (const char *const[]){"fingerprint", "abc", NULL}));
    assert_fails(MN_E_FORMAT, "'key' is missing", kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM));
}

/* Truncated and changed files never crash, and an accepted one is valid. */
static void damaged_files_are_refused_or_sound(void **state) {
    (void)state;
    kv_calibration *set = make_set(), *read;
    const char *path = scratch_path("damaged.safetensors");
    uint64_t seed = 12;
    bytes whole = {0};
    assert_ok(kv_calibration_save(set, path, "abc"));
    assert_ok(file_read(&whole, path, 1 << 24));
    size_t capacity = whole.n + 256;
    uint8_t *copy = mem_alloc(capacity, 1);
    int n_accepted = 0;
    for (int trial = 0; trial < 300; trial++) {
        memcpy(copy, whole.data, whole.n);
        size_t n = whole.n;
        if (trial < 30) {
            n = whole.n * (size_t)trial / 30;
        } else {
            n = hostile_mutate(copy, n, capacity, &seed);
        }
        scratch_file("damaged.safetensors", copy, n);
        mn_status status = kv_calibration_load(&read, path, "abc", LAYERS, HEADS, DIM);
        assert_true(status == MN_OK || status == MN_E_FORMAT || status == MN_E_REFUSED);
        assert_true((status == MN_OK) == (read != NULL));
        for (int i = 0; read && i < LAYERS * HEADS * (2 * DIM * DIM + DIM); i++) assert_true(isfinite(read->memory[i]));
        n_accepted += status == MN_OK;
        kv_calibration_close(&read);
    }
    assert_true(n_accepted < 200);
    mem_free(copy);
    bytes_clear(&whole);
    kv_calibration_close(&set);
}

static mn_status whole_life(const char *path) {
    kv_calibrator *c = NULL;
    kv_calibration *set = NULL, *read = NULL;
    float rows[2 * 16];
    for (int i = 0; i < 32; i++) rows[i] = (float)(i * i % 13);
    mn_status status = kv_calibrator_open(&c, 1, 1, 16);
    if (status == MN_OK) {
        kv_calibration_add_keys(c, 0, 0, rows, 16, 2);
        kv_calibration_add_queries(c, 0, 0, rows, 2);
        status = kv_calibrator_finish(&set, c);
    }
    if (status == MN_OK) status = kv_calibration_save(set, path, "abc");
    if (status == MN_OK) status = kv_calibration_load(&read, path, "abc", 1, 1, 16);
    kv_calibration_close(&read);
    kv_calibration_close(&set);
    kv_calibrator_close(&c);
    return status;
}

static void missing_memory_is_clean(void **state) {
    (void)state;
    const char *path = scratch_path("memory.safetensors");
    int64_t live = mem_count().live;
    for (int k = 1;; k++) {
        mem_fail_after(k);
        mn_status status = whole_life(path);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) {
            assert_true(k > 10);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_kept),
        cmocka_unit_test(components_are_not_correlated),
        cmocka_unit_test(planted_spectra_are_found),
        cmocka_unit_test(heads_without_keys_are_named),
        cmocka_unit_test(files_are_read_as_written),
        cmocka_unit_test(unsound_calibrations_are_refused),
        cmocka_unit_test(damaged_files_are_refused_or_sound),
        cmocka_unit_test(missing_memory_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
