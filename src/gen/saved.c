/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/session.h"

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
#include "tensor/fingerprint.h"

static const char logits_name[] = "logits";

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

static void put_member(bytes *b, const char *name, const char *text) {
    bytes_printf(b, "%s\"%s\":", b->n > 1 ? "," : "", name);
    json_put_string(b, text, strlen(text));
}

static void put_number(bytes *b, const char *name, int64_t value) {
    bytes_printf(b, "%s\"%s\":%lld", b->n > 1 ? "," : "", name, (long long)value);
}

/* Of the bases that keys of this session's cache stand in; "" when none does. */
static void tables_hash(char out[HASH_HEX], const mn_session *s) {
    const kv_basis_set *bases = s->bases;
    bool uses_them = false;
    out[0] = 0;
    for (int i = 0; bases && i < kv_entries(s->cache); i++)
        uses_them = uses_them || kv_look(s->cache, i).bases;
    if (!uses_them) return;
    size_t heads = (size_t)bases->n_layers * (size_t)bases->n_heads, dim = (size_t)bases->dim;
    hash_put(out, hash_of(bases->memory, heads * (3 * dim * dim + dim) * sizeof *bases->memory));
}

/* A config without what is this machine's own: the folder of the far home. */
static mn_status put_config(bytes *out, const char *text) {
    kv_config config;
    MN_TRY(kv_config_read(&config, text));
    config.is_said[CONFIG_PATH] = false;
    kv_config_put(out, &config);
    bytes_text(out);
    return bytes_status(out);
}

/* The strategy in the words that open it again. */
static mn_status put_strategy(bytes *b, const mn_session *s) {
    char sum[HASH_HEX];
    bytes config = {0};
    bytes_append_text(b, "{");
    put_member(b, "implementation", s->plan.name);
    mn_status status = s->config ? put_config(&config, s->config) : MN_OK;
    if (status == MN_OK && s->config) put_member(b, "config", config.data);
    bytes_clear(&config);
    MN_TRY(status);
    put_member(b, "dtype", kv_codec_name(s->plan.exact));
    put_number(b, "max_cache_len", s->plan.options.limit);
    put_number(b, "page_tokens", s->plan.options.page_tokens);
    tables_hash(sum, s);
    put_member(b, "tables", sum);
    bytes_append_text(b, "}");
    return bytes_status(b);
}

static void put_rope(bytes *b, const mn_session *s) {
    const model_config *c = &s->model->config;
    bytes_append_text(b, "{");
    put_member(b, "rope_type", rope_type_name(c->rope_scaling.rope_type));
    bytes_append_text(b, ",\"rope_theta\":");
    json_put_real(b, c->rope_theta);
    put_number(b, "rotary_dim", c->rotary_dim);
    put_number(b, "regime", s->regime);
    bytes_append_text(b, "}");
}

/* ---- saving ---- */

typedef struct save {
    bytes strategy, rope;
    char model[FINGERPRINT_HEX], text[FINGERPRINT_HEX], tokens[24], created[32];
    kv_snapshot *pages;
    archive_entry *entries;
} save;

static mn_status write_archive(save *w, const mn_session *s, const char *path, bool compress) {
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
        int64_t vocab = s->model->config.vocab_size;
        w->entries[n++] = (archive_entry){.name = logits_name,
                                          .type = DTYPE_F32,
                                          .n_dims = 1,
                                          .shape = {vocab},
                                          .data = s->logits,
                                          .n_bytes = (size_t)vocab * sizeof *s->logits,
                                          .compress = compress};
    }
    char cached[24];
    snprintf(cached, sizeof cached, "%lld", (long long)kv_length(s->cache));
    const archive_member members[] = {
        {ARCHIVE_KIND, ARCHIVE_KIND_CACHE},
        {ARCHIVE_MODEL, s->model->what},
        {ARCHIVE_MODEL_FINGERPRINT, w->model},
        {ARCHIVE_TOKENIZER_FINGERPRINT, w->text},
        {ARCHIVE_STRATEGY, bytes_text(&w->strategy)},
        {ARCHIVE_ROPE, bytes_text(&w->rope)},
        {ARCHIVE_TOKENS, w->tokens},
        {"cached_tokens", cached},
        {ARCHIVE_CREATED, w->created},
    };
    return archive_write_keyed(path, w->entries, n, members, sizeof members / sizeof members[0], &s->key);
}

static mn_status save_session(const mn_session *s, const char *path, bool compress) {
    save w = {0};
    put_rope(&w.rope, s);
    mn_status status = put_strategy(&w.strategy, s);
    if (status == MN_OK) status = bytes_status(&w.rope);
    if (status == MN_OK) status = model_fingerprint(w.model, s->model);
    if (status == MN_OK) status = tokenizer_fingerprint(w.text, s->owner->text);
    if (status == MN_OK) status = kv_snapshot_open(&w.pages, s->cache, compress);
    if (status == MN_OK) {
        time_t now = time(NULL);
        struct tm utc;
        strftime(w.created, sizeof w.created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
        snprintf(w.tokens, sizeof w.tokens, "%zu", s->n_ids);
        status = write_archive(&w, s, path, compress);
    }
    kv_snapshot_close(&w.pages);
    mem_free(w.entries);
    bytes_clear(&w.strategy);
    bytes_clear(&w.rope);
    return status;
}

mn_status mn_session_save(const mn_session *session, const char *path, bool compress) {
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to save the cache to");
    bool is_far = session->plan.self.is_far; /* other sessions may send shared pages away meanwhile */
    if (is_far) pthread_mutex_lock(&session->model->lock);
    mn_status status = save_session(session, path, compress);
    if (is_far) pthread_mutex_unlock(&session->model->lock);
    return status;
}

/* ---- loading ---- */

static mn_status want_member(const archive *a, const char *key, const char **value) {
    *value = archive_member_of(a, key);
    if (!*value) MN_FAIL(MN_E_REFUSED, "the saved cache does not say its %s", key);
    return MN_OK;
}

static mn_status check_identity(const archive *a, const mn_model *model) {
    char own[FINGERPRINT_HEX];
    const char *value;
    MN_TRY(want_member(a, ARCHIVE_KIND, &value));
    if (strcmp(value, ARCHIVE_KIND_CACHE) != 0)
        MN_FAIL(MN_E_REFUSED, "the file holds a %.40s, not a cache", value);
    MN_TRY(want_member(a, ARCHIVE_MODEL_FINGERPRINT, &value));
    MN_TRY(model_fingerprint(own, model->core));
    if (strcmp(value, own) != 0) {
        const char *name = archive_member_of(a, ARCHIVE_MODEL);
        MN_FAIL(MN_E_REFUSED,
                "the saved cache belongs to another model: %.120s (fingerprint %.8s, this model's is %.8s)",
                name ? name : "unnamed", value, own);
    }
    MN_TRY(want_member(a, ARCHIVE_TOKENIZER_FINGERPRINT, &value));
    MN_TRY(tokenizer_fingerprint(own, model->text));
    if (strcmp(value, own) != 0) MN_FAIL(MN_E_REFUSED, "the saved cache belongs to another tokenizer");
    return MN_OK;
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

/* Options that open the strategy of an archive; texts point into *doc and *config. A file may say how what it holds is kept, not
 * where on this machine. */
static mn_status read_strategy(const archive *a, json_doc **doc, bytes *config, mn_cache_options *options) {
    const char *value;
    int64_t limit, page;
    MN_TRY(want_member(a, ARCHIVE_STRATEGY, &value));
    mn_status status = json_parse(doc, value, strlen(value), JSON_STRICT, ARCHIVE_STRATEGY);
    if (status == MN_E_NOMEM) return status;
    if (status != MN_OK || json_root(*doc)->kind != JSON_OBJECT ||
        !text_of(json_root(*doc), "implementation"))
        MN_FAIL(MN_E_REFUSED, "the saved cache's strategy cannot be read");
    const json *root = json_root(*doc);
    MN_TRY(number_of(root, "max_cache_len", (int64_t)1 << 40, &limit));
    MN_TRY(number_of(root, "page_tokens", PAGE_TOKENS, &page));
    *options = mn_cache_options_default();
    options->implementation = text_of(root, "implementation");
    if (text_of(root, "config")) {
        mn_status reading = put_config(config, text_of(root, "config"));
        if (reading == MN_E_ARG)
            return status_context(MN_E_REFUSED, "the saved cache's strategy cannot be read");
        MN_TRY(reading);
        options->config = config->data;
    }
    options->dtype = text_of(root, "dtype");
    options->max_cache_len = limit;
    options->page_tokens = (int)page;
    return MN_OK;
}

/* Codes mean nothing without the tables that they were made with; those made without any need none. */
static mn_status settle_tables(mn_session *s, const json *strategy) {
    char own[HASH_HEX];
    const char *saved = text_of(strategy, "tables");
    tables_hash(own, s);
    if (saved && strcmp(saved, own) == 0) return MN_OK;
    if (saved && !*saved) {
        s->bases = NULL;
        return MN_OK;
    }
    MN_FAIL(MN_E_REFUSED, "the saved cache was quantized with other tables (%s) than this model has now (%s)",
            saved ? saved : "unknown", *own ? own : "none");
}

/* The entries of a session are laid out as those of the file, and give the same results. */
static mn_status same_strategy(const mn_session *wanted, const mn_cache_options *options) {
    mn_session saved = *wanted; /* what a session of the file's options is made of */
    kv_spec *specs[2] = {NULL, NULL};
    int n[2] = {0, 0};
    mn_status status = kv_plan_make(&saved.plan, options, wanted->plan.exact);
    if (status == MN_OK) status = session_specs(&specs[0], &n[0], wanted);
    if (status == MN_OK) status = session_specs(&specs[1], &n[1], &saved);
    bool same =
        status == MN_OK && n[0] == n[1] && wanted->plan.options.page_tokens == saved.plan.options.page_tokens;
    for (int i = 0; same && i < n[0]; i++) same = kv_spec_equal(&specs[0][i], &specs[1][i]);
    mem_free(specs[0]);
    mem_free(specs[1]);
    if (status == MN_OK && !same) {
        MN_FAIL(
            MN_E_REFUSED,
            "the saved cache has the strategy '%s', not the '%s' that is asked for, or its numbers differ",
            saved.plan.name, wanted->plan.name);
    }
    return status;
}

/* What is allocated at once by a file's own wish is as much as the model was made for. */
static mn_status check_size(const mn_model *model, const mn_cache_options *options) {
    kv_plan plan;
    int64_t most = model->core->config.max_position_embeddings;
    MN_TRY(kv_plan_make(&plan, options, KV_BF16));
    if (plan.options.reserve <= most) return MN_OK;
    MN_FAIL(
        MN_E_REFUSED,
        "the saved cache asks for room for %lld tokens at once; a file may ask for up to %lld, the model's context, and gets "
        "more where max_cache_len says so",
        (long long)plan.options.reserve, (long long)most);
}

/* An empty session as the caller wishes it, or, where nothing or no strategy is wished, of the file's own. */
static mn_status open_wanted(mn_session **s, mn_model *model, const mn_cache_options *expected,
                             const json *strategy, const mn_cache_options *saved) {
    mn_cache_options options = mn_cache_options_default();
    MN_TRY(options_take(&options, sizeof options, expected, "mn_cache_options"));
    bool is_named = expected && options.implementation, is_bounded = is_named || options.max_cache_len > 0;
    if (!is_named) {
        const mn_cache_options wishes = options;
        options = *saved;
        options.prefill_chunk = wishes.prefill_chunk;
        options.on_oom = wishes.on_oom;
        options.key_file = wishes.key_file;
        if (wishes.max_cache_len) options.max_cache_len = wishes.max_cache_len;
    }
    mn_status status = is_bounded ? MN_OK : check_size(model, &options);
    if (status == MN_OK) status = mn_session_open(s, model, &options);
    if (!is_named && (status == MN_E_ARG || status == MN_E_UNSUPPORTED))
        return status_context(MN_E_REFUSED, "the saved cache's strategy cannot be opened here");
    MN_TRY(status);
    MN_TRY(settle_tables(*s, strategy));
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
        if (s->ids[i] < 0 || s->ids[i] >= s->model->config.vocab_size)
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
    size_t n_bytes = (size_t)s->model->config.vocab_size * sizeof *s->logits;
    if (!view) return MN_OK;
    if (view->type != DTYPE_F32 || view->n_bytes != n_bytes)
        MN_FAIL(MN_E_REFUSED, "the saved cache's logits have another size than this model's");
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
        MN_FAIL(MN_E_REFUSED, "the saved cache does not say how many tokens it holds");
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
        kv_close(&s->cache); /* what it reserved is wanted now */
        status = kv_restore(&s->cache, s->model->pool, specs, n, &s->plan.options, a, n_cached);
    } else {
        archive_close(&a);
    }
    mem_free(specs);
    return status;
}

mn_status mn_session_load(mn_session **session, mn_model *model, const char *path,
                          const mn_cache_options *expected) {
    *session = NULL;
    archive *a = NULL;
    json_doc *doc = NULL;
    bytes config = {0};
    mn_cache_options saved, wishes = mn_cache_options_default();
    mac_key key = {.n = 0};
    mn_session *s = NULL;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to load the cache from");
    if (expected) MN_TRY(mn_cache_check(expected, NULL));
    MN_TRY(options_take(&wishes, sizeof wishes, expected, "mn_cache_options"));
    if (wishes.key_file) MN_TRY(mac_key_read(&key, wishes.key_file));
    mn_status status = archive_open(&a, path);
    if (status == MN_OK && key.n > 0) status = archive_authenticate(a, &key);
    mac_key_wipe(&key);
    if (status == MN_OK) status = check_identity(a, model);
    if (status == MN_OK) status = read_strategy(a, &doc, &config, &saved);
    if (status == MN_OK) status = open_wanted(&s, model, expected, json_root(doc), &saved);
    if (status == MN_OK) {
        status = fill_session(s, a);
        a = NULL;
    }
    archive_close(&a);
    json_close(&doc);
    bytes_clear(&config);
    if (status != MN_OK) {
        mn_session_close(&s);
        return status_in_file(status, path);
    }
    *session = s;
    return MN_OK;
}

/* ---- folders of saved caches ---- */

typedef struct candidate {
    char *path;    /* owned */
    size_t common; /* tokens that it has in common with the wanted ones */
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

/* Tokens that a file has in common with ids; 0 for whatever is not usable. */
static size_t common_with(const mn_model *model, const char *path, const int32_t *ids, size_t n) {
    archive *a = NULL;
    size_t common = 0;
    if (archive_open(&a, path) == MN_OK && check_identity(a, model) == MN_OK) {
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

/* Most in common first; names decide among equals, so that the order of a folder does not. */
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

static mn_status find_candidates(candidates *out, const mn_model *model, const char *folder,
                                 const int32_t *ids, size_t n) {
    bytes path = {0};
    if (!folder) return MN_OK;
    mn_status status = path_join(&path, folder, "."); /* the folder itself, where a link leads to it */
    DIR *dir = status == MN_OK && file_is_own(bytes_text(&path)) ? file_open_folder(folder) : NULL;
    if (!dir) {
        bytes_clear(&path);
        return status;
    }
    for (struct dirent *entry; status == MN_OK && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name), suffix = strlen(".safetensors");
        if (length <= suffix || strcmp(entry->d_name + length - suffix, ".safetensors") != 0) continue;
        status = path_join(&path, folder, entry->d_name);
        size_t common = status == MN_OK && file_is_own(bytes_text(&path))
                            ? common_with(model, bytes_text(&path), ids, n)
                            : 0;
        if (common > 0) status = add_candidate(out, &path, common);
    }
    closedir(dir);
    bytes_clear(&path);
    if (out->n > 1) qsort(out->items, out->n, sizeof *out->items, order_of_candidates);
    return status;
}

/* A window cannot go back as far as its text: what a file is worth is known once it is open. */
mn_status mn_session_open_cached(mn_session **session, mn_model *model, const mn_cache_options *options,
                                 const char *folder, const int32_t *ids, size_t n) {
    candidates found = {0};
    mn_session *best = NULL;
    int64_t reached = 0;
    *session = NULL;
    mn_status status = find_candidates(&found, model, folder, ids, n);
    for (size_t i = 0; status == MN_OK && i < found.n && (int64_t)found.items[i].common > reached; i++) {
        mn_session *next = NULL;
        mn_status loading = mn_session_load(&next, model, found.items[i].path, options);
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
