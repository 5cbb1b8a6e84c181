/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan_config.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/distance.h"
#include "base/json.h"
#include "base/mem.h"

/* clang-format off */
const config_row config_rows[N_CONFIG_KEYS] = {
    [CONFIG_MAX_CACHE_LEN] = {"max_cache_len", 1, INT64_C(1) << 40, NULL, 0, "1 to 2^40", "no limit", "most tokens in the cache; static allocates them at once"},
    [CONFIG_PAGE_TOKENS] = {"page_tokens", 1, INT64_C(1) << 24, NULL, 0, "even numbers from 2 to 128", "128", "tokens of a page; quantized needs a multiple of 16"},
    [CONFIG_PREFILL_CHUNK] = {"prefill_chunk", 1, 4096, NULL, 0, "1 to 4096", "512", "tokens of a prompt computed together"},
    [CONFIG_BACKEND] = {"backend", 0, 0, "mneme, quanto, hqq", KV_TRAIT_QUANTIZED, "mneme, quanto, hqq", "mneme", "codec; quanto and hqq follow Transformers"},
    [CONFIG_NBITS] = {"nbits", 1, 64, NULL, KV_TRAIT_QUANTIZED, "mneme 1 to 6 and 8; quanto 2, 4; hqq 1, 2, 3, 4, 8", "4", "bits of a stored number"},
    [CONFIG_KEY_NBITS] = {"key_nbits", 1, 64, NULL, KV_TRAIT_QUANTIZED, "as nbits", "nbits", "the same of keys alone"},
    [CONFIG_VALUE_NBITS] = {"value_nbits", 1, 64, NULL, KV_TRAIT_QUANTIZED, "as nbits", "nbits", "the same of values alone"},
    [CONFIG_Q_GROUP_SIZE] = {"q_group_size", 1, 1 << 20, NULL, KV_TRAIT_QUANTIZED, "divisors of head_dim, or of page_tokens across tokens", "64, or what divides", "numbers that share a scale"},
    [CONFIG_RESIDUAL_LENGTH] = {"residual_length", 0, 1 << 30, NULL, KV_TRAIT_QUANTIZED, "0 to 2^30", "64; quanto, hqq 128", "newest tokens kept exact"},
    [CONFIG_AXIS_KEY] = {"axis_key", -1, 1, NULL, KV_TRAIT_QUANTIZED, "quanto 0, -1; hqq 0, 1", "0", "along which keys share a scale"},
    [CONFIG_AXIS_VALUE] = {"axis_value", -1, 1, NULL, KV_TRAIT_QUANTIZED, "quanto 0, -1; hqq 0, 1", "0", "along which values share a scale"},
    [CONFIG_FIRST_EXACT] = {"first_exact", 0, 128, NULL, KV_TRAIT_QUANTIZED, "0 to 128", "4; quanto, hqq 0", "first tokens that always stay exact"},
    [CONFIG_LAYERS] = {"layers", 0, 0, NULL, KV_TRAIT_QUANTIZED, "as 0-1:bf16,5:k4v2bit,rest:4bit", "all alike", "forms of single layers"},
    [CONFIG_WINDOW_LENGTH] = {"window_length", 1, INT64_C(1) << 30, NULL, KV_TRAIT_WINDOWS, "1 to 2^30", "sink 1024, else the model's", "tokens that a query attends to, sinks included"},
    [CONFIG_NUM_SINK_TOKENS] = {"num_sink_tokens", 0, INT64_C(1) << 30, NULL, KV_TRAIT_SINKS, "0 to window_length - 1", "4", "first tokens that stay"},
    [CONFIG_HOME] = {"home", 0, 0, "memory, file", KV_TRAIT_OFFLOADED, "memory, file", "file", "where full pages are kept"},
    [CONFIG_PATH] = {"path", 0, 0, NULL, KV_TRAIT_OFFLOADED, "a folder", "$TMPDIR or /var/tmp", "folder of that file"},
    [CONFIG_COMPUTE_DTYPE] = {"compute_dtype", 0, 0, "float32, torch.float32, f32, float16, torch.float16, bfloat16, torch.bfloat16", KV_TRAIT_QUANTIZED, "float32, float16, bfloat16", "float32", "accepted; computation with quantized numbers is always in float32"},
    [CONFIG_DEVICE] = {"device", 0, 0, NULL, 0, "a device", "cpu", "accepted; caches are always in the memory of the CPU"},
    [CONFIG_IMPLEMENTATION] = {"cache_implementation", 0, 0, NULL, 0, "the cache implementation", "the one in use", "accepted where it names the same cache"},
};
/* clang-format on */

enum { COMPUTES_F32 = 3 }; /* this many values of compute_dtype need no warning */

/* Other names of keys, as Transformers' caches and models have them. */
static const struct {
    const char *name;
    config_key key;
} key_aliases[] = {{"sliding_window", CONFIG_WINDOW_LENGTH}};

static bool is_any_text(const config_row *row) {
    return row->lo == row->hi && !row->choices;
}

/* The address in kv_config of the value of a text key. */
static int text_place(config_key key) {
    int place = 0;
    for (int i = 0; i < (int)key; i++) place += is_any_text(&config_rows[i]);
    assert(is_any_text(&config_rows[key]) && place < N_CONFIG_TEXTS);
    return place;
}

const char *kv_config_text(const kv_config *config, config_key key) {
    return config->texts[text_place(key)];
}

static bool same_key(const char *name, const char *key, size_t n_key) {
    if (strlen(name) != n_key) return false;
    for (size_t i = 0; i < n_key; i++) {
        if (name[i] != (key[i] == '-' ? '_' : key[i])) return false;
    }
    return true;
}

/* N_CONFIG_KEYS: there is no such key. */
static int find_key(const char *key, size_t n_key) {
    for (size_t i = 0; i < sizeof key_aliases / sizeof *key_aliases; i++) {
        if (same_key(key_aliases[i].name, key, n_key)) return (int)key_aliases[i].key;
    }
    int i = 0;
    while (i < N_CONFIG_KEYS && !same_key(config_rows[i].name, key, n_key)) i++;
    return i;
}

static mn_status unknown_key(const char *name, size_t n) {
    const char *names[N_CONFIG_KEYS + 1] = {NULL};
    for (int i = 0; i < N_CONFIG_KEYS; i++) names[i] = config_rows[i].name;
    return text_unknown("there is no cache option", name, n, names, "");
}

static mn_status wrong_value(const config_row *row, const char *value) {
    MN_FAIL(MN_E_ARG, "cache option %s is '%.80s', allowed: %s", row->name, value, row->allowed);
}

/* The index of a word in a list "a, b, c"; -1: none. */
static int choice_of(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (int i = 0; *choices; i++) {
        size_t length = strcspn(choices, ",");
        if (length == n && strncasecmp(choices, word, n) == 0) return i;
        choices += length;
        choices += strspn(choices, ", ");
    }
    return -1;
}

/* key[n_key] and a value, trimmed. */
static mn_status set_value(kv_config *config, const char *key, size_t n_key, const char *value) {
    int i = find_key(key, n_key);
    if (i == N_CONFIG_KEYS) return unknown_key(key, n_key);
    const config_row *row = &config_rows[i];
    if (config->is_set[i]) MN_FAIL(MN_E_ARG, "cache option %s is given twice", row->name);
    config->is_set[i] = true;
    if (row->choices) {
        config->numbers[i] = choice_of(row->choices, value);
        return config->numbers[i] < 0 ? wrong_value(row, value) : MN_OK;
    }
    if (is_any_text(row)) {
        if (!*value) return wrong_value(row, value);
        snprintf(config->texts[text_place((config_key)i)], CONFIG_VALUE, "%s", value);
        return MN_OK;
    }
    char *end = NULL;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end || isspace((unsigned char)*value) || number < row->lo || number > row->hi)
        return wrong_value(row, value);
    config->numbers[i] = number;
    return MN_OK;
}

/* Copies value[n] without the white space around it. */
static mn_status set_part(kv_config *config, const char *key, size_t n_key, const char *value, size_t n) {
    char text[CONFIG_VALUE];
    while (n_key && isspace((unsigned char)*key)) key++, n_key--;
    while (n_key && isspace((unsigned char)key[n_key - 1])) n_key--;
    while (n && isspace((unsigned char)*value)) value++, n--;
    while (n && isspace((unsigned char)value[n - 1])) n--;
    if (n >= sizeof text) {
        MN_FAIL(MN_E_ARG, "cache option %.*s has %zu bytes, allowed: up to %zu", (int)(n_key < 60 ? n_key : 60), key, n,
                sizeof text - 1);
    }
    if (memchr(value, 0, n)) MN_FAIL(MN_E_ARG, "cache options: a value holds a zero byte");
    memcpy(text, value, n);
    text[n] = 0;
    return set_value(config, key, n_key, text);
}

/* The end of a value: a comma that a `word=` follows, or the end of the text. */
static const char *value_end(const char *at) {
    for (;; at++) {
        at += strcspn(at, ",");
        if (!*at) return at;
        const char *word = at + 1 + strspn(at + 1, " \t\n");
        size_t n = 0;
        while (isalnum((unsigned char)word[n]) || word[n] == '_' || word[n] == '-') n++;
        if (n > 0 && word[n + strspn(word + n, " \t\n")] == '=') return at;
    }
}

static mn_status read_list(kv_config *config, const char *text) {
    for (const char *at = text; *at;) {
        size_t n_key = strcspn(at, "=,");
        if (at[n_key] != '=') {
            MN_FAIL(MN_E_ARG, "cache options: '%.60s' is no key=value; allowed: as in nbits=4,backend=hqq", at);
        }
        const char *value = at + n_key + 1, *end = value_end(value);
        MN_TRY(set_part(config, at, n_key, value, (size_t)(end - value)));
        at = end + (*end == ',');
    }
    return MN_OK;
}

static mn_status read_object(kv_config *config, const json *root) {
    if (root->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "cache options are no JSON object; allowed: {\"nbits\": 4, ...}");
    for (size_t i = 0; i < root->n; i++) {
        const json_member *member = &root->members[i];
        const json *value = &member->value;
        if (value->kind == JSON_NULL) continue;
        if (memchr(member->key, 0, member->key_n)) return unknown_key(member->key, strlen(member->key));
        bytes text = {0};
        if (value->kind == JSON_STRING) {
            bytes_append(&text, value->string, value->n);
        } else {
            json_put(&text, value);
        }
        mn_status status = bytes_status(&text);
        if (status == MN_OK) status = set_part(config, member->key, member->key_n, bytes_text(&text), text.n);
        bytes_clear(&text);
        MN_TRY(status);
    }
    return MN_OK;
}

mn_status kv_config_read(kv_config *out, const char *text) {
    kv_config config = {0};
    if (!text) text = "";
    text += strspn(text, " \t\n");
    if (*text == '{' || *text == '[') {
        json_doc *doc = NULL;
        mn_status status = json_parse(&doc, text, strlen(text), JSON_STRICT, "cache options");
        if (status != MN_OK) return status == MN_E_FORMAT ? MN_E_ARG : status;
        status = read_object(&config, json_root(doc));
        json_close(&doc);
        MN_TRY(status);
    } else {
        MN_TRY(read_list(&config, text));
    }
    *out = config;
    return MN_OK;
}

bool kv_config_equal(const kv_config *a, const kv_config *b) {
    for (int i = 0; i < N_CONFIG_KEYS; i++) {
        if (a->is_set[i] != b->is_set[i]) return false;
        if (!a->is_set[i]) continue;
        bool same = is_any_text(&config_rows[i])
                        ? strcmp(kv_config_text(a, (config_key)i), kv_config_text(b, (config_key)i)) == 0
                        : a->numbers[i] == b->numbers[i];
        if (!same) return false;
    }
    return true;
}

mn_status kv_config_warn(const kv_config *config, bytes *lines) {
    if (config->is_set[CONFIG_COMPUTE_DTYPE] && config->numbers[CONFIG_COMPUTE_DTYPE] >= COMPUTES_F32)
        bytes_append_text(
            lines, "cache option compute_dtype has no effect: computation with quantized numbers is in float32\n");
    const char *device = kv_config_text(config, CONFIG_DEVICE);
    if (config->is_set[CONFIG_DEVICE] && strcmp(device, "cpu") != 0)
        bytes_printf(lines, "cache option device is '%.40s' but has no effect: caches are in the memory of the CPU\n",
                     device);
    return bytes_status(lines);
}

static void put_choice(bytes *out, const char *choices, int64_t number) {
    for (; number > 0; number--) choices += strcspn(choices, ",") + 1;
    choices += strspn(choices, " ");
    json_put_string(out, choices, strcspn(choices, ","));
}

void kv_config_put(bytes *out, const kv_config *config) {
    bool is_first = true;
    bytes_append_text(out, "{");
    for (int i = 0; i < N_CONFIG_KEYS; i++) {
        const config_row *row = &config_rows[i];
        if (!config->is_set[i]) continue;
        bytes_printf(out, "%s\"%s\":", is_first ? "" : ",", row->name);
        is_first = false;
        if (row->choices) {
            put_choice(out, row->choices, config->numbers[i]);
        } else if (is_any_text(row)) {
            const char *text = kv_config_text(config, (config_key)i);
            json_put_string(out, text, strlen(text));
        } else {
            bytes_printf(out, "%lld", (long long)config->numbers[i]);
        }
    }
    bytes_append_text(out, "}");
}
