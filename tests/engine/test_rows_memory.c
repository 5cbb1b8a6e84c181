/* Forty beams after a prompt of a thousand tokens: their memory, the reported memory, and the memory that on_oom needs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/changing.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/zero_checkpoint.h"

enum { PROMPT = 1000, NEW = 20, BEAMS = 40, PAGE = 128 };

typedef struct rows_run {
    mn_status status;
    size_t peak, token; /* as reported; bytes of a token */
    char implementation[64];
    int32_t ids[BEAMS][NEW];
} rows_run;

static void run_rows(rows_run *run, const char *path, const char *strategy, const char *policy, size_t budget) {
    int32_t ids[PROMPT];
    uint64_t seed = 7;
    changing w = changing_open(path, engine_threads());
    mn_session *session = NULL;
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    mn_cache_options options = engine_cache_options((engine_cache){.implementation = strategy,
                                                                   .dtype = "bf16",
                                                                   .page_tokens = PAGE,
                                                                   .max_cache_len = PROMPT + 2 * NEW,
                                                                   .prefill_chunk = PAGE});
    options.on_oom = policy;
    kv_pool_close(&w.model->core->pool);
    assert_ok(kv_pool_open(&w.model->core->pool, budget));
    engine_ids(&seed, ids, PROMPT, (int32_t)w.vocab);
    assert_ok(mn_generation_config_open(&config, w.model));
    static const char *const fields[][2] = {{"num_beams", "40"},          {"num_beam_groups", "40"},
                                            {"diversity_penalty", "1.0"}, {"num_return_sequences", "40"},
                                            {"max_new_tokens", "20"},     {"ignore_eos", "true"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_ok(mn_generation_config_set(config, fields[i][0], fields[i][1]));
    *run = (rows_run){.status = mn_session_open(&session, w.model, &options)};
    if (run->status == MN_OK) {
        run->token = kv_cache_token_bytes(session->cache);
        run->status = mn_generate(session, ids, PROMPT, config, NULL, &g);
        assert_ok(kv_check(session->cache));
    }
    if (g) {
        run->peak = g->cache->peak_bytes;
        snprintf(run->implementation, sizeof run->implementation, "%s", g->cache->implementation);
        for (size_t i = 0; i < g->n_sequences; i++) {
            assert_int_equal(g->sequences[i]->n_ids, NEW);
            memcpy(run->ids[i], g->sequences[i]->ids, sizeof run->ids[i]);
        }
    }
    mn_generation_close(&g);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    changing_close(&w);
}

/* The prompt's eight pages once, and for every beam part of a page for its own tokens: 16 at first, then 32. While a
 * part grows, both exist. */
static void beams_share_the_open_page(void **state) {
    (void)state;
    rows_run run;
    run_rows(&run, "embedded", "dynamic", NULL, 0);
    assert_int_equal(run.status, MN_OK);
    size_t most = ((size_t)8 * PAGE + BEAMS * 48) * run.token;
    if (run.peak > most) fail_msg("%zu bytes, allowed: %zu", run.peak, most);
    assert_true(run.peak >= (PROMPT + BEAMS * NEW) * run.token / 2);
}

/* The reported peak is what a memory limit counts: with exactly that limit the run succeeds, with a byte less it fails.
 */
static void the_peak_is_the_limit(void **state) {
    (void)state;
    static const char *const strategies[] = {"dynamic", "static", "quantized", "sink"};
    for (int i = 0; i < 4; i++) {
        rows_run free_run, run;
        run_rows(&free_run, TINY_MODEL, strategies[i], NULL, 0);
        assert_int_equal(free_run.status, MN_OK);
        run_rows(&run, TINY_MODEL, strategies[i], NULL, free_run.peak);
        if (run.status != MN_OK) fail_msg("%s, %zu bytes: %s", strategies[i], free_run.peak, mn_last_error());
        assert_int_equal(run.peak, free_run.peak);
        assert_memory_equal(run.ids, free_run.ids, sizeof run.ids);
        run_rows(&run, TINY_MODEL, strategies[i], NULL, free_run.peak - 1);
        assert_int_equal(run.status, MN_E_NOMEM);
    }
}

/* Caches that save memory for one row save it for many rows. */
static void memory_saving_caches_save_memory_with_many_rows(void **state) {
    (void)state;
    static const struct {
        const char *model, *strategy;
    } tries[] = {{"embedded", "offloaded"}, {"embedded", "offloaded_static"}, {TINY_MODEL, "quantized"}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        rows_run plain, saving;
        run_rows(&plain, tries[i].model, "dynamic", NULL, 0);
        run_rows(&saving, tries[i].model, tries[i].strategy, NULL, 0);
        assert_int_equal(saving.status, MN_OK);
        if (saving.peak >= plain.peak)
            fail_msg("%s takes %zu bytes, dynamic %zu", tries[i].strategy, saving.peak, plain.peak);
        if (strcmp(tries[i].strategy, "quantized") != 0) assert_memory_equal(saving.ids, plain.ids, sizeof plain.ids);
    }
}

/* The most memory that this process had, in bytes. */
static size_t most_resident(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;
    while (file && fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %zu kB", &kib) != 1) continue;
    if (file) fclose(file);
    return kib << 10;
}

/* How much a run in a process of its own adds to what that begins with. */
static size_t process_peak(const char *path, const char *strategy) {
    int ends[2], status = -1;
    size_t peak = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure ends the child alone */
        /* Large blocks that are freed go back: by default it depends on their order how many the allocator keeps. */
        mallopt(M_MMAP_THRESHOLD, 1 << 17);
        const size_t base = most_resident();
        rows_run run;
        run_rows(&run, path, strategy, NULL, 0);
        peak = run.status == MN_OK ? most_resident() - base : 0;
        _exit(write(ends[1], &peak, sizeof peak) != sizeof peak);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &peak, sizeof peak), sizeof peak);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(peak > 0);
    return peak;
}

/* The pages of the prompt are most of what the process takes here: 8 KiB a token. */
static void the_process_takes_less_with_a_quantized_cache(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* what sanitizers take is not planned */
#endif
    static const char wide[] = "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 32, "
                               "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
                               "\"head_dim\": 128, \"vocab_size\": 128, \"max_position_embeddings\": 2048, "
                               "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}";
    const char *path = zero_checkpoint(wide, DTYPE_BF16);
    const size_t plain = process_peak(path, "dynamic"), quantized = process_peak(path, "quantized");
    print_message("dynamic %zu KiB, quantized %zu KiB\n", plain >> 10, quantized >> 10);
    assert_true(quantized < plain);
}

/* A run that on_oom converts to another cache needs little more memory than one with that cache from the beginning. */
static void on_oom_needs_little_more_than_its_strategy(void **state) {
    (void)state;
    static const struct {
        const char *model, *on_oom, *becomes;
    } tries[] = {{"embedded", "offload", "offloaded"}, {TINY_MODEL, "quantize", "quantized"}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        rows_run wanted, plain, run;
        run_rows(&wanted, tries[i].model, tries[i].becomes, NULL, 0);
        run_rows(&plain, tries[i].model, "dynamic", NULL, 0);
        size_t enough = plain.peak - 1, too_little = wanted.peak / 2;
        while (enough - too_little > wanted.peak / 64) {
            size_t middle = too_little + (enough - too_little) / 2;
            run_rows(&run, tries[i].model, "dynamic", tries[i].on_oom, middle);
            if (run.status == MN_OK) {
                assert_string_equal(run.implementation, tries[i].becomes);
                assert_true(run.peak <= middle);
                enough = middle;
            } else {
                assert_int_equal(run.status, MN_E_NOMEM);
                too_little = middle;
            }
        }
        if (enough > wanted.peak + wanted.peak / 10)
            fail_msg("on_oom=%s needs %zu bytes, %s from the beginning %zu", tries[i].on_oom, enough, tries[i].becomes,
                     wanted.peak);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANGING_TEST(beams_share_the_open_page),
        CHANGING_TEST(the_peak_is_the_limit),
        CHANGING_TEST(memory_saving_caches_save_memory_with_many_rows),
        CHANGING_TEST(the_process_takes_less_with_a_quantized_cache),
        CHANGING_TEST(on_oom_needs_little_more_than_its_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
