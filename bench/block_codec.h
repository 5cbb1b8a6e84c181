/* A cache of ggml's blocks of 32, for comparison: what quantized caches of llama.cpp keep. The engine has no such form, so an
 * exact f32 cache holds what the codes of its keys and values stand for. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BENCH_BLOCK_CODEC_H
#define MN_BENCH_BLOCK_CODEC_H

#include "gen/session.h"
#include "tensor/dtype.h"

typedef struct block_codec {
    dtype type;   /* DTYPE_Q4_0, DTYPE_Q8_0 */
    bool rotates; /* rows stand behind a Hadamard transform, as llama.cpp has them since April 2026 */
    int residual; /* newest tokens that stay exact, a multiple of 64; 0: none, as in llama.cpp */
} block_codec;

/* Reads "q4_0", "q8_0", each with "+rotated" and "+residual" behind it if wished; false for other names. */
bool block_codec_read(block_codec *out, const char *name);
uint64_t block_codec_token_bytes(const block_codec *codec, const mn_model_info *model);

/* From now on the session's cache, which is empty, exact and f32, keeps codes. One that has a residual is fed at most 64 tokens
 * a call, and block_codec_settle is called behind each. */
void block_codec_use(const block_codec *codec, const mn_session *session);
void block_codec_settle(const block_codec *codec, mn_session *session);

#endif
