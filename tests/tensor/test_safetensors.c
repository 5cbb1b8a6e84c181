/* safetensors: files of other writers, files read back after writing, sharded folders, every kind of bad file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

/* The bytes of a file: header length, header, n_data bytes of data. `length` replaces the header length unless it is 0.
 */
static void make_file(bytes *out, const char *header, size_t header_n, uint64_t length, size_t n_data) {
    out->n = 0;
    if (length == 0) length = header_n;
    bytes_append(out, &length, sizeof length);
    bytes_append(out, header, header_n);
    for (size_t i = 0; i < n_data; i++) bytes_append(out, "\x2A", 1);
    assert_ok(bytes_status(out));
}

static mn_status open_bytes(const bytes *file) {
    tensor_set *set = NULL;
    mn_status status = safetensors_open_memory(&set, file->data ? file->data : "", file->n, "bad.safetensors");
    assert_true((status == MN_OK) == (set != NULL));
    tensor_set_close(&set);
    return status;
}

static void files_of_other_writers_are_read(void **state) {
    (void)state;
    static const struct {
        const char *file;
        dtype type;
        int n_dims;
        int64_t shape[4];
        float first, last;
    } cases[] = {{"3d-float32", DTYPE_F32, 3, {2, 2, 3}, 22, 3},
                 {"4d-float32", DTYPE_F32, 4, {2, 3, 1, 3}, 11, 19},
                 {"2d-float64", DTYPE_F64, 2, {2, 3}, 0, 0},
                 {"1d-int32", DTYPE_I32, 1, {3}, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        tensor_set *set = NULL;
        snprintf(name, sizeof name, "safetensors/tensor-%s.safetensors", cases[i].file);
        assert_ok(safetensors_open(&set, data_path(name)));
        assert_int_equal(tensor_set_count(set), 1);
        const tensor *t = tensor_set_find(set, "embedding");
        assert_int_equal(t->type, cases[i].type);
        assert_int_equal(t->n_dims, cases[i].n_dims);
        assert_memory_equal(t->shape, cases[i].shape, (size_t)t->n_dims * sizeof *t->shape);
        if (t->type == DTYPE_F32) {
            float first, last;
            dtype_table[t->type].to_f32(&first, t->data, 1);
            dtype_table[t->type].to_f32(&last, t->data + t->bytes - 4, 1);
            assert_true(first == cases[i].first && last == cases[i].last);
        } else if (t->type == DTYPE_I32) {
            const uint8_t expected[] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
            assert_memory_equal(t->data, expected, sizeof expected);
        }
        tensor_set_close(&set);
    }
}

static void written_files_are_read_back(void **state) {
    (void)state;
    const uint8_t narrow[3] = {1, 2, 3};
    const float wide[4] = {1, 2, 3, 4};
    const uint16_t half[2] = {0x3C00, 0x4000};
    const tensor tensors[] = {
        {.name = "narrow", .type = DTYPE_U8, .n_dims = 1, .shape = {3}, .data = narrow, .bytes = 3},
        {.name = "b.\"quoted\".\xC3\xA9",
         .type = DTYPE_F32,
         .n_dims = 2,
         .shape = {2, 2},
         .data = (const uint8_t *)wide,
         .bytes = 16},
        {.name = "empty", .type = DTYPE_F32, .n_dims = 3, .shape = {4, 0, 2}, .data = NULL, .bytes = 0},
        {.name = "scalar", .type = DTYPE_F32, .n_dims = 0, .data = (const uint8_t *)wide, .bytes = 4},
        {.name = "half", .type = DTYPE_F16, .n_dims = 1, .shape = {2}, .data = (const uint8_t *)half, .bytes = 4},
    };
    const char *metadata[] = {"format", "pt", "text", "line\n\"two\"", NULL};
    const char *path = scratch_path("written.safetensors");
    tensor_set *set = NULL;
    assert_ok(safetensors_write(path, tensors, 5, metadata));
    assert_ok(safetensors_open(&set, path));
    assert_int_equal(tensor_set_count(set), 5);
    for (size_t i = 0; i < 5; i++) {
        const tensor *t = tensor_set_find(set, tensors[i].name), *w = &tensors[i];
        assert_non_null(t);
        assert_true(t->type == w->type && t->n_dims == w->n_dims && t->bytes == w->bytes);
        assert_memory_equal(t->shape, w->shape, (size_t)w->n_dims * sizeof *w->shape);
        if (w->bytes) assert_memory_equal(t->data, w->data, w->bytes);
        assert_int_equal((uintptr_t)t->data % (uintptr_t)dtype_table[t->type].bytes, 0);
    }
    assert_null(tensor_set_find(set, "b"));
    assert_null(tensor_set_find(set, ""));
    assert_true(json_is_string(json_get(safetensors_metadata(set), "text"), "line\n\"two\""));
    tensor_set_release_pages(set);
    assert_memory_equal(tensor_set_find(set, "scalar")->data, wide, 4);
    tensor_set_close(&set);
    assert_ok(safetensors_write(path, NULL, 0, NULL)); /* no tensors are a valid file too, which replaces the other */
    assert_ok(safetensors_open(&set, path));
    assert_int_equal(tensor_set_count(set), 0);
    assert_null(safetensors_metadata(set));
    tensor_set_close(&set);
}

static void the_writer_refuses_unreadable_tensors(void **state) {
    (void)state;
    const char *path = scratch_path("refused.safetensors");
    const uint8_t data[34] = {0};
    const tensor quantised = {.name = "q", .type = DTYPE_Q8_0, .n_dims = 1, .shape = {32}, .data = data, .bytes = 34};
    const tensor short_one = {.name = "s", .type = DTYPE_F32, .n_dims = 1, .shape = {4}, .data = data, .bytes = 12};
    const tensor negative = {.name = "n", .type = DTYPE_F32, .n_dims = 2, .shape = {-1, -1}, .data = data, .bytes = 4};
    const tensor unnamed = {.name = "", .type = DTYPE_U8, .n_dims = 0, .data = data, .bytes = 1};
    const tensor reserved = {.name = "__metadata__", .type = DTYPE_U8, .n_dims = 0, .data = data, .bytes = 1};
    const tensor twice[] = {{.name = "t", .type = DTYPE_U8, .n_dims = 0, .data = data, .bytes = 1},
                            {.name = "t", .type = DTYPE_U8, .n_dims = 0, .data = data, .bytes = 1}};
    assert_fails(MN_E_ARG, "type Q8_0, which safetensors cannot store", safetensors_write(path, &quantised, 1, NULL));
    assert_fails(MN_E_ARG, "has 12 bytes, its shape takes 16", safetensors_write(path, &short_one, 1, NULL));
    assert_fails(MN_E_ARG, "dimension 0 is -1", safetensors_write(path, &negative, 1, NULL));
    assert_fails(MN_E_ARG, "has 0 bytes, allowed: 1 to 4096", safetensors_write(path, &unnamed, 1, NULL));
    assert_fails(MN_E_ARG, "'__metadata__' is given to two tensors or reserved",
                 safetensors_write(path, &reserved, 1, NULL));
    assert_fails(MN_E_ARG, "'t' is given to two tensors", safetensors_write(path, twice, 2, NULL));
    assert_false(file_exists(path));
}

typedef struct bad_header {
    const char *header;
    size_t n_data;
    const char *message;
} bad_header;

static void refuse_all(const bad_header *cases, size_t n) {
    bytes file = {0};
    for (size_t i = 0; i < n; i++) {
        make_file(&file, cases[i].header, strlen(cases[i].header), 0, cases[i].n_data);
        assert_fails(MN_E_FORMAT, cases[i].message, open_bytes(&file));
        assert_non_null(strstr(mn_last_error(), "bad.safetensors"));
    }
    bytes_clear(&file);
}

#define TENSOR(name, dtype, shape, offsets)                                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void bad_lengths_are_refused(void **state) {
    (void)state;
    static const struct {
        uint64_t length;
        size_t n_data;
        const char *message;
    } cases[] = {
        {1, 0, "the header length is 1, allowed: 2 to 100000000"},
        {3, 0, "the header length is 3, but only 2 bytes follow: the file is truncated"},
        {100000000, 0, "the header length is 100000000, but only 2 bytes follow"},
        {100000001, 0, "the header length is 100000001, allowed: 2 to 100000000"},
        {(uint64_t)1 << 63, 0, "the header length is 9223372036854775808, allowed"},
        {UINT64_MAX, 0, "the header length is 18446744073709551615, allowed"},
        {UINT64_MAX - 7, 0, "the header length is 18446744073709551608, allowed"},
        {2, 1, "the file has 1 bytes of data, but its tensors account for 0"},
    };
    bytes file = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_file(&file, "{}", 2, cases[i].length, cases[i].n_data);
        assert_fails(MN_E_FORMAT, cases[i].message, open_bytes(&file));
    }
    make_file(&file, "{}", 2, 0, 0);
    assert_ok(open_bytes(&file));
    memset(file.data, 0, 8);
    assert_fails(MN_E_FORMAT, "the header length is 0", open_bytes(&file));
    for (file.n = 0; file.n < 8; file.n++) {
        char message[64];
        snprintf(message, sizeof message, "%zu bytes are no safetensors file", file.n);
        assert_fails(MN_E_FORMAT, message, open_bytes(&file));
    }
    bytes_clear(&file);
}

static void bad_json_is_refused(void **state) {
    (void)state;
    static const bad_header cases[] = {
        {" {}", 0, "begins with byte 0x20, allowed: '{'"},
        {"[]", 0, "begins with byte 0x5b, allowed: '{'"},
        {"\xEF\xBB\xBF{}", 0, "begins with byte 0xef"},
        {"{} x", 0, "text after the end of the document at line 1, column 4"},
        {"{\"a\":NaN}", 0, "bad value"},
        {"{'a':1}", 0, "a key in double quotes was expected"},
        {"{\"a\":1,}", 0, "a key in double quotes was expected"},
        {"{\"a\xFF\":1}", 0, "invalid UTF-8"},
        {"{\"a\":\"\\ud800\"}", 0, "lone surrogate"},
        {"{\"\":1}", 0, "the name of a tensor has 0 bytes, allowed: 1 to 4096"},
        {"{\"a\\u0000b\":1}", 0, "holds the control character 0x00 at its byte 1"},
        {"{\"a\\nb\":1}", 0, "holds the control character 0x0a"},
        {"{" TENSOR("w", "U8", "[1]", "[0,1]") "," TENSOR("w", "U8", "[1]", "[1,2]") "}", 2,
         "the key 'w' appears twice"},
        {"{" TENSOR("w", "U8", "[1]", "[0,1]") "," TENSOR("\\u0077", "U8", "[1]", "[1,2]") "}", 2,
         "the key 'w' appears twice"},
        {"{\"w\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "the key 'dtype' appears twice"},
        {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "the key 'a' appears twice"},
    };
    refuse_all(cases, sizeof cases / sizeof *cases);
    bytes file = {0};
    char deep[1200] = "{\"a\":";
    memset(deep + 5, '[', sizeof deep - 5);
    make_file(&file, deep, sizeof deep, 0, 0);
    assert_fails(MN_E_FORMAT, "nesting deeper than 256 levels", open_bytes(&file));
    make_file(&file, "{}\0\0", 4, 0, 0);
    assert_fails(MN_E_FORMAT, "text after the end", open_bytes(&file));
    make_file(&file, "{}      ", 8, 0, 0); /* writers align the data with spaces */
    assert_ok(open_bytes(&file));
    bytes_clear(&file);
}

static void bad_descriptions_are_refused(void **state) {
    (void)state;
    static const bad_header cases[] = {
        {"{\"w\":[]}", 0, "tensor 'w': its description is [], allowed: an object"},
        {"{\"w\":null}", 0, "its description is null, allowed: an object"},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor 'w': 'dtype' is missing"},
        {"{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor 'w': 'shape' is missing"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor 'w': 'data_offsets' is missing"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":0}}", 1,
         "4 fields, allowed: dtype, shape, data_offsets"},
        {"{" TENSOR("w", "F8_E8M0", "[1]", "[0,1]") "}", 1,
         "tensor 'w': dtype is \"F8_E8M0\", allowed: F32, F16, BF16, F64, F8_E4M3, F8_E5M2, I8, I16, I32, I64, U8, BOOL"},
        {"{" TENSOR("w", "f32", "[1]", "[0,4]") "}", 4, "dtype is \"f32\""},
        {"{" TENSOR("w", "Q8_0", "[32]", "[0,34]") "}", 34, "dtype is \"Q8_0\""},
        {"{\"w\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is 7"},
        {"{" TENSOR("w", "U8", "7", "[0,7]") "}", 7, "shape is 7, allowed: a list of up to 8 dimensions"},
        {"{" TENSOR("w", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1,
         "shape is [1,1,1,1,1,1,1,1,1], allowed: a list of up to 8"},
        {"{" TENSOR("w", "U8", "[-1]", "[0,1]") "}", 1, "shape is [-1], allowed: whole numbers from 0"},
        {"{" TENSOR("w", "U8", "[1.0]", "[0,1]") "}", 1, "allowed: whole numbers from 0"},
        {"{" TENSOR("w", "U8", "[1e3]", "[0,1000]") "}", 1000, "allowed: whole numbers from 0"},
        {"{" TENSOR("w", "U8", "[18446744073709551616]", "[0,1]") "}", 1, "allowed: whole numbers from 0"},
        {"{" TENSOR("w", "U8", "[[1]]", "[0,1]") "}", 1, "shape is [[1]], allowed: whole numbers from 0"},
        {"{" TENSOR("w", "U8", "[4294967296,4294967296]", "[0,1]") "}", 1,
         "tensor 'w': the shape has more elements than 63 bits can count"},
        {"{" TENSOR("w", "F32", "[4611686018427387904]", "[0,1]") "}", 1,
         "tensor 'w': 4611686018427387904 values of type F32 are more bytes"},
        {"{" TENSOR("w", "F32", "[2]", "[0,4]") "}", 4,
         "tensor 'w': 4 bytes of data, but its shape and type F32 take 8"},
        {"{" TENSOR("w", "F32", "[0]", "[0,4]") "}", 4, "4 bytes of data, but its shape and type F32 take 0"},
        {"{" TENSOR("w", "F32", "[1]", "[4,4]") "}", 4, "0 bytes of data, but its shape and type F32 take 4"},
        {"{" TENSOR("w", "U8", "[1]", "[0]") "}", 1, "data_offsets is [0], allowed: [begin, end]"},
        {"{" TENSOR("w", "U8", "[1]", "[0,1,2]") "}", 1, "data_offsets is [0,1,2], allowed: [begin, end]"},
        {"{" TENSOR("w", "U8", "[1]", "[1,0]") "}", 1, "data_offsets is [1,0], allowed: [begin, end]"},
        {"{" TENSOR("w", "U8", "[1]", "[-1,0]") "}", 1, "data_offsets is [-1,0]"},
        {"{" TENSOR("w", "U8", "[1]", "[0,1.0]") "}", 1, "data_offsets is [0,1]"},
        {"{" TENSOR("w", "U8", "[1]", "[\\u0030,1]") "}", 1, "bad value"},
        {"{\"__metadata__\":7}", 0, "__metadata__ is 7, allowed: an object of strings"},
        {"{\"__metadata__\":null}", 0, "__metadata__ is null, allowed: an object of strings"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a' is 1, allowed: a string"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "__metadata__ 'a' is {\"b\":\"c\"}, allowed: a string"},
    };
    refuse_all(cases, sizeof cases / sizeof *cases);
}

static void data_must_be_filled_exactly(void **state) {
    (void)state;
    static const bad_header cases[] = {
        {"{" TENSOR("w", "U8", "[4]", "[0,4]") "}", 3,
         "tensor 'w': the data end at byte 4, but the file has 3 bytes of data: it is truncated"},
        {"{" TENSOR("w", "U8", "[4]", "[0,4]") "}", 5, "the file has 5 bytes of data, but its tensors account for 4"},
        {"{" TENSOR("w", "U8", "[4]", "[1,5]") "}", 5,
         "tensor 'w' begins at byte 1 of the data, allowed: 0 (there is a hole before it)"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[5,9]") "}", 9,
         "tensor 'b' begins at byte 5 of the data, allowed: 4 (there is a hole"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[3,7]") "}", 7,
         "tensor 'b' begins at byte 3 of the data, allowed: 4 (it overlaps"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[0,4]") "}", 4,
         "(it overlaps the one before)"},
        {"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}", 4,
         "(it overlaps the one before)"},
        {"{" TENSOR("w", "U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 3, "it is truncated"},
        {"{" TENSOR("w", "U8", "[1]", "[9223372036854775807,9223372036854775807]") "}", 3, "it is truncated"},
        {"{\"__metadata__\":{}}", 1, "the file has 1 bytes of data, but its tensors account for 0"},
    };
    refuse_all(cases, sizeof cases / sizeof *cases);
    /* The header may be in any order; tensors are listed in file order. */
    const char *header = "{" TENSOR("b", "U8", "[2]", "[1,3]") "," TENSOR("e", "U8", "[0]", "[1,1]") "," TENSOR(
        "a", "U8", "[1]", "[0,1]") "}";
    bytes file = {0};
    tensor_set *set = NULL;
    make_file(&file, header, strlen(header), 0, 3);
    assert_ok(safetensors_open_memory(&set, file.data, file.n, "text"));
    assert_string_equal(tensor_set_at(set, 0)->name, "a");
    assert_string_equal(tensor_set_at(set, 1)->name, "e");
    assert_string_equal(tensor_set_at(set, 2)->name, "b");
    tensor_set_close(&set);
    bytes_clear(&file);
}

/* Names that collide in weak hash tables, so many that quadratic time would take minutes. */
static void many_tensors_open_quickly(void **state) {
    (void)state;
    enum { N = 100000 };
    bytes header = {0}, file = {0};
    bytes_append_text(&header, "{");
    for (int i = N; i-- > 0;) {
        bytes_printf(&header, "\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}%s", i, i, i + 1,
                     i ? "," : "}");
    }
    make_file(&file, header.data, header.n, 0, N);
    clock_t start = clock();
    tensor_set *set = NULL;
    assert_ok(safetensors_open_memory(&set, file.data, file.n, "many"));
    assert_int_equal(tensor_set_count(set), N);
    assert_int_equal(tensor_set_find(set, "t77777")->data - tensor_set_at(set, 0)->data, 77777);
    tensor_set_close(&set);
    assert_true(clock() - start < 10 * CLOCKS_PER_SEC);
    bytes_clear(&header);
    bytes_clear(&file);
}

/* ---- folders ---- */

static const char *in_folder(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_shard(const char *folder, const char *name, const char *first, const char *second) {
    const uint8_t data[4] = {1, 2, 3, 4};
    const tensor tensors[] = {{.name = first, .type = DTYPE_U8, .n_dims = 1, .shape = {4}, .data = data, .bytes = 4},
                              {.name = second, .type = DTYPE_U8, .n_dims = 1, .shape = {2}, .data = data, .bytes = 2}};
    assert_ok(safetensors_write(in_folder(folder, name), tensors, 2, NULL));
}

static void put_index(const char *folder, const char *text) {
    assert_ok(file_write_atomic(in_folder(folder, "model.safetensors.index.json"), text, strlen(text)));
}

static void empty_folder(const char *folder) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "s1.safetensors",
                                        "s2.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(folder, names[i]));
}

static const char good_index[] =
    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\","
    "\"b\":\"s1.safetensors\",\"d\":\"s2.safetensors\"}}";

static void a_sharded_folder_is_read_as_one_file(void **state) {
    (void)state;
    const char *folder = scratch_path("sharded");
    tensor_set *set = NULL;
    mkdir(folder, 0777);
    put_shard(folder, "s1.safetensors", "a", "b");
    put_shard(folder, "s2.safetensors", "c", "d");
    put_index(folder, good_index);
    assert_ok(safetensors_open_folder(&set, folder));
    assert_int_equal(tensor_set_count(set), 4);
    assert_int_equal(tensor_set_find(set, "c")->data[3], 4);
    assert_int_equal(tensor_set_find(set, "d")->bytes, 2);
    assert_null(safetensors_metadata(set));
    tensor_set_release_pages(set);
    assert_int_equal(tensor_set_find(set, "a")->data[0], 1);
    tensor_set_close(&set);
    put_shard(folder, "model.safetensors", "x", "y"); /* a single file has precedence */
    assert_ok(safetensors_open_folder(&set, folder));
    assert_non_null(tensor_set_find(set, "x"));
    tensor_set_close(&set);
    empty_folder(folder);
    rmdir(folder);
}

static void bad_folders_are_refused(void **state) {
    (void)state;
    const char *folder = scratch_path("broken");
    tensor_set *set = NULL;
    assert_fails(MN_E_NOT_FOUND, "is no folder", safetensors_open_folder(&set, folder));
    mkdir(folder, 0777);
    assert_fails(MN_E_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json",
                 safetensors_open_folder(&set, folder));
    put_index(folder, good_index);
    put_shard(folder, "s1.safetensors", "a", "b");
    assert_fails(MN_E_NOT_FOUND, "s2.safetensors: no such file", safetensors_open_folder(&set, folder));
    assert_fails(MN_E_NOT_FOUND, "needs it for 2 tensors, the first 'c'", safetensors_open_folder(&set, folder));
    put_shard(folder, "s2.safetensors", "c", "x");
    assert_fails(MN_E_FORMAT, "s2.safetensors: no tensor 'd', which", safetensors_open_folder(&set, folder));
    put_shard(folder, "s2.safetensors", "c", "d");
    assert_int_equal(truncate(in_folder(folder, "s2.safetensors"), 100), 0);
    assert_fails(MN_E_FORMAT, "s2.safetensors: the header length is", safetensors_open_folder(&set, folder));
    put_shard(folder, "s2.safetensors", "c", "d");
    struct stat info;
    assert_int_equal(stat(in_folder(folder, "s2.safetensors"), &info), 0);
    assert_int_equal(truncate(in_folder(folder, "s2.safetensors"), info.st_size - 1), 0);
    assert_fails(
        MN_E_FORMAT,
        "s2.safetensors: tensor 'd': the data end at byte 6, but the file has 5 bytes of data: it is truncated",
        safetensors_open_folder(&set, folder));
    static const struct {
        const char *index, *message;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}",
         "the shard of 'a' is \"../s1.safetensors\", allowed: the name of a file in the same folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "the shard of 'a' is \"/etc/passwd\""},
        {"{\"weight_map\":{\"a\":\"..\"}}", "the shard of 'a' is \"..\""},
        {"{\"weight_map\":{\"a\":\"\"}}", "the shard of 'a' is \"\""},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\\u0000x\"}}", "the shard of 'a' is"},
        {"{\"weight_map\":{\"a\":1}}", "the shard of 'a' is 1"},
        {"{\"weight_map\":{}}", "'weight_map' must be an object"},
        {"{\"weight_map\":[]}", "'weight_map' must be an object"},
        {"[]", "'weight_map' must be an object"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", "the key 'a' appears twice"},
        {"{", "line 1, column 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_index(folder, cases[i].index);
        assert_fails(MN_E_FORMAT, cases[i].message, safetensors_open_folder(&set, folder));
    }
    put_shard(folder, "s2.safetensors", "c", "a");
    put_index(folder, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}");
    assert_fails(MN_E_FORMAT, "tensor 'a' appears twice", safetensors_open_folder(&set, folder));
    assert_null(set);
    empty_folder(folder);
    rmdir(folder);
}

static void empty_and_special_files_are_refused(void **state) {
    (void)state;
    tensor_set *set = NULL;
    assert_fails(MN_E_NOT_FOUND, "cannot open", safetensors_open(&set, scratch_path("absent")));
    assert_fails(MN_E_IO, "not a regular file", safetensors_open(&set, "/"));
    assert_fails(MN_E_FORMAT, "0 bytes are no safetensors file", safetensors_open(&set, scratch_file("empty", "", 0)));
    assert_null(set);
}

/* ---- failures and damage ---- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    const char *folder = scratch_path("failing");
    mkdir(folder, 0777);
    put_shard(folder, "s1.safetensors", "b", "a");
    put_shard(folder, "s2.safetensors", "c", "d");
    put_index(folder, good_index);
    int64_t live = mem_count().live, k = 1;
    for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
        tensor_set *set = NULL;
        mem_fail_after(k);
        status = safetensors_open_folder(&set, folder);
        mem_fail_after(0);
        tensor_set_close(&set);
        assert_int_equal(mem_count().live, live);
        assert_true(status == MN_OK || status == MN_E_NOMEM);
    }
    assert_true(k > 20);
    empty_folder(folder);
    rmdir(folder);

    const uint8_t data[4] = {1, 2, 3, 4};
    const tensor t = {.name = "t", .type = DTYPE_U8, .n_dims = 1, .shape = {4}, .data = data, .bytes = 4};
    const char *metadata[] = {"a", "b", NULL}, *path = scratch_path("failing.safetensors");
    k = 1;
    for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
        mem_fail_after(k);
        status = safetensors_write(path, &t, 1, metadata);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        assert_true(status == MN_OK || status == MN_E_NOMEM);
        assert_int_equal(file_exists(path), status == MN_OK);
    }
    assert_true(k > 3);
}

static const char sound_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("model.a", "F32", "[2,3]", "[0,24]") "," TENSOR(
        "model.b", "BF16", "[3,1,2]",
        "[24,36]") "," TENSOR("scalar", "I64", "[]", "[36,44]") "," TENSOR("empty", "U8", "[0,4]", "[44,44]") "}  ";

static void every_shorter_file_is_refused(void **state) {
    (void)state;
    bytes file = {0};
    make_file(&file, sound_header, strlen(sound_header), 0, 44);
    assert_int_equal(hostile_safetensors((const uint8_t *)file.data, file.n), MN_OK);
    for (size_t n = 0; n < file.n; n++)
        assert_int_equal(hostile_safetensors((const uint8_t *)file.data, n), MN_E_FORMAT);
    bytes_clear(&file);
}

static void damaged_files_are_refused_or_readable(void **state) {
    (void)state;
    enum { N_FILES = 4000, ROOM = 256 };
    bytes file = {0};
    make_file(&file, sound_header, strlen(sound_header), 0, 44);
    uint8_t *damaged = test_malloc(file.n + ROOM);
    uint64_t seed = 1;
    int n_refused = 0;
    clock_t start = clock();
    for (int i = 0; i < N_FILES; i++) {
        memcpy(damaged, file.data, file.n);
        size_t n = hostile_mutate(damaged, file.n, file.n + ROOM, &seed);
        n_refused += hostile_safetensors(damaged, n) != MN_OK;
    }
    assert_true(clock() - start < 30 * CLOCKS_PER_SEC);
    assert_true(n_refused > N_FILES / 2 && n_refused < N_FILES); /* damage inside the data is not detected */
    test_free(damaged);
    bytes_clear(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_other_writers_are_read),
        cmocka_unit_test(written_files_are_read_back),
        cmocka_unit_test(the_writer_refuses_unreadable_tensors),
        cmocka_unit_test(bad_lengths_are_refused),
        cmocka_unit_test(bad_json_is_refused),
        cmocka_unit_test(bad_descriptions_are_refused),
        cmocka_unit_test(data_must_be_filled_exactly),
        cmocka_unit_test(many_tensors_open_quickly),
        cmocka_unit_test(a_sharded_folder_is_read_as_one_file),
        cmocka_unit_test(bad_folders_are_refused),
        cmocka_unit_test(empty_and_special_files_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(damaged_files_are_refused_or_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
