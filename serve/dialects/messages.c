/* Anthropic's /v1/messages and /v1/messages/count_tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "request/explain.h"
#include "request/fields.h"
#include "request/prompt.h"
#include "request/turns.h"

/* ---- errors ---- */

static const char *messages_error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

void messages_error(bytes *out, int status, const char *code, const char *param, const char *message) {
    (void)code, (void)param; /* the message names the field */
    bytes_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", messages_error_type(status));
    json_put_string(out, message, strlen(message));
    bytes_append_text(out, "}}");
}

/* ---- what is written ---- */

/* Input tokens are those that were computed; those that were not are "read from the cache". Storing costs nothing. */
static void put_usage(bytes *out, size_t prompt, size_t cached, size_t generated) {
    bytes_printf(out,
                 "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,"
                 "\"output_tokens\":%zu}",
                 prompt - cached, cached, generated);
}

static void put_message(bytes *out, const job *j) {
    bytes_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", j->id);
    json_put_string(out, j->model, strlen(j->model));
}

/* A stop string of the job, and NULL without a `which`. */
static void put_stop_sequence(bytes *out, const job *j, int which) {
    char *stops = which < 0 ? NULL : mn_generation_config_get(j->request.config, "stop_strings");
    json_doc *doc = NULL;
    const json *list = NULL;
    if (stops && json_parse(&doc, stops, strlen(stops), JSON_STRICT, "stop_strings") == MN_OK) list = json_root(doc);
    if (list && list->kind == JSON_ARRAY && (size_t)which < list->n)
        json_put(out, &list->items[which]);
    else
        bytes_append_text(out, "null");
    json_close(&doc);
    mn_free(stops);
}

/* max_tokens is required, so a text that is shorter ended with the model's context. */
static const char *length_reason(const job *j, const mn_sequence *s) {
    char *most = mn_generation_config_get(j->request.config, "max_new_tokens");
    bool is_whole = most && s->n_ids >= (size_t)strtoull(most, NULL, 10);
    mn_free(most);
    return is_whole ? "max_tokens" : "model_context_window_exceeded";
}

static void put_stop(bytes *out, const job *j, const mn_sequence *s, bool has_calls) {
    const char *reason = "pause_turn"; /* max_time, or cancelled */
    if (strcmp(s->finish_reason, "eos") == 0) reason = "end_turn";
    if (strcmp(s->finish_reason, "stop_string") == 0) reason = "stop_sequence";
    if (strcmp(s->finish_reason, "length") == 0) reason = length_reason(j, s);
    bytes_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", has_calls ? "tool_use" : reason);
    put_stop_sequence(out, j, s->stop_string);
}

static void put_totals(bytes *out, const job *j, const mn_sequence *s) {
    put_usage(out, s->prompt_tokens, s->cached_tokens, s->n_ids);
    explain_put_object(out, j, s);
}

/* input NULL: it comes in events of its own. */
static void put_call(bytes *out, const tools_call *call, const bytes *input) {
    bytes_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"%s\",\"input\":", call->id, call->name);
    json_doc *doc = NULL;
    bool is_object = input && json_parse(&doc, input->data, input->n, JSON_STRICT, "input") == MN_OK &&
                     json_root(doc)->kind == JSON_OBJECT;
    if (is_object)
        json_put(out, json_root(doc));
    else
        bytes_append_text(out, "{}");
    bytes_append_text(out, "}");
    json_close(&doc);
}

/* ---- streams ---- */

/* What a message is beside its job. Its blocks: thinking, text, calls, each only if there is some. */
typedef struct stream_state {
    bool has_thinking, has_text; /* the block has begun; that of thinking ends where another one begins */
} stream_state;

static void begin_block(bytes *out, size_t index) {
    bytes_printf(out,
                 "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%zu,"
                 "\"content_block\":",
                 index);
}

static void end_block(bytes *out, size_t index) {
    bytes_printf(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%zu}\n\n", index);
}

static void begin_text(bytes *out, job *j) {
    stream_state *m = j->state;
    if (m->has_text) return;
    if (m->has_thinking) end_block(out, 0);
    m->has_text = true;
    begin_block(out, m->has_thinking);
    bytes_append_text(out, "{\"type\":\"text\",\"text\":\"\"}}\n\n");
}

static void begin_delta(bytes *out, size_t index, const char *type, const char *member) {
    bytes_printf(out,
                 "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%zu,\"delta\":"
                 "{\"type\":\"%s\",\"%s\":",
                 index, type, member);
}

static void put_text(bytes *out, job *j, const char *text, size_t n) {
    const stream_state *m = j->state;
    if (n == 0) return;
    begin_text(out, j);
    begin_delta(out, m->has_thinking, "text_delta", "text");
    json_put_string(out, text, n);
    bytes_append_text(out, "}}\n\n");
}

/* Nothing is signed: thinking that comes back is not passed to the template. */
static void put_thinking(bytes *out, job *j, const bytes *text) {
    stream_state *m = j->state;
    if (text->n == 0) return;
    if (!m->has_thinking) {
        begin_block(out, 0);
        bytes_append_text(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
    }
    m->has_thinking = true;
    begin_delta(out, 0, "thinking_delta", "thinking");
    json_put_string(out, text->data, text->n);
    bytes_append_text(out, "}}\n\n");
}

static void put_call_events(bytes *out, size_t index, const tools_call *call) {
    begin_block(out, index);
    put_call(out, call, NULL);
    bytes_append_text(out, "}\n\n");
    begin_delta(out, index, "input_json_delta", "partial_json");
    json_put_string(out, call->arguments.data, call->arguments.n);
    bytes_append_text(out, "}}\n\n");
    end_block(out, index);
}

static void messages_begin(bytes *out, job *j) {
    bytes_append_text(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_message(out, j);
    bytes_append_text(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(out, j->n_ids, 0, 0); /* how many are cached is known at the end */
    bytes_append_text(out, "}}\n\n");
    bytes_append_text(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void messages_piece(bytes *out, job *j, const mn_token_event *e) {
    job_delta d = job_tell_visible(j, e);
    put_thinking(out, j, &d.reasoning);
    put_text(out, j, d.content.data, d.content.n);
    job_delta_clear(out, &d);
}

static void messages_end(bytes *out, job *j, const mn_generation *g) {
    const mn_sequence *s = g->sequences[0];
    const stream_state *m = j->state;
    const reasoning_place at = reasoning_find(&j->reasoning, s->text, s->n_text);
    const char *text = s->text + at.answer;
    tools_answer parts = tools_split(j->tools, text, s->n_text - at.answer);
    if (j->tools) {
        size_t shown, n;
        tools_push(j->tools, 0, "", 0, &shown, &n);
        if (parts.n_text > shown) put_text(out, j, text + shown, parts.n_text - shown);
    }
    if (parts.n == 0 && !m->has_thinking) begin_text(out, j);
    size_t index = (size_t)m->has_thinking + m->has_text;
    if (index) end_block(out, index - 1);
    for (size_t i = 0; i < parts.n; i++) put_call_events(out, index++, &parts.calls[i]);
    bytes_append_text(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(out, j, s, parts.n > 0);
    bytes_append_text(out, "},");
    put_totals(out, j, s);
    bytes_append_text(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    tools_clear(&parts);
}

static void messages_whole(bytes *out, job *j, const mn_generation *g) {
    const mn_sequence *s = g->sequences[0];
    const reasoning_place at = reasoning_find(&j->reasoning, s->text, s->n_text);
    const char *text = s->text + at.answer;
    tools_answer parts = tools_split(j->tools, text, s->n_text - at.answer);
    const bool has_thinking = at.end > at.begin, has_text = parts.n_text > 0 || (parts.n == 0 && !has_thinking);
    put_message(out, j);
    bytes_append_text(out, ",\"content\":[");
    if (has_thinking) {
        bytes_append_text(out, "{\"type\":\"thinking\",\"thinking\":");
        json_put_string(out, s->text + at.begin, at.end - at.begin);
        bytes_append_text(out, ",\"signature\":\"\"}");
    }
    if (has_text) {
        bytes_append_text(out, has_thinking ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
        json_put_string(out, text, parts.n_text);
        bytes_append_text(out, "}");
    }
    for (size_t i = 0; i < parts.n; i++) {
        if (i || has_text || has_thinking) bytes_append_text(out, ",");
        put_call(out, &parts.calls[i], &parts.calls[i].arguments);
    }
    bytes_append_text(out, "],");
    put_stop(out, j, s, parts.n > 0);
    bytes_append_text(out, ",");
    put_totals(out, j, s);
    bytes_append_text(out, "}");
    tools_clear(&parts);
}

static void messages_fail(bytes *out, job *j, int status, const char *code, const char *param, const char *message) {
    (void)j;
    bytes_append_text(out, "event: error\ndata: ");
    messages_error(out, status, code, param, message);
    bytes_append_text(out, "\n\n");
}

static void close_message(job *j) {
    mem_free(j->state);
}

static const dialect messages = {.form = BODY_MESSAGES,
                                 .begin = messages_begin,
                                 .piece = messages_piece,
                                 .end = messages_end,
                                 .whole = messages_whole,
                                 .error = messages_error,
                                 .fail = messages_fail,
                                 .close = close_message};

/* ---- what is read ---- */

static const turns_type texts[] = {{"text", turns_text}, {NULL, NULL}};

static mn_status add_call(turns *t, const char *role, const json *block, turns_place at, refusal *why) {
    if (strcmp(role, "assistant") != 0)
        return turns_refuse(at, "type", json_get(block, "type"), "calls in turns of 'assistant'", why);
    return turns_call(t, json_get(block, "id"), json_get(block, "name"), json_get(block, "input"), at, why);
}

/* is_error is ignored: in templates a failure has no other place than the text. */
static mn_status add_result(turns *t, const char *role, const json *block, turns_place at, refusal *why) {
    char where[128];
    if (strcmp(role, "user") != 0)
        return turns_refuse(at, "type", json_get(block, "type"), "results in turns of 'user'", why);
    snprintf(where, sizeof where, "%s.content", at.where);
    return turns_result(t, json_get(block, "tool_use_id"), json_get(block, "content"), texts,
                        (turns_place){where, at.param}, why);
}

/* Earlier reasoning is not shown again. */
static const turns_type blocks[] = {{"text", turns_text},
                                    {"tool_use", add_call},
                                    {"tool_result", add_result},
                                    {"thinking", turns_nothing},
                                    {"redacted_thinking", turns_nothing},
                                    {NULL, NULL}};

static mn_status add_message(turns *t, const json *message, size_t i, refusal *why) {
    static const char *const roles[] = {"user", "assistant", "system"};
    const json *role = json_get(message, "role");
    char where[48];
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        snprintf(where, sizeof where, "messages[%zu].content", i);
        if (json_is_string(role, roles[k]))
            return turns_add(t, roles[k], json_get(message, "content"), blocks, (turns_place){where, "messages"}, why);
    }
    snprintf(where, sizeof where, "messages[%zu]", i);
    return turns_refuse((turns_place){where, "messages"}, "role", role, "'user', 'assistant', 'system'", why);
}

/* {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"} */
static tools_choice read_choice(const json *body) {
    const json *choice = json_get(body, "tool_choice"), *type = json_get(choice, "type");
    const json *is_single = json_get(choice, "disable_parallel_tool_use");
    static const json nameless = {.kind = JSON_NULL};
    bool is_named = json_is_string(type, "tool");
    const json *name = is_named ? json_get(choice, "name") : NULL;
    return (tools_choice){.is_none = json_is_string(type, "none"),
                          .is_forced = is_named || json_is_string(type, "any"),
                          .is_single = is_single && is_single->kind == JSON_BOOL && is_single->boolean,
                          .name = is_named && !name ? &nameless : name};
}

static mn_status read_tools(job *j, const server *s, const json *body, refusal *why) {
    static const tools_shape shape = {.type = "custom",
                                      .is_type_optional = true,
                                      .parameters = "input_schema",
                                      .allowed =
                                          "{\"name\": ..., \"input_schema\": {...}}, with the type 'custom' or none",
                                      .choices = "{\"type\": \"tool\", \"name\": ...} with the name of one"};
    const tools_choice choice = read_choice(body);
    return tools_open(&j->tools, mn_chat_template(s->tokenizer, true), &shape, json_get(body, "tools"), &choice, why);
}

/* The job's prompt: the system's text, then the messages. When the last one is the assistant's, the answer continues
 * it.
 */
static mn_status read_prompt(job *j, const server *s, const json *body, refusal *why) {
    const json *list = json_get(body, "messages"), *system = json_get(body, "system");
    const turns_place at = {"system", "system"};
    turns t = {0};
    mn_status status = MN_OK;
    if (system && system->kind != JSON_NULL) status = turns_add(&t, "system", system, texts, at, why);
    for (size_t i = 0; i < list->n && status == MN_OK; i++) status = add_message(&t, &list->items[i], i, why);
    bool continues = strcmp(t.role, "assistant") == 0 && t.calls.n == 0;
    if (status == MN_OK) status = turns_take(&t, j, s, continues, "messages", why);
    turns_close(&t);
    return status;
}

static mn_status open_job(job **out, const dialect *form, const server *s, const json *body, bool *streams,
                          refusal *why) {
    MN_TRY(prompt_check(s, body, why));
    job *j = *out = job_open(form, s->model, "msg_");
    if (!j) return MN_E_NOMEM;
    j->state = mem_alloc(1, sizeof(stream_state));
    if (!j->state) return MN_E_NOMEM;
    MN_TRY(read_tools(j, s, body, why));
    MN_TRY(read_prompt(j, s, body, why));
    return prompt_set(j, body, streams, why);
}

mn_status messages_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    return open_job(out, &messages, s, body, streams, why);
}

mn_status count_tokens_answer(bytes *out, server *s, const json *body, refusal *why) {
    static const dialect counting = {.form = BODY_COUNT_TOKENS, .close = close_message};
    job *j = NULL;
    bool streams;
    mn_status status = open_job(&j, &counting, s, body, &streams, why);
    if (status == MN_OK) bytes_printf(out, "{\"input_tokens\":%zu}", j->n_ids);
    job_close(j);
    return status == MN_OK ? bytes_status(out) : status;
}
