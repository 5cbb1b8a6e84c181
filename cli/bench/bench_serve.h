/* `mneme bench --serve URL`: measures a server that speaks OpenAI's protocol.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_SERVE_H
#define MNEME_CLI_BENCH_SERVE_H

#include "bench/latency.h"
#include "options.h"

enum { SERVE_MOST_FAILURES = 8 };

/* What is measured: the options of the command, read. Strings are those of the options. */
typedef struct serve_plan {
    const char *address;
    bool is_chat, ignore_eos, warms_up;
    double request_rate;                 /* a second; INFINITY: all at once */
    size_t num_prompts, max_concurrency; /* max_concurrency 0: no limit */
    size_t input_len, output_len, prefix_len;
    uint64_t seed;
    double percentiles[LATENCY_MOST_PERCENTILES];
    size_t n_percentiles;
    char model[256]; /* as the server calls it */
} serve_plan;

/* Requests that failed for the same reason. */
typedef struct serve_failure {
    char reason[320];
    size_t n;
} serve_failure;

typedef struct serve_result {
    serve_metrics metrics;
    serve_failure failures[SERVE_MOST_FAILURES];
    size_t n_failures;
    bool has_tokenizer; /* the prompts have the requested number of tokens */
} serve_result;

/* Whether --serve is given. */
bool bench_serves(const options *o);

/* An exit code; a failure has been reported. */
int bench_serve(const options *o);

/* MN_E_ARG for a flag that means nothing with --serve, or nothing without it. */
mn_status bench_serve_check(const options *o);

mn_status serve_plan_read(serve_plan *plan, const options *o);

/* Milliseconds from the arrival of request i to the next: exponentially distributed, so that arrivals are a Poisson
 * process of the rate. */
double serve_arrival_gap(const serve_plan *plan, size_t i);

/* To stdout: lines for people, or one JSON object. */
void serve_report(const serve_plan *plan, const serve_result *r, bool as_json);

#endif
