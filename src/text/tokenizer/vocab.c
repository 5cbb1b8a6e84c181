/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/num.h"
#include "base/utf8.h"

static bool piece_is(const vocab *v, uint32_t id, const char *text, size_t n) {
    return v->pieces[id].n == n && memcmp(v->text.data + v->pieces[id].at, text, n) == 0;
}

/* A slot holds id + 1 and, above it, bits of the hash, so that a failed look-up seldom compares texts. */
enum { ID_BITS = 22 };

static inline uint32_t slot_tag(uint64_t hash) {
    return (uint32_t)(hash >> 40) << ID_BITS;
}

int32_t vocab_find(const vocab *v, const char *text, size_t n) {
    if (v->n_slots == 0 || n == 0) return VOCAB_NONE;
    uint64_t hash = hash_seeded(text, n, v->seed);
    for (size_t slot = hash & (v->n_slots - 1); v->slots[slot]; slot = (slot + 1) & (v->n_slots - 1)) {
        uint32_t id = (v->slots[slot] & ((1u << ID_BITS) - 1)) - 1;
        if ((v->slots[slot] ^ slot_tag(hash)) >> ID_BITS == 0 && piece_is(v, id, text, n)) return (int32_t)id;
    }
    return VOCAB_NONE;
}

static void enter(vocab *v, uint32_t id) {
    const vocab_piece *piece = &v->pieces[id];
    uint64_t hash = hash_seeded(v->text.data + piece->at, piece->n, v->seed);
    size_t slot = hash & (v->n_slots - 1);
    while (v->slots[slot]) slot = (slot + 1) & (v->n_slots - 1);
    v->slots[slot] = (id + 1) | slot_tag(hash);
    v->used++;
}

static mn_status rehash(vocab *v) {
    size_t n_slots = v->n_slots ? v->n_slots * 4 : 1024;
    uint32_t *slots = mem_alloc(n_slots, sizeof *slots);
    if (!slots) return MN_E_NOMEM;
    if (!v->slots) v->seed = hash_seed();
    mem_free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    v->used = 0;
    for (size_t id = 0; id < v->n; id++) {
        if (v->pieces[id].n && vocab_has(v, (int64_t)id)) enter(v, (uint32_t)id);
    }
    return MN_OK;
}

/* Message texts show at most this many bytes of a token. */
static int shown(const char *text, size_t n) {
    return (int)utf8_valid_prefix(text, n < 60 ? n : 60);
}

mn_status vocab_put(vocab *v, int64_t id, const char *text, size_t n, uint32_t flags, const char *what) {
    if (id < 0 || id > VOCAB_MAX_ID) {
        MN_FAIL(MN_E_FORMAT, "%s: token '%.*s' has the id %" PRId64 ", allowed: 0 to %d", what, shown(text, n), text,
                id, VOCAB_MAX_ID);
    }
    if (vocab_has(v, id)) {
        MN_FAIL(MN_E_FORMAT, "%s: the id %" PRId64 " is given to '%.*s' and to '%.*s'", what, id,
                shown(vocab_text(v, (int32_t)id), v->pieces[id].n), vocab_text(v, (int32_t)id), shown(text, n), text);
    }
    int32_t other = vocab_find(v, text, n);
    if (other != VOCAB_NONE) {
        MN_FAIL(MN_E_FORMAT, "%s: the token '%.*s' has two ids, %" PRId32 " and %" PRId64, what, shown(text, n), text,
                other, id);
    }
    if (v->text.n + n > UINT32_MAX) MN_FAIL(MN_E_FORMAT, "%s: the tokens are longer than 4 GiB together", what);
    size_t old = v->capacity;
    MN_TRY(mem_grow(&v->pieces, &v->capacity, (size_t)id + 1, sizeof *v->pieces));
    if (v->capacity > old) memset(v->pieces + old, 0, (v->capacity - old) * sizeof *v->pieces);
    if ((v->used + 1) * 2 > v->n_slots) MN_TRY(rehash(v));
    v->pieces[id] = (vocab_piece){(uint32_t)v->text.n, (uint32_t)n, flags | PIECE_PRESENT};
    bytes_append(&v->text, text, n);
    bytes_append(&v->text, "", 1); /* texts are handed out as C strings too */
    if (v->text.failed) {
        v->pieces[id] = (vocab_piece){0};
        return bytes_status(&v->text);
    }
    if ((size_t)id >= v->n) v->n = (size_t)id + 1;
    if (n) enter(v, (uint32_t)id);
    return MN_OK;
}

void vocab_clear(vocab *v) {
    mem_free(v->pieces);
    mem_free(v->slots);
    bytes_clear(&v->text);
    *v = (vocab){0};
}

int vocab_byte_of(const char *text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_value(text[3]), low = hex_value(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void bytes_to_letters(bytes *out, const char *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char letter[4];
        bytes_append(out, letter, utf8_encode(letter, byte_letter((unsigned char)data[i])));
    }
}
