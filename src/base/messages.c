/* SPDX-License-Identifier: Apache-2.0 */
#include "base/messages.h"

#include <string.h>

/* Parts of text, joined; false: there is another part. */
static bool put_parts(bytes *out, const json *parts) {
    bytes text = {0};
    bool is_text = true;
    for (size_t i = 0; i < parts->n && is_text; i++) {
        const json *piece = json_get(&parts->items[i], "text");
        is_text = json_is_string(json_get(&parts->items[i], "type"), "text") && piece && piece->kind == JSON_STRING;
        if (is_text) bytes_append(&text, piece->string, piece->n);
    }
    json_put_bytes(out, &text);
    bytes_clear(&text);
    return is_text;
}

/* Templates take the arguments of calls as objects, clients send them as text. */
static void put_calls(bytes *out, const json *calls) {
    bytes_append_text(out, "[");
    for (size_t i = 0; i < calls->n; i++) {
        const json *call = &calls->items[i], *function = json_get(call, "function");
        const json *arguments = json_get(function, "arguments");
        json_doc *doc = NULL;
        if (arguments && arguments->kind == JSON_STRING)
            json_parse(&doc, arguments->string, arguments->n, JSON_STRICT, "arguments");
        bytes_append_text(out, i ? "," : "");
        if (!doc) {
            json_put(out, call);
            continue;
        }
        const json *id = json_get(call, "id"), *name = json_get(function, "name");
        bytes_append_text(out, "{\"type\":\"function\",");
        if (id) {
            bytes_append_text(out, "\"id\":");
            json_put(out, id);
            bytes_append_text(out, ",");
        }
        bytes_append_text(out, "\"function\":{\"name\":");
        json_put(out, name ? name : &(json){.kind = JSON_NULL});
        bytes_append_text(out, ",\"arguments\":");
        json_put(out, json_root(doc));
        bytes_append_text(out, "}}");
        json_close(&doc);
    }
    bytes_append_text(out, "]");
}

static bool put_message(bytes *out, const json *message, bool fill) {
    const json *calls = json_get(message, "tool_calls");
    const json *content = json_get(message, "content");
    bool has_calls = calls && calls->kind == JSON_ARRAY, is_text = true;
    if (content && content->kind != JSON_NULL) fill = false;
    bytes_append_text(out, "{");
    for (size_t i = 0; i < message->n; i++) {
        const json_member *m = &message->members[i];
        bool is_content = strcmp(m->key, "content") == 0;
        bytes_append_text(out, i ? "," : "");
        json_put_string(out, m->key, m->key_n);
        bytes_append_text(out, ":");
        if (is_content && m->value.kind == JSON_ARRAY)
            is_text = put_parts(out, &m->value) && is_text;
        else if (strcmp(m->key, "tool_calls") == 0 && has_calls)
            put_calls(out, calls);
        else if (strcmp(m->key, "role") == 0 && json_is_string(&m->value, "developer"))
            bytes_append_text(out, "\"system\"");
        else
            json_put(out, &m->value);
    }
    bytes_append_text(out, fill ? ",\"content\":\"\"}" : "}");
    return is_text;
}

mn_status messages_put(bytes *out, const json *list, bool fill) {
    bytes_append_text(out, "[");
    for (size_t i = 0; i < list->n; i++) {
        const json *message = &list->items[i];
        bytes_append_text(out, i ? "," : "");
        if (message->kind != JSON_OBJECT || !json_get(message, "role"))
            MN_FAIL(MN_E_ARG, "'messages' has at %zu no message, allowed: objects with 'role' and 'content'", i);
        if (!put_message(out, message, fill))
            MN_FAIL(MN_E_ARG,
                    "'messages' has at %zu a part that is no text, allowed: {\"type\": \"text\", \"text\": ...}", i);
    }
    bytes_append_text(out, "]");
    return bytes_status(out);
}
