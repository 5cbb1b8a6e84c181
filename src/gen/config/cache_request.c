/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/config/cache_request.h"

#include <string.h>

#include "base/mem.h"
#include "base/options.h"

/* Fills in options that are not set. Texts are the configuration's. */
static void fill_in(mn_cache_options *options, const mn_generation_config *config) {
    if (options->implementation) return;
    options->implementation = config->use_cache ? config->cache_implementation : "none";
    if (!options->config && config->use_cache) options->config = config->cache_config;
}

mn_status mn_generation_config_cache(const mn_generation_config *config, mn_cache_options *options) {
    mn_cache_options full;
    mn_cache_options_init(&full, sizeof full);
    MN_TRY(options_take(&full, sizeof full, options, "mn_cache_options"));
    fill_in(&full, config);
    return options_give(options, &full, sizeof full, "mn_cache_options");
}

/* Tokens that a preallocated cache must hold for a prompt and its new tokens. */
static int64_t room_for(const model_core *model, const mn_generation_config *config, size_t n_prompt) {
    const model_config *c = &model->net.config;
    int64_t prompt = (int64_t)n_prompt, end = c->max_position_embeddings, n_tokens = end;
    if (config->max_length >= 0) n_tokens = config->max_length;
    if (config->max_new_tokens >= 0) n_tokens = prompt + config->max_new_tokens;
    if (n_tokens <= prompt) n_tokens = prompt + 1;
    return c->positions == POSITIONS_LEARNED ? min_i64(n_tokens, max_i64(end, 1)) : n_tokens;
}

/* The options, with max_cache_len filled in where a preallocated cache lacks it; `plan`: the plan of these options. */
static mn_status complete(mn_cache_options *options, kv_plan *plan, const model_core *model,
                          const mn_generation_config *config, size_t n_prompt) {
    kv_codec automatic = model->reference ? KV_F32 : KV_BF16;
    fill_in(options, config);
    MN_TRY(kv_plan_make(plan, options, automatic));
    if (!plan->self.preallocates || plan->options.limit) return MN_OK;
    options->max_cache_len = room_for(model, config, n_prompt);
    return kv_plan_make(plan, options, automatic);
}

mn_status cache_request_plan(mn_session **session, mn_model *model, const mn_cache_options *given,
                             const mn_generation_config *config, size_t n_prompt) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    kv_plan plan;
    *session = NULL;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(complete(&options, &plan, model->core, config, n_prompt));
    return session_open_plan(session, model, &options);
}

mn_status cache_request_open(mn_session **session, mn_model *model, const mn_cache_options *given,
                             const mn_generation_config *config, size_t n_prompt) {
    MN_TRY(cache_request_plan(session, model, given, config, n_prompt));
    mn_status status = session_open_cache(*session);
    if (status != MN_OK) mn_session_close(session);
    return status;
}

/* Whether the session already has the plan's cache; a preallocated one may be larger. */
static bool is_so_already(const mn_session *s, const kv_plan *plan) {
    int64_t has = s->plan.options.limit, wants = plan->options.limit;
    return strcmp(s->plan.name, plan->name) == 0 && kv_config_equal(&s->plan.config, &plan->config) &&
           (plan->options.reserve ? has >= wants : has == wants);
}

/* Replaces the session by an empty one. */
static mn_status start_anew(mn_session *s, const mn_cache_options *options) {
    mn_session *fresh = NULL;
    MN_TRY(mn_session_open(&fresh, s->owner, options));
    session_exchange(s, fresh);
    mn_session_close(&fresh);
    return MN_OK;
}

static bool is_encoded(const mn_session *s) {
    for (int i = 0; i < kv_entries(s->cache); i++) {
        if (kv_entry_spec(s->cache, i)->write_once && kv_filled(s->cache, i) > 0) return true;
    }
    return false;
}

mn_status cache_request_follow(mn_session *s, const mn_generation_config *config, size_t n_prompt) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    kv_plan plan;
    if (s->requested.names_cache || *s->original_implementation) return MN_OK;
    options.dtype = kv_codec_name(s->plan.exact);
    options.max_cache_len = s->requested.max_cache_len;
    options.page_tokens = s->requested.page_tokens;
    options.prefill_chunk = s->requested.prefill_chunk;
    MN_TRY(complete(&options, &plan, s->model, config, n_prompt));
    if (is_so_already(s, &plan)) return MN_OK;
    bool is_bound = is_encoded(s); /* the encoder's output cannot be computed again */
    if (s->n_ids == 0 && !is_bound) return start_anew(s, &options);
    mn_status status = session_change_cache(s, &plan);
    return status == MN_E_UNSUPPORTED && !is_bound ? start_anew(s, &options) : status;
}

/* ---- warnings ---- */

static mn_status plan_of(kv_plan *plan, const mn_generation_config *config) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    fill_in(&options, config);
    return kv_plan_make(plan, &options, KV_BF16);
}

mn_status cache_request_fits(const mn_generation_config *config) {
    kv_plan plan;
    return plan_of(&plan, config);
}

mn_status cache_request_warn_keys(const mn_generation_config *config, bytes *lines) {
    kv_config keys;
    if (!config->use_cache && (config->cache_implementation || config->cache_config))
        bytes_printf(lines, "%s has no effect: use_cache is false\n",
                     config->cache_implementation ? "cache_implementation" : "cache_config");
    MN_TRY(kv_config_read(&keys, config->cache_config));
    return kv_config_warn(&keys, lines);
}

mn_status cache_request_warn_kept(const mn_session *s, const mn_generation_config *config, bytes *lines) {
    kv_plan plan;
    bool is_set = config->cache_implementation || config->cache_config || !config->use_cache;
    if (!is_set || !s->requested.names_cache) return MN_OK;
    MN_TRY(plan_of(&plan, config));
    plan.options.limit = plan.options.limit ? plan.options.limit : s->plan.options.limit;
    if (!is_so_already(s, &plan))
        bytes_printf(lines,
                     "the session keeps the cache '%s' that it was opened with; the configuration requests '%s'%s\n",
                     s->plan.name, plan.name, strcmp(s->plan.name, plan.name) == 0 ? " with other numbers" : "");
    return bytes_status(lines);
}

/* Sinks apply only to layers whose own window is wider than the plan's. */
static void warn_of_sinks(const kv_plan *plan, const kv_spec *specs, int n, bytes *lines) {
    int n_narrow = 0, n_layers = 0, widest = 0, sinks = plan->self.num_sink_tokens;
    for (int i = 0; i < n; i++) {
        if (specs[i].kind != KV_PAGES || specs[i].write_once) continue;
        n_layers++;
        if (specs[i].sinks == sinks) continue;
        n_narrow++;
        if (specs[i].window > widest) widest = specs[i].window;
    }
    if (n_narrow == 0 || sinks == 0) return;
    bytes_printf(
        lines,
        "%d of %d layers have a window of their own of %d tokens, not wider than window_length %d: they keep it, "
        "and have no sinks\n",
        n_narrow, n_layers, widest, plan->self.window_length);
}

static mn_status warn(const mn_model *model, const mn_cache_options *given, bytes *lines) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    kv_plan plan;
    kv_spec *specs = NULL;
    int n = 0;
    MN_TRY(options_take(&options, sizeof options, given, "mn_cache_options"));
    MN_TRY(kv_plan_make(&plan, &options, KV_BF16));
    if (plan.self.preallocates && !plan.options.limit) plan.options.limit = 1;
    MN_TRY(kv_config_warn(&plan.config, lines));
    MN_TRY(session_plan_specs(&specs, &n, model->core, &plan, NULL));
    warn_of_sinks(&plan, specs, n, lines);
    mem_free(specs);
    return bytes_status(lines);
}

mn_status mn_cache_warnings(const mn_model *model, const mn_cache_options *options, char **warnings) {
    bytes lines = {0};
    *warnings = NULL;
    mn_status status = warn(model, options, &lines);
    if (status == MN_OK) *warnings = mem_copy_text(lines.n ? lines.data : "", lines.n);
    bytes_clear(&lines);
    return status == MN_OK && !*warnings ? MN_E_NOMEM : status;
}
