/* SPDX-License-Identifier: Apache-2.0 */
#include "support/families.h"

#include "model/config.h"
#include "support/support.h"

const char *const golden_families[N_GOLDEN_FAMILIES] = {
    "llama",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "llama-untied-bias",
    "mistral-full",
    "mistral-window",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3-window",
    "phi3-longrope",
    "mixtral",
    "granite",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt-neox",
    "mamba",
    "jamba",
    "qwen2-moe",
    "qwen3-moe",
    "olmo2",
    "smollm3",
    "stablelm",
    "cohere",
    "phi",
    "gemma",
};

void families_need_every_type(const char *table, const char *const *first, size_t size, size_t n) {
    bool is_there[N_MODEL_TYPES] = {[MODEL_WHISPER] = true, [MODEL_WHISPER_ENCODER] = true};
    for (size_t i = 0; i < n; i++) {
        char path[256];
        model_config config;
        snprintf(path, sizeof path, "golden/%s/config.json",
                 *(const char *const *)(const void *)((const char *)first + i * size));
        json_doc *doc = open_json(data_path(path));
        assert_ok(config_from_json(&config, json_root(doc), path));
        is_there[config.model_type] = true;
        model_config_clear(&config);
        json_close(&doc);
    }
    for (int type = 0; type < N_MODEL_TYPES; type++) {
        if (!is_there[type]) fail_msg("%s: no checkpoint is of type '%s'", table, model_type_name((model_type)type));
    }
}
