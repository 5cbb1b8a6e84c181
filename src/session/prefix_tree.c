/* SPDX-License-Identifier: Apache-2.0 */
#include "session/prefix_tree.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/num.h"

enum { MOST_TRIED = 8 }; /* entries behind a prefix that are tried, when none can be truncated to it */

mn_status prefix_open(prefix_tree **out) {
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    (*out)->seed = hash_seed();
    return MN_OK;
}

/* ---- roots ---- */

static bool shares_nothing(const mn_session *s, const kv_spec *specs, int n) {
    bool shares = s->plan.self.keeps && !s->plan.self.preallocates && !*s->original_implementation;
    for (int i = 0; i < n; i++) shares = shares && !specs[i].flush && !specs[i].write_once;
    return !shares;
}

bool prefix_root_has(const prefix_root *root, const kv_spec *specs, int n, const kv_options *options) {
    if (root->n_specs != n || root->options.page_tokens != options->page_tokens) return false;
    for (int i = 0; i < n; i++) {
        if (!kv_spec_equal(&root->specs[i], &specs[i]) || root->specs[i].calibration != specs[i].calibration)
            return false;
    }
    return true;
}

static mn_status root_open(prefix_root **out, prefix_tree *tree, const char *salt, kv_spec *specs, int n,
                           const kv_options *options) {
    prefix_root *root = mem_alloc(1, sizeof *root);
    char *own = root ? mem_copy_text(salt, strlen(salt)) : NULL;
    *out = root;
    if (!own) {
        mem_free(root);
        return MN_E_NOMEM;
    }
    *root = (prefix_root){.tree = tree,
                          .next = tree->roots,
                          .salt = own,
                          .specs = specs,
                          .n_specs = n,
                          .options = *options,
                          .truncates = true};
    for (int i = 0; i < n; i++) {
        bool is_exact = !kv_form_is_coded(specs[i].key) && !kv_form_is_coded(specs[i].value);
        root->truncates = root->truncates && specs[i].kind == KV_PAGES && specs[i].window == 0 && is_exact;
    }
    tree->roots = root;
    return MN_OK;
}

static void root_free(prefix_root *root) {
    assert(root->first.n_children == 0 && !root->first.entries);
    for (evicted_prefix *evicted = root->tree->evicted; evicted < root->tree->evicted + MOST_EVICTED; evicted++) {
        if (evicted->root != root) continue;
        mem_free(evicted->ids);
        *evicted = (evicted_prefix){0};
    }
    mem_free(root->first.children);
    mn_session_close(&root->empty);
    mem_free(root->salt);
    mem_free(root->specs);
    mem_free(root);
}

/* Closes roots that nothing needs any more: salts come from outside, and may all be different. */
static void close_unused(prefix_tree *tree) {
    for (prefix_root **link = &tree->roots, *root; (root = *link);) {
        if (root->n_users > 0 || root->first.n_children > 0 || root->first.entries) {
            link = &root->next;
            continue;
        }
        *link = root->next;
        root_free(root);
    }
}

void prefix_root_use(prefix_root *root) {
    root->n_users++;
}

void prefix_root_release(prefix_root **root) {
    if (*root) (*root)->n_users--;
    *root = NULL;
}

mn_status prefix_open_empty(prefix_root *root, const mn_session *like) {
    return root->empty ? MN_OK : session_open_empty(&root->empty, like);
}

mn_status prefix_root_of(prefix_root **out, prefix_tree *tree, const mn_session *s, const char *salt) {
    kv_spec *specs = NULL;
    int n = 0;
    *out = NULL;
    if (!salt) salt = "";
    MN_TRY(session_specs(&specs, &n, s));
    if (shares_nothing(s, specs, n)) {
        mem_free(specs);
        return MN_OK;
    }
    prefix_root *root = tree->roots;
    while (root && (strcmp(root->salt, salt) != 0 || !prefix_root_has(root, specs, n, &s->plan.options)))
        root = root->next;
    mn_status status = MN_OK;
    if (!root) {
        close_unused(tree);
        status = root_open(&root, tree, salt, specs, n, &s->plan.options);
        if (status == MN_OK) specs = NULL; /* the root's */
    }
    mem_free(specs);
    *out = root;
    return status;
}

bool prefix_needs_entries(const prefix_root *root) {
    return !root->truncates;
}

/* ---- nodes ---- */

/* Where the child whose ids begin with `id` is, or belongs. */
static size_t child_at(const node *v, int32_t id) {
    size_t low = 0, high = v->n_children;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->children[middle]->ids[0] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static node *child_of(const node *v, int32_t id) {
    size_t at = child_at(v, id);
    return at < v->n_children && v->children[at]->ids[0] == id ? v->children[at] : NULL;
}

static size_t common(const int32_t *a, const int32_t *b, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n && memcmp(a + i, b + i, 16 * sizeof *a) == 0; i += 16) {}
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static void node_free(node *v) {
    mem_free(v->children);
    mem_free(v->ids);
    mem_free(v);
}

/* The n-th number of a secret order of those from 1 to 2^52 - 1: each once, so that it does not reveal how many
 * prefixes there are. Four rounds of a Feistel network. */
static uint64_t next_id(prefix_tree *tree) {
    enum { HALF = 26, N_ROUNDS = 4 };
    const uint64_t below = (UINT64_C(1) << HALF) - 1;
    uint64_t left, right;
    do {
        const uint64_t n = ++tree->n_nodes;
        left = (n >> HALF) & below;
        right = n & below;
        for (uint64_t i = 0; i < N_ROUNDS; i++) {
            const uint64_t mixed = left ^ (hash_seeded(&right, sizeof right, tree->seed + i) & below);
            left = right;
            right = mixed;
        }
    } while (!(left | right));
    return left << HALF | right;
}

static node *node_new(prefix_tree *tree, node *parent, const int32_t *ids, size_t n) {
    node *v = mem_alloc(1, sizeof *v);
    if (!v) return NULL;
    *v = (node){.parent = parent,
                .ids = mem_alloc_raw(n, sizeof *ids),
                .n_ids = n,
                .depth = parent->depth + (int64_t)n,
                .id = next_id(tree)};
    if (!v->ids) {
        mem_free(v);
        return NULL;
    }
    memcpy(v->ids, ids, n * sizeof *ids);
    return v;
}

/* There is room for it. */
static void put_child(node *parent, node *child) {
    size_t at = child_at(parent, child->ids[0]);
    memmove(parent->children + at + 1, parent->children + at, (parent->n_children - at) * sizeof *parent->children);
    parent->children[at] = child;
    parent->n_children++;
}

static bool make_room(node *v) {
    return mem_grow(&v->children, &v->capacity, v->n_children + 1, sizeof *v->children) == MN_OK;
}

/* A node on the way to v, which keeps the ids from n on. NULL: no memory. */
static node *split(prefix_tree *tree, node *v, size_t n) {
    node *upper = node_new(tree, v->parent, v->ids, n);
    if (!upper || !make_room(upper)) {
        if (upper) node_free(upper);
        return NULL;
    }
    v->parent->children[child_at(v->parent, v->ids[0])] = upper;
    memmove(v->ids, v->ids + n, (v->n_ids - n) * sizeof *v->ids);
    v->n_ids -= n;
    v->parent = upper;
    put_child(upper, v);
    return upper;
}

/* Whether a node without entries stands only between its parent and one child, to which its ids then belong. */
static void join(node *v) {
    if (!v->parent || v->entries || v->n_children != 1) return;
    node *child = v->children[0];
    int32_t *ids = mem_alloc_raw(v->n_ids + child->n_ids, sizeof *ids);
    if (!ids) return; /* it does no harm where it is */
    memcpy(ids, v->ids, v->n_ids * sizeof *ids);
    memcpy(ids + v->n_ids, child->ids, child->n_ids * sizeof *ids);
    v->parent->children[child_at(v->parent, v->ids[0])] = child;
    mem_free(child->ids);
    child->ids = ids;
    child->n_ids += v->n_ids;
    child->parent = v->parent;
    node_free(v);
}

/* Removes a node that nothing needs any more. */
static void prune(node *v) {
    while (v->parent && !v->entries && v->n_children == 0) {
        node *parent = v->parent;
        size_t at = child_at(parent, v->ids[0]);
        parent->n_children--;
        memmove(parent->children + at, parent->children + at + 1, (parent->n_children - at) * sizeof *parent->children);
        node_free(v);
        v = parent;
    }
    join(v);
}

place prefix_place(const prefix_root *root, const int32_t *ids, size_t n) {
    const node *v = &root->first;
    for (;;) {
        size_t at = (size_t)v->depth;
        node *next = at < n ? child_of(v, ids[at]) : NULL;
        if (!next) return (place){(node *)v, NULL, 0, v->depth};
        size_t most = next->n_ids < n - at ? next->n_ids : n - at, same = common(next->ids, ids + at, most);
        if (same < next->n_ids) return (place){(node *)v, next, same, v->depth + (int64_t)same};
        v = next;
    }
}

/* The node of a prefix. NULL: no memory. */
static node *node_of(prefix_root *root, const int32_t *ids, size_t n) {
    place p = prefix_place(root, ids, n);
    node *v = p.above;
    if (p.behind) v = split(root->tree, p.behind, p.n_into);
    if (!v || (size_t)v->depth == n) return v;
    node *leaf = make_room(v) ? node_new(root->tree, v, ids + v->depth, n - (size_t)v->depth) : NULL;
    if (leaf)
        put_child(v, leaf);
    else
        prune(v);
    return leaf;
}

/* ---- entries ---- */

static const kv_cache *cache_of(const prefix_entry *e) {
    return e->session ? e->session->cache : e->cache;
}

/* How many of the first n tokens of its prefix a fork of it can begin with: now, and when the prefix is computed. */
static int64_t serves(const prefix_entry *e, int64_t n, bool later) {
    const kv_cache *cache = cache_of(e);
    if (e->path) return 0;
    if (!e->session) return kv_shareable(cache, min_i64(n, e->node->depth));
    bool is_own = !*e->session->original_implementation; /* it has the strategy that it was announced with */
    if (later && is_own && e->root->truncates) return min_i64(n, e->node->depth);
    return is_own && cache ? kv_shareable(cache, min_i64(n, e->node->depth)) : 0;
}

/* The same for a file, which is not open: a prefix that cannot be truncated is taken whole. */
static int64_t file_serves(const prefix_entry *e, int64_t n) {
    return e->node->depth <= n ? e->node->depth : e->root->truncates ? n : 0;
}

static void consider(prefix_match *m, const prefix_entry *e, int64_t n) {
    if (e->path) {
        int64_t filed = file_serves(e, n);
        if (filed > m->filed) {
            m->filed = filed;
            m->file = e;
        }
        return;
    }
    int64_t now = serves(e, n, false), later = serves(e, n, true);
    if (now > m->now) {
        m->now = now;
        m->entry = e;
    }
    if (later > m->later) m->later = later;
}

/* Entries of the node and of those behind it, until one has all n or enough were tried. */
static int consider_behind(prefix_match *m, const node *v, int64_t n, int tried) {
    for (const prefix_entry *e = v->entries; e && tried < MOST_TRIED && m->now < n; e = e->next, tried++)
        consider(m, e, n);
    for (size_t i = 0; i < v->n_children && tried < MOST_TRIED && m->now < n; i++)
        tried = consider_behind(m, v->children[i], n, tried);
    return tried;
}

prefix_match prefix_find(const prefix_root *root, const int32_t *ids, size_t n) {
    place p = prefix_place(root, ids, n);
    prefix_match m = {.known = p.known};
    const node *v = p.behind ? p.behind : p.above;
    if (p.known > 0) consider_behind(&m, v, p.known, 0);
    for (v = p.above; v->parent && v->depth > m.now; v = v->parent) {
        for (const prefix_entry *e = v->entries; e; e = e->next) consider(&m, e, v->depth);
    }
    if (m.filed <= m.now) {
        m.filed = 0;
        m.file = NULL;
    }
    if (m.later < m.now) m.later = m.now;
    if (!root->truncates && m.known > m.later) m.branch = m.known;
    return m;
}

/* The value of an entry is the cost of computing the prefix again, divided by its bytes, and more the later it was
 * used: by what the last one was worth that was dropped. A token costs one at the beginning and twice as much behind
 * CONTEXT others, by attention. */
static void mark_used(prefix_entry *e) {
    enum { CONTEXT = 4096 };
    prefix_tree *tree = e->root->tree;
    if (!e->cache) return;
    const double n = (double)e->node->depth, size = (double)kv_bytes(e->cache);
    const double value = n * (1 + n / (2 * CONTEXT)) / (size > 0 ? size : 1);
    e->used = ++tree->uses;
    e->used_ms = clock_ms();
    e->worth = tree->clock + value;
    e->own_worth = e->owner->clock + value;
}

void prefix_touch(const prefix_match *m) {
    if (m->entry) mark_used((prefix_entry *)m->entry);
}

mn_status prefix_begin(prefix_root *root, mn_session *s, const int32_t *ids, const prefix_match *m) {
    prefix_entry *e = (prefix_entry *)m->entry;
    assert(s->n_ids == 0 && kv_length(s->cache) == 0);
    if (!e) return MN_OK;
    assert(e->root == root);
    (void)root;
    MN_TRY(mem_grow(&s->ids, &s->ids_capacity, (size_t)m->now, sizeof *s->ids));
    MN_TRY(kv_refork(&s->cache, cache_of(e)));
    mn_status status = kv_truncate(s->cache, m->now);
    assert(status == MN_OK);
    if (status != MN_OK) return status;
    memcpy(s->ids, ids, (size_t)m->now * sizeof *s->ids);
    s->n_ids = (size_t)m->now;
    s->regime = e->session ? e->session->regime : e->regime;
    s->has_logits = false;
    e->hits++;
    mark_used(e);
    return MN_OK;
}

void prefix_resume(prefix_root *root, mn_session *s) {
    if (s->n_ids < 2 || kv_length(s->cache) > 0 || *s->original_implementation) return;
    prefix_match m = prefix_find(root, s->ids, s->n_ids - 1);
    const prefix_entry *e = m.entry;
    if (!e || (e->session ? e->session->regime : e->regime) != s->regime) return;
    if (kv_refork(&s->cache, cache_of(e)) != MN_OK) return;
    if (kv_truncate(s->cache, m.now) != MN_OK) kv_truncate(s->cache, 0);
    prefix_touch(&m);
}

prefix_entry *prefix_entry_new(prefix_root *root, const int32_t *ids, size_t n) {
    prefix_entry *e = mem_alloc(1, sizeof *e);
    if (!e) return NULL;
    *e = (prefix_entry){.root = root, .node = node_of(root, ids, n)};
    if (!e->node) {
        mem_free(e);
        return NULL;
    }
    e->next = e->node->entries;
    e->node->entries = e;
    return e;
}

void prefix_entry_drop(prefix_entry *e) {
    prefix_entry **link = &e->node->entries;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    prune(e->node);
    kv_close(&e->cache);
    if (e->owner) prefix_owner_leave(e->root->tree, e->owner);
    mem_free(e->path);
    mem_free(e);
}

mn_status prefix_announce(prefix_entry **entry, prefix_root *root, const mn_session *s, const int32_t *ids, size_t n) {
    *entry = prefix_entry_new(root, ids, n);
    if (!*entry) return MN_E_NOMEM;
    (*entry)->session = s;
    return MN_OK;
}

void prefix_end(prefix_entry **entry) {
    if (*entry) prefix_entry_drop(*entry);
    *entry = NULL;
}

/* ---- kept entries ---- */

void prefix_forget(prefix_entry *e) {
    prefix_tree *tree = e->root->tree;
    tree->kept[e->index] = tree->kept[--tree->n_kept];
    tree->kept[e->index]->index = e->index;
    prefix_entry_drop(e);
}

/* Drops entries that a longer one makes superfluous because it can be truncated to their prefixes, but not those whose
 * ids were requested. */
static void forget_covered(const prefix_entry *longer) {
    if (!longer->root->truncates) return;
    for (node *v = longer->node->parent; v && v->parent;) {
        prefix_entry *e = v->entries;
        while (e && (!e->cache || e->is_pinned || e->ttl_ms > 0)) e = e->next;
        if (!e) {
            v = v->parent;
            continue;
        }
        prefix_forget(e);
        v = longer->node->parent; /* the tree has changed: from the beginning */
    }
}

prefix_entry *prefix_kept_of(const prefix_root *root, const node *v) {
    for (prefix_entry *e = v->entries; e; e = e->next) {
        if (e->cache) return e;
    }
    for (size_t i = 0; root->truncates && i < v->n_children; i++) {
        prefix_entry *e = prefix_kept_of(root, v->children[i]);
        if (e) return e;
    }
    return NULL;
}

/* The same for the prefix of a place. */
static prefix_entry *kept_for(const prefix_root *root, const place *p) {
    if (p->behind && !root->truncates) return NULL;
    return prefix_kept_of(root, p->behind ? p->behind : p->above);
}

void prefix_keep(prefix_root *root, const mn_session *s, const char *owner) {
    int64_t n = s->cache ? kv_length(s->cache) : 0;
    if (n == 0 || *s->original_implementation || n > (int64_t)s->n_ids) return;
    place p = prefix_place(root, s->ids, (size_t)n);
    prefix_entry *same = p.known < n ? NULL : kept_for(root, &p);
    if (same) {
        mark_used(same);
        return;
    }
    kv_cache *fork = NULL;
    if (prefix_open_empty(root, s) != MN_OK || kv_fork(&fork, s->cache) != MN_OK) return;
    prefix_entry *kept;
    if (prefix_adopt(&kept, root, s->ids, (size_t)n, s->regime, fork, owner) == MN_OK) prefix_keep_quota(kept);
}

mn_status prefix_adopt(prefix_entry **out, prefix_root *root, const int32_t *ids, size_t n, int64_t regime,
                       kv_cache *cache, const char *name) {
    prefix_tree *tree = root->tree;
    prefix_entry *e = NULL;
    prefix_owner *owner = NULL;
    mn_status status = mem_grow(&tree->kept, &tree->capacity, tree->n_kept + 1, sizeof *tree->kept);
    if (status == MN_OK) status = prefix_owner_join(&owner, tree, name);
    if (status == MN_OK && !(e = prefix_entry_new(root, ids, n))) {
        prefix_owner_leave(tree, owner);
        status = MN_E_NOMEM;
    }
    *out = e;
    if (!e) {
        kv_close(&cache);
        return status;
    }
    e->cache = cache;
    e->owner = owner;
    owner->most += kv_bytes(cache);
    tree->most += kv_bytes(cache);
    e->regime = regime;
    e->index = tree->n_kept;
    tree->kept[tree->n_kept++] = e;
    mark_used(e);
    tree->next_end = 0;
    forget_covered(e);
    return MN_OK;
}

mn_status prefix_add(uint64_t *id, prefix_root *root, const mn_session *s, const char *owner) {
    const size_t quota = root->tree->quota, limit = root->tree->limit, n_bytes = s->cache ? kv_bytes(s->cache) : 0;
    const int64_t n = s->cache ? kv_length(s->cache) : 0;
    if (n == 0 || n > (int64_t)s->n_ids) MN_FAIL(MN_E_ARG, "the session has no tokens in its cache");
    if (quota > 0 && n_bytes > quota)
        MN_FAIL(MN_E_FULL, "the prefix has %zu bytes, allowed: the quota of its owner, %zu", n_bytes, quota);
    if (limit > 0 && n_bytes > limit)
        MN_FAIL(MN_E_FULL, "the prefix has %zu bytes, allowed: the limit of the prefix cache, %zu", n_bytes, limit);
    prefix_keep(root, s, owner);
    mn_status status = prefix_id_of(id, root, s->ids, (size_t)n);
    return status == MN_E_NOT_FOUND ? status_fail(MN_E_NOMEM, "there is no memory for a prefix of %zu bytes", n_bytes)
                                    : status;
}

mn_status prefix_session_of(mn_session **out, const prefix_entry *kept) {
    const size_t n = (size_t)kept->node->depth;
    int32_t *ids = mem_alloc_raw(n, sizeof *ids);
    *out = NULL;
    if (!ids) return MN_E_NOMEM;
    for (const node *v = kept->node; v->parent; v = v->parent)
        memcpy(ids + v->parent->depth, v->ids, v->n_ids * sizeof *ids);
    mn_status status = session_open_over(out, kept->root->empty, ids, n, kept->regime, kept->cache);
    mem_free(ids);
    return status;
}

static bool has_file(const prefix_root *root, const node *v) {
    for (const prefix_entry *e = v->entries; e; e = e->next) {
        if (e->path) return true;
    }
    for (size_t i = 0; root->truncates && i < v->n_children; i++) {
        if (has_file(root, v->children[i])) return true;
    }
    return false;
}

int64_t prefix_tokens_on_disk(const prefix_root *root, const node *v) {
    while (v->parent && !has_file(root, v)) v = v->parent;
    return v->depth;
}

/* Drops the newer half of a cached prefix: fewer prompts begin with it than with the older one. False: it is too short
 * for that, or there is no memory. */
static bool shorten(prefix_entry *e) {
    const int64_t page = e->root->options.page_tokens, n = e->node->depth / 2 / page * page;
    if (!e->root->truncates || n == 0 || kv_truncate(e->cache, n) != MN_OK) return false;
    node *old = e->node, *v = old;
    while (v->parent->depth >= n) v = v->parent;
    if (v->depth > n) v = split(e->root->tree, v, (size_t)(n - v->parent->depth));
    if (!v) return false;
    prefix_entry **link = &old->entries;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    e->node = v;
    e->next = v->entries;
    v->entries = e;
    prune(old);
    const uint64_t used = e->used;
    mark_used(e);
    e->used = used;
    return true;
}

static bool is_worth_less(const prefix_entry *a, const prefix_entry *b, const prefix_owner *owner) {
    const double x = owner ? a->own_worth : a->worth, y = owner ? b->own_worth : b->worth;
    return x < y || (x == y && a->used < b->used);
}

bool prefix_evict_of(prefix_tree *tree, prefix_owner *owner, const prefix_entry *spared, size_t *freed) {
    prefix_entry *least = NULL;
    for (size_t i = 0; i < tree->n_kept; i++) {
        prefix_entry *e = tree->kept[i];
        if (e->is_pinned || e == spared || (owner && e->owner != owner)) continue;
        if (!least || is_worth_less(e, least, owner)) least = e;
    }
    if (!least) return false;
    if (owner)
        owner->clock = least->own_worth;
    else
        tree->clock = least->worth;
    *freed = kv_unique_bytes(least->cache);
    prefix_remember_evicted(least);
    if (shorten(least)) {
        const size_t left = kv_unique_bytes(least->cache);
        *freed -= left < *freed ? left : *freed;
    } else {
        prefix_forget(least);
    }
    return true;
}

bool prefix_evict(prefix_tree *tree) {
    size_t freed;
    return prefix_evict_of(tree, NULL, NULL, &freed);
}

size_t prefix_file_bytes(const prefix_entry *file) {
    return file->file_bytes;
}

bool prefix_is_from_file(const prefix_entry *entry) {
    return entry->was_read;
}

size_t prefix_entries(const prefix_tree *tree) {
    return tree->n_kept;
}

void prefix_close(prefix_tree **out) {
    prefix_tree *tree = *out;
    *out = NULL;
    if (!tree) return;
    while (tree->n_kept > 0) prefix_forget(tree->kept[tree->n_kept - 1]);
    for (prefix_root *root = tree->roots, *next; root; root = next) {
        next = root->next;
        root_free(root);
    }
    mem_free(tree->kept);
    mem_free(tree);
}
