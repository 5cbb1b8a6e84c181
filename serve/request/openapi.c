/* The description of the interface as an OpenAPI document, from the tables of routes and of fields.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "request/fields.h"
#include "routes.h"

/* ---- fields ---- */

static void put_text(bytes *out, const char *key, const char *text) {
    bytes_printf(out, "\"%s\":", key);
    json_put_string(out, text, strlen(text));
}

/* "a|b" as ["a","b"]. */
static void put_list(bytes *out, const char *items) {
    bytes_append_text(out, "[");
    for (const char *at = items; *at;) {
        size_t n = strcspn(at, "|");
        if (at != items) bytes_append_text(out, ",");
        json_put_string(out, at, n);
        at += n + (at[n] == '|');
    }
    bytes_append_text(out, "]");
}

/* Absent and null are the same, so null belongs to every field that may be absent. */
static void put_type(bytes *out, const field *f) {
    static const struct {
        unsigned kind;
        const char *name;
    } types[] = {{TAKES_NUMBER, "number"}, {TAKES_INTEGER, "integer"}, {TAKES_FLAG, "boolean"},
                 {TAKES_STRING, "string"}, {TAKES_LIST, "array"},      {TAKES_OBJECT, "object"}};
    bytes_append_text(out, "\"type\":[");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (f->kinds & types[i].kind) bytes_printf(out, "\"%s\"%s", types[i].name, f->is_required ? "" : ",");
    }
    bytes_append_text(out, f->is_required ? "]" : "\"null\"]");
}

static void put_limits(bytes *out, const field *f) {
    if (f->kinds & (TAKES_NUMBER | TAKES_INTEGER))
        bytes_printf(out, ",\"minimum\":%.16g,\"maximum\":%.16g", f->low, f->high);
    if (f->kinds & TAKES_STRING && f->least) bytes_printf(out, ",\"minLength\":%zu", f->least);
    if (f->kinds & TAKES_STRING && f->most) bytes_printf(out, ",\"maxLength\":%zu", f->most);
    if (f->choices) {
        bytes_append_text(out, ",\"enum\":");
        put_list(out, f->choices);
    }
}

static void put_members(bytes *out, unsigned form, const char *parent);

static void put_schema(bytes *out, const field *f, unsigned form) {
    if (f->schema && f->is_required) {
        bytes_printf(out, "{\"allOf\":[%s],", f->schema);
    } else if (f->schema) {
        bytes_printf(out, "{\"anyOf\":[%s,{\"type\":\"null\"}],", f->schema);
    } else if (f->kinds == TAKES_ANY) {
        bytes_append_text(out, "{");
    } else if (f->kinds == TAKES_FILE) {
        bytes_append_text(out, "{\"type\":\"string\",\"format\":\"binary\",");
    } else {
        bytes_append_text(out, "{");
        put_type(out, f);
        put_limits(out, f);
        if (f->kinds == TAKES_OBJECT) {
            bytes_append_text(out, ",");
            put_members(out, form, f->name);
        }
        bytes_append_text(out, ",");
    }
    put_text(out, "description", f->help);
    bytes_append_text(out, "}");
}

/* Fields of GenerationConfig that have no row. */
static void put_generation_members(bytes *out, unsigned form) {
    const mn_generation_field *g;
    for (int i = 0; (g = mn_generation_field_at(i)); i++) {
        if (!field_is_generation(form, g)) continue;
        bytes_printf(out, ",\n\"%s\":{\"$ref\":\"#/components/schemas/GenerationConfig/properties/%s\"}", g->name,
                     g->name);
    }
}

/* parent: "" for the fields of the body itself. */
static void put_members(bytes *out, unsigned form, const char *parent) {
    const field *f;
    size_t n = strlen(parent), n_put = 0;
    bytes_append_text(out, "\"properties\":{");
    for (size_t i = 0; (f = field_at(i)); i++) {
        const char *dot = strchr(f->name, '.'), *name = dot ? dot + 1 : f->name;
        bool is_inside = dot ? (size_t)(dot - f->name) == n && strncmp(f->name, parent, n) == 0 : n == 0;
        if (!(f->bodies & form) || !is_inside) continue;
        bytes_append_text(out, n_put++ ? ",\n" : "\n");
        json_put_string(out, name, strlen(name));
        bytes_append_text(out, ":");
        put_schema(out, f, form);
    }
    if (n == 0) put_generation_members(out, form);
    bytes_append_text(out, "}");
}

/* ---- routes ---- */

static void put_required(bytes *out, unsigned form, bool with_examples) {
    const field *f;
    size_t n = 0;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (!(f->bodies & form) || !f->is_required) continue;
        bytes_append_text(out, n++ ? "," : "");
        json_put_string(out, f->name, strlen(f->name));
        if (with_examples) bytes_printf(out, ":%s", f->example);
    }
}

static void put_example(bytes *out, const route *r) {
    bytes_append_text(out, ",\n\"example\":");
    if (r->example) {
        bytes_append_text(out, r->example);
    } else {
        bytes_append_text(out, "{");
        put_required(out, r->form, true);
        bytes_append_text(out, "}");
    }
}

static void put_body(bytes *out, const route *r) {
    const bool is_form = r->form & BODY_SPEECH;
    bytes_printf(out, ",\n\"requestBody\":{\"required\":true,\"content\":{\"%s\":{\"schema\":{\"type\":\"object\",",
                 is_form ? "multipart/form-data" : "application/json");
    put_members(out, r->form, "");
    bytes_append_text(out, ",\n\"required\":[");
    put_required(out, r->form, false);
    bytes_printf(out, "]%s}", r->form & BODY_STRICT ? ",\"additionalProperties\":false" : "");
    if (!is_form) put_example(out, r);
    bytes_append_text(out, "}}}");
}

static bool can_stream(const route *r) {
    const field *f;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & r->form && strcmp(f->name, "stream") == 0) return true;
    }
    return false;
}

/* What may go wrong: of every route, of those with a body, of those that the thread that computes answers, of those
 * with {id}. */
enum { IN_ANY = 1, IN_KEYED = 2, IN_BODY = 4, IN_JOB = 8, IN_PARAMETER = 16 };

static const struct {
    int status, where;
    const char *help;
} failures[] = {
    {400, IN_ANY, "the head, the body or a field is wrong; 'param' names the field"},
    {401, IN_KEYED, "the API key is missing or unknown"},
    {403, IN_ANY, "the request is for another host"},
    {404, IN_PARAMETER, "there is nothing of this id"},
    {404, IN_BODY, "there is no such model"},
    {408, IN_ANY, "the head did not come in time"},
    {409, IN_PARAMETER, "it is in use, or its file is damaged or foreign"},
    {413, IN_BODY, "the body is too large"},
    {414, IN_ANY, "the request line is too long"},
    {417, IN_ANY, "an expectation other than 100-continue"},
    {429, IN_JOB, "the queue is full, or too much is pinned or saved"},
    {431, IN_ANY, "the header is too large"},
    {500, IN_ANY, "the server failed"},
    {501, IN_BODY, "the model cannot do this"},
    {503, IN_ANY, "too many connections, or the server is shutting down"},
    {505, IN_ANY, "not HTTP/1.0 or HTTP/1.1"},
};

static void put_responses(bytes *out, const route *r) {
    int where = IN_ANY | (r->is_public ? 0 : IN_KEYED) | (r->form ? IN_BODY : 0) | (r->form && r->job ? IN_JOB : 0) |
                (strchr(r->path, '{') ? IN_PARAMETER : 0);
    int last = 0;
    bytes_append_text(out, ",\n\"responses\":{\n\"200\":{\"description\":\"the answer\",\"content\":{");
    if (r->returns) {
        bytes_append_text(out, "\"application/json\":{\"schema\":{\"type\":\"object\",\"required\":");
        put_list(out, r->returns);
        bytes_append_text(out, "}}");
    } else {
        const char *type = r->type ? r->type : "text/plain"; /* of a job that says no other one, the metrics */
        bytes_printf(out, "\"%.*s\":{\"schema\":{\"type\":\"string\"}}", (int)strcspn(type, ";"), type);
    }
    if (r->form & BODY_SPEECH)
        bytes_append_text(out, ",\"text/plain\":{\"schema\":{\"type\":\"string\"}},"
                               "\"text/vtt\":{\"schema\":{\"type\":\"string\"}}");
    if (can_stream(r)) /* the schema of one event */
        bytes_append_text(out, ",\"text/event-stream\":{\"schema\":{\"type\":\"object\",\"required\":[\"data\"],"
                               "\"properties\":{\"event\":{\"type\":\"string\"},\"data\":{\"type\":\"string\"}}}}");
    bytes_append_text(out, "}}");
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        if (!(failures[i].where & where) || failures[i].status == last) continue;
        last = failures[i].status; /* of two sentences the first */
        bytes_printf(out, ",\n\"%d\":{", failures[i].status);
        put_text(out, "description", failures[i].help);
        bytes_printf(out, ",\"content\":{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}}}",
                     route_error(r) == messages_error ? "MessagesError" : "Error");
    }
    bytes_append_text(out, "}");
}

static void put_operation(bytes *out, const route *r) {
    bytes_append_text(out, "\"");
    for (const char *c = r->method; *c; c++) bytes_printf(out, "%c", *c | 32);
    bytes_append_text(out, "\":{");
    put_text(out, "summary", r->help);
    if (strstr(r->path, "{id}"))
        bytes_append_text(
            out,
            ",\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":\"string\"}}]");
    if (r->is_public) bytes_append_text(out, ",\"security\":[]");
    if (r->form) put_body(out, r);
    put_responses(out, r);
    bytes_append_text(out, "}");
}

/* Whether a row before `index` has this path. */
static bool is_put(const char *path, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (strcmp(route_at(i)->path, path) == 0) return true;
    }
    return false;
}

static void put_paths(bytes *out) {
    const route *r;
    bytes_append_text(out, "\"paths\":{");
    for (size_t i = 0; (r = route_at(i)); i++) {
        const route *same;
        if (is_put(r->path, i)) continue;
        bytes_append_text(out, i ? ",\n" : "\n");
        json_put_string(out, r->path, strlen(r->path));
        bytes_append_text(out, ":{");
        for (size_t k = i; (same = route_at(k)); k++) {
            if (strcmp(same->path, r->path) != 0) continue;
            if (k > i) bytes_append_text(out, ",\n");
            put_operation(out, same);
        }
        bytes_append_text(out, "}");
    }
    bytes_append_text(out, "}");
}

/* GenerationConfig, from the library's table. */
static void put_generation_config(bytes *out) {
    static const char *const types[] = {"integer", "number", "boolean", "string"};
    const mn_generation_field *f;
    bytes_append_text(out, "\"GenerationConfig\":{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; (f = mn_generation_field_at(i)); i++) {
        bytes text = {0};
        bytes_printf(&text, "%s; allowed: %s", f->help, f->allowed);
        bytes_printf(out, "%s\n\"%s\":{", i ? "," : "", f->name);
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            if (strcmp(types[k], f->kind) == 0) bytes_printf(out, "\"type\":[\"%s\",\"null\"],", types[k]);
        }
        put_text(out, "description", bytes_text(&text));
        bytes_append_text(out, "}");
        bytes_clear(&text);
    }
    bytes_append_text(out, "}},\n");
}

mn_status openapi_answer(bytes *out, server *s, const json *body, refusal *why) {
    (void)s, (void)body, (void)why;
    bytes_printf(out, "{\"openapi\":\"3.1.0\",\n\"info\":{\"title\":\"Mneme\",\"version\":\"%s\"},\n", mn_version());
    put_paths(out);
    bytes_append_text(out, ",\n\"components\":{\"schemas\":{\n");
    put_generation_config(out);
    bytes_append_text(
        out,
        "\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":\"object\","
        "\"required\":[\"message\",\"type\",\"param\",\"code\"],\"properties\":{\"message\":{\"type\":\"string\"},"
        "\"type\":{\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":\"string\"}}}}},\n"
        "\"MessagesError\":{\"type\":\"object\",\"required\":[\"type\",\"error\"],\"properties\":{"
        "\"type\":{\"type\":\"string\",\"enum\":[\"error\"]},"
        "\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\"],\"properties\":{"
        "\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"}}}}}},\n"
        "\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}}},\n"
        "\"security\":[{},{\"key\":[]}]}\n");
    return bytes_status(out);
}
