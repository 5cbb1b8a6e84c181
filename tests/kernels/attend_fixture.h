/* Fixtures of the attention tests: keys and values of one KV head, dense and in pages scattered over a block of memory,
 * query rows with ranges, a runner that guards its buffers, and softmax attention in double as the oracle.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ATTEND_FIXTURE_H
#define TESTS_ATTEND_FIXTURE_H

#include <float.h>
#include <math.h>

#include "kernels/kernels.h"
#include "support/support.h"

typedef enum form { FORM_F32, FORM_BF16, N_FORMS } form;

typedef enum range_kind {
    RANGE_WHOLE,  /* every row sees all tokens */
    RANGE_CAUSAL, /* row r stands for token (n_tokens - n_queries + r / group) and sees all up to it */
    RANGE_WINDOW, /* as causal, but at most 37 tokens */
    RANGE_SINGLE, /* one random token */
    RANGE_RANDOM, /* random ends, now and then none */
    N_RANGES
} range_kind;

typedef struct fixture {
    form form;
    int page_tokens, k_dim, v_dim, n_tokens, n_rows, n_pages;
    int64_t position;
    float softcap;
    float *k, *v, *q;      /* [n_tokens][k_dim], [n_tokens][v_dim], [n_rows][k_dim]; q is unaligned */
    int64_t *first, *last; /* [n_rows] */
    char *memory;          /* pages in random order, each with a head of another beside this one's */
    size_t page_bytes, k_offset, v_offset;
    const char **pages;
    float *q_block;
} fixture;

typedef struct fixture_shape {
    form form;
    int page_tokens, k_dim, v_dim, n_tokens, group, n_queries;
    range_kind range;
    float softcap, spread; /* spread: standard size of scores, 0 for 1 */
    uint64_t seed;
} fixture_shape;

static inline float stored(form f, double x) {
    return f == FORM_F32 ? (float)x : f32_from_bf16(bf16_from_f32((float)x));
}

static inline size_t form_bytes(form f) {
    return f == FORM_F32 ? 4 : 2;
}

static inline void fixture_ranges(fixture *w, const fixture_shape *shape, uint64_t *state) {
    for (int r = 0; r < w->n_rows; r++) {
        int64_t at = shape->n_tokens - shape->n_queries + r / shape->group, lo = 0, hi = shape->n_tokens - 1;
        switch (shape->range) {
        case RANGE_CAUSAL: hi = at; break;
        case RANGE_WINDOW: lo = max_i64(0, at - 36), hi = at; break;
        case RANGE_SINGLE: lo = hi = (int64_t)(test_random(state) % (uint64_t)shape->n_tokens); break;
        case RANGE_RANDOM:
            lo = (int64_t)(test_random(state) % (uint64_t)shape->n_tokens);
            hi = lo - 1 + (int64_t)(test_random(state) % (uint64_t)(shape->n_tokens - lo + 1));
            break;
        default: break;
        }
        w->first[r] = w->position + lo;
        w->last[r] = w->position + hi;
    }
}

static inline void fixture_store(fixture *w, const kernel_table *table, int i_page, int from, int n) {
    store_job job = {
        .page_tokens = w->page_tokens, .slot = from % w->page_tokens, .n = n, .k_dim = w->k_dim, .v_dim = w->v_dim};
    job.keys = (char *)(uintptr_t)w->pages[i_page] + w->k_offset;
    job.values = (char *)(uintptr_t)w->pages[i_page] + w->v_offset;
    job.k = w->k + (size_t)from * (size_t)w->k_dim;
    job.v = w->v + (size_t)from * (size_t)w->v_dim;
    job.k_stride = w->k_dim;
    job.v_stride = w->v_dim;
    (w->form == FORM_F32 ? table->store_f32 : table->store_bf16)(&job);
}

/* Large finite junk in every byte of the pages that holds no token of this head. */
static inline void fixture_junk(fixture *w, uint64_t *state) {
    size_t n = w->page_bytes * (size_t)w->n_pages;
    for (size_t i = 0; i < n; i += form_bytes(w->form)) {
        float x = (float)test_uniform(state, -1, 1) * (test_random(state) % 2 ? 1.0f : 0x1p126f);
        bf16 half = bf16_from_f32(x);
        if (w->form == FORM_F32) {
            memcpy(w->memory + i, &x, 4);
        } else {
            memcpy(w->memory + i, &half, 2);
        }
    }
}

static inline void fixture_store_all(fixture *w, const kernel_table *table) {
    for (int i = 0; i < w->n_pages; i++) {
        int from = i * w->page_tokens;
        fixture_store(w, table, i, from, (int)min_i64(w->page_tokens, w->n_tokens - from));
    }
}

static inline void fixture_open(fixture *w, const fixture_shape *shape) {
    uint64_t state = shape->seed * 77 + 5;
    memset(w, 0, sizeof *w);
    w->form = shape->form, w->page_tokens = shape->page_tokens, w->k_dim = shape->k_dim, w->v_dim = shape->v_dim;
    w->n_tokens = shape->n_tokens, w->n_rows = shape->group * shape->n_queries, w->softcap = shape->softcap;
    w->n_pages = (int)ceil_div(w->n_tokens, w->page_tokens);
    w->position = (int64_t)(test_random(&state) % 3) * w->page_tokens;
    size_t n_tokens = (size_t)w->n_tokens, n_rows = (size_t)w->n_rows, n_pages = (size_t)w->n_pages;
    w->k = mem_alloc(n_tokens * (size_t)w->k_dim, sizeof(float));
    w->v = mem_alloc(n_tokens * (size_t)w->v_dim, sizeof(float));
    w->q_block = mem_alloc(n_rows * (size_t)w->k_dim + 1, sizeof(float));
    w->q = w->q_block + 1;
    w->first = mem_alloc(n_rows, sizeof(int64_t)), w->last = mem_alloc(n_rows, sizeof(int64_t));
    double size = sqrt(3.0 * (shape->spread > 0 ? shape->spread : 1) / sqrt(w->k_dim));
    for (size_t i = 0; i < n_tokens * (size_t)w->k_dim; i++)
        w->k[i] = stored(w->form, test_uniform(&state, -size, size));
    for (size_t i = 0; i < n_tokens * (size_t)w->v_dim; i++) w->v[i] = stored(w->form, test_uniform(&state, -1, 1.5));
    for (size_t i = 0; i < n_rows * (size_t)w->k_dim; i++) w->q[i] = (float)test_uniform(&state, -size, size);
    fixture_ranges(w, shape, &state);

    size_t unit = form_bytes(w->form) * (size_t)w->page_tokens, key_bytes = unit * (size_t)w->k_dim;
    w->k_offset = key_bytes;
    w->v_offset = 2 * key_bytes + unit * (size_t)w->v_dim;
    w->page_bytes = w->v_offset + unit * (size_t)w->v_dim;
    w->memory = mem_alloc(n_pages, w->page_bytes);
    w->pages = mem_alloc(n_pages, sizeof *w->pages);
    for (size_t i = 0; i < n_pages; i++) w->pages[i] = w->memory + i * w->page_bytes;
    for (size_t i = n_pages; i-- > 1;) {
        size_t j = test_random(&state) % (i + 1);
        const char *page = w->pages[i];
        w->pages[i] = w->pages[j], w->pages[j] = page;
    }
    kernel_table table;
    kernel_table_fill(&table, CPU_SCALAR);
    fixture_junk(w, &state);
    fixture_store_all(w, &table);
}

static inline void fixture_close(fixture *w) {
    mem_free(w->k), mem_free(w->v), mem_free(w->q_block), mem_free(w->first), mem_free(w->last);
    mem_free(w->memory), mem_free(w->pages);
}

/* A running result whose arrays lie, unaligned, in one block between guards. */
typedef struct result {
    attend_state state;
    float *block;
    size_t n;
} result;

static const uint32_t guard = 0x7FA5A5A5u; /* a NaN: reading it by mistake would show as well */

static inline void result_open(result *r, int n_rows, int v_dim) {
    size_t rows = (size_t)n_rows;
    r->n = 3 + rows * (2 + (size_t)v_dim) + 16;
    r->block = mem_alloc(r->n, sizeof(float));
    for (size_t i = 0; i < r->n; i++) memcpy(r->block + i, &guard, 4);
    r->state.m = r->block + 1, r->state.l = r->state.m + rows + 1, r->state.acc = r->state.l + rows + 1;
    for (size_t i = 0; i < rows; i++) r->state.m[i] = -INFINITY, r->state.l[i] = 0;
    memset(r->state.acc, 0, rows * (size_t)v_dim * sizeof(float));
}

static inline void result_check_guards(const result *r, int n_rows, int v_dim) {
    const float *ends[] = {r->block, r->state.m + n_rows, r->state.l + n_rows};
    for (int i = 0; i < 3; i++) assert_memory_equal(ends[i], &guard, 4);
    const float *end = r->state.acc + (size_t)n_rows * (size_t)v_dim;
    for (; end < r->block + r->n; end++) assert_memory_equal(end, &guard, 4);
}

static inline void result_close(result *r) {
    mem_free(r->block);
}

/* The last page of a fixture again, cut into parts with room of their own: what a kernel reads of each lies in
 * `memory`. */
typedef struct page_cut {
    attend_part parts[ATTEND_PARTS];
    char *memory[ATTEND_PARTS];
    int n;
} page_cut;

/* Copies the slots of one part, stream by stream, from a whole page; slots from `held` on are not changed. */
static inline void cut_part(const fixture *w, const char *page, attend_part *part, char *memory, int held) {
    size_t word = 4, together = w->form == FORM_F32 ? 1 : 2, room = (size_t)part->tokens;
    size_t unit = form_bytes(w->form) * (size_t)w->k_dim * room, whole = (size_t)w->page_tokens;
    char *keys = memory, *values = memory + unit;
    int end = held < part->end ? held : part->end;
    for (int slot = part->first; slot < end; slot++) {
        size_t from = (size_t)slot, to = (size_t)(slot - part->first);
        for (size_t d = 0; d < (size_t)w->k_dim / together; d++)
            memcpy(keys + (d * room + to) * word, page + w->k_offset + (d * whole + from) * word, word);
        for (size_t d = 0; d < (size_t)w->v_dim; d++) {
            size_t width = word / together, row = (size_t)w->v_dim * word;
            memcpy(values + to / together * row + (d * together + to % together) * width,
                   page + w->v_offset + from / together * row + (d * together + from % together) * width, width);
        }
    }
    part->keys = keys;
    part->values = values;
}

/* Borders are multiples of 16; the last part has more capacity than tokens, the others may have fewer slots than
 * tokens. */
static inline void cut_last_page(const fixture *w, page_cut *cut, uint64_t *state) {
    int held = (w->n_tokens - 1) % w->page_tokens + 1, first = 0;
    *cut = (page_cut){0};
    while (first < held) {
        attend_part *part = &cut->parts[cut->n];
        int most = (w->page_tokens - first) / ATTEND_PART_TOKENS, n = 1 + (int)(test_random(state) % (uint64_t)most);
        int extra = (int)(test_random(state) % (uint64_t)(most - n + 1));
        *part = (attend_part){
            .first = first, .end = first + n * ATTEND_PART_TOKENS, .tokens = (n + extra) * ATTEND_PART_TOKENS};
        size_t n_bytes = form_bytes(w->form) * (size_t)(w->k_dim + w->v_dim) * (size_t)part->tokens;
        cut->memory[cut->n] = mem_alloc(n_bytes, 1);
        cut_part(w, w->pages[w->n_pages - 1], part, cut->memory[cut->n], held);
        first = part->end;
        cut->n++;
    }
}

static inline void cut_close(page_cut *cut) {
    for (int i = 0; i < cut->n; i++) mem_free(cut->memory[i]);
}

/* Rows row .. row + n - 1 over pages page .. page + n_pages - 1 into r, whose rows begin at `row`. */
static inline void fixture_run_cut(const fixture *w, const kernel_table *table, int row, int n, int page, int n_pages,
                                   const page_cut *cut, result *r) {
    size_t n_bytes = attend_scratch_bytes(n, w->k_dim, w->v_dim, w->page_tokens);
    char *block = mem_alloc(n_bytes + 128, 1);
    memset(block, 0xEE, n_bytes + 128); /* scratch may hold anything, also NaN */
    attend_job job = {.pages = w->pages + page, .n_pages = n_pages, .k_offset = w->k_offset, .v_offset = w->v_offset};
    job.page_tokens = w->page_tokens, job.position = w->position + (int64_t)page * w->page_tokens;
    job.k_dim = w->k_dim, job.v_dim = w->v_dim, job.n_rows = n;
    job.q = w->q + (size_t)row * (size_t)w->k_dim, job.first = w->first + row, job.last = w->last + row,
    job.hi = INT64_MAX;
    job.softcap = w->softcap, job.state = r->state, job.scratch = block + 64;
    if (cut) job.parts = cut->parts, job.n_parts = cut->n;
    (w->form == FORM_F32 ? table->attend_f32 : table->attend_bf16)(&job);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal((unsigned char)block[i], 0xEE);
        assert_int_equal((unsigned char)block[64 + n_bytes + i], 0xEE);
    }
    mem_free(block);
    result_check_guards(r, n, w->v_dim);
}

static inline void fixture_run(const fixture *w, const kernel_table *table, int row, int n, int page, int n_pages,
                               result *r) {
    fixture_run_cut(w, table, row, n, page, n_pages, NULL, r);
}

/* One row in double, and how far float arithmetic may be from it. */
typedef struct oracle_row {
    double m, l;                  /* largest score, sum of exp(s - m) */
    double *out;                  /* [v_dim] */
    double *weight;               /* [v_dim] sum of p |v| / l */
    double score_error, relative; /* of a score, absolutely; of p, l and out, relative to l and weight */
    int n_seen;
} oracle_row;

/* Softmax attention over dense keys and values.
 *
 * Error of a score: a chain of k_dim products, (k_dim + 2) u sum |q k|, u = 2^-24; a softcap cannot enlarge it and adds
 * 8 u of the cap. Relative error of a weight: error of its score and of the largest, of their difference, 4 units of
 * exp, rounding to bf16 (2^-8), and for each page the same again for the factor exp(m
 * - m'). Of the sums: one u for each token and 8 for each page. An output is a quotient of two such sums:
 * twice. */
static inline void oracle_attend(const fixture *w, int row, oracle_row *o) {
    const double u = 0x1p-24;
    size_t n = (size_t)w->n_tokens, v_dim = (size_t)w->v_dim;
    double *s = mem_alloc(n, sizeof *s), largest_sum = 0;
    memset(o, 0, sizeof *o);
    o->m = -INFINITY;
    o->out = mem_alloc(v_dim, sizeof(double)), o->weight = mem_alloc(v_dim, sizeof(double));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t t = 0; t < n; t++) {
            int64_t at = w->position + (int64_t)t;
            if (at < w->first[row] || at > w->last[row]) continue;
            if (pass == 0) {
                double sum = 0;
                s[t] = 0;
                for (int d = 0; d < w->k_dim; d++) {
                    double product = (double)stored(w->form, (double)w->q[row * w->k_dim + d]) *
                                     (double)w->k[t * (size_t)w->k_dim + (size_t)d];
                    s[t] += product, sum += fabs(product);
                }
                if (w->softcap != 0) s[t] = (double)w->softcap * tanh(s[t] / (double)w->softcap);
                largest_sum = fmax(largest_sum, sum);
                o->m = fmax(o->m, s[t]);
                o->n_seen++;
                continue;
            }
            double p = exp(s[t] - o->m);
            o->l += p;
            for (size_t d = 0; d < v_dim; d++) {
                o->out[d] += p * (double)w->v[t * v_dim + d];
                o->weight[d] += p * fabs((double)w->v[t * v_dim + d]);
            }
        }
    }
    for (size_t d = 0; d < v_dim && o->l > 0; d++) o->out[d] /= o->l, o->weight[d] /= o->l;
    o->score_error = (w->k_dim + 2) * u * largest_sum + 8 * u * fabs((double)w->softcap);
    /* Differences of scores beyond 104 give weight 0. */
    double step = 2 * o->score_error + u * fmin(104, 2 * largest_sum) + 8 * u;
    o->relative = step + (w->form == FORM_BF16 ? 0x1p-8 : 0) + (o->n_seen + 8) * u + w->n_pages * (u * 112 + 8 * u);
    mem_free(s);
}

static inline void oracle_clear(oracle_row *o) {
    mem_free(o->out), mem_free(o->weight);
}

/* A result of all rows against the oracle. */
static inline void check_against_oracle(const fixture *w, const kernel_table *table, const result *r) {
    float *out = mem_alloc((size_t)w->n_rows * (size_t)w->v_dim, sizeof(float));
    table->attend_finish(out, &r->state, w->n_rows, w->v_dim);
    for (int row = 0; row < w->n_rows; row++) {
        oracle_row o;
        oracle_attend(w, row, &o);
        double m = (double)r->state.m[row], l = (double)r->state.l[row];
        if (o.n_seen == 0) {
            assert_true(isinf(m) && m < 0 && l == 0);
            for (int d = 0; d < w->v_dim; d++) assert_true(out[row * w->v_dim + d] == 0);
        } else {
            if (!(fabs(m - o.m) <= o.score_error))
                fail_msg("row %d: m is %g, expected %g +- %g", row, m, o.m, o.score_error);
            double expected = o.l * exp(o.m - m);
            if (!(fabs(l - expected) <= expm1(o.relative) * expected)) {
                fail_msg("row %d: l is %.9g, expected %.9g +- %.3g of it", row, l, expected, expm1(o.relative));
            }
        }
        for (int d = 0; d < w->v_dim && o.n_seen; d++) {
            double y = (double)out[row * w->v_dim + d], allowed = expm1(2 * o.relative) * o.weight[d] + 1e-30;
            if (!(fabs(y - o.out[d]) <= allowed)) {
                fail_msg(
                    "level %s form %d P %d k %d v %d tokens %d rows %d: row %d dimension %d is %.9g, expected %.9g +- %.3g",
                    cpu_level_name(table->level), w->form, w->page_tokens, w->k_dim, w->v_dim, w->n_tokens, w->n_rows,
                    row, d, y, o.out[d], allowed);
            }
        }
        oracle_clear(&o);
    }
    mem_free(out);
}

static inline void assert_row_bits(const fixture *w, const result *a, int row_a, const result *b, int row_b) {
    size_t v_dim = (size_t)w->v_dim;
    assert_memory_equal(a->state.m + row_a, b->state.m + row_b, sizeof(float));
    assert_memory_equal(a->state.l + row_a, b->state.l + row_b, sizeof(float));
    assert_memory_equal(a->state.acc + (size_t)row_a * v_dim, b->state.acc + (size_t)row_b * v_dim,
                        v_dim * sizeof(float));
}

/* Runs rows [row, row + n) of a fixture over some pages; arg: what the runner was given. */
typedef void (*fixture_runner)(const void *arg, fixture *w, int row, int n, int page, int n_pages, result *r);

/* A row has the same bits in company of up to seven more and alone, page by page. */
static inline void fixture_check_company(fixture *w, fixture_runner run, const void *arg) {
    result all, some;
    result_open(&all, w->n_rows, w->v_dim);
    run(arg, w, 0, w->n_rows, 0, w->n_pages, &all);
    for (int row = 0; row < w->n_rows; row++) {
        int n = (int)min_i64(1 + row % 8, w->n_rows - row);
        result_open(&some, n, w->v_dim);
        run(arg, w, row, n, 0, w->n_pages, &some);
        for (int i = 0; i < n; i++) assert_row_bits(w, &all, row + i, &some, i);
        result_close(&some);
        result_open(&some, 1, w->v_dim);
        for (int page = 0; page < w->n_pages; page++) run(arg, w, row, 1, page, 1, &some);
        assert_row_bits(w, &all, row, &some, 0);
        result_close(&some);
    }
    result_close(&all);
}

#endif
