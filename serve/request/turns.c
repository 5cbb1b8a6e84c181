/* SPDX-License-Identifier: Apache-2.0 */
#include "request/turns.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "request/prompt.h"

mn_status turns_refuse(turns_place at, const char *key, const json *value, const char *allowed, refusal *why) {
    static const json nothing = {.kind = JSON_NULL};
    *why = (refusal){400, "invalid_value", at.param};
    json_wrong_value(at.where, key, value ? value : &nothing, allowed);
    return MN_E_ARG;
}

/* "'text', 'image'" */
static mn_status refuse_type(const json *type, const turns_type *types, turns_place at, refusal *why) {
    bytes allowed = {0};
    for (size_t i = 0; types[i].type; i++) bytes_printf(&allowed, "%s'%s'", i ? ", " : "", types[i].type);
    turns_refuse(at, "type", type, bytes_text(&allowed), why);
    bytes_clear(&allowed);
    return MN_E_ARG;
}

mn_status turns_end_message(turns *t) {
    if (!t->role[0]) return bytes_status(&t->messages);
    bytes_printf(&t->messages, "%s{\"role\":\"%s\",\"content\":", t->messages.n ? "," : "", t->role);
    json_put_string(&t->messages, t->text.data ? t->text.data : "", t->text.n);
    if (t->calls.n) bytes_printf(&t->messages, ",\"tool_calls\":[%s]", bytes_text(&t->calls));
    bytes_append_text(&t->messages, "}");
    t->role[0] = 0;
    t->has_text = false;
    t->messages.failed = t->messages.failed || t->text.failed || t->calls.failed;
    t->text.n = t->calls.n = 0;
    return bytes_status(&t->messages);
}

/* What follows is of this role. */
static mn_status open_message(turns *t, const char *role) {
    if (strcmp(t->role, role) == 0) return MN_OK;
    MN_TRY(turns_end_message(t));
    snprintf(t->role, sizeof t->role, "%s", role);
    return MN_OK;
}

static mn_status add_text(turns *t, const char *role, const char *text, size_t n) {
    MN_TRY(open_message(t, role));
    if (t->has_text) bytes_append_text(&t->text, "\n");
    if (n) bytes_append(&t->text, text, n);
    t->has_text = true;
    return bytes_status(&t->text);
}

mn_status turns_text(turns *t, const char *role, const json *block, turns_place at, refusal *why) {
    const json *text = json_get(block, "text");
    if (text && text->kind == JSON_STRING) return add_text(t, role, text->string, text->n);
    *why = (refusal){400, "invalid_value", at.param};
    MN_FAIL(MN_E_ARG, "%s: 'text' is missing, or is no string", at.where);
}

mn_status turns_nothing(turns *t, const char *role, const json *block, turns_place at, refusal *why) {
    (void)block, (void)at, (void)why;
    return open_message(t, role);
}

mn_status turns_add(turns *t, const char *role, const json *content, const turns_type *types, turns_place at,
                    refusal *why) {
    char where[96];
    if (content && content->kind == JSON_STRING) return add_text(t, role, content->string, content->n);
    if (!content || content->kind != JSON_ARRAY) {
        *why = (refusal){400, "invalid_value", at.param};
        MN_FAIL(MN_E_ARG, "body: %s is missing, or is neither a string nor a list of blocks", at.where);
    }
    if (content->n == 0) MN_TRY(open_message(t, role));
    for (size_t i = 0; i < content->n; i++) {
        const json *block = &content->items[i], *type = json_get(block, "type");
        const turns_type *one = types;
        snprintf(where, sizeof where, "%s[%zu]", at.where, i);
        while (one->type && !json_is_string(type, one->type)) one++;
        if (!one->type) return refuse_type(type, types, (turns_place){where, at.param}, why);
        MN_TRY(one->add(t, role, block, (turns_place){where, at.param}, why));
    }
    return MN_OK;
}

/* ---- calls ---- */

/* Templates take arguments as objects; text that is no JSON stays text. */
static void put_arguments(bytes *out, const char *text, size_t n) {
    json_doc *doc = NULL;
    if (json_parse(&doc, text, n, JSON_STRICT, "arguments") == MN_OK)
        json_put(out, json_root(doc));
    else
        json_put_string(out, text, n);
    json_close(&doc);
}

static mn_status check_strings(const json *const *values, const char *const *names, size_t n, turns_place at,
                               refusal *why) {
    for (size_t i = 0; i < n; i++) {
        if (!values[i] || values[i]->kind != JSON_STRING || values[i]->n == 0)
            return turns_refuse(at, names[i], values[i], "a string that is not empty", why);
    }
    return MN_OK;
}

static void begin_call(turns *t) {
    bytes_append_text(&t->calls, t->calls.n ? ",{\"type\":\"function\",\"id\":" : "{\"type\":\"function\",\"id\":");
}

mn_status turns_call(turns *t, const json *id, const json *name, const json *arguments, turns_place at, refusal *why) {
    static const char *const names[] = {"the call's id", "name"};
    MN_TRY(check_strings((const json *[]){id, name}, names, 2, at, why));
    if (arguments && arguments->kind != JSON_OBJECT && arguments->kind != JSON_STRING)
        return turns_refuse(at, "the call's input", arguments, "an object, or its text", why);
    MN_TRY(open_message(t, "assistant"));
    begin_call(t);
    json_put(&t->calls, id);
    bytes_append_text(&t->calls, ",\"function\":{\"name\":");
    json_put(&t->calls, name);
    bytes_append_text(&t->calls, ",\"arguments\":");
    if (!arguments)
        bytes_append_text(&t->calls, "{}");
    else if (arguments->kind == JSON_STRING)
        put_arguments(&t->calls, arguments->string, arguments->n);
    else
        json_put(&t->calls, arguments);
    bytes_append_text(&t->calls, "}}");
    return bytes_status(&t->calls);
}

mn_status turns_result(turns *t, const json *id, const json *content, const turns_type *types, turns_place at,
                       refusal *why) {
    static const char *const names[] = {"the call's id"};
    turns result = {0};
    MN_TRY(check_strings((const json *[]){id}, names, 1, at, why));
    MN_TRY(turns_end_message(t));
    mn_status status =
        content && content->kind != JSON_NULL ? turns_add(&result, "tool", content, types, at, why) : MN_OK;
    if (status == MN_OK) {
        bytes_append_text(&t->messages, t->messages.n ? ",{\"role\":\"tool\",\"tool_call_id\":"
                                                      : "{\"role\":\"tool\",\"tool_call_id\":");
        json_put(&t->messages, id);
        bytes_append_text(&t->messages, ",\"content\":");
        json_put_bytes(&t->messages, &result.text);
        bytes_append_text(&t->messages, "}");
        status = bytes_status(&t->messages);
    }
    turns_close(&result);
    return status;
}

mn_status turns_answer(turns *t, const char *text, const tools_answer *parts) {
    MN_TRY(add_text(t, "assistant", text, parts->n_text));
    for (size_t i = 0; i < parts->n; i++) {
        const tools_call *call = &parts->calls[i];
        begin_call(t);
        bytes_printf(&t->calls, "\"%s\",\"function\":{\"name\":\"%s\",\"arguments\":", call->id, call->name);
        put_arguments(&t->calls, call->arguments.data, call->arguments.n);
        bytes_append_text(&t->calls, "}}");
    }
    return turns_end_message(t);
}

/* ---- the prompt ---- */

mn_status turns_take(turns *t, job *j, const server *s, bool continues, const char *param, refusal *why) {
    char *text = NULL;
    size_t n = 0;
    bytes list = {0}, functions = {0}, prompt = {0};
    if (!continues) MN_TRY(turns_end_message(t));
    bytes_append_text(&list, "[");
    bytes_append(&list, t->messages.data, t->messages.n);
    bytes_append_text(&list, "]");
    mn_chat_options options;
    mn_chat_options_init(&options, sizeof options);
    if (j->tools) json_put(&functions, tools_list(j->tools));
    if (j->tools) options.tools = bytes_text(&functions);
    mn_status status = bytes_status(&list);
    if (status == MN_OK) status = bytes_status(&functions);
    if (status == MN_OK) status = mn_chat_render_with(s->tokenizer, list.data, list.n, &options, &text, &n);
    if (status == MN_OK) {
        j->reasoning = reasoning_of(mn_chat_template(s->tokenizer, j->tools != NULL), text, n);
        j->reasoning.is_open = j->reasoning.is_open && !continues;
        bytes_append(&prompt, text, n);
        if (continues) bytes_append(&prompt, t->text.data, t->text.n);
        if (j->tools) bytes_append_text(&prompt, tools_prefix(j->tools));
        status = bytes_status(&prompt);
    }
    if (status == MN_OK) status = mn_tokenize(s->tokenizer, prompt.data, prompt.n, 0, &j->ids, &j->n_ids);
    mn_free(text);
    bytes_clear(&list);
    bytes_clear(&functions);
    bytes_clear(&prompt);
    j->model = s->name;
    j->tokenizer = s->tokenizer;
    if (status == MN_OK) return prompt_check_length(s, j, param, why);
    *why = (refusal){0, "invalid_value", param};
    return status_context(status, "'%s'", param);
}

void turns_close(turns *t) {
    bytes_clear(&t->messages);
    bytes_clear(&t->text);
    bytes_clear(&t->calls);
}
