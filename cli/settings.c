/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include "config.h"
#include "output.h"

mn_generate_options settings_options(const run_settings *s) {
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.top_logprobs = (int)option_number(s->o, OPT_LOGPROBS, -1);
    how.keep_scores = option_is_set(s->o, OPT_SCORES_OUT);
    how.keep_logits = option_is_set(s->o, OPT_LOGITS_OUT);
    how.assistant = s->draft.model;
    how.negative_prompt = s->negative.ids;
    how.n_negative_prompt = s->negative.n;
    return how;
}

static mn_status resolve_limits(const run_settings *s, mn_generation_config *config, const prompt *p, const json *row,
                                const mn_cache_options *cache, const mn_cache_summary *kind, int64_t *answer_limit,
                                int64_t *need) {
    int64_t n = (int64_t)p->n, own = s->e.info.max_position_embeddings, chosen = cache->max_cache_len;
    int64_t context = chosen > 0 ? chosen : own;
    if (chosen <= 0 && own > 0 && n > own && !kind->has_unbounded_context) {
        MN_FAIL(MN_E_ARG, "the prompt has %lld tokens, the model's context holds %lld; shorten it%s", (long long)n,
                (long long)own, loaded_model_beyond(&s->e));
    }
    int64_t room = kind->has_unbounded_context ? context : context > 0 ? context - n : INT64_C(1) << 20;
    *answer_limit = p->is_chat ? ANSWER_LIMIT : 0;
    MN_TRY(generation_limit(config, s->o, s->file, row, answer_limit, room));
    int64_t new_tokens = generation_integer(config, "max_new_tokens", -1);
    int64_t length = generation_integer(config, "max_length", n + 1);
    if (new_tokens < 0) new_tokens = length > n ? length - n : 1;
    *need = n + new_tokens;
    if (chosen > 0 && *need - 1 > chosen) {
        MN_FAIL(
            MN_E_FULL,
            "%lld prompt tokens and %lld new ones do not fit into max_cache_len %lld; raise it or lower max_new_tokens",
            (long long)n, (long long)new_tokens, (long long)chosen);
    }
    if (own > 0 && chosen <= 0 && *need > own && !kind->has_unbounded_context) {
        print_message(
            s->e.info.has_learned_positions
                ? "warning: the text might grow to %lld tokens, and ends at %lld, for which the model has learned positions"
                : "warning: the text may grow to %lld tokens, beyond the model's context of %lld",
            (long long)*need, (long long)own);
    }
    return MN_OK;
}

mn_status settings_resolve(const run_settings *s, mn_generation_config *config, const prompt *p, const json *row,
                           bytes *warned, mn_cache_options *cache, mn_cache_summary *kind, int64_t *answer_limit) {
    const mn_generate_options how = settings_options(s);
    int64_t need = 0;
    *cache = s->cache;
    MN_TRY(generation_warn(config, &how, warned));
    MN_TRY(generation_cache(cache, kind, config));
    MN_TRY(cache_warn(s->e.model, cache, warned));
    loaded_model_bound(&s->e, kind);
    MN_TRY(resolve_limits(s, config, p, row, cache, kind, answer_limit, &need));
    if (kind->preallocates && cache->max_cache_len <= 0) cache->max_cache_len = need;
    return MN_OK;
}

void settings_clear(run_settings *s) {
    json_close(&s->file);
    bytes_clear(&s->prefix);
    template_input_clear(&s->template);
    prompt_clear(&s->negative);
    loaded_model_close(&s->draft);
    loaded_model_close(&s->e);
}
