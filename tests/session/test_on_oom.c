/* When memory ends, because of a budget or because an allocation failed, the cache changes by its on_oom policy and
 * the run continues.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/changing.h"

#include "kv/group.h"
#include "support/strategies.h"

/* ---- a budget ---- */

enum { LONG = 300, N_NEW = 40 };

/* The embedded model has five layers, so that two areas for offloaded pages are less than all of them. */
typedef struct limited {
    changing w;
    size_t budget;
    int32_t ids[LONG];
    engine_cache cache;
} limited;

/* A model whose pages may take `budget` bytes. Its weights and buffers, which a memory limit counts besides, are larger
 * than that. */
static limited open_budget(size_t budget, const char *path, int page) {
    limited l = {.budget = budget,
                 .cache = {.implementation = "dynamic", .dtype = "f32", .page_tokens = page, .prefill_chunk = 32}};
    l.w = changing_open(path, engine_threads());
    kv_pool_close(&l.w.model->core->pool);
    assert_ok(kv_pool_open(&l.w.model->core->pool, budget));
    engine_ids(&l.w.seed, l.ids, LONG, (int32_t)l.w.vocab);
    return l;
}

static mn_generation_config *greedy(const mn_model *model, int n_new) {
    mn_generation_config *config = NULL;
    char number[16];
    assert_ok(mn_generation_config_open(&config, model));
    snprintf(number, sizeof number, "%d", n_new);
    assert_ok(mn_generation_config_set(config, "max_new_tokens", number));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    return config;
}

static mn_session *open_session(mn_model *model, engine_cache cache, const char *policy) {
    mn_cache_options options = engine_cache_options(cache);
    mn_session *session = NULL;
    options.on_oom = policy;
    assert_ok(mn_session_open(&session, model, &options));
    return session;
}

typedef struct watch {
    const limited *l;
    size_t most;
    int n_looks;
} watch;

static void look(watch *it) {
    size_t used = kv_pool_used(it->l->w.model->core->pool);
    if (used > it->most) it->most = used;
    it->n_looks++;
}
static bool watch_token(void *user, const mn_token_event *event) {
    (void)event;
    look(user);
    return true;
}
static void watch_prefill(void *user, size_t done, size_t total) {
    (void)done;
    (void)total;
    look(user);
}

static mn_generation *generate(const limited *l, mn_session *session, watch *it, mn_status wanted, int n_prompt,
                               int n_new) {
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    mn_generation_config *config = greedy(l->w.model, n_new);
    mn_generation *generation = NULL;
    *it = (watch){.l = l};
    how.user = it;
    how.on_token = watch_token;
    how.on_prefill = watch_prefill;
    mn_status status = mn_generate(session, l->ids, (size_t)n_prompt, config, &how, &generation);
    mn_generation_config_close(&config);
    if (status != wanted) fail_msg("status %d, expected %d: %s", status, wanted, mn_last_error());
    assert_ok(kv_check(session->cache));
    return generation;
}

/* A prompt and an answer that need 340 tokens of 1,280 bytes, and pages of 16 of them. */
static void offloading_gives_the_same_tokens(void **state) {
    (void)state;
    static const size_t budgets[] = {260000, 320000, 400000};
    for (int i = 0; i < 3; i++) {
        limited l = open_budget(budgets[i], "embedded", 16);
        changing free_fixture = changing_open("embedded", engine_threads());
        limited free_l = {.w = free_fixture, .cache = l.cache};
        memcpy(free_l.ids, l.ids, sizeof l.ids);
        watch it;
        mn_session *session = open_session(l.w.model, l.cache, "offload"),
                   *plain = open_session(free_fixture.model, l.cache, NULL);
        mn_generation *got = generate(&l, session, &it, MN_OK, LONG, N_NEW);
        assert_true(it.n_looks > N_NEW + 5);
        if (it.most > budgets[i]) fail_msg("%zu bytes resident, allowed: %zu", it.most, budgets[i]);
        mn_generation *wanted = generate(&free_l, plain, &it, MN_OK, LONG, N_NEW);
        assert_true(it.most > budgets[i]); /* or there was no need */
        assert_int_equal(got->sequences[0]->n_ids, N_NEW);
        assert_memory_equal(got->sequences[0]->ids, wanted->sequences[0]->ids, N_NEW * sizeof(int32_t));
        engine_ends_with(session, mn_session_logits(plain), "offloaded under way");
        assert_string_equal(got->cache->implementation, "offloaded");
        assert_string_equal(got->cache->original_implementation, "dynamic");
        assert_true(got->cache->offloaded_bytes > 0);
        assert_true(got->cache->bytes - got->cache->offloaded_bytes < budgets[i]);
        assert_null(wanted->cache->original_implementation);
        assert_int_equal(wanted->cache->offloaded_bytes, 0);
        mn_generation_close(&got);
        mn_generation_close(&wanted);
        mn_session_close(&session);
        mn_session_close(&plain);
        changing_close(&free_fixture);
        changing_close(&l.w);
    }
}

static void without_a_policy_it_is_a_failure(void **state) {
    (void)state;
    static const char *const policies[] = {NULL, "fail"};
    limited l = open_budget(260000, "embedded", 16);
    for (int i = 0; i < 2; i++) {
        watch it;
        mn_session *session = open_session(l.w.model, l.cache, policies[i]);
        assert_null(generate(&l, session, &it, MN_E_NOMEM, LONG, N_NEW));
        assert_non_null(strstr(mn_last_error(), "260000 allowed"));
        assert_non_null(strstr(mn_last_error(), "--on-oom offload or evict converts the cache"));
        assert_true(it.most <= l.budget);
        mn_generation *short_one = generate(&l, session, &it, MN_OK, 100, 10); /* what fits continues */
        assert_null(short_one->cache->original_implementation);
        mn_generation_close(&short_one);
        mn_session_close(&session);
    }
    mn_session *session = NULL;
    mn_cache_options options = engine_cache_options(l.cache);
    options.on_oom = "pray";
    assert_fails(MN_E_ARG, "fail, offload, quantize, evict", mn_session_open(&session, l.w.model, &options));
    changing_close(&l.w);
}

/* The failure names the policies that would have helped: those that the model and the cache allow. */
static void policies_that_help_are_named(void **state) {
    (void)state;
    static const struct {
        const char *model, *implementation, *config, *named;
    } tries[] = {
        {TINY_MODEL, "dynamic", NULL, "; --on-oom offload, quantize or evict converts the cache"},
        {TINY_MODEL, "quantized", "residual_length=1024", "; --on-oom offload or evict converts the cache"},
        {TINY_MODEL, "sink", "window_length=1024", "; --on-oom offload or quantize converts the cache"},
        {"embedded", "sliding_window", "window_length=1024", "; --on-oom offload converts the cache"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        limited l = open_budget(100000, tries[i].model, 16);
        engine_cache cache = l.cache;
        cache.implementation = tries[i].implementation;
        cache.config = tries[i].config;
        watch it;
        mn_session *session = open_session(l.w.model, cache, NULL);
        assert_null(generate(&l, session, &it, MN_E_NOMEM, LONG, N_NEW));
        if (!strstr(mn_last_error(), tries[i].named)) fail_msg("%s: %s", tries[i].implementation, mn_last_error());
        mn_session_close(&session);
        changing_close(&l.w);
    }
}

/* Under a budget every on_oom policy is what mn_session_set_cache does at the same length; nothing is computed
 * again. */
static void check_on_oom(const char *path, size_t budget, engine_cache cache, const char *policy, const char *name) {
    limited l = open_budget(budget, path, cache.page_tokens);
    changing free_fixture = changing_open(path, engine_threads());
    mn_session *session = open_session(l.w.model, cache, policy), *twin = open_session(free_fixture.model, cache, NULL);
    bool was_changed = false;
    for (int t = 0; t < LONG; t++) {
        mn_status status = mn_session_step(session, &l.ids[t], 1, NULL);
        if (status != MN_OK) fail_msg("%s, token %d: %s", name, t, mn_last_error());
        assert_ok(kv_check(session->cache));
        size_t used = kv_pool_used(l.w.model->core->pool);
        if (used > budget) fail_msg("%s, token %d: %zu bytes, allowed: %zu", name, t, used, budget);
        if (*session->original_implementation && !was_changed) {
            mn_cache_options options;
            mn_cache_options_init(&options, sizeof options);
            bytes config = {0};
            was_changed = true;
            assert_string_equal(session->original_implementation, cache.implementation);
            assert_string_equal(session->plan.name, name);
            options.implementation = name;
            kv_config_put(&config, &session->plan.config);
            options.config = bytes_text(&config);
            options.dtype = cache.dtype;
            options.page_tokens = cache.page_tokens;
            assert_ok(mn_session_set_cache(twin, &options));
            bytes_clear(&config);
        }
        assert_ok(mn_session_step(twin, &l.ids[t], 1, NULL));
        engine_ends_with(session, mn_session_logits(twin), name);
    }
    if (!was_changed) fail_msg("%s: the memory never ended", name);
    mn_cache_info info = {.size = sizeof info};
    assert_ok(mn_session_cache(session, &info));
    assert_string_equal(info.original_implementation, cache.implementation);
    /* Only the session and its forks have changed. */
    mn_session *fork = NULL;
    assert_ok(mn_session_fork(&fork, session));
    assert_ok(mn_session_cache(fork, &info));
    assert_string_equal(info.original_implementation, cache.implementation);
    mn_session_close(&fork);
    mn_session_close(&session);
    mn_session_close(&twin);
    changing_close(&free_fixture);
    changing_close(&l.w);
}

static void on_oom_is_a_change_of_strategy(void **state) {
    (void)state;
    engine_cache f32 = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 16}, narrow = f32;
    narrow.dtype = "bf16";
    /* The TINY_MODEL model takes 768 bytes a token in f32; three layers. */
    if (test_samples(1, 2)) check_on_oom("embedded", 300000, f32, "offload", "offloaded");
    check_on_oom(TINY_MODEL, 200000, f32, "offload", "offloaded");
    check_on_oom(TINY_MODEL, 80000, narrow, "quantize", "quantized");
    check_on_oom(TINY_MODEL, 130000, f32, "quantize", "quantized");
    check_on_oom(TINY_MODEL, 150000, f32, "evict", "sink");
    check_on_oom(TINY_MODEL, 50000, narrow, "evict", "sink");
    engine_cache coded = {
        .implementation = "quantized", .dtype = "bf16", .page_tokens = 16, .config = "residual_length=16,nbits=8"};
    check_on_oom(TINY_MODEL, 60000, coded, "evict", "quantized+sink");
    coded.config = " {\"residual_length\": 16, \"nbits\": 8 } ";
    check_on_oom(TINY_MODEL, 60000, coded, "evict", "quantized+sink");
    coded.config = "{ }";
    check_on_oom(TINY_MODEL, 50000, coded, "evict", "quantized+sink");
    coded.config = "backend=quanto,residual_length=16,nbits=4";
    check_on_oom(TINY_MODEL, 60000, coded, "offload", "quantized+offloaded");
    engine_cache window = {
        .implementation = "sliding_window", .dtype = "f32", .page_tokens = 16, .config = "window_length=250"};
    check_on_oom(TINY_MODEL, 165000, window, "offload", "sliding_window+offloaded");
    check_on_oom(TINY_MODEL, 130000, window, "quantize", "sliding_window+quantized");
}

/* Where the policy does not help, the call fails as without one, and nothing has changed. */
static void on_oom_that_cannot_be_is_a_failure(void **state) {
    (void)state;
    static const struct {
        engine_cache cache;
        const char *on_oom;
    } tries[] = {
        {{.implementation = "dynamic", .dtype = "f32", .page_tokens = 6}, "quantize"}, /* pages of another kind */
        {{.implementation = "sliding_window", .dtype = "f32", .page_tokens = 16, .config = "window_length=290"},
         "evict"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        limited l = open_budget(130000, TINY_MODEL, 16);
        mn_session *session = open_session(l.w.model, tries[i].cache, tries[i].on_oom), *witness = NULL;
        engine_feed(session, l.ids, 30, 0, NULL, NULL);
        mn_status status = mn_session_step(session, l.ids + 30, LONG - 30, NULL);
        assert_int_equal(status, MN_E_NOMEM);
        assert_non_null(strstr(mn_last_error(), "130000 allowed"));
        assert_int_equal(mn_session_length(session), 30);
        assert_string_equal(session->original_implementation, "");
        assert_string_equal(session->plan.name, tries[i].cache.implementation);
        witness = open_session(l.w.model, tries[i].cache, NULL);
        engine_feed(witness, l.ids, 30, 0, NULL, NULL);
        memcpy(l.w.ids, l.ids, 100 * sizeof *l.ids);
        mn_session *fork = NULL;
        assert_ok(mn_session_fork(&fork, session));
        changing_go_on_alike(&l.w, fork, witness, 40, 1, "after a policy that could not be applied");
        mn_session_close(&fork);
        mn_session_close(&session);
        mn_session_close(&witness);
        changing_close(&l.w);
    }
}

/* Rows of a batch share the budget. */
static void batches_go_on_too(void **state) {
    (void)state;
    limited l = open_budget(420000, "embedded", 16);
    changing free_fixture = changing_open("embedded", engine_threads());
    mn_batch_row rows[3] = {{sizeof(mn_batch_row), l.ids, 90, NULL, NULL},
                            {sizeof(mn_batch_row), l.ids + 50, 120, NULL, NULL},
                            {sizeof(mn_batch_row), l.ids + 100, 60, NULL, NULL}};
    mn_generation *results[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        mn_model *model = i ? free_fixture.model : l.w.model;
        mn_cache_options options = engine_cache_options(l.cache);
        mn_generation_config *config = greedy(model, 60);
        options.on_oom = "offload";
        assert_ok(mn_generate_batch(model, &options, rows, 3, config, NULL, &results[i]));
        mn_generation_config_close(&config);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(results[0]->sequences[i]->n_ids, 60);
        assert_memory_equal(results[0]->sequences[i]->ids, results[1]->sequences[i]->ids, 60 * sizeof(int32_t));
    }
    assert_non_null(results[0]->cache->original_implementation);
    assert_string_equal(results[0]->cache->original_implementation, "dynamic");
    assert_true(results[0]->cache->offloaded_bytes > 0);
    assert_null(results[1]->cache->original_implementation);
    for (int i = 0; i < 2; i++) mn_generation_close(&results[i]);
    changing_close(&free_fixture);
    changing_close(&l.w);
}

/* ---- every allocation of a generation ---- */

enum { PROMPT = 40, NEW = 20 };

static mn_status try_generation(mn_session *session, const int32_t *ids, const mn_generation_config *config,
                                int32_t *out) {
    mn_generation *generation = NULL;
    mn_status status = mn_generate(session, ids, PROMPT, config, NULL, &generation);
    if (status != MN_OK) return status;
    assert_int_equal(generation->sequences[0]->n_ids, NEW);
    memcpy(out, generation->sequences[0]->ids, NEW * sizeof *out);
    mn_generation_close(&generation);
    return MN_OK;
}

/* The result of a generation without failures. */
typedef struct outcome {
    int32_t ids[NEW];
    int64_t n_quantized;
    int64_t n_allocations;
} outcome;

/* One generation whose k-th allocation fails, by a model that was just opened; whether one failed. */
static bool fail_one(const char *policy, engine_cache cache, int64_t k, outcome *wanted, bool *has_changed) {
    changing w = changing_open(TINY_MODEL, 1);
    mn_generation_config *config = greedy(w.model, NEW);
    mn_session *session = open_session(w.model, cache, policy);
    int32_t got[NEW];
    int64_t before = mem_count().allocations;
    mem_fail_after(k);
    mn_status status = try_generation(session, w.ids, config, got);
    mem_fail_after(0);
    bool failed = k > 0 && mem_count().allocations - before >= k - 1;
    if (status != MN_OK && status != MN_E_NOMEM) fail_msg("allocation %lld: %s", (long long)k, mn_last_error());
    assert_ok(kv_check(session->cache));
    *has_changed = *session->original_implementation != 0;
    /* Strategies that lose bits may give other tokens, but as many. */
    bool is_exact = !*has_changed || strcmp(policy, "offload") == 0;
    if (k == 0) {
        memcpy(wanted->ids, got, sizeof got);
        wanted->n_quantized = strategy_quantized(session);
        wanted->n_allocations = mem_count().allocations - before;
    }
    if (status == MN_OK && is_exact) {
        assert_memory_equal(got, wanted->ids, sizeof got);
        assert_int_equal(strategy_quantized(session), wanted->n_quantized);
    }
    if (status != MN_OK) {
        failed = true;
        assert_ok(try_generation(session, w.ids, config, got));
        if (is_exact) assert_memory_equal(got, wanted->ids, sizeof got);
    } else if (failed) {
        assert_int_equal(mn_session_length(session), PROMPT + NEW - 1);
    }
    mn_session_close(&session);
    mn_generation_config_close(&config);
    changing_close(&w);
    return failed;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const struct {
        const char *on_oom;
        engine_cache cache;
    } tries[] = {
        {"fail", {.implementation = "dynamic", .page_tokens = 4}},
        {"offload", {.implementation = "dynamic", .page_tokens = 4}},
        {"quantize", {.implementation = "dynamic", .page_tokens = 16}},
        {"evict", {.implementation = "dynamic", .page_tokens = 4}},
        {"offload", {.implementation = "quantized", .page_tokens = 16, .config = "backend=quanto,residual_length=4"}},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        if (!test_samples((int)i, 2)) continue;
        outcome wanted;
        int n_changed = 0;
        bool failed = true, has_changed;
        fail_one(tries[i].on_oom, tries[i].cache, 0, &wanted, &has_changed);
        int64_t k = 1;
        /* Each of the last ones, among which are those of pages. */
        for (; failed; k += k + 20 < wanted.n_allocations ? test_stride(2) : 1) {
            failed = fail_one(tries[i].on_oom, tries[i].cache, k, &wanted, &has_changed);
            n_changed += has_changed;
            assert_true(k < 5000);
        }
        if (k < 30) fail_msg("%s: %lld allocations are too few", tries[i].on_oom, (long long)k);
        assert_int_equal(n_changed > 0, i > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANGING_TEST(offloading_gives_the_same_tokens),   CHANGING_TEST(without_a_policy_it_is_a_failure),
        CHANGING_TEST(policies_that_help_are_named),       CHANGING_TEST(on_oom_is_a_change_of_strategy),
        CHANGING_TEST(on_oom_that_cannot_be_is_a_failure), CHANGING_TEST(batches_go_on_too),
        CHANGING_TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
