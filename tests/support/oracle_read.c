/* Reads config.json and model.safetensors for the oracle, with the names of each family.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/oracle.h"
#include "support/support.h"
#include "tensor/safetensors.h"

int oracle_rows(const oracle *o, oracle_matrix matrix) {
    const int rows[ORACLE_MATRICES] = {[ORACLE_Q] = o->n_heads * o->head_dim,
                                       [ORACLE_K] = o->n_kv_heads * o->head_dim,
                                       [ORACLE_V] = o->n_kv_heads * o->head_dim,
                                       [ORACLE_O] = o->hidden,
                                       [ORACLE_GATE] = o->inner,
                                       [ORACLE_UP] = o->inner,
                                       [ORACLE_DOWN] = o->hidden};
    return rows[matrix];
}

int oracle_columns(const oracle *o, oracle_matrix matrix) {
    if (matrix == ORACLE_O) return o->n_heads * o->head_dim;
    return matrix == ORACLE_DOWN ? o->inner : o->hidden;
}

/* Tensor names of a family. NULL: it has no such tensor. */
typedef struct family {
    const char *model_type;
    const char *embed, *final_norm, *head, *layers;
    const char *attention_norm, *mlp_norm, *attention_post_norm, *mlp_post_norm;
    const char *matrix[ORACLE_MATRICES];
    const char *qkv; /* all three in one tensor */
    const char *router, *experts[3];
    const char *shared[3], *share;
    const char *mixer;
    bool is_transposed; /* matrices are [inputs][outputs] */
    bool by_head;       /* qkv: [heads][3][head_dim] rows */
    bool is_gemma;      /* norms multiply by 1 + weight, embeddings are scaled */
    bool layer_norm, is_parallel, norms_all_heads, turns_neighbours;
} family;

#define LLAMA_GLOBALS   "model.embed_tokens.weight", "model.norm", "lm_head.weight", "model.layers.%d."
#define LLAMA_ATTENTION "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"
#define LLAMA_MLP       "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
#define QWEN_EXPERTS    "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj"

static const family families[] = {
    {"mixtral", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION},
     .router = "block_sparse_moe.gate",
     .experts = {"block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3", "block_sparse_moe.experts.%d.w2"}},
    {"qwen2_moe", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION},
     .router = "mlp.gate", .experts = {QWEN_EXPERTS},
     .shared = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"},
     .share = "mlp.shared_expert_gate"},
    {"qwen3_moe", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION},
     .router = "mlp.gate", .experts = {QWEN_EXPERTS}},
    {"olmo2", LLAMA_GLOBALS, .attention_post_norm = "post_attention_layernorm",
     .mlp_post_norm = "post_feedforward_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP}, .norms_all_heads = true},
    {"stablelm", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP},
     .layer_norm = true},
    {"cohere", LLAMA_GLOBALS, "input_layernorm", "input_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP},
     .layer_norm = true, .is_parallel = true, .turns_neighbours = true},
    {"phi", "model.embed_tokens.weight", "model.final_layernorm", "lm_head.weight", "model.layers.%d.",
     "input_layernorm", "input_layernorm",
     .matrix = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                "self_attn.dense", [ORACLE_UP] = "mlp.fc1", [ORACLE_DOWN] = "mlp.fc2"},
     .layer_norm = true, .is_parallel = true},
    {"gemma", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP},
     .is_gemma = true},
    {"gemma2", LLAMA_GLOBALS, "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm",
     "post_feedforward_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP}, .is_gemma = true},
    {"gemma3_text", LLAMA_GLOBALS, "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm",
     "post_feedforward_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP}, .is_gemma = true},
    {"gpt2", "transformer.wte.weight", "transformer.ln_f", "lm_head.weight", "transformer.h.%d.", "ln_1", "ln_2",
     .matrix = {[ORACLE_O] = "attn.c_proj", [ORACLE_UP] = "mlp.c_fc", [ORACLE_DOWN] = "mlp.c_proj"},
     .qkv = "attn.c_attn", .is_transposed = true, .layer_norm = true},
    {"gpt_neox", "gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm", "embed_out.weight", "gpt_neox.layers.%d.",
     "input_layernorm", "post_attention_layernorm",
     .matrix = {[ORACLE_O] = "attention.dense", [ORACLE_UP] = "mlp.dense_h_to_4h", [ORACLE_DOWN] = "mlp.dense_4h_to_h"},
     .qkv = "attention.query_key_value", .by_head = true, .layer_norm = true},
    {"mamba", "backbone.embeddings.weight", "backbone.norm_f", "lm_head.weight", "backbone.layers.%d.", "norm",
     .mixer = "mixer."},
    {"jamba", "model.embed_tokens.weight", "model.final_layernorm", "lm_head.weight", "model.layers.%d.",
     "input_layernorm", "pre_ff_layernorm",
     .matrix = {LLAMA_ATTENTION, "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"},
     .router = "feed_forward.router",
     .experts = {"feed_forward.experts.%d.gate_proj", "feed_forward.experts.%d.up_proj",
                 "feed_forward.experts.%d.down_proj"},
     .mixer = "mamba."},
    /* the others; Phi-3 concatenates the rows of its matrices */
    {"llama", LLAMA_GLOBALS, "input_layernorm", "post_attention_layernorm", .matrix = {LLAMA_ATTENTION, LLAMA_MLP},
     .qkv = "self_attn.qkv_proj"},
};

static const family *family_of(const json *root) {
    const family *f = families;
    while (strcmp(f->model_type, "llama") != 0 && !json_is_string(json_get(root, "model_type"), f->model_type)) f++;
    return f;
}

/* ---- numbers of the configuration ---- */

static double number(const json *root, const char *name, double standard) {
    const json *value = json_get(root, name);
    if (!value || value->kind == JSON_NULL) return standard;
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

/* The value of the first of several names that exists. */
static double number_of(const json *root, const char *const *names, double standard) {
    for (; *names; names++) {
        const json *value = json_get(root, *names);
        if (value && value->kind != JSON_NULL) return number(root, *names, standard);
    }
    return standard;
}
#define NUMBER(root, standard, ...) number_of(root, (const char *const[]){__VA_ARGS__, NULL}, standard)

static bool flag(const json *root, const char *name, bool standard) {
    const json *value = json_get(root, name);
    return value && value->kind == JSON_BOOL ? value->boolean : standard;
}

static void read_sizes(oracle *o, const json *root) {
    o->hidden = (int)NUMBER(root, 0, "hidden_size", "n_embd");
    o->inner = (int)NUMBER(root, 4 * o->hidden, "moe_intermediate_size", "intermediate_size", "n_inner");
    o->shared_inner = (int)number(root, "shared_expert_intermediate_size", 0);
    o->n_layers = (int)NUMBER(root, 0, "num_hidden_layers", "n_layer");
    o->n_heads = (int)NUMBER(root, 0, "num_attention_heads", "n_head");
    o->n_kv_heads = (int)number(root, "num_key_value_heads", o->n_heads);
    o->head_dim = (int)number(root, "head_dim", o->n_heads ? o->hidden / o->n_heads : 0);
    o->vocab = (int)number(root, "vocab_size", 0);
    o->n_experts = (int)NUMBER(root, 0, "num_local_experts", "num_experts");
    o->n_chosen = (int)number(root, "num_experts_per_tok", 2);
    o->states = (int)NUMBER(root, 16, "state_size", "mamba_d_state");
    o->conv = (int)NUMBER(root, 4, "conv_kernel", "mamba_d_conv");
    o->rank = (int)NUMBER(root, ceil(o->hidden / 16.0), "time_step_rank", "mamba_dt_rank");
    o->channels = o->hidden * (int)NUMBER(root, 2, "expand", "mamba_expand");
}

static void read_rules(oracle *o, const json *root, const family *f) {
    const json *type = json_get(root, "model_type"), *act = NULL;
    const char *const activations[] = {"hidden_activation", "hidden_act", "activation_function", NULL};
    for (int i = 0; activations[i] && (!act || act->kind == JSON_NULL); i++) act = json_get(root, activations[i]);
    bool gemma = f->is_gemma, neox = f->by_head, gpt2 = f->is_transposed;
    o->activation = !act || json_is_string(act, "silu") ? ORACLE_SILU
                    : json_is_string(act, "gelu")       ? ORACLE_GELU
                                                        : ORACLE_GELU_TANH;
    o->layer_norm = f->layer_norm;
    o->norm_adds_one = gemma;
    o->norms_all_heads = f->norms_all_heads;
    o->turns_neighbours = f->turns_neighbours;
    o->is_parallel = f->is_parallel || (neox && flag(root, "use_parallel_residual", true));
    o->experts_sum_to_one = flag(root, "norm_topk_prob", json_is_string(type, "mixtral"));
    o->eps = NUMBER(root, 1e-5, "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps");
    o->theta = number(root, "rope_theta", 10000);
    o->local_theta = number(root, "rope_local_base_freq", o->theta);
    bool turns = !gpt2 && !f->mixer;
    o->rotary = turns ? (int)(o->head_dim * NUMBER(root, neox ? 0.25 : 1, "partial_rotary_factor", "rotary_pct")) : 0;
    double scalar = number(root, "query_pre_attn_scalar", o->head_dim); /* Gemma 2 and 3 */
    o->score_scale = number(root, "attention_multiplier", 1 / sqrt(scalar));
    o->score_cap = number(root, "attn_logit_softcapping", 0);
    o->logit_cap = number(root, "final_logit_softcapping", 0);
    o->embed_scale = number(root, "embedding_multiplier", gemma ? (double)(float)sqrt(o->hidden) : 1);
    o->residual_scale = number(root, "residual_multiplier", 1);
    o->logit_divisor = number(root, "logits_scaling", 1) / number(root, "logit_scale", 1);
}

/* Layers with a sliding window: those of the list if there is one, else all when the configuration uses a window. */
static int window_of(const json *root, int i_layer) {
    int window = (int)number(root, "sliding_window", 0);
    const json *types = json_get(root, "layer_types");
    if (types && types->kind == JSON_ARRAY)
        return json_is_string(&types->items[i_layer], "sliding_attention") ? window : 0;
    return flag(root, "use_sliding_window", true) ? window : 0;
}

/* SmolLM3's list: 0 for a layer without rotation. */
static bool has_no_rope(const json *root, int i_layer) {
    const json *turned = json_get(root, "no_rope_layers");
    return turned && turned->kind == JSON_ARRAY && turned->items[i_layer].integer == 0;
}

/* ---- tensors ---- */

static float *read_floats(const tensor_set *set, const char *name, size_t n) {
    const tensor *t = tensor_set_find(set, name);
    if (!t) return NULL;
    assert_int_equal(t->bytes, n * (t->type == DTYPE_F32 ? 4 : 2));
    float *values = malloc(n * sizeof *values);
    dtype_table[t->type].to_f32(values, t->data, n);
    return values;
}

/* The checkpoint and name prefix of a layer's tensors. */
typedef struct place {
    const tensor_set *set;
    const family *f;
    int layer;
} place;

/* Reads a layer's tensor `name`, in which %d is the expert, of a kind such as ".weight" ("": none). */
static float *read_named(const place *p, const char *name, int expert, const char *kind, size_t n) {
    char prefix[64], inner[96], full[200];
    if (!name) return NULL;
    const char *number = strstr(name, "%d");
    if (number) {
        snprintf(inner, sizeof inner, "%.*s%d%s", (int)(number - name), name, expert, number + 2);
    } else {
        snprintf(inner, sizeof inner, "%s", name);
    }
    number = strstr(p->f->layers, "%d");
    snprintf(prefix, sizeof prefix, "%.*s%d%s", (int)(number - p->f->layers), p->f->layers, p->layer, number + 2);
    snprintf(full, sizeof full, "%s%s%s%s", prefix, inner, *kind ? "." : "", kind);
    return read_floats(p->set, full, n);
}

static float *read_vector(const place *p, const char *name, const char *kind, int n) {
    return read_named(p, name, 0, kind, (size_t)n);
}

/* [rows][columns], whatever the stored order. */
static float *read_matrix(const place *p, const char *name, int expert, int rows, int columns) {
    size_t n = (size_t)rows * (size_t)columns;
    float *stored = read_named(p, name, expert, "weight", n);
    if (!stored || !p->f->is_transposed) return stored;
    float *turned = malloc(n * sizeof *turned);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) turned[i * columns + j] = stored[j * rows + i];
    }
    free(stored);
    return turned;
}

/* A range of rows of the matrix `all` with `width` columns, which is freed. */
static float *part_of(const oracle *o, const family *f, float *all, oracle_matrix first, oracle_matrix wanted,
                      size_t width) {
    size_t rows = (size_t)oracle_rows(o, wanted), before = 0, dim = (size_t)o->head_dim;
    if (!all) return NULL;
    for (oracle_matrix m = first; m < wanted; m = (oracle_matrix)(m + 1)) before += (size_t)oracle_rows(o, m);
    float *part = malloc(rows * width * sizeof *part);
    for (size_t i = 0; i < rows; i++) {
        size_t from = f->by_head ? (i / dim * 3 + (size_t)(wanted - first)) * dim + i % dim : before + i;
        memcpy(part + i * width, all + from * width, width * sizeof *part);
    }
    free(all);
    return part;
}

static void read_matrices(const oracle *o, oracle_layer *layer, const place *p) {
    int q_rows = oracle_rows(o, ORACLE_Q), all = q_rows + 2 * oracle_rows(o, ORACLE_K);
    for (oracle_matrix m = 0; m < ORACLE_MATRICES; m = (oracle_matrix)(m + 1)) {
        int rows = oracle_rows(o, m), columns = oracle_columns(o, m);
        layer->matrix[m] = read_matrix(p, p->f->matrix[m], 0, rows, columns);
        layer->bias[m] = read_vector(p, p->f->matrix[m], "bias", rows);
        if (!layer->matrix[m] && m <= ORACLE_V) {
            layer->matrix[m] =
                part_of(o, p->f, read_matrix(p, p->f->qkv, 0, all, columns), ORACLE_Q, m, (size_t)columns);
            layer->bias[m] = part_of(o, p->f, read_vector(p, p->f->qkv, "bias", all), ORACLE_Q, m, 1);
        }
        if (!layer->matrix[m] && (m == ORACLE_GATE || m == ORACLE_UP))
            layer->matrix[m] = part_of(o, p->f, read_matrix(p, "mlp.gate_up_proj", 0, 2 * rows, columns), ORACLE_GATE,
                                       m, (size_t)columns);
    }
}

static void read_shared_expert(const oracle *o, oracle_layer *layer, const place *p) {
    int inner = o->shared_inner;
    layer->share = read_matrix(p, p->f->share, 0, 1, o->hidden);
    for (int i = 0; layer->share && i < 3; i++) {
        layer->shared[i] = read_matrix(p, p->f->shared[i], 0, i < 2 ? inner : o->hidden, i < 2 ? o->hidden : inner);
        assert_non_null(layer->shared[i]);
    }
}

static void read_experts(const oracle *o, oracle_layer *layer, const place *p) {
    size_t n = (size_t)o->n_experts;
    read_shared_expert(o, layer, p);
    layer->router = read_matrix(p, p->f->router, 0, o->n_experts, o->hidden);
    if (!layer->router) return;
    layer->experts = calloc(n, sizeof *layer->experts);
    for (int e = 0; e < o->n_experts; e++) {
        for (int i = 0; i < 3; i++) {
            oracle_matrix m = (oracle_matrix)(ORACLE_GATE + i);
            layer->experts[e][i] = read_matrix(p, p->f->experts[i], e, oracle_rows(o, m), oracle_columns(o, m));
            assert_non_null(layer->experts[e][i]);
        }
    }
}

static void read_mixer(const oracle *o, oracle_layer *layer, const place *p) {
    oracle_mixer *x = calloc(1, sizeof *x);
    const struct {
        float **to;
        const char *name, *kind;
        int n;
        bool is_needed;
    } parts[] = {
        {&x->in, "in_proj", "weight", 2 * o->channels * o->hidden, true},
        {&x->in_bias, "in_proj", "bias", 2 * o->channels, false},
        {&x->conv, "conv1d", "weight", o->channels * o->conv, true},
        {&x->conv_bias, "conv1d", "bias", o->channels, false},
        {&x->x, "x_proj", "weight", (o->rank + 2 * o->states) * o->channels, true},
        {&x->dt, "dt_proj", "weight", o->channels * o->rank, true},
        {&x->dt_bias, "dt_proj", "bias", o->channels, true},
        {&x->a_log, "A_log", "", o->channels * o->states, true},
        {&x->d, "D", "", o->channels, true},
        {&x->out, "out_proj", "weight", o->hidden * o->channels, true},
        {&x->out_bias, "out_proj", "bias", o->hidden, false},
        {&x->dt_norm, "dt_layernorm", "weight", o->rank, false},
        {&x->b_norm, "b_layernorm", "weight", o->states, false},
        {&x->c_norm, "c_layernorm", "weight", o->states, false},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", p->f->mixer, parts[i].name);
        *parts[i].to = read_vector(p, name, parts[i].kind, parts[i].n);
        if (parts[i].is_needed) assert_non_null(*parts[i].to);
    }
    layer->mixer = x;
}

static void read_layer(const oracle *o, oracle_layer *layer, const place *p, int window) {
    const family *f = p->f;
    int n_heads = o->norms_all_heads ? o->n_heads : 1, n_kv_heads = o->norms_all_heads ? o->n_kv_heads : 1;
    layer->attention_norm = read_vector(p, f->attention_norm, "weight", o->hidden);
    layer->mlp_norm = read_vector(p, f->mlp_norm, "weight", o->hidden);
    layer->attention_norm_bias = read_vector(p, f->attention_norm, "bias", o->hidden);
    layer->mlp_norm_bias = read_vector(p, f->mlp_norm, "bias", o->hidden);
    layer->attention_post_norm = read_vector(p, f->attention_post_norm, "weight", o->hidden);
    layer->mlp_post_norm = read_vector(p, f->mlp_post_norm, "weight", o->hidden);
    layer->q_norm = read_vector(p, "self_attn.q_norm", "weight", n_heads * o->head_dim);
    layer->k_norm = read_vector(p, "self_attn.k_norm", "weight", n_kv_heads * o->head_dim);
    layer->window = window;
    layer->theta = window ? o->local_theta : o->theta;
    read_matrices(o, layer, p);
    read_experts(o, layer, p);
    if (!layer->matrix[ORACLE_Q]) read_mixer(o, layer, p);
    assert_true(layer->attention_norm || layer->attention_post_norm);
}

oracle oracle_open(const char *folder) {
    char path[1024], name[64];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_doc *doc = open_json(path);
    const json *root = json_root(doc), *scaling = json_get(root, "rope_scaling");
    const family *f = family_of(root);
    oracle o = {.is_scaled = scaling && scaling->kind != JSON_NULL};
    read_sizes(&o, root);
    read_rules(&o, root, f);
    tensor_set *set = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(safetensors_open(&set, path));
    size_t table = (size_t)o.vocab * (size_t)o.hidden;
    o.embed = read_floats(set, f->embed, table);
    o.head = read_floats(set, f->head, table);
    o.head_bias = read_floats(set, "lm_head.bias", (size_t)o.vocab);
    snprintf(name, sizeof name, "%s.weight", f->final_norm);
    o.final_norm = read_floats(set, name, (size_t)o.hidden);
    snprintf(name, sizeof name, "%s.bias", f->final_norm);
    o.final_norm_bias = read_floats(set, name, (size_t)o.hidden);
    o.positions = read_floats(set, "transformer.wpe.weight", (size_t)number(root, "n_positions", 0) * (size_t)o.hidden);
    assert_non_null(o.embed);
    assert_non_null(o.final_norm);
    o.layers = calloc((size_t)o.n_layers, sizeof *o.layers);
    for (int i = 0; i < o.n_layers; i++) {
        read_layer(&o, &o.layers[i], &(place){set, f, i}, window_of(root, i));
        o.layers[i].has_no_rope = has_no_rope(root, i);
    }
    tensor_set_close(&set);
    json_close(&doc);
    return o;
}

static void close_mixer(oracle_mixer *x) {
    float *const parts[] = {x->in, x->in_bias, x->conv, x->conv_bias, x->x,       x->dt,     x->dt_bias,
                            x->d,  x->a_log,   x->out,  x->out_bias,  x->dt_norm, x->b_norm, x->c_norm};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
    free(x);
}

static void close_layer(const oracle *o, oracle_layer *layer) {
    float *const norms[] = {layer->attention_norm, layer->mlp_norm, layer->attention_norm_bias, layer->mlp_norm_bias,
                            layer->q_norm,         layer->k_norm,   layer->attention_post_norm, layer->mlp_post_norm,
                            layer->router,         layer->share,    layer->shared[0],           layer->shared[1],
                            layer->shared[2]};
    for (int m = 0; m < ORACLE_MATRICES; m++) {
        free(layer->matrix[m]);
        free(layer->bias[m]);
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) free(norms[i]);
    for (int e = 0; layer->experts && e < o->n_experts; e++) {
        for (int i = 0; i < 3; i++) free(layer->experts[e][i]);
    }
    free(layer->experts);
    if (layer->mixer) close_mixer(layer->mixer);
}

void oracle_close(oracle *o) {
    for (int i = 0; i < o->n_layers; i++) close_layer(o, &o->layers[i]);
    free(o->layers);
    free(o->embed);
    free(o->positions);
    free(o->head);
    free(o->head_bias);
    free(o->final_norm);
    free(o->final_norm_bias);
    *o = (oracle){0};
}
