/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/generation_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"

typedef enum field_kind { FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_IDS, FIELD_TEXTS } field_kind;

/* One row a field: name, alias, kind, smallest and largest value, standard (JSON text), what is allowed,
 * help. Rows of kind INT and REAL that null sets to "not set" have -1 or 0 there, as the struct's comments
 * say: the last column. */
#define FIELDS(X)                                                                                            \
    X(max_new_tokens, "n-predict", INT, 1, 1e9, "null", "1 to 1000000000", "tokens to generate at most", -1) \
    X(min_new_tokens, NULL, INT, 0, 1e9, "0", "0 to 1000000000", "no end token before this many", 0)         \
    X(max_length, NULL, INT, 1, 1e9, "null", "1 to 1000000000", "prompt and new tokens together at most",    \
      -1)                                                                                                    \
    X(min_length, NULL, INT, 0, 1e9, "0", "0 to 1000000000", "prompt and new tokens together at least", 0)   \
    X(max_time, NULL, REAL, 0, 1e9, "null", "0 to 1e9", "stop after this many seconds", 0)                   \
    X(do_sample, NULL, BOOL, 0, 1, "false", "true or false",                                                 \
      "draw from the distribution, not the best token", 0)                                                   \
    X(temperature, "temp", REAL, 1e-6, 1e6, "1", "a number above 0", "divides the scores; below 1 sharpens", \
      1)                                                                                                     \
    X(top_k, NULL, INT, 0, 1e9, "50", "0 (off) or more", "keep the k best tokens", 0)                        \
    X(top_p, NULL, REAL, 0, 1, "1", "0 to 1", "keep the best tokens of this much probability", 1)            \
    X(min_p, NULL, REAL, 0, 1, "null", "0 to 1",                                                             \
      "drop tokens below this share of the best one's probability", 0)                                       \
    X(repetition_penalty, "repeat-penalty", REAL, 1e-6, 1e6, "1", "a number above 0",                        \
      "weakens tokens that occurred", 1)                                                                     \
    X(stop_strings, "stop", TEXTS, 1, 64, "null", "1 to 64 texts that are not empty and hold no zero byte",  \
      "stop when one of these appears", 0)                                                                   \
    X(eos_token_id, NULL, IDS, 0, 2147483647, "null", "token ids", "tokens that end the text", 0)            \
    X(ignore_eos, NULL, BOOL, 0, 1, "false", "true or false", "go on past the end token", 0)                 \
    X(bos_token_id, NULL, INT, 0, 2147483647, "null", "a token id", "token that begins a text", -1)          \
    X(pad_token_id, NULL, INT, 0, 2147483647, "null", "a token id", "filler token", -1)                      \
    X(seed, NULL, INT, 0, 9007199254740992.0, "null", "0 to 2^53", "same seed, same text", -1)

#define KIND_NAME_INT   "integer"
#define KIND_NAME_REAL  "number"
#define KIND_NAME_BOOL  "boolean"
#define KIND_NAME_IDS   "integers"
#define KIND_NAME_TEXTS "strings"

static const mn_generation_field fields[] = {
#define FIELD(name, alias, kind, lo, hi, standard, allowed, help, none)                                      \
    {#name, alias, KIND_NAME_##kind, allowed, standard, help},
    FIELDS(FIELD)
#undef FIELD
        {0},
};

typedef struct field_row {
    const char *name;
    field_kind kind;
    size_t offset;
    double lo, hi;
    const char *allowed, *standard;
    int none; /* what null means for numbers */
} field_row;

static const field_row rows[] = {
#define FIELD(name, alias, kind, lo, hi, standard, allowed, help, none)                                      \
    {#name, FIELD_##kind, offsetof(mn_generation_config, name), lo, hi, allowed, standard, none},
    FIELDS(FIELD)
#undef FIELD
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Transformers' fields that this engine knows but cannot change: their standard value is accepted
 * (checkpoints carry them), any other is refused. */
static const struct {
    const char *name, *standard;
} fixed[] = {
    {"num_beams", "1"},
    {"num_beam_groups", "1"},
    {"diversity_penalty", "0"},
    {"length_penalty", "1"},
    {"early_stopping", "false"},
    {"num_return_sequences", "1"},
    {"penalty_alpha", "null"},
    {"typical_p", "1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"encoder_repetition_penalty", "1"},
    {"no_repeat_ngram_size", "0"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"bad_words_ids", "null"},
    {"renormalize_logits", "false"},
    {"remove_invalid_values", "false"},
    {"forced_bos_token_id", "null"},
    {"forced_eos_token_id", "null"},
    {"exponential_decay_length_penalty", "null"},
    {"suppress_tokens", "null"},
    {"begin_suppress_tokens", "null"},
    {"sequence_bias", "null"},
    {"guidance_scale", "null"},
    {"watermarking_config", "null"},
    {"dola_layers", "null"},
    {"prompt_lookup_num_tokens", "null"},
    {"use_cache", "true"},
};

enum { N_FIXED = sizeof fixed / sizeof fixed[0] };

/* Fields of the files that say nothing about how text is made. */
static const char *const ignored[] = {
    "_from_model_config",
    "transformers_version",
    "cache_implementation",
    "cache_config",
    "return_legacy_cache",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "low_memory",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "max_matching_ngram_size",
    "prefill_chunk_size",
    "compile_config",
    "disable_compile",
    "trust_remote_code",
    "decoder_start_token_id",
    "is_assistant",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "token_healing",
    "generation_kwargs",
    "chat_format",
    "max_window_size",
    "_commit_hash",
    "constraints",
    "force_words_ids",
    "num_parameters",
    "stop_token_ids",
};

static bool is_ignored(const char *name) {
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        if (strcmp(ignored[i], name) == 0) return true;
    }
    return false;
}

static const field_row *find_row(const char *name) {
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    }
    return NULL;
}

static mn_status unknown_field(const char *what, const char *name) {
    const char *nearest = rows[0].name;
    for (int i = 0; i < N_ROWS + N_FIXED; i++) {
        const char *candidate = i < N_ROWS ? rows[i].name : fixed[i - N_ROWS].name;
        if (text_distance(name, strlen(name), candidate, strlen(candidate)) <
            text_distance(name, strlen(name), nearest, strlen(nearest)))
            nearest = candidate;
    }
    MN_FAIL(MN_E_ARG, "%s: '%.60s' is no field of a generation config; the nearest is '%s'", what, name,
            nearest);
}

bool id_list_has(const id_list *list, int32_t id) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->ids[i] == id) return true;
    }
    return false;
}

static void id_list_clear(id_list *list) {
    mem_free(list->ids);
    *list = (id_list){0};
}

static void text_list_clear(text_list *list) {
    for (size_t i = 0; i < list->n; i++) mem_free(list->texts[i]);
    mem_free(list->texts);
    *list = (text_list){0};
}

static mn_status wrong_value(const field_row *row, const json *value, const char *what) {
    bytes seen = {0};
    json_put(&seen, value);
    status_fail(MN_E_ARG, "%s: %s is %.60s, allowed: %s", what, row->name, bytes_text(&seen), row->allowed);
    bytes_clear(&seen);
    return MN_E_ARG;
}

static bool number_in_range(const field_row *row, const json *value, double *out) {
    if (value->kind != JSON_INT && value->kind != JSON_REAL) return false;
    *out = value->kind == JSON_INT ? (double)value->integer : value->real;
    return *out >= row->lo && *out <= row->hi;
}

/* A single id, or a list of ids. */
static mn_status set_ids(id_list *list, const field_row *row, const json *value, const char *what) {
    const json *items = value->kind == JSON_ARRAY ? value->items : value;
    size_t n = value->kind == JSON_ARRAY ? value->n : 1;
    for (size_t i = 0; i < n; i++) {
        double number;
        if (items[i].kind != JSON_INT || !number_in_range(row, &items[i], &number))
            return wrong_value(row, value, what);
    }
    int32_t *ids = mem_alloc(n, sizeof *ids);
    if (!ids) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)items[i].integer;
    id_list_clear(list);
    *list = (id_list){ids, n};
    return MN_OK;
}

static mn_status set_texts(text_list *list, const field_row *row, const json *value, const char *what) {
    const json *items = value->kind == JSON_ARRAY ? value->items : value;
    size_t n = value->kind == JSON_ARRAY ? value->n : 1;
    if ((double)n > row->hi) return wrong_value(row, value, what);
    for (size_t i = 0; i < n; i++) {
        bool is_text = items[i].kind == JSON_STRING && items[i].n > 0;
        if (!is_text || strlen(items[i].string) != items[i].n) return wrong_value(row, value, what);
    }
    text_list made = {mem_alloc(n, sizeof *made.texts), 0};
    if (!made.texts) return MN_E_NOMEM;
    for (; made.n < n; made.n++) {
        made.texts[made.n] = mem_copy_text(items[made.n].string, items[made.n].n);
        if (!made.texts[made.n]) {
            text_list_clear(&made);
            return MN_E_NOMEM;
        }
    }
    text_list_clear(list);
    *list = made;
    return MN_OK;
}

static bool same_value(const json *a, const json *b) {
    bool a_number = a->kind == JSON_INT || a->kind == JSON_REAL,
         b_number = b->kind == JSON_INT || b->kind == JSON_REAL;
    if (a_number && b_number) {
        return (a->kind == JSON_INT ? (double)a->integer : a->real) ==
               (b->kind == JSON_INT ? (double)b->integer : b->real);
    }
    return a->kind == b->kind && (a->kind == JSON_NULL || (a->kind == JSON_BOOL && a->boolean == b->boolean));
}

static mn_status check_fixed(int i_fixed, const json *value, const char *what) {
    const char *text = fixed[i_fixed].standard;
    json_doc *standard = NULL;
    MN_TRY(json_parse(&standard, text, strlen(text), JSON_STRICT, fixed[i_fixed].name));
    bool same = value->kind == JSON_NULL || same_value(value, json_root(standard));
    json_close(&standard);
    if (same) return MN_OK;
    bytes seen = {0};
    json_put(&seen, value);
    status_fail(MN_E_ARG, "%s: %s is %.60s, only its standard value %s is supported", what,
                fixed[i_fixed].name, bytes_text(&seen), text);
    bytes_clear(&seen);
    return MN_E_ARG;
}

static mn_status set_row(mn_generation_config *config, const field_row *row, const json *value,
                         const char *what) {
    void *place = (char *)config + row->offset;
    double number = 0;
    switch (row->kind) {
    case FIELD_INT:
        if (!number_in_range(row, value, &number) || number != floor(number))
            return wrong_value(row, value, what);
        *(int64_t *)place = (int64_t)number;
        return MN_OK;
    case FIELD_REAL:
        if (!number_in_range(row, value, &number)) return wrong_value(row, value, what);
        *(double *)place = number;
        return MN_OK;
    case FIELD_BOOL:
        if (value->kind != JSON_BOOL) return wrong_value(row, value, what);
        *(bool *)place = value->boolean;
        return MN_OK;
    case FIELD_IDS: return set_ids(place, row, value, what);
    case FIELD_TEXTS: return set_texts(place, row, value, what);
    }
    return MN_OK;
}

static void set_null(mn_generation_config *config, const field_row *row) {
    void *place = (char *)config + row->offset;
    if (row->kind == FIELD_INT) *(int64_t *)place = row->none;
    if (row->kind == FIELD_REAL) *(double *)place = row->none;
    if (row->kind == FIELD_BOOL) *(bool *)place = false;
    if (row->kind == FIELD_IDS) id_list_clear(place);
    if (row->kind == FIELD_TEXTS) text_list_clear(place);
}

mn_status generation_config_set(mn_generation_config *config, const char *name, const json *value,
                                const char *what) {
    const field_row *row = find_row(name);
    for (int i = 0; i < N_FIXED; i++) {
        if (strcmp(fixed[i].name, name) == 0) return check_fixed(i, value, what);
    }
    if (!row) return is_ignored(name) ? MN_OK : unknown_field(what, name);
    if (value->kind == JSON_NULL) {
        set_null(config, row);
        return MN_OK;
    }
    return set_row(config, row, value, what);
}

static bool is_known(const char *name) {
    for (int i = 0; i < N_FIXED; i++) {
        if (strcmp(fixed[i].name, name) == 0) return true;
    }
    return find_row(name) != NULL;
}

mn_status generation_config_load(mn_generation_config *config, const json *object, bool skip_unknown,
                                 const char *what) {
    if (object->kind != JSON_OBJECT) MN_FAIL(MN_E_ARG, "%s: a JSON object was expected", what);
    for (size_t i = 0; i < object->n; i++) {
        const json_member *member = &object->members[i];
        if (skip_unknown && !is_known(member->key)) continue;
        MN_TRY(generation_config_set(config, member->key, &member->value, what));
    }
    return MN_OK;
}

static mn_status set_standard(mn_generation_config *config) {
    for (int i = 0; i < N_ROWS; i++) {
        json_doc *value = NULL;
        MN_TRY(json_parse(&value, rows[i].standard, strlen(rows[i].standard), JSON_STRICT, rows[i].name));
        mn_status status = generation_config_set(config, rows[i].name, json_root(value), "default");
        json_close(&value);
        MN_TRY(status);
    }
    return MN_OK;
}

mn_status generation_config_copy(mn_generation_config **out, const mn_generation_config *from) {
    *out = NULL;
    mn_generation_config *config = mem_alloc(1, sizeof *config);
    if (!config) return MN_E_NOMEM;
    mn_status status = set_standard(config);
    for (int i = 0; from && status == MN_OK && i < N_ROWS; i++) {
        char *text = mn_generation_config_get(from, rows[i].name);
        json_doc *value = NULL;
        status = text ? json_parse(&value, text, strlen(text), JSON_PYTHON, rows[i].name) : MN_E_NOMEM;
        if (status == MN_OK) status = generation_config_set(config, rows[i].name, json_root(value), "copy");
        json_close(&value);
        mem_free(text);
    }
    if (status != MN_OK) {
        mn_generation_config_close(&config);
        return status;
    }
    *out = config;
    return MN_OK;
}

void mn_generation_config_close(mn_generation_config **config) {
    if (!*config) return;
    id_list_clear(&(*config)->eos_token_id);
    text_list_clear(&(*config)->stop_strings);
    mem_free(*config);
    *config = NULL;
}

mn_status mn_generation_config_set(mn_generation_config *config, const char *name, const char *value) {
    json_doc *doc = NULL;
    mn_status status = json_parse(&doc, value, strlen(value), JSON_STRICT, name);
    if (status == MN_E_FORMAT) MN_FAIL(MN_E_ARG, "%.60s is %.60s, which is not JSON", name, value);
    MN_TRY(status);
    status = generation_config_set(config, name, json_root(doc), "generation config");
    json_close(&doc);
    return status;
}

mn_status mn_generation_config_load(mn_generation_config *config, const char *text, size_t n_text) {
    json_doc *doc = NULL;
    mn_generation_config *loaded = NULL;
    MN_TRY(json_parse(&doc, text, n_text, JSON_PYTHON, "generation config"));
    mn_status status = generation_config_copy(&loaded, config);
    if (status == MN_OK) status = generation_config_load(loaded, json_root(doc), false, "generation config");
    if (status == MN_OK) { /* all of it or nothing */
        mn_generation_config before = *config;
        *config = *loaded;
        *loaded = before;
    }
    mn_generation_config_close(&loaded);
    json_close(&doc);
    return status;
}

char *mn_generation_config_get(const mn_generation_config *config, const char *name) {
    const field_row *row = find_row(name);
    if (!row) return NULL;
    const void *place = (const char *)config + row->offset;
    bytes out = {0};
    switch (row->kind) {
    case FIELD_INT:
        if (*(const int64_t *)place < 0) {
            bytes_append_text(&out, "null");
        } else {
            bytes_printf(&out, "%lld", (long long)*(const int64_t *)place);
        }
        break;
    case FIELD_REAL: json_put_real(&out, *(const double *)place); break;
    case FIELD_BOOL: bytes_append_text(&out, *(const bool *)place ? "true" : "false"); break;
    case FIELD_IDS: {
        const id_list *list = place;
        bytes_append_text(&out, "[");
        for (size_t i = 0; i < list->n; i++) bytes_printf(&out, "%s%d", i ? "," : "", list->ids[i]);
        bytes_append_text(&out, "]");
        break;
    }
    case FIELD_TEXTS: {
        const text_list *list = place;
        bytes_append_text(&out, "[");
        for (size_t i = 0; i < list->n; i++) {
            if (i) bytes_append_text(&out, ",");
            json_put_string(&out, list->texts[i], strlen(list->texts[i]));
        }
        bytes_append_text(&out, "]");
        break;
    }
    }
    char *text = out.failed ? NULL : mem_copy_text(out.data, out.n);
    bytes_clear(&out);
    return text;
}

const mn_generation_field *mn_generation_fields(void) {
    return fields;
}
