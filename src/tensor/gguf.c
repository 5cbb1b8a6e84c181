/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/sort.h"
#include "tensor/tensor_set.h"

enum {
    VERSION_MIN = 2,
    VERSION_MAX = 3,
    HEADER_BYTES = 24,
    PAIR_BYTES = 13,     /* the shortest pair: an empty key and a value of one byte */
    INFO_BYTES = 32,     /* the shortest tensor description */
    MAX_PAIRS = 1 << 16, /* these three bound the work that a sparse file can cause */
    MAX_TENSORS = 1 << 20,
    MAX_TEXTS = 1 << 24, /* strings in all arrays together */
    MAX_DIMS = 4,
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 30,
    N_TYPES = GGUF_F64 + 1
};

static const struct {
    const char *name;
    size_t bytes; /* 0: strings and arrays have their own lengths */
} type_table[N_TYPES] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* Tensor types that exist but are not read, for the message. */
static const struct {
    uint32_t id;
    const char *name;
} other_types[] = {
    {4, "Q4_2"},    {5, "Q4_3"},        {9, "Q8_1"},        {15, "Q8_K"},       {16, "IQ2_XXS"},
    {17, "IQ2_XS"}, {18, "IQ3_XXS"},    {19, "IQ1_S"},      {21, "IQ3_S"},      {22, "IQ2_S"},
    {29, "IQ1_M"},  {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},
    {35, "TQ2_0"},  {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},
};

/* One key and its value; handed out as gguf_array when the value is one. */
typedef struct gguf_array {
    gguf_text key; /* in the end a zero-terminated copy */
    gguf_type type;
    gguf_type item;      /* GGUF_ARRAY: type of the items */
    size_t n;            /* GGUF_ARRAY: items; GGUF_STRING: bytes */
    const uint8_t *data; /* the number, the string or the items */
    gguf_text *texts;    /* the items of an array of strings; owned */
} pair;

struct gguf {
    tensor_set *set;
    char *path;
    pair *pairs;
    size_t n_pairs, pairs_capacity;
    const void **by_key; /* the pairs, sorted */
};

/* A tensor's description before the place of the data is known. */
typedef struct info {
    gguf_text name;
    tensor t;
    uint64_t offset;
} info;

typedef struct reader {
    gguf *file;
    const char *what; /* the file's name in messages */
    const uint8_t *start, *at, *end;
    char where[200]; /* what is being read: "key 'general.name'" */
    size_t n_texts;
    uint64_t alignment;
    info *infos;
    size_t n_infos, infos_capacity;
} reader;

/* ---- bytes ---- */

static size_t left(const reader *r) {
    return (size_t)(r->end - r->at);
}

static mn_status take(reader *r, size_t n, const uint8_t **out) {
    if (n > left(r)) {
        MN_FAIL(MN_E_FORMAT, "%s: %s takes %zu bytes from byte %zu on, but the file ends at byte %zu", r->what,
                r->where, n, (size_t)(r->at - r->start), (size_t)(r->end - r->start));
    }
    *out = r->at;
    r->at += n;
    return MN_OK;
}

static mn_status take_u32(reader *r, uint32_t *out) {
    const uint8_t *at;
    MN_TRY(take(r, sizeof *out, &at));
    memcpy(out, at, sizeof *out);
    return MN_OK;
}

static mn_status take_u64(reader *r, uint64_t *out) {
    const uint8_t *at;
    MN_TRY(take(r, sizeof *out, &at));
    memcpy(out, at, sizeof *out);
    return MN_OK;
}

static mn_status take_text(reader *r, gguf_text *out) {
    uint64_t n;
    const uint8_t *at;
    MN_TRY(take_u64(r, &n));
    MN_TRY(take(r, (size_t)n, &at));
    *out = (gguf_text){(const char *)at, (size_t)n};
    return MN_OK;
}

/* A name for humans into r->where, so that later messages show it. */
static mn_status take_name(reader *r, const char *kind, uint64_t number, gguf_text *out) {
    snprintf(r->where, sizeof r->where, "%s %" PRIu64, kind, number);
    MN_TRY(take_text(r, out));
    MN_TRY(tensor_check_name(r->what, kind, out->text, out->n));
    snprintf(r->where, sizeof r->where, "%s '%.*s'", kind, out->n > 150 ? 150 : (int)out->n, out->text);
    return MN_OK;
}

/* ---- metadata ---- */

static mn_status take_texts(reader *r, pair *p) {
    if (p->n > left(r) / 8 || p->n > MAX_TEXTS - r->n_texts) {
        MN_FAIL(MN_E_FORMAT, "%s: %s has %zu strings, but %zu bytes are left in the file and %zu strings are allowed",
                r->what, r->where, p->n, left(r), (size_t)MAX_TEXTS - r->n_texts);
    }
    r->n_texts += p->n;
    p->texts = mem_alloc_raw(p->n, sizeof *p->texts);
    if (!p->texts) return MN_E_NOMEM;
    for (size_t i = 0; i < p->n; i++) MN_TRY(take_text(r, &p->texts[i]));
    return MN_OK;
}

static mn_status take_array(reader *r, pair *p) {
    uint32_t item;
    uint64_t n;
    size_t size;
    MN_TRY(take_u32(r, &item));
    MN_TRY(take_u64(r, &n));
    if (item >= N_TYPES || item == GGUF_ARRAY) {
        MN_FAIL(MN_E_FORMAT, "%s: %s is an array of type %" PRIu32 ", allowed: 0 to %d except %d (arrays of arrays)",
                r->what, r->where, item, N_TYPES - 1, GGUF_ARRAY);
    }
    p->item = (gguf_type)item;
    p->n = (size_t)n;
    if (p->item == GGUF_STRING) return take_texts(r, p);
    if (!size_mul(p->n, type_table[item].bytes, &size)) size = SIZE_MAX;
    return take(r, size, &p->data);
}

static mn_status take_pair(reader *r, uint64_t number) {
    gguf *g = r->file;
    uint32_t type;
    MN_TRY(mem_grow(&g->pairs, &g->pairs_capacity, g->n_pairs + 1, sizeof *g->pairs));
    pair *p = &g->pairs[g->n_pairs++];
    *p = (pair){0};
    MN_TRY(take_name(r, "key", number, &p->key));
    MN_TRY(take_u32(r, &type));
    if (type >= N_TYPES) {
        MN_FAIL(MN_E_FORMAT, "%s: %s has a value of type %" PRIu32 ", allowed: 0 to %d", r->what, r->where, type,
                N_TYPES - 1);
    }
    p->type = (gguf_type)type;
    if (p->type == GGUF_ARRAY) return take_array(r, p);
    if (p->type != GGUF_STRING) return take(r, type_table[type].bytes, &p->data);
    gguf_text text;
    MN_TRY(take_text(r, &text));
    p->n = text.n;
    p->data = (const uint8_t *)text.text;
    return MN_OK;
}

/* ---- tensor descriptions ---- */

static mn_status find_dtype(const reader *r, uint32_t id, dtype *out) {
    for (*out = 0; *out < N_DTYPES; (*out)++) {
        if (dtype_table[*out].gguf_id >= 0 && (uint32_t)dtype_table[*out].gguf_id == id) return MN_OK;
    }
    const char *name = "unknown";
    for (size_t i = 0; i < sizeof other_types / sizeof *other_types; i++) {
        if (other_types[i].id == id) name = other_types[i].name;
    }
    MN_FAIL(MN_E_FORMAT,
            "%s: %s has type %" PRIu32
            " (%s), allowed: F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, I8 to I64, F64",
            r->what, r->where, id, name);
}

static mn_status take_info(reader *r, uint64_t number) {
    info in = {0};
    uint32_t n_dims, type;
    MN_TRY(take_name(r, "tensor", number, &in.name));
    MN_TRY(take_u32(r, &n_dims));
    if (n_dims < 1 || n_dims > MAX_DIMS) {
        MN_FAIL(MN_E_FORMAT, "%s: %s has %" PRIu32 " dimensions, allowed: 1 to %d", r->what, r->where, n_dims,
                MAX_DIMS);
    }
    in.t.n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++) { /* the file begins with the fastest dimension */
        uint64_t size;
        MN_TRY(take_u64(r, &size));
        if (size < 1 || size > INT64_MAX) {
            MN_FAIL(MN_E_FORMAT, "%s: %s has dimension %" PRIu32 " of %" PRIu64 ", allowed: 1 to 9223372036854775807",
                    r->what, r->where, i, size);
        }
        in.t.shape[n_dims - 1 - i] = (int64_t)size;
    }
    MN_TRY(take_u32(r, &type));
    MN_TRY(find_dtype(r, type, &in.t.type));
    MN_TRY(take_u64(r, &in.offset));
    if (in.offset % r->alignment != 0) {
        MN_FAIL(MN_E_FORMAT, "%s: %s begins at byte %" PRIu64 " of the data, allowed: multiples of %" PRIu64, r->what,
                r->where, in.offset, r->alignment);
    }
    MN_TRY(mem_grow(&r->infos, &r->infos_capacity, r->n_infos + 1, sizeof *r->infos));
    r->infos[r->n_infos++] = in;
    return MN_OK;
}

/* Copies keys and names with terminating zeros into one block of the file's record. */
static mn_status copy_names(reader *r) {
    gguf *g = r->file;
    size_t n = 0;
    for (size_t i = 0; i < g->n_pairs; i++) n += g->pairs[i].key.n + 1;
    for (size_t i = 0; i < r->n_infos; i++) n += r->infos[i].name.n + 1;
    char *to = mem_alloc(n, 1);
    if (!to) return MN_E_NOMEM;
    g->set->files[0].names = to;
    for (size_t i = 0; i < g->n_pairs + r->n_infos; i++) {
        gguf_text *text = i < g->n_pairs ? &g->pairs[i].key : &r->infos[i - g->n_pairs].name;
        memcpy(to, text->text, text->n);
        text->text = to;
        to += text->n + 1;
    }
    return MN_OK;
}

/* ---- one file ---- */

static mn_status check_header(reader *r, uint64_t *n_tensors, uint64_t *n_pairs) {
    const uint8_t *magic;
    uint32_t version;
    if (left(r) < HEADER_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: %zu bytes are no GGUF file, whose header alone takes %d", r->what, left(r),
                HEADER_BYTES);
    }
    MN_TRY(take(r, 4, &magic));
    if (memcmp(magic, "GGUF", 4) != 0) {
        MN_FAIL(MN_E_FORMAT, "%s: the first bytes are %02x %02x %02x %02x, allowed: 47 47 55 46 (\"GGUF\")", r->what,
                magic[0], magic[1], magic[2], magic[3]);
    }
    MN_TRY(take_u32(r, &version));
    if (version == (uint32_t)VERSION_MIN << 24 || version == (uint32_t)VERSION_MAX << 24) {
        MN_FAIL(MN_E_FORMAT, "%s: the file is big-endian, allowed: little-endian", r->what);
    }
    if (version < VERSION_MIN || version > VERSION_MAX) {
        MN_FAIL(MN_E_FORMAT, "%s: GGUF version %" PRIu32 ", allowed: %d and %d", r->what, version, VERSION_MIN,
                VERSION_MAX);
    }
    MN_TRY(take_u64(r, n_tensors));
    MN_TRY(take_u64(r, n_pairs));
    uint64_t pairs_allowed = left(r) / PAIR_BYTES, tensors_allowed = left(r) / INFO_BYTES;
    if (pairs_allowed > MAX_PAIRS) pairs_allowed = MAX_PAIRS;
    if (tensors_allowed > MAX_TENSORS) tensors_allowed = MAX_TENSORS;
    if (*n_pairs > pairs_allowed) {
        MN_FAIL(MN_E_FORMAT, "%s: %" PRIu64 " metadata keys, allowed in a file of this size: %" PRIu64, r->what,
                *n_pairs, pairs_allowed);
    }
    if (*n_tensors > tensors_allowed) {
        MN_FAIL(MN_E_FORMAT, "%s: %" PRIu64 " tensors, allowed in a file of this size: %" PRIu64, r->what, *n_tensors,
                tensors_allowed);
    }
    return MN_OK;
}

static int order_of_texts(gguf_text a, const char *text, size_t n) {
    int order = memcmp(a.text, text, a.n < n ? a.n : n);
    return order ? order : (a.n > n) - (a.n < n);
}

static int order_of_keys(const void *a, const void *b) {
    const pair *x = a, *y = b;
    return order_of_texts(x->key, y->key.text, y->key.n);
}

static mn_status index_pairs(const reader *r) {
    gguf *g = r->file;
    g->by_key = mem_alloc_raw(g->n_pairs, sizeof *g->by_key);
    if (!g->by_key) return MN_E_NOMEM;
    for (size_t i = 0; i < g->n_pairs; i++) g->by_key[i] = &g->pairs[i];
    MN_TRY(sort_pointers(g->by_key, g->n_pairs, order_of_keys));
    for (size_t i = 1; i < g->n_pairs; i++) {
        if (order_of_keys(g->by_key[i - 1], g->by_key[i]) != 0) continue;
        gguf_text key = ((const pair *)g->by_key[i])->key;
        MN_FAIL(MN_E_FORMAT, "%s: key '%.*s' appears twice", r->what, key.n > 150 ? 150 : (int)key.n, key.text);
    }
    return MN_OK;
}

static mn_status read_alignment(reader *r) {
    int64_t alignment = DEFAULT_ALIGNMENT;
    MN_TRY(gguf_int(r->file, "general.alignment", MIN_ALIGNMENT, MAX_ALIGNMENT, &alignment));
    r->alignment = (uint64_t)alignment;
    if ((r->alignment & (r->alignment - 1)) == 0) return MN_OK;
    MN_FAIL(MN_E_FORMAT, "%s: general.alignment is %" PRIu64 ", allowed: a power of two from %d to %d", r->what,
            r->alignment, MIN_ALIGNMENT, MAX_ALIGNMENT);
}

/* Turns the descriptions into tensors of the set: bytes inside the file, nothing shared between two. */
static mn_status place_tensors(reader *r) {
    tensor_set *set = r->file->set;
    uint64_t data_start = ((uint64_t)(r->at - r->start) + r->alignment - 1) & ~(r->alignment - 1);
    uint64_t file_bytes = (uint64_t)(r->end - r->start),
             data_bytes = file_bytes > data_start ? file_bytes - data_start : 0;
    for (size_t i = 0; i < r->n_infos; i++) {
        info *in = &r->infos[i];
        in->t.name = in->name.text;
        MN_TRY(tensor_needs(r->what, &in->t, &in->t.bytes));
        if (in->offset > data_bytes || in->t.bytes > data_bytes - in->offset) {
            MN_FAIL(MN_E_FORMAT,
                    "%s: tensor '%.150s' takes %zu bytes from byte %" PRIu64
                    " of the data on, but the file has %" PRIu64 " bytes of data: it is truncated",
                    r->what, in->t.name, in->t.bytes, in->offset, data_bytes);
        }
        in->t.data = r->start + data_start + in->offset;
        MN_TRY(tensor_set_add(set, &in->t));
    }
    MN_TRY(tensor_set_order(set));
    for (size_t i = 1; i < set->n; i++) {
        const tensor *before = &set->tensors[i - 1], *t = &set->tensors[i];
        if (before->data + before->bytes <= t->data) continue;
        MN_FAIL(MN_E_FORMAT, "%s: tensors '%.150s' and '%.150s' overlap", r->what, before->name, t->name);
    }
    return tensor_set_finish(set, r->what);
}

static mn_status read_file(reader *r) {
    uint64_t n_tensors, n_pairs;
    MN_TRY(check_header(r, &n_tensors, &n_pairs));
    for (uint64_t i = 0; i < n_pairs; i++) MN_TRY(take_pair(r, i));
    MN_TRY(index_pairs(r));
    MN_TRY(read_alignment(r));
    for (uint64_t i = 0; i < n_tensors; i++) MN_TRY(take_info(r, i));
    MN_TRY(copy_names(r));
    return place_tensors(r);
}

/* Opens one file: the bytes of `memory`, or what lies at `path` when that is NULL. */
static mn_status open_one(gguf **out, const char *path, const file_map *memory) {
    mn_status status;
    gguf *g = mem_alloc(1, sizeof *g);
    reader r = {.file = g, .what = path};
    *out = NULL;
    if (!g) return MN_E_NOMEM;
    g->path = mem_copy_text(path, strlen(path));
    if (!g->path) MN_GOTO(done, status, MN_E_NOMEM);
    MN_GOTO(done, status, tensor_set_new(&g->set));
    MN_GOTO(done, status, memory ? tensor_set_borrow(g->set, memory->data, memory->n) : tensor_set_map(g->set, path));
    file_map map = g->set->files[0].map;
    r.start = r.at = r.end = map.data;
    if (map.n) r.end += map.n; /* an empty file is mapped nowhere */
    status = read_file(&r);
done:
    mem_free(r.infos);
    if (status != MN_OK) gguf_close(&g);
    *out = g;
    return status;
}

void gguf_close(gguf **file) {
    gguf *g = *file;
    if (!g) return;
    for (size_t i = 0; i < g->n_pairs; i++) mem_free(g->pairs[i].texts);
    mem_free(g->pairs);
    mem_free(g->by_key);
    mem_free(g->path);
    tensor_set_close(&g->set);
    mem_free(g);
    *file = NULL;
}

/* ---- split files ---- */

static void put_part_name(bytes *out, const char *path, size_t stem, int64_t part, int64_t count) {
    out->n = 0;
    bytes_append(out, path, stem);
    bytes_printf(out, "-%05" PRId64 "-of-%05" PRId64 ".gguf", part, count);
    bytes_text(out);
}

/* Number and count of this part; 1 of 1 for a file that is not split. */
static mn_status part_of(const gguf *g, int64_t *part, int64_t *count) {
    int64_t number = 0;
    *count = 1;
    MN_TRY(gguf_int(g, "split.count", 0, 99999, count));
    if (*count == 0) *count = 1;
    MN_TRY(gguf_int(g, "split.no", 0, *count - 1, &number));
    *part = number + 1;
    return MN_OK;
}

static mn_status read_part(gguf *g, const char *path, int64_t part, int64_t count) {
    gguf *sibling = NULL;
    int64_t part_seen, count_seen;
    mn_status status = open_one(&sibling, path, NULL);
    if (status == MN_OK) status = part_of(sibling, &part_seen, &count_seen);
    if (status == MN_OK && (part_seen != part || count_seen != count)) {
        status = status_fail(
            MN_E_FORMAT, "%s: the file calls itself part %" PRId64 " of %" PRId64 ", allowed: %" PRId64 " of %" PRId64,
            path, part_seen, count_seen, part, count);
    }
    if (status == MN_OK) status = tensor_set_merge(g->set, sibling->set);
    gguf_close(&sibling);
    return status;
}

static mn_status read_parts(gguf *g, int64_t count, bytes *name) {
    size_t path_n = strlen(g->path), suffix;
    put_part_name(name, "", 0, 1, count);
    MN_TRY(bytes_status(name));
    suffix = name->n;
    if (path_n < suffix || memcmp(g->path + path_n - suffix, name->data, suffix) != 0) {
        MN_FAIL(MN_E_FORMAT, "%s: the first of %" PRId64 " parts must have a name that ends in '%s'", g->path, count,
                bytes_text(name));
    }
    for (int64_t part = 2; part <= count; part++) {
        put_part_name(name, g->path, path_n - suffix, part, count);
        MN_TRY(bytes_status(name));
        if (!file_is_there(name->data)) {
            MN_FAIL(MN_E_NOT_FOUND, "%s: no such file, but %s has %" PRId64 " parts", name->data, g->path, count);
        }
    }
    for (int64_t part = 2; part <= count; part++) {
        put_part_name(name, g->path, path_n - suffix, part, count);
        MN_TRY(bytes_status(name));
        MN_TRY(read_part(g, name->data, part, count));
    }
    int64_t n_tensors = (int64_t)g->set->n;
    MN_TRY(gguf_int(g, "split.tensors.count", n_tensors, n_tensors, &n_tensors));
    return tensor_set_finish(g->set, g->path);
}

static mn_status follow_split(gguf *g, bool in_memory) {
    int64_t part, count;
    bytes name = {0};
    MN_TRY(part_of(g, &part, &count));
    if (count == 1) return MN_OK;
    if (in_memory)
        MN_FAIL(MN_E_FORMAT, "%s: part %" PRId64 " of %" PRId64 ", allowed in memory: whole files", g->path, part,
                count);
    if (part != 1) {
        MN_FAIL(MN_E_FORMAT,
                "%s: this is part %" PRId64 " of %" PRId64 "; open the first, whose name ends in '-00001-of-%05" PRId64
                ".gguf'",
                g->path, part, count, count);
    }
    mn_status status = read_parts(g, count, &name);
    bytes_clear(&name);
    return status;
}

static mn_status finish(gguf **out, mn_status status, bool in_memory) {
    if (status == MN_OK) status = follow_split(*out, in_memory);
    if (status != MN_OK) gguf_close(out);
    return status;
}

mn_status gguf_open(gguf **out, const char *path) {
    return finish(out, open_one(out, path, NULL), false);
}

mn_status gguf_open_memory(gguf **out, const void *data, size_t n, const char *what) {
    return finish(out, open_one(out, what, &(file_map){data, n, 0}), true);
}

/* ---- reading metadata ---- */

const tensor_set *gguf_tensors(const gguf *file) {
    return file->set;
}
const char *gguf_path(const gguf *file) {
    return file->path;
}
size_t gguf_key_count(const gguf *file) {
    return file->n_pairs;
}
const char *gguf_key(const gguf *file, size_t i) {
    return file->pairs[i].key.text;
}

static const pair *find_pair(const gguf *file, const char *key) {
    size_t lo = 0, hi = file->n_pairs, n = strlen(key);
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        const pair *p = file->by_key[middle];
        int order = order_of_texts(p->key, key, n);
        if (order == 0) return p;
        if (order > 0) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    return NULL;
}

bool gguf_has(const gguf *file, const char *key) {
    return find_pair(file, key) != NULL;
}

/* A number at `at`; integers exactly in *whole (false when it is none or above INT64_MAX), all as a double in *real. */
static bool load_number(gguf_type type, const uint8_t *at, int64_t *whole, double *real) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } x;
    *whole = 0;
    memcpy(&x, at, type_table[type].bytes);
    *whole = 0;
    switch (type) {
    case GGUF_U8: *whole = x.u8; break;
    case GGUF_I8: *whole = x.i8; break;
    case GGUF_U16: *whole = x.u16; break;
    case GGUF_I16: *whole = x.i16; break;
    case GGUF_U32: *whole = x.u32; break;
    case GGUF_I32: *whole = x.i32; break;
    case GGUF_I64: *whole = x.i64; break;
    case GGUF_BOOL: *whole = x.u8 != 0; break;
    case GGUF_U64:
        *real = (double)x.u64;
        *whole = (int64_t)x.u64;
        return x.u64 <= INT64_MAX;
    case GGUF_F32: *real = (double)x.f32; return false;
    case GGUF_F64: *real = x.f64; return false;
    case GGUF_STRING:
    case GGUF_ARRAY: return false;
    }
    *real = (double)*whole;
    return true;
}

static bool is_number(gguf_type type) {
    return type != GGUF_STRING && type != GGUF_ARRAY && type != GGUF_BOOL;
}

static void put_pair(bytes *out, const pair *p) {
    int64_t whole = 0;
    double real = 0;
    if (p->type == GGUF_STRING) {
        json_put_string(out, (const char *)p->data, p->n);
    } else if (p->type == GGUF_ARRAY) {
        bytes_printf(out, "\"[%zu %s]\"", p->n, type_table[p->item].name);
    } else if (p->type == GGUF_BOOL) {
        bytes_append_text(out, *p->data ? "true" : "false");
    } else if (load_number(p->type, p->data, &whole, &real)) {
        bytes_printf(out, "%" PRId64, whole);
    } else if (p->type == GGUF_U64) {
        bytes_printf(out, "%" PRIu64, (uint64_t)whole);
    } else {
        json_put_real(out, real);
    }
}

void gguf_put_value(bytes *out, const gguf *file, size_t i) {
    put_pair(out, &file->pairs[i]);
}

static void put_length(bytes *out, uint64_t n) {
    bytes_append(out, &n, sizeof n);
}

void gguf_put_pair(bytes *out, const gguf *file, size_t i) {
    const pair *p = &file->pairs[i];
    const uint32_t types[] = {(uint32_t)p->type, (uint32_t)p->item};
    put_length(out, p->key.n);
    bytes_append(out, p->key.text, p->key.n);
    bytes_append(out, &types[0], sizeof types[0]);
    if (p->type == GGUF_ARRAY) bytes_append(out, &types[1], sizeof types[1]);
    if (p->type == GGUF_ARRAY || p->type == GGUF_STRING) put_length(out, p->n);
    if (p->type == GGUF_STRING) {
        bytes_append(out, p->data, p->n);
    } else if (p->type != GGUF_ARRAY) {
        bytes_append(out, p->data, type_table[p->type].bytes);
    } else if (p->item != GGUF_STRING) {
        bytes_append(out, p->data, p->n * type_table[p->item].bytes);
    } else {
        for (size_t j = 0; j < p->n; j++) {
            put_length(out, p->texts[j].n);
            bytes_append(out, p->texts[j].text, p->texts[j].n);
        }
    }
}

static mn_status wrong_value(const gguf *file, const pair *p, const char *key, const char *allowed) {
    bytes seen = {0};
    put_pair(&seen, p);
    status_fail(MN_E_FORMAT, "%s: %s is %.60s (%s), allowed: %s", file->path, key, bytes_text(&seen),
                type_table[p->type].name, allowed);
    bytes_clear(&seen);
    return MN_E_FORMAT;
}

mn_status gguf_int(const gguf *file, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    const pair *p = find_pair(file, key);
    int64_t whole = 0;
    double real;
    char allowed[96];
    if (!p) return MN_OK;
    if (is_number(p->type) && load_number(p->type, p->data, &whole, &real) && whole >= lo && whole <= hi) {
        *out = whole;
        return MN_OK;
    }
    snprintf(allowed, sizeof allowed, "a whole number from %" PRId64 " to %" PRId64, lo, hi);
    return wrong_value(file, p, key, allowed);
}

mn_status gguf_real(const gguf *file, const char *key, double lo, double hi, double *out) {
    const pair *p = find_pair(file, key);
    int64_t whole;
    double real = (double)NAN;
    char allowed[96];
    if (!p) return MN_OK;
    if (is_number(p->type)) load_number(p->type, p->data, &whole, &real);
    if (real >= lo && real <= hi) {
        *out = real;
        return MN_OK;
    }
    snprintf(allowed, sizeof allowed, "a number from %g to %g", lo, hi);
    return wrong_value(file, p, key, allowed);
}

mn_status gguf_bool(const gguf *file, const char *key, bool *out) {
    const pair *p = find_pair(file, key);
    if (!p) return MN_OK;
    if (p->type != GGUF_BOOL) return wrong_value(file, p, key, "a bool");
    *out = *p->data != 0;
    return MN_OK;
}

mn_status gguf_string(const gguf *file, const char *key, gguf_text *out) {
    const pair *p = find_pair(file, key);
    if (!p) return MN_OK;
    if (p->type != GGUF_STRING) return wrong_value(file, p, key, "a string");
    *out = (gguf_text){(const char *)p->data, p->n};
    return MN_OK;
}

const gguf_array *gguf_array_find(const gguf *file, const char *key) {
    const pair *p = find_pair(file, key);
    return p && p->type == GGUF_ARRAY ? p : NULL;
}

size_t gguf_array_n(const gguf_array *array) {
    return array->n;
}
bool gguf_array_is_text(const gguf_array *array) {
    return array->item == GGUF_STRING;
}

gguf_text gguf_array_text_at(const gguf_array *array, size_t i) {
    return array->item == GGUF_STRING ? array->texts[i] : (gguf_text){"", 0};
}

double gguf_array_number_at(const gguf_array *array, size_t i) {
    int64_t whole;
    double real = (double)NAN;
    if (array->item != GGUF_STRING)
        load_number(array->item, array->data + i * type_table[array->item].bytes, &whole, &real);
    return real;
}
