/* Classifier-free guidance (Sanchez et al. 2023): every token is fed to a second session as well, which does not
 * contain the prompt and gives the unconditional scores.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_GUIDANCE_H
#define MN_GEN_SEARCH_GUIDANCE_H

#include "gen/search/search.h"

static inline bool guidance_is_on(const search_setup *setup) {
    return setup->config->guidance_scale != 1;
}

/* The first tokens of the unconditional context: the negative prompt, else the prompt's last token. */
const int32_t *guidance_ids(const search_setup *setup, size_t *n);

/* Refuses negative prompts that cannot be fed; for search_kind.check. */
mn_status guidance_check(const search_setup *setup);

#endif
