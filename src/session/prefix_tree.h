/* Internals of the tree of prefixes: prefix.h is implemented in prefix_tree.c (finding, keeping, dropping),
 * prefix_hold.c (prefixes by their ids), prefix_quota.c (owners) and prefix_report.c (what there is, and why a match
 * ended).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_PREFIX_TREE_H
#define MN_SESSION_PREFIX_TREE_H

#include "session/prefix.h"

typedef struct node {
    struct node *parent;    /* NULL: the root's */
    struct node **children; /* [n_children], by their first ids */
    size_t n_children, capacity;
    int32_t *ids; /* [n_ids] from the parent's prefix on; of the first node: none */
    size_t n_ids;
    int64_t depth; /* tokens of its prefix */
    uint64_t id;   /* of the prefix, while the tree is open; 0: the root's */
    prefix_entry *entries;
} node;

/* Whose prefixes are kept, by the name that requests have. */
typedef struct prefix_owner {
    struct prefix_owner *next;
    char *name;
    size_t n_entries; /* kept ones; without any it is closed */
    size_t most;      /* bytes of their pages at most; counted anew when that exceeds the quota */
    double clock;     /* value of the last entry that was dropped for the quota */
} prefix_owner;

struct prefix_entry {
    prefix_root *root;
    node *node;
    prefix_entry *next;        /* of the node */
    const mn_session *session; /* being computed; NULL: kept, or in a file */
    kv_cache *cache;           /* kept; else NULL */
    char *path;                /* of its file; else NULL */
    size_t file_bytes;
    bool is_reading; /* the file */
    bool was_read;   /* kept, from a file */
    double retry;    /* clock_ms: it cannot be read before */
    int64_t regime;
    prefix_owner *owner;     /* of a kept one; else NULL */
    double worth, own_worth; /* among all kept ones, among its owner's */
    uint64_t used, hits;
    double used_ms;    /* clock_ms */
    bool is_pinned;    /* never evicted */
    double ttl_ms;     /* dropped when it was not used for so long; 0: never */
    uint64_t has_file; /* the state of the folder in which files had enough of this prefix */
    size_t index;      /* in the tree's list of kept ones, or in the list of files */
};

struct prefix_root {
    prefix_tree *tree;
    prefix_root *next;
    char *salt;
    kv_spec *specs; /* [n_specs] */
    int n_specs;
    kv_options options;
    bool truncates;    /* a longer prefix serves for every beginning of it */
    size_t n_users;    /* that keep a pointer to it: prefix_root_use */
    mn_session *empty; /* without ids and cache, with the strategy of the prefixes; NULL: none yet */
    node first;
};

/* A prefix that was evicted, remembered for the match_ended of the next one that begins like it. */
typedef struct evicted_prefix {
    const prefix_root *root;
    int32_t *ids; /* [n] the beginning of it */
    size_t n;
} evicted_prefix;

enum { MOST_EVICTED = 16, MOST_EVICTED_IDS = 4096 };

struct prefix_tree {
    prefix_root *roots;
    evicted_prefix evicted[MOST_EVICTED]; /* the last ones; NULL ids: none */
    size_t n_evicted;                     /* in all */
    prefix_entry **kept;                  /* [n_kept] */
    size_t n_kept, capacity;
    double clock;           /* value of the last entry that was dropped */
    uint64_t uses, n_nodes; /* ever made */
    uint64_t seed;          /* of the order of ids */
    double ttl_ms;          /* of entries that have none of their own and are not pinned; 0: none */
    double next_end;        /* clock_ms: no entry's time ends before; 0: not known */
    prefix_owner *owners;
    size_t quota; /* bytes of what is kept of each owner; 0: no limit */
    size_t limit; /* the same, of all owners */
    size_t most;  /* bytes of all pages that are kept at most; counted anew when that exceeds the limit */
};

/* Whether a root's prefixes have this strategy. */
bool prefix_root_has(const prefix_root *root, const kv_spec *specs, int n, const kv_options *options);

/* Where a prefix leads: the deepest node that begins with all of the ids found, or lies before them. */
typedef struct place {
    node *above;  /* its prefix begins the ids */
    node *behind; /* a child of it whose first n_into ids do too; NULL: none */
    size_t n_into;
    int64_t known;
} place;

place prefix_place(const prefix_root *root, const int32_t *ids, size_t n);

/* Remembers the prefix of an entry that is evicted; without memory it does not. */
void prefix_remember_evicted(const prefix_entry *e);

/* An entry for the first n ids, which holds nothing yet. NULL: no memory. */
prefix_entry *prefix_entry_new(prefix_root *root, const int32_t *ids, size_t n);
void prefix_entry_drop(prefix_entry *e);
/* Drops a kept entry. */
void prefix_forget(prefix_entry *e);
/* A kept entry of the node, or, where that is as good, of one behind it. NULL: none. */
prefix_entry *prefix_kept_of(const prefix_root *root, const node *v);

/* How many tokens of a node's prefix files have. */
int64_t prefix_tokens_on_disk(const prefix_root *root, const node *v);

/* The empty session of the root, like this session of its strategy. MN_E_NOMEM. */
mn_status prefix_open_empty(prefix_root *root, const mn_session *like);

/* A session with the ids of a cached prefix, and a fork of its cache; the root has an empty one. */
mn_status prefix_session_of(mn_session **out, const prefix_entry *kept);

/* Keeps a cache as an entry for the first n ids; takes it, also on failure; *out is NULL then. owner: NULL is "". */
mn_status prefix_adopt(prefix_entry **out, prefix_root *root, const int32_t *ids, size_t n, int64_t regime,
                       kv_cache *cache, const char *owner);

/* Drops the kept entry that is worth least, or the newer half of it; of this owner, and not `spared`, where these are
 * not NULL. *freed: bytes that nothing else holds. False: there is none that is not pinned. */
bool prefix_evict_of(prefix_tree *tree, prefix_owner *owner, const prefix_entry *spared, size_t *freed);

/* ---- owners ---- */

/* Counts an entry for the owner of this name. MN_E_NOMEM. */
mn_status prefix_owner_join(prefix_owner **out, prefix_tree *tree, const char *name);
void prefix_owner_leave(prefix_tree *tree, prefix_owner *owner);
/* Drops what its owner has over the quota, and all owners over the limit, after an entry was kept. */
void prefix_keep_quota(prefix_entry *kept);
/* Bytes of the pages of pinned prefixes and of `with`, each once; of this owner where that is not NULL. */
mn_status prefix_pinned_bytes(size_t *total, const prefix_tree *tree, const prefix_entry *with,
                              const prefix_owner *owner);

#endif
