/* Quotas: each owner's prefixes have one, and what it adds beyond that replaces its own prefixes only; all
 * together have a limit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "session/prefix_tree.h"

void prefix_set_quota(prefix_tree *tree, size_t quota) {
    tree->quota = quota;
}

void prefix_set_limit(prefix_tree *tree, size_t limit) {
    tree->limit = limit;
}

mn_status prefix_owner_join(prefix_owner **out, prefix_tree *tree, const char *name) {
    prefix_owner *o = tree->owners;
    if (!name) name = "";
    while (o && strcmp(o->name, name) != 0) o = o->next;
    if (!o) {
        o = mem_alloc(1, sizeof *o);
        char *own = o ? mem_copy_text(name, strlen(name)) : NULL;
        if (!own) {
            mem_free(o);
            return MN_E_NOMEM;
        }
        *o = (prefix_owner){.next = tree->owners, .name = own};
        tree->owners = o;
    }
    o->n_entries++;
    *out = o;
    return MN_OK;
}

void prefix_owner_leave(prefix_tree *tree, prefix_owner *left) {
    prefix_owner **link = &tree->owners;
    if (--left->n_entries > 0) return;
    while (*link != left) link = &(*link)->next;
    *link = left->next;
    mem_free(left->name);
    mem_free(left);
}

/* Of kept entries that are pinned, or of all, and of `with`. */
static mn_status bytes_of(size_t *total, const prefix_tree *tree, const prefix_owner *owner, bool only_pinned,
                          const prefix_entry *with) {
    kv_cache **caches = mem_alloc(tree->n_kept + 1, sizeof *caches);
    size_t n = 0;
    if (!caches) return MN_E_NOMEM;
    for (size_t i = 0; i < tree->n_kept; i++) {
        const prefix_entry *e = tree->kept[i];
        if (e == with || ((!owner || e->owner == owner) && (!only_pinned || e->is_pinned))) caches[n++] = e->cache;
    }
    *total = kv_bytes_together(caches, n);
    mem_free(caches);
    return MN_OK;
}

mn_status prefix_pinned_bytes(size_t *total, const prefix_tree *tree, const prefix_entry *with,
                              const prefix_owner *owner) {
    return bytes_of(total, tree, owner, true, with);
}

/* Drops prefixes of an owner (NULL: of all), `kept` last, until they have at most `limit` bytes. An eighth more than
 * that asks for is dropped, so that bytes are not counted for every prefix. */
static void keep_limit(prefix_tree *tree, prefix_owner *owner, size_t limit, size_t *most, const prefix_entry *kept) {
    enum { PART = 8 };
    if (limit == 0 || *most <= limit || bytes_of(most, tree, owner, false, NULL) != MN_OK || *most <= limit) return;
    const size_t wanted = limit - limit / PART;
    for (size_t freed; *most > wanted; *most -= freed < *most ? freed : *most) {
        if (!prefix_evict_of(tree, owner, kept, &freed) && !prefix_evict_of(tree, owner, NULL, &freed)) break;
    }
}

void prefix_keep_quota(prefix_entry *kept) {
    prefix_tree *tree = kept->root->tree;
    prefix_owner *o = kept->owner;
    o->n_entries++; /* it stays open while its last entry goes */
    keep_limit(tree, o, tree->quota, &o->most, kept);
    keep_limit(tree, NULL, tree->limit, &tree->most, kept);
    prefix_owner_leave(tree, o);
}
