/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <inttypes.h>
#include <string.h>

#define MARK "\xE2\x96\x81" /* U+2581, the space of SentencePiece vocabularies */

const char *const token_role_names[N_TOKEN_ROLES] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                                     "sep_token", "cls_token", "mask_token"};

void token_list_clear(token_list *list) {
    mem_free(list->ids);
    *list = (token_list){0};
}

/* ---- building ---- */

mn_status tokenizer_new(tokenizer **out, unicode_table *classes) {
    *out = NULL;
    tokenizer *t = mem_alloc(1, sizeof *t);
    if (!t) return MN_E_NOMEM;
    atomic_init(&t->n_holders, 1);
    pthread_mutex_init(&t->lock, NULL);
    t->unknown = VOCAB_NONE;
    for (int i = 0; i < N_TOKEN_ROLES; i++) t->roles[i] = VOCAB_NONE;
    t->classes = classes;
    mn_status status = classes ? MN_OK : unicode_table_open(&t->classes);
    if (status != MN_OK) {
        tokenizer_close(&t);
    } else {
        *out = t;
    }
    return status;
}

tokenizer *tokenizer_hold(const tokenizer *t) {
    tokenizer *held = (tokenizer *)(uintptr_t)t;
    atomic_fetch_add_explicit(&held->n_holders, 1, memory_order_relaxed);
    return held;
}

void tokenizer_close(tokenizer **out) {
    tokenizer *t = *out;
    *out = NULL;
    if (!t || atomic_fetch_sub_explicit(&t->n_holders, 1, memory_order_acq_rel) > 1) return;
    if (t->derived) t->clear_derived(t->derived);
    pthread_mutex_destroy(&t->lock);
    unicode_table_close(&t->classes);
    vocab_clear(&t->pieces);
    vocab_clear(&t->virtual_symbols);
    merge_table_clear(&t->merges);
    normalizer_clear(&t->normalizer);
    pretokenizer_clear(&t->pre);
    detokenizer_clear(&t->decoder);
    added_set_clear(&t->added);
    added_set_clear(&t->added_normalized);
    added_set_clear(&t->user_defined);
    for (size_t i = 0; i < t->n_templates; i++) {
        mem_free(t->templates[i].name);
        mem_free(t->templates[i].text);
    }
    mem_free(t->templates);
    mem_free(t);
}

mn_status tokenizer_derived(const void **derived, const tokenizer *t,
                            mn_status (*make)(void **made, const tokenizer *t), void (*clear)(void *made)) {
    tokenizer *own = (tokenizer *)(uintptr_t)t;
    mn_status status = MN_OK;
    pthread_mutex_lock(&own->lock);
    if (!own->derived) {
        own->clear_derived = clear;
        status = make(&own->derived, t);
    }
    *derived = own->derived;
    pthread_mutex_unlock(&own->lock);
    return status;
}

/* The id of a text that the model knows, or VOCAB_NONE. */
static int32_t model_find(const tokenizer *t, const char *text, size_t n) {
    int32_t id = vocab_find(&t->pieces, text, n);
    return id != VOCAB_NONE && (t->pieces.pieces[id].flags & PIECE_OUTSIDE) ? VOCAB_NONE : id;
}

static mn_status unknown_part(const char *left, size_t n_left, const char *right, size_t n_right, uint32_t rank,
                              const char *part, const char *what) {
    MN_FAIL(MN_E_FORMAT, "%s: merge %" PRIu32 " ('%.*s' with '%.*s'): %s is no token of the vocabulary", what, rank,
            (int)utf8_valid_prefix(left, n_left < 60 ? n_left : 60), left,
            (int)utf8_valid_prefix(right, n_right < 60 ? n_right : 60), right, part);
}

mn_status tokenizer_put_merge(tokenizer *t, const char *left, size_t n_left, const char *right, size_t n_right,
                              uint32_t rank, const char *what) {
    char small[256], *both = small;
    if (n_left + n_right > sizeof small) both = mem_alloc_raw(n_left + n_right, 1);
    if (!both) return MN_E_NOMEM;
    memcpy(both, left, n_left);
    memcpy(both + n_left, right, n_right);
    int32_t a = vocab_find(&t->pieces, left, n_left), b = vocab_find(&t->pieces, right, n_right);
    int32_t id = vocab_find(&t->pieces, both, n_left + n_right);
    if (both != small) mem_free(both);
    const char *part = a == VOCAB_NONE ? "the left part" : b == VOCAB_NONE ? "the right part" : "the union";
    if (a == VOCAB_NONE || b == VOCAB_NONE || id == VOCAB_NONE)
        return unknown_part(left, n_left, right, n_right, rank, part, what);
    t->pieces.pieces[id].flags |= PIECE_OWN;
    merge_table_put(&t->merges, (merge){(uint32_t)a, (uint32_t)b, rank, (uint32_t)id});
    return MN_OK;
}

mn_status tokenizer_put_added(tokenizer *t, int64_t id, const char *text, size_t n, unsigned added_flags,
                              const char *what) {
    int32_t known = vocab_find(&t->pieces, text, n);
    if (known == VOCAB_NONE || (id >= 0 && id != known)) {
        MN_TRY(vocab_put(&t->pieces, id, text, n, PIECE_OUTSIDE, what)); /* refuses a second id */
        known = (int32_t)id;
    }
    uint32_t *flags = &t->pieces.pieces[known].flags;
    *flags = (*flags & 0xFFu & ~(uint32_t)PIECE_SPECIAL) | PIECE_ADDED | added_flags << PIECE_ADDED_SHIFT;
    if (added_flags & ADDED_SPECIAL) *flags |= PIECE_SPECIAL;
    return MN_OK;
}

mn_status tokenizer_put_template(tokenizer *t, const char *name, size_t n_name, const char *text, size_t n) {
    if (t->n_templates == TEMPLATES) MN_FAIL(MN_E_FORMAT, "the tokenizer has more than %d chat templates", TEMPLATES);
    chat_template entry = {mem_copy_text(name, n_name), mem_copy_text(text, n)};
    mn_status status = entry.name && entry.text ? MN_OK : MN_E_NOMEM;
    for (size_t i = 0; i < t->n_templates && status == MN_OK; i++) {
        if (strcmp(t->templates[i].name, entry.name) == 0) { /* a later one replaces it */
            mem_free(t->templates[i].text);
            mem_free(entry.name);
            t->templates[i].text = entry.text;
            return MN_OK;
        }
    }
    if (status == MN_OK) status = mem_grow(&t->templates, &t->templates_capacity, t->n_templates + 1, sizeof entry);
    if (status != MN_OK) {
        mem_free(entry.name);
        mem_free(entry.text);
        return status;
    }
    t->templates[t->n_templates++] = entry;
    return MN_OK;
}

mn_status id_row_put(id_row *row, int32_t id, const char *what) {
    if (row->n == TEMPLATE_IDS)
        MN_FAIL(MN_E_FORMAT, "%s: more than %d special tokens in one place", what, TEMPLATE_IDS);
    row->ids[row->n++] = id;
    return MN_OK;
}

mn_status tokenizer_put_marks(tokenizer *t, bool prefix, bool first_only, const char *what) {
    pre_step step = {.kind = PRE_METASPACE, .mark = MARK, .n_mark = 3};
    if (prefix && !first_only) {
        norm_step prepend = {.kind = NORM_PREPEND};
        bytes_append_text(&prepend.content, MARK);
        MN_TRY(normalizer_add(&t->normalizer, &prepend, what));
    }
    step.prefix = prefix && first_only ? PREFIX_FORCED : PREFIX_NEVER;
    MN_TRY(pretokenizer_add(&t->pre, &step, what));
    dec_stage replace = {.kind = DEC_REPLACE}, raw = {.kind = DEC_BYTES}, strip = {.kind = DEC_STRIP, .start = 1};
    bytes_append_text(&replace.from, MARK);
    bytes_append_text(&replace.content, " ");
    MN_TRY(detokenizer_add(&t->decoder, &replace, what));
    MN_TRY(detokenizer_add(&t->decoder, &raw, what));
    if (!prefix) return MN_OK;
    bytes_append_text(&strip.content, " ");
    return detokenizer_add(&t->decoder, &strip, what);
}

mn_status tokenizer_put_byte_level(tokenizer *t, const char *what) {
    t->byte_level = true;
    return detokenizer_add(&t->decoder, &(dec_stage){.kind = DEC_BYTE_LEVEL}, what);
}

/* Whether no token has a mark after a character that is no mark, and no character is dropped: then no merge crosses a
 * place where a mark follows another character. */
static bool may_cut_at_marks(const tokenizer *t) {
    if (t->byte_level || t->whole_words || t->unknown == VOCAB_NONE || model_find(t, MARK, 3) == VOCAB_NONE)
        return false;
    for (size_t i = 0; i < t->merges.n_slots; i++) {
        if (t->merges.slots[i].left == UINT32_MAX) continue;
        const vocab_piece *piece = &t->pieces.pieces[t->merges.slots[i].id];
        const char *text = t->pieces.text.data + piece->at, *end = text + piece->n;
        bool after_other = false;
        while (text < end) {
            bool mark = end - text >= 3 && memcmp(text, MARK, 3) == 0;
            if (mark && after_other) return false;
            after_other = after_other || !mark;
            text += mark ? 3 : 1;
        }
    }
    return true;
}

static mn_status put_added(tokenizer *t, const char *what) {
    norm_state state = {.n_text = t->pieces.text.n};
    mn_status status = MN_OK;
    for (size_t id = 0; id < t->pieces.n && status == MN_OK; id++) {
        const vocab_piece *piece = &t->pieces.pieces[id];
        if (!(piece->flags & PIECE_ADDED) || piece->n == 0) continue;
        unsigned flags = piece->flags >> PIECE_ADDED_SHIFT;
        const char *text = vocab_text(&t->pieces, (int32_t)id);
        size_t n = piece->n;
        if (flags & ADDED_NORMALIZED) {
            status = normalize(&t->normalizer, t->classes, &state, text, n, &text, &n);
            if (status == MN_OK && n) status = added_set_put(&t->added_normalized, text, n, (int32_t)id, flags, what);
        } else {
            status = added_set_put(&t->added, text, n, (int32_t)id, flags, what);
        }
    }
    norm_state_clear(&state);
    return status;
}

static void mark_own(tokenizer *t, int32_t id) {
    if (id != VOCAB_NONE && !(t->pieces.pieces[id].flags & PIECE_OUTSIDE)) t->pieces.pieces[id].flags |= PIECE_OWN;
}

mn_status tokenizer_finish(tokenizer *t, const char *what) {
    for (int i = 0; i < 256; i++) {
        char text[8], byte = (char)i;
        size_t n = t->byte_level ? utf8_encode(text, byte_letter((unsigned char)i)) : 1;
        if (!t->byte_level) text[0] = byte;
        t->unit[i] = t->byte_level || i < 0x80 ? model_find(t, text, n) : VOCAB_NONE;
        static const char digits[] = "0123456789ABCDEF";
        const char fallback[] = {'<', '0', 'x', digits[i >> 4], digits[i & 15], '>'};
        t->byte_id[i] = vocab_find(&t->pieces, fallback, sizeof fallback);
        mark_own(t, t->unit[i]);
        mark_own(t, t->byte_id[i]);
    }
    t->cut_at_marks = may_cut_at_marks(t);
    return put_added(t, what);
}

/* ---- encoding ---- */

enum { CACHE_WORD = 15, CACHE_IDS = 11, CACHE_MIN_TEXT = 1024, CACHE_SLOTS = 1 << 14 };

typedef struct cache_entry {
    uint64_t key[2]; /* the word, padded with zeros; its length in the top byte */
    int32_t ids[CACHE_IDS];
    uint32_t n;
} cache_entry;

typedef struct encoder {
    const tokenizer *t;
    token_list *out;
    bool allow_special;
    cache_entry *cache; /* NULL for short texts */
    size_t cache_mask;
    bpe_scratch bpe;
    pre_state pre;
    norm_state norm;
    bytes letters;
} encoder;

/* Symbols of one word. */
typedef struct symbol_row {
    const tokenizer *t;
    uint32_t *symbols;
    size_t n;
    bool after_unknown;
} symbol_row;

static void put_unknown(symbol_row *row, const char *text, size_t n) {
    const tokenizer *t = row->t;
    bool has_bytes = t->byte_fallback;
    for (size_t i = 0; i < n && has_bytes; i++) has_bytes = t->byte_id[(unsigned char)text[i]] != VOCAB_NONE;
    if (has_bytes) {
        for (size_t i = 0; i < n; i++) row->symbols[row->n++] = (uint32_t)t->byte_id[(unsigned char)text[i]];
        row->after_unknown = false;
    } else if (t->unknown != VOCAB_NONE && !(row->after_unknown && t->fuse_unknown)) {
        row->symbols[row->n++] = (uint32_t)t->unknown;
        row->after_unknown = true;
    }
}

static void put_characters(symbol_row *row, const char *word, size_t n) {
    const tokenizer *t = row->t;
    size_t length;
    for (size_t i = 0; i < n; i += length) {
        unsigned char lead = (unsigned char)word[i];
        length = lead < 0x80 ? 1 : utf8_length(lead);
        int32_t id = lead < 0x80 ? t->unit[lead] : model_find(t, word + i, length);
        if (id == VOCAB_NONE && t->virtual_symbols.n) {
            int32_t symbol = vocab_find(&t->virtual_symbols, word + i, length);
            if (symbol != VOCAB_NONE) id = (int32_t)t->pieces.n + symbol;
        }
        if (id == VOCAB_NONE) {
            put_unknown(row, word + i, length);
        } else {
            row->symbols[row->n++] = (uint32_t)id;
            row->after_unknown = false;
        }
    }
}

static void put_bytes(symbol_row *row, const char *word, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int32_t id = row->t->unit[(unsigned char)word[i]];
        if (id != VOCAB_NONE) {
            row->symbols[row->n++] = (uint32_t)id;
            row->after_unknown = false;
        } else {
            char letter[4];
            put_unknown(row, letter, utf8_encode(letter, byte_letter((unsigned char)word[i])));
        }
    }
}

static mn_status put_ids(token_list *out, const uint32_t *ids, size_t n) {
    if (n == 0) return MN_OK;
    MN_TRY(mem_grow(&out->ids, &out->capacity, out->n + n, sizeof *out->ids));
    memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return MN_OK;
}

/* A virtual symbol that was not merged is an unknown character. */
static mn_status put_symbols(encoder *e, const uint32_t *symbols, size_t n) {
    const tokenizer *t = e->t;
    if (t->virtual_symbols.n == 0) return put_ids(e->out, symbols, n);
    bool after_unknown = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t ids[4];
        symbol_row row = {.t = t, .symbols = ids, .after_unknown = after_unknown};
        if (symbols[i] < t->pieces.n) {
            ids[row.n++] = symbols[i];
            row.after_unknown = t->unknown >= 0 && symbols[i] == (uint32_t)t->unknown;
        } else {
            int32_t symbol = (int32_t)(symbols[i] - t->pieces.n);
            put_unknown(&row, vocab_text(&t->virtual_symbols, symbol), t->virtual_symbols.pieces[symbol].n);
        }
        after_unknown = row.after_unknown;
        MN_TRY(put_ids(e->out, ids, row.n));
    }
    return MN_OK;
}

static int32_t whole_word(encoder *e, const char *word, size_t n) {
    if (!e->t->byte_level) return model_find(e->t, word, n);
    e->letters.n = 0;
    bytes_to_letters(&e->letters, word, n);
    return e->letters.failed ? VOCAB_NONE : model_find(e->t, e->letters.data, e->letters.n);
}

static mn_status encode_afresh(encoder *e, const char *word, size_t n) {
    const tokenizer *t = e->t;
    if (t->whole_words) {
        int32_t id = whole_word(e, word, n);
        MN_TRY(bytes_status(&e->letters));
        if (id != VOCAB_NONE) return put_ids(e->out, &(uint32_t){(uint32_t)id}, 1);
    }
    MN_TRY(bpe_scratch_reserve(&e->bpe, n + 4));
    symbol_row row = {.t = t, .symbols = e->bpe.symbols};
    if (t->byte_level) {
        put_bytes(&row, word, n);
    } else {
        put_characters(&row, word, n);
    }
    MN_TRY(bpe_merge(&t->merges, &e->bpe, &row.n));
    return put_symbols(e, e->bpe.symbols, row.n);
}

/* 1 to 15 bytes as two integers. */
static inline void load_key(uint64_t key[2], const char *word, size_t n) {
    key[0] = key[1] = 0;
    if (n >= 8) {
        memcpy(&key[0], word, 8);
        memcpy(&key[1], word + n - 8, 8);
        key[1] = n > 8 ? key[1] >> (8 * (16 - n)) : 0;
    } else if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, word, 4);
        memcpy(&high, word + n - 4, 4);
        key[0] = low | (uint64_t)high << (8 * (n - 4));
    } else {
        const unsigned char *s = (const unsigned char *)word;
        key[0] = s[0] | (uint64_t)s[n / 2] << (8 * (n / 2)) | (uint64_t)s[n - 1] << (8 * (n - 1));
    }
    key[1] |= (uint64_t)n << 56;
}

static mn_status encode_word(encoder *e, const char *word, size_t n) {
    if (!e->cache || n > CACHE_WORD) return encode_afresh(e, word, n);
    uint64_t key[2];
    load_key(key, word, n);
    uint64_t h = (key[0] ^ key[1] * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
    cache_entry *entry = &e->cache[(h ^ h >> 29) >> 16 & e->cache_mask];
    token_list *out = e->out;
    if (entry->key[0] != key[0] || entry->key[1] != key[1]) {
        size_t before = out->n;
        MN_TRY(encode_afresh(e, word, n));
        if (out->n - before > CACHE_IDS) return MN_OK;
        entry->key[0] = key[0];
        entry->key[1] = key[1];
        entry->n = (uint32_t)(out->n - before);
        if (entry->n) memcpy(entry->ids, out->ids + before, entry->n * sizeof *entry->ids);
        return MN_OK;
    }
    MN_TRY(mem_grow(&out->ids, &out->capacity, out->n + CACHE_IDS, sizeof *out->ids));
    memcpy(out->ids + out->n, entry->ids, sizeof entry->ids); /* all of them: faster than a counted copy */
    out->n += entry->n;
    return MN_OK;
}

static mn_status encode_spelled(encoder *e, const char *word, size_t n, bool at_start) {
    (void)at_start;
    if (!e->t->cut_at_marks) return encode_word(e, word, n);
    size_t start = 0;
    while (start < n) {
        size_t at = start;
        while (at + 3 <= n && memcmp(word + at, MARK, 3) == 0) at += 3;
        const char *mark = memmem(word + at, n - at, MARK, 3);
        size_t end = mark ? (size_t)(mark - word) : n;
        MN_TRY(encode_word(e, word + start, end - start));
        start = end;
    }
    return MN_OK;
}

/* Encodes the added tokens of `set`; the text between them goes to `plain`. */
static mn_status encode_between(encoder *e, const added_set *set, const char *text, size_t n, bool at_start,
                                mn_status (*plain)(encoder *, const char *, size_t, bool)) {
    size_t from = 0, floor = 0;
    for (;;) {
        added_match match = added_set_find(set, e->t->classes, text, n, &from, floor, e->allow_special);
        if (match.start > floor) MN_TRY(plain(e, text + floor, match.start - floor, at_start && floor == 0));
        if (match.id < 0) return MN_OK;
        MN_TRY(put_ids(e->out, &(uint32_t){(uint32_t)match.id}, 1));
        floor = match.end;
    }
}

static mn_status word_sink(void *arg, const char *word, size_t n) {
    encoder *e = arg;
    if (e->t->user_defined.n == 0) return encode_spelled(e, word, n, false);
    return encode_between(e, &e->t->user_defined, word, n, false, encode_spelled);
}

static mn_status encode_plain(encoder *e, const char *text, size_t n, bool at_start) {
    return pretokenize(&e->t->pre, e->t->classes, &e->pre, text, n, at_start, word_sink, e);
}

static mn_status encode_section(encoder *e, const char *text, size_t n, bool at_start) {
    MN_TRY(normalize(&e->t->normalizer, e->t->classes, &e->norm, text, n, &text, &n));
    if (e->t->added_normalized.n == 0) return encode_plain(e, text, n, at_start);
    return encode_between(e, &e->t->added_normalized, text, n, at_start, encode_plain);
}

static mn_status encode_text(encoder *e, const char *text, size_t n, unsigned flags) {
    const tokenizer *t = e->t;
    if (n >= CACHE_MIN_TEXT) {
        size_t slots = 256;
        while (slots < CACHE_SLOTS && slots < n / 8) slots *= 2;
        e->cache = mem_alloc(slots, sizeof *e->cache);
        if (!e->cache) return MN_E_NOMEM;
        e->cache_mask = slots - 1;
        MN_TRY(mem_grow(&e->out->ids, &e->out->capacity, e->out->n + n / 4, sizeof *e->out->ids));
    }
    bool add = flags & TOKENIZER_ADD_SPECIAL;
    if (add) {
        for (size_t i = 0; i < t->before.n; i++) MN_TRY(put_ids(e->out, &(uint32_t){(uint32_t)t->before.ids[i]}, 1));
    }
    MN_TRY(encode_between(e, &t->added, text, n, true, encode_section));
    for (size_t i = 0; add && i < t->after.n; i++) MN_TRY(put_ids(e->out, &(uint32_t){(uint32_t)t->after.ids[i]}, 1));
    return MN_OK;
}

mn_status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out) {
    size_t valid = utf8_valid_prefix(text, n);
    if (valid < n) {
        MN_FAIL(MN_E_ARG, "the text is not UTF-8: byte 0x%02X at offset %zu", (unsigned)(unsigned char)text[valid],
                valid);
    }
    if (n > INT32_MAX / 2)
        MN_FAIL(MN_E_ARG, "the text has %zu bytes, at most %d can be tokenized at once", n, INT32_MAX / 2);
    size_t before = out->n;
    encoder e = {.t = t, .out = out, .allow_special = flags & TOKENIZER_PARSE_SPECIAL};
    e.pre.n_text = e.norm.n_text = n;
    mn_status status = encode_text(&e, text, n, flags);
    if (status != MN_OK) out->n = before;
    mem_free(e.cache);
    bpe_scratch_clear(&e.bpe);
    pre_state_clear(&e.pre);
    norm_state_clear(&e.norm);
    bytes_clear(&e.letters);
    return status;
}

/* ---- decoding ---- */

struct tokenizer_stream {
    const tokenizer *t;
    unsigned flags;
    dec_run run;
};

static mn_status check_id(const tokenizer *t, int32_t id) {
    if (id >= 0 && (size_t)id < t->pieces.n) return MN_OK;
    MN_FAIL(MN_E_ARG, "the token id %" PRId32 " is out of range, allowed: 0 to %zu", id, t->pieces.n - 1);
}

/* Whether a token is what a program added, so that its piece is the text itself. */
static bool is_text(const vocab_piece *piece) {
    return (piece->flags & (PIECE_ADDED | PIECE_SPECIAL)) && !(piece->flags & PIECE_OWN);
}

static void push_id(const tokenizer *t, dec_run *run, int32_t id, unsigned flags) {
    const vocab_piece *piece = &t->pieces.pieces[id];
    if (!(piece->flags & PIECE_PRESENT)) return;
    if ((flags & TOKENIZER_SKIP_SPECIAL) && (piece->flags & PIECE_SPECIAL)) return;
    dec_run_push(run, vocab_text(&t->pieces, id), piece->n, is_text(piece));
}

mn_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, unsigned flags, bytes *out) {
    for (size_t i = 0; i < n; i++) MN_TRY(check_id(t, ids[i]));
    tokenizer_stream *stream;
    MN_TRY(tokenizer_stream_open(&stream, t, flags));
    stream->run.out = out;
    stream->run.whole = true;
    for (size_t i = 0; i < n; i++) push_id(t, &stream->run, ids[i], flags);
    dec_run_finish(&stream->run);
    mn_status status = dec_run_status(&stream->run);
    tokenizer_stream_close(&stream);
    return status;
}

mn_status tokenizer_stream_open(tokenizer_stream **out, const tokenizer *t, unsigned flags) {
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    (*out)->t = t;
    (*out)->flags = flags;
    (*out)->run.list = &t->decoder;
    return MN_OK;
}

mn_status tokenizer_stream_reserve(tokenizer_stream *stream, size_t n) {
    return dec_run_reserve(&stream->run, n);
}

mn_status tokenizer_stream_push(tokenizer_stream *stream, int32_t id, bytes *out) {
    MN_TRY(check_id(stream->t, id));
    stream->run.out = out;
    push_id(stream->t, &stream->run, id, stream->flags);
    return dec_run_status(&stream->run);
}

mn_status tokenizer_stream_finish(tokenizer_stream *stream, bytes *out) {
    stream->run.out = out;
    dec_run_finish(&stream->run);
    return dec_run_status(&stream->run);
}

void tokenizer_stream_close(tokenizer_stream **stream) {
    if (!*stream) return;
    dec_run_clear(&(*stream)->run);
    mem_free(*stream);
    *stream = NULL;
}

mn_status tokenizer_token_bytes(const tokenizer *t, int32_t id, bool first, bytes *scratch, bytes *out) {
    MN_TRY(check_id(t, id));
    const vocab_piece *piece = &t->pieces.pieces[id];
    if (!(piece->flags & PIECE_PRESENT) || (piece->flags & PIECE_SPECIAL)) return MN_OK;
    return detokenizer_token(&t->decoder, vocab_text(&t->pieces, id), piece->n, is_text(piece), first, scratch, out);
}

/* ---- the vocabulary ---- */

size_t tokenizer_size(const tokenizer *t) {
    return t->pieces.n;
}

const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *n) {
    if (!vocab_has(&t->pieces, id)) return NULL;
    if (n) *n = t->pieces.pieces[id].n;
    return vocab_text(&t->pieces, id);
}

int32_t tokenizer_find(const tokenizer *t, const char *piece) {
    return vocab_find(&t->pieces, piece, strlen(piece));
}

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
    return vocab_has(&t->pieces, id) && (t->pieces.pieces[id].flags & PIECE_SPECIAL);
}

int32_t tokenizer_role(const tokenizer *t, token_role role) {
    return t->roles[role];
}

const char *tokenizer_role_text(const tokenizer *t, token_role role) {
    return tokenizer_piece(t, t->roles[role], NULL);
}

const int32_t *tokenizer_end_ids(const tokenizer *t, size_t *n) {
    *n = t->ends.n;
    return t->ends.ids;
}

const char *tokenizer_chat_template(const tokenizer *t, const char *name) {
    for (size_t i = 0; i < t->n_templates; i++) {
        if (strcmp(t->templates[i].name, name ? name : "default") == 0) return t->templates[i].text;
    }
    return !name && t->n_templates == 1 ? t->templates[0].text : NULL;
}

void tokenizer_put_template_names(const tokenizer *t, bytes *out) {
    if (tokenizer_chat_template(t, NULL)) return;
    for (size_t i = 0; i < t->n_templates; i++) bytes_printf(out, "%s%.60s", i ? ", " : "", t->templates[i].name);
}

const char *tokenizer_warning(const tokenizer *t) {
    return t->warning;
}
