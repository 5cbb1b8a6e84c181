/* SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/thread.h"

enum { N_TASKS = 1000 };

static void count_task(void *arg, int task, int thread) {
    (void)thread;
    ((int *)arg)[task]++;
}

static void every_task_runs_once(void **state) {
    (void)state;
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        thread_pool *pool = NULL;
        assert_ok(thread_pool_open(&pool, n_threads));
        static int counts[N_TASKS];
        memset(counts, 0, sizeof counts);
        int n_jobs = 0;
        for (int n = 0; n < N_TASKS; n += 7, n_jobs++) thread_run(pool, n, count_task, counts);
        for (int i = 0; i < N_TASKS; i++) {
            int expected = 0;
            for (int n = 0; n < N_TASKS; n += 7) expected += i < n;
            assert_int_equal(counts[i], expected);
        }
        thread_pool_close(&pool);
        assert_null(pool);
    }
}

static void mark_task(void *arg, int task, int thread) {
    (void)thread;
    ((unsigned char *)arg)[task]++;
}

/* Task counts around powers of two: no counter of the pool is narrower than an int. */
static void any_number_of_tasks_completes(void **state) {
    (void)state;
    static const int numbers[] = {(1 << 16) - 1, 1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1 << 21};
    unsigned char *marks = mem_alloc(1 << 21, 1);
    assert_non_null(marks);
    for (int n_threads = 2; n_threads <= 4; n_threads++) {
        thread_pool *pool = NULL;
        assert_ok(thread_pool_open(&pool, n_threads));
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            int n = numbers[i], n_wrong = 0;
            memset(marks, 0, 1 << 21);
            thread_run(pool, n, mark_task, marks);
            for (int task = 0; task < 1 << 21; task++) n_wrong += marks[task] != (task < n);
            assert_int_equal(n_wrong, 0);
        }
        thread_pool_close(&pool);
    }
    mem_free(marks);
}

static void bad_counts_are_refused(void **state) {
    (void)state;
    thread_pool *pool = NULL;
    assert_fails(MN_E_ARG, "threads is -1", thread_pool_open(&pool, -1));
    assert_fails(MN_E_ARG, "threads is 1000", thread_pool_open(&pool, 1000));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_task_runs_once),
                                       cmocka_unit_test(any_number_of_tasks_completes),
                                       cmocka_unit_test(bad_counts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
