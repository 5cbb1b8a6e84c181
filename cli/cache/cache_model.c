/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/file.h"
#include "cache/cache_model.h"

#include "loaded_model.h"
#include "input.h"
#include "output.h"
#include "progress.h"

/* ---- convert ---- */

/* A file with several rows needs --row. */
static mn_status check_row(const options *o, const char *path) {
    if (option_is_set(o, OPT_ROW)) return MN_OK;
    size_t rows = 0;
    MN_TRY(mn_session_import_rows(path, &rows));
    if (rows > 1) MN_FAIL(MN_E_ARG, "'%s' holds %zu rows; choose one: --row 0 to %zu", path, rows, rows - 1);
    return MN_OK;
}

static mn_status import_legacy(mn_session **session, const options *o, mn_model *model, const char *path,
                               const mn_cache_options *cache) {
    input in = {0};
    prompt ids = {0};
    mn_status status = check_row(o, path);
    if (status == MN_OK && input_is_given(o)) status = input_read(&in, o, NULL);
    if (status == MN_OK && in.data.n) status = prompt_from_ids(&ids, in.data.data, in.data.n, in.what);
    if (status == MN_OK) {
        status = mn_session_import(session, model, cache, path, (size_t)option_number(o, OPT_ROW, 0), ids.ids, ids.n);
    }
    prompt_clear(&ids);
    input_clear(&in);
    return status;
}

static mn_status read_session(mn_session **session, const options *o, mn_model *model, const char *path) {
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    MN_TRY(cache_options_read(o, &cache));
    if (!mn_cache_file_is(path)) return import_legacy(session, o, model, path, &cache);
    if (input_is_given(o)) MN_FAIL(MN_E_ARG, "a saved cache has the ids of its tokens; leave --ids out");
    mn_cache_options own; /* whatever the file's is */
    mn_cache_options_init(&own, sizeof own);
    own.implementation = NULL;
    own.key_file = cache.key_file;
    own.max_cache_len = cache.max_cache_len;
    MN_TRY(mn_session_load(session, model, path, &own));
    bool other = option_is_set(o, OPT_CACHE) || option_is_set(o, OPT_CACHE_CONFIG);
    mn_status status = other ? mn_session_set_cache(*session, &cache) : MN_OK;
    if (status != MN_OK) mn_session_close(session);
    return status;
}

int cache_convert(const options *o, const char *const *files, int n) {
    (void)n;
    loaded_model e = {0};
    mn_session *session = NULL;
    int code = loaded_model_open(&e, o, NULL, 0);
    if (code != EXIT_DONE) return code;
    mn_status status = read_session(&session, o, e.model, files[0]);
    mn_cache_info info = {.size = sizeof info};
    if (status == MN_OK) status = mn_session_cache(session, &info);
    if (status == MN_OK && option_on(o, OPT_LEGACY)) {
        status = mn_sessions_export(&session, 1, files[1], option_text(o, OPT_CACHE_DTYPE, NULL));
    } else if (status == MN_OK) {
        status = mn_session_save(session, files[1], option_on(o, OPT_ZSTD));
    }
    if (status == MN_OK) {
        print_message("%lld tokens of '%s' written to %s%s", (long long)mn_session_length(session), info.implementation,
                      files[1], option_on(o, OPT_LEGACY) ? " in the legacy form" : "");
    }
    mn_session_close(&session);
    loaded_model_close(&e);
    return status == MN_OK ? code : report(o, exit_of(status), NULL);
}

/* ---- calibrate ---- */

/* The path at which runs of this model look for it; makes the folder. */
static mn_status own_path(bytes *path, const mn_model *model) {
    bytes folder = {0};
    mn_status status = calibration_folder(&folder);
    if (status == MN_OK) status = file_make_folders(folder.data, FILE_PRIVATE);
    if (status == MN_OK) status = calibration_path(path, model);
    bytes_clear(&folder);
    return status;
}

int cache_calibrate(const options *o, const char *const *files, int n) {
    input in = {0};
    prompt text = {0};
    loaded_model e = {0};
    bytes own = {0};
    int code = EXIT_DONE;
    mn_status status = input_read(&in, o, NULL);
    if (status == MN_OK) code = loaded_model_open(&e, o, n ? files[0] : NULL, 0);
    if (status == MN_OK && code == EXIT_DONE) {
        double start = clock_ms();
        const char *out = option_text(o, OPT_OUT, NULL);
        status = prompt_from_input(&text, o, &in, mn_model_tokenizer(e.model), NULL);
        if (status == MN_OK && !out) status = own_path(&own, e.model);
        size_t n_used = text.n < 2048 ? text.n : 2048;
        if (status == MN_OK) {
            progress_line("calibrating with %zu tokens", n_used);
            status = mn_cache_calibrate(e.model, text.ids, text.n, out ? out : own.data);
            progress_clear();
        }
        if (status == MN_OK) {
            print_message("calibration of quantized keys made from %zu tokens in %.1f s%s%s", n_used,
                          (clock_ms() - start) / 1e3,
                          out ? ", written to " : "; --cache quantized uses them from now on", out ? out : "");
        }
    }
    bytes_clear(&own);
    prompt_clear(&text);
    input_clear(&in);
    loaded_model_close(&e);
    return status == MN_OK ? code : report(o, exit_of(status), NULL);
}
