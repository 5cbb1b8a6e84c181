/* The result of a generation, built from finished requests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_RESULT_H
#define MN_GEN_RESULT_H

#include "gen/request.h"

typedef struct gen_result {
    mn_generation public; /* first member: the handle points here */
    request **requests;   /* [n_requests] owned; NULL: not opened yet */
    size_t n_requests;
    mn_sequence *sequences;   /* room for those of all requests */
    const mn_sequence **list; /* of them, in their order */
    mn_cache_info cache;      /* public.cache points here */
    float *beam_scores, *beam_logits;
} gen_result;

/* Room for the requests. *out may be set on failure too; result_close takes it. */
mn_status result_open(gen_result **out, size_t n_requests);
/* Allocates the result's arrays, so that filling them in cannot fail. */
mn_status result_reserve(gen_result *result);

/* Fills in the public part but for its seed and times, which the caller writes. MN_E_NOMEM with the scores of beams
 * alone. */
mn_status result_publish(gen_result *result);

/* Closes the requests too. */
void result_close(gen_result **result);

#endif
