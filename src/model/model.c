/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "model/arch.h"
#include "model/embedded.h"
#include "model/encoder.h"
#include "model/mixer.h"
#include "model/rope.h"
#include "model/weights.h"
#include "tensor/safetensors.h"

enum {
    CONFIG_LIMIT = 1 << 24, /* bytes of a config.json that are read at most */
    STATE_CHECKPOINTS = 4,  /* states of past steps that are kept, so that steps may be taken back */
};

/* ---- memory ---- */

/* A number from a one-line file of the system, or SIZE_MAX. */
static size_t read_limit(const char *path) {
    char text[64];
    unsigned long long value = 0;
    text[file_head(text, sizeof text - 1, path)] = 0;
    return sscanf(text, "%llu", &value) == 1 ? (size_t)value : SIZE_MAX;
}

size_t memory_available(void) {
    size_t available = SIZE_MAX;
    char text[1024];
    unsigned long long kib;
    text[file_head(text, sizeof text - 1, "/proc/meminfo")] = 0;
    const char *line = strstr(text, "MemAvailable:");
    if (line && sscanf(line, "MemAvailable: %llu kB", &kib) == 1) available = (size_t)kib * 1024;
    size_t limit = read_limit("/sys/fs/cgroup/memory.max"),
           used = read_limit("/sys/fs/cgroup/memory.current");
    if (limit != SIZE_MAX && used != SIZE_MAX) {
        size_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available;
}

static mn_status check_need(const model_core *model, size_t need) {
    if (need <= model->available_bytes) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "'%s' needs %zu MiB for prepared weights and buffers, %zu MiB are available",
            model->what, (need >> 20) + 1, model->available_bytes >> 20);
}

/* ---- opening ---- */

const tensor_set *model_tensors(const model_core *model) {
    return model->file ? gguf_tensors(model->file) : model->tensors;
}

static mn_status open_folder(model_core *model, const char *path) {
    bytes name = {0};
    json_doc *doc = NULL;
    mn_status status = path_join(&name, path, "config.json");
    if (status == MN_OK) status = json_open(&doc, name.data, JSON_PYTHON, CONFIG_LIMIT);
    if (status == MN_OK) status = config_from_json(&model->config, json_root(doc), name.data);
    if (status == MN_OK) status = safetensors_open_folder(&model->tensors, path);
    json_close(&doc);
    bytes_clear(&name);
    return status;
}

static mn_status open_embedded(model_core *model) {
    const embedded_file *config = embedded_find("config.json"), *weights = embedded_find("model.safetensors");
    if (!config || !weights) MN_FAIL(MN_E_NOT_FOUND, "this build has no embedded model");
    json_doc *doc = NULL;
    mn_status status =
        json_parse(&doc, (const char *)config->data, config->n, JSON_PYTHON, "embedded config.json");
    if (status == MN_OK) status = config_from_json(&model->config, json_root(doc), "embedded config.json");
    if (status == MN_OK)
        status =
            safetensors_open_memory(&model->tensors, weights->data, weights->n, "embedded model.safetensors");
    json_close(&doc);
    return status;
}

static bool is_gguf_path(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

static mn_status open_files(model_core *model, const char *path) {
    if (strcmp(path, "embedded") == 0) return open_embedded(model);
    if (file_is_directory(path)) return open_folder(model, path);
    if (!is_gguf_path(path) && file_exists(path)) {
        MN_FAIL(MN_E_FORMAT, "'%s' is no model: a folder with config.json or a .gguf file was expected",
                path);
    }
    MN_TRY(gguf_open(&model->file, path));
    return config_from_gguf(&model->config, model->file);
}

typedef struct compute_choice {
    const char *name;
    weight_form form;
} compute_choice;

static const compute_choice compute_choices[] = {
    {"f32", WEIGHT_F32}, {"bf16", WEIGHT_BF16}, {"int8", WEIGHT_INT}};

static const tensor *first_matrix(const model_weights *bound) {
    const weight_source *layer = bound->layers[0];
    int i = 0;
    while (!layer[i].tensor) i++;
    return layer[i].tensor;
}

static mn_status choose_compute(model_core *model, const char *name, const model_weights *bound,
                                bool *is_auto) {
    *is_auto = !name || strcmp(name, "auto") == 0;
    size_t n = sizeof compute_choices / sizeof compute_choices[0];
    weight_form form = *is_auto ? weight_form_for(first_matrix(bound)->type, WEIGHT_F32, true) : WEIGHT_F32;
    for (size_t i = 0; i < n; i++) {
        bool chosen = *is_auto ? compute_choices[i].form == form : strcmp(name, compute_choices[i].name) == 0;
        if (!chosen) continue;
        model->compute_name = compute_choices[i].name;
        model->form = compute_choices[i].form;
        return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "compute_type is '%s', allowed: auto, f32, bf16, int8", name);
}

static size_t largest(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The most inputs that a matrix has. */
static size_t widest_input(const model_config *c) {
    size_t most = largest((size_t)c->hidden_size, (size_t)c->intermediate_size);
    most = largest(most, (size_t)c->shared_expert_intermediate_size);
    most = largest(most, (size_t)(c->num_attention_heads * c->head_dim));
    if (c->num_mel_bins > 0) most = largest(most, 3 * (size_t)max_i64(c->num_mel_bins, c->hidden_size));
    return largest(most, (size_t)c->mamba_size);
}

static size_t scratch_need(const model_config *c, bool lazy) {
    int kv_heads = (int)c->num_key_value_heads;
    int group = kv_heads ? (int)c->num_attention_heads / kv_heads : 1, dim = (int)c->head_dim;
    size_t max_k = widest_input(c);
    return largest(compute_scratch_bytes((int)max_k, lazy),
                   attention_scratch_bytes(group, dim, dim, PAGE_TOKENS)) +
           64;
}

static mn_status open_compute(compute *c, const mn_model_options *options) {
    cpu_level level;
    MN_TRY(cpu_level_parse(&level, options->cpu));
    kernel_table_fill(&c->kernels, level);
    MN_TRY(thread_pool_open(&c->pool, options->threads));
    c->n_threads = thread_pool_threads(c->pool);
    c->scratch = mem_alloc((size_t)c->n_threads, sizeof *c->scratch);
    c->stretches = mem_alloc((size_t)c->n_threads, sizeof *c->stretches);
    return c->scratch && c->stretches ? MN_OK : MN_E_NOMEM;
}

static mn_status open_scratch(compute *c, size_t n) {
    c->scratch_bytes = n;
    for (int i = 0; i < c->n_threads; i++) {
        c->scratch[i] = mem_alloc(n, 1);
        if (!c->scratch[i]) return MN_E_NOMEM;
    }
    return MN_OK;
}

size_t model_packed_bytes(const model_core *model) {
    return model->weights.packed_bytes + (model->encoder ? model->encoder->core.weights.packed_bytes : 0);
}

/* Float32 copies of weights that are stored in fewer bits are kept when they fit easily, else made anew for
 * each use. */
static bool must_be_lazy(const model_core *model) {
    return model->form == WEIGHT_F32 && model_packed_bytes(model) > model->available_bytes / 2;
}

static void drop_panels(model_core *model) {
    model->weights.packed_bytes = 0;
    if (model->encoder) model->encoder->core.weights.packed_bytes = 0;
}

static mn_status prepare(model_core *model, const mn_model_options *options) {
    model_weights bound = {0};
    bool is_auto;
    mn_status status = model_bind(&bound, &model->config, model_tensors(model), model->file != NULL);
    if (status == MN_OK) status = choose_compute(model, options->compute_type, &bound, &is_auto);
    if (status == MN_OK) status = weights_plan(model, &bound, model->form, is_auto);
    if (status == MN_OK && model->config.encoder) status = encoder_plan(model, is_auto);
    model_weights_clear(&bound);
    MN_TRY(status);
    bool lazy = must_be_lazy(model);
    if (lazy) drop_panels(model);
    size_t scratch = scratch_need(&model->config, lazy);
    if (model->encoder) scratch = largest(scratch, scratch_need(&model->encoder->core.config, lazy));
    MN_TRY(check_need(model, model_packed_bytes(model) + scratch * (size_t)model->compute.n_threads));
    MN_TRY(open_scratch(&model->compute, scratch));
    MN_TRY(weights_pack(model, lazy, (weights_progress){options->progress, options->progress_user}));
    model->reference = model->form == WEIGHT_F32;
    model->workspace.frequencies = mem_alloc((size_t)model->config.rotary_dim / 2 + 1, sizeof(double));
    if (!model->workspace.frequencies) return MN_E_NOMEM;
    size_t budget = options->memory_limit ? model->available_bytes - model_packed_bytes(model) : 0;
    MN_TRY(kv_pool_open(&model->pool, budget));
    if (model->encoder) MN_TRY(encoder_make(model, lazy));
    if (!lazy) tensor_set_release_pages(model_tensors(model));
    return MN_OK;
}

mn_status model_open(model_core **out, const char *path, const mn_model_options *options) {
    *out = NULL;
    model_core *model = mem_alloc(1, sizeof *model);
    if (!model) return MN_E_NOMEM;
    pthread_mutex_init(&model->lock, NULL);
    model->available_bytes = memory_available();
    if (options->memory_limit && options->memory_limit < model->available_bytes)
        model->available_bytes = options->memory_limit;
    model->what = mem_copy_text(path, strlen(path));
    mn_status status = model->what ? open_compute(&model->compute, options) : MN_E_NOMEM;
    if (status == MN_OK) status = open_files(model, path);
    if (status == MN_OK) status = prepare(model, options);
    if (status != MN_OK) {
        model_close(&model);
        return status;
    }
    *out = model;
    return MN_OK;
}

/* The buffers of one token for each: where they are kept, what a token takes. */
typedef struct token_buffer {
    void *slot;
    size_t width, size;
} token_buffer;

enum { MOST_TOKEN_BUFFERS = 32 };

/* Without rotary angles there is still a table to point into. */
static int token_buffers(model_core *model, token_buffer out[MOST_TOKEN_BUFFERS]) {
    workspace *ws = &model->workspace;
    const model_config *c = &model->config;
    size_t hidden = (size_t)c->hidden_size, heads = (size_t)(c->num_attention_heads * c->head_dim),
           kv = (size_t)(c->num_key_value_heads * c->head_dim), channels = (size_t)c->mamba_size,
           experts = (size_t)c->num_local_experts, half = largest((size_t)c->rotary_dim / 2, 1),
           local = c->rope_local_base_freq > 0 ? half : 0, widest = widest_input(c),
           k = experts ? (size_t)c->num_experts_per_tok : 1;
    bool branches = experts || c->post_norms || c->parallel_residual;
    angle_set *global = &ws->angles[ANGLES_GLOBAL], *other = &ws->angles[ANGLES_LOCAL];
    const token_buffer buffers[] = {
        {&ws->x, hidden, sizeof(float)},
        {&ws->normed, hidden, sizeof(float)},
        {&ws->branch, branches ? k * hidden : 0, sizeof(float)},
        {&ws->qkv, heads + 2 * kv, sizeof(float)},
        {&ws->attended, heads, sizeof(float)},
        {&ws->inner, (size_t)max_i64((int64_t)k * c->intermediate_size, c->shared_expert_intermediate_size),
         sizeof(float)},
        {&ws->gathered, experts ? k * hidden : 0, sizeof(float)},
        {&ws->routing, experts ? experts + 1 : 0, sizeof(float)},
        {&ws->routes, (size_t)c->num_experts_per_tok, sizeof(expert_route)},
        {&ws->channels, 2 * channels, sizeof(float)},
        {&ws->convolved, channels, sizeof(float)},
        {&ws->projected, channels ? (size_t)(c->time_step_rank + 2 * c->state_size) : 0, sizeof(float)},
        {&ws->ranks, (size_t)c->time_step_rank, sizeof(float)},
        {&ws->steps, channels, sizeof(float)},
        {&global->cos, half, sizeof(float)},
        {&global->sin, half, sizeof(float)},
        {&global->slot_cos, half, sizeof(float)},
        {&global->slot_sin, half, sizeof(float)},
        {&other->cos, local, sizeof(float)},
        {&other->sin, local, sizeof(float)},
        {&other->slot_cos, local, sizeof(float)},
        {&other->slot_sin, local, sizeof(float)},
        {&ws->rows.rounded, k * act_bf16_stride((int)widest), sizeof(bf16)},
        {&ws->rows.codes, k * widest * ACT_PLANES, 1},
        {&ws->rows.scale, k * (widest / ACT_GROUP + 1), sizeof(float)},
        {&ws->rows.sum, k * (widest / ACT_SUM_GROUP + 1), sizeof(int32_t)},
    };
    memcpy(out, buffers, sizeof buffers);
    return (int)(sizeof buffers / sizeof *buffers);
}

void model_clear_buffers(model_core *model) {
    workspace *ws = &model->workspace;
    token_buffer buffers[MOST_TOKEN_BUFFERS];
    int n = token_buffers(model, buffers);
    for (int i = 0; i < n; i++) mem_free(*(void **)buffers[i].slot);
    mem_free(ws->last);
    mem_free(ws->attend);
    mem_free(ws->frequencies);
    attend_space_clear(&ws->space);
    *ws = (workspace){0};
}

void model_close(model_core **model) {
    model_core *m = *model;
    if (!m) return;
    encoder_close(&m->encoder);
    model_clear_buffers(m);
    weights_clear(&m->weights, m->config.num_hidden_layers);
    kv_pool_close(&m->pool);
    kv_basis_set_close(&m->bases);
    for (int i = 0; m->compute.scratch && i < m->compute.n_threads; i++) mem_free(m->compute.scratch[i]);
    mem_free(m->compute.scratch);
    mem_free(m->compute.stretches);
    thread_pool_close(&m->compute.pool);
    model_config_clear(&m->config);
    gguf_close(&m->file);
    tensor_set_close(&m->tensors);
    pthread_mutex_destroy(&m->lock);
    mem_free(m->what);
    mem_free(m);
    *model = NULL;
}

/* ---- the forward pass ---- */

static mn_status replace_buffer(void *slot, size_t count, size_t size) {
    void **buffer = slot;
    void *fresh = mem_alloc_raw(count, size);
    if (!fresh) return MN_E_NOMEM;
    mem_free(*buffer);
    *buffer = fresh;
    return MN_OK;
}

static mn_status grow_tokens(model_core *model, int m) {
    workspace *ws = &model->workspace;
    token_buffer buffers[MOST_TOKEN_BUFFERS];
    if (m <= ws->m) return MN_OK;
    int n = token_buffers(model, buffers);
    ws->m = 0; /* until all have grown */
    for (int i = 0; i < n; i++) {
        if (buffers[i].width > 0)
            MN_TRY(replace_buffer(buffers[i].slot, (size_t)m * buffers[i].width, buffers[i].size));
    }
    ws->m = m;
    return MN_OK;
}

/* Room for n_rows sequences and for n_last states whose logits are computed together. */
static mn_status grow_rows(model_core *model, int n_rows, int n_last) {
    workspace *ws = &model->workspace;
    MN_TRY(mem_grow(&ws->attend, &ws->attend_capacity, (size_t)n_rows, sizeof *ws->attend));
    if (n_last <= ws->n_last) return MN_OK;
    ws->n_last = 0;
    MN_TRY(replace_buffer(&ws->last, (size_t)n_last * (size_t)model->config.hidden_size, sizeof(float)));
    ws->n_last = n_last;
    return MN_OK;
}

mn_status model_grow(model_core *model, int m, int n_rows, int n_last) {
    MN_TRY(grow_tokens(model, m));
    return grow_rows(model, n_rows, n_last);
}

mn_status model_grow_seal(model_core *model, const kv_cache *cache) {
    attend_space *space = &model->workspace.space;
    size_t need = (kv_seal_scratch(cache) + 63) / 64 * 64;
    if (need <= space->seal_bytes) return MN_OK;
    MN_TRY(replace_buffer(&space->seal, (size_t)model->compute.n_threads, need));
    space->seal_bytes = need;
    return MN_OK;
}

static mn_status check_encoded(const model_core *model, const forward_row *rows, int n_rows) {
    for (int i = 0; model->encoder && i < n_rows; i++) {
        if (kv_filled(rows[i].cache, (int)model->config.num_hidden_layers) == 0)
            MN_FAIL(
                MN_E_ARG,
                "'%s' is a speech model, and no recording was encoded for it; `mneme transcribe` and mn_transcribe do that",
                model->what);
    }
    return MN_OK;
}

/* The first row of a pass that shares pages with row i; NULL: none before it does. */
static const kv_cache *relative_of(const forward_row *rows, int i) {
    for (int j = 0; j < i; j++) {
        if (kv_shares_pages(rows[j].cache, rows[i].cache)) return rows[j].cache;
    }
    return NULL;
}

/* Everything that a pass needs and that can fail; then nothing has changed. */
static mn_status reserve_rows(model_core *model, const forward_row *rows, int n_rows) {
    mn_status status = MN_OK;
    int n_reserved = 0;
    while (n_reserved < n_rows && status == MN_OK) {
        status = kv_reserve_beside(rows[n_reserved].cache, rows[n_reserved].n, relative_of(rows, n_reserved));
        if (status == MN_OK) n_reserved++;
    }
    for (int i = 0; i < n_rows && status == MN_OK; i++) status = kv_restage(rows[i].cache);
    for (int i = 0; i < n_rows && status == MN_OK; i++) status = model_grow_seal(model, rows[i].cache);
    if (status == MN_OK) status = blocks_prepare(model, rows, n_rows);
    for (int i = 0; status != MN_OK && i < n_reserved; i++) kv_abandon(rows[i].cache);
    return status;
}

/* What one row has no room for may be what others keep near without need. */
static mn_status send_one_of_each(const forward_row *rows, int n_rows, bool *sent) {
    *sent = false;
    for (int i = 0; i < n_rows; i++) {
        bool one;
        MN_TRY(kv_send_one(rows[i].cache, &one));
        *sent = *sent || one;
    }
    return MN_OK;
}

static mn_status forward_locked(model_core *model, const forward_row *rows, int n_rows) {
    int64_t m = 0, n_last = 1;
    MN_TRY(check_encoded(model, rows, n_rows));
    for (int i = 0; i < n_rows; i++) {
        m += rows[i].n;
        n_last += forward_gathered(&rows[i]);
    }
    MN_TRY(model_grow(model, (int)m, n_rows, (int)min_i64(n_last, HEAD_ROWS)));
    mn_status status = reserve_rows(model, rows, n_rows);
    bool sent = true;
    while (status == MN_E_NOMEM && sent) {
        MN_TRY(send_one_of_each(rows, n_rows, &sent));
        if (sent) status = reserve_rows(model, rows, n_rows);
    }
    MN_TRY(status);
    arch_forwards[model->config.model_type](&(batch){model, rows, n_rows, (int)m});
    for (int i = 0; status == MN_OK && i < n_rows; i++) status = kv_fault(rows[i].cache);
    if (status != MN_OK) {
        for (int i = 0; i < n_rows; i++) kv_abandon(rows[i].cache);
        return status;
    }
    for (int i = 0; i < n_rows; i++) {
        compute_seal(&model->compute, rows[i].cache, 0, kv_commit(rows[i].cache), &model->workspace.space);
        kv_settle(rows[i].cache);
    }
    return MN_OK;
}

mn_status model_forward(model_core *model, const forward_row *rows, int n_rows) {
    pthread_mutex_lock(&model->lock);
    mn_status status = forward_locked(model, rows, n_rows);
    pthread_mutex_unlock(&model->lock);
    return status;
}

static kv_spec layer_spec(const model_config *c, int64_t layer, kv_codec codec) {
    if (c->layer_types[layer] == LAYER_MAMBA) {
        return (kv_spec){
            .kind = KV_STATE, .state_bytes = mixer_state_bytes(c), .checkpoints = STATE_CHECKPOINTS};
    }
    return (kv_spec){
        .n_heads = (int)c->num_key_value_heads,
        .k_dim = (int)c->head_dim,
        .v_dim = (int)c->head_dim,
        .exact = codec,
        .key = kv_form_exact(codec),
        .value = kv_form_exact(codec),
        .window = c->layer_types[layer] == LAYER_SLIDING_ATTENTION ? (int)c->sliding_window : 0,
        .is_fixed = c->positions == POSITIONS_LEARNED,
    };
}

mn_status model_cache_specs(kv_spec **out, int *n, const model_core *model, kv_codec codec) {
    int64_t n_layers = model->config.num_hidden_layers, n_cross = model->encoder ? n_layers : 0;
    kv_spec *specs = mem_alloc((size_t)(n_layers + n_cross), sizeof *specs);
    *out = NULL;
    if (!specs) return MN_E_NOMEM;
    for (int64_t i = 0; i < n_layers + n_cross; i++) {
        specs[i] = layer_spec(&model->config, i % n_layers, codec);
        specs[i].write_once = i >= n_layers;
    }
    *out = specs;
    *n = (int)(n_layers + n_cross);
    return MN_OK;
}
