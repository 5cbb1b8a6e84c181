/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/features.h"

#include "base/mem.h"
#include "base/num.h"
#include "speech/mel.h"

enum {
    BLOCK = 100, /* frames computed at once */
    PIECE = (BLOCK - 1) * MEL_HOP + MEL_WINDOW,
    SCAN_BLOCKS = 60,
    MOST_PADDED = 30000
};
static const int64_t no_mirror = INT64_MAX / 4;               /* a mirror position beyond all samples */
static const int64_t most_frames = INT64_MAX / (4 * MEL_HOP); /* so that no sample offset overflows */

struct features {
    audio *recording; /* borrowed */
    mel *bands;
    int64_t padded;  /* samples */
    int64_t scanned; /* frames */
    bool is_whole;
    int64_t mirror;   /* samples including padding, the point of mirroring at the end; no_mirror until known */
    int64_t n_frames; /* once it is whole */
    float maximum;    /* log10 of an energy */
    float piece[PIECE];
    float *energies; /* [BLOCK][n_bands], of the scan */
};

mn_status features_open(features **out, audio *recording, int n_bands, int padded_frames) {
    *out = NULL;
    if (padded_frames < 0 || padded_frames > MOST_PADDED)
        MN_FAIL(MN_E_ARG, "recordings padded to %d frames, allowed: 0 to %d", padded_frames, MOST_PADDED);
    features *f = mem_alloc(1, sizeof *f);
    if (!f) return MN_E_NOMEM;
    f->recording = recording;
    f->padded = (int64_t)padded_frames * MEL_HOP;
    f->maximum = mel_maximum(NULL, 0);
    f->mirror = no_mirror;
    mn_status status = mel_open(&f->bands, n_bands);
    if (status == MN_OK) {
        f->energies = mem_alloc_raw((size_t)BLOCK * (size_t)n_bands, sizeof *f->energies);
        if (!f->energies) status = MN_E_NOMEM;
    }
    if (status != MN_OK) {
        features_close(&f);
        return status;
    }
    *out = f;
    return MN_OK;
}

size_t features_recording_bytes(int n_bands) {
    return audio_bytes(2) + sizeof(features) + (size_t)BLOCK * (size_t)n_bands * sizeof(float);
}

void features_close(features **out) {
    features *f = *out;
    if (!f) return;
    mel_close(&f->bands);
    mem_free(f->energies);
    mem_free(f);
    *out = NULL;
}

/* The index of sample `at` in a recording of n > 1 samples that is mirrored repeatedly at both ends. (One that has a
 * frame has 160.) */
static int64_t mirrored(int64_t at, int64_t n) {
    int64_t period = 2 * (n - 1), place = at % period;
    if (place < 0) place += period;
    return place < n ? place : period - place;
}

/* Samples [from, to) of the piece, all outside of [0, mirror); `begin` is the piece's first one. */
static mn_status fill_mirrored(features *f, int64_t begin, int64_t from, int64_t to, int64_t mirror) {
    for (int64_t at = from; at < to; at++) {
        float *sample = &f->piece[at - begin];
        int64_t n_read;
        *sample = 0; /* what was padded */
        MN_TRY(audio_read(f->recording, mirrored(at, mirror), 1, sample, &n_read));
    }
    return MN_OK;
}

/* The samples of n frames from `first`; at the end mirrored or followed by zeros. *is_short, and nothing else, when the
 * recording turns out to end in them while it is scanned. */
static mn_status read_piece(features *f, int64_t first, int n, bool mirrors_end, bool *is_short) {
    int64_t begin = first * MEL_HOP - MEL_WINDOW / 2, end = begin + (n - 1) * MEL_HOP + MEL_WINDOW;
    int64_t real = max_i64(begin, 0), mirror = mirrors_end ? f->mirror : no_mirror, n_read = 0;
    MN_TRY(audio_read(f->recording, real, end - real, f->piece + (real - begin), &n_read));
    *is_short = !f->is_whole && n_read < end - real;
    if (*is_short) return MN_OK;
    for (int64_t at = real + n_read; at < end; at++) f->piece[at - begin] = 0;
    MN_TRY(fill_mirrored(f, begin, begin, min_i64(end, 0), mirror));
    return fill_mirrored(f, begin, max_i64(real, mirror), end, mirror);
}

static mn_status scan_block(features *f, int n, bool *is_short) {
    MN_TRY(read_piece(f, f->scanned, n, true, is_short));
    if (*is_short) return MN_OK;
    mel_energies(f->bands, f->piece, n, f->energies);
    float maximum = mel_maximum(f->energies, (size_t)n * (size_t)mel_bands(f->bands));
    f->maximum = maximum > f->maximum ? maximum : f->maximum;
    f->scanned += n;
    return MN_OK;
}

/* Computes the frames at the end, which is now known. */
static mn_status scan_end(features *f) {
    bool is_short;
    f->is_whole = true;
    f->mirror = max_i64(audio_length(f->recording), f->padded);
    f->n_frames = f->mirror / MEL_HOP;
    while (f->scanned < f->n_frames) {
        MN_TRY(scan_block(f, (int)min_i64(BLOCK, f->n_frames - f->scanned), &is_short));
    }
    return MN_OK;
}

mn_status features_scan(features *f, bool *is_whole) {
    for (int i = 0; i < SCAN_BLOCKS && !f->is_whole; i++) {
        bool is_short;
        MN_TRY(scan_block(f, BLOCK, &is_short));
        if (is_short) MN_TRY(scan_end(f));
    }
    *is_whole = f->is_whole;
    return MN_OK;
}

int64_t features_scanned(const features *f) {
    return f->scanned;
}

int64_t features_count(const features *f) {
    return f->is_whole ? f->n_frames : -1;
}

mn_status features_window(features *f, int64_t first, int n, float *levels) {
    size_t n_bands = (size_t)mel_bands(f->bands);
    if (!f->is_whole) MN_FAIL(MN_E_ARG, "a recording must be scanned to its end before frames of it can be had");
    if (first < 0 || first > most_frames || n < 0)
        MN_FAIL(MN_E_ARG, "%d frames from %lld, allowed: none negative, from %lld at most", n, (long long)first,
                (long long)most_frames);
    for (int done = 0; done < n;) {
        int64_t at = first + done;
        int block = (int)min_i64(BLOCK, n - done);
        bool is_inside = at < f->n_frames, is_short;
        if (is_inside) block = (int)min_i64(block, f->n_frames - at);
        MN_TRY(read_piece(f, at, block, is_inside, &is_short));
        mel_energies(f->bands, f->piece, block, levels + (size_t)done * n_bands);
        done += block;
    }
    mel_levels(levels, (size_t)n * n_bands, f->maximum);
    return MN_OK;
}

/* ---- mneme.h ---- */

enum { MOST_NUMBERS = 1 << 30 };

struct mn_features {
    audio *recording;
    features *levels;
};

static mn_status open_whole(mn_features *f, const char *path, int n_bands, int padded_frames) {
    bool is_whole = false;
    MN_TRY(audio_open(&f->recording, path));
    MN_TRY(features_open(&f->levels, f->recording, n_bands, padded_frames));
    while (!is_whole) MN_TRY(features_scan(f->levels, &is_whole));
    return MN_OK;
}

mn_status mn_features_open(mn_features **out, const char *path, size_t num_mel_bins, size_t n_frames) {
    *out = NULL;
    if (num_mel_bins < 1 || num_mel_bins > MEL_MOST_BANDS)
        MN_FAIL(MN_E_ARG, "num_mel_bins is %zu, allowed: 1 to %d", num_mel_bins, (int)MEL_MOST_BANDS);
    if (n_frames > MOST_PADDED) MN_FAIL(MN_E_ARG, "n_frames is %zu, allowed: 0 to %d", n_frames, (int)MOST_PADDED);
    mn_features *f = mem_alloc(1, sizeof *f);
    if (!f) return mem_no_memory();
    mn_status status = open_whole(f, path, (int)num_mel_bins, (int)n_frames);
    if (status != MN_OK) mn_features_close(&f);
    *out = f;
    return status;
}

void mn_features_close(mn_features **out) {
    mn_features *f = *out;
    if (!f) return;
    features_close(&f->levels);
    audio_close(&f->recording);
    mem_free(f);
    *out = NULL;
}

int64_t mn_features_count(const mn_features *f) {
    return features_count(f->levels);
}

mn_status mn_features_window(mn_features *f, int64_t first, size_t n, float *window) {
    size_t n_bands = (size_t)mel_bands(f->levels->bands);
    if (n > MOST_NUMBERS / n_bands)
        MN_FAIL(MN_E_ARG, "%zu frames, allowed: at most %zu of %zu bins", n, MOST_NUMBERS / n_bands, n_bands);
    float *frames = mem_alloc_raw(n * n_bands, sizeof *frames);
    if (!frames) return mem_no_memory();
    mn_status status = features_window(f->levels, first, (int)n, frames);
    for (size_t i = 0; status == MN_OK && i < n; i++) {
        for (size_t band = 0; band < n_bands; band++) window[band * n + i] = frames[i * n_bands + band];
    }
    mem_free(frames);
    return status;
}
