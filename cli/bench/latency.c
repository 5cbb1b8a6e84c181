/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/latency.h"

#include <math.h>
#include <stdlib.h>

static int order_of(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double latency_percentile(const double *sorted, size_t n, double q) {
    double place = q / 100 * (double)(n - 1);
    size_t below = (size_t)place, above = below + 1 < n ? below + 1 : n - 1;
    return sorted[below] + (sorted[above] - sorted[below]) * (place - (double)below);
}

/* Sorts the values. */
static void summarise(latency *out, double *values, size_t n, const double *percentiles, size_t n_percentiles) {
    double sum = 0, squares = 0;
    *out = (latency){.n = n};
    if (n == 0) return;
    qsort(values, n, sizeof *values, order_of);
    for (size_t i = 0; i < n; i++) sum += values[i];
    out->mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (values[i] - out->mean) * (values[i] - out->mean);
    out->std = sqrt(squares / (double)n);
    out->median = latency_percentile(values, n, 50);
    for (size_t i = 0; i < n_percentiles; i++) out->percentiles[i] = latency_percentile(values, n, percentiles[i]);
}

/* Appends the values of one request; returns how many there are then. */
static size_t values_of(double *values, size_t n, latency_kind kind, const timed_request *r) {
    switch (kind) {
    case LATENCY_TTFT: values[n++] = r->first - r->start; break;
    case LATENCY_E2EL: values[n++] = r->last - r->start; break;
    case LATENCY_TPOT:
        if (r->output_tokens > 1) values[n++] = (r->last - r->first) / (double)(r->output_tokens - 1);
        break;
    case LATENCY_ITL:
        for (size_t i = 0; i < r->n_gaps; i++) values[n++] = r->gaps[i];
        break;
    case N_LATENCIES: break;
    }
    return n;
}

/* Most requests that were there at one moment: one more at each start, one less at each end. */
static size_t peak(double *starts, double *ends, size_t n) {
    size_t most = 0, ended = 0;
    qsort(starts, n, sizeof *starts, order_of);
    qsort(ends, n, sizeof *ends, order_of);
    for (size_t i = 0; i < n; i++) {
        while (ends[ended] < starts[i]) ended++;
        if (i + 1 - ended > most) most = i + 1 - ended;
    }
    return most;
}

static void count(serve_metrics *out, const timed_request *requests, size_t n) {
    double begin = INFINITY, end = -INFINITY;
    bool tells_cached = false;
    for (size_t i = 0; i < n; i++) {
        const timed_request *r = &requests[i];
        begin = fmin(begin, r->start);
        end = fmax(end, r->last);
        out->completed += r->ok;
        out->failed += !r->ok;
        if (!r->ok) continue;
        out->input_tokens += r->input_tokens;
        out->output_tokens += r->output_tokens;
        out->cached_tokens += r->cached_tokens;
        tells_cached = tells_cached || r->tells_cached;
    }
    if (!tells_cached) out->cached_tokens = -1;
    if (end > begin) {
        double seconds = (end - begin) / 1e3;
        out->duration_ms = end - begin;
        out->request_throughput = (double)out->completed / seconds;
        out->output_throughput = (double)out->output_tokens / seconds;
        out->total_throughput = (double)(out->input_tokens + out->output_tokens) / seconds;
    }
}

mn_status latency_summarise(serve_metrics *out, const timed_request *requests, size_t n, const double *percentiles,
                            size_t n_percentiles) {
    size_t most = 2 * n, n_gaps = 0;
    *out = (serve_metrics){0};
    for (size_t i = 0; i < n; i++) n_gaps += requests[i].n_gaps;
    double *values = mem_alloc(most > n_gaps ? most : n_gaps, sizeof *values);
    if (!values) return mem_no_memory();
    count(out, requests, n);
    for (size_t i = 0; i < n; i++) {
        values[i] = requests[i].start;
        values[n + i] = requests[i].last;
    }
    out->peak_concurrent = peak(values, values + n, n);
    for (int kind = 0; kind < N_LATENCIES; kind++) {
        size_t used = 0;
        for (size_t i = 0; i < n; i++) {
            if (requests[i].ok) used = values_of(values, used, (latency_kind)kind, &requests[i]);
        }
        summarise(&out->times[kind], values, used, percentiles, n_percentiles);
    }
    mem_free(values);
    return MN_OK;
}
