/* SPDX-License-Identifier: Apache-2.0 */
#include "support/blocks.h"

#include <math.h>

#include "base/num.h"
#include "support/support.h"

/* Offsets of the float16 fields of a block; -1: no such field. */
static const int half_fields[N_DTYPES][2] = {
    [DTYPE_Q4_0] = {0, -1}, [DTYPE_Q4_1] = {0, 2},    [DTYPE_Q5_0] = {0, -1},   [DTYPE_Q5_1] = {0, 2},
    [DTYPE_Q8_0] = {0, -1}, [DTYPE_Q2_K] = {80, 82},  [DTYPE_Q3_K] = {108, -1}, [DTYPE_Q4_K] = {0, 2},
    [DTYPE_Q5_K] = {0, 2},  [DTYPE_Q6_K] = {208, -1}, [DTYPE_IQ4_NL] = {0, -1}, [DTYPE_IQ4_XS] = {0, -1},
};

static double random_scale(uint64_t *seed, double largest) {
    double value = test_uniform(seed, largest / 16, largest);
    return test_random(seed) % 2 ? value : -value;
}

double float8_value(dtype type, int code) {
    const int fraction_bits = type == DTYPE_F8_E4M3 ? 3 : 2, bias = type == DTYPE_F8_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7F) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    const double sign = code & 0x80 ? -1 : 1;
    if (type == DTYPE_F8_E4M3 && (code & 0x7F) == 0x7F) return (double)NAN;
    if (type == DTYPE_F8_E5M2 && exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

/* A code with a value of at most `largest`. */
static uint8_t random_float8(uint64_t *seed, dtype type, double largest) {
    int code;
    do code = (int)(test_random(seed) & 0xFF);
    while (!(fabs(float8_value(type, code)) <= largest));
    return (uint8_t)code;
}

static void random_plain(uint64_t *seed, dtype type, uint8_t *out, size_t n, double largest) {
    for (size_t i = 0; i < n; i++) {
        float value = (float)random_scale(seed, largest);
        f16 half = f16_from_f32(value);
        bf16 brain = bf16_from_f32(value);
        switch (type) {
        case DTYPE_F32: memcpy(out + 4 * i, &value, 4); break;
        case DTYPE_F16: memcpy(out + 2 * i, &half, 2); break;
        case DTYPE_F64: memcpy(out + 8 * i, &(double){(double)value}, 8); break;
        case DTYPE_F8_E4M3:
        case DTYPE_F8_E5M2: out[i] = random_float8(seed, type, largest); break;
        default: memcpy(out + 2 * i, &brain, 2); break;
        }
    }
}

void random_blocks(uint64_t *seed, dtype type, void *out, size_t n, double largest) {
    const dtype_info *info = &dtype_table[type];
    uint8_t *at = out;
    if (info->block == 1) {
        random_plain(seed, type, at, n, largest);
        return;
    }
    for (size_t block = 0; block < n / (size_t)info->block; block++, at += info->bytes) {
        for (int i = 0; i < info->bytes; i++) at[i] = (uint8_t)test_random(seed);
        for (int i = 0; i < 2 && half_fields[type][i] >= 0; i++) {
            f16 half = f16_from_f32((float)random_scale(seed, largest));
            memcpy(at + half_fields[type][i], &half, sizeof half);
        }
    }
}
