/* Random stored matrices of every supported type.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BLOCKS_H
#define TESTS_BLOCKS_H

#include "tensor/dtype.h"

/* Fills n values (a multiple of the block length) of a type: random quantized values and sub-scales, block scales
 * between `largest` / 16 and `largest` (a float16 magnitude) of either sign. */
void random_blocks(uint64_t *seed, dtype type, void *out, size_t n, double largest);

/* The value of an 8-bit float, from its definition: sign, exponent and fraction. */
double float8_value(dtype type, int code);

/* The types with dtype_info.to_f32: the first N_COMPUTED_DTYPES. */
#define FOR_COMPUTED_TYPES(type) for (dtype type = DTYPE_F32; type < N_COMPUTED_DTYPES; type = (dtype)(type + 1))

#endif
