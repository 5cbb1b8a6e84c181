/* Malformed safetensors files by class: each is refused with the right code and message, within limits of time and
 * memory. The test makes the files; legal members of a class are opened.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/budget.h"
#include "support/hostile/heap_bytes.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

/* ---- limits ---- */

enum {
    N_CLASSES = 40,
    LEAST_FILES = 400,
    N_SHARDS = 2,
    FIXED_BYTES = 72 << 10, /* for any file: structs, a message, the first block of the header's values */
    MOST_TIMES = 4,         /* the header's size */
    MOST_TIMES_DENSE = 28,  /* for headers of a hundred thousand and more values of a few bytes */
    NEEDED_MS = 25,
    NEEDED_MS_MB = 3 /* in addition, for each MB of header */
};

static struct {
    int class, files[N_CLASSES + 1], n_files, n_legal;
    bool is_dense;
    double slowest;     /* ms */
    double most_memory; /* times the header, of files with headers of 1 MB and more */
    char slowest_name[80], largest_name[80];
} tally;

static void begin(int class) {
    tally.class = class;
    tally.is_dense = false;
}

static mn_status open_bytes(tensor_set **set, const void *file) {
    const bytes *b = file;
    return safetensors_open_memory(set, b->data ? b->data : "", b->n, "bad.safetensors");
}

static mn_status open_path(tensor_set **set, const void *path) {
    return safetensors_open(set, path);
}

static mn_status open_folder(tensor_set **set, const void *path) {
    return safetensors_open_folder(set, path);
}

static double opening_ms(mn_status (*open)(tensor_set **, const void *), const void *what) {
    tensor_set *set = NULL;
    double from = processor_seconds();
    open(&set, what);
    double ms = (processor_seconds() - from) * 1e3;
    tensor_set_close(&set);
    return ms;
}

/* Opens a file and compares the outcome; `header` is the header's size in bytes. */
static void check(mn_status (*open)(tensor_set **, const void *), const void *what, size_t header, const char *name,
                  mn_status wanted, const char *part) {
    tensor_set *set = NULL;
    int64_t live = heap_bytes.live;
    heap_bytes.most = live;
    double from = processor_seconds();
    mn_status status = open(&set, what);
    double ms = (processor_seconds() - from) * 1e3, times = (double)(heap_bytes.most - live) / (double)(header + 1);
    if (status != wanted) fail_msg("class %d, %s: status %d, %s", tally.class, name, status, mn_last_error());
    assert_true((status == MN_OK) == (set != NULL));
    if (status != MN_OK && part && !strstr(mn_last_error(), part))
        fail_msg("class %d, %s: '%s' lacks '%s'", tally.class, name, mn_last_error(), part);
    if (status != MN_OK && (!*mn_last_error() || strlen(mn_last_error()) > 1000 || strchr(mn_last_error(), '\n')))
        fail_msg("class %d, %s: no message: '%s'", tally.class, name, mn_last_error());
    tensor_set_close(&set);
    assert_int_equal(heap_bytes.live, live);
    /* The best of several openings is hardly affected by other load on the machine. */
    double allowed = seconds_allowed(NEEDED_MS + NEEDED_MS_MB * (double)header / 1e6);
    for (int again = 0; ms > allowed && again < 8; again++) ms = fmin(ms, opening_ms(open, what));
    if (ms > allowed) fail_msg("class %d, %s: %.0f ms", tally.class, name, ms);
    size_t most = (tally.is_dense ? MOST_TIMES_DENSE : MOST_TIMES) * header +
                  (size_t)FIXED_BYTES * (open == open_folder ? N_SHARDS + 1 : 1);
    if (heap_bytes.most - live > (int64_t)most)
        fail_msg("class %d, %s: %lld bytes for a header of %zu", tally.class, name, (long long)(heap_bytes.most - live),
                 header);
    if (ms > tally.slowest) {
        tally.slowest = ms;
        snprintf(tally.slowest_name, sizeof tally.slowest_name, "%d, %s", tally.class, name);
    }
    if (header >= 1000000 && times > tally.most_memory) {
        tally.most_memory = times;
        snprintf(tally.largest_name, sizeof tally.largest_name, "%d, %s", tally.class, name);
    }
    if (wanted == MN_OK) {
        tally.n_legal++;
    } else {
        tally.files[tally.class]++;
        tally.n_files++;
    }
}

/* A file with n bytes of header, a header length of `length` (0: n), and n_data bytes after the header. */
static void try_bytes(const char *header, size_t n, uint64_t length, size_t n_data, mn_status wanted,
                      const char *part) {
    bytes file = {0};
    char name[60];
    if (length == 0) length = n;
    bytes_append(&file, &length, sizeof length);
    bytes_append(&file, header, n);
    for (size_t i = 0; i < n_data; i++) bytes_append(&file, "\x2A", 1);
    assert_ok(bytes_status(&file));
    snprintf(name, sizeof name, "%.50s", header);
    check(open_bytes, &file, n, name, wanted, part);
    bytes_clear(&file);
}

static void refuse(const char *header, size_t n_data, const char *part) {
    try_bytes(header, strlen(header), 0, n_data, MN_E_FORMAT, part);
}

static void allow(const char *header, size_t n_data) {
    try_bytes(header, strlen(header), 0, n_data, MN_OK, NULL);
}

#define TENSOR(name, dtype, shape, offsets)                                                                            \
    "\"" name "\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define U8  "\"U8\""
#define ONE "{" TENSOR("w", U8, "[4]", "[0,4]") "}"

/* Each of n texts substituted for `%s`. */
static void refuse_each(const char *format, const char *const *texts, size_t n, size_t n_data, const char *part) {
    for (size_t i = 0; i < n; i++) {
        bytes header = {0};
        const char *place = strstr(format, "%s");
        bytes_append(&header, format, (size_t)(place - format));
        bytes_append_text(&header, texts[i]);
        bytes_append_text(&header, place + 2);
        refuse(bytes_text(&header), n_data, part);
        bytes_clear(&header);
    }
}

#define EACH(format, n_data, part, ...)                                                                                \
    do {                                                                                                               \
        static const char *const each_[] = {__VA_ARGS__};                                                              \
        refuse_each(format, each_, sizeof each_ / sizeof *each_, n_data, part);                                        \
    } while (0)

/* ---- classes 1 to 8: lengths and ends ---- */

static void lengths(void) {
    bytes file = {0};
    begin(1); /* shorter than a header length */
    for (file.n = 0; file.n < 8; bytes_append(&file, "\x02", 1))
        check(open_bytes, &file, 0, "a few bytes", MN_E_FORMAT, "bytes are no safetensors file");
    begin(2);
    bytes_clear(&file);
    bytes_append(&file, "\0\0\0\0\0\0\0\0", 8);
    check(open_bytes, &file, 0, "N = 0", MN_E_FORMAT, "the header length is 0, allowed: 2");
    bytes_append(&file, "{}", 2);
    check(open_bytes, &file, 2, "N = 0 before a header", MN_E_FORMAT, "the header length is 0");
    bytes_clear(&file);
    try_bytes("{}", 2, 1, 0, MN_E_FORMAT, "the header length is 1, allowed: 2 to 100000000");
    try_bytes("{}", 2, 2, 1, MN_E_FORMAT, "the file has 1 bytes of data, but its tensors account for 0");
    try_bytes("{}", 2, 3, 0, MN_E_FORMAT, "only 2 bytes follow");
    allow("{}", 0);
    begin(3); /* lengths near the true one: 60 bytes of header, 4 of data */
    for (uint64_t more = 1; more <= 9; more++)
        try_bytes(ONE, strlen(ONE), strlen(ONE) + more, 4, MN_E_FORMAT, more > 4 ? "only" : "text after the end");
    for (uint64_t less = 1; less <= 9; less++) try_bytes(ONE, strlen(ONE), strlen(ONE) - less, 4, MN_E_FORMAT, NULL);
    begin(4);
    static const uint64_t large[] = {100000000,
                                     100000001,
                                     (uint64_t)1 << 31,
                                     (uint64_t)1 << 32,
                                     (uint64_t)1 << 63,
                                     UINT64_MAX,
                                     UINT64_MAX - 7,
                                     UINT64_MAX - 8,
                                     (uint64_t)1 << 62,
                                     ((uint64_t)1 << 63) - 1,
                                     ((uint64_t)1 << 63) + 8,
                                     (uint64_t)1 << 40};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        try_bytes(ONE, strlen(ONE), large[i], 4, MN_E_FORMAT,
                  i == 0 ? "the file is truncated" : "allowed: 2 to 100000000");
    begin(8);
    for (size_t n = 0; n < strlen(ONE); n++) {
        try_bytes(ONE, n, strlen(ONE), 0, MN_E_FORMAT, "the file is truncated");
        if (n >= 2) try_bytes(ONE, n, n, 0, MN_E_FORMAT, NULL);
    }
}

/* ---- classes 5 to 18: headers that are not JSON of the right form ---- */

static void text_around_the_header(void) {
    begin(5);
    EACH("%s{}", 0, "allowed: '{'", " ", "\n", "\t", "\xEF\xBB\xBF", "[", "\"", "x", "\xFF", "0", "/* */", "//\n");
    begin(6);
    EACH("{}%s", 0, "text after the end", "\x01", "\x0B", "\x0C", "\x7F", "\xC2\xA0");
    EACH("   %s", 0, "allowed: '{'", "{}", ONE);
    try_bytes("{}\0", 3, 0, 0, MN_E_FORMAT, "text after the end");
    try_bytes("{}      \0", 9, 0, 0, MN_E_FORMAT, "text after the end");
    allow("{}      ", 0);
    allow("{ }", 0);
    begin(7);
    EACH("{\"%s\":1}", 0, "invalid UTF-8", "\xFF", "\x80", "\xC0\xAF", "\xC1\x81", "\xE0\x80\xAF", "\xED\xA0\x80",
         "\xED\xBF\xBF", "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xC3", "\xE2\x82",
         "\xF0\x9F\x98");
    EACH("{\"__metadata__\":{\"a\":\"%s\"}}", 0, "invalid UTF-8", "\xFF", "\xC0\x80", "\xED\xB0\x80", "a\xE6\x97");
    EACH("{\"\\ud8%s\":1}", 0, NULL, "00", "00x", "00\\u0041", "00\\ud800", "zz", "0");
    EACH("{%s}", 0, NULL, "\xFF", "\xC3\xA9", "\"a\":1\xFF", "\"a\"\xC2\xA0:1");
    begin(9);
    EACH(ONE "%s", 4, "text after the end", "x", "{}", "}", "]", ",", "\"", "1", "null", "\x7F", ONE);
}

static void keys_and_names(void) {
    char text[6000];
    begin(10);
    refuse("{" TENSOR("w", U8, "[1]", "[0,1]") "," TENSOR("w", U8, "[1]", "[1,2]") "}", 2, "the key 'w' appears twice");
    refuse("{" TENSOR("w", U8, "[1]", "[0,1]") "," TENSOR("w", U8, "[1]", "[0,1]") "}", 1, "the key 'w' appears twice");
    EACH("{\"w\":{%s,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "appears twice", "\"dtype\":\"U8\"",
         "\"dtype\":\"I8\"", "\"shape\":[1]", "\"shape\":[2]", "\"data_offsets\":[0,1]", "\"data_offsets\":[0,0]");
    begin(11);
    EACH("{" TENSOR("w", U8, "[1]", "[0,1]") "," TENSOR("%s", U8, "[1]", "[1,2]") "}", 2, "the key 'w' appears twice",
         "\\u0077", "w");
    refuse("{" TENSOR("\\ud83d\\ude00", U8, "[1]", "[0,1]") "," TENSOR("\xF0\x9F\x98\x80", U8, "[1]", "[1,2]") "}", 2,
           "appears twice");
    refuse("{\"w\":{\"dtype\":\"U8\",\"\\u0064type\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
           "the key 'dtype' appears twice");
    begin(12);
    refuse("{" TENSOR("", U8, "[1]", "[0,1]") "}", 1, "0 bytes, allowed: 1 to 4096");
    for (size_t n = 4096; n <= 5000; n += n == 4096 ? 1 : 903) {
        memset(text, 'n', n);
        text[n] = 0;
        bytes header = {0};
        bytes_printf(&header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", text);
        try_bytes(header.data, header.n, 0, 1, n == 4096 ? MN_OK : MN_E_FORMAT, "allowed: 1 to 4096");
        bytes_clear(&header);
    }
    EACH("{" TENSOR("a%sb", U8, "[1]", "[0,1]") "}", 1, "control character", "\\u0000", "\\n", "\\r", "\\t", "\\u001b",
         "\\u007f");
    EACH("{" TENSOR("a%sb", U8, "[1]", "[0,1]") "}", 1, "control character in a string", "\n", "\t", "\x1b", "\x01");
    allow("{" TENSOR("a/../b", U8, "[1]", "[0,1]") "}", 1); /* a name is not a path */
    begin(13);
    EACH("{\"w\":{%s}}", 1, NULL, "", "\"dtype\":\"U8\"", "\"shape\":[1]", "\"data_offsets\":[0,1]",
         "\"dtype\":\"U8\",\"shape\":[1]", "\"dtype\":\"U8\",\"data_offsets\":[0,1]",
         "\"shape\":[1],\"data_offsets\":[0,1]", "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":0",
         "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"\":0",
         "\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]",
         "\"dtype \":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]");
    begin(14);
    EACH("{\"w\":%s}", 0, "allowed: an object", "[]", "\"\"", "\"U8\"", "null", "1", "true", "[{}]", "-0.5");
    begin(15);
    EACH("%s", 0, "allowed: '{'", "[]", "\"a\"", "12", "null", "true", "[{}]", "-1");
}

static void no_json(void) {
    begin(16);
    for (int i = 0; i < 4; i++) {
        bytes header = {0};
        bytes_append_text(&header, i < 2 ? "{\"__metadata__\":" : "{\"w\":{\"dtype\":\"U8\",\"shape\":");
        for (int k = 0; k < 100000; k++) bytes_append_text(&header, i % 2 ? "{\"a\":" : "[");
        try_bytes(header.data, header.n, 0, 0, MN_E_FORMAT, "nesting deeper than 256 levels");
        bytes_clear(&header);
    }
    begin(18);
    EACH("{\"w\":%s}", 0, NULL, "NaN", "Infinity", "-Infinity", "'a'", "// x\n1", "/* x */1", "{\"a\":1,}", "[1,]",
         "[,1]", "[1 2]", "{\"a\" 1}", "{\"a\":}", "{a:1}", "True", "None", "undefined", ".5", "0x10", "\"a",
         "\"\\x41\"", "\"\\", "\"\\u12\"", "tru", "nul", "-", "1.", "1e", "1e+", "--1");
    EACH("{%s}", 0, NULL, ",", "\"a\"", "\"a\":", "\"a\":1,", "\"a\":1 \"b\":2", "'a':1", "1:2", "null:1", ":",
         "\"a\"::1", "{}");
}

/* ---- classes 17 to 36: descriptions ---- */

static void offsets(void) {
    begin(17);
    EACH("{" TENSOR("w", U8, "[1]", "%s") "}", 1, "[begin, end]", "[]", "[0]", "[0,1,2]", "[0,1,1]", "0", "\"01\"",
         "{}", "{\"0\":0,\"1\":1}", "[[0,1]]");
    begin(19);
    refuse(ONE, 3, "it is truncated");
    refuse(ONE, 5, "the file has 5 bytes of data, but its tensors account for 4");
    refuse(ONE, 0, "it is truncated");
    refuse(ONE, 4000, "the file has 4000 bytes of data");
    begin(20); /* any bits are legal numbers: only the length of the data is checked */
    allow("{" TENSOR("w", "\"F32\"", "[1]", "[0,4]") "}", 4);
    EACH("{" TENSOR("w", "\"%s\"", "[1]", "[0,3]") "}", 3, "3 bytes of data", "F32", "F16", "BF16", "F64", "I32");
    begin(21);
    EACH("{" TENSOR("w", U8, "[1]", "%s") "}", 4, "data_offsets is", "[1,0]", "[-1,0]", "[0,-1]", "[-2,-1]", "[0,1.0]",
         "[0.0,1]", "[0,1e0]", "[1e400,2]", "[\"0\",1]", "[0,\"1\"]", "[null,1]", "[0,true]", "[[0],1]",
         "[0,9223372036854775808]", "[18446744073709551615,0]");
    begin(22);
    EACH("{" TENSOR("w", U8, "[4]", "%s") "}", 4, NULL, "[0,5]", "[1,5]", "[4,8]", "[0,1099511627776]",
         "[1099511627776,1099511627780]", "[0,9223372036854775807]", "[9223372036854775803,9223372036854775807]",
         "[0,9223372036854775808]", "[0,18446744073709551615]", "[18446744073709551612,18446744073709551616]");
    begin(23);
    refuse("{" TENSOR("w", U8, "[4]", "[1,5]") "}", 5, "begins at byte 1 of the data, allowed: 0");
    refuse("{" TENSOR("w", U8, "[4]", "[4,8]") "}", 8, "begins at byte 4 of the data, allowed: 0");
    refuse("{" TENSOR("w", U8, "[0]", "[4,4]") "}", 4, "there is a hole before it");
    begin(24);
    refuse("{" TENSOR("a", U8, "[2]", "[0,2]") "," TENSOR("b", U8, "[2]", "[3,5]") "}", 5, "there is a hole before it");
    refuse("{" TENSOR("b", U8, "[2]", "[3,5]") "," TENSOR("a", U8, "[2]", "[0,2]") "}", 5, "there is a hole before it");
    refuse("{" TENSOR("a", U8, "[2]", "[0,2]") "}", 22,
           "the file has 22 bytes of data"); /* another archive behind it */
    refuse("{\"__metadata__\":{}}", 22, "the file has 22 bytes of data");
    begin(25);
    refuse("{" TENSOR("a", U8, "[4]", "[0,4]") "," TENSOR("b", U8, "[4]", "[0,4]") "}", 4,
           "it overlaps the one before");
    refuse("{" TENSOR("a", U8, "[4]", "[0,4]") "," TENSOR("b", U8, "[4]", "[3,7]") "}", 7,
           "it overlaps the one before");
    refuse("{" TENSOR("a", U8, "[4]", "[0,4]") "," TENSOR("b", U8, "[2]", "[1,3]") "}", 4,
           "it overlaps the one before");
    refuse("{" TENSOR("b", U8, "[2]", "[2,4]") "," TENSOR("a", U8, "[4]", "[0,4]") "}", 4,
           "it overlaps the one before");
    tally.is_dense = true;
    bytes header = {0};
    bytes_append_text(&header, "{");
    for (int i = 0; i < 100000; i++)
        bytes_printf(&header, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}", i ? "," : "", i);
    bytes_append_text(&header, "}");
    try_bytes(header.data, header.n, 0, 4, MN_E_FORMAT, "it overlaps the one before");
    bytes_clear(&header);
}

static void shapes(void) {
    begin(26);
    EACH("{" TENSOR("w", "\"F32\"", "%s", "[0,16]") "}", 16, "16 bytes of data, but its shape and type F32 take", "[3]",
         "[5]", "[2,3]", "[1,1]", "[]", "[4,0]", "[8,2]");
    begin(27);
    EACH("{" TENSOR("w", "\"F32\"", "%s", "[0,4]") "}", 4, NULL, "[4294967296,4294967296]", "[9223372036854775807,2]",
         "[9223372036854775808]", "[18446744073709551615]", "[18446744073709551616]", "[18446744073709551615,0]",
         "[4611686018427387904]", "[2147483648,2147483648,2]", "[4294967297,4294967297]", "[2097152,2097152,2097152,2]",
         "[9223372036854775807,9223372036854775807]");
    begin(28);
    EACH("{" TENSOR("w", U8, "%s", "[0,1]") "}", 1, "allowed: whole numbers from 0", "[-1]", "[1.0]", "[0.5]", "[1e0]",
         "[\"1\"]", "[null]", "[true]", "[[1]]", "[{}]", "[1,-1]", "[-1,-1]", "[1e400]");
    begin(29);
    EACH("{" TENSOR("w", U8, "%s", "[0,1]") "}", 1, "a list of up to 8 dimensions", "1", "\"[1]\"", "{}", "{\"0\":1}",
         "true", "[1,1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1,1,1]");
    tally.is_dense = true;
    bytes header = {0};
    bytes_append_text(&header, "{\"w\":{\"dtype\":\"U8\",\"shape\":[1");
    for (int i = 1; i < 1000000; i++) bytes_append_text(&header, ",1");
    bytes_append_text(&header, "],\"data_offsets\":[0,1]}}");
    try_bytes(header.data, header.n, 0, 1, MN_E_FORMAT, "a list of up to 8 dimensions");
    bytes_clear(&header);
    begin(30);
    EACH("{" TENSOR("w", U8, "%s", "[0,1]") "}", 1, "but its shape and type U8 take 0", "[0]", "[0,1]", "[4,0,4]",
         "[9223372036854775807,0]");
    EACH("{" TENSOR("w", U8, "%s", "[0,0]") "}", 0, "0 bytes of data", "[1]", "[]", "[2,2]");
    allow("{" TENSOR("w", U8, "[0,7]", "[0,0]") "}", 0);
    begin(31); /* types smaller than a byte are in the format but are not supported */
    EACH("{" TENSOR("w", "\"%s\"", "[3]", "[0,2]") "}", 2, "dtype is", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0",
         "F8_E4M3FNUZ", "F8_E5M2FNUZ", "U16", "U32", "U64", "C64");
    begin(32);
    EACH("{" TENSOR("w", "%s", "[1]", "[0,1]") "}", 1, "dtype is", "\"u8\"", "\"U8 \"", "\"\"", "8", "[\"U8\"]", "{}",
         "true", "\"U8\\u0000\"", "\"Q8_0\"", "\"float32\"", "\"\\u00558x\"");
    bytes_append_text(&header, "{\"w\":{\"dtype\":\"");
    for (int i = 0; i < 100000; i++) bytes_append_text(&header, "ABCDEFGHIJ");
    bytes_append_text(&header, "\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    try_bytes(header.data, header.n, 0, 1, MN_E_FORMAT, "dtype is");
    bytes_clear(&header);
}

static void metadata(void) {
    begin(33);
    EACH("{\"__metadata__\":%s}", 0, "__metadata__", "7", "[]", "null", "\"a\"", "true", "{\"a\":1}", "{\"a\":null}",
         "{\"a\":[]}", "{\"a\":{\"b\":\"c\"}}", "{\"a\":\"b\",\"c\":false}");
    EACH("{\"__metadata__\":{%s}}", 0, "appears twice", "\"a\":\"b\",\"a\":\"c\"", "\"a\":\"b\",\"a\":\"b\"",
         "\"a\":\"b\",\"\\u0061\":\"c\"");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "appears twice");
    size_t n = test_is_long() ? 50000000 : 5000000;
    bytes header = {0};
    bytes_append_text(&header, "{\"__metadata__\":{\"a\":\"");
    while (header.n < n) bytes_append_text(&header, "one text of fifty megabytes in pieces of 64 bytes each.........");
    bytes_append_text(&header, "\",\"b\":1}}");
    try_bytes(header.data, header.n, 0, 0, MN_E_FORMAT, "__metadata__ 'b' is 1, allowed: a string");
    tally.is_dense = true;
    header.n = 0;
    bytes_append_text(&header, "{\"__metadata__\":{\"0\":\"\"");
    for (int i = 1; i < 100000; i++) bytes_printf(&header, ",\"%d\":\"\"", i);
    bytes_append_text(&header, ",\"b\":1}}");
    try_bytes(header.data, header.n, 0, 0, MN_E_FORMAT, "__metadata__ 'b' is 1");
    bytes_clear(&header);
    begin(34);
    refuse("{\"__metadata__\":{\"a\":\"b\"}}", 1, "the file has 1 bytes of data, but its tensors account for 0");
    refuse("{\"__metadata__\":{}}", 8, "the file has 8 bytes of data");
    allow("{\"__metadata__\":{\"a\":\"b\"}}", 0);
    begin(36);
    EACH("{" TENSOR("w", U8, "[%s]", "[0,1]") "}", 1, NULL, "01", "00", "+1", "1.0", "-0.0", "1_0", "\xEF\xBC\x91",
         "9007199254740993", "1e1");
    allow("{" TENSOR("w", U8, "[-0]", "[0,0]") "}", 0);
}

/* ---- classes 35 to 40: files and folders ---- */

static const char *sparse_file(const char *name, uint64_t length, const char *header, off_t size) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
    assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
    assert_int_equal(fclose(file), 0);
    return truncate(path, size) == 0 ? path : NULL;
}

static void large_files(void) {
    begin(35); /* a header of ten million tensors: its length is refused before it is read */
    check(open_path, sparse_file("tensors", 400000000, ONE, 500000000), 0, "a header of 400 MB", MN_E_FORMAT,
          "the header length is 400000000, allowed: 2 to 100000000");
    check(open_path, sparse_file("hole", 100000000, ONE, 100000008), 100000000, "a header of 100 MB of zeros",
          MN_E_FORMAT, "text after the end");
    begin(37);
    for (off_t size = 0; size < (off_t)strlen(ONE) + 12; size += 3) {
        tensor_set *set = NULL;
        const char *path = sparse_file("shrinks", strlen(ONE), ONE, (off_t)strlen(ONE) + 12);
        assert_ok(safetensors_open(&set, path));
        assert_int_equal(truncate(path, size), 0);
        assert_string_equal(tensor_set_at(set, 0)->name, "w"); /* the mapped size stays valid */
        assert_int_equal(tensor_set_find(set, "w")->shape[0], 4);
        tensor_set_close(&set);
        check(open_path, path, strlen(ONE), "a file that has shrunk", MN_E_FORMAT, NULL);
    }
    begin(39);
#ifdef __SANITIZE_THREAD__
    enum { MOST_BITS = 35 }; /* its own memory leaves no room for a mapping of a TiB */
#else
    enum { MOST_BITS = 40 };
#endif
    for (int bits = 30; bits <= MOST_BITS; bits += 5) {
        const char *path = sparse_file("sparse", strlen(ONE), ONE, (off_t)1 << bits);
        if (path)
            check(open_path, path, strlen(ONE), "a sparse file", MN_E_FORMAT,
                  "bytes of data, but its tensors account for 4");
    }
}

static void no_files(void) {
    char path[4096];
    begin(38);
    check(open_path, scratch_path("absent"), 0, "no file", MN_E_NOT_FOUND, "cannot open");
    check(open_path, "/", 0, "a folder", MN_E_IO, "is a folder, not a regular file");
    check(open_path, "/dev/zero", 0, "a device", MN_E_IO, "is a device, not a regular file");
    check(open_path, "/dev/null", 0, "a device", MN_E_IO, "is a device, not a regular file");
    snprintf(path, sizeof path, "%s", scratch_path("fifo"));
    assert_int_equal(mkfifo(path, 0600), 0);
    check(open_path, path, 0, "a pipe", MN_E_IO, "is a pipe, not a regular file");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", scratch_path("socket"));
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    check(open_path, address.sun_path, 0, "a socket", MN_E_IO, "is a socket, not a regular file");
    close(fd);
    snprintf(path, sizeof path, "%s", scratch_path("loop"));
    assert_int_equal(symlink(path, path), 0);
    check(open_path, path, 0, "links in a circle", MN_E_IO, "cannot open");
    snprintf(path, sizeof path, "%s/below", scratch_file("plain", "x", 1));
    check(open_path, path, 0, "a file below a file", MN_E_NOT_FOUND, "cannot open");
    if (geteuid() != 0) { /* root may read everything */
        snprintf(path, sizeof path, "%s", scratch_file("unreadable", "x", 1));
        assert_int_equal(chmod(path, 0), 0);
        check(open_path, path, 0, "an unreadable file", MN_E_IO, "cannot open");
    }
}

static void put(const char *folder, const char *name, const void *data, size_t n) {
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(file_write_atomic(path, data, n));
}

static void try_index(const char *folder, const char *index, mn_status wanted, const char *part) {
    put(folder, "model.safetensors.index.json", index, strlen(index));
    check(open_folder, folder, strlen(index), index, wanted, part);
}

static void indexes(void) {
    static const uint8_t data[4] = {1, 2, 3, 4};
    static const char *const names[] = {"a", "b", "c", "a"};
    char folder[4096], path[5000];
    begin(40);
    snprintf(folder, sizeof folder, "%s", scratch_empty("folder"));
    check(open_folder, folder, 0, "an empty folder", MN_E_NOT_FOUND, "holds neither");
    for (int i = 0; i < N_SHARDS; i++) {
        tensor shard[2];
        for (int k = 0; k < 2; k++)
            shard[k] = (tensor){
                .name = names[2 * i + k], .type = DTYPE_U8, .n_dims = 1, .shape = {4}, .data = data, .bytes = 4};
        snprintf(path, sizeof path, "%s/s%d.safetensors", folder, i);
        assert_ok(safetensors_write(path, shard, 2, NULL));
    }
#define MAP(text) "{\"weight_map\":{" text "}}"
    static const struct {
        const char *index;
        mn_status status;
        const char *part;
    } cases[] = {
        {MAP("\"a\":\"s0.safetensors\",\"b\":\"s0.safetensors\""), MN_OK, NULL},
        {"{\"metadata\":{\"total_size\":99},\"weight_map\":{\"b\":\"s0.safetensors\"}}", MN_OK,
         NULL}, /* only a comment */
        {MAP("\"a\":\"s9.safetensors\""), MN_E_NOT_FOUND, "no such file"},
        {MAP("\"z\":\"s0.safetensors\""), MN_E_FORMAT, "no tensor 'z'"},
        {MAP("\"c\":\"s0.safetensors\""), MN_E_FORMAT, "no tensor 'c'"},
        {MAP("\"b\":\"s0.safetensors\",\"c\":\"s1.safetensors\""), MN_E_FORMAT, "tensor 'a' appears twice"},
        {MAP("\"a\":\"s0.safetensors\",\"a\":\"s1.safetensors\""), MN_E_FORMAT, "the key 'a' appears twice"},
        {MAP("\"a\":\"../s0.safetensors\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"./s0.safetensors\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"/etc/passwd\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"folder/s0.safetensors\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"..\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\".hidden\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":\"s0.safetensors\\u0000.txt\""), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":7"), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":null"), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"a\":[\"s0.safetensors\"]"), MN_E_FORMAT, "the name of a file in the same folder"},
        {MAP("\"\":\"s0.safetensors\""), MN_E_FORMAT, "allowed: 1 to 4096"},
        {MAP("\"a\\n\":\"s0.safetensors\""), MN_E_FORMAT, "control character"},
        {MAP(""), MN_E_FORMAT, "'weight_map' must be an object"},
        {"{\"weight_map\":[]}", MN_E_FORMAT, "'weight_map' must be an object"},
        {"{\"weight_map\":\"s0.safetensors\"}", MN_E_FORMAT, "'weight_map' must be an object"},
        {"{}", MN_E_FORMAT, "'weight_map' must be an object"},
        {"[]", MN_E_FORMAT, "'weight_map' must be an object"},
        {"", MN_E_FORMAT, "the text ends"},
        {"{", MN_E_FORMAT, "line 1, column 2"},
        {"{\"weight_map\":{\"a\":\"s0.safetensors\"}", MN_E_FORMAT, "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_index(folder, cases[i].index, cases[i].status, cases[i].part);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    assert_int_equal(truncate(path, ((off_t)1 << 26) + 1), 0);
    check(open_folder, folder, (size_t)1 << 26, "an index above its limit", MN_E_IO, "larger than the 67108864 bytes");
    put(folder, "s1.safetensors", data, sizeof data);
    try_index(folder, MAP("\"a\":\"s0.safetensors\",\"c\":\"s1.safetensors\""), MN_E_FORMAT,
              "s1.safetensors: 4 bytes are no");
    put(folder, "model.safetensors", data, sizeof data);
    try_index(folder, cases[0].index, MN_E_FORMAT, "model.safetensors: 4 bytes are no");
}

/* ---- all of them ---- */

static void every_class_is_refused(void **state) {
    (void)state;
    lengths();
    text_around_the_header();
    keys_and_names();
    no_json();
    offsets();
    shapes();
    metadata();
    large_files();
    no_files();
    indexes();
    int n_classes = 0;
    for (int class = 1; class <= N_CLASSES; class ++) {
        if (tally.files[class] == 0) print_error("class %d has no file\n", class);
        n_classes += tally.files[class] > 0;
    }
    print_message(
        "%d malformed files of %d classes, %d legal ones; at most %.1f ms (%s); headers of 1 MB and more: at most %.1f "
        "times their size (%s)\n",
        tally.n_files, n_classes, tally.n_legal, tally.slowest, tally.slowest_name, tally.most_memory,
        tally.largest_name);
    assert_int_equal(n_classes, N_CLASSES);
    assert_true(tally.n_files >= LEAST_FILES);
    assert_true(tally.n_legal >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_class_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
