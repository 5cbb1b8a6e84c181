/* Sealing: turning the exact keys or values of an entry into codes, once, and reading codes back.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_SEAL_H
#define MN_KV_SEAL_H

#include "kernels/kernels.h"
#include "kv/basis.h"
#include "kv/form.h"

/* One stream of one entry: tokens that are sealed together. Tokens are numbered from slot 0 of pages[0]. */
typedef struct seal_stream {
    const kernel_table *kernels;
    kv_form form;
    bool is_key;
    int dim, page_tokens;
    int head_begin, head_end;   /* heads to do; hqq optimises over all heads given together */
    const code_layout *layouts; /* of keys [heads of the entry], of values one for all */
    const kv_basis *bases;      /* [heads of the entry], keys of mneme; NULL: no basis */
    char *const *pages;         /* first byte of head 0's stream in each page */
    size_t head_bytes;          /* from one head's stream to the next */
    int64_t first; /* first token to seal: CHANNEL groups: a multiple of the group; mneme keys: of the page */
    int n; /* tokens; likewise whole groups or pages (mneme keys of 8 bits stand alone, as its values do) */
    int n_skip;    /* of these, the first ones leave no trace in what tokens share (they are stored exactly
                      elsewhere) */
    float *rows;   /* [head_end - head_begin][n][dim]: in; overwritten. seal_read: out */
    void *scratch; /* seal_scratch_bytes, 64-byte aligned */
} seal_stream;

/* n_heads: of a job, head_end - head_begin; n: its tokens. */
size_t seal_scratch_bytes(kv_form form, bool is_key, int dim, int page_tokens, int n_heads, int n);
/* The same bytes whatever the level of the kernels and, hqq apart, whatever other heads are given. */
void seal_write(const seal_stream *job);
/* What the codes stand for, in the original space (rotation and basis undone). */
void seal_read(const seal_stream *job);

#endif
