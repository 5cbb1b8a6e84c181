/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/quantize.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

static void store_u16(uint8_t *at, uint16_t value) {
    memcpy(at, &value, sizeof value);
}

/* 1 / scale; 0 for a scale that float16 cannot represent. */
static float inverse_or_zero(float scale) {
    return fabsf(scale) > 0x1p-120f ? 1.0f / scale : 0.0f;
}

static void f32_store(void *dst, const float *src, size_t n) {
    if (n) memcpy(dst, src, n * sizeof *src);
}

static void f16_store(void *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) store_u16((uint8_t *)dst + 2 * i, f16_from_f32(src[i]));
}

static void bf16_store(void *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) store_u16((uint8_t *)dst + 2 * i, bf16_from_f32(src[i]));
}

/* Truncates a level that was shifted to 0.5 .. 16.5, which rounds it. */
static int cut_to_nibble(float level) {
    return level < 15.0f ? (int)level : 15;
}

/* The value of largest magnitude becomes level -8, with its sign in the scale. */
static void q4_0_store(void *dst, const float *src, size_t n) {
    uint8_t *b = dst;
    for (; n >= 32; n -= 32, b += 18, src += 32) {
        float extreme = 0.0f;
        for (int i = 0; i < 32; i++) {
            if (fabsf(src[i]) > fabsf(extreme)) extreme = src[i];
        }
        float d = extreme / -8.0f, inverse = inverse_or_zero(d);
        store_u16(b, f16_from_f32(d));
        for (int j = 0; j < 16; j++) {
            int low = cut_to_nibble(src[j] * inverse + 8.5f), high = cut_to_nibble(src[j + 16] * inverse + 8.5f);
            b[2 + j] = (uint8_t)(low | high << 4);
        }
    }
}

static void q4_1_store(void *dst, const float *src, size_t n) {
    uint8_t *b = dst;
    for (; n >= 32; n -= 32, b += 20, src += 32) {
        float lo = src[0], hi = src[0];
        for (int i = 1; i < 32; i++) {
            lo = fminf(lo, src[i]);
            hi = fmaxf(hi, src[i]);
        }
        float d = (hi - lo) / 15.0f, inverse = inverse_or_zero(d);
        store_u16(b, f16_from_f32(d));
        store_u16(b + 2, f16_from_f32(lo));
        for (int j = 0; j < 16; j++) {
            int low = cut_to_nibble((src[j] - lo) * inverse + 0.5f),
                high = cut_to_nibble((src[j + 16] - lo) * inverse + 0.5f);
            b[4 + j] = (uint8_t)(low | high << 4);
        }
    }
}

static void q8_0_store(void *dst, const float *src, size_t n) {
    uint8_t *b = dst;
    for (; n >= 32; n -= 32, b += 34, src += 32) {
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(src[i]));
        float d = largest / 127.0f, inverse = inverse_or_zero(d);
        store_u16(b, f16_from_f32(d));
        for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)roundf(src[i] * inverse);
    }
}

static void (*const store_table[N_DTYPES])(void *dst, const float *src, size_t n) = {
    [DTYPE_F32] = f32_store,   [DTYPE_F16] = f16_store,   [DTYPE_BF16] = bf16_store,
    [DTYPE_Q4_0] = q4_0_store, [DTYPE_Q4_1] = q4_1_store, [DTYPE_Q8_0] = q8_0_store,
};

mn_status quantize_from_f32(dtype type, void *dst, const float *src, int64_t n) {
    size_t bytes;
    MN_TRY(dtype_bytes(type, n, &bytes));
    if (!store_table[type]) {
        MN_FAIL(MN_E_UNSUPPORTED, "cannot write type %s, allowed: F32, F16, BF16, Q4_0, Q4_1, Q8_0",
                dtype_table[type].name);
    }
    store_table[type](dst, src, (size_t)n);
    return MN_OK;
}
