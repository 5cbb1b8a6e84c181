/* OpenAI's /v1/chat/completions and /v1/completions.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/status.h"
#include "error.h"
#include "request/fields.h"
#include "request/logprobs.h"
#include "request/explain.h"
#include "request/prompt.h"

/* ---- what is written ---- */

#define TOOL_CALLS "tool_calls"

/* A reason of the library, or TOOL_CALLS. */
static const char *finish_reason(const char *reason) {
    if (strcmp(reason, TOOL_CALLS) == 0) return reason;
    return strcmp(reason, "eos") == 0 || strcmp(reason, "stop_string") == 0 ? "stop" : "length";
}

static void put_text(bytes *out, const char *key, const char *text, size_t n) {
    bytes_printf(out, "\"%s\":", key);
    json_put_string(out, text ? text : "", text ? n : 0);
}

static void put_head(bytes *out, const job *j, const char *object) {
    bytes_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,", j->id, object, (long long)j->created);
    put_text(out, "model", j->model, strlen(j->model));
    bytes_append_text(out, ",");
}

static void put_usage(bytes *out, const job *j, const mn_generation *g) {
    size_t prompt = 0, cached = 0, generated = 0;
    for (size_t i = 0; i < g->n_sequences; i++) {
        generated += g->sequences[i]->n_ids;
        if (g->sequences[i]->index > 0) continue; /* answers to the same prompt */
        prompt += g->sequences[i]->prompt_tokens;
        cached += g->sequences[i]->cached_tokens;
    }
    bytes_printf(out,
                 "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":%zu}},",
                 prompt, generated, prompt + generated, cached);
    bytes_printf(out,
                 "\"timings\":{\"cache_n\":%zu,\"prompt_n\":%zu,\"prompt_ms\":%.3f,\"predicted_n\":%zu,"
                 "\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f}",
                 cached, prompt - cached, g->prompt_ms, generated, g->predicted_ms,
                 g->predicted_ms > 0 ? (double)generated * 1000 / g->predicted_ms : 0);
    explain_put_object(out, j, g->sequences[0]);
}

static void put_finish(bytes *out, const char *reason) {
    if (reason)
        bytes_printf(out, "\"finish_reason\":\"%s\"", finish_reason(reason));
    else
        bytes_append_text(out, "\"finish_reason\":null");
}

/* Of a sequence, or of one event. place: of the answer. */
typedef void put_logprobs(bytes *out, const logprob_list *list, text_place *place);

static void put_sequence_logprobs(bytes *out, const job *j, const mn_sequence *s, text_place place, put_logprobs *put) {
    bytes_append_text(out, "\"logprobs\":");
    if (!s->logprobs) {
        bytes_append_text(out, "null,");
        return;
    }
    const logprob_list list = {j->tokenizer, j->options.top_logprobs, s->n_ids, s->logprob_ids, s->logprobs};
    put(out, &list, &place);
    bytes_append_text(out, ",");
}

static void put_event_logprobs(bytes *out, job *j, const mn_token_event *e, put_logprobs *put) {
    bytes_append_text(out, "\"logprobs\":");
    if (e && e->logprobs) {
        const logprob_list list = {j->tokenizer, j->options.top_logprobs, 1, e->logprob_ids, e->logprobs};
        put(out, &list, &j->places[e->sequence]);
    } else {
        bytes_append_text(out, "null");
    }
    bytes_append_text(out, ",");
}

/* ---- chat ---- */

#define CONTENT   "content"
#define REASONING "reasoning_content"

/* Members of the delta follow. */
static void begin_chunk(bytes *out, const job *j, int index) {
    bytes_append_text(out, "data: ");
    put_head(out, j, "chat.completion.chunk");
    bytes_printf(out, "\"choices\":[{\"index\":%d,\"delta\":{", index);
}

/* e: whose log-probabilities are written; NULL: none. */
static void end_chunk(bytes *out, job *j, const mn_token_event *e, const char *reason) {
    bytes_append_text(out, "},");
    put_event_logprobs(out, j, e, logprobs_put_chat);
    put_finish(out, reason);
    bytes_append_text(out, "}]}\n\n");
}

static void put_text_chunk(bytes *out, job *j, int index, const char *key, const char *text, size_t n,
                           const mn_token_event *e) {
    begin_chunk(out, j, index);
    put_text(out, key, text, n);
    end_chunk(out, j, e, NULL);
}

static void chat_begin(bytes *out, job *j) {
    for (int i = 0; i < j->request.n; i++) {
        begin_chunk(out, j, i);
        bytes_append_text(out, "\"role\":\"assistant\",\"" CONTENT "\":\"\"");
        end_chunk(out, j, NULL, NULL);
    }
}

/* Arguments are text, as clients expect. */
static void put_calls(bytes *out, const tools_answer *parts, bool is_stream) {
    bytes_append_text(out, "\"tool_calls\":[");
    for (size_t i = 0; i < parts->n; i++) {
        const tools_call *call = &parts->calls[i];
        bytes_append_text(out, i ? ",{" : "{");
        if (is_stream) bytes_printf(out, "\"index\":%zu,", i);
        bytes_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":", call->id,
                     call->name);
        json_put_string(out, call->arguments.data, call->arguments.n);
        bytes_append_text(out, "}}");
    }
    bytes_append_text(out, "]");
}

/* The content of an event, and the calls at the end. With tools, what may become a call is held back; at the end it is
 * one, or text after all. e: whose log-probabilities are written; NULL: none. Returns why the answer ended. */
static const char *put_content(bytes *out, job *j, int index, const bytes *content, const mn_token_event *e,
                               const char *reason) {
    tools_answer parts = {0};
    const char *text = content->data;
    size_t shown = 0, n = content->n;
    if (j->tools) {
        const bytes *all = tools_push(j->tools, index, content->data, content->n, &shown, &n);
        text = all->data;
        if (reason) parts = tools_split(j->tools, all->data, all->n);
        if (reason) n = parts.n_text;
        if (n < shown) n = shown;
    }
    if (n > shown || (e && e->logprobs))
        put_text_chunk(out, j, index, CONTENT, n > shown ? text + shown : "", n - shown, e);
    if (parts.n) {
        begin_chunk(out, j, index);
        put_calls(out, &parts, true);
        end_chunk(out, j, NULL, NULL);
        reason = TOOL_CALLS;
    }
    tools_clear(&parts);
    return reason;
}

static void chat_piece(bytes *out, job *j, const mn_token_event *e) {
    job_delta d = job_tell_apart(j, e);
    if (d.reasoning.n) put_text_chunk(out, j, e->sequence, REASONING, d.reasoning.data, d.reasoning.n, e);
    const char *reason = put_content(out, j, e->sequence, &d.content, d.reasoning.n ? NULL : e, e->finish_reason);
    if (reason) {
        begin_chunk(out, j, e->sequence);
        end_chunk(out, j, NULL, reason);
    }
    job_delta_clear(out, &d);
}

static void put_last_chunk(bytes *out, job *j, const mn_generation *g, const char *object) {
    if (j->request.includes_usage) {
        bytes_append_text(out, "data: ");
        put_head(out, j, object);
        bytes_append_text(out, "\"choices\":[],");
        put_usage(out, j, g);
        bytes_append_text(out, "}\n\n");
    }
    bytes_append_text(out, "data: [DONE]\n\n");
}

static void chat_end(bytes *out, job *j, const mn_generation *g) {
    put_last_chunk(out, j, g, "chat.completion.chunk");
}

/* The message; returns why the answer ended. */
static const char *put_message(bytes *out, const job *j, const mn_sequence *s) {
    const reasoning_place at = reasoning_find(&j->reasoning, s->text, s->n_text);
    const char *text = s->text + at.answer;
    tools_answer parts = tools_split(j->tools, text, s->n_text - at.answer);
    bool has_calls = parts.n > 0;
    bytes_append_text(out, "{\"role\":\"assistant\",");
    if (has_calls && parts.n_text == 0)
        bytes_append_text(out, "\"content\":null");
    else
        put_text(out, CONTENT, text, parts.n_text);
    if (at.end > at.begin) {
        bytes_append_text(out, ",");
        put_text(out, REASONING, s->text + at.begin, at.end - at.begin);
    }
    if (has_calls) {
        bytes_append_text(out, ",");
        put_calls(out, &parts, false);
    }
    bytes_append_text(out, ",\"refusal\":null},");
    tools_clear(&parts);
    return has_calls ? TOOL_CALLS : s->finish_reason;
}

static void chat_whole(bytes *out, job *j, const mn_generation *g) {
    put_head(out, j, "chat.completion");
    bytes_append_text(out, "\"choices\":[");
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        bytes_printf(out, "%s{\"index\":%d,\"message\":", i ? "," : "", s->index);
        const char *reason = put_message(out, j, s);
        put_sequence_logprobs(out, j, s, (text_place){0}, logprobs_put_chat);
        put_finish(out, reason);
        bytes_append_text(out, "}");
    }
    bytes_append_text(out, "],");
    put_usage(out, j, g);
    bytes_append_text(out, "}");
}

static const dialect chat = {.form = BODY_CHAT,
                             .begin = chat_begin,
                             .piece = chat_piece,
                             .end = chat_end,
                             .whole = chat_whole,
                             .error = openai_error,
                             .fail = openai_fail};

/* ---- text completions ---- */

/* The prompt, where answers begin with it. */
static char *echo_of(const job *j, size_t *n) {
    char *text = NULL;
    *n = 0;
    if (j->request.echoes && mn_detokenize(j->tokenizer, j->ids, j->n_ids, MN_SKIP_SPECIAL, &text, n) != MN_OK) *n = 0;
    return text;
}

static void put_choice(bytes *out, int index, const char *echo, size_t n_echo, const char *text, size_t n) {
    bytes_printf(out, "{\"index\":%d,\"text\":", index);
    if (n_echo == 0) {
        json_put_string(out, text ? text : "", text ? n : 0);
    } else {
        bytes both = {0};
        bytes_append(&both, echo, n_echo);
        if (n) bytes_append(&both, text, n);
        json_put_bytes(out, &both);
        bytes_clear(&both);
    }
    bytes_append_text(out, ",");
}

static void put_event(bytes *out, job *j, int index, const char *text, size_t n, const mn_token_event *e,
                      const char *reason) {
    bytes_append_text(out, "data: ");
    put_head(out, j, "text_completion");
    bytes_append_text(out, "\"choices\":[");
    put_choice(out, index, NULL, 0, text, n);
    put_event_logprobs(out, j, e, logprobs_put_completion);
    put_finish(out, reason);
    bytes_append_text(out, "}]}\n\n");
}

static void completion_begin(bytes *out, job *first) {
    for (job *j = first; j; j = j->sibling) {
        size_t n;
        char *echo = echo_of(j, &n);
        for (int i = 0; n > 0 && i < j->request.n; i++) put_event(out, j, j->first + i, echo, n, NULL, NULL);
        mn_free(echo);
    }
}

static void completion_piece(bytes *out, job *j, const mn_token_event *e) {
    if (e->n_text || e->logprobs || e->finish_reason)
        put_event(out, j, j->first + e->sequence, e->text, e->n_text, e, e->finish_reason);
}

static void completion_end(bytes *out, job *j, const mn_generation *g) {
    put_last_chunk(out, j, g, "text_completion");
}

static void completion_whole(bytes *out, job *j, const mn_generation *g) {
    put_head(out, j, "text_completion");
    bytes_append_text(out, "\"choices\":[");
    for (size_t i = 0; i < g->n_sequences; i++) {
        const mn_sequence *s = g->sequences[i];
        size_t n;
        char *echo = echo_of(job_of_answer(j, i), &n);
        if (i) bytes_append_text(out, ",");
        put_choice(out, (int)i, echo, n, s->text, s->n_text);
        put_sequence_logprobs(out, j, s, (text_place){0}, logprobs_put_completion);
        put_finish(out, s->finish_reason);
        bytes_append_text(out, "}");
        mn_free(echo);
    }
    bytes_append_text(out, "],");
    put_usage(out, j, g);
    bytes_append_text(out, "}");
}

static const dialect completions = {.form = BODY_COMPLETION,
                                    .begin = completion_begin,
                                    .piece = completion_piece,
                                    .end = completion_end,
                                    .whole = completion_whole,
                                    .error = openai_error,
                                    .fail = openai_fail};

/* ---- what is read ---- */

mn_status chat_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    job *j = NULL;
    MN_TRY(prompt_chat_job(&j, s, &chat, "chatcmpl-", body, why));
    return prompt_finish(out, j, s, body, "messages", streams, why);
}

mn_status completion_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    job *j = NULL;
    MN_TRY(prompt_jobs(&j, s, &completions, "cmpl-", "prompt", json_get(body, "prompt"), why));
    return prompt_finish(out, j, s, body, "prompt", streams, why);
}

/* ---- what is answered at once ---- */

static void put_model(bytes *out, const server *s, const char *name) {
    bytes_append_text(out, "{");
    put_text(out, "id", name, strlen(name));
    bytes_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"mneme\"}", (long long)s->started);
}

mn_status models_answer(bytes *out, server *s, const json *body, refusal *why) {
    (void)body;
    (void)why;
    bytes_append_text(out, "{\"object\":\"list\",\"data\":[");
    put_model(out, s, s->name);
    if (s->speech && s->has_text) {
        bytes_append_text(out, ",");
        put_model(out, s, s->speech_name);
    }
    bytes_append_text(out, "]}");
    return bytes_status(out);
}

mn_status template_answer(bytes *out, server *s, const json *body, refusal *why) {
    char *text = NULL;
    size_t n = 0;
    tools *t = NULL;
    MN_TRY(prompt_tools(&t, s, body, why));
    mn_status status = prompt_render(s, body, t, &text, &n, why);
    tools_close(&t);
    MN_TRY(status);
    bytes_append_text(out, "{");
    put_text(out, "prompt", text, n);
    bytes_append_text(out, "}");
    mn_free(text);
    return bytes_status(out);
}

mn_status tokenize_answer(bytes *out, server *s, const json *body, refusal *why) {
    const json *text = json_get(body, "content");
    int32_t *ids = NULL;
    size_t n = 0;
    MN_TRY(prompt_needs_tokenizer(s, why));
    MN_TRY(mn_tokenize(s->tokenizer, text->string, text->n, 0, &ids, &n));
    bytes_append_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) bytes_printf(out, "%s%d", i ? "," : "", ids[i]);
    bytes_printf(out, "],\"count\":%zu}", n);
    mn_free(ids);
    return bytes_status(out);
}

mn_status detokenize_answer(bytes *out, server *s, const json *body, refusal *why) {
    const json *tokens = json_get(body, "tokens");
    MN_TRY(prompt_needs_tokenizer(s, why));
    if (!tokens || tokens->kind != JSON_ARRAY) {
        *why = (refusal){400, "missing_field", "tokens"};
        MN_FAIL(MN_E_ARG, "body: 'tokens' is missing, or is no list");
    }
    int32_t *ids = mem_alloc(tokens->n + 1, sizeof *ids);
    if (!ids) return MN_E_NOMEM;
    mn_status status = MN_OK;
    for (size_t i = 0; i < tokens->n && status == MN_OK; i++) {
        const json *item = &tokens->items[i];
        if (item->kind == JSON_INT && item->integer >= 0 && item->integer < s->info.vocab_size)
            ids[i] = (int32_t)item->integer;
        else
            status = json_wrong_value("body", "tokens", item, "token ids of the model");
    }
    char *text = NULL;
    size_t n = 0;
    if (status == MN_OK) status = mn_detokenize(s->tokenizer, ids, tokens->n, 0, &text, &n);
    if (status == MN_OK) {
        bytes_append_text(out, "{");
        put_text(out, "content", text, n);
        bytes_append_text(out, "}");
    } else {
        *why = (refusal){400, "invalid_value", "tokens"};
    }
    mn_free(text);
    mem_free(ids);
    return status == MN_OK ? bytes_status(out) : status;
}
