/* OpenAI's /v1/responses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "request/conversations.h"
#include "request/explain.h"
#include "request/fields.h"
#include "request/prompt.h"
#include "request/turns.h"

/* What a response is beside its job. */
typedef struct response {
    const server *server;
    char *previous;     /* id of the response that this one continues; NULL: none */
    bytes instructions; /* a message for the template; empty: none */
    turns input;        /* the turns of this request; from adopt on, all but the instructions */
    bytes echo;         /* members that repeat the request */
    bool is_stored;
    /* The events of the item have begun: that of reasoning comes first, then the text, and calls. */
    bool has_reasoning, has_text, reasoning_is_over;
    bytes thought; /* so far */
    int n_events;
} response;

/* What is computed, split into reasoning, text and calls. */
typedef struct output {
    const mn_sequence *sequence;
    const char *text, *reasoning;
    size_t n_reasoning;
    int64_t reasoning_tokens; /* with the markers */
    tools_answer parts;
} output;

static bool has_text(const output *a) {
    return a->parts.n_text > 0 || (a->parts.n == 0 && a->n_reasoning == 0);
}

/* ---- what is written ---- */

/* Items that have a text: names of their parts and events. */
typedef struct item_kind {
    const char *prefix, *part, *members; /* members: of the part, behind its text */
    const char *item;                    /* members of the item, before its content */
    const char *delta, *done, *logprobs; /* events, and their last member */
} item_kind;

static const item_kind message_item = {"msg_",
                                       "output_text",
                                       ",\"annotations\":[],\"logprobs\":[]",
                                       "\"type\":\"message\",\"role\":\"assistant\"",
                                       "response.output_text.delta",
                                       "response.output_text.done",
                                       ",\"logprobs\":[]"};
static const item_kind reasoning_item = {"rs_",
                                         "reasoning_text",
                                         "",
                                         "\"type\":\"reasoning\",\"summary\":[]",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.done",
                                         ""};

/* An item has the response's random part. */
static void put_item_id(bytes *out, const job *j, const item_kind *kind) {
    bytes_printf(out, "\"%s%s\"", kind->prefix, strchr(j->id, '_') + 1);
}

static void put_part(bytes *out, const item_kind *kind, const char *text, size_t n) {
    bytes_printf(out, "{\"type\":\"%s\",\"text\":", kind->part);
    json_put_string(out, text, n);
    bytes_printf(out, "%s}", kind->members);
}

/* text NULL: it has none yet. */
static void put_item(bytes *out, const job *j, const item_kind *kind, const char *status, const char *text, size_t n) {
    bytes_append_text(out, "{\"id\":");
    put_item_id(out, j, kind);
    bytes_printf(out, ",%s,\"status\":\"%s\",\"content\":[", kind->item, status);
    if (text) put_part(out, kind, text, n);
    bytes_append_text(out, "]}");
}

/* Without its arguments while they come in events of their own. */
static void put_call(bytes *out, const tools_call *call, bool is_whole) {
    bytes_printf(out,
                 "{\"id\":\"fc_%s\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":\"%s\","
                 "\"arguments\":",
                 call->id, is_whole ? "completed" : "in_progress", call->id, call->name);
    if (is_whole)
        json_put_string(out, call->arguments.data, call->arguments.n);
    else
        bytes_append_text(out, "\"\"");
    bytes_append_text(out, "}");
}

static void put_output(bytes *out, const job *j, const char *status, const output *a) {
    const bool is_cut = !has_text(a) && a->parts.n == 0; /* within the reasoning */
    if (a->n_reasoning) put_item(out, j, &reasoning_item, is_cut ? status : "completed", a->reasoning, a->n_reasoning);
    if (a->n_reasoning && has_text(a)) bytes_append_text(out, ",");
    if (has_text(a)) put_item(out, j, &message_item, status, a->text, a->parts.n_text);
    for (size_t i = 0; i < a->parts.n; i++) {
        if (i || has_text(a) || a->n_reasoning) bytes_append_text(out, ",");
        put_call(out, &a->parts.calls[i], true);
    }
}

/* Every token of the prompt that was not found in the cache is put there. */
static void put_usage(bytes *out, const output *a) {
    const mn_sequence *s = a->sequence;
    bytes_printf(out,
                 "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,\"cache_write_tokens\":%zu},"
                 "\"output_tokens\":%zu,\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%zu}",
                 s->prompt_tokens, s->cached_tokens, s->prompt_tokens - s->cached_tokens, s->n_ids,
                 (long long)a->reasoning_tokens, s->prompt_tokens + s->n_ids);
}

/* "completed", or why it is not: the limits are all that ends a text early. */
static const char *status_of(const mn_sequence *s) {
    const char *reason = s->finish_reason;
    if (strcmp(reason, "cancelled") == 0) return "cancelled";
    return strcmp(reason, "eos") == 0 || strcmp(reason, "stop_string") == 0 ? "completed" : "incomplete";
}

/* a NULL: nothing is computed yet, or it failed with code and message. */
static void put_response(bytes *out, const job *j, const char *status, const output *a, const char *code,
                         const char *message) {
    const response *r = j->state;
    const mn_sequence *s = a ? a->sequence : NULL;
    bool is_incomplete = s && strcmp(status, "incomplete") == 0;
    bytes_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", j->id,
                 (long long)j->created, status);
    json_put_string(out, j->model, strlen(j->model));
    bytes_append_text(out, ",\"error\":");
    if (code) {
        bytes_printf(out, "{\"code\":\"%s\",\"message\":", code);
        json_put_string(out, message, strlen(message));
        bytes_append_text(out, "}");
    } else {
        bytes_append_text(out, "null");
    }
    bytes_append_text(out, ",\"incomplete_details\":");
    if (is_incomplete)
        bytes_printf(out, "{\"reason\":\"%s\"}",
                     strcmp(s->finish_reason, "time") == 0 ? "max_time" : "max_output_tokens");
    else
        bytes_append_text(out, "null");
    bytes_append_text(out, ",\"output\":[");
    if (a) put_output(out, j, is_incomplete ? "incomplete" : "completed", a);
    bytes_append_text(out, "],\"usage\":");
    if (s)
        put_usage(out, a);
    else
        bytes_append_text(out, "null");
    if (s) explain_put_object(out, j, s);
    bytes_append(out, r->echo.data, r->echo.n);
    bytes_append_text(out, "}");
}

/* "event: ...\ndata: {"type", "sequence_number" */
static void begin_event(bytes *out, job *j, const char *type) {
    response *r = j->state;
    bytes_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,", type, type, r->n_events++);
}

static void put_response_event(bytes *out, job *j, const char *type, const char *status, const output *a,
                               const char *code, const char *message) {
    begin_event(out, j, type);
    bytes_append_text(out, "\"response\":");
    put_response(out, j, status, a, code, message);
    bytes_append_text(out, "}\n\n");
}

/* Reasoning is the first item where there is some, and the text comes next. */
static int index_of(const job *j, const item_kind *kind) {
    const response *r = j->state;
    return kind == &message_item && r->has_reasoning;
}

/* text NULL: it has none yet. */
static void put_item_event(bytes *out, job *j, const char *type, const item_kind *kind, const char *status,
                           const char *text, size_t n) {
    begin_event(out, j, type);
    bytes_printf(out, "\"output_index\":%d,\"item\":", index_of(j, kind));
    put_item(out, j, kind, status, text, n);
    bytes_append_text(out, "}\n\n");
}

/* An event of a text: its name for the text is delta or text, or it has the whole part. */
static void put_text_event(bytes *out, job *j, const char *type, const item_kind *kind, const char *member,
                           const char *text, size_t n) {
    begin_event(out, j, type);
    bytes_append_text(out, "\"item_id\":");
    put_item_id(out, j, kind);
    bytes_printf(out, ",\"output_index\":%d,\"content_index\":0,\"%s\":", index_of(j, kind), member);
    if (strcmp(member, "part") == 0) {
        put_part(out, kind, text, n);
    } else {
        json_put_string(out, text, n);
        bytes_append_text(out, kind->logprobs);
    }
    bytes_append_text(out, "}\n\n");
}

static void begin_item(bytes *out, job *j, const item_kind *kind, bool *has_begun) {
    if (*has_begun) return;
    *has_begun = true;
    put_item_event(out, j, "response.output_item.added", kind, "in_progress", NULL, 0);
    put_text_event(out, j, "response.content_part.added", kind, "part", "", 0);
}

static void end_item(bytes *out, job *j, const item_kind *kind, const char *status, const char *text, size_t n) {
    put_text_event(out, j, kind->done, kind, "text", text, n);
    put_text_event(out, j, "response.content_part.done", kind, "part", text, n);
    put_item_event(out, j, "response.output_item.done", kind, status, text, n);
}

static void put_call_event(bytes *out, job *j, const char *type, size_t index, const tools_call *call, bool is_whole) {
    begin_event(out, j, type);
    bytes_printf(out, "\"output_index\":%zu,\"item\":", index);
    put_call(out, call, is_whole);
    bytes_append_text(out, "}\n\n");
}

/* member: the event's name for the arguments. */
static void put_arguments_event(bytes *out, job *j, const char *type, size_t index, const tools_call *call,
                                const char *member) {
    begin_event(out, j, type);
    bytes_printf(out, "\"item_id\":\"fc_%s\",\"output_index\":%zu,\"%s\":", call->id, index, member);
    json_put_string(out, call->arguments.data, call->arguments.n);
    bytes_printf(out, ",\"name\":\"%s\"}\n\n", call->name);
}

/* What is thought is whole when the text or a call begins. */
static void end_reasoning(bytes *out, job *j, const char *status) {
    response *r = j->state;
    if (!r->has_reasoning || r->reasoning_is_over) return;
    r->reasoning_is_over = true;
    end_item(out, j, &reasoning_item, status, r->thought.data, r->thought.n);
}

static void put_reasoning(bytes *out, job *j, const bytes *text) {
    response *r = j->state;
    if (text->n == 0) return;
    begin_item(out, j, &reasoning_item, &r->has_reasoning);
    put_text_event(out, j, reasoning_item.delta, &reasoning_item, "delta", text->data, text->n);
    bytes_append(&r->thought, text->data, text->n);
}

static void put_delta(bytes *out, job *j, const char *text, size_t n) {
    response *r = j->state;
    if (n == 0) return;
    end_reasoning(out, j, "completed");
    begin_item(out, j, &message_item, &r->has_text);
    put_text_event(out, j, message_item.delta, &message_item, "delta", text, n);
}

static void responses_begin(bytes *out, job *j) {
    put_response_event(out, j, "response.created", "in_progress", NULL, NULL, NULL);
    put_response_event(out, j, "response.in_progress", "in_progress", NULL, NULL, NULL);
}

static void responses_piece(bytes *out, job *j, const mn_token_event *e) {
    const response *r = j->state;
    job_delta d = job_tell_visible(j, e);
    put_reasoning(out, j, &d.reasoning);
    put_delta(out, j, d.content.data, d.content.n);
    out->failed = out->failed || r->thought.failed;
    job_delta_clear(out, &d);
}

static void keep(const job *j, const output *a) {
    response *r = j->state;
    if (!r->is_stored || strcmp(a->sequence->finish_reason, "cancelled") == 0) return;
    if (turns_answer(&r->input, a->text, &a->parts) == MN_OK)
        conversations_keep(r->server->conversations, j->id, j->owner, &r->input.messages);
}

static output split(const job *j, const mn_generation *g) {
    const mn_sequence *s = g->sequences[0];
    const reasoning_place at = reasoning_find(&j->reasoning, s->text, s->n_text);
    return (output){.sequence = s,
                    .text = s->text + at.answer,
                    .reasoning = s->text + at.begin,
                    .n_reasoning = at.end - at.begin,
                    .reasoning_tokens = at.answer ? j->n_reasoning_tokens : 0,
                    .parts = tools_split(j->tools, s->text + at.answer, s->n_text - at.answer)};
}

static void end_text(bytes *out, job *j, const char *status, const output *a) {
    response *r = j->state;
    if (j->tools) {
        size_t shown, n;
        tools_push(j->tools, 0, "", 0, &shown, &n);
        if (a->parts.n_text > shown) put_delta(out, j, a->text + shown, a->parts.n_text - shown);
    }
    end_reasoning(out, j, has_text(a) || a->parts.n ? "completed" : status);
    if (!has_text(a)) return;
    begin_item(out, j, &message_item, &r->has_text);
    end_item(out, j, &message_item, status, a->text, a->parts.n_text);
}

static void responses_end(bytes *out, job *j, const mn_generation *g) {
    output a = split(j, g);
    const char *status = status_of(a.sequence);
    bool is_completed = strcmp(status, "completed") == 0;
    end_text(out, j, is_completed ? "completed" : "incomplete", &a);
    for (size_t i = 0; i < a.parts.n; i++) {
        const tools_call *call = &a.parts.calls[i];
        size_t index = i + has_text(&a) + (a.n_reasoning > 0);
        put_call_event(out, j, "response.output_item.added", index, call, false);
        put_arguments_event(out, j, "response.function_call_arguments.delta", index, call, "delta");
        put_arguments_event(out, j, "response.function_call_arguments.done", index, call, "arguments");
        put_call_event(out, j, "response.output_item.done", index, call, true);
    }
    put_response_event(out, j, is_completed ? "response.completed" : "response.incomplete", status, &a, NULL, NULL);
    keep(j, &a);
    tools_clear(&a.parts);
}

static void responses_whole(bytes *out, job *j, const mn_generation *g) {
    output a = split(j, g);
    put_response(out, j, status_of(a.sequence), &a, NULL, NULL);
    keep(j, &a);
    tools_clear(&a.parts);
}

static void responses_fail(bytes *out, job *j, int status, const char *code, const char *param, const char *message) {
    (void)status, (void)param;
    put_response_event(out, j, "response.failed", "failed", NULL, code, message);
}

/* ---- what is read ---- */

static void close_response(job *j) {
    response *r = j->state;
    mem_free(r->previous);
    bytes_clear(&r->instructions);
    bytes_clear(&r->echo);
    bytes_clear(&r->thought);
    turns_close(&r->input);
    mem_free(r);
}

/* All messages are known when the owner is: only the owner of a conversation can continue it. */
static mn_status adopt_response(job *j, refusal *why) {
    response *r = j->state;
    turns all = {0};
    bytes before = {0};
    if (r->previous && !conversations_find(r->server->conversations, r->previous, j->owner, &before)) {
        *why = (refusal){400, "previous_response_not_found", "previous_response_id"};
        MN_FAIL(
            MN_E_NOT_FOUND,
            "'previous_response_id' is '%.64s', which is not kept, or no longer: send the whole conversation as 'input'",
            r->previous);
    }
    if (before.n) bytes_append_text(&before, ",");
    bytes_append(&before, r->input.messages.data, r->input.messages.n);
    bytes_clear(&r->input.messages);
    r->input.messages = before;
    if (r->instructions.n) bytes_printf(&all.messages, "%s,", bytes_text(&r->instructions));
    bytes_append(&all.messages, before.data, before.n);
    mn_status status = bytes_status(&before);
    if (status == MN_OK) status = turns_take(&all, j, r->server, false, "input", why);
    turns_close(&all);
    prompt_close_reasoning(j);
    return status;
}

static const dialect responses = {.form = BODY_RESPONSES,
                                  .begin = responses_begin,
                                  .piece = responses_piece,
                                  .end = responses_end,
                                  .whole = responses_whole,
                                  .error = openai_error,
                                  .fail = responses_fail,
                                  .adopt = adopt_response,
                                  .close = close_response};

static const turns_type texts[] = {
    {"input_text", turns_text}, {"output_text", turns_text}, {"text", turns_text}, {NULL, NULL}};

static mn_status add_message(turns *t, const json *item, turns_place at, refusal *why) {
    static const char *const roles[][2] = {
        {"user", "user"}, {"assistant", "assistant"}, {"system", "system"}, {"developer", "system"}};
    const json *role = json_get(item, "role");
    char where[64];
    snprintf(where, sizeof where, "%s.content", at.where);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        if (json_is_string(role, roles[k][0]))
            return turns_add(t, roles[k][1], json_get(item, "content"), texts, (turns_place){where, at.param}, why);
    }
    return turns_refuse(at, "role", role, "'user', 'assistant', 'system', 'developer'", why);
}

static mn_status add_item(turns *t, const json *item, size_t i, refusal *why) {
    const json *type = json_get(item, "type"), *id = json_get(item, "call_id");
    char where[48];
    snprintf(where, sizeof where, "input[%zu]", i);
    const turns_place at = {where, "input"};
    if (!type || json_is_string(type, "message")) return add_message(t, item, at, why);
    if (json_is_string(type, "function_call"))
        return turns_call(t, id, json_get(item, "name"), json_get(item, "arguments"), at, why);
    if (json_is_string(type, "function_call_output"))
        return turns_result(t, id, json_get(item, "output"), texts, at, why);
    if (json_is_string(type, "reasoning")) return MN_OK; /* what was thought before is not shown again */
    return turns_refuse(at, "type", type, "'message', 'function_call', 'function_call_output', 'reasoning'", why);
}

static mn_status read_tools(job *j, const server *s, const json *body, refusal *why) {
    static const tools_shape shape = {.type = "function",
                                      .parameters = "parameters",
                                      .allowed = "{\"type\": \"function\", \"name\": ..., \"parameters\": {...}}",
                                      .choices =
                                          "'none', 'auto', 'required', or {\"type\": \"function\", \"name\": ...}"};
    const tools_choice choice = tools_read_choice(body, NULL);
    return tools_open(&j->tools, mn_chat_template(s->tokenizer, true), &shape, json_get(body, "tools"), &choice, why);
}

static mn_status read_input(response *r, const json *body, refusal *why) {
    const json *input = json_get(body, "input");
    bool is_list = input->kind == JSON_ARRAY;
    if (!is_list) MN_TRY(turns_add(&r->input, "user", input, texts, (turns_place){"input", "input"}, why));
    for (size_t i = 0; is_list && i < input->n; i++) MN_TRY(add_item(&r->input, &input->items[i], i, why));
    if (is_list && input->n == 0) {
        *why = (refusal){400, "value_out_of_range", "input"};
        MN_FAIL(MN_E_ARG, "'input' is [], allowed: a string, or a list with at least one message");
    }
    return turns_end_message(&r->input);
}

/* Members of the response that repeat the request, with the values in force for absent fields. */
static void echo(bytes *out, const json *body) {
    static const char *const of[][2] = {{"instructions", "null"},
                                        {"max_output_tokens", "null"},
                                        {"metadata", "{}"},
                                        {"parallel_tool_calls", "true"},
                                        {"previous_response_id", "null"},
                                        {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                        {"store", "true"},
                                        {"temperature", "null"},
                                        {"text", "{\"format\":{\"type\":\"text\"}}"},
                                        {"tool_choice", "\"auto\""},
                                        {"tools", "[]"},
                                        {"top_p", "null"},
                                        {"truncation", "\"disabled\""},
                                        {"user", "null"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const json *value = json_get(body, of[i][0]);
        bytes_printf(out, ",\"%s\":", of[i][0]);
        if (value && value->kind != JSON_NULL)
            json_put(out, value);
        else
            bytes_append_text(out, of[i][1]);
    }
}

static mn_status read_response(response *r, const json *body, refusal *why) {
    const json *instructions = json_get(body, "instructions");
    const char *previous;
    const json *store = json_get(body, "store");
    MN_TRY(read_input(r, body, why));
    MN_TRY(field_string(&previous, body, "previous_response_id", why));
    if (previous) r->previous = mem_copy_text(previous, strlen(previous));
    if (previous && !r->previous) return MN_E_NOMEM;
    if (instructions && instructions->kind == JSON_STRING) {
        bytes_append_text(&r->instructions, "{\"role\":\"system\",\"content\":");
        json_put(&r->instructions, instructions);
        bytes_append_text(&r->instructions, "}");
    }
    r->is_stored = !store || store->kind == JSON_NULL || store->boolean;
    echo(&r->echo, body);
    MN_TRY(bytes_status(&r->instructions));
    return bytes_status(&r->echo);
}

mn_status responses_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    MN_TRY(prompt_check(s, body, why));
    response *r = mem_alloc(1, sizeof *r);
    if (!r) return MN_E_NOMEM;
    r->server = s;
    job *j = *out = job_open(&responses, s->model, "resp_");
    if (!j) {
        mem_free(r);
        return MN_E_NOMEM;
    }
    j->state = r;
    MN_TRY(read_response(r, body, why));
    MN_TRY(read_tools(j, s, body, why));
    return prompt_set(j, body, streams, why);
}
