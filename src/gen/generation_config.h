/* Transformers' GenerationConfig: one table of fields makes the setter, the getter, the reader of
 * generation_config.json and the help. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_GENERATION_CONFIG_H
#define MN_GEN_GENERATION_CONFIG_H

#include "base/json.h"

typedef struct id_list {
    int32_t *ids; /* owned */
    size_t n;
} id_list;

typedef struct text_list {
    char **texts; /* owned, zero-terminated */
    size_t n;
} text_list;

struct mn_generation_config {
    int64_t max_new_tokens; /* -1: not set */
    int64_t min_new_tokens;
    int64_t max_length; /* prompt and new tokens together; -1: not set */
    int64_t min_length;
    double max_time; /* seconds; 0: no limit */
    bool do_sample;
    double temperature;
    int64_t top_k;                      /* 0: off */
    double top_p;                       /* 1: off */
    double min_p;                       /* 0: off */
    double repetition_penalty;          /* 1: off */
    id_list eos_token_id;               /* empty: nothing ends a text but its length */
    bool ignore_eos;                    /* the end token may be chosen and does not stop */
    int64_t bos_token_id, pad_token_id; /* -1: none */
    text_list stop_strings;
    int64_t seed; /* -1: a new one each time */
};

bool id_list_has(const id_list *list, int32_t id);

/* As the public functions of the same names. */
mn_status generation_config_set(mn_generation_config *config, const char *name, const json *value,
                                const char *what);
/* skip_unknown: names that are no field say nothing (checkpoints carry all kinds), else they are refused. */
mn_status generation_config_load(mn_generation_config *config, const json *object, bool skip_unknown,
                                 const char *what);
mn_status generation_config_copy(mn_generation_config **out, const mn_generation_config *config);

#endif
