/* SPDX-License-Identifier: Apache-2.0 */
#include "request/tools.h"

#include <string.h>
#include <sys/random.h>

#include "base/status.h"

typedef enum tool_form { FORM_HERMES, FORM_LLAMA, FORM_MISTRAL, FORM_UNKNOWN } tool_form;

enum { MOST_STREAMED = 8, MOST_NAME = 64 };

struct tools {
    tool_form form;
    json_doc *doc; /* the list, as chats have it */
    bool is_forced, is_single;
    const json *forced; /* the function that is called; NULL: any */
    struct {
        bytes text;
        size_t shown;
    } streamed[MOST_STREAMED];
};

/* ---- the request ---- */

/* Templates of the Qwen coders and of GLM write <tool_call> too, but XML in it; newer ones of Mistral write the name
 * before [ARGS]. */
static tool_form form_of(const char *template) {
    static const struct {
        const char *sign;
        tool_form form;
    } signs[] = {{"<function=", FORM_UNKNOWN},
                 {"<arg_key>", FORM_UNKNOWN},
                 {"[ARGS]", FORM_UNKNOWN},
                 {"<tool_call>", FORM_HERMES},
                 {"[TOOL_CALLS]", FORM_MISTRAL},
                 {"<|python_tag|>", FORM_LLAMA},
                 {"{\"name\": function name, \"parameters\"", FORM_LLAMA}};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (strstr(template, signs[i].sign)) return signs[i].form;
    }
    return FORM_UNKNOWN;
}

static const json *function_at(const tools *t, size_t i) {
    return json_get(&json_root(t->doc)->items[i], "function");
}

static bool is_name(const json *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    return name && name->kind == JSON_STRING && name->n > 0 && name->n <= MOST_NAME &&
           strspn(name->string, letters) == name->n;
}

static const json *find(const tools *t, const json *name) {
    for (size_t i = 0; name && name->kind == JSON_STRING && i < json_root(t->doc)->n; i++) {
        if (json_is_string(json_get(function_at(t, i), "name"), name->string)) return function_at(t, i);
    }
    return NULL;
}

static mn_status check_list(const tools_shape *shape, const json *list, refusal *why) {
    *why = (refusal){400, "value_out_of_range", "tools"};
    for (size_t i = 0; i < list->n; i++) {
        const json *item = &list->items[i], *type = json_get(item, "type");
        const json *function = shape->inner ? json_get(item, shape->inner) : item;
        const json *parameters = json_get(function, shape->parameters);
        bool is_function = type ? json_is_string(type, shape->type) : shape->is_type_optional;
        if (!is_function || !function || function->kind != JSON_OBJECT)
            MN_FAIL(MN_E_ARG, "'tools' has at %zu no function, allowed: %s", i, shape->allowed);
        if (!is_name(json_get(function, "name")))
            MN_FAIL(MN_E_ARG,
                    "'tools' has at %zu no function with a name, allowed: 1 to 64 letters, digits, '_', '-', '.'", i);
        if (parameters && parameters->kind != JSON_OBJECT && parameters->kind != JSON_NULL)
            MN_FAIL(MN_E_ARG, "'tools' has at %zu parameters that are no JSON schema, allowed: an object", i);
    }
    *why = (refusal){0};
    return MN_OK;
}

/* As chats have it: {"type": "function", "function": {"name", "description", "parameters"}}. */
static void put_function(bytes *out, const tools_shape *shape, const json *item) {
    const char *const names[][2] = {{"description", "description"}, {shape->parameters, "parameters"}};
    bytes_append_text(out, "{\"type\":\"function\",\"function\":{\"name\":");
    json_put(out, json_get(item, "name"));
    for (size_t i = 0; i < 2; i++) {
        const json *value = json_get(item, names[i][0]);
        if (!value || value->kind == JSON_NULL) continue;
        bytes_printf(out, ",\"%s\":", names[i][1]);
        json_put(out, value);
    }
    bytes_append_text(out, "}}");
}

static mn_status copy_list(tools *t, const tools_shape *shape, const json *list) {
    bytes text = {0};
    bytes_append_text(&text, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i) bytes_append_text(&text, ",");
        if (shape->inner)
            json_put(&text, &list->items[i]);
        else
            put_function(&text, shape, &list->items[i]);
    }
    bytes_append_text(&text, "]");
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = json_parse(&t->doc, text.data, text.n, JSON_STRICT, "tools");
    bytes_clear(&text);
    return status;
}

tools_choice tools_read_choice(const json *body, const char *inner) {
    const json *choice = json_get(body, "tool_choice"), *parallel = json_get(body, "parallel_tool_calls");
    static const json nameless = {.kind = JSON_NULL};
    tools_choice out = {.is_none = json_is_string(choice, "none"),
                        .is_forced = json_is_string(choice, "required"),
                        .is_single = parallel && parallel->kind == JSON_BOOL && !parallel->boolean};
    if (choice && choice->kind == JSON_OBJECT) {
        const json *name = json_get(inner ? json_get(choice, inner) : choice, "name");
        out.is_forced = true;
        out.name = name ? name : &nameless;
    }
    return out;
}

static mn_status find_forced(tools *t, const tools_shape *shape, const tools_choice *choice, refusal *why) {
    t->is_forced = choice->is_forced;
    t->is_single = choice->is_single;
    if (!choice->name) return MN_OK;
    t->forced = find(t, choice->name);
    if (t->forced) return MN_OK;
    *why = (refusal){400, "value_out_of_range", "tool_choice"};
    MN_FAIL(MN_E_ARG, "'tool_choice' names no function of 'tools', allowed: %s", shape->choices);
}

static mn_status check_template(const tools *t, const char *template, refusal *why) {
    *why = (refusal){400, "not_supported", "tools"};
    if (!strstr(template, "tools")) MN_FAIL(MN_E_ARG, "'tools' is not supported: the model's chat template takes none");
    if (t->form == FORM_UNKNOWN && !t->is_forced)
        MN_FAIL(MN_E_ARG,
                "'tools' is not supported by the form in which this model calls them, allowed: a 'tool_choice' "
                "that forces a call");
    *why = (refusal){0};
    return MN_OK;
}

mn_status tools_open(tools **out, const char *template, const tools_shape *shape, const json *list,
                     const tools_choice *choice, refusal *why) {
    bool is_empty = !list || list->kind != JSON_ARRAY || list->n == 0;
    *out = NULL;
    if (is_empty && !choice->is_forced) return MN_OK;
    if (is_empty) {
        *why = (refusal){400, "value_out_of_range", "tool_choice"};
        MN_FAIL(MN_E_ARG, "'tool_choice' forces a call, but there are no 'tools'");
    }
    MN_TRY(check_list(shape, list, why));
    if (choice->is_none) return MN_OK;
    tools *t = mem_alloc(1, sizeof *t);
    if (!t) return MN_E_NOMEM;
    t->form = form_of(template ? template : "");
    mn_status status = copy_list(t, shape, list);
    if (status == MN_OK) status = find_forced(t, shape, choice, why);
    if (status == MN_OK) status = check_template(t, template ? template : "", why);
    if (status != MN_OK) tools_close(&t);
    *out = t;
    return status;
}

void tools_close(tools **out) {
    tools *t = *out;
    *out = NULL;
    if (!t) return;
    for (size_t i = 0; i < MOST_STREAMED; i++) bytes_clear(&t->streamed[i].text);
    json_close(&t->doc);
    mem_free(t);
}

const json *tools_list(const tools *t) {
    return json_root(t->doc);
}

const char *tools_prefix(const tools *t) {
    if (!t->is_forced) return "";
    return t->form == FORM_HERMES ? "<tool_call>\n" : t->form == FORM_MISTRAL ? "[TOOL_CALLS]" : "";
}

/* ---- the schema of a forced call ---- */

/* Definitions move to the root, to which their references point. */
static void put_definitions(bytes *out, const tools *t, const char *key) {
    size_t n = 0;
    for (size_t i = 0; i < tools_list(t)->n; i++) {
        const json *function = function_at(t, i), *own = json_get(json_get(function, "parameters"), key);
        if ((t->forced && t->forced != function) || !own || own->kind != JSON_OBJECT) continue;
        for (size_t k = 0; k < own->n; k++) {
            bytes_append_text(out, n++ ? "," : "");
            json_put_string(out, own->members[k].key, own->members[k].key_n);
            bytes_append_text(out, ":");
            json_put(out, &own->members[k].value);
        }
    }
}

static void put_parameters(bytes *out, const json *parameters) {
    size_t n = 0;
    if (!parameters || parameters->kind != JSON_OBJECT || parameters->n == 0) {
        bytes_append_text(out, "{\"type\":\"object\"}");
        return;
    }
    bytes_append_text(out, "{");
    for (size_t i = 0; i < parameters->n; i++) {
        const json_member *m = &parameters->members[i];
        if (strcmp(m->key, "$defs") == 0 || strcmp(m->key, "definitions") == 0) continue;
        bytes_append_text(out, n++ ? "," : "");
        json_put_string(out, m->key, m->key_n);
        bytes_append_text(out, ":");
        json_put(out, &m->value);
    }
    bytes_append_text(out, "}");
}

void tools_put_schema(bytes *out, const tools *t) {
    const char *key = t->form == FORM_LLAMA ? "parameters" : "arguments";
    size_t n = 0;
    if (!t->is_forced) return;
    bytes_append_text(out, "{\"$defs\":{");
    put_definitions(out, t, "$defs");
    bytes_append_text(out, "},\"definitions\":{");
    put_definitions(out, t, "definitions");
    bytes_append_text(out, "},");
    if (t->form == FORM_MISTRAL) bytes_append_text(out, "\"type\":\"array\",\"minItems\":1,\"maxItems\":1,\"items\":{");
    bytes_append_text(out, "\"anyOf\":[");
    for (size_t i = 0; i < tools_list(t)->n; i++) {
        const json *function = function_at(t, i);
        if (t->forced && t->forced != function) continue;
        bytes_append_text(out, n++ ? "," : "");
        bytes_append_text(out, "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":");
        json_put(out, json_get(function, "name"));
        bytes_printf(out, "},\"%s\":", key);
        put_parameters(out, json_get(function, "parameters"));
        bytes_printf(out, "},\"required\":[\"name\",\"%s\"],\"additionalProperties\":false}", key);
    }
    bytes_append_text(out, t->form == FORM_MISTRAL ? "]}}" : "]}");
}

/* ---- the calls of an answer ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t trimmed(const char *text, size_t n) {
    while (n > 0 && is_space(text[n - 1])) n--;
    return n;
}

/* The first place of `sign` in text [n]; n: there is none. */
static size_t place_of(const char *text, size_t n, const char *sign) {
    size_t length = strlen(sign);
    for (size_t i = 0; i + length <= n; i++) {
        if (memcmp(text + i, sign, length) == 0) return i;
    }
    return n;
}

static void make_id(char *id) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    unsigned char random[CALL_ID_LENGTH] = {0};
    if (getrandom(random, sizeof random, 0) != CALL_ID_LENGTH) memset(random, 0, sizeof random);
    for (size_t i = 0; i < CALL_ID_LENGTH; i++) id[i] = letters[random[i] % 32];
    id[CALL_ID_LENGTH] = 0;
}

/* An object with the name of a tool; false: it is something else, or there is no memory. */
static bool add_call(tools_answer *answer, const tools *t, const json *call) {
    const json *arguments = json_get(call, "arguments"), *function = find(t, json_get(call, "name"));
    if (!arguments) arguments = json_get(call, "parameters");
    if (!function) return false;
    if (answer->n > 0 && t->is_single) return true;
    if (mem_grow(&answer->calls, &answer->capacity, answer->n + 1, sizeof *answer->calls) != MN_OK) return false;
    tools_call *one = &answer->calls[answer->n++];
    *one = (tools_call){.name = json_get(function, "name")->string};
    make_id(one->id);
    if (arguments && arguments->kind == JSON_STRING)
        bytes_append(&one->arguments, arguments->string, arguments->n);
    else if (arguments)
        json_put(&one->arguments, arguments);
    else
        bytes_append_text(&one->arguments, "{}");
    return bytes_status(&one->arguments) == MN_OK;
}

/* JSON of a call, or of a list of them; false: it is something else. */
static bool add_calls(tools_answer *answer, const tools *t, const char *text, size_t n) {
    json_doc *doc = NULL;
    if (json_parse(&doc, text, n, JSON_STRICT, "call") != MN_OK) return false;
    const json *root = json_root(doc);
    bool is_list = root->kind == JSON_ARRAY;
    bool is_done = !is_list || root->n > 0;
    for (size_t i = 0; is_done && i < (is_list ? root->n : 1); i++)
        is_done = add_call(answer, t, is_list ? &root->items[i] : root);
    json_close(&doc);
    return is_done;
}

/* From the first <tool_call> on. */
static bool add_tagged(tools_answer *answer, const tools *t, const char *text, size_t n) {
    static const char begin[] = "<tool_call>", end[] = "</tool_call>";
    for (size_t at = place_of(text, n, begin); at < n;) {
        at += sizeof begin - 1;
        size_t length = place_of(text + at, n - at, end);
        if (!add_calls(answer, t, text + at, length)) return false;
        at += length;
        at += place_of(text + at, n - at, begin);
    }
    return answer->n > 0;
}

static const char *sign_of(const tools *t) {
    return t->form == FORM_HERMES ? "<tool_call>" : t->form == FORM_MISTRAL ? "[TOOL_CALLS]" : "<|python_tag|>";
}

void tools_clear(tools_answer *answer) {
    for (size_t i = 0; i < answer->n; i++) bytes_clear(&answer->calls[i].arguments);
    mem_free(answer->calls);
    *answer = (tools_answer){0};
}

tools_answer tools_split(const tools *t, const char *text, size_t n) {
    tools_answer answer = {.n_text = n};
    if (!t || !text) return answer;
    const char *sign = sign_of(t);
    size_t at = place_of(text, n, sign), behind = at < n ? at + strlen(sign) : 0;
    bool is_done;
    if (t->form == FORM_HERMES && !t->is_forced)
        is_done = add_tagged(&answer, t, text, n);
    else
        is_done = add_calls(&answer, t, text + behind, n - behind);
    if (is_done)
        answer.n_text = at < n ? trimmed(text, at) : 0;
    else
        tools_clear(&answer);
    if (answer.n == 0) answer.n_text = n;
    return answer;
}

/* ---- streams ---- */

/* Bytes at the end that may be the beginning of the sign. */
static size_t begun(const char *text, size_t n, const char *sign) {
    size_t most = strlen(sign) - 1 < n ? strlen(sign) - 1 : n;
    while (most > 0 && memcmp(text + n - most, sign, most) != 0) most--;
    return most;
}

const bytes *tools_push(tools *t, int index, const char *piece, size_t n_piece, size_t *shown, size_t *n) {
    bytes *text = &t->streamed[index].text;
    const char *sign = sign_of(t);
    size_t first = 0;
    if (n_piece) bytes_append(text, piece, n_piece);
    const char *all = bytes_text(text);
    if (text->failed) text->n = 0;
    size_t may = place_of(all, text->n, sign);
    while (first < text->n && is_space(all[first])) first++;
    bool is_json = first < text->n && (all[first] == '{' || all[first] == '[');
    if (may == text->n) may -= begun(all, text->n, sign);
    if (t->is_forced || (is_json && t->form != FORM_HERMES)) may = 0;
    *shown = t->streamed[index].shown;
    *n = trimmed(all, may);
    if (*n < *shown) *n = *shown;
    t->streamed[index].shown = *n;
    return text;
}
