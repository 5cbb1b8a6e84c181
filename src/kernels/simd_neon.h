/* Inline operations of the vector kernels, on AArch64: vectors of 4 floats.
 *
 * The contracts are in simd_avx512.h, which has the same names.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_SIMD_NEON_H
#define MN_KERNELS_SIMD_NEON_H

#include <arm_neon.h>

#include "base/num.h"

typedef float32x4_t vf;
typedef uint32x4_t vmask;

enum {
    LANES = 4,
    TILE_VECTORS = 4, /* 6 rows x 4 vectors of sums, their operands, and a broadcast fit the 32 registers */
};

#define v_prefetch(p) __builtin_prefetch(p)

static inline vf v_zero(void) {
    return vdupq_n_f32(0);
}
static inline vf v_set(float x) {
    return vdupq_n_f32(x);
}
static inline vf v_load(const float *p) {
    return vld1q_f32(p);
}
static inline void v_store(float *p, vf x) {
    vst1q_f32(p, x);
}
static inline void v_stream(float *p, vf x) {
    v_store(p, x);
}
static inline void v_stream_end(void) {}

static inline vmask v_lanes(int lo, int hi) {
    static const int32_t order[4] = {0, 1, 2, 3};
    int32x4_t lane = vld1q_s32(order);
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi)));
}
/* NEON has no masked loads and stores: one lane after the other. */
static inline vf v_load_part(const float *p, vmask part) {
    uint32_t wanted[4];
    float x[4] = {0, 0, 0, 0};
    vst1q_u32(wanted, part);
    for (int i = 0; i < 4; i++) {
        if (wanted[i]) x[i] = p[i];
    }
    return vld1q_f32(x);
}
static inline void v_store_part(float *p, vmask part, vf x) {
    uint32_t wanted[4];
    float values[4];
    vst1q_u32(wanted, part);
    vst1q_f32(values, x);
    for (int i = 0; i < 4; i++) {
        if (wanted[i]) p[i] = values[i];
    }
}
static inline vf v_select(vmask part, vf inside, vf outside) {
    return vbslq_f32(part, inside, outside);
}

static inline vf v_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return vfmsq_f32(c, a, b);
}
static inline vf v_max(vf a, vf b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf v_min(vf a, vf b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf v_round(vf x) {
    return vrndnq_f32(x);
}
static inline vf v_abs(vf x) {
    return vabsq_f32(x);
}
static inline vf v_with_sign(vf magnitude, vf sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
static inline vf v_scale(vf x, vf n) {
    /* In two steps, since 2^n itself may overflow. */
    int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
    return vmulq_f32(vmulq_f32(x, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

static inline float v_sum(vf x) {
    return vaddv_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
}
static inline float v_largest(vf x) {
    return vmaxvq_f32(x);
}
static inline double v_sum_double(vf x) {
    return vaddvq_f64(vaddq_f64(vcvt_f64_f32(vget_low_f32(x)), vcvt_high_f64_f32(x)));
}
static inline uint32_t v_equal(vf a, vf b) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(a, b), vld1q_u32(bits)));
}

static inline vf v_add_reached(vf sum, vf x, vf border, vf y) {
    return vaddq_f32(sum, vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, border), vreinterpretq_u32_f32(y))));
}
static inline void v_put_bytes(uint8_t *p, vf x) {
    uint16x4_t words = vmovn_u32(vcvtnq_u32_f32(x));
    uint8x8_t narrow = vmovn_u16(vcombine_u16(words, words));
    vst1_lane_u32((uint32_t *)(void *)p, vreinterpret_u32_u8(narrow), 0);
}

static inline vf v_bf16_low(vf pair) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pair), 16));
}
static inline vf v_bf16_high(vf pair) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pair), vdupq_n_u32(0xFFFF0000u)));
}
static inline vf v_bf16_round(vf x) {
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return v_bf16_high(vreinterpretq_f32_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7FFF)))));
}
static inline vf v_bf16_pair(vf low, vf high) {
    return vreinterpretq_f32_u32(vorrq_u32(vshrq_n_u32(vreinterpretq_u32_f32(low), 16), vreinterpretq_u32_f32(high)));
}

#endif
