/* Element-wise and row kernels.
 *
 * rms_norm       y = x / sqrt(mean(x^2) + eps) * weight; n values; y may be x.
 * rope           rotates one head in place: pairs (x[j], x[j + half]) by the angles whose cosines and sines
 *                are given ([half] each): x' = x cos - y sin, y' = y cos + x sin.
 * silu_mul       y = gate * sigmoid(gate) * up; y may be gate.
 * gelu_tanh_mul  y = 0.5 gate (1 + tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up.
 * add            y += x.
 * scale          y *= factor.
 * exp_sum        *sum = sum of exp(x - max), accumulated in double across vectors.
 * max_index      index of the largest value, the lowest on ties; NaN never wins (0 when all are NaN).
 *
 * Accuracy: within 4 units in the last place of float32 of the exact value for exp, tanh and sigmoid parts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ELEM_H
#define MN_KERNELS_ELEM_H

#include <stddef.h>
#include <stdint.h>

#endif
