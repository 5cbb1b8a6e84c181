/* Matrix products for AArch64 with its base instruction set.
 * SPDX-License-Identifier: Apache-2.0 */
#include <arm_neon.h>

#include "kernels/kernels.h"
#include "kernels/linear/linear_rows.h"

/* ---- vectors of four lanes ---- */

typedef float32x4_t vf;
typedef int32x4_t vi;
enum { LANES = 4 };

static inline vf v_zero(void) {
    return vdupq_n_f32(0);
}
static inline vf v_load(const void *p) {
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
static inline void v_store(float *p, vf x) {
    vst1q_f32(p, x);
}
static inline vf v_value(float x) {
    return vdupq_n_f32(x);
}
static inline vf v_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf v_half(const char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p)));
}
/* Four signed bytes. */
static inline vf v_bytes(const char *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes))))));
}
static inline vf v_low(vf pairs) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}
static inline vf v_high(vf pairs) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xFFFF0000u)));
}

static inline vi i_load(const char *p) {
    return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p));
}
static inline void i_store(void *p, vi x) {
    vst1q_s32(p, x);
}
static inline vi i_widen(const int8_t *p) {
    static const uint8_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    return vreinterpretq_s32_s16(vmovl_s8(vtbl1_s8(vld1_s8(p), vld1_s8((const int8_t *)order))));
}
static inline vi i_value(int32_t x) {
    return vdupq_n_s32(x);
}
static inline vi i_broadcast(const void *unit) {
    int32_t bits;
    memcpy(&bits, unit, sizeof bits);
    return vdupq_n_s32(bits);
}
static inline vf v_broadcast(const void *unit) {
    return vreinterpretq_f32_s32(i_broadcast(unit));
}
static inline vi i_and(vi a, vi b) {
    return vandq_s32(a, b);
}
static inline vi i_or(vi a, vi b) {
    return vorrq_s32(a, b);
}
static inline vi i_shift16(vi a, int left) {
    return vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a), vdupq_n_s16((int16_t)left)));
}
static inline vi i_table(const uint8_t *bytes) {
    return vreinterpretq_s32_u8(vld1q_u8(bytes));
}
static inline vi i_choose(vi table, vi numbers) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(numbers)));
}
static inline vi i_add32(vi a, vi b) {
    return vaddq_s32(a, b);
}
static inline vi i_sub8(vi a, vi b) {
    return vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)));
}
static inline vi i_sub16(vi a, vi b) {
    return vreinterpretq_s32_s16(vsubq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
static inline vi i_add16(vi a, vi b) {
    return vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
static inline vi i_right32(vi a, int bits) {
    return vshlq_s32(a, vdupq_n_s32(-bits));
}
static inline vi i_even(vi a) {
    return vandq_s32(a, vdupq_n_s32(0x00FF00FF));
}
static inline vi i_odd(vi a) {
    return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), 8));
}
static inline vi i_even_signed(vi a) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(a), 8), 8));
}
static inline vi i_odd_signed(vi a) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(a), 8));
}
static inline vi i_madd8(vi codes, vi x) {
    int16x8_t even = vmulq_s16(vreinterpretq_s16_s32(i_even(codes)), vreinterpretq_s16_s32(i_even_signed(x)));
    return vreinterpretq_s32_s16(
        vmlaq_s16(even, vreinterpretq_s16_s32(i_odd(codes)), vreinterpretq_s16_s32(i_odd_signed(x))));
}
static inline vi i_madd16(vi a, vi b) {
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
static inline vf i_to_float(vi a) {
    return vcvtq_f32_s32(a);
}

#include "kernels/linear/linear_drive.inc"
#include "kernels/linear/linear_dense.inc"
#include "kernels/linear/linear_madd.inc"

DENSE_TILES(linear_f32, 1, false)
DENSE_KERNEL(linear_f32, 1)
DENSE_TILES(linear_bf16, 1, true)
DENSE_KERNEL(linear_bf16, 1)

void linear_neon_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = rows_quantize;
    table->bf16_row = rows_bf16;
}
