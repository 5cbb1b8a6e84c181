/* `mneme cache`: saved caches as files. What needs a model is in cache_model.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/distance.h"
#include "base/sort.h"
#include "cache_model.h"
#include "config.h"
#include "describe.h"
#include "kv/archive.h"
#include "output.h"
#include "verbs.h"

/* The subcommands, as a set, to say which flags are for which. */
enum { LS = 1, SHOW = 2, VERIFY = 4, CP = 8, RM = 16, CONVERT = 32, CALIBRATE = 64 };

typedef struct subcommand {
    const char *name;
    unsigned bit;
    int least, most; /* files */
    const char *usage;
    int (*run)(const options *o, const char *const *files, int n);
} subcommand;

/* ---- JSON of members ---- */

static void put_text(bytes *b, const char *text) {
    json_put_string(b, text, strlen(text));
}

/* ,"key":"text" */
static void put_pair(bytes *b, const char *key, const char *text) {
    bytes_append_text(b, ",");
    put_text(b, key);
    bytes_append_text(b, ":");
    put_text(b, text);
}

/* The value of a member as JSON: some hold JSON text, which is shown as what it is. */
static void put_member_value(bytes *b, const char *key, const char *value) {
    static const struct {
        const char *key;
        json_kind kind;
    } known[] = {{ARCHIVE_STRATEGY, JSON_OBJECT}, {ARCHIVE_ROPE, JSON_OBJECT}, {ARCHIVE_TOKENS, JSON_INT}};
    json_doc *doc = NULL;
    bool shown = false;
    for (size_t i = 0; i < sizeof known / sizeof *known && !shown; i++) {
        if (strcmp(key, known[i].key) != 0 ||
            json_parse(&doc, value, strlen(value), JSON_STRICT, key) != MN_OK)
            continue;
        shown = json_root(doc)->kind == known[i].kind;
        if (shown) json_put(b, json_root(doc));
        json_close(&doc);
    }
    if (!shown) put_text(b, value);
}

/* Of JSON text with a member "implementation" that one, else all of it. */
static void put_name(bytes *b, const char *key, const char *value) {
    json_doc *doc = NULL;
    const json *name = NULL;
    if (json_parse(&doc, value, strlen(value), JSON_STRICT, key) == MN_OK)
        name = json_get(json_root(doc), "implementation");
    put_text(b, name && name->kind == JSON_STRING ? name->string : value);
    json_close(&doc);
}

/* A member that may be missing, or the archive itself: null, or nothing for people to see. */
static void put_member(bytes *b, const archive *a, const char *key, bool for_people,
                       void (*put_value)(bytes *b, const char *key, const char *value)) {
    const char *value = a ? archive_member_of(a, key) : NULL;
    if (value) {
        put_value(b, key, value);
    } else {
        bytes_append_text(b, for_people ? "\"\"" : "null");
    }
}

/* Prints an object as it is or for human eyes. Clears b. */
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
        describe_put(&text, json_root(doc), 0);
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
        if (status != MN_OK || !archive_recognise(bytes_text(&path))) continue;
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
    static const struct {
        const char *title, *key;
        void (*put_value)(bytes *b, const char *key, const char *value);
    } columns[] = {{"tokens", ARCHIVE_TOKENS, put_member_value},
                   {"strategy", ARCHIVE_STRATEGY, put_name},
                   {"model", ARCHIVE_MODEL, put_member_value},
                   {"created", ARCHIVE_CREATED, put_member_value}};
    archive *a = NULL;
    struct stat info = {0};
    const char *error = NULL;
    stat(path, &info);
    if (is_unfinished(name)) {
        error = "being saved just now, or left by a killed save";
    } else if (archive_open(&a, path) != MN_OK) {
        error = mn_last_error();
    }
    bytes_append_text(b, "{\"file\":");
    put_text(b, name);
    bytes_printf(b, ",\"bytes\":%lld", (long long)info.st_size);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        bytes_printf(b, ",\"%s\":", columns[i].title);
        put_member(b, a, columns[i].key, for_people, columns[i].put_value);
    }
    bytes_append_text(b, ",\"error\":");
    if (error || for_people) {
        put_text(b, error ? error : "");
    } else {
        bytes_append_text(b, "null");
    }
    bytes_append_text(b, "}");
    archive_close(&a);
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
        say("no saved caches in '%s'", folder);
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

/* for_people: the shape as a text, so that entries are the rows of a table. */
static void put_entry(bytes *b, const archive_view *view, bool for_people) {
    char sum[HASH_HEX];
    hash_put(sum, view->sum);
    bytes_append_text(b, "{\"name\":");
    put_text(b, view->name);
    put_pair(b, "type", dtype_table[view->type].name);
    bytes_append_text(b, for_people ? ",\"shape\":\"" : ",\"shape\":[");
    for (int k = 0; k < view->n_dims; k++) {
        bytes_printf(b, "%s%" PRId64, !k ? "" : for_people ? " x " : ",", view->shape[k]);
    }
    bytes_append_text(b, for_people ? "\"" : "]");
    bytes_printf(b, ",\"bytes\":%zu,\"stored_bytes\":%zu,\"compression\":", view->n_bytes,
                 view->stored_bytes);
    bytes_append_text(b, view->compressed ? "\"zstd\"" : for_people ? "\"\"" : "null");
    put_pair(b, "checksum", sum);
    bytes_append_text(b, "}");
}

static void put_archive(bytes *b, const archive *a, const char *path, bool for_people) {
    bytes_append_text(b, "{\"file\":");
    put_text(b, path);
    bytes_printf(b, ",\"bytes\":%zu,\"version\":%d,\"members\":{", archive_file_bytes(a), ARCHIVE_VERSION);
    for (size_t i = 0; i < archive_members(a); i++) {
        archive_member it = archive_member_at(a, i);
        if (i) bytes_append_text(b, ",");
        put_text(b, it.key);
        bytes_append_text(b, ":");
        put_member_value(b, it.key, it.value);
    }
    bytes_append_text(b, "},\"entries\":[");
    for (size_t i = 0; i < archive_entries(a); i++) {
        if (i) bytes_append_text(b, ",");
        put_entry(b, archive_entry_at(a, i), for_people);
    }
    bytes_append_text(b, "]}");
}

static int show_file(const options *o, const char *const *files, int n) {
    (void)n;
    archive *a = NULL;
    mn_status status = archive_open(&a, files[0]);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    bytes b = {0};
    put_archive(&b, a, files[0], !option_on(o, OPT_JSON));
    int code = print_object(o, &b);
    archive_close(&a);
    return code;
}

/* ---- verify ---- */

/* The key of --cache-key-file, or none. */
static mn_status read_key(mac_key *key, const options *o) {
    const char *path = option_text(o, OPT_CACHE_KEY_FILE, NULL);
    *key = (mac_key){.n = 0};
    return path ? mac_key_read(key, path) : MN_OK;
}

static mn_status check_archive(const archive *a, const mac_key *key) {
    MN_TRY(archive_verify(a));
    return key->n > 0 ? archive_authenticate(a, key) : MN_OK;
}

static int verify_file(const options *o, const char *path, const mac_key *key) {
    archive *a = NULL;
    bytes b = {0};
    mn_status status = archive_open(&a, path);
    if (status == MN_OK) status = check_archive(a, key);
    if (status == MN_OK && option_on(o, OPT_JSON)) {
        bytes_append_text(&b, "{\"file\":");
        put_text(&b, path);
        bytes_printf(&b, ",\"valid\":true,\"entries\":%zu,\"bytes\":%zu}\n", archive_entries(a),
                     archive_file_bytes(a));
    } else if (status == MN_OK) {
        bytes_printf(&b, "%s: good, %zu entries, %zu bytes\n", path, archive_entries(a),
                     archive_file_bytes(a));
    }
    archive_close(&a);
    put_bytes(&b);
    return status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
}

/* All of them, whatever is wrong with some. */
static int verify_files(const options *o, const char *const *files, int n) {
    int worst = EXIT_DONE;
    mac_key key;
    mn_status status = read_key(&key, o);
    if (status != MN_OK) return report(o, exit_of(status), "cache_key_file");
    for (int i = 0; i < n; i++) {
        int code = verify_file(o, files[i], &key);
        if (code > worst) worst = code;
    }
    mac_key_wipe(&key);
    return worst;
}

/* ---- cp ---- */

/* The same bytes, verified. */
static mn_status copy_as_it_is(const char *from, const char *to, const mac_key *key) {
    file_map map;
    archive *a = NULL;
    MN_TRY(file_map_open(&map, from));
    mn_status status = archive_open_memory(&a, map.data, map.n, from);
    if (status == MN_OK) status = check_archive(a, key);
    if (status == MN_OK) status = file_write_atomic(to, map.data, map.n);
    archive_close(&a);
    file_map_close(&map);
    return status;
}

/* buffers: [entries] of the archive, filled with what must be freed. */
static mn_status write_again(const archive *a, const char *to, bool compress, archive_entry *entries,
                             void **buffers, archive_member *members, const mac_key *key) {
    for (size_t i = 0; i < archive_members(a); i++) members[i] = archive_member_at(a, i);
    for (size_t i = 0; i < archive_entries(a); i++) {
        const archive_view *view = archive_entry_at(a, i);
        const uint8_t *data = NULL;
        buffers[i] = view->compressed ? mem_alloc_raw(view->n_bytes, 1) : NULL;
        if (view->compressed && !buffers[i]) return MN_E_NOMEM;
        MN_TRY(archive_bytes(a, view, buffers[i], &data));
        entries[i] = (archive_entry){.name = view->name,
                                     .type = view->type,
                                     .n_dims = view->n_dims,
                                     .data = data,
                                     .n_bytes = view->n_bytes,
                                     .compress = compress};
        memcpy(entries[i].shape, view->shape, sizeof view->shape);
    }
    return archive_write_keyed(to, entries, archive_entries(a), members, archive_members(a), key);
}

/* Another file, with a keyed checksum of its own where there is a key. */
static mn_status copy_again(const char *from, const char *to, bool compress, const mac_key *key) {
    archive *a = NULL;
    MN_TRY(archive_open(&a, from));
    mn_status status = key->n > 0 ? archive_authenticate(a, key) : MN_OK;
    size_t n = archive_entries(a);
    archive_entry *entries = mem_alloc(n, sizeof *entries);
    void **buffers = mem_alloc(n, sizeof *buffers);
    archive_member *members = mem_alloc(archive_members(a), sizeof *members);
    if (!entries || !buffers || !members) status = MN_E_NOMEM;
    if (status == MN_OK) status = write_again(a, to, compress, entries, buffers, members, key);
    for (size_t i = 0; buffers && i < n; i++) mem_free(buffers[i]);
    mem_free(buffers);
    mem_free(entries);
    mem_free(members);
    archive_close(&a);
    return status;
}

static void tell_copy(const options *o, const char *from, const char *to) {
    struct stat before = {0}, after = {0};
    bytes b = {0};
    stat(from, &before);
    stat(to, &after);
    if (option_on(o, OPT_VERBOSE)) {
        say("%s (%lld bytes) copied to %s (%lld bytes)", from, (long long)before.st_size, to,
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
    bytes inside = {0};
    mac_key key;
    if (option_on(o, OPT_ZSTD) && option_on(o, OPT_PLAIN)) {
        status_fail(MN_E_ARG, "--zstd and --plain contradict each other");
        return report(o, EXIT_USAGE, "zstd");
    }
    mn_status status = read_key(&key, o);
    if (status == MN_OK && file_is_directory(to)) {
        status = path_join(&inside, to, slash ? slash + 1 : from);
        to = bytes_text(&inside);
    }
    if (status == MN_OK && (option_on(o, OPT_ZSTD) || option_on(o, OPT_PLAIN))) {
        status = copy_again(from, to, option_on(o, OPT_ZSTD), &key);
    } else if (status == MN_OK) {
        status = copy_as_it_is(from, to, &key);
    }
    mac_key_wipe(&key);
    if (status == MN_OK) tell_copy(o, from, to);
    int code = status == MN_OK ? EXIT_DONE : report(o, exit_of(status), NULL);
    bytes_clear(&inside);
    return code;
}

/* ---- rm ---- */

static mn_status check_removable(const char *path) {
    if (!file_exists(path)) MN_FAIL(MN_E_NOT_FOUND, "'%s' is no file; nothing was removed", path);
    if (!archive_recognise(path)) MN_FAIL(MN_E_REFUSED, "'%s' is no saved cache; nothing was removed", path);
    return MN_OK;
}

/* Damaged ones too. */
static int remove_files(const options *o, const char *const *files, int n) {
    mn_status status = MN_OK;
    for (int i = 0; i < n && status == MN_OK; i++) status = check_removable(files[i]);
    for (int i = 0; i < n && status == MN_OK; i++) {
        if (unlink(files[i]) != 0)
            status = status_fail(MN_E_IO, "cannot remove '%s': %s", files[i], strerror(errno));
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

/* ---- the verb ---- */

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

/* Without a name, or with one that is not there. */
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
        status_fail(MN_E_ARG, "say what to do with saved caches: %s; `mneme cache --help` explains",
                    bytes_text(&all));
    }
    bytes_clear(&all);
    return report(o, EXIT_USAGE, NULL);
}

/* Flags of some subcommands say nothing to the others. */
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

int cache_verb(options *o) {
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL);
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
