/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "loaded_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "output.h"
#include "progress.h"

/* ---- model ---- */

mn_status model_path(char **path, const options *o, const char *name) {
    if (!name) name = option_text(o, OPT_MODEL, NULL);
    const char *alias = name ? options_alias(o, name) : NULL;
    if (alias) name = alias;
    return o->command->bit == COMMAND_TRANSCRIBE ? mn_model_find_speech(path, name) : mn_model_find(path, name);
}

mn_status positional_pair(const char **model, const char **text, const options *o) {
    *model = *text = NULL;
    if (o->n_positional != 2) return MN_OK;
    if (option_is_set(o, OPT_MODEL) && o->set[OPT_MODEL].origin == ORIGIN_FLAG) {
        MN_FAIL(MN_E_ARG, "two arguments besides --model; usage: mneme %s (put a text of several words in quotes)",
                o->command->usage);
    }
    *model = o->positional[0];
    *text = o->positional[1];
    return MN_OK;
}

mn_status data_folder(bytes *path, const char *variable, const char *name) {
    const char *own = getenv(variable), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (own && *own) {
        bytes_append_text(path, own);
    } else if (data && *data) {
        bytes_printf(path, "%s/mneme/%s", data, name);
    } else {
        bytes_printf(path, "%s/.local/share/mneme/%s", home ? home : ".", name);
    }
    bytes_text(path);
    return bytes_status(path);
}

mn_status calibration_folder(bytes *path) {
    return data_folder(path, "MNEME_CALIBRATIONS", "calibrations");
}

mn_status calibration_path(bytes *path, const mn_model *model) {
    char *digits = NULL;
    MN_TRY(mn_model_fingerprint(model, &digits));
    mn_status status = calibration_folder(path);
    bytes_printf(path, "/%.16s.safetensors", digits);
    bytes_text(path);
    mn_free(digits);
    return status == MN_OK ? bytes_status(path) : status;
}

mn_status packed_folder(bytes *path, const options *o) {
    const char *named = option_text(o, OPT_PACKED_DIR, NULL), *own = getenv("MNEME_PACKED");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (named) {
        bytes_append_text(path, strcmp(named, "none") == 0 ? "" : named);
    } else if (own && *own) {
        bytes_append_text(path, own);
    } else if (cache && *cache) {
        bytes_printf(path, "%s/mneme/packed", cache);
    } else {
        bytes_printf(path, "%s/.cache/mneme/packed", home ? home : ".");
    }
    bytes_text(path);
    return bytes_status(path);
}

/* The calibration of --calibration, else the one that `mneme cache calibrate` made for this model. */
static mn_status use_calibration(const options *o, mn_model *model) {
    const char *named = option_text(o, OPT_CALIBRATION, NULL);
    bytes path = {0};
    if (named) return strcmp(named, "none") == 0 ? MN_OK : mn_model_set_calibration(model, named);
    mn_status status = calibration_folder(&path);
    /* The name of the file is computed from weights, which takes a while: only where there are calibrations. */
    const bool has_folder = status == MN_OK && file_is_directory(path.data);
    path.n = 0;
    if (has_folder) status = calibration_path(&path, model);
    if (has_folder && status == MN_OK && file_exists(path.data)) status = mn_model_set_calibration(model, path.data);
    bytes_clear(&path);
    return status;
}

/* Opens e->path. */
static mn_status open_path(loaded_model *e, const options *o, int threads, int64_t memory_limit) {
    mn_model_options how;
    mn_model_options_init(&how, sizeof how);
    how.compute_type = option_text(o, OPT_COMPUTE_TYPE, how.compute_type);
    how.cpu = option_text(o, OPT_CPU, how.cpu);
    how.threads = threads ? threads : (int)option_number(o, OPT_THREADS, how.threads);
    how.memory_limit = (uint64_t)memory_limit;
    how.progress = progress_shown() ? progress_loading : NULL;
    bytes folder = {0};
    MN_TRY(packed_folder(&folder, o));
    /* The name of a file there is computed from weights, which takes a while. `pack` packs what it saves. */
    const bool maps = file_is_directory(folder.data) && o->command->bit != COMMAND_PACK;
    how.packed_dir = maps ? folder.data : NULL;
    double start = clock_ms();
    mn_status status = mn_model_open(&e->model, e->path, &how);
    bytes_clear(&folder);
    e->info.size = sizeof e->info;
    if (status == MN_OK) status = mn_model_get_info(e->model, &e->info);
    e->load_ms = clock_ms() - start;
    progress_clear();
    return status;
}

static int describe(const loaded_model *e, const options *o) {
    if (e->info.warning) print_message("warning: %s", e->info.warning);
    if (option_on(o, OPT_VERBOSE)) {
        print_message("model %s: %s, %.1f M parameters, %s on %s, %d threads, %s in %.0f ms", e->path,
                      e->info.architecture, (double)e->info.parameters / 1e6, e->info.compute_type, e->info.cpu,
                      e->info.threads, e->info.mapped_bytes ? "packed weights mapped" : "loaded", e->load_ms);
    }
    return EXIT_DONE;
}

int loaded_model_open(loaded_model *e, const options *o, const char *name, int threads) {
    mn_status status = model_path(&e->path, o, name);
    if (status == MN_OK) status = open_path(e, o, threads, option_number(o, OPT_MEMORY_LIMIT, 0));
    if (status != MN_OK) return report(o, exit_of_model(status), "model");
    status = use_calibration(o, e->model);
    return status == MN_OK ? describe(e, o) : report(o, exit_of(status), "calibration");
}

int loaded_model_open_beside(loaded_model *e, const options *o, option_id named) {
    mn_status status = model_path(&e->path, o, option_text(o, named, NULL));
    if (status == MN_OK) status = open_path(e, o, 0, 0);
    return status == MN_OK ? describe(e, o) : report(o, exit_of_model(status), option_table[named].name);
}

void loaded_model_close(loaded_model *e) {
    mn_model_close(&e->model);
    mn_free(e->path);
    *e = (loaded_model){0};
}

/* ---- cache ---- */

mn_status cache_options_read(const options *o, mn_cache_options *cache) {
    cache->implementation = option_text(o, OPT_CACHE, cache->implementation);
    if (option_on(o, OPT_NO_CACHE)) {
        if (option_is_set(o, OPT_CACHE))
            MN_FAIL(MN_E_ARG, "--no-cache and --cache contradict each other; one is enough");
        cache->implementation = "none";
    }
    cache->config = option_text(o, OPT_CACHE_CONFIG, cache->config);
    cache->dtype = option_text(o, OPT_CACHE_DTYPE, cache->dtype);
    cache->key_file = option_text(o, OPT_CACHE_KEY_FILE, cache->key_file);
    cache->on_oom = option_text(o, OPT_ON_OOM, cache->on_oom);
    cache->max_cache_len = option_number(o, OPT_MAX_CACHE_LEN, cache->max_cache_len);
    return MN_OK;
}

const char *loaded_model_beyond(const loaded_model *e) {
    return e->info.has_learned_positions ? "" : ", or go beyond with --max-cache-len";
}

void loaded_model_bound(const loaded_model *e, mn_cache_summary *summary) {
    if (e->info.has_learned_positions) summary->has_unbounded_context = false;
}

mn_status cache_resolve(mn_cache_options *cache, mn_cache_summary *summary) {
    summary->size = sizeof *summary;
    MN_TRY(mn_cache_check(cache, summary));
    cache->max_cache_len = summary->max_cache_len;
    cache->page_tokens = summary->page_tokens;
    cache->prefill_chunk = summary->prefill_chunk;
    return MN_OK;
}

mn_status cache_check_named(const mn_cache_options *cache) {
    mn_cache_summary summary = {.size = sizeof summary};
    return cache->implementation ? mn_cache_check(cache, &summary) : MN_OK;
}

/* ---- saved caches ---- */

mn_status session_open(mn_session **session, const options *o, mn_model *model, const mn_cache_options *cache) {
    const char *path = option_text(o, OPT_LOAD_CACHE, NULL);
    if (!path) return mn_session_open(session, model, cache);
    bool is_set =
        option_is_set(o, OPT_CACHE) || option_is_set(o, OPT_CACHE_CONFIG) || option_is_set(o, OPT_CACHE_DTYPE);
    mn_cache_options requested = *cache;
    if (!is_set) requested.implementation = NULL; /* whatever the file's is */
    return mn_session_load(session, model, path, &requested);
}

const char *cache_folder(const options *o) {
    const char *folder = option_text(o, OPT_CACHE_DIR, NULL);
    bytes path = {0};
    if (!folder || !file_is_directory(folder)) return folder;
    bool is_own = path_join(&path, folder, ".") == MN_OK && file_is_own(bytes_text(&path));
    bytes_clear(&path);
    return is_own ? folder : NULL;
}

/* A name that depends on tokens, model and strategy only, so that the same cache is stored once. */
static mn_status put_name(char out[HASH_HEX], const loaded_model *e, const mn_session *session, const options *o) {
    bytes all = {0};
    mn_cache_info info = {.size = sizeof info};
    MN_TRY(mn_session_cache(session, &info));
    bytes_printf(&all, "%s\n%s\n%s\n%s\n", e->path, info.implementation, info.dtype,
                 option_text(o, OPT_CACHE_CONFIG, ""));
    bytes_append(&all, mn_session_ids(session), (size_t)mn_session_length(session) * sizeof(int32_t));
    mn_status status = bytes_status(&all);
    if (status == MN_OK) hash_put(out, hash_of(all.data, all.n));
    bytes_clear(&all);
    return status;
}

static mn_status save_to_folder(const loaded_model *e, const mn_session *session, const options *o,
                                const char *folder) {
    char name[HASH_HEX + 16], sum[HASH_HEX];
    bytes path = {0};
    MN_TRY(put_name(sum, e, session, o));
    snprintf(name, sizeof name, "%s.safetensors", sum);
    MN_TRY(file_make_folders(folder, FILE_PRIVATE));
    mn_status status = path_join(&path, folder, name);
    if (status == MN_OK && !file_exists(bytes_text(&path))) status = mn_session_save(session, bytes_text(&path), false);
    bytes_clear(&path);
    return status;
}

mn_status session_save(const loaded_model *e, const mn_session *session, const options *o) {
    const char *path = option_text(o, OPT_SAVE_CACHE, NULL), *folder = cache_folder(o);
    if (path) MN_TRY(mn_session_save(session, path, option_on(o, OPT_ZSTD)));
    if (!folder && option_is_set(o, OPT_CACHE_DIR))
        print_message(
            "warning: no cache was reused from '%s' or kept there: the folder belongs to another user, or others may write it",
            option_text(o, OPT_CACHE_DIR, ""));
    return folder ? save_to_folder(e, session, o, folder) : MN_OK;
}
