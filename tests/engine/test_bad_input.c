/* Damaged checkpoints, invalid arguments, failed allocations: a status and a message, no leak, no partial result.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <dirent.h>
#include <unistd.h>

#include "support/gguf_writer.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

/* ---- a checkpoint that is damaged in one place ---- */

typedef struct good_files {
    bytes weights, generation, tokenizer;
    char folder[1024];
} good_files;

static good_files good;

static int read_good(void **state) {
    (void)state;
    assert_ok(file_read(&good.weights, data_path("golden/llama/model.safetensors"), 1 << 26));
    assert_ok(file_read(&good.generation, data_path("golden/llama/generation_config.json"), 1 << 20));
    assert_ok(file_read(&good.tokenizer, TESTS_DIR "/../models-embedded/stories260K/tokenizer.json", 1 << 20));
    snprintf(good.folder, sizeof good.folder, "%s", scratch_path(""));
    good.folder[strlen(good.folder) - 1] = 0;
    return 0;
}

static int forget_good(void **state) {
    (void)state;
    bytes_clear(&good.weights);
    bytes_clear(&good.generation);
    bytes_clear(&good.tokenizer);
    return 0;
}

/* config.json of golden/llama with one field replaced (value NULL: left out). */
static void write_config(const char *field, const char *value) {
    static const char *const fields[][2] = {{"model_type", "\"llama\""},
                                            {"hidden_size", "96"},
                                            {"intermediate_size", "208"},
                                            {"num_attention_heads", "3"},
                                            {"num_key_value_heads", "1"},
                                            {"num_hidden_layers", "3"},
                                            {"head_dim", "32"},
                                            {"vocab_size", "320"},
                                            {"max_position_embeddings", "512"},
                                            {"rms_norm_eps", "1e-06"},
                                            {"rope_theta", "10000.0"},
                                            {"rope_scaling", "null"},
                                            {"hidden_act", "\"silu\""},
                                            {"tie_word_embeddings", "true"},
                                            {"attention_bias", "false"},
                                            {"mlp_bias", "false"},
                                            {"eos_token_id", "2"}};
    bytes text = {0};
    const char *separator = "{";
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        bool replaced = field && strcmp(field, fields[i][0]) == 0;
        if (replaced && !value) continue;
        bytes_printf(&text, "%s\"%s\": %s", separator, fields[i][0], replaced ? value : fields[i][1]);
        separator = ", ";
    }
    bytes_append_text(&text, "}");
    scratch_file("config.json", text.data, text.n);
    bytes_clear(&text);
}

/* An undamaged checkpoint and nothing else in the folder. */
static void write_good(void) {
    DIR *dir = opendir(good.folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) unlink(scratch_path(entry->d_name));
    if (dir) closedir(dir);
    write_config(NULL, NULL);
    scratch_file("model.safetensors", good.weights.data, good.weights.n);
    scratch_file("generation_config.json", good.generation.data, good.generation.n);
}

/* Opens a path that must be refused with one of two codes and a message, without a leak. */
static void check_refused(const char *path, mn_status code, mn_status other, const char *what) {
    mn_model *model = (mn_model *)(void *)&good;
    int64_t live = mem_count().live;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.threads = 1;
    mn_status status = mn_model_open(&model, path, &options);
    if (status != code && status != other)
        fail_msg("%s: status %d (%s)", what, status, status == MN_OK ? "opened" : mn_last_error());
    assert_null(model);
    if (strlen(mn_last_error()) < 10) fail_msg("%s: the message '%s' is too short", what, mn_last_error());
    if (mem_count().live != live) fail_msg("%s: %d blocks are left", what, (int)(mem_count().live - live));
}

static void the_undamaged_checkpoint_opens(void **state) {
    (void)state;
    write_good();
    int64_t live = mem_count().live;
    mn_model *model = engine_model(good.folder, "f32", "auto", 1);
    mn_model_close(&model);
    mn_model_close(&model);
    assert_int_equal(mem_count().live, live);
}

static void invalid_configurations_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *field, *values[12];
    } cases[] = {
        {"model_type", {"\"alpaca\"", "7", "null", "\"\"", "[]", "\"LLAMA\""}},
        {"hidden_size",
         {"0", "-96", "97", "128", "1e400", "\"96\"", "NaN", "9223372036854775807", "2147483648", "96.5", "null"}},
        {"intermediate_size", {"0", "-1", "207", "209", "1e30", "[208]", "4611686018427387904"}},
        {"num_attention_heads", {"0", "-3", "4", "2147483648", "NaN", "\"three\"", "1e9", "5"}},
        {"num_key_value_heads", {"0", "-1", "2", "3", "100", "NaN", "1.5"}},
        {"num_hidden_layers", {"0", "-1", "4", "2147483648", "NaN", "1e18", "true", "99999999"}},
        {"head_dim", {"0", "31", "-32", "64", "1e9", "{}"}},
        {"vocab_size", {"0", "-320", "319", "321", "2147483648", "1e15", "NaN"}},
        {"max_position_embeddings", {"0", "-1", "NaN", "\"512\"", "1e300"}},
        {"rms_norm_eps", {"-1", "NaN", "Infinity", "\"x\""}},
        {"rope_theta", {"0", "-10000", "NaN", "Infinity", "\"x\""}},
        {"rope_scaling",
         {"7", "[]", "{\"rope_type\": \"magic\"}", "{\"rope_type\": \"linear\"}",
          "{\"rope_type\": \"linear\", \"factor\": 0}", "{\"rope_type\": \"linear\", \"factor\": NaN}",
          "{\"rope_type\": \"llama3\", \"factor\": 8}",
          "{\"rope_type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}"}},
        {"hidden_act", {"\"swish2\"", "1", "{}"}},
        {"tie_word_embeddings", {"\"yes\"", "2", "false"}},
        {"eos_token_id", {"\"2\"", "[1, \"2\"]", "1.5", "{}", "true"}},
    };
    write_good();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t j = 0; j < 12 && cases[i].values[j]; j++) {
            char what[256];
            snprintf(what, sizeof what, "%s: %s", cases[i].field, cases[i].values[j]);
            write_config(cases[i].field, cases[i].values[j]);
            check_refused(good.folder, MN_E_FORMAT, MN_E_UNSUPPORTED, what);
        }
    }
    static const char *const required[] = {"model_type", "hidden_size", "intermediate_size", "num_attention_heads",
                                           "num_hidden_layers"};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        write_config(required[i], NULL);
        check_refused(good.folder, MN_E_FORMAT, MN_E_UNSUPPORTED, required[i]);
    }
    static const char *const texts[] = {"",         "{", "[]", "null", "\"llama\"", "{\"model_type\": \"llama\"",
                                        "\xff\xfe", "{}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        scratch_file("config.json", texts[i], strlen(texts[i]));
        check_refused(good.folder, MN_E_FORMAT, MN_E_UNSUPPORTED, texts[i]);
    }
}

static void damaged_weights_are_refused(void **state) {
    (void)state;
    write_good();
    size_t n = good.weights.n;
    uint64_t header;
    memcpy(&header, good.weights.data, sizeof header);
    const size_t lengths[] = {0, 1, 7, 8, 9, 100, (size_t)header + 7, (size_t)header + 8, n / 2, n - 4, n - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        scratch_file("model.safetensors", good.weights.data, lengths[i]);
        check_refused(good.folder, MN_E_FORMAT, MN_E_FORMAT, "shortened weights");
    }
    bytes damaged = {0};
    bytes_append(&damaged, good.weights.data, n);
    bytes_append(&damaged, "\0", 1);
    scratch_file("model.safetensors", damaged.data, damaged.n);
    check_refused(good.folder, MN_E_FORMAT, MN_E_FORMAT, "lengthened weights");
    /* Replacements of equal length in the header. */
    static const char *const edits[][2] = {
        {"model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weigh_"},
        {"model.layers.2.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight"},
        {"\"F32\"", "\"I32\""},
        {"\"F32\"", "\"F16\""},
        {"\"F32\"", "\"F99\""},
        {"[320,96]", "[96,320]"},
        {"[208,96]", "[96,208]"},
        {"[96,208]", "[208,96]"},
        {"[96]", "[48]"},
        {"model.layers.0.self_attn.k_proj.weight", "model.layers.0.pre_ff_layernorm.weight"}, /* of another family */
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        size_t size = strlen(edits[i][0]);
        memcpy(damaged.data, good.weights.data, n);
        char *place = memmem(damaged.data, (size_t)header + 8, edits[i][0], size);
        if (!place) fail_msg("the header has no %s", edits[i][0]);
        memcpy(place, edits[i][1], size);
        scratch_file("model.safetensors", damaged.data, n);
        check_refused(good.folder, MN_E_FORMAT, MN_E_UNSUPPORTED, edits[i][1]);
    }
    bytes_clear(&damaged);
    write_good();
    unlink(scratch_path("model.safetensors"));
    check_refused(good.folder, MN_E_NOT_FOUND, MN_E_NOT_FOUND, "no weights");
    write_good();
    unlink(scratch_path("config.json"));
    check_refused(good.folder, MN_E_NOT_FOUND, MN_E_NOT_FOUND, "no config.json");
}

/* Valid configurations that do not match the weights. */
static void configurations_that_do_not_match_the_weights_are_refused(void **state) {
    (void)state;
    static const char *const edits[][3] = {
        {"mamba", "\"conv_kernel\": 4", "\"conv_kernel\": 5"},
        {"mamba", "\"state_size\": 8", "\"state_size\": 9"},
        {"mamba", "\"time_step_rank\": 6", "\"time_step_rank\": 7"},
        {"mamba", "\"intermediate_size\": 192", "\"intermediate_size\": 191"},
        {"mamba", "\"use_bias\": false", "\"use_bias\": true"},
        {"mamba", "\"use_conv_bias\": true", "\"use_conv_bias\": false"},
        {"mamba", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"},
        {"mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": 3"},
        {"mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": 5"},
        {"jamba", "\"num_experts\": 4", "\"num_experts\": 1"},
        {"jamba", "\"attn_layer_offset\": 1", "\"attn_layer_offset\": 0"},
        {"jamba", "\"expert_layer_period\": 2", "\"expert_layer_period\": 3"},
        {"jamba", "\"mamba_d_state\": 8", "\"mamba_d_state\": 4"},
        {"jamba", "\"mamba_expand\": 2", "\"mamba_expand\": 1"},
        {"gpt2", "\"n_positions\": 128", "\"n_positions\": 1024"},
        {"gpt2", "\"n_inner\": 192", "\"n_inner\": null"},
        {"gpt-neox", "\"attention_bias\": true", "\"attention_bias\": false"},
        {"gemma2", "\"head_dim\": 16", "\"head_dim\": 32"},
        {"gemma3", "\"model_type\": \"gemma3_text\"", "\"model_type\": \"gemma2\""},
        {"gemma2", "\"model_type\": \"gemma2\"", "\"model_type\": \"gemma3_text\""},
        {"granite", "\"intermediate_size\": 208", "\"intermediate_size\": 200"},
    };
    write_good();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char path[1024], what[256];
        bytes text = {0}, changed = {0};
        snprintf(path, sizeof path, "golden/%s/config.json", edits[i][0]);
        assert_ok(file_read(&text, data_path(path), 1 << 16));
        const char *at = strstr(bytes_text(&text), edits[i][1]);
        if (!at) fail_msg("%s has no %s", path, edits[i][1]);
        bytes_append(&changed, text.data, (size_t)(at - text.data));
        bytes_printf(&changed, "%s%s", edits[i][2], at + strlen(edits[i][1]));
        scratch_file("config.json", changed.data, changed.n);
        snprintf(path, sizeof path, "golden/%s/model.safetensors", edits[i][0]);
        unlink(scratch_path("model.safetensors"));
        assert_int_equal(symlink(data_path(path), scratch_path("model.safetensors")), 0);
        snprintf(what, sizeof what, "%s, %s", edits[i][0], edits[i][2]);
        /* gemma2 has no base of windowed layers, whatever the weights are. */
        const bool has_other_fields = strcmp(edits[i][0], "gemma3") == 0;
        const mn_status code = has_other_fields ? MN_E_UNSUPPORTED : MN_E_FORMAT;
        check_refused(good.folder, code, code, what);
        bytes_clear(&text);
        bytes_clear(&changed);
    }
}

/* Tensors [begin, end) of the checkpoint in a file, and their lines of the index. */
static void write_shard(const tensor_set *set, size_t begin, size_t end, const char *name, bytes *index) {
    tensor list[64];
    for (size_t i = begin; i < end; i++) {
        list[i - begin] = *tensor_set_at(set, i);
        bytes_printf(index, "%s\"%s\": \"%s\"", index->n ? ", " : "", list[i - begin].name, name);
    }
    assert_ok(safetensors_write(scratch_path(name), list, end - begin, NULL));
}

static void write_index(const bytes *lines, const char *more) {
    bytes text = {0};
    bytes_append_text(&text, "{\"weight_map\": {");
    bytes_append(&text, lines->data, lines->n);
    bytes_append_text(&text, more);
    bytes_append_text(&text, "}}");
    scratch_file("model.safetensors.index.json", text.data, text.n);
    bytes_clear(&text);
}

static void damaged_shards_are_refused(void **state) {
    (void)state;
    tensor_set *set = NULL;
    bytes lines = {0};
    assert_ok(safetensors_open_memory(&set, good.weights.data, good.weights.n, "the weights"));
    size_t n = tensor_set_count(set);
    write_good();
    unlink(scratch_path("model.safetensors"));
    write_shard(set, 0, n / 2, "model-1.safetensors", &lines);
    write_shard(set, n / 2, n, "model-2.safetensors", &lines);
    write_index(&lines, "");
    int32_t ids[20];
    uint64_t seed = 2;
    engine_ids(&seed, ids, 20, 320);
    mn_model *whole = engine_model("golden/llama", "f32", "auto", 1),
             *sharded = engine_model(good.folder, "f32", "auto", 1);
    float *wanted = engine_logits(whole, (engine_cache){0}, ids, 20, 0, NULL),
          *got = engine_logits(sharded, (engine_cache){0}, ids, 20, 0, NULL);
    engine_same_bits(got, wanted, 20, 320, "shards");
    free(wanted);
    free(got);
    mn_model_close(&whole);
    mn_model_close(&sharded);
    write_index(&lines, ", \"model.layers.0.more.weight\": \"model-1.safetensors\"");
    check_refused(good.folder, MN_E_FORMAT, MN_E_FORMAT, "a tensor that its shard lacks");
    write_index(&lines, ", \"model.layers.0.more.weight\": \"model-3.safetensors\"");
    check_refused(good.folder, MN_E_NOT_FOUND, MN_E_NOT_FOUND, "a shard that does not exist");
    write_index(&lines, ", \"model.layers.0.more.weight\": \"../model-1.safetensors\"");
    check_refused(good.folder, MN_E_FORMAT, MN_E_NOT_FOUND, "a shard outside the folder");
    write_index(&lines, ", \"model.norm.weight\": 5");
    check_refused(good.folder, MN_E_FORMAT, MN_E_FORMAT, "an index that is damaged");
    write_index(&lines, "");
    unlink(scratch_path("model-2.safetensors"));
    check_refused(good.folder, MN_E_NOT_FOUND, MN_E_NOT_FOUND, "a shard that was removed");
    bytes_clear(&lines);
    tensor_set_close(&set);
}

static void damaged_generation_configs_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"{", "[]", "", "3"};
    write_good();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        scratch_file("generation_config.json", texts[i], strlen(texts[i]));
        check_refused(good.folder, MN_E_FORMAT, MN_E_FORMAT, texts[i]);
    }
    /* Unknown fields are ignored. */
    const char *unknown = "{\"a_field_of_next_year\": {\"deep\": [1]}, \"temperature\": 0.5}";
    scratch_file("generation_config.json", unknown, strlen(unknown));
    mn_model *model = engine_model(good.folder, "f32", "auto", 1);
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    char *text = mn_generation_config_get(config, "temperature");
    assert_string_equal(text, "0.5");
    mn_free(text);
    mn_generation_config_close(&config);
    mn_model_close(&model);
}

/* Such a model opens, and an answer is refused until the field has another value. */
static void fields_with_wrong_values_are_refused_where_they_count(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"{\"temperature\": -1, \"do_sample\": true}", "temperature", "0.5"},
        {"{\"do_sample\": \"yes\"}", "do_sample", "false"},
        {"{\"eos_token_id\": [1, 2.5]}", "eos_token_id", "2"},
        {"{\"num_beams\": 0}", "num_beams", "1"},
        {"{\"repetition_penalty\": NaN}", "repetition_penalty", "1.5"},
        {"{\"stop_strings\": [\"\"]}", "stop_strings", "null"},
    };
    write_good();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_file("generation_config.json", cases[i][0], strlen(cases[i][0]));
        mn_model *model = engine_model(good.folder, "f32", "auto", 1);
        mn_session *session = engine_session(model, (engine_cache){0});
        mn_generation_config *config = NULL;
        mn_generation *generation = NULL;
        const int32_t ids[] = {1, 2, 3};
        assert_ok(mn_generation_config_open(&config, model));
        assert_ok(mn_generation_config_set(config, "max_new_tokens", "2"));
        assert_fails(MN_E_FORMAT, cases[i][1], mn_generate(session, ids, 3, config, NULL, &generation));
        assert_fails(MN_E_FORMAT, "generation_config.json: ", mn_generate(session, ids, 3, config, NULL, &generation));
        assert_ok(mn_generation_config_set(config, cases[i][1], cases[i][2]));
        assert_ok(mn_generate(session, ids, 3, config, NULL, &generation));
        mn_generation_close(&generation);
        mn_generation_config_close(&config);
        mn_session_close(&session);
        mn_model_close(&model);
    }
}

static void damaged_tokenizers_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{",
        "[]",
        "{}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4294967296}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a c\"]}}",
        "{\"model\": {\"type\": \"Magic\", \"vocab\": {}}}",
    };
    write_good();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        scratch_file("tokenizer.json", texts[i], strlen(texts[i]));
        check_refused(good.folder, MN_E_FORMAT, MN_E_UNSUPPORTED, texts[i]);
    }
}

/* A tokenizer with more pieces than the model has, and one with fewer. */
static void tokenizers_of_another_size_are_handled(void **state) {
    (void)state;
    write_good();
    scratch_file("tokenizer.json", good.tokenizer.data, good.tokenizer.n);
    mn_model *model = engine_model(good.folder, "f32", "auto", 1);
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(model), "Once upon a time", 16, 0, &ids, &n));
    mn_session *session = engine_session(model, (engine_cache){0});
    mn_generation *generation = NULL;
    assert_fails(MN_E_ARG, "allowed: 0 to 319", mn_generate(session, ids, n, NULL, NULL, &generation));
    assert_null(generation);
    mn_free(ids);
    mn_session_close(&session);
    mn_model_close(&model);

    const char *tiny =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}";
    scratch_file("tokenizer.json", tiny, strlen(tiny));
    model = engine_model(good.folder, "f32", "auto", 1);
    session = engine_session(model, (engine_cache){0});
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "30"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generate(session, (int32_t[]){300, 200, 1}, 3, config, NULL, &generation));
    assert_int_equal(generation->sequences[0]->n_ids, 30);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    mn_model_close(&model);
}

static void invalid_gguf_metadata_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *key;
        gguf_type type;
        double value;
    } cases[] = {
        {"llama.block_count", GGUF_U32, 0},
        {"llama.block_count", GGUF_U32, 4294967295.0},
        {"llama.block_count", GGUF_I32, -1},
        {"llama.block_count", GGUF_F32, 2},
        {"llama.embedding_length", GGUF_U32, 0},
        {"llama.embedding_length", GGUF_U64, 9e18},
        {"llama.feed_forward_length", GGUF_U32, 0},
        {"llama.attention.head_count", GGUF_U32, 0},
        {"llama.attention.head_count", GGUF_U32, 7},
        {"llama.attention.head_count_kv", GGUF_U32, 0},
        {"llama.attention.head_count_kv", GGUF_U32, 3},
        {"llama.context_length", GGUF_U32, 0},
        {"llama.attention.layer_norm_rms_epsilon", GGUF_F32, -1},
        {"llama.rope.freq_base", GGUF_F32, 0},
        {"llama.rope.dimension_count", GGUF_U32, 1000000},
        {NULL, GGUF_U32, 0}, /* valid metadata, but no tensors */
    };
    static const struct {
        const char *key;
        int value;
    } sound[] = {
        {"llama.block_count", 1},          {"llama.embedding_length", 32},       {"llama.feed_forward_length", 64},
        {"llama.attention.head_count", 4}, {"llama.attention.head_count_kv", 2}, {"llama.context_length", 64},
        {"llama.vocab_size", 32},          {"llama.rope.dimension_count", 8}};
    write_good();
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        gguf_writer w = {0};
        gguf_writer_text(&w, "general.architecture", "llama");
        for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
            if (cases[c].key && strcmp(cases[c].key, sound[i].key) == 0) continue;
            gguf_writer_int(&w, sound[i].key, GGUF_U32, sound[i].value);
        }
        bool real = cases[c].type == GGUF_F32;
        if (cases[c].key && real) gguf_writer_real(&w, cases[c].key, GGUF_F32, cases[c].value);
        if (cases[c].key && !real) gguf_writer_int(&w, cases[c].key, cases[c].type, (int64_t)cases[c].value);
        if (!cases[c].key || strcmp(cases[c].key, "llama.attention.layer_norm_rms_epsilon") != 0)
            gguf_writer_real(&w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5);
        char path[1024];
        snprintf(path, sizeof path, "%s", scratch_path("absurd.gguf"));
        gguf_writer_save(&w, path);
        check_refused(path, MN_E_FORMAT, MN_E_UNSUPPORTED, cases[c].key ? cases[c].key : "no tensors");
        gguf_writer_clear(&w);
    }
    char path[1024];
    snprintf(path, sizeof path, "%s", scratch_file("short.gguf", "GGUF\3\0\0\0", 8));
    check_refused(path, MN_E_FORMAT, MN_E_FORMAT, "a header alone");
}

/* ---- arguments ---- */

static void paths_that_are_not_models_are_refused(void **state) {
    (void)state;
    write_good();
    char path[1024];
    check_refused("/nonexistent/model", MN_E_NOT_FOUND, MN_E_NOT_FOUND, "no such path");
    check_refused("/nonexistent/model.gguf", MN_E_NOT_FOUND, MN_E_NOT_FOUND, "no such file");
    check_refused("", MN_E_NOT_FOUND, MN_E_ARG, "an empty path");
    check_refused("/", MN_E_NOT_FOUND, MN_E_NOT_FOUND, "a folder without a model");
    snprintf(path, sizeof path, "%s", scratch_path("config.json"));
    check_refused(path, MN_E_FORMAT, MN_E_FORMAT, "a file that is not a model");
    snprintf(path, sizeof path, "%s", scratch_file("empty.gguf", "", 0));
    check_refused(path, MN_E_FORMAT, MN_E_FORMAT, "an empty file");
}

static void check_options(mn_model_options options, mn_status code, const char *part) {
    mn_model *model = NULL;
    int64_t live = mem_count().live;
    assert_fails(code, part, mn_model_open(&model, data_path("golden/llama"), &options));
    assert_null(model);
    assert_int_equal(mem_count().live, live);
}

static void invalid_model_options_are_refused(void **state) {
    (void)state;
    mn_model_options standard;
    mn_model_options_init(&standard, sizeof standard);
    mn_model_options o = standard;
    o.compute_type = "f64";
    check_options(o, MN_E_ARG, "auto, f32, bf16, int8, int8_a8");
    o = standard;
    o.cpu = "z80";
    check_options(o, MN_E_ARG, "z80");
    o = standard;
    o.threads = -1;
    check_options(o, MN_E_ARG, "threads");
    o.threads = 1000000;
    check_options(o, MN_E_ARG, "threads");
    o = standard;
    o.memory_limit = 4096;
    check_options(o, MN_E_NOMEM, "MiB");
    o = standard;
    o.size = 3;
    check_options(o, MN_E_ARG, "size");
    o.size = SIZE_MAX;
    check_options(o, MN_E_ARG, "size");
}

static void invalid_cache_options_are_refused(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", 1);
    mn_cache_options standard;
    mn_cache_options_init(&standard, sizeof standard);
    const struct {
        mn_cache_options options;
        mn_status code;
    } cases[] = {
        {{sizeof standard, "paper", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "f8", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "static", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "auto", -1, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "auto", 0, 5, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "auto", 0, 0, -1, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "auto", 0, 0, 1 << 20, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "static", NULL, "auto", (int64_t)1 << 40, 0, 0, NULL, NULL}, MN_E_NOMEM},
        {{sizeof standard, "quantized", "nbits=7", "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "quantized", "q_group_size=24", "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "quantized", "layers=3:2bit", "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "quantized", "{\"nbits\":", "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "sliding_window", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "sink", "num_sink_tokens=1024", "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "self=dynamic,cross=static", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "none+static", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{sizeof standard, "dynamic", NULL, "auto", 0, 0, 0, "panic", NULL}, MN_E_ARG},
        {{SIZE_MAX, "dynamic", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
        {{0, "dynamic", NULL, "auto", 0, 0, 0, NULL, NULL}, MN_E_ARG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mn_session *session = (mn_session *)(void *)&good;
        int64_t live = mem_count().live;
        assert_fails(cases[i].code, NULL, mn_session_open(&session, model, &cases[i].options));
        assert_null(session);
        assert_int_equal(mem_count().live, live);
    }
    mn_session *session = NULL;
    mn_cache_options prefix = {.size = offsetof(mn_cache_options, config), .implementation = "none"};
    assert_ok(mn_session_open(&session, model, &prefix)); /* a caller compiled with an older header */
    mn_session_close(&session);
    mn_model_close(&model);
}

static void invalid_generation_arguments_are_refused(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", 1);
    mn_session *session = engine_session(model, (engine_cache){0}),
               *small = engine_session(model, (engine_cache){.implementation = "static", .max_cache_len = 10});
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    int32_t ids[600] = {0};
    int64_t live = mem_count().live;
    assert_fails(MN_E_ARG, "empty", mn_generate(session, ids, 0, NULL, NULL, &generation));
    assert_fails(MN_E_ARG, "context", mn_generate(session, ids, 513, NULL, NULL, &generation));
    assert_fails(MN_E_FULL, "10", mn_generate(small, ids, 12, NULL, NULL, &generation));
    ids[3] = 320;
    assert_fails(MN_E_ARG, "320", mn_generate(session, ids, 5, NULL, NULL, &generation));
    ids[3] = -5;
    assert_fails(MN_E_ARG, "-5", mn_generate(session, ids, 5, NULL, NULL, &generation));
    ids[3] = 0;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "stop_strings", "\"x\""));
    assert_fails(MN_E_ARG, "tokenizer", mn_generate(session, ids, 5, config, NULL, &generation));
    assert_ok(mn_generation_config_set(config, "stop_strings", "null"));
    assert_ok(mn_generation_config_set(config, "max_length", "5"));
    assert_fails(MN_E_ARG, "max_length", mn_generate(session, ids, 5, config, NULL, &generation));
    assert_ok(mn_generation_config_set(config, "max_length", "null"));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "7"));
    assert_fails(MN_E_FULL, "10", mn_generate(small, ids, 5, config, NULL, &generation));
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    options.top_logprobs = INT32_MAX;
    assert_fails(MN_E_ARG, "top_logprobs", mn_generate(session, ids, 5, config, &options, &generation));
    options.top_logprobs = -2;
    assert_fails(MN_E_ARG, "top_logprobs", mn_generate(session, ids, 5, config, &options, &generation));
    options.top_logprobs = -1;
    options.size = 1;
    assert_fails(MN_E_ARG, "size", mn_generate(session, ids, 5, config, &options, &generation));
    assert_fails(MN_E_ARG, "0 rows", mn_generate_batch(model, NULL, NULL, 0, config, NULL, &generation));
    mn_batch_row rows[3] = {{sizeof(mn_batch_row), ids, 3, NULL, NULL},
                            {sizeof(mn_batch_row), ids, 0, NULL, NULL},
                            {sizeof(mn_batch_row), ids, 4, NULL, NULL}};
    assert_fails(MN_E_ARG, "row 1", mn_generate_batch(model, NULL, rows, 3, config, NULL, &generation));
    assert_null(generation);
    mn_generation_config_close(&config);
    assert_int_equal(mn_session_length(session), 0);
    assert_int_equal(mem_count().live, live);
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_session_close(&small);
    mn_model_close(&model);
}

static void closing_NULL_is_allowed(void **state) {
    (void)state;
    mn_model *model = NULL;
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    mn_tokenizer *tokenizer = NULL;
    mn_model_close(&model);
    mn_session_close(&session);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_tokenizer_close(&tokenizer);
    mn_free(NULL);
}

/* ---- failed allocations ---- */

/* A whole program: find, open, generate for two rows, describe. */
static mn_status whole_program(const char *path) {
    mn_model *model = NULL;
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.threads = 2;
    mn_status status = mn_model_open(&model, path, &options);
    if (status == MN_OK) status = mn_generation_config_open(&config, model);
    if (status == MN_OK) status = mn_generation_config_set(config, "max_new_tokens", "3");
    if (status == MN_OK) status = mn_generation_config_set(config, "stop_strings", "[\"zebra\"]");
    if (status == MN_OK) status = mn_generation_config_set(config, "repetition_penalty", "1.1");
    if (status == MN_OK) status = mn_generation_config_set(config, "do_sample", "true");
    if (status == MN_OK) status = mn_tokenize(mn_model_tokenizer(model), "Once", 4, MN_ADD_SPECIAL, &ids, &n);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.top_logprobs = 2;
    how.keep_scores = how.keep_logits = true;
    mn_batch_row rows[2] = {{sizeof(mn_batch_row), ids, n, NULL, NULL}, {sizeof(mn_batch_row), ids, 1, NULL, NULL}};
    if (status == MN_OK) status = mn_generate_batch(model, NULL, rows, 2, config, &how, &generation);
    if (status == MN_OK) status = mn_model_describe(model, 0, &text);
    mn_free(text);
    mn_free(ids);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_model_close(&model);
    return status;
}

/* The first allocations fail one by one, later ones in steps: opening allocates for every piece of the vocabulary. A
 * pass that is out of memory is retried with fewer rows, so the call may still succeed. */
static void failed_allocations_do_not_leak(void **state) {
    (void)state;
    int64_t before = mem_count().allocations, live = mem_count().live;
    assert_ok(whole_program("embedded"));
    int64_t n = mem_count().allocations - before, stride = n / 250 + 1;
    assert_true(n > 100);
    assert_int_equal(mem_count().live, live);
    int n_tried = 0, n_survived = 0;
    for (int64_t k = 1; k <= n; k += k < 60 || k > n - 160 ? 1 : stride, n_tried++) {
        mem_fail_after(k);
        mn_status status = whole_program("embedded");
        mem_fail_after(0);
        n_survived += status == MN_OK;
        if (status != MN_E_NOMEM && status != MN_OK)
            fail_msg("allocation %d of %d failed: status %d, '%s'", (int)k, (int)n, status, mn_last_error());
        if (mem_count().live != live)
            fail_msg("allocation %d of %d failed: %d blocks are left", (int)k, (int)n, (int)(mem_count().live - live));
    }
    if (n_survived * 8 > n_tried) fail_msg("%d of %d calls succeeded despite a failure", n_survived, n_tried);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_undamaged_checkpoint_opens),
        cmocka_unit_test(invalid_configurations_are_refused),
        cmocka_unit_test(damaged_weights_are_refused),
        cmocka_unit_test(configurations_that_do_not_match_the_weights_are_refused),
        cmocka_unit_test(damaged_shards_are_refused),
        cmocka_unit_test(damaged_generation_configs_are_refused),
        cmocka_unit_test(fields_with_wrong_values_are_refused_where_they_count),
        cmocka_unit_test(damaged_tokenizers_are_refused),
        cmocka_unit_test(tokenizers_of_another_size_are_handled),
        cmocka_unit_test(invalid_gguf_metadata_is_refused),
        cmocka_unit_test(paths_that_are_not_models_are_refused),
        cmocka_unit_test(invalid_model_options_are_refused),
        cmocka_unit_test(invalid_cache_options_are_refused),
        cmocka_unit_test(invalid_generation_arguments_are_refused),
        cmocka_unit_test(closing_NULL_is_allowed),
        cmocka_unit_test(failed_allocations_do_not_leak),
    };
    return cmocka_run_group_tests(tests, read_good, forget_good);
}
