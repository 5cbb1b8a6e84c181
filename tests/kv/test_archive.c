/* Saved caches: what is written is read, the files are valid safetensors, and every changed byte is detected.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "kv/archive.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

/* ---- an archive with every kind of entry ---- */

enum { N_NOISE = 5000, N_SMOOTH = 40000, N_ZEROS = 300000 };

typedef struct sample {
    uint8_t noise[N_NOISE], smooth[N_SMOOTH], zeros[N_ZEROS];
    int32_t ids[7];
    float floats[2 * 3 * 4];
} sample;

static const archive_member members[] = {
    {ARCHIVE_KIND, ARCHIVE_KIND_CACHE},
    {ARCHIVE_MODEL, "a \"model\" \xC3\xA9"},
    {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\"}"},
    {"empty", ""},
};
enum { N_MEMBERS = sizeof members / sizeof *members };

static sample *new_sample(void) {
    uint64_t seed = 7;
    sample *s = calloc(1, sizeof *s);
    for (int i = 0; i < N_NOISE; i++) s->noise[i] = (uint8_t)test_random(&seed);
    for (int i = 0; i < N_SMOOTH; i++) s->smooth[i] = (uint8_t)((uint64_t)i / 100 + (test_random(&seed) & 1));
    for (int i = 0; i < 7; i++) s->ids[i] = i * 1000;
    for (int i = 0; i < 24; i++) s->floats[i] = (float)i / 3;
    return s;
}

/* Sizes around multiples of 64, no bytes at all, every number of dimensions. */
static size_t sample_entries(archive_entry *out, const sample *s) {
    const archive_entry entries[] = {
        {ARCHIVE_IDS, DTYPE_I32, 1, {7}, s->ids, 28, false},
        {"plain", DTYPE_F32, 3, {2, 3, 4}, s->floats, 96, false},
        {"none", DTYPE_U8, 1, {0}, NULL, 0, true},
        {"one", DTYPE_U8, 0, {0}, s->noise, 1, true},
        {"n63", DTYPE_U8, 1, {63}, s->noise, 63, false},
        {"n64", DTYPE_U8, 1, {64}, s->noise, 64, false},
        {"n65", DTYPE_U8, 1, {65}, s->noise, 65, false},
        {"noise", DTYPE_U8, 1, {N_NOISE}, s->noise, N_NOISE, true},
        {"smooth", DTYPE_BF16, 4, {2, 5, 10, 200}, s->smooth, N_SMOOTH, true},
        {"smooth plain", DTYPE_U8, 1, {N_SMOOTH}, s->smooth, N_SMOOTH, false},
        {"zeros \xE2\x82\xAC", DTYPE_F32, 2, {75, 1000}, s->zeros, N_ZEROS, true},
    };
    memcpy(out, entries, sizeof entries);
    return sizeof entries / sizeof *entries;
}

static void save_sample(const char *path) {
    sample *s = new_sample();
    archive_entry entries[16];
    assert_ok(archive_write(path, entries, sample_entries(entries, s), members, N_MEMBERS));
    free(s);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    const char *path = scratch_path("sample.safetensors");
    sample *s = new_sample();
    archive_entry entries[16];
    size_t n = sample_entries(entries, s);
    archive *a = NULL;
    void *buffer = malloc(N_ZEROS);
    assert_ok(archive_write(path, entries, n, members, N_MEMBERS));
    assert_true(archive_recognise(path));
    assert_ok(archive_open(&a, path));
    assert_ok(archive_verify(a));
    assert_int_equal(archive_entries(a), n);
    for (size_t i = 0; i < n; i++) {
        const archive_view *view = archive_entry_at(a, i);
        const uint8_t *data = NULL;
        assert_string_equal(view->name, entries[i].name);
        assert_ptr_equal(archive_find(a, entries[i].name), view);
        assert_int_equal(view->type, entries[i].type);
        assert_int_equal(view->n_dims, entries[i].n_dims);
        for (int k = 0; k < view->n_dims; k++) assert_int_equal(view->shape[k], entries[i].shape[k]);
        assert_int_equal(view->n_bytes, entries[i].n_bytes);
        assert_int_equal((uintptr_t)view->stored % 64, 0);
        assert_ok(archive_bytes(a, view, buffer, &data));
        if (view->n_bytes) assert_memory_equal(data, entries[i].data, view->n_bytes);
        /* Entries that do not shrink, or shrink too much, are stored uncompressed. */
        assert_int_equal(view->compressed, strcmp(view->name, "smooth") == 0);
        if (view->compressed) assert_true(view->stored_bytes < view->n_bytes * 9 / 10);
    }
    assert_null(archive_find(a, "mneme.fill.0"));
    assert_int_equal(archive_members(a), N_MEMBERS);
    for (size_t i = 0; i < N_MEMBERS; i++) {
        assert_string_equal(archive_member_at(a, i).key, members[i].key);
        assert_string_equal(archive_member_at(a, i).value, members[i].value);
        assert_string_equal(archive_member_of(a, members[i].key), members[i].value);
    }
    assert_null(archive_member_of(a, "absent"));
    archive_close(&a);
    assert_null(a);
    free(buffer);
    free(s);
}

static void empty_archives_can_be_saved(void **state) {
    (void)state;
    const char *path = scratch_path("empty.safetensors");
    archive *a = NULL;
    assert_ok(archive_write(path, NULL, 0, NULL, 0));
    assert_ok(archive_open(&a, path));
    assert_ok(archive_verify(a));
    assert_int_equal(archive_entries(a), 0);
    assert_int_equal(archive_members(a), 0);
    archive_close(&a);
}

/* From the format's description, with none of the code under test but JSON: length, header, data that follow each
 * other. */
static void the_file_is_valid_safetensors(void **state) {
    (void)state;
    const char *path = scratch_path("legal.safetensors");
    save_sample(path);
    bytes file = {0};
    json_doc *doc = NULL;
    uint64_t length;
    assert_ok(file_read(&file, path, 1 << 20));
    memcpy(&length, file.data, 8);
    assert_int_equal((8 + length) % 64, 0);
    assert_ok(json_parse(&doc, file.data + 8, length, JSON_STRICT, "header"));
    const json *root = json_root(doc), *metadata = json_get(root, "__metadata__");
    const uint8_t *data = (const uint8_t *)file.data + 8 + length;
    int64_t at = 0;
    int n_fillers = 0;
    for (size_t i = 0; i < root->n; i++) {
        const json_member *member = &root->members[i];
        if (member->value.kind != JSON_OBJECT || strcmp(member->key, "__metadata__") == 0) continue;
        const json *offsets = json_get(&member->value, "data_offsets");
        int64_t begin = offsets->items[0].integer, end = offsets->items[1].integer;
        assert_int_equal(begin, at);
        at = end;
        char key[64], digits[17];
        snprintf(key, sizeof key, "sum.%s", member->key);
        if (strncmp(member->key, "mneme.fill.", 11) == 0) {
            n_fillers++;
            assert_null(json_get(metadata, key));
            for (int64_t k = begin; k < end; k++) assert_int_equal(data[k], 0);
            continue;
        }
        assert_int_equal(begin % 64, 0);
        snprintf(digits, sizeof digits, "%016llx",
                 (unsigned long long)XXH3_64bits(data + begin, (size_t)(end - begin)));
        assert_string_equal(json_get(metadata, key)->string, digits);
    }
    assert_int_equal(8 + length + (uint64_t)at, file.n);
    assert_true(n_fillers >= 5);
    assert_string_equal(json_get(metadata, "raw.smooth")->string, "BF16 [2,5,10,200]");
    assert_null(json_get(metadata, "raw.noise"));
    assert_string_equal(json_get(metadata, "mneme.version")->string, "1");
    json_close(&doc);
    bytes_clear(&file);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    const char *path = scratch_path("never.safetensors");
    const archive_entry good = {"a", DTYPE_U8, 1, {4}, "data", 4, false};
    const archive_entry bad[] = {{"a", DTYPE_Q8_0, 1, {32}, "data", 34, false},
                                 {"a", DTYPE_F32, 1, {4}, "data", 4, true},
                                 {"", DTYPE_U8, 1, {4}, "data", 4, false},
                                 {"a\n", DTYPE_U8, 1, {4}, "data", 4, false},
                                 {"a", DTYPE_U8, 5, {4}, "data", 4, false},
                                 {"a", DTYPE_U8, -1, {4}, "data", 4, false},
                                 {"mneme.fill.9", DTYPE_U8, 1, {4}, "data", 4, false}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(MN_E_ARG, path, archive_write(path, &bad[i], 1, NULL, 0));
    const archive_entry twice[] = {good, good};
    assert_fails(MN_E_ARG, "'a' is given to two tensors", archive_write(path, twice, 2, NULL, 0));
    static const char *const keys[] = {"mneme.sum", "mneme.version", "sum.a", "raw.a", "", "a\x1b", "\xFF"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const archive_member member = {keys[i], "x"};
        assert_fails(MN_E_ARG, path, archive_write(path, &good, 1, &member, 1));
    }
    const archive_member same[] = {{"k", "1"}, {"k", "2"}};
    assert_fails(MN_E_ARG, "the key 'k' is given to two members", archive_write(path, &good, 1, same, 2));
    assert_false(file_exists(path));
}

static void other_files_are_refused(void **state) {
    (void)state;
    archive *a = NULL;
    assert_fails(MN_E_NOT_FOUND, "absent", archive_open(&a, scratch_path("absent")));
    assert_fails(MN_E_IO, "not a regular file", archive_open(&a, data_path("")));
    assert_fails(MN_E_REFUSED, "no safetensors file", archive_open(&a, scratch_file("nothing", "", 0)));
    assert_fails(MN_E_REFUSED, "the header length",
                 archive_open(&a, scratch_file("text", "{\"a\": \"some JSON text\"}", 23)));
    assert_fails(MN_E_REFUSED, "no saved cache: its metadata have no 'mneme.version'",
                 archive_open(&a, data_path("golden/llama/model.safetensors")));
    assert_null(a);
    assert_false(archive_recognise(scratch_path("absent")));
    assert_false(archive_recognise(data_path("")));
    assert_false(archive_recognise(data_path("golden/llama/model.safetensors")));
    assert_false(archive_recognise(scratch_file("short", "{", 1)));
}

/* ---- damage ---- */

/* A small archive that still has a compressed entry and fillers. */
static void save_small(const char *path, bytes *file) {
    uint8_t steps[800];
    for (size_t i = 0; i < sizeof steps; i++) steps[i] = (uint8_t)(i / 7);
    const archive_entry entries[] = {{"ids", DTYPE_I32, 1, {3}, "abcdefghijkl", 12, false},
                                     {"b", DTYPE_F32, 2, {20, 10}, steps, 800, true},
                                     {"c", DTYPE_U8, 2, {2, 70}, steps, 140, false}};
    const archive_member few[] = {{ARCHIVE_KIND, ARCHIVE_KIND_CACHE}, {ARCHIVE_TOKENS, "3"}};
    assert_ok(archive_write(path, entries, 3, few, 2));
    assert_ok(file_read(file, path, 1 << 20));
}

static void every_flipped_bit_is_found(void **state) {
    (void)state;
    bytes file = {0};
    save_small(scratch_path("small"), &file);
    uint8_t *data = (uint8_t *)file.data;
    assert_int_equal(hostile_archive(data, file.n), MN_OK);
    for (size_t i = 0; i < file.n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            data[i] ^= (uint8_t)(1u << bit);
            if (hostile_archive(data, file.n) != MN_E_REFUSED) fail_msg("bit %d of byte %zu of %zu", bit, i, file.n);
            data[i] ^= (uint8_t)(1u << bit);
        }
    }
    for (size_t n = 0; n < file.n; n++) assert_int_equal(hostile_archive(data, n), MN_E_REFUSED);
    bytes_append(&file, "", 1);
    assert_int_equal(hostile_archive((uint8_t *)file.data, file.n), MN_E_REFUSED);
    bytes_clear(&file);
}

static long peak_kib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* Also with right checksums, so that the checks after them are reached. */
static void mutations_are_refused_or_harmless(void **state) {
    (void)state;
    enum { N = 6000 };
    bytes file = {0};
    uint64_t seed = 1;
    int accepted = 0, loaded = 0;
    save_small(scratch_path("mutated"), &file);
    size_t capacity = file.n + 4096;
    uint8_t *data = malloc(capacity);
    long before = peak_kib();
    for (int i = 0; i < N; i++) {
        memcpy(data, file.data, file.n);
        size_t n = hostile_mutate(data, file.n, capacity, &seed);
        bool same = n == file.n && memcmp(data, file.data, n) == 0;
        if (hostile_archive(data, n) == MN_OK && !same) accepted++;
        hostile_archive_fix_checksums(data, n);
        loaded += hostile_archive(data, n) == MN_OK;
    }
    assert_int_equal(accepted, 0);
    assert_true(loaded > N / 50 && loaded < N / 2); /* they get past the checksums, and most are found */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(peak_kib() - before < 64 << 10);
#else
    (void)before;
#endif
    free(data);
    bytes_clear(&file);
}

/* ---- wrong headers with right checksums ---- */

/* length, {"__metadata__":{"mneme.sum":..., METADATA}, TENSORS}, data; checksums right unless they stand in
 * METADATA. */
static void make_file(bytes *out, const char *metadata, const char *tensors, const void *data, size_t n) {
    uint64_t length = 0;
    out->n = 0;
    bytes_append(out, &length, 8);
    bytes_printf(out, "{\"__metadata__\":{\"mneme.sum\":\"0000000000000000\",\"mneme.version\":\"1\"%s}%s}", metadata,
                 tensors);
    while (out->n % 64) bytes_append_text(out, " ");
    length = out->n - 8;
    memcpy(out->data, &length, 8);
    bytes_append(out, data, n);
    assert_ok(bytes_status(out));
    hostile_archive_fix_checksums((uint8_t *)out->data, out->n);
}

static mn_status open_made(const bytes *file) {
    archive *a = NULL;
    mn_status status = archive_open_memory(&a, file->data, file->n, "made");
    if (status == MN_OK) status = archive_verify(a);
    archive_close(&a);
    return status;
}

#define SUM(name)             ",\"sum." name "\":\"0000000000000000\""
#define RAW(name, text)       ",\"raw." name "\":\"" text "\""
#define U8(name, n, from, to) ",\"" name "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[" from "," to "]}"

static void wrong_headers_are_found(void **state) {
    (void)state;
    static const struct {
        const char *metadata, *tensors;
        size_t n;
        const char *message; /* NULL: good, so that the bad ones are bad for one reason */
    } cases[] = {
        {SUM("a"), U8("a", "64", "0", "64"), 64, NULL},
        {SUM("a") SUM("b"), U8("a", "60", "0", "60") U8("mneme.fill.0", "4", "60", "64") U8("b", "1", "64", "65"), 65,
         NULL},
        {"", U8("a", "64", "0", "64"), 64, "entry 'a' has no checksum"},
        {",\"sum.a\":\"0\"", U8("a", "64", "0", "64"), 64, "sum.a is \"0\", allowed: 16 hexadecimal digits"},
        {",\"sum.a\":\"00000000000000000\"", U8("a", "64", "0", "64"), 64, "sum.a is"},
        /* Keys that make_file does not change. */
        {",\"sum\\u002ea\":\"0123456789ABCDEF\"", U8("a", "64", "0", "64"), 64, "sum.a is"},
        {",\"sum\\u002ea\":\"0123456789abcdef\"", U8("a", "64", "0", "64"), 64,
         "entry 'a' is damaged: its checksum is 2ffb6918c12c256e, the file says 0123456789abcdef"},
        {SUM("a") SUM("b"), U8("a", "64", "0", "64"), 64, "2 checksums and 0 former types for 1 entries"},
        {SUM("a") RAW("b", "U8 [1]"), U8("a", "64", "0", "64"), 64, "1 checksums and 1 former types"},
        {SUM("a") SUM("b"), U8("a", "60", "0", "60") U8("b", "4", "60", "64"), 64, "'b' begins at byte"},
        {SUM("a") SUM("b"), U8("a", "64", "0", "64") U8("b", "64", "32", "96"), 96, "it overlaps the one before"},
        {SUM("a") SUM("b"), U8("a", "64", "0", "64") U8("b", "64", "128", "192"), 192, "there is a hole before it"},
        {SUM("a"), U8("a", "64", "0", "64"), 65, "the file has 65 bytes of data"},
        {SUM("a"), U8("a", "64", "0", "64"), 63, "it is truncated"},
        {SUM("a"), U8("a", "64", "0", "64") U8("a", "64", "64", "128"), 128, "the key 'a' appears twice"},
        {SUM("a") SUM("a"), U8("a", "64", "0", "64"), 64, "the key 'sum.a' appears twice"},
        {SUM("a"), U8("a", "2,2,2,2,4", "0", "64"), 64, "has 5 dimensions, allowed: up to 4"},
        {SUM("a"), U8("a", "4294967296,4294967296", "0", "64"), 64, "more elements than 63 bits"},
        {SUM("a"), U8("a", "9223372036854775807", "0", "64"), 64, "64 bytes of data, but"},
        {SUM("a"), U8("a", "60", "0", "60") U8("mneme.fill.0", "64", "60", "124"), 124, "'mneme.fill.0' does not fill"},
        {SUM("a"), U8("a", "60", "0", "60") U8("mneme.fill.0", "3", "60", "63"), 63, "does not fill"},
        {"", U8("mneme.fill.0", "64", "0", "64"), 64, "does not fill"},
        {SUM("a"), U8("mneme.fill.0", "0", "0", "0") U8("a", "64", "0", "64"), 64, "does not fill"},
        {SUM("a"), U8("a", "60", "0", "60") U8("mneme.fill.0", "2", "60", "62") U8("mneme.fill.1", "2", "62", "64"), 64,
         "does not fill"},
        {SUM("a") ",\"k\":\"v\",\"sum.b\":\"\",\"l\":\"v\"", U8("a", "64", "0", "64"), 64,
         "'l' stands among the checksums"},
        {",\"k\":\"a\\u0000b\"", "", 0, "member 'k' holds a zero byte"},
        {",\"k\\u0000\":\"a\"", "", 0, "the name of a member holds the control character 0x00"},
        {",\"k\\u001b\":\"a\"", "", 0, "the name of a member holds the control character 0x1b"},
        {",\"\":\"a\"", "", 0, "the name of a member has 0 bytes"},
        {",\"k\":7", "", 0, "__metadata__ 'k' is 7, allowed: a string"},
        {SUM("a") RAW("a", "U8 [64]"), U8("a", "64", "0", "64"), 64, "no zstd frame of that size"},
        {SUM("a") RAW("a", "U8 [64]"), U8("a", "8,8", "0", "64"), 64, "not stored as U8 [bytes]"},
        {SUM("a") RAW("a", "U9 [64]"), U8("a", "64", "0", "64"), 64,
         "raw.a is \"U9 [64]\", allowed: a type and up to 4 sizes"},
        {SUM("a") RAW("a", "U8 64"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [64"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [64] "), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [-64]"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [64,]"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [,64]"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [1,1,1,1,64]"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "U8 [18446744073709551616]"), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "F32 [4611686018427387904]"), U8("a", "64", "0", "64"), 64, "more bytes"},
        {SUM("a") RAW("a", ""), U8("a", "64", "0", "64"), 64, "raw.a is"},
        {SUM("a") RAW("a", "\\u001b[31m"), U8("a", "64", "0", "64"), 64, "\\u001b"},
    };
    bytes file = {0};
    static const uint8_t zeros[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_file(&file, cases[i].metadata, cases[i].tensors, zeros, cases[i].n);
        hostile_archive((uint8_t *)file.data, file.n);
        mn_status status = open_made(&file);
        if (cases[i].message && (status != MN_E_REFUSED || !strstr(mn_last_error(), cases[i].message))) {
            fail_msg("case %zu: status %d, '%s' lacks '%s'", i, status, mn_last_error(), cases[i].message);
        }
        if (!cases[i].message && status != MN_OK) fail_msg("case %zu: %s", i, mn_last_error());
    }
    uint8_t filled[65] = {0};
    filled[62] = 1;
    make_file(&file, cases[1].metadata, cases[1].tensors, filled, 65);
    assert_fails(MN_E_REFUSED, "'mneme.fill.0' is damaged", open_made(&file));
    bytes_clear(&file);
}

static void other_versions_and_writers_are_refused(void **state) {
    (void)state;
    bytes file = {0};
    static const char version[] = "\"mneme.version\":\"1\"", head[] = "{\"__metadata__\":{\"mneme.sum\"";
    make_file(&file, "", "", NULL, 0);
    assert_ok(open_made(&file));
    char *at = memmem(file.data, file.n, version, sizeof version - 1);
    at[sizeof version - 3] = '2';
    assert_fails(MN_E_REFUSED, "mneme.version is \"2\", allowed: \"1\"", open_made(&file));
    hostile_archive_fix_checksums((uint8_t *)file.data, file.n);
    assert_fails(MN_E_REFUSED, "mneme.version is \"2\", allowed: \"1\"", open_made(&file));
    /* Another program's header: the same members in another order. */
    file.n = 0;
    uint64_t length = 56;
    bytes_append(&file, &length, 8);
    bytes_printf(&file, "%-56s", "{\"__metadata__\":{\"mneme.version\":\"1\"}}");
    assert_fails(MN_E_REFUSED, "does not begin with its checksum: another program", open_made(&file));
    assert_null(memmem(file.data, file.n, head, sizeof head - 1));
    bytes_clear(&file);
}

/* ---- frames ---- */

typedef struct frame {
    uint8_t data[70000];
    size_t n;
} frame;

static void squeeze(frame *f, const void *data, size_t n, bool tell_size, int window_log) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, tell_size);
    if (window_log) {
        ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
        ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    }
    f->n = ZSTD_compress2(context, f->data, sizeof f->data, data, n);
    assert_false(ZSTD_isError(f->n));
    mem_written(f->data, f->n);
    ZSTD_freeCCtx(context);
}

/* An archive of one entry "a" that has the frame, of the former type and shape `raw`. */
static mn_status open_frame(const frame *f, const char *raw) {
    char metadata[128], tensors[128];
    bytes file = {0};
    snprintf(metadata, sizeof metadata, SUM("a") ",\"raw.a\":\"%s\"", raw);
    snprintf(tensors, sizeof tensors, ",\"a\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}", f->n, f->n);
    make_file(&file, metadata, tensors, f->data, f->n);
    hostile_archive((uint8_t *)file.data, file.n);
    mn_status status = open_made(&file);
    bytes_clear(&file);
    return status;
}

static void frames_expand_to_their_size(void **state) {
    (void)state;
    uint8_t steps[4000];
    frame f, g;
    for (size_t i = 0; i < sizeof steps; i++) steps[i] = (uint8_t)(i / 9);
    squeeze(&f, steps, sizeof steps, true, 0);
    assert_ok(open_frame(&f, "F32 [10,100]"));
    assert_ok(open_frame(&f, "U8 [4000]"));
    assert_fails(MN_E_REFUSED, "should expand to 4004 bytes", open_frame(&f, "F32 [1001]"));
    assert_fails(MN_E_REFUSED, "should expand to 3999 bytes", open_frame(&f, "U8 [3999]"));
    g = f;
    g.n--;
    assert_fails(MN_E_REFUSED, "does not expand", open_frame(&g, "U8 [4000]"));
    g = f;
    memcpy(g.data + g.n++, "", 1);
    assert_fails(MN_E_REFUSED, "does not expand", open_frame(&g, "U8 [4000]"));
    g = f;
    memcpy(g.data + g.n, f.data, f.n); /* two frames */
    g.n += f.n;
    assert_fails(MN_E_REFUSED, "does not expand", open_frame(&g, "U8 [4000]"));
    g = f;
    g.data[7] |= 6; /* a block of the reserved kind */
    assert_fails(MN_E_REFUSED, "does not expand", open_frame(&g, "U8 [4000]"));
    g = (frame){.data = {0x50, 0x2A, 0x4D, 0x18, 4}, .n = 12}; /* a skippable frame has no content */
    assert_fails(MN_E_REFUSED, "should expand to 4000", open_frame(&g, "U8 [4000]"));
    squeeze(&g, steps, sizeof steps, false, 0);
    assert_fails(MN_E_REFUSED, "should expand to 4000", open_frame(&g, "U8 [4000]"));
    /* A frame whose size field is a little less, or more, than its content: its size field is changed by hand (bytes 5
     * and 6 of a frame with a two-byte field, which counts from 256). */
    for (int change = -1; change <= 1; change += 2) {
        char raw[32];
        g = f;
        assert_int_equal(g.data[4], 0x60); /* single segment, two bytes of size */
        uint16_t size;
        memcpy(&size, g.data + 5, 2);
        assert_int_equal(size + 256, 4000);
        size = (uint16_t)(size + change);
        memcpy(g.data + 5, &size, 2);
        snprintf(raw, sizeof raw, "U8 [%d]", 4000 + change);
        assert_fails(MN_E_REFUSED, "does not expand", open_frame(&g, raw));
    }
}

static void bombs_are_refused(void **state) {
    (void)state;
    enum { BIG = 64 << 20 };
    uint8_t *zeros = calloc(1, BIG);
    frame f;
    squeeze(&f, zeros, BIG, true, 0);
    assert_true(f.n < 10000);
    assert_fails(MN_E_REFUSED, "allowed: 256 times as many", open_frame(&f, "U8 [67108864]"));
    assert_fails(MN_E_REFUSED, "should expand to 1000 bytes", open_frame(&f, "U8 [1000]"));
    /* A frame of 2^62 bytes, by its size field. */
    frame g = {.data = {0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 0, 0, 0x40, 1, 0, 0}, .n = 16};
    assert_fails(MN_E_REFUSED, "allowed: 256 times as many", open_frame(&g, "U8 [4611686018427387904]"));
    free(zeros);
    /* Frames that are good but for the window that they ask a reader to keep (8 MiB, 16 MiB, 2 GiB): 60000 stored bytes
     * and a run of 131072, more than is expanded at a time. */
    static const uint8_t exponents[] = {13, 14, 21};
    for (size_t i = 0; i < sizeof exponents; i++) {
        g = (frame){.data = {0x28, 0xB5, 0x2F, 0xFD, 0x80, (uint8_t)(exponents[i] << 3), 0x60, 0xEA, 2, 0, 0, 0x53, 7},
                    .n = 13 + 60000 + 4};
        memcpy(g.data + 13 + 60000, "\x03\0\x10", 4);
        if (i == 0) assert_ok(open_frame(&g, "U8 [191072]"));
        if (i > 0) assert_fails(MN_E_REFUSED, "requires too much memory", open_frame(&g, "U8 [191072]"));
    }
}

/* ---- failures ---- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    const char *path = scratch_path("memory.safetensors");
    sample *s = new_sample();
    archive_entry entries[16];
    size_t n = sample_entries(entries, s);
    int64_t live = mem_count().live, k = 1;
    for (;; k++) {
        mem_fail_after(k);
        mn_status status = archive_write(path, entries, n, members, N_MEMBERS);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
        assert_false(file_exists(path));
    }
    assert_true(k > 10);
    void *buffer = malloc(N_ZEROS);
    for (k = 1;; k++) {
        archive *a = NULL;
        const uint8_t *data;
        mem_fail_after(k);
        mn_status status = archive_open(&a, path);
        if (status == MN_OK) status = archive_bytes(a, archive_find(a, "smooth"), buffer, &data);
        if (status == MN_OK) status = archive_verify(a);
        mem_fail_after(0);
        archive_close(&a);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
    }
    assert_true(k > 10);
    free(buffer);
    free(s);
}

/* The buffer of the metadata is full at another place for each length, also where the last byte is put. */
static void memory_that_ends_in_a_head_of_any_length_writes_nothing(void **state) {
    (void)state;
    const char *path = scratch_path("length.safetensors");
    char value[130] = "";
    for (size_t length = 0; length + 1 < sizeof value; length++) {
        const archive_member both[] = {{ARCHIVE_KIND, ARCHIVE_KIND_CACHE}, {"text", value}};
        mn_status status = MN_E_NOMEM;
        for (int64_t k = 1; status != MN_OK; k++) {
            mem_fail_after(k);
            status = archive_write(path, NULL, 0, both, 2);
            mem_fail_after(0);
            assert_true(status == MN_OK || status == MN_E_NOMEM);
            assert_int_equal(file_exists(path), status == MN_OK);
        }
        archive *a = NULL;
        assert_ok(archive_open(&a, path));
        assert_string_equal(archive_member_of(a, "text"), value);
        archive_close(&a);
        unlink(path);
        memcpy(value + length, "x", 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(empty_archives_can_be_saved),
        cmocka_unit_test(the_file_is_valid_safetensors),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(mutations_are_refused_or_harmless),
        cmocka_unit_test(wrong_headers_are_found),
        cmocka_unit_test(other_versions_and_writers_are_refused),
        cmocka_unit_test(frames_expand_to_their_size),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(memory_that_ends_in_a_head_of_any_length_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
