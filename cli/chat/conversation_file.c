/* A saved conversation is a folder: conversation.json with messages, ids and settings, and the cache file that it
 * names. A new cache gets a new name, then conversation.json is replaced in one step, then the old cache goes: if that
 * is interrupted at any point, what conversation.json names is there and whole.
 * SPDX-License-Identifier: Apache-2.0 */
#include "chat/conversation.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

enum { CONVERSATION_LIMIT = 1 << 28 };

static const char text_name[] = "conversation.json", format[] = "mneme conversation 1";
static const char cache_begin[] = "cache-", cache_end[] = ".safetensors";

/* ---- saving ---- */

mn_status conversation_save_check(const char *path) {
    struct stat info;
    bytes text = {0};
    if (stat(path, &info) != 0) {
        if (errno == ENOENT) return MN_OK;
        MN_FAIL(MN_E_IO, "cannot save the conversation to '%s': %s", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode))
        MN_FAIL(
            MN_E_ARG,
            "cannot save the conversation to '%s': a conversation is a folder, and there is something else; take another name",
            path);
    mn_status status = path_join(&text, path, text_name);
    bool is_ours = status == MN_OK && file_exists(bytes_text(&text)), is_empty = true;
    bytes_clear(&text);
    DIR *folder = status == MN_OK && !is_ours ? file_open_folder(path) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        is_empty = is_empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    if (folder) closedir(folder);
    if (status == MN_OK && !is_ours && !is_empty)
        MN_FAIL(MN_E_ARG,
                "cannot save the conversation to '%s': the folder holds other files and no %s; take another name", path,
                text_name);
    return status;
}

static bool is_cache_name(const char *name) {
    size_t n = strlen(name), a = sizeof cache_begin - 1, b = sizeof cache_end - 1;
    return n > a + b && strncmp(name, cache_begin, a) == 0 && strcmp(name + n - b, cache_end) == 0 &&
           !strchr(name, '/');
}

/* Writes the cache under a name that its content decides; "" when there is none to write. */
static mn_status save_cache(char name[64], const conversation *t, const char *path, bool compress) {
    mn_cache_info info = {.size = sizeof info};
    char sum[HASH_HEX];
    bytes all = {0}, file = {0};
    *name = 0;
    MN_TRY(mn_session_cache(t->session, &info));
    if (mn_session_length(t->session) == 0 || strcmp(info.implementation, "none") == 0) return MN_OK;
    bytes_printf(&all, "%s\n%s\n%d\n", info.implementation, info.dtype, compress);
    bytes_append(&all, mn_session_ids(t->session), (size_t)mn_session_length(t->session) * sizeof(int32_t));
    mn_status status = bytes_status(&all);
    if (status == MN_OK) {
        hash_put(sum, hash_of(all.data, all.n));
        snprintf(name, 64, "%s%.16s%s", cache_begin, sum, cache_end);
        status = path_join(&file, path, name);
    }
    if (status == MN_OK) status = mn_session_save(t->session, bytes_text(&file), compress);
    bytes_clear(&file);
    bytes_clear(&all);
    return status;
}

static void put_conversation(bytes *b, const conversation *t, const char *model, const char *settings,
                             const char *cache) {
    bytes_printf(b, "{\"format\":\"%s\",\n\"model\":", format);
    json_put_string(b, model, strlen(model));
    bytes_append_text(b, ",\n\"messages\":[");
    for (size_t i = 0; i < t->n; i++) {
        const conversation_message *m = &t->messages[i];
        bytes_printf(b, "%s\n{\"role\":\"%s\",\"content\":", i ? "," : "", conversation_role_names[m->role]);
        json_put_string(b, m->text.data, m->text.n);
        bytes_printf(b, ",\"n_ids\":%zu}", m->n_ids);
    }
    bytes_printf(b, "],\n\"settings\":%s,\n\"cache\":", settings);
    if (*cache) {
        json_put_string(b, cache, strlen(cache));
    } else {
        bytes_append_text(b, "null");
    }
    bytes_append_text(b, ",\n\"ids\":[");
    for (size_t i = 0; i < t->n_ids; i++) bytes_printf(b, i ? ",%d" : "%d", (int)t->ids[i]);
    bytes_append_text(b, "]}\n");
}

/* Caches of former saves; what cannot be removed stays, and does no harm. */
static void remove_others(const char *path, const char *cache) {
    DIR *folder = file_open_folder(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (is_cache_name(entry->d_name) && strcmp(entry->d_name, cache) != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder) closedir(folder);
}

mn_status conversation_save(const conversation *t, const char *path, const char *model, const char *settings,
                            bool compress) {
    char cache[64];
    bytes text = {0}, file = {0};
    MN_TRY(conversation_save_check(path));
    MN_TRY(file_make_folders(path, FILE_PRIVATE));
    mn_status status = save_cache(cache, t, path, compress);
    if (status == MN_OK) {
        put_conversation(&text, t, model, settings, cache);
        status = bytes_status(&text);
    }
    if (status == MN_OK) status = path_join(&file, path, text_name);
    if (status == MN_OK) status = file_write_atomic(bytes_text(&file), text.data, text.n);
    if (status == MN_OK) remove_others(path, cache);
    bytes_clear(&file);
    bytes_clear(&text);
    return status;
}

/* ---- loading ---- */

static mn_status read_message(conversation *t, const char *what, const json *object, size_t at) {
    const json *role = json_get(object, "role"), *content = json_get(object, "content");
    int64_t n_ids = 0;
    int found = -1;
    for (int i = 0; i < N_CONVERSATION_ROLES; i++) {
        if (json_is_string(role, conversation_role_names[i])) found = i;
    }
    bool is_fine = found >= 0 && content && content->kind == JSON_STRING && (found != CONVERSATION_SYSTEM || at == 0);
    if (!is_fine)
        MN_FAIL(MN_E_FORMAT, "%s: message %zu has no content, or its role is not system (first), user or assistant",
                what, at);
    MN_TRY(json_int(what, object, "n_ids", 0, INT64_C(1) << 40, &n_ids));
    MN_TRY(status_context(conversation_add(t, (conversation_role)found, content->string, content->n), "%s: message %zu",
                          what, at));
    t->messages[t->n - 1].n_ids = (size_t)n_ids;
    return MN_OK;
}

static mn_status read_ids(conversation *t, const char *what, const json *list, int32_t vocab) {
    bool is_list = list && list->kind == JSON_ARRAY;
    MN_TRY(mem_grow(&t->ids, &t->ids_capacity, is_list ? list->n : 0, sizeof *t->ids));
    for (size_t i = 0; is_list && i < list->n; i++) {
        const json *id = &list->items[i];
        if (id->kind != JSON_INT || id->integer < 0 || id->integer >= vocab)
            MN_FAIL(MN_E_REFUSED, "%s: token %zu is none of this model's", what, i);
        t->ids[t->n_ids++] = (int32_t)id->integer;
    }
    return MN_OK;
}

static mn_status read_text(conversation *t, char **settings, const json_doc *doc) {
    const char *what = json_what(doc);
    const json *root = json_root(doc), *messages = json_get(root, "messages"), *fields = json_get(root, "settings");
    if (!json_is_string(json_get(root, "format"), format) || !messages || messages->kind != JSON_ARRAY ||
        (fields && fields->kind != JSON_OBJECT))
        MN_FAIL(MN_E_FORMAT, "%s is no saved conversation of this program ('%s')", what, format);
    for (size_t i = 0; i < messages->n; i++) MN_TRY(read_message(t, what, &messages->items[i], i));
    bytes text = {0};
    if (fields) json_put(&text, fields);
    *settings = text.failed ? NULL : mem_copy_text(text.n ? text.data : "{}", text.n ? text.n : 2);
    bytes_clear(&text);
    return *settings ? MN_OK : mem_no_memory();
}

/* The cache that the text names, and the ids that it was computed from. */
static mn_status read_cache(conversation *t, const json_doc *doc, mn_model *model, const char *path,
                            const mn_cache_options *cache, bool is_set) {
    const json *root = json_root(doc), *name = json_get(root, "cache");
    const char *what = json_what(doc);
    bytes file = {0};
    mn_model_info info = {.size = sizeof info};
    if (!name || name->kind == JSON_NULL) {
        for (size_t i = 0; i < t->n; i++) t->messages[i].n_ids = 0;
        return mn_session_open(&t->session, model, cache);
    }
    if (name->kind != JSON_STRING || !is_cache_name(name->string))
        MN_FAIL(MN_E_FORMAT, "%s: the cache's name is not as it was written: %s...%s", what, cache_begin, cache_end);
    MN_TRY(path_join(&file, path, name->string));
    mn_cache_options expected = *cache;
    if (!is_set) expected.implementation = expected.config = NULL;
    mn_status status = mn_session_load(&t->session, model, bytes_text(&file), &expected);
    bytes_clear(&file);
    if (status == MN_E_NOT_FOUND) status = MN_E_REFUSED;
    MN_TRY(status);
    MN_TRY(mn_model_get_info(model, &info));
    MN_TRY(read_ids(t, what, json_get(root, "ids"), info.vocab_size));
    size_t held = (size_t)mn_session_length(t->session);
    if (conversation_common(t->ids, t->n_ids, mn_session_ids(t->session), held) != held)
        MN_FAIL(MN_E_REFUSED, "%s and its cache '%s' do not belong together", what, name->string);
    for (size_t i = 0; i < t->n; i++) {
        if (t->messages[i].n_ids > t->n_ids)
            MN_FAIL(MN_E_REFUSED, "%s: message %zu has more tokens than the conversation", what, i);
    }
    return MN_OK;
}

mn_status conversation_load(conversation *t, char **settings, mn_model *model, const char *path,
                            const mn_cache_options *cache, bool is_set) {
    bytes file = {0};
    json_doc *doc = NULL;
    *settings = NULL;
    if (!file_is_directory(path))
        MN_FAIL(MN_E_NOT_FOUND, "there is no saved conversation '%s': it is a folder that /save made", path);
    mn_status status = path_join(&file, path, text_name);
    if (status == MN_OK) status = json_open(&doc, bytes_text(&file), JSON_STRICT, CONVERSATION_LIMIT);
    if (status == MN_OK) status = read_text(t, settings, doc);
    if (status == MN_OK) status = read_cache(t, doc, model, path, cache, is_set);
    json_close(&doc);
    bytes_clear(&file);
    if (status == MN_OK) return MN_OK;
    char *name = t->name;
    t->name = NULL;
    conversation_clear(t);
    t->name = name;
    mem_free(*settings);
    *settings = NULL;
    return status;
}
