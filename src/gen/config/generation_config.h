/* Transformers' GenerationConfig: one table of fields makes the setter, the getter, the reader of
 * generation_config.json and the help.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CONFIG_GENERATION_CONFIG_H
#define MN_GEN_CONFIG_GENERATION_CONFIG_H

#include "gen/config/generation_values.h"

/* A value of a checkpoint's file that its field did not take. */
typedef struct wrong_value {
    const char *field; /* its name in the table of fields */
    bool is_error;     /* where the field has an effect; else the value means nothing, as in Transformers */
    char *text;        /* of an error: the sentence; else field and value, "top_p 5"; owned */
} wrong_value;

struct mn_generation_config {
    /* Length. */
    int64_t max_new_tokens; /* -1: not set */
    int64_t min_new_tokens;
    int64_t max_length; /* prompt and new tokens together; -1: not set */
    int64_t min_length;
    double max_time; /* seconds; 0: no limit */
    text_list stop_strings;
    id_list eos_token_id;               /* empty: only the length ends a text */
    bool ignore_eos;                    /* the end token may be chosen and does not stop */
    int64_t bos_token_id, pad_token_id; /* -1: none */

    /* Decoding mode. */
    bool do_sample;
    int64_t num_beams, num_beam_groups, num_return_sequences;
    double diversity_penalty, length_penalty;
    int64_t early_stopping; /* early_stop */
    phrase_list force_words_ids;
    double penalty_alpha; /* above 0 with top_k above 1: contrastive search */
    layer_choice dola_layers;
    int64_t prompt_lookup_num_tokens; /* -1: off */
    int64_t max_matching_ngram_size;
    int64_t num_assistant_tokens, num_assistant_tokens_schedule; /* draft_schedule */
    double assistant_confidence_threshold;
    bool use_cache;
    char *cache_implementation, *cache_config; /* as in mn_cache_options; NULL: not set */
    int64_t seed;                              /* -1: a new one each time */

    /* Warpers, in sampling modes. */
    double temperature;
    int64_t top_k;                     /* 0: off */
    double top_p;                      /* 1: off */
    double min_p;                      /* 0: off */
    double typical_p;                  /* 1: off */
    double epsilon_cutoff, eta_cutoff; /* 0: off */

    /* Processors. */
    double guidance_scale; /* 1: off */
    id_biases sequence_bias, logit_bias;
    double encoder_repetition_penalty, repetition_penalty; /* 1: off */
    double presence_penalty, frequency_penalty;            /* 0: off */
    int64_t no_repeat_ngram_size, encoder_no_repeat_ngram_size;
    id_lists bad_words_ids;
    char *json_schema, *regex, *grammar; /* NULL: none */
    int64_t forced_bos_token_id;         /* -1: none */
    id_list forced_eos_token_id;
    bool remove_invalid_values, renormalize_logits;
    length_decay exponential_decay_length_penalty;
    id_list suppress_tokens, begin_suppress_tokens;
    watermark_config watermarking_config;

    uint64_t unused, unused_of_checkpoint; /* bit i: the program, a checkpoint gave field i of the known ones without
                                              effect */
    char *unknown;                         /* unknown names in a checkpoint's file: "a, b"; NULL: none */
    wrong_value *wrong;                    /* [n_wrong], owned; a value that replaces one takes it out */
    size_t n_wrong, wrong_capacity;
    uint64_t set_fields; /* bit i: field i of the table was set by the program, not by a checkpoint or a default */
};

/* The name of the field that constrains the text, the first one that is set; NULL: none. */
static inline const char *generation_config_constraint(const mn_generation_config *config) {
    return config->json_schema ? "json_schema" : config->regex ? "regex" : config->grammar ? "grammar" : NULL;
}

/* As the public functions of the same names, but the field does not count as set. */
mn_status generation_config_set(mn_generation_config *config, const char *name, const json *value, const char *what);
/* is_checkpoint: unknown names are remembered (checkpoints have many), else refused; cache settings and values that a
 * field cannot take are reported when they are used, else at once. An object that names another cache drops the
 * settings of the previous one. */
mn_status generation_config_load(mn_generation_config *config, const json *object, bool is_checkpoint,
                                 const char *what);
mn_status generation_config_copy(mn_generation_config **out, const mn_generation_config *config);

/* Whether the program set the field itself; name must be a field's. */
bool generation_config_is_set(const mn_generation_config *config, const char *name);

/* Appends a line for each field that the program gave and that has no effect here, and to of_checkpoint the names of
 * those that a checkpoint gave: "a, b". options: generation options that replace such fields. */
void generation_config_warn_unused(const mn_generation_config *config, const mn_generate_options *options,
                                   bytes *of_checkpoint, bytes *lines);

#endif
