/* /v1/generate: the whole GenerationConfig, any cache, token ids; named as in the command's --json.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "request/explain.h"
#include "request/fields.h"
#include "request/prompt.h"

/* ---- what is written ---- */

static void put_real(bytes *out, const char *name, double value) {
    bytes_printf(out, "\"%s\":", name);
    json_put_real(out, value);
}

static void put_ids(bytes *out, const int32_t *ids, size_t n) {
    bytes_append_text(out, "[");
    for (size_t i = 0; i < n; i++) bytes_printf(out, i ? ",%d" : "%d", (int)ids[i]);
    bytes_append_text(out, "]");
}

/* The chosen token and the best ones. */
static void put_logprob(bytes *out, const int32_t *ids, const float *logprobs, int top) {
    bytes_printf(out, "{\"id\":%d,", (int)ids[0]);
    put_real(out, "logprob", (double)logprobs[0]);
    bytes_append_text(out, ",\"top\":[");
    for (int k = 1; k <= top; k++) {
        bytes_printf(out, "%s{\"id\":%d,", k > 1 ? "," : "", (int)ids[k]);
        put_real(out, "logprob", (double)logprobs[k]);
        bytes_append_text(out, "}");
    }
    bytes_append_text(out, "]}");
}

static void put_logprobs(bytes *out, const mn_sequence *s, int top) {
    bytes_append_text(out, ",\"logprobs\":[");
    for (size_t i = 0; i < s->n_ids; i++) {
        size_t at = i * (size_t)(1 + top);
        if (i) bytes_append_text(out, ",");
        put_logprob(out, s->logprob_ids + at, s->logprobs + at, top);
    }
    bytes_append_text(out, "]");
}

static void put_sequence(bytes *out, const mn_sequence *s, size_t row, uint64_t seed, int top) {
    bytes_printf(out, "{\"row\":%zu,\"ids\":", row);
    put_ids(out, s->ids, s->n_ids);
    bytes_append_text(out, ",\"text\":");
    if (s->text)
        json_put_string(out, s->text, s->n_text);
    else
        bytes_append_text(out, "null");
    bytes_printf(out, ",\"finish_reason\":\"%s\",\"seed\":%llu", s->finish_reason, (unsigned long long)seed);
    if (s->has_score) {
        bytes_append_text(out, ",");
        put_real(out, "score", s->score);
    }
    if (s->logprobs) put_logprobs(out, s, top);
    bytes_append_text(out, "}");
}

typedef struct totals {
    size_t prompt, cached, completion, drafted, accepted;
    mn_cache_info cache;
    double prompt_ms, predicted_ms, queue_ms;
} totals;

static void add(totals *t, const mn_generation *g) {
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        t->completion += s->n_ids;
        t->drafted += s->draft_tokens;
        t->accepted += s->draft_accepted;
        if (i > 0) continue; /* the same prompt */
        t->prompt += s->prompt_tokens;
        t->cached += s->cached_tokens;
    }
    const mn_cache_info before = t->cache;
    t->cache = *g->cache;
    t->cache.tokens += before.tokens;
    t->cache.bytes += before.bytes;
    if (before.peak_bytes > t->cache.peak_bytes) t->cache.peak_bytes = before.peak_bytes;
    t->prompt_ms = fmax(t->prompt_ms, g->prompt_ms);
    t->predicted_ms = fmax(t->predicted_ms, g->predicted_ms);
    t->queue_ms = fmax(t->queue_ms, g->queue_ms);
}

/* sequence: the first; its match is described if the request has cache.explain. */
static void put_totals(bytes *out, const totals *t, const job *j, const mn_sequence *sequence) {
    const mn_cache_info *c = &t->cache;
    bytes_printf(out, "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%zu", t->prompt,
                 t->completion, t->cached);
    if (t->drafted) bytes_printf(out, ",\"draft_tokens\":%zu,\"draft_accepted\":%zu", t->drafted, t->accepted);
    bytes_printf(out,
                 "},\"cache\":{\"implementation\":\"%s\",\"dtype\":\"%s\",\"tokens\":%lld,\"bytes\":%llu,"
                 "\"bytes_per_token\":%llu",
                 c->implementation, c->dtype, (long long)c->tokens, (unsigned long long)c->bytes,
                 (unsigned long long)c->bytes_per_token);
    if (!j->owner) /* what all held meanwhile is not for one of several */
        bytes_printf(out, ",\"peak_bytes\":%llu", (unsigned long long)c->peak_bytes);
    if (j->request.explains) {
        bytes_append_text(out, ",");
        explain_put(out, j, sequence);
    }
    bytes_append_text(out, "}");
    bytes_printf(out, ",\"timings\":{\"queue_ms\":%.3f,\"prompt_ms\":%.3f,\"predicted_ms\":%.3f,", t->queue_ms,
                 t->prompt_ms, t->predicted_ms);
    put_real(out, "prompt_per_second", t->prompt_ms > 0 ? (double)(t->prompt - t->cached) * 1000 / t->prompt_ms : 0);
    bytes_append_text(out, ",");
    put_real(out, "predicted_per_second", t->predicted_ms > 0 ? (double)t->completion * 1000 / t->predicted_ms : 0);
    bytes_append_text(out, "}");
}

static void write_whole(bytes *out, job *j, const mn_generation *g) {
    const batch *b = j->batch;
    size_t n = b ? b->n : 1;
    totals t = {0};
    bytes_printf(out, "{\"id\":\"%s\",\"model\":", j->id);
    json_put_string(out, j->model, strlen(j->model));
    bytes_append_text(out, ",\"prompt_ids\":[");
    for (size_t row = 0; row < n; row++) {
        const job *one = b ? b->jobs[row] : j;
        if (row) bytes_append_text(out, ",");
        put_ids(out, one->ids, one->n_ids);
    }
    bytes_append_text(out, "],\"sequences\":[");
    const char *comma = "";
    for (size_t row = 0; row < n; row++) {
        const mn_generation *one = b ? b->done[row] : g;
        for (size_t i = 0; i < one->n_sequences; i++, comma = ",") {
            bytes_append_text(out, comma);
            put_sequence(out, one->sequences[i], row, one->seed, j->options.top_logprobs);
        }
        add(&t, one);
    }
    bytes_append_text(out, "],");
    put_totals(out, &t, j, (b ? b->done[0] : g)->sequences[0]);
    bytes_append_text(out, "}");
}

static void write_nothing(bytes *out, job *j) {
    (void)out, (void)j;
}

static void write_event(bytes *out, job *j, const mn_token_event *e) {
    bytes_printf(out, "data: {\"row\":%zu,\"sequence\":%d,\"id\":", j->place, e->sequence);
    if (e->id >= 0)
        bytes_printf(out, "%d", (int)e->id);
    else
        bytes_append_text(out, "null");
    bytes_append_text(out, ",\"text\":");
    json_put_string(out, e->text, e->n_text);
    if (e->logprobs) {
        bytes_append_text(out, ",\"logprob\":");
        put_logprob(out, e->logprob_ids, e->logprobs, j->options.top_logprobs);
    }
    if (e->finish_reason)
        bytes_printf(out, ",\"finish_reason\":\"%s\"}\n\n", e->finish_reason);
    else
        bytes_append_text(out, ",\"finish_reason\":null}\n\n");
}

static void write_end(bytes *out, job *j, const mn_generation *g) {
    bytes_append_text(out, "data: ");
    write_whole(out, j, g);
    bytes_append_text(out, "\n\ndata: [DONE]\n\n");
}

static const dialect generate = {.form = BODY_GENERATE,
                                 .begin = write_nothing,
                                 .piece = write_event,
                                 .end = write_end,
                                 .whole = write_whole,
                                 .error = openai_error,
                                 .fail = openai_fail};

/* ---- what is read ---- */

mn_status generate_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    const char *name;
    job *first = NULL;
    MN_TRY(prompt_any_jobs(&first, s, &generate, "gen-", body, &name, why));
    return prompt_finish(out, first, s, body, name, streams, why);
}
