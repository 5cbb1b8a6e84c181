/* Element-wise and row kernels.
 *
 * rms_norm       y = x / sqrt(mean(x^2) + eps) * weight; n values; y may be x.
 * layer_norm     y = (x - mean) / sqrt(variance + eps) * weight + bias; n values, the variance that of all of them
 *                (divided by n); bias may be NULL (0); y may be x.
 * rope           rotates one head in place: pairs (x[j], x[j + half]) by the angles whose cosines and sines
 *                are given ([half] each): x' = x cos - y sin, y' = y cos + x sin.
 * silu_mul, gelu_mul, gelu_tanh_mul, relu_mul   y = f(gate) * up; y may be gate or up.
 * activate_silu, _gelu, _gelu_tanh, _relu        y = f(y) in place. The functions f:
 *                  silu       x sigmoid(x)
 *                  gelu       x Phi(x), Phi the distribution function of a unit normal: the exact form, with erf
 *                  gelu_tanh  0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *                  relu       max(x, 0)
 * soft_cap       y = cap tanh(y / cap) in place.
 * add            y += x.
 * mul_add        y += factor * x.
 * scale          y *= factor.
 * exp_sum        *sum = sum of exp(x - max), accumulated in double across vectors.
 * max_index      index of the largest value, the lowest on ties; NaN is ignored (0 when all are NaN).
 *
 * Accuracy: exp, tanh and sigmoid are within 4 units in the last place of float32; Phi additionally has x^2 / 2
 * roundings of its exponential.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ELEM_H
#define MN_KERNELS_ELEM_H

#include <stddef.h>
#include <stdint.h>

#endif
