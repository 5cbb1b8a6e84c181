/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/json.h"

/* vLLM's bounds, so that its dashboards and alerts carry over. */
static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                            1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                      0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

#define BOUNDS(list) (list), sizeof(list) / sizeof *(list)

static const struct {
    const char *name, *help;
    const double *bounds;
    size_t n;
} times[N_METRIC_TIMES] = {
    [TIME_TO_FIRST_TOKEN] = {"time_to_first_token", "From a request's arrival to its first token.",
                             BOUNDS(first_token_bounds)},
    [INTER_TOKEN_LATENCY] = {"inter_token_latency", "Between one token of an answer and the next.",
                             BOUNDS(token_bounds)},
    [E2E_REQUEST_LATENCY] = {"e2e_request_latency", "From a request's arrival to its end.", BOUNDS(request_bounds)},
    [REQUEST_QUEUE_TIME] = {"request_queue_time", "From a request's arrival to the beginning of its computation.",
                            BOUNDS(request_bounds)},
    [REQUEST_PREFILL_TIME] = {"request_prefill_time", "Computing the prompt of a request.", BOUNDS(request_bounds)},
    [REQUEST_DECODE_TIME] = {"request_decode_time", "From the prompt of a request to its end.", BOUNDS(request_bounds)},
};

static const char *const finished_reasons[N_FINISHED] = {"stop", "length", "abort"};

/* Those of error_type, and whatever else. */
static const char *const failure_reasons[N_FAILURES] = {
    "invalid_request_error", "authentication_error", "permission_error",
    "not_found_error",       "rate_limit_error",     "server_error",
    "not_supported_error",   "unavailable_error",    "other"};

/* ---- counting ---- */

void metrics_time(metrics *m, metric_time which, double ms) {
    double seconds = ms > 0 ? ms / 1000 : 0;
    size_t i = 0;
    while (i < times[which].n && seconds > times[which].bounds[i]) i++;
    m->times[which].counts[i]++;
    m->times[which].sum += seconds;
}

static size_t finished_as(const char *reason) {
    if (strcmp(reason, "length") == 0 || strcmp(reason, "time") == 0) return 1;
    return strcmp(reason, "cancelled") == 0 ? 2 : 0;
}

void metrics_finish(metrics *m, const mn_generation *g, double e2e_ms) {
    metrics_time(m, E2E_REQUEST_LATENCY, e2e_ms);
    metrics_time(m, REQUEST_QUEUE_TIME, g->queue_ms);
    metrics_time(m, REQUEST_PREFILL_TIME, g->prompt_ms - g->queue_ms);
    metrics_time(m, REQUEST_DECODE_TIME, g->predicted_ms);
    for (size_t i = 0; i < g->n_sequences; i++) m->generation_tokens += g->sequences[i]->n_ids;
    if (g->n_sequences == 0) return;
    m->prompt_tokens += g->sequences[0]->prompt_tokens;
    m->cached_tokens += g->sequences[0]->cached_tokens;
    m->finished[finished_as(g->sequences[0]->finish_reason)]++;
}

void metrics_fail(metrics *m, const char *type) {
    size_t i = 0;
    while (i < N_FAILURES - 1 && strcmp(type, failure_reasons[i]) != 0) i++;
    atomic_fetch_add_explicit(&m->failures[i], 1, memory_order_relaxed);
}

/* ---- writing ---- */

static void put_type(bytes *out, const char *name, const char *help, const char *type) {
    bytes_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_whole(bytes *out, const char *name, const char *labels, uint64_t value) {
    bytes_printf(out, "%s{%s} %llu\n", name, labels, (unsigned long long)value);
}

/* A metric of one whole number. */
static void put_one(bytes *out, const char *labels, const char *name, const char *type, const char *help,
                    uint64_t value) {
    put_type(out, name, help, type);
    put_whole(out, name, labels, value);
}

static void put_times(bytes *out, const char *labels, const metrics *m, metric_time which) {
    char name[64];
    uint64_t count = 0;
    snprintf(name, sizeof name, "mneme_%s_seconds", times[which].name);
    put_type(out, name, times[which].help, "histogram");
    for (size_t i = 0; i < times[which].n; i++) {
        count += m->times[which].counts[i];
        bytes_printf(out, "%s_bucket{%s,le=\"%g\"} %llu\n", name, labels, times[which].bounds[i],
                     (unsigned long long)count);
    }
    count += m->times[which].counts[times[which].n];
    bytes_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} ", name, labels, (unsigned long long)count, name,
                 labels);
    json_put_real(out, m->times[which].sum);
    bytes_printf(out, "\n%s_count{%s} %llu\n", name, labels, (unsigned long long)count);
}

static void put_engine(bytes *out, const char *labels, const mn_engine_info *e) {
    static const char pages[] = "mneme_kv_cache_pages";
    double usage = e->memory_limit ? (double)e->cache_bytes / (double)e->memory_limit : 0;
    put_one(out, labels, "mneme_num_requests_running", "gauge", "Requests being computed.", e->num_requests_running);
    put_one(out, labels, "mneme_num_requests_waiting", "gauge", "Requests that wait.", e->num_requests_waiting);
    put_one(out, labels, "mneme_num_preemptions_total", "counter",
            "Requests that gave their pages back and waited again.", e->n_preemptions);
    put_one(out, labels, "mneme_kv_cache_bytes", "gauge", "Resident bytes of all caches.", e->cache_bytes);
    put_one(out, labels, "mneme_kv_cache_limit_bytes", "gauge", "What caches may hold; 0: no limit.", e->memory_limit);
    put_type(out, pages, "Pages of all caches, those that caches share once, by where they are.", "gauge");
    bytes_printf(out, "%s{%s,state=\"resident\"} %llu\n", pages, labels, (unsigned long long)e->n_resident_pages);
    bytes_printf(out, "%s{%s,state=\"offloaded\"} %llu\n", pages, labels, (unsigned long long)e->n_offloaded_pages);
    put_one(out, labels, "mneme_kv_cache_offloaded_bytes", "gauge", "Bytes of offloaded pages.", e->offloaded_bytes);
    put_type(out, "mneme_kv_cache_usage_ratio", "Bytes of caches by their limit; 0 without a limit.", "gauge");
    bytes_printf(out, "mneme_kv_cache_usage_ratio{%s} ", labels);
    json_put_real(out, usage);
    bytes_append_text(out, "\n");
    put_one(out, labels, "mneme_prefix_cache_bytes", "gauge", "Bytes of the prefix cache, each page once.",
            e->kept_bytes);
    put_one(out, labels, "mneme_prefix_cache_entries", "gauge", "Cached prefixes.", e->n_kept);
}

static void put_counts(bytes *out, const char *labels, metrics *m) {
    static const char success[] = "mneme_request_success_total", failures[] = "mneme_request_failures_total";
    put_one(out, labels, "mneme_prefix_cache_queries_total", "counter", "Prompt tokens looked for in the prefix cache.",
            m->prompt_tokens);
    put_one(out, labels, "mneme_prefix_cache_hits_total", "counter", "Prompt tokens found there.", m->cached_tokens);
    put_one(out, labels, "mneme_prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.",
            m->prompt_tokens);
    put_one(out, labels, "mneme_generation_tokens_total", "counter", "Tokens generated.", m->generation_tokens);
    put_type(out, success, "Requests that have ended, by reason.", "counter");
    for (size_t i = 0; i < N_FINISHED; i++)
        bytes_printf(out, "%s{%s,finished_reason=\"%s\"} %llu\n", success, labels, finished_reasons[i],
                     (unsigned long long)m->finished[i]);
    put_type(out, failures, "Requests refused or failed, by the type of the error.", "counter");
    for (size_t i = 0; i < N_FAILURES; i++)
        bytes_printf(out, "%s{%s,reason=\"%s\"} %llu\n", failures, labels, failure_reasons[i],
                     atomic_load_explicit(&m->failures[i], memory_order_relaxed));
}

static uint64_t resident_bytes(int statm) {
    char text[128] = "";
    char *end = text;
    if (pread(statm, text, sizeof text - 1, 0) > 0) strtoull(text, &end, 10); /* the first number: its addresses */
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void put_process(bytes *out, int64_t started, int statm) {
    struct rusage used = {0};
    getrusage(RUSAGE_SELF, &used);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    put_type(out, "process_resident_memory_bytes", "Resident memory of the process.", "gauge");
    bytes_printf(out, "process_resident_memory_bytes %llu\n", (unsigned long long)resident_bytes(statm));
    put_type(out, "process_cpu_seconds_total", "Processor time of the process.", "counter");
    bytes_printf(out, "process_cpu_seconds_total %.6f\n", seconds);
    put_type(out, "process_start_time_seconds", "When the server was started, since 1970.", "gauge");
    bytes_printf(out, "process_start_time_seconds %lld\n", (long long)started);
}

static void put_labels(bytes *labels, const char *model_name) {
    bytes_append_text(labels, "model_name=\"");
    for (const char *c = model_name; *c; c++) {
        if (*c == '"' || *c == '\\') bytes_append(labels, "\\", 1);
        bytes_append(labels, *c == '\n' ? "\\n" : c, *c == '\n' ? 2 : 1);
    }
    bytes_append_text(labels, "\"");
}

void metrics_write(bytes *out, metrics *m, const mn_engine_info *engine, const char *model_name, int64_t started,
                   int statm) {
    bytes labels = {0};
    put_labels(&labels, model_name);
    const char *text = bytes_text(&labels);
    put_engine(out, text, engine);
    put_counts(out, text, m);
    for (metric_time i = 0; i < N_METRIC_TIMES; i++) put_times(out, text, m, i);
    put_process(out, started, statm);
    put_type(out, "mneme_build_info", "The version of the library.", "gauge");
    bytes_printf(out, "mneme_build_info{%s,version=\"%s\"} 1\n", text, mn_version());
    out->failed = out->failed || labels.failed;
    bytes_clear(&labels);
}

void metrics_write_speech(bytes *out, const speech_counts *counts, const char *model_name) {
    static const char total[] = "mneme_transcriptions_total", seconds[] = "mneme_transcribed_seconds_total";
    bytes labels = {0};
    put_labels(&labels, model_name);
    const char *text = bytes_text(&labels);
    put_one(out, text, "mneme_num_transcriptions_running", "gauge", "Recordings being transcribed.", counts->running);
    put_one(out, text, "mneme_num_transcriptions_waiting", "gauge", "Recordings that wait.", counts->waiting);
    put_type(out, total, "Transcriptions that have ended, by reason.", "counter");
    bytes_printf(out, "%s{%s,finished_reason=\"stop\"} %llu\n", total, text, (unsigned long long)counts->finished);
    bytes_printf(out, "%s{%s,finished_reason=\"abort\"} %llu\n", total, text, (unsigned long long)counts->aborted);
    put_type(out, seconds, "Seconds of recordings that were transcribed.", "counter");
    bytes_printf(out, "%s{%s} %.3f\n", seconds, text, counts->seconds);
    out->failed = out->failed || labels.failed;
    bytes_clear(&labels);
}
