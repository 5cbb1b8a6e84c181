/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/tokens.h"

#include <string.h>

#include "base/sort.h"

/* The bytes of all tokens, in the middle of a text and at its beginning. */
static mn_status read_texts(token_tree *tree, const tokenizer *text, bytes *scratch) {
    bool differs = false;
    for (int pass = 0; pass < 2; pass++) {
        token_text *texts = pass ? tree->first : tree->text;
        for (size_t id = 0; id < tree->vocab; id++) {
            size_t at = tree->texts.n;
            MN_TRY(tokenizer_token_bytes(text, (int32_t)id, pass == 1, scratch, &tree->texts));
            if (tree->texts.n > UINT32_MAX) MN_FAIL(MN_E_UNSUPPORTED, "the tokens are longer than 4 GiB together");
            texts[id] = (token_text){(uint32_t)at, (uint32_t)(tree->texts.n - at)};
            if (texts[id].n > TOKEN_BYTES) texts[id].n = 0;
            if (!pass) continue;
            const token_text *usual = &tree->text[id];
            if (usual->n == texts[id].n && memcmp(tree->texts.data + usual->at, tree->texts.data + at, usual->n) == 0) {
                texts[id] = *usual;
                tree->texts.n = at;
            } else {
                differs = true;
            }
        }
    }
    if (!differs) {
        mem_free(tree->first);
        tree->first = NULL;
    }
    return MN_OK;
}

typedef struct entry {
    const char *text;
    uint32_t n, id;
} entry;

static int order_of_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (order == 0) order = (x->n > y->n) - (x->n < y->n);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* Adds a token whose bytes come after all those added; open[d] is the element of depth d + 1 on the way to the last
 * one. */
static mn_status add_token(token_tree *tree, const entry *token, const entry *before, uint32_t *open, size_t *n_open) {
    size_t shared = 0;
    while (before && shared < before->n && shared < token->n && before->text[shared] == token->text[shared]) shared++;
    for (size_t d = shared; d < *n_open; d++) tree->nodes[open[d]].skip = (uint32_t)tree->n;
    for (size_t d = shared; d < token->n; d++) {
        MN_TRY(mem_grow(&tree->nodes, &tree->capacity, tree->n + 2, sizeof *tree->nodes)); /* one closes the array */
        open[d] = (uint32_t)tree->n;
        tree->nodes[tree->n++] =
            (token_node){.token = (uint32_t)tree->n_order, .depth = (uint16_t)(d + 1), .byte = (uint8_t)token->text[d]};
    }
    *n_open = token->n;
    tree->order[tree->n_order++] = token->id;
    return MN_OK;
}

static mn_status build_tree(token_tree *tree, entry *entries, const void **sorted) {
    uint32_t open[TOKEN_BYTES];
    size_t n = 0, n_open = 0;
    for (size_t id = 0; id < tree->vocab; id++) {
        if (tree->text[id].n == 0) continue;
        entries[n] = (entry){tree->texts.data + tree->text[id].at, tree->text[id].n, (uint32_t)id};
        sorted[n] = &entries[n];
        n++;
    }
    MN_TRY(sort_pointers(sorted, n, order_of_entries));
    for (size_t i = 0; i < n; i++) MN_TRY(add_token(tree, sorted[i], i ? sorted[i - 1] : NULL, open, &n_open));
    MN_TRY(mem_grow(&tree->nodes, &tree->capacity, tree->n + 1, sizeof *tree->nodes));
    for (size_t d = 0; d < n_open; d++) tree->nodes[open[d]].skip = (uint32_t)tree->n;
    tree->nodes[tree->n] = (token_node){.token = (uint32_t)tree->n_order};
    return MN_OK;
}

static void clear_tree(void *made) {
    token_tree *tree = made;
    bytes_clear(&tree->texts);
    mem_free(tree->text);
    mem_free(tree->first);
    mem_free(tree->nodes);
    mem_free(tree->order);
    mem_free(tree);
}

static mn_status fill_tree(token_tree *tree, const tokenizer *text) {
    const size_t vocab = tree->vocab;
    tree->text = mem_alloc(vocab, sizeof *tree->text);
    tree->first = mem_alloc(vocab, sizeof *tree->first);
    tree->order = mem_alloc_raw(vocab, sizeof *tree->order);
    if (!tree->text || !tree->first || !tree->order) return MN_E_NOMEM;
    bytes scratch = {0};
    mn_status status = read_texts(tree, text, &scratch);
    bytes_clear(&scratch);
    MN_TRY(status);
    entry *entries = mem_alloc_raw(vocab, sizeof *entries);
    const void **sorted = mem_alloc_raw(vocab, sizeof *sorted);
    status = entries && sorted ? build_tree(tree, entries, sorted) : MN_E_NOMEM;
    mem_free(entries);
    mem_free(sorted);
    return status;
}

static mn_status make_tree(void **made, const tokenizer *text) {
    token_tree *tree = mem_alloc(1, sizeof *tree);
    if (!tree) return MN_E_NOMEM;
    tree->vocab = tokenizer_size(text);
    mn_status status = fill_tree(tree, text);
    if (status == MN_OK) {
        *made = tree;
    } else {
        clear_tree(tree);
    }
    return status;
}

mn_status token_tree_of(const token_tree **tree, const tokenizer *text) {
    const void *derived;
    MN_TRY(tokenizer_derived(&derived, text, make_tree, clear_tree));
    *tree = derived;
    return MN_OK;
}
