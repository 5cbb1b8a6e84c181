/* Texts of the tree by the ids of their nodes: kept on request, dropped on request, or when their time ends.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "session/prefix_disk.h"
#include "session/prefix_tree.h"

typedef struct found {
    prefix_root *root;
    node *node;
} found;

static node *node_with(node *v, uint64_t id) {
    node *at = v->id == id ? v : NULL;
    for (size_t i = 0; !at && i < v->n_children; i++) at = node_with(v->children[i], id);
    return at;
}

static mn_status find(found *f, const prefix_tree *tree, uint64_t id) {
    *f = (found){0};
    for (f->root = id ? tree->roots : NULL; f->root; f->root = f->root->next) {
        f->node = node_with(&f->root->first, id);
        if (f->node) return MN_OK;
    }
    MN_FAIL(MN_E_NOT_FOUND, "no cached prefix has the id %llu", (unsigned long long)id);
}

static prefix_entry *own_entry(const node *v) {
    prefix_entry *e = v->entries;
    while (e && !e->cache) e = e->next;
    return e;
}

/* An entry for the first n ids out of a longer one that can be truncated to them. */
static mn_status keep_beginning(prefix_entry **out, prefix_root *root, const prefix_entry *longer, const int32_t *ids,
                                size_t n) {
    kv_cache *fork = NULL;
    MN_TRY(kv_fork(&fork, longer->cache));
    mn_status status = kv_truncate(fork, (int64_t)n);
    if (status != MN_OK) {
        kv_close(&fork);
        return status;
    }
    return prefix_adopt(out, root, ids, n, longer->regime, fork, longer->owner->name);
}

mn_status prefix_id_of(uint64_t *id, prefix_root *root, const int32_t *ids, size_t n) {
    const place p = prefix_place(root, ids, n);
    prefix_entry *e = NULL, *longer = NULL;
    if (n > 0 && p.known == (int64_t)n) {
        if (!p.behind) e = own_entry(p.above);
        if (!e && root->truncates) longer = prefix_kept_of(root, p.behind ? p.behind : p.above);
    }
    if (!e && !longer) MN_FAIL(MN_E_NOT_FOUND, "the prefix of %zu tokens is not cached", n);
    if (!e) MN_TRY(keep_beginning(&e, root, longer, ids, n));
    *id = e->node->id;
    return MN_OK;
}

/* The entry of the node itself, made of a longer one where there is none. */
static mn_status entry_of(prefix_entry **out, const found *f) {
    const prefix_entry *longer = f->root->truncates ? prefix_kept_of(f->root, f->node) : NULL;
    *out = own_entry(f->node);
    if (*out) return MN_OK;
    if (!longer)
        MN_FAIL(MN_E_NOT_FOUND, "the prefix with the id %llu is not in memory", (unsigned long long)f->node->id);
    int32_t *ids = mem_alloc_raw((size_t)f->node->depth, sizeof *ids);
    if (!ids) return MN_E_NOMEM;
    for (const node *v = f->node; v->parent; v = v->parent)
        memcpy(ids + v->parent->depth, v->ids, v->n_ids * sizeof *ids);
    mn_status status = keep_beginning(out, f->root, longer, ids, (size_t)f->node->depth);
    mem_free(ids);
    return status;
}

mn_status prefix_session(mn_session **session, const prefix_tree *tree, uint64_t id) {
    found f;
    prefix_entry *e;
    *session = NULL;
    MN_TRY(find(&f, tree, id));
    MN_TRY(entry_of(&e, &f));
    return prefix_session_of(session, e);
}

/* Pinned prefixes leave half of the memory, of the limit of the prefix cache, and of their owner's quota, to others. */
static mn_status check_pin(const prefix_tree *tree, const prefix_entry *e, size_t most) {
    size_t n_bytes;
    MN_TRY(prefix_pinned_bytes(&n_bytes, tree, e, NULL));
    if (most > 0 && n_bytes > most) {
        MN_FAIL(MN_E_FULL, "pinned prefixes would have %zu bytes, allowed: half of the memory limit, %zu", n_bytes,
                most);
    }
    if (tree->limit > 0 && n_bytes > tree->limit / 2) {
        MN_FAIL(MN_E_FULL, "pinned prefixes would have %zu bytes, allowed: half of the limit of the prefix cache, %zu",
                n_bytes, tree->limit / 2);
    }
    MN_TRY(prefix_pinned_bytes(&n_bytes, tree, e, e->owner));
    if (tree->quota > 0 && n_bytes > tree->quota / 2) {
        MN_FAIL(MN_E_FULL, "pinned prefixes of this owner would have %zu bytes, allowed: half of the quota, %zu",
                n_bytes, tree->quota / 2);
    }
    return MN_OK;
}

mn_status prefix_hold(prefix_tree *tree, uint64_t id, bool pin, double ttl_ms, size_t most) {
    found f;
    prefix_entry *e;
    MN_TRY(find(&f, tree, id));
    MN_TRY(entry_of(&e, &f));
    if (pin) MN_TRY(check_pin(tree, e, most));
    e->is_pinned = pin;
    e->ttl_ms = ttl_ms;
    tree->next_end = 0;
    return MN_OK;
}

static bool is_busy(const node *v) {
    for (const prefix_entry *e = v->entries; e; e = e->next) {
        if (e->session) return true;
    }
    for (size_t i = 0; i < v->n_children; i++) {
        if (is_busy(v->children[i])) return true;
    }
    return false;
}

/* Of what is kept, in memory or in a file. */
static prefix_entry *any_entry(const node *v) {
    prefix_entry *e = v->entries;
    while (e && !e->cache && !e->path) e = e->next;
    for (size_t i = 0; !e && i < v->n_children; i++) e = any_entry(v->children[i]);
    return e;
}

mn_status prefix_drop(prefix_tree *tree, prefix_disk *disk, uint64_t id) {
    found f;
    if (disk) prefix_disk_wait_all(disk);
    MN_TRY(find(&f, tree, id));
    if (is_busy(f.node)) {
        MN_FAIL(MN_E_REFUSED, "a prefix that begins with that of the id %llu is being computed",
                (unsigned long long)id);
    }
    prefix_entry *guard = mem_alloc(1, sizeof *guard); /* else the node would be joined with the last one behind it */
    if (!guard) return MN_E_NOMEM;
    *guard = (prefix_entry){.root = f.root, .node = f.node, .next = f.node->entries};
    f.node->entries = guard;
    for (prefix_entry *e; (e = any_entry(f.node));) {
        if (e->cache)
            prefix_forget(e);
        else
            prefix_disk_remove(disk, e);
    }
    prefix_entry_drop(guard);
    return MN_OK;
}

void prefix_set_ttl(prefix_tree *tree, double ttl_ms) {
    tree->ttl_ms = ttl_ms;
}

/* When the time of an entry ends. */
static double end_of(const prefix_entry *e) {
    const double ttl = e->ttl_ms > 0 ? e->ttl_ms : e->is_pinned ? 0 : e->root->tree->ttl_ms;
    return ttl > 0 ? e->used_ms + ttl : INFINITY;
}

void prefix_expire(prefix_tree *tree) {
    const double now = clock_ms();
    if (now < tree->next_end) return;
    tree->next_end = INFINITY;
    for (size_t i = 0; i < tree->n_kept;) {
        const double end = end_of(tree->kept[i]);
        if (end <= now) {
            prefix_forget(tree->kept[i]); /* the last one takes its place */
            continue;
        }
        tree->next_end = fmin(tree->next_end, end);
        i++;
    }
}
