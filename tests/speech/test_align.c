/* Alignment against an exhaustive search over all paths, on weights with a known alignment, and on degenerate inputs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/align.h"

#include <math.h>

#include "support/support.h"

enum { HEADS = 3, ROWS = 8, POSITIONS = 64 };

static float weights[HEADS][ROWS][POSITIONS];

/* ---- an independent implementation of the definition ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Position i reflected at both ends. */
static int mirrored(int i, int n) {
    return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
}

static double share(int head, int row, int i, int n) {
    double sum = 0.0;
    for (int k = 0; k < n; k++) sum += (double)weights[head][row][k];
    return (double)weights[head][row][i] / sum;
}

static double normalised(int head, int row, int i, int n_rows, int n) {
    double mean = 0.0, square = 0.0;
    for (int r = 0; r < n_rows; r++) mean += share(head, r, i, n) / n_rows;
    for (int r = 0; r < n_rows; r++) square += pow(share(head, r, i, n) - mean, 2.0) / n_rows;
    return square > 0.0 ? (share(head, row, i, n) - mean) / sqrt(square) : 0.0;
}

static double score(int row, int i, int n_rows, int n) {
    double sum = 0.0;
    for (int head = 0; head < HEADS; head++) {
        double around[7];
        for (int k = 0; k < 7; k++) around[k] = normalised(head, row, n > 3 ? mirrored(i + k - 3, n) : i, n_rows, n);
        qsort(around, 7, sizeof *around, compare_doubles);
        sum += around[3];
    }
    return sum / HEADS;
}

/* The best sum of scores over all paths from (row, i) to the last cell, and over those that begin their rows where
 * `begins` says (NULL: anywhere). */
static double best_path(const double *scores, int n_rows, int n, int row, int i, const int64_t *begins) {
    static const int steps[3][2] = {{0, 1}, {1, 0}, {1, 1}};
    double own = scores[row * n + i], best = -INFINITY;
    if (row == n_rows - 1 && i == n - 1) return own;
    for (int k = 0; k < 3; k++) {
        int r = row + steps[k][0], j = i + steps[k][1];
        if (r >= n_rows || j >= n || (begins && steps[k][0] && begins[r] != j)) continue;
        best = fmax(best, best_path(scores, n_rows, n, r, j, begins));
    }
    return own + best;
}

static void the_alignment_is_the_best_of_all_paths(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (int round = 0; round < 300; round++) {
        int n_rows = 2 + (int)(test_random(&seed) % 5), n = 1 + (int)(test_random(&seed) % 8);
        int first = (int)(test_random(&seed) % (uint64_t)n_rows), n_used = n_rows - first;
        if (n_used > 1 && round % 3 == 0) n_used--;
        for (size_t i = 0; i < sizeof weights / sizeof(float); i++) {
            (&weights[0][0][0])[i] = (float)exp(test_uniform(&seed, -4.0, 4.0));
        }
        double scores[ROWS * POSITIONS];
        for (int r = 0; r < n_used; r++) {
            for (int i = 0; i < n; i++) scores[r * n + i] = score(first + r, i, n_rows, n);
        }
        /* Rows from n_rows on and positions from n on are filled with other numbers. */
        float packed[HEADS * ROWS * POSITIONS];
        for (int h = 0; h < HEADS; h++)
            memcpy(packed + h * n_rows * POSITIONS, weights[h], sizeof(float) * (size_t)n_rows * POSITIONS);
        const speech_attention attention = {packed, HEADS, (size_t)n_rows, POSITIONS, (size_t)n};
        int64_t begins[ROWS];
        assert_ok(speech_align(begins, &attention, (size_t)first, (size_t)n_used));
        assert_int_equal(begins[0], 0);
        double best = best_path(scores, n_used, n, 0, 0, NULL), got = best_path(scores, n_used, n, 0, 0, begins);
        if (!(fabs(best - got) < 1e-4))
            fail_msg("round %d: %d rows, %d positions: %g, the best is %g", round, n_used, n, got, best);
    }
}

/* ---- known alignments ---- */

static void known_alignments_are_found(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int round = 0; round < 100; round++) {
        int64_t wanted[ROWS], got[ROWS];
        int prompt = 2;
        wanted[0] = 0;
        for (int r = 1; r < ROWS - prompt; r++) wanted[r] = wanted[r - 1] + 4 + (int64_t)(test_random(&seed) % 6);
        for (int h = 0; h < HEADS; h++) {
            for (int r = 0; r < ROWS; r++) {
                for (int i = 0; i < POSITIONS; i++) {
                    int k = r - prompt;
                    bool inside = k >= 0 && i >= wanted[k] && (k + 1 == ROWS - prompt || i < wanted[k + 1]);
                    weights[h][r][i] = (float)(test_uniform(&seed, 0.001, 0.002) + (inside ? 0.1 : 0.0));
                }
            }
        }
        const speech_attention attention = {&weights[0][0][0], HEADS, ROWS, POSITIONS, POSITIONS - (size_t)(round % 4)};
        assert_ok(speech_align(got, &attention, (size_t)prompt, ROWS - (size_t)prompt));
        for (int r = 0; r < ROWS - prompt; r++) assert_int_equal(got[r], wanted[r]);
    }
}

static void degenerate_weights_give_an_alignment(void **state) {
    (void)state;
    int64_t begins[ROWS];
    for (size_t i = 0; i < sizeof weights / sizeof(float); i++) (&weights[0][0][0])[i] = 1.0f;
    speech_attention attention = {&weights[0][0][0], HEADS, ROWS, POSITIONS, POSITIONS};
    assert_ok(speech_align(begins, &attention, 0, ROWS)); /* all weights are equal */
    for (int r = 0; r < ROWS; r++) assert_true(begins[r] >= (r ? begins[r - 1] : 0) && begins[r] < POSITIONS);
    memset(weights, 0, sizeof weights);
    assert_ok(speech_align(begins, &attention, 0, ROWS));
    for (size_t i = 0; i < sizeof weights / sizeof(float); i++) (&weights[0][0][0])[i] = i % 3 ? NAN : INFINITY;
    assert_ok(speech_align(begins, &attention, 0, ROWS));
    for (int r = 0; r < ROWS; r++) assert_true(begins[r] >= (r ? begins[r - 1] : 0) && begins[r] < POSITIONS);
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, 0, 0));
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, 3, ROWS - 2));
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, ROWS + 1, 1));
    attention.n_positions = 0;
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, 0, 1));
    attention.n_positions = POSITIONS + 1;
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, 0, 1));
    attention = (speech_attention){&weights[0][0][0], 0, ROWS, POSITIONS, POSITIONS};
    assert_fails(MN_E_ARG, "nothing to align", speech_align(begins, &attention, 0, 1));
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const speech_attention attention = {&weights[0][0][0], HEADS, ROWS, POSITIONS, POSITIONS};
    int64_t begins[ROWS], live = mem_count().live, k = 1;
    for (;; k++) {
        mem_fail_after(k);
        mn_status status = speech_align(begins, &attention, 0, ROWS);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
    }
    assert_true(k > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_alignment_is_the_best_of_all_paths),
        cmocka_unit_test(known_alignments_are_found),
        cmocka_unit_test(degenerate_weights_give_an_alignment),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
