/* What a chat's template gets besides messages and tools, and what a model writes between its template's markers: apart
 * from the answer, whole and streamed. A regular expression makes the model write what it should.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve/fixture.h"

/* Reasoning is where a model's template has it; documents and variables are told. */
#define TEMPLATE                                                                                                       \
    "{{ bos_token }}{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"                           \
    "{% if enable_thinking is defined %}thinking {{ enable_thinking }}, {{ style }} {% endif %}"                       \
    "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"        \
    "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
#define OPEN_TEMPLATE TEMPLATE "{% if add_generation_prompt %}<think>\n{% endif %}"
#define TOOL_SIGN     "{% if tools %}<tool_call>{% endif %}"
#define USER          "\"messages\":[{\"role\":\"user\",\"content\":\"Rome?\"}]"

static fixture open_fixture(const char *chat_template) {
    return serve_embedded(chat_template, (serve_options){.max_num_seqs = 16});
}

/* ---- what the template gets ---- */

static void expect_prompt(const fixture *w, const char *fields, const char *wanted) {
    char body[2048];
    snprintf(body, sizeof body, "{%s}", fields);
    answer_text a = client_ask(w->port, "/apply-template", body);
    if (a.status != 200) fail_msg("%s: %s", body, a.body.data);
    json_doc *doc = client_json(&a);
    assert_string_equal(json_get(json_root(doc), "prompt")->string, wanted);
    json_close(&doc);
    client_clear(&a);
}

static int64_t count_prompt(const fixture *w, const char *path, const char *fields) {
    char body[2048];
    snprintf(body, sizeof body, "{%s}", fields);
    answer_text a = client_ask(w->port, path, body);
    if (a.status != 200) fail_msg("%s %s: %d %s", path, body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    const json *usage = json_get(json_root(doc), "usage"), *tokens = json_get(json_root(doc), "total_tokens");
    const int64_t n = (usage ? json_get(usage, "prompt_tokens") : tokens)->integer;
    json_close(&doc);
    client_clear(&a);
    return n;
}

#define DOCUMENTS "\"documents\":[{\"title\":\"a\",\"text\":\"b \\u00e9\"},{\"title\":\"c\",\"text\":3}]"
#define VARIABLES "\"chat_template_kwargs\":{\"enable_thinking\":false,\"style\":\"short\"}"

static void documents_and_variables_reach_the_template(void **state) {
    (void)state;
    fixture w = open_fixture(TEMPLATE);
    expect_prompt(&w, USER, "<s>user: Rome?\nassistant:");
    expect_prompt(&w, USER ",\"documents\":null,\"chat_template_kwargs\":null", "<s>user: Rome?\nassistant:");
    expect_prompt(&w, USER ",\"documents\":[],\"chat_template_kwargs\":{}", "<s>user: Rome?\nassistant:");
    expect_prompt(&w, USER "," DOCUMENTS, "<s>[a: b \xc3\xa9][c: 3]user: Rome?\nassistant:");
    expect_prompt(&w, USER "," VARIABLES, "<s>thinking False, short user: Rome?\nassistant:");
    expect_prompt(&w, USER ",\"chat_template_kwargs\":{\"add_generation_prompt\":false}", "<s>user: Rome?\n");
    /* The routes that compute take the same prompt. */
    size_t n;
    const char *const settings[] = {"max_new_tokens", "1", NULL};
    mn_generation *g = alone(&w, "<s>[a: b \xc3\xa9][c: 3]thinking False, short user: Rome?\nassistant:", settings, &n);
    mn_generation_close(&g);
#define ALL USER "," DOCUMENTS "," VARIABLES
    assert_int_equal(count_prompt(&w, "/v1/chat/completions", ALL ",\"max_tokens\":1"), n);
    assert_int_equal(count_prompt(&w, "/v1/generate", ALL ",\"generation_config\":{\"max_new_tokens\":1}"), n);
    assert_int_equal(count_prompt(&w, "/v1/caches", ALL), n);
    close_fixture(&w);
}

static void earlier_reasoning_reaches_the_template(void **state) {
    (void)state;
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    fixture w = open_fixture(TEMPLATE);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char fields[256];
        snprintf(
            fields, sizeof fields,
            "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"%s\":\"why\"}"
            ",{\"role\":\"user\",\"content\":\"c\"}]",
            names[i]);
        expect_prompt(&w, fields, "<s>user: a\nassistant: <think>why</think>b\nuser: c\nassistant:");
    }
    close_fixture(&w);
}

static void wrong_ones_are_refused_by_name(void **state) {
    (void)state;
    static const char *const of[][3] = {
        {"documents", "{}", "'documents' is {}, allowed: a list of objects"},
        {"documents", "[{\"title\":\"a\"},\"b\"]", "'documents' has at 1 no object, allowed: {"},
        {"chat_template_kwargs", "[]", "'chat_template_kwargs' is [], allowed: an object"},
        {"chat_template_kwargs", "\"a\"", "'chat_template_kwargs' is \\\"a\\\", allowed: an object"},
    };
    fixture w = open_fixture(TEMPLATE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" USER ",\"%s\":%s}", of[i][0], of[i][1]);
        answer_text a = client_ask(w.port, "/v1/chat/completions", body);
        json_doc *doc = client_json(&a);
        const bool is_named = json_is_string(json_get(json_get(json_root(doc), "error"), "param"), of[i][0]);
        if (a.status != 400 || !is_named || !strstr(a.body.data, of[i][2])) fail_msg("%s: %s", body, a.body.data);
        json_close(&doc);
        client_clear(&a);
    }
    close_fixture(&w);
}

/* ---- what the model writes ---- */

typedef struct message {
    bytes content, reasoning, reason;
    int n_calls, n_logprobs;
} message;

static void clear(message *m) {
    bytes_clear(&m->content);
    bytes_clear(&m->reasoning);
    bytes_clear(&m->reason);
}

static void append(bytes *out, const json *text) {
    if (text && text->kind == JSON_STRING) bytes_append(out, text->string, text->n);
}

static void take_choice(message *m, const json *choice, bool streams) {
    const json *part = json_get(choice, streams ? "delta" : "message"), *calls = json_get(part, "tool_calls");
    const json *logprobs = json_get(choice, "logprobs");
    const json *reasoning = json_get(part, "reasoning_content"), *content = json_get(part, "content");
    if (reasoning && (!streams || m->content.n)) assert_true(!streams); /* the answer comes behind it */
    if (reasoning) assert_true(reasoning->n > 0);
    append(&m->reasoning, reasoning);
    append(&m->content, content);
    append(&m->reason, json_get(choice, "finish_reason"));
    m->n_calls += calls ? (int)calls->n : 0;
    if (logprobs && logprobs->kind == JSON_OBJECT) m->n_logprobs += (int)json_get(logprobs, "content")->n;
}

/* The message of answer `index`. */
static message ask(const fixture *w, const char *fields, bool streams, int index) {
    char body[4096];
    message m = {0};
    snprintf(body, sizeof body, "{" USER ",\"max_tokens\":200,\"stream\":%s,%s}", streams ? "true" : "false", fields);
    answer_text a = client_ask(w->port, "/v1/chat/completions", body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    for (const char *at = a.body.data; at && strncmp(at, "data: [DONE]", 12) != 0;) {
        const char *end = streams ? strstr(at, "\n\n") : at + a.body.n, *from = streams ? at + 6 : at;
        json_doc *doc = NULL;
        assert_ok(json_parse(&doc, from, (size_t)(end - from), JSON_STRICT, "answer"));
        const json *choices = json_get(json_root(doc), "choices");
        for (size_t i = 0; i < choices->n; i++)
            if (json_get(&choices->items[i], "index")->integer == index) take_choice(&m, &choices->items[i], streams);
        json_close(&doc);
        at = streams ? end + 2 : NULL;
    }
    client_clear(&a);
    return m;
}

#define GREEDY(regex) "\"temperature\":0,\"regex\":\"" regex "\""

static void reasoning_comes_apart_from_the_answer(void **state) {
    (void)state;
    static const struct {
        const char *fields, *reasoning, *content;
    } of[] = {
        {GREEDY("<think>\\\\nOne </thin or two[.]\\\\n</think>\\\\n\\\\nRome[.]"), "One </thin or two.", "Rome."},
        {GREEDY("<think>\\\\n\\\\n</think>\\\\n\\\\nRome[.]"), "", "Rome."},
        {GREEDY("Rome[.] <think>a</think>"), "", "Rome. <think>a</think>"},
        {GREEDY("\\\\n<thin air"), "", "\n<thin air"},
        {GREEDY("<think>a </thin"), "a </thin", ""},
        {GREEDY("<think>\\\\na </think>") ",\"logprobs\":true,\"top_logprobs\":2", "a", ""},
        {GREEDY("<think>a</think>b<c") ",\"logprobs\":true", "a", "b<c"},
        {GREEDY("<think>a</think>\\\\n") ",\"stop\":\"</think>\"", "a", ""},
    };
    fixture w = open_fixture(TEMPLATE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int n_logprobs = -1;
        for (int streams = 0; streams < 2; streams++) {
            message m = ask(&w, of[i].fields, streams, 0);
            assert_string_equal(bytes_text(&m.reasoning), of[i].reasoning);
            assert_string_equal(bytes_text(&m.content), of[i].content);
            assert_string_equal(bytes_text(&m.reason), "stop");
            if (streams) assert_int_equal(m.n_logprobs, n_logprobs); /* of every token once */
            n_logprobs = m.n_logprobs;
            assert_true((n_logprobs > 0) == (strstr(of[i].fields, "logprobs") != NULL));
            clear(&m);
        }
    }
    close_fixture(&w);
}

/* Of several answers each has its own; calls come behind the reasoning, and what is a call in it is none. */
static void answers_and_calls_have_their_own(void **state) {
    (void)state;
#define FUNCTION "{\"type\":\"function\",\"function\":{\"name\":\"go\"}}"
#define CALL     "<tool_call>[{]\\\"name\\\": \\\"go\\\"[}]</tool_call>"
    fixture w = open_fixture(TOOL_SIGN TEMPLATE);
    for (int streams = 0; streams < 2; streams++) {
        for (int i = 0; i < 3; i++) {
            message m =
                ask(&w, "\"n\":3,\"seed\":4,\"temperature\":2,\"regex\":\"<think>[ab]{5}</think>[xy]{4}\"", streams, i);
            assert_int_equal(m.reasoning.n, 5);
            assert_int_equal(strspn(bytes_text(&m.reasoning), "ab"), 5);
            assert_int_equal(m.content.n, 4);
            assert_int_equal(strspn(bytes_text(&m.content), "xy"), 4);
            clear(&m);
        }
        message m = ask(&w, "\"tools\":[" FUNCTION "]," GREEDY("<think>" CALL "</think>I see[.] " CALL), streams, 0);
        assert_string_equal(bytes_text(&m.reasoning), "<tool_call>{\"name\": \"go\"}</tool_call>");
        assert_string_equal(bytes_text(&m.content), "I see.");
        assert_string_equal(bytes_text(&m.reason), "tool_calls");
        assert_int_equal(m.n_calls, 1);
        clear(&m);
    }
    close_fixture(&w);
}

/* Where the prompt ends with the first marker, the answer begins behind the second, which here never comes; what a
 * constraint describes is the answer. */
static void prompts_may_begin_the_reasoning(void **state) {
    (void)state;
    size_t n;
    const char *const settings[] = {"max_new_tokens", "200", NULL};
    fixture w = open_fixture(OPEN_TEMPLATE);
    mn_generation *g = alone(&w, "<s>user: Rome?\nassistant:<think>\n", settings, &n);
    const char *text = g->sequences[0]->text, *begin = text + strspn(text, " \n");
    size_t length = strlen(begin);
    while (length && strchr(" \n", begin[length - 1])) length--;
    assert_true(length > 20 && !strstr(text, "</think>"));
    for (int streams = 0; streams < 2; streams++) {
        message m = ask(&w, "\"temperature\":0", streams, 0);
        assert_int_equal(m.reasoning.n, length);
        assert_memory_equal(m.reasoning.data, begin, length);
        assert_string_equal(bytes_text(&m.content), "");
        clear(&m);
        m = ask(&w, GREEDY("Rome[.]"), streams, 0);
        assert_string_equal(bytes_text(&m.reasoning), "");
        assert_string_equal(bytes_text(&m.content), "Rome.");
        clear(&m);
        m = ask(
            &w,
            "\"temperature\":0,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"const\":3}}}",
            streams, 0);
        assert_string_equal(bytes_text(&m.reasoning), "");
        assert_string_equal(bytes_text(&m.content), "3");
        clear(&m);
    }
    mn_generation_close(&g);
    close_fixture(&w);
}

/* ---- the other dialects ---- */

static const char *word(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_STRING) fail_msg("'%s' is no string", key);
    return value->string;
}

/* "type text;" of a block of a message. */
static void put_block(bytes *out, const json *block) {
    const char *type = word(block, "type"), *text = "";
    if (strcmp(type, "thinking") == 0) assert_string_equal(word(block, "signature"), "");
    if (strcmp(type, "tool_use") != 0) text = word(block, type);
    bytes_printf(out, "%s %s;", type, text);
}

/* The blocks of a message that comes in events: they begin, grow and end one after the other. */
typedef struct blocks {
    bytes done;
    char type[16];
    bytes text;
    int64_t n;
    bool is_open;
} blocks;

static void take_message_event(blocks *b, const json *event) {
    const char *type = word(event, "type");
    const json *block = json_get(event, "content_block"), *delta = json_get(event, "delta");
    if (strncmp(type, "content_block_", 14) == 0) assert_int_equal(json_get(event, "index")->integer, b->n);
    if (block) {
        assert_false(b->is_open);
        b->is_open = true;
        snprintf(b->type, sizeof b->type, "%s", word(block, "type"));
        if (strcmp(b->type, "tool_use") != 0) assert_string_equal(word(block, b->type), "");
    } else if (strcmp(type, "content_block_delta") == 0) {
        char name[32];
        assert_true(b->is_open);
        snprintf(name, sizeof name, "%s_delta", b->type);
        if (strcmp(b->type, "tool_use") == 0) return;
        assert_string_equal(word(delta, "type"), name);
        bytes_append_text(&b->text, word(delta, b->type));
    } else if (strcmp(type, "content_block_stop") == 0) {
        assert_true(b->is_open);
        bytes_printf(&b->done, "%s %s;", b->type, bytes_text(&b->text));
        b->text.n = 0;
        b->is_open = false;
        b->n++;
    }
}

/* "type text;" of an item of a response. */
static void put_item(bytes *out, const json *item) {
    const json *content = json_get(item, "content");
    bytes_printf(out, "%s ", word(item, "type"));
    for (size_t i = 0; content && i < content->n; i++) bytes_append_text(out, word(&content->items[i], "text"));
    bytes_append_text(out, ";");
}

/* Each item's text grows to what its last events and the whole response have. */
static void take_response_event(blocks *b, const json *event) {
    const char *type = word(event, "type");
    const json *item = json_get(event, "item"), *index = json_get(event, "output_index"), *part;
    if (index) assert_int_equal(index->integer, b->n);
    if (strcmp(type, "response.output_item.added") == 0) {
        assert_false(b->is_open);
        b->is_open = true;
        b->text.n = 0;
        snprintf(b->type, sizeof b->type, "%s", word(item, "type"));
    } else if (strstr(type, "_text.delta")) {
        assert_true(strncmp(type, strcmp(b->type, "reasoning") == 0 ? "response.reasoning" : "response.output", 15) ==
                    0);
        bytes_append_text(&b->text, word(event, "delta"));
    } else if (strstr(type, "_text.done")) {
        assert_string_equal(word(event, "text"), bytes_text(&b->text));
    } else if ((part = json_get(event, "part"))) {
        assert_string_equal(word(part, "type"), strcmp(b->type, "reasoning") == 0 ? "reasoning_text" : "output_text");
        assert_string_equal(word(part, "text"), bytes_text(&b->text));
    } else if (strcmp(type, "response.output_item.done") == 0) {
        assert_true(b->is_open);
        b->is_open = false;
        b->n++;
        put_item(&b->done, item);
    }
}

/* The blocks or items of an answer, and of its stream; what is in both is compared with `wanted`. */
static void check_dialect(const fixture *w, const char *path, const char *fields, const char *wanted, bool thinks) {
    const bool is_message = strcmp(path, "/v1/messages") == 0;
    char body[2048];
    snprintf(body, sizeof body, "{%s,%s}", is_message ? USER ",\"max_tokens\":200" : "\"input\":\"Rome?\"", fields);
    answer_text a = client_ask(w->port, path, body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    const json *list = json_get(json_root(doc), is_message ? "content" : "output");
    bytes whole = {0};
    for (size_t i = 0; i < list->n; i++) (is_message ? put_block : put_item)(&whole, &list->items[i]);
    assert_string_equal(bytes_text(&whole), wanted);
    int64_t n_reasoning = -1;
    if (!is_message) {
        const json *usage = json_get(json_root(doc), "usage");
        n_reasoning = json_get(json_get(usage, "output_tokens_details"), "reasoning_tokens")->integer;
        if ((n_reasoning > 0) != thinks || n_reasoning > json_get(usage, "output_tokens")->integer)
            fail_msg("%s: %lld tokens of reasoning", body, (long long)n_reasoning);
    }
    json_close(&doc);
    client_clear(&a);

    bytes streamed = {0};
    blocks b = {0};
    bytes_printf(&streamed, "{\"stream\":true,%s", body + 1);
    a = client_ask(w->port, path, bytes_text(&streamed));
    for (const char *at = bytes_text(&a.body); (at = strstr(at, "data: ")); at++) {
        at += 6;
        assert_ok(json_parse(&doc, at, strcspn(at, "\n"), JSON_STRICT, "event"));
        (is_message ? take_message_event : take_response_event)(&b, json_root(doc));
        const json *last = json_get(json_root(doc), "response");
        if (last && strcmp(word(last, "status"), "completed") == 0) {
            const json *details = json_get(json_get(last, "usage"), "output_tokens_details");
            assert_int_equal(json_get(details, "reasoning_tokens")->integer, n_reasoning);
            assert_int_equal(json_get(last, "output")->n, b.n);
        }
        json_close(&doc);
    }
    assert_false(b.is_open);
    assert_string_equal(bytes_text(&b.done), wanted);
    bytes_clear(&b.done);
    bytes_clear(&b.text);
    bytes_clear(&whole);
    bytes_clear(&streamed);
    client_clear(&a);
}

#define TOOLS_OF_MESSAGES  "\"tools\":[{\"name\":\"go\",\"input_schema\":{}}],"
#define TOOLS_OF_RESPONSES "\"tools\":[{\"type\":\"function\",\"name\":\"go\",\"parameters\":{}}],"

static void other_dialects_have_it_in_their_form(void **state) {
    (void)state;
    static const struct {
        const char *fields, *reasoning, *text;
        bool thinks, calls;
    } of[] = {
        {GREEDY("<think>\\\\nOne </thin or two[.]\\\\n</think>\\\\n\\\\nRome[.]"), "One </thin or two.", "Rome.", true,
         false},
        {GREEDY("<think>\\\\n\\\\n</think>\\\\n\\\\nRome[.]"), NULL, "Rome.", true, false},
        {GREEDY("Rome[.] <think>a</think>"), NULL, "Rome. <think>a</think>", false, false},
        {GREEDY("\\\\n<thin air"), NULL, "\n<thin air", false, false},
        {GREEDY("<think>a </thin"), "a </thin", NULL, true, false},
        {GREEDY("<think>" CALL "</think>I see[.] " CALL), "<tool_call>{\"name\": \"go\"}</tool_call>", "I see.", true,
         true},
        {GREEDY("<think>hm</think>" CALL), "hm", NULL, true, true},
    };
    fixture w = open_fixture(TOOL_SIGN TEMPLATE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        for (int is_message = 0; is_message < 2; is_message++) {
            const char *tools = is_message ? TOOLS_OF_MESSAGES : TOOLS_OF_RESPONSES;
            bytes wanted = {0}, fields = {0};
            bytes_printf(&fields, "%s%s", of[i].calls ? tools : "", of[i].fields);
            if (of[i].reasoning)
                bytes_printf(&wanted, "%s %s;", is_message ? "thinking" : "reasoning", of[i].reasoning);
            if (of[i].text) bytes_printf(&wanted, "%s %s;", is_message ? "text" : "message", of[i].text);
            if (of[i].calls) bytes_append_text(&wanted, is_message ? "tool_use ;" : "function_call ;");
            check_dialect(&w, is_message ? "/v1/messages" : "/v1/responses", bytes_text(&fields), bytes_text(&wanted),
                          of[i].thinks);
            bytes_clear(&wanted);
            bytes_clear(&fields);
        }
    }
    close_fixture(&w);
}

/* Of a conversation that is kept the answer alone goes on. */
static void kept_conversations_are_without_it(void **state) {
    (void)state;
    fixture w = open_fixture(TEMPLATE);
    answer_text a = client_ask(w.port, "/v1/responses", "{\"input\":\"Rome?\"," GREEDY("<think>a</think>Yes[.]") "}");
    json_doc *doc = client_json(&a);
    char body[512];
    snprintf(body, sizeof body,
             "{\"input\":\"So\",\"max_output_tokens\":1,\"temperature\":0,\"previous_response_id\":\"%s\"}",
             word(json_root(doc), "id"));
    json_close(&doc);
    client_clear(&a);
    a = client_ask(w.port, "/v1/responses", body);
    doc = client_json(&a);
    size_t n;
    const char *const settings[] = {"max_new_tokens", "1", NULL};
    mn_generation *g = alone(&w, "<s>user: Rome?\nassistant: Yes.\nuser: So\nassistant:", settings, &n);
    assert_int_equal(json_get(json_get(json_root(doc), "usage"), "input_tokens")->integer, n);
    mn_generation_close(&g);
    json_close(&doc);
    client_clear(&a);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_and_variables_reach_the_template),
        cmocka_unit_test(earlier_reasoning_reaches_the_template),
        cmocka_unit_test(wrong_ones_are_refused_by_name),
        cmocka_unit_test(reasoning_comes_apart_from_the_answer),
        cmocka_unit_test(answers_and_calls_have_their_own),
        cmocka_unit_test(prompts_may_begin_the_reasoning),
        cmocka_unit_test(other_dialects_have_it_in_their_form),
        cmocka_unit_test(kept_conversations_are_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
