/* Normalizers: a list of rewriting steps applied to the text between added tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_NORMALIZE_H
#define MN_TEXT_TOKENIZER_NORMALIZE_H

#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

typedef enum norm_kind {
    NORM_FORM, /* a Unicode normalisation form */
    NORM_LOWERCASE,
    NORM_STRIP,         /* white space at the ends */
    NORM_STRIP_ACCENTS, /* all marks */
    NORM_PREPEND,       /* `content` in front of a text that is not empty */
    NORM_REPLACE,       /* every match of `pattern`, or of the literal `from`, by `content` */
} norm_kind;

typedef struct norm_step {
    norm_kind kind;
    unicode_form form;
    bool left, right;
    regex *pattern;      /* owned; NULL: literal */
    bytes from, content; /* owned */
} norm_step;

enum {
    NORM_STEPS = 32,
    /* All steps together may lengthen a text by so many bytes for each of its bytes, and so many besides. Form NFKC
     * makes 33 bytes of three at most. */
    NORM_GROWTH = 16,
    NORM_GROWTH_BASE = 1 << 16,
};

typedef struct normalizer {
    norm_step steps[NORM_STEPS];
    size_t n;
} normalizer;

/* Appends a step and takes over what it owns (on failure too); MN_E_FORMAT when there are too many. */
mn_status normalizer_add(normalizer *list, norm_step *step, const char *what);
void normalizer_clear(normalizer *list);

/* Scratch of one thread, for the parts of one text. Zero it but for n_text. */
typedef struct norm_state {
    size_t n_text; /* bytes of the whole text, by which output and work are limited */
    size_t grown;  /* by how much the steps have lengthened its parts */
    regex_state *regex;
    bytes buffer[2];
} norm_state;

void norm_state_clear(norm_state *state);

/* *out is the normalised text: `text` itself when there are no steps, else a buffer of `state` that lives until the
 * next call with it. MN_E_FORMAT when the steps lengthen the text beyond the limit, or a pattern is too costly. */
mn_status normalize(const normalizer *list, const unicode_table *classes, norm_state *state, const char *text, size_t n,
                    const char **out, size_t *n_out);

#endif
