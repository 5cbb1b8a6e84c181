/* References of a schema: identifiers, anchors and pointers within one document.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "constraint/schema.h"

/* ---- addresses, RFC 3986 ---- */

/* Bytes of "scheme:"; 0: there is none. */
static size_t scheme_length(const char *text) {
    size_t n = 0;
    bool letter = (text[0] | 32) >= 'a' && (text[0] | 32) <= 'z';
    while (letter && (((text[n] | 32) >= 'a' && (text[n] | 32) <= 'z') || (text[n] >= '0' && text[n] <= '9') ||
                      (text[n] && strchr("+-.", text[n]))))
        n++;
    return letter && text[n] == ':' ? n + 1 : 0;
}

/* Where the path begins: behind the scheme and the authority. */
static size_t path_begin(const char *address) {
    size_t at = scheme_length(address);
    return strncmp(address + at, "//", 2) == 0 ? at + 2 + strcspn(address + at + 2, "/?") : at;
}

/* Takes "." and ".." out of the path, in place. */
static void drop_dots(char *address) {
    char *path = address + path_begin(address), *to = path;
    bool rooted = *path == '/';
    for (const char *at = path; *at;) {
        size_t n = *at == '/', m = strcspn(at + n, "/?");
        bool dot = m == 1 && at[n] == '.', dots = m == 2 && strncmp(at + n, "..", 2) == 0, last = at[n + m] != '/';
        if (dots) {
            while (to > path && *--to != '/') continue;
        }
        if (dot || dots) {
            if (last && n) *to++ = '/';
        } else {
            size_t slash = n && !rooted && to == path; /* a path without one stays so */
            memmove(to, at + slash, n + m - slash);
            to += n + m - slash;
        }
        at += n + m;
        if (*at == '?') {
            memmove(to, at, strlen(at));
            to += strlen(at);
            break;
        }
    }
    *to = 0;
}

/* The address that a reference without its fragment means beside `base`; NULL without memory. */
static char *resolve(const char *base, const char *ref, size_t n) {
    bool is_whole = scheme_length(ref) > 0 && scheme_length(ref) <= n;
    size_t kept = 0;
    if (n == 0) {
        kept = strlen(base);
    } else if (!is_whole && n > 1 && strncmp(ref, "//", 2) == 0) {
        kept = scheme_length(base);
    } else if (!is_whole && ref[0] == '/') {
        kept = path_begin(base);
    } else if (!is_whole) {
        kept = strcspn(base, "?");
        if (ref[0] != '?') {
            size_t path = path_begin(base);
            while (kept > path && base[kept - 1] != '/') kept--;
        }
    }
    char *out = mem_alloc(kept + n + 1, 1);
    if (!out) return NULL;
    memcpy(out, base, kept);
    memcpy(out + kept, ref, n);
    if (n) drop_dots(out);
    return out;
}

/* ---- the index ---- */

static const char *text_of(const json *schema, const char *name) {
    const json *value = json_get(schema, name);
    return value && value->kind == JSON_STRING ? value->string : NULL;
}

static size_t add_resource(schema_build *b, const json *schema, char *address) {
    if (!address) net_check(b->g, MN_E_NOMEM);
    for (size_t i = 0; i < b->n_resources && schema_charge(b, 1); i++) {
        if (address && strcmp(b->resources[i].address, address) == 0)
            schema_fail(b, MN_E_ARG, "two schemas have the $id '%.100s'", address);
    }
    if (!schema_ok(b) ||
        !net_check(b->g, mem_grow(&b->resources, &b->resources_capacity, b->n_resources + 1, sizeof *b->resources))) {
        mem_free(address);
        return 0;
    }
    b->resources[b->n_resources] = (schema_resource){schema, address};
    return b->n_resources++;
}

static void add_anchor(schema_build *b, const json *schema, const char *name, size_t resource) {
    for (size_t i = 0; i < b->n_anchors && schema_charge(b, 1); i++) {
        if (b->anchors[i].resource == resource && strcmp(b->anchors[i].name, name) == 0)
            schema_fail(b, MN_E_ARG, "two schemas have the $anchor '%.100s'", name);
    }
    if (schema_ok(b) &&
        net_check(b->g, mem_grow(&b->anchors, &b->anchors_capacity, b->n_anchors + 1, sizeof *b->anchors)))
        b->anchors[b->n_anchors++] = (schema_anchor){schema, name, resource};
}

static void index_schema(schema_build *b, const json *schema, size_t resource);

static void index_list(schema_build *b, const json *list, size_t resource) {
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n; i++) index_schema(b, &list->items[i], resource);
}

/* Schemas that a schema holds, by the keywords that hold them: a member named $id inside "properties", "enum" or
 * "const" identifies nothing. */
static void index_inner(schema_build *b, const json *schema, size_t resource) {
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"};
    static const char *const others[] = {"items",
                                         "additionalProperties",
                                         "additionalItems",
                                         "contains",
                                         "propertyNames",
                                         "not",
                                         "if",
                                         "then",
                                         "else",
                                         "unevaluatedItems",
                                         "unevaluatedProperties",
                                         "prefixItems",
                                         "allOf",
                                         "anyOf",
                                         "oneOf"};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        const json *map = json_get(schema, maps[i]);
        for (size_t k = 0; map && map->kind == JSON_OBJECT && k < map->n; k++)
            index_schema(b, &map->members[k].value, resource);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const json *inner = json_get(schema, others[i]);
        if (inner && inner->kind == JSON_ARRAY) index_list(b, inner, resource);
        if (inner && inner->kind == JSON_OBJECT) index_schema(b, inner, resource);
    }
}

static void index_schema(schema_build *b, const json *schema, size_t resource) {
    if (schema->kind != JSON_OBJECT || !schema_charge(b, 1)) return;
    const char *id = text_of(schema, "$id"), *anchor = text_of(schema, "$anchor");
    const json *ref = json_get(schema, "$ref");
    if (id && id[0] == '#') { /* as in draft 7 */
        if (id[1]) add_anchor(b, schema, id + 1, resource);
    } else if (id && schema != b->root) {
        resource = add_resource(b, schema, resolve(b->resources[resource].address, id, strcspn(id, "#")));
    }
    if (anchor) add_anchor(b, schema, anchor, resource);
    if (ref && net_check(b->g, mem_grow(&b->refs, &b->refs_capacity, b->n_refs + 1, sizeof *b->refs)))
        b->refs[b->n_refs++] = (schema_ref){ref, resource};
    if (schema_ok(b)) index_inner(b, schema, resource);
}

static int order_of_refs(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const schema_ref *)a)->ref, y = (uintptr_t)((const schema_ref *)b)->ref;
    return (x > y) - (x < y);
}

void schema_index(schema_build *b) {
    const char *id = text_of(b->root, "$id");
    if (!id || id[0] == '#') id = "";
    add_resource(b, b->root, resolve("", id, strcspn(id, "#")));
    if (schema_ok(b)) index_schema(b, b->root, 0);
    if (b->n_refs) qsort(b->refs, b->n_refs, sizeof *b->refs, order_of_refs);
}

void schema_index_clear(schema_build *b) {
    for (size_t i = 0; i < b->n_resources; i++) mem_free(b->resources[i].address);
    mem_free(b->resources);
    mem_free(b->anchors);
    mem_free(b->refs);
}

/* ---- targets ---- */

/* One step of a pointer, decoded: ~0 and ~1, and %XX as in addresses. */
static bool decode_step(const char **at, char *out, size_t room) {
    size_t n = 0;
    const char *text = *at;
    for (; *text && *text != '/'; n++) {
        if (n + 1 >= room) return false;
        if (text[0] == '~' && (text[1] == '0' || text[1] == '1')) {
            out[n] = text[1] == '0' ? '~' : '/';
            text += 2;
        } else if (text[0] == '%' && hex_value(text[1]) >= 0 && hex_value(text[2]) >= 0) {
            out[n] = (char)(hex_value(text[1]) << 4 | hex_value(text[2]));
            text += 3;
        } else {
            out[n] = *text++;
        }
    }
    out[n] = 0;
    *at = text;
    return true;
}

static const json *find_step(const json *at, const char *step) {
    if (at->kind == JSON_OBJECT) return json_get(at, step);
    if (at->kind != JSON_ARRAY || step[0] < '0' || step[0] > '9') return NULL;
    size_t index = 0;
    const char *end = step;
    for (; *end >= '0' && *end <= '9' && index < at->n; end++) index = index * 10 + (size_t)(*end - '0');
    return *end == 0 && index < at->n ? &at->items[index] : NULL;
}

static const json *find_pointer(schema_build *b, const json *found, const char *at) {
    char step[256];
    while (*at == '/' && found) {
        at++;
        found = decode_step(&at, step, sizeof step) && schema_charge(b, found->n) ? find_step(found, step) : NULL;
    }
    return found;
}

static const json *find_anchor(schema_build *b, size_t resource, const char *name) {
    for (size_t i = 0; i < b->n_anchors && schema_charge(b, 1); i++) {
        if (b->anchors[i].resource == resource && strcmp(b->anchors[i].name, name) == 0) return b->anchors[i].schema;
    }
    return NULL;
}

/* The resource that a reference names; n_resources: none of these. */
static size_t named_resource(schema_build *b, const json *ref, size_t n_address) {
    const schema_ref key = {.ref = ref}, *known = NULL;
    size_t found = 0;
    if (b->n_refs) known = bsearch(&key, b->refs, b->n_refs, sizeof key, order_of_refs);
    /* A reference at a place that is no schema's belongs to the whole schema, if nothing else can be meant. */
    size_t base = known ? known->resource : b->n_resources == 1 ? 0 : b->n_resources;
    if (base == b->n_resources || n_address == 0) return base;
    char *address = resolve(b->resources[base].address, ref->string, n_address);
    if (!address) net_check(b->g, MN_E_NOMEM);
    while (address && found < b->n_resources && strcmp(b->resources[found].address, address) != 0) found++;
    mem_free(address);
    return found;
}

const json *schema_target(schema_build *b, const json *ref) {
    if (ref->kind != JSON_STRING) {
        schema_fail(b, MN_E_ARG, "'$ref' must be a text");
        return NULL;
    }
    size_t n = strcspn(ref->string, "#"), resource = named_resource(b, ref, n);
    const char *fragment = ref->string + n + (ref->string[n] == '#');
    if (resource == b->n_resources) {
        schema_fail(b, MN_E_UNSUPPORTED, "the $ref '%.100s' is not to a part of this schema: only this schema is read",
                    ref->string);
        return NULL;
    }
    const json *from = b->resources[resource].schema;
    const json *found =
        *fragment == 0 || *fragment == '/' ? find_pointer(b, from, fragment) : find_anchor(b, resource, fragment);
    if (!found) schema_fail(b, MN_E_ARG, "the $ref '%.100s' leads nowhere", ref->string);
    return found;
}
