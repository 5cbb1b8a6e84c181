/* Named strategies: rows of one table that turn a name into the numbers of kv.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PLAN_H
#define MN_KV_PLAN_H

#include "kv/kv.h"

typedef struct kv_strategy {
    const char *name;
    bool keeps;    /* false: the cache is emptied before every step */
    bool reserves; /* all of max_cache_len is allocated at once and is the limit */
    const char *help;
} kv_strategy;

/* Ends with name NULL. */
extern const kv_strategy kv_strategies[];

typedef struct kv_plan {
    const kv_strategy *strategy;
    kv_codec codec;
    kv_options options;
} kv_plan;

/* implementation and dtype as in mn_cache_options; automatic: what "auto" stands for. MN_E_ARG names what is
 * allowed. */
mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic);

#endif
