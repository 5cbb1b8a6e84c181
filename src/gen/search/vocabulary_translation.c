/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/vocabulary_translation.h"

#include <string.h>

enum { CONTEXT = 4 }; /* tokens that are decoded and encoded again with what follows them */

mn_status vocabulary_translation_open(vocabulary_translation *r, const tokenizer *from, const tokenizer *to) {
    r->from = from;
    r->to = to;
    return tokenizer_stream_open(&r->stream, from, 0);
}

void vocabulary_translation_close(vocabulary_translation *r) {
    tokenizer_stream_close(&r->stream);
    bytes_clear(&r->text);
    bytes_clear(&r->joined);
    bytes_clear(&r->before);
    bytes_clear(&r->behind);
    token_list_clear(&r->ids);
    token_list_clear(&r->trial);
}

static mn_status encode_part(vocabulary_translation *r, size_t begin, size_t end) {
    const char *bos = tokenizer_role_text(r->to, TOKEN_BOS);
    size_t n_bos = bos ? strlen(bos) : 0;
    bool says_bos = n_bos && r->text.n >= n_bos && memcmp(r->text.data, bos, n_bos) == 0;
    unsigned flags = TOKENIZER_PARSE_SPECIAL | (begin == 0 && !says_bos ? TOKENIZER_ADD_SPECIAL : 0u);
    return begin < end ? tokenizer_encode(r->to, r->text.data + begin, end - begin, flags, &r->ids) : MN_OK;
}

/* Only the last part of the text is encoded again, from a space on. */
mn_status vocabulary_translation_update(vocabulary_translation *r, const int32_t *ids, size_t n) {
    enum { OPEN_BYTES = 64, MOST_OPEN = 512 };
    for (; r->n_decoded < n; r->n_decoded++) {
        if ((size_t)ids[r->n_decoded] >= tokenizer_size(r->from)) continue;
        MN_TRY(tokenizer_stream_push(r->stream, ids[r->n_decoded], &r->text));
    }
    MN_TRY(bytes_status(&r->text));
    r->ids.n = r->n_final_ids;
    if (r->text.n - r->n_final_bytes > MOST_OPEN) {
        size_t cut = r->text.n - OPEN_BYTES;
        while (cut > r->n_final_bytes && r->text.data[cut] != ' ') cut--;
        MN_TRY(encode_part(r, r->n_final_bytes, cut));
        r->n_final_bytes = cut;
        r->n_final_ids = r->ids.n;
    }
    return encode_part(r, r->n_final_bytes, r->text.n);
}

/* The text of the ids from `n_translated` on. A few before them are decoded with them: decoders treat the beginning of
 * a text differently. *out: a view into r->behind; empty where the two cannot be separated. */
static mn_status text_behind(vocabulary_translation *r, size_t n_translated, const char **out, size_t *n_out) {
    size_t context = n_translated < CONTEXT ? n_translated : CONTEXT;
    const int32_t *ids = r->ids.ids + n_translated - context;
    r->before.n = 0;
    r->behind.n = 0;
    MN_TRY(tokenizer_decode(r->to, ids, context, 0, &r->before));
    MN_TRY(tokenizer_decode(r->to, ids, context + r->ids.n - n_translated, 0, &r->behind));
    MN_TRY(bytes_status(&r->before));
    MN_TRY(bytes_status(&r->behind));
    bool follows =
        r->behind.n > r->before.n && (r->before.n == 0 || memcmp(r->behind.data, r->before.data, r->before.n) == 0);
    *out = follows ? r->behind.data + r->before.n : "";
    *n_out = follows ? r->behind.n - r->before.n : 0;
    return MN_OK;
}

/* Tokens of the text that follows `context` ids, encoded together with these; false: these ids would change. */
static mn_status encode_behind(vocabulary_translation *r, const int32_t *ids, size_t context, const char *text,
                               size_t n, bool *fits) {
    *fits = false;
    r->joined.n = 0;
    r->trial.n = 0;
    for (size_t i = 0; i < context; i++) {
        if ((size_t)ids[i] >= tokenizer_size(r->from)) return MN_OK; /* a row of the model without a token */
    }
    if (context) MN_TRY(tokenizer_decode(r->from, ids, context, 0, &r->joined));
    bytes_append(&r->joined, text, n);
    MN_TRY(bytes_status(&r->joined));
    MN_TRY(tokenizer_encode(r->from, r->joined.data, r->joined.n, TOKENIZER_PARSE_SPECIAL, &r->trial));
    *fits = r->trial.n > context && (context == 0 || memcmp(r->trial.ids, ids, context * sizeof *ids) == 0);
    return MN_OK;
}

mn_status vocabulary_translation_reverse(vocabulary_translation *r, const int32_t *ids, size_t n, size_t n_translated,
                                         size_t most, int32_t *proposals, size_t *n_proposals) {
    const char *text = "";
    size_t n_text = 0, context = n < CONTEXT ? n : CONTEXT;
    bool fits = false;
    *n_proposals = 0;
    MN_TRY(text_behind(r, n_translated, &text, &n_text));
    if (n_text == 0) return MN_OK;
    MN_TRY(encode_behind(r, ids + n - context, context, text, n_text, &fits));
    while (!fits && context > 0) {
        context /= 2;
        MN_TRY(encode_behind(r, ids + n - context, context, text, n_text, &fits));
    }
    if (!fits) return MN_OK;
    *n_proposals = r->trial.n - context < most ? r->trial.n - context : most;
    memcpy(proposals, r->trial.ids + context, *n_proposals * sizeof *proposals);
    return MN_OK;
}
