/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/fallback.h"

#include <math.h>
#include <zlib.h>

#include "base/mem.h"

const double speech_temperatures[SPEECH_TEMPERATURES] = {0.0, 0.2, 0.4, 0.6, 0.8, 1.0};

speech_limits speech_limits_default(void) {
    return (speech_limits){.compression_ratio = 1.35, .log_probability = -1.0, .no_speech = 0.6};
}

static voidpf zlib_alloc(voidpf user, uInt count, uInt size) {
    (void)user;
    return mem_alloc_raw(count, size);
}

static void zlib_free(voidpf user, voidpf block) {
    (void)user;
    mem_free(block);
}

/* Gives n bytes of data to the stream; what comes out is counted in total_out and thrown away. */
static void deflate_piece(z_stream *stream, uint8_t *data, size_t n, int flush) {
    uint8_t thrown_away[512];
    stream->next_in = data;
    stream->avail_in = (uInt)n;
    do {
        stream->next_out = thrown_away;
        stream->avail_out = sizeof thrown_away;
        deflate(stream, flush);
    } while (stream->avail_out == 0);
}

mn_status speech_compression_ratio(double *out, const int32_t *ids, size_t n, int32_t vocab_size) {
    enum { PIECE_IDS = 64, MAX_ID_BYTES = 4 };
    uint8_t piece[PIECE_IDS * MAX_ID_BYTES];
    z_stream stream = {.zalloc = zlib_alloc, .zfree = zlib_free};
    int id_bytes = 1;
    while (id_bytes < MAX_ID_BYTES && vocab_size >> (8 * id_bytes)) id_bytes++;
    *out = 0.0;
    if (n == 0) return MN_OK;
    if (deflateInit(&stream, Z_DEFAULT_COMPRESSION) != Z_OK) return mem_no_memory();
    size_t n_piece = 0;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < id_bytes; k++) piece[n_piece++] = (uint8_t)((uint32_t)ids[i] >> (8 * k));
        if (i + 1 == n || n_piece + MAX_ID_BYTES > sizeof piece) {
            deflate_piece(&stream, piece, n_piece, i + 1 == n ? Z_FINISH : Z_NO_FLUSH);
            n_piece = 0;
        }
    }
    *out = (double)n * id_bytes / (double)stream.total_out;
    deflateEnd(&stream);
    return MN_OK;
}

speech_decision speech_decide(const speech_limits *limits, double compression_ratio, double average_log_probability,
                              double no_speech_probability, bool is_last) {
    bool is_doubtful = average_log_probability < limits->log_probability;
    if (is_doubtful && no_speech_probability > limits->no_speech) return SPEECH_SKIP;
    bool is_bad = is_doubtful || compression_ratio > limits->compression_ratio;
    return is_bad && !is_last ? SPEECH_RETRY : SPEECH_KEEP;
}
