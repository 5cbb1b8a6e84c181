/* SPDX-License-Identifier: Apache-2.0 */
#include "request/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

/* A token's bytes; the text is the library's to free. */
typedef struct token_text {
    char *text;
    size_t n;
} token_text;

/* Empty for special tokens, and where memory ends. */
static token_text text_of(const logprob_list *list, int32_t id, const text_place *place) {
    token_text t = {0};
    if (mn_token_bytes(list->tokenizer, id, !place->has_begun, &t.text, &t.n) != MN_OK) t = (token_text){0};
    return t;
}

static void put_spelled(bytes *out, const token_text *t) {
    if (utf8_valid_prefix(t->text, t->n) == t->n) {
        json_put_string(out, t->text, t->n);
        return;
    }
    bytes_append_text(out, "\"bytes:");
    for (size_t i = 0; i < t->n; i++) bytes_printf(out, "\\\\x%02x", (unsigned char)t->text[i]);
    bytes_append_text(out, "\"");
}

/* Alternatives may be special tokens, which are spelled as the vocabulary does. */
static void put_alternative(bytes *out, const logprob_list *list, int32_t id, const token_text *t) {
    const char *piece = t->n ? NULL : mn_token_piece(list->tokenizer, id);
    if (t->n)
        put_spelled(out, t);
    else
        json_put_string(out, piece ? piece : "", piece ? strlen(piece) : 0);
}

/* JSON has no infinite numbers; OpenAI writes -9999 for what is impossible. */
static void put_logprob(bytes *out, float logprob) {
    json_put_real(out, isfinite(logprob) ? (double)logprob : -9999.0);
}

static void advance(text_place *place, const token_text *t) {
    place->has_begun = true;
    for (size_t i = 0; i < t->n; i++) place->characters += ((unsigned char)t->text[i] & 0xC0) != 0x80;
}

/* ---- chat ---- */

static void put_entry(bytes *out, const logprob_list *list, const token_text *t, int32_t id, float logprob) {
    bytes_append_text(out, "{\"token\":");
    put_alternative(out, list, id, t);
    bytes_append_text(out, ",\"logprob\":");
    put_logprob(out, logprob);
    bytes_append_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < t->n; i++) bytes_printf(out, "%s%u", i ? "," : "", (unsigned char)t->text[i]);
    bytes_append_text(out, "]");
}

void logprobs_put_chat(bytes *out, const logprob_list *list, text_place *place) {
    size_t each = 1 + (size_t)list->top, n_put = 0;
    bytes_append_text(out, "{\"content\":[");
    for (size_t i = 0; i < list->n; i++) {
        const int32_t *ids = list->ids + i * each;
        const float *logprobs = list->logprobs + i * each;
        token_text t = text_of(list, ids[0], place);
        if (t.n > 0) {
            bytes_append_text(out, n_put++ ? "," : "");
            put_entry(out, list, &t, ids[0], logprobs[0]);
            bytes_append_text(out, ",\"top_logprobs\":[");
            for (size_t k = 1; k < each; k++) {
                token_text other = text_of(list, ids[k], place);
                bytes_append_text(out, k > 1 ? "," : "");
                put_entry(out, list, &other, ids[k], logprobs[k]);
                bytes_append_text(out, "}");
                mn_free(other.text);
            }
            bytes_append_text(out, "]}");
            advance(place, &t);
        }
        mn_free(t.text);
    }
    bytes_append_text(out, "],\"refusal\":null}");
}

/* ---- text completions ---- */

static bool is_same(const token_text *a, const token_text *b) {
    return a->n == b->n && a->n > 0 && memcmp(a->text, b->text, a->n) == 0;
}

/* By their text: of tokens with the same one, the best. */
static void put_map(bytes *out, const logprob_list *list, const int32_t *ids, const float *logprobs,
                    const text_place *place) {
    enum { MOST = 32 };
    token_text others[MOST];
    size_t n = (size_t)list->top < MOST ? (size_t)list->top : MOST;
    bytes_append_text(out, "{");
    for (size_t k = 0; k < n; k++) {
        bool is_new = true;
        others[k] = text_of(list, ids[1 + k], place);
        for (size_t i = 0; i < k; i++) is_new = is_new && !is_same(&others[i], &others[k]);
        if (!is_new) continue;
        bytes_append_text(out, k ? "," : "");
        put_alternative(out, list, ids[1 + k], &others[k]);
        bytes_append_text(out, ":");
        put_logprob(out, logprobs[1 + k]);
    }
    bytes_append_text(out, "}");
    for (size_t k = 0; k < n; k++) mn_free(others[k].text);
}

void logprobs_put_completion(bytes *out, const logprob_list *list, text_place *place) {
    size_t each = 1 + (size_t)list->top, n_put = 0;
    bytes logprobs = {0}, tops = {0}, offsets = {0};
    bytes_append_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < list->n; i++) {
        const int32_t *ids = list->ids + i * each;
        token_text t = text_of(list, ids[0], place);
        if (t.n > 0) {
            const char *comma = n_put++ ? "," : "";
            bytes_append_text(out, comma);
            put_spelled(out, &t);
            bytes_append_text(&logprobs, comma);
            put_logprob(&logprobs, list->logprobs[i * each]);
            bytes_append_text(&tops, comma);
            if (list->top > 0)
                put_map(&tops, list, ids, list->logprobs + i * each, place);
            else
                bytes_append_text(&tops, "null");
            bytes_printf(&offsets, "%s%zu", comma, place->characters);
            advance(place, &t);
        }
        mn_free(t.text);
    }
    bytes_printf(out, "],\"token_logprobs\":[%s],\"top_logprobs\":[", bytes_text(&logprobs));
    bytes_append_text(out, bytes_text(&tops));
    bytes_printf(out, "],\"text_offset\":[%s]}", bytes_text(&offsets));
    out->failed = out->failed || logprobs.failed || tops.failed || offsets.failed;
    bytes_clear(&logprobs);
    bytes_clear(&tops);
    bytes_clear(&offsets);
}
