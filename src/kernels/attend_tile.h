/* What attend.inc needs that does not depend on the instruction set: which tokens of a page a row sees.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_TILE_H
#define MN_KERNELS_ATTEND_TILE_H

#include <math.h>

#include "base/num.h"
#include "kernels/attend.h"

/* Slots lo up to but not including hi of a page; empty when lo >= hi. */
typedef struct slot_range {
    int lo, hi;
} slot_range;

/* The slots that row sees of the page whose first token stands at `base` (which is not negative). */
static inline slot_range visible_slots(const attend_job *job, int row, int64_t base) {
    int64_t first = max_i64(job->first[row], job->lo), last = min_i64(job->last[row], job->hi - 1);
    int64_t end = base + job->page_tokens;
    slot_range none = {0, 0};
    if (first > last || first >= end || last < base) return none;
    slot_range seen = {first <= base ? 0 : (int)(first - base),
                       last >= end - 1 ? job->page_tokens : (int)(last - base) + 1};
    return seen;
}

/* A page as parts: its own, or itself as the only one. */
static inline const attend_part *page_parts(const attend_job *job, int page, attend_part *whole,
                                            int *n_parts) {
    if (job->parts && page == job->n_pages - 1) {
        *n_parts = job->n_parts;
        return job->parts;
    }
    const char *first = job->pages[page];
    *whole =
        (attend_part){first + job->k_offset, first + job->v_offset, 0, job->page_tokens, job->page_tokens};
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

/* How many of the next n rows to compute together: at most 6, and no single row left over from 7 or 8. */
static inline int tile_rows(int n) {
    if (n <= 6) return n;
    return n <= 8 ? 4 : 6;
}

/* exp(before - now), the factor of what was summed under the largest score so far; most pages bring no larger
 * one. */
static inline float attend_carry(float before, float now) {
    return before == now ? 1.0f : expf(before - now);
}

#endif
