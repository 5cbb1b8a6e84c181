/* SPDX-License-Identifier: Apache-2.0 */
#include "sampling.h"

#include <stdlib.h>
#include <string.h>

static bool is_zero_temperature(const char *name, const char *value) {
    char *end = NULL;
    return strcmp(name, "temperature") == 0 && strtod(value, &end) == 0 && end != value && *end == 0;
}

const char *sampling_value(const char *name, const char *value) {
    return is_zero_temperature(name, value) ? "null" : value;
}

/* A given value as JSON text, empty when there is none, and where it comes from. */
static option_origin put_given(bytes *value, const given_settings *given, const char *name) {
    const options *o = given->o;
    const json *in_row = json_get(given->row, name), *in_file = json_get(given->file, name);
    bool is_temp = strcmp(name, "temperature") == 0 && option_is_set(o, OPT_TEMP);
    const setting *s = is_temp ? &o->set[OPT_TEMP] : &o->generation[generation_field(name)];
    option_origin origin = ORIGIN_DEFAULT;
    if (in_row) {
        json_put_as(value, in_row, JSON_PYTHON);
        origin = ORIGIN_FLAG;
    } else if (s->text) {
        bytes_append_text(value, s->text);
        origin = s->origin;
    } else if (in_file) {
        json_put_as(value, in_file, JSON_PYTHON);
        origin = ORIGIN_GENERATION_FILE;
    }
    if (strcmp(bytes_text(value), "null") != 0) return origin;
    value->n = 0;
    return ORIGIN_DEFAULT;
}

static option_origin given_origin(const given_settings *given, const char *name, bool *is_zero) {
    bytes value = {0};
    option_origin origin = put_given(&value, given, name);
    *is_zero = origin != ORIGIN_DEFAULT && is_zero_temperature(name, bytes_text(&value));
    bytes_clear(&value);
    return origin;
}

/* top_k of contrastive search is no option of sampling. */
static bool turns_on(const mn_generation_config *config, const mn_generation_field *field) {
    if (strcmp(field->name, "top_k") != 0) return field->only_samples;
    char *alpha = mn_generation_config_get(config, "penalty_alpha");
    bool is_contrastive = alpha && strtod(alpha, NULL) > 0;
    mn_free(alpha);
    return !is_contrastive;
}

bool sampling_is_named(const given_settings *given) {
    bool is_zero;
    return option_on(given->o, OPT_GREEDY) || given_origin(given, "do_sample", &is_zero) != ORIGIN_DEFAULT;
}

/* The option, *name, that decides in the place of do_sample; *is_zero: it is a temperature of 0. */
static option_origin decide(const mn_generation_config *config, const given_settings *given, const char **name,
                            bool *is_zero) {
    option_origin origin = given_origin(given, *name = "temperature", is_zero);
    if (*is_zero) return origin;
    if (sampling_is_named(given)) return ORIGIN_DEFAULT;
    const mn_generation_field *field;
    for (int i = 0; (field = mn_generation_field_at(i)) != NULL && origin == ORIGIN_DEFAULT; i++) {
        bool ignored;
        if (turns_on(config, field)) origin = given_origin(given, *name = field->name, &ignored);
    }
    return origin;
}

static mn_status check(const mn_generation_config *config) {
    char *warnings = NULL;
    mn_status status = mn_generation_config_check(config, NULL, &warnings);
    mn_free(warnings);
    return status;
}

/* A search that cannot be sampled is a contradiction to the option `by`, as do_sample was not given. */
static mn_status turn_on(mn_generation_config *config, const char *by) {
    const bool is_sound = check(config) == MN_OK;
    MN_TRY(mn_generation_config_set(config, "do_sample", "true"));
    mn_status status = is_sound ? status_context(check(config), "%s turns sampling on", by) : MN_OK;
    if (status != MN_OK) mn_generation_config_set(config, "do_sample", "false");
    return status;
}

mn_status sampling_choose(mn_generation_config *config, const given_settings *given) {
    const char *name;
    bool is_zero = false;
    if (decide(config, given, &name, &is_zero) == ORIGIN_DEFAULT) return MN_OK;
    return is_zero ? mn_generation_config_set(config, "do_sample", "false") : turn_on(config, name);
}

option_origin sampling_origin(const mn_generation_config *config, const given_settings *given) {
    const char *name;
    bool is_zero;
    return decide(config, given, &name, &is_zero);
}

mn_status sampling_set(mn_generation_config *config, const char *name, const char *value, bool *is_named) {
    bool is_null = strcmp(value, "null") == 0, is_zero = is_zero_temperature(name, value);
    MN_TRY(mn_generation_config_set(config, name, sampling_value(name, value)));
    if (strcmp(name, "do_sample") == 0) *is_named = !is_null;
    if (is_zero) {
        *is_named = false;
        return mn_generation_config_set(config, "do_sample", "false");
    }
    bool is_option = turns_on(config, mn_generation_field_at(generation_field(name)));
    return *is_named || is_null || !is_option ? MN_OK : turn_on(config, name);
}
