/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "speech/features.h"
#include "support/hostile/hostile.h"

enum { N_BANDS = 80, N_FRAMES = 30, MOST_SCANS = 3 };

/* For the leak checker, which looks it up by name: libsndfile 1.2 loses 6 KB for each Ogg Vorbis header that it
 * refuses. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:vorbis_info_init\n";
}

/* At most a few minutes of sound are scanned: a small file may hold hours. */
static mn_status read_features(features *f, audio *recording) {
    static float levels[N_FRAMES * N_BANDS];
    bool is_whole = false;
    for (int i = 0; i < MOST_SCANS && !is_whole; i++) MN_TRY(features_scan(f, &is_whole));
    MUST_HOLD(is_whole == (audio_length(recording) >= 0 && features_count(f) >= 0));
    if (!is_whole) return MN_OK;
    int64_t last = features_count(f) - N_FRAMES / 2;
    for (int64_t first = last > 0 ? last : 0;; first = 0) {
        MN_TRY(features_window(f, first, N_FRAMES, levels));
        for (int i = 0; i < N_FRAMES * N_BANDS; i++) MUST_HOLD(isfinite(levels[i]));
        if (first == 0) return MN_OK;
    }
}

mn_status hostile_audio(const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    audio *recording = NULL;
    features *f = NULL;
    int fd = memfd_create("audio", MFD_CLOEXEC);
    MUST_HOLD(fd >= 0 && file_write_all(fd, "memory", data, n) == MN_OK && lseek(fd, 0, SEEK_SET) == 0);
    mn_status status = audio_open_fd(&recording, fd, "fuzzed");
    MUST_HOLD((status == MN_OK) == (recording != NULL));
    if (status == MN_OK) {
        MUST_HOLD(features_open(&f, recording, N_BANDS, 0) == MN_OK);
        status = read_features(f, recording);
    }
    features_close(&f);
    audio_close(&recording);
    MUST_HOLD(status == MN_OK || status == MN_E_FORMAT);
    MUST_HOLD(mem_count().live == live);
    return status;
}
