/* One text of the tree, by its id: between two steps, on the thread that computes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_CACHES_H
#define MNEME_SERVE_CACHES_H

#include "server.h"

/* The text that the path names, if it is of who asks: *info without its ids. 404 otherwise. */
mn_status caches_find(mn_prefix_info *info, server *s, const job *j, refusal *why);
/* Writes a text, whosever it is. */
mn_status caches_show(bytes *out, server *s, uint64_t id);
/* Says how a failure of the library is answered. */
mn_status caches_refuse(mn_status status, refusal *why);
/* What the body, which was checked, says of pins and times. */
void caches_read_hold(job *j, const json *body);

#endif
