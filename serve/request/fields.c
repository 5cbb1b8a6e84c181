/* SPDX-License-Identifier: Apache-2.0 */
#include "request/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

/* ---- sentences ---- */

static void put_count(bytes *out, const field *f, const char *what) {
    if (f->most)
        bytes_printf(out, " of %zu to %zu %s", f->least, f->most, what);
    else if (f->least)
        bytes_printf(out, " of at least %zu %s", f->least, what);
}

static void put_choices(bytes *out, const char *choices) {
    for (const char *at = choices; *at;) {
        size_t n = strcspn(at, "|");
        bytes_printf(out, "%s'%.*s'", at == choices ? "" : ", ", (int)n, at);
        at += n + (at[n] == '|');
    }
}

static void put_kind(bytes *out, const field *f, unsigned kind) {
    switch (kind) {
    case TAKES_NUMBER: bytes_printf(out, "%.16g to %.16g", f->low, f->high); break;
    case TAKES_INTEGER: bytes_printf(out, "whole numbers from %.16g to %.16g", f->low, f->high); break;
    case TAKES_FLAG: bytes_append_text(out, "true, false"); break;
    case TAKES_FILE: bytes_append_text(out, "a file"); break;
    case TAKES_LIST:
        bytes_append_text(out, "a list");
        put_count(out, f, "items");
        break;
    case TAKES_OBJECT:
        bytes_append_text(out, "an object");
        put_count(out, f, "members");
        break;
    default:
        if (f->choices) {
            put_choices(out, f->choices);
        } else {
            bytes_append_text(out, "a string");
            put_count(out, f, "bytes");
        }
    }
}

void field_put_allowed(bytes *out, const field *f) {
    bool is_first = true;
    if (f->allowed) {
        bytes_append_text(out, f->allowed);
        return;
    }
    for (unsigned kind = TAKES_NUMBER; kind <= TAKES_FILE; kind <<= 1) {
        if (!(f->kinds & kind)) continue;
        if (!is_first) bytes_append_text(out, ", or ");
        put_kind(out, f, kind);
        is_first = false;
    }
}

mn_status field_wrong(const field *f, const json *value, const char *allowed, refusal *why) {
    enum { SHOWN = 60 };
    bytes seen = {0}, words = {0};
    json_put_as(&seen, value, JSON_PYTHON);
    if (allowed)
        bytes_append_text(&words, allowed);
    else
        field_put_allowed(&words, f);
    const char *text = bytes_text(&seen);
    size_t n = strlen(text);
    bool is_cut = n > SHOWN;
    n = utf8_valid_prefix(text, is_cut ? SHOWN : n);
    status_fail(MN_E_ARG, "'%s' is %.*s%s, allowed: %s", f->name, (int)n, text, is_cut ? "..." : "",
                bytes_text(&words));
    bytes_clear(&seen);
    bytes_clear(&words);
    why->code = "value_out_of_range";
    why->param = f->name;
    return MN_E_ARG;
}

/* ---- checks ---- */

static bool is_choice(const char *choices, const json *value) {
    for (const char *at = choices; *at;) {
        size_t n = strcspn(at, "|");
        if (n == value->n && memcmp(at, value->string, n) == 0) return true;
        at += n + (at[n] == '|');
    }
    return false;
}

static bool has_count(const field *f, const json *value) {
    return value->n >= f->least && (!f->most || value->n <= f->most);
}

static bool fits(const field *f, const json *value) {
    bool is_any = f->kinds == TAKES_ANY;
    switch (value->kind) {
    case JSON_BOOL: return f->kinds & TAKES_FLAG;
    case JSON_INT:
        if (is_any) return true;
        return f->kinds & (TAKES_INTEGER | TAKES_NUMBER) && (double)value->integer >= f->low &&
               (double)value->integer <= f->high;
    case JSON_REAL: return is_any || (f->kinds & TAKES_NUMBER && value->real >= f->low && value->real <= f->high);
    case JSON_STRING:
        if (f->kinds == TAKES_FILE) return true;
        return f->kinds & TAKES_STRING && (f->choices ? is_choice(f->choices, value) : has_count(f, value));
    case JSON_ARRAY: return f->kinds & TAKES_LIST && has_count(f, value);
    case JSON_OBJECT: return f->kinds & TAKES_OBJECT && has_count(f, value);
    default: return true;
    }
}

static const json *present(const json *value) {
    return value && value->kind != JSON_NULL ? value : NULL;
}

/* NULL: absent, or null. */
static const json *value_of(const json *body, const char *name) {
    char first[64];
    const char *dot = strchr(name, '.');
    if (!dot) return present(json_get(body, name));
    size_t n = (size_t)(dot - name);
    memcpy(first, name, n);
    first[n] = 0;
    return present(json_get(json_get(body, first), dot + 1));
}

/* Whether a row's name begins so; *rest: the rest of it. */
static bool begins(const field *f, const char *name, size_t n, const char **rest) {
    if (strlen(f->name) < n || memcmp(f->name, name, n) != 0) return false;
    *rest = f->name + n;
    return true;
}

bool field_is_generation(unsigned form, const mn_generation_field *g) {
    const field *f;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & form && strcmp(f->name, g->name) == 0) return false;
    }
    return form & (BODY_TEXT | BODY_LINES);
}

/* Whether there is a row of this name with `behind`, "" or ".member", behind it. */
static bool has_row(unsigned form, const json_member *m, const char *behind) {
    const field *f;
    const char *rest;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & form && begins(f, m->key, m->key_n, &rest) && strcmp(rest, behind) == 0) return true;
    }
    return false;
}

/* Whether there are rows of its members. */
static bool has_members(unsigned form, const json_member *m) {
    const field *f;
    const char *rest;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (f->bodies & form && begins(f, m->key, m->key_n, &rest) && *rest == '.') return true;
    }
    return false;
}

enum { MOST_WARNINGS = 8, MOST_NAME = 40 };

/* The first of them, and how many more. */
static void warn(bytes *warning, size_t n_unknown, const char *parent, const json_member *m) {
    if (n_unknown >= MOST_WARNINGS) return;
    bytes_printf(warning, "%sunknown field '%s%s", n_unknown ? "; " : "", parent, *parent ? "." : "");
    for (size_t i = 0; i < m->key_n && i < MOST_NAME; i++) {
        char c = m->key[i] > ' ' && m->key[i] < 127 && m->key[i] != '\'' ? m->key[i] : '?';
        bytes_append(warning, &c, 1);
    }
    bytes_printf(warning, "%s' ignored", m->key_n > MOST_NAME ? "..." : "");
}

/* Its name where a member is a field of GenerationConfig; NULL: it is none. */
static const char *generation_name(unsigned form, const json_member *m) {
    const mn_generation_field *g;
    for (int i = 0; (g = mn_generation_field_at(i)); i++) {
        if (strlen(g->name) == m->key_n && memcmp(g->name, m->key, m->key_n) == 0)
            return field_is_generation(form, g) ? g->name : NULL;
    }
    return NULL;
}

static void warn_of_unknown(const json *body, unsigned form, bytes *warning) {
    size_t n_unknown = 0;
    char rest[MOST_NAME + 2] = ".";
    for (size_t i = 0; i < body->n; i++) {
        const json_member *m = &body->members[i];
        const bool is_row = has_row(form, m, "");
        if (!is_row && !generation_name(form, m)) {
            warn(warning, n_unknown++, "", m);
        } else if (is_row && m->value.kind == JSON_OBJECT && has_members(form, m)) {
            for (size_t k = 0; k < m->value.n; k++) {
                const json_member *inner = &m->value.members[k];
                if (inner->key_n <= MOST_NAME) memcpy(rest + 1, inner->key, inner->key_n + 1);
                if (inner->key_n > MOST_NAME || !has_row(form, m, rest)) warn(warning, n_unknown++, m->key, inner);
            }
        }
    }
    if (n_unknown > MOST_WARNINGS) bytes_printf(warning, "; and %zu more", n_unknown - MOST_WARNINGS);
}

static mn_status refuse_unknown(const json *body, unsigned form, refusal *why) {
    const field *f;
    bytes known = {0};
    size_t i = 0;
    while (i < body->n && has_row(form, &body->members[i], "")) i++;
    if (i == body->n) return MN_OK;
    for (size_t k = 0; (f = field_at(k)); k++) {
        if (f->bodies & form) bytes_printf(&known, "%s%s", known.n ? ", " : "", f->name);
    }
    *why = (refusal){400, "unknown_field", body->members[i].key};
    status_fail(MN_E_ARG, "'%.60s' is no field, allowed: %s", body->members[i].key, bytes_text(&known));
    bytes_clear(&known);
    return MN_E_ARG;
}

mn_status fields_check(const json *body, unsigned form, bytes *warning, refusal *why) {
    const field *f;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (!(f->bodies & form)) continue;
        const json *value = value_of(body, f->name);
        if (value && !fits(f, value)) return field_wrong(f, value, NULL, why);
        if (value || !f->is_required) continue;
        *why = (refusal){400, "missing_field", f->name};
        MN_FAIL(MN_E_ARG, "'%s' is missing", f->name);
    }
    if (warning) {
        warn_of_unknown(body, form, warning);
        MN_TRY(bytes_status(warning));
    }
    return form & BODY_STRICT ? refuse_unknown(body, form, why) : MN_OK;
}

/* ---- reading ---- */

/* Fields of GenerationConfig by their own names. Of lines also those that are not known: the library refuses them with
 * the name that was meant. */
static mn_status read_generation_fields(request_settings *r, const json *body, unsigned form, refusal *why) {
    for (size_t i = 0; i < body->n; i++) {
        const json_member *m = &body->members[i];
        const char *name = generation_name(form, m);
        if (form & BODY_LINES && !has_row(form, m, "")) name = m->key;
        if (!name || (m->value.kind == JSON_NULL && form != BODY_LINE)) continue;
        MN_TRY(field_set_config(r, &(field){.name = name}, name, &m->value, why));
    }
    return MN_OK;
}

mn_status fields_read(request_settings *r, const json *body, unsigned form, refusal *why) {
    const field *f;
    for (size_t i = 0; (f = field_at(i)); i++) {
        if (!(f->bodies & form) || !f->apply) continue;
        const json *value = value_of(body, f->name);
        if (value) MN_TRY(f->apply(r, f, value, why));
    }
    return read_generation_fields(r, body, form, why);
}

/* Whether the thread's message is about this field of GenerationConfig. */
static bool is_named(const char *name) {
    const char *message = mn_last_error();
    size_t n = strlen(name);
    return strncmp(message, name, n) == 0 && strchr(" ,:", message[n]);
}

/* "FOLDER/generation_config.json: top_p is 5, allowed: 0 to 1": a value that the request has not replaced. Where the
 * model lies is not for clients. */
static void blame_checkpoint(mn_status status, refusal *why) {
    static const char file[] = "generation_config.json: ";
    const mn_generation_field *g;
    char message[512];
    const char *found = strstr(mn_last_error(), file);
    if (!found) return;
    snprintf(message, sizeof message, "%s", found + sizeof file - 1);
    status_fail(status, "%s", message);
    for (int i = 0; (g = mn_generation_field_at(i)); i++) {
        if (is_named(g->name)) why->param = g->name;
    }
    status_fail(status, "the model's %s%s; a value in the request replaces it", file, message);
}

void fields_blame(unsigned form, mn_status status, refusal *why) {
    const field *f;
    const mn_generation_field *g;
    if (status == MN_E_FORMAT && !why->param) blame_checkpoint(status, why);
    if ((status != MN_E_ARG && status != MN_E_UNSUPPORTED) || why->param) return;
    for (int i = 0; (g = mn_generation_field_at(i)); i++) {
        if (is_named(g->name) && field_is_generation(form, g)) why->param = g->name;
    }
    for (size_t i = 0; (f = field_at(i)); i++) {
        const char *name = f->config ? f->config : f->name;
        if (!(f->bodies & form) || !f->apply || !is_named(name)) continue;
        why->param = f->name;
        if (strcmp(name, f->name) != 0) status_context(status, "'%s'", f->name);
        return;
    }
    if (form & BODY_GENERATE) why->param = "generation_config"; /* whatever is not a row is in there */
}

mn_status field_string(const char **out, const json *body, const char *name, refusal *why) {
    const json *value = value_of(body, name);
    *out = NULL;
    if (!value) return MN_OK;
    if (value->kind != JSON_STRING) return field_wrong(&(field){.name = name, .kinds = TAKES_STRING}, value, NULL, why);
    if (strlen(value->string) != value->n)
        return field_wrong(&(field){.name = name}, value, "a string without a zero byte", why);
    *out = value->string;
    return MN_OK;
}
