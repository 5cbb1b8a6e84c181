/* The plan of mn_memory_plan_make for rows of one prompt, against the memory of runs and the limits under which they
 * succeed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/changing.h"

enum { NEW = 20, BEAMS = 40, PAGE = 128, MOST_PROMPT = 1000 };

typedef struct rows_run {
    mn_status status;
    size_t peak;
    mn_memory_plan plan;
    char implementation[64];
} rows_run;

typedef struct rows_case {
    const char *model, *strategy, *config;
    int64_t prompt;
    int rows, max_new;
} rows_case;

static void set_number(mn_generation_config *config, const char *field, int n) {
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    assert_ok(mn_generation_config_set(config, field, text));
}

static void set_beams(mn_generation_config *config, const rows_case *c) {
    set_number(config, "max_new_tokens", c->max_new);
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    if (c->rows == 1) return;
    set_number(config, "num_beams", c->rows);
    set_number(config, "num_beam_groups", c->rows);
    set_number(config, "num_return_sequences", c->rows);
    assert_ok(mn_generation_config_set(config, "diversity_penalty", "1.0"));
}

static mn_cache_options options_of(const rows_case *c) {
    mn_cache_options options = engine_cache_options((engine_cache){.implementation = c->strategy,
                                                                   .config = c->config,
                                                                   .dtype = "bf16",
                                                                   .page_tokens = PAGE,
                                                                   .max_cache_len = c->prompt + c->max_new,
                                                                   .prefill_chunk = PAGE});
    return options;
}

static void run_rows(rows_run *run, const rows_case *c, const char *policy, size_t budget) {
    int32_t ids[MOST_PROMPT];
    uint64_t seed = 7;
    changing w = changing_open(c->model, engine_threads());
    mn_session *session = NULL;
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    mn_cache_options options = options_of(c);
    *run = (rows_run){.plan = {.size = sizeof run->plan}};
    kv_pool_close(&w.model->core->pool);
    assert_ok(kv_pool_open(&w.model->core->pool, budget));
    assert_ok(mn_memory_plan_make(&run->plan, w.model, &options, c->prompt, c->max_new, c->rows, 1));
    options.on_oom = policy;
    engine_ids(&seed, ids, (size_t)c->prompt, (int32_t)w.vocab);
    assert_ok(mn_generation_config_open(&config, w.model));
    set_beams(config, c);
    kv_watch watch;
    kv_pool_watch(w.model->core->pool, &watch);
    run->status = mn_session_open(&session, w.model, &options);
    if (run->status == MN_OK) run->status = mn_generate(session, ids, (size_t)c->prompt, config, NULL, &g);
    run->peak = watch.most;
    kv_pool_unwatch(w.model->core->pool, &watch);
    if (g) snprintf(run->implementation, sizeof run->implementation, "%s", g->cache->implementation);
    mn_generation_close(&g);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    changing_close(&w);
}

static void within_a_tenth(const rows_case *c, const char *what, size_t found, size_t planned) {
    if (found > planned + planned / 10 || planned > found + found / 10)
        fail_msg("%s %s '%s', %lld + %d tokens, %d rows: %s %zu bytes, planned %zu", c->model, c->strategy,
                 c->config ? c->config : "", (long long)c->prompt, c->max_new, c->rows, what, found, planned);
}

static void runs_hold_the_planned_bytes(void **state) {
    (void)state;
    static const struct {
        int64_t prompt;
        int rows, max_new;
    } sizes[] = {{1000, BEAMS, NEW}, {1000, 1, NEW}, {300, 6, 200}, {70, 9, 70}, {256, 3, 40}, {40, BEAMS, 4}};
    enum { FORTY_SHORT = sizeof sizes / sizeof *sizes - 1, FEW = FORTY_SHORT - 1 };
    static const struct {
        const char *name, *config;
        size_t first, last; /* of the sizes */
    } strategies[] = {{"dynamic", NULL, 0, FEW},
                      {"static", NULL, 0, FEW},
                      {"offloaded", NULL, 0, FEW},
                      {"offloaded_static", NULL, 0, FEW},
                      {"quantized", NULL, 0, FEW},
                      {"quantized", "nbits=2,residual_length=32", 0, FEW},
                      {"sink", "window_length=256", 0, FEW},
                      {"sliding_window", "window_length=300", 0, FEW},
                      {"quantized+offloaded", NULL, 0, FEW},
                      {"quantized+sink", "window_length=256", 0, FEW},
                      {"sink+offloaded", "window_length=256", 0, FEW},
                      {"QuantoQuantizedCache", NULL, 0, FEW},
                      {"HQQQuantizedCache", NULL, 0, FEW},
                      {"hybrid", NULL, FEW, FORTY_SHORT}, /* like dynamic here */
                      {"mamba", NULL, FEW, FORTY_SHORT},
                      {"none", NULL, FEW, FORTY_SHORT}}; /* computes every text again in each step */
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        for (size_t k = strategies[i].first; k <= strategies[i].last; k++) {
            if (!test_is_long() && (i + k) % 2) continue;
            rows_case c = {TINY_MODEL,      strategies[i].name, strategies[i].config,
                           sizes[k].prompt, sizes[k].rows,      sizes[k].max_new};
            rows_run run;
            run_rows(&run, &c, NULL, 0);
            assert_int_equal(run.status, MN_OK);
            within_a_tenth(&c, "held", run.peak, (size_t)run.plan.cache_bytes);
        }
    }
}

/* Without a cache the rows of one prompt and of many are texts that are computed one after the other. */
static void prompts_without_a_cache_are_planned_as_rows(void **state) {
    (void)state;
    const rows_case c = {TINY_MODEL, "none", NULL, 200, BEAMS, NEW};
    const mn_cache_options options = options_of(&c);
    changing w = changing_open(c.model, engine_threads());
    mn_memory_plan rows = {.size = sizeof rows}, prompts = rows, one = rows;
    assert_ok(mn_memory_plan_make(&rows, w.model, &options, c.prompt, NEW, BEAMS, 1));
    assert_ok(mn_memory_plan_make(&prompts, w.model, &options, c.prompt, NEW, 1, BEAMS));
    assert_ok(mn_memory_plan_make(&one, w.model, &options, c.prompt, NEW, 1, 1));
    assert_int_equal(prompts.cache_bytes, rows.cache_bytes);
    assert_true(rows.cache_bytes < 2 * one.cache_bytes);
    changing_close(&w);
}

/* Models with different layers: windows, states. */
static void mixed_layers_are_planned(void **state) {
    (void)state;
    static const rows_case cases[] = {
        {"golden/jamba", "dynamic", NULL, 300, 6, 40},          {"golden/jamba", "quantized", NULL, 300, 6, 40},
        {"golden/mamba", "dynamic", NULL, 300, 6, 40},          {"golden/mamba", "dynamic", NULL, 30, 1, 40},
        {"golden/mistral-window", "dynamic", NULL, 300, 6, 40}, {"golden/mistral-window", "static", NULL, 300, 6, 40},
        {"golden/gemma3", "hybrid", NULL, 300, 6, 40},          {"golden/gemma3", "offloaded", NULL, 300, 6, 40},
        {"golden/qwen3", "quantized", NULL, 300, 6, 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rows_run run;
        run_rows(&run, &cases[i], NULL, 0);
        assert_int_equal(run.status, MN_OK);
        within_a_tenth(&cases[i], "held", run.peak, (size_t)run.plan.cache_bytes);
    }
}

/* session_bytes is what a session reports behind such a prompt, to the byte. */
static void one_session_holds_the_planned_bytes(void **state) {
    (void)state;
    static const struct {
        const char *model, *strategy, *config;
    } caches[] = {
        {TINY_MODEL, "none", NULL},
        {TINY_MODEL, "dynamic", NULL},
        {TINY_MODEL, "static", NULL},
        {TINY_MODEL, "offloaded", NULL},
        {TINY_MODEL, "offloaded_static", NULL},
        {TINY_MODEL, "quantized", "nbits=2"},
        {TINY_MODEL, "quantized", "backend=quanto,nbits=4"},
        {TINY_MODEL, "quantized", "backend=hqq,nbits=4,axis_key=1,axis_value=1"},
        {TINY_MODEL, "sink", "window_length=256"},
        {TINY_MODEL, "quantized+sink", "window_length=256"},
        {TINY_MODEL, "quantized+offloaded", NULL},
        {TINY_MODEL, "quantized+static", NULL},
        {"golden/jamba", "dynamic", NULL},
        {"golden/mistral-window", "dynamic", NULL},
        {"golden/mamba", "dynamic", NULL},
    };
    static const int lengths[] = {1, 40, 128, 300, 777};
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        changing w = changing_open(caches[i].model, engine_threads());
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            int32_t ids[MOST_PROMPT];
            uint64_t seed = 7;
            mn_session *session = NULL;
            mn_memory_plan plan = {.size = sizeof plan};
            mn_cache_info cache = {.size = sizeof cache};
            const rows_case c = {caches[i].model, caches[i].strategy, caches[i].config, lengths[k], 1, 1};
            const mn_cache_options options = options_of(&c);
            assert_ok(mn_memory_plan_make(&plan, w.model, &options, lengths[k], 1, 1, 1));
            engine_ids(&seed, ids, (size_t)lengths[k], (int32_t)w.vocab);
            assert_ok(mn_session_open(&session, w.model, &options));
            const size_t once = strstr(c.model, "amba") ? 1 : (size_t)lengths[k]; /* states are kept of steps */
            for (size_t at = 0; at < (size_t)lengths[k]; at += once)
                assert_ok(mn_session_step(session, ids + at, once, NULL));
            assert_ok(mn_session_cache(session, &cache));
            if (plan.session_bytes != cache.bytes)
                fail_msg("%s %s, %d tokens: planned %zu bytes, held %zu", c.model, c.strategy, lengths[k],
                         (size_t)plan.session_bytes, (size_t)cache.bytes);
            mn_session_close(&session);
        }
        changing_close(&w);
    }
}

/* The smallest limit under which a run with on_oom succeeds, and the plan for the cache that it is converted to.
 * `evict` keeps the first tokens and a window of half of the held tokens, in whole pages of each row. */
static void limits_equal_the_plan_of_the_converted_cache(void **state) {
    (void)state;
    static const struct {
        const char *from, *config, *on_oom;
        rows_case becomes;
    } tries[] = {
        {"dynamic", NULL, "offload", {"embedded", "offloaded", NULL, 1000, BEAMS, NEW}},
        {"dynamic", NULL, "quantize", {TINY_MODEL, "quantized", NULL, 1000, BEAMS, NEW}},
        {"dynamic", NULL, "evict", {TINY_MODEL, "sink", "window_length=384", 1000, BEAMS, NEW}},
        {"sink", "window_length=900", "offload", {"embedded", "sink+offloaded", "window_length=900", 1000, BEAMS, NEW}},
        {"sink",
         "window_length=900",
         "quantize",
         {TINY_MODEL, "sink+quantized", "window_length=900", 1000, BEAMS, NEW}},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const rows_case *becomes = &tries[i].becomes;
        rows_case plain = *becomes;
        rows_run run;
        plain.strategy = tries[i].from;
        plain.config = tries[i].config;
        run_rows(&run, becomes, NULL, 0);
        const size_t planned = (size_t)run.plan.cache_bytes;
        run_rows(&run, &plain, NULL, 0);
        size_t enough = run.peak - 1, too_little = planned / 2;
        run_rows(&run, &plain, tries[i].on_oom, enough);
        assert_int_equal(run.status, MN_OK);
        while (enough - too_little > planned / 64) {
            size_t middle = too_little + (enough - too_little) / 2;
            run_rows(&run, &plain, tries[i].on_oom, middle);
            if (run.status == MN_OK) assert_string_equal(run.implementation, becomes->strategy);
            if (run.status != MN_OK) assert_int_equal(run.status, MN_E_NOMEM);
            *(run.status == MN_OK ? &enough : &too_little) = middle;
        }
        within_a_tenth(becomes, "the limit is", enough, planned);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANGING_TEST(runs_hold_the_planned_bytes),
        CHANGING_TEST(prompts_without_a_cache_are_planned_as_rows),
        CHANGING_TEST(mixed_layers_are_planned),
        CHANGING_TEST(one_session_holds_the_planned_bytes),
        CHANGING_TEST(limits_equal_the_plan_of_the_converted_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
