/* Caches that share a pool, each with its model (kv_model.h), and random operations on them. After each operation the
 * two are compared: every token is read, pages and bytes are counted, also by identity (kv_walk.h), kv_check is called.
 * A failing sequence is shortened before it is printed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KV_FIXTURE_H
#define TESTS_KV_FIXTURE_H

#include "support/kv/kv_model.h"
#include "support/support.h"

enum { FIXTURE_CACHES = 5, FIXTURE_OPS = 64 };

/* The settings of a fixture. */
typedef struct fixture_setting {
    uint64_t seed;
    int n_entries;
    kv_spec specs[MODEL_ENTRIES];
    kv_options options;
    size_t budget;     /* bytes; 0: none */
    bool fails;        /* allocations fail now and then */
    bool alone;        /* pages are shared only inside the fixture, so that the bytes of the pool are known */
    bool is_offloaded; /* the pool has an offload file for full pages of offloaded entries; only with `alone` */
} fixture_setting;

/* Random kinds of entries; exact ones in pages of 2 to 8 tokens, or quantized ones in pages of 16 to 64. */
void fixture_setting_make(fixture_setting *set, uint64_t seed);
/* A setting without budget, failures, limit and preallocation. */
void fixture_setting_free(fixture_setting *set, uint64_t seed);
/* The same with offloaded entries. */
void fixture_setting_offloaded(fixture_setting *set, uint64_t seed);

/* Changes specs to others to which their cache can mostly be converted. */
void fixture_specs_change(kv_spec *specs, const fixture_setting *set, uint64_t seed);

typedef enum fixture_op_kind {
    FIXTURE_CALL,
    FIXTURE_BROKEN_CALL, /* its last steps are missing */
    FIXTURE_ABANDON,
    FIXTURE_TRUNCATE,
    FIXTURE_TRUNCATE_IN_STEP,
    FIXTURE_RESET,
    FIXTURE_FORK,
    FIXTURE_OPEN,
    FIXTURE_CLOSE,
    FIXTURE_ROWS, /* reorder, repeat, select: forks, then closes */
    FIXTURE_FILL,
    FIXTURE_CONVERT, /* to specs computed from the old ones and the detail */
    FIXTURE_SAVE,    /* and load: the same cache, with its full pages mapped from the file */
    FIXTURE_N_OPS
} fixture_op_kind;

/* Numbers are reduced to valid ones when the operation is executed. */
typedef struct fixture_op {
    fixture_op_kind kind;
    unsigned cache, amount, detail, fail;
} fixture_op;

typedef struct fixture_member {
    kv_cache *cache;
    model_cache *model;
} fixture_member;

/* Counts of events, so that tests can check that they occurred. */
typedef struct fixture_counts {
    int refused;         /* operations refused by the budget or failed allocations */
    int quantized;       /* quantized tokens seen */
    int converted, kept; /* conversions done and refused */
    int saved;
    size_t offload; /* bytes seen in the offload file */
} fixture_counts;

typedef struct fixture {
    const fixture_setting *set;
    kernel_table kernels;
    kv_pool *pool;
    model_pool *model_pool;
    fixture_member members[2 * FIXTURE_CACHES];
    int n_members;
    uint32_t next_token;
    const char *problem;
    char text[512];
    fixture_counts counts;
} fixture;

/* Keeps the test's files in memory from here on where the system supports it, since saving waits for the disk. */
void fixture_files_in_memory(void);

/* An empty fixture; pool: NULL for a new one. */
void fixture_open(fixture *w, const fixture_setting *set, kv_pool *pool);
void fixture_do(fixture *w, const fixture_op *op);
/* Sets `problem` when a cache differs from its model. */
void fixture_check(fixture *w, const fixture_member *m);
void fixture_check_all(fixture *w);
/* Closes every cache, and the pool if the fixture opened it; nothing may leak. */
void fixture_close(fixture *w);

/* A call of n tokens in steps of at most `most_step`, and its parts. False when a step was refused. */
bool fixture_call(fixture *w, fixture_member *m, const uint32_t *tokens, int n, int most_step);
/* Reserves n tokens, compares the result, stores them; fail: 0, or the number of the failing allocation. */
bool fixture_step(fixture *w, fixture_member *m, const uint32_t *tokens, int n, unsigned order, unsigned fail);
void fixture_commit(fixture *w, fixture_member *m, const uint32_t *tokens, unsigned order);
bool fixture_fork(fixture *w, fixture_member *out, const fixture_member *m, unsigned fail);
bool fixture_add(fixture *w, fixture_member *out, unsigned fail); /* an empty cache */
void fixture_drop(fixture_member *m);

/* The same for fixed sequences, which fail when an operation is refused. */
uint32_t *fixture_tokens(void); /* [MODEL_TOKENS], all different */
fixture_member *fixture_new(fixture *w);
fixture_member *fixture_fork_of(fixture *w, const fixture_member *m);
void fixture_put(fixture *w, fixture_member *m, const uint32_t *tokens, int n, int most_step);
void fixture_cut(fixture_member *m, int64_t n);
/* Tokens that both of two caches of equal length hold must be equal, bit for bit. */
void fixture_assert_same(const fixture *w, const kv_cache *a, const kv_cache *b);
void fixture_assert_same_stream(const fixture *w, const kv_cache *a, const kv_cache *b, int entry, bool is_key,
                                int64_t begin, int64_t end);

void fixture_random_ops(fixture_op *ops, int n, uint64_t seed);
/* Runs a setting with random operations; fails the test with the shortest failing sequence. Returns the number of
 * operations; adds to *counts. */
int fixture_run_random(const fixture_setting *set, fixture_counts *counts);

#endif
