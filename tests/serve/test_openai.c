/* OpenAI's completions beyond plain text: log-probabilities against the logits, several prompts in one request, echo,
 * penalties, and tokens that end a text. Streamed and whole answers say the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "serve/fixture.h"

static fixture open_fixture(size_t max_queue) {
    return serve_embedded(PLAIN_TEMPLATE, (serve_options){.max_num_seqs = 16, .max_queue = max_queue});
}

#define PROMPT "Once upon a time"

/* Greedy unless the fields say otherwise. */
static void make_body(char body[2048], const char *fields, bool streams) {
    snprintf(body, 2048, "{%s\"max_tokens\":12,%s%s}", strstr(fields, "\"temperature\"") ? "" : "\"temperature\":0,",
             streams ? "\"stream\":true," : "", fields);
}

static json_doc *ask(const fixture *w, const char *path, const char *fields) {
    char body[2048];
    make_body(body, fields, false);
    answer_text a = client_ask(w->port, path, body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    client_clear(&a);
    return doc;
}

static const json *choice(const json_doc *doc, size_t i) {
    const json *choices = json_get(json_root(doc), "choices");
    assert_true(i < choices->n);
    return &choices->items[i];
}

static double number(const json *value) {
    assert_non_null(value);
    assert_true(value->kind == JSON_INT || value->kind == JSON_REAL);
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

enum { N_NEW = 12, MOST_ANSWERS = 8 };

typedef struct wanted {
    int32_t *ids; /* prompt and answer */
    size_t n_prompt, n;
    char *text;
    float *logits; /* [n][vocab] after each of them */
} wanted;

/* What the library generates, and the logits of a computation of the whole. */
static wanted logits_of(const fixture *w, const char *prompt) {
    wanted want = {0};
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    int32_t *ids = NULL;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "12"));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), prompt, strlen(prompt), MN_ADD_SPECIAL, &ids, &want.n_prompt));
    mn_session *session = engine_session(w->model, (engine_cache){0});
    assert_ok(mn_generate(session, ids, want.n_prompt, config, NULL, &g));
    const mn_sequence *s = g->sequences[0];
    want.n = want.n_prompt + s->n_ids;
    want.ids = mem_alloc(want.n, sizeof *want.ids);
    memcpy(want.ids, ids, want.n_prompt * sizeof *ids);
    memcpy(want.ids + want.n_prompt, s->ids, s->n_ids * sizeof *ids);
    want.text = mem_copy_text(s->text, s->n_text);
    want.logits = engine_logits(w->model, (engine_cache){0}, want.ids, want.n, 0, NULL);
    mn_free(ids);
    mn_generation_close(&g);
    mn_session_close(&session);
    mn_generation_config_close(&config);
    return want;
}

static void clear_wanted(wanted *want) {
    mem_free(want->ids);
    mem_free(want->text);
    free(want->logits);
}

/* ---- log-probabilities ---- */

/* Of the i-th new token, in double precision. */
static double logprob_of(const fixture *w, const wanted *want, size_t i, int32_t id) {
    size_t vocab = (size_t)engine_vocab(w->model);
    const float *logits = want->logits + (want->n_prompt + i - 1) * vocab;
    double most = -INFINITY, sum = 0;
    for (size_t k = 0; k < vocab; k++) most = fmax(most, (double)logits[k]);
    for (size_t k = 0; k < vocab; k++) sum += exp((double)logits[k] - most);
    return (double)logits[id] - most - log(sum);
}

/* The place of a log-probability among all, from 0. */
static int rank_of(const fixture *w, const wanted *want, size_t i, double logprob) {
    int rank = 0;
    for (int32_t id = 0; id < engine_vocab(w->model); id++) rank += logprob_of(w, want, i, id) > logprob + 1e-4;
    return rank;
}

static void log_probabilities_are_those_of_the_logits(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    wanted want = logits_of(&w, PROMPT);
    json_doc *doc = ask(&w, "/v1/completions", "\"prompt\":\"" PROMPT "\",\"logprobs\":3");
    const json *list = json_get(choice(doc, 0), "logprobs"), *tokens = json_get(list, "tokens");
    bytes joined = {0};
    assert_int_equal(tokens->n, N_NEW);
    for (size_t i = 0; i < tokens->n; i++) {
        double logprob = number(&json_get(list, "token_logprobs")->items[i]);
        assert_true(fabs(logprob - logprob_of(&w, &want, i, want.ids[want.n_prompt + i])) < 1e-4);
        assert_int_equal(json_get(list, "text_offset")->items[i].integer, joined.n); /* ASCII */
        const json *top = &json_get(list, "top_logprobs")->items[i];
        assert_int_equal(top->n, 3);
        for (size_t k = 0; k < 3; k++) assert_int_equal(rank_of(&w, &want, i, number(&top->members[k].value)), k);
        assert_true(fabs(number(json_get(top, tokens->items[i].string)) - logprob) < 1e-6);
        bytes_append(&joined, tokens->items[i].string, tokens->items[i].n);
    }
    assert_string_equal(bytes_text(&joined), want.text);
    assert_string_equal(json_get(choice(doc, 0), "text")->string, want.text);
    bytes_clear(&joined);
    json_close(&doc);
    doc = ask(&w, "/v1/completions", "\"prompt\":\"" PROMPT "\",\"logprobs\":0");
    list = json_get(choice(doc, 0), "logprobs");
    assert_int_equal(json_get(list, "token_logprobs")->n, N_NEW);
    assert_int_equal(json_get(list, "top_logprobs")->items[0].kind, JSON_NULL);
    json_close(&doc);
    doc = ask(&w, "/v1/completions", "\"prompt\":\"" PROMPT "\"");
    assert_int_equal(json_get(choice(doc, 0), "logprobs")->kind, JSON_NULL);
    json_close(&doc);
    clear_wanted(&want);
    close_fixture(&w);
}

/* The bytes of a list of entries; each has its alternatives, which begin with the best. */
static void join_entries(bytes *out, const json *content, size_t n_top) {
    for (size_t i = 0; i < content->n; i++) {
        const json *entry = &content->items[i], *token = json_get(entry, "bytes"),
                   *top = json_get(entry, "top_logprobs");
        assert_int_equal(top->n, n_top);
        for (size_t k = 0; k < token->n; k++) {
            char c = (char)token->items[k].integer;
            bytes_append(out, &c, 1);
        }
        for (size_t k = 1; k < top->n; k++)
            assert_true(number(json_get(&top->items[k], "logprob")) <= number(json_get(&top->items[k - 1], "logprob")));
        assert_true(number(json_get(entry, "logprob")) <= 1e-6);
    }
}

static void chat_lists_the_tokens_of_its_content(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    const char *fields =
        "\"messages\":[{\"role\":\"user\",\"content\":\"Tell a story\"}],\"logprobs\":true,\"top_logprobs\":2";
    json_doc *doc = ask(&w, "/v1/chat/completions", fields);
    bytes joined = {0};
    const json *logprobs = json_get(choice(doc, 0), "logprobs");
    join_entries(&joined, json_get(logprobs, "content"), 2);
    assert_true(json_get(logprobs, "content")->n > N_NEW / 2); /* a space at the beginning has no text */
    assert_string_equal(bytes_text(&joined), json_get(json_get(choice(doc, 0), "message"), "content")->string);
    bytes_clear(&joined);
    json_close(&doc);
    doc = ask(&w, "/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"Tell a story\"}]");
    assert_int_equal(json_get(choice(doc, 0), "logprobs")->kind, JSON_NULL);
    json_close(&doc);
    close_fixture(&w);
}

/* ---- streams ---- */

typedef struct joined {
    bytes text[MOST_ANSWERS], logprobs[MOST_ANSWERS]; /* of each index; the lists' entries as JSON */
    char reason[MOST_ANSWERS][16];                    /* "": none yet */
} joined;

static void put_items(bytes *out, const json *list) {
    for (size_t i = 0; list && i < list->n; i++) {
        json_put(out, &list->items[i]);
        bytes_append_text(out, "\n");
    }
}

/* In the order of the members, those of a completion side by side. */
static void put_lists(bytes *out, const json *logprobs) {
    static const char *const names[] = {"content", "tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) put_items(out, json_get(logprobs, names[i]));
}

static void join_event(joined *to, const json *root) {
    const json *choices = json_get(root, "choices");
    for (size_t i = 0; i < choices->n; i++) {
        const json *c = &choices->items[i], *delta = json_get(c, "delta");
        const json *piece = delta ? json_get(delta, "content") : json_get(c, "text"),
                   *reason = json_get(c, "finish_reason");
        size_t index = (size_t)json_get(c, "index")->integer;
        assert_true(index < MOST_ANSWERS);
        assert_string_equal(to->reason[index], ""); /* nothing comes behind the end */
        if (piece) bytes_append(&to->text[index], piece->string, piece->n);
        put_lists(&to->logprobs[index], json_get(c, "logprobs"));
        if (reason->kind == JSON_NULL) continue;
        snprintf(to->reason[index], sizeof to->reason[index], "%s", reason->string);
    }
}

static joined ask_stream(const fixture *w, const char *path, const char *fields) {
    char body[2048];
    joined to = {0};
    make_body(body, fields, true);
    answer_text a = client_ask(w->port, path, body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    const char *at = a.body.data;
    for (; strncmp(at, "data: [DONE]", 12) != 0;) {
        const char *end = strstr(at, "\n\n");
        json_doc *doc = NULL;
        assert_non_null(end);
        assert_ok(json_parse(&doc, at + 6, (size_t)(end - at) - 6, JSON_STRICT, "event"));
        join_event(&to, json_root(doc));
        json_close(&doc);
        at = end + 2;
    }
    client_clear(&a);
    return to;
}

static void clear_joined(joined *to) {
    for (size_t k = 0; k < MOST_ANSWERS; k++) {
        bytes_clear(&to->text[k]);
        bytes_clear(&to->logprobs[k]);
    }
}

/* The lists of a whole answer, in the order in which a stream sends them: entry by entry. */
static void put_whole(bytes *out, const json *logprobs) {
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    put_items(out, json_get(logprobs, "content"));
    const json *tokens = json_get(logprobs, "tokens");
    for (size_t i = 0; tokens && i < tokens->n; i++) {
        for (size_t k = 0; k < 4; k++) {
            json_put(out, &json_get(logprobs, names[k])->items[i]);
            bytes_append_text(out, "\n");
        }
    }
}

static void streams_say_what_whole_answers_say(void **state) {
    (void)state;
    static const struct {
        const char *path, *fields;
    } of[] = {
        {"/v1/completions", "\"prompt\":\"" PROMPT "\",\"logprobs\":4"},
        {"/v1/completions", "\"prompt\":[\"" PROMPT "\",\"The dog\",\"\"],\"logprobs\":1"},
        {"/v1/completions", "\"prompt\":[\"The dog\",\"Tom\"],\"echo\":true"},
        {"/v1/completions", "\"prompt\":\"" PROMPT "\",\"temperature\":0.9,\"seed\":3,\"n\":3,\"logprobs\":2"},
        {"/v1/completions", "\"prompt\":[[1,403,407],[1,261]],\"temperature\":0.9,\"seed\":3,\"n\":2,\"logprobs\":0"},
        {"/v1/chat/completions",
         "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"temperature\":0.8,\"seed\":5,\"n\":2,\"logprobs\":true,\"top_logprobs\":3"},
    };
    fixture w = open_fixture(0);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        json_doc *doc = ask(&w, of[i].path, of[i].fields);
        joined to = ask_stream(&w, of[i].path, of[i].fields);
        size_t n = json_get(json_root(doc), "choices")->n;
        for (size_t k = 0; k < MOST_ANSWERS; k++) {
            assert_int_equal(to.reason[k][0] != 0, k < n);
            if (k < n) {
                const json *c = choice(doc, k), *message = json_get(c, "message");
                bytes lists = {0};
                assert_int_equal(json_get(c, "index")->integer, k);
                assert_string_equal(bytes_text(&to.text[k]),
                                    json_get(message ? message : c, message ? "content" : "text")->string);
                assert_string_equal(to.reason[k], json_get(c, "finish_reason")->string);
                put_whole(&lists, json_get(c, "logprobs"));
                assert_string_equal(bytes_text(&to.logprobs[k]), bytes_text(&lists));
                bytes_clear(&lists);
            }
        }
        clear_joined(&to);
        json_close(&doc);
    }
    close_fixture(&w);
}

/* ---- several prompts ---- */

static void prompts_are_answered_as_if_alone(void **state) {
    (void)state;
    static const char *const prompts[] = {"The dog", PROMPT, "Tom and Lily"};
    fixture w = open_fixture(0);
    bytes ids = {0};
    json_doc *together = ask(&w, "/v1/completions", "\"prompt\":[\"The dog\",\"" PROMPT "\",\"Tom and Lily\"]");
    int64_t n_prompt = 0;
    assert_int_equal(json_get(json_root(together), "choices")->n, 3);
    bytes_append_text(&ids, "\"prompt\":[");
    for (size_t i = 0; i < 3; i++) {
        wanted want = logits_of(&w, prompts[i]);
        assert_int_equal(json_get(choice(together, i), "index")->integer, i);
        assert_string_equal(json_get(choice(together, i), "text")->string, want.text);
        bytes_append_text(&ids, i ? ",[" : "[");
        for (size_t k = 0; k < want.n_prompt; k++) bytes_printf(&ids, "%s%d", k ? "," : "", want.ids[k]);
        bytes_append_text(&ids, "]");
        n_prompt += (int64_t)want.n_prompt;
        clear_wanted(&want);
    }
    bytes_append_text(&ids, "]");
    const json *usage = json_get(json_root(together), "usage");
    assert_int_equal(json_get(usage, "prompt_tokens")->integer, n_prompt);
    assert_int_equal(json_get(usage, "completion_tokens")->integer, 3 * N_NEW);
    json_doc *by_ids = ask(&w, "/v1/completions", bytes_text(&ids));
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_get(choice(by_ids, i), "text")->string, json_get(choice(together, i), "text")->string);
    json_close(&by_ids);
    json_close(&together);
    bytes_clear(&ids);
    close_fixture(&w);
}

static void wait_until_free(const fixture *w) {
    int status = 429;
    wait_until(status == 200) {
        answer_text a = client_ask(w->port, "/v1/completions", "{\"prompt\":[\"A\",\"B\"],\"max_tokens\":1}");
        status = a.status;
        assert_true(status == 200 || status == 429);
        client_clear(&a);
    }
}

static void one_bad_prompt_ends_the_request(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *prompt, *part;
    } of[] = {{400, "[\"a\",3]", "'prompt' is"},
              {400, "[]", "'prompt' has no tokens"},
              {400, "[[]]", "'prompt' has no tokens"},
              {400, "[[1],[512]]", "'prompt' has the token 512, allowed: 0 to 511"},
              {400, "[[1],[-1]]", "'prompt' has the token -1"},
              {400, "[[1],\"a\",{}]", "'prompt' is"},
              {400, "[1,\"a\"]", "'prompt' is"},
              {400, "[[1,[2]]]", "'prompt' is"},
              {429, "[\"a\",\"b\",\"c\"]", "queue_full"}};
    fixture w = open_fixture(2);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        for (int streams = 0; streams < 2; streams++) {
            char body[256];
            snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":200,\"ignore_eos\":true,\"stream\":%s}",
                     of[i].prompt, streams ? "true" : "false");
            answer_text a = client_ask(w.port, "/v1/completions", body);
            if (a.status != of[i].status || !strstr(a.body.data, of[i].part))
                fail_msg("%s: %d %s", body, a.status, a.body.data);
            client_clear(&a);
            wait_until_free(&w);
        }
    }
    close_fixture(&w);
}

static void a_client_that_leaves_ends_all_its_prompts(void **state) {
    (void)state;
    fixture w = open_fixture(2);
    for (int i = 0; i < 4; i++) {
        int fd = client_post(w.port, "/v1/completions",
                             i % 2 ? "{\"prompt\":[\"A\",\"B\"],\"max_tokens\":500,\"ignore_eos\":true,\"stream\":true}"
                                   : "{\"prompt\":[\"A\",\"B\"],\"max_tokens\":500,\"ignore_eos\":true}");
        close(fd);
        wait_until_free(&w);
    }
    close_fixture(&w);
}

static void echo_puts_the_prompt_first(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    wanted want = logits_of(&w, PROMPT);
    json_doc *doc = ask(&w, "/v1/completions", "\"prompt\":[\"" PROMPT "\",\"The dog\"],\"echo\":true");
    assert_memory_equal(json_get(choice(doc, 0), "text")->string, PROMPT, sizeof PROMPT - 1);
    assert_string_equal(json_get(choice(doc, 0), "text")->string + sizeof PROMPT - 1, want.text);
    assert_memory_equal(json_get(choice(doc, 1), "text")->string, "The dog", 7);
    json_close(&doc);
    clear_wanted(&want);
    close_fixture(&w);
}

/* ---- what changes the choice of tokens ---- */

static void tokens_that_stop_are_the_end(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    wanted want = logits_of(&w, PROMPT);
    char fields[128];
    size_t at = 4, n_text;
    while (at > 0 && want.ids[want.n_prompt + at - 1] == want.ids[want.n_prompt + at]) at--; /* its first occurrence */
    snprintf(fields, sizeof fields, "\"prompt\":\"" PROMPT "\",\"stop_token_ids\":[%d]", want.ids[want.n_prompt + at]);
    json_doc *doc = ask(&w, "/v1/completions", fields);
    int64_t n = json_get(json_get(json_root(doc), "usage"), "completion_tokens")->integer;
    assert_string_equal(json_get(choice(doc, 0), "finish_reason")->string, "stop");
    assert_true(n >= 1 && n <= (int64_t)at + 1);
    assert_int_equal(want.ids[want.n_prompt + (size_t)n - 1], want.ids[want.n_prompt + at]);
    char *text = NULL;
    assert_ok(mn_detokenize(mn_model_tokenizer(w.model), want.ids, want.n_prompt + (size_t)n - 1, MN_SKIP_SPECIAL,
                            &text, &n_text));
    assert_string_equal(json_get(choice(doc, 0), "text")->string, text + strlen(PROMPT)); /* without the token */
    mn_free(text);
    json_close(&doc);
    clear_wanted(&want);
    close_fixture(&w);
}

/* The n-th new token is the best of logits less the penalties of those before it. */
static void penalties_are_taken_from_the_scores(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    json_doc *doc =
        ask(&w, "/v1/completions", "\"prompt\":\"The dog\",\"presence_penalty\":-1.75,\"frequency_penalty\":-2");
    size_t vocab = (size_t)engine_vocab(w.model), n = 0;
    int32_t ids[64];
    int32_t *prompt = NULL;
    int counts[1024] = {0};
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), "The dog", 7, MN_ADD_SPECIAL, &prompt, &n));
    memcpy(ids, prompt, n * sizeof *ids);
    size_t n_prompt = n;
    mn_session *session = engine_session(w.model, (engine_cache){0});
    assert_ok(mn_session_step(session, ids, n, NULL));
    while (n < n_prompt + 12) {
        const float *logits = mn_session_logits(session);
        int32_t best = 0;
        double most = -INFINITY;
        for (size_t i = 0; i < vocab; i++) {
            double score = (double)logits[i] - (counts[i] ? -1.75 : 0) + 2.0 * counts[i];
            if (score > most) best = (int32_t)i;
            most = fmax(most, score);
        }
        counts[best]++;
        ids[n++] = best;
        assert_ok(mn_session_step(session, &best, 1, NULL));
    }
    char *text = NULL;
    assert_ok(mn_detokenize(mn_model_tokenizer(w.model), ids + n_prompt, n - n_prompt, MN_SKIP_SPECIAL, &text, NULL));
    assert_string_equal(json_get(choice(doc, 0), "text")->string, text);
    json_doc *without = ask(&w, "/v1/completions", "\"prompt\":\"The dog\"");
    assert_string_not_equal(json_get(choice(without, 0), "text")->string, text);
    json_close(&without);
    json_close(&doc);
    mn_free(text);
    mn_free(prompt);
    mn_session_close(&session);
    close_fixture(&w);
}

/* The library's bytes of tokens: joined they are the text. */
static void bytes_of_tokens_join_to_the_text(void **state) {
    (void)state;
    mn_model *model = engine_model("embedded", "auto", "auto", 1);
    const mn_tokenizer *t = mn_model_tokenizer(model);
    static const char text[] = "Once upon a \xc3\xbc time \xf0\x9f\x98\x80, \n17.";
    int32_t *ids = NULL;
    size_t n = 0, n_part = 0;
    char *part = NULL;
    bytes all = {0};
    bool is_cut = false;
    assert_ok(mn_tokenize(t, text, sizeof text - 1, MN_ADD_SPECIAL, &ids, &n));
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        assert_ok(mn_token_bytes(t, ids[i], first, &part, &n_part));
        assert_int_equal(strlen(part), n_part);
        first = first && n_part == 0;
        is_cut = is_cut || (n_part == 1 && ((unsigned char)*part & 0x80));
        bytes_append(&all, part, n_part);
        mn_free(part);
    }
    assert_string_equal(bytes_text(&all), text);
    assert_true(is_cut); /* tokens of single bytes were among them */
    assert_fails(MN_E_ARG, "the token is 512, allowed: 0 to 511", mn_token_bytes(t, 512, false, &part, &n_part));
    assert_fails(MN_E_ARG, "the token is -1", mn_token_bytes(t, -1, false, &part, &n_part));
    assert_null(part);
    bytes_clear(&all);
    mn_free(ids);
    mn_model_close(&model);
}

/* A checkpoint whose own file asks for more answers than a request may. */
static void a_request_without_n_has_one_answer(void **state) {
    (void)state;
    static const char file[] = "{\"do_sample\":true,\"num_return_sequences\":16,\"num_beams\":1}";
    const struct {
        const char *path, *fields;
    } requests[] = {{"/v1/completions", "\"prompt\":\"" PROMPT "\",\"temperature\":0.8,\"logprobs\":2"},
                    {"/v1/completions", "\"prompt\":[\"" PROMPT "\",\"There was\"],\"temperature\":0.8,\"echo\":true"},
                    {"/v1/chat/completions",
                     "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":0.8,\"logprobs\":true"}};
    int64_t live = mem_count().live;
    mn_model *model = chat_model(PLAIN_TEMPLATE);
    mn_model_close(&model);
    unlink(scratch_path("chat-model/generation_config.json")); /* a link */
    scratch_file("chat-model/generation_config.json", file, sizeof file - 1);
    fixture w = serve_model(engine_model(scratch_path("chat-model"), "auto", "auto", 1), live,
                            (serve_options){.max_num_seqs = 32});
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        size_t n = i == 1 ? 2 : 1; /* prompts */
        json_doc *doc = ask(&w, requests[i].path, requests[i].fields);
        assert_int_equal(json_get(json_root(doc), "choices")->n, n);
        json_close(&doc);
        joined streamed = ask_stream(&w, requests[i].path, requests[i].fields);
        for (size_t k = 0; k < MOST_ANSWERS; k++) assert_int_equal(*streamed.reason[k] != 0, k < n);
        clear_joined(&streamed);
    }
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_are_those_of_the_logits),
        cmocka_unit_test(chat_lists_the_tokens_of_its_content),
        cmocka_unit_test(streams_say_what_whole_answers_say),
        cmocka_unit_test(prompts_are_answered_as_if_alone),
        cmocka_unit_test(a_request_without_n_has_one_answer),
        cmocka_unit_test(one_bad_prompt_ends_the_request),
        cmocka_unit_test(a_client_that_leaves_ends_all_its_prompts),
        cmocka_unit_test(echo_puts_the_prompt_first),
        cmocka_unit_test(tokens_that_stop_are_the_end),
        cmocka_unit_test(penalties_are_taken_from_the_scores),
        cmocka_unit_test(bytes_of_tokens_join_to_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
