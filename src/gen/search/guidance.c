/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/guidance.h"

const int32_t *guidance_ids(const search_setup *setup, size_t *n) {
    const mn_generate_options *options = setup->options;
    *n = options->n_negative_prompt ? options->n_negative_prompt : 1;
    return options->n_negative_prompt ? options->negative_prompt : setup->prompt + setup->n_prompt - 1;
}

mn_status guidance_check(const search_setup *setup) {
    size_t n = 0;
    const int32_t *ids = guidance_ids(setup, &n);
    int64_t limit = session_limit(setup->session), vocab = setup->session->model->net.config.vocab_size;
    if (!guidance_is_on(setup)) return MN_OK;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            MN_FAIL(MN_E_ARG, "token %zu of the negative prompt is %d, allowed: 0 to %lld", i, ids[i],
                    (long long)vocab - 1);
    }
    if (limit && (int64_t)(n + setup->max_new) > limit + 1) {
        MN_FAIL(MN_E_FULL, "%s %lld: too small for a negative prompt of %zu tokens and %zu new ones",
                setup->session->plan.options.limit ? "max_cache_len is" : "learned positions are", (long long)limit, n,
                setup->max_new);
    }
    return MN_OK;
}
