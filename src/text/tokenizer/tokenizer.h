/* Tokenizers: text to token ids and back.
 *
 * Read from Hugging Face folders (tokenizer.json, or vocab.json and merges.txt, with tokenizer_config.json and
 * chat_template.jinja beside), SentencePiece BPE models, tiktoken files and GGUF metadata. A tokenizer is immutable
 * after opening and may be used by any number of threads; scratch memory belongs to the call.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_TOKENIZER_H
#define MN_TEXT_TOKENIZER_TOKENIZER_H

#include "base/mem.h"
#include "tensor/gguf.h"

typedef struct tokenizer tokenizer;

/* Growable token ids. */
typedef struct token_list {
    int32_t *ids; /* owned */
    size_t n, capacity;
} token_list;

void token_list_clear(token_list *list); /* frees; empty again */

/* ---- opening ---- */

/* path: a Hugging Face folder, tokenizer.json, a .gguf file, a SentencePiece tokenizer.model, a tiktoken file, or a
 * folder with vocab.json and merges.txt. MN_E_NOT_FOUND, MN_E_FORMAT, MN_E_UNSUPPORTED, MN_E_NOMEM; *out is NULL
 * then. */
mn_status tokenizer_open(tokenizer **out, const char *path);
/* From the metadata of an open GGUF file, which may be closed afterwards. */
mn_status tokenizer_from_gguf(tokenizer **out, const gguf *file);
/* From the texts of tokenizer.json and tokenizer_config.json (config may be NULL). */
mn_status tokenizer_from_memory(tokenizer **out, const char *text, size_t n, const char *config, size_t n_config);
/* The tokenizer for one more holder, who closes it with tokenizer_close; the last one frees it. */
tokenizer *tokenizer_hold(const tokenizer *t);
void tokenizer_close(tokenizer **t);

/* What a layer above computes once of the whole vocabulary: the first call makes it, and it stays as long as the
 * tokenizer. There is one for each tokenizer, for one user. Any thread. Errors are those of make; then the next call
 * tries again. */
mn_status tokenizer_derived(const void **derived, const tokenizer *t,
                            mn_status (*make)(void **made, const tokenizer *t), void (*clear)(void *made));

/* ---- text to ids ---- */

enum {
    TOKENIZER_ADD_SPECIAL = 1,   /* put the tokens around the text that the model expects (bos and the like) */
    TOKENIZER_PARSE_SPECIAL = 2, /* texts of special tokens become these tokens; else they are plain text */
};

/* Appends the ids of text[0..n). Text that is no UTF-8 is MN_E_ARG, with the byte offset. On failure *out holds what it
 * held before. */
mn_status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out);
/* As mn_tokenize_after; out is empty, and empty again on failure. */
mn_status tokenizer_encode_after(const tokenizer *t, const int32_t *held, size_t n_held, const char *text, size_t n,
                                 unsigned flags, token_list *out, size_t *n_kept);

/* ---- ids to text ---- */

enum { TOKENIZER_SKIP_SPECIAL = 1 }; /* leave special tokens out */

/* Appends the text of n ids, as Hugging Face's decode gives it: always valid UTF-8, broken sequences as U+FFFD. An id
 * out of range is MN_E_ARG with its value; an id inside the range without a token gives no text. */
mn_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, unsigned flags, bytes *out);

/* The same id by id: what push and finish append, put together, is what tokenizer_decode gives for the ids. Only whole
 * UTF-8 sequences are appended. Borrows the tokenizer. */
typedef struct tokenizer_stream tokenizer_stream;

mn_status tokenizer_stream_open(tokenizer_stream **out, const tokenizer *t, unsigned flags);
/* Room for pieces of n bytes: pushing tokens that are not longer allocates nothing. */
mn_status tokenizer_stream_reserve(tokenizer_stream *stream, size_t n);
mn_status tokenizer_stream_push(tokenizer_stream *stream, int32_t id, bytes *out);
mn_status tokenizer_stream_finish(tokenizer_stream *stream, bytes *out); /* ready for the next sequence */
void tokenizer_stream_close(tokenizer_stream **stream);

/* Appends the bytes that token `id` adds to a text, as they are: perhaps parts of UTF-8 sequences. `first`: the text
 * begins with it (some decoders drop a space there). Nothing for special tokens and ids without a token. scratch: any
 * buffer of the caller's, reused. What decoding does across tokens (clean-up of spaces) is left out. */
mn_status tokenizer_token_bytes(const tokenizer *t, int32_t id, bool first, bytes *scratch, bytes *out);

/* ---- the vocabulary ---- */

size_t tokenizer_size(const tokenizer *t); /* ids are 0 .. size - 1; some may have no token */

/* The text of the token in the vocabulary ("Ġthe", "▁the", "<0x0A>"), zero-terminated, borrowed; NULL when the id has
 * none. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *n);
int32_t tokenizer_find(const tokenizer *t, const char *piece); /* -1: no such token */
bool tokenizer_is_special(const tokenizer *t, int32_t id);

typedef enum token_role {
    TOKEN_BOS,
    TOKEN_EOS,
    TOKEN_UNK,
    TOKEN_PAD,
    TOKEN_SEP,
    TOKEN_CLS,
    TOKEN_MASK,
    N_TOKEN_ROLES
} token_role;

extern const char *const token_role_names[N_TOKEN_ROLES]; /* "bos_token", ... as in tokenizer_config.json */

int32_t tokenizer_role(const tokenizer *t, token_role role);          /* -1: none */
const char *tokenizer_role_text(const tokenizer *t, token_role role); /* "<s>"; NULL: none. Borrowed. */

/* Ids after which an answer ends, according to the tokenizer's files: eos, for GGUF also eot and the usual end-of-turn
 * tokens. Borrowed. */
const int32_t *tokenizer_end_ids(const tokenizer *t, size_t *n);

/* The chat template of that name, or for NULL the default one, else the only one; NULL when there is none. Borrowed. */
const char *tokenizer_chat_template(const tokenizer *t, const char *name);
/* Appends the names of several templates of which none is the default: "a, b"; nothing in other cases. */
void tokenizer_put_template_names(const tokenizer *t, bytes *out);

/* One sentence for the user when the file leaves something out, so that ids may differ from those the model was trained
 * with; NULL when all is well. */
const char *tokenizer_warning(const tokenizer *t);

#endif
