/* JSON descriptions of a model, its memory needs, and this machine.
 * SPDX-License-Identifier: Apache-2.0 */
#include "mneme.h"

#include <string.h>

#include "session/session.h"

static void put_open(bytes *b, const char *key, const char *bracket) {
    json_put_key(b, key);
    bytes_append_text(b, bracket);
}

static mn_status give(bytes *b, char **text) {
    bytes_text(b);
    mn_status status = bytes_status(b);
    if (status == MN_OK) {
        *text = b->data;
    } else {
        bytes_clear(b);
    }
    return status;
}

/* ---- the model ---- */

/* How many layers are of each type. */
static void put_layers(bytes *b, const model_config *c) {
    int64_t counts[N_LAYER_TYPES] = {0};
    for (int64_t i = 0; i < c->num_hidden_layers; i++) counts[c->layer_types[i]]++;
    put_open(b, "layers", "{");
    for (int type = 0; type < N_LAYER_TYPES; type++)
        if (counts[type]) json_put_int_member(b, layer_type_name((layer_type)type), counts[type]);
    bytes_append_text(b, "}");
}

/* Fields that the architecture does not have are omitted. */
static void put_config(bytes *b, const model_config *c) {
    bool rotary = c->positions == POSITIONS_ROTARY;
    const struct {
        const char *key;
        int64_t value; /* 0: left out */
    } sizes[] = {
        {"hidden_size", c->hidden_size},
        {"intermediate_size", c->intermediate_size},
        {"num_hidden_layers", c->num_hidden_layers},
        {"num_attention_heads", c->num_attention_heads},
        {"num_key_value_heads", c->num_key_value_heads},
        {"head_dim", c->head_dim},
        {"vocab_size", c->vocab_size},
        {"max_position_embeddings", c->max_position_embeddings == CONFIG_UNBOUNDED ? 0 : c->max_position_embeddings},
        {"sliding_window", c->sliding_window},
        {"rotary_dim", c->rotary_dim},
        {"num_local_experts", c->num_local_experts},
        {"num_experts_per_tok", c->num_experts_per_tok},
        {"mamba_size", c->mamba_size},
        {"state_size", c->state_size},
        {"conv_kernel", c->conv_kernel},
        {"time_step_rank", c->time_step_rank},
    };
    const struct {
        const char *key;
        double value, absent; /* left out where they are equal */
    } numbers[] = {
        {"rope_theta", rotary ? c->rope_theta : 0, 0},
        {"rope_local_base_freq", c->rope_local_base_freq, 0},
        {"attn_logit_softcapping", c->attn_logit_softcapping, 0},
        {"final_logit_softcapping", c->final_logit_softcapping, 0},
        {"embedding_multiplier", c->embedding_multiplier, 1},
        {"residual_multiplier", c->residual_multiplier, 1},
        {"logits_scaling", c->logits_scaling, 1},
    };
    put_open(b, "config", "{");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value) json_put_int_member(b, sizes[i].key, sizes[i].value);
    put_layers(b, c);
    json_put_real_member(b, c->layer_norm ? "layer_norm_eps" : "rms_norm_eps", c->norm_eps);
    json_put_text_member(b, "positions", position_kind_name(c->positions));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != numbers[i].absent) json_put_real_member(b, numbers[i].key, numbers[i].value);
    if (rotary) json_put_text_member(b, "rope_type", rope_type_name(c->rope_scaling.rope_type));
    json_put_bool_member(b, "tie_word_embeddings", c->tie_word_embeddings);
    json_put_int_member(b, "bos_token_id", c->bos_token_id);
    put_open(b, "eos_token_id", "[");
    for (size_t i = 0; i < c->n_eos_token_id; i++) json_put_int_member(b, NULL, c->eos_token_id[i]);
    bytes_append_text(b, "]}");
}

/* Tensors summed by stored type. */
static void put_tensors(bytes *b, const tensor_set *set) {
    int64_t count[N_DTYPES] = {0}, n_bytes[N_DTYPES] = {0};
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        count[t->type]++;
        n_bytes[t->type] += (int64_t)t->bytes;
    }
    put_open(b, "tensors", "[");
    for (int type = 0; type < N_DTYPES; type++) {
        if (count[type] == 0) continue;
        put_open(b, NULL, "{");
        json_put_text_member(b, "type", dtype_table[type].name);
        json_put_int_member(b, "count", count[type]);
        json_put_int_member(b, "bytes", n_bytes[type]);
        bytes_append_text(b, "}");
    }
    bytes_append_text(b, "]");
}

static size_t buffer_bytes(const model_core *core) {
    return core->compute.scratch_bytes * (size_t)core->compute.n_threads;
}

static void put_memory(bytes *b, const model_core *core) {
    size_t file = tensor_set_file_bytes(model_tensors(core)), packed = model_packed_bytes(core),
           buffers = buffer_bytes(core);
    put_open(b, "memory", "{");
    json_put_int_member(b, "file_bytes", (int64_t)file);
    json_put_int_member(b, "packed_bytes", (int64_t)packed);
    json_put_int_member(b, "buffer_bytes", (int64_t)buffers);
    json_put_int_member(b, "peak_bytes", (int64_t)(file + packed + buffers));
    json_put_int_member(b, "available_bytes", (int64_t)core->available_bytes);
    bytes_append_text(b, "}");
}

/* The options with which each strategy is listed. */
static const struct {
    unsigned traits;
    const char *configs[5];
} shown[] = {
    {KV_TRAIT_QUANTIZED, {"nbits=8", "nbits=4", "nbits=3", "nbits=2"}},
    {KV_TRAIT_WINDOW | KV_TRAIT_SINKS, {"window_length=1024"}},
    {~0u, {""}},
};

typedef struct cache_row {
    kv_plan plan;
    kv_spec *specs; /* owned */
    int n;
    const model_core *core;
} cache_row;

static mn_status open_row(cache_row *row, mn_model *model, const mn_cache_options *options) {
    MN_TRY(kv_plan_make(&row->plan, options, KV_BF16));
    row->core = model->core;
    MN_TRY(model_cache_specs(&row->specs, &row->n, model->core, row->plan.exact));
    const kv_calibration *calibration = NULL; /* calibrated keys have other sizes */
    if (row->plan.self.is_quantized) MN_TRY(model_calibration(&calibration, model->core));
    return kv_plan_specs(&row->plan, row->specs, row->n, (int)model->core->net.config.num_hidden_layers, calibration);
}

static size_t row_bytes(const cache_row *row, int64_t n_tokens) {
    kv_options options = row->plan.options;
    if (options.reserve) options.limit = options.reserve = n_tokens;
    return session_plan_bytes(row->core, &options, row->specs, row->n, n_tokens);
}

/* The part of it in memory: all, or the pages of two layers if pages are offloaded. */
static size_t row_resident_bytes(const cache_row *row, int64_t n_tokens) {
    enum { RESIDENT_LAYERS = 2 };
    if (!row->plan.self.is_offloaded || row->n <= RESIDENT_LAYERS) return row_bytes(row, n_tokens);
    size_t most = 0;
    for (int i = 0; i < row->n; i++) {
        cache_row one = {.plan = row->plan, .specs = &row->specs[i], .n = 1, .core = row->core};
        size_t need = row_bytes(&one, n_tokens);
        if (need > most) most = need;
    }
    return most > SIZE_MAX / RESIDENT_LAYERS ? SIZE_MAX : most * RESIDENT_LAYERS;
}

/* The most tokens whose cache fits into `room` bytes; `most` where all do. */
static int64_t row_largest(const cache_row *row, size_t room, int64_t most) {
    int64_t fits = 0, beyond = most + 1;
    while (beyond - fits > 1) {
        int64_t n = fits + (beyond - fits) / 2;
        *(row_resident_bytes(row, n) <= room ? &fits : &beyond) = n;
    }
    return fits;
}

static mn_status put_cache(bytes *b, mn_model *model, const mn_cache_options *options, int64_t context, size_t room) {
    const model_config *config = &model->core->net.config;
    const bool ends = config->positions == POSITIONS_LEARNED;
    const int64_t most = ends ? config->max_position_embeddings : (int64_t)1 << 40;
    cache_row row = {.specs = NULL};
    mn_status status = open_row(&row, model, options);
    bool fits = status == MN_OK, keeps = fits && row.plan.self.keeps;
    if (status != MN_E_NOMEM) {
        put_open(b, NULL, "{");
        json_put_text_member(b, "implementation", options->implementation);
        json_put_text_member(b, "config", options->config);
        json_put_text_member(b, "dtype", options->dtype);
        json_put_int_member(b, "bytes_per_token", keeps ? (int64_t)kv_token_bytes(row.specs, row.n) : 0);
        json_put_int_member(b, "context", context);
        json_put_int_member(b, "bytes", keeps ? (int64_t)row_bytes(&row, context) : 0);
        int64_t largest = fits ? row_largest(&row, room, most) : 0;
        if (largest < most || ends) {
            json_put_int_member(b, "largest_context", largest);
        } else {
            json_put_text_member(b, "largest_context", "any");
        }
        json_put_text_member(b, "refused", fits ? "" : mn_last_error());
        bytes_append_text(b, "}");
        status = MN_OK;
    }
    mem_free(row.specs);
    return status;
}

/* Every strategy in both exact forms: bytes per token, bytes for `context` tokens, the largest context that fits. */
static mn_status put_caches(bytes *b, mn_model *model, int64_t context) {
    const model_core *core = model->core;
    size_t fixed = core->net.weights.packed_bytes + buffer_bytes(core);
    size_t room = core->available_bytes > fixed ? core->available_bytes - fixed : 0;
    put_open(b, "caches", "[");
    for (const kv_strategy *strategy = kv_strategies; strategy->name; strategy++) {
        size_t kind = 0;
        while (!(shown[kind].traits & strategy->traits)) kind++;
        for (const char *const *config = shown[kind].configs; *config; config++) {
            for (int codec = 0; codec < KV_MNEME; codec++) {
                mn_cache_options options;
                mn_cache_options_init(&options, sizeof options);
                options.implementation = strategy->name;
                options.config = *config;
                options.dtype = kv_codec_name((kv_codec)codec);
                if (strategy->traits & KV_TRAIT_PREALLOCATES) options.max_cache_len = context;
                MN_TRY(put_cache(b, model, &options, context, room));
            }
        }
    }
    bytes_append_text(b, "]");
    return MN_OK;
}

mn_status mn_model_describe(const mn_model *model, int64_t context, char **text) {
    enum { EXAMPLE_CONTEXT = 4096 }; /* of models without a context limit */
    *text = NULL;
    if (context < 0 || context > (int64_t)1 << 40) {
        MN_FAIL(MN_E_ARG, "context is %lld, allowed: 1 to 2^40, or 0 for the model's own", (long long)context);
    }
    const model_core *core = model->core;
    int64_t own = core->net.config.max_position_embeddings;
    if (core->net.config.positions == POSITIONS_LEARNED && context > own) {
        MN_FAIL(MN_E_ARG, "context is %lld, allowed: up to %lld, for which the model has learned positions",
                (long long)context, (long long)own);
    }
    mn_model_info info = {.size = sizeof info};
    MN_TRY(mn_model_get_info(model, &info));
    bytes b = {0};
    put_open(&b, NULL, "{");
    json_put_text_member(&b, "model", core->what);
    json_put_text_member(&b, "architecture", info.architecture);
    json_put_text_member(&b, "format", core->file ? "gguf" : "safetensors");
    json_put_int_member(&b, "parameters", (int64_t)info.parameters);
    json_put_text_member(&b, "compute_type", info.compute_type);
    json_put_text_member(&b, "cpu", info.cpu);
    json_put_int_member(&b, "threads", info.threads);
    json_put_bool_member(&b, "has_tokenizer", info.has_tokenizer);
    json_put_bool_member(&b, "has_chat_template", info.has_chat_template);
    put_config(&b, &core->net.config);
    put_tensors(&b, model_tensors(core));
    put_memory(&b, core);
    if (own == CONFIG_UNBOUNDED) own = EXAMPLE_CONTEXT;
    /* The calibration of quantized keys may be loaded here for the first time. */
    mn_status status = put_caches(&b, (mn_model *)(uintptr_t)model, context ? context : own);
    bytes_append_text(&b, "}");
    if (status == MN_OK) return give(&b, text);
    bytes_clear(&b);
    return status;
}

/* ---- cache implementations ---- */

mn_status mn_cache_describe(char **text) {
    *text = NULL;
    bytes b = {0};
    put_open(&b, NULL, "{");
    put_open(&b, "strategies", "[");
    for (const kv_strategy *strategy = kv_strategies; strategy->name; strategy++) {
        put_open(&b, NULL, "{");
        json_put_text_member(&b, "name", strategy->name);
        json_put_text_member(&b, "help", strategy->help);
        bytes_append_text(&b, "}");
    }
    bytes_append_text(&b, "]");
    put_open(&b, "config", "[");
    for (int i = 0; i < N_CONFIG_KEYS; i++) {
        put_open(&b, NULL, "{");
        json_put_text_member(&b, "name", config_rows[i].name);
        json_put_text_member(&b, "allowed", config_rows[i].allowed);
        json_put_text_member(&b, "standard", config_rows[i].standard);
        json_put_text_member(&b, "help", config_rows[i].help);
        bytes_append_text(&b, "}");
    }
    bytes_append_text(&b, "]}");
    return give(&b, text);
}

/* ---- the machine ---- */

mn_status mn_machine_describe(const char *cpu, char **text) {
    cpu_level level;
    *text = NULL;
    MN_TRY(cpu_level_parse(&level, cpu));
    bytes b = {0};
    put_open(&b, NULL, "{");
    json_put_text_member(&b, "version", mn_version());
    json_put_text_member(&b, "cpu", cpu_level_name(level));
    put_open(&b, "levels", "[");
    for (int i = 0; i < N_CPU_LEVELS; i++) {
        if (cpu_has((cpu_level)i)) json_put_text_member(&b, NULL, cpu_level_name((cpu_level)i));
    }
    bytes_append_text(&b, "]");
    json_put_int_member(&b, "cores", thread_cores());
    json_put_int_member(&b, "available_bytes", (int64_t)memory_available());
    put_open(&b, "kernels", "[");
    for (int i = 0; i < N_KERNELS; i++) {
        put_open(&b, NULL, "{");
        json_put_text_member(&b, "kernel", kernel_name(i));
        json_put_text_member(&b, "level", cpu_level_name(kernel_level(i, level)));
        bytes_append_text(&b, "}");
    }
    bytes_append_text(&b, "]}");
    return give(&b, text);
}
