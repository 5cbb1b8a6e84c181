/* Whose texts are kept: each owner's have a quota, and what it adds beyond that replaces its own texts only.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "session/prefix_tree.h"

void prefix_set_quota(prefix_tree *tree, size_t quota) {
    tree->quota = quota;
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

/* An eighth more than the quota asks for is dropped, so that bytes are not counted for every text. */
void prefix_keep_quota(prefix_entry *kept) {
    enum { PART = 8 };
    prefix_tree *tree = kept->root->tree;
    prefix_owner *o = kept->owner;
    if (tree->quota == 0 || o->most <= tree->quota || bytes_of(&o->most, tree, o, false, NULL) != MN_OK) return;
    if (o->most <= tree->quota) return;
    const size_t wanted = tree->quota - tree->quota / PART;
    o->n_entries++; /* it stays open while its last entry goes */
    for (size_t freed; o->most > wanted; o->most -= freed < o->most ? freed : o->most) {
        if (!prefix_evict_of(tree, o, kept, &freed) && !prefix_evict_of(tree, o, NULL, &freed)) break;
    }
    prefix_owner_leave(tree, o);
}
