/* Dialects beside OpenAI's completions: what they answer is what the library says to the prompt that they stand for,
 * whole and streamed, and their errors have their shape.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>

#include "request/conversations.h"
#include "serve/fixture.h"
#include "serve/oracle.h"

/* ---- streams ---- */

/* The next event of a stream whose events have names; the name is that of the data's type. NULL: none. */
static json_doc *next_event(const char **at, bool has_names) {
    static const char event[] = "event: ", data[] = "data: ";
    json_doc *doc = NULL;
    char name[64] = "";
    if (!*at || !**at) return NULL;
    if (has_names) {
        assert_memory_equal(*at, event, sizeof event - 1);
        *at += sizeof event - 1;
        size_t n = strcspn(*at, "\n");
        assert_true(n < sizeof name);
        memcpy(name, *at, n);
        name[n] = 0;
        *at += n + 1;
    }
    assert_memory_equal(*at, data, sizeof data - 1);
    *at += sizeof data - 1;
    const char *end = strstr(*at, "\n\n");
    assert_non_null(end);
    assert_ok(json_parse(&doc, *at, (size_t)(end - *at), JSON_STRICT, "event"));
    if (has_names) assert_string_equal(json_get(json_root(doc), "type")->string, name);
    *at = end + 2;
    return doc;
}

static int64_t number(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_INT) fail_msg("'%s' is no whole number", key);
    return value->integer;
}

static const char *word(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_STRING) fail_msg("'%s' is no string", key);
    return value->string;
}

static bool is_null(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return value && value->kind == JSON_NULL;
}

/* The body with `"stream":true`. */
static answer_text ask_stream(int port, const char *path, const char *body) {
    bytes b = {0};
    bytes_append_text(&b, "{\"stream\":true,");
    bytes_append_text(&b, body + 1);
    answer_text a = client_ask(port, path, bytes_text(&b));
    bytes_clear(&b);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(bytes_text(&a.head), "Content-Type: text/event-stream"));
    return a;
}

/* ---- /v1/messages ---- */

#define ASK "\"temperature\":0,\"max_tokens\":"

static const struct {
    const char *body, *prompt, *settings[5];
} chats[] = {
    {"{" ASK "20,\"messages\":[{\"role\":\"user\",\"content\":\"Once upon a time\"}]}",
     "<s>user: Once upon a time\nassistant:",
     {"max_new_tokens", "20"}},
    {"{" ASK "12,\"system\":\"Be brief\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
     "{\"role\":\"assistant\",\"content\":\"Lily\"},{\"role\":\"user\",\"content\":\"Go on\"}]}",
     "<s>system: Be brief\nuser: Hi\nassistant: Lily\nuser: Go on\nassistant:",
     {"max_new_tokens", "12"}},
    /* Blocks and turns of one role are joined; marks for a cache are accepted. */
    {"{" ASK "12,\"cache_control\":{\"type\":\"ephemeral\"},\"metadata\":{\"user_id\":\"7\"},"
     "\"system\":[{\"type\":\"text\",\"text\":\"Be\"},{\"type\":\"text\",\"text\":\"brief\","
     "\"cache_control\":{\"type\":\"ephemeral\"}}],"
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"One\"},{\"type\":\"text\",\"text\":"
     "\"day\"}]},{\"role\":\"user\",\"content\":\"a dog\"}]}",
     "<s>system: Be\nbrief\nuser: One\nday\na dog\nassistant:",
     {"max_new_tokens", "12"}},
    /* The answer continues what is there of it. */
    {"{" ASK "12,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\" Once "
     "upon\"}]}",
     "<s>user: Hi\nassistant: Once upon",
     {"max_new_tokens", "12"}},
    {"{" ASK "64,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"output_config\":{\"format\":{\"type\":"
     "\"json_schema\",\"schema\":{\"enum\":[\"yes\",\"no\"]}}}}",
     "<s>user: Hi\nassistant:",
     {"max_new_tokens", "64", "json_schema", "\"{\\\"enum\\\":[\\\"yes\\\",\\\"no\\\"]}\""}},
    {"{" ASK
     "64,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\"}",
     "<s>user: Hi\nassistant:",
     {"max_new_tokens", "64", "grammar", "\"root ::= \\\"yes\\\" | \\\"no\\\"\""}},
    {"{" ASK "100000,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stop_sequences\":[]}",
     "<s>user: Hi\nassistant:",
     {"max_new_tokens", "100000"}},
    {"{" ASK "200,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stop_sequences\":[\"none\",\"e\",\"he\"]}",
     "<s>user: Hi\nassistant:",
     {"max_new_tokens", "200", "stop_strings", "[\"none\",\"e\",\"he\"]"}},
};

static void check_stop(const json *message, const mn_sequence *s, size_t asked) {
    static const char *const stops[] = {"none", "e", "he"};
    const char *wanted = strcmp(s->finish_reason, "eos") == 0           ? "end_turn"
                         : strcmp(s->finish_reason, "stop_string") == 0 ? "stop_sequence"
                         : s->n_ids == asked                            ? "max_tokens"
                                                                        : "model_context_window_exceeded";
    assert_string_equal(word(message, "stop_reason"), wanted);
    if (s->stop_string < 0)
        assert_true(is_null(message, "stop_sequence"));
    else
        assert_string_equal(word(message, "stop_sequence"), stops[s->stop_string]);
}

static void check_usage(const json *usage, const mn_sequence *s, size_t n_prompt, int round) {
    int64_t cached = number(usage, "cache_read_input_tokens");
    assert_int_equal(number(usage, "input_tokens") + cached, n_prompt);
    assert_int_equal(number(usage, "cache_creation_input_tokens"), 0);
    assert_int_equal(number(usage, "output_tokens"), s->n_ids);
    if (round > 0) assert_int_equal(cached, n_prompt - 1);
}

static void check_message_stream(answer_text *a, const mn_sequence *s, size_t n_prompt, size_t asked) {
    static const char *const before[] = {"message_start", "ping", "content_block_start"}, *const after[] = {
                                                                                              "content_block_stop",
                                                                                              "message_delta",
                                                                                              "message_stop"};
    const char *at = bytes_text(&a->body);
    bytes text = {0};
    size_t n_before = 0, n_after = 0;
    for (json_doc *doc; (doc = next_event(&at, true)); json_close(&doc)) {
        const json *event = json_root(doc), *message = json_get(event, "message");
        const char *type = word(event, "type");
        if (n_before < 3) {
            assert_string_equal(type, before[n_before++]);
        } else if (strcmp(type, "content_block_delta") == 0) {
            assert_int_equal(n_after, 0);
            assert_string_equal(word(json_get(event, "delta"), "type"), "text_delta");
            bytes_append_text(&text, word(json_get(event, "delta"), "text"));
        } else {
            assert_true(n_after < 3);
            assert_string_equal(type, after[n_after++]);
        }
        if (strcmp(type, "message_start") == 0) {
            assert_int_equal(number(json_get(message, "usage"), "input_tokens"), n_prompt);
            assert_true(is_null(message, "stop_reason") && is_null(message, "stop_sequence"));
            assert_int_equal(json_get(message, "content")->n, 0);
        } else if (strcmp(type, "message_delta") == 0) {
            check_stop(json_get(event, "delta"), s, asked);
            check_usage(json_get(event, "usage"), s, n_prompt, 1);
        }
    }
    assert_int_equal(n_after, 3);
    assert_string_equal(bytes_text(&text), s->text);
    bytes_clear(&text);
}

static void messages_are_the_librarys(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    int n_reasons[4] = {0};
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        size_t n_prompt, asked = (size_t)strtoul(chats[i].settings[1], NULL, 10);
        mn_generation *g = alone(&w, chats[i].prompt, chats[i].settings, &n_prompt);
        const mn_sequence *s = g->sequences[0];
        for (int round = 0; round < 2; round++) {
            answer_text a = client_ask(w.port, "/v1/messages", chats[i].body);
            if (a.status != 200) fail_msg("talk %zu: %d: %s", i, a.status, bytes_text(&a.body));
            json_doc *doc = client_json(&a);
            const json *message = json_root(doc), *content = json_get(message, "content");
            assert_string_equal(word(message, "type"), "message");
            assert_string_equal(word(message, "role"), "assistant");
            assert_string_equal(word(message, "model"), "tiny");
            assert_memory_equal(word(message, "id"), "msg_", 4);
            assert_int_equal(content->n, 1);
            assert_string_equal(word(&content->items[0], "type"), "text");
            assert_string_equal(word(&content->items[0], "text"), s->text);
            check_stop(message, s, asked);
            check_usage(json_get(message, "usage"), s, n_prompt, round);
            n_reasons[word(message, "stop_reason")[0] == 'e'   ? 0
                      : word(message, "stop_reason")[0] == 's' ? 1
                      : s->n_ids == asked                      ? 2
                                                               : 3]++;
            json_close(&doc);
            client_clear(&a);
        }
        answer_text a = ask_stream(w.port, "/v1/messages", chats[i].body);
        check_message_stream(&a, s, n_prompt, asked);
        client_clear(&a);
        a = client_ask(w.port, "/v1/messages/count_tokens", chats[i].body);
        assert_int_equal(a.status, 200);
        json_doc *doc = client_json(&a);
        assert_int_equal(number(json_root(doc), "input_tokens"), n_prompt);
        json_close(&doc);
        client_clear(&a);
        mn_generation_close(&g);
    }
    for (int i = 0; i < 4; i++) assert_true(n_reasons[i] > 0); /* each has occurred */
    close_fixture(&w);
}

#define HI "\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static const struct {
    int status;
    const char *path, *body, *type, *part;
} bad_messages[] = {
    {400, "/v1/messages", "{", "invalid_request_error", "body"},
    {400, "/v1/messages", "{}", "invalid_request_error", "'messages' is missing"},
    {400, "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", "invalid_request_error",
     "'max_tokens' is missing"},
    {400, "/v1/messages/count_tokens",
     "{\"tools\":[{\"name\":\"a\"}],\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", "invalid_request_error",
     "'tools' is not supported: the model's chat template takes none"},
    {400, "/v1/messages", "{\"max_tokens\":4}", "invalid_request_error", "'messages' is missing"},
    {400, "/v1/messages/count_tokens", "{}", "invalid_request_error", "'messages' is missing"},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[]}", "invalid_request_error", "'messages' is []"},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[3]}", "invalid_request_error", "messages[0]: role is null"},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}",
     "invalid_request_error", "messages[0]: role is \"tool\", allowed: 'user', 'assistant', 'system'"},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\"}]}", "invalid_request_error",
     "messages[0].content is missing"},
    {400, "/v1/messages",
     "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"image\",\"source\":{}}]}]}",
     "invalid_request_error", "messages[0].content[1]: type is \"image\", allowed: 'text'"},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\"}]}]}",
     "invalid_request_error", "type is \"document\""},
    {400, "/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     "invalid_request_error", "'text' is missing"},
    {400, "/v1/messages", "{\"system\":[{\"type\":\"image\"}]," HI "}", "invalid_request_error",
     "system[0]: type is \"image\""},
    {400, "/v1/messages", "{\"system\":4," HI "}", "invalid_request_error", "'system' is 4"},
    {400, "/v1/messages", "{\"max_tokens\":0,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
     "invalid_request_error", "'max_tokens' is 0, allowed: whole numbers from 1 to 1048576"},
    {400, "/v1/messages", "{\"temperature\":-1," HI "}", "invalid_request_error",
     "'temperature' is -1, allowed: 0 to 100"},
    {400, "/v1/messages", "{\"top_p\":2," HI "}", "invalid_request_error", "top_p"},
    {400, "/v1/messages", "{\"stop_sequences\":\"a\"," HI "}", "invalid_request_error", "'stop_sequences' is \"a\""},
    {400, "/v1/messages", "{\"stop_sequences\":[\"\"]," HI "}", "invalid_request_error", "'stop_sequences' is [\"\"]"},
    {400, "/v1/messages", "{\"stream\":3," HI "}", "invalid_request_error", "'stream' is 3"},
    {400, "/v1/messages", "{\"output_config\":{\"format\":{\"type\":\"xml\"}}," HI "}", "invalid_request_error",
     "'output_config.format' is {"},
    {400, "/v1/messages", "{\"tools\":[{\"name\":\"a\"}]," HI "}", "invalid_request_error", "'tools' is not supported"},
    {404, "/v1/messages", "{\"model\":\"claude\"," HI "}", "not_found_error", "no model 'claude', allowed: 'tiny'"},
};

/* {"type": "error", "error": {"type", "message"}} */
static void check_messages_error(answer_text *a, int status, const char *type, const char *part) {
    if (a->status != status) fail_msg("%d, not %d: %s", a->status, status, bytes_text(&a->body));
    json_doc *doc = client_json(a);
    const json *error = json_get(json_root(doc), "error");
    assert_string_equal(word(json_root(doc), "type"), "error");
    assert_string_equal(word(error, "type"), type);
    if (!strstr(word(error, "message"), part)) fail_msg("'%s' lacks '%s'", word(error, "message"), part);
    json_close(&doc);
    client_clear(a);
}

static answer_text ask_raw(int port, const char *text) {
    int fd = client_connect(port);
    client_send(fd, text, strlen(text));
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

static void bad_messages_are_refused_in_their_shape(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    for (size_t i = 0; i < sizeof bad_messages / sizeof *bad_messages; i++) {
        answer_text a = client_ask(w.port, bad_messages[i].path, bad_messages[i].body);
        check_messages_error(&a, bad_messages[i].status, bad_messages[i].type, bad_messages[i].part);
    }
    answer_text a = ask_raw(w.port, "GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check_messages_error(&a, 405, "invalid_request_error", "method");
    a = ask_raw(w.port, "POST /v1/messages HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}");
    check_messages_error(&a, 403, "permission_error", "another host");
    close_fixture(&w);
}

/* Keys come as x-api-key, and what is missing or full is said in the dialect's shape too. */
static void messages_need_keys_and_room(void **state) {
    (void)state;
    static const char key[] = "a-key-of-this-test-0123";
    static const char form[] = "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               "anthropic-version: 2023-06-01\r\nx-api-key: %s\r\nContent-Length: %zu\r\n\r\n%s";
    static const char endless[] = "{\"stream\":true,\"max_tokens\":500,\"temperature\":0,\"messages\":[{\"role\":"
                                  "\"user\",\"content\":\"Hi\"}],\"output_config\":{\"format\":{\"type\":"
                                  "\"json_schema\",\"schema\":{\"type\":\"string\",\"minLength\":400}}}}";
    char text[1024], part[512], path[512];
    snprintf(path, sizeof path, "%s", scratch_file("keys", key, sizeof key - 1));
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.api_key_file = path, .max_queue = 1});
    snprintf(text, sizeof text, form, "another-key-0123456789", sizeof "{}" - 1, "{}");
    answer_text a = ask_raw(w.port, text);
    check_messages_error(&a, 401, "authentication_error", "API key");
    snprintf(text, sizeof text, form, key, sizeof endless - 1, endless);
    int fd = client_connect(w.port);
    client_send(fd, text, strlen(text));
    assert_true(recv(fd, part, sizeof part, 0) > 0);
    a = ask_raw(w.port, text);
    check_messages_error(&a, 429, "rate_limit_error", "requests wait");
    close(fd);
    close_fixture(&w);
}

/* ---- a stream that fails ---- */

/* What cannot be computed is said by the dialect's last event. */
static void streams_say_that_they_failed(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *part;
    } of[] = {
        {"/v1/messages",
         "{\"temperature\":0,\"stream\":true,\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":"},
        {"/v1/responses", "{\"temperature\":0,\"stream\":true,\"max_output_tokens\":400,\"input\":\"Hi\"}",
         "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":"},
        {"/v1/chat/completions",
         "{\"temperature\":0,\"stream\":true,\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
         "data: {\"error\":{\"message\":"},
    };
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.memory_limit = 100000});
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = client_ask(w.port, of[i].path, of[i].body);
        if (!strstr(bytes_text(&a.body), of[i].part)) fail_msg("%s: %d: %s", of[i].path, a.status, a.body.data);
        client_clear(&a);
    }
    close_fixture(&w);
}

/* Requests that wait and whose clients leave make room for others. */
static void waiting_clients_may_leave(void **state) {
    (void)state;
    static const char *const of[][2] = {
        {"/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
        {"/v1/messages", "{\"stream\":true,\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
        {"/v1/responses", "{\"input\":\"Hi\"}"},
        {"/v1/responses", "{\"stream\":true,\"input\":\"Hi\"}"},
    };
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.max_num_seqs = 1});
    char part[512];
    for (int round = 0; round < 3; round++) {
        int fd = client_post(w.port, "/v1/messages?beta=true",
                             "{\"stream\":true,\"ignore_eos\":true,\"max_tokens\":500,\"messages\":[{\"role\":\"user\","
                             "\"content\":\"Hi\"}]}");
        assert_true(recv(fd, part, sizeof part, 0) > 0);
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) close(client_post(w.port, of[i][0], of[i][1]));
        answer_text a = client_ask(w.port, of[0][0], of[0][1]);
        assert_int_equal(a.status, 200);
        client_clear(&a);
        close(fd);
    }
    close_fixture(&w);
}

/* ---- /v1/responses ---- */

static const struct {
    const char *body, *prompt, *settings[5], *instructions;
} calls[] = {
    {"{\"temperature\":0,\"max_output_tokens\":20,\"input\":\"Once upon a time\"}",
     "<s>user: Once upon a time\nassistant:",
     {"max_new_tokens", "20"},
     NULL},
    {"{\"temperature\":0,\"max_output_tokens\":12,\"instructions\":\"Be brief\",\"input\":[{\"role\":\"user\","
     "\"content\":\"Hi\"},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":"
     "\"Lily\",\"annotations\":[]}]},{\"role\":\"developer\",\"content\":\"Play\"},{\"role\":\"user\",\"content\":["
     "{\"type\":\"input_text\",\"text\":\"Go\"},{\"type\":\"input_text\",\"text\":\"on\"}]}],\"include\":["
     "\"reasoning.encrypted_content\"],\"tools\":[],\"truncation\":\"disabled\",\"background\":false}",
     "<s>system: Be brief\nuser: Hi\nassistant: Lily\nsystem: Play\nuser: Go\non\nassistant:",
     {"max_new_tokens", "12"},
     "Be brief"},
    {"{\"temperature\":0,\"max_output_tokens\":64,\"input\":\"Hi\",\"text\":{\"format\":{\"type\":\"json_schema\","
     "\"name\":\"answer\",\"strict\":true,\"schema\":{\"enum\":[\"yes\",\"no\"]}}}}",
     "<s>user: Hi\nassistant:",
     {"max_new_tokens", "64", "json_schema", "\"{\\\"enum\\\":[\\\"yes\\\",\\\"no\\\"]}\""},
     NULL},
};

static void check_item(const json *item, const mn_sequence *s, const char *status) {
    assert_string_equal(word(item, "type"), "message");
    assert_string_equal(word(item, "role"), "assistant");
    assert_string_equal(word(item, "status"), status);
    assert_memory_equal(word(item, "id"), "msg_", 4);
    const json *content = json_get(item, "content");
    assert_int_equal(content->n, s ? 1 : 0);
    if (s) assert_string_equal(word(&content->items[0], "type"), "output_text");
    if (s) assert_string_equal(word(&content->items[0], "text"), s->text);
}

/* s NULL: not done yet. round: how often the same was asked before. */
static void check_response(const json *r, const mn_sequence *s, size_t n_prompt, int round, const char *instructions) {
    bool is_completed = s && strcmp(s->finish_reason, "eos") == 0;
    const char *status = !s ? "in_progress" : is_completed ? "completed" : "incomplete";
    assert_string_equal(word(r, "object"), "response");
    assert_string_equal(word(r, "status"), status);
    assert_string_equal(word(r, "model"), "tiny");
    assert_memory_equal(word(r, "id"), "resp_", 5);
    assert_true(is_null(r, "error") && is_null(r, "previous_response_id"));
    assert_true(number(r, "created_at") > 1700000000);
    if (instructions)
        assert_string_equal(word(r, "instructions"), instructions);
    else
        assert_true(is_null(r, "instructions"));
    assert_int_equal(json_get(r, "output")->n, s ? 1 : 0);
    if (!s) {
        assert_true(is_null(r, "usage") && is_null(r, "incomplete_details"));
        return;
    }
    check_item(&json_get(r, "output")->items[0], s, status);
    if (is_completed)
        assert_true(is_null(r, "incomplete_details"));
    else
        assert_string_equal(word(json_get(r, "incomplete_details"), "reason"), "max_output_tokens");
    const json *usage = json_get(r, "usage");
    int64_t cached = number(json_get(usage, "input_tokens_details"), "cached_tokens");
    assert_int_equal(number(usage, "input_tokens"), n_prompt);
    assert_int_equal(number(usage, "output_tokens"), s->n_ids);
    assert_int_equal(number(usage, "total_tokens"), n_prompt + s->n_ids);
    assert_int_equal(number(json_get(usage, "input_tokens_details"), "cache_write_tokens"), (int64_t)n_prompt - cached);
    if (round > 0) assert_int_equal(cached, n_prompt - 1);
}

static void check_response_stream(answer_text *a, const mn_sequence *s, size_t n_prompt, const char *instructions) {
    static const char *const before[] = {"response.created", "response.in_progress", "response.output_item.added",
                                         "response.content_part.added"},
                             *const after[] = {"response.output_text.done", "response.content_part.done",
                                               "response.output_item.done"};
    bool is_completed = strcmp(s->finish_reason, "eos") == 0;
    const char *at = bytes_text(&a->body);
    bytes text = {0};
    char item[64] = "";
    size_t n_before = 0, n_after = 0;
    int64_t n = 0;
    for (json_doc *doc; (doc = next_event(&at, true)); json_close(&doc)) {
        const json *event = json_root(doc);
        const char *type = word(event, "type");
        assert_int_equal(number(event, "sequence_number"), n++);
        if (n_before < 4) {
            assert_string_equal(type, before[n_before++]);
            if (n_before <= 2) check_response(json_get(event, "response"), NULL, 0, 0, instructions);
            if (n_before == 3) check_item(json_get(event, "item"), NULL, "in_progress");
            if (n_before == 3) snprintf(item, sizeof item, "%s", word(json_get(event, "item"), "id"));
            if (n_before == 4) assert_string_equal(word(json_get(event, "part"), "text"), "");
        } else if (strcmp(type, "response.output_text.delta") == 0) {
            assert_int_equal(n_after, 0);
            bytes_append_text(&text, word(event, "delta"));
        } else if (n_after < 3) {
            assert_string_equal(type, after[n_after++]);
            if (n_after == 1) assert_string_equal(word(event, "text"), s->text);
            if (n_after == 2) assert_string_equal(word(json_get(event, "part"), "text"), s->text);
            if (n_after == 3) check_item(json_get(event, "item"), s, is_completed ? "completed" : "incomplete");
        } else {
            assert_int_equal(n_after++, 3);
            assert_string_equal(type, is_completed ? "response.completed" : "response.incomplete");
            check_response(json_get(event, "response"), s, n_prompt, 1, instructions);
        }
        const json *id = json_get(event, "item_id");
        if (id) assert_string_equal(id->string, item);
        if (id) assert_true(number(event, "output_index") == 0 && number(event, "content_index") == 0);
    }
    assert_int_equal(n_after, 4);
    assert_string_equal(bytes_text(&text), s->text);
    bytes_clear(&text);
}

static void responses_are_the_librarys(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        size_t n_prompt;
        mn_generation *g = alone(&w, calls[i].prompt, calls[i].settings, &n_prompt);
        for (int round = 0; round < 2; round++) {
            answer_text a = client_ask(w.port, "/v1/responses", calls[i].body);
            if (a.status != 200) fail_msg("call %zu: %d: %s", i, a.status, bytes_text(&a.body));
            json_doc *doc = client_json(&a);
            check_response(json_root(doc), g->sequences[0], n_prompt, round, calls[i].instructions);
            json_close(&doc);
            client_clear(&a);
        }
        answer_text a = ask_stream(w.port, "/v1/responses", calls[i].body);
        check_response_stream(&a, g->sequences[0], n_prompt, calls[i].instructions);
        client_clear(&a);
        mn_generation_close(&g);
    }
    close_fixture(&w);
}

/* Asks with a key, and returns the id and the text. */
static int ask_response(int port, const char *key, const char *body, char id[64], bytes *text) {
    bytes b = {0};
    bytes_printf(&b,
                 "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Authorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n%s",
                 key, strlen(body), body);
    answer_text a = ask_raw(port, bytes_text(&b));
    json_doc *doc = client_json(&a);
    bytes_clear(&b);
    text->n = 0;
    if (a.status == 200) {
        const json *content = json_get(&json_get(json_root(doc), "output")->items[0], "content");
        snprintf(id, 64, "%s", word(json_root(doc), "id"));
        bytes_append_text(text, word(&content->items[0], "text"));
    } else {
        bytes_append_text(text, word(json_get(json_root(doc), "error"), "code"));
    }
    json_close(&doc);
    client_clear(&a);
    return a.status;
}

/* A conversation is continued by the id of its last response: by whoever had it, as long as it is kept. */
static void conversations_go_on(void **state) {
    (void)state;
    static const char first[] = "a-key-of-this-test-0123", second[] = "another-key-of-it-45678";
    static const char keys[] = "a-key-of-this-test-0123\nanother-key-of-it-45678\n";
    static const char *const settings[] = {"max_new_tokens", "8", NULL};
    char path[512], body[512], id[64], next[64];
    bytes text = {0}, prompt = {0};
    size_t n;
    snprintf(path, sizeof path, "%s", scratch_file("keys", keys, sizeof keys - 1));
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.api_key_file = path});
    bytes_append_text(&prompt, "<s>user: Hi\nassistant:");
    snprintf(id, sizeof id, "none");
    for (int turn = 0; turn < 4; turn++) {
        mn_generation *g = alone(&w, bytes_text(&prompt), settings, &n);
        snprintf(body, sizeof body, "{\"temperature\":0,\"max_output_tokens\":8,%s\"input\":\"%s\"%s%s%s}",
                 turn == 2 ? "\"store\":false," : "", turn == 0 ? "Hi" : "More",
                 turn ? ",\"previous_response_id\":\"" : "", turn ? id : "", turn ? "\"" : "");
        if (turn) assert_int_equal(ask_response(w.port, second, body, next, &text), 400);
        if (turn) assert_string_equal(bytes_text(&text), "previous_response_not_found");
        assert_int_equal(ask_response(w.port, first, body, next, &text), turn == 3 ? 400 : 200);
        if (turn == 3)
            assert_string_equal(bytes_text(&text), "previous_response_not_found"); /* it was not stored */
        else
            assert_string_equal(bytes_text(&text), g->sequences[0]->text);
        snprintf(id, sizeof id, "%s", next);
        bytes_printf(&prompt, " %s\nuser: More\nassistant:", g->sequences[0]->text);
        mn_generation_close(&g);
    }
    bytes_clear(&prompt);
    bytes_clear(&text);
    close_fixture(&w);
}

static const struct {
    const char *body, *param, *part;
} bad_calls[] = {
    {"{}", "input", "'input' is missing"},
    {"{\"input\":[]}", "input", "'input' is []"},
    {"{\"input\":3}", "input", "input"},
    {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"a\"}]}", "input",
     "input[0]: type is \"item_reference\", allowed: 'message', 'function_call', 'function_call_output'"},
    {"{\"input\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "input", "input[0]: role is \"tool\""},
    {"{\"input\":[{\"content\":\"a\"}]}", "input", "input[0]: role is null"},
    {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input",
     "input[0].content[0]: type is \"input_image\", allowed: 'input_text'"},
    {"{\"input\":\"a\",\"instructions\":[]}", "instructions", "instructions"},
    {"{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens", "max_output_tokens"},
    {"{\"input\":\"a\",\"temperature\":-1}", "temperature", "temperature"},
    {"{\"input\":\"a\",\"store\":\"yes\"}", "store", "store"},
    {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools", "tools"},
    {"{\"input\":\"a\",\"background\":true}", "background", "background"},
    {"{\"input\":\"a\",\"conversation\":\"conv_1\"}", "conversation", "conversation"},
    {"{\"input\":\"a\",\"prompt\":{\"id\":\"pmpt_1\"}}", "prompt", "prompt"},
    {"{\"input\":\"a\",\"truncation\":\"auto\"}", "truncation", "truncation"},
    {"{\"input\":\"a\",\"previous_response_id\":\"resp_unknown\"}", "previous_response_id",
     "is 'resp_unknown', which is not kept"},
    {"{\"input\":\"a\",\"previous_response_id\":7}", "previous_response_id", "previous_response_id"},
    {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format", "'text.format' is"},
};

static void bad_responses_are_refused_by_field(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    for (size_t i = 0; i < sizeof bad_calls / sizeof *bad_calls; i++) {
        answer_text a = client_ask(w.port, "/v1/responses", bad_calls[i].body);
        if (a.status != 400) fail_msg("call %zu: %d: %s", i, a.status, bytes_text(&a.body));
        json_doc *doc = client_json(&a);
        const json *error = json_get(json_root(doc), "error");
        if (!json_is_string(json_get(error, "param"), bad_calls[i].param)) fail_msg("call %zu: %s", i, a.body.data);
        if (!strstr(word(error, "message"), bad_calls[i].part)) fail_msg("call %zu: %s", i, a.body.data);
        json_close(&doc);
        client_clear(&a);
    }
    close_fixture(&w);
}

/* What is kept is bounded, and what was used last stays. */
static void kept_conversations_are_bounded(void **state) {
    (void)state;
    enum { LARGE = 1 << 20 };
    conversations *c = conversations_open();
    bytes message = {0}, found = {0};
    char id[32];
    assert_non_null(c);
    bytes_append_text(&message, "{\"role\":\"user\",\"content\":\"Hi\"}");
    for (int i = 0; i < MOST_CONVERSATIONS + 8; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        conversations_keep(c, id, NULL, &message);
        assert_true(conversations_find(c, "resp_0", NULL, &found));
    }
    for (int i = 0; i < MOST_CONVERSATIONS + 8; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        found.n = 0;
        assert_int_equal(conversations_find(c, id, NULL, &found), i == 0 || i > 8);
        if (i == 0 || i > 8) assert_string_equal(bytes_text(&found), bytes_text(&message));
    }
    for (int i = 0; i < LARGE; i++) bytes_append_text(&message, "x");
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "large_%d", i);
        conversations_keep(c, id, id, &message);
        found.n = 0;
        assert_true(conversations_find(c, id, id, &found) && found.n > LARGE);
        assert_false(conversations_find(c, id, NULL, &found));
    }
    int n_large = 0;
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "large_%d", i);
        n_large += conversations_find(c, id, id, &found);
    }
    assert_true(n_large >= 16 && n_large <= MOST_CONVERSATION_BYTES / LARGE);
    assert_false(conversations_find(c, "resp_0", NULL, &found));
    bytes_clear(&message);
    bytes_clear(&found);
    conversations_close(&c);
}

static void a_time_limit_is_no_end(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    answer_text a = client_ask(w.port, "/v1/messages", "{\"max_time\":1e-9,\"temperature\":0," HI "}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"stop_reason\":\"pause_turn\""));
    client_clear(&a);
    a = client_ask(w.port, "/v1/responses", "{\"max_time\":1e-9,\"temperature\":0,\"input\":\"Hi\"}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"incomplete_details\":{\"reason\":\"max_time\"}"));
    client_clear(&a);
    close_fixture(&w);
}

/* ---- recorded requests ---- */

/* The text of an answer or, without one, of an event. */
static void append_text(bytes *out, const json *answer) {
    const json *choice = json_get(answer, "choices"), *delta = json_get(answer, "delta"), *text = NULL;
    const json *item = json_get(answer, "output"), *content = json_get(answer, "content");
    if (choice && choice->n) text = json_get(json_get(&choice->items[0], "message"), "content");
    if (choice && choice->n && !text) text = json_get(json_get(&choice->items[0], "delta"), "content");
    if (choice && choice->n && !text) text = json_get(&choice->items[0], "text");
    if (item && item->n) content = json_get(&item->items[0], "content");
    if (content && content->n) text = json_get(&content->items[0], "text");
    if (delta) text = delta->kind == JSON_STRING ? delta : json_get(delta, "text");
    if (text) bytes_append(out, text->string, text->n);
}

static void replay(const fixture *w, const char *name, const char *wanted, size_t n_wanted) {
    char path[512];
    bytes request = {0}, text = {0};
    snprintf(path, sizeof path, "serve/%s", name);
    assert_ok(file_read(&request, data_path(path), 1 << 20));
    int fd = client_connect(w->port);
    client_send(fd, request.data, request.n);
    answer_text a = client_read(fd);
    close(fd);
    if (a.status != 200) fail_msg("%s: %d: %s", name, a.status, bytes_text(&a.body));
    if (strstr(name, "-stream.")) {
        const char *at = bytes_text(&a.body);
        bool has_names = strncmp(at, "event: ", 7) == 0;
        for (json_doc *doc; strncmp(at, "data: [DONE]", 12) != 0 && (doc = next_event(&at, has_names));
             json_close(&doc))
            append_text(&text, json_root(doc));
    } else {
        json_doc *doc = client_json(&a);
        append_text(&text, json_root(doc));
        if (strstr(name, "-count.")) assert_true(number(json_root(doc), "input_tokens") > 5);
        json_close(&doc);
    }
    if (!strstr(name, "-count.") && (text.n != n_wanted || memcmp(bytes_text(&text), wanted, n_wanted) != 0))
        fail_msg("%s: '%s', not '%s'", name, bytes_text(&text), wanted);
    client_clear(&a);
    bytes_clear(&request);
    bytes_clear(&text);
}

/* What the official clients sent (tests/data/serve) is answered with what the library says. */
static void recorded_requests_get_the_librarys_answer(void **state) {
    (void)state;
    static const char keys[] = "a-key-of-the-clients-0123\n";
    static const char *const settings[] = {"max_new_tokens", "16", NULL};
    int n_stream = 0, n_plain = 0, n_completion = 0;
    char path[512];
    size_t n;
    snprintf(path, sizeof path, "%s", scratch_file("keys", keys, sizeof keys - 1));
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.api_key_file = path});
    mn_generation *g = alone(&w, "<s>user: Once upon a time\nassistant:", settings, &n);
    mn_generation *continued = oracle_text(w.model, "Once upon a time", "{\"max_new_tokens\":16,\"do_sample\":false}");
    DIR *folder = opendir(data_path("serve"));
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".http")) continue;
        const bool is_completion = strstr(entry->d_name, "-completion-");
        const mn_sequence *wanted = (is_completion ? continued : g)->sequences[0];
        replay(&w, entry->d_name, wanted->text, wanted->n_text);
        n_completion += is_completion;
        n_stream += strstr(entry->d_name, "-stream.") != NULL;
        n_plain += strstr(entry->d_name, "-plain.") != NULL;
    }
    closedir(folder);
    assert_true(n_stream >= 7 && n_plain >= 7 && n_completion >= 4);
    mn_generation_close(&g);
    mn_generation_close(&continued);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_the_librarys),
        cmocka_unit_test(bad_messages_are_refused_in_their_shape),
        cmocka_unit_test(messages_need_keys_and_room),
        cmocka_unit_test(streams_say_that_they_failed),
        cmocka_unit_test(waiting_clients_may_leave),
        cmocka_unit_test(responses_are_the_librarys),
        cmocka_unit_test(a_time_limit_is_no_end),
        cmocka_unit_test(conversations_go_on),
        cmocka_unit_test(bad_responses_are_refused_by_field),
        cmocka_unit_test(kept_conversations_are_bounded),
        cmocka_unit_test(recorded_requests_get_the_librarys_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
