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

static void read_layer(const oracle *o, oracle_layer *layer, const tensor_set *set, int i) {
    static const char *const names[ORACLE_MATRICES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    for (oracle_matrix m = 0; m < ORACLE_MATRICES; m = (oracle_matrix)(m + 1)) {
        size_t rows = (size_t)oracle_rows(o, m);
        layer->matrix[m] = read_of_layer(set, i, names[m], "weight", rows * (size_t)oracle_columns(o, m));
        layer->bias[m] = read_of_layer(set, i, names[m], "bias", rows);
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
static void rotate_heads(const oracle *o, double *x, int n_heads, size_t position) {
    int half = o->head_dim / 2;
    for (int head = 0; head < n_heads; head++, x += o->head_dim) {
        for (int i = 0; i < half; i++) {
            double angle = (double)position * pow(o->theta, -2.0 * i / o->head_dim);
            double a = x[i], b = x[i + half];
            x[i] = a * cos(angle) - b * sin(angle);
            x[i + half] = b * cos(angle) + a * sin(angle);
        }
    }
}

static void attend_one(const oracle *o, const oracle_layer *layer, const double *q, const double *k,
                       const double *v, size_t position, double *weights, double *out) {
    int group = o->n_heads / o->n_kv_heads, dim = o->head_dim;
    size_t width = (size_t)(o->n_kv_heads * dim), first = 0;
    if (layer->window > 0 && position + 1 > (size_t)layer->window)
        first = position + 1 - (size_t)layer->window;
    for (int head = 0; head < o->n_heads; head++) {
        size_t offset = (size_t)(head / group * dim);
        double largest = -INFINITY, sum = 0;
        for (size_t t = first; t <= position; t++) {
            double dot = 0;
            for (int i = 0; i < dim; i++) dot += q[head * dim + i] * k[t * width + offset + (size_t)i];
            weights[t] = dot / sqrt(dim);
            largest = fmax(largest, weights[t]);
        }
        for (size_t t = first; t <= position; t++) sum += weights[t] = exp(weights[t] - largest);
        for (int i = 0; i < dim; i++) {
            double value = 0;
            for (size_t t = first; t <= position; t++)
                value += weights[t] * v[t * width + offset + (size_t)i];
            out[head * dim + i] = value / sum;
        }
    }
}

static void attention(const oracle *o, const oracle_layer *layer, double *h, size_t n) {
    int q_width = o->n_heads * o->head_dim, kv_width = o->n_kv_heads * o->head_dim;
    double *x = doubles((size_t)o->hidden, 1), *q = doubles(n, (size_t)q_width),
           *k = doubles(n, (size_t)kv_width), *v = doubles(n, (size_t)kv_width),
           *out = doubles((size_t)q_width, 1), *weights = doubles(n, 1);
    for (size_t t = 0; t < n; t++) {
        double *qt = q + t * (size_t)q_width, *kt = k + t * (size_t)kv_width, *vt = v + t * (size_t)kv_width;
        normalize(x, h + t * (size_t)o->hidden, layer->attention_norm, o->hidden, o->eps);
        multiply(qt, layer->matrix[ORACLE_Q], layer->bias[ORACLE_Q], x, q_width, o->hidden);
        multiply(kt, layer->matrix[ORACLE_K], layer->bias[ORACLE_K], x, kv_width, o->hidden);
        multiply(vt, layer->matrix[ORACLE_V], layer->bias[ORACLE_V], x, kv_width, o->hidden);
        for (int i = 0; layer->q_norm && i < o->n_heads; i++)
            normalize(qt + i * o->head_dim, qt + i * o->head_dim, layer->q_norm, o->head_dim, o->eps);
        for (int i = 0; layer->k_norm && i < o->n_kv_heads; i++)
            normalize(kt + i * o->head_dim, kt + i * o->head_dim, layer->k_norm, o->head_dim, o->eps);
        rotate_heads(o, qt, o->n_heads, t);
        rotate_heads(o, kt, o->n_kv_heads, t);
    }
    for (size_t t = 0; t < n; t++) {
        attend_one(o, layer, q + t * (size_t)q_width, k, v, t, weights, out);
        multiply(x, layer->matrix[ORACLE_O], layer->bias[ORACLE_O], out, o->hidden, q_width);
        for (int i = 0; i < o->hidden; i++) h[t * (size_t)o->hidden + (size_t)i] += x[i];
    }
    free(x);
    free(q);
    free(k);
    free(v);
    free(out);
    free(weights);
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

void oracle_logits(const oracle *o, const int32_t *ids, size_t n, double *logits) {
    size_t hidden = (size_t)o->hidden;
    double *h = doubles(n, hidden), *x = doubles(hidden, 1);
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < hidden; i++) h[t * hidden + i] = (double)o->embed[(size_t)ids[t] * hidden + i];
    }
    for (int i = 0; i < o->n_layers; i++) {
        attention(o, &o->layers[i], h, n);
        feed_forward(o, &o->layers[i], h, n);
    }
    for (size_t t = 0; t < n; t++) {
        normalize(x, h + t * hidden, o->final_norm, o->hidden, o->eps);
        multiply(logits + t * (size_t)o->vocab, o->head ? o->head : o->embed, NULL, x, o->vocab, o->hidden);
    }
    free(h);
    free(x);
}

double oracle_distance(const float *got, const double *wanted, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)got[i] - wanted[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}
