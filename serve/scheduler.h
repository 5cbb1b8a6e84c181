/* The thread that computes: it alone steps the engine. Jobs come from any thread; queries are answered between two
 * steps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_SCHEDULER_H
#define MNEME_SERVE_SCHEDULER_H

#include "file_worker.h"

typedef struct scheduler scheduler;

typedef struct scheduler_options {
    mn_model *model;
    const mn_cache_options *cache;
    uint64_t memory_limit;
    const char *cache_dir; /* NULL: none */
    uint64_t cache_dir_limit;
    double cache_ttl;               /* seconds; 0: none */
    uint64_t cache_quota;           /* bytes of each owner's kept texts; 0: no limit */
    bool no_prefix_cache;           /* nothing is kept */
    uint64_t prefix_memory;         /* bytes of all kept texts; 0: no limit */
    size_t max_num_seqs, max_queue; /* generations that wait or run */
    struct server *server;          /* that queries are about */
    file_worker *file_worker;       /* what follows them; open until the scheduler has stopped */
} scheduler_options;

mn_status scheduler_open(scheduler **out, const scheduler_options *options);
/* Cancels jobs that are not done, and waits for them; those that are added later are refused. */
void scheduler_stop(scheduler *s);
void scheduler_close(scheduler **s);

/* Takes the job. On failure it is not closed; *why tells whether the queue is full or the server shuts down. */
mn_status scheduler_add(scheduler *s, job *j, refusal *why);
/* Ends a job of this owner (NULL: of anybody); false: it is not there. */
bool scheduler_cancel(scheduler *s, const char *id, const char *owner);
size_t scheduler_jobs(scheduler *s); /* that wait or run */

/* For queries, on the thread that computes: generations that wait or run, and the engine. */
void scheduler_visit(scheduler *s, void (*visit)(void *user, const job *j), void *user);
mn_engine *scheduler_engine(scheduler *s);

#endif
