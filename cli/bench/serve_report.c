/* The result of `mneme bench --serve`, by the names of vLLM's `bench serve`.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "bench/bench_serve.h"
#include "output.h"

static const struct {
    const char *key, *name, *title;
} kinds[N_LATENCIES] = {
    [LATENCY_TTFT] = {"ttft", "TTFT", "Time to First Token"},
    [LATENCY_TPOT] = {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    [LATENCY_ITL] = {"itl", "ITL", "Inter-token Latency"},
    [LATENCY_E2EL] = {"e2el", "E2EL", "End-to-end Latency"},
};

/* ---- for people ---- */

static void put_line(bytes *out, const char *name, const char *value) {
    bytes_printf(out, "%-40s %12s\n", name, value);
}

static void put_count(bytes *out, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_line(out, name, text);
}

static void put_number(bytes *out, const char *name, double value) {
    char text[64];
    snprintf(text, sizeof text, "%.2f", value);
    put_line(out, name, text);
}

static void put_latency(bytes *out, const serve_plan *plan, latency_kind kind, const latency *l) {
    char name[64];
    bytes_printf(out, "%s\n", kinds[kind].title);
    if (l->n == 0) {
        put_line(out, "  no value", "");
        return;
    }
    snprintf(name, sizeof name, "  Mean %s (ms):", kinds[kind].name);
    put_number(out, name, l->mean);
    snprintf(name, sizeof name, "  Median %s (ms):", kinds[kind].name);
    put_number(out, name, l->median);
    for (size_t i = 0; i < plan->n_percentiles; i++) {
        snprintf(name, sizeof name, "  P%.12g %s (ms):", plan->percentiles[i], kinds[kind].name);
        put_number(out, name, l->percentiles[i]);
    }
}

static void put_text(bytes *out, const serve_plan *plan, const serve_result *r) {
    const serve_metrics *m = &r->metrics;
    bytes_printf(out, "%s at %s, %s\n", plan->model, plan->address, plan->is_chat ? "chat" : "completions");
    put_count(out, "Successful requests:", (int64_t)m->completed);
    put_count(out, "Failed requests:", (int64_t)m->failed);
    if (plan->max_concurrency) put_count(out, "Maximum request concurrency:", (int64_t)plan->max_concurrency);
    if (isfinite(plan->request_rate)) put_number(out, "Request rate configured (RPS):", plan->request_rate);
    put_number(out, "Benchmark duration (s):", m->duration_ms / 1e3);
    put_count(out, "Total input tokens:", m->input_tokens);
    if (m->cached_tokens >= 0) put_count(out, "Cached input tokens:", m->cached_tokens);
    put_count(out, "Total generated tokens:", m->output_tokens);
    put_number(out, "Request throughput (req/s):", m->request_throughput);
    put_number(out, "Output token throughput (tok/s):", m->output_throughput);
    put_number(out, "Total token throughput (tok/s):", m->total_throughput);
    put_count(out, "Peak concurrent requests:", (int64_t)m->peak_concurrent);
    for (int kind = 0; kind < N_LATENCIES; kind++) put_latency(out, plan, (latency_kind)kind, &m->times[kind]);
}

/* ---- JSON ---- */

static void put_latency_members(bytes *out, const serve_plan *plan, latency_kind kind, const latency *l) {
    char key[64];
    const struct {
        const char *name;
        double value;
    } rows[] = {{"mean", l->mean}, {"median", l->median}, {"std", l->std}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", rows[i].name, kinds[kind].key);
        json_put_real_member(out, key, l->n ? rows[i].value : NAN);
    }
    for (size_t i = 0; i < plan->n_percentiles; i++) {
        snprintf(key, sizeof key, "p%.12g_%s_ms", plan->percentiles[i], kinds[kind].key);
        json_put_real_member(out, key, l->n ? l->percentiles[i] : NAN);
    }
}

static void put_plan(bytes *out, const serve_plan *plan, const serve_result *r) {
    char date[32];
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    json_put_text_member(out, "date", date);
    json_put_text_member(out, "server", plan->address);
    json_put_text_member(out, "endpoint_type", plan->is_chat ? "chat" : "completions");
    json_put_text_member(out, "model_id", plan->model);
    json_put_int_member(out, "num_prompts", (int64_t)plan->num_prompts);
    if (isfinite(plan->request_rate)) {
        json_put_real_member(out, "request_rate", plan->request_rate);
    } else {
        json_put_text_member(out, "request_rate", "inf");
    }
    if (plan->max_concurrency) {
        json_put_int_member(out, "max_concurrency", (int64_t)plan->max_concurrency);
    } else {
        json_put_real_member(out, "max_concurrency", NAN);
    }
    json_put_int_member(out, "random_input_len", (int64_t)plan->input_len);
    json_put_int_member(out, "random_output_len", (int64_t)plan->output_len);
    json_put_int_member(out, "random_prefix_len", (int64_t)plan->prefix_len);
    json_put_int_member(out, "seed", (int64_t)plan->seed);
    json_put_text_member(out, "prompt_unit", r->has_tokenizer ? "tokens" : "words");
}

static void put_json(bytes *out, const serve_plan *plan, const serve_result *r) {
    const serve_metrics *m = &r->metrics;
    bytes_append_text(out, "{");
    put_plan(out, plan, r);
    json_put_real_member(out, "duration", m->duration_ms / 1e3);
    json_put_int_member(out, "completed", (int64_t)m->completed);
    json_put_int_member(out, "failed", (int64_t)m->failed);
    json_put_int_member(out, "total_input_tokens", m->input_tokens);
    json_put_int_member(out, "total_output_tokens", m->output_tokens);
    if (m->cached_tokens >= 0) {
        json_put_int_member(out, "cached_tokens", m->cached_tokens);
    } else {
        json_put_real_member(out, "cached_tokens", NAN);
    }
    json_put_real_member(out, "request_throughput", m->request_throughput);
    json_put_real_member(out, "output_throughput", m->output_throughput);
    json_put_real_member(out, "total_token_throughput", m->total_throughput);
    json_put_int_member(out, "max_concurrent_requests", (int64_t)m->peak_concurrent);
    for (int kind = 0; kind < N_LATENCIES; kind++) put_latency_members(out, plan, (latency_kind)kind, &m->times[kind]);
    json_put_key(out, "errors");
    bytes_append_text(out, "[");
    for (size_t i = 0; i < r->n_failures; i++) {
        bytes_append_text(out, i ? ",{\"message\":" : "{\"message\":");
        json_put_string(out, r->failures[i].reason, strlen(r->failures[i].reason));
        bytes_printf(out, ",\"count\":%zu}", r->failures[i].n);
    }
    bytes_append_text(out, "]}\n");
}

void serve_report(const serve_plan *plan, const serve_result *r, bool as_json) {
    bytes out = {0};
    (as_json ? put_json : put_text)(&out, plan, r);
    put_bytes(&out);
    for (size_t i = 0; i < r->n_failures; i++)
        print_message("%zu of %zu requests failed: %s", r->failures[i].n, plan->num_prompts, r->failures[i].reason);
}
