/* What a server counts and measures, and how Prometheus reads it: vLLM's names, after "mneme_".
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_METRICS_H
#define MNEME_SERVE_METRICS_H

#include <stdatomic.h>

#include "base/mem.h"
#include "mneme.h"

typedef enum metric_time {
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_REQUEST_LATENCY,
    REQUEST_QUEUE_TIME,
    REQUEST_PREFILL_TIME,
    REQUEST_DECODE_TIME,
    N_METRIC_TIMES
} metric_time;

enum { MOST_BOUNDS = 24, N_FINISHED = 3, N_FAILURES = 9 };

/* Used by the thread that computes, but for the failures, which any thread counts. Zero is empty. */
typedef struct metrics {
    struct {
        uint64_t counts[MOST_BOUNDS + 1]; /* of each bucket alone; behind the last bound, the rest */
        double sum;                       /* seconds */
    } times[N_METRIC_TIMES];
    uint64_t prompt_tokens, cached_tokens, generation_tokens;
    uint64_t finished[N_FINISHED];
    atomic_ullong failures[N_FAILURES];
} metrics;

/* Of the speech model. */
typedef struct speech_counts {
    size_t running, waiting;
    uint64_t finished, aborted; /* since the beginning: whole, and cancelled */
    double seconds;             /* of recordings that were transcribed */
} speech_counts;

void metrics_time(metrics *m, metric_time which, double ms);
/* A generation that has ended, e2e_ms after its request came. */
void metrics_finish(metrics *m, const mn_generation *generation, double e2e_ms);
/* A request that was refused or has failed; type: error_type's. */
void metrics_fail(metrics *m, const char *type);

/* The text format 0.0.4. started: of the process, seconds since 1970; statm: its /proc/self/statm, open. */
void metrics_write(bytes *out, metrics *m, const mn_engine_info *engine, const char *model_name, int64_t started,
                   int statm);

/* What the speech model did, in the same format; all 0 where there is none. */
void metrics_write_speech(bytes *out, const speech_counts *counts, const char *model_name);

#endif
