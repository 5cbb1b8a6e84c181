/* SPDX-License-Identifier: Apache-2.0 */
#include "session/saved.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "kv/snapshot.h"

static const char logits_name[] = "logits", salt_name[] = "cache_salt";

/* ---- identities ---- */

static mn_status tokenizer_fingerprint(char out[FINGERPRINT_HEX], const tokenizer *text) {
    out[0] = 0;
    if (!text) return MN_OK;
    fingerprint *f = NULL;
    MN_TRY(fingerprint_open(&f));
    for (size_t id = 0; id < tokenizer_size(text); id++) {
        size_t n = 0;
        const char *piece = tokenizer_piece(text, (int32_t)id, &n);
        fingerprint_add_sized(f, piece ? piece : "", piece ? n : 0);
    }
    fingerprint_put(out, f);
    fingerprint_close(&f);
    return MN_OK;
}

mn_status saved_identity_of(saved_identity *out, const mn_model *model) {
    const model_core *core = model->core;
    *out = (saved_identity){.takes_any_compute = false};
    MN_TRY(model_fingerprint(out->model, core));
    snprintf(out->compute, sizeof out->compute, "%s %s", core->compute_name,
             cpu_level_name(core->compute.kernels.level));
    return tokenizer_fingerprint(out->tokenizer, model->text);
}

/* Of the calibration of the quantized keys of this session's cache; "" without one. */
static void calibration_hash(char out[HASH_HEX], const mn_session *s) {
    const kv_calibration *calibration = s->calibration;
    bool is_used = false;
    out[0] = 0;
    for (int i = 0; calibration && i < kv_entries(s->cache); i++)
        is_used = is_used || kv_attention_view(s->cache, i).calibration;
    if (!is_used) return;
    size_t heads = (size_t)calibration->n_layers * (size_t)calibration->n_heads, dim = (size_t)calibration->dim;
    hash_put(out, hash_of(calibration->memory, heads * (3 * dim * dim + dim) * sizeof *calibration->memory));
}

/* A config without what is specific to this machine: the folder of the offload file. */
static mn_status put_config(bytes *out, const kv_config *config) {
    kv_config portable = *config;
    portable.is_set[CONFIG_PATH] = false;
    kv_config_put(out, &portable);
    bytes_text(out);
    return bytes_status(out);
}

/* The strategy as the options that open it again. */
static mn_status put_strategy(bytes *b, const mn_session *s) {
    char sum[HASH_HEX];
    bytes config = {0};
    bytes_append_text(b, "{");
    json_put_text_member(b, "implementation", s->plan.name);
    mn_status status = put_config(&config, &s->plan.config);
    if (status == MN_OK) json_put_text_member(b, "config", config.data);
    bytes_clear(&config);
    MN_TRY(status);
    json_put_text_member(b, "dtype", kv_codec_name(s->plan.exact));
    json_put_int_member(b, "max_cache_len", s->plan.options.limit);
    json_put_int_member(b, "page_tokens", s->plan.options.page_tokens);
    calibration_hash(sum, s);
    json_put_text_member(b, "calibration", sum);
    bytes_append_text(b, "}");
    return bytes_status(b);
}

static void put_rope(bytes *b, const mn_session *s) {
    const model_config *c = &s->model->net.config;
    bytes_append_text(b, "{");
    json_put_text_member(b, "rope_type", rope_type_name(c->rope_scaling.rope_type));
    bytes_append_text(b, ",\"rope_theta\":");
    json_put_real(b, c->rope_theta);
    json_put_int_member(b, "rotary_dim", c->rotary_dim);
    json_put_int_member(b, "regime", s->regime);
    bytes_append_text(b, "}");
}

/* ---- saving ---- */

typedef struct save {
    bytes strategy, rope;
    char tokens[24], created[32];
    kv_snapshot *pages;
    archive_entry *entries;
} save;

/* The arguments of saved_write. */
typedef struct save_call {
    const mn_session *session;
    const char *path;
    bool compress;
    const saved_identity *identity;
    const char *salt;
} save_call;

static mn_status write_archive(save *w, const save_call *call) {
    const mn_session *s = call->session;
    size_t n = 0;
    const archive_entry *pages = kv_snapshot_entries(w->pages, &n);
    w->entries = mem_alloc(n + 2, sizeof *w->entries);
    if (!w->entries) return MN_E_NOMEM;
    memcpy(w->entries, pages, n * sizeof *pages);
    w->entries[n++] = (archive_entry){.name = ARCHIVE_IDS,
                                      .type = DTYPE_I32,
                                      .n_dims = 1,
                                      .shape = {(int64_t)s->n_ids},
                                      .data = s->ids,
                                      .n_bytes = s->n_ids * sizeof *s->ids};
    if (s->has_logits) {
        int64_t vocab = s->model->net.config.vocab_size;
        w->entries[n++] = (archive_entry){.name = logits_name,
                                          .type = DTYPE_F32,
                                          .n_dims = 1,
                                          .shape = {vocab},
                                          .data = s->logits,
                                          .n_bytes = (size_t)vocab * sizeof *s->logits,
                                          .compress = call->compress};
    }
    char cached[24];
    snprintf(cached, sizeof cached, "%lld", (long long)kv_length(s->cache));
    const archive_member members[] = {
        {ARCHIVE_KIND, ARCHIVE_KIND_CACHE},
        {ARCHIVE_MODEL, s->model->what},
        {ARCHIVE_MODEL_FINGERPRINT, call->identity->model},
        {ARCHIVE_TOKENIZER_FINGERPRINT, call->identity->tokenizer},
        {ARCHIVE_STRATEGY, bytes_text(&w->strategy)},
        {ARCHIVE_ROPE, bytes_text(&w->rope)},
        {ARCHIVE_TOKENS, w->tokens},
        {"cached_tokens", cached},
        {ARCHIVE_COMPUTE, call->identity->compute},
        {ARCHIVE_CREATED, w->created},
        {salt_name, call->salt},
    };
    size_t n_members = sizeof members / sizeof *members - !call->salt;
    return archive_write_keyed(call->path, w->entries, n, members, n_members, &s->key);
}

static mn_status write_session(void *arg) {
    const save_call *call = arg;
    const mn_session *s = call->session;
    save w = {0};
    put_rope(&w.rope, s);
    mn_status status = put_strategy(&w.strategy, s);
    if (status == MN_OK) status = bytes_status(&w.rope);
    if (status == MN_OK) status = kv_snapshot_open(&w.pages, s->cache, call->compress);
    if (status == MN_OK) {
        time_t now = time(NULL);
        struct tm utc;
        strftime(w.created, sizeof w.created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
        snprintf(w.tokens, sizeof w.tokens, "%zu", s->n_ids);
        status = write_archive(&w, call);
    }
    kv_snapshot_close(&w.pages);
    mem_free(w.entries);
    bytes_clear(&w.strategy);
    bytes_clear(&w.rope);
    return status;
}

mn_status saved_write(const mn_session *session, const char *path, bool compress, const saved_identity *identity,
                      const char *salt) {
    save_call call = {session, path, compress, identity, salt};
    if (!session->plan.self.is_offloaded) return write_session(&call);
    return model_between_passes(session->model, write_session, &call);
}

mn_status mn_session_save(const mn_session *session, const char *path, bool compress) {
    saved_identity identity;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to save the cache to");
    MN_TRY(saved_identity_of(&identity, session->owner));
    return saved_write(session, path, compress, &identity, NULL);
}

/* ---- loading ---- */

static mn_status want_member(const archive *a, const char *key, const char **value) {
    *value = archive_member_of(a, key);
    if (!*value) MN_FAIL(MN_E_REFUSED, "the saved cache has no %s", key);
    return MN_OK;
}

static mn_status check_identity(const archive *a, const saved_identity *own) {
    const char *value;
    MN_TRY(want_member(a, ARCHIVE_KIND, &value));
    if (strcmp(value, ARCHIVE_KIND_CACHE) != 0) MN_FAIL(MN_E_REFUSED, "the file holds a %.40s, not a cache", value);
    MN_TRY(want_member(a, ARCHIVE_MODEL_FINGERPRINT, &value));
    if (strcmp(value, own->model) != 0) {
        const char *name = archive_member_of(a, ARCHIVE_MODEL);
        MN_FAIL(MN_E_REFUSED, "the saved cache belongs to another model (fingerprint %.8s, this model's is %.8s): %s",
                value, own->model, name ? name : "unnamed");
    }
    MN_TRY(want_member(a, ARCHIVE_TOKENIZER_FINGERPRINT, &value));
    if (strcmp(value, own->tokenizer) != 0) MN_FAIL(MN_E_REFUSED, "the saved cache belongs to another tokenizer");
    value = archive_member_of(a, ARCHIVE_COMPUTE);
    if (own->takes_any_compute || (value && strcmp(value, own->compute) == 0)) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "the saved cache was computed in '%.31s', not in '%s' as here",
            value ? value : "an unknown type", own->compute);
}

static const char *text_of(const json *object, const char *name) {
    const json *value = json_get(object, name);
    return value && value->kind == JSON_STRING ? value->string : NULL;
}

static mn_status number_of(const json *object, const char *name, int64_t most, int64_t *out) {
    const json *value = json_get(object, name);
    if (!value || value->kind != JSON_INT || value->integer < 0 || value->integer > most)
        MN_FAIL(MN_E_REFUSED, "the saved cache's %s is missing or out of range", name);
    *out = value->integer;
    return MN_OK;
}

/* Options with the strategy of an archive; strings point into *doc and *config. A file may determine the strategy, but
 * no folder of this machine. */
static mn_status read_strategy(const archive *a, json_doc **doc, bytes *config, mn_cache_options *options) {
    const char *value;
    int64_t limit, page;
    MN_TRY(want_member(a, ARCHIVE_STRATEGY, &value));
    mn_status status = json_parse(doc, value, strlen(value), JSON_STRICT, ARCHIVE_STRATEGY);
    if (status == MN_E_NOMEM) return status;
    if (status != MN_OK || json_root(*doc)->kind != JSON_OBJECT || !text_of(json_root(*doc), "implementation"))
        MN_FAIL(MN_E_REFUSED, "the saved cache's strategy cannot be read");
    const json *root = json_root(*doc);
    MN_TRY(number_of(root, "max_cache_len", (int64_t)1 << 40, &limit));
    MN_TRY(number_of(root, "page_tokens", PAGE_TOKENS, &page));
    mn_cache_options_init(options, sizeof *options);
    options->implementation = text_of(root, "implementation");
    if (text_of(root, "config")) {
        kv_config keys;
        mn_status reading = kv_config_read(&keys, text_of(root, "config"));
        if (reading == MN_E_ARG) return status_context(MN_E_REFUSED, "the saved cache's strategy cannot be read");
        MN_TRY(reading);
        MN_TRY(put_config(config, &keys));
        options->config = config->data;
    }
    options->dtype = text_of(root, "dtype");
    options->max_cache_len = limit;
    options->page_tokens = (int)page;
    return MN_OK;
}

/* Keys quantized with a calibration can be read only with the same calibration. */
static mn_status check_calibration(mn_session *s, const json *strategy) {
    char own[HASH_HEX];
    const char *saved = text_of(strategy, "calibration");
    calibration_hash(own, s);
    if (saved && strcmp(saved, own) == 0) return MN_OK;
    if (saved && !*saved) {
        s->calibration = NULL;
        return MN_OK;
    }
    MN_FAIL(MN_E_REFUSED, "the saved cache was quantized with another calibration (%s) than the model has now (%s)",
            saved ? saved : "unknown", *own ? own : "none");
}

/* Checks that the entries of a session have the layout of those of the file, and give the same results. */
static mn_status same_strategy(const mn_session *wanted, const mn_cache_options *options) {
    kv_plan saved;
    kv_spec *specs[2] = {NULL, NULL};
    int n[2] = {0, 0};
    mn_status status = kv_plan_make(&saved, options, wanted->plan.exact);
    if (status == MN_OK) status = session_specs(&specs[0], &n[0], wanted);
    if (status == MN_OK) status = session_plan_specs(&specs[1], &n[1], wanted->model, &saved, wanted->calibration);
    bool same = status == MN_OK && n[0] == n[1] && wanted->plan.options.page_tokens == saved.options.page_tokens;
    for (int i = 0; same && i < n[0]; i++) same = kv_spec_equal(&specs[0][i], &specs[1][i]);
    mem_free(specs[0]);
    mem_free(specs[1]);
    if (status == MN_OK && !same) {
        MN_FAIL(MN_E_REFUSED, "the saved cache has the strategy '%s', not the requested '%s', or its numbers differ",
                saved.name, wanted->plan.name);
    }
    return status;
}

/* A file may preallocate at most the model's context. */
static mn_status check_size(const mn_model *model, const mn_cache_options *options) {
    kv_plan plan;
    int64_t most = model->core->net.config.max_position_embeddings;
    MN_TRY(kv_plan_make(&plan, options, KV_BF16));
    if (plan.options.reserve <= most) return MN_OK;
    MN_FAIL(MN_E_REFUSED,
            "the saved cache preallocates %lld tokens; a file may preallocate up to %lld, the model's context, "
            "or max_cache_len where that is set",
            (long long)plan.options.reserve, (long long)most);
}

/* An empty session with the requested strategy, or that of the file when none is requested. */
static mn_status open_wanted(mn_session **s, mn_model *model, const mn_cache_options *expected, const json *strategy,
                             const mn_cache_options *saved) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    MN_TRY(options_take(&options, sizeof options, expected, "mn_cache_options"));
    bool is_named = expected && options.implementation, is_bounded = is_named || options.max_cache_len > 0;
    if (!is_named) {
        const mn_cache_options requested = options;
        options = *saved;
        options.prefill_chunk = requested.prefill_chunk;
        options.on_oom = requested.on_oom;
        options.key_file = requested.key_file;
        if (requested.max_cache_len) options.max_cache_len = requested.max_cache_len;
    }
    mn_status status = is_bounded ? MN_OK : check_size(model, &options);
    if (status == MN_OK) status = mn_session_open(s, model, &options);
    if (!is_named && (status == MN_E_ARG || status == MN_E_UNSUPPORTED))
        return status_context(MN_E_REFUSED, "the saved cache's strategy cannot be opened here");
    MN_TRY(status);
    MN_TRY(check_calibration(*s, strategy));
    return is_named ? same_strategy(*s, saved) : MN_OK;
}

static mn_status read_ids(mn_session *s, const archive *a) {
    const archive_view *view = archive_find(a, ARCHIVE_IDS);
    if (!view || view->type != DTYPE_I32 || view->n_dims != 1)
        MN_FAIL(MN_E_REFUSED, "the saved cache has no token ids");
    size_t n = view->n_bytes / sizeof *s->ids;
    MN_TRY(mem_grow(&s->ids, &s->ids_capacity, n, sizeof *s->ids));
    const uint8_t *data;
    MN_TRY(archive_bytes(a, view, s->ids, &data));
    if (n > 0 && data != (const uint8_t *)s->ids) memcpy(s->ids, data, n * sizeof *s->ids);
    for (size_t i = 0; i < n; i++) {
        if (s->ids[i] < 0 || s->ids[i] >= s->model->net.config.vocab_size)
            MN_FAIL(MN_E_REFUSED, "token %zu of the saved cache is %d, out of the vocabulary", i, s->ids[i]);
    }
    int64_t limit = s->plan.options.limit;
    if (limit && (int64_t)n > limit)
        MN_FAIL(MN_E_REFUSED, "the saved cache has %zu tokens, max_cache_len is %lld", n, (long long)limit);
    s->n_ids = n;
    return MN_OK;
}

static mn_status read_logits(mn_session *s, const archive *a) {
    const archive_view *view = archive_find(a, logits_name);
    size_t n_bytes = (size_t)s->model->net.config.vocab_size * sizeof *s->logits;
    if (!view) return MN_OK;
    if (view->type != DTYPE_F32 || view->n_bytes != n_bytes)
        MN_FAIL(MN_E_REFUSED, "the saved cache's logits differ in size from this model's");
    const uint8_t *data;
    MN_TRY(archive_bytes(a, view, s->logits, &data));
    if (data != (const uint8_t *)s->logits) memcpy(s->logits, data, n_bytes);
    s->has_logits = true;
    return MN_OK;
}

static mn_status read_regime(mn_session *s, const archive *a) {
    const char *value;
    json_doc *doc = NULL;
    MN_TRY(want_member(a, ARCHIVE_ROPE, &value));
    mn_status status = json_parse(&doc, value, strlen(value), JSON_STRICT, ARCHIVE_ROPE);
    if (status == MN_OK) status = number_of(json_root(doc), "regime", (int64_t)1 << 40, &s->regime);
    json_close(&doc);
    if (status == MN_OK || status == MN_E_NOMEM) return status;
    MN_FAIL(MN_E_REFUSED, "the saved cache's rotary parameters cannot be read");
}

static mn_status read_length(const mn_session *s, const archive *a, int64_t *n) {
    char *end = NULL;
    const char *cached = archive_member_of(a, "cached_tokens");
    long long tokens = cached ? strtoll(cached, &end, 10) : -1;
    if (!end || end == cached || *end || tokens < 0 || tokens > (long long)s->n_ids)
        MN_FAIL(MN_E_REFUSED, "the saved cache has no number of tokens");
    *n = tokens;
    return MN_OK;
}

/* Fills a fresh session of the right strategy. Takes the archive. */
static mn_status fill_session(mn_session *s, archive *a) {
    kv_spec *specs = NULL;
    int n = 0;
    int64_t n_cached = 0;
    mn_status status = archive_verify_gaps(a);
    if (status == MN_OK) status = read_ids(s, a);
    if (status == MN_OK) status = read_logits(s, a);
    if (status == MN_OK) status = read_regime(s, a);
    if (status == MN_OK) status = read_length(s, a, &n_cached);
    if (status == MN_OK) status = session_specs(&specs, &n, s);
    if (status == MN_OK) {
        kv_close(&s->cache); /* its reserved pages are needed now */
        status = kv_restore(&s->cache, s->model->pool, specs, n, &s->plan.options, a, n_cached);
    } else {
        archive_close(&a);
    }
    mem_free(specs);
    return status;
}

/* Sets *session to the one that was opened; on failure closes it and names the file. */
static mn_status give_session(mn_session **session, mn_session *opened, mn_status status, const char *path) {
    if (status != MN_OK) {
        mn_session_close(&opened);
        return status_in_file(status, path);
    }
    *session = opened;
    return MN_OK;
}

mn_status saved_read(mn_session **session, mn_model *model, const char *path, const mn_cache_options *expected,
                     const saved_identity *identity) {
    *session = NULL;
    archive *a = NULL;
    json_doc *doc = NULL;
    bytes config = {0};
    mn_cache_options saved, requested;
    mn_cache_options_init(&requested, sizeof requested);
    mac_key key = {.n = 0};
    mn_session *s = NULL;
    if (expected) MN_TRY(mn_cache_check(expected, NULL));
    MN_TRY(options_take(&requested, sizeof requested, expected, "mn_cache_options"));
    if (requested.key_file) MN_TRY(mac_key_read(&key, requested.key_file));
    mn_status status = archive_open(&a, path);
    if (status == MN_OK && key.n > 0) status = archive_authenticate(a, &key);
    mac_key_wipe(&key);
    if (status == MN_OK) status = check_identity(a, identity);
    if (status == MN_OK) status = read_strategy(a, &doc, &config, &saved);
    if (status == MN_OK) status = open_wanted(&s, model, expected, json_root(doc), &saved);
    if (status == MN_OK) {
        status = fill_session(s, a);
        a = NULL;
    }
    archive_close(&a);
    json_close(&doc);
    bytes_clear(&config);
    return give_session(session, s, status, path);
}

mn_status mn_session_load(mn_session **session, mn_model *model, const char *path, const mn_cache_options *expected) {
    saved_identity identity;
    *session = NULL;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to load the cache from");
    MN_TRY(saved_identity_of(&identity, model));
    identity.takes_any_compute = true;
    return saved_read(session, model, path, expected, &identity);
}

mn_status saved_read_text(mn_session **session, char **salt, mn_model *model, const char *path,
                          const saved_identity *identity) {
    archive *a = NULL;
    json_doc *doc = NULL;
    bytes config = {0};
    mn_cache_options saved;
    mn_session *s = NULL;
    *session = NULL;
    *salt = NULL;
    mn_status status = archive_open(&a, path);
    if (status == MN_OK) status = check_identity(a, identity);
    if (status == MN_OK) status = read_strategy(a, &doc, &config, &saved);
    if (status == MN_OK) status = check_size(model, &saved);
    if (status == MN_OK) status = session_open_plan(&s, model, &saved);
    if (status == MN_OK) status = read_ids(s, a);
    if (status == MN_OK) {
        const char *text = archive_member_of(a, salt_name);
        *salt = mem_copy_text(text ? text : "", text ? strlen(text) : 0);
        if (!*salt) status = MN_E_NOMEM;
    }
    archive_close(&a);
    json_close(&doc);
    bytes_clear(&config);
    return give_session(session, s, status, path);
}

/* ---- folders of saved caches ---- */

typedef struct candidate {
    char *path;    /* owned */
    size_t common; /* tokens that it has in common with the requested ones */
} candidate;

typedef struct candidates {
    candidate *items;
    size_t n, capacity;
} candidates;

static void candidates_clear(candidates *c) {
    for (size_t i = 0; i < c->n; i++) mem_free(c->items[i].path);
    mem_free(c->items);
}

static size_t common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* Tokens that a file has in common with ids; 0 for files that cannot be used. */
static size_t common_with(const saved_identity *own, const char *path, const int32_t *ids, size_t n) {
    archive *a = NULL;
    size_t common = 0;
    if (archive_open(&a, path) == MN_OK && check_identity(a, own) == MN_OK) {
        const archive_view *view = archive_find(a, ARCHIVE_IDS);
        bool is_list = view && view->type == DTYPE_I32;
        int32_t *buffer = is_list && view->compressed ? mem_alloc_raw(view->n_bytes, 1) : NULL;
        const uint8_t *data = NULL;
        if (is_list && (buffer || !view->compressed) && archive_bytes(a, view, buffer, &data) == MN_OK)
            common = common_prefix((const int32_t *)(const void *)data, view->n_bytes / sizeof *ids, ids, n);
        mem_free(buffer);
    }
    archive_close(&a);
    return common;
}

/* Longest common prefix first, then by name, so that the result does not depend on the order of the folder. */
static int order_of_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->common != y->common) return x->common < y->common ? 1 : -1;
    return strcmp(x->path, y->path);
}

static mn_status add_candidate(candidates *c, const bytes *path, size_t common) {
    MN_TRY(mem_grow(&c->items, &c->capacity, c->n + 1, sizeof *c->items));
    c->items[c->n] = (candidate){mem_copy_text(path->data, path->n), common};
    if (!c->items[c->n].path) return MN_E_NOMEM;
    c->n++;
    return MN_OK;
}

static mn_status find_candidates(candidates *out, const saved_identity *own, const char *folder, const int32_t *ids,
                                 size_t n) {
    bytes path = {0};
    if (!folder) return MN_OK;
    mn_status status = path_join(&path, folder, "."); /* the folder itself, if the path is a link */
    DIR *dir = status == MN_OK && file_is_own(bytes_text(&path)) ? file_open_folder(folder) : NULL;
    if (!dir) {
        bytes_clear(&path);
        return status;
    }
    for (struct dirent *entry; status == MN_OK && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name), suffix = strlen(".safetensors");
        if (length <= suffix || strcmp(entry->d_name + length - suffix, ".safetensors") != 0) continue;
        status = path_join(&path, folder, entry->d_name);
        size_t common =
            status == MN_OK && file_is_own(bytes_text(&path)) ? common_with(own, bytes_text(&path), ids, n) : 0;
        if (common > 0) status = add_candidate(out, &path, common);
    }
    closedir(dir);
    bytes_clear(&path);
    if (out->n > 1) qsort(out->items, out->n, sizeof *out->items, order_of_candidates);
    return status;
}

/* A window cannot be truncated to every length: how much of a file is usable is known once it is open. */
mn_status mn_session_open_cached(mn_session **session, mn_model *model, const mn_cache_options *options,
                                 const char *folder, const int32_t *ids, size_t n) {
    candidates found = {0};
    mn_session *best = NULL;
    int64_t reached = 0;
    *session = NULL;
    saved_identity own;
    mn_status status = folder ? saved_identity_of(&own, model) : MN_OK;
    if (status == MN_OK) status = find_candidates(&found, &own, folder, ids, n);
    for (size_t i = 0; status == MN_OK && i < found.n && (int64_t)found.items[i].common > reached; i++) {
        mn_session *next = NULL;
        mn_status loading = saved_read(&next, model, found.items[i].path, options, &own);
        int64_t reach = loading == MN_OK ? kv_reachable(next->cache, (int64_t)found.items[i].common) : 0;
        if (loading == MN_E_NOMEM) status = loading;
        if (reach > reached) {
            mn_session_close(&best);
            best = next;
            reached = reach;
        } else {
            mn_session_close(&next);
        }
    }
    candidates_clear(&found);
    if (status == MN_OK && !best) status = mn_session_open(&best, model, options);
    if (status != MN_OK) mn_session_close(&best);
    *session = best;
    return status;
}
