/* Named strategies: rows of one table, and a small grammar over them, that turn what a user writes into the numbers of
 * kv.h.
 *
 *   implementation   NAME, NAME+NAME..., or self=...,cross=... for encoder-decoder models; Transformers' classes are
 *                    other names: QuantoQuantizedCache is quantized with backend quanto
 *   config           key=value,... or a JSON object: Transformers' cache_config (plan_config.h)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PLAN_H
#define MN_KV_PLAN_H

#include "kv/kv.h"
#include "kv/plan_config.h"

typedef struct kv_strategy {
    const char *name;
    unsigned traits; /* a set of kv_trait */
    const char *help;
} kv_strategy;

/* Ends with name NULL. */
extern const kv_strategy kv_strategies[];

/* Layers [first, last] with separate forms of quantized tokens, or exact ones (key and value exact). The first rule
 * that contains a layer applies. */
typedef struct kv_layer_rule {
    int first, last; /* INT_MAX: to the end */
    bool is_rest;    /* every layer without another rule */
    kv_form key, value;
} kv_layer_rule;

enum { KV_MAX_RULES = 32, KV_PLAN_TEXT = 128 };

/* The requested form of the entries of one kind (self, cross). */
typedef struct kv_plan_part {
    char name[KV_PLAN_TEXT]; /* as it was written: "quantized+sink" */
    unsigned traits;         /* of all its strategies */
    bool keeps, preallocates, is_quantized, is_offloaded, windows;
    kv_form key, value; /* quantized forms where is_quantized */
    int residual, exact_first;
    bool flush;
    int window_length, num_sink_tokens; /* where windows; length 0: the model's own */
} kv_plan_part;

typedef struct kv_plan {
    char name[2 * KV_PLAN_TEXT + 16]; /* the whole implementation */
    kv_plan_part self, cross; /* cross: equal to self where it was not named, except for what only applies to steps */
    bool names_cross;
    const char *backend; /* that the name of a class implies, a fixed text; NULL: none */
    kv_codec exact;      /* f32 or bf16 */
    kv_layer_rule rules[KV_MAX_RULES];
    int n_rules;
    int group; /* q_group_size as requested; 0: none */
    kv_options options;
    int prefill_chunk;       /* 0: not set */
    char path[CONFIG_VALUE]; /* folder of the offload file; "": the system's */
    kv_config config;        /* the options besides the name, including the backend of a class */
} kv_plan;

/* The window that the plan sets for every query, so that the context is unbounded; 0: none. */
static inline int64_t kv_plan_window(const kv_plan *plan) {
    return plan->self.windows ? plan->self.window_length : 0;
}

/* implementation, config, dtype and sizes as in mn_cache_options, whose own fields override its config;
 * automatic: the dtype of "auto". MN_E_ARG names what is wrong, the value seen and what is allowed, the
 * nearest name for an unknown one, and why two strategies cannot be combined. A plan that preallocates may still lack
 * max_cache_len (options.limit 0). */
mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic);

/* The plan with one more strategy, which replaces plain ones (dynamic, hybrid, mamba): that of the trait, one of
 * KV_TRAIT_OFFLOADED, KV_TRAIT_QUANTIZED and KV_TRAIT_SINKS. Its window, where it has one, is window_length tokens
 * long; cross attention, where the plan names its cache, gets all but a window. MN_E_ARG where the two cannot be
 * combined. */
mn_status kv_plan_add(kv_plan *out, const kv_plan *plan, kv_trait trait, int64_t window_length);

/* Converts the natural entries of a model (its own windows and states, exact forms) into those of the plan, in place;
 * n_layers: specs[i] belongs to layer i % n_layers. calibration: of quantized keys, or NULL. MN_E_ARG where the
 * plan does not fit the model: no layer has pages that a strategy of pages could change, sinks for keys that cannot be
 * moved, a window requested for a model without one and without window_length, row sizes that the quantized form does
 * not support, a group that does not divide a head, a layer rule beyond the last layer, cross attention named where
 * there is none, max_cache_len missing. */
mn_status kv_plan_specs(const kv_plan *plan, kv_spec *specs, int n_specs, int n_layers,
                        const kv_calibration *calibration);

#endif
