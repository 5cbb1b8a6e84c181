/* Decoding as a chain of streaming stages: their output is the same for a whole sequence and for one token at a time.
 *
 * Stages see whole tokens until one of them joins tokens (byte level, fuse); from there on they see a stream of text.
 * The output of the chain is valid UTF-8 in whole sequences for any ids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_DETOKENIZE_H
#define MN_TEXT_TOKENIZER_DETOKENIZE_H

#include "text/tokenizer/vocab.h"

typedef enum dec_kind {
    DEC_BYTE_LEVEL,    /* letters to bytes, token by token; invalid UTF-8 becomes U+FFFD as Python's
                          errors="replace" */
    DEC_BYTES,         /* "<0xHH>" tokens to bytes; invalid UTF-8 likewise */
    DEC_BYTE_FALLBACK, /* the same as tokenizer.json means it: a run of such tokens that is no valid UTF-8 as
                          a whole becomes one U+FFFD for each byte, so a run is held back until it ends */
    DEC_REPLACE,       /* `from` by `content`, in each token, or across tokens once they are joined */
    DEC_STRIP,         /* up to `start` characters `content` at the front and `stop` at the end */
    DEC_METASPACE,     /* `from` (a mark) to spaces; dropped in the first token if `start` is not 0 */
    DEC_JOIN,          /* a space between tokens: the rule when there is no decoder */
} dec_kind;

/* Tokens that are `added` are text already: neither letters nor "<0xHH>". */
typedef struct dec_stage {
    dec_kind kind;
    bool joined;         /* works on a stream of text, no longer on tokens */
    bytes from, content; /* owned */
    uint32_t start, stop;
} dec_stage;

enum {
    DEC_STAGES = 32,
    DEC_STRIP_MOST = 1024,    /* characters stripped at either end: so many are held back */
    DEC_REPLACE_BYTES = 1024, /* of what is replaced, and of what replaces it */
    /* Replacements may lengthen a text by so many bytes for each byte of its tokens, and so many besides; a token alone
     * by so many besides. */
    DEC_GROWTH = 16,
    DEC_GROWTH_BASE = 1 << 16,
    DEC_GROWTH_TOKEN = 1 << 10,
};

typedef struct detokenizer {
    dec_stage stages[DEC_STAGES];
    size_t n;
    bool joined; /* the next stage added will work on a stream */
} detokenizer;

/* Appends a stage and takes over what it owns (on failure too); MN_E_FORMAT when there are too many or a replacement is
 * too long. */
mn_status detokenizer_add(detokenizer *list, dec_stage *stage, const char *what);
/* The ten replacements by which Transformers cleans up spaces before punctuation and English short forms. */
mn_status detokenizer_add_clean_up(detokenizer *list, const char *what);
void detokenizer_clear(detokenizer *list);

/* Appends the bytes that one token adds to a text, whole sequences or not; `first`: it begins the text. What stages do
 * across the border of two tokens (only a clean-up of spaces does anything there) is left out. MN_E_NOMEM; MN_E_FORMAT
 * when the stages lengthen it beyond the limit. */
mn_status detokenizer_token(const detokenizer *list, const char *token, size_t n, bool added, bool first,
                            bytes *scratch, bytes *out);

typedef struct dec_state {
    bytes held;     /* not emitted yet */
    bytes scratch;  /* the piece being emitted */
    uint32_t count; /* characters stripped; tokens seen */
} dec_state;

/* One decoding of a sequence of tokens. Zero it (but for the pointers and `whole`) before the first token. */
typedef struct dec_run {
    const detokenizer *list;
    bytes *out;
    bool whole; /* only the text at the end is read: stages that work on a stream may get many tokens at a time */
    size_t pushed, grown; /* bytes of the tokens so far; bytes by which replacements lengthened them */
    bool too_long;        /* beyond the limit: nothing more is emitted */
    bytes batch;          /* of a whole decoding: text on its way to the first stage that works on a stream */
    dec_state states[DEC_STAGES];
} dec_run;

mn_status dec_run_reserve(dec_run *run, size_t n); /* room for n bytes in every stage */
void dec_run_push(dec_run *run, const char *token, size_t n, bool added);
void dec_run_finish(dec_run *run); /* emits what was held back; the run can be used again */
void dec_run_clear(dec_run *run);
/* MN_E_NOMEM when any step found no memory; MN_E_FORMAT when the text became too long. */
mn_status dec_run_status(const dec_run *run);

#endif
