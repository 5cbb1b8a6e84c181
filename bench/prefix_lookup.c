/* How long the prefix cache takes to find 4,096 tokens of a prompt among 10,000 stored texts, in processor time:
 * bench_prefix_lookup MODEL. Half of the texts begin alike in groups of 50, the others with tokens of their own. Exit
 * code 1 when the median is 20 microseconds or more.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "bench_timer.h"
#include "session/prefix_tree.h"

enum { N_STORED = 10000, PREFIX = 4096, OWN = 64, TEXT = PREFIX + OWN, GROUP = 50, LOOKUPS = 4001 };

static void check(mn_status status) {
    if (status == MN_OK) return;
    fprintf(stderr, "bench_prefix_lookup: %s\n", mn_last_error());
    exit(1);
}

static uint64_t next_random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Text i is the same whenever it is asked for. */
static void make_text(int32_t *ids, int i, uint64_t own) {
    uint64_t of_prefix = (uint64_t)(i % 2 ? i : i / 2 / GROUP + N_STORED), of_rest = own;
    for (int k = 0; k < PREFIX; k++) ids[k] = (int32_t)(next_random(&of_prefix) % 40000);
    for (int k = PREFIX; k < TEXT; k++) ids[k] = (int32_t)(next_random(&of_rest) % 40000);
}

/* Every text is kept with a fork of one cache: what it holds does not matter to the search. */
static prefix_root *store(prefix_tree *tree, const mn_session *session) {
    static int32_t ids[TEXT];
    prefix_root *root = NULL;
    check(prefix_root_of(&root, tree, session, NULL));
    for (int i = 0; i < N_STORED; i++) {
        kv_cache *fork = NULL;
        make_text(ids, i, (uint64_t)i);
        check(kv_fork(&fork, session->cache));
        prefix_entry *kept;
        check(prefix_adopt(&kept, root, ids, TEXT, session->regime, fork, NULL));
    }
    return root;
}

int main(int argc, char **argv) {
    static double times[LOOKUPS];
    static int32_t ids[TEXT];
    mn_model *model = NULL;
    mn_session *session = NULL;
    prefix_tree *tree = NULL;
    uint64_t seed = 1;
    if (argc != 2) {
        fprintf(stderr, "usage: bench_prefix_lookup MODEL\n");
        return 2;
    }
    check(mn_model_open(&model, argv[1], NULL));
    check(mn_session_open(&session, model, NULL));
    check(mn_session_step(session, ids, TEXT, NULL)); /* token 0, again and again */
    check(prefix_open(&tree));
    const prefix_root *root = store(tree, session);
    for (int i = 0; i < LOOKUPS; i++) {
        make_text(ids, (int)(next_random(&seed) % N_STORED), N_STORED + (uint64_t)i); /* with an end of its own */
        const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
        const prefix_match match = prefix_find(root, ids, TEXT - 1);
        times[i] = 1e6 * (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start);
        if (match.now < PREFIX) check(status_fail(MN_E_ARG, "found %lld tokens", (long long)match.now));
    }
    const double median = median_of(times, LOOKUPS);
    printf("%d tokens among %d texts: %.2f microseconds (median of %d; 99 of 100 below %.2f)\n", PREFIX, N_STORED,
           median, LOOKUPS, times[LOOKUPS * 99 / 100]);
    prefix_close(&tree);
    mn_session_close(&session);
    mn_model_close(&model);
    return median < 20 ? 0 : 1;
}
