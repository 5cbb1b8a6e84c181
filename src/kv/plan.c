/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan.h"

#include <string.h>

#include "base/mem.h"

const kv_strategy kv_strategies[] = {
    {"dynamic", true, false, "grows page by page"},
    {"static", true, true, "allocates max_cache_len tokens once"},
    {"none", false, false, "recomputes every token at every step"},
    {0},
};

static const kv_strategy *find_strategy(const char *name) {
    for (const kv_strategy *s = kv_strategies; s->name; s++) {
        if (strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}

static mn_status unknown_strategy(const char *name) {
    bytes known = {0};
    for (const kv_strategy *s = kv_strategies; s->name; s++)
        bytes_printf(&known, "%s%s", s == kv_strategies ? "" : ", ", s->name);
    mn_status status =
        status_fail(MN_E_ARG, "cache implementation is '%.60s', allowed: %s", name, bytes_text(&known));
    bytes_clear(&known);
    return status;
}

mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic) {
    kv_plan plan = {.codec = automatic};
    const char *name = options->implementation ? options->implementation : kv_strategies[0].name;
    plan.strategy = find_strategy(name);
    if (!plan.strategy) return unknown_strategy(name);
    if (options->dtype && strcmp(options->dtype, "auto") != 0) {
        int codec = 0;
        while (codec < KV_MNEME && strcmp(kv_codec_name((kv_codec)codec), options->dtype) != 0) codec++;
        if (codec == KV_MNEME)
            MN_FAIL(MN_E_ARG, "cache dtype is '%.60s', allowed: auto, f32, bf16", options->dtype);
        plan.codec = (kv_codec)codec;
    }
    int64_t length = options->max_cache_len;
    if (length < 0 || length > (int64_t)1 << 40) {
        MN_FAIL(MN_E_ARG, "max_cache_len is %lld, allowed: 1 to 2^40, or 0 for none", (long long)length);
    }
    if (plan.strategy->reserves && length == 0)
        MN_FAIL(MN_E_ARG, "cache implementation '%s' needs max_cache_len", name);
    int page = options->page_tokens ? options->page_tokens : PAGE_TOKENS;
    if (page < 2 || page > PAGE_TOKENS || page % 2) {
        MN_FAIL(MN_E_ARG, "page_tokens is %d, allowed: even numbers from 2 to %d", page, PAGE_TOKENS);
    }
    plan.options =
        (kv_options){.page_tokens = page, .limit = length, .reserve = plan.strategy->reserves ? length : 0};
    *out = plan;
    return MN_OK;
}
