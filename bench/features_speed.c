/* Time and memory of the features of recordings: a pass that finds the maximum, then every window of 3000 frames. One
 * line per file: seconds of sound, ms of the first pass, ms of the windows, ms of the windows' arithmetic alone, peak
 * MiB.
 * usage: bench_features [-m BANDS] FILE...
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench_program.h"
#include "speech/features.h"
#include "speech/mel.h"

enum { WINDOW = 3000 };

static double peak_mib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Milliseconds for as many frames of noise. */
static double arithmetic(int n_bands, int64_t n_frames) {
    size_t n_samples = (WINDOW - 1) * MEL_HOP + MEL_WINDOW;
    float *samples = must_have(mem_alloc_raw(n_samples, sizeof *samples));
    float *levels = must_have(mem_alloc_raw((size_t)WINDOW * (size_t)n_bands, sizeof *levels));
    mel *bands = NULL;
    must(mel_open(&bands, n_bands));
    for (size_t i = 0; i < n_samples; i++) samples[i] = (float)((double)(i * 7919 % 10007) / 10007 - 0.5);
    double begin = clock_ms();
    for (int64_t at = 0; at < n_frames; at += WINDOW) {
        int n = (int)(n_frames - at < WINDOW ? n_frames - at : WINDOW);
        mel_energies(bands, samples, n, levels);
        mel_levels(levels, (size_t)n * (size_t)n_bands, 2);
    }
    double ms = clock_ms() - begin;
    mel_close(&bands);
    mem_free(samples);
    mem_free(levels);
    return ms;
}

static void measure(const char *path, int n_bands) {
    audio *recording = NULL;
    features *f = NULL;
    float *levels = must_have(mem_alloc_raw((size_t)WINDOW * (size_t)n_bands, sizeof *levels));
    double begin = clock_ms();
    must(audio_open(&recording, path));
    must(features_open(&f, recording, n_bands, WINDOW));
    for (bool is_whole = false; !is_whole;) must(features_scan(f, &is_whole));
    double scanned = clock_ms();
    for (int64_t at = 0; at < features_count(f); at += WINDOW) must(features_window(f, at, WINDOW, levels));
    double done = clock_ms();
    printf("%s: %.2f s (%.2f promised), %d Hz, %d channels: %.1f + %.1f ms, arithmetic %.1f ms, %.1f MiB\n", path,
           (double)audio_length(recording) / AUDIO_RATE, (double)audio_declared_length(recording) / AUDIO_RATE,
           audio_file_rate(recording), audio_channels(recording), scanned - begin, done - scanned,
           arithmetic(n_bands, features_count(f)), peak_mib());
    features_close(&f);
    audio_close(&recording);
    mem_free(levels);
}

int main(int argc, char **argv) {
    int n_bands = 80, first = 1;
    if (argc > 2 && strcmp(argv[1], "-m") == 0) {
        n_bands = atoi(argv[2]);
        first = 3;
    }
    for (int i = first; i < argc; i++) measure(argv[i], n_bands);
    return 0;
}
