/* What a server shows of itself.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "http/head.h"
#include "server.h"

static mn_status ask(job **out, job_function *what) {
    *out = job_ask(what);
    return *out ? MN_OK : MN_E_NOMEM;
}

/* ---- /metrics ---- */

static mn_status write_metrics(bytes *out, server *s, job *j, refusal *why) {
    mn_engine_info info = {.size = sizeof info};
    (void)why;
    MN_TRY(mn_engine_get_info(scheduler_engine(s->scheduler), &info));
    j->reply->type = "text/plain; version=0.0.4; charset=utf-8";
    const speech_counts counts = speech_count(s->speech);
    metrics_write(out, &s->metrics, &info, s->name, s->started, s->statm);
    metrics_write_speech(out, &counts, s->speech ? s->speech_name : s->name);
    return MN_OK;
}

mn_status metrics_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, write_metrics);
}

/* ---- /health, /ready, /props ---- */

mn_status health_answer(bytes *out, server *s, const json *body, refusal *why) {
    (void)s;
    (void)body;
    (void)why;
    bytes_append_text(out, "{\"status\":\"ok\"}");
    return bytes_status(out);
}

mn_status ready_answer(bytes *out, server *s, const json *body, refusal *why) {
    (void)body;
    if (atomic_load(&s->drains)) {
        *why = (refusal){.status = 503, .code = "shutting_down"};
        MN_FAIL(MN_E_FULL, "the server is shutting down");
    }
    bytes_append_text(out, "{\"status\":\"ready\"}");
    return bytes_status(out);
}

static void put_text(bytes *out, const char *key, const char *text) {
    bytes_printf(out, "\"%s\":", key);
    json_put_string(out, text, strlen(text));
    bytes_append_text(out, ",");
}

static void put_limit(bytes *out, const char *key, uint64_t value) {
    bytes_printf(out, value ? "\"%s\":%llu," : "\"%s\":null,", key, (unsigned long long)value);
}

mn_status props_answer(bytes *out, server *s, const json *body, refusal *why) {
    const serve_options *o = &s->options;
    const mn_cache_options *cache = &s->cache;
    (void)body;
    (void)why;
    bytes_append_text(out, "{");
    put_text(out, "model", s->name);
    if (s->speech)
        put_text(out, "speech_model", s->speech_name);
    else
        bytes_append_text(out, "\"speech_model\":null,");
    put_text(out, "version", mn_version());
    put_text(out, "model_type", s->info.architecture);
    put_text(out, "compute_type", s->info.compute_type);
    put_limit(out, "max_position_embeddings", (uint64_t)s->info.max_position_embeddings);
    bytes_printf(out, "\"vocab_size\":%d,\"has_tokenizer\":%s,\"has_chat_template\":%s,", s->info.vocab_size,
                 s->info.has_tokenizer ? "true" : "false", s->info.has_chat_template ? "true" : "false");
    put_text(out, "cache_implementation", cache->implementation ? cache->implementation : "dynamic");
    put_text(out, "cache_config", cache->config ? cache->config : "");
    bytes_append_text(out, "\"limits\":{");
    put_limit(out, "max_num_seqs", o->max_num_seqs);
    put_limit(out, "max_queue", o->max_queue);
    put_limit(out, "memory_limit", o->memory_limit);
    put_limit(out, "max_cache_len", (uint64_t)cache->max_cache_len);
    bytes_printf(
        out,
        "\"body_bytes\":%d,\"recording_bytes\":%d,\"header_bytes\":%d,\"header_fields\":%d,\"request_line_bytes\":%d,"
        "\"header_ms\":%d,\"body_ms\":%d,\"idle_ms\":%d,\"stall_ms\":%d,\"connections\":%d}}",
        MOST_BODY, MOST_FORM, HEAD_MOST_BYTES, HEAD_MOST_FIELDS, HEAD_MOST_LINE, HEAD_MS, BODY_MS, IDLE_MS, STALL_MS,
        MAX_CONNECTIONS);
    return bytes_status(out);
}

/* ---- /v1/requests ---- */

typedef struct request_list {
    bytes *out;
    mn_engine *engine;
    const char *owner;
    size_t n;
} request_list;

static void put_request(void *user, const job *j) {
    request_list *list = user;
    mn_request_info info = {.size = sizeof info};
    if (j->owner != list->owner) return;
    if (!j->is_added)
        info = (mn_request_info){.state = "queued", .prompt_tokens = j->n_ids, .implementation = ""};
    else if (mn_engine_request(list->engine, j->number, &info) != MN_OK)
        return; /* it has ended */
    bytes_printf(list->out, "%s{\"id\":\"%s\",\"object\":\"request\",\"state\":\"%s\",", list->n++ ? "," : "", j->id,
                 info.state);
    bytes_printf(list->out,
                 "\"prompt_tokens\":%zu,\"cached_tokens\":%zu,\"prompt_done\":%zu,\"generated_tokens\":%zu,"
                 "\"n_preemptions\":%zu,",
                 info.prompt_tokens, info.cached_tokens, info.prompt_done, info.generated_tokens, info.n_preemptions);
    put_text(list->out, "cache", info.implementation);
    bytes_printf(list->out, "\"age_ms\":%.3f}", clock_ms() - j->arrived);
}

static void put_recording(void *user, const job *j) {
    request_list *list = user;
    if (j->owner != list->owner) return;
    bytes_printf(list->out,
                 "%s{\"id\":\"%s\",\"object\":\"request\",\"state\":\"%s\",\"seconds\":%.3f,\"seconds_done\":%.3f,"
                 "\"age_ms\":%.3f}",
                 list->n++ ? "," : "", j->id, j->is_running ? "transcribe" : "queued", j->seconds, j->seconds_done,
                 clock_ms() - j->arrived);
}

static mn_status list_requests(bytes *out, server *s, job *j, refusal *why) {
    request_list list = {.out = out, .engine = scheduler_engine(s->scheduler), .owner = j->owner};
    (void)why;
    bytes_append_text(out, "{\"object\":\"list\",\"data\":[");
    scheduler_visit(s->scheduler, put_request, &list);
    speech_visit(s->speech, put_recording, &list);
    bytes_append_text(out, "]}");
    return bytes_status(out);
}

mn_status requests_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, list_requests);
}

static mn_status cancel_request(bytes *out, server *s, job *j, refusal *why) {
    if (!server_cancel(s, j->parameter, j->owner)) {
        *why = (refusal){404, "request_not_found", NULL};
        MN_FAIL(MN_E_NOT_FOUND, "no request '%s' waits or is computed", j->parameter);
    }
    bytes_append_text(out, "{");
    put_text(out, "id", j->parameter);
    bytes_append_text(out, "\"object\":\"request\",\"cancelled\":true}");
    return bytes_status(out);
}

mn_status cancel_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask(out, cancel_request);
}
