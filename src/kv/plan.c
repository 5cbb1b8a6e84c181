/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan.h"

#include <string.h>

#include "base/mem.h"
#include "mneme.h"

const kv_strategy kv_strategies[] = {
    {.name = "dynamic", .keeps = true, .help = "grows page by page"},
    {.name = "static", .keeps = true, .reserves = true, .help = "allocates max_cache_len tokens once"},
    {.name = "none", .help = "recomputes every token at every step"},
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
    kv_plan plan = {.exact = automatic};
    const char *name = options->implementation ? options->implementation : kv_strategies[0].name;
    const kv_strategy *strategy = find_strategy(name);
    if (!strategy) return unknown_strategy(name);
    if (options->dtype && strcmp(options->dtype, "auto") != 0) {
        int codec = 0;
        while (codec < KV_MNEME && strcmp(kv_codec_name((kv_codec)codec), options->dtype) != 0) codec++;
        if (codec == KV_MNEME)
            MN_FAIL(MN_E_ARG, "cache dtype is '%.60s', allowed: auto, f32, bf16", options->dtype);
        plan.exact = (kv_codec)codec;
    }
    int64_t length = options->max_cache_len;
    if (length < 0 || length > (int64_t)1 << 40) {
        MN_FAIL(MN_E_ARG, "max_cache_len is %lld, allowed: 1 to 2^40, or 0 for none", (long long)length);
    }
    if (strategy->reserves && length == 0)
        MN_FAIL(MN_E_ARG, "cache implementation '%s' needs max_cache_len", name);
    int page = options->page_tokens ? options->page_tokens : PAGE_TOKENS;
    if (page < 2 || page > PAGE_TOKENS || page % 2) {
        MN_FAIL(MN_E_ARG, "page_tokens is %d, allowed: even numbers from 2 to %d", page, PAGE_TOKENS);
    }
    kv_plan_part *part = &plan.self;
    strcpy(part->name, strategy->name);
    part->keeps = strategy->keeps;
    part->reserves = strategy->reserves;
    part->key = part->value = kv_form_exact(plan.exact);
    plan.cross = plan.self;
    plan.options =
        (kv_options){.page_tokens = page, .limit = length, .reserve = strategy->reserves ? length : 0};
    *out = plan;
    return MN_OK;
}

mn_status kv_plan_specs(const kv_plan *plan, kv_spec *specs, int n_specs, int n_layers,
                        const kv_basis_set *bases) {
    (void)n_layers;
    for (int i = 0; i < n_specs; i++) {
        kv_spec *s = &specs[i];
        const kv_plan_part *part = s->write_once ? &plan->cross : &plan->self;
        s->exact = plan->exact;
        s->key = part->codes ? part->key : kv_form_exact(plan->exact);
        s->value = part->codes ? part->value : kv_form_exact(plan->exact);
        s->residual = part->residual;
        s->flush = part->flush;
        s->exact_first = part->exact_first;
        s->is_far = part->is_far;
        if (part->window_length) {
            s->sinks = part->num_sink_tokens;
            s->window = part->window_length - part->num_sink_tokens;
        }
        if (bases && kv_form_is_coded(s->key)) s->bases = kv_basis_of(bases, i % n_layers, 0);
    }
    return MN_OK;
}
