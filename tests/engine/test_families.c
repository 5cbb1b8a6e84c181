/* Every model family with every cache strategy. An exact cache gives the golden logits and ids; a window or sinks those
 * of an oracle that recomputes every token under the same mask; a quantized cache those of the oracle over the
 * dequantized cache. With each of them chunking, truncation, forks and saves change no bit. Unsupported pairs are
 * refused at the start with a reason. The result is the table of families in docs/support.md.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "session/session.h"
#include "support/families.h"
#include "support/scratch.h"
#include "support/stored.h"
#include "support/strategies.h"
#include "support/table.h"
#include "tensor/safetensors.h"

enum { N_IDS = 70, N_MORE = 6, CROP = 4, PAGE = 16, MOST_GOLDEN = 96, MOST_CHANGES = 3, HEAD = 16 };

typedef struct family {
    const char *label, *golden;
    /* Quantization needs heads of 16, 32, ... values: pairs of text and replacement that change config.json to heads
     * of 16. Except for per-head norms, the checkpoint fits both. */
    const char *coded[2 * MOST_CHANGES + 1]; /* ended by NULL */
} family;

#define HEADS_OF_24                                                                                                    \
    "\"head_dim\": 24", "\"head_dim\": 16", "\"num_attention_heads\": 4", "\"num_attention_heads\": 6",                \
        "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"

static const family families[] = {
    {"Llama, TinyLlama, SmolLM2", "llama-untied-bias", {NULL}},
    {"Mistral", "mistral-window", {NULL}},
    {"Mixtral", "mixtral", {NULL}},
    {"Qwen2",
     "qwen2",
     {"\"num_attention_heads\": 4", "\"num_attention_heads\": 6", "\"num_key_value_heads\": 2",
      "\"num_key_value_heads\": 3"}},
    {"Qwen3", "qwen3", {NULL}},
    {"Qwen2 with experts", "qwen2-moe", {NULL}},
    {"Qwen3 with experts", "qwen3-moe", {HEADS_OF_24}},
    {"SmolLM3", "smollm3", {NULL}},
    {"OLMo 2", "olmo2", {NULL}},
    {"StableLM", "stablelm", {NULL}},
    {"Cohere", "cohere", {NULL}},
    {"Phi-1 to 2", "phi", {NULL}},
    {"Phi-3", "phi3-window", {NULL}},
    {"Granite", "granite", {NULL}},
    {"Gemma 1", "gemma", {HEADS_OF_24}},
    {"Gemma 2", "gemma2", {NULL}},
    {"Gemma 3", "gemma3", {NULL}},
    {"GPT-2", "gpt2", {"\"n_head\": 4", "\"n_head\": 6"}},
    {"GPT-NeoX, Pythia", "gpt-neox", {"\"num_attention_heads\": 4", "\"num_attention_heads\": 6"}},
    {"Mamba", "mamba", {NULL}},
    {"Jamba", "jamba", {NULL}},
};

#define WINDOW    "window_length=20"
#define SINKS     "window_length=22,num_sink_tokens=3"
#define FOUR_BITS "nbits=4,residual_length=16"

typedef struct strategy {
    const char *label, *implementation, *config;
    int window, sinks; /* of cache_config */
    bool codes, flushes;
} strategy;

/* clang-format off */
static const strategy strategies[] = {
    {"none", "none", NULL, 0, 0, false, false},
    {"dynamic", "dynamic", NULL, 0, 0, false, false},
    {"static", "static", NULL, 0, 0, false, false},
    {"hybrid", "hybrid", NULL, 0, 0, false, false},
    {"mamba", "mamba", NULL, 0, 0, false, false},
    {"offloaded", "offloaded", NULL, 0, 0, false, false},
    {"offloaded_static", "offloaded_static", NULL, 0, 0, false, false},
    {"quantized", "quantized", FOUR_BITS, 0, 0, true, false},
    {"quantized, quanto", "quantized", "backend=quanto,nbits=4,q_group_size=16,residual_length=32", 0, 0, true, true},
    {"quantized, hqq", "quantized", "backend=hqq,nbits=4,q_group_size=16,residual_length=32,axis_key=1,axis_value=1", 0, 0, true, true},
    {"sliding_window", "sliding_window", WINDOW, 20, 0, false, false},
    {"sink", "sink", SINKS, 22, 3, false, false},
    {"hybrid+quantized", "hybrid+quantized", FOUR_BITS, 0, 0, true, false},
    {"quantized+offloaded", "quantized+offloaded", FOUR_BITS, 0, 0, true, false},
    {"quantized+sliding_window", "quantized+sliding_window", FOUR_BITS "," WINDOW, 20, 0, true, false},
    {"sliding_window+static", "sliding_window+static", WINDOW, 20, 0, false, false},
    {"sink+offloaded", "sink+offloaded", SINKS, 22, 3, false, false},
    {"quantized+sink", "quantized+sink", FOUR_BITS "," SINKS, 22, 3, true, false},
};
/* clang-format on */

enum { N_FAMILIES = sizeof families / sizeof *families, N_STRATEGIES = sizeof strategies / sizeof *strategies };

static table cells = {.name = "families", .shows_exceptions = true, .n_rows = N_FAMILIES, .n_columns = N_STRATEGIES};

/* A checkpoint and its expected results. */
typedef struct subject {
    const char *folder; /* of an oracle */
    mn_model *model;
    oracle o;
    size_t vocab;
    int32_t ids[N_IDS + N_MORE];
    double *masked[2]; /* logits of the oracle with the window and with the sinks, computed on first use */
    uint64_t seed;
} subject;

/* The golden tensors; norms of a head are cut to the first `most` numbers. */
static void write_checkpoint(const char *golden, int64_t most) {
    tensor_set *set = NULL;
    assert_ok(safetensors_open_folder(&set, data_path(golden)));
    size_t n = tensor_set_count(set);
    tensor *all = malloc(n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        tensor *t = &all[i];
        *t = *tensor_set_at(set, i);
        if (!strstr(t->name, "q_norm") && !strstr(t->name, "k_norm")) continue;
        t->bytes = t->bytes / (size_t)t->shape[0] * (size_t)most;
        t->shape[0] = most;
    }
    assert_ok(safetensors_write(scratch_path("model.safetensors"), all, n, NULL));
    free(all);
    tensor_set_close(&set);
}

/* The golden folder with parts of its config.json replaced. */
static const char *changed_folder(const family *f) {
    static char folder[1024];
    char golden[256], path[1024], text[4096];
    snprintf(golden, sizeof golden, "golden/%s", f->golden);
    snprintf(path, sizeof path, "%s/config.json", data_path(golden));
    bytes config = {0}, changed = {0};
    assert_ok(file_read(&config, path, sizeof text));
    for (int i = 0; f->coded[i]; i += 2) {
        const char *at = strstr(bytes_text(&config), f->coded[i]);
        assert_non_null(at);
        changed.n = 0;
        bytes_append(&changed, config.data, (size_t)(at - config.data));
        bytes_printf(&changed, "%s%s", f->coded[i + 1], at + strlen(f->coded[i]));
        config.n = 0;
        bytes_append(&config, changed.data, changed.n);
    }
    scratch_file("config.json", config.data, config.n);
    bytes_clear(&config);
    bytes_clear(&changed);
    write_checkpoint(golden, HEAD);
    snprintf(folder, sizeof folder, "%s", scratch_path("."));
    return folder;
}

static subject open_subject(const family *f, bool coded) {
    char golden[256];
    snprintf(golden, sizeof golden, "golden/%s", f->golden);
    subject s = {.folder = coded ? changed_folder(f) : data_path(golden), .seed = 17};
    s.model = engine_model(s.folder, "f32", "auto", 1);
    s.o = oracle_open(s.folder);
    s.vocab = (size_t)s.o.vocab;
    s.folder = f->label;
    engine_ids(&s.seed, s.ids, N_IDS + N_MORE, s.o.vocab);
    return s;
}

static void close_subject(subject *s) {
    for (int i = 0; i < 2; i++) free(s->masked[i]);
    mn_model_close(&s->model);
    oracle_close(&s->o);
}

static mn_cache_options options_of(const strategy *how) {
    return engine_cache_options((engine_cache){.implementation = how->implementation,
                                               .config = how->config,
                                               .dtype = "f32",
                                               .page_tokens = PAGE,
                                               .max_cache_len = strstr(how->implementation, "static") ? 120 : 0});
}

static mn_session *open_session(const subject *s, const strategy *how) {
    mn_cache_options options = options_of(how);
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, s->model, &options));
    return session;
}

/* quanto and HQQ caches quantize per call, so their contents depend on the calls: they are fed a prompt and single
 * tokens. */
static mn_session *filled(subject *s, const strategy *how, size_t n, int piece, float *logits) {
    enum { PROMPT = 50 };
    mn_session *session = open_session(s, how);
    if (how->flushes) {
        engine_feed(session, s->ids, n < PROMPT ? n : PROMPT, 0, NULL, logits);
        if (n > PROMPT)
            engine_feed(session, s->ids + PROMPT, n - PROMPT, 1, NULL, logits ? logits + PROMPT * s->vocab : NULL);
    } else {
        engine_feed(session, s->ids, n, piece, &s->seed, logits);
    }
    return session;
}

/* ---- expected results ---- */

static void check_near(const float *got, const float *wanted, size_t n, const char *model, const char *what) {
    double distance = engine_distance(got, wanted, n);
    if (!(distance > 0 && distance <= STORED_TOLERANCE))
        fail_msg("%s, %s: %g away from the golden logits", model, what, distance);
}

/* Logits of the golden text in random pieces, and the ids of the first golden prompt. */
static void equals_golden(subject *s, const family *f, const strategy *how) {
    char path[256];
    tensor_set *set = NULL;
    int32_t ids[MOST_GOLDEN];
    snprintf(path, sizeof path, "golden/%s/tensors.safetensors", f->golden);
    assert_ok(safetensors_open(&set, data_path(path)));
    const tensor *wanted = tensor_set_find(set, "score.logits"), *text = tensor_set_find(set, "score.ids");
    size_t n = (size_t)text->shape[0];
    float *logits = malloc(n * s->vocab * sizeof *logits), *golden = malloc(n * s->vocab * sizeof *golden);
    memcpy(ids, text->data, n * sizeof *ids);
    memcpy(golden, wanted->data, n * s->vocab * sizeof *golden);
    mn_session *session = open_session(s, how);
    engine_feed(session, ids, n, strcmp(how->implementation, "none") == 0 ? 20 : -1, &s->seed, logits);
    check_near(logits, golden, n * s->vocab, s->folder, how->label);
    mn_session_close(&session);
    free(logits);
    free(golden);
    tensor_set_close(&set);

    snprintf(path, sizeof path, "golden/%s/cases.json", f->golden);
    json_doc *doc = open_json(data_path(path));
    const json *cases = json_get(json_root(doc), "cases"), *test = &cases->items[0];
    while (!json_is_string(json_get(test, "name"), "greedy0")) test++;
    n = engine_read_ids(json_get(test, "ids"), ids, MOST_GOLDEN);
    mn_generation_config *config = engine_config(s->model, json_get(test, "args"));
    mn_generation *generation = NULL;
    session = open_session(s, how);
    assert_ok(mn_generate(session, ids, n, config, NULL, &generation));
    const json *row = &json_get(test, "new")->items[0];
    assert_int_equal(generation->sequences[0]->n_ids, row->n);
    for (size_t i = 0; i < row->n; i++) assert_int_equal(generation->sequences[0]->ids[i], row->items[i].integer);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    json_close(&doc);
}

static const double *masked_logits(subject *s, const strategy *how) {
    double **logits = &s->masked[how->sinks > 0];
    if (*logits) return *logits;
    oracle o = s->o;
    oracle_layer layers[8];
    assert_true(o.n_layers <= 8);
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        layers[i] = s->o.layers[i];
        if (layers[i].window && layers[i].window <= how->window) continue;
        layers[i].sinks = how->sinks;
        layers[i].window = how->window - how->sinks;
    }
    *logits = malloc(N_IDS * s->vocab * sizeof **logits);
    oracle_logits(&o, s->ids, N_IDS, *logits);
    return *logits;
}

/* Compares with the masked full computation; one step, which drops no page before its end, and single tokens give the
 * same bits. */
static void equals_masked_oracle(subject *s, const strategy *how) {
    const double *wanted = masked_logits(s, how);
    float *got = malloc(N_IDS * s->vocab * sizeof *got), *again = malloc(N_IDS * s->vocab * sizeof *again);
    mn_session *session = filled(s, how, N_IDS, -1, got);
    double distance = oracle_distance(got, wanted, N_IDS * s->vocab);
    if (!(distance > 0 && distance <= STORED_TOLERANCE))
        fail_msg("%s, %s: %g away from the masked oracle", s->folder, how->label, distance);
    mn_session_close(&session);
    for (int piece = 0; piece < 2; piece++) {
        session = filled(s, how, N_IDS, piece, again);
        engine_same_bits(again, got, N_IDS, s->vocab, "%s, %s in %s", s->folder, how->label,
                         piece ? "single tokens" : "one step");
        mn_session_close(&session);
    }
    free(got);
    free(again);
}

static void equals_oracle_over_what_is_stored(subject *s, const strategy *how) {
    mn_session *session = filled(s, how, N_IDS, -1, NULL);
    bool quantized = false;
    for (int i = 0; i < kv_entries(session->cache); i++) {
        if (kv_entry_spec(session->cache, i)->kind == KV_PAGES)
            quantized = quantized || kv_quantized(session->cache, i) > 0;
    }
    if (!quantized && !how->window && s->o.layers[0].window * s->o.layers[s->o.n_layers - 1].window == 0)
        fail_msg("%s, %s: nothing is coded", s->folder, how->label);
    for (int i = 0; i < 3; i++) stored_check_step(s->folder, &s->o, session, s->ids[N_IDS + i], how->label);
    mn_session_close(&session);
}

/* ---- operations that change no bit ---- */

static void go_on_alike(subject *s, mn_session *got, mn_session *wanted, const strategy *how, const char *what) {
    char text[160];
    snprintf(text, sizeof text, "%s, %s, %s", s->folder, how->label, what);
    assert_int_equal(mn_session_length(got), mn_session_length(wanted));
    for (int i = 0; i < N_MORE; i++) {
        assert_ok(mn_session_step(got, &s->ids[N_IDS + i], 1, NULL));
        assert_ok(mn_session_step(wanted, &s->ids[N_IDS + i], 1, NULL));
        engine_ends_with(got, mn_session_logits(wanted), text);
    }
    assert_ok(kv_check(got->cache));
    mn_session_close(&got);
    mn_session_close(&wanted);
}

static void keeps_its_bits(subject *s, const strategy *how) {
    mn_session *session = filled(s, how, N_IDS, 13, NULL), *fork = NULL, *loaded = NULL;
    const char *path = scratch_path("saved");
    mn_cache_options options = options_of(how);
    if (session->plan.self.keeps) {
        assert_ok(mn_session_save(session, path, false));
        assert_ok(mn_session_load(&loaded, s->model, path, &options));
        go_on_alike(s, loaded, filled(s, how, N_IDS, 7, NULL), how, "loaded");
    }
    assert_ok(mn_session_fork(&fork, session));
    go_on_alike(s, fork, filled(s, how, N_IDS, 0, NULL), how, "a fork");
    mn_status status = mn_session_truncate(session, N_IDS - CROP);
    if (status != MN_OK && !how->window && s->o.layers[0].window == 0)
        fail_msg("%s, %s: %s", s->folder, how->label, mn_last_error());
    if (status == MN_OK && !how->codes) {
        go_on_alike(s, session, filled(s, how, N_IDS - CROP, 1, NULL), how, "cropped");
    } else {
        go_on_alike(s, session, filled(s, how, status == MN_OK ? N_IDS - CROP : N_IDS, 5, NULL), how, "a crop");
    }
}

/* ---- cells ---- */

/* Derived from the properties of both: states have no pages, and learned positions cannot be moved. */
static const char *refusal_of(const subject *s, const strategy *how) {
    unsigned of_pages = how->window || how->codes || strstr(how->implementation, "offloaded");
    if (s->o.n_heads == 0 && of_pages) return "holds a recurrent state instead";
    return s->o.positions && how->sinks ? "learned positions are part of its keys" : NULL;
}

static void check_cell(const family *f, subject *s, int column) {
    const strategy *how = &strategies[column];
    mn_cache_options options = options_of(how);
    mn_session *session = NULL;
    const char *refusal = refusal_of(s, how);
    int row = (int)(f - families);
    if (refusal) {
        assert_fails(MN_E_ARG, refusal, mn_session_open(&session, s->model, &options));
        char reason[TABLE_REASON];
        const char *quoted = strstr(mn_last_error(), "' ");
        assert_non_null(quoted);
        snprintf(reason, sizeof reason, "the cache implementation %s", quoted + 2); /* part of every refusal */
        table_note(&cells, row, column, reason);
    } else if (!test_samples(row + column, 7)) {
        session = open_session(s, how);
        mn_session_close(&session);
        table_note(&cells, row, column, NULL);
    } else {
        if (how->codes) {
            equals_oracle_over_what_is_stored(s, how);
        } else if (how->window) {
            equals_masked_oracle(s, how);
        } else {
            equals_golden(s, f, how);
        }
        keeps_its_bits(s, how);
        table_note(&cells, row, column, NULL);
    }
}

static void every_strategy(void **state) {
    const family *f = *state;
    int64_t live = mem_count().live;
    subject plain = open_subject(f, false), narrow = {0}, *coded = &plain;
    if (f->coded[0]) {
        narrow = open_subject(f, true);
        coded = &narrow;
    }
    for (int i = 0; i < N_STRATEGIES; i++) check_cell(f, strategies[i].codes ? coded : &plain, i);
    close_subject(&plain);
    close_subject(&narrow);
    assert_int_equal(mem_count().live, live);
}

static void docs_support_has_this_table(void **state) {
    (void)state;
    table_check(&cells);
}

static void every_strategy_and_model_type_has_a_row(void **state) {
    (void)state;
    families_need_every_type("families", &families[0].golden, sizeof *families, N_FAMILIES);
    strategy_need_rows("strategies", &strategies[0].implementation, sizeof *strategies, N_STRATEGIES, NULL);
}

int main(void) {
    struct CMUnitTest tests[N_FAMILIES + 2];
    for (int i = 0; i < N_FAMILIES; i++) {
        tests[i] = (struct CMUnitTest){
            .name = families[i].label, .test_func = every_strategy, .initial_state = (void *)(uintptr_t)&families[i]};
        cells.rows[i] = families[i].label;
    }
    for (int i = 0; i < N_STRATEGIES; i++) cells.columns[i] = strategies[i].label;
    tests[N_FAMILIES] = (struct CMUnitTest)cmocka_unit_test(docs_support_has_this_table);
    tests[N_FAMILIES + 1] = (struct CMUnitTest)cmocka_unit_test(every_strategy_and_model_type_has_a_row);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
