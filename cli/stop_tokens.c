/* SPDX-License-Identifier: Apache-2.0 */
#include "stop_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/distance.h"
#include "base/status.h"

/* Fails with the token whose name is most like that one. */
static mn_status unknown_token(const mn_tokenizer *tokenizer, const char *name) {
    int32_t size = mn_vocab_size(tokenizer), n = 0;
    const char **names = mem_alloc((size_t)size + 1, sizeof *names);
    if (!names) return mem_no_memory();
    for (int32_t id = 0; id < size; id++) {
        const char *piece = mn_token_piece(tokenizer, id);
        if (piece) names[n++] = piece;
    }
    const char *near = text_nearest(name, names);
    mn_status status =
        near ? status_fail(MN_E_ARG, "--stop-token: '%.80s' is no token; did you mean %.80s?", name, near)
             : status_fail(MN_E_ARG, "--stop-token: '%.80s' is no token; allowed: the name of one, or its id", name);
    mem_free(names);
    return status;
}

static mn_status find_token(const mn_model *model, const char *name, int32_t *out) {
    const mn_tokenizer *tokenizer = mn_model_tokenizer(model);
    mn_model_info info = {.size = sizeof info};
    MN_TRY(mn_model_get_info(model, &info));
    if (*name && name[strspn(name, "0123456789")] == 0) {
        long long id = strtoll(name, NULL, 10);
        if (id >= info.vocab_size)
            MN_FAIL(MN_E_ARG, "--stop-token is %.20s, allowed: 0 to %d, or the name of a token", name,
                    info.vocab_size - 1);
        *out = (int32_t)id;
        return MN_OK;
    }
    if (!tokenizer) MN_FAIL(MN_E_ARG, "--stop-token: '%.80s' is no id, and the model has no tokenizer", name);
    for (*out = 0; *out < mn_vocab_size(tokenizer); ++*out) {
        const char *piece = mn_token_piece(tokenizer, *out);
        if (piece && strcmp(piece, name) == 0) return MN_OK;
    }
    return unknown_token(tokenizer, name);
}

/* The model's own end tokens, which are null, an id or a list, as the beginning of a list. */
static void put_own(bytes *ids, const char *own) {
    if (strcmp(own, "null") == 0) return;
    size_t n = strlen(own), brackets = *own == '[';
    bytes_append(ids, own + brackets, n - 2 * brackets);
}

mn_status stop_tokens_apply(mn_generation_config *config, const options *o, const mn_model *model) {
    const char *lines = option_text(o, OPT_STOP_TOKEN, NULL);
    bytes ids = {0}, name = {0};
    if (!lines) return MN_OK;
    char *own = mn_generation_config_get(config, "eos_token_id"),
         *ignore = mn_generation_config_get(config, "ignore_eos");
    mn_status status = own && ignore ? MN_OK : MN_E_NOMEM;
    bytes_append_text(&ids, "[");
    if (status == MN_OK && strcmp(ignore, "true") != 0) put_own(&ids, own);
    for (size_t n; *lines && status == MN_OK; lines += n + (lines[n] == '\n')) {
        int32_t id = 0;
        n = strcspn(lines, "\n");
        name.n = 0;
        bytes_append(&name, lines, n);
        status = find_token(model, bytes_text(&name), &id);
        bytes_printf(&ids, ids.n > 1 ? ",%d" : "%d", (int)id);
    }
    bytes_append_text(&ids, "]");
    if (status == MN_OK) status = bytes_status(&ids);
    if (status == MN_OK) status = mn_generation_config_set(config, "eos_token_id", bytes_text(&ids));
    if (status == MN_OK) status = mn_generation_config_set(config, "ignore_eos", "false");
    bytes_clear(&ids);
    bytes_clear(&name);
    mn_free(own);
    mn_free(ignore);
    return status;
}
