/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search.h"

const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options) {
    (void)options;
    if (config->num_beams == 1) return &search_sample;
    return config->num_beam_groups > 1 || config->force_words_ids.n ? &search_group : &search_beam;
}

mn_status search_open_processors(processors **out, const search_setup *setup) {
    const mn_generate_options *options = setup->options;
    processor_setup ours = {
        .config = setup->config,
        .vocab = (size_t)setup->session->model->config.vocab_size,
        .row = setup->row,
        .prompt = setup->prompt,
        .n_prompt = setup->n_prompt,
        .max_length = (int64_t)(setup->n_prompt + setup->max_new),
        .process = options->process,
        .process_user = options->user,
        .prefix_allowed = options->prefix_allowed,
        .prefix_user = options->user,
    };
    return processors_open(out, &ours);
}
