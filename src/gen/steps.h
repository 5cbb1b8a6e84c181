/* Requests computed together: each may be added before any step and is removed when it ends. In a step every request
 * whose logits are computed chooses its tokens; then one pass computes the next feeds of all. mn_generate,
 * mn_generate_batch and mn_engine_step are loops over such steps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_STEPS_H
#define MN_GEN_STEPS_H

#include "gen/pace.h"
#include "gen/request.h"

typedef struct steps {
    request **requests; /* [n] not done, in the order in which they were added; borrowed */
    size_t n, capacity;
    request **choosing; /* [capacity] scratch: those that choose on several threads */
    feed **active;      /* [n_active] of the next pass */
    size_t n_active, active_capacity;
    request *ended, **last_ended; /* finished ones, a list in the order in which they ended; NULL: none, and
                                     nothing was added yet */
    pace pace;
} steps;

/* Adds an open request, with room for its feeds, so that steps do not allocate. MN_E_NOMEM. */
mn_status steps_add(steps *s, request *r);
void steps_clear(steps *s); /* the requests stay */

/* Removes one that is not finished. */
void steps_remove(steps *s, const request *r);

/* The two halves of a step. A request that ends is moved to the list of finished ones; one that fails or is cancelled
 * is stopped without affecting others. */
void steps_choose(steps *s);
void steps_compute(steps *s);

/* The parts of steps_compute, for callers that handle failures themselves: the pass, whose status is that of the
 * requests that failed (request_has_failed); stopping these; the end, which is always called. */
mn_status steps_pass(steps *s);
void steps_stop_failed(steps *s, mn_status status);
void steps_end_pass(steps *s);

/* Takes the requests that have ended since the last call, a list by `next`; and adds one that ended elsewhere. */
request *steps_take_ended(steps *s);
void steps_give_ended(steps *s, request *r);

/* Stops one that is not finished. */
void steps_stop(steps *s, request *r, mn_status status);

#endif
