/* What every token of a vocabulary appends to a text, and a trie of these bytes.
 *
 * The tree lies in one array in depth-first order: the next element continues the walk, `skip` leaves out a whole
 * branch. It is computed once for each tokenizer and kept with it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_TOKENS_H
#define MN_CONSTRAINT_TOKENS_H

#include "text/tokenizer/tokenizer.h"

enum { TOKEN_BYTES = 1024 }; /* longer tokens are never allowed */

typedef struct token_text {
    uint32_t at, n; /* slice of texts; n is 0 for tokens that are never allowed as text */
} token_text;

typedef struct token_node {
    uint32_t skip;  /* the first element that is not below this one */
    uint32_t token; /* its tokens are order[token] to order[next element's token - 1] */
    uint16_t depth; /* bytes from the root, at least 1 */
    uint8_t byte;
} token_node;

typedef struct token_tree {
    bytes texts;
    token_text *text;  /* [vocab] inside a text; vocab: of the tokenizer */
    token_text *first; /* [vocab] at the beginning of one; NULL: the same */
    token_node *nodes; /* [n + 1], the last one closes the lists of tokens */
    size_t n, capacity;
    uint32_t *order; /* ids by their bytes */
    size_t n_order, vocab;
} token_tree;

/* The tree of a tokenizer, which must stay open while it is used. */
mn_status token_tree_of(const token_tree **tree, const tokenizer *text);

static inline token_text token_tree_text(const token_tree *tree, size_t id, bool first) {
    if (id >= tree->vocab) return (token_text){0};
    return (first && tree->first ? tree->first : tree->text)[id];
}

#endif
