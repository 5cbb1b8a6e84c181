/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "model/embedded.h"
#include "model/encoder.h"
#include "model/locate.h"
#include "model/packed.h"
#include "model/weights.h"
#include "tensor/safetensors.h"

static size_t largest(size_t a, size_t b) {
    return a > b ? a : b;
}

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
    size_t limit = read_limit("/sys/fs/cgroup/memory.max"), used = read_limit("/sys/fs/cgroup/memory.current");
    if (limit != SIZE_MAX && used != SIZE_MAX) {
        size_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available;
}

static mn_status check_need(const model_core *model, size_t need) {
    if (need <= model->available_bytes) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "'%s' needs %zu MiB for prepared weights and buffers, %zu MiB are available", model->what,
            (need >> 20) + 1, model->available_bytes >> 20);
}

/* ---- opening ---- */

const tensor_set *model_tensors(const model_core *model) {
    return model->file ? gguf_tensors(model->file) : model->tensors;
}

static mn_status open_embedded_tensors(tensor_set **out) {
    const embedded_file *weights = embedded_find("model.safetensors");
    if (!weights) MN_FAIL(MN_E_NOT_FOUND, "this build has no embedded model");
    return safetensors_open_memory(out, weights->data, weights->n, "embedded model.safetensors");
}

/* path: a folder or "embedded". */
static mn_status open_folder(model_core *model, const char *path, bool is_embedded) {
    json_doc *doc = NULL;
    mn_status status = checkpoint_json(&doc, path, "config.json");
    if (status == MN_OK) status = config_from_json(&model->net.config, json_root(doc), json_what(doc));
    json_close(&doc);
    MN_TRY(status);
    return is_embedded ? open_embedded_tensors(&model->tensors) : safetensors_open_folder(&model->tensors, path);
}

static bool is_gguf_path(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

static mn_status open_files(model_core *model, const char *path) {
    bool is_embedded = strcmp(path, "embedded") == 0;
    if (is_embedded || file_is_directory(path)) return open_folder(model, path, is_embedded);
    if (!is_gguf_path(path) && file_exists(path)) {
        MN_FAIL(MN_E_FORMAT, "'%s' is not a model: a folder with config.json or a .gguf file was expected", path);
    }
    MN_TRY(gguf_open(&model->file, path));
    return config_from_gguf(&model->net.config, model->file);
}

typedef struct compute_choice {
    const char *name;
    weight_form form;
    bool a8; /* activations of integer products have 8 bits */
} compute_choice;

static const compute_choice compute_choices[] = {{"f32", WEIGHT_F32, false},
                                                 {"bf16", WEIGHT_BF16, false},
                                                 {"int8", WEIGHT_INT, false},
                                                 {"int8_a8", WEIGHT_INT, true}};

static const tensor *first_matrix(const model_weights *bound) {
    const weight_source *layer = bound->layers[0];
    int i = 0;
    while (!layer[i].tensor) i++;
    return layer[i].tensor;
}

static mn_status choose_compute(model_core *model, const char *name, const model_weights *bound, bool *is_auto) {
    *is_auto = !name || strcmp(name, "auto") == 0;
    size_t n = sizeof compute_choices / sizeof compute_choices[0];
    weight_form form = *is_auto ? weight_form_for(first_matrix(bound)->type, WEIGHT_F32, true) : WEIGHT_F32;
    for (size_t i = 0; i < n; i++) {
        bool chosen = *is_auto ? compute_choices[i].form == form : strcmp(name, compute_choices[i].name) == 0;
        if (!chosen) continue;
        model->compute_name = compute_choices[i].name;
        model->net.form = compute_choices[i].form;
        model->net.workspace.rows.a8 = compute_choices[i].a8;
        return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "compute_type is '%s', allowed: auto, f32, bf16, int8, int8_a8", name);
}

static size_t scratch_need(const model_config *c, bool lazy) {
    int kv_heads = (int)c->num_key_value_heads;
    int group = kv_heads ? (int)c->num_attention_heads / kv_heads : 1, dim = (int)c->head_dim;
    size_t max_k = model_widest_input(c);
    return largest(compute_scratch_bytes((int)max_k, lazy), attention_scratch_bytes(group, dim, dim, PAGE_TOKENS)) + 64;
}

static mn_status open_compute(compute *c, const mn_model_options *options) {
    cpu_level level;
    MN_TRY(cpu_level_parse(&level, options->cpu));
    kernel_table_fill(&c->kernels, level);
    MN_TRY(thread_pool_open(&c->pool, options->threads));
    c->n_threads = thread_pool_threads(c->pool);
    c->scratch = mem_alloc((size_t)c->n_threads, sizeof *c->scratch);
    c->ranges = mem_alloc((size_t)c->n_threads, sizeof *c->ranges);
    return c->scratch && c->ranges ? MN_OK : MN_E_NOMEM;
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
    return model->net.weights.packed_bytes + (model->encoder ? model->encoder->net.weights.packed_bytes : 0);
}

/* Float32 copies of weights stored in fewer bits are kept if they fit easily, else made for each use. */
static bool must_be_lazy(const model_core *model) {
    return model->net.form == WEIGHT_F32 && model_packed_bytes(model) > model->available_bytes / 2;
}

static void drop_panels(model_core *model) {
    model->net.weights.packed_bytes = 0;
    if (model->encoder) model->encoder->net.weights.packed_bytes = 0;
}

static mn_status prepare(model_core *model, const mn_model_options *options) {
    model_weights bound = {0};
    bool is_auto;
    mn_status status = model_bind(&bound, &model->net.config, model_tensors(model), model->file != NULL);
    if (status == MN_OK) status = choose_compute(model, options->compute_type, &bound, &is_auto);
    if (status == MN_OK) status = weights_plan(&model->net, &bound, is_auto, model->file != NULL);
    if (status == MN_OK && model->net.config.encoder) status = encoder_plan(model, is_auto);
    model->n_left_out = bound.n_left_out;
    model_weights_clear(&bound);
    MN_TRY(status);
    bool lazy = must_be_lazy(model);
    if (lazy) drop_panels(model);
    size_t scratch = scratch_need(&model->net.config, lazy);
    if (model->encoder) scratch = largest(scratch, scratch_need(&model->encoder->net.config, lazy));
    MN_TRY(check_need(model, model_packed_bytes(model) + scratch * (size_t)model->compute.n_threads));
    MN_TRY(open_scratch(&model->compute, scratch));
    MN_TRY(packed_map(&model->net, model, options->packed_dir));
    if (model->encoder) MN_TRY(packed_map(&model->encoder->net, model, options->packed_dir));
    MN_TRY(weights_pack(&model->net, model_tensors(model), lazy,
                        (weights_progress){options->progress, options->progress_user}));
    model->reference = model->net.form == WEIGHT_F32;
    model->net.workspace.frequencies = mem_alloc((size_t)model->net.config.rotary_dim / 2 + 1, sizeof(double));
    if (!model->net.workspace.frequencies) return MN_E_NOMEM;
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
    model->net.compute = &model->compute;
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

void model_close(model_core **model) {
    model_core *m = *model;
    if (!m) return;
    encoder_close(&m->encoder);
    network_clear(&m->net);
    kv_pool_close(&m->pool);
    kv_calibration_close(&m->calibrations);
    mem_free(m->calibration_path);
    for (int i = 0; m->compute.scratch && i < m->compute.n_threads; i++) mem_free(m->compute.scratch[i]);
    mem_free(m->compute.scratch);
    mem_free(m->compute.ranges);
    thread_pool_close(&m->compute.pool);
    model_config_clear(&m->net.config);
    gguf_close(&m->file);
    tensor_set_close(&m->tensors);
    pthread_mutex_destroy(&m->lock);
    mem_free(m->what);
    mem_free(m);
    *model = NULL;
}
