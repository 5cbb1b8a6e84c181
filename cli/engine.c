/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "progress.h"

static const char *const cache_names[] = {"none", "dynamic", "static", NULL};
static const char *const later_names[] = {"offloaded", "offloaded_static", "quantized", "sliding_window",
                                          "sink",      "hybrid",           "mamba",     NULL};
static const char *const cache_keys[] = {"max_cache_len", "page_tokens", "prefill_chunk", NULL};
static const char *const later_keys[] = {
    "nbits",    "key_nbits",  "value_nbits",   "backend",         "q_group_size", "residual_length",
    "axis_key", "axis_value", "window_length", "num_sink_tokens", "home",         "path",
    NULL};

/* ---- model ---- */

mn_status model_path(char **path, const options *o, const char *name) {
    if (!name) name = option_text(o, OPT_MODEL, NULL);
    const char *alias = name ? options_alias(o, name) : NULL;
    return mn_model_find(path, alias ? alias : name);
}

int engine_open(engine *e, const options *o, const char *name, int threads) {
    mn_status status = model_path(&e->path, o, name);
    if (status != MN_OK) return report(o, exit_of_model(status), "model");
    mn_model_options how = mn_model_options_default();
    how.compute_type = option_text(o, OPT_COMPUTE_TYPE, how.compute_type);
    how.cpu = option_text(o, OPT_CPU, how.cpu);
    how.threads = threads ? threads : (int)option_number(o, OPT_THREADS, how.threads);
    how.memory_limit = (uint64_t)option_number(o, OPT_MEMORY_LIMIT, (int64_t)how.memory_limit);
    how.progress = progress_shown() ? progress_loading : NULL;
    double start = clock_ms();
    status = mn_model_open(&e->model, e->path, &how);
    e->info.size = sizeof e->info;
    if (status == MN_OK) status = mn_model_get_info(e->model, &e->info);
    e->load_ms = clock_ms() - start;
    progress_clear();
    if (status != MN_OK) return report(o, exit_of_model(status), "model");
    if (e->info.warning) say("warning: %s", e->info.warning);
    if (option_on(o, OPT_VERBOSE)) {
        say("model %s: %s, %.1f M parameters, %s on %s, %d threads, loaded in %.0f ms", e->path,
            e->info.architecture, (double)e->info.parameters / 1e6, e->info.compute_type, e->info.cpu,
            e->info.threads, e->load_ms);
    }
    return EXIT_DONE;
}

void engine_close(engine *e) {
    mn_model_close(&e->model);
    mn_free(e->path);
    *e = (engine){0};
}

/* ---- cache ---- */

static bool is_listed(const char *const *names, const char *text, size_t n) {
    for (; *names; names++) {
        if (strlen(*names) == n && strncmp(*names, text, n) == 0) return true;
    }
    return false;
}

mn_status cache_name_apply(mn_cache_options *cache, const char *name) {
    if (is_listed(cache_names, name, strlen(name))) {
        cache->implementation = name;
        return MN_OK;
    }
    bool later = strchr(name, '=') != NULL || *name == 0;
    for (const char *part = name; *part && !later; part += strcspn(part, "+"), part += *part == '+') {
        later = is_listed(later_names, part, strcspn(part, "+"));
    }
    if (later && *name) {
        MN_FAIL(MN_E_ARG, "the cache '%s' is not there yet; there are none, dynamic and static", name);
    }
    const char *near = nearest_name(name, cache_names);
    MN_FAIL(MN_E_ARG, "there is no cache '%s'; %s%s%sthere are none, dynamic and static", name,
            near ? "did you mean " : "", near ? near : "", near ? "? " : "");
}

static mn_status cache_key_apply(mn_cache_options *cache, const char *key, const char *value) {
    if (is_listed(later_keys, key, strlen(key))) {
        MN_FAIL(MN_E_ARG,
                "the cache option '%s' belongs to caches that are not there yet; there is max_cache_len",
                key);
    }
    if (!is_listed(cache_keys, key, strlen(key))) {
        const char *near = nearest_name(key, cache_keys);
        MN_FAIL(MN_E_ARG,
                "there is no cache option '%s'; %s%s%sthere are max_cache_len, page_tokens and prefill_chunk",
                key, near ? "did you mean " : "", near ? near : "", near ? "? " : "");
    }
    char *end = NULL;
    long long number = strtoll(value, &end, 10),
              most = strcmp(key, "max_cache_len") == 0 ? 1LL << 40 : 1 << 24;
    if (end == value || *end || number < 1 || number > most) {
        MN_FAIL(MN_E_ARG, "the cache option %s is '%s', allowed: a whole number from 1 to %lld", key, value,
                most);
    }
    if (strcmp(key, "max_cache_len") == 0) cache->max_cache_len = number;
    if (strcmp(key, "page_tokens") == 0) cache->page_tokens = (int)number;
    if (strcmp(key, "prefill_chunk") == 0) cache->prefill_chunk = (int)number;
    return MN_OK;
}

static mn_status cache_object_apply(mn_cache_options *cache, const char *text) {
    json_doc *doc = NULL;
    MN_TRY(json_parse(&doc, text, strlen(text), JSON_PYTHON, "cache_config"));
    mn_status status = MN_OK;
    const json *root = json_root(doc);
    for (size_t i = 0; root->kind == JSON_OBJECT && i < root->n && status == MN_OK; i++) {
        bytes value = {0};
        if (root->members[i].value.kind == JSON_STRING) {
            bytes_append_text(&value, root->members[i].value.string);
        } else {
            json_put(&value, &root->members[i].value);
        }
        status = bytes_status(&value);
        if (status == MN_OK) status = cache_key_apply(cache, root->members[i].key, bytes_text(&value));
        bytes_clear(&value);
    }
    json_close(&doc);
    return status;
}

mn_status cache_config_apply(mn_cache_options *cache, const char *text) {
    if (*text == '{') return cache_object_apply(cache, text);
    for (const char *at = text; *at;) {
        char pair[256];
        size_t n = strcspn(at, ",");
        if (n >= sizeof pair) MN_FAIL(MN_E_ARG, "a cache option is longer than %zu bytes", sizeof pair - 1);
        memcpy(pair, at, n);
        pair[n] = 0;
        char *equals = strchr(pair, '=');
        if (!equals) MN_FAIL(MN_E_ARG, "'%s' is no key=value; as in max_cache_len=1024", pair);
        *equals = 0;
        MN_TRY(cache_key_apply(cache, pair, equals + 1));
        at += n + (at[n] == ',');
    }
    return MN_OK;
}

mn_status cache_options_read(const options *o, mn_cache_options *cache) {
    if (option_is_set(o, OPT_CACHE)) {
        MN_TRY(status_context(cache_name_apply(cache, option_text(o, OPT_CACHE, "")), "--cache"));
    }
    if (option_on(o, OPT_NO_CACHE)) {
        if (option_is_set(o, OPT_CACHE))
            MN_FAIL(MN_E_ARG, "--no-cache and --cache contradict each other; one is enough");
        cache->implementation = "none";
    }
    if (option_is_set(o, OPT_CACHE_CONFIG)) {
        MN_TRY(status_context(cache_config_apply(cache, option_text(o, OPT_CACHE_CONFIG, "")),
                              "--cache-config"));
    }
    cache->dtype = option_text(o, OPT_CACHE_DTYPE, cache->dtype);
    cache->max_cache_len = option_number(o, OPT_MAX_CACHE_LEN, cache->max_cache_len);
    return MN_OK;
}
