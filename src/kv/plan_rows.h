/* What rows behind one prompt need: the bytes of the pages in memory at each step of a run, counted without a cache.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PLAN_ROWS_H
#define MN_KV_PLAN_ROWS_H

#include "kv/kv.h"

typedef struct kv_run {
    int64_t prompt; /* tokens that the rows share; at least 1 */
    int64_t own;    /* tokens that each row adds; 0: none */
    int64_t cross;  /* tokens of entries that are written once */
    int64_t rows;   /* at least 1 */
    int chunk;      /* tokens of the prompt computed in one step */
} kv_run;

/* The largest sums, of a pool without a limit; SIZE_MAX when they cannot be counted. */
typedef struct kv_run_bytes {
    size_t prompt;   /* while the prompt is computed */
    size_t rows;     /* while the rows grow */
    size_t outgrown; /* beside them: parts of pages that are returned as they grow, whose memory may not fit what comes
                        next */
} kv_run_bytes;

/* A row never has fewer pages of its own than are counted here where rows are chosen anew, as beams are: such rows
 * share more. */
mn_status kv_plan_run(kv_run_bytes *out, const kv_spec *specs, int n_entries, const kv_options *options,
                      const kv_run *run);

#endif
