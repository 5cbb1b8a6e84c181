/* Whether the settings of a generation fit together: which decoding mode they ask for, which contradict each other and
 * are refused, and which have no effect and why. The rules are those of Transformers 4.46, without limitations of its
 * implementation.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CONFIG_VALIDATION_H
#define MN_GEN_CONFIG_VALIDATION_H

#include "gen/config/generation_config.h"

typedef enum decoding_mode {
    DECODING_GREEDY,
    DECODING_SAMPLE,
    DECODING_CONTRASTIVE,
    DECODING_DOLA,          /* greedy or sampling */
    DECODING_ASSISTED,      /* greedy or sampling, drafts by a draft model */
    DECODING_PROMPT_LOOKUP, /* the same, drafts from the text itself */
    DECODING_BEAM,
    DECODING_BEAM_SAMPLE,
    DECODING_GROUP_BEAM,
    DECODING_CONSTRAINED_BEAM, /* force_words_ids */
} decoding_mode;

/* For messages: "beam search". */
const char *decoding_mode_name(decoding_mode mode);

/* The mode, also of contradictory settings. options: whether there is a draft model; NULL: none. */
decoding_mode decoding_mode_of(const mn_generation_config *config, const mn_generate_options *options);

/* MN_E_ARG with the first contradiction. */
mn_status validation_check(const mn_generation_config *config, const mn_generate_options *options);

/* Appends one line for each setting of the program that has no effect. MN_E_NOMEM. */
mn_status validation_warn(const mn_generation_config *config, const mn_generate_options *options, bytes *lines);

#endif
