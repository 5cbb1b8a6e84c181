/* The ids of a text behind ids that are held already.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/tokenizer/tokenizer.h"

/* A sequence of ids with its text. */
typedef struct id_text {
    const tokenizer *t;
    const int32_t *ids;
    size_t n;
    bytes text;
} id_text;

/* Whether the first n ids decode to the first *length bytes of both texts; not if they end inside a character. */
static bool is_common_text(const id_text *s, size_t n, const id_text *other, size_t *length) {
    bytes text = {0};
    bool is_begin = tokenizer_decode(s->t, s->ids, n, 0, &text) == MN_OK && !text.failed;
    *length = is_begin ? text.n : 0;
    is_begin = is_begin && text.n <= s->text.n && text.n <= other->text.n &&
               (text.n == 0 ||
                (memcmp(text.data, s->text.data, text.n) == 0 && memcmp(text.data, other->text.data, text.n) == 0));
    bytes_clear(&text);
    return is_begin;
}

/* The most of the first ids, at least `least` and at most `most`, whose text is no longer than `limit`. */
static size_t ids_within(const id_text *s, size_t least, size_t most, size_t limit) {
    while (least < most) {
        size_t middle = least + (most - least + 1) / 2, length = 0;
        is_common_text(s, middle, s, &length);
        if (length <= limit) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    return least;
}

/* The last place behind `common` equal ids that stands between two ids in both sequences, with the same text before it;
 * *n_a and *n_b ids from the start. */
static void find_join(size_t *n_a, size_t *n_b, const id_text *a, const id_text *b, size_t common) {
    size_t equal = 0, length_a = 0, length_b = 0;
    while (equal < a->text.n && equal < b->text.n && a->text.data[equal] == b->text.data[equal]) equal++;
    size_t j = ids_within(a, common, a->n, equal), k = common;
    while (j > common) {
        bool is_place = is_common_text(a, j, b, &length_a);
        k = ids_within(b, common, b->n, length_a);
        is_place = is_common_text(b, k, a, &length_b) && is_place;
        if (is_place && length_a == length_b) break;
        j = length_b < length_a ? ids_within(a, common, j - 1, length_b) : j - 1;
    }
    *n_a = j;
    *n_b = j > common ? k : common;
}

/* Puts the ids held in front of those of the rest; where their texts cannot be compared, the list stays as it is. */
static mn_status join(const tokenizer *t, const int32_t *held, size_t n_held, token_list *fresh, size_t *n_kept) {
    size_t common = 0, kept = 0, dropped = 0;
    while (common < n_held && common < fresh->n && held[common] == fresh->ids[common]) common++;
    *n_kept = common;
    if (common == n_held || common == fresh->n) return MN_OK;
    id_text a = {.t = t, .ids = held, .n = n_held}, b = {.t = t, .ids = fresh->ids, .n = fresh->n};
    bool comparable = tokenizer_decode(t, held, n_held, 0, &a.text) == MN_OK &&
                      tokenizer_decode(t, fresh->ids, fresh->n, 0, &b.text) == MN_OK && !a.text.failed &&
                      !b.text.failed;
    if (comparable) find_join(&kept, &dropped, &a, &b, common);
    bytes_clear(&a.text);
    bytes_clear(&b.text);
    if (kept <= common) return MN_OK;
    size_t n_rest = fresh->n - dropped;
    MN_TRY(mem_grow(&fresh->ids, &fresh->capacity, kept + n_rest, sizeof *fresh->ids));
    memmove(fresh->ids + kept, fresh->ids + dropped, n_rest * sizeof *fresh->ids);
    memcpy(fresh->ids, held, kept * sizeof *fresh->ids);
    fresh->n = kept + n_rest;
    *n_kept = kept;
    return MN_OK;
}

mn_status tokenizer_encode_after(const tokenizer *t, const int32_t *held, size_t n_held, const char *text, size_t n,
                                 unsigned flags, token_list *out, size_t *n_kept) {
    *n_kept = 0;
    mn_status status = tokenizer_encode(t, text, n, flags, out);
    if (status == MN_OK && n_held > 0) status = join(t, held, n_held, out, n_kept);
    if (status != MN_OK) token_list_clear(out);
    return status;
}
