/* Functions that a model calls: answers in each form are split into text and calls, streamed or whole; a forced call
 * has valid arguments with any model; calls and results go back through the template.
 * SPDX-License-Identifier: Apache-2.0 */
#include "request/tools.h"
#include "serve/fixture.h"
#include "support/schema_check.h"

static const tools_shape chat_shape = {
    .type = "function", .inner = "function", .parameters = "parameters", .allowed = "", .choices = ""};

#define WEATHER_SCHEMA                                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":8},\"unit\":{\"enum\":[\"c\",\"f\"]}," \
    "\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":7}},\"required\":[\"city\",\"unit\",\"days\"],"                \
    "\"additionalProperties\":false}"
#define POINT_SCHEMA                                                                                                          \
    "{\"type\":\"object\",\"properties\":{\"at\":{\"$ref\":\"#/$defs/point\"}},\"required\":[\"at\"],"                        \
    "\"additionalProperties\":false,\"$defs\":{\"point\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"boolean\"}}," \
    "\"required\":[\"x\"],\"additionalProperties\":false}}}"
#define FUNCTION(name, schema) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":" schema "}}"
#define TOOLS                  "[" FUNCTION("weather", WEATHER_SCHEMA) "," FUNCTION("go", POINT_SCHEMA) "]"

#define HERMES  "{% if tools %}<tool_call>{% endif %}"
#define LLAMA   "{% if tools %}<|python_tag|>{% endif %}"
#define MISTRAL "{% if tools %}[TOOL_CALLS]{% endif %}"
#define UNKNOWN "{% if tools %}<function={% endif %}"

static json_doc *parse(const char *text) {
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_STRICT, "test"));
    return doc;
}

static tools *open_tools(const char *template, bool is_single) {
    tools *t = NULL;
    refusal why = {0};
    const tools_choice choice = {.is_single = is_single};
    json_doc *list = parse(TOOLS);
    assert_ok(tools_open(&t, template, &chat_shape, json_root(list), &choice, &why));
    json_close(&list);
    return t;
}

/* ---- splitting ---- */

static const struct {
    const char *template, *text, *content;
    const char *calls; /* "name arguments;" of each; "": none */
} answers[] = {
    {HERMES, "Hello", "Hello", ""},
    {HERMES, "", "", ""},
    {HERMES, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>", "",
     "weather {\"city\":\"Rome\"};"},
    {HERMES, "Let me see.\n<tool_call>{\"name\":\"go\",\"arguments\":{}}</tool_call>", "Let me see.", "go {};"},
    {HERMES,
     "<tool_call>{\"name\":\"go\"}</tool_call>\n<tool_call>{\"name\":\"weather\",\"arguments\":{\"days\":2}}</tool_call>",
     "", "go {};weather {\"days\":2};"},
    {HERMES, "<tool_call>{\"name\":\"go\",\"arguments\":{}}", "", "go {};"}, /* the end token came first */
    {HERMES, "<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>", ""},
    {HERMES, "<tool_call>{\"name\":\"go\",\"argu", "<tool_call>{\"name\":\"go\",\"argu", ""},
    {HERMES, "<tool_call></tool_call>", "<tool_call></tool_call>", ""},
    {HERMES, "{\"name\":\"go\",\"arguments\":{}}", "{\"name\":\"go\",\"arguments\":{}}", ""},
    {HERMES, "a <tool b", "a <tool b", ""},
    {HERMES, "<tool_call>{\"name\":\"go\",\"arguments\":\"{\\\"at\\\": 1}\"}</tool_call>", "", "go {\"at\": 1};"},
    {LLAMA, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}", "", "weather {\"city\":\"Rome\"};"},
    {LLAMA, " <|python_tag|>{\"name\": \"go\", \"parameters\": {}}", "", "go {};"},
    {LLAMA, "[{\"name\":\"go\",\"parameters\":{}},{\"name\":\"go\",\"parameters\":{\"at\":1}}]", "",
     "go {};go {\"at\":1};"},
    {LLAMA, "{\"name\": \"Rome\", \"size\": 3}", "{\"name\": \"Rome\", \"size\": 3}", ""},
    {LLAMA, "{ is a brace", "{ is a brace", ""},
    {LLAMA, "The answer is {\"name\":\"go\"}", "The answer is {\"name\":\"go\"}", ""},
    {MISTRAL,
     "[TOOL_CALLS][{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}},{\"name\":\"go\",\"arguments\":{}}]", "",
     "weather {\"city\":\"Rome\"};go {};"},
    {MISTRAL, "[{\"name\": \"go\", \"arguments\": {}}]", "", "go {};"},
    {MISTRAL, "Yes. [TOOL_CALLS] [{\"name\": \"go\", \"arguments\": {}}]", "Yes.", "go {};"},
    {MISTRAL, "[1, 2, 3]", "[1, 2, 3]", ""},
    {MISTRAL, "[]", "[]", ""},
    {MISTRAL, "[not a call", "[not a call", ""},
};

enum { N_ANSWERS = sizeof answers / sizeof *answers };

static void answers_are_split_into_text_and_calls(void **state) {
    (void)state;
    for (int i = 0; i < N_ANSWERS; i++) {
        tools *t = open_tools(answers[i].template, false);
        bytes calls = {0};
        tools_answer answer = tools_split(t, answers[i].text, strlen(answers[i].text));
        for (size_t k = 0; k < answer.n; k++) {
            assert_int_equal(strlen(answer.calls[k].id), 9);
            bytes_printf(&calls, "%s %s;", answer.calls[k].name, bytes_text(&answer.calls[k].arguments));
        }
        if (strcmp(bytes_text(&calls), answers[i].calls) != 0) fail_msg("%s: %s", answers[i].text, calls.data);
        assert_int_equal(answer.n_text, strlen(answers[i].content));
        assert_memory_equal(answers[i].text, answers[i].content, answer.n_text);
        tools_clear(&answer);
        bytes_clear(&calls);
        tools_close(&t);
    }
    tools *t = open_tools(MISTRAL, true);
    const char *two = "[{\"name\":\"go\"},{\"name\":\"weather\"}]";
    tools_answer answer = tools_split(t, two, strlen(two));
    assert_int_equal(answer.n, 1);
    tools_clear(&answer);
    tools_close(&t);
}

/* In pieces of every size: what was shown is the beginning of the content, and nothing of a call. */
static void streams_hold_back_what_may_be_a_call(void **state) {
    (void)state;
    for (int i = 0; i < N_ANSWERS; i++) {
        size_t n_text = strlen(answers[i].text), n_content = strlen(answers[i].content);
        for (size_t piece = 1; piece <= n_text; piece++) {
            tools *t = open_tools(answers[i].template, false);
            size_t shown = 0, n = 0, last = 0;
            for (size_t at = 0; at < n_text; at += piece) {
                size_t length = piece < n_text - at ? piece : n_text - at;
                const bytes *all = tools_push(t, 3, answers[i].text + at, length, &shown, &n);
                assert_int_equal(shown, last);
                assert_int_equal(all->n, at + length);
                last = n;
            }
            if (last > n_content) fail_msg("%s in pieces of %zu: %zu bytes were shown", answers[i].text, piece, last);
            tools_close(&t);
        }
    }
    tools *t = open_tools(HERMES, false);
    size_t shown, n;
    tools_push(t, 0, "Hello <b>", 9, &shown, &n);
    assert_int_equal(n, 9); /* nothing is held back without need */
    tools_close(&t);
}

/* ---- the server ---- */

static fixture open_fixture(const char *chat_template) {
    return serve_embedded(chat_template, (serve_options){.max_num_seqs = 16});
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Rome?\"}]"

typedef struct turn {
    bytes content, arguments;
    char name[64], reason[16];
    int n_calls;
} turn;

static void clear_turn(turn *t) {
    bytes_clear(&t->content);
    bytes_clear(&t->arguments);
}

static void take_message(turn *t, const json *message) {
    const json *content = json_get(message, "content"), *calls = json_get(message, "tool_calls");
    if (content && content->kind == JSON_STRING) bytes_append(&t->content, content->string, content->n);
    for (size_t i = 0; calls && i < calls->n; i++) {
        const json *function = json_get(&calls->items[i], "function"), *arguments = json_get(function, "arguments");
        snprintf(t->name, sizeof t->name, "%s", json_get(function, "name")->string);
        bytes_append(&t->arguments, arguments->string, arguments->n);
        t->n_calls++;
    }
}

static turn ask(const fixture *w, const char *fields, bool streams) {
    char body[4096];
    turn t = {0};
    snprintf(body, sizeof body, "{" USER ",%s\"max_tokens\":200,\"stream\":%s,%s}",
             strstr(fields, "\"temperature\"") ? "" : "\"temperature\":0,", streams ? "true" : "false", fields);
    answer_text a = client_ask(w->port, "/v1/chat/completions", body);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body.data);
    for (const char *at = a.body.data; at && strncmp(at, "data: [DONE]", 12) != 0;) {
        const char *end = streams ? strstr(at, "\n\n") : at + a.body.n;
        json_doc *doc = NULL;
        assert_ok(
            json_parse(&doc, streams ? at + 6 : at, (size_t)(end - at) - (streams ? 6 : 0), JSON_STRICT, "answer"));
        const json *choice = &json_get(json_root(doc), "choices")->items[0],
                   *reason = json_get(choice, "finish_reason");
        take_message(&t, json_get(choice, streams ? "delta" : "message"));
        if (reason->kind == JSON_STRING) snprintf(t.reason, sizeof t.reason, "%s", reason->string);
        json_close(&doc);
        at = streams ? end + 2 : NULL;
    }
    client_clear(&a);
    return t;
}

static void check_call(const turn *t, const char *schema) {
    json_doc *rules = parse(schema);
    if (!schema_check_text(json_root(rules), t->arguments.data ? t->arguments.data : "", t->arguments.n))
        fail_msg("%.*s", (int)t->arguments.n, t->arguments.data);
    json_close(&rules);
    assert_int_equal(t->n_calls, 1);
    assert_string_equal(t->reason, "tool_calls");
    assert_int_equal(t->content.n, 0);
}

static void forced_calls_are_valid_with_any_model(void **state) {
    (void)state;
    static const char *const templates[] = {HERMES PLAIN_TEMPLATE, LLAMA PLAIN_TEMPLATE, MISTRAL PLAIN_TEMPLATE,
                                            UNKNOWN PLAIN_TEMPLATE};
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        fixture w = open_fixture(templates[i]);
        for (int streams = 0; streams < 2; streams++) {
            turn t = ask(
                &w, "\"tools\":" TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}",
                streams);
            assert_string_equal(t.name, "weather");
            check_call(&t, WEATHER_SCHEMA);
            clear_turn(&t);
            t = ask(&w, "\"tools\":" TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"go\"}}",
                    streams);
            assert_string_equal(t.name, "go");
            check_call(&t, POINT_SCHEMA);
            clear_turn(&t);
            t = ask(&w, "\"tools\":" TOOLS ",\"tool_choice\":\"required\",\"seed\":1,\"temperature\":1.5", streams);
            check_call(&t, strcmp(t.name, "go") == 0 ? POINT_SCHEMA : WEATHER_SCHEMA);
            clear_turn(&t);
        }
        close_fixture(&w);
    }
}

/* The regular expression makes the model write a call by itself. */
static void calls_of_the_models_own_are_found(void **state) {
    (void)state;
    static const char fields[] =
        "\"tools\":" TOOLS
        ",\"regex\":\"I see[.]<tool_call>[{]\\\"name\\\": \\\"go\\\", \\\"arguments\\\": [{]\\\"at\\\": 3[}][}]</tool_call>\"";
    fixture w = open_fixture(TOOL_TEMPLATE);
    for (int streams = 0; streams < 2; streams++) {
        turn t = ask(&w, fields, streams);
        assert_string_equal(bytes_text(&t.content), "I see.");
        assert_string_equal(t.name, "go");
        assert_string_equal(bytes_text(&t.arguments), "{\"at\":3}");
        assert_string_equal(t.reason, "tool_calls");
        clear_turn(&t);
        t = ask(&w, "\"tools\":" TOOLS ",\"regex\":\"I see <tool> no[.]\"", streams);
        assert_string_equal(bytes_text(&t.content), "I see <tool> no.");
        assert_int_equal(t.n_calls, 0);
        assert_string_equal(t.reason, "stop");
        clear_turn(&t);
    }
    close_fixture(&w);
}

static void check_prompt(const fixture *w, const char *body, const char *wanted) {
    answer_text a = client_ask(w->port, "/apply-template", body);
    if (a.status != 200) fail_msg("%s: %s", body, a.body.data);
    json_doc *doc = client_json(&a);
    assert_string_equal(json_get(json_root(doc), "prompt")->string, wanted);
    json_close(&doc);
    client_clear(&a);
}

static void messages_reach_the_template_in_its_form(void **state) {
    (void)state;
    static const struct {
        const char *body, *prompt;
    } of[] = {
        {"{" USER "}", "<s>user: Rome?\nassistant:"},
        {"{" USER ",\"tools\":[" FUNCTION("go", "{}") "]}", "<s>66 go, user: Rome?\nassistant:"},
        {"{" USER ",\"tools\":[" FUNCTION("go", "{}") "],\"tool_choice\":\"none\"}", "<s>user: Rome?\nassistant:"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abc\",\"type\":\"function\","
         "\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": \\\"Rome\\\"}\"}}]},{\"role\":\"tool\","
         "\"tool_call_id\":\"abc\",\"content\":\"warm\"}]}",
         "<s>assistant: <tool_call>weather Rome</tool_call>\ntool: warm\nassistant:"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"abc\",\"function\":{\"name\":\"weather\","
         "\"arguments\":{\"city\":\"Rome\"}}}]}]}",
         "<s>assistant: <tool_call>weather Rome</tool_call>\nassistant:"},
        {"{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"Be \"},{\"type\":\"text\",\"text\":\"short\"}]}]}",
         "<s>system: Be short\nassistant:"},
    };
    fixture w = open_fixture(TOOL_TEMPLATE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) check_prompt(&w, of[i].body, of[i].prompt);
    close_fixture(&w);
}

/* A template that can do without a content is rendered without it; one that cannot gets an empty one. */
static void messages_without_content(void **state) {
    (void)state;
    static const char *const templates[][2] = {
        {"{% for m in messages %}{{ m.role }}: {{ 'text' if m.content is defined else 'none' }}\n{% endfor %}",
         "user: text\nassistant: none\nassistant: none\n"},
        {"{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",
         "user: Rome?\nassistant: \nassistant: \n"},
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        fixture w = open_fixture(templates[i][0]);
        check_prompt(
            &w,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Rome?\"},{\"role\":\"assistant\",\"content\":null},"
            "{\"role\":\"assistant\"}]}",
            templates[i][1]);
        close_fixture(&w);
    }
}

static void refuse(const fixture *w, const char *fields, const char *param, const char *part) {
    char body[4096];
    snprintf(body, sizeof body, "{%s}", fields);
    answer_text a = client_ask(w->port, "/v1/chat/completions", body);
    if (a.status != 400 || !strstr(a.body.data, part)) fail_msg("%s: %d %s", body, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    if (!json_is_string(json_get(json_get(json_root(doc), "error"), "param"), param))
        fail_msg("%s: %s", body, a.body.data);
    json_close(&doc);
    client_clear(&a);
}

static void what_cannot_be_called_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *fields, *param, *part;
    } of[] = {
        {USER ",\"tools\":[{}]", "tools", "at 0 no function"},
        {USER ",\"tools\":[" FUNCTION("go", "{}") ",{\"type\":\"retrieval\"}]", "tools", "at 1 no function"},
        {USER ",\"tools\":[" FUNCTION("a b", "{}") "]", "tools", "a name, allowed: 1 to 64 letters"},
        {USER ",\"tools\":[" FUNCTION("go", "3") "]", "tools", "parameters that are no JSON schema"},
        {USER ",\"tool_choice\":\"required\"", "tool_choice", "there are no 'tools'"},
        {USER ",\"tools\":" TOOLS ",\"tool_choice\":\"always\"", "tool_choice", "'tool_choice' is"},
        {USER ",\"tools\":" TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"fly\"}}",
         "tool_choice", "names no function"},
        {USER ",\"tools\":" TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}",
         "tool_choice", "beside 'response_format'"},
        {USER ",\"tools\":[" FUNCTION("go", "{\"contains\":{}}") "],\"tool_choice\":\"required\"", "tools",
         "'contains'"},
        {"\"messages\":[3]", "messages", "at 0 no message"},
        {"\"messages\":[{\"content\":\"a\"}]", "messages", "at 0 no message"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", "messages",
         "a part that is no text"},
    };
    fixture w = open_fixture(TOOL_TEMPLATE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) refuse(&w, of[i].fields, of[i].param, of[i].part);
    close_fixture(&w);
    w = open_fixture(PLAIN_TEMPLATE);
    refuse(&w, USER ",\"tools\":" TOOLS, "tools", "chat template takes none");
    close_fixture(&w);
    w = open_fixture(UNKNOWN PLAIN_TEMPLATE);
    refuse(&w, USER ",\"tools\":" TOOLS, "tools", "the form in which this model calls them");
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_split_into_text_and_calls),
        cmocka_unit_test(streams_hold_back_what_may_be_a_call),
        cmocka_unit_test(forced_calls_are_valid_with_any_model),
        cmocka_unit_test(calls_of_the_models_own_are_found),
        cmocka_unit_test(messages_reach_the_template_in_its_form),
        cmocka_unit_test(messages_without_content),
        cmocka_unit_test(what_cannot_be_called_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
