/* The cache of one sequence: pages of keys and values, described by numbers.
 *
 *   entry   the memory of one attention (or recurrent) sub-layer; most models have one per layer
 *   page    P consecutive tokens of every entry of a group, keys and values; shared by reference count; who writes one
 *           that is shared takes a part of its own behind it, or a copy. A page is exact (f32, bf16: kernels/attend.h) or coded (kernels/codes.h)
 *   group   entries with equal specs; they share one page table, and a page holds all of them side by side
 *   seal    to turn tokens of an exact page into codes, once; a place of the table may hold both pages for a while
 *   head    the first few tokens, kept exactly for ever: attention sinks, or first tokens that no code shall touch
 *   step    reserve, then for each entry append and look, then commit and seal; or abandon
 *
 * Only kv_reserve, kv_open, kv_fork and reading far pages can fail, and when they do nothing has changed. A
 * named strategy is a row of a table in plan.c that fills these specs; there is no type per strategy. What a
 * query may see depends on positions alone (visible.h); in which form it sees a token depends only on the
 * unit of tokens the query lies in (kv_unit), or, with `flush`, on what was one call.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_KV_H
#define MN_KV_KV_H

#include <stdbool.h>

#include "kernels/attend.h"
#include "kernels/kernels.h"
#include "kv/basis.h"
#include "kv/form.h"
#include "kv/pool.h"
#include "kv/visible.h"

typedef enum kv_kind { KV_PAGES, KV_STATE } kv_kind;

/* Everything about one entry. */
typedef struct kv_spec {
    kv_kind kind;
    int n_heads;        /* KV heads */
    int k_dim, v_dim;   /* values in a row of a head, even */
    kv_codec exact;     /* KV_F32 or KV_BF16: form of tokens that are not sealed */
    kv_form key, value; /* form of sealed tokens; both kv_form_exact(exact): nothing is ever sealed */
    int residual; /* newest tokens that are not sealed, at least; with `flush`: Transformers' residual_length
                   */
    bool flush;   /* seal at the end of calls, by Transformers' rule, not page by page */
    int exact_first;   /* first tokens of the sequence that are read exactly, whatever is sealed */
    int sinks, window; /* a query at p sees [0, sinks) and (p - window, p]; window 0: everything up to p */
    int slack;         /* tokens kept beyond the window, so that as many may be taken back */
    bool write_once;   /* cross attention: filled by kv_fill, not by steps; has a length of its own */
    bool is_far;       /* full pages rest in the pool's far home */
    bool is_fixed;     /* keys cannot be moved to another position: it was added to the embeddings */
    const kv_basis *bases; /* [n_heads] of coded keys; NULL: none. Borrowed for the cache's life */
    size_t state_bytes;    /* KV_STATE: of one state */
    int checkpoints;       /* KV_STATE: states kept of past steps */
} kv_spec;

/* The same pages and the same results; bases are not compared but for being there. */
bool kv_spec_equal(const kv_spec *a, const kv_spec *b);

typedef struct kv_options {
    int page_tokens; /* even; a multiple of 16 when something is coded */
    int64_t reserve; /* tokens allocated at once and kept, but for far entries; 0: pages on demand */
    int64_t limit;   /* tokens refused beyond (MN_E_FULL); 0: none */
} kv_options;

typedef struct kv_cache kv_cache;

/* An empty cache for one sequence; specs are copied. The pool must outlive it. MN_E_UNSUPPORTED for sizes
 * that a form does not take. */
mn_status kv_open(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries,
                  const kv_options *options);
void kv_close(kv_cache **cache);

/* ---- a step ---- */

/* A call is what one request to compute is to Transformers: the prompt, a token, a chat turn. Steps lie in
 * calls; entries with `flush` seal at the end of a call, the others do not care. */
void kv_call_begin(kv_cache *cache);
void kv_call_ends(kv_cache *cache, bool ends); /* whether the step that is reserved next is the call's last */

/* Steps must end where this says, at the latest: one that begins inside a unit of sealing ends with it. */
int64_t kv_step_limit(const kv_cache *cache, int64_t position);
/* The smallest unit of all entries: queries inside one see every token in the same form; 0: nothing is sealed by units. */
int kv_unit(const kv_cache *cache);

/* How many tokens, at most `most` and at least 1, may come as one call so that whichever of them but the first are taken back again,
 * the cache is as if the others had come one by one, each as a call of its own: none is sealed, nothing is forgotten, and one
 * step computes them. 1 for states, which are kept of steps only. */
int64_t kv_quiet_tokens(const kv_cache *cache, int64_t most);

/* Room for n_new tokens in every entry: new pages, private copies of shared pages that will be written, pages
 * that sealing will fill. MN_E_FULL, MN_E_NOMEM; then nothing has changed. */
mn_status kv_reserve(kv_cache *cache, int64_t n_new);
/* The same beside a cache that is reserved for the same pass and shares pages, before this one in it: what that one makes near
 * is not made near twice. beside: NULL: none. */
mn_status kv_reserve_beside(kv_cache *cache, int64_t n_new, const kv_cache *beside);
/* Between steps, when another cache of the pass found no memory: sends the oldest settled page of far entries away. *sent: there was
 * one. MN_E_IO. */
mn_status kv_send_one(kv_cache *cache, bool *sent);
/* Whether two caches have a page in common: forks that have not lost all of their past. */
bool kv_shares_pages(const kv_cache *a, const kv_cache *b);
/* When caches are reserved for one pass: called for each of them once all are, as one's reserve may have sent away pages that
 * others share. MN_E_NOMEM; then all are to be abandoned. */
mn_status kv_restage(kv_cache *cache);

/* Stores tokens [token_begin, token_end) of the step, KV head `head` of an entry. k and v: f32 rows of token
 * 0 of the step; the row of token t lies t * stride floats further. Keys are rotated already. Different
 * heads, and tokens of different pages, may be stored by different threads at once. */
void kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin,
               int token_end, const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride);

/* What queries of the step's later units are to see sealed: the tasks of an entry, their number, from *first on, once its tokens are appended and
 * before any query looks; kv_seal does them. Asked once for each entry of a step, or for none: then nothing is looked at
 * before kv_commit, which lists these tasks too. */
int kv_early(kv_cache *cache, int entry, int *first);
bool kv_spans_units(const kv_cache *cache); /* the step has such tasks */

/* Counts the step's tokens and decides what is to be sealed; *n_tasks parts of that work, for any thread
 * each, are done by kv_seal with that thread's scratch of kv_seal_scratch bytes; kv_settle ends the step.
 * kv_seal_scratch is known after kv_reserve. */
int kv_commit(kv_cache *cache);
size_t kv_seal_scratch(const kv_cache *cache);
void kv_seal(kv_cache *cache, const kernel_table *kernels, int task, void *scratch);
void kv_settle(kv_cache *cache);

/* Forgets the step: the cache is as before kv_reserve. */
void kv_abandon(kv_cache *cache);

/* Makes an entry's far pages near, before kv_look in a step, caches in the order of the pass; entries in order of use are read ahead. What goes wrong is
 * remembered: kv_fault, asked before kv_commit, says so, and the step is to be abandoned. */
void kv_stage(kv_cache *cache, int entry);
mn_status kv_fault(kv_cache *cache);
/* Between steps: gives the memory for far pages made near back; the next step takes it again. */
void kv_unstage(kv_cache *cache);

/* Where the streams of an entry lie in a page. */
typedef struct kv_place {
    size_t k_offset, k_head_bytes; /* keys of head h: page + k_offset + h * k_head_bytes */
    size_t v_offset, v_head_bytes;
} kv_place;

/* What attention reads; valid until the next reserve, commit, abandon or truncate. Token t >= n_head of page
 * t / page_tokens: coded when t % page_tokens < n_sealed of that page, or when the page ends at or before
 * kv_sealed_for(query's position) and none of it was sealed before; else exact. Tokens below n_head: exact, in the head page. */
typedef struct kv_view {
    const kv_spec *spec;
    int64_t n_tokens; /* held, the step's included */
    int page_tokens;
    int64_t first_page; /* number of the first page of the table; earlier ones are forgotten */
    int n_pages;        /* of the table; the last one holds the newest token */
    const char *const *
        exact; /* [n_pages] first bytes; NULL where every token is sealed. Of a page in parts: the last one's */
    kv_page *const *pages;    /* [n_pages] the exact ones, for kv_parts */
    const char *const *coded; /* [n_pages] first bytes; NULL where none is */
    const int *n_sealed;      /* [n_pages], before the step */
    bool seals_early;         /* the step has tasks of kv_early */
    kv_place exact_place, coded_place, head_place;
    const char *head; /* the head page, n_head tokens */
    int n_head, head_page_tokens;
    const code_layout *key_codes;   /* [n_heads]; NULL: sealed keys are exact */
    const code_layout *value_codes; /* [n_heads]; NULL: sealed values are exact */
    const kv_basis *bases;          /* [n_heads] of sealed keys; NULL: none */
} kv_view;

kv_view kv_look(const kv_cache *cache, int entry);

/* The parts [ATTEND_PARTS] of one head in exact page i of the view, in order, and their number; 0: the page is whole. */
int kv_parts(const kv_view *view, int64_t i, int head, attend_part *parts);

static inline int64_t kv_sealed_for(const kv_view *view, int64_t position) {
    return view->seals_early ? seal_until(position, view->spec->residual, view->page_tokens) : 0;
}

/* The state of a recurrent entry before the step, and where to write the one behind it, whole: what lies there is anything. */
typedef struct kv_state {
    const char *now; /* NULL: nothing was seen yet, all zeros */
    char *next;
} kv_state;

kv_state kv_states(const kv_cache *cache, int entry);

/* ---- write once ---- */

/* Room for n tokens in every entry with write_once, which must be empty (MN_E_ARG); kv_append then stores
 * tokens 0 .. n - 1 of such an entry, and kv_fill_commit makes them the entry's tokens and returns how much
 * is to be sealed, as kv_commit. */
mn_status kv_fill(kv_cache *cache, int64_t n);
int kv_fill_commit(kv_cache *cache);
/* Instead of kv_fill_commit: forgets what kv_fill made room for. */
void kv_fill_abandon(kv_cache *cache);
int64_t kv_filled(const kv_cache *cache, int entry);

/* ---- between steps ---- */

/* Keeps the first n_keep tokens. What was sealed stays sealed. MN_E_ARG when there are not that many,
 * MN_E_UNSUPPORTED when tokens that the remaining ones see are gone (a window, a state between checkpoints);
 * then nothing has changed. */
mn_status kv_truncate(kv_cache *cache, int64_t n_keep);

/* The largest length up to n_keep that kv_truncate can reach; 0 at worst. */
int64_t kv_reachable(const kv_cache *cache, int64_t n_keep);

/* A second cache with the same past: pages are shared until one of the two writes. A cache with reserved
 * pages gives its fork private ones for everything that is not full, so that its own addresses stay; a shared page that one of them
 * cuts away is the other's, and no part of a reserve any more. */
mn_status kv_fork(kv_cache **out, const kv_cache *cache);

/* The same into a cache of the same pool that is not needed any more: of equal specs it is emptied and its tables and reserved
 * pages serve again, else it is replaced. On failure it is as it was, or empty. */
mn_status kv_refork(kv_cache **fork, const kv_cache *cache);

/* Gives a cache other specs while it holds tokens: it may become far, quantized, or narrower. MN_E_UNSUPPORTED says why not;
 * then, and on MN_E_NOMEM, it is as before. */
mn_status kv_convert(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                     const kv_options *options);

/* The same for caches that share pages, which share them afterwards, too: each is begun, then all are ended together. Not more
 * than a page of codes is held beside what was. beside: one that is begun already, or NULL. */
mn_status kv_convert_begin(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                           const kv_options *options, const kv_cache *beside);
void kv_convert_end(kv_cache *const *caches, int n, const kernel_table *kernels);

int64_t kv_length(const kv_cache *cache);
int64_t kv_room(const kv_cache *cache); /* tokens that fit into the pages at hand, those held included */
int kv_entries(const kv_cache *cache);
const kv_spec *kv_entry_spec(const kv_cache *cache, int entry);
size_t kv_bytes(const kv_cache *cache);      /* of all pages referred to, shared ones counted whole */
size_t kv_far_held(const kv_cache *cache);   /* of them, those that rest in the far home */
size_t kv_peak_bytes(const kv_cache *cache); /* the largest kv_bytes so far */

/* One stream of an entry as it is stored, decoded to f32 [n_heads][n][dim]: tokens [begin, begin + n), all of
 * them held (MN_E_ARG). */
mn_status kv_read(const kv_cache *cache, const kernel_table *kernels, int entry, bool is_key, int64_t begin,
                  int n, float *rows);
/* First position that an entry still holds beside its head. */
int64_t kv_first_held(const kv_cache *cache, int entry);
int kv_head_tokens(const kv_cache *cache,
                   int entry); /* tokens of the head: sinks or first exact ones, held or to come */
int64_t kv_sealed(const kv_cache *cache, int entry); /* tokens held as codes, those of the head among them */

/* Verifies every invariant; for tests and debug builds. The message says which is broken. */
mn_status kv_check(const kv_cache *cache);

/* Bytes that specs need for n_tokens given in one call (of states, which are kept of steps: given one by one), and per token
 * in the limit; the planner and kv_bytes agree. */
size_t kv_plan_bytes(const kv_spec *specs, int n_entries, const kv_options *options, int64_t n_tokens);
size_t kv_token_bytes(const kv_spec *specs, int n_entries);
size_t kv_cache_token_bytes(const kv_cache *cache); /* the same of an open cache */

#endif
