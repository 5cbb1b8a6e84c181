/* Whose requests they are: of two owners, the request of the one that was served less starts first, so many requests of
 * one do not keep the others waiting (virtual token counters: Sheng et al., "Fairness in Serving Large Language
 * Models", 2024). Under the engine's lock.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_OWNER_H
#define MN_GEN_OWNER_H

#include "base/status.h"

typedef struct owner {
    struct owner *next;
    char *name;
    size_t n_requests; /* that have not ended */
    double served;     /* tokens computed, but at least as much as that of the others when its requests began */
} owner;

typedef struct owners {
    owner *first;
} owners;

/* That of a new request; name: NULL is "". MN_E_NOMEM. */
mn_status owner_of(owner **out, owners *all, const char *name);
/* One of its requests has ended. Owners that others have overtaken are forgotten. */
void owner_leave(owners *all, owner *o);

void owners_clear(owners *all);

#endif
