/* BPE merging of short and long words against a direct implementation of the rule; merges derived from scores.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "text/tokenizer/bpe.h"

/* Merges the pair of lowest rank, the leftmost of equals, until none is left. */
static size_t merge_by_the_rule(const merge_table *table, uint32_t *symbols, size_t n) {
    for (;;) {
        const merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const merge *entry = merge_table_find(table, symbols[i], symbols[i + 1]);
            if (entry && (!best || entry->rank < best->rank)) best = entry, at = i;
        }
        if (!best) return n;
        symbols[at] = best->id;
        for (size_t i = at + 1; i + 1 < n; i++) symbols[i] = symbols[i + 1];
        n--;
    }
}

/* Tokens are texts over two letters, each the concatenation of earlier ones, so that every merged token has a text of
 * its own, as in real files. Ranks follow that order, as in lists of merges, or are random out of `ranks`: then a
 * merged token may merge before its parts, and several at one rank. */
static void random_table(vocab *v, merge_table *table, uint64_t ranks, uint64_t *seed) {
    assert_ok(vocab_put(v, 0, "a", 1, 0, "test"));
    assert_ok(vocab_put(v, 1, "b", 1, 0, "test"));
    assert_ok(merge_table_reserve(table, 64));
    for (uint32_t rank = 0; rank < 24; rank++) {
        int32_t left = (int32_t)(test_random(seed) % v->n), right = (int32_t)(test_random(seed) % v->n);
        char text[4096];
        int n = snprintf(text, sizeof text, "%s%s", vocab_text(v, left), vocab_text(v, right));
        int32_t id = vocab_find(v, text, (size_t)n);
        if (n >= 64 || merge_table_find(table, (uint32_t)left, (uint32_t)right)) continue;
        if (id == VOCAB_NONE) {
            id = (int32_t)v->n;
            assert_ok(vocab_put(v, id, text, (size_t)n, 0, "test"));
        }
        uint32_t own = ranks ? (uint32_t)(test_random(seed) % ranks) : rank;
        merge_table_put(table, (merge){(uint32_t)left, (uint32_t)right, own, (uint32_t)id});
    }
}

/* Texts of one length often share slots and hash bits, so that only their bytes distinguish them. */
static void absent_texts_are_not_found(void **state) {
    (void)state;
    enum { N_TEXTS = 20000, LENGTH = 8 };
    uint64_t seed = 5;
    vocab v = {0};
    char text[LENGTH + 1];
    for (int32_t i = 0; i < 2 * N_TEXTS; i++) {
        uint64_t bits = test_random(&seed);
        for (int k = 0; k < LENGTH - 5; k++) text[k] = (char)('a' + (bits >> 5 * k & 15));
        snprintf(text + LENGTH - 5, 6, "%05d", i); /* no two are the same */
        int32_t found = vocab_find(&v, text, LENGTH);
        if (found != VOCAB_NONE) fail_msg("'%s' was found as %d", text, (int)found);
        if (i >= N_TEXTS) continue;
        assert_ok(vocab_put(&v, i, text, LENGTH, 0, "test"));
        assert_int_equal(vocab_find(&v, text, LENGTH), i);
    }
    vocab_clear(&v);
}

static void words_of_all_lengths_equal_the_rule(void **state) {
    (void)state;
    uint64_t seed = 3;
    bpe_scratch scratch = {0};
    for (int round = 0; round < 1200; round++) {
        static const uint64_t ranks[] = {0, 1, 3, 1000};
        vocab v = {0};
        merge_table table = {0};
        uint32_t expected[300];
        random_table(&v, &table, ranks[round / 2 % 4], &seed);
        size_t n = round % 2 ? test_random(&seed) % 60 : test_random(&seed) % 300, n_seen = n;
        uint64_t letters = test_random(&seed) % 8; /* from runs of one letter to a mixture */
        assert_ok(bpe_scratch_reserve(&scratch, 300));
        for (size_t i = 0; i < n; i++) scratch.symbols[i] = expected[i] = test_random(&seed) % 8 < letters;
        size_t n_expected = merge_by_the_rule(&table, expected, n);
        assert_ok(bpe_merge(&table, &scratch, &n_seen));
        assert_int_equal(n_seen, n_expected);
        if (n) assert_memory_equal(scratch.symbols, expected, n_seen * sizeof *expected);
        merge_table_clear(&table);
        vocab_clear(&v);
    }
    bpe_scratch_clear(&scratch);
}

static void merges_follow_from_scores(void **state) {
    (void)state;
    static const char *const texts[] = {"a", "b", "ab", "ba", "abq", "<x>"};
    static const float scores[] = {-1, -2, -5, -5, -9, 0};
    vocab v = {0}, symbols = {0};
    merge_table table = {0};
    for (int i = 0; i < 6; i++)
        assert_ok(vocab_put(&v, i, texts[i], strlen(texts[i]), i == 5 ? PIECE_OUTSIDE : 0, "test"));
    assert_ok(merge_table_from_scores(&table, &symbols, &v, scores, "test"));
    assert_int_equal(table.used, 3);
    const merge *ab = merge_table_find(&table, 0, 1), *ba = merge_table_find(&table, 1, 0),
                *abq = merge_table_find(&table, 2, 6);
    assert_non_null(ab);
    assert_non_null(ba);
    assert_non_null(abq); /* q is not a token: its symbol is after the last id */
    assert_int_equal(ab->rank, ba->rank);
    assert_true(ab->rank < abq->rank);
    assert_int_equal(vocab_find(&symbols, "q", 1), 0);
    merge_table_clear(&table);
    vocab_clear(&v);
    vocab_clear(&symbols);
}

static void bytes_map_to_their_letters(void **state) {
    (void)state;
    bool seen[512] = {false};
    for (int i = 0; i < 256; i++) {
        uint32_t letter = byte_letter((unsigned char)i);
        assert_true(letter < 512 && !seen[letter]);
        seen[letter] = true;
        assert_int_equal(byte_of_letter(letter), i);
    }
    assert_int_equal(byte_letter(' '), 0x120);
    assert_int_equal(byte_letter('\n'), 0x10A);
    assert_int_equal(byte_letter(0xAD), 0x143);
    for (uint32_t code = 0; code < 512; code++) assert_int_equal(byte_of_letter(code) >= 0, seen[code]);
    assert_int_equal(vocab_byte_of("<0xaF>", 6), 0xAF);
    assert_int_equal(vocab_byte_of("<0xG0>", 6), -1);
    assert_int_equal(vocab_byte_of("<0x00", 5), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_texts_are_not_found),
        cmocka_unit_test(words_of_all_lengths_equal_the_rule),
        cmocka_unit_test(merges_follow_from_scores),
        cmocka_unit_test(bytes_map_to_their_letters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
