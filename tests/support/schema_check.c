/* SPDX-License-Identifier: Apache-2.0 */
#include "support/schema_check.h"

#include <math.h>

#include "support/support.h"
#include "text/tokenizer/regex.h"

static double number(const json *v) {
    return v->kind == JSON_INT ? (double)v->integer : v->real;
}

static bool equal(const json *a, const json *b) {
    if ((a->kind == JSON_INT || a->kind == JSON_REAL) && (b->kind == JSON_INT || b->kind == JSON_REAL))
        return number(a) == number(b);
    if (a->kind != b->kind) return false;
    if (a->kind == JSON_BOOL) return a->boolean == b->boolean;
    if (a->kind == JSON_NULL) return true;
    if (a->n != b->n) return false;
    if (a->kind == JSON_STRING) return memcmp(a->string, b->string, a->n) == 0;
    for (size_t i = 0; i < a->n; i++) {
        const json *other = a->kind == JSON_ARRAY ? &b->items[i] : json_get(b, a->members[i].key);
        if (!other || !equal(a->kind == JSON_ARRAY ? &a->items[i] : &a->members[i].value, other)) return false;
    }
    return true;
}

static bool has_type(const json *value, const char *name) {
    bool number_like = value->kind == JSON_INT || value->kind == JSON_REAL;
    if (strcmp(name, "null") == 0) return value->kind == JSON_NULL;
    if (strcmp(name, "boolean") == 0) return value->kind == JSON_BOOL;
    if (strcmp(name, "string") == 0) return value->kind == JSON_STRING;
    if (strcmp(name, "array") == 0) return value->kind == JSON_ARRAY;
    if (strcmp(name, "object") == 0) return value->kind == JSON_OBJECT;
    if (strcmp(name, "number") == 0) return number_like;
    if (strcmp(name, "integer") == 0) return number_like && number(value) == floor(number(value));
    fail_msg("unknown type %s", name);
    return false;
}

static size_t characters(const json *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) n += ((unsigned char)text->string[i] & 0xC0) != 0x80;
    return n;
}

/* The pattern for PCRE2, whose \s has U+0085 and has no U+FEFF: \s and \S, outside of [ ], as ECMAScript lists them. */
static bytes with_listed_spaces(const char *pattern, size_t n) {
    static const char spaces[] =
        "\\t-\\r \\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{feff}]";
    bytes out = {0};
    for (size_t i = 0; i < n; i++) {
        bool is_escape = pattern[i] == '\\' && i + 1 < n;
        if (is_escape && (pattern[i + 1] == 's' || pattern[i + 1] == 'S')) {
            bytes_append_text(&out, pattern[i + 1] == 's' ? "[" : "[^");
            bytes_append_text(&out, spaces);
        } else {
            bytes_append(&out, pattern + i, is_escape ? 2 : 1);
        }
        i += is_escape;
    }
    return out;
}

static bool contains(const char *pattern, size_t n, const json *text) {
    regex *compiled = NULL;
    regex_state *state = NULL;
    bool found = false;
    size_t start, end;
    bytes listed = with_listed_spaces(pattern, n);
    assert_ok(regex_open(&compiled, listed.data, listed.n, "pattern of a test"));
    bytes_clear(&listed);
    assert_ok(regex_state_open(&state, 1 << 20));
    assert_ok(regex_find(compiled, state, text->string, text->n, 0, &found, &start, &end));
    regex_close(&compiled);
    regex_state_close(&state);
    return found;
}

static bool is_date(const char *text, size_t n) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year, month, day, used = 0;
    if (n != 10 || sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &used) != 3 || used != 10) return false;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1] + (leap && month == 2);
}

static bool is_time(const char *text, size_t n) {
    int hour, minute, second, used = 0, zone = 0;
    if (n < 9 || sscanf(text, "%2d:%2d:%2d%n", &hour, &minute, &second, &used) != 3 || used != 8) return false;
    if (hour > 23 || minute > 59 || second > 59) return false;
    const char *at = text + 8;
    if (*at == '.') {
        at++;
        size_t digits = strspn(at, "0123456789");
        if (digits == 0) return false;
        at += digits;
    }
    if (strcmp(at, "Z") == 0) return true;
    return (*at == '+' || *at == '-') && sscanf(at + 1, "%2d:%2d%n", &hour, &minute, &zone) == 2 && zone == 5 &&
           at[6] == 0 && hour <= 23 && minute <= 59;
}

static bool has_format(const json *value, const char *format) {
    const char *text = value->string, *cut;
    if (strcmp(format, "date") == 0) return is_date(text, value->n);
    if (strcmp(format, "time") == 0) return is_time(text, value->n);
    if (strcmp(format, "date-time") == 0) {
        char day[11] = {0};
        if (value->n < 12 || text[10] != 'T') return false;
        memcpy(day, text, 10);
        return is_date(day, 10) && is_time(text + 11, value->n - 11);
    }
    if (strcmp(format, "uuid") == 0) {
        for (size_t i = 0; i < value->n; i++) {
            bool dash = i == 8 || i == 13 || i == 18 || i == 23;
            if (dash ? text[i] != '-' : !strchr("0123456789abcdefABCDEF", text[i])) return false;
        }
        return value->n == 36;
    }
    if (strcmp(format, "email") == 0) {
        cut = strchr(text, '@');
        return cut && cut > text && !strchr(cut + 1, '@') && strchr(cut, '.') && !strstr(text, "..") &&
               !strpbrk(text, " \"\\");
    }
    if (strcmp(format, "ipv4") == 0) {
        int a, b, c, d, used = 0;
        return sscanf(text, "%3d.%3d.%3d.%3d%n", &a, &b, &c, &d, &used) == 4 && (size_t)used == value->n && a < 256 &&
               b < 256 && c < 256 && d < 256;
    }
    return true;
}

static bool check_string(const json *schema, const json *value) {
    const json *least = json_get(schema, "minLength"), *most = json_get(schema, "maxLength");
    const json *pattern = json_get(schema, "pattern"), *format = json_get(schema, "format");
    if (least && characters(value) < (size_t)least->integer) return false;
    if (most && characters(value) > (size_t)most->integer) return false;
    if (pattern && !contains(pattern->string, pattern->n, value)) return false;
    return !format || has_format(value, format->string);
}

static bool check_number(const json *schema, const json *value) {
    const json *lo = json_get(schema, "minimum"), *above = json_get(schema, "exclusiveMinimum");
    const json *hi = json_get(schema, "maximum"), *below = json_get(schema, "exclusiveMaximum");
    const json *of = json_get(schema, "multipleOf");
    double x = number(value), times = of ? x / number(of) : 0; /* inexact: only clear misses are found */
    if (fabs(times - nearbyint(times)) > 1e-9 * fmax(1, fabs(times))) return false;
    if (above && above->kind == JSON_BOOL) above = above->boolean ? lo : NULL; /* as in draft 4 */
    if (below && below->kind == JSON_BOOL) below = below->boolean ? hi : NULL;
    return (!lo || x >= number(lo)) && (!above || x > number(above)) && (!hi || x <= number(hi)) &&
           (!below || x < number(below));
}

static bool check_names(const json *root, const json *names, const json *value) {
    for (size_t i = 0; i < value->n; i++) {
        const json name = {.kind = JSON_STRING, .n = value->members[i].key_n, .string = value->members[i].key};
        if (!schema_check(root, names, &name)) return false;
    }
    return true;
}

/* A member under the properties and patterns that speak of it, or under those of the others. */
static bool check_member(const json *root, const json *schema, const json_member *m) {
    const json *own = json_get(json_get(schema, "properties"), m->key);
    const json *patterns = json_get(schema, "patternProperties"), *others = json_get(schema, "additionalProperties");
    const json name = {.kind = JSON_STRING, .n = m->key_n, .string = m->key};
    if (own && !schema_check(root, own, &m->value)) return false;
    bool found = own != NULL;
    for (size_t i = 0; patterns && i < patterns->n; i++) {
        if (!contains(patterns->members[i].key, patterns->members[i].key_n, &name)) continue;
        found = true;
        if (!schema_check(root, &patterns->members[i].value, &m->value)) return false;
    }
    return found || !others || schema_check(root, others, &m->value);
}

static bool check_object(const json *root, const json *schema, const json *value) {
    const json *required = json_get(schema, "required"), *of_names = json_get(schema, "propertyNames");
    const json *least = json_get(schema, "minProperties"), *most = json_get(schema, "maxProperties");
    size_t names = 0; /* the last member of a name counts */
    for (size_t i = 0; i < value->n; i++) names += json_get(value, value->members[i].key) == &value->members[i].value;
    if ((least && names < (size_t)least->integer) || (most && names > (size_t)most->integer)) return false;
    if (of_names && !check_names(root, of_names, value)) return false;
    for (size_t i = 0; i < value->n; i++) {
        if (!check_member(root, schema, &value->members[i])) return false;
    }
    for (size_t i = 0; required && i < required->n; i++) {
        if (!json_get(value, required->items[i].string)) return false;
    }
    const json *dependent = json_get(schema, "dependentRequired");
    for (size_t i = 0; dependent && i < dependent->n; i++) {
        const json_member *m = &dependent->members[i];
        for (size_t k = 0; json_get(value, m->key) && k < m->value.n; k++) {
            if (!json_get(value, m->value.items[k].string)) return false;
        }
    }
    return true;
}

static bool check_array(const json *root, const json *schema, const json *value) {
    const json *least = json_get(schema, "minItems"), *most = json_get(schema, "maxItems");
    const json *items = json_get(schema, "items"), *prefix = json_get(schema, "prefixItems");
    if (items && items->kind == JSON_ARRAY) {
        prefix = items;
        items = json_get(schema, "additionalItems");
    }
    if (least && value->n < (size_t)least->integer) return false;
    if (most && value->n > (size_t)most->integer) return false;
    const json *unique = json_get(schema, "uniqueItems");
    for (size_t i = 0; unique && unique->boolean && i < value->n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (equal(&value->items[i], &value->items[k])) return false;
        }
    }
    for (size_t i = 0; i < value->n; i++) {
        const json *own = prefix && i < prefix->n ? &prefix->items[i] : items;
        if (own && !schema_check(root, own, &value->items[i])) return false;
    }
    return true;
}

/* Decodes ~1, ~0 and %25. */
static void decode(char *step) {
    static const struct {
        const char *code;
        char meaning;
    } codes[] = {{"~1", '/'}, {"~0", '~'}, {"%25", '%'}};
    char *to = step;
    for (const char *at = step; *at;) {
        size_t used = 1;
        *to = *at;
        for (size_t i = 0; i < 3; i++) {
            if (strncmp(at, codes[i].code, strlen(codes[i].code)) != 0) continue;
            *to = codes[i].meaning;
            used = strlen(codes[i].code);
        }
        at += used;
        to++;
    }
    *to = 0;
}

static const json *anchored(const json *at, const char *name) {
    const json *found = json_is_string(json_get(at, "$anchor"), name) ? at : NULL;
    for (size_t i = 0; !found && (at->kind == JSON_OBJECT || at->kind == JSON_ARRAY) && i < at->n; i++)
        found = anchored(at->kind == JSON_ARRAY ? &at->items[i] : &at->members[i].value, name);
    return found;
}

const json *schema_check_target(const json *root, const char *ref) {
    const json *at = root;
    char step[200];
    assert_true(ref[0] == '#');
    if (ref[1] && ref[1] != '/') return anchored(root, ref + 1);
    for (ref++; *ref == '/'; ref += strcspn(ref, "/")) {
        ref++;
        snprintf(step, sizeof step, "%.*s", (int)strcspn(ref, "/"), ref);
        decode(step);
        at = at->kind == JSON_ARRAY ? &at->items[atoi(step)] : json_get(at, step);
        assert_non_null(at);
    }
    return at;
}

static size_t how_many(const json *root, const json *list, const json *value) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) n += schema_check(root, &list->items[i], value);
    return n;
}

static bool check_conditions(const json *root, const json *schema, const json *value) {
    const json *no = json_get(schema, "not"), *condition = json_get(schema, "if");
    const json *dependent = json_get(schema, "dependentSchemas");
    if (no && schema_check(root, no, value)) return false;
    if (condition) {
        const json *then = json_get(schema, schema_check(root, condition, value) ? "then" : "else");
        if (then && !schema_check(root, then, value)) return false;
    }
    for (size_t i = 0; dependent && i < dependent->n; i++) {
        const json_member *m = &dependent->members[i];
        if (json_get(value, m->key) && !schema_check(root, &m->value, value)) return false;
    }
    return true;
}

bool schema_check(const json *root, const json *schema, const json *value) {
    if (schema->kind == JSON_BOOL) return schema->boolean;
    const json *type = json_get(schema, "type"), *ref = json_get(schema, "$ref"), *values = json_get(schema, "enum");
    const json *all = json_get(schema, "allOf"), *any = json_get(schema, "anyOf"), *one = json_get(schema, "oneOf");
    const json *constant = json_get(schema, "const");
    bool fits = !type;
    for (size_t i = 0; type && i < (type->kind == JSON_ARRAY ? type->n : 1); i++)
        fits |= has_type(value, type->kind == JSON_ARRAY ? type->items[i].string : type->string);
    const json *nullable = json_get(schema, "nullable");
    if (!fits && !(nullable && nullable->boolean && value->kind == JSON_NULL)) return false;
    if (ref && !schema_check(root, schema_check_target(root, ref->string), value)) return false;
    if (constant && !equal(constant, value)) return false;
    bool listed = !values;
    for (size_t i = 0; values && i < values->n; i++) listed |= equal(&values->items[i], value);
    if (!listed) return false;
    if (all && how_many(root, all, value) != all->n) return false;
    if (any && how_many(root, any, value) == 0) return false;
    if (one && how_many(root, one, value) != 1) return false;
    if (!check_conditions(root, schema, value)) return false;
    switch (value->kind) {
    case JSON_STRING: return check_string(schema, value);
    case JSON_INT:
    case JSON_REAL: return check_number(schema, value);
    case JSON_ARRAY: return check_array(root, schema, value);
    case JSON_OBJECT: return check_object(root, schema, value);
    default: return true;
    }
}

bool schema_check_text(const json *schema, const char *text, size_t n) {
    json_doc *doc = NULL;
    /* Additional properties may repeat a name, which the strict reader refuses. */
    if (json_parse(&doc, text, n, JSON_PYTHON, "generated text") != MN_OK) return false;
    bool valid = schema_check(schema, schema, json_root(doc));
    json_close(&doc);
    return valid;
}
