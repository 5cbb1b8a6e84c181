/* Requests to a server, their answers as they come.
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_serve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/num.h"
#include "bench/events.h"
#include "bench/http_client.h"
#include "bench/random_prompts.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"

enum { WAIT_MS = 100, WARM_UP_TOKENS = 8 };

typedef struct stream {
    http_call call;
    bytes body;
    event_reader events;
    timed_request timed;
    double now;       /* when the bytes that are being read came */
    int64_t n_tokens; /* events with a token */
    bool has_ended;   /* a finish_reason or "[DONE]" came */
} stream;

typedef struct run {
    serve_plan plan;
    http_client *client;
    random_prompts prompts;
    stream *streams; /* [n], and behind them the one of the warm-up */
    size_t n, running, done;
    serve_result result;
    bytes key;
} run;

/* ---- answers ---- */

/* The message of an error as servers write it: {"error": {"message": "..."}}, {"error": "..."}; else NULL. */
static const char *error_text(const json *answer) {
    const json *error = json_get(answer, "error"), *message = error ? json_get(error, "message") : NULL;
    if (message && message->kind == JSON_STRING) return message->string;
    return error && error->kind == JSON_STRING ? error->string : error && error->kind != JSON_NULL ? "" : NULL;
}

static mn_status read_usage(stream *s, const json *usage) {
    const int64_t most = INT64_C(1) << 40;
    const json *details = json_get(usage, "prompt_tokens_details"), *cached = json_get(details, "cached_tokens");
    timed_request *t = &s->timed;
    MN_TRY(json_int("usage", usage, "prompt_tokens", 0, most, &t->input_tokens));
    MN_TRY(json_int("usage", usage, "completion_tokens", 0, most, &t->output_tokens));
    t->tells_cached = t->tells_cached || (cached && cached->kind == JSON_INT);
    return json_int("usage", details, "cached_tokens", 0, most, &t->cached_tokens);
}

static bool has_text(const json *object, const char *key) {
    const json *text = json_get(object, key);
    return text && text->kind == JSON_STRING && text->n > 0;
}

/* An event is one of a token unless it has no text and only opens the message or ends it. */
static mn_status read_choice(stream *s, const json *choice) {
    const json *delta = json_get(choice, "delta"), *reason = json_get(choice, "finish_reason");
    const json *text = json_get(choice, "text"), *role = json_get(delta, "role");
    timed_request *t = &s->timed;
    if (!delta && !text) MN_FAIL(MN_E_FORMAT, "an event whose choice has neither 'text' nor 'delta'");
    bool ends = reason && reason->kind == JSON_STRING;
    bool has = has_text(choice, "text") || has_text(delta, "content") || has_text(delta, "reasoning_content") ||
               json_get(delta, "tool_calls");
    s->has_ended = s->has_ended || ends;
    t->last = s->now;
    if (!has && (ends || (role && role->kind == JSON_STRING))) return MN_OK;
    if (s->n_tokens == 0) {
        t->first = s->now;
    } else {
        MN_TRY(mem_grow(&t->gaps, &t->gaps_capacity, t->n_gaps + 1, sizeof *t->gaps));
        t->gaps[t->n_gaps++] = s->now - t->latest;
    }
    t->latest = s->now;
    s->n_tokens++;
    return MN_OK;
}

static mn_status read_event(stream *s, const json *event) {
    const char *error = error_text(event);
    if (error) MN_FAIL(MN_E_FORMAT, "an error in the stream: %.200s", error);
    const json *usage = json_get(event, "usage"), *choices = json_get(event, "choices");
    if (event->kind != JSON_OBJECT || !choices || choices->kind != JSON_ARRAY)
        MN_FAIL(MN_E_FORMAT, "an event without 'choices'");
    if (usage && usage->kind == JSON_OBJECT) MN_TRY(read_usage(s, usage));
    for (size_t i = 0; i < choices->n; i++) MN_TRY(read_choice(s, &choices->items[i]));
    return MN_OK;
}

static mn_status on_event(void *user, const char *data, size_t n) {
    stream *s = user;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->has_ended = true;
        return MN_OK;
    }
    json_doc *doc = NULL;
    mn_status status = json_parse(&doc, data, n, JSON_PYTHON, "an event");
    if (status == MN_OK) status = read_event(s, json_root(doc));
    json_close(&doc);
    return status;
}

static mn_status on_bytes(http_call *call, const char *data, size_t n) {
    stream *s = call->user;
    s->now = clock_ms();
    return events_feed(&s->events, data, n, on_event, s);
}

/* "HTTP 429: The queue is full", from what a server answers instead of a stream. */
static void describe_refusal(http_call *call) {
    json_doc *doc = NULL;
    const char *text = "";
    if (call->body.n && json_parse(&doc, call->body.data, call->body.n, JSON_PYTHON, "answer") == MN_OK) {
        const char *found = error_text(json_root(doc));
        text = found ? found : "";
    }
    snprintf(call->error, sizeof call->error, "HTTP %d%s%.200s", call->status, *text ? ": " : "", text);
    json_close(&doc);
}

/* Why the answer is no answer, in call.error; "" when it is one. */
static void judge(stream *s) {
    http_call *call = &s->call;
    if (call->status != 0 && call->status != 200) describe_refusal(call);
    if (call->error[0]) return;
    const char *why = "";
    if (s->n_tokens == 0) {
        why = "the answer has no event of a token";
    } else if (!s->has_ended) {
        why = "the stream ended before the answer did";
    }
    snprintf(call->error, sizeof call->error, "%s", why);
}

static void on_end(http_call *call) {
    stream *s = call->user;
    timed_request *t = &s->timed;
    judge(s);
    t->ok = !call->error[0];
    if (!t->ok) t->last = clock_ms();
    if (t->output_tokens == 0) t->output_tokens = s->n_tokens; /* of servers without `usage` */
}

/* ---- requests ---- */

static mn_status write_body(bytes *out, const serve_plan *plan, bytes *prompt, size_t output_len) {
    const char *text = bytes_text(prompt);
    bytes_append_text(out, "{\"model\":");
    json_put_string(out, plan->model, strlen(plan->model));
    bytes_append_text(out, plan->is_chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    json_put_string(out, text, prompt->n);
    bytes_printf(
        out, "%s,\"max_tokens\":%zu,\"temperature\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true}%s}",
        plan->is_chat ? "}]" : "", output_len, plan->ignore_eos ? ",\"ignore_eos\":true" : "");
    return bytes_status(out);
}

static mn_status prepare(run *r, stream *s, size_t number, size_t output_len) {
    bytes prompt = {0};
    mn_status status = random_prompts_make(&r->prompts, number, &prompt);
    if (status == MN_OK) status = write_body(&s->body, &r->plan, &prompt, output_len);
    bytes_clear(&prompt);
    s->timed.input_tokens = (int64_t)(r->plan.prefix_len + r->plan.input_len); /* unless `usage` says */
    s->call = (http_call){.path = r->plan.is_chat ? "/v1/chat/completions" : "/v1/completions",
                          .json = s->body.data,
                          .n_json = s->body.n,
                          .take = on_bytes,
                          .end = on_end,
                          .user = s};
    return status;
}

static mn_status prepare_all(run *r) {
    for (size_t i = 0; i < r->n; i++) {
        progress_line("prompt %zu of %zu", i + 1, r->n);
        MN_TRY(prepare(r, &r->streams[i], i, r->plan.output_len));
    }
    return MN_OK;
}

/* A request whose times do not count and whose prompt has nothing in common with the others. */
static mn_status warm_up(run *r) {
    stream *s = &r->streams[r->n];
    bytes prefix = r->prompts.prefix;
    size_t prefix_len = r->prompts.prefix_len,
           few = r->plan.output_len < WARM_UP_TOKENS ? r->plan.output_len : WARM_UP_TOKENS;
    r->prompts.prefix = (bytes){0}; /* for this one */
    r->prompts.prefix_len = 0;
    mn_status status = prepare(r, s, r->n, few);
    r->prompts.prefix = prefix;
    r->prompts.prefix_len = prefix_len;
    if (status == MN_OK) status = http_client_ask(r->client, &s->call, interrupt_seen);
    return status;
}

static mn_status start(run *r, stream *s) {
    s->timed.start = clock_ms();
    MN_TRY(http_client_start(r->client, &s->call));
    r->running++;
    return MN_OK;
}

static mn_status measure(run *r) {
    size_t most = r->plan.max_concurrency ? r->plan.max_concurrency : r->n, next = 0;
    double arrival = clock_ms();
    while (r->done < r->n) {
        double now = clock_ms();
        for (; next < r->n && r->running < most && arrival <= now; next++) {
            MN_TRY(start(r, &r->streams[next]));
            arrival += serve_arrival_gap(&r->plan, next);
        }
        bool waits = next < r->n && r->running < most;
        int wait = waits ? (int)fmin(WAIT_MS, fmax(0, ceil(arrival - now))) : WAIT_MS;
        size_t ended = 0;
        MN_TRY(http_client_step(r->client, wait, &ended));
        r->running -= ended;
        r->done += ended;
        if (interrupt_seen()) MN_FAIL(MN_E_CANCELLED, "cancelled");
        progress_line("%zu of %zu requests done, %zu running", r->done, r->n, r->running);
    }
    return MN_OK;
}

/* ---- the whole ---- */

/* The first line of a file. */
static mn_status read_key(bytes *key, const char *path) {
    if (!path) return MN_OK;
    MN_TRY(file_read(key, path, 1 << 20));
    key->n = strcspn(bytes_text(key), "\r\n");
    bool is_visible = key->n > 0;
    for (size_t i = 0; i < key->n; i++) is_visible = is_visible && key->data[i] > ' ' && key->data[i] < 127;
    if (!is_visible) MN_FAIL(MN_E_ARG, "%s: its first line is no key; allowed: visible ASCII characters", path);
    bytes_text(key);
    return bytes_status(key);
}

/* The first of /v1/models. Also shows that there is a server. */
static mn_status find_model(run *r) {
    http_call call = {.path = "/v1/models"};
    json_doc *doc = NULL;
    const char *id = NULL;
    mn_status status = http_client_ask(r->client, &call, interrupt_seen);
    if (status == MN_OK && call.status == 0) status = status_fail(MN_E_IO, "%.200s: %s", r->plan.address, call.error);
    if (status == MN_OK && !r->plan.model[0]) {
        if (call.status == 200 && json_parse(&doc, call.body.data, call.body.n, JSON_PYTHON, "/v1/models") == MN_OK) {
            const json *data = json_get(json_root(doc), "data");
            const json *first = data && data->kind == JSON_ARRAY && data->n ? json_get(&data->items[0], "id") : NULL;
            id = first && first->kind == JSON_STRING ? first->string : NULL;
        }
        if (!id || strlen(id) >= sizeof r->plan.model) {
            status = status_fail(MN_E_IO, "%.200s: names no model at /v1/models (HTTP %d); --model names one",
                                 r->plan.address, call.status);
        } else {
            memcpy(r->plan.model, id, strlen(id) + 1);
        }
    }
    json_close(&doc);
    http_call_clear(r->client, &call);
    return status;
}

static void count_failure(serve_result *result, const char *reason) {
    size_t i = 0;
    while (i < result->n_failures && strcmp(result->failures[i].reason, reason) != 0) i++;
    if (i == SERVE_MOST_FAILURES) { /* more kinds than are told apart: with the last one */
        i--;
        snprintf(result->failures[i].reason, sizeof result->failures[i].reason, "%s", "other reasons");
    }
    if (i == result->n_failures) {
        snprintf(result->failures[i].reason, sizeof result->failures[i].reason, "%s", reason);
        result->n_failures++;
    }
    result->failures[i].n++;
}

static mn_status summarise(run *r) {
    timed_request *all = mem_alloc(r->n, sizeof *all);
    if (!all) return mem_no_memory();
    for (size_t i = 0; i < r->n; i++) {
        all[i] = r->streams[i].timed;
        if (!all[i].ok) count_failure(&r->result, r->streams[i].call.error);
    }
    mn_status status = latency_summarise(&r->result.metrics, all, r->n, r->plan.percentiles, r->plan.n_percentiles);
    mem_free(all);
    return status;
}

/* A connection needs a descriptor. */
static void allow_connections(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static mn_status run_all(run *r, const options *o) {
    MN_TRY(serve_plan_read(&r->plan, o));
    MN_TRY(read_key(&r->key, option_text(o, OPT_BENCH_API_KEY_FILE, NULL)));
    MN_TRY(http_client_open(&r->client, r->plan.address, r->key.n ? r->key.data : NULL));
    r->n = r->plan.num_prompts;
    r->streams = mem_alloc(r->n + 1, sizeof *r->streams);
    if (!r->streams) return mem_no_memory();
    allow_connections();
    MN_TRY(find_model(r));
    r->prompts = (random_prompts){.client = r->client,
                                  .stop = interrupt_seen,
                                  .seed = r->plan.seed,
                                  .prefix_len = r->plan.prefix_len,
                                  .input_len = r->plan.input_len};
    MN_TRY(random_prompts_open(&r->prompts));
    r->result.has_tokenizer = r->prompts.has_tokenizer;
    if (!r->prompts.has_tokenizer)
        print_message("the server does not count tokens at /tokenize: prompts have as many words instead");
    MN_TRY(prepare_all(r));
    if (r->plan.warms_up) MN_TRY(warm_up(r));
    MN_TRY(measure(r));
    return summarise(r);
}

static void clear(run *r) {
    for (size_t i = 0; r->streams && i <= r->n; i++) {
        stream *s = &r->streams[i];
        if (s->call.path) http_call_clear(r->client, &s->call);
        events_clear(&s->events);
        bytes_clear(&s->body);
        mem_free(s->timed.gaps);
    }
    mem_free(r->streams);
    random_prompts_close(&r->prompts);
    http_client_close(&r->client);
    bytes_clear(&r->key);
}

int bench_serve(const options *o) {
    run *r = mem_alloc(1, sizeof *r);
    if (!r) return report(o, EXIT_MEMORY, NULL);
    interrupt_watch(NULL);
    mn_status status = run_all(r, o);
    interrupt_unwatch();
    progress_clear();
    int code = status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
    if (status == MN_OK) {
        serve_report(&r->plan, &r->result,
                     option_on(o, OPT_JSON) || strncmp(option_text(o, OPT_OUTPUT, "md"), "json", 4) == 0);
        if (r->result.metrics.completed == 0) code = EXIT_FAILED;
    }
    clear(r);
    mem_free(r);
    return code;
}
