/* The threads that transcribe, beside the one that steps the engine of the text model: their jobs wait in one queue,
 * and each thread answers one after the other. The pools of both models have all threads, and the system shares the
 * cores between them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_SPEECH_H
#define MNEME_SERVE_SPEECH_H

#include "job.h"

/* Requests with a recording that are received, wait or are computed: their bytes are in memory. */
enum { MOST_RECORDINGS = 32 };

typedef struct speech speech;

/* most: requests at a time. */
mn_status speech_open(speech **out, size_t most, struct server *s);
/* Cancels jobs that are not done, and waits for them; those that are added later are refused. */
void speech_stop(speech *s);
void speech_close(speech **s);

/* Counts a request from its head to the end of its answer; false: there are too many. */
bool speech_enter(speech *s);
void speech_leave(speech *s);

/* Takes the job, a query. On failure it is not closed. */
mn_status speech_add(speech *s, job *j, refusal *why);
/* Ends a job of this owner (NULL: of anybody); false: it is not there. */
bool speech_cancel(speech *s, const char *id, const char *owner);
size_t speech_jobs(speech *s); /* that wait or run */
/* By the thread that answers the job: how many seconds of its recording are done; false: it is cancelled. */
bool speech_goes_on(speech *s, job *j, double done, double duration);
bool speech_stops(speech *s);

void speech_visit(speech *s, void (*visit)(void *user, const job *j), void *user);
speech_counts speech_count(speech *s);

#endif
