/* libFuzzer entry: the input is a chat template, rendered with a small conversation under tight budgets.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/jinja.h"

static const char context_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be nice.\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hé\"}]},"
    " {\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]}],"
    " \"tools\": [{\"name\": \"f\"}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"d\": {\"a\": 1, \"b\": [2, null]}, \"s\": \"Text\", \"i\": 7}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const jinja_limits limits = {.steps = 100000, .memory = 4 << 20, .output = 1 << 20};
    const struct tm now = {.tm_year = 125, .tm_mday = 1};
    json_doc *context = NULL;
    jinja_template *template = NULL;
    bytes out = {0};
    if (json_parse(&context, context_text, sizeof context_text - 1, JSON_STRICT, "context") != MN_OK) return 0;
    if (jinja_compile(&template, (const char *)data, n) == MN_OK) {
        (void)jinja_render(template, json_root(context), &limits, &now, &out);
    }
    jinja_close(&template);
    bytes_clear(&out);
    json_close(&context);
    return 0;
}
