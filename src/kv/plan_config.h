/* The configuration text of a cache, key=value,... or a JSON object: names and ranges of its keys, what was
 * said. What the values mean together is plan.c's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PLAN_CONFIG_H
#define MN_KV_PLAN_CONFIG_H

#include <stdbool.h>

#include "base/mem.h"

typedef enum config_key {
    CONFIG_MAX_CACHE_LEN,
    CONFIG_PAGE_TOKENS,
    CONFIG_PREFILL_CHUNK,
    CONFIG_BACKEND,
    CONFIG_NBITS,
    CONFIG_KEY_NBITS,
    CONFIG_VALUE_NBITS,
    CONFIG_Q_GROUP_SIZE,
    CONFIG_RESIDUAL_LENGTH,
    CONFIG_AXIS_KEY,
    CONFIG_AXIS_VALUE,
    CONFIG_FIRST_EXACT,
    CONFIG_LAYERS,
    CONFIG_WINDOW_LENGTH,
    CONFIG_NUM_SINK_TOKENS,
    CONFIG_HOME,
    CONFIG_PATH,
    CONFIG_COMPUTE_DTYPE,
    CONFIG_DEVICE,
    CONFIG_IMPLEMENTATION,
    N_CONFIG_KEYS
} config_key;

enum { CONFIG_VALUE = 512 }; /* bytes of a value with its terminating zero */

/* What a strategy does; a set. A key is of use where the cache has one of its traits. */
typedef enum kv_trait {
    KV_TRAIT_NATURAL = 1,  /* the model's own windows and states */
    KV_TRAIT_GROWS = 2,    /* page by page, and says so */
    KV_TRAIT_EMPTIES = 4,  /* keeps nothing from step to step */
    KV_TRAIT_RESERVES = 8, /* all of max_cache_len is allocated at once and is the limit */
    KV_TRAIT_CODES = 16,   /* tokens are sealed */
    KV_TRAIT_FAR = 32,     /* full pages rest in the far home */
    KV_TRAIT_WINDOW = 64,  /* only the newest tokens are kept */
    KV_TRAIT_SINKS = 128,  /* the first ones and the newest */
} kv_trait;

typedef struct config_row {
    const char *name;
    int64_t lo, hi; /* of a number; both 0: a text */
    const char
        *choices;    /* of a text: "memory, file", any case; their numbers are 0, 1, ...; NULL: any text */
    unsigned traits; /* that want the key; 0: every cache */
    const char *allowed; /* for messages and help */
    const char *standard;
    const char *help;
} config_row;

extern const config_row config_rows[N_CONFIG_KEYS];

typedef struct kv_config {
    bool is_said[N_CONFIG_KEYS];
    int64_t numbers[N_CONFIG_KEYS];          /* of numbers and choices */
    char texts[N_CONFIG_KEYS][CONFIG_VALUE]; /* of texts */
} kv_config;

/* Reads text (NULL or "": nothing is said). In a list a comma ends a value where a `word=` follows it. Names of keys may have
 * dashes for underscores, and sliding_window is window_length. MN_E_ARG names the key, the value and what is allowed, the nearest
 * name of an unknown key. */
mn_status kv_config_read(kv_config *out, const char *text);

/* Appends `text`, a list or an object, with one key more; the value is a number or a word. MN_E_NOMEM. */
mn_status kv_config_add(bytes *out, const char *text, const char *key, const char *value);

/* Appends one line for each key that is taken and changes nothing. MN_E_NOMEM. */
mn_status kv_config_warn(const kv_config *config, bytes *lines);

/* What is said as a JSON object that reads as the same. */
void kv_config_put(bytes *out, const kv_config *config);

#endif
