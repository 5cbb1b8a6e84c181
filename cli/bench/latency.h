/* Times of requests to a server, and what they come to, by the names of vLLM's `bench serve`.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_LATENCY_H
#define MNEME_CLI_BENCH_LATENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

enum { LATENCY_MOST_PERCENTILES = 16 };

/* One request; times are milliseconds since the same moment. */
typedef struct timed_request {
    bool ok;
    bool tells_cached;         /* the server gave cached_tokens */
    double start, first, last; /* sent, first token, end of the answer */
    double latest;             /* the newest token */
    double *gaps;              /* [n_gaps] between the events of tokens; owned */
    size_t n_gaps, gaps_capacity;
    int64_t input_tokens, output_tokens, cached_tokens;
} timed_request;

typedef struct latency {
    size_t n;                 /* values; 0: the others mean nothing */
    double mean, median, std; /* std: of the values themselves, divided by n */
    double percentiles[LATENCY_MOST_PERCENTILES];
} latency;

typedef enum latency_kind { LATENCY_TTFT, LATENCY_TPOT, LATENCY_ITL, LATENCY_E2EL, N_LATENCIES } latency_kind;

typedef struct serve_metrics {
    size_t completed, failed, peak_concurrent;
    int64_t input_tokens, output_tokens, cached_tokens; /* of completed requests; cached_tokens -1: no server said it */
    double duration_ms;                                 /* from the first request sent to the last answer */
    double request_throughput, output_throughput, total_throughput; /* a second */
    latency times[N_LATENCIES]; /* ms. TTFT: to the first token. TPOT: a token after the first, one value a request of
                                   two tokens or more. ITL: between events of tokens. E2EL: to the end of the answer */
} serve_metrics;

/* The value below which a share of q percent of n sorted values lies, by linear interpolation between neighbours, as
 * numpy's default. n is at least 1, q from 0 to 100. */
double latency_percentile(const double *sorted, size_t n, double q);

/* Requests that failed count as failed and for peak_concurrent alone. MN_E_NOMEM. */
mn_status latency_summarise(serve_metrics *out, const timed_request *requests, size_t n, const double *percentiles,
                            size_t n_percentiles);

#endif
