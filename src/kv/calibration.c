/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/calibration.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "kv/form.h"
#include "tensor/safetensors.h"

enum {
    SUM_ROWS = 4, /* rows added to a second moment at a time */
    MOST_SWEEPS = 60,
};

static const double REGULAR = 2; /* weight of the mean square of the queries in every direction */

/* ---- sets ---- */

void kv_calibration_close(kv_calibration **set) {
    if (!*set) return;
    kv_calibration_close(&(*set)->older);
    mem_free((*set)->calibration);
    mem_free((*set)->memory);
    mem_free(*set);
    *set = NULL;
}

static mn_status set_open(kv_calibration **out, int n_layers, int n_heads, int dim) {
    *out = NULL;
    size_t n = (size_t)n_layers * (size_t)n_heads, square = (size_t)dim * (size_t)dim, each = 3 * square + (size_t)dim;
    kv_calibration *set = mem_alloc(1, sizeof *set);
    if (!set) return MN_E_NOMEM;
    *set = (kv_calibration){.n_layers = n_layers, .n_heads = n_heads, .dim = dim};
    set->calibration = mem_alloc(n, sizeof *set->calibration);
    set->memory = mem_alloc(n, each * sizeof *set->memory);
    if (!set->calibration || !set->memory) {
        kv_calibration_close(&set);
        return MN_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const float *first = set->memory + i * each;
        set->calibration[i] = (kv_head_calibration){.dim = dim,
                                                    .key = first,
                                                    .query = first + square,
                                                    .lambda = first + 2 * square,
                                                    .turn = first + 2 * square + (size_t)dim};
    }
    *out = set;
    return MN_OK;
}

/* Computes the parts that follow from the others. */
static void complete(kv_calibration *set) {
    size_t n = (size_t)set->dim;
    for (int b = 0; b < set->n_layers * set->n_heads; b++) {
        float *turn = (float *)(uintptr_t)set->calibration[b].turn;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++) turn[j * n + i] = set->calibration[b].query[i * n + j];
        }
    }
}

/* ---- sums of a calibration ---- */

typedef struct head_sums {
    double *scatter; /* [dim][dim] of keys around the mean of their page, i <= j */
    double *moment;  /* [dim][dim] of queries, i <= j */
    double n_keys, n_queries;
} head_sums;

struct kv_calibrator {
    int n_layers, n_heads, dim;
    head_sums *heads; /* [n_layers * n_heads] */
    double *memory;   /* of their sums */
};

mn_status kv_calibrator_open(kv_calibrator **out, int n_layers, int n_heads, int dim) {
    *out = NULL;
    if (n_layers < 1 || n_heads < 1 || dim < CODE_LANES || dim > KV_FORM_DIM || dim % CODE_LANES) {
        MN_FAIL(MN_E_ARG,
                "a calibration for %d layers of %d heads with rows of %d values, allowed: multiples of %d up to %d",
                n_layers, n_heads, dim, CODE_LANES, KV_FORM_DIM);
    }
    size_t n = (size_t)n_layers * (size_t)n_heads, square = (size_t)dim * (size_t)dim;
    kv_calibrator *c = mem_alloc(1, sizeof *c);
    if (!c) return MN_E_NOMEM;
    *c = (kv_calibrator){.n_layers = n_layers, .n_heads = n_heads, .dim = dim};
    c->heads = mem_alloc(n, sizeof *c->heads);
    c->memory = mem_alloc(n, 2 * square * sizeof *c->memory);
    if (!c->heads || !c->memory) {
        kv_calibrator_close(&c);
        return MN_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        c->heads[i].scatter = c->memory + 2 * i * square;
        c->heads[i].moment = c->heads[i].scatter + square;
    }
    *out = c;
    return MN_OK;
}

void kv_calibrator_close(kv_calibrator **calibration) {
    if (!*calibration) return;
    mem_free((*calibration)->heads);
    mem_free((*calibration)->memory);
    mem_free(*calibration);
    *calibration = NULL;
}

/* sum[i][j] += x[i] x[j] for i <= j, x each row less the mean (NULL: 0). */
static void add_squares(double *sum, int dim, const float *rows, ptrdiff_t stride, int n, const double *mean) {
    double x[SUM_ROWS][KV_FORM_DIM];
    for (int t = 0; t < n; t += SUM_ROWS) {
        for (int r = 0; r < SUM_ROWS; r++) {
            for (int d = 0; d < dim; d++)
                x[r][d] = t + r < n ? (double)rows[(t + r) * stride + d] - (mean ? mean[d] : 0) : 0;
        }
        for (int i = 0; i < dim; i++) {
            double *row = sum + (size_t)i * (size_t)dim;
            const double a = x[0][i], b = x[1][i], c = x[2][i], e = x[3][i];
            for (int j = i; j < dim; j++) row[j] += a * x[0][j] + b * x[1][j] + (c * x[2][j] + e * x[3][j]);
        }
    }
}

void kv_calibration_add_keys(kv_calibrator *c, int layer, int head, const float *keys, ptrdiff_t stride, int n) {
    head_sums *sums = &c->heads[layer * c->n_heads + head];
    double mean[KV_FORM_DIM] = {0};
    if (n < 1) return;
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < c->dim; d++) mean[d] += (double)keys[t * stride + d];
    }
    for (int d = 0; d < c->dim; d++) mean[d] /= n;
    add_squares(sums->scatter, c->dim, keys, stride, n, mean);
    sums->n_keys += n;
}

void kv_calibration_add_queries(kv_calibrator *c, int layer, int head, const float *queries, int n_queries) {
    head_sums *sums = &c->heads[layer * c->n_heads + head];
    add_squares(sums->moment, c->dim, queries, c->dim, n_queries, NULL);
    sums->n_queries += n_queries;
}

/* ---- symmetric matrices ---- */

/* Rotates rows p and q of m: (p, q) becomes (c p - s q, s p + c q). */
static void rotate_rows(double *m, int dim, int p, int q, double c, double s) {
    double *x = m + (size_t)p * (size_t)dim, *y = m + (size_t)q * (size_t)dim;
    for (int i = 0; i < dim; i++) {
        double a = x[i], b = y[i];
        x[i] = c * a - s * b;
        y[i] = s * a + c * b;
    }
}

/* One Jacobi rotation of the symmetric matrix m (Golub & Van Loan, "Matrix Computations", 8.5), gathered in the rows of
 * u. */
static void jacobi_rotate(double *m, double *u, int dim, int p, int q) {
    const size_t n = (size_t)dim, pp = (size_t)p * n + (size_t)p, qq = (size_t)q * n + (size_t)q;
    const size_t pq = (size_t)p * n + (size_t)q, qp = (size_t)q * n + (size_t)p;
    const double a = m[pp], b = m[qq], off = m[pq], tau = (b - a) / (2 * off);
    const double t = (tau < 0 ? -1 : 1) / (fabs(tau) + sqrt(1 + tau * tau)), c = 1 / sqrt(1 + t * t), s = t * c;
    rotate_rows(m, dim, p, q, c, s);
    for (size_t i = 0; i < n; i++) { /* the columns are the rows by symmetry */
        m[i * n + (size_t)p] = m[(size_t)p * n + i];
        m[i * n + (size_t)q] = m[(size_t)q * n + i];
    }
    m[pp] = a - t * off;
    m[qq] = b + t * off;
    m[pq] = m[qp] = 0;
    rotate_rows(u, dim, p, q, c, s);
}

/* m = u^T diag(value) u, values falling, by rotations until no element off the diagonal counts. Overwrites m. */
static void decompose(double *m, double *u, double *value, int dim) {
    const size_t n = (size_t)dim;
    memset(u, 0, n * n * sizeof *u);
    for (size_t i = 0; i < n; i++) u[i * n + i] = 1;
    bool rotated = true;
    for (int sweep = 0; rotated && sweep < MOST_SWEEPS; sweep++) {
        rotated = false;
        for (int p = 0; p < dim; p++) {
            for (int q = p + 1; q < dim; q++) {
                double off = m[(size_t)p * n + (size_t)q];
                double size = sqrt(fabs(m[(size_t)p * n + (size_t)p] * m[(size_t)q * n + (size_t)q]));
                if (!(fabs(off) > 1e-15 * size) || fabs(off) < 1e-290) continue;
                jacobi_rotate(m, u, dim, p, q);
                rotated = true;
            }
        }
    }
    for (size_t i = 0; i < n; i++) value[i] = m[i * n + i];
    for (size_t i = 0; i < n; i++) {
        size_t largest = i;
        for (size_t j = i + 1; j < n; j++) {
            if (value[j] > value[largest]) largest = j;
        }
        double other = value[i];
        value[i] = value[largest];
        value[largest] = other;
        for (size_t k = 0; k < n && largest != i; k++) {
            other = u[i * n + k];
            u[i * n + k] = u[largest * n + k];
            u[largest * n + k] = other;
        }
    }
}

/* y = a b, all [n][n]. */
static void multiply(double *y, const double *a, const double *b, size_t n) {
    memset(y, 0, n * n * sizeof *y);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            const double factor = a[i * n + k];
            for (size_t j = 0; j < n; j++) y[i * n + j] += factor * b[k * n + j];
        }
    }
}

/* y = u^T diag(value^power) u; `spare` is scratch. */
static void matrix_power(double *y, const double *u, const double *value, double power, double *spare, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double factor = pow(value[i], power);
        for (size_t j = 0; j < n; j++) spare[j * n + i] = factor * u[i * n + j];
    }
    multiply(y, spare, u, n);
}

/* The lower half of sum, times factor, from its upper one. */
static void average(double *y, const double *sum, double factor, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i; j < n; j++) y[i * n + j] = y[j * n + i] = sum[i * n + j] * factor;
    }
}

/* ---- matrices from sums ---- */

typedef struct workspace {
    double *a, *b, *u, *root, *inverse_root; /* [dim][dim] */
    double *value;                           /* [dim] */
} workspace;

/* W^1/2 and W^-1/2. W is divided by the mean of its eigenvalues, so that y = A k has the magnitude of k and its scales
 * and means fit their stored types. */
static void weigh(workspace *w, const head_sums *sums, size_t n) {
    average(w->a, sums->moment, 1 / sums->n_queries, n);
    double trace = 0;
    for (size_t i = 0; i < n; i++) trace += w->a[i * n + i];
    const double mean = trace > 0 ? trace / (double)n : 1;
    for (size_t i = 0; i < n; i++) w->a[i * n + i] += REGULAR * mean;
    for (size_t i = 0; i < n * n; i++) w->a[i] /= (1 + REGULAR) * mean;
    decompose(w->a, w->u, w->value, (int)n);
    matrix_power(w->root, w->u, w->value, 0.5, w->b, n);
    matrix_power(w->inverse_root, w->u, w->value, -0.5, w->b, n);
}

static mn_status make_calibration(const kv_head_calibration *out, workspace *w, const head_sums *sums) {
    const size_t n = (size_t)out->dim;
    float *key = (float *)(uintptr_t)out->key, *query = (float *)(uintptr_t)out->query;
    float *lambda = (float *)(uintptr_t)out->lambda;
    weigh(w, sums, n);
    average(w->a, sums->scatter, 1 / sums->n_keys, n);
    multiply(w->b, w->root, w->a, n);
    multiply(w->a, w->b, w->root, n);
    decompose(w->a, w->u, w->value, (int)n);
    for (size_t i = 0; i < n; i++) lambda[i] = (float)(w->value[i] > 0 ? w->value[i] : 0);
    multiply(w->a, w->u, w->root, n);
    multiply(w->b, w->u, w->inverse_root, n);
    bool finite = true;
    for (size_t i = 0; i < n * n; i++) {
        key[i] = (float)w->a[i];
        query[i] = (float)w->b[i];
        finite = finite && isfinite(key[i]) && isfinite(query[i]);
    }
    for (size_t i = 0; i < n; i++) finite = finite && isfinite(lambda[i]);
    if (!finite) MN_FAIL(MN_E_ARG, "keys or queries of the calibration text are not finite");
    return MN_OK;
}

mn_status kv_calibrator_finish(kv_calibration **out, const kv_calibrator *c) {
    *out = NULL;
    const size_t square = (size_t)c->dim * (size_t)c->dim;
    kv_calibration *set = NULL;
    double *memory = mem_alloc(5 * square + (size_t)c->dim, sizeof *memory);
    if (!memory) return MN_E_NOMEM;
    workspace w = {
        memory, memory + square, memory + 2 * square, memory + 3 * square, memory + 4 * square, memory + 5 * square};
    mn_status status = set_open(&set, c->n_layers, c->n_heads, c->dim);
    for (int i = 0; status == MN_OK && i < c->n_layers * c->n_heads; i++) {
        const head_sums *sums = &c->heads[i];
        if (sums->n_keys > 0 && sums->n_queries > 0) {
            status = make_calibration(&set->calibration[i], &w, sums);
        } else {
            status = status_fail(MN_E_ARG, "the calibration text gave %.0f keys and %.0f queries, allowed: 1 or more",
                                 sums->n_keys, sums->n_queries);
        }
        status_context(status, "layer %d, head %d", i / c->n_heads, i % c->n_heads);
    }
    mem_free(memory);
    if (status == MN_OK) complete(set);
    if (status != MN_OK) kv_calibration_close(&set);
    *out = set;
    return status;
}

void kv_calibration_leave_out(kv_calibrator *c, int layer) {
    for (int h = 0; h < c->n_heads; h++) {
        head_sums *sums = &c->heads[layer * c->n_heads + h];
        sums->n_keys = sums->n_queries = 1;
        for (int i = 0; i < c->dim; i++) sums->scatter[i * (c->dim + 1)] = sums->moment[i * (c->dim + 1)] = 1;
    }
}

/* ---- files ---- */

/* The three tensors of a file: for each one, where its part of a calibration_layer begins, and its number of floats. */
enum { N_PARTS = 3 };
static const char *const part_names[N_PARTS] = {"key", "query", "lambda"};

static const float *calibration_part(const kv_head_calibration *calibration, int part) {
    const float *const parts[N_PARTS] = {calibration->key, calibration->query, calibration->lambda};
    return parts[part];
}

static tensor part_shape(int part, int n_layers, int n_heads, int dim) {
    tensor t = {.name = part_names[part],
                .type = DTYPE_F32,
                .n_dims = part < 2 ? 4 : 3,
                .shape = {n_layers, n_heads, dim, part < 2 ? dim : 0}};
    t.bytes = sizeof(float) * (size_t)n_layers * (size_t)n_heads * (size_t)dim * (size_t)(part < 2 ? dim : 1);
    return t;
}

/* XXH3 of the tensors' XXH3s. */
static void put_sum(char out[HASH_HEX], const tensor parts[N_PARTS]) {
    uint64_t sums[N_PARTS];
    for (int part = 0; part < N_PARTS; part++) sums[part] = hash_of(parts[part].data, parts[part].bytes);
    hash_put(out, hash_of(sums, sizeof sums));
}

mn_status kv_calibration_save(const kv_calibration *set, const char *path, const char *model) {
    tensor tensors[N_PARTS];
    char *data[N_PARTS] = {NULL};
    mn_status status = MN_OK;
    size_t n = (size_t)set->n_layers * (size_t)set->n_heads;
    for (int part = 0; part < N_PARTS && status == MN_OK; part++) {
        tensors[part] = part_shape(part, set->n_layers, set->n_heads, set->dim);
        const size_t each = tensors[part].bytes / n;
        data[part] = mem_alloc(n, each);
        if (!data[part]) status = MN_E_NOMEM;
        for (size_t i = 0; i < n && data[part]; i++)
            memcpy(data[part] + i * each, calibration_part(&set->calibration[i], part), each);
        tensors[part].data = (const uint8_t *)data[part];
    }
    if (status == MN_OK) {
        char sum[HASH_HEX];
        put_sum(sum, tensors);
        const char *const metadata[] = {"fingerprint", model, "sum", sum, NULL};
        status = safetensors_write(path, tensors, N_PARTS, metadata);
    }
    for (int part = 0; part < N_PARTS; part++) mem_free(data[part]);
    return status;
}

static mn_status check_fingerprint(const tensor_set *file, const char *path, const char *model) {
    const json *metadata = safetensors_metadata(file), *found = metadata ? json_get(metadata, "fingerprint") : NULL;
    if (!found || found->kind != JSON_STRING)
        MN_FAIL(MN_E_FORMAT, "%s: metadata has no 'fingerprint' of a model", path);
    if (!json_is_string(found, model)) {
        MN_FAIL(MN_E_REFUSED, "%s was made for the model with fingerprint %.80s, this one has %.80s", path,
                found->string, model);
    }
    return MN_OK;
}

static mn_status read_part(kv_calibration *set, int part, const tensor_set *file, const char *path) {
    const tensor *t = tensor_set_find(file, part_names[part]),
                 wanted = part_shape(part, set->n_layers, set->n_heads, set->dim);
    if (!t) MN_FAIL(MN_E_FORMAT, "%s: tensor '%s' is missing", path, part_names[part]);
    if (t->type != wanted.type || t->n_dims != wanted.n_dims || t->bytes != wanted.bytes ||
        memcmp(t->shape, wanted.shape, (size_t)wanted.n_dims * sizeof t->shape[0]) != 0) {
        MN_FAIL(MN_E_FORMAT, "%s: tensor '%s' is not f32 of %d layers, %d heads and rows of %d values", path,
                part_names[part], set->n_layers, set->n_heads, set->dim);
    }
    size_t n = (size_t)set->n_layers * (size_t)set->n_heads, each = t->bytes / n;
    for (size_t i = 0; i < n; i++)
        memcpy((float *)(uintptr_t)calibration_part(&set->calibration[i], part), t->data + i * each, each);
    return MN_OK;
}

static mn_status check_sum(const tensor_set *file, const char *path) {
    const json *found = json_get(safetensors_metadata(file), "sum");
    tensor parts[N_PARTS];
    char sum[HASH_HEX];
    for (int part = 0; part < N_PARTS; part++) parts[part] = *tensor_set_find(file, part_names[part]);
    put_sum(sum, parts);
    if (found && json_is_string(found, sum)) return MN_OK;
    MN_FAIL(MN_E_FORMAT, "%s is damaged: the checksum of its numbers is %s", path, sum);
}

/* Whether A and A^-T are finite and inverse to each other, and lambda does not rise. */
static bool is_sound(const kv_head_calibration *calibration) {
    const size_t n = (size_t)calibration->dim;
    for (size_t i = 0; i < n; i++) {
        if (!(calibration->lambda[i] >= 0) || !isfinite(calibration->lambda[i])) return false;
        if (i > 0 && calibration->lambda[i] > calibration->lambda[i - 1]) return false;
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t k = 0; k < n; k++) sum += calibration->key[i * n + k] * calibration->query[j * n + k];
            if (!(fabsf(sum - (i == j ? 1.0f : 0.0f)) < 1e-3f)) return false;
        }
    }
    return true;
}

mn_status kv_calibration_load(kv_calibration **out, const char *path, const char *model, int n_layers, int n_heads,
                              int dim) {
    *out = NULL;
    kv_calibration *set = NULL;
    tensor_set *file = NULL;
    mn_status status;
    MN_GOTO(done, status, safetensors_open(&file, path));
    MN_GOTO(done, status, check_fingerprint(file, path, model));
    MN_GOTO(done, status, set_open(&set, n_layers, n_heads, dim));
    for (int part = 0; part < N_PARTS; part++) MN_GOTO(done, status, read_part(set, part, file, path));
    MN_GOTO(done, status, check_sum(file, path));
    for (int i = 0; i < n_layers * n_heads; i++) {
        if (is_sound(&set->calibration[i])) continue;
        status = status_fail(MN_E_FORMAT, "%s: the calibration of layer %d, head %d is damaged", path, i / n_heads,
                             i % n_heads);
        break;
    }
    if (status == MN_OK) complete(set);
done:
    tensor_set_close(&file);
    if (status != MN_OK) kv_calibration_close(&set);
    *out = set;
    return status;
}
