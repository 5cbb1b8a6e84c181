/* Reading archives; archive_write.c writes them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/archive.h"

#include <stdio.h>
#include <string.h>
#include <zstd.h>

#include "base/sort.h"
#include "kv/archive_layout.h"
#include "tensor/safetensors.h"
#include "tensor/tensor_set.h"

enum {
    EXPAND_PIECE = 128 << 10, /* expanded at a time when only the checksum is needed */
    WINDOW_LOG = 23           /* frames with a larger window are refused: 8 MiB */
};

struct archive {
    char *what; /* the file's name in messages */
    tensor_set *set;
    archive_view *views; /* in file order */
    size_t n;
    const void **by_name; /* the views, sorted */
    const void **by_key;  /* all of the metadata as json_member, sorted */
    size_t n_keys;
    const json_member *first; /* the caller's members are adjacent */
    size_t n_members;
};

void archive_close(archive **a) {
    archive *it = *a;
    if (!it) return;
    tensor_set_close(&it->set);
    mem_free(it->what);
    mem_free(it->views);
    mem_free(it->by_name);
    mem_free(it->by_key);
    mem_free(it);
    *a = NULL;
}

/* ---- finding by name ---- */

static int order_of_keys(const void *a, const void *b) {
    const json_member *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int order_of_views(const void *a, const void *b) {
    const archive_view *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The item equal to `wanted` among n sorted ones, or NULL. */
static const void *find(const void *const *sorted, size_t n, const void *wanted, sort_order order) {
    size_t low = 0;
    while (n > 0) {
        int side = order(sorted[low + n / 2], wanted);
        if (side == 0) return sorted[low + n / 2];
        if (side < 0) low += n / 2 + 1;
        n = side < 0 ? n - n / 2 - 1 : n / 2;
    }
    return NULL;
}

/* The member PREFIX + name of the metadata, or NULL. */
static const json_member *metadata_of(const archive *a, const char *prefix, const char *name) {
    char key[TENSOR_NAME_BYTES + 16];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    return find(a->by_key, a->n_keys, &(json_member){.key = key}, order_of_keys);
}

/* ---- the header ---- */

/* Version first: the other members of a later version are unknown. */
static mn_status check_version(const archive *a, const uint8_t *file, size_t n) {
    size_t prefix = strlen(ARCHIVE_HEAD);
    const json *version = json_get(safetensors_metadata(a->set), ARCHIVE_VERSION_KEY);
    if (!version) {
        MN_FAIL(MN_E_REFUSED, "%s: no saved cache: its metadata have no '" ARCHIVE_VERSION_KEY "'", a->what);
    }
    if (!json_is_string(version, ARCHIVE_VERSION_TEXT)) {
        return json_wrong_value(a->what, ARCHIVE_VERSION_KEY, version, "\"" ARCHIVE_VERSION_TEXT "\"");
    }
    if (n < ARCHIVE_HEAD_AT + prefix + HASH_HEX - 1 || memcmp(file + ARCHIVE_HEAD_AT, ARCHIVE_HEAD, prefix) != 0) {
        MN_FAIL(MN_E_REFUSED, "%s: the header does not begin with its checksum: another program has written it",
                a->what);
    }
    return MN_OK;
}

static mn_status check_head(archive *a) {
    const file_map *map = &a->set->files[0].map;
    uint64_t length, wanted, got;
    char digits[HASH_HEX] = "";
    MN_TRY(check_version(a, map->data, map->n));
    memcpy(&length, map->data, sizeof length);
    memcpy(digits, map->data + ARCHIVE_SUM_AT, HASH_HEX - 1);
    MN_TRY(archive_head_sum(&got, map->data, ARCHIVE_HEAD_AT + (size_t)length));
    if (!hash_read(&wanted, digits) || wanted != got) {
        MN_FAIL(MN_E_REFUSED, "%s: the header is damaged: its checksum is %016llx, the file says '%.16s'", a->what,
                (unsigned long long)got, digits);
    }
    return MN_OK;
}

static bool begins(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Sorts the metadata, finds the callers' members, and counts those of entries. */
static mn_status read_metadata(archive *a, size_t *n_sums, size_t *n_raws) {
    const json *metadata = safetensors_metadata(a->set);
    a->by_key = mem_alloc_raw(metadata->n, sizeof *a->by_key);
    if (!a->by_key) return MN_E_NOMEM;
    a->n_keys = metadata->n;
    a->first = metadata->members;
    for (size_t i = 0; i < metadata->n; i++) {
        const json_member *member = &metadata->members[i];
        a->by_key[i] = member;
        bool is_sum = begins(member->key, ARCHIVE_SUM_PREFIX), is_raw = begins(member->key, ARCHIVE_RAW_PREFIX);
        *n_sums += is_sum;
        *n_raws += is_raw;
        if (is_sum || is_raw || strcmp(member->key, ARCHIVE_SUM_KEY) == 0 ||
            strcmp(member->key, ARCHIVE_VERSION_KEY) == 0 || strcmp(member->key, ARCHIVE_MAC_KEY) == 0)
            continue;
        MN_TRY(tensor_check_name(a->what, "member", member->key, member->key_n));
        if (strlen(member->value.string) != member->value.n) {
            MN_FAIL(MN_E_REFUSED, "%s: member '%.150s' holds a zero byte", a->what, member->key);
        }
        if (a->n_members == 0) a->first = member;
        a->n_members++;
        if (member != a->first + a->n_members - 1) {
            MN_FAIL(MN_E_REFUSED, "%s: member '%.150s' stands among the checksums", a->what, member->key);
        }
    }
    return sort_pointers(a->by_key, a->n_keys, order_of_keys);
}

/* ---- entries ---- */

/* "BF16 [12,64]" as the writer puts it. */
static bool read_raw(tensor *t, const char *text) {
    size_t n = strcspn(text, " ");
    for (t->type = 0; t->type < N_DTYPES; t->type++) {
        const char *name = dtype_table[t->type].safetensors_name;
        if (name && strlen(name) == n && memcmp(name, text, n) == 0) break;
    }
    if (t->type == N_DTYPES || !begins(text + n, " [")) return false;
    text += n + 2;
    for (t->n_dims = 0; *text != ']'; t->n_dims++) {
        int64_t size = 0;
        if (t->n_dims == ARCHIVE_DIMS || *text < '0' || *text > '9') return false;
        for (; *text >= '0' && *text <= '9'; text++) {
            if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, *text - '0', &size))
                return false;
        }
        t->shape[t->n_dims] = size;
        if (*text == ',' && text[1] != ']') text++;
    }
    return text[1] == 0;
}

/* Type and shape of a compressed entry before compression. */
static mn_status read_compressed(const archive *a, archive_view *view, const tensor *t, const json_member *raw) {
    if (t->type != DTYPE_U8 || t->n_dims != 1) {
        MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' is compressed but not stored as U8 [bytes]", a->what, view->name);
    }
    tensor before = {.name = t->name};
    if (!read_raw(&before, raw->value.string)) {
        return json_wrong_value(a->what, raw->key, &raw->value, "a type and up to 4 sizes, as in \"BF16 [12,64]\"");
    }
    MN_TRY(tensor_needs(a->what, &before, &view->n_bytes));
    view->compressed = true;
    view->type = before.type;
    view->n_dims = before.n_dims;
    memcpy(view->shape, before.shape, sizeof view->shape);
    unsigned long long frame = ZSTD_getFrameContentSize(t->data, t->bytes);
    if (frame != view->n_bytes) {
        MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' should expand to %zu bytes, but it is no zstd frame of that size",
                a->what, view->name, view->n_bytes);
    }
    if (view->n_bytes / ARCHIVE_MOST_RATIO > t->bytes) {
        MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' would expand from %zu bytes to %zu, allowed: %d times as many",
                a->what, view->name, t->bytes, view->n_bytes, ARCHIVE_MOST_RATIO);
    }
    return MN_OK;
}

static mn_status read_entry(const archive *a, archive_view *view, const tensor *t) {
    size_t at = (size_t)(t->data - a->set->files[0].map.data);
    *view = (archive_view){.name = t->name,
                           .type = t->type,
                           .n_dims = t->n_dims,
                           .n_bytes = t->bytes,
                           .stored_bytes = t->bytes,
                           .stored = t->data};
    if (at % ARCHIVE_ALIGN != 0) {
        MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' begins at byte %zu of the file, allowed: multiples of %d", a->what,
                view->name, at, ARCHIVE_ALIGN);
    }
    if (t->n_dims > ARCHIVE_DIMS) {
        MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' has %d dimensions, allowed: up to %d", a->what, view->name, t->n_dims,
                ARCHIVE_DIMS);
    }
    memcpy(view->shape, t->shape, sizeof view->shape);
    const json_member *sum = metadata_of(a, ARCHIVE_SUM_PREFIX, view->name);
    if (!sum) MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' has no checksum", a->what, view->name);
    if (!hash_read(&view->sum, sum->value.string)) {
        return json_wrong_value(a->what, sum->key, &sum->value, "16 hexadecimal digits");
    }
    const json_member *raw = metadata_of(a, ARCHIVE_RAW_PREFIX, view->name);
    return raw ? read_compressed(a, view, t, raw) : MN_OK;
}

static bool is_filler(const tensor *t) {
    return begins(t->name, ARCHIVE_FILL_PREFIX);
}

/* Checks the fillers, so that at most 63 bytes after an entry belong to none. */
static mn_status check_filler(const archive *a, const tensor *t, const tensor *before) {
    bool fits = before && !is_filler(before) && t->type == DTYPE_U8 && t->n_dims == 1 && t->bytes < ARCHIVE_ALIGN &&
                (before->bytes + t->bytes) % ARCHIVE_ALIGN == 0;
    if (fits) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "%s: '%.150s' does not fill the gap between two entries", a->what, t->name);
}

static mn_status read_entries(archive *a) {
    size_t n_sums = 0, n_raws = 0, n_compressed = 0;
    MN_TRY(read_metadata(a, &n_sums, &n_raws));
    a->views = mem_alloc_raw(a->set->n, sizeof *a->views);
    a->by_name = mem_alloc_raw(a->set->n, sizeof *a->by_name);
    if (!a->views || !a->by_name) return MN_E_NOMEM;
    for (size_t i = 0; i < a->set->n; i++) {
        const tensor *t = &a->set->tensors[i];
        if (is_filler(t)) {
            MN_TRY(check_filler(a, t, i ? t - 1 : NULL));
        } else {
            MN_TRY(read_entry(a, &a->views[a->n], t));
            a->by_name[a->n] = &a->views[a->n];
            n_compressed += a->views[a->n].compressed;
            a->n++;
        }
    }
    if (n_sums != a->n || n_raws != n_compressed) {
        MN_FAIL(MN_E_REFUSED, "%s: %zu checksums and %zu former types for %zu entries, of which %zu are compressed",
                a->what, n_sums, n_raws, a->n, n_compressed);
    }
    return sort_pointers(a->by_name, a->n, order_of_views);
}

/* Takes ownership of a set that was opened with `status`. */
static mn_status open_set(archive **out, tensor_set *set, const char *what, mn_status status) {
    *out = NULL;
    archive *a = status == MN_OK ? mem_alloc(1, sizeof *a) : NULL;
    if (!a) {
        tensor_set_close(&set);
        return status == MN_OK ? MN_E_NOMEM : status == MN_E_FORMAT ? MN_E_REFUSED : status;
    }
    a->set = set;
    a->what = mem_copy_text(what, strlen(what));
    status = a->what ? check_head(a) : MN_E_NOMEM;
    if (status == MN_OK) status = read_entries(a);
    if (status == MN_OK) {
        *out = a;
    } else {
        archive_close(&a);
    }
    return status == MN_E_FORMAT ? MN_E_REFUSED : status;
}

mn_status archive_open(archive **out, const char *path) {
    tensor_set *set = NULL;
    mn_status status = safetensors_open(&set, path);
    return open_set(out, set, path, status);
}

mn_status archive_open_memory(archive **out, const void *data, size_t n, const char *what) {
    tensor_set *set = NULL;
    mn_status status = safetensors_open_memory(&set, data, n, what);
    return open_set(out, set, what, status);
}

bool archive_recognise(const char *path) {
    char head[ARCHIVE_SUM_AT];
    return file_head(head, sizeof head, path) == sizeof head &&
           memcmp(head + ARCHIVE_HEAD_AT, ARCHIVE_HEAD, sizeof head - ARCHIVE_HEAD_AT) == 0;
}

mn_status archive_authenticate(const archive *a, const mac_key *key) {
    const file_map *map = &a->set->files[0].map;
    char wanted[MAC_HEX];
    uint64_t length;
    memcpy(&length, map->data, sizeof length);
    size_t n_head = ARCHIVE_HEAD_AT + (size_t)length;
    if (n_head < ARCHIVE_MAC_AT + MAC_HEX ||
        memcmp(map->data + ARCHIVE_MAC_HEAD_AT, ARCHIVE_MAC_HEAD, ARCHIVE_MAC_AT - ARCHIVE_MAC_HEAD_AT) != 0)
        MN_FAIL(MN_E_REFUSED, "%s: it has no keyed checksum: it was saved without a key", a->what);
    const file_part rest = {map->data + n_head, map->n - n_head};
    MN_TRY(archive_mac(wanted, key, map->data, n_head, &rest, 1));
    if (mac_equal(wanted, (const char *)map->data + ARCHIVE_MAC_AT, MAC_HEX - 1)) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "%s: its keyed checksum is wrong: it was saved with another key, or changed since", a->what);
}

/* ---- asking ---- */

size_t archive_file_bytes(const archive *a) {
    return tensor_set_file_bytes(a->set);
}
size_t archive_members(const archive *a) {
    return a->n_members;
}
archive_member archive_member_at(const archive *a, size_t i) {
    return (archive_member){a->first[i].key, a->first[i].value.string};
}

const char *archive_member_of(const archive *a, const char *key) {
    const json_member *member = find(a->by_key, a->n_keys, &(json_member){.key = key}, order_of_keys);
    return member ? member->value.string : NULL;
}

size_t archive_entries(const archive *a) {
    return a->n;
}
const archive_view *archive_entry_at(const archive *a, size_t i) {
    return &a->views[i];
}

const archive_view *archive_find(const archive *a, const char *name) {
    return find(a->by_name, a->n, &(archive_view){.name = name}, order_of_views);
}

/* ---- bytes ---- */

static mn_status check_sum(const archive *a, const archive_view *view) {
    uint64_t got = hash_of(view->stored, view->stored_bytes);
    if (got == view->sum) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' is damaged: its checksum is %016llx, the file says %016llx", a->what,
            view->name, (unsigned long long)got, (unsigned long long)view->sum);
}

/* Expands a frame into `buffer` (n_bytes), or, to verify it only, piece by piece into `piece` (EXPAND_PIECE bytes). */
static mn_status expand(const archive *a, const archive_view *view, ZSTD_DCtx *context, void *buffer, void *piece) {
    ZSTD_inBuffer in = {view->stored, view->stored_bytes, 0};
    size_t total = 0, left = 1;
    while (left != 0 && !ZSTD_isError(left) && total <= view->n_bytes) {
        ZSTD_outBuffer out = buffer ? (ZSTD_outBuffer){(char *)buffer + total, view->n_bytes - total, 0}
                                    : (ZSTD_outBuffer){piece, EXPAND_PIECE, 0};
        size_t before = in.pos;
        left = ZSTD_decompressStream(context, &out, &in);
        mem_written(out.dst, out.pos);
        total += out.pos;
        if (in.pos == before && out.pos == 0)
            break; /* the frame is truncated, or larger than its header
                    * states */
    }
    if (left == 0 && in.pos == in.size && total == view->n_bytes) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "%s: entry '%.150s' does not expand to its %zu bytes: %s", a->what, view->name, view->n_bytes,
            ZSTD_isError(left) ? ZSTD_getErrorName(left) : "the frame has another size");
}

static ZSTD_DCtx *new_context(void) {
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (context) ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, WINDOW_LOG);
    return context;
}

mn_status archive_bytes(const archive *a, const archive_view *view, void *buffer, const uint8_t **data) {
    MN_TRY(check_sum(a, view));
    if (!view->compressed) {
        *data = view->stored;
        return MN_OK;
    }
    ZSTD_DCtx *context = new_context();
    if (!context) return mem_no_memory();
    mn_status status = expand(a, view, context, buffer, NULL);
    ZSTD_freeDCtx(context);
    if (status == MN_OK) *data = buffer;
    return status;
}

static mn_status check_zeros(const archive *a, const tensor *t) {
    static const uint8_t zeros[ARCHIVE_ALIGN];
    if (memcmp(t->data, zeros, t->bytes) == 0) return MN_OK;
    MN_FAIL(MN_E_REFUSED, "%s: '%.150s' is damaged: it is not all zeros", a->what, t->name);
}

mn_status archive_verify_gaps(const archive *a) {
    for (size_t i = 0; i < a->set->n; i++) {
        if (is_filler(&a->set->tensors[i])) MN_TRY(check_zeros(a, &a->set->tensors[i]));
    }
    return MN_OK;
}

mn_status archive_verify(const archive *a) {
    mn_status status = MN_OK;
    ZSTD_DCtx *context = new_context();
    void *piece = mem_alloc_raw(EXPAND_PIECE, 1);
    if (!context || !piece) status = mem_no_memory();
    for (size_t i = 0; i < a->n && status == MN_OK; i++) {
        status = check_sum(a, &a->views[i]);
        if (status == MN_OK && a->views[i].compressed) {
            ZSTD_DCtx_reset(context, ZSTD_reset_session_only);
            status = expand(a, &a->views[i], context, NULL, piece);
        }
    }
    if (status == MN_OK) status = archive_verify_gaps(a);
    mem_free(piece);
    ZSTD_freeDCtx(context);
    return status;
}
