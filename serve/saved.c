/* /v1/caches/saved: cached prefixes as files with names, which stay until they are deleted. They lie in the folder of
 * caches, those of each API key in a folder of their own, as mn_session_save writes them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "caches.h"
#include "request/fields.h"

static const char suffix[] = ".safetensors";

enum { MOST_SAVED = 1000, MOST_PAGE = 128 /* tokens of a page */ };

/* ---- names and folders ---- */

/* A name is no path: it cannot leave its folder, and means nothing to a shell. */
static bool is_name(const char *name) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(name);
    return n > 0 && n < MOST_PARAMETER && name[0] != '.' && name[0] != '-' && strspn(name, allowed) == n;
}

static mn_status needs_folder(const server *s, refusal *why) {
    if (s->options.cache_dir) return MN_OK;
    *why = (refusal){501, "not_supported", NULL};
    MN_FAIL(MN_E_UNSUPPORTED, "the server has no folder of caches; it is started with --cache-dir");
}

static mn_status folder_of(bytes *out, const server *s, const job *j) {
    out->n = 0;
    bytes_printf(out, "%s/saved%s%s", s->options.cache_dir, j->owner ? "/" : "", j->owner ? j->owner : "");
    bytes_text(out);
    return bytes_status(out);
}

static mn_status path_of(bytes *out, const server *s, const job *j) {
    MN_TRY(folder_of(out, s, j));
    bytes_printf(out, "/%s%s", j->name, suffix);
    bytes_text(out);
    return bytes_status(out);
}

static mn_status not_saved(const job *j, refusal *why) {
    *why = (refusal){404, "saved_cache_not_found", NULL};
    MN_FAIL(MN_E_NOT_FOUND, "no cache is saved as '%s'", j->name);
}

/* The message of a failure without the path, which is no business of clients. */
static mn_status without_path(mn_status status, const job *j, const bytes *path) {
    const char *message = mn_last_error();
    if (strncmp(message, path->data, path->n) == 0 && strncmp(message + path->n, ": ", 2) == 0) message += path->n + 2;
    char text[1024];
    snprintf(text, sizeof text, "%s", message);
    return status_fail(status, "the saved cache '%s': %s", j->name, text);
}

/* ---- what there is ---- */

typedef struct saved_file {
    const char *name; /* [n_name] without the suffix */
    size_t n_name, n_bytes;
    int64_t modified;
} saved_file;

/* Visits the saved files of a folder, and of the folders in it if `deep`. A folder that is not there has none. */
static void visit_files(const char *folder, bool deep, void (*visit)(void *user, const saved_file *f), void *user) {
    DIR *dir = file_open_folder(folder);
    bytes path = {0};
    struct stat info;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const size_t n = strlen(entry->d_name), n_suffix = sizeof suffix - 1;
        if (entry->d_name[0] == '.' || path_join(&path, folder, entry->d_name) != MN_OK) continue;
        if (lstat(path.data, &info) != 0) continue;
        if (deep && S_ISDIR(info.st_mode)) visit_files(path.data, false, visit, user);
        if (!S_ISREG(info.st_mode) || n <= n_suffix || strcmp(entry->d_name + n - n_suffix, suffix) != 0) continue;
        const saved_file f = {entry->d_name, n - n_suffix, (size_t)info.st_size, (int64_t)info.st_mtim.tv_sec};
        visit(user, &f);
    }
    if (dir) closedir(dir);
    bytes_clear(&path);
}

typedef struct file_list {
    bytes *out;
    size_t n, n_bytes;
} file_list;

static void count_file(void *user, const saved_file *f) {
    file_list *list = user;
    list->n++;
    list->n_bytes += f->n_bytes;
}

static void put_file(void *user, const saved_file *f) {
    file_list *list = user;
    if (list->n == MOST_SAVED) return;
    bytes_append_text(list->out, list->n++ ? ",{\"name\":" : "{\"name\":");
    json_put_string(list->out, f->name, f->n_name);
    bytes_printf(list->out, ",\"object\":\"saved_cache\",\"bytes\":%zu,\"created\":%lld}", f->n_bytes,
                 (long long)f->modified);
}

static mn_status list_files(bytes *out, server *s, job *j, refusal *why) {
    bytes folder = {0};
    file_list list = {.out = out};
    (void)why;
    mn_status status = s->options.cache_dir ? folder_of(&folder, s, j) : MN_OK;
    bytes_append_text(out, "{\"object\":\"list\",\"data\":[");
    if (status == MN_OK && folder.n) visit_files(folder.data, false, put_file, &list);
    bytes_append_text(out, "]}");
    bytes_clear(&folder);
    return status == MN_OK ? bytes_status(out) : status;
}

/* ---- saving ---- */

/* A key's files have as much room as its prefixes in memory, and all files as much as those that are written by
 * themselves. A file of the same name is replaced. */
static mn_status check_room(const server *s, const char *folder, const char *path, size_t n_new, refusal *why) {
    bytes all = {0};
    file_list own = {0}, every = {0};
    struct stat old = {0};
    const size_t quota = s->options.cache_quota, limit = s->options.cache_dir_limit;
    mn_status status = path_join(&all, s->options.cache_dir, "saved");
    if (status == MN_OK) visit_files(all.data, true, count_file, &every);
    bytes_clear(&all);
    MN_TRY(status);
    visit_files(folder, false, count_file, &own);
    const bool replaces = stat(path, &old) == 0;
    const size_t n_own = own.n_bytes + n_new - (size_t)old.st_size, n_all = every.n_bytes + n_new - (size_t)old.st_size;
    *why = (refusal){429, "save_limit", NULL};
    if (own.n >= MOST_SAVED && !replaces) MN_FAIL(MN_E_FULL, "%zu caches are saved, allowed: %d", own.n, MOST_SAVED);
    if (quota > 0 && n_own > quota)
        MN_FAIL(MN_E_FULL, "saved caches would have %zu bytes, allowed: the quota of a key, %zu", n_own, quota);
    if (limit > 0 && n_all > limit)
        MN_FAIL(MN_E_FULL, "saved caches would have %zu bytes, allowed: the limit of the folder, %zu", n_all, limit);
    *why = (refusal){0};
    return MN_OK;
}

static mn_status take_prefix(bytes *out, server *s, job *j, refusal *why) {
    mn_prefix_info info;
    (void)out;
    MN_TRY(needs_folder(s, why));
    MN_TRY(caches_find(&info, s, j, why));
    return caches_refuse(mn_engine_prefix_session(scheduler_engine(s->scheduler), info.id, &j->session), why);
}

static mn_status write_file(bytes *out, server *s, job *j, refusal *why) {
    bytes folder = {0}, path = {0};
    mn_cache_info info = {.size = sizeof info};
    struct stat written = {0};
    mn_status status = mn_session_cache(j->session, &info);
    if (status == MN_OK) status = folder_of(&folder, s, j);
    if (status == MN_OK) status = path_of(&path, s, j);
    if (status == MN_OK) status = file_make_folders(folder.data, FILE_PRIVATE);
    if (status == MN_OK && !file_is_own(folder.data))
        status =
            status_fail(MN_E_REFUSED, "the folder of saved caches belongs to another user, or others may write it");
    /* A file has whole pages. */
    const size_t n_bytes = info.bytes + MOST_PAGE * info.bytes_per_token;
    if (status == MN_OK) status = check_room(s, folder.data, path.data, n_bytes, why);
    if (status == MN_OK) {
        status = mn_session_save(j->session, path.data, false);
        if (status != MN_OK) *why = (refusal){500, "server_error", NULL};
        if (status != MN_OK) without_path(status, j, &path);
    }
    if (status == MN_OK && stat(path.data, &written) == 0) {
        bytes_append_text(out, "{\"name\":");
        json_put_string(out, j->name, strlen(j->name));
        bytes_printf(out, ",\"object\":\"saved_cache\",\"tokens\":%zu,\"bytes\":%lld}",
                     (size_t)mn_session_length(j->session), (long long)written.st_size);
    }
    bytes_clear(&folder);
    bytes_clear(&path);
    return status == MN_OK ? bytes_status(out) : status;
}

/* ---- loading ---- */

static mn_status find_file(bytes *path, server *s, const job *j, refusal *why) {
    MN_TRY(needs_folder(s, why));
    if (!is_name(j->name)) return not_saved(j, why);
    MN_TRY(path_of(path, s, j));
    return file_is_own(path->data) && file_exists(path->data) ? MN_OK : not_saved(j, why);
}

/* What is kept makes room for the file, as for one that is read for a request. */
static mn_status make_room(bytes *out, server *s, job *j, refusal *why) {
    bytes path = {0};
    struct stat info;
    (void)out;
    snprintf(j->name, sizeof j->name, "%s", j->parameter);
    mn_status status = find_file(&path, s, j, why);
    if (status == MN_OK && stat(path.data, &info) == 0)
        mn_engine_prefix_room(scheduler_engine(s->scheduler), (size_t)info.st_size);
    bytes_clear(&path);
    return status;
}

static mn_status keep_loaded(bytes *out, server *s, job *j, refusal *why) {
    mn_engine *engine = scheduler_engine(s->scheduler);
    uint64_t id;
    mn_status status = mn_engine_prefix_add(engine, j->session, j->request.salt, j->owner, &id);
    mn_session_close(&j->session);
    if (status == MN_E_FULL) *why = (refusal){429, "cache_quota", NULL};
    if (status == MN_E_REFUSED || status == MN_E_ARG) *why = (refusal){409, "saved_cache_refused", NULL};
    MN_TRY(status);
    if (j->hold.has_pin || j->hold.has_ttl)
        MN_TRY(caches_refuse(mn_engine_prefix_hold(engine, id, j->hold.pin, j->hold.ttl_ms), why));
    return caches_show(out, s, id);
}

static mn_status read_file(bytes *out, server *s, job *j, refusal *why) {
    bytes path = {0};
    mn_cache_options options;
    (void)out;
    mn_cache_options_init(&options, sizeof options);
    if (s->options.cache) options.key_file = s->options.cache->key_file;
    mn_status status = find_file(&path, s, j, why);
    if (status == MN_OK) {
        status = mn_session_load(&j->session, s->model, path.data, &options);
        if (status != MN_OK) without_path(status, j, &path);
        if (status != MN_OK && status != MN_E_NOMEM) *why = (refusal){409, "saved_cache_refused", NULL};
    }
    bytes_clear(&path);
    j->query = keep_loaded;
    return status;
}

/* ---- deleting ---- */

static mn_status delete_file(bytes *out, server *s, job *j, refusal *why) {
    bytes path = {0};
    snprintf(j->name, sizeof j->name, "%s", j->parameter);
    mn_status status = s->options.cache_dir ? find_file(&path, s, j, why) : not_saved(j, why);
    if (status == MN_OK && unlink(path.data) != 0) {
        *why = (refusal){500, "server_error", NULL};
        status = status_fail(MN_E_IO, "the saved cache '%s' cannot be deleted: %s", j->name, strerror(errno));
    }
    bytes_clear(&path);
    MN_TRY(status);
    bytes_append_text(out, "{\"name\":");
    json_put_string(out, j->name, strlen(j->name));
    bytes_append_text(out, ",\"object\":\"saved_cache\",\"deleted\":true}");
    return bytes_status(out);
}

/* ---- jobs ---- */

/* A job for the thread of files alone. */
static mn_status ask_files(job **out, job_function *file_work) {
    *out = job_ask(NULL);
    if (*out) (*out)->file_work = file_work;
    return *out ? MN_OK : MN_E_NOMEM;
}

mn_status saved_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask_files(out, list_files);
}

mn_status delete_saved_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)body, (void)streams, (void)why;
    return ask_files(out, delete_file);
}

mn_status save_cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    const char *name;
    (void)s, (void)streams;
    MN_TRY(field_string(&name, body, "name", why));
    if (!is_name(name)) return field_wrong(&(field){.name = "name"}, json_get(body, "name"), SAVED_NAMES, why);
    MN_TRY(ask_files(out, write_file));
    (*out)->query = take_prefix;
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return MN_OK;
}

mn_status load_cache_job(job **out, server *s, const json *body, bool *streams, refusal *why) {
    (void)s, (void)streams, (void)why;
    MN_TRY(ask_files(out, read_file));
    (*out)->query = make_room;
    caches_read_hold(*out, body);
    return MN_OK;
}
