/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat.h"

#include <string.h>

static mn_status check_objects(const json *list, const char *what) {
    if (!list || list->kind == JSON_NULL) return MN_OK;
    if (list->kind != JSON_ARRAY) MN_FAIL(MN_E_ARG, "%s must be an array of objects", what);
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "%s[%zu] is not an object", what, i);
    }
    return MN_OK;
}

static mn_status check_messages(const json *messages) {
    if (!messages || messages->kind == JSON_NULL)
        MN_FAIL(MN_E_ARG, "messages are missing; allowed: an array of objects with a role");
    MN_TRY(check_objects(messages, "messages"));
    for (size_t i = 0; i < messages->n; i++) {
        const json *role = json_get(&messages->items[i], "role");
        if (!role) MN_FAIL(MN_E_ARG, "messages[%zu] has no role", i);
        if (role->kind != JSON_STRING) MN_FAIL(MN_E_ARG, "messages[%zu].role is not a string", i);
    }
    return MN_OK;
}

/* Whether a template gets this member: null says the same as no member, in messages as other programs write them. */
static bool is_set(const json_member *member) {
    return member->value.kind != JSON_NULL;
}

/* What a model thought has different names in different programs; templates know one. */
static const json *reasoning_of(const json *message) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < 3; i++) {
        const json *value = json_get(message, names[i]);
        if (value && value->kind != JSON_NULL) return i > 0 && value->kind == JSON_STRING ? value : NULL;
    }
    return NULL;
}

/* The messages as templates take them; members borrow from the list. Both arrays are freed with the first. */
static mn_status messages_for_template(const json *list, json **out) {
    size_t most = 0;
    for (size_t i = 0; i < list->n; i++) most += list->items[i].n + 1;
    *out = mem_alloc(list->n * sizeof(json) + most * sizeof(json_member) + 1, 1);
    if (!*out) return MN_E_NOMEM;
    json_member *to = (json_member *)(*out + list->n);
    for (size_t i = 0; i < list->n; i++) {
        const json *message = &list->items[i], *reasoning = reasoning_of(message);
        json_member *first = to;
        for (size_t k = 0; k < message->n; k++) {
            if (is_set(&message->members[k])) *to++ = message->members[k];
        }
        if (reasoning) *to++ = (json_member){"reasoning_content", 17, *reasoning};
        (*out)[i] = (json){.kind = JSON_OBJECT, .n = (size_t)(to - first), .members = first};
    }
    return MN_OK;
}

static json text_value(const char *text) {
    return (json){.kind = JSON_STRING, .n = strlen(text), .string = text};
}

/* Transformers defines `tools` and `documents` as None when there are none, and leaves out tokens that are not set. */
static size_t standard_variables(const chat_request *request, const json *messages, json_member *to) {
    static const json none = {.kind = JSON_NULL};
    const json prompt = {.kind = JSON_BOOL, .boolean = request->add_generation_prompt};
    const struct {
        const char *name, *text;
    } tokens[] = {{"bos_token", request->tokens.bos},
                  {"eos_token", request->tokens.eos},
                  {"pad_token", request->tokens.pad},
                  {"unk_token", request->tokens.unk}};
    size_t n = 0;
    to[n++] = (json_member){"messages", 8, *messages};
    to[n++] = (json_member){"tools", 5, request->tools ? *request->tools : none};
    to[n++] = (json_member){"documents", 9, request->documents ? *request->documents : none};
    to[n++] = (json_member){"add_generation_prompt", 21, prompt};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        if (tokens[i].text) to[n++] = (json_member){tokens[i].name, strlen(tokens[i].name), text_value(tokens[i].text)};
    }
    return n;
}

enum { STANDARD_VARIABLES = 8 };

mn_status chat_render(const jinja_template *template, const chat_request *request, bytes *out) {
    const json *extra = request->extra;
    MN_TRY(check_messages(request->messages));
    MN_TRY(check_objects(request->tools, "tools"));
    MN_TRY(check_objects(request->documents, "documents"));
    if (extra && extra->kind == JSON_NULL) extra = NULL;
    if (extra && extra->kind != JSON_OBJECT)
        MN_FAIL(MN_E_ARG, "template_kwargs must be an object of the template's variables");
    json list = {.kind = JSON_ARRAY, .n = request->messages->n}, *items;
    MN_TRY(messages_for_template(request->messages, &items));
    list.items = items;
    json_member *members = mem_alloc(STANDARD_VARIABLES + (extra ? extra->n : 0), sizeof *members);
    if (!members) {
        mem_free(items);
        return MN_E_NOMEM;
    }
    size_t n = standard_variables(request, &list, members);
    if (extra && extra->n)
        memcpy(members + n, extra->members, extra->n * sizeof *members); /* the last of one name counts */
    const json context = {.kind = JSON_OBJECT, .n = n + (extra ? extra->n : 0), .members = members};
    mn_status status = jinja_render(template, &context, request->limits, request->now, out);
    mem_free(members);
    mem_free(items);
    return status;
}

mn_status chat_render_text(const char *template_text, size_t n, const chat_request *request, bytes *out) {
    jinja_template *template;
    MN_TRY(jinja_compile(&template, template_text, n));
    mn_status status = chat_render(template, request, out);
    jinja_close(&template);
    return status;
}

mn_status chat_messages(const chat_turn *turns, size_t n, json_doc **out) {
    bytes text = {0};
    *out = NULL;
    bytes_append_text(&text, "[");
    for (size_t i = 0; i < n; i++) {
        bytes_append_text(&text, i ? ",{\"role\":" : "{\"role\":");
        json_put_string(&text, turns[i].role, strlen(turns[i].role));
        bytes_append_text(&text, ",\"content\":");
        json_put_string(&text, turns[i].content, strlen(turns[i].content));
        bytes_append_text(&text, "}");
    }
    bytes_append_text(&text, "]");
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = json_parse(out, text.data, text.n, JSON_STRICT, "messages");
    bytes_clear(&text);
    return status;
}
