/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/constraints.h"

#include <string.h>

#include "base/mem.h"

mn_status constraints_open(constraints *c, const id_lists *phrases) {
    *c = (constraints){.phrases = phrases};
    for (size_t i = 0; i < phrases->n; i++) {
        if (phrases->lists[i].n > c->longest) c->longest = phrases->lists[i].n;
    }
    c->pending = mem_alloc(phrases->n, sizeof *c->pending);
    return c->pending ? MN_OK : MN_E_NOMEM;
}

void constraints_close(constraints *c) {
    mem_free(c->pending);
    *c = (constraints){0};
}

/* One token more of the phrase under way. */
static void meet(constraints *c) {
    if (++c->n_met < c->phrases->lists[c->current].n) return;
    c->n_done++;
    c->n_met = 0;
}

void constraints_add(constraints *c, int32_t id) {
    if (c->n_met > 0) {
        if (c->phrases->lists[c->current].ids[c->n_met] == id) {
            meet(c);
        } else {
            c->pending[c->n_pending++] = c->current;
            c->n_met = 0;
        }
        return;
    }
    for (size_t i = 0; i < c->n_pending; i++) {
        if (c->phrases->lists[c->pending[i]].ids[0] != id) continue;
        c->current = c->pending[i];
        memmove(c->pending + i, c->pending + i + 1, (--c->n_pending - i) * sizeof *c->pending);
        meet(c);
        return;
    }
}

void constraints_read(constraints *c, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < c->phrases->n; i++) c->pending[i] = i;
    c->n_pending = c->phrases->n;
    c->n_done = c->n_met = 0;
    for (size_t i = 0; i < n && !constraints_are_met(c); i++) constraints_add(c, ids[i]);
}

size_t constraints_bank(const constraints *c) {
    size_t under_way = c->n_met ? c->longest - (c->phrases->lists[c->current].n - c->n_met) : 0;
    return c->n_done * c->longest + under_way;
}

size_t constraints_list(const constraints *c, int32_t *ids) {
    if (c->n_met > 0) {
        ids[0] = c->phrases->lists[c->current].ids[c->n_met];
        return 1;
    }
    for (size_t i = 0; i < c->n_pending; i++) ids[i] = c->phrases->lists[c->pending[i]].ids[0];
    return c->n_pending;
}
