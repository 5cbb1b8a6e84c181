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
 * panels; with activations of 16 bits the chains are those of a span, and t<r>a, t<r>b their totals. */
#define EACH_ROW(M) M(0) M(1) M(2) M(3) M(4) M(5)
enum { TILE_ROWS = 6 };

/* The four bytes of a lane times four 8-bit codes; or two 16-bit numbers of a lane times two 16-bit codes. */
INLINE __m512i dot(__m512i acc, __m512i codes, __m512i x, const bool a8) {
    return a8 ? _mm512_dpbusd_epi32(acc, codes, x) : _mm512_dpwssd_epi32(acc, codes, x);
}

/* Two vectors that the compiler then has in registers. GCC 12 keeps some sums of 16-bit activations in memory without
 * it, which halves the speed of four rows of 8-bit codes. */
#define IN_REGISTERS(a, b) __asm__("" : "+v"(a), "+v"(b))

/* The steps of int_tile for a row; their names are its variables. A single row of a single panel has two sums, i0a and
 * i0b, since one product would wait for the one before it. */
#define DECLARE(r)                                                                                                     \
    __m512 f##r##a = v_zero(), f##r##b = v_zero(), t##r##a = v_zero(), t##r##b = v_zero();                             \
    __m512i i##r##a, i##r##b;
#define START(r)                                                                                                       \
    if (n_rows > r) {                                                                                                  \
        i##r##a = i_value(0);                                                                                          \
        if (zero != 0) i##r##a = i_value(-zero * act_sums(&acts[r], group)[g]);                                        \
        if (n_panels == 2) i##r##b = i##r##a;                                                                          \
        if (n_panels == 2 && !a8) IN_REGISTERS(i##r##a, i##r##b);                                                      \
        if (is_single) i##r##b = i_value(0);                                                                           \
    }
#define DOT(r)                                                                                                         \
    if (n_rows > r) {                                                                                                  \
        const __m512i input = i_broadcast(at + r * next_row);                                                          \
        const bool second = is_single && step % 2;                                                                     \
        if (!second) i##r##a = dot(i##r##a, wa, input, a8);                                                            \
        if (n_panels == 2 || second) i##r##b = dot(i##r##b, wb, input, a8);                                            \
    }
#define OUTLIER(r)                                                                                                     \
    if (n_rows > r && int_has_outlier(&acts[r], run, group, begin)) {                                                  \
        const int32_t factor = int_outlier_factor(&acts[r], run);                                                      \
        const int place = acts[r].place[run], quad = place % group / 4;                                                \
        i##r##a = add_outlier(i##r##a, quad_of(w, quad, bits, has_levels, levels), place, factor);                     \
        if (n_panels == 2)                                                                                             \
            i##r##b = add_outlier(i##r##b, quad_of(w + next_panel, quad, bits, has_levels, levels), place, factor);    \
    }
#define SCALE(r)                                                                                                       \
    if (n_rows > r && a8) {                                                                                            \
        const __m512 input = v_broadcast(&acts[r].scale[run]);                                                         \
        f##r##a = v_fma(v_mul(da, i_to_float(i##r##a)), input, f##r##a);                                               \
        if (n_panels == 2) f##r##b = v_fma(v_mul(db, i_to_float(i##r##b)), input, f##r##b);                            \
    } else if (n_rows > r) {                                                                                           \
        f##r##a = v_fma(da, i_to_float(i##r##a), f##r##a);                                                             \
        if (n_panels == 2) f##r##b = v_fma(db, i_to_float(i##r##b), f##r##b);                                          \
    }
#define MIN(r)                                                                                                         \
    if (n_rows > r) {                                                                                                  \
        const __m512 input = v_broadcast(act_min_factors(&acts[r], group) + g);                                        \
        f##r##a = v_fma(ma, input, f##r##a);                                                                           \
        if (n_panels == 2) f##r##b = v_fma(mb, input, f##r##b);                                                        \
    }
#define TOTAL(r)                                                                                                       \
    if (n_rows > r) {                                                                                                  \
        const __m512 input = v_broadcast(&acts[r].scale[0]);                                                           \
        t##r##a = v_fma(f##r##a, input, t##r##a);                                                                      \
        if (n_panels == 2) t##r##b = v_fma(f##r##b, input, t##r##b);                                                   \
        f##r##a = f##r##b = v_zero();                                                                                  \
    }
#define STORE(r)                                                                                                       \
    if (n_rows > r) {                                                                                                  \
        v_store(chains + r * n_panels * PANEL, a8 ? f##r##a : t##r##a);                                                \
        if (n_panels == 2) v_store(chains + (r * 2 + 1) * PANEL, a8 ? f##r##b : t##r##b);                              \
    }
/* The levels of a pair of 4-bit codes in 16-bit parts. Those of both pairs of a quad are looked up at once: the second
 * time, the compiler finds the same expression. */
INLINE __m512i level_pair_of(const char *words, const int pair, __m512i levels) {
    const __m512i codes = i_shift16(i_load(words + pair / 4 * 64), -(pair / 2 % 2 * 4));
    const __m512i quad = i_choose(levels, i_and(codes, _mm512_set1_epi8(15)));
    return pair % 2 ? i_shift16(quad, -8) : i_and(quad, _mm512_set1_epi16(255));
}

/* The codes of a pair of a group (linear.h) in 16-bit parts. */
INLINE __m512i pair_of(const char *words, const int pair, const int bits) {
    const __m512i mask = _mm512_set1_epi16((short)((1 << bits) - 1));
    if (bits == 8) {
        const __m512i quad = i_load(words + pair / 2 * 64);
        return pair % 2 ? i_shift16(quad, -8) : i_and(quad, mask);
    }
    if (bits == 4) {
        const int shift = pair / 2 % 2 * 4 + pair % 2 * 8;
        const __m512i codes = i_shift16(i_load(words + pair / 4 * 64), -shift);
        return shift == 12 ? codes : i_and(codes, mask);
    }
    if (bits == 6 && pair < 6) return i_and(i_shift16(i_load(words + pair / 2 * 64), -(pair % 2 * 6)), mask);
    if (bits == 6) {
        const __m512i upper = i_shift16(i_load(words + 128), -(8 + (pair - 6) * 2));
        const __m512i lower = i_shift16(i_load(words + (pair - 6) * 64), -12);
        return _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(0x30), 0xF8); /* lower | (upper & mask) */
    }
    if (pair < 15) return i_and(i_shift16(i_load(words + pair / 3 * 64), -(pair % 3 * 5)), mask);
    __m512i code = i_shift16(i_load(words), -15);
    UNROLLED for (int j = 1; j < 5; j++) {
        const __m512i bit = i_shift16(i_load(words + j * 64), j - 15);
        code = _mm512_ternarylogic_epi32(code, bit, _mm512_set1_epi16((short)(1 << j)), 0xF8);
    }
    return code;
}

/* The codes of a quad of a group as bytes. */
INLINE __m512i quad_of(const char *words, const int quad, const int bits, const bool has_levels, __m512i levels) {
    if (bits == 8) return i_load(words + quad * 64);
    if (bits == 4) {
        const __m512i codes = i_and(i_shift16(i_load(words + quad / 2 * 64), -(quad % 2 * 4)), _mm512_set1_epi8(15));
        return has_levels ? i_choose(levels, codes) : codes;
    }
    return i_or(pair_of(words, 2 * quad, bits), i_shift16(pair_of(words, 2 * quad + 1, bits), 8));
}

/* What a step multiplies: a quad by 8-bit activations, a pair by 16-bit ones. */
INLINE __m512i weights_of(const char *words, const int step, const int bits, const bool has_levels, const bool a8,
                          __m512i levels) {
    if (a8) return quad_of(words, step, bits, has_levels, levels);
    return has_levels ? level_pair_of(words, step, levels) : pair_of(words, step, bits);
}

/* Adds the upper part of the outlier times its weights, which are in `quad`. Few groups have one. */
INLINE __m512i add_outlier(__m512i acc, __m512i quad, int place, int32_t factor) {
    const __m512i codes = place % 2 ? i_shift16(quad, -8) : i_and(quad, _mm512_set1_epi16(255));
    return _mm512_dpwssd_epi32(acc, codes, i_value(factor));
}

/* The line `ahead` bytes from one that a tile reads. A single row reads each line once, the first-level cache has it
 * in time; 0: it reads as fast as the processor's own prefetching. */
INLINE void fetch_line(const char *line, ptrdiff_t ahead, size_t next_panel, const int n_rows, const int n_panels) {
    if (n_rows > 1)
        fetch(line + ahead, next_panel, n_panels);
    else if (ahead != 0)
        __builtin_prefetch(line + ahead, 0, 3);
}

/* The scales or mins of a group at `at`; byte scales are multiplied by those of the super-block. */
INLINE __m512 scales_at(const char *at, __m512 super, bool byte_scales) {
    return byte_scales ? v_mul(super, v_bytes(at)) : v_half(at);
}

INLINE void int_tile(const linear_job *job, int row, int panel, const int n_rows, const int n_panels, const int bits,
                     const bool has_levels, const int group, const bool a8) {
    const weight_layout *layout = job->layout;
    const int_shape shape = int_shape_of(layout);
    const size_t next_panel = layout->panel_bytes, input_bytes = a8 ? 1 : 2, next_row = ACT_SPAN * input_bytes;
    const bool byte_scales = layout->byte_scales, is_single = n_rows == 1 && n_panels == 1;
    const __m512i levels = has_levels ? i_table(layout->levels) : i_value(0);
    const char *span = panel_at(job, panel) + INT_FACTOR_BYTES;
    const int zero = layout->zero;
    const ptrdiff_t ahead = n_rows == 1 ? (ptrdiff_t)job->prefetch_bytes : ahead_of(job, row, panel, n_panels);

    fetch_outputs(job, row, panel, n_rows, n_panels);
    EACH_ROW(DECLARE)

    for (int first = 0; first < layout->k; first += ACT_SPAN) {
        const char *at = (const char *)job->x->x + act_index(job->x->m, row, first) * input_bytes;
        const act_span *acts = act_span_at(job->x, row, first);
        const int left = layout->k - first, n_runs = (left < ACT_SPAN ? left : ACT_SPAN) / ACT_GROUP;
        for (int run = 0; run < n_runs; span += shape.span) {
            const char *w = span + shape.codes, *end = span + shape.span, *scales = span + shape.scales,
                       *fetched = span;
            /* Not numbers of super-blocks without byte scales, and then not used. */
            const __m512 super_a = v_half(span), super_min_a = v_half(span + PANEL * sizeof(f16));
            const __m512 super_b = n_panels == 2 ? v_half(span + next_panel) : super_a,
                         super_min_b = n_panels == 2 ? v_half(span + next_panel + PANEL * sizeof(f16)) : super_a;
            for (; w < end && run < n_runs; run++) {
                /* A line of the factors, scales and mins with each run of 32; only those of Q2_K have one line more. */
                if (fetched < span + shape.codes) fetch_line(fetched, ahead, next_panel, n_rows, n_panels);
                fetched += 64;
                UNROLLED for (int begin = 0; begin < ACT_GROUP; begin += group) {
                    const int g = run * (ACT_GROUP / group) + begin / group, n_steps = group / (a8 ? 4 : 2),
                              lines = group * bits / 32;
                    EACH_ROW(START)
                    UNROLLED for (int step = 0; step < n_steps; step++, at += 4) {
                        const int line = step * lines / n_steps;
                        if (step == 0 || line != (step - 1) * lines / n_steps)
                            fetch_line(w + line * 64, ahead, next_panel, n_rows, n_panels);
                        const __m512i wa = weights_of(w, step, bits, has_levels, a8, levels);
                        __m512i wb = wa;
                        if (n_panels == 2) wb = weights_of(w + next_panel, step, bits, has_levels, a8, levels);
                        EACH_ROW(DOT)
                    }
                    if (is_single) i0a = i_add32(i0a, i0b);
                    if (a8) { EACH_ROW(OUTLIER) }
                    w += lines * 64;
                    const __m512 da = scales_at(scales, super_a, byte_scales),
                                 db = n_panels == 2 ? scales_at(scales + next_panel, super_b, byte_scales) : da;
                    EACH_ROW(SCALE)
                    if (layout->has_min) {
                        const char *mins = scales + (shape.mins - shape.scales);
                        const __m512 ma = scales_at(mins, super_min_a, byte_scales),
                                     mb = n_panels == 2 ? scales_at(mins + next_panel, super_min_b, byte_scales) : ma;
                        EACH_ROW(MIN)
                    }
                    scales += shape.group;
                }
            }
        }
        if (!a8) { EACH_ROW(TOTAL) }
    }

    float chains[TILE_ROWS * 2 * PANEL];
    EACH_ROW(STORE)
    store_tile(job, row, panel, n_rows, n_panels, chains);
}

/* Tiles of codes of some bits (4 of levels: levels) and groups times activations of 8 (x8) or 16 bits (x16): NAME_R_P.
 * Four and more rows, divided evenly into tiles of at most six, have three or more in each. */
#define INT_TILE(name, rows, panels, bits, has_levels, group, a8)                                                      \
    static void name##_##rows##_##panels(const linear_job *job, int row, int panel) {                                  \
        int_tile(job, row, panel, rows, panels, bits, has_levels, group, a8);                                          \
    }
#define INT_TILES(name, bits, has_levels, group, a8)                                                                   \
    INT_TILE(name, 1, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 2, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 3, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 4, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 5, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 6, 1, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 3, 2, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 4, 2, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 5, 2, bits, has_levels, group, a8)                                                                  \
    INT_TILE(name, 6, 2, bits, has_levels, group, a8)                                                                  \
    static const tile name##_narrow[] = {                                                                              \
        NULL, name##_1_1, name##_2_1, name##_3_1, name##_4_1, name##_5_1, name##_6_1};                                 \
    static const tile name##_wide[] = {NULL, NULL, NULL, name##_3_2, name##_4_2, name##_5_2, name##_6_2};              \
    static const tile_set name = {TILE_ROWS, 2, name##_narrow, name##_wide, 4};

INT_TILES(int4g16x16, 4, false, 16, false)
INT_TILES(int4g32x16, 4, false, 32, false)
INT_TILES(levelsg32x16, 4, true, 32, false)
INT_TILES(int5g32x16, 5, false, 32, false)
INT_TILES(int6g16x16, 6, false, 16, false)
INT_TILES(int8g32x16, 8, false, 32, false)
INT_TILES(int4g16x8, 4, false, 16, true)
INT_TILES(int4g32x8, 4, false, 32, true)
INT_TILES(levelsg32x8, 4, true, 32, true)
INT_TILES(int5g32x8, 5, false, 32, true)
INT_TILES(int6g16x8, 6, false, 16, true)
INT_TILES(int8g32x8, 8, false, 32, true)

#include "kernels/linear/linear_block_dot.inc"

/* How codes of a layout are multiplied by activations of 16 and of 8 bits: few rows and many. */
typedef struct int_kind {
    const tile_set *few[2];
    const block_set *many[2]; /* those of 16 bits as sums of neighbours */
} int_kind;

#define INT_KIND(name, bits, has_levels, group)                                                                        \
    BLOCK_SET(name, bits, has_levels, group, x16, false)                                                               \
    BLOCK_SET(name, bits, has_levels, group, x8, true)                                                                 \
    static const int_kind name = {{&name##x16, &name##x8}, {&name##x16_block, &name##x8_block}};

INT_KIND(int4g16, 4, false, 16)
INT_KIND(int4g32, 4, false, 32)
INT_KIND(levelsg32, 4, true, 32)
INT_KIND(int5g32, 5, false, 32)
INT_KIND(int6g16, 6, false, 16)
INT_KIND(int8g32, 8, false, 32)

static const int_kind *int_kind_of(const weight_layout *layout) {
    static const int_kind *const others[] = {[4] = &int4g32, [5] = &int5g32, [6] = &int6g16, [8] = &int8g32};
    if (layout->bits == 4 && layout->group == ACT_SUM_GROUP) return &int4g16;
    return layout->levels ? &levelsg32 : others[layout->bits];
}

static void run_int(const linear_job *job, bool sums) {
    const int_kind *kind = int_kind_of(job->layout);
    const bool a8 = job->x->a8;
    linear_job rest = *job;
    if (blocks_pay(job, sums)) rest.panel_begin = drive_blocks(job, kind->many[a8]);
    if (rest.panel_begin < rest.panel_end) drive(&rest, kind->few[a8]);
}

static void linear_int(const linear_job *job) {
    run_int(job, false);
}
static void linear_int_sums(const linear_job *job) {
    run_int(job, true);
}

void linear_avx512_dot_fill(kernel_table *table) {
    table->linear_bf16 = linear_bf16;
    table->linear_int = cpu_adds_beside_products() ? linear_int_sums : linear_int;
}
