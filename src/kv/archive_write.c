/* Writing archives.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/json.h"
#include "kv/archive_layout.h"
#include "tensor/safetensors.h"
#include "tensor/tensor_set.h"

enum {
    LEVEL = 1, /* level 3 compresses keys and values no better and takes twice as long */
    FILLER_NAME = 32,
    SMALLEST = 64 /* bytes worth compressing */
};

static const char zero_digits[] = "0000000000000000",
                  mac_zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";

typedef struct archive_writer {
    const char *path;
    const archive_entry *entries;
    size_t n;
    void **packed;                /* [n] compressed forms, owned; NULL: stored as it is */
    tensor *tensors;              /* entries and fillers as they are stored */
    file_part *parts;             /* the head and their data */
    char (*fillers)[FILLER_NAME]; /* names */
    size_t n_tensors;
    bytes metadata, head;
    const mac_key *key; /* NULL: none */
} archive_writer;

mn_status archive_head_sum(uint64_t *out, const void *head, size_t n) {
    char *copy = mem_alloc_raw(n, 1);
    if (!copy) return MN_E_NOMEM;
    memcpy(copy, head, n);
    memcpy(copy + ARCHIVE_SUM_AT, zero_digits, HASH_HEX - 1);
    *out = hash_of(copy, n);
    mem_free(copy);
    return MN_OK;
}

mn_status archive_mac(char out[MAC_HEX], const mac_key *key, const void *head, size_t n, const file_part *rest,
                      size_t n_rest) {
    mac *m = NULL;
    char *copy = mem_alloc_raw(n, 1);
    if (!copy) return MN_E_NOMEM;
    memcpy(copy, head, n);
    memcpy(copy + ARCHIVE_SUM_AT, zero_digits, HASH_HEX - 1);
    memcpy(copy + ARCHIVE_MAC_AT, mac_zeros, MAC_HEX - 1);
    mn_status status = mac_open(&m, key);
    if (status == MN_OK) {
        mac_add(m, copy, n);
        for (size_t i = 0; i < n_rest; i++) mac_add(m, rest[i].data, rest[i].n);
        status = mac_put(out, m);
    }
    mac_close(&m);
    mem_free(copy);
    return status;
}

/* ---- metadata ---- */

static void put_member(bytes *out, const char *prefix, const char *key, const char *value) {
    bytes text = {0};
    bytes_printf(&text, "%s%s", prefix, key);
    key = bytes_text(&text); /* "" when there is no memory */
    bytes_append_text(out, out->n ? "," : "{");
    json_put_string(out, key, strlen(key));
    bytes_append_text(out, ":");
    json_put_string(out, value, strlen(value));
    out->failed |= text.failed;
    bytes_clear(&text);
}

static bool begins(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* What a reader would refuse. Members are few. */
static mn_status check_member(const archive_writer *w, const archive_member *members, size_t i) {
    const char *key = members[i].key;
    bool taken = strcmp(key, ARCHIVE_SUM_KEY) == 0 || strcmp(key, ARCHIVE_VERSION_KEY) == 0 ||
                 strcmp(key, ARCHIVE_MAC_KEY) == 0 || begins(key, ARCHIVE_SUM_PREFIX) ||
                 begins(key, ARCHIVE_RAW_PREFIX);
    for (size_t k = 0; k < i && !taken; k++) taken = strcmp(key, members[k].key) == 0;
    if (taken) MN_FAIL(MN_E_ARG, "%s: the key '%.150s' is given to two members or reserved", w->path, key);
    mn_status status = tensor_check_name(w->path, "member", key, strlen(key));
    return status == MN_E_FORMAT ? MN_E_ARG : status;
}

static mn_status put_members(archive_writer *w, const archive_member *members, size_t n) {
    put_member(&w->metadata, "", ARCHIVE_SUM_KEY, zero_digits);
    put_member(&w->metadata, "", ARCHIVE_VERSION_KEY, ARCHIVE_VERSION_TEXT);
    if (w->key) put_member(&w->metadata, "", ARCHIVE_MAC_KEY, mac_zeros);
    for (size_t i = 0; i < n; i++) {
        MN_TRY(check_member(w, members, i));
        put_member(&w->metadata, "", members[i].key, members[i].value);
    }
    return bytes_status(&w->metadata);
}

/* ---- entries ---- */

/* Leaves w->packed[i] NULL and *n unchanged when compression is not requested or saves too little. */
static mn_status pack(archive_writer *w, size_t i, ZSTD_CCtx *context, size_t *n) {
    const archive_entry *entry = &w->entries[i];
    if (!entry->compress || entry->n_bytes < SMALLEST) return MN_OK;
    size_t room = entry->n_bytes - entry->n_bytes / 10; /* the system allocates only the pages that are
                                                         * written */
    void *block = mem_alloc_raw(room, 1);
    if (!block) return MN_E_NOMEM;
    size_t packed = ZSTD_compressCCtx(context, block, room, entry->data, entry->n_bytes, LEVEL);
    bool failed = ZSTD_isError(packed);
    if (!failed) mem_written(block, packed);
    if (!failed && entry->n_bytes / ARCHIVE_MOST_RATIO <= packed) {
        w->packed[i] = block;
        *n = packed;
        return MN_OK;
    }
    mem_free(block);
    bool is_memory = failed && ZSTD_getErrorCode(packed) == ZSTD_error_memory_allocation;
    return is_memory ? mem_no_memory() : MN_OK;
}

static mn_status check_entry(const archive_writer *w, const archive_entry *entry) {
    bool fits = entry->n_dims >= 0 && entry->n_dims <= ARCHIVE_DIMS;
    if (!fits) {
        MN_FAIL(MN_E_ARG, "%s: entry '%.150s' has %d dimensions, allowed: 0 to %d", w->path, entry->name, entry->n_dims,
                ARCHIVE_DIMS);
    }
    if (begins(entry->name, ARCHIVE_FILL_PREFIX)) {
        MN_FAIL(MN_E_ARG, "%s: the name '%.150s' of an entry is reserved", w->path, entry->name);
    }
    return MN_OK;
}

static void add_tensor(archive_writer *w, const tensor *t) {
    w->tensors[w->n_tensors] = *t;
    w->parts[++w->n_tensors] = (file_part){t->data, t->bytes};
}

static void add_filler(archive_writer *w, size_t i, size_t n) {
    static const uint8_t zeros[ARCHIVE_ALIGN];
    snprintf(w->fillers[i], FILLER_NAME, ARCHIVE_FILL_PREFIX "%zu", i);
    add_tensor(
        w, &(tensor){
               .name = w->fillers[i], .type = DTYPE_U8, .n_dims = 1, .shape = {(int64_t)n}, .data = zeros, .bytes = n});
}

static void put_raw(archive_writer *w, const archive_entry *entry) {
    bytes text = {0};
    bytes_printf(&text, "%s [", dtype_table[entry->type].safetensors_name);
    for (int k = 0; k < entry->n_dims; k++) bytes_printf(&text, "%s%" PRId64, k ? "," : "", entry->shape[k]);
    bytes_append_text(&text, "]");
    put_member(&w->metadata, ARCHIVE_RAW_PREFIX, entry->name, bytes_text(&text));
    w->metadata.failed |= text.failed;
    bytes_clear(&text);
}

static mn_status add_entry(archive_writer *w, size_t i, ZSTD_CCtx *context) {
    const archive_entry *entry = &w->entries[i];
    tensor t = {.name = entry->name,
                .type = entry->type,
                .n_dims = entry->n_dims,
                .data = entry->data,
                .bytes = entry->n_bytes};
    char sum[HASH_HEX];
    memcpy(t.shape, entry->shape, sizeof entry->shape);
    MN_TRY(pack(w, i, context, &t.bytes));
    if (w->packed[i]) {
        t = (tensor){.name = entry->name,
                     .type = DTYPE_U8,
                     .n_dims = 1,
                     .shape = {(int64_t)t.bytes},
                     .data = w->packed[i],
                     .bytes = t.bytes};
        put_raw(w, entry);
    }
    hash_put(sum, hash_of(t.data, t.bytes));
    put_member(&w->metadata, ARCHIVE_SUM_PREFIX, entry->name, sum);
    add_tensor(w, &t);
    size_t over = t.bytes % ARCHIVE_ALIGN;
    if (over && i + 1 < w->n) add_filler(w, i, ARCHIVE_ALIGN - over);
    return bytes_status(&w->metadata);
}

static mn_status add_entries(archive_writer *w) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    mn_status status = context ? MN_OK : mem_no_memory();
    for (size_t i = 0; i < w->n && status == MN_OK; i++) status = add_entry(w, i, context);
    ZSTD_freeCCtx(context);
    return status;
}

static mn_status put_head(archive_writer *w) {
    uint64_t sum;
    char digits[HASH_HEX];
    bytes_append_text(&w->metadata, "}");
    MN_TRY(bytes_status(&w->metadata));
    MN_TRY(safetensors_head(&w->head, w->path, w->tensors, w->n_tensors, bytes_text(&w->metadata), ARCHIVE_ALIGN));
    if (w->key) {
        char keyed[MAC_HEX];
        MN_TRY(archive_mac(keyed, w->key, w->head.data, w->head.n, w->parts + 1, w->n_tensors));
        memcpy(w->head.data + ARCHIVE_MAC_AT, keyed, MAC_HEX - 1);
    }
    MN_TRY(archive_head_sum(&sum, w->head.data, w->head.n));
    hash_put(digits, sum);
    memcpy(w->head.data + ARCHIVE_SUM_AT, digits, HASH_HEX - 1);
    w->parts[0] = (file_part){w->head.data, w->head.n};
    return MN_OK;
}

/* Checks names, types and sizes before any data are read or compressed. */
static mn_status check_entries(archive_writer *w) {
    for (size_t i = 0; i < w->n; i++) {
        const archive_entry *entry = &w->entries[i];
        MN_TRY(check_entry(w, entry));
        w->tensors[i] =
            (tensor){.name = entry->name, .type = entry->type, .n_dims = entry->n_dims, .bytes = entry->n_bytes};
        memcpy(w->tensors[i].shape, entry->shape, sizeof entry->shape);
    }
    return safetensors_head(&w->head, w->path, w->tensors, w->n, NULL, ARCHIVE_ALIGN);
}

mn_status archive_write(const char *path, const archive_entry *entries, size_t n_entries, const archive_member *members,
                        size_t n_members) {
    return archive_write_keyed(path, entries, n_entries, members, n_members, NULL);
}

mn_status archive_write_keyed(const char *path, const archive_entry *entries, size_t n_entries,
                              const archive_member *members, size_t n_members, const mac_key *key) {
    archive_writer w = {.path = path, .entries = entries, .n = n_entries, .key = key && key->n > 0 ? key : NULL};
    mn_status status;
    size_t most;
    if (!size_mul(n_entries, 2, &most)) return mem_no_memory();
    w.packed = mem_alloc(n_entries, sizeof *w.packed);
    w.tensors = mem_alloc_raw(most, sizeof *w.tensors);
    w.parts = mem_alloc_raw(most + 1, sizeof *w.parts);
    w.fillers = mem_alloc_raw(n_entries, sizeof *w.fillers);
    if (!w.packed || !w.tensors || !w.parts || !w.fillers) MN_GOTO(done, status, mem_no_memory());
    MN_GOTO(done, status, check_entries(&w));
    MN_GOTO(done, status, put_members(&w, members, n_members));
    MN_GOTO(done, status, add_entries(&w));
    MN_GOTO(done, status, put_head(&w));
    status = file_write_parts(path, w.parts, w.n_tensors + 1, FILE_PRIVATE);
done:
    for (size_t i = 0; w.packed && i < n_entries; i++) mem_free(w.packed[i]);
    mem_free(w.packed);
    mem_free(w.tensors);
    mem_free(w.parts);
    mem_free(w.fillers);
    bytes_clear(&w.metadata);
    bytes_clear(&w.head);
    return status;
}
