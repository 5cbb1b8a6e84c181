/* Added tokens: they are matched before everything else, leftmost and longest first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_ADDED_H
#define MN_TEXT_TOKENIZER_ADDED_H

#include "text/tokenizer/unicode.h"

enum {
    ADDED_SINGLE_WORD = 1, /* only where no word character is next to it */
    ADDED_LSTRIP = 2,      /* with the white space before it */
    ADDED_RSTRIP = 4,      /* and after it */
    ADDED_NORMALIZED = 8,  /* matched in the normalized text */
    ADDED_SPECIAL = 16,    /* only where the caller allows special tokens in text */
    ADDED_MAX_BYTES = 1024,
};

typedef struct added_node {
    uint32_t child, sibling; /* 0: none */
    int32_t id;              /* of the text that ends here, or -1 */
    unsigned char byte;
    uint8_t flags;
} added_node;

/* A trie over the texts; nodes[0] is the root. */
typedef struct added_set {
    added_node *nodes;
    size_t n, capacity;
    bool starts[256]; /* first bytes */
} added_set;

/* Adds a text; an existing one gets the new id and flags. MN_E_FORMAT for an empty or overlong one. */
mn_status added_set_put(added_set *set, const char *text, size_t n, int32_t id, unsigned flags, const char *what);
void added_set_clear(added_set *set);

typedef struct added_match {
    size_t start, end; /* with the white space that belongs to it */
    int32_t id;        /* -1: none */
} added_match;

/* The next token in text[*from..n); *from moves behind it. `floor` is where the previous one ended. */
added_match added_set_find(const added_set *set, const unicode_table *classes, const char *text, size_t n, size_t *from,
                           size_t floor, bool allow_special);

#endif
