/* Keys and values of prefixes that were computed, kept for prefixes that begin with the same tokens.
 *
 *   root    prefixes that may share: those of one salt and one strategy
 *   node    a prefix: the token ids on the way from its root. The ids are compared, not hashed
 *   entry   what holds a node's prefix: a cache that is kept, that of a session that is being computed, or a file
 *
 * A session begins from the entry that holds most of its prefix: it gets a fork, truncated to a length at which the
 * cache has the same bits as one that computed these tokens itself (kv_shareable). Pages are shared by reference count,
 * so what prefixes have in common is held once. Where a prefix cannot be truncated to what two prefixes have in common
 * (recurrent states, windows, quantized tokens), entries are kept at lengths where prefixes diverged.
 *
 * Used by one thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_PREFIX_H
#define MN_SESSION_PREFIX_H

#include "session/session.h"

typedef struct prefix_tree prefix_tree;
typedef struct prefix_root prefix_root;
typedef struct prefix_entry prefix_entry;
struct prefix_disk;

mn_status prefix_open(prefix_tree **out);
/* Entries of sessions must have been ended. */
void prefix_close(prefix_tree **tree);

/* The root of a session's prefixes; salt: NULL is "". *root is NULL when sessions with this strategy share nothing:
 * their codes depend on how tokens were divided into calls, their pages are preallocated, they have no cache, or on_oom
 * changed it. The session needs no cache of its own yet. MN_E_NOMEM. */
mn_status prefix_root_of(prefix_root **root, prefix_tree *tree, const mn_session *session, const char *salt);
/* A root is closed when it has no prefixes and no users. */
void prefix_root_use(prefix_root *root);
void prefix_root_release(prefix_root **root); /* *root may be NULL, and is NULL then */

/* What is known of the first n ids. */
typedef struct prefix_match {
    int64_t known;  /* tokens that some prefix begins with */
    int64_t now;    /* of them, those that a session can begin with: at most n */
    int64_t later;  /* the same when the sessions that are being computed will hold their prefixes; at least `now` */
    int64_t branch; /* where an entry is worth keeping while the prefix is computed; 0: none */
    const prefix_entry *entry; /* holds the first `now` tokens; NULL when that is 0. Valid until the tree changes */
    int64_t filed;             /* tokens that a file has, when that is more than `now`; else 0 */
    const prefix_entry *file;  /* it */
} prefix_match;

/* Whether a prefix can only be shared at lengths where it was kept, or near them. */
bool prefix_needs_entries(const prefix_root *root);

prefix_match prefix_find(const prefix_root *root, const int32_t *ids, size_t n);

/* Why no more of a prefix was found, as in mn_sequence.match_ended. */
typedef struct prefix_end_reason {
    const char *why; /* static text; NULL: not searched */
    int32_t other;   /* "different_token": what a prefix has there; else -1 */
} prefix_end_reason;

/* Of the match of the first n ids. */
prefix_end_reason prefix_explain(const prefix_root *root, const int32_t *ids, size_t n, const prefix_match *match);

/* Makes an empty session of the root's strategy hold the first match->now of ids. On failure it is empty. */
mn_status prefix_begin(prefix_root *root, mn_session *session, const int32_t *ids, const prefix_match *match);

/* What a match was found in is evicted later. */
void prefix_touch(const prefix_match *match);

/* Gives a session whose pages were dropped those that are kept of its ids. Without memory it stays as it is. */
void prefix_resume(prefix_root *root, mn_session *session);

/* Announces that a session is to hold ids [n], the session's own when it is done; prefixes that begin like it find it.
 * Until prefix_end the session must stay open. MN_E_NOMEM. */
mn_status prefix_announce(prefix_entry **entry, prefix_root *root, const mn_session *session, const int32_t *ids,
                          size_t n);
/* *entry may be NULL, and is NULL then. */
void prefix_end(prefix_entry **entry);

/* Keeps the pages of what a session holds. Without memory for it nothing is kept. owner: NULL is "". */
void prefix_keep(prefix_root *root, const mn_session *session, const char *owner);

/* As mn_engine_prefix_add, of a session that has tokens. */
mn_status prefix_add(uint64_t *id, prefix_root *root, const mn_session *session, const char *owner);

/* Drops the least valuable entry: used long ago, cheap to compute again for its size. Of a long prefix that can
 * be truncated, the newer half. False: nothing is kept but what is pinned. */
bool prefix_evict(prefix_tree *tree);

/* Bytes of what is kept of each owner; 0: no limit. Over it that owner's prefixes are dropped, in the same order. */
void prefix_set_quota(prefix_tree *tree, size_t quota);
/* Bytes of all that is kept; 0: no limit. */
void prefix_set_limit(prefix_tree *tree, size_t limit);

size_t prefix_entries(const prefix_tree *tree); /* kept */

size_t prefix_file_bytes(const prefix_entry *file);  /* of a match's file */
bool prefix_is_from_file(const prefix_entry *entry); /* whether a match's entry came from a file */

/* ---- prefixes by the ids of their nodes ---- */

/* As mn_engine_prefix_of; a longer prefix is forked. */
mn_status prefix_id_of(uint64_t *id, prefix_root *root, const int32_t *ids, size_t n);
/* As mn_engine_prefix_session. */
mn_status prefix_session(mn_session **session, const prefix_tree *tree, uint64_t id);
/* As mn_engine_prefix_hold; most: bytes of pinned prefixes, 0: no limit. */
mn_status prefix_hold(prefix_tree *tree, uint64_t id, bool pin, double ttl_ms, size_t most);
/* As mn_engine_prefix_drop, for what is in memory; also files where disk is not NULL. */
mn_status prefix_drop(prefix_tree *tree, struct prefix_disk *disk, uint64_t id);
/* Drops prefixes that were not used for their time to live. */
void prefix_expire(prefix_tree *tree);
/* Of prefixes that have no time of their own and are not pinned; 0: none. */
void prefix_set_ttl(prefix_tree *tree, double ttl_ms);

/* As mn_engine_prefixes. */
void prefix_visit(const prefix_tree *tree, bool (*visit)(void *user, const mn_prefix_info *info), void *user);

/* Bytes of the pages that kept entries hold, each page once. MN_E_NOMEM. */
mn_status prefix_bytes(size_t *total, const prefix_tree *tree);

#endif
