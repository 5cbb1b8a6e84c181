/* The oracle: an independent implementation of the model families in double precision, from their definitions, without
 * cache, packing or threads; every token is recomputed from the first. It shares only the file readers with src/model.
 *
 *   h = embed[id] (+ positions[t])
 *   h += O softmax(rope(Q x) rope(K x)^T / sqrt(d) over the visible positions) V x       x = norm(h)
 *   or, in Mamba layers, h += out(scan(silu(conv(u))) * silu(g))                         u, g = in(norm(h))
 *   h += D (act(G y) * (U y)), of the chosen experts, or D act(U y)                      y = norm(h)
 *   logits = head norm(h)
 *
 * Families differ in the numbers and flags below: OLMo 2 normalizes the output of a sub-layer instead of its input,
 * Cohere rotates adjacent pairs, SmolLM3 has layers without rotary embedding, Qwen2 with experts has a shared expert.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum oracle_matrix {
    ORACLE_Q,
    ORACLE_K,
    ORACLE_V,
    ORACLE_O,
    ORACLE_GATE,
    ORACLE_UP,
    ORACLE_DOWN,
    ORACLE_MATRICES
} oracle_matrix;

/* A layer's mixer: in [2 channels][hidden], conv [channels][width], x [rank + 2 states][channels], dt [channels][rank],
 * a_log [channels][states], d [channels], out [hidden][channels]; biases and norms may be NULL. */
typedef struct oracle_mixer {
    float *in, *in_bias, *conv, *conv_bias, *x, *dt, *dt_bias, *a_log, *d, *out, *out_bias;
    float *dt_norm, *b_norm, *c_norm;
} oracle_mixer;

typedef struct oracle_layer {
    float *matrix[ORACLE_MATRICES]; /* [outputs][inputs], owned; NULL where the layer has none */
    float *bias[ORACLE_MATRICES];   /* [outputs] or NULL, owned */
    float *attention_norm, *mlp_norm, *attention_norm_bias, *mlp_norm_bias; /* [hidden] or NULL */
    float *attention_post_norm, *mlp_post_norm;                             /* [hidden] or NULL */
    float *q_norm, *k_norm; /* [head_dim], of all heads where norms_all_heads; or NULL */
    float *router;          /* [experts][hidden] or NULL: no experts */
    float *(*experts)[3];   /* [experts]: gate, up, down */
    float *shared[3];       /* the shared expert, or NULL */
    float *share;           /* [hidden]: its weight is the sigmoid of the product with a row; or NULL */
    bool has_no_rope;       /* no rotation */
    oracle_mixer *mixer;    /* instead of attention, or NULL */
    double theta;           /* of the rotation */
    int window;             /* visible positions, its own included; 0: all up to it */
    int sinks; /* first positions that are visible besides the window; positions are then indices among the visible
                  tokens */
} oracle_layer;

typedef enum oracle_activation { ORACLE_SILU, ORACLE_GELU, ORACLE_GELU_TANH } oracle_activation;

typedef struct oracle {
    int hidden, inner, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    int shared_inner; /* of the shared expert */
    int rotary;       /* leading values of a head with rotary embedding */
    int n_experts, n_chosen;
    int channels, states, conv, rank; /* of Mamba layers */
    oracle_activation activation;
    bool is_scaled; /* the caller sets the rotary frequencies */
    bool layer_norm, norm_adds_one, is_parallel, experts_sum_to_one;
    bool norms_all_heads;  /* queries and keys are normalized over all heads of a token */
    bool turns_neighbours; /* the pairs of the rotation are (2i, 2i + 1), else (i, i + rotary / 2) */
    double eps, theta, local_theta;
    const double *frequencies; /* [rotary / 2] radians per position, owned by the caller; NULL: theta^(-2i / rotary) */
    double turn_scale;         /* scale of rotated values; 0: none */
    double score_scale, score_cap, logit_cap; /* caps: 0 for none */
    double embed_scale, residual_scale, logit_divisor;
    float *embed, *final_norm, *final_norm_bias; /* [vocab][hidden] */
    float *positions;                            /* [longest][hidden] or NULL */
    float *head, *head_bias;                     /* [vocab][hidden]; NULL: tied to the embedding; bias or NULL */
    oracle_layer *layers;
} oracle;

/* Of a layer: keys, rotated at their positions, and values, f32 [kv heads][n][head_dim]; or the state, f32: the last
 * conv - 1 inputs [conv - 1][channels], then the scan's [states][channels]. With adjacent pairs, keys are in the order
 * of a cache of pairs (i, i + rotary / 2): the first elements of all pairs, then the second ones. */
typedef struct oracle_past {
    const float *k, *v;
    const float *state;
} oracle_past;

/* From config.json and model.safetensors of a folder. Rope scaling is the caller's: frequencies, turn_scale. */
oracle oracle_open(const char *folder);
void oracle_close(oracle *o);

/* Outputs and inputs of a matrix. */
int oracle_rows(const oracle *o, oracle_matrix matrix);
int oracle_columns(const oracle *o, oracle_matrix matrix);

/* Logits [n][vocab] after every token. */
void oracle_logits(const oracle *o, const int32_t *ids, size_t n, double *logits);

/* Logits [vocab] after one token that follows n others, of which only keys and values, or states, are given [layers].
 */
void oracle_continue(const oracle *o, int32_t id, const oracle_past *past, size_t n, double *logits);

/* The largest absolute difference of n values; infinite when one is not a number. */
double oracle_distance(const float *got, const double *wanted, size_t n);

#endif
