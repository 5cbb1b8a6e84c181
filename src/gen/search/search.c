/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/search.h"

#include "gen/config/validation.h"

const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options) {
    static const search_kind *const kinds[] = {
        [DECODING_GREEDY] = &search_sample,
        [DECODING_SAMPLE] = &search_sample,
        [DECODING_CONTRASTIVE] = &search_contrastive,
        [DECODING_DOLA] = &search_sample,
        [DECODING_ASSISTED] = &search_assisted,
        [DECODING_PROMPT_LOOKUP] = &search_assisted,
        [DECODING_BEAM] = &search_beam,
        [DECODING_BEAM_SAMPLE] = &search_beam,
        [DECODING_GROUP_BEAM] = &search_group,
        [DECODING_CONSTRAINED_BEAM] = &search_group,
    };
    return kinds[decoding_mode_of(config, options)];
}
