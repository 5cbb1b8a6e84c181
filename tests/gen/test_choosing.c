/* Rows choose their tokens on the threads of the model: each equals a single run; callbacks run on the stepping thread,
 * constraints may be shared, and an error affects one row only.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#include "gen/logits/processors.h"
#include "support/patience.h"

enum { N_ROWS = 60, N_PROMPT = 9, MOST_THREADS = 8, N_THREADS = 2, FIRST_STEPS = 2 };

/* ---- the threads that choose ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t threads[MOST_THREADS];
static atomic_int n_threads;
static bool waits; /* the next one that chooses waits for a second thread */

mn_status __wrap_processors_run(processors *p, const processor_step *step, float *scores);
mn_status __real_processors_run(processors *p, const processor_step *step, float *scores);

static bool is_known(pthread_t self) {
    for (int i = 0; i < n_threads; i++) {
        if (pthread_equal(threads[i], self)) return true;
    }
    return false;
}

mn_status __wrap_processors_run(processors *p, const processor_step *step, float *scores) {
    pthread_mutex_lock(&lock);
    if (!is_known(pthread_self()) && n_threads < MOST_THREADS) threads[n_threads++] = pthread_self();
    const bool is_first = waits;
    waits = false;
    pthread_mutex_unlock(&lock);
    if (is_first) wait_until(n_threads >= 2);
    return __real_processors_run(p, step, scores);
}

/* ---- requests ---- */

typedef struct settings {
    const char *pairs[20]; /* NAME VALUE by NAME VALUE */
} settings;

typedef struct fixture {
    mn_model *model;
    int32_t ids[N_ROWS + N_PROMPT];
} fixture;

static void open_fixture(fixture *w, const char *model) {
    uint64_t seed = 3;
    w->model = engine_model(model, "f32", "auto", N_THREADS);
    engine_ids(&seed, w->ids, N_ROWS + N_PROMPT, (int32_t)engine_vocab(w->model));
}

static mn_generation_config *config_of(const fixture *w, const settings *s, int row) {
    mn_generation_config *config = NULL;
    char seed[16];
    snprintf(seed, sizeof seed, "%d", row);
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "10"));
    assert_ok(mn_generation_config_set(config, "seed", seed));
    for (int k = 0; s->pairs[k]; k += 2) assert_ok(mn_generation_config_set(config, s->pairs[k], s->pairs[k + 1]));
    return config;
}

static bool keeps = true; /* scores and logits */

static void init_options(mn_generate_options *options) {
    mn_generate_options_init(options, sizeof *options);
    options->top_logprobs = 2;
    options->keep_scores = options->keep_logits = keeps;
}

static void same_as_alone(const fixture *w, const settings *s, int row, const mn_generation *got) {
    mn_session *session = engine_session(w->model, (engine_cache){0});
    mn_generation_config *config = config_of(w, s, row);
    mn_generation *alone = NULL;
    mn_generate_options options;
    init_options(&options);
    assert_ok(mn_generate(session, w->ids + row, N_PROMPT, config, &options, &alone));
    assert_int_equal(got->n_sequences, alone->n_sequences);
    size_t vocab = (size_t)engine_vocab(w->model);
    for (size_t k = 0; k < alone->n_sequences; k++) {
        const mn_sequence *a = alone->sequences[k], *b = got->sequences[k];
        assert_int_equal(b->n_ids, a->n_ids);
        assert_memory_equal(b->ids, a->ids, a->n_ids * sizeof *a->ids);
        assert_string_equal(b->finish_reason, a->finish_reason);
        if (a->logprobs) assert_memory_equal(b->logprobs, a->logprobs, 3 * a->n_ids * sizeof *a->logprobs);
        if (a->scores) engine_same_bits(b->scores, a->scores, a->n_ids, vocab, "scores of row %d", row);
        if (a->logits) engine_same_bits(b->logits, a->logits, a->n_ids, vocab, "logits of row %d", row);
    }
    mn_generation_close(&alone);
    mn_generation_config_close(&config);
    mn_session_close(&session);
}

/* Request i has the settings i % n; those that fail have this message. */
static void check_rows(const fixture *w, const settings *all, int n, int failing, const char *message,
                       const mn_generate_options *options_of_first) {
    mn_engine *engine = NULL;
    size_t n_running = 1;
    int n_failed = 0;
    assert_ok(mn_engine_open(&engine, w->model, NULL));
    for (int i = 0; i < N_ROWS; i++) {
        mn_generation_config *config = config_of(w, &all[i % n], i);
        mn_generate_options options;
        mn_request request;
        int id = -1;
        init_options(&options);
        mn_request_init(&request, sizeof request);
        request.prompt = w->ids + i;
        request.n_prompt = N_PROMPT;
        request.config = config;
        request.options = i % n == 0 && options_of_first ? options_of_first : &options;
        assert_ok(mn_engine_add(engine, &request, &id));
        assert_int_equal(id, i);
        mn_generation_config_close(&config);
    }
    for (int step = 0; n_running > 0; step++) {
        if (step == FIRST_STEPS) {
            pthread_mutex_lock(&lock);
            n_threads = 0;
            waits = true;
            pthread_mutex_unlock(&lock);
        }
        assert_ok(mn_engine_step(engine, &n_running));
    }
    assert_int_equal(n_threads, 2);
    for (int i = 0; i < N_ROWS; i++) {
        mn_generation *got = NULL;
        int id = -1;
        mn_status status = mn_engine_take(engine, &id, &got);
        assert_in_range(id, 0, N_ROWS - 1);
        if (id % n == failing) {
            n_failed++;
            assert_int_equal(status, MN_E_ARG);
            if (!strstr(mn_last_error(), message)) fail_msg("request %d: %s", id, mn_last_error());
        } else {
            assert_ok(status);
            same_as_alone(w, &all[id % n], id, got);
        }
        mn_generation_close(&got);
    }
    assert_true((n_failed > 0) == (failing >= 0));
    mn_engine_close(&engine);
}

static const settings warped = {{"do_sample", "true", "top_k", "40", "top_p", "0.9", "temperature", "0.8", "min_p",
                                 "0.01", "repetition_penalty", "1.1", "ignore_eos", "true"}};

static void every_row_equals_a_single_run(void **state) {
    (void)state;
    const settings all[] = {warped,
                            {{"ignore_eos", "true"}},
                            {{"do_sample", "true", "num_return_sequences", "3"}},
                            {{"guidance_scale", "1.5"}},
                            {{"dola_layers", "\"low\"", "repetition_penalty", "1.2"}},
                            {{"penalty_alpha", "0.6", "top_k", "4"}},
                            {{"prompt_lookup_num_tokens", "3"}},
                            {{"num_beams", "3", "num_return_sequences", "2"}},
                            {{"num_beams", "3", "do_sample", "true"}}};
    fixture w;
    open_fixture(&w, "golden/llama");
    check_rows(&w, all, sizeof all / sizeof *all, -1, "", NULL);
    mn_model_close(&w.model);
}

/* Beams choose on several threads where no scores are kept. */
static void every_beam_equals_a_single_run(void **state) {
    (void)state;
    static const settings all[] = {{{"num_beams", "3", "num_return_sequences", "2"}},
                                   {{"num_beams", "2", "do_sample", "true", "top_k", "9"}},
                                   {{"num_beams", "2", "guidance_scale", "1.5"}}};
    fixture w;
    open_fixture(&w, "embedded");
    keeps = false;
    check_rows(&w, all, 3, -1, "", NULL);
    keeps = true;
    mn_model_close(&w.model);
}

/* One automaton for all requests with the same constraint. */
static void constraints_are_shared(void **state) {
    (void)state;
    static const settings all[] = {
        {{"regex", "\"[a-f ]{3,30}\"", "do_sample", "true"}},
        {{"regex", "\"[a-f ]{3,30}\"", "do_sample", "true", "temperature", "2.5"}},
        {{"regex", "\"([0-9]+x)*\"", "do_sample", "true"}},
        {{"json_schema", "\"{\\\"type\\\": \\\"array\\\"}\"", "do_sample", "true"}},
    };
    fixture w;
    open_fixture(&w, "embedded");
    check_rows(&w, all, 4, -1, "", NULL);
    mn_model_close(&w.model);
}

/* The third request's settings allow no token from the second new one on. */
static void an_error_ends_its_row_only(void **state) {
    (void)state;
    settings all[] = {warped, {{"ignore_eos", "true"}}, {{"min_new_tokens", "10", "regex", "\"[a-z]\""}}};
    fixture w;
    open_fixture(&w, "embedded");
    check_rows(&w, all, 3, 2, "no token is left at position", NULL);
    mn_model_close(&w.model);
}

typedef struct caller {
    pthread_t thread;
    int n_calls;
} caller;

static bool process(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    caller *c = user;
    (void)row, (void)ids, (void)n, (void)scores, (void)vocab;
    assert_true(pthread_equal(c->thread, pthread_self()));
    c->n_calls++;
    return true;
}

static void callbacks_stay_on_the_thread_that_steps(void **state) {
    (void)state;
    fixture w;
    mn_generate_options options;
    caller c = {.thread = pthread_self()};
    open_fixture(&w, "embedded");
    init_options(&options);
    options.process = process;
    options.user = &c;
    const settings all[] = {warped, warped};
    check_rows(&w, all, 2, -1, "", &options);
    assert_int_equal(c.n_calls, N_ROWS / 2 * 10);
    mn_model_close(&w.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_equals_a_single_run),
        cmocka_unit_test(every_beam_equals_a_single_run),
        cmocka_unit_test(constraints_are_shared),
        cmocka_unit_test(an_error_ends_its_row_only),
        cmocka_unit_test(callbacks_stay_on_the_thread_that_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
