/* Added tokens: the texts that are cut out before anything else, leftmost and longest first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_ADDED_H
#define MN_TEXT_ADDED_H

#include "text/unicode.h"

enum {
    ADDED_SINGLE_WORD = 1, /* only where no word character touches it */
    ADDED_LSTRIP = 2,      /* takes the white space before it along */
    ADDED_RSTRIP = 4,      /* and behind it */
    ADDED_NORMALIZED = 8,  /* looked for in the normalised text */
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

/* Adds a text; one that is there already gets the new id and flags. MN_E_FORMAT for an empty or overlong one.
 */
mn_status added_set_put(added_set *set, const char *text, size_t n, int32_t id, unsigned flags,
                        const char *what);
void added_set_clear(added_set *set);

typedef struct added_match {
    size_t start, end; /* with the white space that it takes along */
    int32_t id;        /* -1: none */
} added_match;

/* The next token in text[*from..n); *from moves behind it. `floor` is where the previous one ended. */
added_match added_set_find(const added_set *set, const unicode_table *classes, const char *text, size_t n,
                           size_t *from, size_t floor, bool allow_special);

#endif
