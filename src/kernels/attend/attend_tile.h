/* The part of attend.inc that does not depend on the instruction set: which tokens of a page are visible to a row.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_ATTEND_TILE_H
#define MN_KERNELS_ATTEND_ATTEND_TILE_H

#include <math.h>

#include "base/num.h"
#include "kernels/attend/attend.h"

/* Slots [lo, hi) of a page; empty when lo >= hi. */
typedef struct slot_range {
    int lo, hi;
} slot_range;

/* The slots visible to the row in the page whose first token has position `base` (not negative). */
static inline slot_range visible_slots(const attend_job *job, int row, int64_t base) {
    int64_t first = max_i64(job->first[row], job->lo), last = min_i64(job->last[row], job->hi - 1);
    int64_t end = base + job->page_tokens;
    slot_range none = {0, 0};
    if (first > last || first >= end || last < base) return none;
    slot_range seen = {first <= base ? 0 : (int)(first - base),
                       last >= end - 1 ? job->page_tokens : (int)(last - base) + 1};
    return seen;
}

/* The parts of a page; a page without parts is its only part. */
static inline const attend_part *page_parts(const attend_job *job, int page, attend_part *whole, int *n_parts) {
    if (job->parts && page == job->n_pages - 1) {
        *n_parts = job->n_parts;
        return job->parts;
    }
    const char *first = job->pages[page];
    *whole = (attend_part){first + job->k_offset, first + job->v_offset, 0, job->page_tokens, job->page_tokens};
    *n_parts = 1;
    return whole;
}

static inline slot_range slot_union(slot_range a, slot_range b) {
    slot_range both = {a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
    return both;
}

static inline slot_range slot_union_all(const slot_range *ranges, int n) {
    slot_range all = ranges[0];
    for (int i = 1; i < n; i++) all = slot_union(all, ranges[i]);
    return all;
}

/* Floats from one row of scratch to the next: whole cache lines, so whole vectors of any level. */
static inline size_t scratch_stride(int n) {
    return ((size_t)n + 15) / 16 * 16;
}

/* How many of the next n rows to compute together: at most 6, and 4 of 7 or 8 so that no single row remains. */
static inline int tile_rows(int n) {
    if (n <= 6) return n;
    return n <= 8 ? 4 : 6;
}

/* exp(before - now), the factor of the sums made with the previous maximum; for most pages the maximum does not
 * change. */
static inline float attend_carry(float before, float now) {
    return before == now ? 1.0f : expf(before - now);
}

#endif
