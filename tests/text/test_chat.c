/* Chat templates: conversations become prompts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <unistd.h>

#include "support/scratch.h"
#include "text/chat.h"

static const char chatml[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static json_doc *parse(const char *text) {
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_PYTHON, "text"));
    return doc;
}

static void messages_become_a_prompt(void **state) {
    (void)state;
    const chat_turn turns[] = {{"system", "Be \"kind\".\n"}, {"user", "Grüße \\ \xF0\x9F\x98\x80 \xff"}};
    json_doc *messages = NULL;
    bytes out = {0};
    assert_ok(chat_messages(turns, 2, &messages));
    chat_request request = {.messages = json_root(messages), .add_generation_prompt = true};
    assert_ok(chat_render_text(chatml, sizeof chatml - 1, &request, &out));
    assert_string_equal(bytes_text(&out),
                        "<|im_start|>system\nBe \"kind\".\n<|im_end|>\n<|im_start|>user\nGrüße \\ \xF0\x9F\x98\x80 "
                        "\xEF\xBF\xBD<|im_end|>\n<|im_start|>assistant\n");
    out.n = 0;
    request.add_generation_prompt = false;
    assert_ok(chat_render_text(chatml, sizeof chatml - 1, &request, &out));
    assert_null(strstr(bytes_text(&out), "assistant"));
    bytes_clear(&out);
    json_close(&messages);
}

static void template_variables_are_those_of_transformers(void **state) {
    (void)state;
    const char *text =
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ tools }}|{{ documents is none }}|"
        "{{ messages[0].content[0].type }}|{{ enable_thinking }}|{{ add_generation_prompt }}|{{ strftime_now('%Y') }}";
    json_doc *messages = parse("[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]");
    json_doc *extra = parse("{\"enable_thinking\": false, \"eos_token\": \"<end>\"}"),
             *tools = parse("[{\"name\": \"f\"}]");
    const struct tm now = {.tm_year = 100, .tm_mday = 1};
    chat_request request = {.messages = json_root(messages),
                            .tokens = {.bos = "<s>", .eos = "</s>"},
                            .extra = json_root(extra),
                            .now = &now};
    bytes out = {0};
    assert_ok(chat_render_text(text, strlen(text), &request, &out));
    assert_string_equal(bytes_text(&out), "<s>|<end>|False|None|True|image|False|False|2000");
    request.tools = json_root(tools);
    out.n = 0;
    assert_ok(chat_render_text("{{ tools | tojson }}", 20, &request, &out));
    assert_string_equal(bytes_text(&out), "[{\"name\": \"f\"}]");
    bytes_clear(&out);
    json_close(&messages);
    json_close(&extra);
    json_close(&tools);
}

/* The rest of the message stays in its order, also null inside members. */
static void null_members_are_left_out(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"[{\"role\":\"user\",\"content\":null,\"name\":\"n\",\"x\":[null],\"y\":{\"z\":null}}]",
         "[{\"role\": \"user\", \"name\": \"n\", \"x\": [null], \"y\": {\"z\": null}}]"},
        {"[{\"role\":\"a\",\"reasoning\":\"r\",\"thinking\":\"t\"},{\"thinking\":\"t\",\"reasoning\":null,\"role\":\"a\"},"
         "{\"role\":\"a\",\"reasoning_content\":\"\",\"reasoning\":\"r\"},{\"role\":\"a\",\"reasoning\":{}}]",
         "[{\"role\": \"a\", \"reasoning\": \"r\", \"thinking\": \"t\", \"reasoning_content\": \"r\"}, "
         "{\"thinking\": \"t\", \"role\": \"a\", \"reasoning_content\": \"t\"}, "
         "{\"role\": \"a\", \"reasoning_content\": \"\", \"reasoning\": \"r\"}, {\"role\": \"a\", \"reasoning\": {}}]"},
        {"[]", "[]"},
    };
    static const char template[] = "{{ messages | tojson }}";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_doc *messages = parse(cases[i][0]);
        const chat_request request = {.messages = json_root(messages)};
        bytes out = {0};
        assert_ok(chat_render_text(template, sizeof template - 1, &request, &out));
        assert_string_equal(bytes_text(&out), cases[i][1]);
        bytes_clear(&out);
        json_close(&messages);
    }
}

static void errors_name_the_invalid_argument(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"null", "messages are missing"},
        {"{}", "messages must be an array of objects"},
        {"[1]", "messages[0] is not an object"},
        {"[{\"role\": \"user\"}, {}]", "messages[1] has no role"},
        {"[{\"role\": 5}]", "messages[0].role is not a string"},
        {"[{\"role\": null}]", "messages[0].role is not a string"},
    };
    bytes out = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_doc *messages = parse(wrong[i][0]);
        chat_request request = {.messages = json_root(messages)};
        assert_fails(MN_E_ARG, wrong[i][1], chat_render_text(chatml, sizeof chatml - 1, &request, &out));
        json_close(&messages);
    }
    json_doc *good = parse("[]"), *number = parse("5");
    chat_request request = {.messages = json_root(good), .tools = json_root(number)};
    assert_fails(MN_E_ARG, "tools must be an array", chat_render_text(chatml, sizeof chatml - 1, &request, &out));
    request = (chat_request){.messages = json_root(good), .extra = json_root(number)};
    assert_fails(MN_E_ARG, "must be an object", chat_render_text(chatml, sizeof chatml - 1, &request, &out));
    request = (chat_request){.messages = json_root(good)};
    assert_fails(MN_E_FORMAT, "line 1", chat_render_text("{{", 2, &request, &out));
    assert_fails(MN_E_ARG, "chat template: Only user",
                 chat_render_text("{{ raise_exception('Only user') }}", 34, &request, &out));
    assert_int_equal(out.n, 0);
    bytes_clear(&out);
    json_close(&good);
    json_close(&number);
}

/* mn_chat_render_with: each option reaches the template under its name, and is checked. */
static void options_reach_the_template(void **state) {
    (void)state;
    static const char config[] =
        "{\"chat_template\": \"{{ tools | tojson }} {{ documents | tojson }} {{ a }} {{ messages[0].content }}"
        "{{ '>' if add_generation_prompt }}\"}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    static const struct {
        const char *tools, *documents, *kwargs, *wanted; /* wanted: the text, or what the error has */
        mn_status status;
    } cases[] = {
        {NULL, NULL, NULL, "null null  Hi>", MN_OK},
        {"[{\"name\": \"f\"}]", NULL, NULL, "[{\"name\": \"f\"}] null  Hi>", MN_OK},
        {NULL, "[{\"title\": \"t\", \"text\": \"x\"}]", "{\"a\": false}",
         "null [{\"title\": \"t\", \"text\": \"x\"}] False Hi>", MN_OK},
        {"[]", NULL, "{\"tools\": 5, \"add_generation_prompt\": false}", "5 null  Hi", MN_OK},
        {"{}", NULL, NULL, "tools must be an array of objects", MN_E_ARG},
        {NULL, "[1]", NULL, "documents[0] is not an object", MN_E_ARG},
        {NULL, NULL, "[]", "template_kwargs must be an object", MN_E_ARG},
        {"[", NULL, NULL, "tools", MN_E_ARG},
        {NULL, "", NULL, "documents", MN_E_ARG},
        {NULL, NULL, "{a}", "template_kwargs", MN_E_ARG},
    };
    mn_tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(
        symlink(TESTS_DIR "/../models-embedded/stories260K/tokenizer.json", scratch_path("tokenizer.json")), 0);
    const char *path = scratch_file("tokenizer_config.json", config, sizeof config - 1);
    char folder[4096];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_ok(mn_tokenizer_open(&tokenizer, folder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_chat_options options;
        mn_chat_options_init(&options, sizeof options);
        assert_true(options.add_generation_prompt && !options.tools && !options.documents && !options.template_kwargs);
        options.tools = cases[i].tools;
        options.documents = cases[i].documents;
        options.template_kwargs = cases[i].kwargs;
        mn_status status = mn_chat_render_with(tokenizer, messages, sizeof messages - 1, &options, &text, &n);
        assert_int_equal(status, cases[i].status);
        if (status == MN_OK) {
            assert_string_equal(text, cases[i].wanted);
            assert_int_equal(n, strlen(text));
        } else {
            assert_non_null(strstr(mn_last_error(), cases[i].wanted));
            assert_null(text);
        }
        mn_free(text);
    }
    assert_ok(mn_chat_render_with(tokenizer, messages, sizeof messages - 1, NULL, &text, &n));
    assert_string_equal(text, "null null  Hi>");
    mn_free(text);
    mn_tokenizer_close(&tokenizer);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const chat_turn turns[] = {{"user", "Hi"}};
    int64_t live = mem_count().live, k = 1;
    for (;; k++) {
        json_doc *messages = NULL;
        bytes out = {0};
        mem_fail_after(k);
        mn_status status = chat_messages(turns, 1, &messages);
        if (status == MN_OK) {
            const chat_request request = {.messages = json_root(messages)};
            status = chat_render_text(chatml, sizeof chatml - 1, &request, &out);
        }
        mem_fail_after(0);
        json_close(&messages);
        bytes_clear(&out);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
    }
    assert_true(k > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_become_a_prompt),   cmocka_unit_test(template_variables_are_those_of_transformers),
        cmocka_unit_test(null_members_are_left_out),  cmocka_unit_test(errors_name_the_invalid_argument),
        cmocka_unit_test(options_reach_the_template), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
