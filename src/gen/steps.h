/* Requests side by side: each may be added before any step and leaves when it ends. A step lets every request choose whose logits are
 * there, then computes the next piece of each in one pass. mn_generate, mn_generate_batch and mn_engine_step are loops over such steps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_STEPS_H
#define MN_GEN_STEPS_H

#include "gen/request.h"

typedef struct steps {
    request **requests; /* [n] not done, in the order in which they were added; borrowed */
    size_t n, capacity;
    feed **active; /* [n_active] of the next pass */
    size_t n_active, active_capacity;
    request *ended,
        **last_ended; /* those that are done, in the order in which they ended, a list; NULL: none, and nothing was added yet */
} steps;

/* Takes an open request in, with room for its feeds, so that steps do not allocate. MN_E_NOMEM. */
mn_status steps_add(steps *s, request *r);
void steps_clear(steps *s); /* the requests stay */

/* The two halves of a step. A request that ends joins the others that have; one that fails or is cancelled is stopped and leaves the
 * others alone. */
void steps_choose(steps *s);
void steps_compute(steps *s);

/* Stops one that is not done. */
void steps_stop(steps *s, request *r, mn_status status);

#endif
