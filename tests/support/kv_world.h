/* Caches that share a pool, each beside its model (kv_model.h), and random operations on them after each of
 * which the two are compared: every token read back, pages and bytes counted, kv_check asked. A sequence that
 * fails is shortened before it is shown.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KV_WORLD_H
#define TESTS_KV_WORLD_H

#include "support/kv_model.h"
#include "support/support.h"

enum { WORLD_CACHES = 5, WORLD_OPS = 64 };

/* What the caches of a world are. */
typedef struct world_setting {
    uint64_t seed;
    int n_entries;
    kv_spec specs[MODEL_ENTRIES];
    kv_options options;
    size_t budget; /* bytes; 0: none */
    bool fails;    /* allocations fail now and then */
    bool alone;    /* pages are shared inside the world only, so that the bytes of the pool are known */
    bool is_far;   /* the pool has a far home, where full pages of far entries rest; with `alone` only */
} world_setting;

/* Any kind of entries; exact ones in pages of 2 to 8 tokens, or coded ones in pages of 16 to 64. */
void world_setting_make(world_setting *set, uint64_t seed);
/* A setting without budget, failures, limit and reserve. */
void world_setting_free(world_setting *set, uint64_t seed);
/* The same with far entries. */
void world_setting_far(world_setting *set, uint64_t seed);

/* Makes of specs others that their cache may, mostly, be converted to. */
void world_specs_change(kv_spec *specs, const world_setting *set, uint64_t seed);

typedef enum world_op_kind {
    WORLD_CALL,
    WORLD_BROKEN_CALL, /* its last steps never come */
    WORLD_ABANDON,
    WORLD_TRUNCATE,
    WORLD_TRUNCATE_IN_STEP,
    WORLD_RESET,
    WORLD_FORK,
    WORLD_OPEN,
    WORLD_CLOSE,
    WORLD_ROWS, /* reorder, repeat, select: forks, then closes */
    WORLD_FILL,
    WORLD_CONVERT, /* to specs that follow from the old ones and the detail */
    WORLD_SAVE,    /* and load: the same cache again, its full pages in the file */
    WORLD_N_OPS
} world_op_kind;

/* Numbers are reduced to what is possible when the operation is done. */
typedef struct world_op {
    world_op_kind kind;
    unsigned cache, amount, detail, fail;
} world_op;

typedef struct world_member {
    kv_cache *cache;
    model_cache *model;
} world_member;

/* What was seen, to know that there was any of it. */
typedef struct world_counts {
    int refused;         /* operations that found no room or memory */
    int sealed;          /* tokens seen sealed */
    int converted, kept; /* conversions done and refused */
    int saved;
    size_t far; /* bytes seen in the far home */
} world_counts;

typedef struct world {
    const world_setting *set;
    kernel_table kernels;
    kv_pool *pool;
    model_pool *model_pool;
    world_member members[2 * WORLD_CACHES];
    int n_members;
    uint32_t next_token;
    const char *problem;
    char text[512];
    world_counts counts;
} world;

/* Files of tests lie in memory from here on where the system has a place for that: saving waits for the disk. */
void world_files_in_memory(void);

/* An empty world; pool: one of its own when NULL. */
void world_open(world *w, const world_setting *set, kv_pool *pool);
void world_do(world *w, const world_op *op);
/* Sets `problem` when a cache is not what its model says. */
void world_check(world *w, const world_member *m);
void world_check_all(world *w);
/* Closes every cache, and the pool when it is the world's own; nothing may be left. */
void world_close(world *w);

/* A call of n tokens in steps of `most_step` at most, and the parts of it. False when a step was refused. */
bool world_call(world *w, world_member *m, const uint32_t *tokens, int n, int most_step);
/* Reserves n tokens, compares what that gives, stores them; fail: 0, or which allocation fails. */
bool world_step(world *w, world_member *m, const uint32_t *tokens, int n, unsigned order, unsigned fail);
void world_commit(world *w, world_member *m, const uint32_t *tokens, unsigned order);
bool world_fork(world *w, world_member *out, const world_member *m, unsigned fail);
bool world_add(world *w, world_member *out, unsigned fail); /* an empty cache */
void world_drop(world_member *m);

/* The same for a test's own sequences, which fail when something is refused. */
uint32_t *world_tokens(void); /* [MODEL_TOKENS], all different */
world_member *world_new(world *w);
world_member *world_fork_of(world *w, const world_member *m);
void world_put(world *w, world_member *m, const uint32_t *tokens, int n, int most_step);
void world_cut(world_member *m, int64_t n);
/* What two caches of equally many tokens and entries both hold is the same, bit for bit. */
void world_assert_same(const world *w, const kv_cache *a, const kv_cache *b);
void world_assert_same_stream(const world *w, const kv_cache *a, const kv_cache *b, int entry, bool is_key, int64_t begin,
                              int64_t end);

void world_random_ops(world_op *ops, int n, uint64_t seed);
/* Runs a setting with random operations; fails the test with the shortest sequence that does. The number of
 * operations done; what was seen is added to *counts. */
int world_run_random(const world_setting *set, world_counts *counts);

#endif
