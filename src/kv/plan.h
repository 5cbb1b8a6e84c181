/* Named strategies: rows of one table, and a small grammar over them, that turn what a user writes into the
 * numbers of kv.h.
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

/* Layers [first, last] whose tokens are sealed in forms of their own, or not at all (key and value exact).
 * The first rule that has a layer holds. */
typedef struct kv_layer_rule {
    int first, last; /* INT_MAX: to the end */
    bool is_rest;    /* every layer without a rule of its own */
    kv_form key, value;
} kv_layer_rule;

enum { KV_MAX_RULES = 32, KV_PLAN_TEXT = 128 };

/* What is wished for the entries of one kind (self, cross). */
typedef struct kv_plan_part {
    char name[KV_PLAN_TEXT]; /* as it was written: "quantized+sink" */
    unsigned traits;         /* of all its strategies */
    bool keeps, reserves, codes, is_far, windows;
    kv_form key, value; /* sealed forms where codes */
    int residual, exact_first;
    bool flush;
    int window_length, num_sink_tokens; /* where windows; length 0: the model's own */
} kv_plan_part;

typedef struct kv_plan {
    char name[2 * KV_PLAN_TEXT + 16]; /* the whole implementation */
    kv_plan_part self, cross; /* cross: equal to self where it was not named, but for what only steps have */
    bool names_cross;
    const char *backend; /* that the name of a class implies, a fixed text; NULL: none */
    kv_codec exact;      /* f32 or bf16 */
    kv_layer_rule rules[KV_MAX_RULES];
    int n_rules;
    int group; /* q_group_size that was wished for; 0: none */
    kv_options options;
    int prefill_chunk;       /* 0: not said */
    char path[CONFIG_VALUE]; /* folder of the far home; "": the system's */
} kv_plan;

/* The window that the plan makes every query look through, so that a text may be endless; 0: none. */
static inline int64_t kv_plan_window(const kv_plan *plan) {
    return plan->self.windows ? plan->self.window_length : 0;
}

/* implementation, config, dtype and sizes as in mn_cache_options, whose own numbers stand above those in its
 * config; automatic: what dtype "auto" stands for. MN_E_ARG names what is wrong, the value seen and what is
 * allowed, the nearest name for an unknown one, and why two strategies do not go together. A plan that
 * reserves may still lack max_cache_len (options.limit 0). */
mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic);

/* The configuration text of a session with this plan, `config` and what the name implied. *out is owned by the caller, NULL
 * where nothing is said. MN_E_NOMEM. */
mn_status kv_plan_config(char **out, const kv_plan *plan, const char *config);

/* Turns the natural entries of a model (its own windows and states, exact forms) into those of the plan, in
 * place; n_layers: specs[i] belongs to layer i % n_layers. bases: calibrated bases for coded keys, or NULL.
 * MN_E_ARG where the plan does not fit the model: no layer has pages that a strategy of pages could change, sinks for keys
 * that cannot be moved, a window wished of a model without one and no window_length, rows that the codes do not take, a group that does not divide a head, a layer rule beyond
 * the last layer, cross attention named where there is none, max_cache_len missing. */
mn_status kv_plan_specs(const kv_plan *plan, kv_spec *specs, int n_specs, int n_layers,
                        const kv_basis_set *bases);

#endif
