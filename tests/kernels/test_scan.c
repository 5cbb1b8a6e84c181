/* Mamba's convolution and scan at every level of this machine: against the recurrences in double with bounds that are
 * carried along, and to the bit for any cut of tokens and channels. u = 2^-24 is half a unit in the last place of 1.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/kernel_check.h"

enum { WIDEST = 40, MOST_TOKENS = 37, MOST_STATES = 40 };

static const double u24 = 0x1p-24;

/* One layer and its inputs; blocks of exactly the size that is needed, so that a sanitizer sees one too many. */
typedef struct fixture {
    int n_tokens, n_channels, n_states, width;
    size_t stride; /* of the rows of tokens */
    float *u, *dt, *gate, *b, *c;
    float *conv_weight, *conv_bias, *a, *d;
    float *conv_state, *state;
} fixture;

static float *random_block(uint64_t *seed, size_t n, double lo, double hi) {
    float *x = mem_alloc_raw(n + 1, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)test_uniform(seed, lo, hi);
    return x;
}

static fixture fixture_open(uint64_t *seed, int n_tokens, int n_channels, int n_states, int width) {
    const size_t tokens = (size_t)n_tokens, channels = (size_t)n_channels, states = (size_t)n_states;
    fixture w = {n_tokens, n_channels, n_states, width, .stride = channels + 3};
    const size_t values = tokens * w.stride;
    w.u = random_block(seed, values, -3, 3);
    w.dt = random_block(seed, values, -12, 4);
    w.gate = random_block(seed, values, -6, 6);
    w.b = random_block(seed, tokens * (states + 1), -1, 1);
    w.c = random_block(seed, tokens * (states + 1), -1, 1);
    w.conv_weight = random_block(seed, (size_t)width * channels, -1, 1);
    w.conv_bias = random_block(seed, channels, -1, 1);
    w.a = random_block(seed, states * channels, -3, 3);
    w.d = random_block(seed, channels, -2, 2);
    w.conv_state = random_block(seed, (size_t)(width - 1) * channels, -3, 3);
    w.state = random_block(seed, states * channels, -2, 2);
    for (size_t i = 0; i < states * channels; i++) w.a[i] = -expf(w.a[i]);
    if (values > 3) w.dt[0] = 30, w.dt[1] = -120, w.dt[2] = 0, w.dt[3] = 20.5f;
    return w;
}

static void fixture_close(fixture *w) {
    float *blocks[] = {w->u,         w->dt, w->gate, w->b,          w->c,    w->conv_weight,
                       w->conv_bias, w->a,  w->d,    w->conv_state, w->state};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) mem_free(blocks[i]);
}

static conv_job conv_of(const fixture *w, const float *state_in, float *state_out, float *out) {
    return (conv_job){.n_tokens = w->n_tokens,
                      .n_channels = w->n_channels,
                      .end = w->n_channels,
                      .width = w->width,
                      .u = w->u,
                      .weight = w->conv_weight,
                      .bias = w->conv_bias,
                      .state_in = state_in,
                      .state_out = state_out,
                      .out = out,
                      .u_stride = w->stride,
                      .out_stride = w->stride};
}

static scan_job scan_of(const fixture *w, const float *state_in, float *state_out, float *y) {
    return (scan_job){.n_tokens = w->n_tokens,
                      .n_channels = w->n_channels,
                      .end = w->n_channels,
                      .n_states = w->n_states,
                      .u = w->u,
                      .dt = w->dt,
                      .gate = w->gate,
                      .a = w->a,
                      .b = w->b,
                      .c = w->c,
                      .d = w->d,
                      .state_in = state_in,
                      .state_out = state_out,
                      .y = y,
                      .u_stride = w->stride,
                      .dt_stride = w->stride,
                      .gate_stride = w->stride,
                      .b_stride = (size_t)w->n_states + 1,
                      .c_stride = (size_t)w->n_states + 1,
                      .y_stride = w->stride};
}

static void assert_within(double got, double expected, double allowed, const char *what, int t, int c) {
    if (fabs(got - expected) <= allowed) return;
    fail_msg("%s: token %d, channel %d is %.9g, expected %.9g +- %.3g", what, t, c, got, expected, allowed);
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static double softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* ---- against double ---- */

static double conv_input(const fixture *w, bool has_state, int t, int c) {
    if (t >= 0) return (double)w->u[(size_t)t * w->stride + (size_t)c];
    return has_state ? (double)w->conv_state[(w->width - 1 + t) * w->n_channels + c] : 0;
}

/* A chain of `width` roundings of at most the sum of magnitudes, of which the function passes on 1.1; 12 of its own. */
static void check_conv(const fixture *w, bool has_state, const float *out, const float *state) {
    for (int c = 0; c < w->n_channels; c++) {
        for (int t = 0; t < w->n_tokens; t++) {
            double sum = (double)w->conv_bias[c], size = fabs(sum);
            for (int j = 0; j < w->width; j++) {
                double term =
                    (double)w->conv_weight[j * w->n_channels + c] * conv_input(w, has_state, t - w->width + 1 + j, c);
                sum += term;
                size += fabs(term);
            }
            double expected = silu(sum), allowed = (1.1 * (w->width + 1) * size + 12 * fabs(expected)) * u24;
            assert_within((double)out[(size_t)t * w->stride + (size_t)c], expected, allowed, "conv", t, c);
        }
        for (int j = 0; j < w->width - 1; j++) {
            double expected = conv_input(w, has_state, w->n_tokens - w->width + 1 + j, c);
            assert_true((double)state[j * w->n_channels + c] == expected);
        }
    }
}

/* The recurrence of one channel; beside each state h what it may be wrong by. In units of u24: 16 of the softplus; of
 * an exponential 8, and of its argument x 19 |x| (that of dt and three products); 18 of what comes in; a rounding of
 * the sum. The output adds a rounding each state, and the gate 13. */
static void check_scan_channel(const fixture *w, bool has_state, bool gated, int c, const float *y,
                               const float *state) {
    double h[SCAN_MAX_STATES], wrong[SCAN_MAX_STATES] = {0};
    const int n = w->n_states;
    for (int s = 0; s < n; s++) h[s] = has_state ? (double)w->state[s * w->n_channels + c] : 0;
    for (int t = 0; t < w->n_tokens; t++) {
        size_t at = (size_t)t * w->stride + (size_t)c;
        double u = (double)w->u[at], dt = softplus((double)w->dt[at]);
        double sum = (double)w->d[c] * u, size = fabs(sum), allowed = 0;
        for (int s = 0; s < n; s++) {
            double x = dt * (double)w->a[s * w->n_channels + c], kept = exp(x);
            double in = dt * u * (double)w->b[t * (n + 1) + s], of_state = (double)w->c[t * (n + 1) + s];
            wrong[s] = kept * wrong[s] + u24 * (fabs(kept * h[s]) * (9 + 19 * fabs(x)) + 18 * fabs(in));
            h[s] = kept * h[s] + in;
            wrong[s] = 1.001 * (wrong[s] + u24 * fabs(h[s])) + 1e-40;
            sum += of_state * h[s];
            size += fabs(of_state * h[s]);
            allowed += fabs(of_state) * wrong[s];
        }
        allowed += (n + 2) * u24 * size;
        double factor = gated ? silu((double)w->gate[at]) : 1;
        allowed = 1.001 * (allowed + 13 * u24 * fabs(sum)) * fabs(factor);
        assert_within((double)y[at], sum * factor, allowed, "scan", t, c);
    }
    for (int s = 0; s < n; s++) { assert_within((double)state[s * w->n_channels + c], h[s], wrong[s], "state", s, c); }
}

static void check_fixture(const kernel_table *table, const fixture *w, bool has_state, bool gated) {
    const size_t values = (size_t)w->n_tokens * w->stride * sizeof(float);
    guarded out = guarded_make(values, 4), y = guarded_make(values, 4);
    guarded conv_state = guarded_make((size_t)((w->width - 1) * w->n_channels) * sizeof(float), 4);
    guarded state = guarded_make((size_t)(w->n_states * w->n_channels) * sizeof(float), 4);
    conv_job conv = conv_of(w, has_state ? w->conv_state : NULL, conv_state.data, out.data);
    scan_job scan = scan_of(w, has_state ? w->state : NULL, state.data, y.data);
    if (!gated) scan.gate = NULL;
    table->causal_conv(&conv);
    table->selective_scan(&scan);
    check_conv(w, has_state, out.data, conv_state.data);
    for (int c = 0; c < w->n_channels; c++) check_scan_channel(w, has_state, gated, c, y.data, state.data);
    for (size_t i = 0; i < (size_t)w->n_tokens * w->stride; i++) { /* what lies between rows was not written */
        if (i % w->stride < (size_t)w->n_channels) continue;
        assert_int_equal(((unsigned char *)out.data)[i * sizeof(float)], 0xA5);
        assert_int_equal(((unsigned char *)y.data)[i * sizeof(float)], 0xA5);
    }
    guarded_free(&out), guarded_free(&y), guarded_free(&conv_state), guarded_free(&state);
}

/* kernels: causal_conv, selective_scan */
static void recurrences_are_as_defined(void **state) {
    (void)state;
    static const int states[] = {16, 1, 5, 17, MOST_STATES}, widths[] = {4, 1, 2, 7, 3};
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        uint64_t seed = 3;
        kernel_table_fill(&table, level);
        for (int kind = 0; kind < 120; kind++) {
            int n_channels = 1 + (int)(test_random(&seed) % WIDEST), n_tokens = (int)(test_random(&seed) % MOST_TOKENS);
            fixture w = fixture_open(&seed, kind % 4 ? n_tokens : kind / 4 % 5, n_channels, states[kind % 5],
                                     widths[kind / 5 % 5]);
            check_fixture(&table, &w, kind % 2, kind % 3 > 0);
            fixture_close(&w);
        }
        fixture largest = fixture_open(&seed, 4, 3, SCAN_MAX_STATES, 4);
        check_fixture(&table, &largest, true, true);
        fixture_close(&largest);
    }
}

/* ---- to the bit ---- */

/* Results of a fixture: everything at once, or in pieces. */
typedef struct result {
    float *out, *y, *conv_state, *state;
} result;

static result result_open(const fixture *w) {
    uint64_t seed = 99;
    size_t values = (size_t)w->n_tokens * w->stride, channels = (size_t)w->n_channels;
    return (result){random_block(&seed, values, 7, 8), random_block(&seed, values, 7, 8),
                    random_block(&seed, (size_t)(w->width - 1) * channels, 7, 8),
                    random_block(&seed, (size_t)w->n_states * channels, 7, 8)};
}

static void result_close(result *r) {
    mem_free(r->out), mem_free(r->y), mem_free(r->conv_state), mem_free(r->state);
}

static void assert_same(const fixture *w, const result *a, const result *b) {
    const size_t values = (size_t)w->n_tokens * w->stride, channels = (size_t)w->n_channels;
    assert_memory_equal(a->out, b->out, values * sizeof(float));
    assert_memory_equal(a->y, b->y, values * sizeof(float));
    assert_memory_equal(a->conv_state, b->conv_state, (size_t)(w->width - 1) * channels * sizeof(float));
    assert_memory_equal(a->state, b->state, (size_t)w->n_states * channels * sizeof(float));
}

/* Tokens first .. first + n - 1, channels begin .. end - 1; states go on in the result's own blocks after the first
 * piece. */
static void run_piece(const kernel_table *table, const fixture *w, const result *r, bool has_state, int first, int n,
                      int begin, int end) {
    const size_t at = (size_t)first * w->stride, row = (size_t)first * (size_t)(w->n_states + 1);
    conv_job conv = conv_of(w, first ? r->conv_state : has_state ? w->conv_state : NULL, r->conv_state, r->out + at);
    scan_job scan = scan_of(w, first ? r->state : has_state ? w->state : NULL, r->state, r->y + at);
    conv.n_tokens = scan.n_tokens = n;
    conv.begin = scan.begin = begin;
    conv.end = scan.end = end;
    conv.u += at, scan.u += at, scan.dt += at, scan.gate += at;
    scan.b += row, scan.c += row;
    table->causal_conv(&conv);
    table->selective_scan(&scan);
}

/* Each division of channels has its own division of tokens; a piece may be one token, one channel, or all. */
static void run_cut(const kernel_table *table, const fixture *w, const result *r, bool has_state, uint64_t *seed) {
    const uint64_t longest = 1 + test_random(seed) % (uint64_t)(w->n_tokens + 3);
    for (int begin = 0, end; begin < w->n_channels; begin = end) {
        end = begin + 1 + (int)(test_random(seed) % (uint64_t)(w->n_channels - begin));
        for (int first = 0, n; first < w->n_tokens; first += n) {
            n = 1 + (int)(test_random(seed) % longest);
            if (n > w->n_tokens - first) n = w->n_tokens - first;
            run_piece(table, w, r, has_state, first, n, begin, end);
        }
    }
}

static void cuts_do_not_change_a_bit(void **unused) {
    (void)unused;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        uint64_t seed = 17;
        kernel_table_fill(&table, level);
        for (int kind = 0; kind < 60; kind++) {
            int n_channels = 1 + (int)(test_random(&seed) % WIDEST),
                n_tokens = 1 + (int)(test_random(&seed) % MOST_TOKENS);
            fixture w = fixture_open(&seed, n_tokens, n_channels, kind % 3 ? 16 : 1 + kind / 2, 1 + kind % 6);
            result whole = result_open(&w), cut = result_open(&w);
            run_piece(&table, &w, &whole, kind % 2, 0, n_tokens, 0, n_channels);
            for (int round = 0; round < 4; round++) {
                run_cut(&table, &w, &cut, kind % 2, &seed);
                assert_same(&w, &whole, &cut);
            }
            result_close(&whole), result_close(&cut), fixture_close(&w);
        }
    }
}

/* No state is a state of zeros; a state may be read and written in one place; y may take the place of an input. */
static void blocks_may_be_shared(void **unused) {
    (void)unused;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        uint64_t seed = 23;
        kernel_table_fill(&table, level);
        for (int n_tokens = 0; n_tokens < 7; n_tokens++) {
            fixture w = fixture_open(&seed, n_tokens, 37, 16, 4);
            const size_t conv_values = 3 * 37, values = 16 * 37, tokens = (size_t)n_tokens * w.stride;
            result none = result_open(&w), zeros = result_open(&w);
            memset(w.conv_state, 0, conv_values * sizeof(float)), memset(w.state, 0, values * sizeof(float));
            run_piece(&table, &w, &none, false, 0, n_tokens, 0, 37);
            run_piece(&table, &w, &zeros, true, 0, n_tokens, 0, 37);
            assert_same(&w, &none, &zeros);
            conv_job conv = conv_of(&w, w.conv_state, w.conv_state, zeros.out);
            table.causal_conv(&conv);
            assert_memory_equal(w.conv_state, none.conv_state, conv_values * sizeof(float));
            float *inputs[] = {w.u, w.dt, w.gate};
            for (int i = 0; i < 3; i++) {
                float *kept = mem_alloc_raw(tokens + 1, sizeof(float));
                memcpy(kept, inputs[i], tokens * sizeof(float));
                memset(w.state, 0, values * sizeof(float));
                scan_job scan = scan_of(&w, w.state, w.state, inputs[i]);
                table.selective_scan(&scan);
                assert_memory_equal(w.state, none.state, values * sizeof(float));
                for (size_t at = 0; at < tokens; at++) {
                    if (at % w.stride < 37) assert_memory_equal(&inputs[i][at], &none.y[at], sizeof(float));
                }
                memcpy(inputs[i], kept, tokens * sizeof(float));
                mem_free(kept);
            }
            result_close(&none), result_close(&zeros), fixture_close(&w);
        }
    }
}

/* The softplus by itself, through a scan of one state that keeps nothing of the past: y = dt. Among the subnormals 4
 * units of the exponential, and those that a half and its double lose. */
static void softplus_is_accurate(void **unused) {
    (void)unused;
    FOR_LEVELS(level, CPU_SCALAR) {
        kernel_table table;
        uint64_t seed = 5;
        kernel_table_fill(&table, level);
        for (int i = 0; i < 100000; i++) {
            const float one = 1, zero = 0;
            float raw = (float)test_uniform(&seed, -1, 1) * (i % 3 == 0 ? 1.0f : i % 3 == 1 ? 25.0f : 100.0f), state, y;
            if (i < 4) raw = (float[]){20, 20.01f, 0, -0.0f}[i];
            scan_job job = {1,     1,    0,      1,  1, &one, &raw, NULL, &zero, &one, &one,
                            &zero, NULL, &state, &y, 1, 1,    1,    1,    1,     1};
            table.selective_scan(&job);
            double expected = softplus((double)raw);
            assert_within((double)y, expected, 16 * u24 * expected + 6 * 0x1p-149, "softplus", i, 0);
            if (raw > 20) assert_true(y == raw);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrences_are_as_defined),
        cmocka_unit_test(cuts_do_not_change_a_bit),
        cmocka_unit_test(blocks_may_be_shared),
        cmocka_unit_test(softplus_is_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
