/* JSON schemas while they are compiled: lists of schemas that must hold together.
 *
 * A value at some place must be valid under a list of schemas, its terms: one at first, more through allOf, $ref with
 * keywords beside it, a branch of anyOf, or properties that several terms describe. Lists with a $ref, and the list of
 * no terms (any value), become rules, so recursion is a call.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_SCHEMA_H
#define MN_CONSTRAINT_SCHEMA_H

#include "constraint/net.h"

enum {
    /* Keywords of a term that have been taken apart. */
    TERM_REF = 1,
    TERM_ALL = 2,
    TERM_ANY = 4,
    TERM_ONE = 8,
    TERM_NOT = 16,
    TERM_IF = 32,
    TERM_DEPENDENT = 64,
    /* A condition: it says which values are meant, and declares neither types nor members. */
    TERM_SIDE = 128,
};

typedef struct term {
    const json *schema; /* true, false or an object */
    unsigned done;      /* TERM_* */
} term;

/* A slice of schema_build.terms, which grows while slices of it are in use. */
typedef struct terms {
    size_t at, n;
} terms;

typedef struct constants {
    const json **values; /* owned; the values are borrowed */
    size_t n, capacity;
} constants;

/* What a keyword leaves to choose: with choice k, sides[k] as a condition and mains[k] hold besides the term. */
typedef struct ways {
    const json *sides, *mains; /* NULL: none */
    size_t n;
} ways;

/* Choices that were made of a schema, owned. */
typedef struct schema_made {
    const json_member *of; /* the schema's members */
    size_t n;
    unsigned bit; /* TERM_*: of which keyword */
    ways ways;
} schema_made;

typedef struct schema_rule {
    uint64_t hash;     /* of the key */
    size_t key, n_key; /* slice of schema_build.keys */
    uint32_t rule;
    char *place; /* owned; where it was met first */
} schema_rule;

/* A schema with an identifier of its own ($id), in which its references begin: the whole schema is the first one. */
typedef struct schema_resource {
    const json *schema;
    char *address; /* owned; absolute as far as the schema says, without a fragment */
} schema_resource;

typedef struct schema_anchor {
    const json *schema;
    const char *name;
    size_t resource;
} schema_anchor;

/* A $ref and the resource in which it stands. */
typedef struct schema_ref {
    const json *ref;
    size_t resource;
} schema_ref;

typedef struct schema_build {
    net *g;
    const json *root;
    term *terms;
    size_t n_terms, terms_capacity;
    term *keys;
    size_t n_keys, keys_capacity;
    schema_rule *rules;
    size_t n_rules, rules_capacity;
    schema_resource *resources;
    size_t n_resources, resources_capacity;
    schema_anchor *anchors;
    size_t n_anchors, anchors_capacity;
    schema_ref *refs; /* by address in memory; only where there are several resources */
    size_t n_refs, refs_capacity;
    schema_made *made;
    size_t n_made, made_capacity;
    void **blocks; /* what these choices consist of */
    size_t n_blocks, blocks_capacity;
    bytes place; /* "$.items[*].name", for messages */
    size_t work;
    int depth;
} schema_build;

enum {
    VALUE_NULL = 1,
    VALUE_BOOL = 2,
    VALUE_INT = 4,
    VALUE_REAL = 8,
    VALUE_STRING = 16,
    VALUE_ARRAY = 32,
    VALUE_OBJECT = 64
};
enum { VALUE_NUMBER = VALUE_INT | VALUE_REAL, VALUE_ANY = 127 };

bool schema_ok(const schema_build *b);
/* Keeps the first failure: "schema, PLACE: ...". */
void schema_fail(schema_build *b, mn_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Records why no value is valid here, and returns NET_FAIL. */
uint32_t schema_never(schema_build *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Counts work that grows faster than the schema; false when there was too much. */
bool schema_charge(schema_build *b, size_t steps);

static inline const json *schema_term(const schema_build *b, terms list, size_t i) {
    return b->terms[list.at + i].schema;
}

/* A new empty list at the end of b->terms, to which terms are pushed. */
terms schema_list(const schema_build *b);
void schema_push(schema_build *b, terms *list, const json *schema, unsigned done);

/* Lengths and counts: the strictest of all terms. *max is NET_MANY without one. */
void schema_counts(schema_build *b, terms list, const char *least, const char *most, uint32_t *min, uint32_t *max);

/* Fills resources, anchors and refs from b->root. */
void schema_index(schema_build *b);
void schema_index_clear(schema_build *b);
/* The schema that a $ref means, which is in the same document; NULL with a failure. */
const json *schema_target(schema_build *b, const json *ref);

/* A value under all terms. The list is at the end of b->terms and gone afterwards. */
uint32_t schema_value(schema_build *b, terms list, uint32_t next);
/* The same as a call of a rule, for values that occur in several places: nested copies would double at each level. */
uint32_t schema_shared_value(schema_build *b, terms list, uint32_t next);
/* Values of one kind, under terms that are neither $ref, allOf, anyOf nor oneOf; the list stays. */
uint32_t schema_object(schema_build *b, terms list, uint32_t next);
uint32_t schema_array(schema_build *b, terms list, uint32_t next);
uint32_t schema_string(schema_build *b, terms list, uint32_t next);
uint32_t schema_number(schema_build *b, terms list, bool whole, uint32_t next);
/* The values of term i's enum or const that the other terms allow too. */
uint32_t schema_constants(schema_build *b, terms list, size_t i, uint32_t next);
void schema_allowed(schema_build *b, terms list, size_t i, constants *out);

/* Whether the values under all terms are known one by one, as constants, booleans or null: then they are added to *out.
 * The list is at the end of b->terms and gone afterwards. */
bool schema_finite(schema_build *b, terms list, constants *out);
void constants_add(schema_build *b, constants *c, const json *value);

/* ---- conditions ---- */

/* The choices of a term's keyword, which it has: TERM_ANY, TERM_ONE, TERM_NOT or TERM_IF. TERM_DEPENDENT: all of mains
 * hold. */
ways schema_ways(schema_build *b, const json *schema, unsigned bit);
void schema_ways_clear(schema_build *b);
/* Whether a term from `from` on certainly excludes another one of the list. */
bool schema_clash(schema_build *b, terms list, size_t from);
/* The constants that a schema's "not" excludes one by one, which is not a choice then; NULL: none. */
const json *schema_excluded(const json *schema, size_t *n);
/* Those of all terms. kinds: 1 << JSON_*. */
void schema_gather_excluded(schema_build *b, terms list, unsigned kinds, constants *out);
/* Whether [] or {} is excluded, by kind; fails where another array or object is. */
bool schema_excludes_empty(schema_build *b, terms list, json_kind kind);
/* Whether this is the negation of "integer" for numbers, which is no choice either. */
bool schema_is_fraction(const json *schema);
/* Strings that are none of the texts. */
uint32_t schema_other_texts(schema_build *b, const constants *texts, uint32_t min, uint32_t max, uint32_t next);

/* Whether the schema has constants, all of its types. */
bool schema_fits(schema_build *b, const json *schema);
/* Whether the terms allow the constant, by types and constants alone. `values`: an enum that it is one of, or NULL. */
bool schema_allows(schema_build *b, terms list, const json *value, const json *values);

/* How many first items of an array have schemas of their own, and the schema of an item; NULL: none. */
size_t schema_prefix(const json *schema);
const json *schema_item_of(schema_build *b, const json *schema, size_t index);

/* Item `index` of an array, or (any) every one from there on. */
uint32_t schema_item(schema_build *b, terms list, size_t index, bool any, uint32_t next);
/* The constraints of all terms on it, at the end of b->terms. */
terms schema_item_terms(schema_build *b, terms list, size_t index);

/* Whether a term has "uniqueItems". */
bool schema_is_unique(schema_build *b, terms list);
/* An array of different items. From item `prefix` on all are alike. */
uint32_t schema_unique_array(schema_build *b, terms list, size_t prefix, uint32_t min, uint32_t max, uint32_t next);

/* The strings that a schema allows, quotes included, as nodes of another network. */
uint32_t schema_strings(schema_build *b, net *g, const json *schema, uint32_t next);

/* Whether the member of a schema restricts no value. */
bool schema_is_annotation(const json_member *m);
/* False for true and for objects without keywords that restrict the value. Fails for unknown keywords. */
bool schema_restricts(schema_build *b, const json *schema);
/* The bits of "type", VALUE_ANY without one. Fails for unknown names. */
unsigned schema_types(schema_build *b, const json *schema);
/* Numbers are compared as exact decimals. */
bool schema_equal(schema_build *b, const json *x, const json *y);
/* Whether no value can be valid under both, judged by types, constants and required members of objects. */
bool schema_apart(schema_build *b, const json *x, const json *y, int depth);

#endif
