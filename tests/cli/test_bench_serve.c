/* `mneme bench --serve`: what times come to, and events out of a stream.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "bench/bench_serve.h"
#include "bench/events.h"
#include "bench/latency.h"
#include "support/support.h"

/* numpy.percentile, mean, std and median of numpy 2.4.6 for these values, in double precision. */
static const double shares[] = {0, 1, 25, 50, 90, 99, 99.9, 100};
enum { N_SHARES = sizeof shares / sizeof *shares };

static const struct {
    size_t n;
    double values[11];
    double percentiles[N_SHARES], mean, std, median;
} known[] = {
    {1, {7.25}, {7.25, 7.25, 7.25, 7.25, 7.25, 7.25, 7.25, 7.25}, 7.25, 0, 7.25},
    {2, {3.5, 1.25}, {1.25, 1.2725, 1.8125, 2.375, 3.275, 3.4775, 3.4977500000000004, 3.5}, 2.375, 1.125, 2.375},
    {11,
     {71.54, 12.0, 0.25, 88.125, 13.5, 41.75, 5.0, 19.0, 250.5, 33.25, 33.25},
     {0.25, 0.7250000000000001, 12.75, 33.25, 88.125, 234.26250000000005, 248.8762500000003, 250.5},
     51.651363636363634,
     68.06029426147582,
     33.25},
};

static void assert_near(double value, double wanted) {
    if (!(fabs(value - wanted) <= 1e-12 * (1 + fabs(wanted)))) fail_msg("%.17g, expected %.17g", value, wanted);
}

/* One request for each value, answered after as many milliseconds. */
static void percentiles_are_those_of_numpy(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        timed_request requests[11] = {{0}};
        serve_metrics m;
        for (size_t i = 0; i < known[k].n; i++) {
            double start = 1000 + 3.5 * (double)i;
            requests[i] = (timed_request){
                .ok = true, .start = start, .first = start, .last = start + known[k].values[i], .output_tokens = 1};
        }
        assert_ok(latency_summarise(&m, requests, known[k].n, shares, N_SHARES));
        const latency *l = &m.times[LATENCY_E2EL];
        assert_int_equal(l->n, known[k].n);
        for (size_t i = 0; i < N_SHARES; i++) {
            if (!(fabs(l->percentiles[i] - known[k].percentiles[i]) <= 1e-9))
                fail_msg("%g %% of %zu: %.17g", shares[i], known[k].n, l->percentiles[i]);
        }
        assert_true(fabs(l->mean - known[k].mean) <= 1e-9 && fabs(l->std - known[k].std) <= 1e-9 &&
                    fabs(l->median - known[k].median) <= 1e-9);
    }
}

/* Two hundred values whose order is not that of their places. */
static void percentile_of_many(void **state) {
    static const double wanted[] = {2.125, 3.245, 31.875, 59.125, 113.15, 121.88999999999999, 124.27612500000002,
                                    124.5};
    double sorted[200];
    (void)state;
    size_t n = 0;
    for (size_t i = 1; i <= 200; i++) {
        double value = (double)(i * i * 7919 % 1009) / 8;
        size_t at = n++;
        for (; at > 0 && sorted[at - 1] > value; at--) sorted[at] = sorted[at - 1];
        sorted[at] = value;
    }
    for (size_t i = 0; i < N_SHARES; i++) assert_near(latency_percentile(sorted, n, shares[i]), wanted[i]);
}

static void counts_and_rates(void **state) {
    double gaps[] = {10, 30}, more_gaps[] = {20};
    const timed_request requests[] = {
        {.ok = true,
         .start = 0,
         .first = 100,
         .last = 140,
         .gaps = gaps,
         .n_gaps = 2,
         .input_tokens = 50,
         .output_tokens = 3},
        {.ok = true,
         .start = 50,
         .first = 80,
         .last = 100,
         .gaps = more_gaps,
         .n_gaps = 1,
         .input_tokens = 30,
         .output_tokens = 5,
         .tells_cached = true,
         .cached_tokens = 16},
        {.ok = true, .start = 150, .first = 180, .last = 190, .input_tokens = 20, .output_tokens = 1},
        {.ok = false,
         .start = 60,
         .first = 70,
         .last = 2000,
         .gaps = gaps,
         .n_gaps = 2,
         .input_tokens = 999,
         .output_tokens = 999,
         .tells_cached = true,
         .cached_tokens = 999},
    };
    serve_metrics m;
    (void)state;
    assert_ok(latency_summarise(&m, requests, 4, shares, N_SHARES));
    assert_int_equal(m.completed, 3);
    assert_int_equal(m.failed, 1);
    assert_int_equal(m.input_tokens, 100);
    assert_int_equal(m.output_tokens, 9);
    assert_int_equal(m.cached_tokens, 16);
    assert_int_equal(m.peak_concurrent, 3); /* the first two and the failed one */
    assert_near(m.duration_ms, 2000);
    assert_near(m.request_throughput, 1.5);
    assert_near(m.output_throughput, 4.5);
    assert_near(m.total_throughput, 54.5);
    assert_int_equal(m.times[LATENCY_TTFT].n, 3);
    assert_near(m.times[LATENCY_TTFT].mean, (100. + 30 + 30) / 3);
    assert_int_equal(m.times[LATENCY_TPOT].n, 2); /* the third has one token */
    assert_near(m.times[LATENCY_TPOT].mean, (40. / 2 + 20. / 4) / 2);
    assert_int_equal(m.times[LATENCY_ITL].n, 3);
    assert_near(m.times[LATENCY_ITL].median, 20);
    assert_near(m.times[LATENCY_E2EL].percentiles[7], 140);
}

static void nothing_succeeded(void **state) {
    const timed_request requests[] = {{.start = 5, .last = 5}, {.start = 5, .last = 5}};
    serve_metrics m;
    (void)state;
    assert_ok(latency_summarise(&m, requests, 2, shares, N_SHARES));
    assert_int_equal(m.failed, 2);
    assert_int_equal(m.cached_tokens, -1);
    assert_true(m.request_throughput == 0 && m.duration_ms == 0);
    for (int kind = 0; kind < N_LATENCIES; kind++) assert_int_equal(m.times[kind].n, 0);
}

/* The share of gaps above t is exp(-rate t), and gaps that follow each other do not depend on each other. */
static void arrivals_are_a_poisson_process(void **state) {
    enum { N = 100000 };
    const serve_plan plan = {.request_rate = 40, .seed = 7}, other = {.request_rate = 40, .seed = 8};
    double sum = 0, product = 0, before = 0;
    size_t above[4] = {0}, different = 0;
    (void)state;
    for (size_t i = 0; i < N; i++) {
        double gap = serve_arrival_gap(&plan, i);
        assert_true(gap >= 0 && gap == serve_arrival_gap(&plan, i));
        sum += gap;
        product += gap * before;
        before = gap;
        different += gap != serve_arrival_gap(&other, i);
        for (size_t k = 0; k < 4; k++) above[k] += gap > 25 * (double)(k + 1);
    }
    /* 25 ms on average; five standard deviations of each figure */
    assert_true(fabs(sum / N - 25) < 5 * 25 / sqrt(N));
    assert_true(fabs(product / N - 625) < 5 * 625 * sqrt(3. / N));
    for (size_t k = 0; k < 4; k++) {
        double share = exp(-(double)(k + 1));
        assert_true(fabs((double)above[k] / N - share) < 5 * sqrt(share * (1 - share) / N));
    }
    assert_true(different > N - 10);
    assert_true(serve_arrival_gap(&(serve_plan){.request_rate = INFINITY}, 3) == 0);
}

/* ---- events ---- */

static mn_status note(void *user, const char *data, size_t n) {
    bytes *all = user;
    bytes_append_text(all, "<");
    bytes_append(all, data, n);
    bytes_append_text(all, ">");
    return n == 4 && memcmp(data, "stop", 4) == 0 ? status_fail(MN_E_FORMAT, "stopped") : MN_OK;
}

static const char stream_text[] = "\xEF\xBB\xBF"
                                  "data: one\n\n"
                                  ": a comment\r\n"
                                  "event: x\r\ndata:two\r\ndata:  lines\r\n\r\n"
                                  "data: {\"a\": \"b:c\"}\rid: 7\r\r"
                                  "data\n\n"
                                  "database: no\n\n"
                                  "data: [DONE]\n\n"
                                  "data: unfinished\n";
static const char stream_events[] = "<one><two\n lines><{\"a\": \"b:c\"}><><[DONE]>";

static void events_in_any_cut(void **state) {
    const size_t n = sizeof stream_text - 1;
    (void)state;
    for (size_t cut = 0; cut <= n; cut++) {
        for (size_t piece = 1; piece <= n;
             piece += cut ? n : 1) { /* pieces of every size, and every place of one cut */
            event_reader r = {0};
            bytes all = {0};
            for (size_t at = 0; at < n;) {
                size_t length = cut ? (at < cut ? cut : n - cut) : piece;
                if (length > n - at) length = n - at;
                assert_ok(events_feed(&r, stream_text + at, length, note, &all));
                at += length;
            }
            if (strcmp(bytes_text(&all), stream_events) != 0)
                fail_msg("cut at %zu, pieces of %zu: %s", cut, piece, bytes_text(&all));
            bytes_clear(&all);
            events_clear(&r);
        }
    }
}

static void events_that_end_the_reading(void **state) {
    event_reader r = {0};
    bytes all = {0}, large = {0};
    (void)state;
    assert_fails(MN_E_FORMAT, "stopped", events_feed(&r, "data: stop\n\ndata: more\n\n", 24, note, &all));
    assert_string_equal(bytes_text(&all), "<stop>");
    events_clear(&r);
    bytes_append_text(&large, "data: ");
    while (large.n < 1 << 20) bytes_append_text(&large, "0123456789abcdef");
    mn_status status = MN_OK;
    for (int i = 0; i < 20 && status == MN_OK; i++) status = events_feed(&r, large.data, large.n, note, &all);
    assert_fails(MN_E_FORMAT, "16777216 bytes", status);
    events_clear(&r);
    bytes_clear(&large);
    bytes_clear(&all);
}

/* Every allocation fails once. */
static void events_without_memory(void **state) {
    (void)state;
    for (int k = 1;; k++) {
        event_reader r = {0};
        bytes all = {0};
        bytes_append(&all, "", 0);
        mem_fail_after(k);
        mn_status status = events_feed(&r, stream_text, sizeof stream_text - 1, note, &all);
        mem_fail_after(0);
        events_clear(&r);
        bool whole = !all.failed && strcmp(bytes_text(&all), stream_events) == 0;
        assert_true(status == MN_E_NOMEM || all.failed || whole);
        bytes_clear(&all);
        if (status == MN_OK && whole) {
            assert_true(k > 3);
            return;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_those_of_numpy),
        cmocka_unit_test(percentile_of_many),
        cmocka_unit_test(counts_and_rates),
        cmocka_unit_test(nothing_succeeded),
        cmocka_unit_test(arrivals_are_a_poisson_process),
        cmocka_unit_test(events_in_any_cut),
        cmocka_unit_test(events_that_end_the_reading),
        cmocka_unit_test(events_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
