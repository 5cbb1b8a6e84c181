/* The internals of a tokenizer, which the readers of all file formats fill in.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_BUILD_H
#define MN_TEXT_TOKENIZER_BUILD_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/detokenize.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/tokenizer.h"

/* In vocab_piece.flags beside PIECE_*: the ADDED_* flags of an added token. */
enum { PIECE_ADDED_SHIFT = 8 };

enum {
    TEMPLATE_IDS = 32,          /* special tokens before or after a text */
    TEMPLATES = 256,            /* chat templates by different names */
    TOKENIZER_FILE = 256 << 20, /* largest file read, in bytes */
};

typedef struct chat_template {
    char *name, *text; /* owned */
} chat_template;

typedef struct id_row {
    int32_t ids[TEMPLATE_IDS];
    size_t n;
} id_row;

struct tokenizer {
    atomic_size_t n_holders;
    unicode_table *classes;
    vocab pieces;
    vocab virtual_symbols; /* single characters that occur in merges only; ids from pieces.n on */
    merge_table merges;
    normalizer normalizer;
    pretokenizer pre;
    detokenizer decoder;

    bool byte_level;      /* symbols are bytes, pieces are spelled in letters; else symbols are characters */
    bool byte_fallback;   /* an unknown character becomes its bytes as "<0xHH>" */
    bool whole_words;     /* a word that is a token is not merged */
    bool fuse_unknown;    /* neighbouring unknown characters give one unknown token */
    bool cut_at_marks;    /* words may be split before U+2581 without changing the result */
    int32_t unknown;      /* of the model; -1: unknown characters are dropped */
    int32_t unit[256];    /* byte level: the id of each byte; else of each ASCII character; -1: none */
    int32_t byte_id[256]; /* of "<0xHH>", or -1 */

    added_set added;            /* matched in the text as it is */
    added_set added_normalized; /* matched in the normalized text */
    added_set user_defined;     /* of SentencePiece: matched in words, where spaces are U+2581 */
    id_row before, after;       /* put around a text */

    int32_t roles[N_TOKEN_ROLES];
    id_row ends;
    chat_template *templates;
    size_t n_templates, templates_capacity;
    const char *warning; /* a literal, or NULL */

    pthread_mutex_t lock; /* of the following two */
    void *derived;
    void (*clear_derived)(void *derived);
};

/* An empty tokenizer with its character classes: those given, which it takes over, or fresh ones for NULL. */
mn_status tokenizer_new(tokenizer **out, unicode_table *classes);

/* Adds a merge by its texts; MN_E_FORMAT names the unknown token. The room must have been reserved. */
mn_status tokenizer_put_merge(tokenizer *t, const char *left, size_t n_left, const char *right, size_t n_right,
                              uint32_t rank, const char *what);

/* Makes a text an added token. A text that is a token already keeps its id; `id` < 0: the one it has. */
mn_status tokenizer_put_added(tokenizer *t, int64_t id, const char *text, size_t n, unsigned added_flags,
                              const char *what);

mn_status tokenizer_put_template(tokenizer *t, const char *name, size_t n_name, const char *text, size_t n);
mn_status id_row_put(id_row *row, int32_t id, const char *what);

/* Fills the derived tables once everything is read. */
mn_status tokenizer_finish(tokenizer *t, const char *what);

/* ---- the steps that several formats share ---- */

mn_status tokenizer_put_marks(tokenizer *t, bool prefix, bool first_only,
                              const char *what); /* " " to U+2581 before, back after */
mn_status tokenizer_put_byte_level(tokenizer *t, const char *what);

/* ---- readers; each fills an empty tokenizer ---- */

mn_status tokenizer_read_json(tokenizer *t, const json *root, const char *what);
/* The ADDED_* flags of a token's description. */
mn_status tokenizer_read_flags(const json *entry, const char *what, unsigned *out);
/* tokenizer_config.json (or special_tokens_map.json, a part of it). */
mn_status tokenizer_read_config(tokenizer *t, const json *root, const char *what);
mn_status tokenizer_read_sentencepiece(tokenizer *t, const uint8_t *data, size_t n, const char *what);
mn_status tokenizer_read_tiktoken(tokenizer *t, const char *data, size_t n, const char *what);
mn_status tokenizer_read_vocab_merges(tokenizer *t, const json *vocabulary, const char *merges, size_t n,
                                      const char *what);
/* Any file format, by what it begins with; a JSON text is a tokenizer.json. */
mn_status tokenizer_read_bytes(tokenizer *t, const void *data, size_t n, const char *what);
mn_status tokenizer_read_gguf(tokenizer *t, const gguf *file);

#endif
