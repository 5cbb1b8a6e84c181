/* Messages of clients become those that chat templates take.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/messages.h"

static const struct {
    const char *from, *to; /* to: NULL: refused */
    bool fill;
} cases[] = {
    {"[]", "[]", false},
    {"[{\"role\":\"user\",\"content\":\"Hi\",\"name\":\"A\"}]",
     "[{\"role\":\"user\",\"content\":\"Hi\",\"name\":\"A\"}]", false},
    {"[{\"role\":\"developer\",\"content\":\"Hi\"}]", "[{\"role\":\"system\",\"content\":\"Hi\"}]", false},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"\\u00e4\"}]}]",
     "[{\"role\":\"user\",\"content\":\"a\xC3\xA4\"}]", false},
    {"[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]", false},
    {"[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\"}]", false},
    {"[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\",\"content\":\"\"}]", true},
    {"[{\"role\":\"user\",\"content\":\"\"}]", "[{\"role\":\"user\",\"content\":\"\"}]", true},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1]}\"}}]}]",
     "[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1]}}}]}]",
     false},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{no\"}}]}]",
     "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{no\"}}]}]", false},
    {"[{\"content\":\"Hi\"}]", NULL, false},
    {"[\"Hi\"]", NULL, false},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"text\":\"a\"}]}]", NULL, false},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]", NULL, false},
};

enum { N_CASES = sizeof cases / sizeof *cases };

static void messages_become_those_of_templates(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        json_doc *doc;
        bytes out = {0};
        assert_int_equal(json_parse(&doc, cases[i].from, strlen(cases[i].from), JSON_STRICT, "messages"), MN_OK);
        mn_status status = messages_put(&out, json_root(doc), cases[i].fill);
        assert_int_equal(status, cases[i].to ? MN_OK : MN_E_ARG);
        if (cases[i].to) assert_string_equal(bytes_text(&out), cases[i].to);
        if (!cases[i].to) assert_non_null(strstr(mn_last_error(), "'messages' has at 0 "));
        bytes_clear(&out);
        json_close(&doc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_become_those_of_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
