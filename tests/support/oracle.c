/* SPDX-License-Identifier: Apache-2.0 */
#include "support/oracle.h"

#include <math.h>

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

/* ---- reading ---- */

static double number(const json *root, const char *name, double standard) {
    const json *value = json_get(root, name);
    if (!value || value->kind == JSON_NULL) return standard;
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static float *read_floats(const tensor_set *set, const char *name, size_t n) {
    const tensor *t = tensor_set_find(set, name);
    if (!t) return NULL;
    assert_int_equal(t->bytes, n * (t->type == DTYPE_F32 ? 4 : 2));
    float *values = malloc(n * sizeof *values);
    dtype_table[t->type].to_f32(values, t->data, n);
    return values;
}

static float *read_of_layer(const tensor_set *set, int i_layer, const char *name, const char *kind,
                            size_t n) {
    char full[128];
    snprintf(full, sizeof full, "model.layers.%d.%s.%s", i_layer, name, kind);
    return read_floats(set, full, n);
}

/* Matrices that a checkpoint keeps one above the other in one tensor; NULL when it does not have it. */
static float *read_fused(const oracle *o, const tensor_set *set, int i_layer, const char *name,
                         oracle_matrix first, oracle_matrix last, oracle_matrix wanted) {
    size_t rows = 0, before = 0, columns = (size_t)oracle_columns(o, wanted);
    for (oracle_matrix m = first; m <= last; m = (oracle_matrix)(m + 1)) {
        before += m < wanted ? (size_t)oracle_rows(o, m) : 0;
        rows += (size_t)oracle_rows(o, m);
    }
    if (wanted < first || wanted > last) return NULL;
    float *all = read_of_layer(set, i_layer, name, "weight", rows * columns);
    if (!all) return NULL;
    size_t n = (size_t)oracle_rows(o, wanted) * columns;
    float *part = malloc(n * sizeof *part);
    memcpy(part, all + before * columns, n * sizeof *part);
    free(all);
    return part;
}

static void read_layer(const oracle *o, oracle_layer *layer, const tensor_set *set, int i) {
    static const char *const names[ORACLE_MATRICES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    for (oracle_matrix m = 0; m < ORACLE_MATRICES; m = (oracle_matrix)(m + 1)) {
        size_t rows = (size_t)oracle_rows(o, m);
        layer->matrix[m] = read_of_layer(set, i, names[m], "weight", rows * (size_t)oracle_columns(o, m));
        layer->bias[m] = read_of_layer(set, i, names[m], "bias", rows);
        float *fused = read_fused(o, set, i, "self_attn.qkv_proj", ORACLE_Q, ORACLE_V, m);
        if (!fused) fused = read_fused(o, set, i, "mlp.gate_up_proj", ORACLE_GATE, ORACLE_UP, m);
        if (fused) layer->matrix[m] = fused;
        assert_non_null(layer->matrix[m]);
    }
    layer->attention_norm = read_of_layer(set, i, "input_layernorm", "weight", (size_t)o->hidden);
    layer->mlp_norm = read_of_layer(set, i, "post_attention_layernorm", "weight", (size_t)o->hidden);
    layer->q_norm = read_of_layer(set, i, "self_attn.q_norm", "weight", (size_t)o->head_dim);
    layer->k_norm = read_of_layer(set, i, "self_attn.k_norm", "weight", (size_t)o->head_dim);
}

/* Which layers slide: a list where there is one, else all when the configuration has a window in use. */
static int window_of(const json *root, int i_layer) {
    int window = (int)number(root, "sliding_window", 0);
    const json *types = json_get(root, "layer_types"), *used = json_get(root, "use_sliding_window");
    if (types && types->kind == JSON_ARRAY)
        return json_is_string(&types->items[i_layer], "sliding_attention") ? window : 0;
    return used && !used->boolean ? 0 : window;
}

oracle oracle_open(const char *folder) {
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_doc *doc = open_json(path);
    const json *root = json_root(doc), *scaling = json_get(root, "rope_scaling");
    assert_true(!scaling || scaling->kind == JSON_NULL);
    oracle o = {.hidden = (int)number(root, "hidden_size", 0),
                .inner = (int)number(root, "intermediate_size", 0),
                .n_layers = (int)number(root, "num_hidden_layers", 0),
                .n_heads = (int)number(root, "num_attention_heads", 0),
                .vocab = (int)number(root, "vocab_size", 0),
                .eps = number(root, "rms_norm_eps", 0),
                .theta = number(root, "rope_theta", 10000)};
    o.n_kv_heads = (int)number(root, "num_key_value_heads", o.n_heads);
    o.head_dim = (int)number(root, "head_dim", o.hidden / o.n_heads);
    tensor_set *set = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(safetensors_open(&set, path));
    size_t table = (size_t)o.vocab * (size_t)o.hidden;
    o.embed = read_floats(set, "model.embed_tokens.weight", table);
    o.head = read_floats(set, "lm_head.weight", table);
    o.final_norm = read_floats(set, "model.norm.weight", (size_t)o.hidden);
    assert_non_null(o.embed);
    o.layers = calloc((size_t)o.n_layers, sizeof *o.layers);
    for (int i = 0; i < o.n_layers; i++) {
        read_layer(&o, &o.layers[i], set, i);
        o.layers[i].window = window_of(root, i);
    }
    tensor_set_close(&set);
    json_close(&doc);
    return o;
}

void oracle_close(oracle *o) {
    for (int i = 0; i < o->n_layers; i++) {
        oracle_layer *layer = &o->layers[i];
        for (int m = 0; m < ORACLE_MATRICES; m++) {
            free(layer->matrix[m]);
            free(layer->bias[m]);
        }
        free(layer->attention_norm);
        free(layer->mlp_norm);
        free(layer->q_norm);
        free(layer->k_norm);
    }
    free(o->layers);
    free(o->embed);
    free(o->head);
    free(o->final_norm);
    *o = (oracle){0};
}

/* ---- computing ---- */

static double *doubles(size_t a, size_t b) {
    double *x = calloc(a * b, sizeof *x);
    assert_non_null(x);
    return x;
}

static void multiply(double *y, const float *w, const float *bias, const double *x, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        double sum = bias ? (double)bias[i] : 0;
        for (int j = 0; j < columns; j++) sum += (double)w[(size_t)i * (size_t)columns + (size_t)j] * x[j];
        y[i] = sum;
    }
}

static void normalize(double *y, const double *x, const float *weight, int n, double eps) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    double factor = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * factor * (double)weight[i];
}

/* Turns the pairs (i, i + d/2) of each head by position * theta^(-2i/d). */
static void rotate_heads(const oracle *o, double *x, int n_heads, double position) {
    int half = o->head_dim / 2;
    for (int head = 0; head < n_heads; head++, x += o->head_dim) {
        for (int i = 0; i < half; i++) {
            double angle = position * pow(o->theta, -2.0 * i / o->head_dim);
            double a = x[i], b = x[i + half];
            x[i] = a * cos(angle) - b * sin(angle);
            x[i + half] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* A query over n keys and values [n][kv heads * head_dim]; weights: [n] scratch. */
static void attend_all(const oracle *o, const double *q, const double *k, const double *v, size_t n,
                       double *weights, double *out) {
    int group = o->n_heads / o->n_kv_heads, dim = o->head_dim;
    size_t width = (size_t)(o->n_kv_heads * dim);
    for (int head = 0; head < o->n_heads; head++) {
        size_t offset = (size_t)(head / group * dim);
        double largest = -INFINITY, sum = 0;
        for (size_t t = 0; t < n; t++) {
            double dot = 0;
            for (int i = 0; i < dim; i++) dot += q[head * dim + i] * k[t * width + offset + (size_t)i];
            weights[t] = dot / sqrt(dim);
            largest = fmax(largest, weights[t]);
        }
        for (size_t t = 0; t < n; t++) sum += weights[t] = exp(weights[t] - largest);
        for (int i = 0; i < dim; i++) {
            double value = 0;
            for (size_t t = 0; t < n; t++) value += weights[t] * v[t * width + offset + (size_t)i];
            out[head * dim + i] = value / sum;
        }
    }
}

/* The query at `position`, not rotated yet, over what it sees of keys (rotated at their positions) and
 * values. */
static void attend_one(const oracle *o, const oracle_layer *layer, double *q, const double *k,
                       const double *v, size_t position, double *out) {
    size_t width = (size_t)(o->n_kv_heads * o->head_dim), n = position + 1, first = 0,
           sinks = (size_t)layer->sinks, window = (size_t)layer->window;
    double *weights = doubles(n, 1);
    if (window > 0 && n > sinks + window) first = n - window;
    if (first == 0 || sinks == 0) {
        rotate_heads(o, q, o->n_heads, (double)position);
        attend_all(o, q, k + first * width, v + first * width, n - first, weights, out);
    } else { /* positions are places among the visible tokens */
        size_t n_seen = sinks + window;
        double *seen_k = doubles(n_seen, width), *seen_v = doubles(n_seen, width);
        for (size_t i = 0; i < n_seen; i++) {
            size_t t = i < sinks ? i : first + i - sinks;
            memcpy(seen_k + i * width, k + t * width, width * sizeof *k);
            memcpy(seen_v + i * width, v + t * width, width * sizeof *v);
            rotate_heads(o, seen_k + i * width, o->n_kv_heads, (double)i - (double)t);
        }
        rotate_heads(o, q, o->n_heads, (double)(n_seen - 1));
        attend_all(o, q, seen_k, seen_v, n_seen, weights, out);
        free(seen_k);
        free(seen_v);
    }
    free(weights);
}

/* Query (not rotated), key (rotated) and value of a token from its row of the residual stream. */
static void project(const oracle *o, const oracle_layer *layer, const double *h, size_t position, double *q,
                    double *k, double *v) {
    int q_width = o->n_heads * o->head_dim, kv_width = o->n_kv_heads * o->head_dim;
    double *x = doubles((size_t)o->hidden, 1);
    normalize(x, h, layer->attention_norm, o->hidden, o->eps);
    multiply(q, layer->matrix[ORACLE_Q], layer->bias[ORACLE_Q], x, q_width, o->hidden);
    multiply(k, layer->matrix[ORACLE_K], layer->bias[ORACLE_K], x, kv_width, o->hidden);
    multiply(v, layer->matrix[ORACLE_V], layer->bias[ORACLE_V], x, kv_width, o->hidden);
    for (int i = 0; layer->q_norm && i < o->n_heads; i++)
        normalize(q + i * o->head_dim, q + i * o->head_dim, layer->q_norm, o->head_dim, o->eps);
    for (int i = 0; layer->k_norm && i < o->n_kv_heads; i++)
        normalize(k + i * o->head_dim, k + i * o->head_dim, layer->k_norm, o->head_dim, o->eps);
    rotate_heads(o, k, o->n_kv_heads, (double)position);
    free(x);
}

static void add_output(const oracle *o, const oracle_layer *layer, double *h, const double *attended) {
    double *x = doubles((size_t)o->hidden, 1);
    multiply(x, layer->matrix[ORACLE_O], layer->bias[ORACLE_O], attended, o->hidden,
             o->n_heads * o->head_dim);
    for (int i = 0; i < o->hidden; i++) h[i] += x[i];
    free(x);
}

static void attention(const oracle *o, const oracle_layer *layer, double *h, size_t n) {
    size_t q_width = (size_t)(o->n_heads * o->head_dim), kv_width = (size_t)(o->n_kv_heads * o->head_dim),
           hidden = (size_t)o->hidden;
    double *q = doubles(n, q_width), *k = doubles(n, kv_width), *v = doubles(n, kv_width),
           *out = doubles(q_width, 1);
    for (size_t t = 0; t < n; t++)
        project(o, layer, h + t * hidden, t, q + t * q_width, k + t * kv_width, v + t * kv_width);
    for (size_t t = 0; t < n; t++) {
        attend_one(o, layer, q + t * q_width, k, v, t, out);
        add_output(o, layer, h + t * hidden, out);
    }
    free(q);
    free(k);
    free(v);
    free(out);
}

static void feed_forward(const oracle *o, const oracle_layer *layer, double *h, size_t n) {
    double *x = doubles((size_t)o->hidden, 1), *gate = doubles((size_t)o->inner, 1),
           *up = doubles((size_t)o->inner, 1);
    for (size_t t = 0; t < n; t++, h += o->hidden) {
        normalize(x, h, layer->mlp_norm, o->hidden, o->eps);
        multiply(gate, layer->matrix[ORACLE_GATE], layer->bias[ORACLE_GATE], x, o->inner, o->hidden);
        multiply(up, layer->matrix[ORACLE_UP], layer->bias[ORACLE_UP], x, o->inner, o->hidden);
        for (int i = 0; i < o->inner; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        multiply(x, layer->matrix[ORACLE_DOWN], layer->bias[ORACLE_DOWN], gate, o->hidden, o->inner);
        for (int i = 0; i < o->hidden; i++) h[i] += x[i];
    }
    free(x);
    free(gate);
    free(up);
}

static void embed(const oracle *o, int32_t id, double *h) {
    for (int i = 0; i < o->hidden; i++) h[i] = (double)o->embed[(size_t)id * (size_t)o->hidden + (size_t)i];
}

static void head_logits(const oracle *o, const double *h, double *logits) {
    double *x = doubles((size_t)o->hidden, 1);
    normalize(x, h, o->final_norm, o->hidden, o->eps);
    multiply(logits, o->head ? o->head : o->embed, NULL, x, o->vocab, o->hidden);
    free(x);
}

void oracle_logits(const oracle *o, const int32_t *ids, size_t n, double *logits) {
    size_t hidden = (size_t)o->hidden;
    double *h = doubles(n, hidden);
    for (size_t t = 0; t < n; t++) embed(o, ids[t], h + t * hidden);
    for (int i = 0; i < o->n_layers; i++) {
        attention(o, &o->layers[i], h, n);
        feed_forward(o, &o->layers[i], h, n);
    }
    for (size_t t = 0; t < n; t++) head_logits(o, h + t * hidden, logits + t * (size_t)o->vocab);
    free(h);
}

/* [kv heads][n][head_dim] as a cache is read to [n][kv heads * head_dim] in double. */
static void widen_rows(const oracle *o, double *to, const float *from, size_t n) {
    size_t dim = (size_t)o->head_dim, width = (size_t)o->n_kv_heads * dim;
    for (size_t head = 0; head < (size_t)o->n_kv_heads; head++) {
        for (size_t t = 0; t < n; t++) {
            for (size_t i = 0; i < dim; i++)
                to[t * width + head * dim + i] = (double)from[(head * n + t) * dim + i];
        }
    }
}

void oracle_continue(const oracle *o, int32_t id, const oracle_past *past, size_t n, double *logits) {
    size_t q_width = (size_t)(o->n_heads * o->head_dim), kv_width = (size_t)(o->n_kv_heads * o->head_dim);
    double *h = doubles((size_t)o->hidden, 1), *q = doubles(q_width, 1), *out = doubles(q_width, 1),
           *k = doubles(n + 1, kv_width), *v = doubles(n + 1, kv_width);
    embed(o, id, h);
    for (int i = 0; i < o->n_layers; i++) {
        const oracle_layer *layer = &o->layers[i];
        widen_rows(o, k, past[i].k, n);
        widen_rows(o, v, past[i].v, n);
        project(o, layer, h, n, q, k + n * kv_width, v + n * kv_width);
        attend_one(o, layer, q, k, v, n, out);
        add_output(o, layer, h, out);
        feed_forward(o, layer, h, 1);
    }
    head_logits(o, h, logits);
    free(h);
    free(q);
    free(out);
    free(k);
    free(v);
}

double oracle_distance(const float *got, const double *wanted, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)got[i] - wanted[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}
