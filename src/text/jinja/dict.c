/* Dictionaries: in order of insertion, found by hashes that are seeded anew for each rendering, so that no template and
 * no message can contain keys chosen to collide. Every probe is charged.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "text/jinja/internal.h"

enum { SMALL_DICT = 8 };

mn_status jinja_dict_new(jrun *r, jdict **out) {
    MN_TRY(jinja_alloc(&r->arena, sizeof **out, out));
    **out = (jdict){0};
    return MN_OK;
}

mn_status jinja_hashable(jrun *r, jvalue v, bool *out) {
    *out = v.kind != J_LIST && v.kind != J_DICT && v.kind != J_VIEW;
    if (v.kind != J_TUPLE) return MN_OK;
    MN_TRY(jinja_charge(r, v.list->n));
    for (size_t i = 0; i < v.list->n && *out; i++) { /* charged: above. Flat tuples only */
        jkind kind = v.list->items[i].kind;
        *out = kind != J_TUPLE && kind != J_LIST && kind != J_DICT && kind != J_VIEW;
    }
    return MN_OK;
}

mn_status jinja_check_hashable(jrun *r, jvalue v) {
    bool hashable;
    MN_TRY(jinja_hashable(r, v, &hashable));
    return hashable ? MN_OK : jinja_fail(r, "unhashable type: '%s'", jinja_type(v));
}

static uint64_t hash_word(const jrun *r, uint64_t word) {
    return hash_seeded(&word, sizeof word, r->seed);
}

/* Equal keys have equal hashes: 1, 1.0 and true are the same key. */
static mn_status hash_key(jrun *r, jvalue key, uint64_t *out) {
    switch (key.kind) {
    case J_STRING:
        MN_TRY(jinja_charge_bytes(r, key.string->n));
        *out = hash_seeded(key.string->data, key.string->n, r->seed);
        return MN_OK;
    case J_BOOL:
    case J_INT: *out = hash_word(r, (uint64_t)j_integer(key)); return MN_OK;
    case J_FLOAT:
        if (key.real == floor(key.real) && key.real >= -0x1p63 && key.real < 0x1p63) {
            *out = hash_word(r, (uint64_t)(int64_t)key.real);
        } else {
            *out = hash_seeded(&key.real, sizeof key.real, r->seed);
        }
        return MN_OK;
    case J_TUPLE: {
        uint64_t parts[2] = {0, 0};
        for (size_t i = 0; i < key.list->n; i++) {
            MN_TRY(jinja_charge(r, 1));
            MN_TRY(hash_key(r, key.list->items[i], &parts[1]));
            parts[0] = hash_seeded(parts, sizeof parts, r->seed);
        }
        *out = parts[0];
        return MN_OK;
    }
    case J_NONE:
    case J_UNDEFINED: *out = hash_word(r, key.kind); return MN_OK;
    default: *out = hash_word(r, (uint64_t)(uintptr_t)key.pointer); return MN_OK;
    }
}

/* Index of the key, or -1. */
static mn_status dict_find(jrun *r, const jdict *dict, jvalue key, uint64_t hash, int64_t *out) {
    bool same = false;
    *out = -1;
    size_t mask = dict->slots ? dict->n_slots - 1 : 0, slot = (size_t)hash & mask;
    for (size_t i = 0; dict->slots ? dict->slots[slot] != 0 : i < dict->n; i++, slot = (slot + 1) & mask) {
        size_t at = dict->slots ? dict->slots[slot] - 1 : i;
        MN_TRY(jinja_charge(r, 1));
        if (dict->items[at].hash != hash || (key.kind == J_STRING && dict->items[at].key.kind != J_STRING)) continue;
        MN_TRY(jinja_equal(r, dict->items[at].key, key, &same));
        if (!same) MN_TRY(jinja_same(r, dict->items[at].key, key, &same)); /* NaN finds itself */
        if (!same) continue;
        *out = (int64_t)at;
        return MN_OK;
    }
    return MN_OK;
}

static mn_status put_slot(jrun *r, jdict *dict, uint64_t hash, size_t item) {
    size_t slot = (size_t)hash & (dict->n_slots - 1);
    for (; dict->slots[slot]; slot = (slot + 1) & (dict->n_slots - 1)) MN_TRY(jinja_charge(r, 1));
    dict->slots[slot] = (uint32_t)item + 1;
    return jinja_charge(r, 1);
}

static mn_status dict_grow(jrun *r, jdict *dict) {
    size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
    jpair *items;
    MN_TRY(jinja_alloc(&r->arena, capacity * sizeof *items, &items));
    if (dict->n) memcpy(items, dict->items, dict->n * sizeof *items);
    dict->items = items;
    dict->capacity = capacity;
    if (capacity == SMALL_DICT) return MN_OK;
    dict->n_slots = capacity * 2;
    MN_TRY(jinja_alloc(&r->arena, dict->n_slots * sizeof *dict->slots, &dict->slots));
    memset(dict->slots, 0, dict->n_slots * sizeof *dict->slots);
    for (size_t i = 0; i < dict->n; i++) MN_TRY(put_slot(r, dict, dict->items[i].hash, i));
    return MN_OK;
}

mn_status jinja_dict_set(jrun *r, jdict *dict, jvalue key, jvalue value) {
    int64_t at;
    uint64_t hash;
    MN_TRY(jinja_charge(r, 1));
    MN_TRY(jinja_check_hashable(r, key));
    MN_TRY(hash_key(r, key, &hash));
    MN_TRY(dict_find(r, dict, key, hash, &at));
    if (at >= 0) {
        dict->items[at].value = value;
        return MN_OK;
    }
    if (dict->n == dict->capacity) MN_TRY(dict_grow(r, dict));
    if (dict->slots) MN_TRY(put_slot(r, dict, hash, dict->n));
    dict->items[dict->n++] = (jpair){key, value, hash};
    return MN_OK;
}

mn_status jinja_dict_get(jrun *r, const jdict *dict, jvalue key, jvalue *out) {
    int64_t at;
    uint64_t hash;
    *out = (jvalue){.kind = J_MISSING};
    MN_TRY(hash_key(r, key, &hash));
    MN_TRY(dict_find(r, dict, key, hash, &at));
    if (at >= 0) *out = dict->items[at].value;
    return jinja_charge(r, 1);
}
