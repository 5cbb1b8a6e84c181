/* Named strategies: rows of one table, and a small grammar over them, that turn what a user writes into the
 * numbers of kv.h.
 *
 *   implementation   NAME, NAME+NAME..., or self=...,cross=... for encoder-decoder models
 *   config           key=value,... or a JSON object: Transformers' cache_config
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PLAN_H
#define MN_KV_PLAN_H

#include "kv/kv.h"

typedef struct kv_strategy {
    const char *name;
    bool keeps;    /* false: the cache is emptied before every step */
    bool reserves; /* all of max_cache_len is allocated at once and is the limit */
    bool codes;    /* tokens are sealed */
    bool is_far;   /* full pages rest in the far home */
    bool windows;  /* window_length and num_sink_tokens count */
    const char *help;
} kv_strategy;

/* Ends with name NULL. */
extern const kv_strategy kv_strategies[];

/* Layers [first, last] whose tokens are sealed in forms of their own, or not at all. */
typedef struct kv_layer_rule {
    int first, last;
    kv_form key, value;
} kv_layer_rule;

enum { KV_MAX_RULES = 32, KV_PLAN_TEXT = 128 };

/* What is wished for the entries of one kind (self, cross). */
typedef struct kv_plan_part {
    char name[KV_PLAN_TEXT]; /* as it is shown: "quantized+sink" */
    bool keeps, reserves, codes, is_far, windows;
    kv_form key, value; /* sealed forms where codes */
    int residual, exact_first;
    bool flush;
    int window_length, num_sink_tokens; /* 0: the model's own window */
} kv_plan_part;

typedef struct kv_plan {
    kv_plan_part self, cross; /* cross: equal to self where it was not named, but for what only steps have */
    kv_codec exact;           /* f32 or bf16 */
    kv_layer_rule rules[KV_MAX_RULES];
    int n_rules;
    kv_options options;
    char path[KV_PLAN_TEXT * 4]; /* folder of the far home; "": the system's */
} kv_plan;

/* implementation, config, dtype and sizes as in mn_cache_options; automatic: what dtype "auto" stands for.
 * MN_E_ARG names what is wrong, the value seen and what is allowed, the nearest name for an unknown one, and
 * why two strategies do not go together. */
mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic);

/* Turns the natural entries of a model (its own windows and states, exact forms) into those of the plan, in
 * place; n_layers: specs[i] belongs to layer i % n_layers. bases: calibrated bases for coded keys, or NULL.
 * MN_E_ARG where the plan does not fit the model: a window wished of a model without one and no
 * window_length, a group that does not divide a head, a layer rule beyond the last layer. */
mn_status kv_plan_specs(const kv_plan *plan, kv_spec *specs, int n_specs, int n_layers,
                        const kv_basis_set *bases);

#endif
