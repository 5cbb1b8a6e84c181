/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search.h"

const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options) {
    (void)config;
    (void)options;
    return &search_sample;
}
