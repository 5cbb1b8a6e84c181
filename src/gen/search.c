/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search.h"

static bool is_beams(const mn_generation_config *config, const mn_generate_options *options) {
    (void)options;
    return config->num_beams > 1 && config->num_beam_groups == 1 && !config->force_words_ids.n;
}

static bool is_groups(const mn_generation_config *config, const mn_generate_options *options) {
    (void)options;
    return config->num_beams > 1;
}

static bool is_assisted(const mn_generation_config *config, const mn_generate_options *options) {
    return options->assistant || config->prompt_lookup_num_tokens > 0;
}

static bool is_contrastive(const mn_generation_config *config, const mn_generate_options *options) {
    (void)options;
    return !config->do_sample && config->penalty_alpha > 0 && config->top_k > 1;
}

static bool is_other(const mn_generation_config *config, const mn_generate_options *options) {
    (void)config;
    (void)options;
    return true;
}

const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options) {
    static const struct {
        bool (*is_asked)(const mn_generation_config *config, const mn_generate_options *options);
        const search_kind *kind;
    } kinds[] = {
        /* the first that is asked for */
        {is_beams, &search_beam},        {is_groups, &search_group},
        {is_assisted, &search_assisted}, {is_contrastive, &search_contrastive},
        {is_other, &search_sample},
    };
    size_t i = 0;
    while (!kinds[i].is_asked(config, options)) i++;
    return kinds[i].kind;
}
