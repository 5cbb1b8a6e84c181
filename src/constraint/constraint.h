/* Structured output: which tokens may come next so that the whole answer matches a regular expression or a grammar, or
 * is a JSON text that a JSON schema accepts.
 *
 * Each is compiled to a network of byte ranges and calls (net.h), which is run as a pushdown automaton whose states
 * are made when a text first reaches them (run.h). The token mask of a state is computed by running a trie of all
 * tokens from it (tokens.h). Every state that is reached can be completed to a whole answer. docs/constraints.md lists
 * what is supported.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_CONSTRAINT_H
#define MN_CONSTRAINT_CONSTRAINT_H

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

typedef struct constraint constraint;

/* The whole answer matches `pattern` (UTF-8), as if it stood between ^ and $. `text` is only needed during the call;
 * `vocab` is the number of logits, which may be more or fewer than the tokenizer's ids. end_ids: at least one, each
 * below `vocab`; an end id is never taken as text. MN_E_ARG: a pattern that is none, matches nothing, or is too large;
 * MN_E_UNSUPPORTED: a construct that is not a regular language (the message names it and its place); MN_E_NOMEM. */
mn_status constraint_open_regex(constraint **out, const char *pattern, size_t n, const tokenizer *text,
                                const int32_t *end_ids, size_t n_end, size_t vocab);

/* The whole answer is a text of the grammar (GBNF, UTF-8), from its rule `root`. As above; failures name the line and
 * the column. */
mn_status constraint_open_grammar(constraint **out, const char *grammar, size_t n, const tokenizer *text,
                                  const int32_t *end_ids, size_t n_end, size_t vocab);

/* The answer is a JSON text valid under `schema`, which is only needed during the call; `true` and {} stand for any
 * value. MN_E_ARG: a schema that is none, cannot be met, or is too large; MN_E_UNSUPPORTED: a keyword that is not
 * understood. */
mn_status constraint_open_schema(constraint **out, const json *schema, const tokenizer *text, const int32_t *end_ids,
                                 size_t n_end, size_t vocab);

/* *mask: (vocab + 63) / 64 words; bit i % 64 of word i / 64 is set when token i may come after the n_new tokens that
 * were generated so far. End ids are allowed exactly where the text may end, and after an end id nothing but end ids.
 * At least one bit is set. The mask is owned by c and valid until the next call. A function of the ids alone: calls may
 * come in any order, for any rows. MN_E_ARG: the ids themselves break the constraint (a removed token was chosen);
 * MN_E_UNSUPPORTED: no token of this vocabulary fits, or the text has too many parses at once; MN_E_NOMEM. c is
 * usable after each. */
mn_status constraint_allow(constraint *c, const int32_t *new_ids, size_t n_new, const uint64_t **mask);

/* The same into the caller's mask [(vocab + 63) / 64], for rows that share c and choose on several threads: one mask is
 * computed at a time. Not together with constraint_allow. */
mn_status constraint_mask(constraint *c, const int32_t *new_ids, size_t n_new, uint64_t *mask);

void constraint_close(constraint **c);

/* What c holds now, for tests and measurements. */
typedef struct constraint_size {
    size_t nodes;  /* of the network */
    size_t states; /* made and not forgotten */
    size_t bytes;  /* states, their transitions, stacks, masks, remembered prefixes; without the token tree */
    size_t masks;  /* computed since the opening; calls that found theirs are not counted */
} constraint_size;

constraint_size constraint_measure(const constraint *c);

#endif
