/* The Llama family once more, in double precision, from the definition: no cache, no packing, no threads,
 * every token recomputed from the first. Written apart from src/model; only the readers of files are shared.
 *
 *   h = embed[id]
 *   h += O softmax(rope(Q x) rope(K x)^T / sqrt(d) over the visible positions) V x       x = rms(h)
 *   h += D (silu(G y) * (U y))                                                           y = rms(h)
 *   logits = head rms(h)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

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

typedef struct oracle_layer {
    float *matrix[ORACLE_MATRICES]; /* [outputs][inputs], owned */
    float *bias[ORACLE_MATRICES];   /* [outputs] or NULL, owned */
    float *attention_norm, *mlp_norm;
    float *q_norm, *k_norm; /* [head_dim] or NULL */
    int window;             /* positions seen, the own one included; 0: all before */
    int sinks; /* first positions seen besides the window's; positions are then places among the tokens seen
                */
} oracle_layer;

typedef struct oracle {
    int hidden, inner, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    double eps, theta;
    float *embed, *final_norm; /* [vocab][hidden] */
    float *head;               /* [vocab][hidden]; NULL: the embedding again */
    oracle_layer *layers;
} oracle;

/* Keys, rotated at their positions, and values of a layer, f32 [kv heads][n][head_dim]. */
typedef struct oracle_past {
    const float *k, *v;
} oracle_past;

/* From config.json and model.safetensors of a folder: models without rope scaling. */
oracle oracle_open(const char *folder);
void oracle_close(oracle *o);

/* Outputs and inputs of a matrix. */
int oracle_rows(const oracle *o, oracle_matrix matrix);
int oracle_columns(const oracle *o, oracle_matrix matrix);

/* Logits [n][vocab] behind every token. */
void oracle_logits(const oracle *o, const int32_t *ids, size_t n, double *logits);

/* Logits [vocab] behind one more token after n others of which only keys and values [layers] are given. */
void oracle_continue(const oracle *o, int32_t id, const oracle_past *past, size_t n, double *logits);

/* The largest absolute difference of n values; infinite when one is not a number. */
double oracle_distance(const float *got, const double *wanted, size_t n);

#endif
