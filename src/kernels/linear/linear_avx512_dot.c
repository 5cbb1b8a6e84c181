/* bf16 and integer matrix products with the dot-product instructions VDPBF16PS and VPDPBUSD.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"
#include "kernels/linear/linear_int.h"
#include "kernels/linear/linear_simd512.h"

#include "kernels/linear/linear_drive.inc"

/* ---- bf16 ---- */

#define V_DOT
static inline vf v_dot(vf acc, vf w, vf x) {
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

#include "kernels/linear/linear_dense.inc"

/* One panel and as many rows as registers allow: weights are one stream, read once for up to 16 rows. */
#define EACH_HEIGHT(M)  M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15) M(16)
#define TALL_TILE(rows) DENSE_TILE(linear_bf16, rows, 1, true)
#define TALL_NAME(rows) linear_bf16_##rows##_1,
EACH_HEIGHT(TALL_TILE)

static void linear_bf16(const linear_job *job) {
    static const tile tiles[] = {NULL, EACH_HEIGHT(TALL_NAME)};
    static const tile_set set = {TALL_ROWS, 1, tiles, tiles, 1};
    drive(job, &set);
}

/* ---- integers ---- */

/* An integer tile has two sets of accumulators, exact sums of a group and float chains, in named variables: compilers
 * keep arrays of integer accumulators in memory. A row r has sums i<r>a, i<r>b and chains f<r>a, f<r>b for two
 * panels. */
#define EACH_ROW(M) M(0) M(1) M(2) M(3) M(4) M(5)

INLINE __m512i dot4(__m512i acc, __m512i codes, __m512i x) {
    return _mm512_dpbusd_epi32(acc, codes, x);
}

/* The steps of int_tile for a row; their names are its variables. */
#define DECLARE(r)                                                                                                     \
    __m512 f##r##a = v_zero(), f##r##b = v_zero();                                                                     \
    __m512i i##r##a, i##r##b;
#define START(r)                                                                                                       \
    int32_t sum##r = 0;                                                                                                \
    if (n_rows > r) {                                                                                                  \
        sum##r = group_sum[r * n_sums];                                                                                \
        if (group == ACT_GROUP) sum##r += group_sum[r * n_sums + 1];                                                   \
        i##r##a = i_value(0);                                                                                          \
        if (n_panels == 2) i##r##b = i##r##a;                                                                          \
    }
#define DOT(r)                                                                                                         \
    if (n_rows > r) {                                                                                                  \
        __m512i input = i_broadcast(at + r * next_row);                                                                \
        i##r##a = dot4(i##r##a, wa, input);                                                                            \
        if (n_panels == 2) i##r##b = dot4(i##r##b, wb, input);                                                         \
    }
#define NEXT_PLANE(r)                                                                                                  \
    if (n_rows > r) {                                                                                                  \
        const __m512i start = i_value(-zero * sum##r);                                                                 \
        i##r##a = i_add32(i_shift_left8(i##r##a), start);                                                              \
        if (n_panels == 2) i##r##b = i_add32(i_shift_left8(i##r##b), start);                                           \
    }
#define SCALE(r)                                                                                                       \
    if (n_rows > r) {                                                                                                  \
        const __m512 input = v_broadcast(act_scale + r * n_scales);                                                    \
        f##r##a = v_fma(v_mul(da, i_to_float(i##r##a)), input, f##r##a);                                               \
        if (n_panels == 2) f##r##b = v_fma(v_mul(db, i_to_float(i##r##b)), input, f##r##b);                            \
    }
#define MIN(r)                                                                                                         \
    if (n_rows > r) {                                                                                                  \
        const __m512 input = v_value(act_scale[r * n_scales] * (float)sum##r);                                         \
        f##r##a = v_fma(ma, input, f##r##a);                                                                           \
        if (n_panels == 2) f##r##b = v_fma(mb, input, f##r##b);                                                        \
    }
#define STORE(r)                                                                                                       \
    if (n_rows > r) {                                                                                                  \
        v_store(chains + r * n_panels * PANEL, f##r##a);                                                               \
        if (n_panels == 2) v_store(chains + (r * 2 + 1) * PANEL, f##r##b);                                             \
    }

INLINE void int_tile(const linear_job *job, int row, int panel, const int n_rows, const int n_panels, const int bits,
                     const int group) {
    const weight_layout *layout = job->layout;
    const int_shape shape = int_shape_of(layout);
    const size_t k = (size_t)layout->k, next_panel = layout->panel_bytes, next_row = ACT_PLANES * k;
    const size_t n_scales = k / ACT_GROUP, n_sums = k / ACT_SUM_GROUP;
    const char *first = panel_at(job, panel);
    const int8_t *x = (const int8_t *)job->x->x + (size_t)row * next_row;
    const float *scale = job->x->scale + (size_t)row * n_scales;
    const int32_t *sum = job->x->sum + (size_t)row * n_sums;
    const int quads = group / 4, zero = layout->zero;
    const bool coarse = job->x->coarse;
    const __m512i low = _mm512_set1_epi8(15);
    const ptrdiff_t ahead = ahead_of(job, row, panel, n_panels);

    EACH_ROW(DECLARE)

    for (size_t begin = 0; begin < k; begin += (size_t)group) {
        const size_t half = begin / ACT_GROUP % 2, part = begin % INT_SPAN / (size_t)group;
        const char *span = first + INT_FACTOR_BYTES + begin / INT_SPAN * shape.span;
        const char *codes =
            span + shape.codes + half * shape.half_codes + begin % ACT_GROUP * (size_t)(PANEL * bits / 8);
        /* Sums of the upper bytes are multiplied by 256; those of the lower ones start from -zero * (sum of
         * activations). */
        const int32_t *group_sum = sum + begin / ACT_SUM_GROUP;
        /* Scales and mins of a span are as many cache lines as it has groups, or half as many. */
        __builtin_prefetch(span + part * 64 + ahead, 0, 2);
        if (n_panels == 2) __builtin_prefetch(span + part * 64 + next_panel + ahead, 0, 2);
        EACH_ROW(START)

        UNROLLED for (int plane = 0; plane < ACT_PLANES; plane++) {
            const int8_t *at = x + (size_t)plane * k + begin;
            const char *w = codes;
            if (plane == 1) { EACH_ROW(NEXT_PLANE) }
            if (plane == 1 && coarse) break;
            UNROLLED for (int quad = 0; quad < quads; quad += 8 / bits, w += 64) {
                if (plane == 0) {
                    __builtin_prefetch(w + ahead, 0, 2);
                    if (n_panels == 2) __builtin_prefetch(w + next_panel + ahead, 0, 2);
                }
                __m512i packed_a = i_load(w), packed_b = packed_a;
                if (n_panels == 2) packed_b = i_load(w + next_panel);
                __m512i wa = packed_a, wb = packed_b;
                if (bits == 4) {
                    wa = i_and(packed_a, low);
                    wb = i_and(packed_b, low);
                }
                EACH_ROW(DOT)
                at += 4;
                if (bits == 4) {
                    wa = i_and(i_shift_right16(packed_a), low);
                    wb = i_and(i_shift_right16(packed_b), low);
                    EACH_ROW(DOT)
                    at += 4;
                }
            }
        }

        const char *d = span + part * PANEL * sizeof(f16);
        const __m512 da = v_half(d), db = n_panels == 2 ? v_half(d + next_panel) : da;
        const float *act_scale = scale + begin / ACT_GROUP;
        EACH_ROW(SCALE)
        if (layout->has_min) {
            const __m512 ma = v_half(d + shape.mins), mb = n_panels == 2 ? v_half(d + shape.mins + next_panel) : ma;
            EACH_ROW(MIN)
        }
    }

    float chains[6 * 2 * PANEL];
    EACH_ROW(STORE)
    store_tile(job, row, panel, n_rows, n_panels, chains);
}

/* Tiles of codes of some bits and groups: int<bits>g<group>_R_P, and the arrays int<bits>g<group>_P. */
#define INT_TILE(bits, group, rows, panels)                                                                            \
    static void int##bits##g##group##_##rows##_##panels(const linear_job *job, int row, int panel) {                   \
        int_tile(job, row, panel, rows, panels, bits, group);                                                          \
    }
#define INT_TILES_OF(bits, group, panels)                                                                              \
    INT_TILE(bits, group, 1, panels)                                                                                   \
    INT_TILE(bits, group, 2, panels)                                                                                   \
    INT_TILE(bits, group, 3, panels)                                                                                   \
    INT_TILE(bits, group, 4, panels)                                                                                   \
    INT_TILE(bits, group, 5, panels)                                                                                   \
    INT_TILE(bits, group, 6, panels)                                                                                   \
    static const tile int##bits##g##group##_##panels[] = {NULL,                                                        \
                                                          int##bits##g##group##_1_##panels,                            \
                                                          int##bits##g##group##_2_##panels,                            \
                                                          int##bits##g##group##_3_##panels,                            \
                                                          int##bits##g##group##_4_##panels,                            \
                                                          int##bits##g##group##_5_##panels,                            \
                                                          int##bits##g##group##_6_##panels};
#define INT_TILES(bits, group)                                                                                         \
    INT_TILES_OF(bits, group, 1)                                                                                       \
    INT_TILES_OF(bits, group, 2)                                                                                       \
    static const tile_set int##bits##g##group = {6, 2, int##bits##g##group##_1, int##bits##g##group##_2, 4};

INT_TILES(4, 16)
INT_TILES(4, 32)
INT_TILES(8, 16)
INT_TILES(8, 32)

static void linear_int(const linear_job *job) {
    static const tile_set *const sets[2][2] = {{&int4g16, &int4g32}, {&int8g16, &int8g32}};
    drive(job, sets[job->layout->bits == 8][job->layout->group == 32]);
}

void linear_avx512_dot_fill(kernel_table *table) {
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
}
