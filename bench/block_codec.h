/* Quantized caches of llama.cpp, with ggml's blocks of 32, for comparison. The library has no such form, so an exact
 * f32 cache holds the dequantized keys and values.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BENCH_BLOCK_CODEC_H
#define MN_BENCH_BLOCK_CODEC_H

#include "session/session.h"
#include "tensor/dtype.h"

typedef struct block_codec {
    dtype type;   /* DTYPE_Q4_0, DTYPE_Q8_0 */
    bool rotates; /* rows are Hadamard-transformed, as in llama.cpp since April 2026 */
    int residual; /* newest tokens that stay exact, a multiple of 64; 0: none, as in llama.cpp */
} block_codec;

/* Parses "q4_0" or "q8_0", optionally followed by "+rotated" and "+residual"; false for other names. */
bool block_codec_read(block_codec *out, const char *name);
uint64_t block_codec_token_bytes(const block_codec *codec, const mn_model_info *model);

/* From now on the session's cache, which must be empty, exact and f32, holds quantized values. With a residual, feed at
 * most 64 tokens per call and call block_codec_apply after each. */
void block_codec_use(const block_codec *codec, const mn_session *session);
void block_codec_apply(const block_codec *codec, mn_session *session);

#endif
