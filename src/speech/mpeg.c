/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/mpeg.h"

#include <mpg123.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { HEAD = 12, MOST_TAGS = 1024, MOST_CHUNKS = 1024, WAVE_MPEG_LAYER_3 = 0x55 };

struct mpeg {
    mpg123_handle *handle;
    mpeg_bytes bytes;
    int64_t at; /* the next byte that the decoder reads, from bytes.begin */
    int rate, channels;
};

/* ---- detection ---- */

static bool is_frame(const uint8_t head[4]) {
    bool has_sync = head[0] == 0xFF && head[1] >= 0xE0;
    int version = head[1] >> 3 & 3, layer = head[1] >> 1 & 3, bitrate = head[2] >> 4, rate = head[2] >> 2 & 3;
    return has_sync && version != 1 && layer != 0 && bitrate != 15 && rate != 3; /* those values are reserved */
}

static uint32_t number(const uint8_t *p, int n, bool is_big) {
    uint32_t value = 0;
    for (int i = 0; i < n; i++) value = value << 8 | p[is_big ? i : n - 1 - i];
    return value;
}

static bool read_head(const mpeg_bytes *b, int64_t at, uint8_t *out, int64_t n) {
    return b->end - at >= n && b->read(b->user, at, out, n) == n;
}

/* In the chunks of a WAV file that begins at `at`. */
static bool find_in_wav(mpeg_bytes *b, int64_t at, bool is_big) {
    uint8_t chunk[8], format[2];
    bool is_mpeg = false;
    at += HEAD;
    for (int i = 0; i < MOST_CHUNKS && read_head(b, at, chunk, sizeof chunk); i++) {
        int64_t n = number(chunk + 4, 4, is_big);
        at += (int64_t)sizeof chunk;
        if (memcmp(chunk, "fmt ", 4) == 0)
            is_mpeg = read_head(b, at, format, 2) && number(format, 2, is_big) == WAVE_MPEG_LAYER_3;
        if (memcmp(chunk, "data", 4) == 0) {
            b->begin = at;
            if (n > 0 && n < b->end - at) b->end = at + n;
            return is_mpeg;
        }
        at += n + n % 2;
    }
    b->begin = b->end; /* it ends before its data */
    return is_mpeg;
}

/* What else may follow an ID3 tag. */
static bool is_other_format(const uint8_t head[4]) {
    static const char names[][5] = {"RIFF", "RIFX", "FORM", "fLaC", "OggS", "caff", "riff", ".snd"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (memcmp(head, names[i], 4) == 0) return true;
    }
    return false;
}

bool mpeg_find(mpeg_bytes *b) {
    uint8_t head[HEAD];
    for (int i = 0; i < MOST_TAGS && read_head(b, b->begin, head, HEAD); i++) {
        bool is_big = memcmp(head, "RIFX", 4) == 0;
        if ((is_big || memcmp(head, "RIFF", 4) == 0) && memcmp(head + 8, "WAVE", 4) == 0)
            return find_in_wav(b, b->begin, is_big);
        if (memcmp(head, "ID3", 3) != 0) return i > 0 ? !is_other_format(head) : is_frame(head);
        int64_t n = 0; /* seven bits a byte */
        for (int k = 6; k < 10; k++) n = n << 7 | (head[k] & 0x7F);
        b->begin += n + 10;
    }
    return b->begin > 0; /* tags to the end, or very many of them */
}

/* ---- decoding ---- */

static ssize_t read_bytes(void *user, void *out, size_t n) {
    mpeg *m = user;
    int64_t left = m->bytes.end - m->bytes.begin - m->at, most = n < INT32_MAX ? (int64_t)n : INT32_MAX;
    if (left <= 0) return 0;
    int64_t got = m->bytes.read(m->bytes.user, m->bytes.begin + m->at, out, left < most ? left : most);
    m->at += got;
    return (ssize_t)got;
}

static off_t seek_bytes(void *user, off_t offset, int whence) {
    mpeg *m = user;
    int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->bytes.end - m->bytes.begin, at;
    if (__builtin_add_overflow(base, (int64_t)offset, &at) || at < 0) return -1;
    m->at = at;
    return (off_t)at;
}

static mn_status open_decoder(mpeg *m) {
    long rate = 0;
    int encoding = 0;
    if (mpg123_init() != MPG123_OK) return MN_E_NOMEM;
    m->handle = mpg123_new(NULL, NULL);
    if (!m->handle) return mem_no_memory();
    /* No messages on the standard error. Samples at the file's own rate, without the encoder's padding. */
    mpg123_param(m->handle, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0);
    mpg123_param(m->handle, MPG123_ADD_FLAGS,
                 MPG123_QUIET | MPG123_FORCE_FLOAT | MPG123_GAPLESS | MPG123_NO_FRANKENSTEIN | MPG123_SKIP_ID3V2, 0);
    bool is_open = mpg123_replace_reader_handle(m->handle, read_bytes, seek_bytes, NULL) == MPG123_OK &&
                   mpg123_open_handle(m->handle, m) == MPG123_OK &&
                   mpg123_getformat(m->handle, &rate, &m->channels, &encoding) == MPG123_OK;
    m->rate = (int)rate;
    return is_open && encoding == MPG123_ENC_FLOAT_32 ? MN_OK : MN_E_FORMAT;
}

mn_status mpeg_open(mpeg **out, const mpeg_bytes *source) {
    mpeg *m = *out = mem_alloc(1, sizeof *m);
    if (!m) return MN_E_NOMEM;
    m->bytes = *source;
    mn_status status = open_decoder(m);
    if (status != MN_OK) mpeg_close(out);
    return status;
}

void mpeg_close(mpeg **out) {
    mpeg *m = *out;
    if (!m) return;
    mpg123_delete(m->handle); /* closes it too; NULL is allowed */
    mem_free(m);
    *out = NULL;
}

int mpeg_rate(const mpeg *m) {
    return m->rate;
}

int mpeg_channels(const mpeg *m) {
    return m->channels;
}

int64_t mpeg_declared_length(const mpeg *m) {
    int64_t n = (int64_t)mpg123_length(m->handle);
    return n > 0 ? n : 0;
}

int64_t mpeg_read(mpeg *m, float *out, int64_t n) {
    size_t frame = (size_t)m->channels * sizeof *out, done = 0;
    int result = mpg123_read(m->handle, (unsigned char *)out, (size_t)n * frame, &done);
    bool is_good = result == MPG123_OK || result == MPG123_DONE;
    return is_good ? (int64_t)(done / frame) : 0;
}
