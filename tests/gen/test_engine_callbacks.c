/* What a callback may do with the engine that called it: add, cancel and take work at any call of any callback, and
 * everything that needs the time between steps is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "session/session.h"

enum { N_PROMPT = 40, CHUNK = 16, N_NEW = 6 };

typedef enum place { ON_TOKEN, ON_PREFILL, PROCESS, PREFIX_ALLOWED, STOP, N_PLACES } place;
typedef enum action { NOTHING, CANCEL_OWN, CANCEL_OTHER, CANCEL_ALL, ADD, TAKE, OUTSIDE_ONLY, N_ACTIONS } action;

/* Two requests that run beside each other, one that has ended, and what the first one's callback does when. */
typedef struct scene {
    mn_model *model;
    mn_engine *engine;
    const int32_t *ids;
    int32_t *allowed; /* every id */
    size_t vocab;
    action action;
    int at, n_calls; /* the call in which it is done; calls so far */
    int own, other, ended, added;
} scene;

static int add(scene *s, const mn_generate_options *how, const char *n_new) {
    mn_generation_config *config = NULL;
    mn_request request;
    int id = -1;
    assert_ok(mn_generation_config_open(&config, s->model));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", n_new));
    mn_request_init(&request, sizeof request);
    request.prompt = s->ids;
    request.n_prompt = N_PROMPT;
    request.config = config;
    request.options = how;
    assert_ok(mn_engine_add(s->engine, &request, &id));
    mn_generation_config_close(&config);
    return id;
}

static bool drop(void *user, const mn_prefix_info *info) {
    assert_fails(MN_E_ARG, "mn_engine_prefix_drop was called in a callback of mn_engine_prefixes",
                 mn_engine_prefix_drop(user, info->id));
    return true;
}

static bool visit_nothing(void *user, const mn_prefix_info *info) {
    (void)user, (void)info;
    fail_msg("a callback of a step visits");
    return false;
}

static void expect_refusals(mn_engine *engine) {
    size_t running = 0;
    bool has_work = false;
    uint64_t id = 0;
    int32_t token = 0;
    mn_engine *same = engine;
    mn_session *session = NULL;
    static const char step[] = "was called in a callback of mn_engine_step; allowed: outside of it";
    assert_fails(MN_E_ARG, step, mn_engine_step(engine, &running));
    assert_fails(MN_E_ARG, step, mn_engine_wait(engine, 0, &has_work));
    assert_fails(MN_E_ARG, step, mn_engine_prefixes(engine, visit_nothing, NULL));
    assert_fails(MN_E_ARG, step, mn_engine_prefix_of(engine, &token, 1, NULL, &id));
    assert_fails(MN_E_ARG, step, mn_engine_prefix_hold(engine, 1, true, 0));
    assert_fails(MN_E_ARG, step, mn_engine_prefix_session(engine, 1, &session));
    assert_fails(MN_E_ARG, step, mn_engine_prefix_drop(engine, 1));
    mn_engine_close(&same);
    assert_ptr_equal(same, engine);
    assert_non_null(strstr(mn_last_error(), "mn_engine_close was called in a callback"));
}

static void act(scene *s) {
    mn_generation *generation = NULL;
    int id = -1;
    if (++s->n_calls != s->at) return;
    switch (s->action) {
    case CANCEL_ALL:
    case CANCEL_OWN:
        assert_ok(mn_engine_cancel(s->engine, s->own));
        if (s->action == CANCEL_ALL) assert_ok(mn_engine_cancel(s->engine, s->other));
        break;
    case CANCEL_OTHER: assert_ok(mn_engine_cancel(s->engine, s->other)); break;
    case ADD: s->added = add(s, NULL, "3"); break;
    case TAKE:
        assert_ok(mn_engine_take(s->engine, &id, &generation));
        assert_int_equal(id, s->ended);
        assert_int_equal(generation->sequences[0]->n_ids, 1);
        mn_generation_close(&generation);
        assert_ok(mn_engine_take(s->engine, &id, &generation)); /* no other has ended */
        assert_int_equal(id, -1);
        break;
    case OUTSIDE_ONLY: expect_refusals(s->engine); break;
    case NOTHING:
    case N_ACTIONS: break;
    }
}

static bool on_token(void *user, const mn_token_event *event) {
    (void)event;
    act(user);
    return true;
}

static void on_prefill(void *user, size_t done, size_t total) {
    (void)done, (void)total;
    act(user);
}

static bool process(void *user, int row, const int32_t *ids, size_t n, float *scores, size_t vocab_size) {
    (void)row, (void)ids, (void)n, (void)scores, (void)vocab_size;
    act(user);
    return true;
}

static bool prefix_allowed(void *user, int row, const int32_t *ids, size_t n, const int32_t **allowed,
                           size_t *n_allowed) {
    scene *s = user;
    (void)row, (void)ids, (void)n;
    act(s);
    *allowed = s->allowed;
    *n_allowed = s->vocab;
    return true;
}

static bool stop(void *user, int row, const int32_t *ids, size_t n) {
    (void)row, (void)ids, (void)n;
    act(user);
    return false;
}

static mn_generate_options options_at(place where, scene *s) {
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.user = s;
    if (where == ON_TOKEN) how.on_token = on_token;
    if (where == ON_PREFILL) how.on_prefill = on_prefill;
    if (where == PROCESS) how.process = process;
    if (where == PREFIX_ALLOWED) how.prefix_allowed = prefix_allowed;
    if (where == STOP) how.stop = stop;
    return how;
}

/* Takes what has ended; every request has the tokens that it would have alone, as many as it came to. */
static void take_all(scene *s, const int32_t *alone) {
    bool seen[4] = {false};
    for (;;) {
        mn_generation *generation = NULL;
        int id = -1;
        assert_ok(mn_engine_take(s->engine, &id, &generation));
        if (id < 0) break;
        assert_true(id < 4 && !seen[id]);
        seen[id] = true;
        const mn_sequence *q = generation->sequences[0];
        const size_t whole = id == s->ended ? 1 : id == s->added ? 3 : N_NEW;
        const bool is_cancelled = strcmp(q->finish_reason, "cancelled") == 0;
        const bool may_be = (id == s->own && (s->action == CANCEL_OWN || s->action == CANCEL_ALL)) ||
                            (id == s->other && (s->action == CANCEL_OTHER || s->action == CANCEL_ALL));
        assert_true(is_cancelled ? may_be : q->n_ids == whole);
        assert_true(q->n_ids <= whole);
        if (q->n_ids) assert_memory_equal(q->ids, alone, q->n_ids * sizeof *alone);
        if (may_be && s->at == 1) assert_true(is_cancelled);
        mn_generation_close(&generation);
    }
    assert_true(seen[s->own] && seen[s->other] && seen[s->ended] == (s->action != TAKE));
    assert_true(s->action != ADD || (s->added == 3 && seen[3]));
}

/* How many calls of the callback there were. */
static int play(scene *s, place where, action what, int at, const int32_t *alone) {
    mn_generate_options how = options_at(where, s);
    mn_engine_options options;
    size_t running = 1;
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = CHUNK, .prefill_chunk = CHUNK});
    char n_new[8];
    snprintf(n_new, sizeof n_new, "%d", N_NEW);
    mn_engine_options_init(&options, sizeof options);
    options.cache = &cache;
    options.enable_prefix_caching = what == OUTSIDE_ONLY;
    assert_ok(mn_engine_open(&s->engine, s->model, &options));
    s->action = what;
    s->at = at;
    s->n_calls = 0;
    s->added = -1;
    s->ended = add(s, NULL, "1");
    while (running > 0) assert_ok(mn_engine_step(s->engine, &running));
    s->own = add(s, &how, n_new);
    s->other = add(s, NULL, n_new);
    for (running = 1; running > 0;) assert_ok(mn_engine_step(s->engine, &running));
    if (what == OUTSIDE_ONLY) assert_ok(mn_engine_prefixes(s->engine, drop, s->engine));
    take_all(s, alone);
    mn_engine_close(&s->engine);
    assert_null(s->engine);
    return s->n_calls;
}

static void callbacks_may_add_cancel_and_take(void **state) {
    (void)state;
    const int64_t live = mem_count().live;
    int32_t ids[N_PROMPT], alone[N_NEW];
    uint64_t seed = 7;
    scene s = {.model = engine_model("golden/llama", "f32", "auto", engine_threads()), .ids = ids};
    s.vocab = (size_t)engine_vocab(s.model);
    engine_ids(&seed, ids, N_PROMPT, (int32_t)s.vocab);
    s.allowed = mem_alloc(s.vocab, sizeof *s.allowed);
    for (size_t i = 0; i < s.vocab; i++) s.allowed[i] = (int32_t)i;
    mn_session *session = engine_session(s.model, (engine_cache){.page_tokens = CHUNK, .prefill_chunk = CHUNK});
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    assert_ok(mn_generation_config_open(&config, s.model));
    assert_ok(mn_generation_config_load(config, "{\"ignore_eos\": true, \"max_new_tokens\": 6}", 41));
    assert_ok(mn_generate(session, ids, N_PROMPT, config, NULL, &generation));
    memcpy(alone, generation->sequences[0]->ids, sizeof alone);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    for (place where = 0; where < N_PLACES; where++) {
        const int last = play(&s, where, NOTHING, 0, alone);
        assert_true(last >= 3);
        for (action what = NOTHING + 1; what < N_ACTIONS; what++) {
            play(&s, where, what, 1, alone);
            play(&s, where, what, 2, alone);
            play(&s, where, what, last, alone);
        }
    }
    mem_free(s.allowed);
    mn_model_close(&s.model);
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(callbacks_may_add_cancel_and_take)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
