/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/phrases.h"

#include <string.h>

#include "base/mem.h"

static size_t longest_form(const phrase *it) {
    size_t longest = 0;
    for (size_t i = 0; i < it->forms.n; i++) {
        if (it->forms.lists[i].n > longest) longest = it->forms.lists[i].n;
    }
    return longest;
}

mn_status phrases_open(phrases *c, const phrase_list *required) {
    *c = (phrases){.required = required};
    for (size_t i = 0; i < required->n; i++) {
        size_t n = longest_form(&required->items[i]);
        if (n > c->longest) c->longest = n;
        c->n_forms += required->items[i].forms.n;
    }
    c->pending = mem_alloc(required->n, sizeof *c->pending);
    return c->pending ? MN_OK : MN_E_NOMEM;
}

void phrases_close(phrases *c) {
    mem_free(c->pending);
    *c = (phrases){0};
}

/* Whether form i of a phrase continues the first n_met tokens of another one; they are those of the text. */
static bool continues(const phrase *it, size_t i, size_t form, size_t n_met) {
    const id_list *a = &it->forms.lists[i], *b = &it->forms.lists[form];
    return a->n > n_met && memcmp(a->ids, b->ids, n_met * sizeof *a->ids) == 0;
}

/* Whether the token is the next one of a phrase, which then becomes the current one. */
static bool meet(phrases *c, size_t which, int32_t id) {
    const phrase *it = &c->required->items[which];
    size_t form = c->n_met ? c->form : 0, i = 0;
    while (i < it->forms.n && !(continues(it, i, form, c->n_met) && it->forms.lists[i].ids[c->n_met] == id)) i++;
    if (i == it->forms.n) return false;
    c->current = which;
    c->form = i;
    if (++c->n_met < it->forms.lists[i].n) return true;
    c->n_done++;
    c->n_met = 0;
    return true;
}

void phrases_add(phrases *c, int32_t id) {
    if (c->n_met > 0) {
        if (meet(c, c->current, id)) return;
        c->pending[c->n_pending++] = c->current;
        c->n_met = 0;
        return;
    }
    for (size_t i = 0; i < c->n_pending; i++) {
        if (!meet(c, c->pending[i], id)) continue;
        memmove(c->pending + i, c->pending + i + 1, (--c->n_pending - i) * sizeof *c->pending);
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
    size_t under_way = c->n_met ? c->longest - (longest_form(&c->required->items[c->current]) - c->n_met) : 0;
    return c->n_done * c->longest + under_way;
}

/* Adds the tokens that continue a phrase. */
static size_t list_next(const phrases *c, size_t which, int32_t *ids, size_t n) {
    const phrase *it = &c->required->items[which];
    size_t form = c->n_met ? c->form : 0;
    for (size_t i = 0; i < it->forms.n; i++) {
        if (continues(it, i, form, c->n_met)) ids[n++] = it->forms.lists[i].ids[c->n_met];
    }
    return n;
}

size_t phrases_list(const phrases *c, int32_t *ids) {
    size_t n = 0;
    if (c->n_met > 0) return list_next(c, c->current, ids, n);
    for (size_t i = 0; i < c->n_pending; i++) n = list_next(c, c->pending[i], ids, n);
    return n;
}
