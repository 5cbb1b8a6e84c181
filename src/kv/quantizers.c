/* Every operation is rounded to the type that the packages compute in, in their order: quanto in the type of x, hqq in
 * f32 with a cast at the end. Groups are processed sixteen at a time through a small tile, so that one loop handles
 * every axis and the compiler can vectorize it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/quantizers.h"

#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "base/num.h"

enum {
    LANE_GROUPS = 16, /* groups of a panel */
    TILE_ITEMS = 64,  /* items of each of them in the tile at a time */
    HQQ_ROUNDS = 20,
    HQQ_WORD_CODES = 10, /* codes of 3 bits in a word of 32 */
};

#define HQQ_BETA  10.0f
#define HQQ_POWER 0.7f
static const float HQQ_FLAT = 1e-4f, HQQ_STEEPEST = 2e4f;

static float round_to(quantizer_dtype dtype, float x) {
    if (dtype == QUANTIZER_F16) return f32_from_f16(f16_from_f32(x));
    if (dtype == QUANTIZER_BF16) return f32_from_bf16(bf16_from_f32(x));
    return x;
}

/* round_half_even(clamp(x, 0, top)), which is the clamp of the rounded; NaN (0 / 0 of a flat group) gives 0. */
static inline float code_of(float x, float top) {
    const float shifter = 0x1.8p23f;
    float clamped = x > 0 ? x : 0;
    clamped = clamped < top ? clamped : top;
    return (clamped + shifter) - shifter;
}

/* ---- panels: up to LANE_GROUPS groups of one block ---- */

typedef struct panel {
    const quantizer_view *view;
    const quantizer_options *options;
    ptrdiff_t first; /* element 0 of its first group */
    int n_lanes;
    float top; /* the largest code */
    float scale[LANE_GROUPS], shift[LANE_GROUPS];
} panel;

typedef float tile[TILE_ITEMS][LANE_GROUPS];

/* Items i .. i + n - 1; lanes without a group repeat the last one. */
static void load_tile(tile to, const panel *p, const float *x, int64_t i, int n) {
    const quantizer_view *view = p->view;
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        int group = lane < p->n_lanes ? lane : p->n_lanes - 1;
        const float *from = x + p->first + group * view->group_stride + i * view->item_stride;
        for (int j = 0; j < n; j++) to[j][lane] = from[j * view->item_stride];
    }
}

static void store_tile(uint8_t *codes, const panel *p, tile from, int64_t i, int n) {
    const quantizer_view *view = p->view;
    for (int lane = 0; lane < p->n_lanes; lane++) {
        uint8_t *to = codes + p->first + lane * view->group_stride + i * view->item_stride;
        for (int j = 0; j < n; j++) to[j * view->item_stride] = (uint8_t)from[j][lane];
    }
}

static int tile_items(const panel *p, int64_t i) {
    return (int)min_i64(TILE_ITEMS, p->view->group - i);
}

static void panel_range(const panel *p, const float *x, float *lo, float *hi) {
    tile t;
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        lo[lane] = INFINITY;
        hi[lane] = -INFINITY;
    }
    for (int64_t i = 0; i < p->view->group; i += TILE_ITEMS) {
        int n = tile_items(p, i);
        load_tile(t, p, x, i, n);
        for (int j = 0; j < n; j++) {
            for (int lane = 0; lane < LANE_GROUPS; lane++) {
                lo[lane] = t[j][lane] < lo[lane] ? t[j][lane] : lo[lane];
                hi[lane] = t[j][lane] > hi[lane] ? t[j][lane] : hi[lane];
            }
        }
    }
}

/* ---- quanto ---- */

static void quanto_tile(const panel *p, tile t, int n) {
    quantizer_dtype dtype = p->options->dtype;
    if (dtype == QUANTIZER_F32) {
        for (int j = 0; j < n; j++) {
            for (int lane = 0; lane < LANE_GROUPS; lane++) {
                t[j][lane] = code_of((t[j][lane] + p->shift[lane]) / p->scale[lane], p->top);
            }
        }
        return;
    }
    for (int j = 0; j < n; j++) {
        for (int lane = 0; lane < LANE_GROUPS; lane++) {
            float sum = round_to(dtype, t[j][lane] + p->shift[lane]);
            t[j][lane] = code_of(round_to(dtype, sum / p->scale[lane]), p->top);
        }
    }
}

static void quanto_panel(panel *p, uint8_t *codes, const float *x) {
    quantizer_dtype dtype = p->options->dtype;
    float lo[LANE_GROUPS], hi[LANE_GROUPS];
    panel_range(p, x, lo, hi);
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        p->scale[lane] = round_to(dtype, round_to(dtype, hi[lane] - lo[lane]) / p->top);
        p->shift[lane] = -lo[lane];
    }
    tile t;
    for (int64_t i = 0; i < p->view->group; i += TILE_ITEMS) {
        int n = tile_items(p, i);
        load_tile(t, p, x, i, n);
        quanto_tile(p, t, n);
        store_tile(codes, p, t, i, n);
    }
}

/* ---- hqq: `scale` holds the factor s = 1 / scale until the end, `shift` the zero z ---- */

/* A number divided by a tensor is, in torch, the tensor's reciprocal times the number. */
static void hqq_start(panel *p, const float *x) {
    float lo[LANE_GROUPS], hi[LANE_GROUPS];
    panel_range(p, x, lo, hi);
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        float range = hi[lane] - lo[lane], s = range <= HQQ_FLAT ? 1 : 1 / range * p->top;
        p->scale[lane] = s < HQQ_STEEPEST ? s : HQQ_STEEPEST;
        p->shift[lane] = -lo[lane] * p->scale[lane];
    }
}

/* x^(p - 1) of hqq's threshold for x >= 0, to a few 1e-7, in operations that can be vectorized: the library's pow would
 * take most of the time. 0 gives a large number, equivalent to infinity here. */
static inline float threshold_power(float x) {
    const uint32_t half_root = 0x3F3504F3u; /* sqrt(1/2): x = 2^e m, m from there to sqrt(2) */
    const int32_t e = (int32_t)(f32_bits(x) - half_root) >> 23;
    const float m = f32_from_bits(f32_bits(x) - ((uint32_t)e << 23)), s = (m - 1) / (m + 1), s2 = s * s;
    /* log2 m = 2 / ln 2 (s + s^3 / 3 + s^5 / 5 + ...) */
    const float log2_m = 2.88539008f * s * (1 + s2 * (1 / 3.0f + s2 * (1 / 5.0f + s2 * (1 / 7.0f + s2 / 9.0f))));
    const float power = (HQQ_POWER - 1) * ((float)e + log2_m), shifter = 0x1.8p23f;
    const float whole = (power + shifter) - shifter, r = (power - whole) * 0.693147181f;
    const float root = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720.0f)))));
    return root * f32_from_bits((uint32_t)((int32_t)whole + 127) << 23);
}

/* t: w on entry, the optimal zero of this value on return; size: |error| of its code. Sixteen lanes, for
 * vectorization. */
static void hqq_lanes(float *restrict t, float *restrict size, const float *restrict scale, const float *restrict zero,
                      float top) {
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        const float w = t[lane], s = scale[lane], z = zero[lane], code = code_of(w * s + z, top),
                    e = w - (code - z) / s;
        const float away = fabsf(e), shrunk = away - 1 / HQQ_BETA * threshold_power(away),
                    kept = shrunk > 0 ? shrunk : 0;
        t[lane] = code - (w - (e < 0 ? -kept : kept)) * s;
        size[lane] = away;
    }
}

/* One round: new zeros by generalised soft thresholding of the errors. Sums |error| of the previous codes. */
static void hqq_round(panel *p, const float *x, double *error) {
    tile t;
    double zeros[LANE_GROUPS] = {0}, errors[LANE_GROUPS] = {0};
    for (int64_t i = 0; i < p->view->group; i += TILE_ITEMS) {
        int n = tile_items(p, i);
        load_tile(t, p, x, i, n);
        for (int j = 0; j < n; j++) {
            float size[LANE_GROUPS];
            hqq_lanes(t[j], size, p->scale, p->shift, p->top);
            for (int lane = 0; lane < LANE_GROUPS; lane++) {
                zeros[lane] += (double)t[j][lane];
                errors[lane] += (double)size[lane];
            }
        }
    }
    for (int lane = 0; lane < p->n_lanes; lane++) {
        p->shift[lane] = (float)(zeros[lane] / (double)p->view->group);
        *error += errors[lane];
    }
}

static void hqq_finish(panel *p, uint8_t *codes, const float *x) {
    tile t;
    for (int64_t i = 0; i < p->view->group; i += TILE_ITEMS) {
        int n = tile_items(p, i);
        load_tile(t, p, x, i, n);
        for (int j = 0; j < n; j++) {
            for (int lane = 0; lane < LANE_GROUPS; lane++)
                t[j][lane] = code_of(t[j][lane] * p->scale[lane] + p->shift[lane], p->top);
        }
        store_tile(codes, p, t, i, n);
    }
    for (int lane = 0; lane < LANE_GROUPS; lane++) {
        p->scale[lane] = round_to(p->options->dtype, 1 / p->scale[lane]);
        p->shift[lane] = round_to(p->options->dtype, p->shift[lane]);
    }
}

/* ---- all groups of a view ---- */

typedef enum pass { PASS_QUANTO, PASS_HQQ_START, PASS_HQQ_ROUND, PASS_HQQ_FINISH } pass;

/* Between passes scale and shift hold what a pass computed for a group. */
static void run_pass(pass kind, uint8_t *codes, float *scale, float *shift, const quantizer_options *options,
                     const float *x, const quantizer_view *view, double *error) {
    panel p = {.view = view, .options = options, .top = (float)((1 << options->nbits) - 1)};
    for (int64_t block = 0; block < view->n_blocks; block++) {
        for (int64_t j = 0; j < view->n_groups; j += LANE_GROUPS) {
            float *scales = scale + block * view->n_groups + j, *shifts = shift + block * view->n_groups + j;
            p.first = (ptrdiff_t)block * view->block_stride + (ptrdiff_t)j * view->group_stride;
            p.n_lanes = (int)min_i64(LANE_GROUPS, view->n_groups - j);
            for (int lane = 0; lane < LANE_GROUPS; lane++) {
                int from = lane < p.n_lanes ? lane : p.n_lanes - 1;
                p.scale[lane] = scales[from];
                p.shift[lane] = shifts[from];
            }
            switch (kind) {
            case PASS_QUANTO: quanto_panel(&p, codes, x); break;
            case PASS_HQQ_START: hqq_start(&p, x); break;
            case PASS_HQQ_ROUND: hqq_round(&p, x, error); break;
            case PASS_HQQ_FINISH: hqq_finish(&p, codes, x); break;
            }
            for (int lane = 0; lane < p.n_lanes; lane++) {
                scales[lane] = p.scale[lane];
                shifts[lane] = p.shift[lane];
            }
        }
    }
}

int quantizer_view_run(uint8_t *codes, float *scale, float *shift, const quantizer_options *options, const float *x,
                       const quantizer_view *view) {
    int64_t n_groups = view->n_blocks * view->n_groups;
    for (int64_t i = 0; i < n_groups; i++) scale[i] = shift[i] = 0;
    if (options->kind == QUANTIZER_QUANTO) {
        run_pass(PASS_QUANTO, codes, scale, shift, options, x, view, NULL);
        return 0;
    }
    run_pass(PASS_HQQ_START, codes, scale, shift, options, x, view, NULL);
    int rounds = 0;
    for (float best = INFINITY; options->optimize && rounds < HQQ_ROUNDS;) {
        double sum = 0;
        run_pass(PASS_HQQ_ROUND, codes, scale, shift, options, x, view, &sum);
        rounds++;
        float error = (float)(sum / (double)(n_groups * view->group));
        if (!(error < best)) break;
        best = error;
    }
    run_pass(PASS_HQQ_FINISH, codes, scale, shift, options, x, view, NULL);
    return rounds;
}

/* ---- tensors in the packages' layouts ---- */

static int64_t n_values(const int64_t shape[4]) {
    return shape[0] * shape[1] * shape[2] * shape[3];
}

static bool across_rows(const quantizer_options *o) {
    return o->kind == QUANTIZER_QUANTO ? o->axis == -1 : o->axis == 0;
}

static mn_status check_bits(const quantizer_options *o) {
    if (o->kind == QUANTIZER_QUANTO) {
        if (o->nbits != 2 && o->nbits != 4) MN_FAIL(MN_E_ARG, "quanto: nbits is %d, allowed: 2, 4", o->nbits);
        if (o->axis != 0 && o->axis != -1) MN_FAIL(MN_E_ARG, "quanto: axis is %d, allowed: 0, -1", o->axis);
    } else {
        if (o->nbits != 8 && (o->nbits < 1 || o->nbits > 4))
            MN_FAIL(MN_E_ARG, "hqq: nbits is %d, allowed: 1, 2, 3, 4, 8", o->nbits);
        if (o->axis != 0 && o->axis != 1) MN_FAIL(MN_E_ARG, "hqq: axis is %d, allowed: 0, 1", o->axis);
    }
    return MN_OK;
}

static mn_status check(const quantizer_options *o, const int64_t shape[4]) {
    MN_TRY(check_bits(o));
    bool quanto = o->kind == QUANTIZER_QUANTO;
    for (int i = 0; i < 4; i++) {
        if (shape[i] < 1 || shape[i] > INT32_MAX)
            MN_FAIL(MN_E_ARG, "dimension %d of the tensor is %lld, allowed: 1 to %d", i, (long long)shape[i],
                    INT32_MAX);
    }
    int64_t n = 1, divided;
    for (int i = 0; i < 4; i++) {
        if (__builtin_mul_overflow(n, shape[i], &n) || n > INT64_MAX / 16)
            MN_FAIL(MN_E_ARG, "a tensor of more than %lld values", (long long)(INT64_MAX / 16));
    }
    divided = !quanto ? n : o->axis == 0 ? n / shape[0] : n / shape[3];
    if (o->group < 1 || divided % o->group) {
        MN_FAIL(MN_E_ARG, "%s: q_group_size is %d, allowed: divisors of %lld", quanto ? "quanto" : "hqq", o->group,
                (long long)divided);
    }
    if (quanto) return MN_OK;
    int64_t rows = o->axis == 0 ? o->group : n / o->group;
    if (o->nbits == 3 && o->axis == 1) MN_FAIL(MN_E_ARG, "hqq: 3 bits with axis 1 cannot be unpacked, allowed: axis 0");
    if (o->nbits != 3 && rows % (8 / o->nbits)) {
        MN_FAIL(MN_E_ARG, "hqq: %lld rows of %lld at %d bits, allowed: multiples of %d rows", (long long)rows,
                (long long)(n / rows), o->nbits, 8 / o->nbits);
    }
    return MN_OK;
}

static quantizer_view tensor_view(const quantizer_options *o, const int64_t shape[4]) {
    int64_t n = n_values(shape), group = o->group, width = shape[3];
    if (!across_rows(o)) return (quantizer_view){1, n / group, group, 0, group, 1};
    if (o->kind == QUANTIZER_HQQ) return (quantizer_view){1, n / group, group, 0, 1, n / group};
    return (quantizer_view){width, n / width / group, group, 1, group * width, width};
}

void quantizer_place(const quantizer_options *options, const int64_t shape[4], int64_t i, int64_t *code,
                     int64_t *group) {
    quantizer_view view = tensor_view(options, shape);
    int64_t n_groups = view.n_blocks * view.n_groups;
    if (!across_rows(options)) {
        *code = i;
        *group = i / view.group;
    } else if (options->kind == QUANTIZER_HQQ) {
        *code = i;
        *group = i % n_groups;
    } else {
        int64_t row = i / shape[3];
        *group = i % shape[3] * view.n_groups + row / view.group;
        *code = row % view.group * n_groups + *group;
    }
}

void quantized_clear(quantized *q) {
    mem_free(q->codes);
    mem_free(q->scale);
    mem_free(q->shift);
    *q = (quantized){0};
}

mn_status quantizer_run(quantized *out, const quantizer_options *options, const float *x, const int64_t shape[4]) {
    *out = (quantized){0};
    MN_TRY(check(options, shape));
    quantizer_view view = tensor_view(options, shape);
    int64_t n = n_values(shape), n_groups = n / view.group;
    bool across = across_rows(options);
    out->n_rows = across ? view.group : n_groups;
    out->n_columns = across ? n_groups : view.group;
    out->n_groups = n_groups;
    out->codes = mem_alloc((size_t)n, 1);
    out->scale = mem_alloc((size_t)n_groups, sizeof *out->scale);
    out->shift = mem_alloc((size_t)n_groups, sizeof *out->shift);
    uint8_t *places = mem_alloc((size_t)n, 1);
    if (!out->codes || !out->scale || !out->shift || !places) {
        mem_free(places);
        quantized_clear(out);
        return MN_E_NOMEM;
    }
    out->rounds = quantizer_view_run(places, out->scale, out->shift, options, x, &view);
    for (int64_t i = 0; i < n; i++) {
        int64_t code, group;
        quantizer_place(options, shape, i, &code, &group);
        out->codes[code] = places[i];
    }
    mem_free(places);
    return MN_OK;
}

void quantizer_dequantize(float *y, const quantized *q, const quantizer_options *options, const int64_t shape[4]) {
    for (int64_t i = 0, n = n_values(shape); i < n; i++) {
        int64_t at, group;
        quantizer_place(options, shape, i, &at, &group);
        float code = q->codes[at], scale = q->scale[group], shift = q->shift[group];
        if (options->kind == QUANTIZER_QUANTO) {
            y[i] = round_to(options->dtype, round_to(options->dtype, scale * code) - shift);
        } else {
            y[i] = round_to(options->dtype, round_to(options->dtype, code - shift) * scale);
        }
    }
}

/* Rows are divided into as many blocks as codes fit into a byte (a word for 3 bits); block i has the bits from `first`
 * + i * `step` on. */
mn_status quantizer_pack(uint8_t **packed, size_t *n, const quantized *q, const quantizer_options *options) {
    bool words = options->nbits == 3;
    int64_t n_blocks = words ? HQQ_WORD_CODES : 8 / options->nbits, rows = ceil_div(q->n_rows, n_blocks);
    int step = options->kind == QUANTIZER_QUANTO ? options->nbits : -options->nbits;
    int first = step > 0 ? 0 : (int)(n_blocks - 1) * options->nbits;
    size_t width = words ? sizeof(uint32_t) : 1;
    *n = (size_t)(rows * q->n_columns) * width;
    *packed = mem_alloc(*n, 1);
    if (!*packed) return MN_E_NOMEM;
    for (int64_t row = 0; row < q->n_rows; row++) {
        uint32_t bit = (uint32_t)(first + step * (int)(row / rows));
        for (int64_t column = 0; column < q->n_columns; column++) {
            uint8_t *to = *packed + (size_t)(row % rows * q->n_columns + column) * width;
            uint32_t value = (uint32_t)q->codes[row * q->n_columns + column] << bit;
            for (size_t i = 0; i < width; i++) to[i] |= (uint8_t)(value >> (8 * i));
        }
    }
    return MN_OK;
}
