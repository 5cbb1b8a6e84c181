/* SentencePiece model files: a reader of the protobuf wire format and of the four messages that are needed.
 *
 * ModelProto: pieces = 1, trainer_spec = 2, normalizer_spec = 3 (sentencepiece_model.proto).
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <inttypes.h>
#include <string.h>

/* ---- wire format ---- */

typedef struct wire {
    const uint8_t *at, *end;
    const char *what;
} wire;

/* One field: a number (varint, fixed32, fixed64) or a slice. */
typedef struct field {
    uint32_t number;
    bool is_slice;
    uint64_t value;
    const uint8_t *data;
    size_t n;
} field;

static mn_status cut_off(const wire *w) {
    return status_fail(MN_E_FORMAT, "%s: the SentencePiece model is cut off or damaged", w->what);
}

static mn_status read_varint(wire *w, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        uint8_t byte = *w->at++;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return MN_OK;
    }
    return cut_off(w);
}

static mn_status read_fixed(wire *w, size_t n, uint64_t *out) {
    if ((size_t)(w->end - w->at) < n) return cut_off(w);
    *out = 0;
    memcpy(out, w->at, n);
    w->at += n;
    return MN_OK;
}

static mn_status read_field(wire *w, field *out) {
    uint64_t tag, n;
    MN_TRY(read_varint(w, &tag));
    *out = (field){.number = (uint32_t)(tag >> 3 & 0x1FFFFFFF)};
    switch (tag & 7) {
    case 0: return read_varint(w, &out->value);
    case 1: return read_fixed(w, 8, &out->value);
    case 5: return read_fixed(w, 4, &out->value);
    case 2:
        MN_TRY(read_varint(w, &n));
        if (n > (size_t)(w->end - w->at)) return cut_off(w);
        out->is_slice = true;
        out->data = w->at;
        out->n = (size_t)n;
        w->at += n;
        return MN_OK;
    default: return cut_off(w);
    }
}

/* ---- messages ---- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

typedef struct model {
    tokenizer *t;
    const char *what;
    float *scores; /* by id */
    size_t capacity, n;
    uint64_t model_type;
    bool add_prefix, strip_spaces, escape_spaces, has_charsmap, marks_ends;
    int64_t roles[4]; /* unk, bos, eos, pad */
} model;

static mn_status read_piece(model *m, field message) {
    wire w = {message.data, message.data + message.n, m->what};
    field text = {0}, f;
    uint32_t score_bits = 0;
    uint64_t type = TYPE_NORMAL;
    while (w.at < w.end) {
        MN_TRY(read_field(&w, &f));
        if (f.number == 1 && f.is_slice) text = f;
        if (f.number == 2 && !f.is_slice) score_bits = (uint32_t)f.value;
        if (f.number == 3 && !f.is_slice) type = f.value;
    }
    const char *piece_text = text.data ? (const char *)text.data : "";
    if (utf8_valid_prefix(piece_text, text.n) != text.n)
        MN_FAIL(MN_E_FORMAT, "%s: the piece %zu is not UTF-8", m->what, m->n);
    if (type < TYPE_NORMAL || type > TYPE_BYTE)
        MN_FAIL(MN_E_FORMAT, "%s: the piece %zu has the type %" PRIu64 ", allowed: 1 to 6", m->what, m->n, type);
    MN_TRY(mem_grow(&m->scores, &m->capacity, m->n + 1, sizeof *m->scores));
    memcpy(&m->scores[m->n], &score_bits, sizeof score_bits);
    bool plain = type == TYPE_NORMAL || type == TYPE_UNUSED;
    MN_TRY(vocab_put(&m->t->pieces, (int64_t)m->n, piece_text, text.n, plain ? 0 : PIECE_OUTSIDE, m->what));
    if (type == TYPE_UNKNOWN) m->t->unknown = (int32_t)m->n;
    if (type == TYPE_BYTE) m->t->byte_fallback = true;
    if ((type == TYPE_CONTROL || type == TYPE_UNKNOWN) && text.n)
        MN_TRY(tokenizer_put_added(m->t, (int64_t)m->n, piece_text, text.n, ADDED_SPECIAL, m->what));
    if (type == TYPE_USER_DEFINED && text.n)
        MN_TRY(added_set_put(&m->t->user_defined, piece_text, text.n, (int32_t)m->n, 0, m->what));
    m->n++;
    return MN_OK;
}

static mn_status read_trainer(model *m, field message) {
    wire w = {message.data, message.data + message.n, m->what};
    while (w.at < w.end) {
        field f;
        MN_TRY(read_field(&w, &f));
        if (f.is_slice) continue;
        if (f.number == 3) m->model_type = f.value;
        if (f.number == 24) m->marks_ends = f.value; /* treat_whitespace_as_suffix */
        if (f.number >= 40 && f.number <= 43) m->roles[f.number - 40] = (int32_t)(uint32_t)f.value;
    }
    return MN_OK;
}

static mn_status read_normalizer(model *m, field message) {
    wire w = {message.data, message.data + message.n, m->what};
    while (w.at < w.end) {
        field f;
        MN_TRY(read_field(&w, &f));
        if (f.number == 2 && f.is_slice) m->has_charsmap = f.n > 0;
        if (f.number == 3 && !f.is_slice) m->add_prefix = f.value;
        if (f.number == 4 && !f.is_slice) m->strip_spaces = f.value;
        if (f.number == 5 && !f.is_slice) m->escape_spaces = f.value;
    }
    return MN_OK;
}

static mn_status read_messages(model *m, const uint8_t *data, size_t n) {
    wire w = {data, data + n, m->what};
    while (w.at < w.end) {
        field f;
        MN_TRY(read_field(&w, &f));
        if (f.number == 1 && f.is_slice) MN_TRY(read_piece(m, f));
        if (f.number == 2 && f.is_slice) MN_TRY(read_trainer(m, f));
        if (f.number == 3 && f.is_slice) MN_TRY(read_normalizer(m, f));
    }
    if (m->n == 0) return cut_off(&w);
    if (m->model_type != 2)
        MN_FAIL(MN_E_UNSUPPORTED, "%s: the SentencePiece model type is %" PRIu64 ", allowed: 2 (BPE)", m->what,
                m->model_type);
    if (m->marks_ends)
        MN_FAIL(MN_E_UNSUPPORTED, "%s: spaces belong to the ends of words, allowed: to their beginnings", m->what);
    if (m->has_charsmap || m->strip_spaces || !m->escape_spaces) {
        MN_FAIL(
            MN_E_UNSUPPORTED,
            "%s: this SentencePiece model normalises text (character map: %s, removes extra spaces: %s, keeps plain spaces: %s), allowed: none of it",
            m->what, m->has_charsmap ? "yes" : "no", m->strip_spaces ? "yes" : "no", m->escape_spaces ? "no" : "yes");
    }
    return MN_OK;
}

static mn_status set_roles(model *m) {
    static const token_role roles[] = {TOKEN_UNK, TOKEN_BOS, TOKEN_EOS, TOKEN_PAD};
    tokenizer *t = m->t;
    for (int i = 0; i < 4; i++) {
        if (vocab_has(&t->pieces, m->roles[i]) && (t->pieces.pieces[m->roles[i]].flags & PIECE_SPECIAL))
            t->roles[roles[i]] = (int32_t)m->roles[i];
    }
    if (t->roles[TOKEN_BOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->before, t->roles[TOKEN_BOS], m->what));
    if (t->roles[TOKEN_EOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->ends, t->roles[TOKEN_EOS], m->what));
    return MN_OK;
}

mn_status tokenizer_read_sentencepiece(tokenizer *t, const uint8_t *data, size_t n, const char *what) {
    model m = {.t = t,
               .what = what,
               .model_type = 1,
               .add_prefix = true,
               .strip_spaces = true,
               .escape_spaces = true,
               .roles = {0, 1, 2, -1}};
    t->fuse_unknown = true;
    mn_status status = read_messages(&m, data, n);
    if (status == MN_OK) status = merge_table_from_scores(&t->merges, &t->virtual_symbols, &t->pieces, m.scores, what);
    if (status == MN_OK) status = set_roles(&m);
    if (status == MN_OK) status = tokenizer_put_marks(t, m.add_prefix, true, what);
    mem_free(m.scores);
    return status;
}
