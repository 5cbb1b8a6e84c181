/* /v1/generate: what the library generates with the same configuration, in every decoding mode and cache; fields that
 * are not known, or that the operator does not allow, are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "serve/fixture.h"

static fixture open_fixture(bool cache_fixed) {
    return serve_embedded(PLAIN_TEMPLATE, (serve_options){.max_num_seqs = 64, .cache_fixed = cache_fixed});
}

#define PROMPT "Once upon a time"

static json_doc *ask(const fixture *w, const char *body) {
    answer_text a = client_ask(w->port, "/v1/generate", body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    client_clear(&a);
    return doc;
}

static void same_ids(const json *list, const int32_t *ids, size_t n) {
    assert_int_equal(list->n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(list->items[i].integer, ids[i]);
}

/* What the library makes of the same fields. */
static mn_generation *generate(const fixture *w, const char *fields, int top_logprobs, mn_session **session) {
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    mn_generate_options options;
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_load(config, fields, strlen(fields)));
    mn_generate_options_init(&options, sizeof options);
    options.top_logprobs = top_logprobs;
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), PROMPT, sizeof PROMPT - 1, MN_ADD_SPECIAL, &ids, &n));
    assert_ok(mn_session_open(session, w->model, NULL));
    assert_ok(mn_generate(*session, ids, n, config, &options, &g));
    mn_generation_config_close(&config);
    mn_free(ids);
    return g;
}

static void check_sequences(const json *sequences, const mn_generation *g, int top) {
    assert_int_equal(sequences->n, g->n_sequences);
    for (size_t i = 0; i < g->n_sequences; i++) {
        const json *got = &sequences->items[i];
        const mn_sequence *s = g->sequences[i];
        same_ids(json_get(got, "ids"), s->ids, s->n_ids);
        assert_string_equal(json_get(got, "text")->string, s->text);
        assert_string_equal(json_get(got, "finish_reason")->string, s->finish_reason);
        assert_int_equal(json_get(got, "row")->integer, 0);
        assert_int_equal(json_get(got, "score") != NULL, s->has_score);
        if (s->has_score) assert_true(json_get(got, "score")->real == s->score);
        const json *logprobs = json_get(got, "logprobs");
        assert_int_equal(logprobs != NULL, top >= 0);
        for (size_t k = 0; logprobs && k < s->n_ids; k++) {
            size_t at = k * (size_t)(1 + top);
            const json *entry = &logprobs->items[k], *best = json_get(entry, "top");
            assert_int_equal(json_get(entry, "id")->integer, s->logprob_ids[at]);
            assert_int_equal(best->n, top);
            for (int t = 0; t < top; t++) {
                assert_int_equal(json_get(&best->items[t], "id")->integer, s->logprob_ids[at + 1 + (size_t)t]);
                assert_true(json_get(&best->items[t], "logprob")->real == (double)s->logprobs[at + 1 + (size_t)t]);
            }
        }
    }
}

static void modes_and_caches_are_the_librarys(void **state) {
    (void)state;
    static const struct {
        const char *config;
        int top;
    } of[] = {
        {"{\"max_new_tokens\":12}", -1},
        {"{\"max_new_tokens\":12}", 3},
        {"{\"max_new_tokens\":12,\"do_sample\":true,\"seed\":7,\"temperature\":0.9,\"num_return_sequences\":9}", 0},
        {"{\"max_new_tokens\":10,\"num_beams\":4,\"num_return_sequences\":3,\"length_penalty\":0.8}", -1},
        {"{\"max_new_tokens\":8,\"num_beams\":4,\"num_beam_groups\":2,\"diversity_penalty\":0.5,\"num_return_sequences\":2}",
         -1},
        {"{\"max_new_tokens\":8,\"num_beams\":3,\"do_sample\":true,\"seed\":5}", -1},
        {"{\"max_new_tokens\":8,\"penalty_alpha\":0.6,\"top_k\":4}", -1},
        {"{\"max_new_tokens\":12,\"prompt_lookup_num_tokens\":3}", -1},
        {"{\"max_new_tokens\":8,\"dola_layers\":\"low\",\"repetition_penalty\":1.2}", -1},
        {"{\"max_new_tokens\":8,\"guidance_scale\":1.5}", -1},
        {"{\"max_new_tokens\":40,\"stop_strings\":[\"a\"],\"no_repeat_ngram_size\":3}", -1},
        {"{\"max_new_tokens\":20,\"cache_implementation\":\"offloaded\"}", -1},
        {"{\"max_new_tokens\":20,\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":8,\"num_sink_tokens\":2}}",
         -1},
        {"{\"max_new_tokens\":12,\"use_cache\":false}", -1},
    };
    fixture w = open_fixture(false);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[1024], top[64] = "";
        mn_session *session = NULL;
        if (of[i].top >= 0) snprintf(top, sizeof top, ",\"top_logprobs\":%d", of[i].top);
        snprintf(body, sizeof body, "{\"prompt\":\"" PROMPT "\",\"generation_config\":%s%s}", of[i].config, top);
        mn_generation *g = generate(&w, of[i].config, of[i].top, &session);
        json_doc *doc = ask(&w, body);
        check_sequences(json_get(json_root(doc), "sequences"), g, of[i].top);
        const json *cache = json_get(json_root(doc), "cache"), *usage = json_get(json_root(doc), "usage");
        assert_string_equal(json_get(cache, "implementation")->string, g->cache->implementation);
        assert_int_equal(json_get(usage, "prompt_tokens")->integer, g->sequences[0]->prompt_tokens);
        json_close(&doc);
        mn_generation_close(&g);
        mn_session_close(&session);
    }
    close_fixture(&w);
}

/* The same cache named beside the configuration, the prompt as ids and as messages. */
static void forms_of_a_request_agree(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"generation_config\":{\"max_new_tokens\":8,"
        "\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":8}}}",
        "{\"prompt\":\"user: Hi\\nassistant:\",\"generation_config\":{\"max_new_tokens\":8},\"priority\":3,\"model\":\"tiny\","
        "\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":8},\"cache_salt\":\"s\"}",
        "{\"ids\":%s,\"generation_config\":{\"max_new_tokens\":8},"
        "\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":8}}"};
    fixture w = open_fixture(false);
    bytes wanted = {0}, ids = {0};
    for (size_t i = 0; i < 3; i++) {
        char body[1024];
        if (i == 2)
            snprintf(body, sizeof body, bodies[2], bytes_text(&ids)); /* NOLINT: one of the texts above */
        else
            snprintf(body, sizeof body, "%s", bodies[i]);
        json_doc *doc = ask(&w, body);
        bytes got = {0};
        json_put(&got, json_get(json_root(doc), "prompt_ids"));
        json_put(&got, json_get(&json_get(json_root(doc), "sequences")->items[0], "ids"));
        if (i == 0) {
            bytes_append_text(&wanted, bytes_text(&got));
            json_put(&ids, &json_get(json_root(doc), "prompt_ids")->items[0]);
        }
        assert_string_equal(bytes_text(&got), bytes_text(&wanted));
        assert_string_equal(json_get(json_get(json_root(doc), "cache"), "implementation")->string, "sink");
        bytes_clear(&got);
        json_close(&doc);
    }
    bytes_clear(&wanted);
    bytes_clear(&ids);
    close_fixture(&w);
}

/* Rows of a batch, and the events of a stream, whose last one is the whole answer. */
static void batches_and_streams_agree(void **state) {
    (void)state;
    fixture w = open_fixture(false);
    const char *fields =
        "\"prompt\":[\"" PROMPT "\",\"The dog\"],\"top_logprobs\":1,\"generation_config\":{\"max_new_tokens\":6,"
        "\"do_sample\":true,\"seed\":2,\"num_return_sequences\":2}";
    char body[1024];
    bytes text[2][2] = {0};
    snprintf(body, sizeof body, "{%s}", fields);
    json_doc *whole = ask(&w, body);
    const json *sequences = json_get(json_root(whole), "sequences");
    assert_int_equal(sequences->n, 4);
    snprintf(body, sizeof body, "{%s,\"stream\":true}", fields);
    answer_text a = client_ask(w.port, "/v1/generate", body);
    assert_int_equal(a.status, 200);
    int n_ends = 0, n_wholes = 0;
    for (const char *at = a.body.data; strncmp(at, "data: [DONE]", 12) != 0;) {
        const char *end = strstr(at, "\n\n");
        json_doc *doc = NULL;
        assert_non_null(end);
        assert_ok(json_parse(&doc, at + 6, (size_t)(end - at) - 6, JSON_STRICT, "event"));
        const json *root = json_root(doc), *list = json_get(root, "sequences");
        if (list) {
            bytes got = {0}, wanted = {0};
            json_put(&got, list);
            json_put(&wanted, sequences);
            assert_string_equal(bytes_text(&got), bytes_text(&wanted));
            bytes_clear(&got);
            bytes_clear(&wanted);
            n_wholes++;
        } else {
            int64_t row = json_get(root, "row")->integer, sequence = json_get(root, "sequence")->integer;
            const json *piece = json_get(root, "text");
            assert_true(row >= 0 && row < 2 && sequence >= 0 && sequence < 2);
            assert_int_equal(json_get(root, "id")->kind == JSON_NULL,
                             json_get(root, "finish_reason")->kind == JSON_STRING);
            bytes_append(&text[row][sequence], piece->string, piece->n);
            n_ends += json_get(root, "finish_reason")->kind == JSON_STRING;
        }
        json_close(&doc);
        at = end + 2;
    }
    assert_true(n_ends == 4 && n_wholes == 1);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(json_get(&sequences->items[i], "row")->integer, i / 2);
        assert_string_equal(bytes_text(&text[i / 2][i % 2]), json_get(&sequences->items[i], "text")->string);
        bytes_clear(&text[i / 2][i % 2]);
    }
    client_clear(&a);
    json_close(&whole);
    close_fixture(&w);
}

static void refuse(const fixture *w, const char *body, int status, const char *param, const char *part) {
    answer_text a = client_ask(w->port, "/v1/generate", body);
    if (a.status != status || !strstr(a.body.data, part)) fail_msg("%s: %d %s", body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    if (!json_is_string(json_get(json_get(json_root(doc), "error"), "param"), param))
        fail_msg("%s: %s", body, a.body.data);
    json_close(&doc);
    client_clear(&a);
}

static void what_is_not_allowed_is_refused(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *body, *param, *part;
    } of[] = {
        {400, "{}", "prompt", "'prompt' is missing"},
        {400, "{\"prompt\":null}", "prompt", "'prompt' is missing"},
        {400, "{\"prompt\":\"a\",\"ids\":[1]}", "ids", "'prompt' and 'ids' are both given"},
        {400, "{\"prompt\":\"a\",\"temperature\":1}", "temperature", "'temperature' is no field, allowed: prompt, ids"},
        {400, "{\"prompt\":\"a\",\"stop\":null}", "stop", "'stop' is no field"},
        {400, "{\"prompt\":\"a\",\"a\\\"b\":null}", "a\"b", "is no field"},
        {400, "{\"prompt\":\"a\",\"generation_config\":{\"num_beam\":2}}", "generation_config", "num_beams"},
        {400, "{\"prompt\":\"a\",\"generation_config\":{\"num_beams\":0}}", "generation_config",
         "num_beams is 0, allowed: 1 to 4096"},
        {400, "{\"prompt\":\"a\",\"generation_config\":{\"num_beams\\u0000\":2}}", "generation_config",
         "'generation_config'"},
        {400, "{\"prompt\":\"a\",\"generation_config\":{\"num_beams\":2,\"num_return_sequences\":3}}",
         "generation_config", "num_return_sequences"},
        {400, "{\"ids\":\"a\"}", "ids", "'ids' is"},
        {400, "{\"ids\":[\"a\"]}", "ids", "'ids' is"},
        {400, "{\"ids\":[]}", "ids", "'ids' has no tokens"},
        {400, "{\"ids\":[512]}", "ids", "'ids' has the token 512, allowed: 0 to 511"},
        {400, "{\"prompt\":\"a\",\"cache_implementation\":\"quantised\"}", "cache_implementation", "quantized"},
        {400, "{\"prompt\":\"a\",\"cache_config\":{\"nbits\":4}}", "cache_implementation",
         "'cache_implementation' is missing"},
        {400, "{\"prompt\":\"a\",\"cache_implementation\":\"quantized\",\"cache_config\":{\"nbits\":99}}",
         "cache_config", "nbits"},
        {400, "{\"prompt\":\"a\",\"cache_implementation\":\"offloaded\",\"cache_config\":\"path=/tmp\"}",
         "cache_config", "'cache_config' is"},
        {403, "{\"prompt\":\"a\",\"cache_implementation\":\"offloaded\",\"cache_config\":{\"path\":\"/tmp\"}}",
         "cache_config", "'path'"},
        {403,
         "{\"prompt\":\"a\",\"generation_config\":{\"cache_implementation\":\"offloaded\",\"cache_config\":{\"path\":\"/tmp\"}}}",
         "cache_config", "'path'"},
        {400,
         "{\"prompt\":\"a\",\"generation_config\":{\"cache_implementation\":\"offloaded\",\"cache_config\":\"path=/tmp\"}}",
         "cache_config", "an object"},
        {404, "{\"prompt\":\"a\",\"model\":\"other\"}", "model", "there is no model"},
    };
    fixture w = open_fixture(false);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) refuse(&w, of[i].body, of[i].status, of[i].param, of[i].part);
    close_fixture(&w);
}

static void the_operator_can_fix_the_cache(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"cache_implementation\":\"quantized\"}", "{\"prompt\":\"a\",\"cache_config\":{}}",
        "{\"prompt\":\"a\",\"generation_config\":{\"cache_implementation\":\"static\"}}",
        "{\"prompt\":\"a\",\"generation_config\":{\"use_cache\":false}}"};
    fixture w = open_fixture(true);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        refuse(&w, bodies[i], 403, "cache_implementation", "not_permitted");
    json_close(&(json_doc *){ask(&w, "{\"prompt\":\"a\",\"generation_config\":{\"max_new_tokens\":2}}")});
    close_fixture(&w);
}

static void a_request_has_its_own_cache_or_the_servers(void **state) {
    (void)state;
    static const struct {
        const char *fields, *implementation;
    } of[] = {{"\"priority\":0", "offloaded"},
              {"\"cache_implementation\":\"sink\"", "sink"},
              {"\"generation_config\":{\"cache_implementation\":\"dynamic\"}", "dynamic"}};
    mn_cache_options cache = engine_cache_options((engine_cache){.implementation = "offloaded"});
    fixture w = {.live = mem_count().live};
    w.model = chat_model(PLAIN_TEMPLATE);
    const serve_options options = {.name = "tiny", .cache = &cache};
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", of[i].fields);
        json_doc *doc = ask(&w, body);
        assert_string_equal(json_get(json_get(json_root(doc), "cache"), "implementation")->string,
                            of[i].implementation);
        json_close(&doc);
    }
    close_fixture(&w);
}

/* Every field of GenerationConfig with its standard, and with values that it cannot have. */
static void every_field_of_the_configuration_is_taken_or_named(void **state) {
    (void)state;
    static const char *const values[] = {"-1",     "0",       "1e300",     "\"\"", "\"text\"",         "[]",     "[[]]",
                                         "[[-1]]", "[[[1]]]", "{\"a\":1}", "true", "[99999999999999]", "[\"\"]", "0.5"};
    fixture w = open_fixture(false);
    const mn_generation_field *f;
    int n_refused = 0;
    for (int i = 0; (f = mn_generation_field_at(i)); i++) {
        for (size_t k = 0; k <= sizeof values / sizeof *values; k++) {
            char body[512];
            bool is_length = strcmp(f->name, "max_new_tokens") == 0;
            snprintf(body, sizeof body, "{\"prompt\":\"Once\",\"generation_config\":{%s\"%s\":%s}}",
                     is_length ? "" : "\"max_new_tokens\":2,", f->name, k ? values[k - 1] : f->standard);
            answer_text a = client_ask(w.port, "/v1/generate", body);
            if (a.status != 200 &&
                (a.status != 400 || (!strstr(a.body.data, f->name) && !strstr(a.body.data, "schema, $"))))
                fail_msg("%s: %d %s", body, a.status, a.body.data);
            if (k == 0 && a.status != 200) fail_msg("%s: %s", body, a.body.data);
            n_refused += a.status == 400;
            client_clear(&a);
        }
    }
    assert_true(n_refused > 200);
    close_fixture(&w);
}

/* ---- modes and caches of OpenAI's routes ---- */

static void expect(const fixture *w, const char *path, const char *body, int status, const char *param,
                   const char *message) {
    answer_text a = client_ask(w->port, path, body);
    if (a.status != status) fail_msg("%s %s: %d %s", path, body, a.status, a.body.data);
    if (status != 200) {
        json_doc *doc = client_json(&a);
        const json *error = json_get(json_root(doc), "error");
        if (!json_is_string(json_get(error, "param"), param) || !json_is_string(json_get(error, "message"), message))
            fail_msg("%s %s: %s", path, body, a.body.data);
        json_close(&doc);
    }
    client_clear(&a);
}

/* The texts of answers, each behind its index. */
static void put_texts(bytes out[2], const json *choices, const char *part) {
    for (size_t i = 0; i < choices->n; i++) {
        const json *choice = &choices->items[i], *text = json_get(choice, "text");
        if (!text) text = json_get(json_get(choice, part), "content");
        const int64_t index = json_get(choice, "index")->integer;
        assert_true(index >= 0 && index < 2);
        if (text) bytes_append(&out[index], text->string, text->n);
    }
}

static void beams_are_streamed_when_they_are_known(void **state) {
    (void)state;
    static const char *const routes[][2] = {
        {"/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"Once\"}]"},
        {"/v1/completions", "\"prompt\":\"<s>user: Once\\nassistant:\""}};
    fixture w = open_fixture(false);
    for (int i = 0; i < 2; i++) {
        bytes whole[2] = {{0}, {0}}, streamed[2] = {{0}, {0}};
        for (int streams = 0; streams < 2; streams++) {
            char body[512];
            snprintf(body, sizeof body,
                     "{%s,\"num_beams\":4,\"n\":2,\"temperature\":0,\"max_tokens\":12,\"stream\":%s}", routes[i][1],
                     streams ? "true" : "false");
            answer_text a = client_ask(w.port, routes[i][0], body);
            if (a.status != 200) fail_msg("%s: %s", body, a.body.data);
            for (const char *at = a.body.data; at && strncmp(at, "data: [DONE]", 12) != 0;) {
                const char *end = streams ? strstr(at, "\n\n") : at + a.body.n, *from = streams ? at + 6 : at;
                json_doc *doc = NULL;
                assert_ok(json_parse(&doc, from, (size_t)(end - from), JSON_STRICT, "answer"));
                put_texts(streams ? streamed : whole, json_get(json_root(doc), "choices"),
                          streams ? "delta" : "message");
                json_close(&doc);
                at = streams ? end + 2 : NULL;
            }
            client_clear(&a);
        }
        for (int k = 0; k < 2; k++) {
            assert_true(whole[k].n > 10);
            assert_string_equal(bytes_text(&whole[k]), bytes_text(&streamed[k]));
            bytes_clear(&streamed[k]);
        }
        assert_string_not_equal(whole[0].data, whole[1].data);
        if (i == 0) {
            size_t n;
            const char *const settings[] = {"max_new_tokens",       "12", "num_beams", "4",
                                            "num_return_sequences", "2",  NULL};
            mn_generation *g = alone(&w, "<s>user: Once\nassistant:", settings, &n);
            for (int k = 0; k < 2; k++) assert_string_equal(whole[k].data, g->sequences[k]->text);
            mn_generation_close(&g);
        }
        bytes_clear(&whole[0]);
        bytes_clear(&whole[1]);
    }
    close_fixture(&w);
}

/* With a cache that shares nothing with the server's, the same prompt is computed again; its reason says so. */
static void a_chat_has_the_cache_that_it_names(void **state) {
    (void)state;
#define CHAT  "{\"messages\":[{\"role\":\"user\",\"content\":\"There was a dog\"}],\"max_tokens\":2,\"temperature\":0,"
#define TEXT  "{\"prompt\":\"There was a dog\",\"max_tokens\":2,\"temperature\":0,"
#define OTHER "\"implementation\":\"sink\",\"config\":{\"window_length\":16}"
    static const struct {
        const char *path, *body, *ended_by;
    } of[] = {
        {"/v1/chat/completions", CHAT "\"cache\":{\"explain\":true}}", "nothing_cached"},
        {"/v1/chat/completions", CHAT "\"cache\":{\"explain\":true}}", "end_of_prompt"},
        {"/v1/chat/completions", CHAT "\"cache\":{\"explain\":true," OTHER "}}", "strategy"},
        {"/v1/completions", TEXT "\"cache\":{\"explain\":true}}", "different_token"},
        {"/v1/completions", TEXT "\"cache\":{\"explain\":true}}", "end_of_prompt"},
        {"/v1/completions", TEXT "\"cache\":{\"explain\":true," OTHER "}}", "strategy"},
        {"/v1/completions",
         TEXT "\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":20},\"cache\":{\"explain\":true}}",
         "strategy"},
    };
    fixture w = open_fixture(false);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = client_ask(w.port, of[i].path, of[i].body);
        if (a.status != 200) fail_msg("%s: %s", of[i].body, a.body.data);
        json_doc *doc = client_json(&a);
        if (!json_is_string(json_get(json_get(json_root(doc), "cache"), "ended_by"), of[i].ended_by))
            fail_msg("%s: %s", of[i].body, a.body.data);
        json_close(&doc);
        client_clear(&a);
    }
    expect(&w, "/v1/chat/completions", CHAT "\"cache\":{\"implementation\":\"sink\",\"config\":{\"path\":\"/tmp\"}}}",
           403, "cache.config", "'cache.config' names a folder of the server: 'path'");
    expect(&w, "/v1/completions", TEXT "\"cache\":{\"config\":{}}}", 400, "cache.implementation",
           "'cache.implementation' is missing beside 'cache.config'");
    expect(&w, "/v1/completions", TEXT "\"cache_config\":{}}", 400, "cache_implementation",
           "'cache_implementation' is missing beside 'cache_config'");
    close_fixture(&w);
    w = open_fixture(true);
    expect(&w, "/v1/chat/completions", CHAT "\"cache\":{" OTHER "}}", 403, "cache.implementation",
           "'cache.implementation' is fixed: the server has --cache-fixed");
    expect(&w, "/v1/completions", TEXT "\"use_cache\":false}", 403, "cache_implementation",
           "'cache_implementation' is fixed: the server has --cache-fixed");
    close_fixture(&w);
}

/* ---- the checkpoint's generation_config.json ---- */

/* A value there that its field cannot take is no failure of the server: it is named, and the request's own mends it. */
static void wrong_values_of_the_checkpoint_are_named(void **state) {
    (void)state;
    static const char file[] = "{\"eos_token_id\":2,\"bos_token_id\":1,\"do_sample\":true,\"temperature\":-1,"
                               "\"num_beams\":\"x\",\"top_k\":50}";
#define OF_FILE(what) "the model's generation_config.json: " what "; a value in the request replaces it"
    static const char temperature[] = OF_FILE("temperature is -1, allowed: 1e-6 to 1e6"),
                      beams[] = OF_FILE("num_beams is \"x\", allowed: 1 to 4096");
    static const char *const chat[] = {"/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"},
                             *const text[] = {"/v1/completions", "\"prompt\":\"a\""};
    const int64_t live = mem_count().live;
    fixture w = serve_model(chat_model_with(PLAIN_TEMPLATE, file), live, (serve_options){0});
    for (int i = 0; i < 4; i++) {
        const char *const *route = i % 2 ? chat : text;
        char body[256];
#define EXPECT(fields, status, param, message)                                                                         \
    snprintf(body, sizeof body, "{%s,\"max_tokens\":2,\"stream\":%s%s}", route[1], i / 2 ? "true" : "false", fields);  \
    expect(&w, route[0], body, status, param, message)
        EXPECT("", 400, "temperature", temperature);
        EXPECT(",\"temperature\":1", 400, "num_beams", beams);
        EXPECT(",\"temperature\":0", 400, "num_beams", beams);
        EXPECT(",\"temperature\":1,\"num_beams\":1", 200, NULL, NULL);
    }
    expect(&w, "/v1/generate", "{\"prompt\":\"a\",\"generation_config\":{\"max_new_tokens\":2}}", 400, "temperature",
           temperature);
    expect(&w, "/v1/generate",
           "{\"prompt\":\"a\",\"generation_config\":{\"max_new_tokens\":2,\"do_sample\":false,\"num_beams\":2}}", 200,
           NULL, NULL);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_and_caches_are_the_librarys),
        cmocka_unit_test(forms_of_a_request_agree),
        cmocka_unit_test(batches_and_streams_agree),
        cmocka_unit_test(what_is_not_allowed_is_refused),
        cmocka_unit_test(the_operator_can_fix_the_cache),
        cmocka_unit_test(a_request_has_its_own_cache_or_the_servers),
        cmocka_unit_test(every_field_of_the_configuration_is_taken_or_named),
        cmocka_unit_test(beams_are_streamed_when_they_are_known),
        cmocka_unit_test(a_chat_has_the_cache_that_it_names),
        cmocka_unit_test(wrong_values_of_the_checkpoint_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
