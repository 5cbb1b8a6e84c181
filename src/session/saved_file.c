/* Saved caches as files, without a model: description, verification, copies.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "kv/archive.h"
#include "mneme.h"

bool mn_cache_file_is(const char *path) {
    return archive_recognise(path);
}

/* ---- description ---- */

static void put_text(bytes *b, const char *text) {
    json_put_string(b, text, strlen(text));
}

/* The value of a member; JSON text is inserted as JSON. */
static void put_member_value(bytes *b, const char *key, const char *value) {
    static const struct {
        const char *key;
        json_kind kind;
    } known[] = {{ARCHIVE_STRATEGY, JSON_OBJECT}, {ARCHIVE_ROPE, JSON_OBJECT}, {ARCHIVE_TOKENS, JSON_INT}};
    json_doc *doc = NULL;
    bool shown = false;
    for (size_t i = 0; i < sizeof known / sizeof *known && !shown; i++) {
        if (strcmp(key, known[i].key) != 0 || json_parse(&doc, value, strlen(value), JSON_STRICT, key) != MN_OK)
            continue;
        shown = json_root(doc)->kind == known[i].kind;
        if (shown) json_put(b, json_root(doc));
        json_close(&doc);
    }
    if (!shown) put_text(b, value);
}

static void put_entry(bytes *b, const archive_view *view) {
    char sum[HASH_HEX];
    hash_put(sum, view->sum);
    bytes_append_text(b, "{\"name\":");
    put_text(b, view->name);
    bytes_printf(b, ",\"type\":\"%s\",\"shape\":[", dtype_table[view->type].name);
    for (int k = 0; k < view->n_dims; k++) bytes_printf(b, "%s%" PRId64, k ? "," : "", view->shape[k]);
    bytes_printf(b, "],\"bytes\":%zu,\"stored_bytes\":%zu,\"compression\":%s,\"checksum\":\"%s\"}", view->n_bytes,
                 view->stored_bytes, view->compressed ? "\"zstd\"" : "null", sum);
}

static void put_archive(bytes *b, const archive *a) {
    bytes_printf(b, "{\"bytes\":%zu,\"version\":%d,\"members\":{", archive_file_bytes(a), ARCHIVE_VERSION);
    for (size_t i = 0; i < archive_members(a); i++) {
        archive_member it = archive_member_at(a, i);
        if (i) bytes_append_text(b, ",");
        put_text(b, it.key);
        bytes_append_text(b, ":");
        put_member_value(b, it.key, it.value);
    }
    bytes_append_text(b, "},\"entries\":[");
    for (size_t i = 0; i < archive_entries(a); i++) {
        if (i) bytes_append_text(b, ",");
        put_entry(b, archive_entry_at(a, i));
    }
    bytes_append_text(b, "]}");
}

mn_status mn_cache_file_describe(const char *path, char **text) {
    archive *a = NULL;
    bytes b = {0};
    *text = NULL;
    MN_TRY(archive_open(&a, path));
    put_archive(&b, a);
    archive_close(&a);
    bytes_text(&b);
    mn_status status = bytes_status(&b);
    if (status == MN_OK) {
        *text = b.data;
    } else {
        bytes_clear(&b);
    }
    return status;
}

/* ---- verification ---- */

/* The key of a file, or none. */
static mn_status read_key(mac_key *key, const char *key_file) {
    *key = (mac_key){.n = 0};
    return key_file ? mac_key_read(key, key_file) : MN_OK;
}

static mn_status check_archive(const archive *a, const mac_key *key) {
    MN_TRY(archive_verify(a));
    return key->n > 0 ? archive_authenticate(a, key) : MN_OK;
}

mn_status mn_cache_file_verify(const char *path, const char *key_file) {
    archive *a = NULL;
    mac_key key;
    MN_TRY(read_key(&key, key_file));
    mn_status status = archive_open(&a, path);
    if (status == MN_OK) status = check_archive(a, &key);
    archive_close(&a);
    mac_key_wipe(&key);
    return status;
}

/* ---- copies ---- */

/* The same bytes, verified. */
static mn_status copy_as_it_is(const char *from, const char *to, const mac_key *key) {
    file_map map;
    archive *a = NULL;
    MN_TRY(file_map_open(&map, from));
    mn_status status = archive_open_memory(&a, map.data, map.n, from);
    if (status == MN_OK) status = check_archive(a, key);
    if (status == MN_OK) status = file_write_atomic(to, map.data, map.n);
    archive_close(&a);
    file_map_close(&map);
    return status;
}

/* buffers: [entries] of the archive, filled with what must be freed. */
static mn_status write_again(const archive *a, const char *to, bool compress, archive_entry *entries, void **buffers,
                             archive_member *members, const mac_key *key) {
    for (size_t i = 0; i < archive_members(a); i++) members[i] = archive_member_at(a, i);
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        const uint8_t *data = NULL;
        buffers[i] = view->compressed ? mem_alloc_raw(view->n_bytes, 1) : NULL;
        if (view->compressed && !buffers[i]) return MN_E_NOMEM;
        MN_TRY(archive_bytes(a, view, buffers[i], &data));
        entries[i] = (archive_entry){.name = view->name,
                                     .type = view->type,
                                     .n_dims = view->n_dims,
                                     .data = data,
                                     .n_bytes = view->n_bytes,
                                     .compress = compress};
        memcpy(entries[i].shape, view->shape, sizeof view->shape);
    }
    return archive_write_keyed(to, entries, archive_entries(a), members, archive_members(a), key);
}

/* Another file, with its own keyed checksum when there is a key. */
static mn_status copy_again(const char *from, const char *to, bool compress, const mac_key *key) {
    archive *a = NULL;
    MN_TRY(archive_open(&a, from));
    mn_status status = key->n > 0 ? archive_authenticate(a, key) : MN_OK;
    size_t n = archive_entries(a);
    archive_entry *entries = mem_alloc(n, sizeof *entries);
    void **buffers = mem_alloc(n, sizeof *buffers);
    archive_member *members = mem_alloc(archive_members(a), sizeof *members);
    if (!entries || !buffers || !members) status = MN_E_NOMEM;
    if (status == MN_OK) status = write_again(a, to, compress, entries, buffers, members, key);
    for (size_t i = 0; buffers && i < n; i++) mem_free(buffers[i]);
    mem_free(buffers);
    mem_free(entries);
    mem_free(members);
    archive_close(&a);
    return status;
}

mn_status mn_cache_file_copy(const char *from, const char *to, const char *compression, const char *key_file) {
    bool is_plain = compression && strcmp(compression, "none") == 0;
    mac_key key;
    if (compression && !is_plain && strcmp(compression, "zstd") != 0)
        MN_FAIL(MN_E_ARG, "compression is '%.40s', allowed: none, zstd", compression);
    MN_TRY(read_key(&key, key_file));
    mn_status status = compression ? copy_again(from, to, !is_plain, &key) : copy_as_it_is(from, to, &key);
    mac_key_wipe(&key);
    return status;
}
