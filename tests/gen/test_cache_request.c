/* The cache that a generation configuration requests: applied by every way of generating when the session was opened
 * without a named cache, ignored when it was opened with one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <unistd.h>

#include "session/session.h"
#include "support/scratch.h"
#include "support/strategies.h"

enum { N_PROMPT = 40, N_NEW = 12 };

static mn_model *model;
static int32_t prompt[N_PROMPT];

static int open_all(void **state) {
    (void)state;
    uint64_t seed = 7;
    model = engine_model(data_path("golden/llama"), "f32", "auto", engine_threads());
    engine_ids(&seed, prompt, N_PROMPT, 300);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    mn_model_close(&model);
    return 0;
}

static mn_generation_config *config_of(const mn_model *of, const char *settings) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, of));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "12"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_load(config, settings, strlen(settings)));
    return config;
}

/* Generates with a session of these options and checks the resulting cache and that the tokens equal those of a session
 * that was opened with that cache by name. */
static void check_run(const mn_cache_options *opened, const char *settings, const char *name, const char *details) {
    mn_session *session = NULL, *named = NULL;
    mn_generation *got = NULL, *wanted = NULL;
    mn_generation_config *config = config_of(model, settings), *plain = config_of(model, "{}");
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = name;
    options.config = details;
    if (strstr(name, "static")) options.max_cache_len = N_PROMPT + N_NEW;
    assert_ok(mn_session_open(&session, model, opened));
    assert_ok(mn_session_open(&named, model, &options));
    assert_ok(mn_generate(session, prompt, N_PROMPT, config, NULL, &got));
    assert_ok(mn_generate(named, prompt, N_PROMPT, plain, NULL, &wanted));
    if (strcmp(got->cache->implementation, name) != 0)
        fail_msg("%s: the cache is '%s', expected '%s'", settings, got->cache->implementation, name);
    if (got->cache->bytes != wanted->cache->bytes)
        fail_msg("%s: %llu bytes, expected %llu", settings, (unsigned long long)got->cache->bytes,
                 (unsigned long long)wanted->cache->bytes);
    assert_int_equal(got->sequences[0]->n_ids, N_NEW);
    assert_memory_equal(got->sequences[0]->ids, wanted->sequences[0]->ids, N_NEW * sizeof(int32_t));
    mn_generation_close(&got);
    mn_generation_close(&wanted);
    mn_generation_config_close(&config);
    mn_generation_config_close(&plain);
    mn_session_close(&session);
    mn_session_close(&named);
}

static const struct {
    const char *settings, *name, *details;
} requested[] = {
    {"{}", "dynamic", NULL},
    {"{\"cache_implementation\": \"static\"}", "static", NULL},
    {"{\"cache_implementation\": \"offloaded_static\"}", "offloaded_static", NULL},
    {"{\"cache_implementation\": \"StaticCache\", \"cache_config\": {\"max_cache_len\": 52}}", "static", NULL},
    {"{\"cache_implementation\": \"quantized\", \"cache_config\": {\"nbits\": 2, \"residual-length\": 16, \"page_tokens\": 16}}",
     "quantized", "nbits=2,residual_length=16,page_tokens=16"},
    {"{\"cache_implementation\": \"HQQQuantizedCache\", \"cache_config\": {\"axis_key\": 1, \"axis_value\": 1, \"device\": \"cpu\"}}",
     "quantized", "backend=hqq,axis_key=1,axis_value=1"},
    {"{\"cache_implementation\": \"sink\", \"cache_config\": {\"window_length\": 20, \"num_sink_tokens\": 2, \"page_tokens\": 4}}",
     "sink", "window_length=20,num_sink_tokens=2,page_tokens=4"},
    {"{\"cache_implementation\": \"sliding_window\", \"cache_config\": \"sliding_window=9,page_tokens=4\"}",
     "sliding_window", "window_length=9,page_tokens=4"},
    {"{\"use_cache\": false}", "none", NULL},
    {"{\"use_cache\": false, \"cache_implementation\": \"static\"}", "none", NULL},
};

enum { N_REQUESTED = sizeof requested / sizeof requested[0] };

static void a_session_without_a_named_cache_takes_the_requested_one(void **state) {
    (void)state;
    mn_cache_options open;
    mn_cache_options_init(&open, sizeof open);
    for (int i = 0; i < N_REQUESTED; i++) {
        check_run(NULL, requested[i].settings, requested[i].name, requested[i].details);
        check_run(&open, requested[i].settings, requested[i].name, requested[i].details);
    }
    open.page_tokens = 16; /* options without a cache name are kept */
    check_run(&open, "{\"cache_implementation\": \"quantized\"}", "quantized", "page_tokens=16");
}

static void a_named_cache_is_kept(void **state) {
    (void)state;
    for (int i = 0; i < N_REQUESTED; i++) {
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        options.implementation = "dynamic";
        check_run(&options, requested[i].settings, "dynamic", NULL);
        options.implementation = "quantized";
        options.config = "nbits=3";
        check_run(&options, requested[i].settings, "quantized", "nbits=3");
    }
    /* A cache set by mn_session_set_cache counts as named. */
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generation_config *config = config_of(model, "{\"cache_implementation\": \"sink\"}");
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = "offloaded";
    assert_ok(mn_session_open(&session, model, NULL));
    assert_ok(mn_session_set_cache(session, &options));
    assert_ok(mn_generate(session, prompt, N_PROMPT, config, NULL, &generation));
    assert_string_equal(generation->cache->implementation, "offloaded");
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
}

/* One session with one configuration after another: its cache is what each requests, and the tokens equal those of a
 * new session. */
static void successive_configurations_change_the_cache(void **state) {
    (void)state;
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, model, NULL));
    for (int turn = 0; turn < 2 * N_REQUESTED; turn++) {
        int i = (turn * 7 + 3) % N_REQUESTED;
        mn_generation_config *config = config_of(model, requested[i].settings);
        mn_generation *got = NULL;
        mn_cache_info info = {.size = sizeof info};
        assert_ok(mn_generate(session, prompt, N_PROMPT, config, NULL, &got));
        assert_ok(mn_session_cache(session, &info));
        assert_string_equal(info.implementation, requested[i].name);
        assert_int_equal(mn_session_length(session), N_PROMPT + N_NEW - 1);
        assert_ok(kv_check(session->cache));
        mn_generation_close(&got);
        mn_generation_config_close(&config);
    }
    mn_session_close(&session);
}

/* The tokens of a session are converted to the requested cache without recomputation where that is possible. */
static void held_tokens_are_converted(void **state) {
    (void)state;
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generation_config *config = config_of(model, "{\"cache_implementation\": \"offloaded\"}");
    assert_ok(mn_session_open(&session, model, NULL));
    assert_ok(mn_session_step(session, prompt, N_PROMPT - 3, NULL));
    assert_ok(mn_generate(session, prompt, N_PROMPT, config, NULL, &generation));
    assert_string_equal(generation->cache->implementation, "offloaded");
    assert_int_equal(generation->sequences[0]->cached_tokens, N_PROMPT - 3);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
}

static void each_row_has_its_own_cache(void **state) {
    (void)state;
    mn_batch_row rows[N_REQUESTED];
    mn_generation_config *configs[N_REQUESTED];
    mn_generation *all = NULL;
    for (int i = 0; i < N_REQUESTED; i++) {
        configs[i] = config_of(model, requested[i].settings);
        rows[i] = (mn_batch_row){sizeof(mn_batch_row), prompt, (size_t)(N_PROMPT - i), configs[i], NULL};
    }
    for (int named = 0; named < 2; named++) {
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        if (named) options.implementation = "offloaded";
        assert_ok(mn_generate_batch(model, &options, rows, N_REQUESTED, NULL, NULL, &all));
        assert_int_equal(all->n_sequences, N_REQUESTED);
        assert_string_equal(all->cache->implementation, named ? "offloaded" : "several");
        for (int i = 0; i < N_REQUESTED; i++) {
            mn_session *alone = NULL;
            mn_generation *one = NULL;
            assert_ok(mn_session_open(&alone, model, named ? &options : NULL));
            assert_ok(mn_generate(alone, prompt, rows[i].n_prompt, configs[i], NULL, &one));
            if (memcmp(one->sequences[0]->ids, all->sequences[i]->ids, N_NEW * sizeof(int32_t)) != 0)
                fail_msg("row %d differs from a single run", i);
            mn_generation_close(&one);
            mn_session_close(&alone);
        }
        mn_generation_close(&all);
    }
    /* A row that begins with a prefix has the prefix's cache when that was named, else its own. */
    for (int named = 0; named < 2; named++) {
        mn_session *prefix = NULL;
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        options.implementation = "offloaded";
        assert_ok(mn_session_open(&prefix, model, named ? &options : NULL));
        assert_ok(mn_session_step(prefix, prompt, 20, NULL));
        rows[1].prefix = prefix;
        assert_ok(mn_generate_batch(model, NULL, &rows[1], 1, NULL, NULL, &all));
        assert_string_equal(all->cache->implementation, named ? "offloaded" : "static");
        assert_int_equal(all->sequences[0]->cached_tokens, 20);
        mn_generation_close(&all);
        mn_session_close(&prefix);
    }
    for (int i = 0; i < N_REQUESTED; i++) mn_generation_config_close(&configs[i]);
}

/* generation_config.json of a checkpoint applies when nothing else is set. */
static void the_checkpoints_request_is_the_default(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors"};
    static const char settings[] =
        "{\"cache_implementation\": \"quantized\", \"cache_config\": {\"nbits\": 3, \"compute_dtype\": \"float16\"}, "
        "\"return_legacy_cache\": true, \"max_new_tokens\": 4, \"eos_token_id\": null}";
    char folder[1024];
    bytes file = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        snprintf(name, sizeof name, "golden/llama/%s", files[i]);
        assert_ok(file_read(&file, data_path(name), 1 << 26));
        scratch_file(files[i], file.data, file.n);
        bytes_clear(&file);
    }
    scratch_file("generation_config.json", settings, strlen(settings));
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    mn_model *own = engine_model(folder, "f32", "auto", 1);
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    char *warnings = NULL;
    assert_ok(mn_session_open(&session, own, NULL));
    assert_ok(mn_generate(session, prompt, N_PROMPT, NULL, NULL, &generation));
    assert_string_equal(generation->cache->implementation, "quantized");
    mn_generation_close(&generation);
    const mn_batch_row row = {sizeof(mn_batch_row), prompt, N_PROMPT, NULL, NULL};
    assert_ok(mn_generate_batch(own, NULL, &row, 1, NULL, NULL, &generation));
    assert_string_equal(generation->cache->implementation, "quantized");
    mn_generation_close(&generation);
    assert_ok(mn_generation_config_open(&config, own));
    assert_ok(mn_generation_config_check(config, NULL, &warnings));
    assert_non_null(strstr(warnings, "have no effect here: return_legacy_cache\n"));
    assert_non_null(strstr(warnings, "compute_dtype has no effect"));
    mn_free(warnings);
    assert_ok(mn_generation_config_set(config, "cache_implementation", "\"static\""));
    assert_ok(mn_generate_batch(own, NULL, &row, 1, config, NULL, &generation));
    assert_string_equal(generation->cache->implementation, "static");
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    mn_model_close(&own);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(scratch_path(files[i]));
    unlink(scratch_path("generation_config.json"));
}

static void notes_report_a_kept_cache(void **state) {
    (void)state;
    static const struct {
        const char *opened, *config, *settings, *part;
    } cases[] = {
        {NULL, NULL, "{\"cache_implementation\": \"static\"}", NULL},
        {"dynamic", NULL, "{}", NULL},
        {"dynamic", NULL, "{\"cache_implementation\": \"DynamicCache\"}", NULL},
        {"dynamic", NULL, "{\"cache_implementation\": \"static\"}",
         "keeps the cache 'dynamic' that it was opened with; the configuration requests 'static'"},
        {"dynamic", NULL, "{\"use_cache\": false}", "requests 'none'"},
        {"quantized", "nbits=2", "{\"cache_implementation\": \"quantized\", \"cache_config\": \"nbits=2\"}", NULL},
        {"quantized", "nbits=2", "{\"cache_implementation\": \"quantized\"}",
         "requests 'quantized' with other numbers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_session *session = NULL;
        mn_generation_config *config = config_of(model, cases[i].settings);
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        char *warnings = NULL;
        options.implementation = cases[i].opened;
        options.config = cases[i].config;
        assert_ok(mn_session_open(&session, model, &options));
        how.session = session;
        assert_ok(mn_generation_config_check(config, &how, &warnings));
        if (cases[i].part ? !strstr(warnings, cases[i].part) : *warnings != 0) fail_msg("case %zu: '%s'", i, warnings);
        mn_free(warnings);
        mn_generation_config_close(&config);
        mn_session_close(&session);
    }
}

/* Cache options without effect for a model: sinks where the model's own window is narrower, ignored keys. */
static void notes_report_options_without_effect(void **state) {
    (void)state;
    static const struct {
        const char *folder, *name, *config, *wanted;
    } cases[] = {
        {"golden/llama", "sink", NULL, ""},
        {"golden/llama", "dynamic", NULL, ""},
        {"golden/llama", "static", NULL, ""},
        {"golden/llama", "quantized", "device=cuda",
         "cache option device is 'cuda' but has no effect: caches are in the memory of the CPU\n"},
        {"golden/mistral-window", "sink", NULL,
         "3 of 3 layers have a window of their own of 8 tokens, not wider than window_length 1024: they keep it, and have no sinks\n"},
        {"golden/mistral-window", "quantized+sink", "window_length=8",
         "3 of 3 layers have a window of their own of 8 tokens, not wider than window_length 8: they keep it, and have no sinks\n"},
        {"golden/mistral-window", "sink", "window_length=7", ""},
        {"golden/mistral-window", "sink", "num_sink_tokens=0", ""},
        {"golden/mistral-window", "sliding_window", "window_length=20", ""},
        {NULL, "sink", NULL,
         "2 of 3 layers have a window of their own of 8 tokens, not wider than window_length 1024: they keep it, and have no sinks\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_model *m = engine_model(cases[i].folder ? cases[i].folder : strategy_hybrid_folder(), "f32", "auto", 1);
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        char *warnings = NULL;
        options.implementation = cases[i].name;
        options.config = cases[i].config;
        assert_ok(mn_cache_warnings(m, &options, &warnings));
        if (strcmp(warnings, cases[i].wanted) != 0) fail_msg("case %zu: '%s'", i, warnings);
        mn_free(warnings);
        options.config = "made_up=1";
        assert_fails(MN_E_ARG, "made_up", mn_cache_warnings(m, &options, &warnings));
        assert_null(warnings);
        mn_model_close(&m);
    }
}

/* A refused request leaves the session unchanged. */
static void refusals_change_nothing(void **state) {
    (void)state;
    static const struct {
        const char *settings, *part;
    } cases[] = {
        {"{\"cache_implementation\": \"sliding_window\"}", "needs window_length"},
        {"{\"cache_implementation\": \"self=dynamic,cross=static\"}", "no cross attention"},
        {"{\"cache_implementation\": \"sink\", \"cache_config\": {\"nbits\": 4}}", "nbits belongs to quantized"},
        {"{\"cache_implementation\": \"static\", \"cache_config\": {\"max_cache_len\": 30}}",
         "too small for a prompt of 40 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t held = 0; held <= 10; held += 10) {
            mn_session *session = NULL;
            mn_generation *generation = NULL;
            mn_generation_config *config = config_of(model, cases[i].settings);
            assert_ok(mn_session_open(&session, model, NULL));
            if (held) assert_ok(mn_session_step(session, prompt, held, NULL));
            mn_status status = mn_generate(session, prompt, N_PROMPT, config, NULL, &generation);
            assert_true(status == MN_E_ARG || status == MN_E_FULL);
            if (!strstr(mn_last_error(), cases[i].part)) fail_msg("case %zu: '%s'", i, mn_last_error());
            assert_null(generation);
            assert_int_equal(mn_session_length(session), held);
            assert_ok(mn_session_step(session, prompt + held, 5, NULL));
            mn_generation_config_close(&config);
            mn_session_close(&session);
        }
    }
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    mn_generation_config *config = config_of(model, requested[4].settings);
    const mn_batch_row row = {sizeof(mn_batch_row), prompt, N_PROMPT, config, NULL};
    int64_t live = engine_live(model), k = 1;
    for (bool done = false; !done; k++) {
        mn_generation *generation = NULL;
        mn_session *session = NULL;
        assert_ok(mn_session_open(&session, model, NULL));
        assert_ok(mn_session_step(session, prompt, 5, NULL));
        mem_fail_after(k);
        mn_status status = mn_generate(session, prompt, N_PROMPT, config, NULL, &generation);
        if (status == MN_OK) {
            mn_generation_close(&generation);
            status = mn_generate_batch(model, NULL, &row, 1, NULL, NULL, &generation);
        }
        mem_fail_after(0);
        done = status == MN_OK;
        if (!done && status != MN_E_NOMEM) fail_msg("allocation %d: status %d", (int)k, (int)status);
        mn_generation_close(&generation);
        mn_session_close(&session);
        if (engine_live(model) != live)
            fail_msg("allocation %d leaves %d blocks", (int)k, (int)(engine_live(model) - live));
    }
    assert_true(k > 20);
    mn_generation_config_close(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_without_a_named_cache_takes_the_requested_one),
        cmocka_unit_test(a_named_cache_is_kept),
        cmocka_unit_test(successive_configurations_change_the_cache),
        cmocka_unit_test(held_tokens_are_converted),
        cmocka_unit_test(each_row_has_its_own_cache),
        cmocka_unit_test(the_checkpoints_request_is_the_default),
        cmocka_unit_test(notes_report_a_kept_cache),
        cmocka_unit_test(notes_report_options_without_effect),
        cmocka_unit_test(refusals_change_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
