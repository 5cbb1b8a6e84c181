/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/distance.h"
#include "loaded_model.h"
#include "output.h"
#include "sampling.h"

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

static mn_status apply_members(mn_generation_config *config, const json *object) {
    bytes text = {0}, value = {0};
    bytes_append_text(&text, "{");
    for (size_t i = 0; i < object->n; i++) {
        const char *key = object->members[i].key;
        json_put_key(&text, key);
        value.n = 0;
        json_put_as(&value, &object->members[i].value, JSON_PYTHON);
        bytes_append_text(&text, sampling_value(key, bytes_text(&value)));
    }
    bytes_append_text(&text, "}");
    mn_status status = bytes_status(&value);
    bytes_clear(&value);
    if (status == MN_OK) return apply_object(config, &text);
    bytes_clear(&text);
    return status;
}

/* llama.cpp's name for the temperature. */
static mn_status apply_temp(mn_generation_config *config, const options *o) {
    const char *text = option_text(o, OPT_TEMP, NULL);
    char *end = NULL;
    if (!text) return MN_OK;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0))
        MN_FAIL(MN_E_ARG, "--temp: '%s' is no temperature; allowed: 0 (greedy) or above", text);
    return mn_generation_config_set(config, "temperature", sampling_value("temperature", text));
}

mn_status generation_set(mn_generation_config *config, const char *name, const char *text, bool *sampling_is_named) {
    char plain[64];
    size_t n = strlen(name);
    if (n >= sizeof plain) MN_FAIL(MN_E_ARG, "unknown field '%.60s...'", name);
    for (size_t i = 0; i <= n; i++) plain[i] = name[i] == '-' ? '_' : name[i];
    bool is_greedy = strcmp(plain, "greedy") == 0;
    if (is_greedy && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        MN_FAIL(MN_E_ARG, "greedy is '%.40s', allowed: true or false", text);
    if (is_greedy) return sampling_set(config, "do_sample", text[0] == 't' ? "false" : "true", sampling_is_named);
    int found = generation_flag(plain);
    const mn_generation_field other = {.name = plain, .kind = "any"};
    const mn_generation_field *field = found >= 0 ? mn_generation_field_at(found) : &other;
    char *value = NULL;
    MN_TRY(generation_value(&value, field, text));
    mn_status status = sampling_set(config, field->name, value, sampling_is_named);
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
        const char *value = o->generation[i].text, *name = mn_generation_field_at((int)i)->name;
        if (value) MN_TRY(mn_generation_config_set(config, name, sampling_value(name, value)));
    }
    MN_TRY(apply_temp(config, o));
    if (option_on(o, OPT_GREEDY)) MN_TRY(mn_generation_config_set(config, "do_sample", "false"));
    return apply_cache(config, o);
}

/* Fails with the token whose name is most like that one. */
static mn_status unknown_token(const mn_tokenizer *tokenizer, const char *name) {
    int32_t size = mn_vocab_size(tokenizer), n = 0;
    const char **names = mem_alloc((size_t)size + 1, sizeof *names);
    if (!names) return mem_no_memory();
    for (int32_t id = 0; id < size; id++) {
        const char *piece = mn_token_piece(tokenizer, id);
        if (piece) names[n++] = piece;
    }
    const char *near = text_nearest(name, names);
    mn_status status =
        near ? status_fail(MN_E_ARG, "--stop-token: '%.80s' is no token; did you mean %.80s?", name, near)
             : status_fail(MN_E_ARG, "--stop-token: '%.80s' is no token; allowed: the name of one, or its id", name);
    mem_free(names);
    return status;
}

static mn_status find_token(const mn_model *model, const char *name, int32_t *out) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(model);
    mn_model_info info = {.size = sizeof info};
    MN_TRY(mn_model_get_info(model, &info));
    if (*name && name[strspn(name, "0123456789")] == 0) {
        long long id = strtoll(name, NULL, 10);
        if (id >= info.vocab_size)
            MN_FAIL(MN_E_ARG, "--stop-token is %.20s, allowed: 0 to %d, or the name of a token", name,
                    info.vocab_size - 1);
        *out = (int32_t)id;
        return MN_OK;
    }
    if (!tokenizer) MN_FAIL(MN_E_ARG, "--stop-token: '%.80s' is no id, and the model has no tokenizer", name);
    *out = mn_token_id(tokenizer, name);
    return *out >= 0 ? MN_OK : unknown_token(tokenizer, name);
}

/* The model's own end tokens, which are null, an id or a list, as the beginning of a list. */
static void put_own(bytes *ids, const char *own) {
    if (strcmp(own, "null") == 0) return;
    size_t n = strlen(own), brackets = *own == '[';
    bytes_append(ids, own + brackets, n - 2 * brackets);
}

/* Adds the tokens of --stop-token to eos_token_id. With ignore_eos they take the place of the model's own, which then
 * go unnoticed as before. */
static mn_status apply_stop_tokens(mn_generation_config *config, const options *o, const mn_model *model) {
    const char *lines = option_text(o, OPT_STOP_TOKEN, NULL);
    bytes ids = {0}, name = {0};
    if (!lines) return MN_OK;
    char *own = mn_generation_config_get(config, "eos_token_id"),
         *ignore = mn_generation_config_get(config, "ignore_eos");
    mn_status status = own && ignore ? MN_OK : MN_E_NOMEM;
    bytes_append_text(&ids, "[");
    if (status == MN_OK && strcmp(ignore, "true") != 0) put_own(&ids, own);
    for (size_t n; *lines && status == MN_OK; lines += n + (lines[n] == '\n')) {
        int32_t id = 0;
        n = strcspn(lines, "\n");
        name.n = 0;
        bytes_append(&name, lines, n);
        status = find_token(model, bytes_text(&name), &id);
        bytes_printf(&ids, ids.n > 1 ? ",%d" : "%d", (int)id);
    }
    bytes_append_text(&ids, "]");
    if (status == MN_OK) status = bytes_status(&ids);
    if (status == MN_OK) status = mn_generation_config_set(config, "eos_token_id", bytes_text(&ids));
    if (status == MN_OK) status = mn_generation_config_set(config, "ignore_eos", "false");
    bytes_clear(&ids);
    bytes_clear(&name);
    mn_free(own);
    mn_free(ignore);
    return status;
}

static given_settings given_by(const options *o, const json_doc *file, const json *row) {
    return (given_settings){.row = row, .o = o, .file = file ? json_root(file) : NULL};
}

mn_status generation_build(mn_generation_config **config, const options *o, const mn_model *model, const json_doc *file,
                           const json *row) {
    const given_settings given = given_by(o, file, row);
    MN_TRY(mn_generation_config_open(config, model));
    mn_status status = file ? status_context(apply_members(*config, given.file), "%s", json_what(file)) : MN_OK;
    if (status == MN_OK) status = apply_options(*config, o);
    if (status == MN_OK && row) status = apply_members(*config, row);
    if (status == MN_OK) status = sampling_choose(*config, &given);
    if (status == MN_OK && model) status = apply_stop_tokens(*config, o, model);
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

mn_status options_cache(mn_generation_config **config, mn_cache_options *cache, mn_cache_summary *kind,
                        const options *o, const loaded_model *e) {
    bytes warned = {0};
    MN_TRY(generation_build(config, o, e->model, NULL, NULL));
    mn_status status = generation_cache(cache, kind, *config);
    if (status == MN_OK) status = cache_warn(e->model, cache, &warned);
    bytes_clear(&warned);
    return status;
}

int options_print_config(const options *o, const loaded_model *e) {
    mn_generation_config *config = NULL;
    mn_status status = generation_build(&config, o, e->model, NULL, NULL);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    config_print(o, config, NULL, 0);
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
    const given_settings given = given_by(o, file, NULL);
    bool is_sampling = strcmp(name, "do_sample") == 0, is_temperature = strcmp(name, "temperature") == 0;
    option_origin by_other = is_sampling ? sampling_origin(config, &given) : ORIGIN_DEFAULT;
    if (by_other != ORIGIN_DEFAULT) return by_other;
    if (is_sampling && option_on(o, OPT_GREEDY)) return o->set[OPT_GREEDY].origin;
    if (is_temperature && option_is_set(o, OPT_TEMP)) return o->set[OPT_TEMP].origin;
    if (field >= 0 && o->generation[field].text) return o->generation[field].origin;
    if (file && json_get(json_root(file), name)) return ORIGIN_GENERATION_FILE;
    return is_models_own(config, name) ? ORIGIN_MODEL : ORIGIN_DEFAULT;
}

static bool has_limit(const mn_generation_config *config, const options *o, const json_doc *file, const json *row) {
    bool length_is_given =
        generation_integer(config, "max_length", -1) >= 0 &&
        (json_get(row, "max_length") || origin_of_field(o, config, file, "max_length") != ORIGIN_DEFAULT);
    return length_is_given || generation_integer(config, "max_new_tokens", -1) >= 0;
}

mn_status generation_limit(mn_generation_config *config, const options *o, const json_doc *file, const json *row,
                           int64_t *answer_limit, int64_t room) {
    char text[32];
    bool is_given = has_limit(config, o, file, row);
    if (is_given || *answer_limit > room) *answer_limit = 0;
    if (is_given) return MN_OK;
    int64_t limit = *answer_limit > 0 ? *answer_limit : room;
    snprintf(text, sizeof text, "%lld", (long long)(limit > 1 ? limit : 1));
    return mn_generation_config_set(config, "max_new_tokens", text);
}

bool generation_report_limit(const mn_generation *generation, int64_t answer_limit) {
    bool is_cut = false;
    for (size_t i = 0; answer_limit > 0 && i < generation->n_sequences; i++)
        is_cut = is_cut || strcmp(generation->sequences[i]->finish_reason, "length") == 0;
    if (is_cut)
        print_message(
            "the answer ends at %lld tokens, the limit where none is given; -n N (--max-new-tokens) sets another",
            (long long)answer_limit);
    return is_cut;
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

/* The folder that a file named after the model is looked for in. */
static option_origin put_model_folder(bytes *value, const options *o, int id) {
    const char *own = getenv(id == OPT_CALIBRATION ? "MNEME_CALIBRATIONS" : "MNEME_PACKED");
    bytes folder = {0};
    value->n = 0;
    mn_status status = id == OPT_CALIBRATION ? calibration_folder(&folder) : packed_folder(&folder, o);
    if (status == MN_OK) json_put_string(value, folder.data, folder.n);
    bytes_clear(&folder);
    return own && *own ? ORIGIN_ENVIRONMENT : ORIGIN_DEFAULT;
}

static void print_row(bytes *b, const options *o, int id, const mn_generation_config *config, const json_doc *file) {
    const option *row = &option_table[id];
    char place[96] = "";
    bytes value = {0};
    option_origin origin = put_row_value(&value, o, id, config, file);
    if ((id == OPT_CALIBRATION || id == OPT_PACKED_DIR) && !option_is_set(o, (option_id)id)) {
        origin = put_model_folder(&value, o, id);
        snprintf(place, sizeof place, "(a file named after the model)");
    }
    bool is_described = row->standard && strchr(row->standard, ' ') && origin == ORIGIN_DEFAULT;
    if (is_described && !*place) snprintf(place, sizeof place, "(%s)", row->standard);
    print_value(b, option_on(o, OPT_JSON), row->name, bytes_text(&value), origin, place);
    bytes_clear(&value);
}

/* A limit that is not given is the one that holds. */
static void print_new_tokens(bytes *b, bool as_json, int64_t answer_limit) {
    char value[32] = "null";
    if (answer_limit > 0) snprintf(value, sizeof value, "%lld", (long long)answer_limit);
    print_value(b, as_json, "max_new_tokens", value, ORIGIN_DEFAULT,
                answer_limit > 0 ? "(of an answer)" : "(as many as the context holds)");
}

void config_print(const options *o, const mn_generation_config *config, const json_doc *file, int64_t answer_limit) {
    bool as_json = option_on(o, OPT_JSON);
    bytes b = {0};
    if (as_json) bytes_append_text(&b, "{");
    for (int i = 0; i < N_OPTIONS; i++) {
        bool about_printing = i == OPT_HELP || i == OPT_HELP_ALL || i == OPT_PRINT_CONFIG;
        if (!(option_table[i].commands & o->command->bit) || !option_table[i].help || about_printing) continue;
        print_row(&b, o, i, config, file);
    }
    bool has_fields = config && o->command->bit & COMMAND_GENERATES;
    for (int i = 0; has_fields && mn_generation_field_at(i); i++) {
        const char *name = mn_generation_field_at(i)->name;
        bool has_row = option_is_row(o->command, name);
        bool has_own = strcmp(name, "max_new_tokens") == 0 && !has_limit(config, o, file, NULL);
        char *value = has_row ? NULL : mn_generation_config_get(config, name);
        if (value && has_own) print_new_tokens(&b, as_json, answer_limit);
        if (value && !has_own) print_value(&b, as_json, name, value, origin_of_field(o, config, file, name), "");
        mn_free(value);
    }
    if (as_json) bytes_append_text(&b, "}\n");
    put_bytes(&b);
}
