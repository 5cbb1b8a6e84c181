/* R41: generated pairs of features: every two cache strategies, every two generation settings, every decoding mode
 * after every cache operation. A pair works and gives the result of a computation without a cache, or of a session that
 * was only fed; or it is refused before anything is computed, with a message that names what cannot be combined.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <unistd.h>

#include "session/session.h"
#include "support/scratch.h"

enum { N_PROMPT = 26, N_HELD = 20, N_NEW = 6, MOST_IDS = 64 };

/* ---- two strategies ---- */

/* The tokens that a session of these strategies chooses; false: refused. */
static bool run_names(mn_model *model, const int32_t *prompt, const char *text, int32_t *ids) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    char details[80] = "page_tokens=16";
    if (strategy_traits(text) & (KV_TRAIT_WINDOW | KV_TRAIT_SINKS)) strcat(details, ",window_length=24");
    if (strategy_traits(text) & KV_TRAIT_QUANTIZED) strcat(details, ",nbits=8,residual_length=16");
    options.implementation = text;
    options.config = details;
    options.max_cache_len = 60;
    if (mn_session_open(&session, model, &options) != MN_OK) return false;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "20"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generate(session, prompt, N_PROMPT, config, NULL, &generation));
    assert_int_equal(generation->sequences[0]->n_ids, 20);
    memcpy(ids, generation->sequences[0]->ids, 20 * sizeof *ids);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    return true;
}

static void every_two_strategies_work_or_are_refused(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    int32_t prompt[N_PROMPT], plain[20], one[20], other[20];
    uint64_t seed = 3;
    int n_works = 0, n_refused = 0;
    engine_ids(&seed, prompt, N_PROMPT, 300);
    assert_true(run_names(model, prompt, "dynamic", plain));
    for (const kv_strategy *a = kv_strategies; a->name; a++) {
        for (const kv_strategy *b = a; b->name; b++) {
            char text[64], turned[64];
            snprintf(text, sizeof text, "%s+%s", a->name, b->name);
            snprintf(turned, sizeof turned, "%s+%s", b->name, a->name);
            bool is_exact = !((a->traits | b->traits) & (KV_TRAIT_WINDOW | KV_TRAIT_SINKS | KV_TRAIT_QUANTIZED));
            bool works = run_names(model, prompt, text, one);
            if (!works && (!strstr(mn_last_error(), a->name) || !strstr(mn_last_error(), b->name) ||
                           !strstr(mn_last_error(), "cannot be combined: ")))
                fail_msg("%s: '%s'", text, mn_last_error());
            assert_int_equal(run_names(model, prompt, turned, other), works);
            if (works) assert_memory_equal(one, other, sizeof one);
            if (works && is_exact) assert_memory_equal(one, plain, sizeof one);
            *(works ? &n_works : &n_refused) += 1;
        }
    }
    print_message("R41: %d pairs of strategies work, %d are refused\n", n_works, n_refused);
    assert_true(n_works > 15 && n_refused > 15);
    mn_model_close(&model);
}

/* ---- two settings ---- */

static const struct {
    const char *name;     /* its name in refusals */
    const char *settings; /* members of a generation configuration */
} features[] = {
    {"do_sample", "\"do_sample\": true"},
    {"num_beams", "\"num_beams\": 3"},
    {"num_beam_groups", "\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5"},
    {"num_return_sequences", "\"num_return_sequences\": 2"},
    {"contrastive search", "\"penalty_alpha\": 0.5, \"top_k\": 3"},
    {"dola_layers", "\"dola_layers\": \"low\""},
    {"prompt_lookup_num_tokens", "\"prompt_lookup_num_tokens\": 3"},
    {"a draft model", ""},
    {"force_words_ids", "\"num_beams\": 3, \"force_words_ids\": [[300]]"},
    {"guidance_scale", "\"guidance_scale\": 1.5"},
    {"json_schema", "\"json_schema\": {\"type\": \"string\"}"},
    {"regex", "\"regex\": \"[a-z ]+\""},
    {"grammar", "\"grammar\": \"root ::= [a-z ]+\""},
    {"repetition_penalty", "\"repetition_penalty\": 1.3"},
    {"encoder_repetition_penalty", "\"encoder_repetition_penalty\": 1.2"},
    {"presence_penalty", "\"presence_penalty\": 0.7"},
    {"frequency_penalty", "\"frequency_penalty\": 0.7"},
    {"no_repeat_ngram_size", "\"no_repeat_ngram_size\": 2"},
    {"encoder_no_repeat_ngram_size", "\"encoder_no_repeat_ngram_size\": 3"},
    {"bad_words_ids", "\"bad_words_ids\": [[261], [300, 301]]"},
    {"sequence_bias", "\"sequence_bias\": [[[270], 3.5]]"},
    {"logit_bias", "\"logit_bias\": {\"280\": 4}"},
    {"suppress_tokens", "\"suppress_tokens\": [262, 263]"},
    {"begin_suppress_tokens", "\"begin_suppress_tokens\": [264]"},
    {"forced_eos_token_id", "\"forced_eos_token_id\": 2"},
    {"min_new_tokens", "\"min_new_tokens\": 4"},
    {"exponential_decay_length_penalty", "\"exponential_decay_length_penalty\": [2, 1.5]"},
    {"watermarking_config", "\"watermarking_config\": {\"bias\": 3}"},
    {"renormalize_logits", "\"renormalize_logits\": true"},
    {"remove_invalid_values", "\"remove_invalid_values\": true"},
    {"temperature", "\"temperature\": 0.7"},
    {"top_p", "\"top_p\": 0.8"},
    {"min_p", "\"min_p\": 0.1"},
    {"typical_p", "\"typical_p\": 0.9"},
    {"eta_cutoff", "\"eta_cutoff\": 0.01"},
    {"stop_strings", "\"stop_strings\": [\"the\"]"},
    {"early_stopping", "\"early_stopping\": \"never\""},
    {"length_penalty", "\"length_penalty\": 2.0"},
};
enum { N_FEATURES = sizeof features / sizeof *features, DRAFT = 7 };

typedef struct run_result {
    size_t n_sequences, n[8];
    int32_t ids[8][N_NEW];
} run_result;

static mn_generation_config *config_of(const mn_model *model, int a, int b) {
    mn_generation_config *config = NULL;
    const char *texts[] = {"\"max_new_tokens\": 6, \"seed\": 11", features[a].settings, features[b].settings};
    assert_ok(mn_generation_config_open(&config, model));
    for (int i = 0; i < 3; i++) {
        bytes text = {0};
        bytes_printf(&text, "{%s}", texts[i]);
        assert_ok(mn_generation_config_load(config, text.data, text.n));
        bytes_clear(&text);
    }
    return config;
}

static void take(run_result *out, const mn_generation *generation, int row) {
    *out = (run_result){0};
    for (size_t i = 0; i < generation->n_sequences; i++) {
        const mn_sequence *s = generation->sequences[i];
        if (s->row != row) continue;
        assert_true(out->n_sequences < 8 && s->n_ids <= N_NEW);
        out->n[out->n_sequences] = s->n_ids;
        memcpy(out->ids[out->n_sequences++], s->ids, s->n_ids * sizeof(int32_t));
    }
}

/* Two features with one cache; false: refused, session unchanged. */
static bool run_features(mn_model *model, const char *cache, const int32_t *prompt, int a, int b, run_result *out) {
    mn_session *session = engine_session(model, (engine_cache){.implementation = cache});
    mn_generation *generation = NULL;
    mn_generation_config *config = config_of(model, a, b);
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    char *warnings = NULL;
    if (a == DRAFT || b == DRAFT) options.assistant = model;
    mn_status checked = mn_generation_config_check(config, &options, &warnings);
    mn_status status = mn_generate(session, prompt, N_PROMPT, config, &options, &generation);
    if (status != MN_OK) {
        if (status != MN_E_ARG ||
            (!strstr(mn_last_error(), features[a].name) && !strstr(mn_last_error(), features[b].name)))
            fail_msg("%s with %s: status %d: %s", features[a].name, features[b].name, (int)status, mn_last_error());
        assert_int_equal(mn_session_length(session), 0);
    } else {
        assert_int_equal(checked, MN_OK);
        take(out, generation, 0);
    }
    mn_free(warnings);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    return status == MN_OK;
}

/* The same as the first of two rows. */
static void check_batch(mn_model *model, const int32_t *prompt, int a, int b, const run_result *alone) {
    mn_generation *generation = NULL;
    mn_generation_config *config = config_of(model, a, b);
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    const mn_batch_row rows[] = {{sizeof(mn_batch_row), prompt, N_PROMPT, NULL, NULL},
                                 {sizeof(mn_batch_row), prompt + 3, N_PROMPT - 9, NULL, NULL}};
    run_result got;
    if (a == DRAFT || b == DRAFT) options.assistant = model;
    assert_ok(mn_generate_batch(model, NULL, rows, 2, config, &options, &generation));
    take(&got, generation, 0);
    if (memcmp(&got, alone, sizeof got) != 0)
        fail_msg("%s with %s: a row differs from a single run", features[a].name, features[b].name);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
}

static void every_two_settings_work_or_are_refused(void **state) {
    (void)state;
    mn_model *model = engine_model("embedded", "f32", "auto", engine_threads());
    int32_t *prompt = NULL;
    size_t n = 0;
    const char *text =
        "Once upon a time there was a little girl named Lily. She loved to play with the big red ball in the park with her mom and dad.";
    int n_works = 0, n_refused = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(model), text, strlen(text), MN_ADD_SPECIAL, &prompt, &n));
    assert_true(n >= N_PROMPT);
    for (int a = 0; a < N_FEATURES; a++) {
        for (int b = a + 1; b < N_FEATURES; b++) {
            run_result cached, plain;
            bool works = run_features(model, "dynamic", prompt, a, b, &cached);
            *(works ? &n_works : &n_refused) += 1;
            bool is_chosen = strategy_is_long() || (a + 3 * b) % 4 == 0;
            if (!works || !is_chosen) continue;
            assert_true(run_features(model, "none", prompt, a, b, &plain));
            if (memcmp(&cached, &plain, sizeof cached) != 0)
                fail_msg("%s with %s: another text than without a cache", features[a].name, features[b].name);
            check_batch(model, prompt, a, b, &cached);
        }
    }
    print_message("R41: %d pairs of settings work, %d are refused\n", n_works, n_refused);
    assert_int_equal(n_works + n_refused, N_FEATURES * (N_FEATURES - 1) / 2);
    assert_true(n_refused > 20);
    mn_free(prompt);
    mn_model_close(&model);
}

/* ---- modes after operations ---- */

static const engine_cache caches[] = {
    {.implementation = "dynamic", .page_tokens = 4},
    {.implementation = "static", .page_tokens = 4},
    {.implementation = "offloaded", .page_tokens = 4},
    {.implementation = "quantized", .page_tokens = 16, .config = "nbits=4,residual_length=0,first_exact=0"},
    {.implementation = "sink", .page_tokens = 4, .config = "window_length=16,num_sink_tokens=2"},
    {.implementation = "none"},
};
enum { N_CACHES = sizeof caches / sizeof *caches, N_EXACT = 3 };

static const int32_t other_tokens[] = {9, 8, 7, 6};

static mn_session *filled(mn_model *model, engine_cache cache, const int32_t *ids) {
    mn_session *session = engine_session(model, cache);
    assert_ok(mn_session_step(session, ids, N_HELD, NULL));
    return session;
}

typedef mn_session *operation(mn_model *model, int cache,
                              const int32_t *ids); /* NULL: refused, as in the table of docs/support.md */

static mn_session *forked(mn_model *model, int cache, const int32_t *ids) {
    mn_session *parent = filled(model, caches[cache], ids), *fork = NULL;
    assert_ok(mn_session_fork(&fork, parent));
    assert_ok(mn_session_step(parent, other_tokens, 4, NULL));
    mn_session_close(&parent);
    return fork;
}

static mn_session *cropped(mn_model *model, int cache, const int32_t *ids) {
    mn_session *session = filled(model, caches[cache], ids);
    assert_ok(mn_session_step(session, other_tokens, 1, NULL));
    mn_status status = mn_session_truncate(session, N_HELD);
    assert_true(status == MN_OK || (status == MN_E_UNSUPPORTED && strcmp(caches[cache].implementation, "sink") == 0));
    return session;
}

static mn_session *loaded(mn_model *model, int cache, const int32_t *ids) {
    mn_session *session = filled(model, caches[cache], ids);
    const char *path = scratch_path("pair.safetensors");
    assert_ok(mn_session_save(session, path, false));
    mn_session_close(&session);
    assert_ok(mn_session_load(&session, model, path, NULL));
    return session;
}

static mn_session *imported(mn_model *model, int cache, const int32_t *ids) {
    mn_session *session = filled(model, caches[0], ids);
    const char *path = scratch_path("legacy.safetensors");
    mn_cache_options options = engine_cache_options(caches[cache]);
    assert_ok(mn_sessions_export(&session, 1, path, "f32"));
    mn_session_close(&session);
    mn_status status = mn_session_import(&session, model, &options, path, 0, NULL, 0);
    if (cache < N_EXACT) assert_ok(status);
    return cache < N_EXACT ? session
                           : (mn_session_close(&session), NULL); /* other strategies have fewer bits or tokens */
}

static mn_session *changed(mn_model *model, int cache, const int32_t *ids) {
    mn_session *session = filled(model, caches[cache], ids);
    mn_cache_options options = engine_cache_options((engine_cache){.implementation = "offloaded", .page_tokens = 4});
    mn_status status = cache < N_EXACT ? mn_session_set_cache(session, &options) : MN_OK;
    assert_ok(status);
    return session;
}

static mn_session *selected(mn_model *model, int cache, const int32_t *ids) {
    mn_session *rows[3] = {engine_session(model, caches[cache]), filled(model, caches[cache], ids), NULL};
    const int32_t index[] = {1, 1, 0};
    assert_ok(mn_sessions_select(rows, 2, index, 3));
    assert_ok(mn_session_step(rows[0], other_tokens, 2, NULL));
    mn_session_close(&rows[0]);
    mn_session_close(&rows[2]);
    return rows[1];
}

static mn_session *generated(mn_model *model, int cache, const int32_t *ids) {
    mn_session *session = filled(model, caches[cache], ids);
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "3"));
    assert_ok(mn_generate(session, ids, N_HELD, config, NULL, &generation));
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    return session;
}

static const struct {
    const char *name;
    operation *make;
} operations[] = {{"fork", forked},    {"crop", cropped},    {"save, load", loaded}, {"import", imported},
                  {"change", changed}, {"select", selected}, {"generate", generated}};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

static const char *const modes[] = {
    "\"num_beams\": 1",
    "\"do_sample\": true, \"num_return_sequences\": 2",
    "\"num_beams\": 3, \"num_return_sequences\": 2",
    "\"num_beams\": 2, \"do_sample\": true",
    "\"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5",
    "\"num_beams\": 3, \"force_words_ids\": [[57]]",
    "\"penalty_alpha\": 0.5, \"top_k\": 3",
    "\"prompt_lookup_num_tokens\": 3",
    "\"dola_layers\": [1]",
    "\"guidance_scale\": 1.5",
    "\"num_assistant_tokens\": 4",
};
enum { N_MODES = sizeof modes / sizeof *modes, ASSISTED = N_MODES - 1 };

static void run_mode(mn_model *model, mn_model *draft, mn_session *session, int mode, const int32_t *prompt,
                     run_result *out) {
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    char text[200];
    options.assistant = mode == ASSISTED ? draft : NULL;
    snprintf(text, sizeof text, "{\"max_new_tokens\": 6, \"seed\": 4, \"ignore_eos\": true, %s}", modes[mode]);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_load(config, text, strlen(text)));
    assert_ok(mn_generate(session, prompt, N_PROMPT, config, &options, &generation));
    take(out, generation, 0);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
}

static void every_mode_works_after_every_operation(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads()),
             *draft = engine_model("golden/decoding/draft", "f32", "auto", engine_threads());
    int32_t prompt[N_PROMPT];
    uint64_t seed = 17;
    int n = 0;
    engine_ids(&seed, prompt, N_PROMPT, 300);
    memcpy(prompt + 20, prompt + 4, 4 * sizeof *prompt); /* repeated text for prompt lookup */
    for (int c = 0; c < N_CACHES; c++) {
        for (int m = 0; m < N_MODES; m++) {
            run_result wanted, got;
            mn_session *fresh = engine_session(model, caches[c]);
            run_mode(model, draft, fresh, m, prompt, &wanted);
            mn_session_close(&fresh);
            for (int o = 0; o < N_OPERATIONS; o++) {
                mn_session *session = operations[o].make(model, c, prompt);
                if (!session) continue;
                run_mode(model, draft, session, m, prompt, &got);
                if (memcmp(&got, &wanted, sizeof got) != 0)
                    fail_msg("%s, %s after %s: another text", caches[c].implementation, modes[m], operations[o].name);
                mn_session_close(&session);
                n++;
            }
        }
    }
    print_message("R41: %d runs of a mode after an operation\n", n);
    assert_int_equal(n, N_CACHES * N_MODES * N_OPERATIONS - (N_CACHES - N_EXACT) * N_MODES);
    mn_model_close(&draft);
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_strategies_work_or_are_refused),
        cmocka_unit_test(every_two_settings_work_or_are_refused),
        cmocka_unit_test(every_mode_works_after_every_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
