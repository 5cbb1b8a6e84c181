/* SPDX-License-Identifier: Apache-2.0 */
#include "model/locate.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/packages.h"
#include "model/embedded.h"

enum {
    REF_BYTES = 128,
    CONFIG_BYTES = 1 << 20, /* of a config.json that is read for a model's use */
    JSON_BYTES = 1 << 24,   /* of a checkpoint's JSON file, at most */
};

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* "$variable/rest", or "$HOME/fallback/rest"; false when neither is set. */
static bool folder_from(bytes *out, const char *variable, const char *fallback, const char *rest) {
    const char *value = environment(variable), *home = environment("HOME");
    out->n = 0;
    if (!value && !home) return false;
    if (value) {
        bytes_printf(out, "%s%s", value, rest);
    } else {
        bytes_printf(out, "%s/%s%s", home, fallback, rest);
    }
    bytes_text(out);
    return !out->failed;
}

static bool models_folder(bytes *out) {
    return environment("MNEME_MODELS") ? folder_from(out, "MNEME_MODELS", "", "")
                                       : folder_from(out, "XDG_DATA_HOME", ".local/share", "/mneme/models");
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A Hugging Face folder or a .gguf file. */
static bool is_model(const char *path) {
    if (file_exists(path)) return ends_with(path, ".gguf");
    if (!file_is_directory(path)) return false;
    bytes config = {0};
    bool is = path_join(&config, path, "config.json") == MN_OK && file_is_there(config.data);
    bytes_clear(&config);
    return is;
}

/* Whether a folder holds a speech model. Opening it reports files that cannot be read. */
static bool is_for_speech(const char *path) {
    bytes config = {0};
    json_doc *doc = NULL;
    bool is = file_is_directory(path) && path_join(&config, path, "config.json") == MN_OK &&
              json_open(&doc, config.data, JSON_PYTHON, CONFIG_BYTES) == MN_OK &&
              json_is_string(json_get(json_root(doc), "model_type"), "whisper");
    json_close(&doc);
    bytes_clear(&config);
    return is;
}

/* Whether a file of the models folder matches a name: equal, equal without ".gguf", or a prefix in any case. */
static bool goes_by(const char *file, const char *name) {
    return strncasecmp(file, name, strlen(name)) == 0;
}

/* The newest model of the models folder whose file matches `name` (NULL: any of that use). */
static bool find_installed(bytes *path, const char *folder, const char *name, model_use use) {
    DIR *dir = file_open_folder(folder);
    struct timespec newest = {0};
    bool found = false, exact = false;
    bytes candidate = {0};
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || (name && !goes_by(entry->d_name, name))) continue;
        struct stat info;
        if (path_join(&candidate, folder, entry->d_name) != MN_OK || !is_model(candidate.data)) continue;
        if (stat(candidate.data, &info) != 0) continue;
        if (!name && is_for_speech(candidate.data) != (use == MODEL_FOR_SPEECH)) continue;
        bool is_exact = name && strcmp(entry->d_name, name) == 0;
        bool is_newer = info.st_mtim.tv_sec > newest.tv_sec ||
                        (info.st_mtim.tv_sec == newest.tv_sec && info.st_mtim.tv_nsec > newest.tv_nsec);
        if (exact || (found && !is_newer && !is_exact)) continue;
        newest = info.st_mtim;
        found = true;
        exact = is_exact;
        path->n = 0;
        bytes_append(path, candidate.data, candidate.n);
        bytes_text(path);
    }
    if (dir) closedir(dir);
    bytes_clear(&candidate);
    return found && !path->failed;
}

/* The path of an alias in the configuration file. */
static bool find_alias(bytes *path, const char *config, const char *name) {
    json_doc *doc = NULL;
    if (!file_exists(config) || json_open(&doc, config, JSON_STRICT, 1 << 20) != MN_OK) return false;
    const json *target = json_get(json_get(json_root(doc), "aliases"), name);
    bool found = target && target->kind == JSON_STRING;
    if (found) {
        path->n = 0;
        bytes_append(path, target->string, target->n);
        bytes_text(path);
    }
    json_close(&doc);
    return found;
}

/* The commit that a revision names: itself when it is one, else what refs/<revision> holds. */
static bool read_revision(char *commit, const char *repository, const char *revision) {
    size_t n = strlen(revision);
    bool is_commit = n == 40;
    for (size_t i = 0; i < n && is_commit; i++) is_commit = isxdigit((unsigned char)revision[i]) != 0;
    if (is_commit) {
        memcpy(commit, revision, n + 1);
        return true;
    }
    bytes path = {0}, text = {0};
    bytes_printf(&path, "%s/refs/%s", repository, revision);
    bool found = !strstr(revision, "..") && file_read(&text, bytes_text(&path), REF_BYTES - 1) == MN_OK;
    size_t length = 0;
    while (found && length < text.n && isxdigit((unsigned char)text.data[length])) length++;
    if (found) memcpy(commit, text.data, length);
    commit[length] = 0;
    bytes_clear(&path);
    bytes_clear(&text);
    return length > 0;
}

/* "org/name[@revision]" in a Hugging Face cache: models--org--name/snapshots/<commit>. */
static bool find_in_hub(bytes *path, const char *hub, const char *name) {
    const char *slash = strchr(name, '/'), *at = strchr(name, '@');
    if (!slash || strchr(slash + 1, '/') || strstr(name, "..")) return false;
    size_t n_name = at ? (size_t)(at - slash - 1) : strlen(slash + 1);
    bytes repository = {0};
    bytes_printf(&repository, "%s/models--%.*s--%.*s", hub, (int)(slash - name), name, (int)n_name, slash + 1);
    char commit[REF_BYTES];
    bool found = read_revision(commit, bytes_text(&repository), at ? at + 1 : "main");
    if (found) {
        path->n = 0;
        bytes_printf(path, "%s/snapshots/%s", repository.data, commit);
        found = is_model(bytes_text(path));
    }
    bytes_clear(&repository);
    return found;
}

static bool hub_folder(bytes *out) {
    if (environment("HF_HUB_CACHE")) return folder_from(out, "HF_HUB_CACHE", "", "");
    return folder_from(out, "HF_HOME", ".cache/huggingface", "/hub");
}

static void set_path(bytes *path, const char *text) {
    path->n = 0;
    bytes_append_text(path, text);
    bytes_text(path);
}

/* A file inside a model's folder selects the folder. */
static bool find_path(bytes *path, const char *name) {
    set_path(path, name);
    if (is_model(name)) return true;
    const char *slash = strrchr(name, '/');
    if (!slash || !file_exists(name)) return false;
    path->n = (size_t)(slash - name);
    return path->n > 0 && is_model(bytes_text(path));
}

/* "org/name" or "org/name@revision", and no path. */
static bool is_of_hub(const char *name) {
    const char *slash = strchr(name, '/');
    return slash && slash != name && slash[1] && *name != '.' && *name != '~' && !strchr(slash + 1, '/') &&
           !ends_with(name, ".gguf");
}

/* How to get a missing model. */
static void put_next_step(bytes *out, const char *name, model_use use) {
    enum { LEAST = 4 }; /* letters that identify the model */
    for (size_t i = 0; name && strlen(name) >= LEAST && i < n_model_packages; i++) {
        if (!goes_by(model_packages[i].file, name) && !goes_by(name, model_packages[i].name)) continue;
        bytes_printf(out, "`mneme pull %s` installs it", model_packages[i].name);
        return;
    }
    if (name && is_of_hub(name)) {
        const char *at = strchr(name, '@');
        bytes_printf(out, "`hf download %.*s%s%s` fetches it", at ? (int)(at - name) : (int)strlen(name), name,
                     at ? " --revision " : "", at ? at + 1 : "");
        return;
    }
    bytes_append_text(out, "`mneme pull NAME` installs one of");
    const char *between = " ";
    for (size_t i = 0; i < n_model_packages; i++) {
        bool is_speech = strcmp(model_packages[i].use, "speech") == 0;
        if (!name && is_speech != (use == MODEL_FOR_SPEECH)) continue;
        bytes_printf(out, "%s%s", between, model_packages[i].name);
        between = ", ";
    }
}

mn_status model_locate(bytes *path, const char *name, model_use use) {
    bytes folder = {0}, looked = {0};
    bool found = false;
    if (name) {
        found = strcmp(name, "embedded") == 0 || find_path(path, name);
        if (found && strcmp(name, "embedded") == 0) set_path(path, name);
        bytes_append_text(&looked, "that path");
        if (!found && folder_from(&folder, "XDG_CONFIG_HOME", ".config", "/mneme/config.json")) {
            bytes_printf(&looked, ", aliases in %s", folder.data);
            found = find_alias(path, folder.data, name);
        }
        if (!found && strchr(name, '/') && hub_folder(&folder)) {
            bytes_printf(&looked, ", the Hugging Face cache %s", folder.data);
            found = find_in_hub(path, folder.data, name);
        }
    }
    if (!found && models_folder(&folder)) {
        bytes_printf(&looked, "%sthe models folder %s", name ? ", " : "", folder.data);
        found = find_installed(path, folder.data, name, use);
    }
    if (!found && !name && use == MODEL_FOR_TEXT) {
        set_path(path, "embedded");
        found = true;
    }
    mn_status status = path->failed ? mem_no_memory() : MN_OK;
    if (status == MN_OK && !found) {
        bytes_append_text(&looked, "; ");
        put_next_step(&looked, name, use);
        status = name ? status_fail(MN_E_NOT_FOUND, "no model '%s'; looked at: %s", name, bytes_text(&looked))
                      : status_fail(MN_E_NOT_FOUND, "no speech model; looked at: %s", bytes_text(&looked));
    }
    bytes_clear(&folder);
    bytes_clear(&looked);
    return status;
}

/* ---- what there is ---- */

static void put_model(bytes *out, const char *name, const char *path) {
    bytes_append_text(out, out->n > 1 ? ",{" : "{");
    json_put_text_member(out, "name", name);
    json_put_text_member(out, "path", path);
    json_put_text_member(out, "use", is_for_speech(path) ? "speech" : "text");
    bytes_append_text(out, "}");
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder, in order; *names [*n] and each of them are the caller's. No folder: none. */
static mn_status read_names(const char *folder, char ***names, size_t *n) {
    DIR *dir = file_open_folder(folder);
    size_t capacity = 0;
    mn_status status = MN_OK;
    for (struct dirent *entry; dir && status == MN_OK && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        status = mem_grow(names, &capacity, *n + 1, sizeof **names);
        char *name = status == MN_OK ? mem_copy_text(entry->d_name, strlen(entry->d_name)) : NULL;
        if (name) (*names)[(*n)++] = name;
        if (status == MN_OK && !name) status = mem_no_memory();
    }
    if (dir) closedir(dir);
    if (*n > 1) qsort(*names, *n, sizeof **names, by_name);
    return status;
}

/* "models--org--name" of a Hugging Face cache as org/name; false for what is none. */
static bool hub_name(bytes *name, const char *entry) {
    static const char begin[] = "models--";
    const char *org = entry + sizeof begin - 1;
    const char *between = strncmp(entry, begin, sizeof begin - 1) == 0 ? strstr(org, "--") : NULL;
    name->n = 0;
    if (between) bytes_printf(name, "%.*s/%s", (int)(between - org), org, between + 2);
    bytes_text(name);
    return between && !name->failed;
}

static mn_status put_models(bytes *out, const char *folder, bool is_hub) {
    char **names = NULL;
    size_t n = 0;
    bytes path = {0}, name = {0};
    mn_status status = read_names(folder, &names, &n);
    for (size_t i = 0; i < n; i++) {
        if (is_hub) {
            if (hub_name(&name, names[i]) && find_in_hub(&path, folder, name.data))
                put_model(out, name.data, path.data);
        } else if (path_join(&path, folder, names[i]) == MN_OK && is_model(path.data)) {
            put_model(out, names[i], path.data);
        }
        mem_free(names[i]);
    }
    mem_free(names);
    bytes_clear(&path);
    bytes_clear(&name);
    return status;
}

mn_status models_describe(bytes *out) {
    bytes folder = {0};
    mn_status status = MN_OK;
    out->n = 0;
    bytes_append_text(out, "[");
    if (n_embedded_files) put_model(out, "embedded", "embedded");
    if (models_folder(&folder)) status = put_models(out, folder.data, false);
    if (status == MN_OK && hub_folder(&folder)) status = put_models(out, folder.data, true);
    bytes_append_text(out, "]");
    bytes_text(out);
    bytes_clear(&folder);
    return status == MN_OK ? bytes_status(out) : status;
}

mn_status checkpoint_json(json_doc **out, const char *path, const char *name) {
    bytes where = {0};
    mn_status status;
    *out = NULL;
    if (strcmp(path, "embedded") == 0) {
        const embedded_file *file = embedded_find(name);
        if (n_embedded_files == 0) MN_FAIL(MN_E_NOT_FOUND, "this build has no embedded model");
        if (!file) MN_FAIL(MN_E_NOT_FOUND, "the embedded model has no %s", name);
        bytes_printf(&where, "embedded %s", name);
        bytes_text(&where);
        status = bytes_status(&where);
        if (status == MN_OK) status = json_parse(out, (const char *)file->data, file->n, JSON_PYTHON, where.data);
    } else {
        status = path_join(&where, path, name);
        if (status == MN_OK) status = json_open(out, where.data, JSON_PYTHON, JSON_BYTES);
    }
    bytes_clear(&where);
    return status;
}
