/* Matrix products: the reference against products in double, every level against the reference, and the promise that an
 * output's bits do not depend on how the work is cut.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/blocks.h"
#include "support/budget.h"
#include "support/kernel_check.h"
#include "tensor/block_codes.h"

enum { SHIFT = 4 }; /* bytes by which float and code arrays are moved off alignment */

/* A random matrix, m random rows in its form, and for each output the exact product of the two and the sum of its
 * absolute terms. */
typedef struct problem {
    weight_layout layout;
    dtype type;
    int m;
    activations acts;
    guarded weights, x, spans; /* x: in the matrix's form */
    guarded scratch;           /* of kernels */
    double *exact, *terms;     /* [m][n] */
} problem;

/* The value of row r, input j after rounding. */
static double act_at(const problem *p, int r, int j) {
    int k = p->layout.k;
    switch (p->layout.form) {
    case WEIGHT_F32: return ((const float *)p->x.data)[r * k + j];
    case WEIGHT_BF16: return f32_from_bf16(((const bf16 *)p->x.data)[(size_t)r * act_bf16_stride(k) + (size_t)j]);
    default: {
        static const int place[] = {0, 2, 1, 3};
        const int at = (j / 256 * p->m + r) * 256 + j % 256, wide_at = at / 4 * 4 + place[at % 4];
        const int code = p->acts.a8 ? ((const int8_t *)p->x.data)[at] : ((const int16_t *)p->x.data)[wide_at];
        const act_span *span = &((const act_span *)p->spans.data)[at / 256];
        const int run = j % 256 / 32;
        return ((double)code + (p->acts.a8 && j % 32 == span->place[run] ? 128 * span->upper[run] : 0)) *
               span->scale[run];
    }
    }
}

static void make_activations(problem *p, uint64_t *seed, const kernel_table *ref, bool a8) {
    size_t m = (size_t)p->m, k = (size_t)p->layout.k, even = k + k % 2;
    size_t stride = p->layout.form == WEIGHT_BF16 ? act_bf16_stride(p->layout.k) : even;
    float *x = mem_alloc(m * k + 1, sizeof *x);
    assert_non_null(x);
    random_floats(seed, x, m * k);
    const size_t unit[] = {sizeof(float), sizeof(bf16), a8 ? 1 : sizeof(int16_t)};
    size_t values = m ? (m - 1) * stride + even : 0;
    if (p->layout.form == WEIGHT_INT && m) values = ((k - 1) / 256 * m + m - 1) * 256 + (k - 1) % 256 + 1;
    p->x = guarded_make(values * unit[p->layout.form], SHIFT);
    p->spans = guarded_make((k + 255) / 256 * m * sizeof(act_span), SHIFT);
    for (size_t r = 0; r < m; r++) {
        const float *row = x + r * k;
        if (p->layout.form == WEIGHT_F32) memcpy((float *)p->x.data + r * k, row, k * sizeof *row);
        if (p->layout.form == WEIGHT_BF16) {
            ref->bf16_row((bf16 *)p->x.data + r * stride, row, k);
            if (k % 2) ((bf16 *)p->x.data)[r * stride + k] = 0;
        }
        for (size_t j = 0; p->layout.form == WEIGHT_INT && j < k; j += 256) {
            const size_t at = (j / 256 * m + r) * 256;
            ref->quantize_row((char *)p->x.data + at * unit[WEIGHT_INT], (act_span *)p->spans.data + at / 256, row + j,
                              (int)(k - j < 256 ? k - j : 256), a8);
        }
    }
    mem_free(x);
    p->acts = (activations){p->layout.form, p->m, (int)k, p->x.data, p->spans.data, a8};
}

/* Magnitudes of scale * code and min that a stored weight is made of: what rounding errors are in proportion to. */
static double weight_magnitude(const problem *p, const dtype_codes *codes, float value, float min) {
    (void)p;
    return codes && codes->has_min ? fabs((double)value - min) + fabs(min) : fabs(value);
}

static void make_exact(problem *p, const uint8_t *stored, size_t row_bytes) {
    const dtype_info *info = &dtype_table[p->type];
    const dtype_codes *codes = dtype_codes_table[p->type].decode ? &dtype_codes_table[p->type] : NULL;
    int n = p->layout.n, k = p->layout.k;
    float *w = mem_alloc((size_t)k, sizeof *w), *mins = mem_alloc((size_t)k, sizeof *mins);
    float scales[CODE_BLOCK_MAX];
    uint8_t unused[CODE_BLOCK_MAX];
    p->exact = mem_alloc((size_t)(p->m * n) + 1, sizeof(double));
    p->terms = mem_alloc((size_t)(p->m * n) + 1, sizeof(double));
    assert_true(w && mins && p->exact && p->terms);
    for (int i = 0; i < n; i++) {
        const uint8_t *row = stored + (size_t)i * row_bytes;
        info->to_f32(w, row, (size_t)k);
        if (codes && codes->has_min) {
            for (int b = 0; b < k / info->block; b++) {
                codes->decode(row + b * info->bytes, unused, scales, mins + b * info->block / codes->group);
            }
        }
        for (int j = 0; j < k && p->layout.form == WEIGHT_BF16; j++) w[j] = f32_from_bf16(bf16_from_f32(w[j]));
        for (int r = 0; r < p->m; r++) {
            for (int j = 0; j < k; j++) {
                double x = act_at(p, r, j);
                float min = codes && codes->has_min ? mins[j / codes->group] : 0;
                p->exact[r * n + i] += w[j] * x;
                p->terms[r * n + i] += weight_magnitude(p, codes, w[j], min) * fabs(x);
            }
        }
    }
    mem_free(w);
    mem_free(mins);
}

static problem problem_of(uint64_t *seed, dtype type, weight_form form, int m, int n, int k, bool a8) {
    kernel_table ref;
    kernel_table_fill(&ref, CPU_SCALAR);
    problem p = {.type = type, .m = m};
    size_t row_bytes;
    assert_ok(dtype_bytes(type, k, &row_bytes));
    uint8_t *stored = mem_alloc((size_t)n, row_bytes);
    assert_non_null(stored);
    random_blocks(seed, type, stored, (size_t)n * (size_t)k, 1.0);
    weight_layout_make(&p.layout, form, type, n, k);
    assert_int_equal(p.layout.form, form);
    p.weights = guarded_make(weight_layout_bytes(&p.layout), 0);
    guarded scratch = guarded_make(pack_scratch_bytes(&p.layout), 0);
    const stored_matrix from = {.type = type, .data = stored, .row_bytes = row_bytes};
    weight_pack(p.weights.data, &p.layout, &from, 0, p.layout.n_panels, scratch.data);
    guarded_free(&scratch);
    p.scratch = guarded_make(LINEAR_SCRATCH_BYTES, 0);
    memset(p.scratch.data, 0xFF, LINEAR_SCRATCH_BYTES); /* not numbers */
    make_activations(&p, seed, &ref, a8);
    make_exact(&p, stored, row_bytes);
    mem_free(stored);
    return p;
}

/* With activations of 8 or 16 bits. */
static problem problem_make(uint64_t *seed, dtype type, weight_form form, int m, int n, int k) {
    const bool a8 = test_random(seed) % 2;
    return problem_of(seed, type, form, m, n, k, a8);
}

static void problem_free(problem *p) {
    guarded_free(&p->weights);
    guarded_free(&p->x);
    guarded_free(&p->spans);
    guarded_check(&p->scratch, "scratch");
    guarded_free(&p->scratch);
    mem_free(p->exact);
    mem_free(p->terms);
}

/* Roundings of one chain, in units of 2^-24 of the sum of absolute terms: one or two for each input (or pair, or group)
 * and those of the weights themselves. */
static double chain_error(const problem *p) {
    int k = p->layout.k;
    if (p->layout.form != WEIGHT_INT) return k + 2;
    return 4.0 * k / p->layout.group + 4;
}

typedef void (*linear_kernel)(const linear_job *job);

static linear_kernel kernel_of(const kernel_table *table, weight_form form) {
    const linear_kernel kernels[] = {table->linear_f32, table->linear_bf16, table->linear_int};
    return kernels[form];
}

typedef struct extras {
    const float *bias;
    bool add;
} extras;

static linear_job job_of(const problem *p, float *y, ptrdiff_t stride, extras extra) {
    return (linear_job){.layout = &p->layout,
                        .weights = p->weights.data,
                        .x = &p->acts,
                        .row_end = p->m,
                        .panel_end = p->layout.n_panels,
                        .y = y,
                        .y_stride = stride,
                        .bias = extra.bias,
                        .add = extra.add,
                        .scratch = p->scratch.data};
}

typedef struct call {
    linear_kernel kernel;
    linear_job job;
} call;

static void make_call(void *arg) {
    const call *c = arg;
    c->kernel(&c->job);
}

/* The whole product of a level, on a small stack, into rows that are 3 floats longer than n; those must stay. */
static guarded run(const problem *p, cpu_level level, extras extra) {
    kernel_table table;
    kernel_table_fill(&table, level);
    int n = p->layout.n, stride = n + 3;
    guarded y = guarded_make((size_t)(p->m * stride) * sizeof(float), SHIFT);
    float *values = y.data;
    for (int i = 0; i < p->m * stride; i++) values[i] = (float)(i % 7);
    call whole = {kernel_of(&table, p->layout.form), job_of(p, values, stride, extra)};
    on_small_stack(make_call, &whole);
    guarded_check(&y, "y");
    for (int i = 0; i < p->m * stride; i++) {
        if (i % stride >= n && values[i] != (float)(i % 7)) fail_msg("y was written between rows, at %d", i);
    }
    return y;
}

static void check_levels(const problem *p, extras extra) {
    int n = p->layout.n, stride = n + 3;
    FOR_LEVELS(level, CPU_SCALAR) {
        guarded y = run(p, level, extra);
        for (int i = 0; i < p->m * n; i++) {
            int at = i / n * stride + i % n;
            double before = extra.add ? at % 7 : 0, bias = extra.bias ? (double)extra.bias[i % n] : 0;
            check_close(((float *)y.data)[at], p->exact[i] + bias + before, p->terms[i] + fabs(bias) + before,
                        chain_error(p), "%s, %s, form %d, m %d n %d k %d, row %d output %d", cpu_level_name(level),
                        dtype_table[p->type].name, p->layout.form, p->m, n, p->layout.k, i / n, i % n);
        }
        guarded_free(&y);
    }
}

/* Any division into rows and panels gives the bits of the whole and writes nothing else. */
static void check_cuts(const problem *p, uint64_t *seed) {
    int n = p->layout.n, stride = n + 3;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        kernel_table_fill(&table, level);
        guarded whole = run(p, level, (extras){0});
        guarded y = guarded_make(whole.bytes, SHIFT);
        for (int round = 0; round < 12; round++) {
            linear_job job = job_of(p, y.data, stride, (extras){0});
            job.row_begin = (int)(test_random(seed) % (uint64_t)p->m);
            job.row_end =
                round < 4 ? job.row_begin + 1 : p->m - (int)(test_random(seed) % (uint64_t)(p->m - job.row_begin));
            job.panel_begin = (int)(test_random(seed) % (uint64_t)p->layout.n_panels);
            job.panel_end =
                p->layout.n_panels - (int)(test_random(seed) % (uint64_t)(p->layout.n_panels - job.panel_begin));
            memset(y.data, 0xA5, y.bytes);
            kernel_of(&table, p->layout.form)(&job);
            for (int i = 0; i < p->m * stride; i++) {
                int row = i / stride, column = i % stride;
                bool inside = row >= job.row_begin && row < job.row_end && column >= job.panel_begin * PANEL &&
                              column < job.panel_end * PANEL && column < n;
                uint32_t got = ((uint32_t *)y.data)[i], expected = inside ? ((uint32_t *)whole.data)[i] : 0xA5A5A5A5u;
                if (got != expected) {
                    fail_msg("%s form %d rows %d..%d panels %d..%d: [%d][%d] is %08x, expected %08x",
                             cpu_level_name(level), p->layout.form, job.row_begin, job.row_end, job.panel_begin,
                             job.panel_end, row, column, got, expected);
                }
            }
        }
        guarded_free(&whole);
        guarded_free(&y);
    }
}

/* kernels: linear_f32, linear_bf16, linear_int */
static void every_type_and_level(void **state) {
    (void)state;
    uint64_t seed = 11;
    FOR_COMPUTED_TYPES(type) {
        int block = dtype_table[type].block;
        for (int form = WEIGHT_F32; form <= WEIGHT_INT; form++) {
            if (form == WEIGHT_INT && block == 1) continue; /* in rounded_plain_weights */
            problem p = problem_make(&seed, type, (weight_form)form, 7, 85, block == 1 ? 77 : block == 32 ? 160 : 512);
            check_levels(&p, (extras){0});
            problem_free(&p);
        }
    }
}

static void odd_sizes(void **state) {
    (void)state;
    static const int rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 33, 16}, outputs[] = {1, 15, 16, 17, 64, 131},
                     inputs[] = {1, 2, 3, 64, 97};
    static const struct {
        weight_form form;
        dtype type;
    } kinds[] = {{WEIGHT_F32, DTYPE_F32},  {WEIGHT_BF16, DTYPE_BF16}, {WEIGHT_INT, DTYPE_Q8_0},
                 {WEIGHT_INT, DTYPE_Q4_0}, {WEIGHT_INT, DTYPE_Q5_1},  {WEIGHT_INT, DTYPE_Q2_K},
                 {WEIGHT_INT, DTYPE_Q6_K}, {WEIGHT_INT, DTYPE_Q5_K}};
    uint64_t seed = 12;
    for (int kind = 0; kind < 8; kind++) {
        for (int i = 0; i < 12; i++) {
            int block = dtype_table[kinds[kind].type].block, k = block == 1    ? inputs[i % 5]
                                                                 : block == 32 ? 32 + i % 3 * 32
                                                                               : 256;
            problem p = problem_make(&seed, kinds[kind].type, kinds[kind].form, rows[i], outputs[i % 6], k);
            check_levels(&p, (extras){0});
            problem_free(&p);
        }
    }
}

static void bias_and_add(void **state) {
    (void)state;
    float bias[50];
    uint64_t seed = 13;
    random_floats(&seed, bias, 50);
    for (int form = WEIGHT_F32; form <= WEIGHT_INT; form++) {
        problem p = problem_make(&seed, DTYPE_Q4_1, (weight_form)form, 5, 50, 96);
        check_levels(&p, (extras){.bias = bias});
        check_levels(&p, (extras){.add = true});
        check_levels(&p, (extras){.bias = bias, .add = true});
        problem_free(&p);
    }
}

static void bits_do_not_depend_on_the_division(void **state) {
    (void)state;
    static const struct {
        weight_form form;
        dtype type;
        int k;
    } kinds[] = {{WEIGHT_F32, DTYPE_F32, 301},  {WEIGHT_BF16, DTYPE_BF16, 301}, {WEIGHT_INT, DTYPE_Q8_0, 288},
                 {WEIGHT_INT, DTYPE_Q4_0, 288}, {WEIGHT_INT, DTYPE_Q4_1, 288},  {WEIGHT_INT, DTYPE_Q5_1, 288},
                 {WEIGHT_INT, DTYPE_Q6_K, 512}, {WEIGHT_INT, DTYPE_Q2_K, 512},  {WEIGHT_INT, DTYPE_Q3_K, 512},
                 {WEIGHT_INT, DTYPE_Q5_K, 512}, {WEIGHT_INT, DTYPE_IQ4_XS, 512}};
    static const int rows[] = {1, 7, 13, 64, 101};
    uint64_t seed = 14;
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        for (int i = 0; i < 5; i++) {
            problem p = problem_make(&seed, kinds[kind].type, kinds[kind].form, rows[i], 171, kinds[kind].k);
            check_cuts(&p, &seed);
            problem_free(&p);
        }
    }
}

static void more_rows_than_are_computed_at_once(void **state) {
    (void)state;
    static const struct {
        weight_form form;
        dtype type;
        int k;
    } kinds[] = {{WEIGHT_F32, DTYPE_F32, 131}, {WEIGHT_BF16, DTYPE_BF16, 131}, {WEIGHT_INT, DTYPE_Q8_0, 96}};
    uint64_t seed = 19;
    for (int kind = 0; kind < 3; kind++) {
        problem p = problem_make(&seed, kinds[kind].type, kinds[kind].form, LINEAR_MOST_ROWS + 11, 43, kinds[kind].k);
        check_levels(&p, (extras){0});
        check_cuts(&p, &seed);
        problem_free(&p);
    }
}

/* Rows that together exceed a second-level cache, in every form of activations: right, and with the bits of single
 * rows.
 */
static void many_rows_of_many_inputs(void **state) {
    (void)state;
    static const struct {
        dtype type;
        int k;
    } kinds[] = {{DTYPE_Q8_0, 3680}, {DTYPE_Q4_0, 3680}, {DTYPE_Q4_1, 3712},  {DTYPE_Q6_K, 3840},
                 {DTYPE_Q5_K, 3840}, {DTYPE_Q2_K, 3840}, {DTYPE_IQ4_XS, 3840}};
    enum { M = 96 };
    uint64_t seed = 18;
    for (int kind = 0; kind < 14; kind++) {
        const int n = kind < 2 ? 299 : 83, stride = n + 3; /* 299: more panels than are computed at once */
        problem p = problem_of(&seed, kinds[kind / 2].type, WEIGHT_INT, M, n, kinds[kind / 2].k, kind % 2);
        check_levels(&p, (extras){0});
        FOR_LEVELS(level, CPU_AVX2) {
            kernel_table table;
            kernel_table_fill(&table, level);
            guarded whole = run(&p, level, (extras){0}), y = guarded_make(whole.bytes, SHIFT);
            for (int row = 0; row < M; row += 9) {
                linear_job job = job_of(&p, y.data, stride, (extras){0});
                job.row_begin = row;
                job.row_end = row + 1;
                table.linear_int(&job);
                assert_memory_equal((float *)y.data + row * stride, (float *)whole.data + row * stride,
                                    (size_t)n * sizeof(float));
            }
            guarded_free(&whole);
            guarded_free(&y);
        }
        problem_free(&p);
    }
}

/* float16, bfloat16 and float32 rows as 8-bit codes: each weight is off by at most half a code, and the scale by
 * 2^-11. */
static void rounded_plain_weights(void **state) {
    (void)state;
    uint64_t seed = 15;
    problem p = problem_make(&seed, DTYPE_F32, WEIGHT_INT, 3, 40, 192);
    guarded reference = run(&p, CPU_SCALAR, (extras){0});
    for (int i = 0; i < 3 * 40; i++) {
        double inputs = 0;
        for (int j = 0; j < 192; j++) inputs += fabs(act_at(&p, i / 40, j));
        double got = ((float *)reference.data)[i / 40 * 43 + i % 40];
        assert_true(fabs(got - p.exact[i]) <= inputs * (0.52 / 127)); /* random_blocks: values up to 1 */
    }
    FOR_LEVELS(level, CPU_AVX2) {
        guarded y = run(&p, level, (extras){0});
        for (int i = 0; i < 3 * 43; i++) {
            if (i % 43 >= 40) continue;
            int at = i / 43 * 40 + i % 43;
            check_close(((float *)y.data)[i], ((float *)reference.data)[i], p.terms[at], 2 * chain_error(&p),
                        "%s at %d", cpu_level_name(level), i);
        }
        guarded_free(&y);
    }
    guarded_free(&reference);
    problem_free(&p);
}

/* Every code at its limit, in both signs, one row and many: no level may lose bits of a sum of products. */
static void check_extremes(dtype type, int fill, bool a8, int code) {
    enum { M = 32, N = 32, K = 256 };
    const dtype_info *info = &dtype_table[type];
    size_t row_bytes = (size_t)(K / info->block * info->bytes);
    uint8_t *stored = mem_alloc(N, row_bytes);
    int8_t narrow[M * K];
    int16_t wide[M * K];
    act_span spans[M];
    float y[M * N], w[K];
    assert_non_null(stored);
    /* All bytes alike: the scales too are then some finite number, 0xFFFF excepted. */
    uint64_t seed = 1;
    random_blocks(&seed, type, stored, N * K, 1.0);
    for (int b = 0; b < N * K / info->block; b++) {
        uint8_t *block = stored + b * info->bytes;
        f16 d;
        size_t at = type == DTYPE_Q6_K ? 208 : type == DTYPE_Q3_K ? 108 : 0;
        memcpy(&d, block + at, sizeof d);
        memset(block, fill ? 0xFF : type == DTYPE_Q8_0 ? 0x80 : 0x00, (size_t)info->bytes);
        if (type == DTYPE_Q8_0 && fill) memset(block, 0x7F, (size_t)info->bytes);
        memcpy(block + at, &d, sizeof d);
    }
    for (int j = 0; j < M * K; j++) {
        narrow[j] = (int8_t)code;
        wide[j] = (int16_t)code;
    }
    const int32_t sum = 16 * code;                     /* of half a run */
    const uint32_t half = 6 * (uint32_t)(code * code); /* of its products without the first four */
    for (int i = 0; i < M * 16; i++) {
        act_span *span = &spans[i / 16];
        const int place = i % 16;
        span->half_sum[place] = sum;
        span->half_min_factor[place] = (float)sum;
        span->scale[place / 2] = 1;
        span->sum[place / 2] = 2 * sum;
        span->min_factor[place / 2] = (float)(2 * sum);
        if (a8) {
            span->upper[place / 2] = 0;
            span->outliers = 0;
        } else {
            span->half_products[place] = (int32_t)half;
            span->products[place / 2] = (int32_t)(2 * half);
        }
    }
    weight_layout layout;
    weight_layout_make(&layout, WEIGHT_INT, type, N, K);
    guarded packed = guarded_make(weight_layout_bytes(&layout), 0),
            scratch = guarded_make(pack_scratch_bytes(&layout), 0);
    const stored_matrix from = {.type = type, .data = stored, .row_bytes = row_bytes};
    weight_pack(packed.data, &layout, &from, 0, layout.n_panels, scratch.data);
    guarded sums = guarded_make(LINEAR_SCRATCH_BYTES, 0);
    activations acts = {WEIGHT_INT, M, K, a8 ? (const void *)narrow : wide, spans, a8};
    linear_job job = {.layout = &layout,
                      .weights = packed.data,
                      .x = &acts,
                      .panel_end = layout.n_panels,
                      .y = y,
                      .y_stride = N,
                      .scratch = sums.data};
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        kernel_table_fill(&table, level);
        for (job.row_end = 1; job.row_end <= M; job.row_end += M - 1) {
            table.linear_int(&job);
            for (int i = 0; i < job.row_end * N; i++) {
                double exact = 0, terms = 0;
                info->to_f32(w, stored + (size_t)(i % N) * row_bytes, K);
                for (int j = 0; j < K; j++) {
                    exact += (double)w[j] * code;
                    terms += fabs((double)w[j] * code);
                }
                check_close(y[i], exact, terms, 64, "%s %s fill %d code %d row %d of %d", info->name,
                            cpu_level_name(level), fill, code, i / N, job.row_end);
            }
        }
    }
    guarded_free(&packed);
    guarded_free(&scratch);
    guarded_free(&sums);
    mem_free(stored);
}

static void extreme_codes_do_not_saturate(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q6_K, DTYPE_Q3_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        for (int fill = 0; fill < 2; fill++) {
            check_extremes(types[i], fill, false, ACT_LARGEST);
            check_extremes(types[i], fill, false, -ACT_LARGEST);
            check_extremes(types[i], fill, true, ACT_LARGEST_A8);
            check_extremes(types[i], fill, true, -ACT_LARGEST_A8);
        }
    }
}

/* n_outliers: adds the groups that have an outlier. */
static void check_quantized(const float *x, const void *codes, const act_span *span, int k, bool a8, int *n_outliers) {
    static const int place[] = {0, 2, 1, 3};
    float largest_of_all = 0;
    for (int i = 0; i < k; i++) largest_of_all = fmaxf(largest_of_all, fabsf(x[i]));
    for (int g = 0; g < k / 32; g++) {
        float largest = 0, second = 0, scale;
        int sum[2] = {0}, before = 0;
        int64_t products[2] = {0};
        for (int i = 0; i < 32; i++) {
            const float magnitude = fabsf(x[g * 32 + i]);
            second = fmaxf(second, fminf(largest, magnitude));
            largest = fmaxf(largest, magnitude);
        }
        const bool is_outlier = a8 && largest >= 0x1p-111f && largest > 3 * second;
        if (!a8) largest = largest_of_all;
        scale = is_outlier ? fmaxf(second / 127, largest / 16256) : largest / (a8 ? 127 : 32512);
        assert_true(span->scale[g] == (largest < 0x1p-111f ? 0 : scale));
        if (a8 && !is_outlier) assert_int_equal(span->upper[g], 0);
        if (a8) assert_int_equal(span->outliers >> g & 1, span->upper[g] != 0);
        *n_outliers += is_outlier;
        for (int i = g * 32; i < g * 32 + 32; i++) {
            int expected = span->scale[g] > 0 ? (int)rintf(x[i] / span->scale[g]) : 0;
            int code = a8 ? ((const int8_t *)codes)[i] : ((const int16_t *)codes)[i / 4 * 4 + place[i % 4]];
            if (is_outlier && fabsf(x[i]) == largest) {
                assert_int_equal(span->place[g], i % 32);
                code += 128 * span->upper[g];
            }
            if (code != expected) fail_msg("code %d of %g: %d, expected %d", i, x[i], code, expected);
            sum[i % 32 / 16] += code;
            if (i % 2 && i % 16 >= 4) products[i % 32 / 16] += (int64_t)before * code;
            before = code;
        }
        const float factor = a8 ? span->scale[g] : 1;
        for (int half = 0; half < 2; half++) {
            assert_int_equal(span->half_sum[2 * g + half], sum[half]);
            assert_true(span->half_min_factor[2 * g + half] == factor * (float)sum[half]);
            assert_true(a8 || (uint32_t)span->half_products[2 * g + half] == (uint32_t)products[half]);
        }
        assert_int_equal(span->sum[g], sum[0] + sum[1]);
        assert_true(span->min_factor[g] == factor * (float)(sum[0] + sum[1]));
        assert_true(a8 || (uint32_t)span->products[g] == (uint32_t)(products[0] + products[1]));
    }
}

/* Codes of two groups, of which the second has an infinity and the first perhaps a NaN, are 0; the scales are not
 * finite, which affects every output, also those with mins. */
static void check_not_finite(const kernel_table *table, const float *x, guarded *codes, guarded *spans, bool a8) {
    const act_span *span = spans->data;
    const bool has_nan = isnan(x[5]);
    table->quantize_row(codes->data, spans->data, x, 64, a8);
    for (int i = has_nan || !a8 ? 0 : 32; i < 64; i++)
        assert_int_equal(a8 ? ((int8_t *)codes->data)[i] : ((int16_t *)codes->data)[i], 0);
    assert_true(has_nan ? isnan(span->scale[0]) : a8 || isinf(span->scale[0]));
    assert_true(has_nan && !a8 ? isnan(span->scale[1]) : isinf(span->scale[1]));
    for (int i = has_nan || !a8 ? 0 : 2; i < 4; i++) {
        const float factors[] = {span->half_min_factor[i], span->min_factor[i / 2]};
        assert_int_equal(span->half_sum[i], 0);
        assert_int_equal(span->sum[i / 2], 0);
        for (int j = 0; j < 2; j++) assert_true(a8 ? isnan(factors[j]) : factors[j] == 0);
    }
}

/* kernels: quantize_row */
static void rows_are_quantized(void **state) {
    (void)state;
    enum { K = 256 };
    uint64_t seed = 16;
    guarded x = guarded_make(K * sizeof(float), SHIFT), wide = guarded_make(K * sizeof(int16_t), 2),
            narrow = guarded_make(K, 1), spans = guarded_make(sizeof(act_span), SHIFT);
    float *values = x.data;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        int n_outliers = 0;
        kernel_table_fill(&table, level);
        for (int round = 0; round < 50; round++) {
            random_floats(&seed, values, K);
            for (int i = 0; i < 32; i++) {
                values[32 + i] = 0;                                 /* an empty group */
                values[64 + i] *= 0x1p-140f;                        /* denormal */
                values[96 + i] *= 0x1p120f;                         /* large */
                values[128 + i] = (float)(i * 1016 - 16255) * 0.5f; /* ties */
            }
            values[128] = -32512;
            values[160] = -11.0f;                          /* a negative extreme */
            for (int i = 193; i < 224; i++) values[i] = 0; /* one value */
            values[224] = round % 4 < 2 ? 1e6f : -1e6f;    /* more than 128 times the others */
            const bool a8 = round % 2;
            for (int i = 0; i < K && !a8; i++) { /* 16 bits have one scale: all of it, ties, denormals, one extreme */
                if (round % 8 != 0 && i >= 96 && i < 128) values[i] *= 0x1p-120f;
                if (round % 8 == 2 && i == 224) values[i] = 1;
                if (round % 8 == 4) values[i] *= 0x1p-135f;
            }
            void *codes = a8 ? narrow.data : wide.data;
            table.quantize_row(codes, spans.data, values, K, a8);
            check_quantized(values, codes, spans.data, K, a8, &n_outliers);
        }
        assert_true(n_outliers > 25); /* of 250 groups */
        guarded_check(&wide, "16-bit codes");
        guarded_check(&narrow, "8-bit codes");
        guarded_check(&spans, "spans");
        values[5] = NAN;
        values[40] = -INFINITY;
        check_not_finite(&table, values, &wide, &spans, false);
        check_not_finite(&table, values, &narrow, &spans, true);
        values[5] = 1;
        check_not_finite(&table, values, &wide, &spans, false);
    }
    guarded_free(&x);
    guarded_free(&wide);
    guarded_free(&narrow);
    guarded_free(&spans);
}

/* kernels: bf16_row */
static void rows_become_bf16(void **state) {
    (void)state;
    enum { N = 1003 };
    uint64_t seed = 17;
    guarded x = guarded_make(N * sizeof(float), SHIFT), y = guarded_make(N * sizeof(bf16), 2);
    uint32_t *words = x.data;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        kernel_table_fill(&table, level);
        for (int i = 0; i < N; i++)
            words[i] = (uint32_t)test_random(&seed); /* infinities, NaN and denormals among them */
        words[0] = 0x7F800000u, words[1] = 0x7F800001u, words[2] = 0x3F808000u, words[3] = 0x3F818000u,
        words[4] = 0x7F7FFFFFu, words[5] = 1;
        table.bf16_row(y.data, x.data, N);
        guarded_check(&y, "y");
        for (int i = 0; i < N; i++) assert_int_equal(((bf16 *)y.data)[i], bf16_from_f32(f32_from_bits(words[i])));
        assert_int_equal(((bf16 *)y.data)[2], 0x3F80);
        assert_int_equal(((bf16 *)y.data)[3], 0x3F82);
    }
    guarded_free(&x);
    guarded_free(&y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_level),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(bias_and_add),
        cmocka_unit_test(bits_do_not_depend_on_the_division),
        cmocka_unit_test(more_rows_than_are_computed_at_once),
        cmocka_unit_test(many_rows_of_many_inputs),
        cmocka_unit_test(rounded_plain_weights),
        cmocka_unit_test(extreme_codes_do_not_saturate),
        cmocka_unit_test(rows_are_quantized),
        cmocka_unit_test(rows_become_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
