/* One pool of threads and one way to use it: a job of numbered tasks.
 *
 * Tasks are claimed one by one from a shared counter, so a thread that lost its core delays a job by one task, not by
 * its share. What a task computes depends on its number alone, never on the thread or on their count: results have the
 * same bits for any number of threads. Waiting threads spin briefly, then sleep.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_THREAD_H
#define MN_BASE_THREAD_H

#include "base/status.h"

typedef struct thread_pool thread_pool;

/* task: 0..n_tasks-1; thread: 0..pool_threads-1, for scratch memory only. */
typedef void (*thread_task)(void *arg, int task, int thread);

/* n_threads counts the caller; 0 means the cores this process may use (affinity and cgroup quota). */
mn_status thread_pool_open(thread_pool **out, int n_threads);
void thread_pool_close(thread_pool **pool);
int thread_pool_threads(const thread_pool *pool);

/* Runs all tasks and returns when they are done. One caller at a time. */
void thread_run(thread_pool *pool, int n_tasks, thread_task run, void *arg);

/* Cores that this process may use. */
int thread_cores(void);

#endif
