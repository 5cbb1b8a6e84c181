/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sort.h"
#include "tensor/tensor_set.h"

enum {
    LENGTH_BYTES = 8, /* the header length before the header */
    MIN_HEADER = 2,   /* {} */
    MAX_HEADER = 100000000,
    MAX_INDEX = 1 << 26,
    WHAT_BYTES = 600 /* for "file: tensor 'name'" in messages, cut when longer */
};

static const char metadata_key[] = "__metadata__";

/* A file while its header is read. */
typedef struct header_reader {
    tensor_set *set;
    const char *what;    /* the file's name in messages */
    const uint8_t *data; /* behind the header */
    size_t n;            /* bytes there */
} header_reader;

/* ---- one tensor ---- */

static mn_status read_dtype(const char *what, const json *entry, dtype *out) {
    const json *value = json_get(entry, "dtype");
    for (*out = 0; *out < N_DTYPES; (*out)++) {
        const char *name = dtype_table[*out].safetensors_name;
        if (name && json_is_string(value, name)) return MN_OK;
    }
    bytes allowed = {0};
    for (dtype type = 0; type < N_DTYPES; type++) {
        const char *name = dtype_table[type].safetensors_name;
        if (name) bytes_printf(&allowed, "%s%s", allowed.n ? ", " : "", name);
    }
    mn_status status = json_wrong_value(what, "dtype", value, bytes_text(&allowed));
    bytes_clear(&allowed);
    return status;
}

static mn_status read_shape(const char *what, const json *entry, tensor *t) {
    const json *shape = json_get(entry, "shape");
    if (shape->kind != JSON_ARRAY || shape->n > TENSOR_DIMS) {
        return json_wrong_value(what, "shape", shape, "a list of up to 8 dimensions");
    }
    t->n_dims = (int)shape->n;
    for (size_t i = 0; i < shape->n; i++) {
        const json *size = &shape->items[i];
        if (size->kind != JSON_INT || size->integer < 0) {
            return json_wrong_value(what, "shape", shape, "whole numbers from 0 to 9223372036854775807");
        }
        t->shape[i] = size->integer;
    }
    return MN_OK;
}

static mn_status read_offsets(const header_reader *r, const char *what, const json *entry, tensor *t) {
    const json *offsets = json_get(entry, "data_offsets");
    bool pair = offsets->kind == JSON_ARRAY && offsets->n == 2;
    for (size_t i = 0; pair && i < 2; i++) pair = offsets->items[i].kind == JSON_INT && offsets->items[i].integer >= 0;
    if (!pair || offsets->items[0].integer > offsets->items[1].integer) {
        return json_wrong_value(what, "data_offsets", offsets, "[begin, end], whole numbers with 0 <= begin <= end");
    }
    size_t begin = (size_t)offsets->items[0].integer, end = (size_t)offsets->items[1].integer;
    if (end > r->n) {
        MN_FAIL(MN_E_FORMAT, "%s: the data end at byte %zu, but the file has %zu bytes of data: it is truncated", what,
                end, r->n);
    }
    t->data = r->data + begin;
    t->bytes = end - begin;
    return MN_OK;
}

static mn_status read_tensor(header_reader *r, const json_member *member) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    const json *entry = &member->value;
    char what[WHAT_BYTES];
    MN_TRY(tensor_check_name(r->what, "tensor", member->key, member->key_n));
    snprintf(what, sizeof what, "%.400s: tensor '%.150s'", r->what, member->key);
    if (entry->kind != JSON_OBJECT) return json_wrong_value(what, "its description", entry, "an object");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) MN_TRY(json_require(what, entry, fields[i]));
    if (entry->n != 3) MN_FAIL(MN_E_FORMAT, "%s: %zu fields, allowed: dtype, shape, data_offsets", what, entry->n);

    tensor t = {.name = member->key};
    size_t needed;
    MN_TRY(read_dtype(what, entry, &t.type));
    MN_TRY(read_shape(what, entry, &t));
    MN_TRY(read_offsets(r, what, entry, &t));
    MN_TRY(tensor_needs(r->what, &t, &needed));
    if (needed != t.bytes) {
        MN_FAIL(MN_E_FORMAT, "%s: %zu bytes of data, but its shape and type %s take %zu", what, t.bytes,
                dtype_table[t.type].name, needed);
    }
    return tensor_set_add(r->set, &t);
}

/* ---- one file ---- */

/* The data of the tensors follow each other from the first byte to the last. */
static mn_status check_layout(const header_reader *r) {
    const uint8_t *at = r->data;
    for (size_t i = 0; i < r->set->n; i++) {
        const tensor *t = &r->set->tensors[i];
        if (t->data != at) {
            MN_FAIL(MN_E_FORMAT, "%s: tensor '%.150s' begins at byte %zu of the data, allowed: %zu (%s)", r->what,
                    t->name, (size_t)(t->data - r->data), (size_t)(at - r->data),
                    t->data < at ? "it overlaps the one before" : "there is a hole before it");
        }
        at += t->bytes;
    }
    if (at != r->data + r->n) {
        MN_FAIL(MN_E_FORMAT, "%s: the file has %zu bytes of data, but its tensors account for %zu", r->what, r->n,
                (size_t)(at - r->data));
    }
    return MN_OK;
}

static mn_status check_metadata(const char *what, const json *metadata) {
    if (metadata->kind != JSON_OBJECT) return json_wrong_value(what, metadata_key, metadata, "an object of strings");
    for (size_t i = 0; i < metadata->n; i++) {
        if (metadata->members[i].value.kind == JSON_STRING) continue;
        char key[WHAT_BYTES];
        snprintf(key, sizeof key, "%s '%.150s'", metadata_key, metadata->members[i].key);
        return json_wrong_value(what, key, &metadata->members[i].value, "a string");
    }
    return MN_OK;
}

/* Reads the only file of the set. */
static mn_status read_file(tensor_set *set, const char *what) {
    tensor_file *file = &set->files[0];
    uint64_t length = 0;
    if (file->map.n < LENGTH_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: %zu bytes are no safetensors file, which begins with 8 bytes of header length", what,
                file->map.n);
    }
    memcpy(&length, file->map.data, sizeof length);
    if (length < MIN_HEADER || length > MAX_HEADER) {
        MN_FAIL(MN_E_FORMAT, "%s: the header length is %" PRIu64 ", allowed: %d to %d", what, length, MIN_HEADER,
                MAX_HEADER);
    }
    if (length > file->map.n - LENGTH_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: the header length is %" PRIu64 ", but only %zu bytes follow: the file is truncated",
                what, length, file->map.n - LENGTH_BYTES);
    }
    const char *header = (const char *)file->map.data + LENGTH_BYTES;
    if (*header != '{')
        MN_FAIL(MN_E_FORMAT, "%s: the header begins with byte 0x%02x, allowed: '{'", what, (unsigned char)*header);
    MN_TRY(json_parse(&file->header, header, (size_t)length, JSON_STRICT, what));

    const json *root = json_root(file->header);
    header_reader r = {set, what, file->map.data + LENGTH_BYTES + length, file->map.n - LENGTH_BYTES - (size_t)length};
    for (size_t i = 0; i < root->n; i++) {
        const json_member *member = &root->members[i];
        if (member->key_n == strlen(metadata_key) && strcmp(member->key, metadata_key) == 0) {
            MN_TRY(check_metadata(what, &member->value));
        } else {
            MN_TRY(read_tensor(&r, member));
        }
    }
    MN_TRY(tensor_set_order(set));
    MN_TRY(check_layout(&r));
    return tensor_set_finish(set, what);
}

/* Hands over a set that could be filled, or closes it. */
static mn_status finish(tensor_set **out, tensor_set *set, mn_status status) {
    if (status == MN_OK) {
        *out = set;
    } else {
        tensor_set_close(&set);
    }
    return status;
}

mn_status safetensors_open(tensor_set **out, const char *path) {
    tensor_set *set = NULL;
    *out = NULL;
    mn_status status = tensor_set_new(&set);
    if (status == MN_OK) status = tensor_set_map(set, path);
    if (status == MN_OK) status = read_file(set, path);
    return finish(out, set, status);
}

mn_status safetensors_open_memory(tensor_set **out, const void *data, size_t n, const char *what) {
    tensor_set *set = NULL;
    *out = NULL;
    mn_status status = tensor_set_new(&set);
    if (status == MN_OK) status = tensor_set_borrow(set, data, n);
    if (status == MN_OK) status = read_file(set, what);
    return finish(out, set, status);
}

const json *safetensors_metadata(const tensor_set *set) {
    return set->n_files == 1 && set->files[0].header ? json_get(json_root(set->files[0].header), metadata_key) : NULL;
}

/* ---- sharded checkpoints ---- */

static int order_of_shards(const void *a, const void *b) {
    const json_member *x = a, *y = b;
    return strcmp(x->value.string, y->value.string);
}

/* Shards lie beside the index: a plain file name, nothing that leads elsewhere. */
static bool is_plain_name(const json *value) {
    return value->kind == JSON_STRING && value->n > 0 && value->n <= 255 && strlen(value->string) == value->n &&
           !strchr(value->string, '/') && value->string[0] != '.';
}

/* The members of "weight_map", sorted by shard: *out holds *n pointers to json_member, owned by the caller. */
static mn_status read_weight_map(const json_doc *index, const void ***out, size_t *n) {
    const json *map = json_get(json_root(index), "weight_map");
    const char *what = json_what(index);
    if (!map || map->kind != JSON_OBJECT || map->n == 0) {
        MN_FAIL(MN_E_FORMAT, "%s: 'weight_map' must be an object that names the shard of at least one tensor", what);
    }
    for (size_t i = 0; i < map->n; i++) {
        const json_member *member = &map->members[i];
        MN_TRY(tensor_check_name(what, "tensor", member->key, member->key_n));
        if (is_plain_name(&member->value)) continue;
        char key[WHAT_BYTES];
        snprintf(key, sizeof key, "the shard of '%.150s'", member->key);
        return json_wrong_value(what, key, &member->value, "the name of a file in the same folder");
    }
    *n = map->n;
    *out = mem_alloc_raw(map->n, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    for (size_t i = 0; i < map->n; i++) (*out)[i] = &map->members[i];
    return sort_pointers(*out, map->n, order_of_shards);
}

/* How many entries from the first on have its shard. */
static size_t same_shard(const void *const *sorted, size_t n) {
    size_t same = 1;
    while (same < n && order_of_shards(sorted[0], sorted[same]) == 0) same++;
    return same;
}

static mn_status find_shards(const char *folder, const char *index, const void *const *sorted, size_t n, bytes *path) {
    for (size_t i = 0; i < n; i += same_shard(sorted + i, n - i)) {
        const json_member *member = sorted[i];
        MN_TRY(path_join(path, folder, member->value.string));
        if (file_is_there(bytes_text(path))) continue;
        MN_FAIL(MN_E_NOT_FOUND, "%s: no such file, but %s needs it for %zu tensors, the first '%.150s'",
                bytes_text(path), index, same_shard(sorted + i, n - i), member->key);
    }
    return MN_OK;
}

/* Opens a shard; each of the n entries must be among its tensors. */
static mn_status read_shard(tensor_set *set, const char *path, const char *index, const void *const *entries,
                            size_t n) {
    tensor_set *shard = NULL;
    mn_status status = safetensors_open(&shard, path);
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        const json_member *member = entries[i];
        if (tensor_set_find(shard, member->key)) continue;
        status = status_fail(MN_E_FORMAT, "%s: no tensor '%.150s', which %s looks for here", path, member->key, index);
    }
    if (status == MN_OK) status = tensor_set_merge(set, shard);
    tensor_set_close(&shard);
    return status;
}

static mn_status read_shards(tensor_set *set, const char *folder, const json_doc *index) {
    const void **sorted = NULL;
    size_t n = 0;
    bytes path = {0};
    mn_status status = read_weight_map(index, &sorted, &n);
    if (status == MN_OK) status = find_shards(folder, json_what(index), sorted, n, &path);
    for (size_t i = 0, same; i < n && status == MN_OK; i += same) {
        const json_member *member = sorted[i];
        same = same_shard(sorted + i, n - i);
        status = path_join(&path, folder, member->value.string);
        if (status == MN_OK) status = read_shard(set, bytes_text(&path), json_what(index), sorted + i, same);
    }
    if (status == MN_OK) status = tensor_set_finish(set, folder);
    bytes_clear(&path);
    mem_free(sorted);
    return status;
}

mn_status safetensors_open_folder(tensor_set **out, const char *folder) {
    tensor_set *set = NULL;
    json_doc *index = NULL;
    bytes path = {0};
    mn_status status;
    *out = NULL;
    if (!file_is_directory(folder)) MN_FAIL(MN_E_NOT_FOUND, "'%s' is no folder", folder);
    MN_GOTO(done, status, path_join(&path, folder, "model.safetensors"));
    if (file_is_there(bytes_text(&path))) {
        status = safetensors_open(out, bytes_text(&path));
        goto done;
    }
    MN_GOTO(done, status, path_join(&path, folder, "model.safetensors.index.json"));
    if (!file_is_there(bytes_text(&path))) {
        status = status_fail(MN_E_NOT_FOUND, "'%s' holds neither model.safetensors nor model.safetensors.index.json",
                             folder);
        goto done;
    }
    MN_GOTO(done, status, json_open(&index, bytes_text(&path), JSON_STRICT, MAX_INDEX));
    MN_GOTO(done, status, tensor_set_new(&set));
    status = finish(out, set, read_shards(set, folder, index));
done:
    json_close(&index);
    bytes_clear(&path);
    return status;
}

/* ---- writing ---- */

static int order_of_width(const void *a, const void *b) {
    const tensor *x = a, *y = b;
    return dtype_table[y->type].bytes - dtype_table[x->type].bytes;
}

static int order_of_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static mn_status check_tensor(const char *path, const tensor *t) {
    size_t needed;
    MN_TRY(tensor_check_name(path, "tensor", t->name, strlen(t->name)));
    if (!dtype_table[t->type].safetensors_name) {
        MN_FAIL(MN_E_FORMAT, "%s: tensor '%.150s' has type %s, which safetensors cannot store", path, t->name,
                dtype_table[t->type].name);
    }
    MN_TRY(tensor_needs(path, t, &needed));
    if (needed != t->bytes) {
        MN_FAIL(MN_E_FORMAT, "%s: tensor '%.150s' has %zu bytes, its shape takes %zu", path, t->name, t->bytes, needed);
    }
    return MN_OK;
}

/* What a reader would refuse. */
static mn_status check_written(const char *path, const tensor *tensors, size_t n) {
    mn_status status = MN_OK;
    const void **names = mem_alloc_raw(n + 1, sizeof *names);
    if (!names) return MN_E_NOMEM;
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        status = check_tensor(path, &tensors[i]);
        names[i] = tensors[i].name;
    }
    names[n] = metadata_key;
    if (status == MN_OK) status = sort_pointers(names, n + 1, order_of_text);
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        if (strcmp(names[i], names[i + 1]) != 0) continue;
        status = status_fail(MN_E_FORMAT, "%s: the name '%.150s' is given to two tensors or reserved", path,
                             (const char *)names[i]);
    }
    mem_free(names);
    return status == MN_E_FORMAT ? MN_E_ARG : status; /* not a file is at fault but the caller */
}

static void put_tensor(bytes *out, const tensor *t, size_t begin) {
    const char *type = dtype_table[t->type].safetensors_name;
    json_put_string(out, t->name, strlen(t->name));
    bytes_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", type);
    for (int k = 0; k < t->n_dims; k++) bytes_printf(out, "%s%" PRId64, k ? "," : "", t->shape[k]);
    bytes_printf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + t->bytes);
}

mn_status safetensors_head(bytes *out, const char *what, const tensor *tensors, size_t n, const char *metadata,
                           size_t alignment) {
    uint64_t length = 0;
    size_t end = 0;
    out->n = 0;
    MN_TRY(check_written(what, tensors, n));
    bytes_append(out, &length, sizeof length);
    bytes_append_text(out, "{");
    if (metadata) bytes_printf(out, "\"%s\":%s", metadata_key, metadata);
    for (size_t i = 0; i < n; i++) {
        if (i || metadata) bytes_append_text(out, ",");
        put_tensor(out, &tensors[i], end);
        end += tensors[i].bytes;
    }
    bytes_append_text(out, "}");
    while (out->n % alignment != 0 && !out->failed) bytes_append_text(out, " ");
    MN_TRY(bytes_status(out));
    length = out->n - LENGTH_BYTES;
    memcpy(out->data, &length, sizeof length);
    return MN_OK;
}

static mn_status put_metadata(bytes *out, const char *const *pairs) {
    for (size_t i = 0; pairs[i]; i += 2) {
        bytes_append_text(out, i ? "," : "{");
        json_put_string(out, pairs[i], strlen(pairs[i]));
        bytes_append_text(out, ":");
        json_put_string(out, pairs[i + 1], strlen(pairs[i + 1]));
    }
    if (out->n) bytes_append_text(out, "}");
    bytes_text(out);
    return bytes_status(out);
}

mn_status safetensors_write(const char *path, const tensor *tensors, size_t n, const char *const *metadata) {
    mn_status status = MN_OK;
    bytes head = {0}, pairs = {0};
    const void **sorted = mem_alloc_raw(n, sizeof *sorted);
    tensor *ordered = mem_alloc_raw(n, sizeof *ordered);
    file_part *parts = mem_alloc(n + 1, sizeof *parts);
    if (!sorted || !ordered || !parts) MN_GOTO(done, status, mem_no_memory());
    for (size_t i = 0; i < n; i++) sorted[i] = &tensors[i];
    MN_GOTO(done, status, sort_pointers(sorted, n, order_of_width));
    for (size_t i = 0; i < n; i++) {
        ordered[i] = *(const tensor *)sorted[i];
        parts[i + 1] = (file_part){ordered[i].data, ordered[i].bytes};
    }
    if (metadata) MN_GOTO(done, status, put_metadata(&pairs, metadata));
    MN_GOTO(done, status, safetensors_head(&head, path, ordered, n, pairs.n ? pairs.data : NULL, 8));
    parts[0] = (file_part){head.data, head.n};
    status = file_write_parts(path, parts, n + 1, FILE_PRIVATE);
done:
    bytes_clear(&head);
    bytes_clear(&pairs);
    mem_free(sorted);
    mem_free(ordered);
    mem_free(parts);
    return status;
}
