/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/phrases.h"

#include <string.h>

#include "base/mem.h"

mn_status phrases_open(phrases *c, const id_lists *required) {
    *c = (phrases){.required = required};
    for (size_t i = 0; i < required->n; i++) {
        if (required->lists[i].n > c->longest) c->longest = required->lists[i].n;
    }
    c->pending = mem_alloc(required->n, sizeof *c->pending);
    return c->pending ? MN_OK : MN_E_NOMEM;
}

void phrases_close(phrases *c) {
    mem_free(c->pending);
    *c = (phrases){0};
}

/* One more token of the current phrase. */
static void meet(phrases *c) {
    if (++c->n_met < c->required->lists[c->current].n) return;
    c->n_done++;
    c->n_met = 0;
}

void phrases_add(phrases *c, int32_t id) {
    if (c->n_met > 0) {
        if (c->required->lists[c->current].ids[c->n_met] == id) {
            meet(c);
        } else {
            c->pending[c->n_pending++] = c->current;
            c->n_met = 0;
        }
        return;
    }
    for (size_t i = 0; i < c->n_pending; i++) {
        if (c->required->lists[c->pending[i]].ids[0] != id) continue;
        c->current = c->pending[i];
        memmove(c->pending + i, c->pending + i + 1, (--c->n_pending - i) * sizeof *c->pending);
        meet(c);
        return;
    }
}

void phrases_read(phrases *c, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < c->required->n; i++) c->pending[i] = i;
    c->n_pending = c->required->n;
    c->n_done = c->n_met = 0;
    for (size_t i = 0; i < n && !phrases_are_met(c); i++) phrases_add(c, ids[i]);
}

size_t phrases_bank(const phrases *c) {
    size_t under_way = c->n_met ? c->longest - (c->required->lists[c->current].n - c->n_met) : 0;
    return c->n_done * c->longest + under_way;
}

size_t phrases_list(const phrases *c, int32_t *ids) {
    if (c->n_met > 0) {
        ids[0] = c->required->lists[c->current].ids[c->n_met];
        return 1;
    }
    for (size_t i = 0; i < c->n_pending; i++) ids[i] = c->required->lists[c->pending[i]].ids[0];
    return c->n_pending;
}
