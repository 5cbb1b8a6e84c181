/* From ids to segments: recorded transcripts of long recordings, cases by hand, random ids.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/segments.h"

#include <math.h>

#include "support/speech/transcripts.h"

/* ---- recorded ---- */

/* A list of recorded segments that is divided into windows again. */
typedef struct window_search {
    const transcript *t;
    const json *list;
    int64_t total; /* frames */
    int n_windows;
    size_t
        n_left_out; /* windows to which ids were appended after the last pair, as the model may have generated more */
} window_search;

static bool is_same(double seconds, int64_t frames) {
    return fabs(seconds - (double)frames / SPEECH_FRAMES_PER_SECOND) < 1e-6;
}

static double number(const json *value) {
    return value->kind == JSON_INT ? (double)value->integer : value->real;
}

/* Whether list[at..at + k) are the segments of a window at `seek`; recorded segments end with both timestamps of the
 * last pair. */
static bool is_window(window_search *r, size_t at, size_t k, int64_t seek, bool add_tail, int64_t *next) {
    static int32_t ids[MOST_IDS];
    static speech_segment segments[MOST_IDS];
    size_t n = 0, ends[64] = {0};
    if (k > 64) return false;
    for (size_t i = 0; i < k; i++) {
        n += transcript_ids(json_get(&r->list->items[at + i], "tokens"), ids + n);
        ends[i] = n;
    }
    const speech_tokens *t = &r->t->tokens;
    bool is_pair = n >= 2 && speech_is_timestamp(t, ids[n - 1]) && speech_is_timestamp(t, ids[n - 2]);
    if (add_tail && !is_pair) return false;
    if (add_tail) ids[n++] = 3;
    int64_t advance, n_frames = r->t->window < r->total - seek ? r->t->window : r->total - seek;
    size_t n_found = speech_segments(segments, &advance, t, ids, n, seek, n_frames);
    *next = seek + advance;
    bool is = n_found == k;
    for (size_t i = 0; is && i < k; i++) {
        const json *wanted = &r->list->items[at + i];
        size_t end = i + 1 == k && is_pair ? ends[i] - 1 : ends[i];
        is = segments[i].begin == (i ? segments[i - 1].end : 0) && segments[i].end == end &&
             is_same(number(json_get(wanted, "start")), segments[i].start) &&
             is_same(number(json_get(wanted, "end")), segments[i].stop);
    }
    return is;
}

static bool divide_into_windows(window_search *r, size_t at, int64_t seek) {
    if (at == r->list->n) return seek == r->total;
    for (size_t k = 1; at + k <= r->list->n && seek < r->total; k++) {
        int64_t next, next_with_tail;
        if (!is_window(r, at, k, seek, false, &next) || !divide_into_windows(r, at + k, next)) continue;
        if (is_window(r, at, k, seek, true, &next_with_tail)) {
            assert_int_equal(next, next_with_tail);
            r->n_left_out++;
        }
        r->n_windows++;
        return true;
    }
    return false;
}

static void check_recorded(const transcript *t, const json *run, const char *frames_key, window_search *all) {
    const json *list = run ? json_get(run, "segments") : NULL;
    if (!list) return;
    window_search r = {.t = t, .list = list, .total = json_get(t->root, frames_key)->integer};
    if (!divide_into_windows(&r, 0, 0)) fail_msg("%s: its segments do not follow from windows of its ids", t->name);
    all->n_windows += r.n_windows;
    all->n_left_out += r.n_left_out;
    all->total++;
}

static void visit_recorded(const transcript *t, void *user) {
    check_recorded(t, transcript_run(t, "plain"), "mel_frames", user);
    check_recorded(t, transcript_run(t, "conditioned"), "mel_frames", user);
    if (json_is_string(json_get(t->root, "kind"), "long")) check_recorded(t, t->root, "frames", user);
}

static void recorded_segments_follow_from_windows(void **state) {
    (void)state;
    window_search all = {0};
    transcripts_visit(visit_recorded, &all);
    assert_int_equal(all.total, 16);
    assert_true(all.n_windows > 40 && all.n_left_out > 15);
}

/* ---- by hand; ids of tiny80: 212 is 0.00 s ---- */

enum { EOS = 200, ZERO = 212 };

static void expect(const int32_t *ids, size_t n, int64_t seek, int64_t n_frames, size_t n_wanted,
                   const speech_segment *wanted, int64_t wanted_advance) {
    speech_tokens t;
    speech_segment got[32];
    int64_t advance;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    assert_int_equal(speech_segments(got, &advance, &t, ids, n, seek, n_frames), n_wanted);
    for (size_t i = 0; i < n_wanted; i++) {
        assert_int_equal(got[i].begin, wanted[i].begin);
        assert_int_equal(got[i].end, wanted[i].end);
        assert_int_equal(got[i].start, wanted[i].start);
        assert_int_equal(got[i].stop, wanted[i].stop);
    }
    assert_int_equal(advance, wanted_advance);
    speech_tokens_close(&t);
}
#define EXPECT(ids, seek, n_frames, wanted, advance)                                                                   \
    expect(ids, sizeof(ids) / sizeof *(ids), seek, n_frames, sizeof(wanted) / sizeof *(wanted), wanted, advance)

static void segments_follow_the_rules(void **state) {
    (void)state;
    const int32_t cut[] = {ZERO, 5, 6, ZERO + 20, ZERO + 22, 7, ZERO + 30, ZERO + 30, 8, 9};
    const speech_segment cut_segments[] = {{0, 4, 1000, 1040}, {4, 7, 1044, 1060}};
    EXPECT(cut, 1000, 200, cut_segments, 60);
    const int32_t single[] = {ZERO + 1, 5, ZERO + 20, ZERO + 22, 7, ZERO + 30};
    const speech_segment single_segments[] = {{0, 3, 2, 40}, {3, 6, 44, 60}};
    EXPECT(single, 0, 200, single_segments, 200);
    const int32_t lone[] = {ZERO + 5, 5, 6, ZERO + 40};
    const speech_segment lone_segments[] = {{0, 4, 100, 180}};
    EXPECT(lone, 100, 150, lone_segments, 150);
    const int32_t open[] = {ZERO, 5, 6};
    const speech_segment open_segments[] = {{0, 3, 100, 251}};
    EXPECT(open, 100, 151, open_segments, 151);
    const int32_t plain[] = {5, 6};
    const speech_segment plain_segments[] = {{0, 2, 7, 207}};
    EXPECT(plain, 7, 200, plain_segments, 200);
    expect(plain, 0, 7, 200, 1, (const speech_segment[]){{0, 0, 7, 207}}, 200);
    /* After the recording's end: segments are kept, but the next window does not begin after the end. */
    const int32_t beyond[] = {ZERO, 5, ZERO + 90, ZERO + 90, 4};
    const speech_segment beyond_segments[] = {{0, 3, 300, 480}};
    EXPECT(beyond, 300, 120, beyond_segments, 120);
}

/* Sequences that the rules forbid, in case they occur: a pair at 0 must still advance. */
static void every_window_advances(void **state) {
    (void)state;
    const int32_t still[] = {ZERO, 5, ZERO, ZERO, 6};
    const speech_segment still_segments[] = {{0, 3, 40, 40}};
    EXPECT(still, 40, 200, still_segments, 200);
    const int32_t back[] = {5, ZERO + 9, ZERO + 3, 6, ZERO + 2, ZERO + 1};
    const speech_segment back_segments[] = {{0, 2, 40, 58}, {2, 5, 46, 46}};
    EXPECT(back, 40, 200, back_segments, 4);
}

static void any_ids_give_ordered_segments(void **state) {
    (void)state;
    enum { MOST = 24 };
    speech_tokens t;
    assert_ok(speech_tokens_open(&t, data_path("golden/whisper/tiny80")));
    uint64_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        int32_t ids[MOST], text[MOST];
        speech_segment segments[MOST + 1];
        size_t n = test_random(&seed) % (MOST + 1), n_text = 0, n_found_text = 0;
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(test_random(&seed) % 2 ? ZERO + test_random(&seed) % 101 : test_random(&seed) % 212);
        }
        int64_t seek = (int64_t)(test_random(&seed) % 1000), n_frames = (int64_t)(test_random(&seed) % 201), advance;
        size_t n_segments = speech_segments(segments, &advance, &t, ids, n, seek, n_frames);
        assert_true(n_segments >= 1 && n_segments <= n + 1);
        assert_true(n_frames == 0 ? advance == 0 : advance >= 1 && advance <= n_frames);
        for (size_t i = 0; i < n_segments; i++) {
            assert_int_equal(segments[i].begin, i ? segments[i - 1].end : 0);
            assert_true(segments[i].end <= n && segments[i].stop >= segments[i].start && segments[i].start >= seek);
            n_found_text += speech_text_ids(text, &t, ids + segments[i].begin, segments[i].end - segments[i].begin);
        }
        for (size_t i = 0; i < segments[n_segments - 1].end; i++) n_text += ids[i] < EOS;
        assert_int_equal(n_found_text, n_text);
    }
    speech_tokens_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_segments_follow_from_windows),
        cmocka_unit_test(segments_follow_the_rules),
        cmocka_unit_test(every_window_advances),
        cmocka_unit_test(any_ids_give_ordered_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
