/* Vocabulary: token ids and their texts, and the letters that represent bytes in byte-level vocabularies.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_VOCAB_H
#define MN_TEXT_TOKENIZER_VOCAB_H

#include "base/mem.h"

enum {
    VOCAB_MAX_ID = (1 << 21) - 1, /* the largest known vocabularies have 2^18 tokens */
    VOCAB_NONE = -1,
};

enum {
    PIECE_PRESENT = 1,  /* some ids have no token */
    PIECE_SPECIAL = 2,  /* control token: parsed only when allowed, dropped by a decode that skips specials */
    PIECE_ADDED = 4,    /* found in the text before anything else is done */
    PIECE_BYTE = 8,     /* "<0xHH>" of a vocabulary with byte fallback */
    PIECE_OUTSIDE = 16, /* unknown to the merges: reached as an added token or as a byte only */
    PIECE_OWN = 32,     /* the model makes it of bytes or by a merge: no text, added or not */
};

typedef struct vocab_piece {
    uint32_t at, n; /* slice of vocab.text */
    uint32_t flags;
} vocab_piece;

typedef struct vocab {
    vocab_piece *pieces; /* by id */
    size_t n, capacity;  /* ids in use: highest + 1 */
    bytes text;          /* all pieces; valid UTF-8, byte-level pieces in their letters */
    uint32_t *slots;     /* by hash of the text: id + 1 and a part of the hash; 0: empty */
    size_t n_slots, used;
    uint64_t seed; /* of the hash: random, so that no file can contain texts chosen to collide */
} vocab;

/* Adds a token. MN_E_FORMAT (with `what`) when the id is out of range, has a token already, or the text has another
 * id. */
mn_status vocab_put(vocab *v, int64_t id, const char *text, size_t n, uint32_t flags, const char *what);
void vocab_clear(vocab *v);

/* The id of a text, or VOCAB_NONE. */
int32_t vocab_find(const vocab *v, const char *text, size_t n);

static inline bool vocab_has(const vocab *v, int64_t id) {
    return id >= 0 && (size_t)id < v->n && (v->pieces[id].flags & PIECE_PRESENT);
}

static inline const char *vocab_text(const vocab *v, int32_t id) {
    return v->text.data + v->pieces[id].at;
}

/* The byte of "<0xHH>", or -1. */
int vocab_byte_of(const char *text, size_t n);

/* Byte-level letters: printable bytes of Latin-1 represent themselves; the 68 others are mapped to U+0100 and up in
 * order. */
static inline uint32_t byte_letter(unsigned char b) {
    if (b < 33) return 256u + b;
    if (b >= 127 && b <= 160) return 289u + b - 127u;
    return b == 173 ? 323 : b;
}

/* The byte that a letter represents, or -1. */
static inline int byte_of_letter(uint32_t letter) {
    if (letter < 33 || letter > 323) return -1;
    if (letter < 256) return (letter >= 127 && letter <= 160) || letter == 173 ? -1 : (int)letter;
    if (letter < 289) return (int)letter - 256;
    return letter == 323 ? 173 : (int)letter - 289 + 127;
}

/* Appends the letters of n bytes. */
void bytes_to_letters(bytes *out, const char *data, size_t n);

#endif
