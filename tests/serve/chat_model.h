/* The embedded model's checkpoint with a chat template.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_CHAT_MODEL_H
#define TESTS_SERVE_CHAT_MODEL_H

#include <unistd.h>

#include "base/json.h"
#include "support/engine.h"
#include "support/scratch.h"

#define PLAIN_TEMPLATE                                                                                                 \
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"                                \
    "{% if add_generation_prompt %}assistant:{% endif %}"

/* Functions first; calls and their results as Hermes writes them. */
#define TOOL_TEMPLATE                                                                                                  \
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson | length }} {{ tool.function.name }}, {% endfor %}"  \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"                         \
    "<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>{% endfor %}{{ '\\n' }}"        \
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"

/* generation_config: the text of that file; NULL: the checkpoint's. */
static inline mn_model *chat_model_with(const char *chat_template, const char *generation_config) {
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors", "generation_config.json"};
    char folder[512], from[1024], name[128];
    bytes config = {0};
    snprintf(folder, sizeof folder, "%s", scratch_empty("chat-model"));
    for (size_t i = 0; i < sizeof files / sizeof *files - (generation_config != NULL); i++) {
        snprintf(from, sizeof from, TESTS_DIR "/../models-embedded/stories260K/%s", files[i]);
        snprintf(name, sizeof name, "chat-model/%s", files[i]);
        assert_int_equal(symlink(from, scratch_path(name)), 0);
    }
    if (generation_config)
        scratch_file("chat-model/generation_config.json", generation_config, strlen(generation_config));
    bytes_append_text(&config, "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
                               "\"unk_token\":\"<unk>\",\"chat_template\":");
    json_put_string(&config, chat_template, strlen(chat_template));
    bytes_append_text(&config, "}");
    scratch_file("chat-model/tokenizer_config.json", config.data, config.n);
    bytes_clear(&config);
    return engine_model(folder, "auto", "auto", 1);
}

static inline mn_model *chat_model(const char *chat_template) {
    return chat_model_with(chat_template, NULL);
}

#endif
