/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loaded_model.h"
#include "output.h"

enum { CHAT_LIMIT = 256 }; /* default of new tokens of an answer */

mn_status generation_file_read(json_doc **doc, const options *o) {
    const char *path = option_text(o, OPT_GENERATION_CONFIG, NULL);
    if (!path) return MN_OK;
    MN_TRY(json_open(doc, path, JSON_PYTHON, 1 << 24));
    if (json_root(*doc)->kind == JSON_OBJECT) return MN_OK;
    json_close(doc);
    MN_FAIL(MN_E_ARG, "%s is no JSON object of generation fields", path);
}

/* The fields of an object; numbers may be infinite, as in the files that Transformers writes. */
static mn_status apply_object(mn_generation_config *config, bytes *text) {
    mn_status status = bytes_status(text);
    if (status == MN_OK) status = mn_generation_config_load(config, text->data, text->n);
    bytes_clear(text);
    return status;
}

static mn_status apply_file(mn_generation_config *config, const json_doc *file) {
    bytes text = {0};
    json_put_as(&text, json_root(file), JSON_PYTHON);
    return status_context(apply_object(config, &text), "%s", json_what(file));
}

/* A line of a batch: the fields other than its prompt. */
static mn_status apply_row(mn_generation_config *config, const json *row) {
    bytes text = {0};
    bytes_append_text(&text, "{");
    for (size_t i = 0; i < row->n; i++) {
        const char *key = row->members[i].key;
        if (strcmp(key, "ids") == 0 || strcmp(key, "prompt") == 0 || strcmp(key, "messages") == 0) continue;
        if (text.n > 1) bytes_append_text(&text, ",");
        json_put_string(&text, key, strlen(key));
        bytes_append_text(&text, ":");
        json_put_as(&text, &row->members[i].value, JSON_PYTHON);
    }
    bytes_append_text(&text, "}");
    return apply_object(config, &text);
}

/* llama.cpp's one switch for greedy and sampling. */
static mn_status set_temp(mn_generation_config *config, const char *text, bool sets_sampling) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0))
        MN_FAIL(MN_E_ARG, "--temp: '%s' is no temperature; allowed: 0 (greedy) or above", text);
    if (sets_sampling) MN_TRY(mn_generation_config_set(config, "do_sample", value > 0 ? "true" : "false"));
    return value > 0 ? mn_generation_config_set(config, "temperature", text) : MN_OK;
}

static mn_status apply_temp(mn_generation_config *config, const options *o) {
    const char *text = option_text(o, OPT_TEMP, NULL);
    return text ? set_temp(config, text, !generation_text(o, "do_sample")) : MN_OK;
}

mn_status generation_set(mn_generation_config *config, const char *name, const char *text) {
    char plain[64];
    size_t n = strlen(name);
    if (n >= sizeof plain) MN_FAIL(MN_E_ARG, "unknown field '%.60s...'", name);
    for (size_t i = 0; i <= n; i++) plain[i] = name[i] == '-' ? '_' : name[i];
    if (strcmp(plain, "temp") == 0) return set_temp(config, text, true);
    bool is_greedy = strcmp(plain, "greedy") == 0;
    if (is_greedy && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        MN_FAIL(MN_E_ARG, "greedy is '%.40s', allowed: true or false", text);
    if (is_greedy) return mn_generation_config_set(config, "do_sample", text[0] == 't' ? "false" : "true");
    int found = generation_flag(plain);
    const mn_generation_field other = {.name = plain, .kind = "any"};
    const mn_generation_field *field = found >= 0 ? mn_generation_field_at(found) : &other;
    char *value = NULL;
    MN_TRY(generation_value(&value, field, text));
    mn_status status = mn_generation_config_set(config, field->name, value);
    mem_free(value);
    return status;
}

/* The cache options, as an object like that of the file. */
static mn_status apply_cache(mn_generation_config *config, const options *o) {
    const char *name = option_text(o, OPT_CACHE, NULL), *details = option_text(o, OPT_CACHE_CONFIG, NULL);
    bytes text = {0};
    if (option_on(o, OPT_NO_CACHE)) MN_TRY(mn_generation_config_set(config, "use_cache", "false"));
    if (!name && !details) return MN_OK;
    bytes_append_text(&text, "{");
    if (name) bytes_append_text(&text, "\"cache_implementation\":");
    if (name) json_put_string(&text, name, strlen(name));
    if (details) bytes_append_text(&text, name ? ",\"cache_config\":" : "\"cache_config\":");
    if (details) json_put_string(&text, details, strlen(details));
    bytes_append_text(&text, "}");
    return apply_object(config, &text);
}

static mn_status apply_options(mn_generation_config *config, const options *o) {
    for (size_t i = 0; i < o->n_generation; i++) {
        const char *value = o->generation[i].text;
        if (value) MN_TRY(mn_generation_config_set(config, mn_generation_field_at((int)i)->name, value));
    }
    MN_TRY(apply_temp(config, o));
    if (option_on(o, OPT_GREEDY)) MN_TRY(mn_generation_config_set(config, "do_sample", "false"));
    return apply_cache(config, o);
}

mn_status generation_build(mn_generation_config **config, const options *o, const mn_model *model, const json_doc *file,
                           const json *row) {
    MN_TRY(mn_generation_config_open(config, model));
    mn_status status = file ? apply_file(*config, file) : MN_OK;
    if (status == MN_OK) status = apply_options(*config, o);
    if (status == MN_OK && row) status = apply_row(*config, row);
    if (status != MN_OK) mn_generation_config_close(config);
    return status;
}

int64_t generation_integer(const mn_generation_config *config, const char *name, int64_t absent) {
    char *text = mn_generation_config_get(config, name), *end = NULL;
    int64_t value = absent;
    if (text) {
        long long number = strtoll(text, &end, 10);
        if (end != text && *end == 0) value = number;
    }
    mn_free(text);
    return value;
}

mn_status generation_cache(mn_cache_options *cache, mn_cache_summary *kind, const mn_generation_config *config) {
    cache->implementation = cache->config = NULL; /* the options have already set them in the configuration */
    MN_TRY(mn_generation_config_cache(config, cache));
    return cache_resolve(cache, kind);
}

/* Prints each line that was not printed before; `warned` has those that were. */
static mn_status warn_once(const char *lines, bytes *warned) {
    for (size_t n; *lines; lines += n + 1) {
        n = strcspn(lines, "\n");
        bytes line = {0};
        bytes_append(&line, lines, n);
        bytes_append_text(&line, "\n");
        bool is_new = bytes_status(&line) == MN_OK && !strstr(bytes_text(warned), bytes_text(&line));
        if (is_new) print_message("warning: %.*s", (int)n, lines);
        if (is_new) bytes_append(warned, line.data, line.n);
        bytes_clear(&line);
    }
    return bytes_status(warned);
}

mn_status generation_warn(const mn_generation_config *config, const mn_generate_options *how, bytes *warned) {
    char *warnings = NULL;
    mn_status status = mn_generation_config_check(config, how, &warnings);
    if (status == MN_OK) status = warn_once(warnings, warned);
    mn_free(warnings);
    return status;
}

mn_status cache_warn(const mn_model *model, const mn_cache_options *cache, bytes *warned) {
    char *warnings = NULL;
    mn_status status = mn_cache_warnings(model, cache, &warnings);
    if (status == MN_OK) status = warn_once(warnings, warned);
    mn_free(warnings);
    return status;
}

mn_status verb_cache(mn_generation_config **config, mn_cache_options *cache, mn_cache_summary *kind, const options *o,
                     const loaded_model *e) {
    bytes warned = {0};
    MN_TRY(generation_build(config, o, e->model, NULL, NULL));
    mn_status status = generation_cache(cache, kind, *config);
    if (status == MN_OK) status = cache_warn(e->model, cache, &warned);
    bytes_clear(&warned);
    return status;
}

int verb_print_config(const options *o, const loaded_model *e) {
    mn_generation_config *config = NULL;
    mn_status status = generation_build(&config, o, e->model, NULL, NULL);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    config_print(o, config, NULL);
    mn_generation_config_close(&config);
    return EXIT_DONE;
}

/* Whether a value differs from what a configuration without a model holds. */
static bool is_models_own(const mn_generation_config *config, const char *name) {
    mn_generation_config *plain = NULL;
    if (mn_generation_config_open(&plain, NULL) != MN_OK) return false;
    char *a = mn_generation_config_get(config, name), *b = mn_generation_config_get(plain, name);
    bool differs = a && b && strcmp(a, b) != 0;
    mn_free(a);
    mn_free(b);
    mn_generation_config_close(&plain);
    return differs;
}

static option_origin origin_of_field(const options *o, const mn_generation_config *config, const json_doc *file,
                                     const char *name) {
    int field = generation_field(name);
    if (strcmp(name, "do_sample") == 0 && option_on(o, OPT_GREEDY)) return o->set[OPT_GREEDY].origin;
    if (field >= 0 && o->generation[field].text) return o->generation[field].origin;
    bool by_temp = strcmp(name, "do_sample") == 0 || strcmp(name, "temperature") == 0;
    if (by_temp && option_is_set(o, OPT_TEMP)) return o->set[OPT_TEMP].origin;
    if (file && json_get(json_root(file), name)) return ORIGIN_GENERATION_FILE;
    return is_models_own(config, name) ? ORIGIN_MODEL : ORIGIN_DEFAULT;
}

mn_status generation_limit(mn_generation_config *config, const options *o, const json_doc *file, const json *row,
                           bool is_chat, int64_t room) {
    if (generation_integer(config, "max_new_tokens", -1) >= 0) return MN_OK;
    bool length_is_given =
        generation_integer(config, "max_length", -1) >= 0 &&
        (json_get(row, "max_length") || origin_of_field(o, config, file, "max_length") != ORIGIN_DEFAULT);
    if (length_is_given) return MN_OK;
    int64_t limit = is_chat && CHAT_LIMIT < room ? CHAT_LIMIT : room;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)(limit > 1 ? limit : 1));
    return mn_generation_config_set(config, "max_new_tokens", text);
}

/* ---- --print-config ---- */

/* value: JSON text. */
static void print_value(bytes *b, bool as_json, const char *name, const char *value, option_origin origin,
                        const char *place) {
    if (as_json) {
        bytes_append_text(b, b->n > 1 ? "," : "");
        json_put_string(b, name, strlen(name));
        bytes_printf(b, ":{\"value\":%s,\"origin\":\"%s\"}", value, option_origin_names[origin]);
    } else {
        bytes_printf(b, "%-24s %-28s %s%s%s\n", name, value, option_origin_names[origin], *place ? " " : "", place);
    }
}

/* A row's value as JSON text: the given one, else that of the configuration's field of the same name, else a default
 * that is a value. */
static option_origin put_row_value(bytes *value, const options *o, int id, const mn_generation_config *config,
                                   const json_doc *file) {
    const option *row = &option_table[id];
    const setting *s = &o->set[id];
    char *field = config && !s->text ? mn_generation_config_get(config, row->name) : NULL;
    bool is_number = row->kind == OPTION_INTEGER || row->kind == OPTION_SIZE;
    option_origin origin = s->text ? s->origin : ORIGIN_DEFAULT;
    if (row->kind == OPTION_SWITCH) {
        bytes_append_text(value, s->number ? "true" : "false");
    } else if (s->text && is_number) {
        bytes_printf(value, "%lld", (long long)s->number);
    } else if (s->text) {
        json_put_string(value, s->text, strlen(s->text));
    } else if (field && strcmp(field, "null") != 0) {
        bytes_append_text(value, field);
        origin = origin_of_field(o, config, file, row->name);
    } else if (row->standard && is_number && isdigit((unsigned char)*row->standard)) {
        bytes_append_text(value, row->standard);
    } else if (row->standard && !is_number && !strchr(row->standard, ' ')) {
        json_put_string(value, row->standard, strlen(row->standard));
    } else {
        bytes_append_text(value, "null");
    }
    mn_free(field);
    return origin;
}

/* The folder with the model's own calibration. */
static option_origin put_calibration_folder(bytes *value) {
    const char *own = getenv("MNEME_CALIBRATIONS");
    bytes folder = {0};
    value->n = 0;
    if (calibration_folder(&folder) == MN_OK) json_put_string(value, folder.data, folder.n);
    bytes_clear(&folder);
    return own && *own ? ORIGIN_ENVIRONMENT : ORIGIN_DEFAULT;
}

static void print_row(bytes *b, const options *o, int id, const mn_generation_config *config, const json_doc *file) {
    const option *row = &option_table[id];
    char place[96] = "";
    bytes value = {0};
    option_origin origin = put_row_value(&value, o, id, config, file);
    if (id == OPT_CALIBRATION && !option_is_set(o, OPT_CALIBRATION)) {
        origin = put_calibration_folder(&value);
        snprintf(place, sizeof place, "(a file named after the model)");
    }
    bool is_described = row->standard && strchr(row->standard, ' ') && origin == ORIGIN_DEFAULT;
    if (is_described && !*place) snprintf(place, sizeof place, "(%s)", row->standard);
    print_value(b, option_on(o, OPT_JSON), row->name, bytes_text(&value), origin, place);
    bytes_clear(&value);
}

void config_print(const options *o, const mn_generation_config *config, const json_doc *file) {
    bool as_json = option_on(o, OPT_JSON);
    bytes b = {0};
    if (as_json) bytes_append_text(&b, "{");
    for (int i = 0; i < N_OPTIONS; i++) {
        bool about_printing = i == OPT_HELP || i == OPT_HELP_ALL || i == OPT_PRINT_CONFIG;
        if (!(option_table[i].verbs & o->verb->bit) || !option_table[i].help || about_printing) continue;
        print_row(&b, o, i, config, file);
    }
    bool has_fields = config && o->verb->bit & VERB_GENERATES;
    for (int i = 0; has_fields && mn_generation_field_at(i); i++) {
        bool has_row = option_is_row(o->verb, mn_generation_field_at(i)->name);
        char *value = has_row ? NULL : mn_generation_config_get(config, mn_generation_field_at(i)->name);
        if (value)
            print_value(&b, as_json, mn_generation_field_at(i)->name, value,
                        origin_of_field(o, config, file, mn_generation_field_at(i)->name), "");
        mn_free(value);
    }
    if (as_json) bytes_append_text(&b, "}\n");
    put_bytes(&b);
}
