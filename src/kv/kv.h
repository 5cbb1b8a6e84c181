/* The cache of one sequence: pages of keys and values, described by numbers.
 *
 *   entry      the memory of one attention (or recurrent) sub-layer; most models have one per layer
 *   page       P consecutive tokens of every entry of a group, keys and values; shared by reference count: before a
 *              cache writes to a shared page it adds a private part after it, or copies it. A page is exact (f32,
 *              bf16: kernels/attend/attend.h) or quantized (kernels/attend/codes.h)
 *   group      entries with equal specs; they share one page table, and a page holds all of them side by side
 *   quantize   to turn tokens of an exact page into codes, once; a slot of the table may hold both pages for a while
 *   head       the first few tokens, which stay exact and are never dropped: attention sinks, or first_exact tokens
 *   step       reserve, then append and attend for each entry, then commit and quantize; or abandon
 *
 * Only kv_reserve, kv_open, kv_fork and reading offloaded pages can fail, and then nothing has changed. A named
 * strategy is a row of a table in plan.c that fills these specs; there is no type per strategy. Which tokens a query
 * attends to depends on positions alone (visible.h); in which form it reads a token depends only on the unit of tokens
 * that contains the query (kv_unit), or, with `flush`, on how tokens were divided into calls.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_KV_H
#define MN_KV_KV_H

#include <stdbool.h>

#include "kernels/attend/attend.h"
#include "kernels/kernels.h"
#include "kv/calibration.h"
#include "kv/form.h"
#include "kv/pool.h"
#include "kv/visible.h"

typedef enum kv_kind { KV_PAGES, KV_STATE } kv_kind;

/* Everything about one entry. */
typedef struct kv_spec {
    kv_kind kind;
    int n_heads;        /* KV heads */
    int k_dim, v_dim;   /* values in a row of a head, even */
    kv_codec exact;     /* KV_F32 or KV_BF16: form of tokens that are not quantized */
    kv_form key, value; /* form of quantized tokens; both kv_form_exact(exact): nothing is quantized */
    int residual;       /* at least this many of the newest tokens stay exact; with `flush`: Transformers'
                         * residual_length */
    bool flush;         /* quantize at the end of calls, by Transformers' rule, not page by page */
    int exact_first;    /* first tokens of the sequence that are always read exactly */
    int sinks, window;  /* a query at p attends to [0, sinks) and (p - window, p]; window 0: everything up to
                         * p */
    bool write_once;    /* cross attention: filled by kv_fill, not by steps; its length differs from the
                         * cache's */
    bool is_offloaded;  /* full pages are offloaded */
    bool is_fixed;      /* keys cannot be moved to another position, which is part of the embeddings */
    const kv_head_calibration *calibration; /* [n_heads] of quantized keys; NULL: none. Borrowed while the
                                             * cache is open */
    size_t state_bytes;                     /* KV_STATE: of one state */
    int checkpoints;                        /* KV_STATE: states kept of past steps */
} kv_spec;

/* Whether both give the same pages and results; of calibrations only the presence is compared. */
bool kv_spec_equal(const kv_spec *a, const kv_spec *b);

typedef struct kv_options {
    int page_tokens; /* even; a multiple of 16 when something is quantized */
    int64_t reserve; /* tokens allocated at once and kept, except for offloaded entries; 0: pages on demand */
    int64_t limit;   /* further tokens are refused (MN_E_FULL); 0: no limit */
} kv_options;

typedef struct kv_cache kv_cache;

/* An empty cache for one sequence; specs are copied. The pool must outlive it. MN_E_UNSUPPORTED for sizes that a form
 * does not support. */
mn_status kv_open(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options);
void kv_close(kv_cache **cache);

/* ---- a step ---- */

/* A call is one forward of Transformers: the prompt, a token, a chat turn. A call is computed in steps; entries with
 * `flush` quantize at the end of a call, for the others calls have no meaning. */
void kv_call_begin(kv_cache *cache);
void kv_call_ends(kv_cache *cache, bool ends); /* whether the next reserved step is the last of the call */

/* The latest end of the next step: a step that begins inside a quantization unit ends with it. */
int64_t kv_step_limit(const kv_cache *cache, int64_t position);
/* The smallest unit of all entries: queries inside one read every token in the same form; 0: nothing is quantized by
 * units. */
int kv_unit(const kv_cache *cache);

/* How many tokens, from 1 to `most`, one call may compute so that all but the first can be removed again without a
 * trace: truncating leaves the cache as if the remaining ones had been computed one by one, each in its own call. None
 * is quantized, none is dropped, and one step computes them. 1 for states, which are kept of steps only. */
int64_t kv_revertible_tokens(const kv_cache *cache, int64_t most);

/* Makes room for n_new tokens in every entry: new pages, private copies of shared pages that will be written, pages for
 * quantized tokens. MN_E_FULL, MN_E_NOMEM; then nothing has changed. */
mn_status kv_reserve(kv_cache *cache, int64_t n_new);
/* The same after `beside`, a cache that is reserved earlier for the same pass and shares pages: offloaded pages that it
 * stages are not staged twice. beside: NULL: none. */
mn_status kv_reserve_beside(kv_cache *cache, int64_t n_new, const kv_cache *beside);
/* Between steps, when another cache of the pass found no memory: offloads the oldest resident page that can be
 * offloaded. *sent: whether there was one. MN_E_IO. */
mn_status kv_send_one(kv_cache *cache, bool *sent);
/* Whether two caches share a page. */
bool kv_shares_pages(const kv_cache *a, const kv_cache *b);
/* When several caches are reserved for one pass, called for each after the last reserve, as a reserve may have
 * offloaded pages that others share. MN_E_NOMEM; then all must be abandoned. */
mn_status kv_restage(kv_cache *cache);

/* Stores tokens [token_begin, token_end) of the step, KV head `head` of an entry. k and v: f32 rows of token 0 of the
 * step; the row of token t is at t * stride floats. Keys have the rotary embedding applied. Different heads, and tokens
 * of different pages, may be stored by different threads at once. */
void kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin, int token_end,
               const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride);

/* The tasks that quantize what queries of the step's later units read quantized: their number for one entry, from
 * *first on, for kv_quantize. Called after the entry's tokens are appended and before attention, once for each entry of
 * a step, or for none if nothing is attended before kv_commit, which then lists these tasks too. */
int kv_early(kv_cache *cache, int entry, int *first);
bool kv_spans_units(const kv_cache *cache); /* the step has such tasks */

/* Counts the step's tokens and lists *n_tasks quantization tasks. Any thread may run a task with kv_quantize and its
 * own scratch of kv_quantize_scratch bytes (known after kv_reserve); kv_finish_step ends the step. */
int kv_commit(kv_cache *cache);
size_t kv_quantize_scratch(const kv_cache *cache);
void kv_quantize(kv_cache *cache, const kernel_table *kernels, int task, void *scratch);
void kv_finish_step(kv_cache *cache);

/* Discards the step: the cache is as before kv_reserve. */
void kv_abandon(kv_cache *cache);

/* Stages an entry's offloaded pages, before kv_attention_view in a step, caches in the order of the pass; entries in
 * order of use are read ahead. kv_fault, called before kv_commit, returns a failure, and then the step must be
 * abandoned. */
void kv_stage(kv_cache *cache, int entry);
mn_status kv_fault(kv_cache *cache);
/* Between steps: frees the memory for staging; the next step allocates it again. */
void kv_unstage(kv_cache *cache);

/* Offsets of an entry's streams in a page. */
typedef struct kv_place {
    size_t k_offset, k_head_bytes; /* keys of head h: page + k_offset + h * k_head_bytes */
    size_t v_offset, v_head_bytes;
} kv_place;

/* What attention reads; valid until the next reserve, commit, abandon or truncate. Token t >= n_head of page t /
 * page_tokens is quantized when t % page_tokens < n_quantized of that page, or when the page ends at or before
 * kv_quantized_for(query's position) and none of it was quantized earlier; else exact. Tokens below n_head: exact, in
 * the head page. */
typedef struct kv_view {
    const kv_spec *spec;
    int64_t n_tokens; /* held, including the step's */
    int page_tokens;
    int64_t first_page;       /* number of the first page of the table; earlier ones were dropped */
    int n_pages;              /* of the table; the last one holds the newest token */
    const char *const *exact; /* [n_pages] addresses; NULL where every token is quantized. Of a page in parts: the last
                               * part's */
    kv_page *const *pages;    /* [n_pages] the exact ones, for kv_parts */
    const char *const *coded; /* [n_pages] addresses; NULL where no token is quantized */
    const int *n_quantized;   /* [n_pages], before the step */
    bool quantizes_early;     /* the step has tasks of kv_early */
    kv_place exact_place, coded_place, head_place;
    const char *head; /* the head page, n_head tokens */
    int n_head, head_page_tokens;
    const code_layout *key_codes;           /* [n_heads]; NULL: quantized keys are exact */
    const code_layout *value_codes;         /* [n_heads]; NULL: quantized values are exact */
    const kv_head_calibration *calibration; /* [n_heads] of quantized keys; NULL: none */
} kv_view;

kv_view kv_attention_view(const kv_cache *cache, int entry);

/* The parts [ATTEND_PARTS] of one head in exact page i of the view, in order, and their number; 0: the page is
 * whole. */
int kv_parts(const kv_view *view, int64_t i, int head, attend_part *parts);

static inline int64_t kv_quantized_for(const kv_view *view, int64_t position) {
    return view->quantizes_early ? quantize_until(position, view->spec->residual, view->page_tokens) : 0;
}

/* The state of a recurrent entry before the step, and where to write the state after it; that memory is not
 * initialized. */
typedef struct kv_state {
    const char *now; /* NULL: no tokens yet, all zeros */
    char *next;
} kv_state;

kv_state kv_states(const kv_cache *cache, int entry);

/* ---- write once ---- */

/* Makes room for n tokens in every entry with write_once, which must be empty (MN_E_ARG); kv_append then stores tokens
 * 0 .. n - 1 of such an entry, and kv_fill_commit makes them the entry's tokens and lists quantization tasks as
 * kv_commit does. */
mn_status kv_fill(kv_cache *cache, int64_t n);
int kv_fill_commit(kv_cache *cache);
/* Instead of kv_fill_commit: discards the fill. */
void kv_fill_abandon(kv_cache *cache);
int64_t kv_filled(const kv_cache *cache, int entry);

/* ---- between steps ---- */

/* Keeps the first n_keep tokens. What was quantized stays quantized. MN_E_ARG when there are fewer, MN_E_UNSUPPORTED
 * when tokens that the remaining ones attend to were dropped (a window, a state between checkpoints); then nothing has
 * changed. */
mn_status kv_truncate(kv_cache *cache, int64_t n_keep);

/* The largest length up to n_keep that kv_truncate can reach; 0 at worst. */
int64_t kv_reachable(const kv_cache *cache, int64_t n_keep);

/* The largest length up to n_keep at which truncating leaves the cache as if it had never held more: the same bits are
 * read from it, and quantized later, as in a cache that computed so many tokens itself. 0 at worst; less than
 * kv_reachable where tokens are quantized that would still be exact, and always 0 for quantizing with `flush`. */
int64_t kv_shareable(const kv_cache *cache, int64_t n_keep);

/* A copy of the cache: pages are shared until one of the two writes to them. The fork of a cache that preallocates gets
 * private pages for those that are not full, so that the addresses of both stay; a shared page that one of them drops
 * by truncating does not return to its reserve. */
mn_status kv_fork(kv_cache **out, const kv_cache *cache);

/* The same into a cache of the same pool that is no longer needed: with equal specs its tables and reserved pages are
 * reused, else it is replaced. On failure it is unchanged, or empty. */
mn_status kv_refork(kv_cache **fork, const kv_cache *cache);

/* Converts a cache that holds tokens to other specs, for example offloaded, quantized or with a smaller window.
 * MN_E_UNSUPPORTED, with the reason, when that is not possible; then, and on MN_E_NOMEM, it is unchanged. */
mn_status kv_convert(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                     const kv_options *options);

/* The same for caches that share pages and continue to share them: kv_convert_begin for each, then kv_convert_end for
 * all together. The additional memory is at most one quantized page. beside: one that has begun already, or NULL. */
mn_status kv_convert_begin(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                           const kv_options *options, const kv_cache *beside);
void kv_convert_end(kv_cache *const *caches, int n, const kernel_table *kernels);

int64_t kv_length(const kv_cache *cache);
int64_t kv_room(const kv_cache *cache); /* tokens that fit into the current pages, including those held */
int kv_entries(const kv_cache *cache);
const kv_spec *kv_entry_spec(const kv_cache *cache, int entry);
/* Whether it offloads: then a pass that computes a cache which shares its pages may move them. */
bool kv_moves_pages(const kv_cache *cache);
size_t kv_bytes(const kv_cache *cache);          /* of all pages of this cache, shared ones counted fully */
size_t kv_offloaded_held(const kv_cache *cache); /* of them, the offloaded ones */
size_t kv_peak_bytes(const kv_cache *cache);     /* the largest kv_bytes so far */
/* Resident bytes of the pages of n caches of one pool, each page once; a NULL cache has none. */
size_t kv_bytes_together(kv_cache *const *caches, size_t n);
/* Resident bytes of the pages that no other cache holds: what closing it frees. */
size_t kv_unique_bytes(const kv_cache *cache);

/* One stream of an entry as it is stored, decoded to f32 [n_heads][n][dim]: tokens [begin, begin + n), all of them held
 * (MN_E_ARG). */
mn_status kv_read(const kv_cache *cache, const kernel_table *kernels, int entry, bool is_key, int64_t begin, int n,
                  float *rows);
/* First position that an entry still holds, apart from its head. */
int64_t kv_first_held(const kv_cache *cache, int entry);
int kv_head_tokens(const kv_cache *cache,
                   int entry); /* tokens of the head, sinks or first_exact, whether held yet or not */
int64_t kv_quantized(const kv_cache *cache, int entry); /* quantized tokens held, including those of the
                                                         * head */

/* Verifies every invariant; for tests and debug builds. The message names the violated one. */
mn_status kv_check(const kv_cache *cache);

/* Bytes that specs need for n_tokens appended in one call (states: one by one, since they are kept of steps), and
 * asymptotic bytes per token; the planner and kv_bytes agree. */
size_t kv_plan_bytes(const kv_spec *specs, int n_entries, const kv_options *options, int64_t n_tokens);
size_t kv_token_bytes(const kv_spec *specs, int n_entries);
size_t kv_cache_token_bytes(const kv_cache *cache); /* the same for an open cache */

#endif
