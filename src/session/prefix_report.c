/* SPDX-License-Identifier: Apache-2.0 */
#include "session/prefix_tree.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

mn_status prefix_bytes(size_t *total, const prefix_tree *tree) {
    kv_cache **caches = mem_alloc(tree->n_kept + 1, sizeof *caches);
    *total = 0;
    if (!caches) return MN_E_NOMEM;
    for (size_t i = 0; i < tree->n_kept; i++) caches[i] = tree->kept[i]->cache;
    *total = kv_bytes_together(caches, tree->n_kept);
    mem_free(caches);
    return MN_OK;
}

/* ---- why a match ended ---- */

void prefix_remember_evicted(const prefix_entry *e) {
    prefix_tree *tree = e->root->tree;
    evicted_prefix *evicted = &tree->evicted[tree->n_evicted % MOST_EVICTED];
    const size_t n = (size_t)min_i64(e->node->depth, MOST_EVICTED_IDS);
    int32_t *ids = mem_alloc_raw(n, sizeof *ids);
    if (!ids) return;
    for (const node *v = e->node; v->parent; v = v->parent) {
        const size_t from = (size_t)v->parent->depth;
        if (from < n) memcpy(ids + from, v->ids, (size_t)min_i64((int64_t)(n - from), (int64_t)v->n_ids) * sizeof *ids);
    }
    mem_free(evicted->ids);
    *evicted = (evicted_prefix){e->root, ids, n};
    tree->n_evicted++;
}

static bool was_evicted(const prefix_root *root, const int32_t *ids, size_t n, size_t found) {
    for (size_t i = 0; i < MOST_EVICTED; i++) {
        const evicted_prefix *evicted = &root->tree->evicted[i];
        if (evicted->root == root && n > found && evicted->n > found &&
            memcmp(evicted->ids, ids, (found + 1) * sizeof *ids) == 0)
            return true;
    }
    return false;
}

/* Why a prefix of another root, which begins with more of the ids, is not found. Of other salts only the empty one is
 * reported: any request may use it, and what the others hold is private. */
static const char *elsewhere(const prefix_root *root, const int32_t *ids, size_t n, int64_t found) {
    const char *why = NULL;
    for (const prefix_root *r = root->tree->roots; r; r = r->next) {
        const bool is_salt = strcmp(r->salt, root->salt) == 0,
                   is_strategy = prefix_root_has(r, root->specs, root->n_specs, &root->options);
        if (r == root || is_salt == is_strategy || (!is_salt && *r->salt)) continue;
        if (prefix_place(r, ids, n).known <= found) continue;
        if (is_strategy) return "salt";
        why = "strategy";
    }
    return why;
}

prefix_end_reason prefix_explain(const prefix_root *root, const int32_t *ids, size_t n, const prefix_match *m) {
    const prefix_end_reason end = {"end_of_prompt", -1};
    if (m->now >= (int64_t)n) return end;
    if (m->known > m->now) return (prefix_end_reason){root->truncates ? "not_in_memory" : "strategy", -1};
    const char *why = was_evicted(root, ids, n, (size_t)m->now) ? "evicted" : elsewhere(root, ids, n, m->now);
    if (why) return (prefix_end_reason){why, -1};
    const place p = prefix_place(root, ids, n);
    if (p.behind) return (prefix_end_reason){"different_token", p.behind->ids[p.n_into]};
    if (p.above->n_children) return (prefix_end_reason){"different_token", p.above->children[0]->ids[0]};
    return (prefix_end_reason){"nothing_cached", -1};
}

/* ---- the tree ---- */

typedef struct walk {
    bool (*visit)(void *user, const mn_prefix_info *info);
    void *user;
    size_t n; /* visited */
    double now;
} walk;

/* As deep as prefixes diverge. */
static bool visit_below(walk *w, const prefix_root *root, const node *v, ptrdiff_t index) {
    for (size_t i = 0; i < v->n_children; i++) {
        const node *child = v->children[i];
        mn_prefix_info info = {.size = sizeof info,
                               .index = w->n++,
                               .parent = index,
                               .salt = root->salt,
                               .ids = child->ids,
                               .n_ids = child->n_ids,
                               .n_tokens = (size_t)child->depth,
                               .id = child->id,
                               .parent_id = v->id};
        for (const prefix_entry *e = child->entries; e; e = e->next) {
            info.is_running = info.is_running || e->session;
            info.has_file = info.has_file || e->path;
            if (!e->cache) continue;
            info.is_kept = true;
            info.bytes = kv_bytes(e->cache);
            info.n_hits = e->hits;
            info.unused_ms = w->now - e->used_ms;
            info.unique_bytes = kv_unique_bytes(e->cache);
            info.is_pinned = e->is_pinned;
            info.ttl_ms = e->ttl_ms > 0 ? e->ttl_ms : e->is_pinned ? 0 : root->tree->ttl_ms;
        }
        const ptrdiff_t own = (ptrdiff_t)info.index;
        if (!w->visit(w->user, &info) || !visit_below(w, root, child, own)) return false;
    }
    return true;
}

void prefix_visit(const prefix_tree *tree, bool (*visit)(void *user, const mn_prefix_info *info), void *user) {
    walk w = {.visit = visit, .user = user, .now = clock_ms()};
    for (const prefix_root *root = tree->roots; root && visit_below(&w, root, &root->first, -1); root = root->next) {}
}
