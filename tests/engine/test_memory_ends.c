/* What users do with the library, one named scenario each: every allocation of it fails once. A failure is MN_E_NOMEM
 * or goes unnoticed, nothing leaks, and the same call on the same objects afterwards gives what it gives when memory
 * never ended, so that what a failure left is either the old state or none. Up to 20,000 allocations each fails with
 * MNEME_LONG=1, above every i-th; the short tier takes a few of each scenario, spread from the first to the last.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"
#include "support/scratch.h"

#include <sys/stat.h>

enum { N_IDS = 80, N_FED = 60, MOST_SESSIONS = 3, SHORT_TRIES = 12, LONG_TRIES = 20000 };

/* What a scenario works on; made anew for each try, so that no allocation is spared by an earlier one. */
typedef struct scene {
    mn_model *model, *draft;
    mn_generation_config *config;
    mn_session *sessions[MOST_SESSIONS];
    const int32_t *ids; /* [N_IDS] */
    size_t vocab;
    uint64_t digest; /* of what came out */
} scene;

typedef struct scenario {
    const char *name;
    const char *model; /* opened before; NULL: none */
    engine_cache cache;
    int n_sessions; /* opened before and given N_FED tokens, the i-th i fewer */
    mn_status (*run)(scene *s, const struct scenario *own);
    const char *argument;                                  /* of run */
    void (*prepare)(scene *s, const struct scenario *own); /* NULL: nothing more */
} scenario;

static void note(scene *s, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) s->digest = (s->digest ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
}

static void note_text(scene *s, char *text) {
    note(s, text, strlen(text));
    mn_free(text);
}

static void note_session(scene *s, const mn_session *session) {
    const float *logits = mn_session_logits(session);
    note(s, mn_session_ids(session), (size_t)mn_session_length(session) * sizeof(int32_t));
    if (logits) note(s, logits, s->vocab * sizeof *logits);
}

static mn_status note_generation(scene *s, mn_status status, mn_generation **g) {
    for (size_t i = 0; status == MN_OK && i < (*g)->n_sequences; i++) {
        const mn_sequence *sequence = (*g)->sequences[i];
        note(s, sequence->ids, sequence->n_ids * sizeof *sequence->ids);
        note(s, sequence->finish_reason, strlen(sequence->finish_reason));
    }
    mn_generation_close(g);
    return status;
}

/* ---- opening ---- */

static mn_status open_model(scene *s, const scenario *own) {
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.threads = 1;
    mn_model *model = NULL;
    bool is_data = strncmp(own->argument, "golden/", 7) == 0;
    mn_status status = mn_model_open(&model, is_data ? data_path(own->argument) : own->argument, &options);
    mn_model_info info = {.size = sizeof info};
    if (status == MN_OK) status = mn_model_get_info(model, &info);
    if (status == MN_OK) note(s, &info.parameters, sizeof info.parameters);
    mn_model_close(&model);
    return status;
}

static mn_status open_tokenizer(scene *s, const scenario *own) {
    mn_tokenizer *tokenizer = NULL;
    mn_status status = mn_tokenizer_open(&tokenizer, own->argument);
    int32_t n = status == MN_OK ? mn_vocab_size(tokenizer) : 0;
    note(s, &n, sizeof n);
    mn_tokenizer_close(&tokenizer);
    return status;
}

static mn_status find_model(scene *s, const scenario *own) {
    char *path = NULL;
    mn_status status = mn_model_find(&path, own->argument);
    if (status == MN_OK) note_text(s, path);
    return status;
}

/* ---- text ---- */

static const char some_text[] = "Once upon a time there was a little girl named Lily. Zwei Flüsse.";

static mn_status encode_text(scene *s, const scenario *own) {
    (void)own;
    int32_t *ids = NULL;
    size_t n = 0;
    MN_TRY(mn_tokenize(mn_model_tokenizer(s->model), some_text, strlen(some_text), MN_ADD_SPECIAL, &ids, &n));
    note(s, ids, n * sizeof *ids);
    mn_free(ids);
    return MN_OK;
}

static mn_status decode_text(scene *s, const scenario *own) {
    (void)own;
    char *text = NULL;
    MN_TRY(mn_detokenize(mn_model_tokenizer(s->model), s->ids, N_IDS, 0, &text, NULL));
    note_text(s, text);
    return MN_OK;
}

static mn_status describe_model(scene *s, const scenario *own) {
    (void)own;
    char *text = NULL;
    mn_status status = mn_model_describe(s->model, 256, &text);
    mn_free(text);
    note(s, &status, sizeof status);
    return status;
}

static mn_status describe_caches(scene *s, const scenario *own) {
    (void)own;
    char *text = NULL;
    MN_TRY(mn_cache_describe(&text));
    note_text(s, text);
    return MN_OK;
}

static mn_status plan_memory(scene *s, const scenario *own) {
    mn_cache_options options = engine_cache_options(own->cache);
    mn_memory_plan plan = {.size = sizeof plan};
    MN_TRY(mn_memory_plan_make(&plan, s->model, &options, 300, 40, 6, 2));
    note(s, &plan.prompt_bytes, sizeof plan.prompt_bytes);
    note(s, &plan.rows_bytes, sizeof plan.rows_bytes);
    return MN_OK;
}

static mn_status load_config(scene *s, const scenario *own) {
    mn_generation_config *config = NULL;
    mn_status status = mn_generation_config_open(&config, s->model);
    if (status == MN_OK) status = mn_generation_config_load(config, own->argument, strlen(own->argument));
    char *warnings = NULL;
    if (status == MN_OK) status = mn_generation_config_check(config, NULL, &warnings);
    if (status == MN_OK) note_text(s, warnings);
    mn_generation_config_close(&config);
    return status;
}

/* ---- sessions ---- */

static mn_status open_and_step(scene *s, const scenario *own) {
    mn_cache_options options = engine_cache_options(own->cache);
    mn_session *session = NULL;
    mn_status status = mn_session_open(&session, s->model, &options);
    if (status == MN_OK) status = mn_session_step(session, s->ids, N_FED, NULL);
    for (int i = N_FED; status == MN_OK && i < N_IDS; i++) status = mn_session_step(session, s->ids + i, 1, NULL);
    if (status == MN_OK) note_session(s, session);
    mn_session_close(&session);
    return status;
}

static mn_status embed(scene *s, const scenario *own) {
    static float rows[N_IDS * 512];
    mn_embed_options options;
    mn_model_info info = {.size = sizeof info};
    mn_embed_options_init(&options, sizeof options);
    options.pooling = own->argument;
    MN_TRY(mn_model_get_info(s->model, &info));
    assert_true(info.hidden_size <= 512);
    MN_TRY(mn_model_embed(s->model, s->ids, N_IDS, &options, rows));
    note(s, rows, (strcmp(own->argument, "none") == 0 ? N_IDS : 1) * (size_t)info.hidden_size * sizeof *rows);
    return MN_OK;
}

static mn_status step(scene *s, const scenario *own) {
    (void)own;
    MN_TRY(mn_session_step(s->sessions[0], s->ids + N_FED, N_IDS - N_FED, NULL));
    note_session(s, s->sessions[0]);
    return MN_OK;
}

static mn_status synchronise(scene *s, const scenario *own) {
    (void)own;
    int32_t other[N_IDS];
    memcpy(other, s->ids, sizeof other);
    other[N_FED / 2] = other[N_FED / 2] == 5 ? 6 : 5;
    MN_TRY(mn_session_sync(s->sessions[0], other, N_IDS, NULL));
    note_session(s, s->sessions[0]);
    return MN_OK;
}

static mn_status crop(scene *s, const scenario *own) {
    (void)own;
    MN_TRY(mn_session_truncate(s->sessions[0], N_FED / 2));
    MN_TRY(mn_session_step(s->sessions[0], s->ids + N_FED / 2, 1, NULL));
    note_session(s, s->sessions[0]);
    return MN_OK;
}

static mn_status fork_and_step(scene *s, const scenario *own) {
    (void)own;
    mn_session *fork = NULL;
    mn_status status = mn_session_fork(&fork, s->sessions[0]);
    if (status == MN_OK) status = mn_session_step(fork, s->ids + N_FED, N_IDS - N_FED, NULL);
    if (status == MN_OK) note_session(s, fork);
    mn_session_close(&fork);
    if (status == MN_OK) note_session(s, s->sessions[0]);
    return status;
}

static mn_status step_rows(scene *s, const scenario *own) {
    (void)own;
    MN_TRY(mn_sessions_step(s->sessions, MOST_SESSIONS, s->ids));
    for (int i = 0; i < MOST_SESSIONS; i++) note_session(s, s->sessions[i]);
    return MN_OK;
}

static mn_status select_rows(scene *s, const scenario *own) {
    (void)own;
    static const int32_t index[MOST_SESSIONS] = {2, 2, 0};
    MN_TRY(mn_sessions_select(s->sessions, MOST_SESSIONS, index, MOST_SESSIONS));
    for (int i = 0; i < MOST_SESSIONS; i++) note_session(s, s->sessions[i]);
    return MN_OK;
}

static mn_status read_rows(scene *s, const scenario *own) {
    (void)own;
    static float rows[64 * 1024];
    mn_layer_info info = {.size = sizeof info};
    MN_TRY(mn_session_layer(s->sessions[0], 1, &info));
    MN_TRY(mn_session_read(s->sessions[0], 1, true, 3, 40, rows));
    note(s, rows, (size_t)info.num_key_value_heads * 40 * (size_t)info.k_head_dim * sizeof *rows);
    return MN_OK;
}

static mn_status calibrate(scene *s, const scenario *own) {
    enum { N = 400 };
    int32_t ids[N];
    (void)own;
    for (int i = 0; i < N; i++) ids[i] = s->ids[(i + i / N_IDS) % N_IDS];
    MN_TRY(mn_cache_calibrate(s->model, ids, N, scratch_path("tables")));
    return MN_OK;
}

/* ---- files ---- */

static mn_status save(scene *s, const scenario *own) {
    MN_TRY(mn_session_save(s->sessions[0], scratch_path("saved"), own->argument != NULL));
    note_session(s, s->sessions[0]);
    return MN_OK;
}

static void prepare_saved(scene *s, const scenario *own) {
    (void)own;
    mkdir(scratch_path("folder"), 0700);
    assert_ok(mn_session_save(s->sessions[0], scratch_path("folder/saved.safetensors"), false));
}

static mn_status load(scene *s, const scenario *own) {
    (void)own;
    mn_session *session = NULL;
    MN_TRY(mn_session_load(&session, s->model, scratch_path("folder/saved.safetensors"), NULL));
    note_session(s, session);
    mn_session_close(&session);
    return MN_OK;
}

/* A file that cannot be looked at for want of memory may be passed over: the prompt is then computed. */
static mn_status load_prefix(scene *s, const scenario *own) {
    mn_cache_options options = engine_cache_options(own->cache);
    mn_session *session = NULL;
    MN_TRY(mn_session_open_cached(&session, s->model, &options, scratch_path("folder"), s->ids, N_IDS));
    mn_status status = mn_session_sync(session, s->ids, N_IDS, NULL);
    if (status == MN_OK) note_session(s, session);
    mn_session_close(&session);
    return status;
}

static mn_status export(scene *s, const scenario *own) {
    (void)own;
    MN_TRY(mn_sessions_export(s->sessions, 1, scratch_path("legacy"), "auto"));
    note_session(s, s->sessions[0]);
    return MN_OK;
}

static void prepare_legacy(scene *s, const scenario *own) {
    (void)own;
    assert_ok(mn_sessions_export(s->sessions, 1, scratch_path("legacy-in"), "f32"));
}

static mn_status import(scene *s, const scenario *own) {
    mn_cache_options options = engine_cache_options(own->cache);
    mn_session *session = NULL;
    MN_TRY(mn_session_import(&session, s->model, &options, scratch_path("legacy-in"), 0, NULL, 0));
    note_session(s, session);
    mn_session_close(&session);
    return MN_OK;
}

/* ---- generating ---- */

static void prepare_generation(scene *s, const scenario *own) {
    assert_ok(mn_generation_config_open(&s->config, s->model));
    assert_ok(mn_generation_config_load(s->config, own->argument, strlen(own->argument)));
}

static mn_status generate(scene *s, const scenario *own) {
    mn_cache_options cache = engine_cache_options(own->cache);
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    mn_generation *generation = NULL;
    mn_session *session = NULL;
    options.assistant = s->draft;
    mn_status status = mn_session_open(&session, s->model, &cache);
    if (status == MN_OK) status = mn_generate(session, s->ids, 12, s->config, &options, &generation);
    mn_session_close(&session);
    return note_generation(s, status, &generation);
}

static void prepare_draft(scene *s, const scenario *own) {
    prepare_generation(s, own);
    s->draft = engine_model(own->model, "f32", "auto", 1);
}

static mn_status generate_rows(scene *s, const scenario *own) {
    mn_cache_options cache = engine_cache_options(own->cache);
    mn_batch_row rows[MOST_SESSIONS] = {{sizeof(mn_batch_row), s->ids, 20, NULL, s->sessions[0]},
                                        {sizeof(mn_batch_row), s->ids, 7, NULL, NULL},
                                        {sizeof(mn_batch_row), s->ids + 3, 15, NULL, NULL}};
    mn_generation *generation = NULL;
    mn_status status = mn_generate_batch(s->model, &cache, rows, MOST_SESSIONS, s->config, NULL, &generation);
    return note_generation(s, status, &generation);
}

/* ---- hearing ---- */

static mn_status encode_and_step(scene *s, const scenario *own) {
    mn_model_info info = {.size = sizeof info};
    MN_TRY(mn_model_get_info(s->model, &info));
    size_t mels = (size_t)info.num_mel_bins, frames = 2 * (size_t)info.max_source_positions;
    static float features[128 * 3000];
    assert_true(mels * frames <= sizeof features / sizeof *features);
    for (size_t i = 0; i < mels * frames; i++) features[i] = (float)(i * 2654435761u % 1000) / 1000 - 0.5f;
    mn_cache_options options = engine_cache_options(own->cache);
    mn_session *session = NULL;
    mn_status status = mn_session_open(&session, s->model, &options);
    if (status == MN_OK) status = mn_session_encode(session, features, mels, frames);
    if (status == MN_OK) status = mn_session_step(session, s->ids, 6, NULL);
    if (status == MN_OK) note_session(s, session);
    mn_session_close(&session);
    return status;
}

#define LLAMA      "golden/llama-untied-bias"
#define NEW_TOKENS "\"max_new_tokens\": 8, \"min_new_tokens\": 8"

static const scenario scenarios[] = {
    {"open a folder", .run = open_model, .argument = "golden/llama"},
    {"open a folder with experts", .run = open_model, .argument = "golden/qwen2-moe"},
    {"open a folder with states", .run = open_model, .argument = "golden/jamba"},
    {"open a folder with an encoder", .run = open_model, .argument = "golden/whisper/tiny80"},
    {"open a folder with windows", .run = open_model, .argument = "golden/gemma3"},
    {"open the embedded model", .run = open_model, .argument = "embedded"},
    {"open a tokenizer", .run = open_tokenizer, .argument = "embedded"},
    {"find a model", .run = find_model, .argument = "embedded"},
    {"text to ids", .model = "embedded", .run = encode_text},
    {"ids to text", .model = "embedded", .run = decode_text},
    {"describe a model", .model = LLAMA, .run = describe_model},
    {"describe the caches", .run = describe_caches},
    {"plan a run's memory", .model = LLAMA, .cache = {.implementation = "quantized+offloaded", .page_tokens = 16},
     .run = plan_memory},
    {"plan the memory of windows and a preallocated cache", .model = "golden/gemma3",
     .cache = {.implementation = "static"}, .run = plan_memory},
    {"load a generation config", .model = LLAMA, .run = load_config,
     .argument =
         "{\"num_beams\": 3, \"stop_strings\": [\"a\", \"bc\"], \"eos_token_id\": [1, 2], \"bad_words_ids\": [[1, 2], [3]]}"},
    {"steps, none", .model = LLAMA, .cache = {.implementation = "none"}, .run = open_and_step},
    {"steps, dynamic", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .run = open_and_step},
    {"steps, static", .model = LLAMA, .cache = {.implementation = "static", .page_tokens = 16}, .run = open_and_step},
    {"steps, offloaded", .model = LLAMA, .cache = {.implementation = "offloaded", .page_tokens = 16},
     .run = open_and_step},
    {"steps, quantized", .model = LLAMA,
     .cache = {.implementation = "quantized", .page_tokens = 16, .config = "nbits=4,residual_length=16"},
     .run = open_and_step},
    {"steps, sliding window", .model = LLAMA,
     .cache = {.implementation = "sliding_window", .page_tokens = 16, .config = "window_length=32"},
     .run = open_and_step},
    {"steps, sinks", .model = LLAMA,
     .cache = {.implementation = "sink", .page_tokens = 16, .config = "window_length=32,num_sink_tokens=4"},
     .run = open_and_step},
    {"steps, hybrid", .model = "golden/gemma2", .cache = {.implementation = "hybrid", .page_tokens = 16},
     .run = open_and_step},
    {"steps, states", .model = "golden/mamba", .cache = {.implementation = "dynamic"}, .run = open_and_step},
    {"embed", .model = LLAMA, .run = embed, .argument = "mean"},
    {"embed every token", .model = "golden/jamba", .run = embed, .argument = "none"},
    {"go on", .model = LLAMA, .cache = {.implementation = "quantized+offloaded", .page_tokens = 16}, .n_sessions = 1,
     .run = step},
    {"synchronise", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 1,
     .run = synchronise},
    {"crop", .model = LLAMA,
     .cache = {.implementation = "quantized", .page_tokens = 16, .config = "residual_length=32"}, .n_sessions = 1,
     .run = crop},
    {"fork", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 1,
     .run = fork_and_step},
    {"step rows", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 3,
     .run = step_rows},
    {"select rows", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 3,
     .run = select_rows},
    {"read keys from codes", .model = LLAMA,
     .cache = {.implementation = "quantized", .page_tokens = 16, .config = "residual_length=16"}, .n_sessions = 1,
     .run = read_rows},
    {"calibrate", .model = LLAMA, .run = calibrate},
    {"save", .model = LLAMA, .cache = {.implementation = "quantized", .page_tokens = 16}, .n_sessions = 1, .run = save},
    {"save compressed", .model = LLAMA,
     .cache = {.implementation = "sink", .page_tokens = 16, .config = "window_length=32"}, .n_sessions = 1, .run = save,
     .argument = "compressed"},
    {"load", .model = LLAMA, .cache = {.implementation = "quantized", .page_tokens = 16}, .n_sessions = 1, .run = load,
     .prepare = prepare_saved},
    {"find a saved prefix", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 1,
     .run = load_prefix, .prepare = prepare_saved},
    {"export", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 1,
     .run = export},
    {"import", .model = LLAMA, .cache = {.implementation = "quantized", .page_tokens = 16}, .n_sessions = 1,
     .run = import, .prepare = prepare_legacy},
    {"generate", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 0,
     .run = generate, .argument = "{" NEW_TOKENS "}", .prepare = prepare_generation},
    {"sample", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument =
         "{" NEW_TOKENS
         ", \"do_sample\": true, \"seed\": 7, \"temperature\": 0.8, \"top_p\": 0.9, \"repetition_penalty\": 1.2, \"num_return_sequences\": 2}",
     .prepare = prepare_generation},
    {"beams", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 0,
     .run = generate, .argument = "{" NEW_TOKENS ", \"num_beams\": 4, \"num_return_sequences\": 2}",
     .prepare = prepare_generation},
    {"diverse beams", .model = LLAMA, .cache = {.implementation = "quantized"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5}",
     .prepare = prepare_generation},
    {"contrastive search", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"penalty_alpha\": 0.6, \"top_k\": 3}", .prepare = prepare_generation},
    {"assisted", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"num_assistant_tokens\": 3}", .prepare = prepare_draft},
    {"prompt lookup", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"prompt_lookup_num_tokens\": 3}", .prepare = prepare_generation},
    {"guidance", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"guidance_scale\": 1.5}", .prepare = prepare_generation},
    {"contrasted layers", .model = LLAMA, .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument = "{" NEW_TOKENS ", \"dola_layers\": \"low\"}", .prepare = prepare_generation},
    {"held to a schema", .model = "embedded", .cache = {.implementation = "dynamic"}, .n_sessions = 0, .run = generate,
     .argument =
         "{\"max_new_tokens\": 12, \"json_schema\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}}",
     .prepare = prepare_generation},
    {"rows with a prefix", .model = LLAMA, .cache = {.implementation = "dynamic", .page_tokens = 16}, .n_sessions = 1,
     .run = generate_rows, .argument = "{" NEW_TOKENS "}", .prepare = prepare_generation},
    {"encode a sound", .model = "golden/whisper/tiny80", .cache = {.implementation = "self=dynamic,cross=quantized"},
     .run = encode_and_step},
};

static void open_scene(scene *s, const scenario *own) {
    static int32_t ids[N_IDS];
    uint64_t seed = 5;
    *s = (scene){.ids = ids, .digest = 0xcbf29ce484222325u};
    if (own->model) {
        s->model = engine_model(own->model, "f32", "auto", 1);
        s->vocab = (size_t)engine_vocab(s->model);
        engine_ids(&seed, ids, N_IDS, (int32_t)s->vocab);
    }
    for (int i = 0; i < own->n_sessions; i++) {
        s->sessions[i] = engine_session(s->model, own->cache);
        engine_feed(s->sessions[i], ids, (size_t)(N_FED - i), 0, NULL, NULL);
    }
    if (own->prepare) own->prepare(s, own);
}

static void close_scene(scene *s) {
    for (int i = 0; i < MOST_SESSIONS; i++) mn_session_close(&s->sessions[i]);
    mn_generation_config_close(&s->config);
    mn_model_close(&s->draft);
    mn_model_close(&s->model);
}

/* One try in which allocation k fails, and one after it that must give `wanted`. */
static void try_failure(const scenario *own, int64_t k, uint64_t wanted, int64_t live) {
    scene s;
    open_scene(&s, own);
    uint64_t begin = s.digest;
    mem_fail_after(k);
    mn_status status = own->run(&s, own);
    mem_fail_after(0);
    if (status != MN_OK) {
        if (status != MN_E_NOMEM)
            fail_msg("%s, allocation %lld: status %d: %s", own->name, (long long)k, status, mn_last_error());
        s.digest = begin;
        status = own->run(&s, own);
        if (status != MN_OK) fail_msg("%s, after allocation %lld: %s", own->name, (long long)k, mn_last_error());
    }
    if (s.digest != wanted) fail_msg("%s, allocation %lld: something else comes out", own->name, (long long)k);
    close_scene(&s);
    if (mem_count().live != live)
        fail_msg("%s, allocation %lld: %lld blocks are left", own->name, (long long)k,
                 (long long)(mem_count().live - live));
}

static void every_scenario_survives(void **state) {
    (void)state;
    int n_scenarios = sizeof scenarios / sizeof *scenarios;
    assert_true(n_scenarios >= 30);
    const char *only = getenv("MNEME_SCENARIO");
    for (int i = 0; i < n_scenarios; i++) {
        const scenario *own = &scenarios[i];
        if (only && strcmp(only, own->name) != 0) continue;
        int64_t live = mem_count().live;
        scene s;
        open_scene(&s, own);
        int64_t before = mem_count().allocations;
        if (own->run(&s, own) != MN_OK) fail_msg("%s: %s", own->name, mn_last_error());
        int64_t n = mem_count().allocations - before, most = test_is_long() ? LONG_TRIES : SHORT_TRIES / test_stride(2);
        uint64_t wanted = s.digest;
        close_scene(&s);
        assert_int_equal(mem_count().live, live);
        assert_true(n > 0);
        int64_t tries = n < most ? n : most;
        for (int64_t t = 0; t < tries; t++)
            try_failure(own, 1 + (tries > 1 ? t * (n - 1) / (tries - 1) : 0), wanted, live);
        if (test_is_long() || only)
            print_message("%s: %lld of %lld allocations\n", own->name, (long long)tries, (long long)n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_scenario_survives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
