/* Conversion of float32 to stored types: the plain types and the simple blocks of 32, for test models. Scales and
 * rounding follow ggml's reference quantization, so the bytes agree with files of other programs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CHECKPOINT_QUANTIZE_H
#define CHECKPOINT_QUANTIZE_H

#include "tensor/dtype.h"

/* n finite values (a multiple of the block length) to dst, which holds dtype_bytes(type, n). F32, F16, BF16, Q4_0, Q4_1
 * and Q8_0; MN_E_UNSUPPORTED for the others, MN_E_FORMAT when n does not fill blocks. */
mn_status quantize_from_f32(dtype type, void *dst, const float *src, int64_t n);

#endif
