/* Quantizing: turning the exact keys or values of an entry into codes, once, and reading codes back.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_QUANTIZE_H
#define MN_KV_QUANTIZE_H

#include "kernels/kernels.h"
#include "kv/calibration.h"
#include "kv/form.h"

/* Tokens of one stream of one entry that are quantized together. Tokens are numbered from slot 0 of pages[0]. */
typedef struct quantize_stream {
    const kernel_table *kernels;
    kv_form form;
    bool is_key;
    int dim, page_tokens;
    int head_begin, head_end;               /* heads to quantize; hqq optimises over all of them together */
    const code_layout *layouts;             /* of keys [heads of the entry], of values one for all */
    const kv_head_calibration *calibration; /* [heads of the entry], keys of mneme; NULL: none */
    char *const *pages;                     /* first byte of head 0's stream in each page */
    size_t head_bytes;                      /* from one head's stream to the next */
    int64_t first; /* first token to quantize: CHANNEL groups: a multiple of the group; mneme keys: of the page */
    int n;         /* tokens; likewise whole groups or pages (mneme keys of 8 bits and its values share nothing across
                    * tokens) */
    int n_skip;    /* of these, the first ones do not affect shared scales (they are stored exactly
                      elsewhere) */
    float *rows;   /* [head_end - head_begin][n][dim]: in; overwritten. quantize_read: out */
    void *scratch; /* quantize_scratch_bytes, 64-byte aligned */
} quantize_stream;

/* n_heads: of a job, head_end - head_begin; n: its tokens. */
size_t quantize_scratch_bytes(kv_form form, bool is_key, int dim, int page_tokens, int n_heads, int n);
/* The bytes do not depend on the level of the kernels nor, except for hqq, on the other heads. */
void quantize_write(const quantize_stream *job);
/* The dequantized values, with rotation and calibration undone. */
void quantize_read(const quantize_stream *job);

#endif
