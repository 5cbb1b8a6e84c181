/* GGUF: values and tensors are read as written; split files; published files where available; every kind of bad file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#include "support/gguf_writer.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"

static mn_status open_bytes(const bytes *file) {
    gguf *g = NULL;
    mn_status status = gguf_open_memory(&g, file->data, file->n, "bad.gguf");
    assert_true((status == MN_OK) == (g != NULL));
    gguf_close(&g);
    return status;
}

/* Opening fails with this message, which begins with the file's name. */
static void refuse(const gguf_writer *w, const char *message) {
    bytes file = {0};
    gguf_writer_finish(w, &file);
    assert_fails(MN_E_FORMAT, message, open_bytes(&file));
    assert_ptr_equal(strstr(mn_last_error(), "bad.gguf: "), mn_last_error());
    bytes_clear(&file);
}

static bool text_is(gguf_text text, const char *expected) {
    return text.n == strlen(expected) && memcmp(text.text, expected, text.n) == 0;
}

/* One value of each type, an array of each kind, three tensors. */
static void write_sample(gguf_writer *w) {
    static const char *const words[] = {"", "a", "\xC4\xA0the", "line\n"};
    static const int32_t kinds[] = {1, -3, 6};
    static const float scores[] = {0.5f, -1.25f};
    static const int64_t matrix_shape[] = {3, 32}, cube_shape[] = {2, 3, 4, 5}, row_shape[] = {7};
    float values[120];
    for (int i = 0; i < 120; i++) values[i] = (float)(i - 60) / 64.0f;
    gguf_writer_text(w, "general.architecture", "llama");
    gguf_writer_int(w, "n.u8", GGUF_U8, 200);
    gguf_writer_int(w, "n.i8", GGUF_I8, -100);
    gguf_writer_int(w, "n.u16", GGUF_U16, 60000);
    gguf_writer_int(w, "n.i16", GGUF_I16, -30000);
    gguf_writer_int(w, "n.u32", GGUF_U32, 4000000000);
    gguf_writer_int(w, "n.i32", GGUF_I32, -2000000000);
    gguf_writer_int(w, "n.u64", GGUF_U64, INT64_MAX);
    gguf_writer_int(w, "n.huge", GGUF_U64, -1);
    gguf_writer_int(w, "n.i64", GGUF_I64, INT64_MIN);
    gguf_writer_real(w, "n.f32", GGUF_F32, 0.5);
    gguf_writer_real(w, "n.f64", GGUF_F64, 1e-5);
    gguf_writer_real(w, "n.nan", GGUF_F32, (double)NAN);
    gguf_writer_bool(w, "n.true", true);
    gguf_writer_bool(w, "n.false", false);
    gguf_writer_text(w, "n.empty", "");
    gguf_writer_texts(w, "a.words", words, 4);
    gguf_writer_texts(w, "a.none", NULL, 0);
    gguf_writer_array(w, "a.kinds", GGUF_I32, 4, kinds, 3);
    gguf_writer_array(w, "a.scores", GGUF_F32, 4, scores, 2);
    gguf_writer_array(w, "a.flags", GGUF_BOOL, 1, "\0\1", 2);
    gguf_writer_tensor_f32(w, "matrix.weight", DTYPE_Q8_0, 2, matrix_shape, values);
    gguf_writer_tensor_f32(w, "cube", DTYPE_F32, 4, cube_shape, values);
    gguf_writer_tensor_f32(w, "row.bias", DTYPE_F16, 1, row_shape, values);
}

static gguf *open_sample(bytes *file) {
    gguf_writer w = {0};
    gguf *g = NULL;
    write_sample(&w);
    gguf_writer_finish(&w, file);
    gguf_writer_clear(&w);
    assert_ok(gguf_open_memory(&g, file->data, file->n, "sample.gguf"));
    return g;
}

static void integers_are_read_as_written(void **state) {
    (void)state;
    static const struct {
        const char *key;
        int64_t value;
    } cases[] = {{"n.u8", 200},         {"n.i8", -100},         {"n.u16", 60000},     {"n.i16", -30000},
                 {"n.u32", 4000000000}, {"n.i32", -2000000000}, {"n.u64", INT64_MAX}, {"n.i64", INT64_MIN}};
    bytes file = {0};
    gguf *g = open_sample(&file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t whole = 0;
        double real = 0;
        assert_ok(gguf_int(g, cases[i].key, INT64_MIN, INT64_MAX, &whole));
        assert_int_equal(whole, cases[i].value);
        assert_ok(gguf_real(g, cases[i].key, -1e30, 1e30, &real));
        assert_true(real == (double)cases[i].value);
    }
    int64_t whole = 7;
    assert_ok(gguf_int(g, "absent", 0, 1, &whole));
    assert_int_equal(whole, 7);
    assert_fails(MN_E_FORMAT, "sample.gguf: n.u8 is 200 (u8), allowed: a whole number from 0 to 199",
                 gguf_int(g, "n.u8", 0, 199, &whole));
    assert_fails(MN_E_FORMAT, "n.huge is 18446744073709551615 (u64)", gguf_int(g, "n.huge", 0, INT64_MAX, &whole));
    assert_fails(MN_E_FORMAT, "n.f32 is 0.5 (f32), allowed: a whole", gguf_int(g, "n.f32", 0, 1, &whole));
    assert_fails(MN_E_FORMAT, "n.true is true (bool)", gguf_int(g, "n.true", 0, 1, &whole));
    assert_fails(MN_E_FORMAT, "general.architecture is \"llama\" (string)",
                 gguf_int(g, "general.architecture", 0, 1, &whole));
    assert_fails(MN_E_FORMAT, "a.kinds is \"[3 i32]\" (array)", gguf_int(g, "a.kinds", 0, 1, &whole));
    assert_int_equal(whole, 7);
    gguf_close(&g);
    bytes_clear(&file);
}

static void other_values_are_read_as_written(void **state) {
    (void)state;
    bytes file = {0};
    gguf *g = open_sample(&file);
    double real = 0;
    bool truth = false;
    gguf_text text = {0};
    assert_ok(gguf_real(g, "n.f32", 0, 1, &real));
    assert_true(real == 0.5);
    assert_ok(gguf_real(g, "n.f64", 0, 1, &real));
    assert_true(real == 1e-5);
    assert_ok(gguf_real(g, "n.huge", 0, 1e30, &real));
    assert_true(real == 0x1p64);
    assert_fails(MN_E_FORMAT, "n.nan is null (f32), allowed: a number from 0 to 1", gguf_real(g, "n.nan", 0, 1, &real));
    assert_fails(MN_E_FORMAT, "n.f32 is 0.5", gguf_real(g, "n.f32", 1, 2, &real));
    assert_fails(MN_E_FORMAT, "allowed: a number", gguf_real(g, "a.words", 1, 2, &real));
    assert_ok(gguf_bool(g, "n.true", &truth));
    assert_true(truth);
    assert_ok(gguf_bool(g, "n.false", &truth));
    assert_false(truth);
    assert_fails(MN_E_FORMAT, "n.u8 is 200 (u8), allowed: a bool", gguf_bool(g, "n.u8", &truth));
    assert_ok(gguf_string(g, "general.architecture", &text));
    assert_true(text_is(text, "llama"));
    assert_ok(gguf_string(g, "n.empty", &text));
    assert_true(text_is(text, ""));
    assert_fails(MN_E_FORMAT, "n.u8 is 200 (u8), allowed: a string", gguf_string(g, "n.u8", &text));
    assert_true(gguf_has(g, "a.none"));
    assert_false(gguf_has(g, "a.nonesuch"));
    assert_int_equal(gguf_key_count(g), 21);
    assert_string_equal(gguf_key(g, 1), "n.u8");
    assert_string_equal(gguf_path(g), "sample.gguf");
    gguf_close(&g);
    bytes_clear(&file);
}

static void arrays_are_read_as_written(void **state) {
    (void)state;
    bytes file = {0}, shown = {0};
    gguf *g = open_sample(&file);
    const gguf_array *words = gguf_array_find(g, "a.words"), *kinds = gguf_array_find(g, "a.kinds");
    assert_true(gguf_array_is_text(words));
    assert_int_equal(gguf_array_n(words), 4);
    assert_true(text_is(gguf_array_text_at(words, 0), ""));
    assert_true(text_is(gguf_array_text_at(words, 2), "\xC4\xA0the"));
    assert_true(text_is(gguf_array_text_at(words, 3), "line\n"));
    assert_true(isnan(gguf_array_number_at(words, 0)));
    assert_false(gguf_array_is_text(kinds));
    assert_true(gguf_array_number_at(kinds, 1) == -3);
    assert_int_equal(gguf_array_text_at(kinds, 1).n, 0);
    assert_true(gguf_array_number_at(gguf_array_find(g, "a.scores"), 1) == -1.25);
    assert_true(gguf_array_number_at(gguf_array_find(g, "a.flags"), 1) == 1);
    assert_int_equal(gguf_array_n(gguf_array_find(g, "a.none")), 0);
    assert_null(gguf_array_find(g, "n.u8"));
    assert_null(gguf_array_find(g, "absent"));
    gguf_put_value(&shown, g, 16);
    assert_string_equal(bytes_text(&shown), "\"[4 string]\"");
    bytes_clear(&shown);
    gguf_close(&g);
    bytes_clear(&file);
}

static void tensors_are_read_as_written(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        for (uint32_t alignment = 0; alignment <= 64; alignment = alignment ? alignment * 2 : 8) {
            gguf_writer w = {.version = version, .alignment = alignment};
            gguf *g = NULL;
            write_sample(&w);
            const char *path = scratch_path("sample.gguf");
            gguf_writer_save(&w, path);
            gguf_writer_clear(&w);
            assert_ok(gguf_open(&g, path));
            const tensor_set *set = gguf_tensors(g);
            assert_int_equal(tensor_set_count(set), 3);
            const tensor *matrix = tensor_set_find(set, "matrix.weight"), *cube = tensor_set_find(set, "cube");
            assert_ptr_equal(matrix, tensor_set_at(set, 0));
            assert_true(matrix->type == DTYPE_Q8_0 && matrix->n_dims == 2 && matrix->bytes == 102);
            assert_true(matrix->shape[0] == 3 && matrix->shape[1] == 32);
            assert_true(cube->shape[0] == 2 && cube->shape[1] == 3 && cube->shape[2] == 4 && cube->shape[3] == 5);
            float x[120];
            dtype_table[cube->type].to_f32(x, cube->data, 120);
            for (int i = 0; i < 120; i++) assert_true(x[i] == (float)(i - 60) / 64.0f);
            assert_int_equal((uintptr_t)cube->data % (alignment ? alignment : 32), 0);
            assert_null(tensor_set_find(set, "matrix"));
            gguf_close(&g);
        }
    }
}

/* ---- bad files ---- */

static void bad_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        size_t width;
        const char *message;
    } cases[] = {
        {0, 0x47554747, 4, "the first bytes are 47 47 55 47, allowed: 47 47 55 46"},
        {0, 0x04034B50, 4, "the first bytes are 50 4b 03 04, allowed: 47 47 55 46 (\"GGUF\")"},
        {4, 1, 4, "GGUF version 1, allowed: 2 and 3"},
        {4, 4, 4, "GGUF version 4, allowed: 2 and 3"},
        {4, 0x03000000, 4, "the file is big-endian, allowed: little-endian"},
        {8, 1000, 8, "1000 tensors, allowed in a file of this size: "},
        {8, UINT64_MAX, 8, "18446744073709551615 tensors, allowed in a file of this size: "},
        {16, 1000, 8, "1000 metadata keys, allowed in a file of this size: "},
        {16, (uint64_t)1 << 63, 8, "9223372036854775808 metadata keys"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer w = {0};
        bytes file = {0};
        write_sample(&w);
        gguf_writer_finish(&w, &file);
        memcpy(file.data + cases[i].at, &cases[i].value, cases[i].width);
        assert_fails(MN_E_FORMAT, cases[i].message, open_bytes(&file));
        gguf_writer_clear(&w);
        bytes_clear(&file);
    }
    bytes empty = {0};
    assert_fails(MN_E_FORMAT, "0 bytes are no GGUF file, whose header alone takes 24", open_bytes(&empty));
}

static void bad_keys_are_refused(void **state) {
    (void)state;
    gguf_writer w = {0};
    gguf_writer_int(&w, "", GGUF_U8, 1);
    refuse(&w, "the name of a key has 0 bytes, allowed: 1 to 4096");
    gguf_writer_clear(&w);
    gguf_writer_int(&w, "a\x01", GGUF_U8, 1);
    refuse(&w, "the name of a key holds the control character 0x01 at its byte 1");
    gguf_writer_clear(&w);
    gguf_writer_int(&w, "ab\xFF", GGUF_U8, 1);
    refuse(&w, "the name of a key is not valid UTF-8 at its byte 2");
    gguf_writer_clear(&w);
    gguf_writer_int(&w, "same", GGUF_U8, 1);
    gguf_writer_int(&w, "other", GGUF_U8, 1);
    gguf_writer_int(&w, "same", GGUF_U16, 2);
    refuse(&w, "key 'same' appears twice");
    gguf_writer_clear(&w);
    char name[4097];
    memset(name, 'x', sizeof name);
    gguf_put_text(&w.pairs, name, sizeof name);
    gguf_put_u32(&w.pairs, GGUF_U8);
    bytes_append(&w.pairs, "\1", 1);
    w.n_pairs = 1;
    refuse(&w, "the name of a key has 4097 bytes, allowed: 1 to 4096");
    gguf_writer_clear(&w);
    gguf_put_u64(&w.pairs, UINT64_MAX); /* a key that is longer than the file */
    gguf_put_u64(&w.pairs, 0);
    w.n_pairs = 1;
    refuse(&w, "key 0 takes 18446744073709551615 bytes from byte 32 on, but the file ends at byte 40");
    gguf_writer_clear(&w);
}

/* A key and value of this type; the value is the n bytes that follow. */
static void put_raw_pair(gguf_writer *w, uint32_t type, const void *value, size_t n) {
    gguf_put_text(&w->pairs, "k", 1);
    gguf_put_u32(&w->pairs, type);
    bytes_append(&w->pairs, value, n);
    w->n_pairs = 1;
}

static void put_raw_array(gguf_writer *w, uint32_t item, uint64_t n) {
    bytes value = {0};
    gguf_put_u32(&value, item);
    gguf_put_u64(&value, n);
    put_raw_pair(w, GGUF_ARRAY, value.data, value.n);
    bytes_clear(&value);
}

static void bad_values_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t item;
        uint64_t n;
        const char *message;
    } arrays[] = {
        {GGUF_ARRAY, 1, "key 'k' is an array of type 9, allowed: 0 to 12 except 9 (arrays of arrays)"},
        {13, 1, "key 'k' is an array of type 13, allowed"},
        {GGUF_U8, 1, "key 'k' takes 1 bytes from byte 49 on, but the file ends at byte 49"},
        {GGUF_I64, (uint64_t)1 << 61, "key 'k' takes 18446744073709551615 bytes"}, /* 2^64 as a product */
        {GGUF_F32, UINT64_MAX, "key 'k' takes 18446744073709551615 bytes"},
        {GGUF_STRING, 1, "key 'k' has 1 strings, but 0 bytes are left in the file"},
        {GGUF_STRING, UINT64_MAX, "key 'k' has 18446744073709551615 strings"},
    };
    gguf_writer w = {0};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        put_raw_array(&w, arrays[i].item, arrays[i].n);
        refuse(&w, arrays[i].message);
        gguf_writer_clear(&w);
    }
    put_raw_pair(&w, 13, "\0", 1);
    refuse(&w, "key 'k' has a value of type 13, allowed: 0 to 12");
    gguf_writer_clear(&w);
    put_raw_pair(&w, GGUF_U64, "\0\0\0\0", 4);
    refuse(&w, "key 'k' takes 8 bytes from byte 37 on, but the file ends at byte 41");
    gguf_writer_clear(&w);
    put_raw_pair(&w, GGUF_STRING, "\x03\0\0\0\0\0\0\0ab", 10);
    refuse(&w, "key 'k' takes 3 bytes from byte 45 on, but the file ends at byte 47");
    gguf_writer_clear(&w);
    put_raw_array(&w, GGUF_STRING, 2);
    gguf_put_text(&w.pairs, "ok", 2);
    gguf_put_u64(&w.pairs, 5);
    refuse(&w, "key 'k' takes 5 bytes from byte 67 on, but the file ends at byte 67");
    gguf_writer_clear(&w);
}

static void bad_alignments_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t value;
        const char *message;
    } cases[] = {{0, "general.alignment is 0 (u32), allowed: a whole number from 8 to 1073741824"},
                 {4, "general.alignment is 4 (u32)"},
                 {24, "general.alignment is 24, allowed: a power of two from 8 to 1073741824"},
                 {0x80000000, "general.alignment is 2147483648 (u32)"}};
    gguf_writer w = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer_int(&w, "general.alignment", GGUF_U32, cases[i].value);
        refuse(&w, cases[i].message);
        gguf_writer_clear(&w);
    }
    gguf_writer_text(&w, "general.alignment", "32");
    refuse(&w, "general.alignment is \"32\" (string), allowed: a whole number");
    gguf_writer_clear(&w);
}

static void bad_tensors_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t n_dims;
        uint64_t ne[5];
        uint32_t type;
        uint64_t offset;
        const char *message;
    } cases[] = {
        {0, {0}, 0, 0, "tensor 't' has 0 dimensions, allowed: 1 to 4"},
        {5, {1, 1, 1, 1, 1}, 0, 0, "tensor 't' has 5 dimensions, allowed: 1 to 4"},
        {2, {4, 0}, 0, 0, "tensor 't' has dimension 1 of 0, allowed: 1 to"},
        {1,
         {(uint64_t)1 << 63},
         0,
         0,
         "tensor 't' has dimension 0 of 9223372036854775808, allowed: 1 to 9223372036854775807"},
        {2,
         {(uint64_t)1 << 32, (uint64_t)1 << 32},
         0,
         0,
         "tensor 't': the shape has more elements than 63 bits can count"},
        {4, {(uint64_t)1 << 62, 2, 2, 2}, 0, 0, "tensor 't': the shape has more elements"},
        {1,
         {(uint64_t)1 << 62},
         0,
         0,
         "tensor 't': 4611686018427387904 values of type F32 are more bytes than 64 bits can count"},
        {2, {33, 32}, 8, 0, "tensor 't': rows of 33 values do not fill blocks of 32 (Q8_0)"},
        {2, {128, 2}, 12, 0, "tensor 't': rows of 128 values do not fill blocks of 256 (Q4_K)"},
        {1, {32}, 16, 0, "tensor 't' has type 16 (IQ2_XXS), allowed: F32, F16, BF16, Q4_0"},
        {1, {32}, 39, 0, "tensor 't' has type 39 (MXFP4), allowed"},
        {1, {32}, UINT32_MAX, 0, "tensor 't' has type 4294967295 (unknown), allowed"},
        {1, {4}, 0, 16, "tensor 't' begins at byte 16 of the data, allowed: multiples of 32"},
        {1,
         {17},
         0,
         0,
         "tensor 't' takes 68 bytes from byte 0 of the data on, but the file has 64 bytes of data: it is truncated"},
        {1, {9}, 0, 32, "tensor 't' takes 36 bytes from byte 32 of the data on, but the file has 64"},
        {1, {1}, 0, 96, "tensor 't' takes 4 bytes from byte 96 of the data on"},
        {1, {1}, 0, UINT64_MAX - 31, "tensor 't' takes 4 bytes from byte 18446744073709551584 of the data on"},
    };
    static const char data[64];
    gguf_writer w = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer_info(&w, "t", cases[i].n_dims, cases[i].ne, cases[i].type, cases[i].offset);
        bytes_append(&w.data, data, sizeof data);
        refuse(&w, cases[i].message);
        gguf_writer_clear(&w);
    }
}

static void overlapping_tensors_are_refused(void **state) {
    (void)state;
    static const char data[128];
    static const uint64_t sixteen[] = {16}, nine[] = {9};
    gguf_writer w = {0};
    gguf_writer_info(&w, "a", 1, nine, 0, 0);
    gguf_writer_info(&w, "b", 1, sixteen, 0, 32);
    bytes_append(&w.data, data, sizeof data);
    refuse(&w, "tensors 'a' and 'b' overlap");
    gguf_writer_clear(&w);
    gguf_writer_info(&w, "b", 1, sixteen, 0, 64);
    gguf_writer_info(&w, "a", 1, sixteen, 0, 64);
    bytes_append(&w.data, data, sizeof data);
    refuse(&w, "overlap");
    gguf_writer_clear(&w);
    gguf_writer_info(&w, "a", 1, sixteen, 0, 64); /* in any order, even with gaps between them */
    gguf_writer_info(&w, "a", 1, nine, 0, 0);
    bytes_append(&w.data, data, sizeof data);
    refuse(&w, "tensor 'a' appears twice");
    gguf_writer_clear(&w);
    gguf_writer_info(&w, "", 1, nine, 0, 0);
    bytes_append(&w.data, data, sizeof data);
    refuse(&w, "the name of a tensor has 0 bytes");
    gguf_writer_clear(&w);
}

/* ---- split files ---- */

static void put_part(const char *name, int no, int count, int n_tensors, const char *tensor_name) {
    static const int64_t shape[] = {2};
    const float values[] = {(float)no, 1};
    gguf_writer w = {0};
    gguf_writer_int(&w, "split.no", GGUF_U16, no);
    gguf_writer_int(&w, "split.count", GGUF_U16, count);
    gguf_writer_int(&w, "split.tensors.count", GGUF_I32, n_tensors);
    if (no == 0) gguf_writer_text(&w, "general.name", "split");
    gguf_writer_tensor_f32(&w, tensor_name, DTYPE_F32, 1, shape, values);
    gguf_writer_save(&w, scratch_path(name));
    gguf_writer_clear(&w);
}

static void split_files_are_read_as_one(void **state) {
    (void)state;
    static const char first[] = "m-00001-of-00003.gguf", second[] = "m-00002-of-00003.gguf",
                      third[] = "m-00003-of-00003.gguf";
    gguf *g = NULL;
    float x[2];
    put_part(first, 0, 3, 3, "a");
    assert_fails(MN_E_NOT_FOUND, "m-00002-of-00003.gguf: no such file, but ", gguf_open(&g, scratch_path(first)));
    put_part(second, 1, 3, 3, "b");
    put_part(third, 2, 3, 3, "c");
    assert_ok(gguf_open(&g, scratch_path(first)));
    assert_int_equal(tensor_set_count(gguf_tensors(g)), 3);
    const tensor *c = tensor_set_find(gguf_tensors(g), "c");
    dtype_table[c->type].to_f32(x, c->data, 2);
    assert_true(x[0] == 2 && x[1] == 1);
    assert_true(gguf_has(g, "general.name"));
    gguf_close(&g);

    int64_t live = mem_count().live, k = 1;
    for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
        mem_fail_after(k);
        status = gguf_open(&g, scratch_path(first));
        mem_fail_after(0);
        gguf_close(&g);
        assert_int_equal(mem_count().live, live);
        assert_true(status == MN_OK || status == MN_E_NOMEM);
    }
    assert_true(k > 30);

    assert_fails(MN_E_FORMAT, "this is part 2 of 3; open the first, whose name ends in '-00001-of-00003.gguf'",
                 gguf_open(&g, scratch_path(second)));
    put_part(third, 2, 3, 3, "a");
    assert_fails(MN_E_FORMAT, "tensor 'a' appears twice", gguf_open(&g, scratch_path(first)));
    put_part(third, 1, 3, 3, "c");
    assert_fails(MN_E_FORMAT, "the file calls itself part 2 of 3, allowed: 3 of 3", gguf_open(&g, scratch_path(first)));
    put_part(third, 2, 4, 3, "c");
    assert_fails(MN_E_FORMAT, "the file calls itself part 3 of 4, allowed: 3 of 3", gguf_open(&g, scratch_path(first)));
    put_part(third, 2, 3, 3, "c");
    put_part(first, 0, 3, 4, "a");
    assert_fails(MN_E_FORMAT, "split.tensors.count is 4 (i32), allowed: a whole number from 3 to 3",
                 gguf_open(&g, scratch_path(first)));
    put_part("other.gguf", 0, 3, 3, "a");
    assert_fails(MN_E_FORMAT, "the first of 3 parts must have a name that ends in '-00001-of-00003.gguf'",
                 gguf_open(&g, scratch_path("other.gguf")));
    put_part("other.gguf", 0, 1, 1, "a"); /* a single part is not a split */
    assert_ok(gguf_open(&g, scratch_path("other.gguf")));
    gguf_close(&g);
    put_part(first, 3, 3, 3, "a");
    assert_fails(MN_E_FORMAT, "split.no is 3 (u16), allowed: a whole number from 0 to 2",
                 gguf_open(&g, scratch_path(first)));
    put_part(first, 0, 3, 3, "a");
    bytes file = {0};
    assert_ok(file_read(&file, scratch_path(first), 1 << 20));
    assert_fails(MN_E_FORMAT, "bad.gguf: part 1 of 3, allowed in memory: whole files", open_bytes(&file));
    assert_ok(file_read(&file, scratch_path(second), 1 << 20));
    assert_int_equal(truncate(scratch_path(second), (off_t)file.n - 32), 0); /* its 8 bytes and their padding */
    assert_fails(MN_E_FORMAT, "m-00002-of-00003.gguf: tensor 'b' takes", gguf_open(&g, scratch_path(first)));
    assert_null(g);
    bytes_clear(&file);
}

/* ---- failures and damage ---- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    gguf_writer w = {0};
    bytes file = {0};
    write_sample(&w);
    gguf_writer_finish(&w, &file);
    int64_t live = mem_count().live, k = 1;
    for (mn_status status = MN_E_NOMEM; status != MN_OK; k++) {
        mem_fail_after(k);
        status = open_bytes(&file);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        assert_true(status == MN_OK || status == MN_E_NOMEM);
    }
    assert_true(k > 10);
    gguf_writer_clear(&w);
    bytes_clear(&file);
}

static void every_shorter_file_is_refused(void **state) {
    (void)state;
    gguf_writer w = {0};
    bytes file = {0};
    write_sample(&w);
    gguf_writer_finish(&w, &file);
    assert_int_equal(hostile_gguf((const uint8_t *)file.data, file.n), MN_OK);
    size_t padding = 32 - 7 * 2 % 32; /* after the last tensor, seven halves */
    for (size_t n = 0; n < file.n - padding; n++)
        assert_int_equal(hostile_gguf((const uint8_t *)file.data, n), MN_E_FORMAT);
    assert_int_equal(hostile_gguf((const uint8_t *)file.data, file.n - padding), MN_OK);
    gguf_writer_clear(&w);
    bytes_clear(&file);
}

static void damaged_files_are_refused_or_readable(void **state) {
    (void)state;
    enum { N_FILES = 4000, ROOM = 256 };
    gguf_writer w = {0};
    bytes file = {0};
    write_sample(&w);
    gguf_writer_finish(&w, &file);
    uint8_t *damaged = test_malloc(file.n + ROOM);
    uint64_t seed = 1;
    int n_refused = 0;
    clock_t start = clock();
    for (int i = 0; i < N_FILES; i++) {
        memcpy(damaged, file.data, file.n);
        size_t n = hostile_mutate(damaged, file.n, file.n + ROOM, &seed);
        n_refused += hostile_gguf(damaged, n) != MN_OK;
    }
    assert_true(clock() - start < 30 * CLOCKS_PER_SEC);
    assert_true(n_refused > N_FILES / 4 && n_refused < N_FILES); /* damage inside values and data is not detected */
    test_free(damaged);
    gguf_writer_clear(&w);
    bytes_clear(&file);
}

static void empty_and_special_files_are_refused(void **state) {
    (void)state;
    gguf *g = NULL;
    assert_fails(MN_E_NOT_FOUND, "cannot open", gguf_open(&g, scratch_path("absent")));
    assert_fails(MN_E_IO, "not a regular file", gguf_open(&g, "/"));
    assert_fails(MN_E_FORMAT, "0 bytes are no GGUF file", gguf_open(&g, scratch_file("empty", "", 0)));
    assert_null(g);
}

/* ---- real files ---- */

static void real_vocabularies_open(void **state) {
    (void)state;
    static const struct {
        const char *file, *model;
        size_t n_tokens;
    } cases[] = {{"gpt-2", "gpt2", 50257},
                 {"gpt-neox", "gpt2", 50432},
                 {"llama-spm", "llama", 32000},
                 {"phi-3", "llama", 32064},
                 {"mpt", "gpt2", 50432}};
    int n_seen = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[128];
        snprintf(name, sizeof name, "data/llama.cpp-vocab/ggml-vocab-%s.gguf", cases[i].file);
        const char *path = shared_path(name);
        if (!path) continue;
        gguf *g = NULL;
        gguf_text model = {0};
        assert_ok(gguf_open(&g, path));
        assert_ok(gguf_string(g, "tokenizer.ggml.model", &model));
        assert_true(text_is(model, cases[i].model));
        assert_int_equal(gguf_array_n(gguf_array_find(g, "tokenizer.ggml.tokens")), cases[i].n_tokens);
        assert_int_equal(gguf_array_n(gguf_array_find(g, "tokenizer.ggml.token_type")), cases[i].n_tokens);
        assert_int_equal(tensor_set_count(gguf_tensors(g)), 0);
        gguf_close(&g);
        n_seen++;
    }
    if (n_seen == 0) skip();
    assert_int_equal(n_seen, sizeof cases / sizeof *cases);
}

static void a_real_model_opens(void **state) {
    (void)state;
    const char *path = smollm2_path();
    if (!path) skip();
    gguf *g = NULL;
    int64_t heads = 0, layers = 0;
    double epsilon = 0;
    size_t by_type[N_DTYPES] = {0}, bytes_of[N_DTYPES] = {0};
    assert_ok(gguf_open(&g, path));
    assert_ok(gguf_int(g, "llama.attention.head_count", 1, 1024, &heads));
    assert_ok(gguf_int(g, "llama.block_count", 1, 1024, &layers));
    assert_ok(gguf_real(g, "llama.attention.layer_norm_rms_epsilon", 0, 1, &epsilon));
    assert_true(heads == 9 && layers == 30 && epsilon == (double)1e-5f);
    const tensor_set *set = gguf_tensors(g);
    assert_int_equal(tensor_set_count(set), 272);
    assert_int_equal(tensor_set_file_bytes(set), 98362432);
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        by_type[t->type]++;
        bytes_of[t->type] += t->bytes;
    }
    assert_true(by_type[DTYPE_Q4_1] == 210 && by_type[DTYPE_Q8_0] == 1 && by_type[DTYPE_F32] == 61);
    assert_int_equal(bytes_of[DTYPE_Q8_0], 49152 * 576 / 32 * 34);
    const tensor *keys = tensor_set_find(set, "blk.29.attn_k.weight");
    assert_true(keys->n_dims == 2 && keys->shape[0] == 192 && keys->shape[1] == 576);
    float norm[576], largest = 0;
    const tensor *output_norm = tensor_set_find(set, "output_norm.weight");
    dtype_table[output_norm->type].to_f32(norm, output_norm->data, 576);
    for (int i = 0; i < 576; i++) largest = fmaxf(largest, fabsf(norm[i]));
    assert_true(largest > 0.1f && largest < 1000.0f);
    tensor_set_release_pages(set);
    gguf_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_read_as_written),
        cmocka_unit_test(other_values_are_read_as_written),
        cmocka_unit_test(arrays_are_read_as_written),
        cmocka_unit_test(tensors_are_read_as_written),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(bad_keys_are_refused),
        cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(bad_alignments_are_refused),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(overlapping_tensors_are_refused),
        cmocka_unit_test(split_files_are_read_as_one),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(damaged_files_are_refused_or_readable),
        cmocka_unit_test(empty_and_special_files_are_refused),
        cmocka_unit_test(real_vocabularies_open),
        cmocka_unit_test(a_real_model_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
