/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "cache_model.h"

#include "engine.h"
#include "input.h"
#include "kv/archive.h"
#include "output.h"
#include "progress.h"
#include "tensor/safetensors.h"

/* ---- convert ---- */

/* Of a file with several rows one has to be said. */
static mn_status check_row(const options *o, const char *path) {
    if (option_is_set(o, OPT_ROW)) return MN_OK;
    tensor_set *file = NULL;
    mn_status status = safetensors_open(&file, path);
    const tensor *key = status == MN_OK ? tensor_set_find(file, "key.0") : NULL;
    long long rows = key && key->n_dims == 4 ? (long long)key->shape[0] : 1;
    tensor_set_close(&file);
    if (status == MN_E_FORMAT) return status_fail(MN_E_REFUSED, "%s", mn_last_error());
    MN_TRY(status);
    if (rows > 1) MN_FAIL(MN_E_ARG, "'%s' holds %lld rows; say which: --row 0 to %lld", path, rows, rows - 1);
    return MN_OK;
}

static mn_status import_legacy(mn_session **session, const options *o, mn_model *model, const char *path,
                               const mn_cache_options *cache) {
    input in = {0};
    prompt ids = {0};
    mn_status status = check_row(o, path);
    if (status == MN_OK && input_is_said(o)) status = input_read(&in, o, NULL);
    if (status == MN_OK && in.data.n) status = prompt_from_ids(&ids, in.data.data, in.data.n, in.what);
    if (status == MN_OK) {
        status = mn_session_import(session, model, cache, path, (size_t)option_number(o, OPT_ROW, 0), ids.ids,
                                   ids.n);
    }
    prompt_clear(&ids);
    input_clear(&in);
    return status;
}

static mn_status read_session(mn_session **session, const options *o, mn_model *model, const char *path) {
    mn_cache_options cache = mn_cache_options_default();
    MN_TRY(cache_options_read(o, &cache));
    if (!archive_recognise(path)) return import_legacy(session, o, model, path, &cache);
    if (input_is_said(o)) MN_FAIL(MN_E_ARG, "a saved cache has the ids of its tokens; none are to be given");
    mn_cache_options own = mn_cache_options_default(); /* whatever the file's is */
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
    engine e = {0};
    mn_session *session = NULL;
    int code = engine_open(&e, o, NULL, 0);
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
        say("%lld tokens of '%s' written to %s%s", (long long)mn_session_length(session), info.implementation,
            files[1], option_on(o, OPT_LEGACY) ? " in the legacy form" : "");
    }
    mn_session_close(&session);
    engine_close(&e);
    return status == MN_OK ? code : report(o, exit_of(status), NULL);
}

/* ---- calibrate ---- */

int cache_calibrate(const options *o, const char *const *files, int n) {
    input in = {0};
    prompt text = {0};
    engine e = {0};
    int code = EXIT_DONE;
    mn_status status = input_read(&in, o, NULL);
    if (status == MN_OK) code = engine_open(&e, o, n ? files[0] : NULL, 0);
    if (status == MN_OK && code == EXIT_DONE) {
        double start = clock_ms();
        const char *out = option_text(o, OPT_OUT, NULL);
        status = prompt_from_input(&text, o, &in, mn_model_tokenizer(e.model), false);
        if (status == MN_OK) status = mn_cache_calibrate(e.model, text.ids, text.n, out);
        if (status == MN_OK) {
            say("tables of quantized keys made from %zu tokens in %.1f s%s%s", text.n < 2048 ? text.n : 2048,
                (clock_ms() - start) / 1e3,
                out ? ", written to " : "; --cache quantized uses them from now on", out ? out : "");
        }
    }
    prompt_clear(&text);
    input_clear(&in);
    engine_close(&e);
    return status == MN_OK ? code : report(o, exit_of(status), NULL);
}
