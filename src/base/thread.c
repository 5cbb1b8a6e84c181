/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* How often a thread looks for work before it sleeps. Slow builds, whose tests run beside each other, set fewer. */
#ifndef MN_SPIN_ROUNDS
#define MN_SPIN_ROUNDS 4000
#endif
enum { SPIN_ROUNDS = MN_SPIN_ROUNDS, TASK_BITS = 32 };

/* The ticket holds everything a thread needs to claim a task with one atomic addition: number of tasks (32 bits) | next
 * task (32 bits). A claim below the number of tasks keeps the job alive until it is counted in `done`, so run and arg
 * can be read after it without a race. Claims beyond the last task, one or two a thread, must not carry into the number
 * of tasks. */
_Static_assert((uint64_t)INT_MAX + 2 * MN_MOST_THREADS < (uint64_t)1 << TASK_BITS, "every int is a number of tasks");

struct thread_pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done;  /* finished tasks of this job; also a futex for the caller */
    _Alignas(64) _Atomic uint32_t alarm; /* changes with every job; a futex for the workers */
    _Atomic uint32_t n_sleeping;         /* workers asleep on the alarm */
    _Atomic uint32_t caller_sleeps;
    _Atomic bool closing;
    thread_task run;
    void *arg;
    int n_threads;
    pthread_t workers[MN_MOST_THREADS];
};

typedef struct worker_start {
    thread_pool *pool;
    int thread;
    _Atomic bool taken;
} worker_start;

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t ticket_tasks(uint64_t ticket) {
    return (uint32_t)(ticket >> TASK_BITS);
}
static uint32_t ticket_next(uint64_t ticket) {
    return (uint32_t)ticket;
}

/* Claims and runs tasks until none is left; what was run is counted at the end, since every count would move the line
 * between cores. Until then the job, and with it the ticket, does not change. */
static void work(thread_pool *pool, int thread) {
    uint64_t seen = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    uint32_t n_tasks = ticket_tasks(seen), n_run = 0;
    if (ticket_next(seen) >= n_tasks) return;
    for (;; n_run++) {
        uint64_t claim = atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_acq_rel);
        uint32_t task = ticket_next(claim);
        n_tasks = ticket_tasks(claim);
        if (task >= n_tasks) break;
        pool->run(pool->arg, (int)task, thread);
    }
    if (n_run > 0 && atomic_fetch_add_explicit(&pool->done, n_run, memory_order_acq_rel) + n_run == n_tasks &&
        atomic_load(&pool->caller_sleeps)) {
        futex_wake(&pool->done, 1);
    }
}

static void *worker_main(void *arg) {
    worker_start *start = arg;
    thread_pool *pool = start->pool;
    int thread = start->thread;
    atomic_store(&start->taken, true);
    uint32_t seen = 0;
    while (!atomic_load(&pool->closing)) {
        uint32_t alarm = atomic_load_explicit(&pool->alarm, memory_order_acquire);
        for (int i = 0; alarm == seen && i < SPIN_ROUNDS; i++) {
            pause_briefly();
            alarm = atomic_load_explicit(&pool->alarm, memory_order_acquire);
        }
        if (alarm == seen) {
            atomic_fetch_add(&pool->n_sleeping, 1);
            futex_wait(&pool->alarm, seen);
            atomic_fetch_sub(&pool->n_sleeping, 1);
            continue;
        }
        seen = alarm;
        work(pool, thread);
    }
    return NULL;
}

void thread_run(thread_pool *pool, int n_tasks, thread_task run, void *arg) {
    if (n_tasks <= 0) return;
    if (pool->n_threads == 1 || n_tasks == 1) {
        for (int task = 0; task < n_tasks; task++) run(arg, task, 0);
        return;
    }
    pool->run = run;
    pool->arg = arg;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->ticket, (uint64_t)n_tasks << TASK_BITS, memory_order_release);
    atomic_fetch_add(&pool->alarm, 1);
    if (atomic_load(&pool->n_sleeping)) futex_wake(&pool->alarm, MN_MOST_THREADS);
    work(pool, 0);
    uint32_t done = atomic_load_explicit(&pool->done, memory_order_acquire);
    for (int i = 0; done < (uint32_t)n_tasks && i < SPIN_ROUNDS; i++) {
        pause_briefly();
        done = atomic_load_explicit(&pool->done, memory_order_acquire);
    }
    if (done == (uint32_t)n_tasks) return;
    atomic_store(&pool->caller_sleeps, 1);
    while ((done = atomic_load(&pool->done)) < (uint32_t)n_tasks) futex_wait(&pool->done, done);
    atomic_store(&pool->caller_sleeps, 0);
}

/* Whole cores granted by the cgroup's cpu.max, or a large number. */
static int cgroup_cores(void) {
    char text[64];
    long quota = 0, period = 0;
    text[file_head(text, sizeof text - 1, "/sys/fs/cgroup/cpu.max")] = 0;
    if (sscanf(text, "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return MN_MOST_THREADS;
    long cores = (quota + period - 1) / period;
    return cores < 1 ? 1 : cores > MN_MOST_THREADS ? MN_MOST_THREADS : (int)cores;
}

int thread_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int granted = cgroup_cores();
    if (n > granted) n = granted;
    return n < 1 ? 1 : n > MN_MOST_THREADS ? MN_MOST_THREADS : n;
}

mn_status thread_pool_open(thread_pool **out, int n_threads) {
    *out = NULL;
    if (n_threads < 0 || n_threads > MN_MOST_THREADS) {
        MN_FAIL(MN_E_ARG, "threads is %d, allowed: 0 (as many as there are cores) to %d", n_threads,
                (int)MN_MOST_THREADS);
    }
    thread_pool *pool = mem_alloc(1, sizeof *pool);
    if (!pool) return MN_E_NOMEM;
    pool->n_threads = 1;
    int n_total = n_threads ? n_threads : thread_cores();
    while (pool->n_threads < n_total) {
        worker_start start = {.pool = pool, .thread = pool->n_threads};
        int code = pthread_create(&pool->workers[pool->n_threads], NULL, worker_main, &start);
        if (code != 0) {
            thread_pool_close(&pool);
            MN_FAIL(MN_E_NOMEM, "cannot start thread %d of %d: %s", start.thread + 1, n_total, strerror(code));
        }
        while (!atomic_load(&start.taken)) sched_yield();
        pool->n_threads++;
    }
    *out = pool;
    return MN_OK;
}

void thread_pool_close(thread_pool **pool) {
    thread_pool *p = *pool;
    if (!p) return;
    atomic_store(&p->closing, true);
    atomic_fetch_add(&p->alarm, 1);
    futex_wake(&p->alarm, MN_MOST_THREADS);
    for (int i = 1; i < p->n_threads; i++) pthread_join(p->workers[i], NULL);
    mem_free(p);
    *pool = NULL;
}

int thread_pool_threads(const thread_pool *pool) {
    return pool->n_threads;
}
