/* `mneme cache`: saved caches as files. Subcommands that need a model are in cache_model.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/distance.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sort.h"
#include "cache/cache_model.h"
#include "config.h"
#include "description_text.h"
#include "output.h"
#include "progress.h"
#include "commands.h"

/* The subcommands, as a set, for which a flag is allowed. */
enum { LS = 1, SHOW = 2, VERIFY = 4, CP = 8, RM = 16, CONVERT = 32, CALIBRATE = 64 };

typedef struct subcommand {
    const char *name;
    unsigned bit;
    int least, most; /* files */
    const char *usage;
    int (*run)(const options *o, const char *const *files, int n);
} subcommand;

/* ---- JSON ---- */

static void put_text(bytes *b, const char *text) {
    json_put_string(b, text, strlen(text));
}

/* The description of a saved cache; closed by json_close. */
static mn_status describe_file(json_doc **doc, const char *path) {
    char *text = NULL;
    MN_TRY(mn_cache_file_describe(path, &text));
    mn_status status = json_parse(doc, text, strlen(text), JSON_STRICT, path);
    mn_free(text);
    return status;
}

/* A member; of an object its "implementation". A missing one: null, or empty for people. */
static void put_member(bytes *b, const json *members, const char *key, bool for_people) {
    const json *value = members ? json_get(members, key) : NULL;
    const json *name = value && value->kind == JSON_OBJECT ? json_get(value, "implementation") : NULL;
    if (value) {
        json_put(b, name ? name : value);
    } else {
        bytes_append_text(b, for_people ? "\"\"" : "null");
    }
}

/* Prints an object as JSON or as text for people. Clears b. */
static int print_object(const options *o, bytes *b) {
    json_doc *doc = NULL;
    bytes text = {0};
    mn_status status = bytes_status(b);
    if (status == MN_OK && option_on(o, OPT_JSON)) {
        bytes_append_text(b, "\n");
        put_bytes(b);
        return EXIT_DONE;
    }
    if (status == MN_OK) status = json_parse(&doc, b->data, b->n, JSON_STRICT, "the description");
    if (status == MN_OK) {
        description_text_put(&text, json_root(doc), 0);
        put_bytes(&text);
    }
    json_close(&doc);
    bytes_clear(b);
    return status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
}

/* ---- ls ---- */

typedef struct name_list {
    char **names; /* owned, as each of them */
    size_t n, capacity;
} name_list;

static void clear_names(name_list *list) {
    for (size_t i = 0; i < list->n; i++) mem_free(list->names[i]);
    mem_free(list->names);
}

static int order_of_text(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Names of the files in a folder that begin as saved caches do, sorted. */
static mn_status read_names(name_list *list, const char *folder) {
    mn_status status = MN_OK;
    bytes path = {0};
    DIR *dir = file_open_folder(folder);
    if (!dir) {
        int code = errno;
        MN_FAIL(code == ENOENT ? MN_E_NOT_FOUND : MN_E_IO, "cannot list '%s': %s", folder, strerror(code));
    }
    for (struct dirent *entry; status == MN_OK && (entry = readdir(dir));) {
        status = path_join(&path, folder, entry->d_name);
        if (status != MN_OK || !mn_cache_file_is(bytes_text(&path))) continue;
        status = mem_grow(&list->names, &list->capacity, list->n + 1, sizeof *list->names);
        char *copy = status == MN_OK ? mem_copy_text(entry->d_name, strlen(entry->d_name)) : NULL;
        if (copy) {
            list->names[list->n++] = copy;
        } else {
            status = MN_E_NOMEM;
        }
    }
    closedir(dir);
    bytes_clear(&path);
    return status == MN_OK ? sort_pointers((const void **)list->names, list->n, order_of_text) : status;
}

static bool is_unfinished(const char *name) {
    size_t n = strlen(name), suffix = strlen(FILE_PART_SUFFIX);
    return n > suffix && strcmp(name + n - suffix, FILE_PART_SUFFIX) == 0;
}

/* One row; a file that is refused has the reason in "error". */
static void put_row(bytes *b, const char *path, const char *name, bool for_people) {
    static const char *const columns[] = {"tokens", "strategy", "model", "created"};
    json_doc *doc = NULL;
    struct stat info = {0};
    const char *error = NULL;
    stat(path, &info);
    if (is_unfinished(name)) {
        error = "being saved just now, or left by a killed save";
    } else if (describe_file(&doc, path) != MN_OK) {
        error = mn_last_error();
    }
    const json *members = doc ? json_get(json_root(doc), "members") : NULL;
    bytes_append_text(b, "{\"file\":");
    put_text(b, name);
    bytes_printf(b, ",\"bytes\":%lld", (long long)info.st_size);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        bytes_printf(b, ",\"%s\":", columns[i]);
        put_member(b, members, columns[i], for_people);
    }
    bytes_append_text(b, ",\"error\":");
    if (error || for_people) {
        put_text(b, error ? error : "");
    } else {
        bytes_append_text(b, "null");
    }
    bytes_append_text(b, "}");
    json_close(&doc);
}

static int list_folder(const options *o, const char *const *files, int n) {
    const char *folder = n ? files[0] : ".";
    name_list list = {0};
    bytes b = {0}, path = {0};
    mn_status status = read_names(&list, folder);
    bytes_append_text(&b, "{\"folder\":");
    put_text(&b, folder);
    bytes_append_text(&b, ",\"caches\":[");
    for (size_t i = 0; i < list.n && status == MN_OK; i++) {
        status = path_join(&path, folder, list.names[i]);
        if (i) bytes_append_text(&b, ",");
        if (status == MN_OK) put_row(&b, bytes_text(&path), list.names[i], !option_on(o, OPT_JSON));
    }
    bytes_append_text(&b, "]}");
    int code;
    if (status != MN_OK) {
        code = report(o, exit_of(status), NULL);
    } else if (list.n == 0 && !option_on(o, OPT_JSON)) {
        print_message("no saved caches in '%s'", folder);
        code = EXIT_DONE;
    } else {
        code = print_object(o, &b);
    }
    bytes_clear(&path);
    bytes_clear(&b);
    clear_names(&list);
    return code;
}

/* ---- show ---- */

/* For people: the shape as a text, so that entries are the rows of a table. */
static void put_entry(bytes *b, const json *entry) {
    for (size_t i = 0; i < entry->n; i++) {
        const json *value = &entry->members[i].value;
        bytes_append_text(b, i ? "," : "{");
        put_text(b, entry->members[i].key);
        bytes_append_text(b, ":");
        if (value->kind == JSON_ARRAY) {
            bytes_append_text(b, "\"");
            for (size_t k = 0; k < value->n; k++)
                bytes_printf(b, "%s%lld", k ? " x " : "", (long long)value->items[k].integer);
            bytes_append_text(b, "\"");
        } else if (value->kind == JSON_NULL) {
            bytes_append_text(b, "\"\"");
        } else {
            json_put(b, value);
        }
    }
    bytes_append_text(b, "}");
}

static void put_entries(bytes *b, const json *entries) {
    for (size_t i = 0; i < entries->n; i++) {
        bytes_append_text(b, i ? "," : "[");
        put_entry(b, &entries->items[i]);
    }
    bytes_append_text(b, entries->n ? "]" : "[]");
}

static int show_file(const options *o, const char *const *files, int n) {
    (void)n;
    json_doc *doc = NULL;
    mn_status status = describe_file(&doc, files[0]);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    bytes b = {0};
    bytes_append_text(&b, "{\"file\":");
    put_text(&b, files[0]);
    for (size_t i = 0; i < json_root(doc)->n; i++) {
        const json_member *member = &json_root(doc)->members[i];
        bytes_append_text(&b, ",");
        put_text(&b, member->key);
        bytes_append_text(&b, ":");
        if (member->value.kind == JSON_ARRAY && !option_on(o, OPT_JSON)) {
            put_entries(&b, &member->value);
        } else {
            json_put(&b, &member->value);
        }
    }
    bytes_append_text(&b, "}");
    json_close(&doc);
    return print_object(o, &b);
}

/* ---- verify ---- */

static int verify_file(const options *o, const char *path) {
    json_doc *doc = NULL;
    bytes b = {0};
    progress_line("checking %s", path);
    mn_status status = mn_cache_file_verify(path, option_text(o, OPT_CACHE_KEY_FILE, NULL));
    progress_clear();
    if (status == MN_OK) status = describe_file(&doc, path);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    size_t entries = json_get(json_root(doc), "entries")->n;
    long long n_bytes = (long long)json_get(json_root(doc), "bytes")->integer;
    if (option_on(o, OPT_JSON)) {
        bytes_append_text(&b, "{\"file\":");
        put_text(&b, path);
        bytes_printf(&b, ",\"valid\":true,\"entries\":%zu,\"bytes\":%lld}\n", entries, n_bytes);
    } else {
        bytes_printf(&b, "%s: good, %zu entries, %lld bytes\n", path, entries, n_bytes);
    }
    json_close(&doc);
    put_bytes(&b);
    return EXIT_DONE;
}

/* Verifies all files, also after one has failed. */
static int verify_files(const options *o, const char *const *files, int n) {
    int worst = EXIT_DONE;
    for (int i = 0; i < n; i++) {
        int code = verify_file(o, files[i]);
        if (code > worst) worst = code;
    }
    return worst;
}

/* ---- cp ---- */

static void report_copy(const options *o, const char *from, const char *to) {
    struct stat before = {0}, after = {0};
    bytes b = {0};
    stat(from, &before);
    stat(to, &after);
    if (option_on(o, OPT_VERBOSE)) {
        print_message("%s (%lld bytes) copied to %s (%lld bytes)", from, (long long)before.st_size, to,
                      (long long)after.st_size);
    }
    if (!option_on(o, OPT_JSON)) return;
    bytes_append_text(&b, "{\"file\":");
    put_text(&b, to);
    bytes_printf(&b, ",\"bytes\":%lld}\n", (long long)after.st_size);
    put_bytes(&b);
}

static int copy_file(const options *o, const char *const *files, int n) {
    (void)n;
    const char *from = files[0], *to = files[1], *slash = strrchr(from, '/');
    const char *compression = option_on(o, OPT_ZSTD) ? "zstd" : option_on(o, OPT_PLAIN) ? "none" : NULL;
    bytes inside = {0};
    if (option_on(o, OPT_ZSTD) && option_on(o, OPT_PLAIN)) {
        status_fail(MN_E_ARG, "--zstd and --plain contradict each other");
        return report(o, EXIT_USAGE, "zstd");
    }
    mn_status status = MN_OK;
    if (file_is_directory(to)) {
        status = path_join(&inside, to, slash ? slash + 1 : from);
        to = bytes_text(&inside);
    }
    if (status == MN_OK) status = mn_cache_file_copy(from, to, compression, option_text(o, OPT_CACHE_KEY_FILE, NULL));
    if (status == MN_OK) report_copy(o, from, to);
    int code = status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
    bytes_clear(&inside);
    return code;
}

/* ---- rm ---- */

static mn_status check_removable(const char *path) {
    if (!file_exists(path)) MN_FAIL(MN_E_NOT_FOUND, "'%s' is not a file; nothing was removed", path);
    if (!mn_cache_file_is(path)) MN_FAIL(MN_E_REFUSED, "'%s' is not a saved cache; nothing was removed", path);
    return MN_OK;
}

/* Damaged ones too. */
static int remove_files(const options *o, const char *const *files, int n) {
    mn_status status = MN_OK;
    for (int i = 0; i < n && status == MN_OK; i++) status = check_removable(files[i]);
    for (int i = 0; i < n && status == MN_OK; i++) {
        if (unlink(files[i]) != 0) status = status_fail(MN_E_IO, "cannot remove '%s': %s", files[i], strerror(errno));
    }
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    if (!option_on(o, OPT_JSON)) return EXIT_DONE;
    bytes b = {0};
    bytes_append_text(&b, "{\"removed\":[");
    for (int i = 0; i < n; i++) {
        if (i) bytes_append_text(&b, ",");
        put_text(&b, files[i]);
    }
    bytes_append_text(&b, "]}\n");
    put_bytes(&b);
    return EXIT_DONE;
}

/* ---- the command ---- */

enum { ANY_NUMBER = 1 << 30 };

static const subcommand subcommands[] = {
    {"ls", LS, 0, 1, "ls [FOLDER]", list_folder},
    {"show", SHOW, 1, 1, "show FILE [--json]", show_file},
    {"verify", VERIFY, 1, ANY_NUMBER, "verify FILE...", verify_files},
    {"cp", CP, 2, 2, "cp FROM TO [--zstd|--plain]", copy_file},
    {"rm", RM, 1, ANY_NUMBER, "rm FILE...", remove_files},
    {"convert", CONVERT, 2, 2, "convert FROM TO [-m MODEL] [--cache NAME|--legacy]", cache_convert},
    {"calibrate", CALIBRATE, 0, 1, "calibrate [MODEL] -f TEXT [--out F]", cache_calibrate},
};

enum { N_SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

/* Without a name, or with an unknown one. */
static int unknown_subcommand(const options *o, const char *name) {
    const char *names[N_SUBCOMMANDS + 1] = {NULL};
    bytes all = {0};
    for (int i = 0; i < N_SUBCOMMANDS; i++) {
        names[i] = subcommands[i].name;
        bytes_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = name ? text_nearest(name, names) : NULL;
    if (near) {
        status_fail(MN_E_ARG, "unknown subcommand '%.60s' of cache; did you mean %s?", name, near);
    } else if (name) {
        status_fail(MN_E_ARG, "unknown subcommand '%.60s' of cache; there are %s", name, bytes_text(&all));
    } else {
        status_fail(MN_E_ARG, "missing subcommand; allowed: %s; `mneme cache --help` explains", bytes_text(&all));
    }
    bytes_clear(&all);
    return report(o, EXIT_USAGE, NULL);
}

/* Flags of some subcommands have no meaning for the others. */
static mn_status check_flags(const options *o, const subcommand *it) {
    static const struct {
        option_id id;
        unsigned in;
    } flags[] = {
        {OPT_MODEL, CONVERT | CALIBRATE},
        {OPT_THREADS, CONVERT | CALIBRATE},
        {OPT_PROMPT, CALIBRATE},
        {OPT_FILE, CALIBRATE},
        {OPT_OUT, CALIBRATE},
        {OPT_IDS, CONVERT | CALIBRATE},
        {OPT_IDS_FILE, CONVERT | CALIBRATE},
        {OPT_CACHE, CONVERT},
        {OPT_CACHE_CONFIG, CONVERT},
        {OPT_CACHE_DTYPE, CONVERT},
        {OPT_MAX_CACHE_LEN, CONVERT},
        {OPT_LEGACY, CONVERT},
        {OPT_ROW, CONVERT},
        {OPT_ZSTD, CP | CONVERT},
        {OPT_CALIBRATION, CONVERT},
        {OPT_CACHE_KEY_FILE, VERIFY | CP | CONVERT},
        {OPT_PLAIN, CP},
    };
    char flag[64];
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        option_id id = flags[i].id;
        if (flags[i].in & it->bit || !option_is_set(o, id) || o->set[id].origin != ORIGIN_FLAG) continue;
        bytes names = {0};
        for (int s = 0; s < N_SUBCOMMANDS; s++) {
            if (subcommands[s].bit & flags[i].in)
                bytes_printf(&names, "%s%s", names.n ? " and " : "", subcommands[s].name);
        }
        status_fail(MN_E_ARG, "--%s is for cache %s; usage: mneme cache %s",
                    flag_spelling(flag, sizeof flag, option_table[id].name), bytes_text(&names), it->usage);
        bytes_clear(&names);
        return MN_E_ARG;
    }
    return MN_OK;
}

int command_cache(options *o) {
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    const char *name = o->n_positional ? o->positional[0] : NULL;
    int n = o->n_positional - 1;
    for (int i = 0; name && i < N_SUBCOMMANDS; i++) {
        const subcommand *it = &subcommands[i];
        if (strcmp(name, it->name) != 0) continue;
        if (check_flags(o, it) != MN_OK) return report(o, EXIT_USAGE, NULL);
        if (n >= it->least && n <= it->most) return it->run(o, o->positional + 1, n);
        status_fail(MN_E_ARG, "%d files are given to cache %s; usage: mneme cache %s", n, name, it->usage);
        return report(o, EXIT_USAGE, NULL);
    }
    return unknown_subcommand(o, name);
}
