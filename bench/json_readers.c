/* Processor time and memory of the JSON reader of base/json.h and of json-c for a file, and the result of each for
 * texts that a strict reader refuses. Figures and conclusion: docs/decisions/json.md.
 *
 *   gcc -O2 -D_GNU_SOURCE -Isrc -Iinclude bench/json_readers.c \
 *       src/base/{json,mem,file,sort,status}.c $(pkg-config --cflags --libs json-c) -lm -o json_readers
 *   ./json_readers ours|strict|json-c FILE [RUNS]   median and minimum time, peak memory above the text
 *   ./json_readers make FILE    writes a tokenizer of 256,000 pieces and 500,000 merges, 37 MB
 *   ./json_readers texts        accepted or refused, one line per text
 *
 * One reader per process, because peak memory is that of a process.
 * SPDX-License-Identifier: Apache-2.0 */
#define json_bool json_c_bool /* both libraries define this name */
#include <json-c/json.h>
#undef json_bool
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/file.h"
#include "base/json.h"

enum { MAX_RUNS = 1000 };

static double cpu_ms(void) {
    return 1e3 * seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

/* Sets the peak back to what is resident now; needs Linux 4.0. */
static void reset_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return;
    fputs("5", file);
    fclose(file);
}

static long peak_kib(void) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    }
    if (file) fclose(file);
    return kib;
}

static bool parse_ours(const char *text, size_t n, json_mode mode) {
    json_doc *doc = NULL;
    bool accepted = json_parse(&doc, text, n, mode, "text") == MN_OK;
    json_close(&doc);
    return accepted;
}

/* The tokener with both of its strict flags; the whole text must be used up. */
static bool parse_json_c(const char *text, size_t n) {
    json_tokener *tokener = json_tokener_new_ex(256);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    json_object *root = json_tokener_parse_ex(tokener, text, (int)n);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    if (error == json_tokener_continue) { /* a top-level number ends only with the text */
        root = json_tokener_parse_ex(tokener, "", 1);
        error = json_tokener_get_error(tokener);
    }
    json_object_put(root);
    json_tokener_free(tokener);
    return error == json_tokener_success;
}

static bool parse(const char *reader, const char *text, size_t n) {
    if (strcmp(reader, "json-c") == 0) return parse_json_c(text, n);
    return parse_ours(text, n, strcmp(reader, "strict") == 0 ? JSON_STRICT : JSON_PYTHON);
}

static int order_of_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int time_file(const char *reader, const char *path, int runs) {
    static double ms[MAX_RUNS];
    bytes text = {0};
    if (file_read(&text, path, (size_t)1 << 30) != MN_OK) {
        fprintf(stderr, "%s\n", mn_last_error());
        return 1;
    }
    reset_peak();
    long before = peak_kib();
    for (int i = 0; i < runs; i++) {
        double start = cpu_ms();
        if (!parse(reader, text.data, text.n)) {
            fprintf(stderr, "%s refuses %s: %s\n", reader, path, mn_last_error());
            return 1;
        }
        ms[i] = cpu_ms() - start;
    }
    long grown = peak_kib() - before;
    qsort(ms, (size_t)runs, sizeof *ms, order_of_doubles);
    printf("%-7s %9zu bytes  median %7.2f ms  least %7.2f ms  %4.0f MB/s  peak +%6.1f MiB (%.1f x the text)\n", reader,
           text.n, ms[runs / 2], ms[0], (double)text.n * 1e-3 / ms[runs / 2], (double)grown / 1024.0,
           (double)grown * 1024.0 / (double)text.n);
    bytes_clear(&text);
    return 0;
}

/* Piece i: its number in letters, a few of which need an escape or are not ASCII. */
static void put_piece(bytes *out, uint32_t i) {
    static const char *const letters[] = {"a", "e", "\xC4\xA0", "n",      "t", "\\\"", "o", "\xE4\xB8\xAD",
                                          "s", "r", "i",        "\\u010a"};
    bytes_append_text(out, "\"p");
    for (; i; i /= 12) bytes_append_text(out, letters[i % 12]);
    bytes_append_text(out, "\"");
}

static int make_file(const char *path) {
    enum { PIECES = 256000, MERGES = 500000 };
    bytes out = {0};
    bytes_append_text(&out, "{\n  \"version\": \"1.0\",\n  \"model\": {\n    \"vocab\": {");
    for (uint32_t i = 0; i < PIECES; i++) {
        bytes_append_text(&out, i ? ",\n      " : "\n      ");
        put_piece(&out, i);
        bytes_printf(&out, ": %u", i);
    }
    bytes_append_text(&out, "\n    },\n    \"merges\": [");
    for (uint32_t i = 0; i < MERGES; i++) {
        bytes_append_text(&out, i ? ",\n      [\n        " : "\n      [\n        ");
        put_piece(&out, i * 7 % PIECES);
        bytes_append_text(&out, ",\n        ");
        put_piece(&out, i * 11 % PIECES);
        bytes_append_text(&out, "\n      ]");
    }
    bytes_append_text(&out, "\n    ]\n  }\n}\n");
    mn_status status = bytes_status(&out);
    if (status == MN_OK) status = file_write_atomic(path, out.data, out.n);
    bytes_clear(&out);
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    return status != MN_OK;
}

static void try_texts(void) {
    static const struct {
        const char *what, *text;
    } texts[] = {
        {"duplicate key", "{\"w\":1,\"w\":2}"},
        {"duplicate key through an escape", "{\"w\":1,\"\\u0077\":2}"},
        {"invalid UTF-8 in a string", "[\"\xC3\x28\"]"},
        {"overlong UTF-8", "[\"\xC0\xAF\"]"},
        {"surrogate as UTF-8", "[\"\xED\xA0\x80\"]"},
        {"invalid UTF-8 in a key", "{\"\xFF\":1}"},
        {"lone surrogate escape", "[\"\\ud800\"]"},
        {"control character in a string", "[\"a\nb\"]"},
        {"NaN", "[NaN]"},
        {"Infinity", "[-Infinity]"},
        {"number beyond 64 bits, one digit too many", "[18446744073709551616]"},
        {"2^63 (read exactly)", "[9223372036854775808]"},
        {"leading zero", "[01]"},
        {"trailing comma", "[1,]"},
        {"comment", "[1/*x*/]"},
        {"single quotes", "['a']"},
        {"text after the end", "[1] x"},
        {"literal in capitals", "[TRUE]"},
        {"byte order mark", "\xEF\xBB\xBF[1]"},
    };
    printf("%-44s %-8s %-8s %-8s\n", "text", "strict", "python", "json-c");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = texts[i].text;
        size_t n = strlen(text);
        printf("%-44s %-8s %-8s %-8s\n", texts[i].what, parse_ours(text, n, JSON_STRICT) ? "accepts" : "refuses",
               parse_ours(text, n, JSON_PYTHON) ? "accepts" : "refuses", parse_json_c(text, n) ? "accepts" : "refuses");
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "texts") == 0) {
        try_texts();
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "make") == 0) return make_file(argv[2]);
    int runs = argc > 3 ? atoi(argv[3]) : 15;
    if (argc < 3 || runs < 1 || runs > MAX_RUNS) {
        fprintf(
            stderr,
            "usage: json_readers ours|strict|json-c FILE [RUNS]\n       json_readers make FILE\n       json_readers texts\n");
        return 2;
    }
    return time_file(argv[1], argv[2], runs);
}
