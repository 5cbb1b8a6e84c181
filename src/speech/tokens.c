/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/tokens.h"

#include <string.h>

#include "base/file.h"

enum { MAX_VOCAB = 1 << 24, MAX_POSITIONS = 1 << 20, FILE_BYTES = 16 << 20 };

/* A value of one of the two files, generation_config.json first. */
typedef struct source {
    const json *config, *generation;
    int64_t vocab_size;
} source;

static const char *const config_name = "config.json", *const generation_name = "generation_config.json";

static const json *find(const source *from, const char *key, const char **what) {
    const json *value = json_get(from->generation, key);
    *what = generation_name;
    if (value && value->kind != JSON_NULL) return value;
    *what = config_name;
    value = json_get(from->config, key);
    return value && value->kind != JSON_NULL ? value : NULL;
}

/* A token id; `out` is unchanged when neither file has the key. */
static mn_status read_id(int32_t *out, const source *from, const char *key) {
    const char *what;
    if (!find(from, key, &what)) return MN_OK;
    int64_t id = 0;
    MN_TRY(json_int(what, what == config_name ? from->config : from->generation, key, 0, from->vocab_size - 1, &id));
    *out = (int32_t)id;
    return MN_OK;
}

static mn_status need_id(int32_t *out, const source *from, const char *key) {
    const char *what;
    if (!find(from, key, &what)) return json_require(generation_name, from->generation, key);
    return read_id(out, from, key);
}

static mn_status read_ids(int32_t **out, size_t *n, const source *from, const char *key) {
    const char *what;
    const json *list = find(from, key, &what);
    if (!list) return MN_OK;
    if (list->kind != JSON_ARRAY) return json_wrong_value(what, key, list, "a list of token ids");
    *out = mem_alloc(list->n, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        const json *id = &list->items[i];
        if (id->kind != JSON_INT || id->integer < 0 || id->integer >= from->vocab_size)
            return json_wrong_value(what, key, id, "token ids below vocab_size");
        (*out)[i] = (int32_t)id->integer;
    }
    *n = list->n;
    return MN_OK;
}

static mn_status read_languages(speech_tokens *t, const source *from) {
    const char *what;
    const json *map = find(from, "lang_to_id", &what);
    if (!map) return MN_OK;
    if (map->kind != JSON_OBJECT) return json_wrong_value(what, "lang_to_id", map, "an object of token ids");
    t->languages = mem_alloc(map->n, sizeof *t->languages);
    if (!t->languages) return MN_E_NOMEM;
    for (size_t i = 0; i < map->n; i++) {
        const json_member *m = &map->members[i];
        int64_t id = 0;
        MN_TRY(json_int(what, map, m->key, 0, from->vocab_size - 1, &id));
        size_t n = m->key_n;
        if (n < 5 || n - 4 >= SPEECH_CODE_BYTES || memcmp(m->key, "<|", 2) != 0 || memcmp(m->key + n - 2, "|>", 2) != 0)
            MN_FAIL(MN_E_FORMAT,
                    "%s: lang_to_id has the key '%.40s', allowed: a code of at most %d letters as in '<|en|>'", what,
                    m->key, SPEECH_CODE_BYTES - 1);
        t->languages[i].id = (int32_t)id;
        memcpy(t->languages[i].code, m->key + 2, n - 4);
    }
    t->n_languages = map->n;
    return MN_OK;
}

static mn_status read_tasks(speech_tokens *t, const source *from) {
    const char *what;
    const json *map = find(from, "task_to_id", &what);
    if (!map) return MN_OK;
    if (map->kind != JSON_OBJECT) return json_wrong_value(what, "task_to_id", map, "an object of token ids");
    int64_t transcribe = -1, translate = -1;
    MN_TRY(json_int(what, map, "transcribe", 0, from->vocab_size - 1, &transcribe));
    MN_TRY(json_int(what, map, "translate", 0, from->vocab_size - 1, &translate));
    t->transcribe = (int32_t)transcribe;
    t->translate = (int32_t)translate;
    return MN_OK;
}

static mn_status read_heads(speech_tokens *t, const source *from) {
    const char *what;
    const json *list = find(from, "alignment_heads", &what);
    if (!list) return MN_OK;
    int64_t limits[2] = {MAX_POSITIONS, MAX_POSITIONS};
    MN_TRY(json_int(config_name, from->config, "decoder_layers", 1, MAX_POSITIONS, &limits[0]));
    MN_TRY(json_int(config_name, from->config, "decoder_attention_heads", 1, MAX_POSITIONS, &limits[1]));
    if (list->kind != JSON_ARRAY) return json_wrong_value(what, "alignment_heads", list, "a list of pairs");
    t->heads = mem_alloc(list->n, sizeof *t->heads);
    if (!t->heads) return MN_E_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        const json *pair = &list->items[i];
        bool is_good = pair->kind == JSON_ARRAY && pair->n == 2;
        for (size_t k = 0; is_good && k < 2; k++) {
            const json *x = &pair->items[k];
            is_good = x->kind == JSON_INT && x->integer >= 0 && x->integer < limits[k];
        }
        if (!is_good)
            return json_wrong_value(what, "alignment_heads", pair, "pairs of a decoder layer and a head of it");
        t->heads[i] = (cross_head){(int32_t)pair->items[0].integer, (int32_t)pair->items[1].integer};
    }
    t->n_heads = list->n;
    return MN_OK;
}

static mn_status read_numbers(speech_tokens *t, source *from) {
    int64_t length = 0, initial = -1;
    MN_TRY(json_require(config_name, from->config, "vocab_size"));
    MN_TRY(json_int(config_name, from->config, "vocab_size", 1, MAX_VOCAB, &from->vocab_size));
    MN_TRY(json_require(config_name, from->config, "max_target_positions"));
    MN_TRY(json_int(config_name, from->config, "max_target_positions", 8, MAX_POSITIONS, &length));
    MN_TRY(json_int(generation_name, from->generation, "max_initial_timestamp_index", 0, MAX_VOCAB, &initial));
    t->vocab_size = (int32_t)from->vocab_size;
    t->max_length = (int32_t)length;
    t->max_initial_timestamp = (int32_t)initial;
    MN_TRY(need_id(&t->end, from, "eos_token_id"));
    MN_TRY(need_id(&t->start, from, "decoder_start_token_id"));
    MN_TRY(need_id(&t->no_timestamps, from, "no_timestamps_token_id"));
    MN_TRY(read_id(&t->previous, from, "prev_sot_token_id"));
    t->no_speech = t->no_timestamps - 1;
    t->first_timestamp = t->no_timestamps + 1;
    if (t->no_timestamps <= t->end || t->first_timestamp >= t->vocab_size) {
        MN_FAIL(MN_E_FORMAT,
                "%s: no_timestamps_token_id is %d, allowed: between eos_token_id (%d) and the last id (%d)",
                generation_name, (int)t->no_timestamps, (int)t->end, (int)t->vocab_size - 1);
    }
    return MN_OK;
}

mn_status speech_tokens_read(speech_tokens *out, const json *config, const json *generation) {
    source from = {config, generation, 0};
    *out = (speech_tokens){.previous = -1, .transcribe = -1, .translate = -1};
    mn_status status = read_numbers(out, &from);
    if (status == MN_OK) status = read_ids(&out->suppress, &out->n_suppress, &from, "suppress_tokens");
    if (status == MN_OK)
        status = read_ids(&out->begin_suppress, &out->n_begin_suppress, &from, "begin_suppress_tokens");
    if (status == MN_OK) status = read_languages(out, &from);
    if (status == MN_OK) status = read_tasks(out, &from);
    if (status == MN_OK) status = read_heads(out, &from);
    if (status != MN_OK) speech_tokens_close(out);
    return status;
}

static mn_status open_file(json_doc **out, const char *folder, const char *name, bool is_needed) {
    bytes path = {0};
    mn_status status = path_join(&path, folder, name);
    if (status == MN_OK && (is_needed || file_is_there(path.data)))
        status = json_open(out, path.data, JSON_PYTHON, FILE_BYTES);
    bytes_clear(&path);
    return status;
}

mn_status speech_tokens_open(speech_tokens *out, const char *folder) {
    json_doc *config = NULL, *generation = NULL;
    *out = (speech_tokens){0};
    mn_status status = open_file(&config, folder, config_name, true);
    if (status == MN_OK) status = open_file(&generation, folder, generation_name, false);
    if (status == MN_OK) status = speech_tokens_read(out, json_root(config), generation ? json_root(generation) : NULL);
    json_close(&config);
    json_close(&generation);
    return status;
}

void speech_tokens_close(speech_tokens *tokens) {
    if (!tokens) return;
    mem_free(tokens->suppress);
    mem_free(tokens->begin_suppress);
    mem_free(tokens->languages);
    mem_free(tokens->heads);
    *tokens = (speech_tokens){0};
}

const speech_language *speech_tokens_language(const speech_tokens *tokens, const char *code) {
    for (size_t i = 0; i < tokens->n_languages; i++) {
        if (strcmp(tokens->languages[i].code, code) == 0) return &tokens->languages[i];
    }
    return NULL;
}

size_t speech_text_ids(int32_t *out, const speech_tokens *tokens, const int32_t *ids, size_t n) {
    size_t n_text = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < tokens->end) out[n_text++] = ids[i];
    }
    return n_text;
}

/* Returns how many ids there are. */
static size_t put_context(int32_t *out, const speech_tokens *tokens, const speech_context *context) {
    size_t room = speech_history_room(tokens), n_hotwords = context->n_hotwords, n_history = context->n_history;
    if (n_hotwords > room) n_hotwords = room;
    if (n_history > room - n_hotwords) n_history = room - n_hotwords;
    if (n_hotwords + n_history == 0) return 0;
    *out++ = tokens->previous;
    if (n_hotwords) memcpy(out, context->hotwords, n_hotwords * sizeof *out);
    if (n_history)
        memcpy(out + n_hotwords, context->history + (context->n_history - n_history), n_history * sizeof *out);
    return 1 + n_hotwords + n_history;
}

size_t speech_prompt(int32_t *out, const speech_tokens *tokens, const speech_language *language, speech_task task,
                     bool timestamps, const speech_context *context) {
    size_t n = 0;
    if (context && tokens->previous >= 0) n = put_context(out, tokens, context);
    int32_t task_id = task == SPEECH_TRANSLATE ? tokens->translate : tokens->transcribe;
    out[n++] = tokens->start;
    if (language) out[n++] = language->id;
    if (language && task_id >= 0) out[n++] = task_id;
    if (!timestamps) out[n++] = tokens->no_timestamps;
    return n;
}
