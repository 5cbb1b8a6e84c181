/* What a generation gives back, made of requests that are done. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_RESULT_H
#define MN_GEN_RESULT_H

#include "gen/request.h"

typedef struct gen_result {
    mn_generation public; /* first member: the handle points here */
    request **requests;   /* [n_requests] owned; NULL: not there yet */
    size_t n_requests;
    mn_sequence *sequences; /* room for those of all requests */
    float *beam_scores, *beam_logits;
} gen_result;

/* Room for the requests. *out may be set on failure too; result_close takes it. */
mn_status result_open(gen_result **out, size_t n_requests);
/* Room for what they return, so that this does not fail at the end. */
mn_status result_reserve(gen_result *result);

/* Fills in the public part: its seed and times are the caller's to write. MN_E_NOMEM with the scores of beams alone. */
mn_status result_publish(gen_result *result);

/* Closes the requests too. */
void result_close(gen_result **result);

#endif
