/* What a request found in the prefix cache, and why no more: the members of "cache" in its answer.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_EXPLAIN_H
#define MNEME_SERVE_EXPLAIN_H

#include "job.h"

/* Without braces. first: of the generation of the job, or of its batch. */
void explain_put(bytes *out, const job *j, const mn_sequence *first);
/* With a comma, the name "cache" and braces; nothing unless the request has cache.explain. */
void explain_put_object(bytes *out, const job *j, const mn_sequence *first);

#endif
