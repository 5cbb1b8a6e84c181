/* Functions that all vector kernels share, written in the operations of a simd header, which is included first: access
 * to the last vector of an array, and exponential functions within 4 units in the last place.
 *
 * The exponential functions use x = n ln 2 + r, |r| <= ln 2 / 2, and e^r - 1 = r + r^2 Q(r), Q of degree 4 by
 * interpolation at Chebyshev nodes (error 8e-9 of e^r). The remainder is computed with ln 2 in two parts (Cody and
 * Waite).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_SIMD_MATH_H
#define MN_KERNELS_SIMD_MATH_H

#include <stddef.h>

#define LOG2_E      0x1.715476p+0f
#define LN2_HIGH    0x1.62e400p-1f /* few bits: its product with n is exact */
#define LN2_LOW     0x1.7f7d1cp-20f
#define EXP_LOWEST  -104.0f /* exp is 0 at and below this */
#define EXP_HIGHEST 89.0f   /* and infinite at and above this */
#define EXP2_LOWEST -151.0f /* 2^x is 0 at and below this */

/* Elements i .. i + LANES - 1 of n; those from n on are read as `other` and not stored. */
static inline vf v_get_or(const float *x, size_t i, size_t n, float other) {
    if (n - i >= LANES) return v_load(x + i);
    vmask part = v_lanes(0, (int)(n - i));
    return v_select(part, v_load_part(x + i, part), v_set(other));
}

static inline vf v_get(const float *x, size_t i, size_t n) {
    return n - i >= LANES ? v_load(x + i) : v_load_part(x + i, v_lanes(0, (int)(n - i)));
}

static inline void v_put(float *y, size_t i, size_t n, vf value) {
    if (n - i >= LANES) {
        v_store(y + i, value);
    } else {
        v_store_part(y + i, v_lanes(0, (int)(n - i)), value);
    }
}

/* e^r - 1 where x = n ln 2 + r. */
static inline vf v_exp_parts(vf x, vf *n) {
    *n = v_round(v_mul(x, v_set(LOG2_E)));
    vf r = v_fnma(*n, v_set(LN2_LOW), v_fnma(*n, v_set(LN2_HIGH), x));
    vf q = v_fma(v_set(0x1.6d113cp-10f), r, v_set(0x1.120ba2p-7f));
    q = v_fma(q, r, v_set(0x1.55551ap-5f));
    q = v_fma(q, r, v_set(0x1.5554dcp-3f));
    q = v_fma(q, r, v_set(0.5f));
    return v_fma(v_mul(r, r), q, r);
}

/* For x <= 0, minus infinity included: exactly 1 at 0, exactly 0 from EXP_LOWEST down. */
static inline vf v_exp_down(vf x) {
    vf n, less_one = v_exp_parts(v_max(v_set(EXP_LOWEST), x), &n);
    return v_scale(v_add(v_set(1.0f), less_one), n);
}

/* 2^x for x <= 0, as above: with a whole n next to x, 2^(x - n) = 1 + r Q(r), Q of degree 5 by interpolation at
 * Chebyshev nodes (error 5e-9). */
static inline vf v_exp2_down(vf x) {
    x = v_max(v_set(EXP2_LOWEST), x);
    vf n = v_round(x), r = v_sub(x, n);
    vf q = v_fma(v_set(0x1.44138ap-13f), r, v_set(0x1.5f0890p-10f));
    q = v_fma(q, r, v_set(0x1.3b2a54p-7f));
    q = v_fma(q, r, v_set(0x1.c6af6cp-5f));
    q = v_fma(q, r, v_set(0x1.ebfbe0p-3f));
    q = v_fma(q, r, v_set(0x1.62e430p-1f));
    return v_scale(v_fma(q, r, v_set(1.0f)), n);
}

static inline vf v_exp(vf x) {
    return v_exp_down(v_min(v_set(EXP_HIGHEST), x));
}

static inline vf v_sigmoid(vf x) {
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_zero(), x))));
}

static inline vf v_silu(vf x) {
    return v_mul(x, v_sigmoid(x));
}

/* With e = exp(2|x|) - 1: e / (e + 2); near 0 e is accurate because 2^n - 1 is then 0. */
static inline vf v_tanh(vf x) {
    vf n, y = v_min(v_set(20.0f), v_abs(v_add(x, x))), less_one = v_exp_parts(y, &n);
    vf power = v_scale(v_set(1.0f), n), e = v_fma(power, less_one, v_sub(power, v_set(1.0f)));
    return v_with_sign(v_div(e, v_add(e, v_set(2.0f))), x);
}

#endif
