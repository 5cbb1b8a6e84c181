/* Calls of functions in Anthropic's Messages and OpenAI's Responses: functions and results reach the template as those
 * of a chat do, and what a model calls comes back in the dialect's form, whole and streamed. The regular expression
 * makes the embedded model write a call.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve/fixture.h"

#define REGEX(before)                                                                                                  \
    "\"temperature\":0,\"regex\":\"" before                                                                            \
    "<tool_call>[{]\\\"name\\\": \\\"go\\\", \\\"arguments\\\": [{]\\\"city\\\": \\\"Rome\\\"[}][}]</tool_call>\""
#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Rome\",\"Oslo\"]}},\"required\":[\"city\"],\"additionalProperties\":false}"
#define MESSAGES_TOOLS                                                                                                 \
    "\"tools\":[{\"name\":\"go\",\"description\":\"x\",\"input_schema\":" SCHEMA                                       \
    ",\"cache_control\":{\"type\":\"ephemeral\"}},{\"name\":\"stay\",\"type\":\"custom\",\"input_schema\":{}}]"
#define RESPONSES_TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"name\":\"go\",\"description\":\"x\",\"strict\":true,\"parameters\":" SCHEMA   \
    "},{\"type\":\"function\",\"name\":\"stay\",\"parameters\":{}}]"
#define CHAT_TOOLS                                                                                                     \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"go\",\"description\":\"x\",\"parameters\":" SCHEMA     \
    "}},{\"type\":\"function\",\"function\":{\"name\":\"stay\",\"parameters\":{}}}]"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static fixture open_calling(const char *api_key_file) {
    fixture w = {.model = chat_model(TOOL_TEMPLATE)};
    const serve_options options = {.name = "tiny", .api_key_file = api_key_file};
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    return w;
}

/* The answer with this status, as JSON. */
static json_doc *ask(const fixture *w, const char *path, const char *body, int status) {
    answer_text a = client_ask(w->port, path, body);
    if (a.status != status) fail_msg("%s %s: %d %s", path, body, a.status, bytes_text(&a.body));
    json_doc *doc = client_json(&a);
    client_clear(&a);
    return doc;
}

static const char *word(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_STRING) fail_msg("'%s' is no string", key);
    return value->string;
}

static int64_t number(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_INT) fail_msg("'%s' is no whole number", key);
    return value->integer;
}

static void check_json(const json *value, const char *wanted) {
    bytes text = {0};
    json_put(&text, value);
    assert_string_equal(bytes_text(&text), wanted);
    bytes_clear(&text);
}

/* Of the text of a prompt, by the library. */
static size_t tokens_of(const fixture *w, const char *prompt) {
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), prompt, strlen(prompt), 0, &ids, &n));
    mn_free(ids);
    return n;
}

/* What the template makes of the same conversation as a chat; to be freed with the document. */
static json_doc *chat_prompt(const fixture *w, const char *fields) {
    bytes body = {0};
    bytes_printf(&body, "{%s}", fields);
    json_doc *doc = ask(w, "/apply-template", bytes_text(&body), 200);
    bytes_clear(&body);
    return doc;
}

/* Every event's name and the members in which it differs: "name a b;". */
typedef void put_event(bytes *out, const json *event);

static void list_events(bytes *out, const fixture *w, const char *path, const char *body, put_event *put) {
    bytes streamed = {0};
    bytes_printf(&streamed, "{\"stream\":true,%s", body + 1);
    answer_text a = client_ask(w->port, path, bytes_text(&streamed));
    assert_int_equal(a.status, 200);
    for (const char *at = bytes_text(&a.body); (at = strstr(at, "data: ")); at++) {
        json_doc *doc = NULL;
        at += 6;
        assert_ok(json_parse(&doc, at, strcspn(at, "\n"), JSON_STRICT, "event"));
        put(out, json_root(doc));
        json_close(&doc);
    }
    client_clear(&a);
    bytes_clear(&streamed);
}

/* ---- /v1/messages ---- */

static const struct {
    const char *body, *chat; /* the same, as a chat: fields of /apply-template */
} chats[] = {
    {"{\"max_tokens\":4," MESSAGES_TOOLS "," HI "}", CHAT_TOOLS "," HI},
    {"{\"max_tokens\":4," MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"none\"}," HI "}", HI},
    {"{\"max_tokens\":4,\"system\":[{\"type\":\"text\",\"text\":\"Be\",\"cache_control\":{\"type\":\"ephemeral\"}}],"
     "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"messages\":[{\"role\":\"user\",\"content\":\"Rome?\"},"
     "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
     "{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\",\"text\":\"See\"},"
     "{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"go\",\"input\":{\"city\":\"Rome\"}},"
     "{\"type\":\"tool_use\",\"id\":\"b\",\"name\":\"go\",\"input\":{\"city\":\"Oslo\"}}]},{\"role\":\"user\",\"content\":["
     "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"warm\"}]},"
     "{\"type\":\"tool_result\",\"tool_use_id\":\"b\",\"content\":\"far\",\"is_error\":true},"
     "{\"type\":\"text\",\"text\":\"So\"}]}]}",
     "\"messages\":[{\"role\":\"system\",\"content\":\"Be\"},{\"role\":\"user\",\"content\":\"Rome?\"},{\"role\":"
     "\"assistant\",\"content\":\"See\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"go\","
     "\"arguments\":\"{\\\"city\\\":\\\"Rome\\\"}\"}},{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"go\","
     "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"warm\"},"
     "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"far\"},{\"role\":\"user\",\"content\":\"So\"}]"},
    /* A result alone is no message of the user's; an empty one is one. */
    {"{\"max_tokens\":4,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"go\","
     "\"input\":{\"city\":\"Rome\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]}]}",
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"go\","
     "\"arguments\":\"{\\\"city\\\":\\\"Rome\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"\"}]"},
};

static void messages_with_tools_are_the_chats(void **state) {
    (void)state;
    fixture w = open_calling(NULL);
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        json_doc *chat = chat_prompt(&w, chats[i].chat),
                 *doc = ask(&w, "/v1/messages/count_tokens", chats[i].body, 200);
        size_t n = tokens_of(&w, word(json_root(chat), "prompt"));
        assert_int_equal(number(json_root(doc), "input_tokens"), n);
        json_close(&doc);
        /* The library's first tokens. */
        const char *const settings[] = {"max_new_tokens", "4", NULL};
        size_t n_prompt;
        mn_generation *g = alone(&w, word(json_root(chat), "prompt"), settings, &n_prompt);
        bytes body = {0};
        bytes_printf(&body, "{\"temperature\":0,%s", chats[i].body + 1);
        doc = ask(&w, "/v1/messages", bytes_text(&body), 200);
        const json *content = json_get(json_root(doc), "content");
        assert_string_equal(word(&content->items[0], "text"), g->sequences[0]->text);
        mn_generation_close(&g);
        bytes_clear(&body);
        json_close(&doc);
        json_close(&chat);
    }
    close_fixture(&w);
}

static void put_message_event(bytes *out, const json *event) {
    const json *block = json_get(event, "content_block"), *delta = json_get(event, "delta");
    const char *type = word(event, "type");
    if (strcmp(type, "message_start") == 0 || strcmp(type, "ping") == 0) return;
    bytes_printf(out, "%s", type);
    if (json_get(event, "index")) bytes_printf(out, " %d", (int)number(event, "index"));
    if (block) bytes_printf(out, " %s", word(block, "type"));
    if (block && json_is_string(json_get(block, "type"), "tool_use")) {
        bytes_printf(out, " %s ", word(block, "name"));
        assert_int_equal(strlen(word(block, "id")), 9);
        json_put(out, json_get(block, "input"));
    }
    if (json_is_string(json_get(delta, "type"), "input_json_delta"))
        bytes_printf(out, " %s", word(delta, "partial_json"));
    if (json_get(delta, "stop_reason")) bytes_printf(out, " %s", word(delta, "stop_reason"));
    bytes_append_text(out, ";");
}

static void messages_answer_with_calls(void **state) {
    (void)state;
    static const char with_text[] = "{\"max_tokens\":200," MESSAGES_TOOLS "," REGEX("See.") "," HI "}";
    static const char alone_[] = "{\"max_tokens\":200," MESSAGES_TOOLS "," REGEX("") "," HI "}";
    fixture w = open_calling(NULL);
    json_doc *doc = ask(&w, "/v1/messages", with_text, 200);
    const json *content = json_get(json_root(doc), "content");
    assert_int_equal(content->n, 2);
    assert_memory_equal(word(&content->items[0], "text"), "See", 3);
    assert_string_equal(word(&content->items[1], "type"), "tool_use");
    assert_string_equal(word(&content->items[1], "name"), "go");
    check_json(json_get(&content->items[1], "input"), "{\"city\":\"Rome\"}");
    assert_string_equal(word(json_root(doc), "stop_reason"), "tool_use");
    json_close(&doc);
    doc = ask(&w, "/v1/messages", alone_, 200);
    assert_int_equal(json_get(json_root(doc), "content")->n, 1);
    json_close(&doc);

    bytes events = {0};
    list_events(&events, &w, "/v1/messages", alone_, put_message_event);
    assert_string_equal(bytes_text(&events),
                        "content_block_start 0 tool_use go {};content_block_delta 0 {\"city\":\"Rome\"};"
                        "content_block_stop 0;message_delta tool_use;message_stop;");
    events.n = 0;
    list_events(&events, &w, "/v1/messages", with_text, put_message_event);
    assert_memory_equal(bytes_text(&events), "content_block_start 0 text;content_block_delta 0;", 49);
    assert_non_null(strstr(bytes_text(&events),
                           "content_block_stop 0;content_block_start 1 tool_use go {};content_block_delta 1 "
                           "{\"city\":\"Rome\"};content_block_stop 1;message_delta tool_use;message_stop;"));
    bytes_clear(&events);

    static const char *const forced[] = {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
                                         "{\"type\":\"tool\",\"name\":\"go\"}"};
    for (size_t i = 0; i < 2; i++) {
        bytes body = {0};
        bytes_printf(&body, "{\"max_tokens\":200,\"temperature\":0,%s,\"tool_choice\":%s," HI "}",
                     i ? MESSAGES_TOOLS : "\"tools\":[{\"name\":\"go\",\"input_schema\":" SCHEMA "}]", forced[i]);
        doc = ask(&w, "/v1/messages", bytes_text(&body), 200);
        const json *call = &json_get(json_root(doc), "content")->items[0];
        assert_string_equal(word(call, "name"), "go");
        const char *city = word(json_get(call, "input"), "city");
        assert_true(strcmp(city, "Rome") == 0 || strcmp(city, "Oslo") == 0);
        json_close(&doc);
        bytes_clear(&body);
    }
    close_fixture(&w);
}

/* ---- /v1/responses ---- */

static void put_response_event(bytes *out, const json *event) {
    const json *item = json_get(event, "item"), *of = json_get(event, "response");
    const char *type = word(event, "type");
    bytes_printf(out, "%s", type + strlen("response."));
    if (json_get(event, "output_index")) bytes_printf(out, " %d", (int)number(event, "output_index"));
    if (item) bytes_printf(out, " %s", word(item, "type"));
    if (item && json_get(item, "arguments")) bytes_printf(out, " %s '%s'", word(item, "name"), word(item, "arguments"));
    if (strstr(type, "arguments.delta")) bytes_printf(out, " %s", word(event, "delta"));
    if (strstr(type, "arguments.done")) bytes_printf(out, " %s", word(event, "arguments"));
    if (of) bytes_printf(out, " %d", (int)json_get(of, "output")->n);
    bytes_append_text(out, ";");
}

static void responses_answer_with_calls(void **state) {
    (void)state;
    static const char body[] = "{\"input\":\"Hi\"," RESPONSES_TOOLS "," REGEX("") "}";
    fixture w = open_calling(NULL);
    json_doc *doc = ask(&w, "/v1/responses", body, 200);
    const json *output = json_get(json_root(doc), "output"), *call = &output->items[0];
    assert_int_equal(output->n, 1);
    assert_string_equal(word(call, "type"), "function_call");
    assert_string_equal(word(call, "name"), "go");
    assert_string_equal(word(call, "arguments"), "{\"city\":\"Rome\"}");
    assert_string_equal(word(json_root(doc), "status"), "completed");

    /* It goes on with the result alone: the call is part of the conversation. */
    bytes next = {0};
    bytes_printf(&next,
                 "{\"temperature\":0,\"max_output_tokens\":4,\"previous_response_id\":\"%s\",\"input\":[{\"type\":"
                 "\"function_call_output\",\"call_id\":\"%s\",\"output\":\"warm\"}]}",
                 word(json_root(doc), "id"), word(call, "call_id"));
    json_doc *second = ask(&w, "/v1/responses", bytes_text(&next), 200);
    static const char prompt[] = "<s>user: Hi\nassistant: <tool_call>go Rome</tool_call>\ntool: warm\nassistant:";
    const char *const settings[] = {"max_new_tokens", "4", NULL};
    size_t n_prompt;
    mn_generation *g = alone(&w, prompt, settings, &n_prompt);
    assert_int_equal(number(json_get(json_root(second), "usage"), "input_tokens"), n_prompt);
    const json *part = &json_get(&json_get(json_root(second), "output")->items[0], "content")->items[0];
    assert_string_equal(word(part, "text"), g->sequences[0]->text);
    json_close(&second);
    json_close(&doc);

    /* So does the whole conversation. */
    second =
        ask(&w, "/v1/responses",
            "{\"temperature\":0,\"max_output_tokens\":4,\"input\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"type\":"
            "\"reasoning\",\"id\":\"r\",\"summary\":[]},{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"go\","
            "\"arguments\":\"{\\\"city\\\":\\\"Rome\\\"}\"},{\"type\":\"function_call_output\",\"call_id\":\"a\","
            "\"output\":[{\"type\":\"input_text\",\"text\":\"warm\"}]}]}",
            200);
    part = &json_get(&json_get(json_root(second), "output")->items[0], "content")->items[0];
    assert_string_equal(word(part, "text"), g->sequences[0]->text);
    mn_generation_close(&g);
    json_close(&second);
    bytes_clear(&next);

    bytes events = {0};
    list_events(&events, &w, "/v1/responses", body, put_response_event);
    assert_string_equal(bytes_text(&events), "created 0;in_progress 0;output_item.added 0 function_call go '';"
                                             "function_call_arguments.delta 0 {\"city\":\"Rome\"};"
                                             "function_call_arguments.done 0 {\"city\":\"Rome\"};"
                                             "output_item.done 0 function_call go '{\"city\":\"Rome\"}';completed 1;");
    events.n = 0;
    list_events(&events, &w, "/v1/responses", "{\"input\":\"Hi\"," RESPONSES_TOOLS "," REGEX("See.") "}",
                put_response_event);
    assert_non_null(strstr(bytes_text(&events), "output_text.done 0;content_part.done 0;output_item.done 0 message;"
                                                "output_item.added 1 function_call go '';"));
    bytes_clear(&events);
    static const char *const choices[] = {"\"required\"", "{\"type\":\"function\",\"name\":\"go\"}"};
    for (size_t i = 0; i < 2; i++) {
        bytes_printf(&events, "{\"temperature\":0,\"max_output_tokens\":200,\"input\":\"Hi\",%s,\"tool_choice\":%s}",
                     i ? RESPONSES_TOOLS
                       : "\"tools\":[{\"type\":\"function\",\"name\":\"go\",\"parameters\":" SCHEMA "}]",
                     choices[i]);
        doc = ask(&w, "/v1/responses", bytes_text(&events), 200);
        assert_string_equal(word(&json_get(json_root(doc), "output")->items[0], "type"), "function_call");
        json_close(&doc);
        bytes_clear(&events);
    }
    close_fixture(&w);
}

/* ---- both ---- */

static void what_cannot_be_called_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *part;
    } of[] = {
        {"/v1/messages",
         "{\"max_tokens\":4,\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]," HI "}",
         "'tools' has at 0 no function, allowed: {\\\"name\\\": ..., \\\"input_schema\\\""},
        {"/v1/messages",
         "{\"max_tokens\":4," MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"fly\"}," HI "}",
         "'tool_choice' names no function"},
        {"/v1/messages", "{\"max_tokens\":4," MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"tool\"}," HI "}",
         "'tool_choice' names no function"},
        {"/v1/messages", "{\"max_tokens\":4," MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"some\"}," HI "}",
         "'tool_choice' is "},
        {"/v1/messages", "{\"max_tokens\":4,\"tool_choice\":{\"type\":\"any\"}," HI "}", "there are no 'tools'"},
        {"/v1/messages",
         "{\"max_tokens\":4," MESSAGES_TOOLS
         ",\"tool_choice\":{\"type\":\"any\"},\"output_config\":{\"format\":{\"type\":"
         "\"json_object\"}}," HI "}",
         "forces a call beside 'output_config.format'"},
        {"/v1/messages",
         "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\"}]}]}",
         "messages[0].content[0]: type is \\\"tool_use\\\", allowed: calls in turns of 'assistant'"},
        {"/v1/messages",
         "{\"max_tokens\":4,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":\"b\"}]}]}",
         "messages[0].content[0]: the call's id is null"},
        {"/v1/messages",
         "{\"max_tokens\":4,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":"
         "\"b\",\"input\":3}]}]}",
         "the call's input is 3"},
        {"/v1/messages",
         "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\","
         "\"content\":[{\"type\":\"image\"}]}]}]}",
         "messages[0].content[0].content[0]: type is \\\"image\\\", allowed: 'text'"},
        {"/v1/responses", "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "'tools' has at 0 no function"},
        {"/v1/responses",
         "{\"input\":\"a\"," RESPONSES_TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"fly\"}}",
         "'tool_choice' names no function"},
        {"/v1/responses", "{\"input\":[{\"type\":\"function_call_output\",\"output\":\"a\"}]}",
         "input[0]: the call's id is null"},
    };
    fixture w = open_calling(NULL);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        answer_text a = client_ask(w.port, of[i].path, of[i].body);
        if (a.status != 400 || !strstr(bytes_text(&a.body), of[i].part))
            fail_msg("%s: %d %s", of[i].body, a.status, bytes_text(&a.body));
        client_clear(&a);
    }
    close_fixture(&w);
}

/* Why no more was found is told beside 'usage', whole and streamed. */
static void found_tokens_are_explained(void **state) {
    (void)state;
    static const char *const of[][2] = {
        {"/v1/messages", "{\"max_tokens\":4,\"cache\":{\"explain\":true}," HI "}"},
        {"/v1/responses", "{\"max_output_tokens\":4,\"cache\":{\"explain\":true},\"input\":\"Hi\"}"}};
    fixture w = open_calling(NULL);
    for (size_t i = 0; i < 2; i++) {
        json_doc *doc = ask(&w, of[i][0], of[i][1], 200);
        const json *cache = json_get(json_root(doc), "cache");
        assert_string_equal(word(cache, "ended_by"), i ? "end_of_prompt" : "nothing_cached");
        json_close(&doc);
        bytes body = {0};
        bytes_printf(&body, "{\"stream\":true,%s", of[i][1] + 1);
        answer_text a = client_ask(w.port, of[i][0], bytes_text(&body));
        assert_non_null(strstr(bytes_text(&a.body), "\"cache\":{\"matched_tokens\":"));
        assert_non_null(strstr(bytes_text(&a.body), "\"ended_by\":\"end_of_prompt\""));
        client_clear(&a);
        bytes_clear(&body);
    }
    close_fixture(&w);
}

/* What the official clients sent (tests/data/serve/tools): each forces a call of 'weather' with a city of two. */
static void recorded_requests_get_a_call(void **state) {
    (void)state;
    static const char keys[] = "a-key-of-the-clients-0123\n";
    static const char *const of[][2] = {{"anthropic-tools", "input_json_delta"},
                                        {"openai-responses-tools", "response.function_call_arguments.delta"},
                                        {"openai-chat-tools", "\"tool_calls\":[{"}};
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_file("keys", keys, sizeof keys - 1));
    fixture w = open_calling(path);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        bytes request = {0};
        snprintf(path, sizeof path, "serve/tools/%s.http", of[i][0]);
        assert_ok(file_read(&request, data_path(path), 1 << 20));
        int fd = client_connect(w.port);
        client_send(fd, request.data, request.n);
        answer_text a = client_read(fd);
        close(fd);
        const char *body = bytes_text(&a.body);
        if (a.status != 200 || !strstr(body, of[i][1]) || !strstr(body, "\"name\":\"weather\"") ||
            !(strstr(body, "{\\\"city\\\":\\\"Rome\\\"}") || strstr(body, "{\\\"city\\\":\\\"Oslo\\\"}")))
            fail_msg("%s: %d: %s", of[i][0], a.status, body);
        client_clear(&a);
        bytes_clear(&request);
    }
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_with_tools_are_the_chats), cmocka_unit_test(messages_answer_with_calls),
        cmocka_unit_test(responses_answer_with_calls),       cmocka_unit_test(what_cannot_be_called_is_refused),
        cmocka_unit_test(found_tokens_are_explained),        cmocka_unit_test(recorded_requests_get_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
