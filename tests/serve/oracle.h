/* What the library answers to a prompt alone: with a model and a session of its own, which compute everything.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_ORACLE_H
#define TESTS_SERVE_ORACLE_H

#include "mneme.h"
#include "support/support.h"

/* fields: GenerationConfig as JSON, with cache_implementation where it is not dynamic. */
static inline mn_generation *oracle_ids(mn_model *model, const int32_t *ids, size_t n, const char *fields) {
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    mn_session *session = NULL;
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_load(config, fields, strlen(fields)));
    assert_ok(mn_generation_config_cache(config, &cache));
    assert_ok(mn_session_open(&session, model, &cache));
    assert_ok(mn_generate(session, ids, n, config, NULL, &g));
    mn_session_close(&session);
    mn_generation_config_close(&config);
    return g;
}

static inline mn_generation *oracle_text(mn_model *model, const char *prompt, const char *fields) {
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(model), prompt, strlen(prompt), MN_ADD_SPECIAL, &ids, &n));
    mn_generation *g = oracle_ids(model, ids, n, fields);
    mn_free(ids);
    return g;
}

/* An answer of /v1/generate: its i-th sequence on has the ids of g. */
static inline void oracle_same(const json *sequences, size_t i, const mn_generation *g, const char *what) {
    for (size_t k = 0; k < g->n_sequences; k++) {
        const mn_sequence *s = g->sequences[k];
        const json *ids = i + k < sequences->n ? json_get(&sequences->items[i + k], "ids") : NULL;
        if (!ids || ids->n != s->n_ids) fail_msg("%s: %zu ids, not %zu", what, ids ? ids->n : 0, s->n_ids);
        for (size_t t = 0; t < s->n_ids; t++)
            if (ids->items[t].integer != s->ids[t])
                fail_msg("%s: id %zu is %lld, not %d", what, t, (long long)ids->items[t].integer, s->ids[t]);
    }
}

#endif
