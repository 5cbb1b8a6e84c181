/* Forks of a long session, and the memory of a prefix that many sequences share: bench_fork MODEL. Exit code 1 when a
 * fork of 8,192 tokens takes 50 microseconds or more, or 32 sequences with one prefix of 4,096 tokens hold more than
 * the prefix and their own tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench_timer.h"
#include "session/session.h"

enum { LONG = 8192, PREFIX = 4096, ROWS = 32, FORKS = 2001, TAIL = 5 };

static void check(mn_status status) {
    if (status == MN_OK) return;
    fprintf(stderr, "bench_fork: %s\n", mn_last_error());
    exit(1);
}

static double microseconds(void) {
    return 1e6 * seconds_of(CLOCK_MONOTONIC);
}

/* The content of the tokens does not matter. */
static mn_session *read_tokens(mn_model *model, size_t n) {
    static int32_t ids[LONG];
    mn_session *session = NULL;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 2654435761u % 40000u);
    check(mn_session_open(&session, model, NULL));
    check(mn_session_step(session, ids, n, NULL));
    return session;
}

static double fork_time(mn_model *model) {
    static double times[FORKS];
    mn_session *session = read_tokens(model, LONG), *fork = NULL;
    for (int i = 0; i < FORKS; i++) {
        double start = microseconds();
        check(mn_session_fork(&fork, session));
        times[i] = microseconds() - start;
        mn_session_close(&fork);
    }
    mn_session_close(&session);
    qsort(times, FORKS, sizeof *times, compare_doubles);
    return times[FORKS / 2];
}

int main(int argc, char **argv) {
    mn_model *model = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: bench_fork MODEL\n");
        return 2;
    }
    check(mn_model_open(&model, argv[1], NULL));
    double median = fork_time(model);
    printf("a fork of %d tokens: %.1f microseconds (median of %d)\n", LONG, median, FORKS);

    kv_pool *pool = model->core->pool;
    mn_session *rows[ROWS] = {read_tokens(model, PREFIX)};
    size_t prefix = kv_pool_used(pool), own = PAGE_TOKENS * kv_cache_token_bytes(rows[0]->cache);
    for (int r = 1; r < ROWS; r++) check(mn_session_fork(&rows[r], rows[0]));
    for (int r = 0; r < ROWS; r++) {
        for (int32_t t = 0; t < TAIL; t++) check(mn_session_step(rows[r], &(int32_t){100 + r + t}, 1, NULL));
    }
    size_t all = kv_pool_used(pool), most = prefix + ROWS * own;
    printf(
        "%d sequences of one prefix of %d tokens, %d tokens each of their own: %zu bytes; the prefix takes %zu, a page %zu\n",
        ROWS, PREFIX, TAIL, all, prefix, own);
    for (int r = 0; r < ROWS; r++) mn_session_close(&rows[r]);
    mn_model_close(&model);
    return median >= 50 || all > most;
}
