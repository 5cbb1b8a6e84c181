/* Mel band energies against the definition in double precision, and against the published filters.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "speech/mel.h"
#include "support/speech/mel_oracle.h"

enum { N_FRAMES = 5, N_SAMPLES = (N_FRAMES - 1) * MEL_HOP + MEL_WINDOW };
static const double pi = 3.14159265358979323846;

static void energies_equal_the_definition(void **state) {
    (void)state;
    static const int bands[] = {80, 128, 1, 23};
    float samples[N_SAMPLES], energies[N_FRAMES * 128];
    uint64_t seed = 11;
    for (int i = 0; i < N_SAMPLES; i++) {
        samples[i] = (float)(test_uniform(&seed, -0.2, 0.2) + 0.3 * sin(0.07 * i) + 0.1 * sin(1e-4 * i * i));
    }
    for (size_t k = 0; k < sizeof bands / sizeof *bands; k++) {
        mel *m = NULL;
        assert_ok(mel_open(&m, bands[k]));
        assert_int_equal(mel_bands(m), bands[k]);
        mel_energies(m, samples, N_FRAMES, energies);
        for (int frame = 0; frame < N_FRAMES; frame++) {
            double oracle[128];
            mel_oracle(samples + frame * MEL_HOP, bands[k], oracle);
            for (int band = 0; band < bands[k]; band++) {
                double got = (double)energies[frame * bands[k] + band];
                double wanted = oracle[band];
                if (!(fabs(got - wanted) <= 2e-5 * wanted + 1e-9))
                    fail_msg("band %d of %d in frame %d: %.9g, expected %.9g", band, bands[k], frame, got, wanted);
            }
        }
        mel_close(&m);
        assert_null(m);
    }
}

/* A cosine of 40 Hz * bin has the power 100^2 in its bin and 50^2 in the adjacent ones. The weights are those of
 * mel_filters.npz, published with Whisper. */
static void filters_equal_the_published_ones(void **state) {
    (void)state;
    static const struct {
        int n_bands, band, first;
        double weights[4]; /* weights of bins from `first` on; the one before `first` is 0 */
        int n;             /* bins that are checked: for each, the weight of the next must be known */
    } filters[] = {{80, 0, 1, {.02486259}, 3},
                   {80, 1, 1, {.00199082, .02287177}, 3},
                   {80, 40, 42, {.00541111, .01473557, .00651819}, 3},
                   {80, 79, 186, {.00036674, .00083307, .00129940, .00176573}, 3},
                   {128, 0, 1, {.01237399}, 3},
                   {128, 127, 191, {.00047570, .00161717, .00275865}, 2}};
    for (size_t k = 0; k < sizeof filters / sizeof *filters; k++) {
        mel *m = NULL;
        assert_ok(mel_open(&m, filters[k].n_bands));
        for (int i = 0; i < filters[k].n; i++) {
            float samples[MEL_WINDOW], energies[128];
            const double *weight = filters[k].weights + i;
            double wanted = 10000 * weight[0] + 2500 * weight[1] + (i > 0 ? 2500 * weight[-1] : 0);
            for (int j = 0; j < MEL_WINDOW; j++) {
                samples[j] = (float)cos(2 * pi * (filters[k].first + i) * j / MEL_WINDOW);
            }
            mel_energies(m, samples, 1, energies);
            double got = (double)energies[filters[k].band];
            if (fabs(got - wanted) > 3e-4 + 1e-5 * wanted)
                fail_msg("%d bands, band %d, bin %d: %g, expected %g", filters[k].n_bands, filters[k].band,
                         filters[k].first + i, got, wanted);
        }
        mel_close(&m);
    }
}

static void levels_equal_the_definition(void **state) {
    (void)state;
    float energies[] = {0, 1e-30f, 1e-10f, 1e-4f, 1, 100, 1e6f};
    static const float wanted[] = {0.5f, 0.5f, 0.5f, 0.5f, 1, 1.5f, 2.5f}; /* maximum 10^6: the floor is 10^-2 */
    float maximum = mel_maximum(energies, 7);
    assert_true(fabsf(maximum - 6) < 1e-6f);
    mel_levels(energies, 7, maximum);
    for (int i = 0; i < 7; i++) assert_true(fabsf(energies[i] - wanted[i]) < 1e-6f);
    float nothing[] = {0, 0};
    maximum = mel_maximum(nothing, 2);
    assert_true(maximum == -10);
    mel_levels(nothing, 2, maximum);
    assert_true(nothing[0] == -1.5f && nothing[1] == -1.5f);
}

static void invalid_numbers_of_bands_are_refused(void **state) {
    (void)state;
    static const int bad[] = {0, -1, MEL_MOST_BANDS + 1, INT32_MAX, INT32_MIN};
    mel *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(MN_E_ARG, "mel bands, allowed: 1 to 256", mel_open(&m, bad[i]));
        assert_null(m);
    }
    for (int n = 1; n <= MEL_MOST_BANDS; n++) { /* the filters are allocated */
        assert_ok(mel_open(&m, n));
        mel_close(&m);
    }
    mel_close(&m);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t before = mem_count().live;
    for (int64_t k = 1; k <= 2; k++) {
        mel *m = NULL;
        mem_fail_after(k);
        mn_status status = mel_open(&m, 80);
        mem_fail_after(0);
        assert_int_equal(status, MN_E_NOMEM);
        assert_null(m);
        assert_int_equal(mem_count().live, before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(energies_equal_the_definition), cmocka_unit_test(filters_equal_the_published_ones),
        cmocka_unit_test(levels_equal_the_definition),   cmocka_unit_test(invalid_numbers_of_bands_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
