/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/generation_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool id_list_has(const id_list *list, int32_t id) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->ids[i] == id) return true;
    }
    return false;
}

static mn_status wrong_value(const field_row *row, const json *value, const char *what) {
    bytes seen = {0};
    json_put(&seen, value);
    status_fail(MN_E_ARG, "%s: %s is %.60s, allowed: %s", what, row->name, bytes_text(&seen), row->allowed);
    bytes_clear(&seen);
    return MN_E_ARG;
}

static bool number_in_range(const field_row *row, const json *value, double *out) {
    if (value->kind != JSON_INT && value->kind != JSON_REAL) return false;
    *out = value->kind == JSON_INT ? (double)value->integer : value->real;
    return *out >= row->lo && *out <= row->hi;
}

/* ---- numbers, booleans, choices ---- */

static mn_status set_int(void *place, const field_row *row, const json *value, const char *what) {
    double number;
    if (!number_in_range(row, value, &number) || number != floor(number)) return wrong_value(row, value, what);
    *(int64_t *)place = (int64_t)number;
    return MN_OK;
}

static void clear_int(void *place, const field_row *row) {
    *(int64_t *)place = row->none;
}

static void put_int(bytes *out, const void *place, const field_row *row) {
    int64_t number = *(const int64_t *)place;
    if (number == -1 && row->none == -1) {
        bytes_append_text(out, "null");
    } else {
        bytes_printf(out, "%lld", (long long)number);
    }
}

static mn_status set_real(void *place, const field_row *row, const json *value, const char *what) {
    double number;
    if (!number_in_range(row, value, &number)) return wrong_value(row, value, what);
    *(double *)place = number;
    return MN_OK;
}

static void clear_real(void *place, const field_row *row) {
    *(double *)place = row->none;
}

static void put_real(bytes *out, const void *place, const field_row *row) {
    (void)row;
    json_put_real(out, *(const double *)place);
}

static mn_status set_bool(void *place, const field_row *row, const json *value, const char *what) {
    if (value->kind != JSON_BOOL) return wrong_value(row, value, what);
    *(bool *)place = value->boolean;
    return MN_OK;
}

static void clear_bool(void *place, const field_row *row) {
    *(bool *)place = row->none != 0;
}

static void put_bool(bytes *out, const void *place, const field_row *row) {
    (void)row;
    bytes_append_text(out, *(const bool *)place ? "true" : "false");
}

static mn_status set_choice(void *place, const field_row *row, const json *value, const char *what) {
    bytes seen = {0};
    json_put(&seen, value);
    mn_status status = bytes_status(&seen);
    int64_t index = 0, found = -1;
    for (const char *at = row->allowed; status == MN_OK && *at; index++) {
        size_t n = strcspn(at, "|");
        if (n == seen.n && memcmp(at, seen.data, n) == 0) found = index;
        at += n + (at[n] == '|');
    }
    bytes_clear(&seen);
    MN_TRY(status);
    if (found < 0) return wrong_value(row, value, what);
    *(int64_t *)place = found;
    return MN_OK;
}

static void put_choice(bytes *out, const void *place, const field_row *row) {
    const char *at = row->allowed;
    for (int64_t i = *(const int64_t *)place; i > 0; i--) at = strchr(at, '|') + 1;
    bytes_append(out, at, strcspn(at, "|"));
}

/* ---- texts ---- */

static void clear_text(void *place, const field_row *row) {
    (void)row;
    mem_free(*(char **)place);
    *(char **)place = NULL;
}

/* Texts end with a zero byte and so cannot hold one. */
static bool is_text(const json *value) {
    return value->kind == JSON_STRING && value->n > 0 && strlen(value->string) == value->n;
}

static mn_status store_text(void *place, const char *text, size_t n) {
    char *copy = mem_copy_text(text, n);
    if (!copy) return MN_E_NOMEM;
    mem_free(*(char **)place);
    *(char **)place = copy;
    return MN_OK;
}

static mn_status set_text(void *place, const field_row *row, const json *value, const char *what) {
    if (!is_text(value)) return wrong_value(row, value, what);
    return store_text(place, value->string, value->n);
}

static void put_text(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const char *text = *(char *const *)place;
    if (text) {
        json_put_string(out, text, strlen(text));
    } else {
        bytes_append_text(out, "null");
    }
}

static bool is_schema(const json *value) {
    return value->kind == JSON_OBJECT || value->kind == JSON_BOOL;
}

/* A schema, or a text that holds one. */
static mn_status set_schema(void *place, const field_row *row, const json *value, const char *what) {
    json_doc *doc = NULL;
    bytes text = {0};
    if (value->kind == JSON_STRING) {
        mn_status status = json_parse(&doc, value->string, value->n, JSON_STRICT, row->name);
        if (status == MN_E_FORMAT) return wrong_value(row, value, what);
        MN_TRY(status);
    }
    const json *schema = doc ? json_root(doc) : value;
    mn_status status = is_schema(schema) ? MN_OK : wrong_value(row, value, what);
    if (status == MN_OK) json_put(&text, schema);
    if (status == MN_OK) status = bytes_status(&text);
    if (status == MN_OK) status = store_text(place, text.data, text.n);
    bytes_clear(&text);
    json_close(&doc);
    return status;
}

static void put_schema(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const char *text = *(char *const *)place;
    bytes_append_text(out, text ? text : "null");
}

/* A list of options is kept as it was written, an object as JSON. */
static mn_status set_options(void *place, const field_row *row, const json *value, const char *what) {
    json_doc *doc = NULL;
    bytes text = {0};
    bool is_string = is_text(value) || json_is_string(value, "");
    if (is_string && value->string[strspn(value->string, " \t\n")] != '{')
        return store_text(place, value->string, value->n);
    if (is_string) {
        mn_status status = json_parse(&doc, value->string, value->n, JSON_STRICT, row->name);
        if (status == MN_E_FORMAT) return wrong_value(row, value, what);
        MN_TRY(status);
    }
    const json *object = doc ? json_root(doc) : value;
    mn_status status = object->kind == JSON_OBJECT ? MN_OK : wrong_value(row, value, what);
    if (status == MN_OK) json_put(&text, object);
    if (status == MN_OK) status = bytes_status(&text);
    if (status == MN_OK) status = store_text(place, text.data, text.n);
    bytes_clear(&text);
    json_close(&doc);
    return status;
}

static void put_options(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const char *text = *(char *const *)place;
    if (text && *text != '{') {
        json_put_string(out, text, strlen(text));
    } else {
        bytes_append_text(out, text ? text : "null");
    }
}

static void clear_texts(void *place, const field_row *row) {
    (void)row;
    text_list *list = place;
    for (size_t i = 0; i < list->n; i++) mem_free(list->texts[i]);
    mem_free(list->texts);
    *list = (text_list){0};
}

/* A single value, or a list of them. */
static const json *as_list(const json *value, size_t *n) {
    *n = value->kind == JSON_ARRAY ? value->n : 1;
    return value->kind == JSON_ARRAY ? value->items : value;
}

static mn_status set_texts(void *place, const field_row *row, const json *value, const char *what) {
    size_t n;
    const json *items = as_list(value, &n);
    if ((double)n > row->hi) return wrong_value(row, value, what);
    for (size_t i = 0; i < n; i++) {
        if (!is_text(&items[i])) return wrong_value(row, value, what);
    }
    text_list made = {mem_alloc(n, sizeof *made.texts), 0};
    if (!made.texts) return MN_E_NOMEM;
    for (; made.n < n; made.n++) {
        made.texts[made.n] = mem_copy_text(items[made.n].string, items[made.n].n);
        if (!made.texts[made.n]) {
            clear_texts(&made, row);
            return MN_E_NOMEM;
        }
    }
    clear_texts(place, row);
    *(text_list *)place = made;
    return MN_OK;
}

static void put_texts(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const text_list *list = place;
    bytes_append_text(out, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i) bytes_append_text(out, ",");
        json_put_string(out, list->texts[i], strlen(list->texts[i]));
    }
    bytes_append_text(out, "]");
}

/* ---- ids ---- */

static void clear_ids(void *place, const field_row *row) {
    (void)row;
    id_list *list = place;
    mem_free(list->ids);
    *list = (id_list){0};
}

static bool is_id(const field_row *row, const json *value) {
    double number;
    return value->kind == JSON_INT && number_in_range(row, value, &number);
}

static mn_status copy_ids(id_list *list, const json *items, size_t n) {
    int32_t *ids = mem_alloc(n, sizeof *ids);
    if (!ids) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)items[i].integer;
    mem_free(list->ids);
    *list = (id_list){ids, n};
    return MN_OK;
}

static mn_status set_ids(void *place, const field_row *row, const json *value, const char *what) {
    size_t n;
    const json *items = as_list(value, &n);
    for (size_t i = 0; i < n; i++) {
        if (!is_id(row, &items[i])) return wrong_value(row, value, what);
    }
    return copy_ids(place, items, n);
}

static void put_ids(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const id_list *list = place;
    bytes_append_text(out, "[");
    for (size_t i = 0; i < list->n; i++) bytes_printf(out, "%s%d", i ? "," : "", list->ids[i]);
    bytes_append_text(out, "]");
}

/* A list of one or more that pass. */
static bool is_list_of(bool (*passes)(const field_row *row, const json *value), const field_row *row,
                       const json *value) {
    if (value->kind != JSON_ARRAY || value->n == 0) return false;
    for (size_t i = 0; i < value->n; i++) {
        if (!passes(row, &value->items[i])) return false;
    }
    return true;
}

static bool is_sequence(const field_row *row, const json *value) {
    return is_list_of(is_id, row, value);
}

static void clear_id_lists(void *place, const field_row *row) {
    id_lists *all = place;
    for (size_t i = 0; i < all->n; i++) clear_ids(&all->lists[i], row);
    mem_free(all->lists);
    *all = (id_lists){0};
}

/* out: empty. */
static mn_status copy_id_lists(id_lists *out, const field_row *row, const json *items, size_t n) {
    out->lists = mem_alloc(n, sizeof *out->lists);
    for (; out->lists && out->n < n; out->n++) {
        if (copy_ids(&out->lists[out->n], items[out->n].items, items[out->n].n) != MN_OK) break;
    }
    if (out->lists && out->n == n) return MN_OK;
    clear_id_lists(out, row);
    return MN_E_NOMEM;
}

static mn_status set_id_lists(void *place, const field_row *row, const json *value, const char *what) {
    id_lists made = {0};
    if (value->kind != JSON_ARRAY || (value->n > 0 && !is_list_of(is_sequence, row, value)))
        return wrong_value(row, value, what);
    MN_TRY(copy_id_lists(&made, row, value->items, value->n));
    clear_id_lists(place, row);
    *(id_lists *)place = made;
    return MN_OK;
}

static void put_id_lists(bytes *out, const void *place, const field_row *row) {
    const id_lists *all = place;
    bytes_append_text(out, "[");
    for (size_t i = 0; i < all->n; i++) {
        if (i) bytes_append_text(out, ",");
        put_ids(out, &all->lists[i], row);
    }
    bytes_append_text(out, "]");
}

/* ---- phrases ---- */

static void clear_phrases(void *place, const field_row *row) {
    phrase_list *all = place;
    for (size_t i = 0; i < all->n; i++) clear_id_lists(&all->items[i].forms, row);
    mem_free(all->items);
    *all = (phrase_list){0};
}

static bool is_phrase(const field_row *row, const json *value) {
    return is_sequence(row, value) || is_list_of(is_sequence, row, value);
}

static mn_status set_phrases(void *place, const field_row *row, const json *value, const char *what) {
    if (value->kind != JSON_ARRAY || (value->n > 0 && !is_list_of(is_phrase, row, value)))
        return wrong_value(row, value, what);
    phrase_list made = {mem_alloc(value->n, sizeof *made.items), 0};
    if (!made.items) return MN_E_NOMEM;
    for (; made.n < value->n; made.n++) {
        const json *item = &value->items[made.n];
        phrase *it = &made.items[made.n];
        it->is_choice = !is_sequence(row, item);
        if (copy_id_lists(&it->forms, row, it->is_choice ? item->items : item, it->is_choice ? item->n : 1) != MN_OK) {
            clear_phrases(&made, row);
            return MN_E_NOMEM;
        }
    }
    clear_phrases(place, row);
    *(phrase_list *)place = made;
    return MN_OK;
}

static void put_phrases(bytes *out, const void *place, const field_row *row) {
    const phrase_list *all = place;
    bytes_append_text(out, "[");
    for (size_t i = 0; i < all->n; i++) {
        const phrase *it = &all->items[i];
        if (i) bytes_append_text(out, ",");
        if (it->is_choice)
            put_id_lists(out, &it->forms, row);
        else
            put_ids(out, &it->forms.lists[0], row);
    }
    bytes_append_text(out, "]");
}

/* ---- biases ---- */

static const field_row id_range = {.name = "id", .lo = 0, .hi = INT32_MAX};

static void clear_biases(void *place, const field_row *row) {
    id_biases *all = place;
    for (size_t i = 0; i < all->n; i++) clear_ids(&all->items[i].ids, row);
    mem_free(all->items);
    *all = (id_biases){0};
}

/* Minus infinity as Transformers' files and as Python have it. */
static bool read_bias(const field_row *row, const json *value, double *bias) {
    bool is_text = json_is_string(value, "-inf") || json_is_string(value, "-Infinity");
    if (is_text || (value->kind == JSON_REAL && value->real == -(double)INFINITY)) {
        *bias = -(double)INFINITY;
        return true;
    }
    return number_in_range(row, value, bias);
}

static void put_bias(bytes *out, double bias) {
    if (isinf(bias)) {
        bytes_append_text(out, "\"-inf\"");
    } else {
        json_put_real(out, bias);
    }
}

static mn_status set_biases(void *place, const field_row *row, const json *value, const char *what) {
    double bias;
    if (value->kind != JSON_ARRAY) return wrong_value(row, value, what);
    for (size_t i = 0; i < value->n; i++) {
        const json *pair = &value->items[i];
        bool is_pair = pair->kind == JSON_ARRAY && pair->n == 2 && is_sequence(&id_range, &pair->items[0]);
        if (!is_pair || !read_bias(row, &pair->items[1], &bias)) return wrong_value(row, value, what);
    }
    id_biases made = {mem_alloc(value->n, sizeof *made.items), 0};
    if (!made.items) return MN_E_NOMEM;
    for (; made.n < value->n; made.n++) {
        const json *ids = &value->items[made.n].items[0];
        read_bias(row, &value->items[made.n].items[1], &made.items[made.n].bias);
        if (copy_ids(&made.items[made.n].ids, ids->items, ids->n) != MN_OK) {
            clear_biases(&made, row);
            return MN_E_NOMEM;
        }
    }
    clear_biases(place, row);
    *(id_biases *)place = made;
    return MN_OK;
}

static void put_biases(bytes *out, const void *place, const field_row *row) {
    const id_biases *all = place;
    bytes_append_text(out, "[");
    for (size_t i = 0; i < all->n; i++) {
        bytes_append_text(out, i ? ",[" : "[");
        put_ids(out, &all->items[i].ids, row);
        bytes_append_text(out, ",");
        put_bias(out, all->items[i].bias);
        bytes_append_text(out, "]");
    }
    bytes_append_text(out, "]");
}

static bool read_key(const json_member *member, json *id) {
    size_t n = strspn(member->key, "0123456789");
    if (n == 0 || n > 10 || n != member->key_n) return false;
    *id = (json){.kind = JSON_INT, .integer = strtoll(member->key, NULL, 10)};
    return is_id(&id_range, id);
}

static mn_status set_bias_map(void *place, const field_row *row, const json *value, const char *what) {
    double bias;
    json id = {0};
    if (value->kind != JSON_OBJECT) return wrong_value(row, value, what);
    for (size_t i = 0; i < value->n; i++) {
        if (!read_key(&value->members[i], &id) || !read_bias(row, &value->members[i].value, &bias))
            return wrong_value(row, value, what);
    }
    id_biases made = {mem_alloc(value->n, sizeof *made.items), 0};
    if (!made.items) return MN_E_NOMEM;
    for (; made.n < value->n; made.n++) {
        id_bias *item = &made.items[made.n];
        read_key(&value->members[made.n], &id);
        read_bias(row, &value->members[made.n].value, &item->bias);
        if (copy_ids(&item->ids, &id, 1) != MN_OK) {
            clear_biases(&made, row);
            return MN_E_NOMEM;
        }
    }
    clear_biases(place, row);
    *(id_biases *)place = made;
    return MN_OK;
}

static void put_bias_map(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const id_biases *all = place;
    bytes_append_text(out, "{");
    for (size_t i = 0; i < all->n; i++) {
        bytes_printf(out, "%s\"%d\":", i ? "," : "", all->items[i].ids.ids[0]);
        put_bias(out, all->items[i].bias);
    }
    bytes_append_text(out, "}");
}

/* ---- pairs, layers, the watermark ---- */

static mn_status set_decay(void *place, const field_row *row, const json *value, const char *what) {
    double start, factor;
    bool is_pair = value->kind == JSON_ARRAY && value->n == 2 && value->items[0].kind == JSON_INT &&
                   number_in_range(&id_range, &value->items[0], &start) &&
                   number_in_range(row, &value->items[1], &factor);
    if (!is_pair) return wrong_value(row, value, what);
    *(length_decay *)place = (length_decay){true, (int64_t)start, factor};
    return MN_OK;
}

static void clear_decay(void *place, const field_row *row) {
    (void)row;
    *(length_decay *)place = (length_decay){0};
}

static void put_decay(bytes *out, const void *place, const field_row *row) {
    (void)row;
    const length_decay *decay = place;
    if (!decay->is_set) {
        bytes_append_text(out, "null");
        return;
    }
    bytes_printf(out, "[%lld,", (long long)decay->start);
    json_put_real(out, decay->factor);
    bytes_append_text(out, "]");
}

static void clear_layers(void *place, const field_row *row) {
    layer_choice *choice = place;
    clear_ids(&choice->layers, row);
    choice->side = LAYERS_NONE;
}

static mn_status set_layers(void *place, const field_row *row, const json *value, const char *what) {
    layer_side side = json_is_string(value, "low")    ? LAYERS_LOW
                      : json_is_string(value, "high") ? LAYERS_HIGH
                      : is_sequence(row, value)       ? LAYERS_LISTED
                                                      : LAYERS_NONE;
    layer_choice *choice = place;
    if (side == LAYERS_NONE) return wrong_value(row, value, what);
    if (side == LAYERS_LISTED) {
        MN_TRY(copy_ids(&choice->layers, value->items, value->n));
    } else {
        clear_ids(&choice->layers, row);
    }
    choice->side = side;
    return MN_OK;
}

static void put_layers(bytes *out, const void *place, const field_row *row) {
    static const char *const words[] = {"null", "\"low\"", "\"high\""};
    const layer_choice *choice = place;
    if (choice->side == LAYERS_LISTED) {
        put_ids(out, &choice->layers, row);
    } else {
        bytes_append_text(out, words[choice->side]);
    }
}

#define WATERMARK(name) offsetof(watermark_config, name)
static const field_row watermark_parts[] = {
    {"greenlist_ratio", FIELD_REAL, WATERMARK(greenlist_ratio), 0, 1, "0 to 1", 0},
    {"bias", FIELD_REAL, WATERMARK(bias), -1e6, 1e6, "a number", 0},
    {"hashing_key", FIELD_INT, WATERMARK(hashing_key), 0, 9007199254740992.0, "0 to 2^53", 0},
    {"seeding_scheme", FIELD_CHOICE, WATERMARK(seeding_scheme), 0, 0, "\"lefthash\"|\"selfhash\"", 0},
    {"context_width", FIELD_INT, WATERMARK(context_width), 1, 1024, "1 to 1024", 1},
};
#undef WATERMARK
enum { N_WATERMARK_PARTS = sizeof watermark_parts / sizeof watermark_parts[0] };

static mn_status set_watermark(void *place, const field_row *row, const json *value, const char *what) {
    watermark_config made = {true, 0.25, 2, 15485863, WATERMARK_LEFT_HASH, 1};
    if (value->kind != JSON_OBJECT) return wrong_value(row, value, what);
    for (size_t i = 0; i < value->n; i++) {
        const json_member *member = &value->members[i];
        const field_row *part = NULL;
        for (int k = 0; k < N_WATERMARK_PARTS; k++) {
            if (strcmp(watermark_parts[k].name, member->key) == 0) part = &watermark_parts[k];
        }
        if (!part) return wrong_value(row, value, what);
        MN_TRY(status_context(field_set(part, &made, &member->value, what), "%s", row->name));
    }
    *(watermark_config *)place = made;
    return MN_OK;
}

static void clear_watermark(void *place, const field_row *row) {
    (void)row;
    *(watermark_config *)place = (watermark_config){0};
}

static void put_watermark(bytes *out, const void *place, const field_row *row) {
    (void)row;
    if (!((const watermark_config *)place)->is_set) {
        bytes_append_text(out, "null");
        return;
    }
    for (int k = 0; k < N_WATERMARK_PARTS; k++) {
        bytes_printf(out, "%s\"%s\":", k ? "," : "{", watermark_parts[k].name);
        field_put(&watermark_parts[k], place, out);
    }
    bytes_append_text(out, "}");
}

/* ---- the kinds ---- */

static const struct {
    mn_status (*set)(void *place, const field_row *row, const json *value, const char *what);
    void (*clear)(void *place, const field_row *row);
    void (*put)(bytes *out, const void *place, const field_row *row);
} kinds[] = {
    [FIELD_INT] = {set_int, clear_int, put_int},
    [FIELD_REAL] = {set_real, clear_real, put_real},
    [FIELD_BOOL] = {set_bool, clear_bool, put_bool},
    [FIELD_CHOICE] = {set_choice, clear_int, put_choice},
    [FIELD_TEXT] = {set_text, clear_text, put_text},
    [FIELD_GRAMMAR] = {set_text, clear_text, put_text},
    [FIELD_SCHEMA] = {set_schema, clear_text, put_schema},
    [FIELD_OPTIONS] = {set_options, clear_text, put_options},
    [FIELD_IDS] = {set_ids, clear_ids, put_ids},
    [FIELD_TEXTS] = {set_texts, clear_texts, put_texts},
    [FIELD_ID_LISTS] = {set_id_lists, clear_id_lists, put_id_lists},
    [FIELD_PHRASES] = {set_phrases, clear_phrases, put_phrases},
    [FIELD_BIASES] = {set_biases, clear_biases, put_biases},
    [FIELD_BIAS_MAP] = {set_bias_map, clear_biases, put_bias_map},
    [FIELD_DECAY] = {set_decay, clear_decay, put_decay},
    [FIELD_LAYERS] = {set_layers, clear_layers, put_layers},
    [FIELD_WATERMARK] = {set_watermark, clear_watermark, put_watermark},
};

mn_status field_set(const field_row *row, void *object, const json *value, const char *what) {
    void *place = (char *)object + row->offset;
    if (value->kind != JSON_NULL) return kinds[row->kind].set(place, row, value, what);
    kinds[row->kind].clear(place, row);
    return MN_OK;
}

void field_put(const field_row *row, const void *object, bytes *out) {
    kinds[row->kind].put(out, (const char *)object + row->offset, row);
}

void field_clear(const field_row *row, void *object) {
    kinds[row->kind].clear((char *)object + row->offset, row);
}
