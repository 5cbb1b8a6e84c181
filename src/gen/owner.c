/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/owner.h"

#include <string.h>

#include "base/mem.h"

/* What the one that was served least has had, of those with requests. -1: there are none. */
static double least_served(const owners *all) {
    double least = -1;
    for (const owner *o = all->first; o; o = o->next) {
        if (o->n_requests > 0 && (least < 0 || o->served < least)) least = o->served;
    }
    return least;
}

mn_status owner_of(owner **out, owners *all, const char *name) {
    const double least = least_served(all);
    owner *o = all->first;
    if (!name) name = "";
    while (o && strcmp(o->name, name) != 0) o = o->next;
    if (!o) {
        o = mem_alloc(1, sizeof *o);
        char *own = o ? mem_copy_text(name, strlen(name)) : NULL;
        if (!own) {
            mem_free(o);
            return MN_E_NOMEM;
        }
        *o = (owner){.next = all->first, .name = own};
        all->first = o;
    }
    /* Who comes back has saved nothing up. */
    if (o->n_requests == 0 && o->served < least) o->served = least;
    o->n_requests++;
    *out = o;
    return MN_OK;
}

void owner_leave(owners *all, owner *left) {
    left->n_requests--;
    const double least = least_served(all);
    for (owner **link = &all->first; *link;) {
        owner *o = *link;
        if (o->n_requests > 0 || (least >= 0 && o->served > least)) {
            link = &o->next;
            continue;
        }
        *link = o->next;
        mem_free(o->name);
        mem_free(o);
    }
}

void owners_clear(owners *all) {
    for (owner *o = all->first, *next; o; o = next) {
        next = o->next;
        mem_free(o->name);
        mem_free(o);
    }
    all->first = NULL;
}
