/* SPDX-License-Identifier: Apache-2.0 */
#include "support/plans.h"

mn_status plans_make(kv_plan *plan, const char *implementation, const char *config) {
    mn_cache_options options = {
        .size = sizeof options, .implementation = implementation, .config = config, .dtype = "auto"};
    return kv_plan_make(plan, &options, KV_BF16);
}

void plans_entries(kv_spec *specs, int n, int dim) {
    for (int i = 0; i < n; i++) {
        specs[i] = (kv_spec){.n_heads = 2,
                             .k_dim = dim,
                             .v_dim = dim,
                             .exact = KV_BF16,
                             .key = kv_form_exact(KV_BF16),
                             .value = kv_form_exact(KV_BF16)};
    }
}
