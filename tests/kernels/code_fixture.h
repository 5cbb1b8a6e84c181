/* Fixtures of the tests of attention on quantized streams: a fixture (attend_fixture.h) each of whose streams is
 * quantized or exact, and softmax attention in double on the decoded values, with a bound of the error of rounding to
 * 16 bits and of float arithmetic.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CODE_FIXTURE_H
#define TESTS_CODE_FIXTURE_H

#include "attend_fixture.h"
#include "kernels/attend/codes.h"

typedef struct coded_shape {
    fixture_shape shape; /* form: of the streams that are exact */
    code_shape codes[2]; /* keys, values; dim, page_tokens and is_key are set by coded_open */
    bool is_coded[2];
} coded_shape;

/* Parts of the values of one stream, [n_tokens][dim]: x = scale * level + shift + mean. */
typedef struct coded_parts {
    double *x, *scale, *level, *size; /* size: sum of the absolute terms */
} coded_parts;

typedef struct coded_fixture {
    fixture w;
    coded_shape shape;
    code_layout layouts[2];
    size_t offsets[2];
    char *saved; /* the pages as coded_open left them */
    coded_parts parts[2];
} coded_fixture;

static inline int coded_dim(const coded_fixture *c, int stream) {
    return stream ? c->w.v_dim : c->w.k_dim;
}

static inline char *coded_stream(const coded_fixture *c, int i_page, int stream) {
    return (char *)(uintptr_t)c->w.pages[i_page] + c->offsets[stream];
}

/* Side data whose values are of the size that scores want; large: junk of another size. */
static inline void coded_random_sides(const code_layout *layout, float *scales, float *shifts, size_t n, double size,
                                      bool large, uint64_t *state) {
    static const int8_t steepest[] = {1, 127, 127, 127, 127, 127, 63, 127, 127};
    int top = 1;
    for (int r = 0; r < layout->n_runs; r++) {
        int bits = layout->runs[r].bits;
        if (layout->grid == CODE_NORMAL && bits <= 5)
            top = steepest[bits] > top ? steepest[bits] : top;
        else if ((1 << bits) / 2 > top)
            top = (1 << bits) / 2;
    }
    for (size_t i = 0; i < n; i++) {
        scales[i] = (float)(size / top * test_uniform(state, 0.2, 2) * (large ? 0x1p60 : 1));
        if (layout->scale != CODE_SIDE_LOG8 && test_random(state) % 8 == 0) scales[i] = -scales[i];
        if (test_random(state) % 16 == 0) scales[i] = 0;
        shifts[i] = (float)(size * test_uniform(state, -1, 1) * (large ? 0x1p60 : 1));
    }
}

static inline void coded_fill_page(const code_layout *layout, char *stream, double size, bool large, uint64_t *state) {
    size_t n = (size_t)code_groups(layout) * (size_t)code_side_width(layout), dim = (size_t)layout->dim;
    float *scales = mem_alloc(n + dim, 4), *shifts = mem_alloc(n + dim, 4);
    for (size_t i = 0; i < layout->bytes; i += sizeof(uint64_t)) {
        uint64_t any = test_random(state);
        memcpy(stream + i, &any, sizeof any);
    }
    coded_random_sides(layout, scales, shifts, n, size, large, state);
    code_put_side(layout, stream, scales, shifts, 0, layout->page_tokens);
    for (size_t d = 0; d < dim; d++) shifts[d] = (float)test_uniform(state, -size, size);
    code_put_mean(layout, stream, shifts);
    mem_free(scales), mem_free(shifts);
}

/* Restores tokens from .. from + n - 1 of one page from `saved`, including the values that tokens share. */
static inline void coded_restore(const coded_fixture *c, int i_page, int stream, int slot, int n) {
    const code_layout *layout = &c->layouts[stream];
    char *to = coded_stream(c, i_page, stream);
    const char *from = c->saved + (to - c->w.memory);
    int dim = layout->dim, group = layout->group, side_slot = slot, side_n = n;
    uint8_t *codes = mem_alloc((size_t)(n * dim), 1);
    code_unpack(layout, from, codes, slot, n);
    code_pack(layout, to, codes, slot, n);
    if (layout->axis == CODE_CHANNEL) {
        side_slot = slot / group * group;
        side_n = (slot + n + group - 1) / group * group - side_slot;
    }
    float *scales = mem_alloc((size_t)(layout->page_tokens * dim), 4);
    float *shifts = mem_alloc((size_t)(layout->page_tokens * dim), 4);
    code_get_side(layout, from, scales, shifts, side_slot, side_n);
    code_put_side(layout, to, scales, shifts, side_slot, side_n);
    code_get_mean(layout, from, scales);
    code_put_mean(layout, to, scales);
    mem_free(codes), mem_free(scales), mem_free(shifts);
}

/* Stores tokens from .. from + n - 1 of one page in the exact streams; the bytes of the other stream are discarded. */
static inline void coded_store_exact(const coded_fixture *c, const kernel_table *table, int i_page, int from, int n,
                                     const float *k, const float *v) {
    const fixture *w = &c->w;
    size_t nowhere = (size_t)w->page_tokens * (size_t)(w->k_dim > w->v_dim ? w->k_dim : w->v_dim) * 4;
    char *block = mem_alloc(nowhere, 1);
    store_job job = {.page_tokens = w->page_tokens, .slot = from % w->page_tokens, .n = n};
    job.keys = c->shape.is_coded[0] ? block : coded_stream(c, i_page, 0);
    job.values = c->shape.is_coded[1] ? block : coded_stream(c, i_page, 1);
    job.k_dim = w->k_dim, job.v_dim = w->v_dim, job.k = k, job.v = v, job.k_stride = w->k_dim, job.v_stride = w->v_dim;
    (w->form == FORM_F32 ? table->store_f32 : table->store_bf16)(&job);
    mem_free(block);
}

/* Junk everywhere except in the bytes that tokens first .. last need. */
static inline void coded_junk_except(coded_fixture *c, int64_t first, int64_t last, uint64_t *state) {
    const fixture *w = &c->w;
    kernel_table reference;
    kernel_table_fill(&reference, CPU_SCALAR);
    float *junk = mem_alloc((size_t)w->page_tokens * (size_t)(w->k_dim + w->v_dim), 4);
    for (int page = 0; page < w->n_pages; page++) {
        int64_t base = (int64_t)page * w->page_tokens;
        int64_t lo = max_i64(first, base), hi = min_i64(min_i64(last, base + w->page_tokens - 1), w->n_tokens - 1);
        for (int i = 0; i < w->page_tokens * (w->k_dim + w->v_dim); i++) {
            junk[i] = (float)test_uniform(state, -1, 1) * (test_random(state) % 2 ? 1.0f : 0x1p120f);
        }
        coded_store_exact(c, &reference, page, (int)base, w->page_tokens, junk, junk);
        for (int stream = 0; stream < 2; stream++) {
            if (!c->shape.is_coded[stream]) continue;
            coded_fill_page(&c->layouts[stream], coded_stream(c, page, stream), 1, true, state);
            if (lo <= hi) coded_restore(c, page, stream, (int)(lo - base), (int)(hi - lo + 1));
        }
        if (lo <= hi) {
            coded_store_exact(c, &reference, page, (int)lo, (int)(hi - lo + 1), w->k + lo * w->k_dim,
                              w->v + lo * w->v_dim);
        }
    }
    mem_free(junk);
}

static inline void coded_read_parts(coded_fixture *c, int stream) {
    const fixture *w = &c->w;
    size_t dim = (size_t)coded_dim(c, stream), n = (size_t)w->n_tokens * dim;
    float *x = stream ? w->v : w->k;
    coded_parts *p = &c->parts[stream];
    double **arrays[] = {&p->x, &p->scale, &p->level, &p->size};
    for (int i = 0; i < 4; i++) *arrays[i] = mem_alloc(n, sizeof(double));
    const code_layout *layout = &c->layouts[stream];
    uint8_t codes[512];
    float scales[512], shifts[512], means[512];
    bool by_token = layout->axis == CODE_TOKEN;
    for (int t = 0; t < w->n_tokens; t++) {
        int slot = t % w->page_tokens, group = layout->group;
        const char *from = coded_stream(c, t / w->page_tokens, stream);
        if (c->shape.is_coded[stream]) {
            code_decode(layout, from, x + (size_t)t * dim, slot, 1);
            code_unpack(layout, from, codes, slot, 1);
            code_get_side(layout, from, scales, shifts, by_token ? slot : slot / group * group, by_token ? 1 : group);
            code_get_mean(layout, from, means);
        }
        for (size_t d = 0; d < dim; d++) {
            size_t i = (size_t)t * dim + d;
            p->x[i] = (double)x[i], p->size[i] = fabs(p->x[i]), p->scale[i] = p->level[i] = 0;
            if (!c->shape.is_coded[stream]) continue;
            const code_run *run = layout->runs;
            while ((stream ? slot : (int)d) >= run->end) run++;
            size_t at = by_token ? d / (size_t)group : d;
            p->scale[i] = (double)scales[at];
            p->level[i] = code_levels(layout->grid, run->bits)[codes[d]];
            p->size[i] = fabs(p->scale[i] * p->level[i]) + fabs((double)shifts[at]) + fabs((double)means[d]);
        }
    }
}

static inline void coded_open(coded_fixture *c, const coded_shape *shape) {
    const fixture_shape *s = &shape->shape;
    uint64_t state = s->seed * 91 + 3;
    memset(c, 0, sizeof *c);
    c->shape = *shape;
    fixture *w = &c->w;
    w->form = s->form, w->page_tokens = s->page_tokens, w->k_dim = s->k_dim, w->v_dim = s->v_dim;
    w->n_tokens = s->n_tokens, w->n_rows = s->group * s->n_queries, w->softcap = s->softcap;
    w->n_pages = (int)ceil_div(w->n_tokens, w->page_tokens);
    w->position = (int64_t)(test_random(&state) % 3) * w->page_tokens;
    size_t n_tokens = (size_t)w->n_tokens, n_rows = (size_t)w->n_rows, n_pages = (size_t)w->n_pages;
    size_t n_bytes[2];
    for (int i = 0; i < 2; i++) {
        code_shape codes = shape->codes[i];
        codes.is_key = i == 0, codes.dim = coded_dim(c, i), codes.page_tokens = w->page_tokens;
        n_bytes[i] = (size_t)codes.dim * (size_t)w->page_tokens * form_bytes(w->form);
        if (!shape->is_coded[i]) continue;
        code_layout_make(&c->layouts[i], &codes);
        n_bytes[i] = c->layouts[i].bytes;
    }
    c->offsets[0] = 64, c->offsets[1] = (64 + n_bytes[0] + 63) / 64 * 64 + 64;
    w->k_offset = c->offsets[0], w->v_offset = c->offsets[1];
    w->page_bytes = (c->offsets[1] + n_bytes[1] + 63) / 64 * 64;
    w->k = mem_alloc(n_tokens * (size_t)w->k_dim, 4), w->v = mem_alloc(n_tokens * (size_t)w->v_dim, 4);
    w->q_block = mem_alloc(n_rows * (size_t)w->k_dim + 1, 4), w->q = w->q_block + 1;
    w->first = mem_alloc(n_rows, sizeof(int64_t)), w->last = mem_alloc(n_rows, sizeof(int64_t));
    w->memory = mem_alloc(n_pages * w->page_bytes, 1), c->saved = mem_alloc(n_pages * w->page_bytes, 1);
    w->pages = mem_alloc(n_pages, sizeof *w->pages);
    for (size_t i = 0; i < n_pages; i++) w->pages[i] = w->memory + (n_pages - 1 - i) * w->page_bytes;
    double size = sqrt(3.0 * (s->spread > 0 ? (double)s->spread : 1) / sqrt(w->k_dim));
    for (size_t i = 0; i < n_tokens * (size_t)w->k_dim; i++)
        w->k[i] = stored(w->form, test_uniform(&state, -size, size));
    for (size_t i = 0; i < n_tokens * (size_t)w->v_dim; i++) w->v[i] = stored(w->form, test_uniform(&state, -1, 1.5));
    for (size_t i = 0; i < n_rows * (size_t)w->k_dim; i++) w->q[i] = (float)test_uniform(&state, -size, size);
    fixture_ranges(w, s, &state);
    kernel_table reference;
    kernel_table_fill(&reference, CPU_SCALAR);
    for (int page = 0; page < w->n_pages; page++) {
        int from = page * w->page_tokens, n = (int)min_i64(w->page_tokens, w->n_tokens - from);
        coded_store_exact(c, &reference, page, from, n, w->k + (size_t)from * (size_t)w->k_dim,
                          w->v + (size_t)from * (size_t)w->v_dim);
        for (int i = 0; i < 2; i++) {
            if (shape->is_coded[i]) {
                coded_fill_page(&c->layouts[i], coded_stream(c, page, i), i ? 1 : size, false, &state);
            }
        }
    }
    memcpy(c->saved, w->memory, n_pages * w->page_bytes);
    for (int i = 0; i < 2; i++) coded_read_parts(c, i);
}

static inline void coded_close(coded_fixture *c) {
    fixture_close(&c->w);
    mem_free(c->saved);
    for (int i = 0; i < 2; i++) {
        coded_parts *p = &c->parts[i];
        mem_free(p->x), mem_free(p->scale), mem_free(p->level), mem_free(p->size);
    }
}

typedef void (*attend_kernel)(const attend_job *job);

/* Rows row .. row + n - 1 over pages page .. page + n_pages - 1 into r, whose rows begin at `row`. */
static inline void coded_run(const coded_fixture *c, attend_kernel kernel, int row, int n, int page, int n_pages,
                             int64_t lo, int64_t hi, result *r) {
    const fixture *w = &c->w;
    size_t n_bytes = attend_scratch_bytes(n, w->k_dim, w->v_dim, w->page_tokens);
    char *raw = mem_alloc(n_bytes + 192, 1), *scratch = raw + 64 + (64 - (uintptr_t)raw % 64) % 64;
    memset(raw, 0xEE, n_bytes + 192); /* scratch may hold anything, also NaN */
    attend_job job = {.pages = w->pages + page, .n_pages = n_pages, .k_offset = w->k_offset, .v_offset = w->v_offset};
    job.page_tokens = w->page_tokens, job.position = w->position + (int64_t)page * w->page_tokens;
    job.k_dim = w->k_dim, job.v_dim = w->v_dim, job.n_rows = n;
    job.q = w->q + (size_t)row * (size_t)w->k_dim, job.first = w->first + row, job.last = w->last + row;
    job.lo = lo, job.hi = hi, job.softcap = w->softcap, job.state = r->state, job.scratch = scratch;
    job.key_codes = c->shape.is_coded[0] ? &c->layouts[0] : NULL;
    job.value_codes = c->shape.is_coded[1] ? &c->layouts[1] : NULL;
    job.exact_bf16 = w->form == FORM_BF16;
    kernel(&job);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal((unsigned char)scratch[(ptrdiff_t)i - 64], 0xEE);
        assert_int_equal((unsigned char)scratch[n_bytes + i], 0xEE);
    }
    mem_free(raw);
    result_check_guards(r, n, w->v_dim);
}

/* Half a unit of the rounding to 16 bits, and what float arithmetic on the way to it adds. */
static const double half_unit = 0.505 / 32639;

/* Error of the score of token t by the rounding of the query. */
static inline double coded_score_rounding(const coded_fixture *c, const float *q, size_t t) {
    const code_layout *layout = &c->layouts[0];
    size_t dim = (size_t)c->w.k_dim, group = layout->axis == CODE_TOKEN ? (size_t)layout->group : dim;
    const double *scale = c->parts[0].scale + t * dim, *level = c->parts[0].level + t * dim;
    double error = 0;
    for (size_t begin = 0; begin < dim; begin += group) {
        double largest = 0, factors = 0, lane = layout->axis == CODE_TOKEN ? fabs(scale[begin]) : 1;
        for (size_t d = begin; d < begin + group; d++) {
            double a = layout->axis == CODE_TOKEN ? (double)q[d] : (double)q[d] * scale[d];
            largest = fmax(largest, fabs(a));
            factors += fabs(level[d]) * lane;
        }
        error += half_unit * fmax(largest, 0x1p-100) * factors;
    }
    return error;
}

/* rounding[d] += error of the output by the rounding of the weights p of one page, 0 for invisible tokens. */
static inline void coded_value_rounding(const coded_fixture *c, const double *p, size_t page, double *rounding) {
    const code_layout *layout = &c->layouts[1];
    size_t dim = (size_t)c->w.v_dim, P = (size_t)c->w.page_tokens, end = (page + 1) * P;
    if (end > (size_t)c->w.n_tokens) end = (size_t)c->w.n_tokens;
    const double *scale = c->parts[1].scale, *level = c->parts[1].level;
    size_t group = layout->axis == CODE_TOKEN ? P : (size_t)layout->group;
    for (size_t d = 0; d < dim; d++) {
        for (size_t begin = page * P; begin < end; begin += group) {
            double largest = 0, factors = 0;
            for (size_t t = begin; t < begin + group && t < end; t++) {
                size_t i = t * dim + d;
                double s = fabs(scale[i]);
                largest = fmax(largest, layout->axis == CODE_TOKEN ? p[t] * s : p[t]);
                if (p[t] > 0) factors += fabs(level[i]) * (layout->axis == CODE_TOKEN ? 1 : s);
            }
            rounding[d] += half_unit * fmax(largest, 0x1p-100) * factors;
        }
    }
}

/* As oracle_attend, over the decoded values. rounding[v_dim]: of the output, absolutely. */
static inline void coded_oracle(const coded_fixture *c, int row, int64_t lo, int64_t hi, oracle_row *o,
                                double *rounding) {
    const fixture *w = &c->w;
    const double u = 0x1p-24;
    size_t n = (size_t)w->n_tokens, v_dim = (size_t)w->v_dim, k_dim = (size_t)w->k_dim;
    const float *q = w->q + (size_t)row * k_dim;
    double *s = mem_alloc(n, sizeof *s), *p = mem_alloc(n, sizeof *p), largest_sum = 0, largest_rounding = 0;
    memset(o, 0, sizeof *o);
    memset(rounding, 0, v_dim * sizeof *rounding);
    o->m = -INFINITY;
    o->out = mem_alloc(v_dim, sizeof(double)), o->weight = mem_alloc(v_dim, sizeof(double));
    for (size_t t = 0; t < n; t++) {
        int64_t at = w->position + (int64_t)t;
        p[t] = -1;
        if (at < w->first[row] || at > w->last[row] || at < lo || at >= hi) continue;
        double sum = 0;
        p[t] = s[t] = 0;
        for (size_t d = 0; d < k_dim; d++) {
            double a = c->shape.is_coded[0] ? (double)q[d] : (double)stored(w->form, (double)q[d]);
            s[t] += a * c->parts[0].x[t * k_dim + d], sum += fabs(a) * c->parts[0].size[t * k_dim + d];
        }
        if (w->softcap != 0) s[t] = (double)w->softcap * tanh(s[t] / (double)w->softcap);
        largest_sum = fmax(largest_sum, sum);
        if (c->shape.is_coded[0]) largest_rounding = fmax(largest_rounding, coded_score_rounding(c, q, t));
        o->m = fmax(o->m, s[t]);
        o->n_seen++;
    }
    for (size_t t = 0; t < n; t++) {
        p[t] = p[t] < 0 ? 0 : exp(s[t] - o->m);
        o->l += p[t];
        for (size_t d = 0; d < v_dim; d++) {
            o->out[d] += p[t] * c->parts[1].x[t * v_dim + d];
            o->weight[d] += p[t] * c->parts[1].size[t * v_dim + d];
        }
    }
    for (int page = 0; page < w->n_pages && c->shape.is_coded[1]; page++) {
        coded_value_rounding(c, p, (size_t)page, rounding);
    }
    for (size_t d = 0; d < v_dim && o->l > 0; d++) o->out[d] /= o->l, o->weight[d] /= o->l, rounding[d] /= o->l;
    /* A chain over dimensions, or over groups with 4 roundings each, and the mean; code_decode rounds x three times. */
    o->score_error =
        largest_rounding + (5 * w->k_dim + 16) * u * largest_sum + 8 * u * fabs((double)w->softcap) + 1e-28;
    double step = 2 * o->score_error + u * fmin(104, 2 * largest_sum) + 8 * u;
    o->relative = step + (!c->shape.is_coded[1] && w->form == FORM_BF16 ? 0x1p-8 : 0) + (o->n_seen + 20) * u +
                  w->n_pages * (u * 112 + 8 * u);
    o->relative = fmin(o->relative, 300); /* that is anything, and still a number */
    mem_free(s), mem_free(p);
}

/* All rows of a result over all pages against the oracle. */
static inline void coded_check(const coded_fixture *c, const kernel_table *table, const result *r, int64_t lo,
                               int64_t hi) {
    const fixture *w = &c->w;
    float *out = mem_alloc((size_t)w->n_rows * (size_t)w->v_dim, sizeof(float));
    double *rounding = mem_alloc((size_t)w->v_dim, sizeof(double));
    table->attend_finish(out, &r->state, w->n_rows, w->v_dim);
    for (int row = 0; row < w->n_rows; row++) {
        oracle_row o;
        coded_oracle(c, row, lo, hi, &o, rounding);
        double m = (double)r->state.m[row], l = (double)r->state.l[row];
        if (o.n_seen == 0) {
            assert_true(isinf(m) && m < 0 && l == 0);
            for (int d = 0; d < w->v_dim; d++) assert_true(out[row * w->v_dim + d] == 0);
        } else {
            if (!(fabs(m - o.m) <= o.score_error))
                fail_msg("row %d: m is %g, expected %g +- %g", row, m, o.m, o.score_error);
            /* Where scores are uncertain by more than 50, all that can be said is that the largest weighs 1. */
            double expected = o.l * exp(o.m - m), error = expm1(o.relative) * expected;
            bool known = o.score_error < 50;
            if (known ? !(fabs(l - expected) <= error) : !(l >= 1 && l <= o.n_seen)) {
                fail_msg("row %d: l is %.9g, expected %.9g +- %.3g", row, l, expected, error);
            }
        }
        for (int d = 0; d < w->v_dim && o.n_seen; d++) {
            double y = (double)out[row * w->v_dim + d];
            double allowed = expm1(2 * o.relative) * o.weight[d] + exp(2 * o.relative) * rounding[d] + 1e-30;
            if (!(fabs(y - o.out[d]) <= allowed)) {
                fail_msg(
                    "level %s P %d k %d v %d tokens %d rows %d: row %d dimension %d is %.9g, expected %.9g +- %.3g",
                    cpu_level_name(table->level), w->page_tokens, w->k_dim, w->v_dim, w->n_tokens, w->n_rows, row, d, y,
                    o.out[d], allowed);
            }
        }
        oracle_clear(&o);
    }
    mem_free(out), mem_free(rounding);
}

#endif
