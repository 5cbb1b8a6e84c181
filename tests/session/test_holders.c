/* A model may be closed before what was opened with it: each of its holders goes on as if it were open, and the last
 * one frees it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <pthread.h>
#include <stdatomic.h>

enum { N_PROMPT = 12, N_NEXT = 5, N_ROUNDS = 12 };

typedef struct fixture {
    mn_model *model;
    int32_t ids[N_PROMPT + N_NEXT];
    size_t vocab;
    int64_t live; /* blocks of memory before the model was opened */
} fixture;

static fixture open_fixture(void) {
    uint64_t seed = 3;
    fixture w = {.live = mem_count().live};
    w.model = engine_model("embedded", "f32", "auto", engine_threads());
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&seed, w.ids, N_PROMPT + N_NEXT, (int32_t)w.vocab);
    return w;
}

/* All of it is freed, once. */
static void check_closed(const fixture *w) {
    assert_int_equal(mem_count().live, w->live);
}

/* Logits after all ids from a session whose model stays open. */
static void logits_of(const fixture *w, float *logits) {
    mn_session *s = NULL;
    assert_ok(mn_session_open(&s, w->model, NULL));
    assert_ok(mn_session_step(s, w->ids, N_PROMPT + N_NEXT, NULL));
    memcpy(logits, mn_session_logits(s), w->vocab * sizeof *logits);
    mn_session_close(&s);
}

static void check_rest(mn_session *s, const fixture *w, const float *wanted, const char *what) {
    assert_ok(mn_session_step(s, w->ids + N_PROMPT, N_NEXT, NULL));
    engine_ends_with(s, wanted, what);
}

static void sessions_and_forks(void **state) {
    (void)state;
    fixture w = open_fixture();
    float *wanted = malloc(w.vocab * sizeof *wanted);
    assert_non_null(wanted);
    logits_of(&w, wanted);
    mn_session *s = NULL, *fork = NULL, *late = NULL;
    assert_ok(mn_session_open(&s, w.model, NULL));
    assert_ok(mn_session_step(s, w.ids, N_PROMPT, NULL));
    mn_cache_info alone = {.size = sizeof alone}, forked = {.size = sizeof forked};
    assert_ok(mn_session_cache(s, &alone));
    assert_true(alone.unique_bytes == alone.bytes && alone.bytes > 0);
    assert_ok(mn_session_fork(&fork, s));
    assert_ok(mn_session_cache(fork, &forked));
    assert_true(forked.unique_bytes == 0 && forked.bytes == alone.bytes);
    mn_model_close(&w.model);
    assert_null(w.model);
    check_rest(s, &w, wanted, "a session");
    assert_ok(mn_session_truncate(s, N_PROMPT));
    assert_ok(mn_session_fork(&late, s));
    mn_session_close(&s);
    check_rest(fork, &w, wanted, "a fork");
    mn_session_close(&fork);
    check_rest(late, &w, wanted, "a fork that was made after the model was closed");
    mn_session_close(&late);
    check_closed(&w);
    free(wanted);
}

static mn_generation *generate(mn_session *s, const fixture *w, bool keep_sessions) {
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_sessions = keep_sessions;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "5"));
    assert_ok(mn_generation_config_set(config, "do_sample", "true"));
    assert_ok(mn_generation_config_set(config, "num_return_sequences", "2"));
    assert_ok(mn_generate(s, w->ids, N_PROMPT, config, &how, &generation));
    mn_generation_config_close(&config);
    return generation;
}

/* Results are texts, and the sessions that are kept hold the model. */
static void generations(void **state) {
    (void)state;
    fixture w = open_fixture();
    mn_session *s = NULL;
    assert_ok(mn_session_open(&s, w.model, NULL));
    mn_generation *generation = generate(s, &w, false), *kept = generate(s, &w, true);
    mn_model_close(&w.model);
    mn_session_close(&s);
    assert_non_null(generation->sequences[0]->text);
    mn_generation_close(&generation);
    assert_ok(mn_generation_take_session(kept, 1, &s));
    mn_generation_close(&kept);
    assert_ok(mn_session_step(s, w.ids, 1, NULL));
    mn_session_close(&s);
    check_closed(&w);
}

/* A request that drafts with a second model; both are closed before it begins. */
static void engines(void **state) {
    (void)state;
    fixture w = open_fixture();
    mn_model *draft = engine_model("embedded", "int8", "auto", 1);
    mn_engine *engine = NULL;
    mn_generate_options how;
    mn_request request;
    int id = -1, taken = -1;
    size_t n_running = 1;
    mn_generation *generation = NULL;
    mn_generate_options_init(&how, sizeof how);
    how.assistant = draft;
    mn_request_init(&request, sizeof request);
    request.prompt = w.ids;
    request.n_prompt = N_PROMPT;
    request.options = &how;
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, w.model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "9"));
    request.config = config;
    assert_ok(mn_engine_open(&engine, w.model, NULL));
    assert_ok(mn_engine_add(engine, &request, &id));
    mn_model_close(&draft);
    mn_model_close(&w.model);
    while (n_running > 0) assert_ok(mn_engine_step(engine, &n_running));
    assert_ok(mn_engine_take(engine, &taken, &generation));
    assert_int_equal(taken, id);
    assert_true(generation->sequences[0]->draft_tokens > 0);
    mn_generation_close(&generation);
    request.options = NULL;
    assert_ok(mn_engine_add(engine, &request, &id)); /* which never begins */
    mn_engine_close(&engine);
    mn_generation_config_close(&config);
    check_closed(&w);
}

/* A sampler has copies of what it needs. */
static void samplers(void **state) {
    (void)state;
    fixture w = open_fixture();
    float *logits = malloc(w.vocab * sizeof *logits);
    assert_non_null(logits);
    mn_generation_config *config = NULL;
    mn_sampler *sampler = NULL;
    int32_t id = -1;
    assert_ok(mn_generation_config_open(&config, w.model));
    assert_ok(mn_generation_config_set(config, "regex", "\"[a-z]+\""));
    assert_ok(mn_sampler_open(&sampler, w.model, config, w.ids, N_PROMPT));
    logits_of(&w, logits);
    mn_model_close(&w.model);
    for (int i = 0; i < N_NEXT; i++) {
        assert_ok(mn_sampler_choose(sampler, logits, NULL, &id));
        assert_ok(mn_sampler_accept(sampler, id));
    }
    mn_sampler_close(&sampler);
    mn_generation_config_close(&config);
    check_closed(&w);
    free(logits);
}

static void check_text(mn_detokenizer *stream, const int32_t *ids) {
    const char *text = NULL;
    size_t n = 0;
    assert_ok(mn_detokenizer_push(stream, ids, N_PROMPT, &text, &n));
    assert_true(n > 0);
    assert_ok(mn_detokenizer_finish(stream, &text, &n));
}

/* Of a model's tokenizer and of one that was opened alone; a borrowed tokenizer stays as long as the model does. */
static void detokenizers_and_tokenizers(void **state) {
    (void)state;
    fixture w = open_fixture();
    mn_session *s = NULL;
    mn_tokenizer *own = NULL;
    mn_detokenizer *of_model = NULL, *of_own = NULL;
    const mn_tokenizer *borrowed = mn_model_tokenizer(w.model);
    char *text = NULL;
    size_t n = 0;
    assert_ok(mn_tokenizer_open(&own, "embedded"));
    assert_ok(mn_session_open(&s, w.model, NULL));
    assert_ok(mn_detokenizer_open(&of_model, borrowed, 0));
    assert_ok(mn_detokenizer_open(&of_own, own, MN_SKIP_SPECIAL));
    mn_model_close(&w.model);
    mn_tokenizer_close(&own);
    assert_null(own);
    assert_ok(mn_detokenize(borrowed, w.ids, N_PROMPT, 0, &text, &n));
    assert_true(n > 0);
    mn_free(text);
    mn_session_close(&s);
    check_text(of_model, w.ids);
    check_text(of_own, w.ids);
    mn_detokenizer_close(&of_model);
    mn_detokenizer_close(&of_own);
    check_closed(&w);
}

typedef struct closer {
    mn_session *session;
    mn_detokenizer *detokenizer;
    atomic_int *n_ready;
} closer;

static void *close_all(void *argument) {
    closer *c = argument;
    atomic_fetch_add(c->n_ready, 1);
    while (atomic_load(c->n_ready) < 2) continue;
    mn_session_close(&c->session);
    mn_detokenizer_close(&c->detokenizer);
    return NULL;
}

static void threads_that_close_at_once(void **state) {
    (void)state;
    for (int round = 0; round < N_ROUNDS; round++) {
        fixture w = open_fixture();
        atomic_int n_ready = 0;
        closer closers[2];
        pthread_t thread;
        for (int i = 0; i < 2; i++) {
            closers[i] = (closer){.n_ready = &n_ready};
            assert_ok(mn_session_open(&closers[i].session, w.model, NULL));
            assert_ok(mn_detokenizer_open(&closers[i].detokenizer, mn_model_tokenizer(w.model), 0));
        }
        mn_model_close(&w.model);
        assert_int_equal(pthread_create(&thread, NULL, close_all, &closers[0]), 0);
        close_all(&closers[1]);
        pthread_join(thread, NULL);
        check_closed(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_and_forks),
        cmocka_unit_test(generations),
        cmocka_unit_test(engines),
        cmocka_unit_test(samplers),
        cmocka_unit_test(detokenizers_and_tokenizers),
        cmocka_unit_test(threads_that_close_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
