/* Sessions against the double-precision oracle: every strategy, every CPU level, windows that differ by layer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include "kernels/cpu.h"
#include "support/families.h"
#include "support/oracle.h"
#include "support/scratch.h"

static const char *const families[] = {"llama",        "llama-untied-bias",
                                       "mistral-full", "mistral-window",
                                       "qwen2",        "qwen3",
                                       "phi3-window",  "mixtral",
                                       "granite",      "gemma2",
                                       "gemma3",       "gpt2",
                                       "gpt-neox",     "mamba",
                                       "jamba",        "qwen2-moe",
                                       "qwen3-moe",    "smollm3",
                                       "olmo2",        "stablelm",
                                       "cohere",       "phi",
                                       "gemma"};
static const char *const strategies[] = {"dynamic", "static", "none"};
enum { N_FAMILIES = sizeof families / sizeof *families, N_STRATEGIES = 3, N_IDS = 120 };

/* The difference between correct float32 and float64 runs of these checkpoints, with a margin of three. */
static const double tolerance = 2e-4;

typedef struct fixture {
    oracle o;
    int32_t ids[N_IDS];
    double *wanted;
    uint64_t seed;
} fixture;

static fixture open_fixture(const char *folder) {
    fixture w = {.o = oracle_open(folder), .seed = 3};
    engine_ids(&w.seed, w.ids, N_IDS, w.o.vocab);
    w.wanted = malloc((size_t)N_IDS * (size_t)w.o.vocab * sizeof *w.wanted);
    oracle_logits(&w.o, w.ids, N_IDS, w.wanted);
    return w;
}

static void close_fixture(fixture *w) {
    free(w->wanted);
    oracle_close(&w->o);
}

static void check(fixture *w, const char *path, const char *cpu, const char *strategy, int piece) {
    mn_model *model = engine_model(path, "f32", cpu, engine_threads());
    engine_cache cache = {.implementation = strategy, .page_tokens = 4, .prefill_chunk = 32, .max_cache_len = 128};
    float *got = engine_logits(model, cache, w->ids, N_IDS, piece, &w->seed);
    double distance = oracle_distance(got, w->wanted, (size_t)N_IDS * (size_t)w->o.vocab);
    if (!(distance > 0 && distance <= tolerance))
        fail_msg("%s, %s, %s, pieces %d: %g away from the oracle", path, cpu, strategy, piece, distance);
    free(got);
    mn_model_close(&model);
}

static void families_equal_the_oracle(void **state) {
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[128];
        snprintf(path, sizeof path, "golden/%s", families[f]);
        fixture w = open_fixture(data_path(path));
        for (int s = 0; s < N_STRATEGIES; s++) check(&w, path, "auto", strategies[s], s == 2 ? 40 : -1);
        close_fixture(&w);
    }
}

static void levels_equal_the_oracle(void **state) {
    (void)state;
    fixture w = open_fixture(data_path("golden/llama-untied-bias"));
    for (cpu_level level = CPU_SCALAR; level < N_CPU_LEVELS; level = (cpu_level)(level + 1)) {
        if (cpu_has(level)) check(&w, "golden/llama-untied-bias", cpu_level_name(level), "dynamic", -1);
    }
    close_fixture(&w);
}

static void embedded_model_equals_the_oracle(void **state) {
    (void)state;
    fixture w = open_fixture(TESTS_DIR "/../models-embedded/stories260K");
    check(&w, "embedded", "auto", "dynamic", -1);
    close_fixture(&w);
}

/* Copies a file of the test data into the scratch folder. */
static void copy_file(const char *from, const char *name) {
    file_map map;
    assert_ok(file_map_open(&map, data_path(from)));
    scratch_file(name, map.data, map.n);
    file_map_close(&map);
}

/* config.json of golden/qwen2 with a window; returns the scratch folder. */
static const char *write_windowed(int window, const char *layer_types) {
    static char folder[1024];
    char config[2048];
    snprintf(config, sizeof config,
             "{\"model_type\": \"qwen2\", \"hidden_size\": 96, \"intermediate_size\": 208, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 3, "
             "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, "
             "\"tie_word_embeddings\": true, \"vocab_size\": 320, \"hidden_act\": \"silu\", "
             "\"eos_token_id\": 2, \"use_sliding_window\": true, \"sliding_window\": %d, \"layer_types\": %s}",
             window, layer_types);
    scratch_file("config.json", config, strlen(config));
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    folder[strlen(folder) - 1] = 0;
    return folder;
}

/* A window that the text does not exceed changes no bit; a window one token shorter does. */
static void windows_wider_than_the_text_change_nothing(void **state) {
    (void)state;
    copy_file("golden/qwen2/model.safetensors", "model.safetensors");
    fixture w = open_fixture(data_path("golden/qwen2"));
    engine_cache cache = {.page_tokens = 4};
    mn_model *full = engine_model("golden/qwen2", "f32", "auto", engine_threads());
    float *wanted = engine_logits(full, cache, w.ids, N_IDS, 0, NULL);
    size_t vocab = (size_t)w.o.vocab;
    for (int window = N_IDS - 1; window <= N_IDS + 1; window++) {
        const char *types = "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"]";
        mn_model *model = engine_model(write_windowed(window, types), "f32", "auto", engine_threads());
        float *got = engine_logits(model, cache, w.ids, N_IDS, -1, &w.seed);
        size_t same = window < N_IDS ? N_IDS - 1 : N_IDS;
        engine_same_bits(got, wanted, same, vocab, "a window of %d", window);
        if (window < N_IDS) assert_memory_not_equal(got + same * vocab, wanted + same * vocab, vocab * sizeof *got);
        free(got);
        mn_model_close(&model);
    }
    free(wanted);
    mn_model_close(&full);
    close_fixture(&w);
}

/* Layers with and without a window in one model, the narrow one first and last. */
static void layers_with_different_windows_equal_the_oracle(void **state) {
    (void)state;
    static const char *const types[] = {
        "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]",
        "[\"full_attention\", \"sliding_attention\", \"full_attention\"]",
        "[\"sliding_attention\", \"full_attention\", \"full_attention\"]",
    };
    copy_file("golden/qwen2/model.safetensors", "model.safetensors");
    for (int i = 0; i < 3; i++) {
        const char *folder = write_windowed(9, types[i]);
        fixture w = open_fixture(folder);
        assert_int_equal(w.o.layers[0].window, i == 1 ? 0 : 9);
        for (int s = 0; s < N_STRATEGIES; s++) {
            check(&w, folder, "auto", strategies[s], -1);
            check(&w, folder, "auto", strategies[s], s == 2 ? 0 : 1);
        }
        close_fixture(&w);
    }
}

/* The multiplier of the residual branches is that of their biases too. */
static void multiplied_branches_with_biases_equal_the_oracle(void **state) {
    (void)state;
    static const char config[] =
        "{\"model_type\": \"granite\", \"vocab_size\": 320, \"hidden_size\": 96, \"intermediate_size\": 208, \"head_dim\": 16, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 3, \"rms_norm_eps\": 1e-06, "
        "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"max_position_embeddings\": 512, \"tie_word_embeddings\": false, "
        "\"attention_bias\": true, \"mlp_bias\": true, \"residual_multiplier\": 0.3, \"attention_multiplier\": 0.2, "
        "\"embedding_multiplier\": 3.0, \"logits_scaling\": 2.0, \"eos_token_id\": 2}";
    char folder[256];
    copy_file("golden/llama-untied-bias/model.safetensors", "model.safetensors");
    scratch_file("config.json", config, strlen(config));
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    folder[strlen(folder) - 1] = 0;
    fixture w = open_fixture(folder);
    for (int s = 0; s < N_STRATEGIES; s++) check(&w, folder, "auto", strategies[s], s == 2 ? 40 : -1);
    close_fixture(&w);
}

static void every_model_type_is_there(void **state) {
    (void)state;
    families_need_every_type("families", &families[0], sizeof *families, N_FAMILIES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_type_is_there),
        cmocka_unit_test(families_equal_the_oracle),
        cmocka_unit_test(levels_equal_the_oracle),
        cmocka_unit_test(embedded_model_equals_the_oracle),
        cmocka_unit_test(windows_wider_than_the_text_change_nothing),
        cmocka_unit_test(layers_with_different_windows_equal_the_oracle),
        cmocka_unit_test(multiplied_branches_with_biases_equal_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
