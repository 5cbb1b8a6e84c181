/* SmolLM2-135M-Instruct, a real model, where its GGUF file is at hand ($MNEME_TEST_SMOLLM2, else the model
 * "smollm2"): token ids, greedy continuations, log-probabilities and perplexity against Transformers' in
 * float32. What takes minutes runs only with MNEME_LONG=1. SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

enum { MOST_IDS = 4096, PIECE = 256, NEW_TOKENS = 64 };

typedef struct world {
    char *path; /* NULL: the model is not here */
    json_doc *doc;
} world;

static int open_world(void **state) {
    static world w;
    const char *given = getenv("MNEME_TEST_SMOLLM2");
    w.path = NULL;
    if (mn_model_find(&w.path, given ? given : "smollm2") != MN_OK) w.path = NULL;
    w.doc = open_json(data_path("golden/smollm2-135m-instruct-q4_1.json"));
    *state = &w;
    return 0;
}

static int close_world(void **state) {
    world *w = *state;
    mn_free(w->path);
    json_close(&w->doc);
    return 0;
}

static bool is_long(void) {
#if defined(__SANITIZE_THREAD__)
    return false; /* ten times slower, and the long cases have no other threads than the short ones */
#endif
    const char *value = getenv("MNEME_LONG");
    return value && strcmp(value, "1") == 0;
}

static mn_model *open_model(const world *w, const char *form) {
    if (!w->path) skip();
    return engine_model(w->path, form, "auto", 0);
}

static size_t read_ids(const json *list, int32_t *ids) {
    assert_true(list && list->n <= MOST_IDS);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->items[i].integer;
    return list->n;
}

static double real_of(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

static double log_probability(const float *logits, size_t vocab, int32_t id) {
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < vocab; i++) largest = fmax(largest, (double)logits[i]);
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - largest);
    return (double)logits[id] - largest - log(sum);
}

/* log p(ids[i + 1] given ids[0..i]) for i < n - 1; the session then holds ids[0 .. n-2]. */
static void score(mn_model *model, mn_session *session, const int32_t *ids, size_t n, double *logprobs) {
    size_t vocab = (size_t)engine_vocab(model);
    float *logits = malloc(PIECE * vocab * sizeof *logits);
    for (size_t at = 0; at + 1 < n; at += PIECE) {
        size_t count = n - 1 - at < PIECE ? n - 1 - at : PIECE;
        assert_ok(mn_session_step(session, ids + at, count, logits));
        for (size_t i = 0; i < count; i++)
            logprobs[at + i] = log_probability(logits + i * vocab, vocab, ids[at + i + 1]);
    }
    free(logits);
}

/* The chat template makes the prompt's text of its messages. */
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

static void prompts_have_the_same_ids(void **state) {
    const world *w = *state;
    mn_tokenizer *tokenizer = NULL;
    if (!w->path) skip();
    assert_ok(mn_tokenizer_open(&tokenizer, w->path));
    const json *prompts = json_get(json_root(w->doc), "prompts");
    for (size_t i = 0; i < prompts->n; i++) {
        const json *text = json_get(&prompts->items[i], "text"),
                   *wanted = json_get(&prompts->items[i], "ids");
        int32_t *ids = NULL, expected[MOST_IDS];
        size_t n = 0;
        if (json_get(&prompts->items[i], "messages")) check_rendering(tokenizer, &prompts->items[i]);
        assert_ok(mn_tokenize(tokenizer, text->string, text->n, MN_ADD_SPECIAL, &ids, &n));
        assert_int_equal(n, read_ids(wanted, expected));
        assert_memory_equal(ids, expected, n * sizeof *ids);
        char *decoded = NULL;
        size_t n_decoded = 0;
        assert_ok(mn_detokenize(tokenizer, ids, n, 0, &decoded, &n_decoded));
        assert_int_equal(n_decoded, text->n);
        assert_memory_equal(decoded, text->string, n_decoded);
        mn_free(decoded);
        mn_free(ids);
    }
    mn_tokenizer_close(&tokenizer);
}

/* Greedy continuation of a prompt, past the end token, up to where the golden margins say that it must agree.
 */
static void check_continuation(mn_model *model, const json *prompt, const char *implementation,
                               size_t n_new) {
    int32_t ids[MOST_IDS], tokens[NEW_TOKENS];
    size_t n = read_ids(json_get(prompt, "ids"), ids);
    assert_int_equal(read_ids(json_get(prompt, "tokens"), tokens), NEW_TOKENS);
    if (n_new == 0) return;
    mn_generation_config *config = NULL;
    char value[32];
    snprintf(value, sizeof value, "%zu", n_new);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", value));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    mn_session *session =
        engine_session(model, (engine_cache){.implementation = implementation, .max_cache_len = 2048});
    mn_generation *generation = NULL;
    assert_ok(mn_generate(session, ids, n, config, NULL, &generation));
    const mn_sequence *s = &generation->sequences[0];
    assert_int_equal(s->n_ids, n_new);
    for (size_t i = 0; i < n_new; i++) {
        if (s->ids[i] != tokens[i])
            fail_msg("%s, %s: new token %zu is %d, golden %d", json_get(prompt, "name")->string,
                     implementation, i, s->ids[i], tokens[i]);
    }
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_generation_config_close(&config);
}

static void check_continuations(const world *w, const char *form, const char *field) {
    mn_model *model = open_model(w, form);
    const json *prompts = json_get(json_root(w->doc), "prompts");
    for (size_t i = 0; i < prompts->n; i++) {
        const json *prompt = &prompts->items[i];
        if (json_get(prompt, "ids")->n > 500 && !is_long()) continue;
        check_continuation(model, prompt, i % 2 ? "static" : "dynamic",
                           (size_t)json_get(prompt, field)->integer);
    }
    mn_model_close(&model);
}

static void float32_continuations(void **state) {
    check_continuations(*state, "f32", "agree_until");
}

static void fast_continuations(void **state) {
    check_continuations(*state, "auto", "agree_until_025");
}

/* Every prompt's log-probabilities, with those of its best five next tokens. */
static void float32_log_probabilities(void **state) {
    const world *w = *state;
    mn_model *model = open_model(w, "f32");
    size_t vocab = (size_t)engine_vocab(model);
    const json *prompts = json_get(json_root(w->doc), "prompts");
    for (size_t p = 0; p < prompts->n; p++) {
        const json *prompt = &prompts->items[p], *golden = json_get(prompt, "prompt_logprobs"),
                   *best = json_get(prompt, "top5_first");
        int32_t ids[MOST_IDS];
        double logprobs[MOST_IDS], sum = 0;
        size_t n = read_ids(json_get(prompt, "ids"), ids);
        if (n > 500 && !is_long()) continue;
        mn_session *session = engine_session(model, (engine_cache){0});
        score(model, session, ids, n, logprobs);
        assert_int_equal(golden->n, n - 1);
        for (size_t i = 0; i + 1 < n; i++) {
            sum -= logprobs[i];
            if (!(fabs(logprobs[i] - real_of(&golden->items[i])) < 1e-3))
                fail_msg("%s: log p of token %zu is %.6f, golden %.6f", json_get(prompt, "name")->string,
                         i + 1, logprobs[i], real_of(&golden->items[i]));
        }
        double mean = sum / (double)(n - 1), wanted = real_of(json_get(prompt, "prompt_nll_mean"));
        if (!(fabs(mean - wanted) < 5e-5))
            fail_msg("%s: mean %.6f, golden %.6f", json_get(prompt, "name")->string, mean, wanted);
        assert_ok(mn_session_step(session, ids + n - 1, 1, NULL));
        for (size_t i = 0; i < best->n; i++) {
            int32_t id = (int32_t)best->items[i].items[0].integer;
            double got = log_probability(mn_session_logits(session), vocab, id);
            assert_true(fabs(got - real_of(&best->items[i].items[1])) < 1e-3);
        }
        mn_session_close(&session);
    }
    mn_model_close(&model);
}

static void check_perplexity(const world *w, const char *form, double share) {
    mn_model *model = open_model(w, form);
    const json *golden = json_get(json_root(w->doc), "perplexity");
    int32_t ids[MOST_IDS];
    double *logprobs = malloc(MOST_IDS * sizeof *logprobs), sum = 0;
    size_t n = read_ids(json_get(golden, "ids"), ids);
    mn_session *session = engine_session(model, (engine_cache){0});
    score(model, session, ids, n, logprobs);
    for (size_t i = 0; i + 1 < n; i++) sum -= logprobs[i];
    double got = exp(sum / (double)(n - 1)),
           wanted = real_of(json_get(json_get(golden, "stream"), "perplexity"));
    print_message("perplexity %.4f, golden %.4f, with %s\n", got, wanted, form);
    if (!(fabs(got - wanted) <= share * wanted))
        fail_msg("perplexity with %s is %.4f, golden %.4f", form, got, wanted);
    mn_session_close(&session);
    free(logprobs);
    mn_model_close(&model);
}

static void float32_perplexity(void **state) {
    if (!is_long()) skip();
    check_perplexity(*state, "f32", 0.0005);
}

static void fast_perplexity(void **state) {
    check_perplexity(*state, "auto", 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_same_ids), cmocka_unit_test(float32_continuations),
        cmocka_unit_test(fast_continuations),        cmocka_unit_test(float32_log_probabilities),
        cmocka_unit_test(float32_perplexity),        cmocka_unit_test(fast_perplexity),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
