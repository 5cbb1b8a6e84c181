/* Requests that join and leave between steps: each equals a single run, whatever runs beside it; failures and
 * cancellation affect one request only; memory is that of the running requests.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <math.h>

#include "session/session.h"

enum { MOST_PROMPT = 150, N_REQUESTS = 10, CHUNK = 64 };

/* Settings as pairs NAME VALUE, and the request's cache. */
static const struct specified {
    const char *settings[14];
    engine_cache cache;
    size_t n_prompt;
    size_t joins; /* added before this step */
} specified[N_REQUESTS] = {
    {{"max_new_tokens", "20"}, {.implementation = "dynamic"}, 40, 0},
    {{"max_new_tokens", "3"}, {.implementation = "dynamic"}, 150, 0},
    {{"max_new_tokens", "12", "do_sample", "true", "seed", "4", "num_return_sequences", "3"},
     {.implementation = "static", .max_cache_len = 64},
     9,
     1},
    {{"max_new_tokens", "10", "num_beams", "4", "num_return_sequences", "2"}, {.implementation = "dynamic"}, 33, 2},
    {{"max_new_tokens", "9", "num_beams", "4", "num_beam_groups", "2", "diversity_penalty", "0.7"},
     {.implementation = "quantized"},
     70,
     2},
    {{"max_new_tokens", "8", "penalty_alpha", "0.6", "top_k", "4"}, {.implementation = "dynamic"}, 20, 6},
    {{"max_new_tokens", "25", "prompt_lookup_num_tokens", "5"}, {.implementation = "dynamic"}, 60, 7},
    {{"max_new_tokens", "6"}, {.implementation = "none"}, 17, 7},
    {{"max_new_tokens", "1"}, {.implementation = "dynamic"}, 1, 9},
    {{"max_new_tokens", "14", "guidance_scale", "1.5"},
     {.implementation = "sink", .config = "window_length=24,num_sink_tokens=4"},
     90,
     11},
};

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    int32_t ids[MOST_PROMPT];
    mn_generation_config *configs[N_REQUESTS];
    mn_generation *alone[N_REQUESTS];
    int64_t live;
} fixture;

static engine_cache cache_of(int i) {
    engine_cache cache = specified[i].cache;
    cache.page_tokens = 16;
    cache.prefill_chunk = CHUNK;
    return cache;
}

static fixture open_fixture(const char *form) {
    fixture w = {.live = mem_count().live};
    w.model = engine_model("golden/llama", form, "auto", engine_threads());
    uint64_t seed = 7;
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&seed, w.ids, MOST_PROMPT, (int32_t)w.vocab);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_logits = true;
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_ok(mn_generation_config_open(&w.configs[i], w.model));
        assert_ok(mn_generation_config_set(w.configs[i], "ignore_eos", "true"));
        for (int k = 0; specified[i].settings[k]; k += 2)
            assert_ok(mn_generation_config_set(w.configs[i], specified[i].settings[k], specified[i].settings[k + 1]));
        mn_session *session = engine_session(w.model, cache_of(i));
        assert_ok(mn_generate(session, w.ids, specified[i].n_prompt, w.configs[i], &how, &w.alone[i]));
        mn_session_close(&session);
    }
    return w;
}

static void close_fixture(fixture *w) {
    for (int i = 0; i < N_REQUESTS; i++) {
        mn_generation_config_close(&w->configs[i]);
        mn_generation_close(&w->alone[i]);
    }
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
    assert_int_equal(mem_count().live, w->live);
}

static mn_engine *open_engine(const fixture *w) {
    mn_engine *engine = NULL;
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = 16, .prefill_chunk = CHUNK});
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache = &cache;
    assert_ok(mn_engine_open(&engine, w->model, &options));
    return engine;
}

/* The request's arguments are freed or overwritten as soon as it is added. */
static mn_status add(const fixture *w, mn_engine *engine, int i, const mn_generate_options *how, int *id) {
    mn_cache_options cache = engine_cache_options(cache_of(i));
    mn_generation_config *config = NULL;
    int32_t prompt[MOST_PROMPT];
    memcpy(prompt, w->ids, sizeof prompt);
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    for (int k = 0; specified[i].settings[k]; k += 2)
        assert_ok(mn_generation_config_set(config, specified[i].settings[k], specified[i].settings[k + 1]));
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = prompt;
    request.n_prompt = specified[i].n_prompt;
    request.config = config;
    request.options = how;
    bool is_default = strcmp(cache.implementation, "dynamic") == 0;
    request.cache = is_default ? NULL : &cache;
    mn_status status = mn_engine_add(engine, &request, id);
    memset(prompt, 0, sizeof prompt);
    mn_generation_config_close(&config);
    return status;
}

static void same_as_alone(const fixture *w, int i, const mn_generation *got, int id) {
    const mn_generation *alone = w->alone[i];
    assert_int_equal(got->n_sequences, alone->n_sequences);
    for (size_t k = 0; k < alone->n_sequences; k++) {
        const mn_sequence *a = alone->sequences[k], *s = got->sequences[k];
        assert_int_equal(s->row, id);
        assert_int_equal(s->index, a->index);
        assert_int_equal(s->n_ids, a->n_ids);
        assert_memory_equal(s->ids, a->ids, a->n_ids * sizeof *a->ids);
        assert_string_equal(s->finish_reason, a->finish_reason);
        if (a->has_score) assert_true(s->score == a->score);
        engine_same_bits(s->logits, a->logits, a->n_ids, w->vocab, "request %d, sequence %zu", i, k);
    }
    assert_string_equal(got->cache->implementation, alone->cache->implementation);
    assert_int_equal(got->cache->tokens, alone->cache->tokens);
}

/* ---- results ---- */

static void requests_that_join_and_leave_equal_single_runs(void **state) {
    (void)state;
    static const char *const forms[] = {"f32", "int8"};
    for (int f = 0; f < 2; f++) {
        fixture w = open_fixture(forms[f]);
        mn_engine *engine = open_engine(&w);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.keep_logits = true;
        int next = 0, n_taken = 0, id_of[N_REQUESTS], order[N_REQUESTS];
        size_t running = 0;
        for (size_t step = 0; n_taken < N_REQUESTS; step++) {
            assert_true(step < 200);
            for (; next < N_REQUESTS && specified[next].joins <= step; next++) {
                assert_ok(add(&w, engine, next, &how, &id_of[next]));
                assert_int_equal(id_of[next], next);
            }
            assert_ok(mn_engine_step(engine, &running));
            for (;;) {
                mn_generation *generation = NULL;
                int id = -2;
                assert_ok(mn_engine_take(engine, &id, &generation));
                if (id < 0) break;
                same_as_alone(&w, id, generation, id);
                order[n_taken++] = id;
                mn_generation_close(&generation);
            }
            assert_int_equal(running, next - n_taken);
        }
        assert_int_not_equal(order[0], 0); /* the shorter requests end before it */
        mn_engine_close(&engine);
        close_fixture(&w);
    }
}

typedef struct counter {
    int64_t n;
} counter;

static bool count_tokens(void *user, const mn_token_event *event) {
    ((counter *)user)->n += event->id >= 0;
    return true;
}

/* Finished requests are taken in the order in which they ended, however late. */
static void requests_are_taken_in_the_order_in_which_they_ended(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    mn_engine *engine = open_engine(&w);
    static const int which[] = {0, 1, 7, 8}, wanted[] = {3, 1, 2, 0};
    size_t running = 1;
    int id;
    mn_generation *generation = NULL;
    for (int i = 0; i < 4; i++) assert_ok(add(&w, engine, which[i], NULL, &id));
    while (running > 0) assert_ok(mn_engine_step(engine, &running));
    for (int i = 0; i < 4; i++) {
        assert_ok(mn_engine_take(engine, &id, &generation));
        assert_int_equal(id, wanted[i]);
        mn_generation_close(&generation);
    }
    assert_ok(mn_engine_take(engine, &id, &generation));
    assert_int_equal(id, -1);
    assert_null(generation);
    assert_ok(add(&w, engine, 8, NULL, &id)); /* an engine that was empty accepts requests again */
    assert_int_equal(id, 4);
    for (running = 1; running > 0;) assert_ok(mn_engine_step(engine, &running));
    assert_ok(mn_engine_take(engine, &id, &generation));
    assert_int_equal(id, 4);
    mn_generation_close(&generation);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* Tokens that a request beside a prompt of two pieces gets until the prompt's first token. */
static int64_t tokens_beside_a_prompt(const fixture *w, double max_slowdown) {
    enum { DECODES = 0, LONG = 1 };
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.max_slowdown = max_slowdown;
    assert_ok(mn_engine_open(&engine, w->model, &options));
    counter decodes = {0}, prompt = {0};
    mn_generate_options first, second;
    mn_generate_options_init(&first, sizeof first);
    second = first;
    first.on_token = second.on_token = count_tokens;
    first.user = &decodes;
    second.user = &prompt;
    int id;
    size_t running;
    assert_ok(add(w, engine, DECODES, &first, &id));
    while (decodes.n == 0) assert_ok(mn_engine_step(engine, &running));
    assert_ok(add(w, engine, LONG, &second, &id));
    const int64_t before = decodes.n;
    while (prompt.n == 0 && running > 0) assert_ok(mn_engine_step(engine, &running));
    assert_int_not_equal(prompt.n, 0);
    const int64_t during = decodes.n - before;
    mn_engine_close(&engine);
    return during;
}

/* CHUNK is 64, so a prompt of 150 takes three steps. With a limit its first piece, taken before anything is known of
 * what a token costs, is smaller: four steps or more, however noisy the clock. What the later pieces are is
 * test_pace's. */
static void a_limit_cuts_prompts(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    int64_t fast = tokens_beside_a_prompt(&w, 0), fair = tokens_beside_a_prompt(&w, 1.5);
    if (fast > 2 || fair <= fast) fail_msg("%lld tokens without a limit, %lld with", (long long)fast, (long long)fair);
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    static const double bad[] = {-1, 0.5, 1.4, 1001, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.max_slowdown = bad[i];
        assert_int_equal(mn_engine_open(&engine, w.model, &options), MN_E_ARG);
        assert_non_null(strstr(mn_last_error(), "allowed: 0 and 1.5 to 1000"));
        assert_null(engine);
    }
    close_fixture(&w);
}

/* ---- owners ---- */

enum { N_OF_A = 8, N_OF_B = 2, N_OWNED = N_OF_A + N_OF_B + 1 };

/* In which order requests of owners start: their first tokens. */
typedef struct starts {
    int order[N_OWNED], n;
} starts;

static bool note_start(void *user, const mn_token_event *event) {
    starts *s = user;
    for (int i = 0; i < s->n; i++) {
        if (s->order[i] == event->row) return true;
    }
    assert_true(s->n < N_OWNED);
    s->order[s->n++] = event->row;
    return true;
}

static int add_owned(const fixture *w, mn_engine *engine, const char *owner, int priority, starts *s) {
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.on_token = note_start;
    how.user = s;
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = w->ids;
    request.n_prompt = specified[0].n_prompt;
    request.config = w->configs[0];
    request.options = &how;
    request.owner = owner;
    request.priority = priority;
    int id = -1;
    assert_ok(mn_engine_add(engine, &request, &id));
    return id;
}

static int place_of(const starts *s, int id) {
    int at = 0;
    while (at < s->n && s->order[at] != id) at++;
    return at;
}

/* All of one owner come first; those of another start between them, and priority goes before either. */
static void many_requests_of_one_owner_do_not_keep_others_waiting(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.max_num_seqs = 2;
    assert_ok(mn_engine_open(&engine, w.model, &options));
    starts s = {.n = 0};
    int a[N_OF_A], b[N_OF_B];
    size_t running = 0;
    for (int i = 0; i < N_OF_A; i++) a[i] = add_owned(&w, engine, "a", 0, &s);
    for (int i = 0; i < 3; i++) assert_ok(mn_engine_step(engine, &running));
    for (int i = 0; i < N_OF_B; i++) b[i] = add_owned(&w, engine, "b", 0, &s);
    int urgent = add_owned(&w, engine, "a", 1, &s);
    for (running = 1; running > 0;) assert_ok(mn_engine_step(engine, &running));
    assert_int_equal(s.n, N_OWNED);
    assert_int_equal(place_of(&s, a[0]), 0);
    assert_int_equal(place_of(&s, a[1]), 1);
    assert_int_equal(place_of(&s, urgent), 2);
    /* B begins with the least that others had, so it takes turns from then on. */
    assert_true(place_of(&s, b[0]) <= 4);
    assert_true(place_of(&s, b[1]) <= 6);
    for (int i = 1; i < N_OF_A; i++) assert_true(place_of(&s, a[i - 1]) < place_of(&s, a[i]));
    /* Without owners the order is that of arrival. */
    s.n = 0;
    for (int i = 0; i < N_OWNED; i++) a[i % N_OF_A] = add_owned(&w, engine, NULL, 0, &s);
    for (running = 1; running > 0;) assert_ok(mn_engine_step(engine, &running));
    for (int i = 1; i < s.n; i++) assert_true(s.order[i - 1] < s.order[i]);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- failures and cancellation ---- */

static bool fail_at_the_third(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size) {
    int *count = user;
    (void)row, (void)ids, (void)n, (void)scores, (void)vocab_size;
    return ++*count < 3;
}

static bool stop_at_the_fourth(void *user, const mn_token_event *event) {
    int *count = user;
    return event->id < 0 || ++*count < 4;
}

static void failures_and_cancellation_affect_one_request_only(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    mn_engine *engine = open_engine(&w);
    int n_calls = 0, n_tokens = 0, ids[4];
    mn_generate_options failing;
    mn_generate_options_init(&failing, sizeof failing);
    mn_generate_options stopping = failing, plain = failing;
    failing.process = fail_at_the_third;
    failing.user = &n_calls;
    stopping.on_token = stop_at_the_fourth;
    stopping.user = &n_tokens;
    plain.keep_logits = true;
    assert_ok(add(&w, engine, 0, &plain, &ids[0]));
    assert_ok(add(&w, engine, 0, &failing, &ids[1]));
    assert_ok(add(&w, engine, 0, &stopping, &ids[2]));
    assert_ok(add(&w, engine, 6, &plain, &ids[3]));
    size_t running = 4;
    bool seen[4] = {false};
    for (int step = 0; running > 0; step++) {
        if (step == 6) assert_ok(mn_engine_cancel(engine, ids[3]));
        assert_ok(mn_engine_step(engine, &running));
    }
    assert_fails(MN_E_ARG, "no request 3", mn_engine_cancel(engine, ids[3]));
    assert_fails(MN_E_ARG, "no request 17", mn_engine_cancel(engine, 17));
    for (int i = 0; i < 4; i++) {
        mn_generation *generation = NULL;
        int id = -1;
        mn_status status = mn_engine_take(engine, &id, &generation);
        assert_true(id >= 0 && id < 4 && !seen[id]);
        seen[id] = true;
        if (id == 1) {
            assert_int_not_equal(status, MN_OK);
            assert_non_null(strstr(mn_last_error(), "failed"));
            assert_null(generation);
            continue;
        }
        assert_int_equal(status, MN_OK);
        const mn_sequence *s = generation->sequences[0];
        const mn_sequence *a = w.alone[id == 3 ? 6 : 0]->sequences[0];
        if (id == 0) same_as_alone(&w, 0, generation, 0);
        if (id > 0) {
            assert_string_equal(s->finish_reason, "cancelled");
            assert_true(s->n_ids < a->n_ids);
            if (id == 2) assert_int_equal(s->n_ids, 4);
            assert_memory_equal(s->ids, a->ids, s->n_ids * sizeof *s->ids);
        }
        mn_generation_close(&generation);
    }
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* The limit has room for the first request and the second one's prompt, but not for its new tokens, nor for the third
 * prompt. */
static void out_of_memory_fails_one_request_only(void **state) {
    (void)state;
    enum { PAGE = 16, N_PAGES = 5 };
    fixture w = open_fixture("f32");
    mn_generation_config *config = w.configs[1];
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "9")); /* three pages in all */
    mn_session *session = engine_session(w.model, cache_of(0));
    mn_generation *alone = NULL, *generation = NULL;
    assert_ok(mn_generate(session, w.ids, 40, config, NULL, &alone));
    size_t page = PAGE * (size_t)kv_cache_token_bytes(session->cache);
    mn_session_close(&session);
    kv_pool_close(&w.model->core->pool);
    assert_ok(kv_pool_open(&w.model->core->pool, N_PAGES * page));
    mn_engine *engine = open_engine(&w);
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = w.ids;
    request.config = config;
    int id;
    for (int i = 0; i < 2; i++) {
        request.n_prompt = i ? 70 : 40;
        if (i) assert_ok(mn_generation_config_set(config, "max_new_tokens", "40"));
        assert_ok(mn_engine_add(engine, &request, &id));
    }
    request.n_prompt = MOST_PROMPT;
    assert_fails(MN_E_NOMEM, "bytes of cache for 150 tokens", mn_engine_add(engine, &request, &id));
    for (size_t running = 2; running > 0;) assert_ok(mn_engine_step(engine, &running));
    for (int i = 0; i < 2; i++) {
        mn_status status = mn_engine_take(engine, &id, &generation);
        assert_int_equal(status, id == 0 ? MN_OK : MN_E_NOMEM);
        if (id == 1) continue;
        assert_int_equal(generation->sequences[0]->n_ids, alone->sequences[0]->n_ids);
        assert_memory_equal(generation->sequences[0]->ids, alone->sequences[0]->ids,
                            alone->sequences[0]->n_ids * sizeof(int32_t));
        mn_generation_close(&generation);
    }
    mn_generation_close(&alone);
    mn_engine_close(&engine);
    close_fixture(&w);
}

static void a_refused_request_leaves_the_engine_unchanged(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    mn_engine *engine = open_engine(&w);
    mn_generation_config *beams = w.configs[3];
    mn_request request;
    mn_request_init(&request, sizeof request);
    int id = 77, bad = (int)w.vocab;
    request.config = beams;
    assert_fails(MN_E_ARG, "prompt is empty", mn_engine_add(engine, &request, &id));
    request.prompt = &bad;
    request.n_prompt = 1;
    assert_fails(MN_E_ARG, "token 0 of the prompt", mn_engine_add(engine, &request, &id));
    request.size = 3;
    assert_fails(MN_E_ARG, "mn_request.size is 3", mn_engine_add(engine, &request, &id));
    mn_cache_options unknown;
    mn_cache_options_init(&unknown, sizeof unknown);
    unknown.implementation = "dynamite";
    mn_request_init(&request, sizeof request);
    request.prompt = w.ids;
    request.n_prompt = 4;
    request.cache = &unknown;
    assert_fails(MN_E_ARG, "dynamite", mn_engine_add(engine, &request, &id));
    mn_model *other = engine_model("embedded", "f32", "auto", 1);
    mn_session *foreign = engine_session(other, (engine_cache){.page_tokens = 16});
    request.cache = NULL;
    request.prefix = foreign;
    assert_fails(MN_E_ARG, "another model", mn_engine_add(engine, &request, &id));
    mn_session_close(&foreign);
    mn_model_close(&other);
    assert_int_equal(id, 77);
    assert_ok(add(&w, engine, 0, NULL, &id));
    assert_int_equal(id, 0);
    mn_engine_options wrong;
    mn_engine_options_init(&wrong, sizeof wrong);
    mn_engine *none = NULL;
    wrong.cache = &unknown;
    assert_fails(MN_E_ARG, "dynamite", mn_engine_open(&none, w.model, &wrong));
    assert_null(none);
    mn_engine_close(&engine); /* with a request in it that was never stepped */
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- prefixes ---- */

static void a_prefix_is_shared(void **state) {
    (void)state;
    enum { PREFIX = 30 };
    fixture w = open_fixture("f32");
    mn_engine *engine = open_engine(&w);
    mn_session *prefix = engine_session(w.model, cache_of(0));
    assert_ok(mn_session_step(prefix, w.ids, PREFIX, NULL));
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_logits = true;
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = w.ids;
    request.n_prompt = specified[0].n_prompt;
    request.config = w.configs[0];
    request.options = &how;
    request.prefix = prefix;
    int id;
    assert_ok(mn_engine_add(engine, &request, &id));
    mn_session_close(&prefix);
    mn_generation *generation = NULL;
    for (size_t running = 1; running > 0;) assert_ok(mn_engine_step(engine, &running));
    assert_ok(mn_engine_take(engine, &id, &generation));
    same_as_alone(&w, 0, generation, id);
    assert_int_equal(generation->sequences[0]->cached_tokens, PREFIX);
    mn_generation_close(&generation);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- memory ---- */

/* Many requests in sequence take no more memory than those that run at the same time. */
static void memory_is_that_of_the_running_requests(void **state) {
    (void)state;
    enum { TOGETHER = 3, MANY = 60 };
    fixture w = open_fixture("f32");
    size_t most[2] = {0}, blocks[2] = {0};
    for (int run = 0; run < 2; run++) {
        mn_engine *engine = open_engine(&w);
        int n_added = 0, n_taken = 0, n_all = run ? MANY : TOGETHER, id;
        size_t running = 0;
        while (n_taken < n_all) {
            for (; running < TOGETHER && n_added < n_all; running++) {
                assert_ok(add(&w, engine, 0, NULL, &id));
                n_added++;
            }
            assert_ok(mn_engine_step(engine, &running));
            size_t used = kv_pool_used(w.model->core->pool);
            if (used > most[run]) most[run] = used;
            mn_generation *generation = NULL;
            while (mn_engine_take(engine, &id, &generation) == MN_OK && id >= 0) {
                n_taken++;
                mn_generation_close(&generation);
            }
        }
        assert_int_equal(kv_pool_used(w.model->core->pool), 0);
        blocks[run] = (size_t)mem_count().live;
        mn_engine_close(&engine);
    }
    assert_int_equal(most[0], most[1]);
    assert_int_equal(blocks[0], blocks[1]);
    close_fixture(&w);
}

/* With preallocated pages no step allocates except the first one of a request, which opens its search. */
static void steps_do_not_allocate(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    mn_engine *engine = open_engine(&w);
    mn_cache_options fixed = engine_cache_options((engine_cache){.implementation = "static", .max_cache_len = 128});
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = w.ids;
    request.n_prompt = 20;
    request.cache = &fixed;
    int id, n_revertible = 0;
    for (int i = 0; i < 4; i++) {
        request.config = w.configs[i == 2 ? 2 : 0]; /* with a request for three sequences */
        assert_ok(mn_engine_add(engine, &request, &id));
    }
    size_t running = 4;
    for (int step = 0; running == 4; step++) {
        int64_t before = mem_count().allocations;
        assert_ok(mn_engine_step(engine, &running));
        if (step < 4) continue;
        assert_int_equal(mem_count().allocations, before);
        n_revertible++;
    }
    assert_true(n_revertible > 6);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- failing allocations ---- */

enum { NO_FAILURE = 1 << 20 };

/* Three requests with the k-th allocation failing: each succeeds or ends with MN_E_NOMEM, and nothing leaks. Returns
 * the number of allocations. */
static int64_t run_with_failure(const fixture *w, int64_t k) {
    mn_engine *engine = NULL;
    static const int which[] = {0, 3, 2};
    int64_t live = engine_live(w->model), before = mem_count().allocations;
    int id, n_added = 0, n_taken = 0;
    mem_fail_after(k);
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    mn_status status = mn_engine_open(&engine, w->model, &options);
    if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
    for (int i = 0; engine && i < 3; i++) {
        mn_request request;
        mn_request_init(&request, sizeof request);
        request.prompt = w->ids;
        request.n_prompt = 20;
        request.config = w->configs[which[i]];
        status = mn_engine_add(engine, &request, &id);
        if (status == MN_OK) {
            n_added++;
        } else {
            assert_int_equal(status, MN_E_NOMEM);
        }
    }
    for (size_t running = (size_t)n_added; running > 0;) assert_ok(mn_engine_step(engine, &running));
    while (engine) {
        mn_generation *generation = NULL;
        status = mn_engine_take(engine, &id, &generation);
        if (id < 0) break;
        n_taken++;
        assert_int_equal(status == MN_OK, generation != NULL);
        if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
        mn_generation_close(&generation);
    }
    assert_int_equal(n_taken, n_added);
    mem_fail_after(0);
    int64_t n = mem_count().allocations - before;
    mn_engine_close(&engine);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    if (k < NO_FAILURE && engine_live(w->model) > live)
        fail_msg("%lld: %lld blocks are left", (long long)k, (long long)(engine_live(w->model) - live));
    return n;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fixture w = open_fixture("f32");
    run_with_failure(&w, NO_FAILURE); /* memory that the model keeps after its first run */
    int64_t n = run_with_failure(&w, NO_FAILURE);
    assert_true(n > 150);
    for (int64_t k = 1; k <= n; k += 1 + k / 24) run_with_failure(&w, k);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_that_join_and_leave_equal_single_runs),
        cmocka_unit_test(requests_are_taken_in_the_order_in_which_they_ended),
        cmocka_unit_test(a_limit_cuts_prompts),
        cmocka_unit_test(many_requests_of_one_owner_do_not_keep_others_waiting),
        cmocka_unit_test(failures_and_cancellation_affect_one_request_only),
        cmocka_unit_test(out_of_memory_fails_one_request_only),
        cmocka_unit_test(a_refused_request_leaves_the_engine_unchanged),
        cmocka_unit_test(a_prefix_is_shared),
        cmocka_unit_test(memory_is_that_of_the_running_requests),
        cmocka_unit_test(steps_do_not_allocate),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
