/* Attention on pages of keys and values in the layout in which the cache stores them.
 *
 * A page holds P consecutive tokens of one entry (one attention sub-layer), keys and values of all KV heads. Within a
 * head the layout follows the arithmetic: the lanes of a vector are tokens for the scores and value dimensions for the
 * output, so that reading needs no transposition:
 *
 *   f32   keys [k_dim][P]        values [P][v_dim]
 *   bf16  keys [k_dim/2][P][2]   values [P/2][v_dim][2]
 *
 * (bf16: pairs of dimensions and pairs of tokens, for instructions that multiply and add two at a time.) k_dim and
 * v_dim are even, P is even. All query heads that share a KV head are computed together, for any number of tokens.
 * Softmax is exact and online: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; partial results
 * merge exactly.
 *
 * Order of the arithmetic, which makes the bits independent of chunking, of other rows and of threads. Pages are
 * processed in order; for each page and query row with a visible token:
 *
 *   s_t = sum over dimensions (or pairs), one chain in order; optionally s = cap * tanh(s / cap)
 *   m' = max(m, ATTEND_LOWEST, max s); c = exp(m - m')
 *   p_t = exp(s_t - m'), in attend_bf16 rounded to bf16
 *   l = l * c + sum p_t (a fixed order of lanes); rounded, so that the weights of the values sum to 1
 *   acc = acc * c, then one chain over the page's tokens (or pairs) in order; a result of 0 is +0
 *
 * A page may consist of parts: its first slots at one address, the next ones at another. Parts do not change any bit of
 * a result.
 *
 * Invisible tokens count as p = 0; a page without visible tokens leaves the row unchanged. Bytes of a page that hold no
 * token yet are finite (pages are zeroed when allocated) and do not affect results.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_ATTEND_H
#define MN_KERNELS_ATTEND_ATTEND_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/num.h"

enum {
    PAGE_TOKENS = 128,        /* default page size */
    ATTEND_SEGMENT_PAGES = 2, /* partial results are merged at multiples of it, in order, by any thread */
    ATTEND_BLOCK_ROWS = 24,   /* query rows whose scores of one page are in scratch at a time */
    ATTEND_PART_TOKENS = 16,  /* parts of a page begin at multiples of it: whole vectors of every level */
    ATTEND_PARTS = PAGE_TOKENS / ATTEND_PART_TOKENS, /* of a page, at most */
};

/* A row with a visible token has at least this m, so that scores of minus infinity give weights of 0, not NaN. */
#define ATTEND_LOWEST (-FLT_MAX)

/* Running result of a number of query rows. A row without visible tokens so far has m = -infinity, l = 0, acc = 0. */
typedef struct attend_state {
    float *m;   /* [n_rows] largest score so far */
    float *l;   /* [n_rows] sum of exp(s - m) */
    float *acc; /* [n_rows][v_dim] weighted values, not yet divided by l */
} attend_state;

/* Slots [first, end) of one head of a page: keys and values of slot `first`, in the order of a page of `tokens`
 * tokens. */
typedef struct attend_part {
    const char *keys, *values;
    int first, end, tokens;
} attend_part;

typedef struct attend_job {
    const char *const *pages; /* first byte of each page, in order of positions */
    int n_pages;
    const attend_part
        *parts; /* [n_parts] of the last page, which hold all its visible tokens; NULL: it is not in parts */
    int n_parts;
    const char *next;          /* page that the caller reads after this job, prefetched; NULL: none */
    size_t k_offset, v_offset; /* from a page's first byte to this head's keys and values */
    int page_tokens;           /* P */
    int64_t position;          /* of the first token of pages[0], not negative */
    int k_dim, v_dim;
    int n_rows;     /* query heads of this KV head times query tokens, token-major */
    const float *q; /* [n_rows][k_dim], after rotary embedding and softmax scale; attend_bf16 rounds it to bf16 */
    const int64_t *first, *last; /* [n_rows] visible positions, both included; first > last: none */
    int64_t lo, hi;              /* positions outside [lo, hi) are visible to no row */
    const struct code_layout *key_codes, *value_codes; /* attend_codes: codes.h */
    bool exact_bf16;    /* attend_codes: an unquantized stream is stored as bf16, not as f32 */
    float softcap;      /* 0: none */
    attend_state state; /* read and written */
    void *scratch;      /* attend_scratch_bytes, 64-byte aligned */
} attend_job;

/* Enough for every level, both forms and quantized streams of any layout; grows with n_rows, k_dim and page_tokens. */
size_t attend_scratch_bytes(int n_rows, int k_dim, int v_dim, int page_tokens);

/* attend_merge(total, part): total becomes the result over both token sets; empty parts change nothing.
 *   m = max; a = exp(total.m - m), b = exp(part.m - m); l = l * a + part.l * b; acc = acc * a + part.acc * b
 * attend_finish: out[n_rows][v_dim] = acc / l; rows without visible tokens become 0. */

/* Stores tokens of one KV head into one page. */
typedef struct store_job {
    char *keys, *values;      /* this head's areas of the page */
    int page_tokens, slot, n; /* tokens go to slots slot..slot+n-1 */
    int k_dim, v_dim;
    const float *k, *v;           /* token t: k + t * k_stride, v + t * v_stride */
    ptrdiff_t k_stride, v_stride; /* floats */
} store_job;

#endif
