/* Quantizing against formulas written once more in double: the stream must hold what the formulas choose, and
 * reading must give the values of the stream.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/num.h"
#include "kv/quantizers.h"
#include "kv/quantize.h"
#include "support/kernel_check.h"

enum { MOST_HEADS = 3, CALIBRATION_HEADS = 2, MOST_PAGES = 4, MOST_DIM = 256 };

/* Mean squared error of the best quantizer of a unit normal distribution, 0 to 8 bits (Max 1960). */
static const double ideal[] = {1, .3634, .1175, .03454, .009497, .002499, .000642, .000163, .0000412};

static double normal(uint64_t *seed) {
    double u = test_uniform(seed, 1e-12, 1), v = test_uniform(seed, 0, 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* ---- a stream of some heads and pages ---- */

typedef struct scene {
    kv_form form;
    bool is_key;
    int dim, page_tokens, n_heads, n_pages;
    const kv_calibration *set; /* NULL: none; borrowed */
    code_layout layouts[MOST_HEADS];
    size_t head_bytes;
    char *pages[MOST_PAGES];
    kernel_table kernels;
    cpu_level level;
} scene;

/* For CALIBRATION_HEADS heads, calibrated on keys whose dimensions have falling deviations, in mixed order, and
 * something in common. */
static kv_calibration *make_calibrations(int dim) {
    const int n_heads = CALIBRATION_HEADS;
    kv_calibrator *c;
    uint64_t seed = 77;
    float *rows = mem_alloc((size_t)(64 * dim), sizeof *rows);
    assert_ok(kv_calibrator_open(&c, 1, n_heads, dim));
    for (int head = 0; head < n_heads; head++) {
        for (int page = 0; page < 12; page++) {
            for (int t = 0; t < 64; t++) {
                double shared = normal(&seed);
                for (int d = 0; d < dim; d++)
                    rows[t * dim + d] =
                        (float)(normal(&seed) * 4 / (1 + (d * 7 + head) % dim) + shared * ((d * 5) % 3 - 1));
            }
            kv_calibration_add_keys(c, 0, head, rows, dim, 64);
        }
        for (int i = 0; i < 64 * dim; i++) rows[i] = (float)(normal(&seed) * (1 + i % dim % 4));
        kv_calibration_add_queries(c, 0, head, rows, 64);
    }
    mem_free(rows);
    kv_calibration *set;
    assert_ok(kv_calibrator_finish(&set, c));
    kv_calibrator_close(&c);
    return set;
}

/* Made once for each size. */
static kv_calibration *calibrations_made[MOST_DIM / 16 + 1];

static const kv_calibration *calibration_for(int dim) {
    if (!calibrations_made[dim / 16]) calibrations_made[dim / 16] = make_calibrations(dim);
    return calibrations_made[dim / 16];
}

static void scene_open(scene *s, kv_form form, bool is_key, bool has_calibration, int dim, int page_tokens, int n_heads,
                       int n_pages) {
    *s = (scene){
        .form = form, .is_key = is_key, .dim = dim, .page_tokens = page_tokens, .n_heads = n_heads, .n_pages = n_pages};
    assert_ok(kv_form_check(form, dim, page_tokens));
    has_calibration = has_calibration && kv_form_takes_calibration(form, is_key);
    if (has_calibration) s->set = calibration_for(dim);
    s->head_bytes = kv_form_bytes(form, is_key, has_calibration, dim, page_tokens);
    for (int h = 0; h < n_heads; h++) {
        kv_form_layout(&s->layouts[h], form, is_key, dim, page_tokens,
                       has_calibration ? s->set->calibration[h].lambda : NULL);
        assert_int_equal(s->layouts[h].bytes, s->head_bytes);
    }
    for (int p = 0; p < n_pages; p++) s->pages[p] = mem_alloc((size_t)n_heads, s->head_bytes);
    s->level = cpu_best();
}

static void scene_close(scene *s) {
    for (int p = 0; p < s->n_pages; p++) mem_free(s->pages[p]);
}

static char *stream_of(const scene *s, int page, int head) {
    return s->pages[page] + (size_t)head * s->head_bytes;
}

/* Writes (or reads into) rows [head_end - head_begin][n][dim], which stay as they are when written. */
static void quantize(scene *s, bool writes, float *rows, int head_begin, int head_end, int64_t first, int n,
                     int n_skip) {
    int n_heads = head_end - head_begin;
    size_t n_values = (size_t)n_heads * (size_t)n * (size_t)s->dim;
    size_t n_scratch = quantize_scratch_bytes(s->form, s->is_key, s->dim, s->page_tokens, n_heads, n);
    float *copy = mem_alloc(n_values, sizeof *copy);
    guarded scratch = guarded_make(n_scratch, 0);
    kernel_table_fill(&s->kernels, s->level);
    memcpy(copy, rows, n_values * sizeof *copy);
    quantize_stream job = {.kernels = &s->kernels,
                           .form = s->form,
                           .is_key = s->is_key,
                           .dim = s->dim,
                           .page_tokens = s->page_tokens,
                           .head_begin = head_begin,
                           .head_end = head_end,
                           .layouts = s->layouts,
                           .calibration = s->set ? s->set->calibration : NULL,
                           .pages = s->pages,
                           .head_bytes = s->head_bytes,
                           .first = first,
                           .n = n,
                           .n_skip = n_skip,
                           .rows = copy,
                           .scratch = scratch.data};
    if (writes) {
        quantize_write(&job);
    } else {
        quantize_read(&job);
        memcpy(rows, copy, n_values * sizeof *copy);
    }
    guarded_free(&scratch);
    mem_free(copy);
}

static void write_rows(scene *s, float *rows, int64_t first, int n, int n_skip) {
    quantize(s, true, rows, 0, s->n_heads, first, n, n_skip);
}

static float *random_rows(int n_heads, int n, int dim, uint64_t seed) {
    float *rows = mem_alloc((size_t)(n_heads * n * dim), sizeof *rows);
    for (int i = 0; i < n_heads * n * dim; i++) {
        int d = i % dim, t = i / dim % n;
        rows[i] = (float)(normal(&seed) * (0.3 + 3.0 / (1 + d % 9)) * (1 + t % 3) + (d % 5 == 0 ? 4 : 0));
    }
    return rows;
}

/* Runs a check for forms of all kinds in several sizes. */
typedef void (*scene_check)(scene *s);

static void every_scene(scene_check check) {
    static const int sizes[][2] = {{16, 16}, {64, 32}, {48, 128}, {80, 16}, {256, 16}};
    static const struct {
        kv_codec codec;
        int bits, group;
        code_axis axis;
        bool wide;
    } forms[] = {
        {KV_MNEME, 1, 0, CODE_TOKEN, false},    {KV_MNEME, 2, 0, CODE_TOKEN, false},
        {KV_MNEME, 3, 16, CODE_TOKEN, false},   {KV_MNEME, 4, 0, CODE_TOKEN, false},
        {KV_MNEME, 5, 0, CODE_TOKEN, false},    {KV_MNEME, 6, 0, CODE_TOKEN, false},
        {KV_MNEME, 8, 0, CODE_TOKEN, false},    {KV_QUANTO, 2, 0, CODE_TOKEN, true},
        {KV_QUANTO, 4, 16, CODE_CHANNEL, true}, {KV_QUANTO, 4, 0, CODE_TOKEN, false},
        {KV_QUANTO, 2, 0, CODE_CHANNEL, false}, {KV_HQQ, 1, 0, CODE_TOKEN, true},
        {KV_HQQ, 2, 0, CODE_CHANNEL, true},     {KV_HQQ, 3, 16, CODE_TOKEN, false},
        {KV_HQQ, 4, 16, CODE_CHANNEL, true},    {KV_HQQ, 8, 0, CODE_TOKEN, true},
        {KV_HQQ, 8, 0, CODE_CHANNEL, false},
    };
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            kv_form form = {forms[f].codec, forms[f].bits, forms[f].group, forms[f].axis, forms[f].wide};
            for (int kind = 0; kind < 3; kind++) { /* keys with calibration, keys without, values */
                if (!test_samples((int)(z + f) + kind, 5)) continue;
                if (kind == 0 && !kv_form_takes_calibration(form, true)) continue;
                if (sizes[z][0] > 128 && form.bits != 4) continue; /* takes long */
                scene s;
                scene_open(&s, form, kind < 2, kind == 0, sizes[z][0], sizes[z][1], 2, 2);
                check(&s);
                scene_close(&s);
            }
        }
    }
}

/* ---- mneme ---- */

static void hadamard(double *x, int dim) {
    int block = dim & -dim;
    for (int begin = 0; begin < dim; begin += block) {
        double y[MOST_DIM];
        for (int i = 0; i < block; i++) {
            y[i] = 0;
            for (int j = 0; j < block; j++)
                y[i] += (__builtin_parity((unsigned)(i & j)) ? -1 : 1) * x[begin + j] / sqrt(block);
        }
        memcpy(x + begin, y, (size_t)block * sizeof *y);
    }
}

/* Rows of a head in the space that they are stored in: [n][dim]. */
static double *into_space(const scene *s, int head, const float *rows, int n) {
    double *y = mem_alloc((size_t)(n * s->dim), sizeof *y);
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < s->dim; i++) {
            if (!s->set) {
                y[t * s->dim + i] = rows[t * s->dim + i];
                continue;
            }
            const float *a = s->set->calibration[head].key + i * s->dim;
            for (int d = 0; d < s->dim; d++) y[t * s->dim + i] += (double)a[d] * rows[t * s->dim + d];
        }
        if (kv_form_rotates(s->form, s->is_key, s->set != NULL)) hadamard(y + t * s->dim, s->dim);
    }
    return y;
}

/* To the 11 digits of a half. */
static double half_of(double x) {
    int exponent;
    double digits = frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(digits, 11)), exponent - 11);
}

static double nearest_error(const int8_t *levels, int bits, double x, double scale) {
    double best = INFINITY;
    for (int code = 0; code < 1 << bits; code++) best = fmin(best, fabs(x - scale * levels[code]));
    return best;
}

/* The squared error that a row of n values (stride apart) should have: the study's fit, three rounds of least squares
 * from mean and deviation, or the whole range from 6 bits on. */
static double wanted_error(const double *x, int stride, int n, const int8_t *levels, int bits, bool has_mean) {
    static const double outermost[] = {1, 0.797885, 1.510418, 2.151946, 2.732590, 3.260732};
    double mean = 0, squares = 0, scale, lo = INFINITY, hi = -INFINITY, error = 0;
    for (int i = 0; i < n; i++) {
        mean += has_mean ? x[i * stride] / n : 0;
        lo = fmin(lo, x[i * stride]);
        hi = fmax(hi, x[i * stride]);
    }
    for (int i = 0; i < n; i++) squares += (x[i * stride] - mean) * (x[i * stride] - mean);
    if (bits == 0) return squares;
    const int8_t top = levels[(1 << bits) - 1];
    if (bits > 5) {
        scale = has_mean ? (hi - lo) / (2 * top) : fmax(hi, -lo) / top;
        if (has_mean) mean = (hi + lo) / 2;
    } else {
        scale = sqrt(squares / n) * outermost[bits] / top;
    }
    for (int round = 0; round < 3 && bits <= 5; round++) {
        double g = 0, gg = 0, xg = 0, sx = 0;
        for (int i = 0; i < n; i++) {
            double best = INFINITY, level = 0;
            for (int code = 0; code < 1 << bits; code++) {
                double off = fabs(x[i * stride] - mean - scale * levels[code]);
                if (off < best) best = off, level = levels[code];
            }
            g += level;
            gg += level * level;
            sx += x[i * stride];
            xg += x[i * stride] * level;
        }
        if (!has_mean) {
            scale = xg / gg;
        } else if (n * gg > g * g) {
            scale = (n * xg - sx * g) / (n * gg - g * g);
            mean = (sx - scale * g) / n;
        }
    }
    if (!has_mean) {
        scale = half_of(scale);
    } else if (scale > 0) { /* a power of 2^(1/8), upwards where the range counts */
        double eighths = 8 * log2(scale);
        scale = exp2((bits > 5 ? ceil(eighths - 1e-3) : round(eighths)) / 8);
    }
    mean = half_of(mean);
    for (int i = 0; i < n; i++) error += pow(nearest_error(levels, bits, x[i * stride] - mean, scale), 2);
    return error;
}

typedef struct stored {
    uint8_t *codes;
    float *scale, *mean;
    double *y; /* [P][dim], what the codes stand for in the space of the stream */
} stored;

static int bits_at(const code_layout *l, int d, int t) {
    int step = l->is_key ? d : t, i = 0;
    while (step >= l->runs[i].end) i++;
    return l->runs[i].bits;
}

static stored read_stream(const code_layout *l, const char *stream) {
    const int n = l->page_tokens, dim = l->dim;
    stored r = {.codes = mem_alloc((size_t)(n * dim), 1),
                .scale = mem_alloc((size_t)(n * dim), sizeof(float)),
                .mean = mem_alloc((size_t)dim, sizeof(float)),
                .y = mem_alloc((size_t)(n * dim), sizeof(double))};
    code_unpack(l, stream, r.codes, 0, n);
    code_get_side(l, stream, r.scale, NULL, 0, n);
    if (l->mean != CODE_SIDE_NONE) code_get_mean(l, stream, r.mean);
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d++) {
            int side = l->axis == CODE_TOKEN ? d / l->group * n + t : t / l->group * dim + d;
            const int8_t *levels = code_levels(l->grid, bits_at(l, d, t));
            r.y[t * dim + d] = (double)r.scale[side] * levels[r.codes[t * dim + d]] + (double)r.mean[d];
        }
    }
    return r;
}

static void stored_close(stored *r) {
    mem_free(r->codes);
    mem_free(r->scale);
    mem_free(r->mean);
    mem_free(r->y);
}

/* The rows that share a scale, one after the other: their error is what the formulas reach, a little more where the
 * scale is one of 8 in an octave and must not cut off the range; and no value has a nearer level than its own. */
static void check_mneme_page(const scene *s, int head, int page, const float *rows) {
    const code_layout *l = &s->layouts[head];
    const int dim = s->dim, n = s->page_tokens, n_groups = code_groups(l);
    stored got = read_stream(l, stream_of(s, page, head));
    double *y = into_space(s, head, rows, n);
    const bool by_component = l->axis == CODE_CHANNEL, page_mean = l->mean != CODE_SIDE_NONE;
    if (page_mean && !by_component) { /* the means are taken out first, as stored; they are near the page's */
        for (int d = 0; d < dim; d++) {
            double mean = 0, size = 0;
            for (int t = 0; t < n; t++) mean += y[t * dim + d] / n, size = fmax(size, fabs(y[t * dim + d]));
            check_close(got.mean[d], mean, size, 1.0 / 2048 / 0x1p-24, "mean of dimension %d", d);
            for (int t = 0; t < n; t++) y[t * dim + d] -= got.mean[d], got.y[t * dim + d] -= got.mean[d];
        }
    }
    for (int row = 0; row < (by_component ? dim : n * n_groups); row++) {
        const int first = by_component ? row : row / n_groups * dim + row % n_groups * l->group;
        const int stride = by_component ? dim : 1, length = by_component ? n : l->group;
        const int bits = by_component ? bits_at(l, row, 0) : l->runs[0].bits;
        const int8_t *levels = code_levels(l->grid, bits);
        const double scale = by_component ? got.scale[row] : got.scale[row % n_groups * n + row / n_groups];
        const double mean = by_component ? got.mean[row] : 0;
        double error = 0, size = 0;
        for (int i = 0; i < length; i++) {
            double x = y[first + i * stride], off = fabs(x - got.y[first + i * stride]);
            size = fmax(size, fabs(x));
            error += off * off;
            double best = nearest_error(levels, bits, x - mean, scale);
            if (!(off <= best + 1e-5 * (size + fabs(mean))))
                fail_msg("%d bits: %g away, the nearest level is %g", bits, off, best);
        }
        double wanted = wanted_error(y + first, stride, length, levels, bits, by_component);
        double rounding = size / 2048;
        if (!(error <= wanted * 1.02 + length * rounding * rounding)) {
            fail_msg("%d bits, row %d of head %d: squared error %g, the formulas give %g", bits, row, head, error,
                     wanted);
        }
    }
    mem_free(y);
    stored_close(&got);
}

static void check_mneme(scene *s) {
    if (s->form.codec != KV_MNEME) return;
    const int n = s->page_tokens * s->n_pages;
    float *rows = random_rows(s->n_heads, n, s->dim, 31);
    write_rows(s, rows, 0, n, 0);
    for (int head = 0; head < s->n_heads; head++) {
        for (int page = 0; page < s->n_pages; page++)
            check_mneme_page(s, head, page, rows + (head * n + page * s->page_tokens) * s->dim);
    }
    mem_free(rows);
}

static void streams_hold_what_the_formulas_choose(void **state) {
    (void)state;
    every_scene(check_mneme);
}

/* The tokens read, transformed into the space of the stream, equal the values of the stream. */
static void check_read(scene *s) {
    const int n = s->page_tokens * s->n_pages, page_values = s->page_tokens * s->dim;
    float *rows = random_rows(s->n_heads, n, s->dim, 32);
    write_rows(s, rows, 0, n, 0);
    quantize(s, false, rows, 0, s->n_heads, 0, n, 0);
    float *decoded = mem_alloc((size_t)page_values, sizeof *decoded);
    for (int head = 0; head < s->n_heads; head++) {
        for (int page = 0; page < s->n_pages; page++) {
            const float *read = rows + (head * n + page * s->page_tokens) * s->dim;
            double *y = into_space(s, head, read, s->page_tokens), size = 0;
            code_decode(&s->layouts[head], stream_of(s, page, head), decoded, 0, s->page_tokens);
            for (int i = 0; i < page_values; i++) size = fmax(size, fabs((double)read[i]));
            for (int i = 0; i < page_values; i++) check_close(y[i], decoded[i], size * s->dim, 16, "value %d", i);
            mem_free(y);
        }
    }
    mem_free(decoded);
    mem_free(rows);
}

static void reading_undoes_rotation_and_calibration(void **state) {
    (void)state;
    every_scene(check_read);
}

/* Normal numbers come near the least error there is for the bits; of absolute values of 8 bits half a step is the
 * bound. */
static void errors_are_near_the_ideal(void **state) {
    (void)state;
    for (int bits = 1; bits <= 8; bits += bits == 6 ? 2 : 1) {
        for (int is_key = 0; is_key < 2; is_key++) {
            scene s;
            uint64_t seed = 8;
            scene_open(&s, (kv_form){.codec = KV_MNEME, .bits = bits}, is_key, false, 128, 128, 2, 1);
            float *rows = random_rows(2, 128, 128, 1), *read = random_rows(2, 128, 128, 1);
            double error = 0, size = 0;
            for (int i = 0; i < 2 * 128 * 128; i++) rows[i] = (float)(normal(&seed) * 2 + (is_key ? i % 128 % 7 : 0));
            write_rows(&s, rows, 0, 128, 0);
            quantize(&s, false, read, 0, 2, 0, 128, 0);
            for (int i = 0; i < 2 * 128 * 128; i++) {
                error += pow((double)rows[i] - (double)read[i], 2);
                size += 4;
            }
            double relative = error / size, best = bits < 8 ? ideal[bits] : 0, most = bits == 6 ? 1.35 : 1.05;
            if (bits < 8 && !(relative >= 0.85 * best && relative <= most * best))
                fail_msg("%d bits: relative error %g, the ideal is %g", bits, relative, best);
            if (bits == 8 && !is_key && !(relative < 5e-5)) fail_msg("8 bits: relative error %g", relative);
            mem_free(rows);
            mem_free(read);
            scene_close(&s);
        }
    }
}

/* ---- quanto and hqq ---- */

/* Codes and side data of the packages' arithmetic on the tensor [1][heads][n][dim]. Groups across tokens of hqq are
 * those of its axis 1 on the tensor with the tokens of a group innermost. */
static void check_package(scene *s) {
    if (s->form.codec == KV_MNEME || !s->form.f32_scales) return;
    const code_layout *l = &s->layouts[0];
    const int n = s->page_tokens * s->n_pages, dim = s->dim, g = l->group, total = s->n_heads * n * dim;
    const bool is_hqq = s->form.codec == KV_HQQ, channel = l->axis == CODE_CHANNEL, turned = is_hqq && channel;
    float *rows = random_rows(s->n_heads, n, dim, 33), *x = mem_alloc((size_t)total, sizeof *x);
    write_rows(s, rows, 0, n, 0);
    const quantizer_options options = {.kind = is_hqq ? QUANTIZER_HQQ : QUANTIZER_QUANTO,
                                       .nbits = s->form.bits,
                                       .axis = is_hqq    ? 1
                                               : channel ? -1
                                                         : 0,
                                       .group = g,
                                       .optimize = true};
    const int64_t shape[4] = {1, turned ? s->n_heads * n / g : s->n_heads, turned ? dim : n, turned ? g : dim};
    for (int i = 0; i < total; i++) {
        int block = i / (g * dim), token = i / dim % g, d = i % dim;
        x[turned ? (block * dim + d) * g + token : i] = rows[i];
    }
    quantized q;
    if (s->form.bits == 3) return;
    assert_ok(quantizer_run(&q, &options, x, shape));
    uint8_t *codes = mem_alloc((size_t)(s->page_tokens * dim), 1);
    float *scale = mem_alloc((size_t)(s->page_tokens * dim), sizeof *scale),
          *shift = mem_alloc((size_t)(s->page_tokens * dim), sizeof *shift);
    for (int i = 0; i < total; i++) {
        int head = i / (n * dim), token = i / dim % n, d = i % dim, page = token / s->page_tokens,
            slot = token % s->page_tokens;
        if (slot == 0 && d == 0) {
            code_unpack(l, stream_of(s, page, head), codes, 0, s->page_tokens);
            code_get_side(l, stream_of(s, page, head), scale, shift, 0, s->page_tokens);
        }
        int64_t place, group;
        int block = i / (g * dim), at = turned ? (block * dim + d) * g + i / dim % g : i;
        quantizer_place(&options, shape, at, &place, &group);
        assert_int_equal(codes[slot * dim + d], q.codes[place]);
        int side = channel ? slot / g * dim + d : d / g * s->page_tokens + slot;
        assert_true(scale[side] == q.scale[group]);
        float wanted = is_hqq ? ((s->form.bits == 8 ? 128 : 0) - q.shift[group]) * q.scale[group] : -q.shift[group];
        assert_true(shift[side] == wanted);
    }
    quantized_clear(&q);
    mem_free(codes);
    mem_free(scale);
    mem_free(shift);
    mem_free(x);
    mem_free(rows);
}

static void packages_have_their_own_codes(void **state) {
    (void)state;
    every_scene(check_package);
}

/* With halves for scales and shifts: every value within half a step of its group and the rounding of the halves. */
static void check_halves(scene *s) {
    if (s->form.codec == KV_MNEME || s->form.f32_scales || s->form.codec == KV_HQQ) return;
    const code_layout *l = &s->layouts[0];
    const int n = s->page_tokens * s->n_pages, dim = s->dim;
    float *rows = random_rows(s->n_heads, n, dim, 34), *read = random_rows(s->n_heads, n, dim, 34);
    write_rows(s, rows, 0, n, 0);
    quantize(s, false, read, 0, s->n_heads, 0, n, 0);
    for (int i = 0; i < s->n_heads * n * dim; i++) {
        int token = i / dim, d = i % dim;
        double lo = INFINITY, hi = -INFINITY;
        for (int k = 0; k < l->group; k++) {
            int other = l->axis == CODE_TOKEN ? token * dim + d / l->group * l->group + k
                                              : (token / l->group * l->group + k) * dim + d;
            lo = fmin(lo, rows[other]);
            hi = fmax(hi, rows[other]);
        }
        double step = (hi - lo) / ((1 << s->form.bits) - 1), size = fmax(fabs(lo), fabs(hi));
        if (!(fabs((double)rows[i] - (double)read[i]) <= step / 2 + 6 * size / 2048))
            fail_msg("%g came back as %g, a step is %g", (double)rows[i], (double)read[i], step);
    }
    mem_free(rows);
    mem_free(read);
}

static void halves_for_side_data_cost_little(void **state) {
    (void)state;
    every_scene(check_halves);
}

/* ---- invariance ---- */

static char *all_bytes(const scene *s) {
    size_t page = s->head_bytes * (size_t)s->n_heads;
    char *copy = mem_alloc((size_t)s->n_pages, page);
    for (int p = 0; p < s->n_pages; p++) memcpy(copy + (size_t)p * page, s->pages[p], page);
    return copy;
}

static void clear_pages(scene *s) {
    for (int p = 0; p < s->n_pages; p++) memset(s->pages[p], 0, s->head_bytes * (size_t)s->n_heads);
}

static size_t n_bytes(const scene *s) {
    return s->head_bytes * (size_t)s->n_heads * (size_t)s->n_pages;
}

/* The instruction set, and for all but hqq which heads and pages are given together. */
static void check_alone(scene *s) {
    const int n = s->page_tokens * s->n_pages, head_values = n * s->dim;
    float *rows = random_rows(s->n_heads, n, s->dim, 35);
    write_rows(s, rows, 0, n, 0);
    char *expected = all_bytes(s);
    FOR_LEVELS(level, CPU_SCALAR) {
        s->level = level;
        clear_pages(s);
        write_rows(s, rows, 0, n, 0);
        char *got = all_bytes(s);
        assert_memory_equal(got, expected, n_bytes(s));
        mem_free(got);
    }
    if (s->form.codec != KV_HQQ) {
        clear_pages(s);
        for (int head = 0; head < s->n_heads; head++) {
            for (int page = 0; page < s->n_pages; page++) {
                quantize(s, true, rows + head * head_values + page * s->page_tokens * s->dim, head, head + 1,
                         page * s->page_tokens, s->page_tokens, 0);
            }
        }
        char *got = all_bytes(s);
        assert_memory_equal(got, expected, n_bytes(s));
        mem_free(got);
    }
    mem_free(expected);
    mem_free(rows);
}

static void heads_and_instructions_do_not_matter(void **state) {
    (void)state;
    every_scene(check_alone);
}

/* Tokens that are skipped may hold anything; without skipping they would show. */
static void check_skip(scene *s) {
    const int n = s->page_tokens * s->n_pages, row = s->dim;
    const int skips[] = {1, 4, s->page_tokens - 1, s->page_tokens, s->page_tokens + 3};
    for (size_t k = 0; k < sizeof skips / sizeof skips[0]; k++) {
        float *rows = random_rows(s->n_heads, n, row, 36);
        char *bytes_of[3];
        for (int run = 0; run < 3; run++) {
            for (int head = 0; head < s->n_heads; head++) {
                for (int i = 0; i < skips[k] * row && run > 0; i++)
                    rows[head * n * row + i] = (float)(run * 1000 * (i % 5 - 2));
            }
            clear_pages(s);
            write_rows(s, rows, 0, n, run < 2 ? skips[k] : 0);
            bytes_of[run] = all_bytes(s);
        }
        assert_memory_equal(bytes_of[0], bytes_of[1], n_bytes(s));
        assert_true(memcmp(bytes_of[0], bytes_of[2], n_bytes(s)) != 0);
        for (int run = 0; run < 3; run++) mem_free(bytes_of[run]);
        mem_free(rows);
    }
}

static void skipped_tokens_leave_no_trace(void **state) {
    (void)state;
    every_scene(check_skip);
}

/* Some tokens of pages quantized before: the others stay to the bit, and these are as if they had been quantized with
 * all. */
static void check_part(scene *s) {
    if (s->layouts[0].axis != CODE_TOKEN || s->layouts[0].mean != CODE_SIDE_NONE || s->form.codec == KV_HQQ) return;
    const int n = s->page_tokens * s->n_pages, dim = s->dim, begin = s->page_tokens / 2 + 1, end = n - 3;
    float *before = random_rows(s->n_heads, n, dim, 37), *after = random_rows(s->n_heads, n, dim, 38);
    float *part = mem_alloc((size_t)(s->n_heads * n * dim), sizeof *part);
    for (int i = 0; i < s->n_heads * (end - begin) * dim; i++)
        part[i] = after[i / ((end - begin) * dim) * n * dim + begin * dim + i % ((end - begin) * dim)];
    for (int i = 0; i < s->n_heads * n * dim; i++) {
        int t = i / dim % n;
        if (t < begin || t >= end) after[i] = before[i];
    }
    write_rows(s, after, 0, n, 0);
    char *expected = all_bytes(s);
    write_rows(s, before, 0, n, 0);
    write_rows(s, part, begin, end - begin, 0);
    char *got = all_bytes(s);
    assert_memory_equal(got, expected, n_bytes(s));
    mem_free(expected);
    mem_free(got);
    mem_free(before);
    mem_free(after);
    mem_free(part);
}

static void tokens_are_quantized_in_any_parts(void **state) {
    (void)state;
    every_scene(check_part);
}

/* Zeros, equal rows, huge, tiny and missing numbers: everything is written and read, and zeros stay
 * zeros. */
static void check_odd(scene *s) {
    const int n = s->page_tokens * s->n_pages;
    const float odd[] = {0, 3.5f, 1e30f, -1e-30f, INFINITY, NAN};
    for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
        float *rows = random_rows(s->n_heads, n, s->dim, 39);
        for (int i = 0; i < s->n_heads * n * s->dim; i++) {
            if (k < 4 || i % 97 == 0) rows[i] = odd[k];
        }
        write_rows(s, rows, 0, n, 0);
        quantize(s, false, rows, 0, s->n_heads, 0, n, 0);
        for (int i = 0; i < s->n_heads * n * s->dim && k == 0; i++) assert_true(rows[i] == 0);
        mem_free(rows);
    }
}

static void unusual_numbers_are_handled(void **state) {
    (void)state;
    every_scene(check_odd);
}

/* ---- forms ---- */

/* A page of 128 tokens of one head, as the codec's description counts it. */
static void bytes_are_as_described(void **state) {
    (void)state;
    static const struct {
        int dim, bits;
        size_t key, value;
    } pages[] = {{64, 2, 2240, 2304},  {64, 3, 3264, 3328},    {64, 4, 4288, 4352},
                 {256, 2, 8960, 8448}, {256, 3, 13056, 12544}, {256, 4, 17152, 16640}};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        kv_form form = {.codec = KV_MNEME, .bits = pages[i].bits};
        assert_int_equal(kv_form_bytes(form, true, true, pages[i].dim, 128), pages[i].key);
        assert_int_equal(kv_form_bytes(form, false, true, pages[i].dim, 128), pages[i].value);
    }
    kv_form absmax = {.codec = KV_MNEME, .bits = 8}, quanto = {.codec = KV_QUANTO, .bits = 4};
    assert_int_equal(kv_form_bytes(absmax, true, true, 64, 128), 8704);
    assert_int_equal(kv_form_bytes(quanto, true, false, 64, 128), 4608);
    quanto.f32_scales = true;
    assert_int_equal(kv_form_bytes(quanto, true, false, 64, 128), 5120);
    assert_int_equal(kv_form_bytes(kv_form_exact(KV_BF16), true, false, 64, 128), 16384);
    assert_int_equal(kv_form_bytes(kv_form_exact(KV_F32), true, false, 64, 128), 32768);
}

/* Any lambda gives layouts of equal size that hold all their parts. */
static void calibration_does_not_change_the_size(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int page_tokens = 16; page_tokens <= 128; page_tokens += 16) {
        for (int trial = 0; trial < 40; trial++) {
            float lambda[MOST_DIM];
            double steepness = test_uniform(&seed, 0, 3);
            int dim = 16 * (1 + trial % 16), bits = 1 + trial % 6;
            for (int i = 0; i < dim; i++) lambda[i] = (float)pow(1 + i, -steepness);
            kv_form form = {.codec = KV_MNEME, .bits = bits};
            code_layout layout;
            kv_form_layout(&layout, form, true, dim, page_tokens, lambda);
            assert_int_equal(layout.bytes, kv_form_bytes(form, true, true, dim, page_tokens));
            size_t end = 0;
            for (int i = 0; i < layout.n_runs; i++) {
                const code_run *run = &layout.runs[i];
                size_t tiles = (size_t)((run->end - run->begin) / 4 * (page_tokens / 16)), length = 0;
                for (int width = 1; width <= 8; width *= 2) {
                    if (run->bits & width) length += (tiles * (size_t)width + 7) / 8 * 64;
                }
                if (run->bits) end = run->offset + length;
            }
            assert_true(end <= layout.bytes);
            if (page_tokens == 128) assert_int_equal(end, layout.bytes);
        }
    }
}

/* The sum of bits is kept, they fall, and no bit would be better placed elsewhere. */
static void bits_go_where_they_count(void **state) {
    (void)state;
    uint64_t seed = 6;
    for (int trial = 0; trial < 300; trial++) {
        float lambda[MOST_DIM], x = 10;
        uint8_t bits[MOST_DIM];
        int dim = 16 * (1 + trial % 16), mean_bits = 1 + trial % 6, sum = 0;
        for (int i = 0; i < dim; i++) {
            lambda[i] = x;
            x *= (float)(trial % 3 ? test_uniform(&seed, 0.5, 1) : 1);
        }
        kv_form_allocate(bits, lambda, dim, mean_bits);
        for (int i = 0; i < dim; i++) {
            sum += bits[i];
            assert_int_equal(bits[i], bits[i / 4 * 4]);
            assert_true(bits[i] <= 8 && (i == 0 || bits[i] <= bits[i - 1]));
        }
        assert_int_equal(sum, dim * mean_bits);
        for (int from = 0; from < dim; from += 4) {
            for (int to = 0; to < dim; to += 4) {
                if (bits[from] == 0 || bits[to] == 8) continue;
                double lost = 0, won = 0;
                for (int j = 0; j < 4; j++) {
                    lost += lambda[from + j] * (ideal[bits[from] - 1] - ideal[bits[from]]);
                    won += lambda[to + j] * (ideal[bits[to]] - ideal[bits[to] + 1]);
                }
                assert_true(lost >= won * (1 - 1e-9) || from == to);
            }
        }
    }
}

static void wrong_forms_are_named(void **state) {
    (void)state;
    static const struct {
        kv_form form;
        int dim, page_tokens;
        const char *part;
    } wrong[] = {
        {{.codec = KV_MNEME, .bits = 7}, 64, 128, "mneme: bits is 7, allowed: 1, 2, 3, 4, 5, 6, 8"},
        {{.codec = KV_MNEME, .bits = 0}, 64, 128, "bits is 0"},
        {{.codec = KV_QUANTO, .bits = 3}, 64, 128, "quanto: bits is 3, allowed: 2, 4"},
        {{.codec = KV_HQQ, .bits = 40}, 64, 128, "hqq: bits is 40, allowed: 1, 2, 3, 4, 8"},
        {{.codec = KV_HQQ, .bits = -1}, 64, 128, "bits is -1"},
        {{.codec = KV_MNEME, .bits = 4}, 40, 128, "rows of 40 values, allowed: multiples of 16"},
        {{.codec = KV_MNEME, .bits = 4}, 2048, 128, "rows of 2048 values"},
        {{.codec = KV_MNEME, .bits = 4}, 64, 100, "page_tokens is 100, allowed: multiples of 16"},
        {{.codec = KV_MNEME, .bits = 4, .group = 8}, 64, 128, "group is 8, allowed: multiples of 16"},
        {{.codec = KV_QUANTO, .bits = 4, .group = 48},
         64,
         128,
         "group is 48, allowed: multiples of 1 that divide the 64 values"},
        {{.codec = KV_QUANTO, .bits = 4, .group = 48, .axis = CODE_CHANNEL},
         96,
         128,
         "divide the 128 tokens of a page"},
        {{.codec = KV_HQQ, .bits = 4, .group = -64}, 64, 128, "group is -64"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_fails(MN_E_ARG, wrong[i].part, kv_form_check(wrong[i].form, wrong[i].dim, wrong[i].page_tokens));
    }
    assert_ok(kv_form_check(kv_form_exact(KV_F32), 6, 4));
    assert_ok(kv_form_check((kv_form){.codec = KV_QUANTO, .bits = 4, .group = 8}, 64, 128));
    kv_form a = {.codec = KV_QUANTO, .bits = 4, .group = 8}, b = a;
    assert_true(kv_form_equal(a, b));
    b.f32_scales = true;
    assert_false(kv_form_equal(a, b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_hold_what_the_formulas_choose),
        cmocka_unit_test(reading_undoes_rotation_and_calibration),
        cmocka_unit_test(errors_are_near_the_ideal),
        cmocka_unit_test(packages_have_their_own_codes),
        cmocka_unit_test(halves_for_side_data_cost_little),
        cmocka_unit_test(heads_and_instructions_do_not_matter),
        cmocka_unit_test(skipped_tokens_leave_no_trace),
        cmocka_unit_test(tokens_are_quantized_in_any_parts),
        cmocka_unit_test(unusual_numbers_are_handled),
        cmocka_unit_test(bytes_are_as_described),
        cmocka_unit_test(calibration_does_not_change_the_size),
        cmocka_unit_test(bits_go_where_they_count),
        cmocka_unit_test(wrong_forms_are_named),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i <= MOST_DIM / 16; i++) kv_calibration_close(&calibrations_made[i]);
    return result;
}
