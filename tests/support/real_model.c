/* SPDX-License-Identifier: Apache-2.0 */
#include "support/real_model.h"

#include <math.h>

enum { MOST_IDS = 4096, PIECE = 256, NEW_TOKENS = 64, LONG_PROMPT = 500, CAPACITY = 2048 };

void real_model_open(real_model *w, const char *given, const char *name, const char *golden) {
    const char *path = real_model_path(given, name);
    *w = (real_model){.path = path ? mem_copy_text(path, strlen(path)) : NULL};
    w->doc = open_json(data_path(golden));
}

void real_model_close(real_model *w) {
    mn_free(w->path);
    json_close(&w->doc);
}

bool real_model_is_long(void) {
#if defined(__SANITIZE_THREAD__)
    return false; /* sanitizers are ten times slower, and the long cases have the same threads as the short ones */
#endif
    return test_is_long();
}

bool real_model_is_brief(void) {
    return TEST_IS_SANITIZED && !real_model_is_long(); /* one prompt covers the same code as all */
}

/* Whether the i-th prompt, of n ids, is run. */
static bool is_run(size_t i, size_t n) {
    if (real_model_is_brief()) return i == 1;
    return n <= LONG_PROMPT || real_model_is_long();
}

mn_model *real_model_load(const real_model *w, const char *form) {
    if (!w->path) skip();
    return engine_model(w->path, form, "auto", 0);
}

static const json *prompts_of(const real_model *w) {
    return json_get(json_root(w->doc), "prompts");
}

static const char *name_of(const json *prompt) {
    return json_get(prompt, "name")->string;
}

const json *real_model_prompt(const real_model *w, const char *name) {
    const json *prompts = prompts_of(w);
    for (size_t i = 0; i < prompts->n; i++)
        if (strcmp(name_of(&prompts->items[i]), name) == 0) return &prompts->items[i];
    fail_msg("there is no prompt '%s'", name);
    return NULL;
}

static double real_of(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static double log_probability(const float *logits, size_t vocab, int32_t id) {
    float largest = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < vocab; i++) largest = fmaxf(largest, logits[i]);
    for (size_t i = 0; i < vocab; i++) sum += (double)expf(logits[i] - largest);
    return (double)logits[id] - (double)largest - log(sum);
}

/* log p(ids[i + 1] given ids[0..i]) for i < n - 1; the session then holds ids[0 .. n-2]. */
static void score(mn_model *model, mn_session *session, const int32_t *ids, size_t n, double *logprobs) {
    size_t vocab = (size_t)engine_vocab(model);
    float *logits = malloc(PIECE * vocab * sizeof *logits);
    assert_non_null(logits);
    for (size_t at = 0; at + 1 < n; at += PIECE) {
        size_t count = n - 1 - at < PIECE ? n - 1 - at : PIECE;
        assert_ok(mn_session_step(session, ids + at, count, logits));
        for (size_t i = 0; i < count; i++)
            logprobs[at + i] = log_probability(logits + i * vocab, vocab, ids[at + i + 1]);
    }
    free(logits);
}

/* ---- ids ---- */

/* The chat template must render the messages to the prompt's text. */
static void check_rendering(const mn_tokenizer *tokenizer, const json *prompt) {
    bytes messages = {0};
    const json *wanted = json_get(prompt, "text");
    char *text = NULL;
    size_t n = 0;
    json_put(&messages, json_get(prompt, "messages"));
    assert_ok(mn_chat_render(tokenizer, bytes_text(&messages), messages.n, true, &text, &n));
    assert_int_equal(n, wanted->n);
    assert_memory_equal(text, wanted->string, n);
    mn_free(text);
    bytes_clear(&messages);
}

/* Ids decode to the text, without the token that begins every text. */
static void check_text(const mn_tokenizer *tokenizer, const json *bos, const int32_t *ids, size_t n, const json *text) {
    char *decoded = NULL;
    size_t n_decoded = 0;
    for (size_t i = 0; i < bos->n; i++) assert_int_equal(ids[i], bos->items[i].integer);
    assert_ok(mn_detokenize(tokenizer, ids + bos->n, n - bos->n, 0, &decoded, &n_decoded));
    assert_int_equal(n_decoded, text->n);
    assert_memory_equal(decoded, text->string, n_decoded);
    mn_free(decoded);
}

void real_model_check_ids(const real_model *w) {
    mn_tokenizer *tokenizer = NULL;
    if (!w->path) skip();
    assert_ok(mn_tokenizer_open(&tokenizer, w->path));
    const json *prompts = prompts_of(w);
    for (size_t i = 0; i < prompts->n; i++) {
        const json *prompt = &prompts->items[i], *text = json_get(prompt, "text");
        int32_t *ids = NULL, expected[MOST_IDS];
        size_t n = 0;
        if (json_get(prompt, "messages")) check_rendering(tokenizer, prompt);
        assert_ok(mn_tokenize(tokenizer, text->string, text->n, MN_ADD_SPECIAL, &ids, &n));
        assert_int_equal(n, engine_read_ids(json_get(prompt, "ids"), expected, MOST_IDS));
        assert_memory_equal(ids, expected, n * sizeof *ids);
        check_text(tokenizer, json_get(json_root(w->doc), "bos"), ids, n, text);
        mn_free(ids);
    }
    mn_tokenizer_close(&tokenizer);
}

/* ---- continuations ---- */

void real_model_check_continuation(mn_model *model, const json *prompt, engine_cache cache, const char *until,
                                   size_t most) {
    int32_t ids[MOST_IDS], tokens[NEW_TOKENS];
    size_t n = engine_read_ids(json_get(prompt, "ids"), ids, MOST_IDS),
           n_new = (size_t)json_get(prompt, until)->integer;
    assert_int_equal(engine_read_ids(json_get(prompt, "tokens"), tokens, NEW_TOKENS), NEW_TOKENS);
    if (most && n_new > most) n_new = most;
    if (n_new == 0) return;
    mn_generation_config *config = NULL;
    char value[32];
    snprintf(value, sizeof value, "%zu", n_new);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", value));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    if (!cache.max_cache_len) cache.max_cache_len = CAPACITY;
    mn_session *session = engine_session(model, cache);
    mn_generation *generation = NULL;
    assert_ok(mn_generate(session, ids, n, config, NULL, &generation));
    const mn_sequence *s = generation->sequences[0];
    assert_int_equal(s->n_ids, n_new);
    for (size_t i = 0; i < n_new; i++) {
        if (s->ids[i] != tokens[i])
            fail_msg("%s, %s: new token %zu is %d, golden %d", name_of(prompt), cache.implementation, i, s->ids[i],
                     tokens[i]);
    }
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_generation_config_close(&config);
}

void real_model_check_continuations(const real_model *w, const char *form, const char *until, size_t most) {
    mn_model *model = real_model_load(w, form);
    const json *prompts = prompts_of(w);
    for (size_t i = 0; i < prompts->n; i++) {
        const json *prompt = &prompts->items[i];
        if (!is_run(i, json_get(prompt, "ids")->n)) continue;
        real_model_check_continuation(model, prompt, (engine_cache){.implementation = i % 2 ? "static" : "dynamic"},
                                      until, most);
    }
    mn_model_close(&model);
}

/* ---- probabilities ---- */

/* The best five next tokens after the prompt whose last id is `last`. */
static void check_best(mn_session *session, size_t vocab, int32_t last, const json *best) {
    assert_ok(mn_session_step(session, &last, 1, NULL));
    for (size_t i = 0; i < best->n; i++) {
        int32_t id = (int32_t)best->items[i].items[0].integer;
        double got = log_probability(mn_session_logits(session), vocab, id);
        assert_true(fabs(got - real_of(&best->items[i].items[1])) < 1e-3);
    }
}

void real_model_check_log_probabilities(const real_model *w) {
    mn_model *model = real_model_load(w, "f32");
    const json *prompts = prompts_of(w);
    for (size_t p = 0; p < prompts->n; p++) {
        const json *prompt = &prompts->items[p], *golden = json_get(prompt, "prompt_logprobs");
        int32_t ids[MOST_IDS];
        double logprobs[MOST_IDS], sum = 0;
        size_t n = engine_read_ids(json_get(prompt, "ids"), ids, MOST_IDS);
        if (!is_run(p, n)) continue;
        mn_session *session = engine_session(model, (engine_cache){0});
        score(model, session, ids, n, logprobs);
        assert_int_equal(golden->n, n - 1);
        for (size_t i = 0; i + 1 < n; i++) {
            sum -= logprobs[i];
            if (!(fabs(logprobs[i] - real_of(&golden->items[i])) < 1e-3))
                fail_msg("%s: log p of token %zu is %.6f, golden %.6f", name_of(prompt), i + 1, logprobs[i],
                         real_of(&golden->items[i]));
        }
        double mean = sum / (double)(n - 1), wanted = real_of(json_get(prompt, "prompt_nll_mean"));
        if (!(fabs(mean - wanted) < 5e-5)) fail_msg("%s: mean %.6f, golden %.6f", name_of(prompt), mean, wanted);
        check_best(session, (size_t)engine_vocab(model), ids[n - 1], json_get(prompt, "top5_first"));
        mn_session_close(&session);
    }
    mn_model_close(&model);
}

/* Perplexity of the first n ids: exp of the mean of -log p. */
static double perplexity(mn_model *model, const int32_t *ids, size_t n) {
    double *logprobs = malloc(MOST_IDS * sizeof *logprobs), sum = 0;
    mn_session *session = engine_session(model, (engine_cache){0});
    score(model, session, ids, n, logprobs);
    for (size_t i = 0; i + 1 < n; i++) sum -= logprobs[i];
    mn_session_close(&session);
    free(logprobs);
    return exp(sum / (double)(n - 1));
}

static void check_share(const char *what, const char *form, double got, double wanted, double share) {
    print_message("perplexity of %s %.4f, golden %.4f, with %s\n", what, got, wanted, form);
    if (!(fabs(got - wanted) <= share * wanted))
        fail_msg("perplexity of %s with %s is %.4f, golden %.4f", what, form, got, wanted);
}

void real_model_check_part(const real_model *w, const char *form, const char *name, size_t n, double share) {
    mn_model *model = real_model_load(w, form);
    const json *prompt = real_model_prompt(w, name), *golden = json_get(prompt, "prompt_logprobs");
    int32_t ids[MOST_IDS];
    double sum = 0;
    assert_true(n <= engine_read_ids(json_get(prompt, "ids"), ids, MOST_IDS));
    for (size_t i = 0; i + 1 < n; i++) sum -= real_of(&golden->items[i]);
    check_share(name, form, perplexity(model, ids, n), exp(sum / (double)(n - 1)), share);
    mn_model_close(&model);
}

void real_model_check_perplexity(const real_model *w, const char *form, double share) {
    mn_model *model = real_model_load(w, form);
    const json *golden = json_get(json_root(w->doc), "perplexity");
    int32_t ids[MOST_IDS];
    size_t n = engine_read_ids(json_get(golden, "ids"), ids, MOST_IDS);
    check_share("the text", form, perplexity(model, ids, n),
                real_of(json_get(json_get(golden, "stream"), "perplexity")), share);
    mn_model_close(&model);
}
