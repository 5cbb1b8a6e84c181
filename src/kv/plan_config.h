/* The configuration text of a cache, key=value,... or a JSON object: names and ranges of its keys, and the values that
 * were set. plan.c interprets the values.
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

enum {
    CONFIG_VALUE = 512, /* bytes of a value with its terminating zero */
    N_CONFIG_TEXTS = 4, /* keys whose value is any text */
};

/* Traits of a strategy; a set. A key has an effect where the cache has one of its traits. */
typedef enum kv_trait {
    KV_TRAIT_NATURAL = 1,      /* the model's own windows and states */
    KV_TRAIT_GROWS = 2,        /* page by page */
    KV_TRAIT_EMPTIES = 4,      /* keeps nothing from step to step */
    KV_TRAIT_PREALLOCATES = 8, /* all of max_cache_len is allocated at once and is the limit */
    KV_TRAIT_QUANTIZED = 16,   /* tokens are quantized */
    KV_TRAIT_OFFLOADED = 32,   /* full pages are offloaded */
    KV_TRAIT_WINDOW = 64,      /* only the newest tokens are kept */
    KV_TRAIT_SINKS = 128,      /* the first ones and the newest */
    KV_TRAIT_WINDOWS = KV_TRAIT_WINDOW | KV_TRAIT_SINKS,
} kv_trait;

typedef struct config_row {
    const char *name;
    int64_t lo, hi;      /* of a number; both 0: a text */
    const char *choices; /* of a text: "memory, file", any case; their numbers are 0, 1, ...; NULL: any text */
    unsigned traits;     /* that use the key; 0: every cache */
    const char *allowed; /* for messages and help */
    const char *standard;
    const char *help;
} config_row;

extern const config_row config_rows[N_CONFIG_KEYS];

typedef struct kv_config {
    bool is_set[N_CONFIG_KEYS];
    int64_t numbers[N_CONFIG_KEYS];           /* of numbers and choices */
    char texts[N_CONFIG_TEXTS][CONFIG_VALUE]; /* of texts, in the order of the keys */
} kv_config;

/* Reads text (NULL or "": nothing is set). In a list a comma ends a value where a `word=` follows it. Names of keys
 * may have dashes for underscores, and sliding_window is window_length. MN_E_ARG names the key, the value and what is
 * allowed, the nearest name of an unknown key. */
mn_status kv_config_read(kv_config *out, const char *text);

/* The value of a key of any text; "" where it is not set. */
const char *kv_config_text(const kv_config *config, config_key key);

/* Whether the same keys are set, to the same values. */
bool kv_config_equal(const kv_config *a, const kv_config *b);

/* Appends one line for each key that is accepted and has no effect. MN_E_NOMEM. */
mn_status kv_config_warn(const kv_config *config, bytes *lines);

/* Writes the values that are set as a JSON object that reads back equal. */
void kv_config_put(bytes *out, const kv_config *config);

#endif
