/* What reads and writes files for a job, on a thread of its own, so that no step waits for a disk.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_FILE_WORKER_H
#define MNEME_SERVE_FILE_WORKER_H

#include "job.h"

typedef struct file_worker file_worker;

/* Hands a query to the thread that computes; takes the job unless it fails. */
typedef mn_status ask_query(struct server *s, job *j, refusal *why);

mn_status file_worker_open(file_worker **out, struct server *s, ask_query *ask);
/* Runs those that are there, ends the thread, and takes no more; a query that one of them asks comes after the stop of
 * the thread that computes, and is refused. NULL: nothing to do. */
void file_worker_stop(file_worker *worker);
void file_worker_close(file_worker **worker);

/* Takes a job, does its file work, and then asks its query, if it has one. MN_E_FULL: it has stopped. */
mn_status file_worker_add(file_worker *worker, job *j, refusal *why);

#endif
