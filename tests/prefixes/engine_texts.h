/* Texts that begin alike, given to an engine one after the other: for tests of what it keeps of them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PREFIXES_ENGINE_TEXTS_H
#define TESTS_PREFIXES_ENGINE_TEXTS_H

#include "session/session.h"
#include "support/strategies.h"

enum { N_TEXTS = 12, MOST_TEXT = 128, N_NEW = 6, PAGE = 16 };

typedef struct text {
    int32_t ids[MOST_TEXT];
    size_t n;
} text;

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    mn_generation_config *config;
    mn_generate_options how;
    text texts[N_TEXTS];
} fixture;

/* Texts that begin like an earlier one, up to any token of it. */
static inline void make_texts(fixture *w, uint64_t seed) {
    for (int i = 0; i < N_TEXTS; i++) {
        text *t = &w->texts[i];
        t->n = 2 + random_bits(seed, 1, (uint64_t)i) % (MOST_TEXT - 1);
        engine_ids(&seed, t->ids, t->n, (int32_t)w->vocab);
        if (i == 0) continue;
        const text *other = &w->texts[random_bits(seed, 2, (uint64_t)i) % (uint64_t)i];
        size_t same = random_bits(seed, 3, (uint64_t)i) % (other->n + 1);
        if (same > t->n) same = t->n;
        memcpy(t->ids, other->ids, same * sizeof *t->ids);
    }
}

static inline fixture open_fixture_in(const char *path, const char *type, const char *cpu) {
    fixture w = {.model = engine_model(path, type, cpu, engine_threads())};
    w.vocab = (size_t)engine_vocab(w.model);
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "6"));
    mn_generate_options_init(&w.how, sizeof w.how);
    w.how.keep_logits = true;
    return w;
}

static inline fixture open_fixture(const char *path) {
    return open_fixture_in(path, "f32", "auto");
}

static inline void close_fixture(fixture *w) {
    mn_generation_config_close(&w->config);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

/* An engine that keeps what its requests compute. more: its other options; where they are 0, their defaults. */
static inline mn_engine *open_keeping(const fixture *w, engine_cache cache, mn_engine_options more) {
    mn_engine *engine = NULL;
    mn_cache_options of_requests = engine_cache_options(cache);
    more.size = sizeof more;
    more.cache = &of_requests;
    more.enable_prefix_caching = true;
    assert_ok(mn_engine_open(&engine, w->model, &more));
    return engine;
}

/* more: the salt, the owner, the priority of the request, or nothing. */
static inline int add_with(const fixture *w, mn_engine *engine, const text *t, mn_request more) {
    int id = -1;
    more.size = sizeof more;
    more.prompt = t->ids;
    more.n_prompt = t->n;
    more.config = w->config;
    more.options = &w->how;
    assert_ok(mn_engine_add(engine, &more, &id));
    return id;
}

static inline int add(const fixture *w, mn_engine *engine, const text *t, const char *salt) {
    return add_with(w, engine, t, (mn_request){.cache_salt = salt});
}

static inline mn_generation *take(mn_engine *engine) {
    mn_generation *generation = NULL;
    size_t running = 1;
    int id = -1;
    for (int step = 0; running > 0; step++) {
        assert_true(step < 1000);
        assert_ok(mn_engine_step(engine, &running));
    }
    assert_ok(mn_engine_take(engine, &id, &generation));
    return generation;
}

static inline mn_generation *run(const fixture *w, mn_engine *engine, const text *t, const char *salt) {
    add(w, engine, t, salt);
    return take(engine);
}

static inline mn_generation *alone(const fixture *w, engine_cache cache, const text *t) {
    mn_generation *generation = NULL;
    mn_session *session = engine_session(w->model, cache);
    assert_ok(mn_generate(session, t->ids, t->n, w->config, &w->how, &generation));
    mn_session_close(&session);
    return generation;
}

static inline void same(const fixture *w, const mn_generation *got, const mn_generation *wanted, const char *what) {
    const mn_sequence *a = got->sequences[0], *b = wanted->sequences[0];
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    engine_same_bits(a->logits, b->logits, a->n_ids, w->vocab, "%s", what);
}

static inline bool engine_shares(const engine_strategy *s) {
    return !s->flushes && !strstr(s->cache.implementation, "static") && strcmp(s->cache.implementation, "none") != 0;
}

#endif
