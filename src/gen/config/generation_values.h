/* The kinds of values that fields of a generation config have: how each is read from JSON, written as JSON and emptied.
 * A kind is a row of data; no caller distinguishes them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CONFIG_GENERATION_VALUES_H
#define MN_GEN_CONFIG_GENERATION_VALUES_H

#include "base/json.h"

typedef struct id_list {
    int32_t *ids; /* owned */
    size_t n;
} id_list;

typedef struct id_lists {
    id_list *lists; /* owned; none of them is empty */
    size_t n;
} id_lists;

/* What a text must contain: one of the forms. */
typedef struct phrase {
    id_lists forms; /* one or more */
    bool is_choice; /* written as a list of forms, not as the form */
} phrase;

typedef struct phrase_list {
    phrase *items; /* owned */
    size_t n;
} phrase_list;

typedef struct text_list {
    char **texts; /* owned, zero-terminated */
    size_t n;
} text_list;

/* `bias` is added to the score of the last id where the text ends with the ids before it. */
typedef struct id_bias {
    id_list ids; /* one or more */
    double bias; /* -infinity: forbidden */
} id_bias;

typedef struct id_biases {
    id_bias *items; /* owned */
    size_t n;
} id_biases;

/* From `start` new tokens on the score s of an end token grows by |s| (factor^k - 1), k tokens later. */
typedef struct length_decay {
    bool is_set;
    int64_t start;
    double factor;
} length_decay;

typedef enum layer_side { LAYERS_NONE, LAYERS_LOW, LAYERS_HIGH, LAYERS_LISTED } layer_side;

typedef struct layer_choice {
    layer_side side;
    id_list layers; /* LAYERS_LISTED */
} layer_choice;

/* Values of the fields of kind CHOICE, in the order of their `allowed` texts. */
typedef enum early_stop { EARLY_STOP_OFF, EARLY_STOP_ON, EARLY_STOP_NEVER } early_stop;
typedef enum draft_schedule { DRAFT_CONSTANT, DRAFT_HEURISTIC, DRAFT_HEURISTIC_TRANSIENT } draft_schedule;
typedef enum watermark_seeding { WATERMARK_LEFT_HASH, WATERMARK_SELF_HASH } watermark_seeding;

/* Kirchenbauer et al. 2023, "A watermark for large language models". */
typedef struct watermark_config {
    bool is_set;
    double greenlist_ratio; /* share of the vocabulary that is green */
    double bias;            /* added to the scores of green tokens */
    int64_t hashing_key;
    int64_t seeding_scheme; /* watermark_seeding */
    int64_t context_width;  /* tokens that seed the green list */
} watermark_config;

typedef enum field_kind {
    FIELD_INT,       /* int64_t */
    FIELD_REAL,      /* double */
    FIELD_BOOL,      /* bool */
    FIELD_CHOICE,    /* int64_t: which of the JSON texts in `allowed`, separated by | */
    FIELD_TEXT,      /* char *, NULL: none */
    FIELD_GRAMMAR,   /* the same */
    FIELD_SCHEMA,    /* char *: the text of a JSON object or boolean, NULL: none */
    FIELD_OPTIONS,   /* char *: "key=value,..." or the text of a JSON object, NULL: none */
    FIELD_IDS,       /* id_list */
    FIELD_TEXTS,     /* text_list */
    FIELD_ID_LISTS,  /* id_lists */
    FIELD_PHRASES,   /* phrase_list */
    FIELD_BIASES,    /* id_biases, written as [[ids, bias], ...] */
    FIELD_BIAS_MAP,  /* id_biases of one id each, written as {"id": bias, ...} */
    FIELD_DECAY,     /* length_decay, written as [start, factor] */
    FIELD_LAYERS,    /* layer_choice */
    FIELD_WATERMARK, /* watermark_config */
} field_kind;

/* The kinds' names in mn_generation_field. */
#define FIELD_NAME_INT       "integer"
#define FIELD_NAME_REAL      "number"
#define FIELD_NAME_BOOL      "boolean"
#define FIELD_NAME_CHOICE    "choice"
#define FIELD_NAME_TEXT      "string"
#define FIELD_NAME_GRAMMAR   "grammar"
#define FIELD_NAME_SCHEMA    "schema"
#define FIELD_NAME_OPTIONS   "options"
#define FIELD_NAME_IDS       "integers"
#define FIELD_NAME_TEXTS     "strings"
#define FIELD_NAME_ID_LISTS  "lists of integers"
#define FIELD_NAME_PHRASES   "lists of integers"
#define FIELD_NAME_BIASES    "biases"
#define FIELD_NAME_BIAS_MAP  "object"
#define FIELD_NAME_DECAY     "pair"
#define FIELD_NAME_LAYERS    "layers"
#define FIELD_NAME_WATERMARK "object"

/* One field: its place in its struct and its allowed values. */
typedef struct field_row {
    const char *name;
    field_kind kind;
    size_t offset;
    double lo, hi; /* numbers and ids: smallest and largest value; texts: how many */
    const char *allowed;
    int none; /* numbers, booleans and choices: what null means; -1 there is written as null */
} field_row;

bool id_list_has(const id_list *list, int32_t id);

/* Reads `value` into the field of `object`, null included; on failure the field is as it was: MN_E_ARG names `what`,
 * the field, the value and what is allowed, MN_E_NOMEM. */
mn_status field_set(const field_row *row, void *object, const json *value, const char *what);

/* The value as JSON text that field_set reads back equal. */
void field_put(const field_row *row, const void *object, bytes *out);

/* Frees what the field holds and makes it null. */
void field_clear(const field_row *row, void *object);

#endif
