/* SPDX-License-Identifier: Apache-2.0 */
#include "request/explain.h"

#include <string.h>

static void put_token(bytes *out, const job *j, const char *id_key, const char *text_key, int32_t id) {
    char *text = NULL;
    size_t n = 0;
    bytes_printf(out, ",\"%s\":%d", id_key, (int)id);
    if (!j->tokenizer || mn_detokenize(j->tokenizer, &id, 1, 0, &text, &n) != MN_OK) return;
    bytes_printf(out, ",\"%s\":", text_key);
    json_put_string(out, text, n);
    mn_free(text);
}

void explain_put(bytes *out, const job *j, const mn_sequence *s) {
    const job *one = job_of_answer(j, 0);
    const char *why =
        s->match_ended ? s->match_ended : "nothing_cached"; /* it was cancelled before it was looked for */
    const bool is_end = strcmp(why, "end_of_prompt") == 0;
    bytes_printf(out, "\"matched_tokens\":%zu,\"tiers\":{\"memory\":%zu,\"disk\":%zu},\"ended_by\":\"%s\",\"at\":%zu",
                 s->cached_tokens, s->cached_tokens - s->file_tokens, s->file_tokens, why, s->cached_tokens);
    if (!is_end && s->cached_tokens < one->n_ids) put_token(out, one, "token", "text", one->ids[s->cached_tokens]);
    if (s->match_other >= 0 && one->tells_other) put_token(out, one, "other_token", "other_text", s->match_other);
}

void explain_put_object(bytes *out, const job *j, const mn_sequence *s) {
    if (!j->request.explains) return;
    bytes_append_text(out, ",\"cache\":{");
    explain_put(out, j, s);
    bytes_append_text(out, "}");
}
