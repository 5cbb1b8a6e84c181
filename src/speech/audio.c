/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/audio.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sndfile.h>
#include <soxr.h>

#include "base/file.h"
#include "base/num.h"
#include "speech/mpeg.h"

enum {
    LEAST_RATE = 1000,
    MOST_RATE = 1000000,
    MOST_CHANNELS = 64,
    CHUNK = 8192,                     /* frames of the file decoded at once */
    ROOM = 16384,                     /* the most samples made from them at once */
    CAPACITY = 2 * AUDIO_KEPT + ROOM, /* so that old samples are moved rarely */
    SNIFF = 16 << 20                  /* bytes of a pipe after which it must look like audio */
};
_Static_assert((int)AUDIO_RATE == (int)FFMPEG_RATE, "the rate of what ffmpeg decodes");
_Static_assert((int)AUDIO_RATE == (int)PARTS_RATE, "the rate of times of parts");
static const int64_t most_pipe_bytes = (int64_t)1 << 36;
static const float loudest = 4294967296.0f; /* full scale of 32-bit integers, twice; its square is far from infinite */

/* The encoded bytes: a file that can be read repeatedly, or its bytes in memory. */
typedef struct source {
    int fd;              /* -1: in memory */
    const uint8_t *data; /* [size] in memory; NULL: a file */
    int64_t size, at;    /* bytes */
    int64_t unfinished;  /* offset of a length to be read as "unknown"; 0: none */
    bool is_cut;         /* a pipe of which only the beginning was read */
    int error;           /* errno of a read that failed */
} source;

struct audio {
    char *name;
    source source;
    bool is_unknown; /* no library knows the format */
    SNDFILE *file;   /* one of these two is used */
    mpeg *mpeg;
    SF_INFO info;     /* frames: as announced */
    soxr_t resampler; /* NULL: the file has the target rate */
    float *input;     /* [CHUNK][channels], or the mono samples [n_input] of them */
    size_t n_input, n_used;
    int64_t n_frames;                  /* of the file, decoded so far */
    bool input_ended, ended, is_stale; /* the last: decoding begins anew */
    const audio_parts *parts;          /* NULL: the whole recording */
    size_t part;                       /* the first that does not end before n_made */
    int64_t n_made;                    /* samples at 16 kHz, decoded so far */
    float *kept;                       /* [CAPACITY]: samples [kept_begin, kept_begin + n_kept), of the parts alone */
    int64_t kept_begin;
    size_t n_kept;
    int64_t length; /* of what is decoded, all parts and what is between them; -1: not known */
};

/* ---- the file ---- */

static sf_count_t source_size(void *user) {
    return ((source *)user)->size;
}

static sf_count_t source_seek(sf_count_t offset, int whence, void *user) {
    source *s = user;
    int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? s->at : s->size, at;
    if (!__builtin_add_overflow(base, offset, &at) && at >= 0) s->at = at;
    return s->at;
}

static ssize_t read_part(const source *s, void *out, size_t n) {
    if (!s->data) return pread(s->fd, out, n, (off_t)s->at);
    size_t left = (size_t)(s->size - s->at), here = n < left ? n : left;
    memcpy(out, s->data + s->at, here);
    return (ssize_t)here;
}

static sf_count_t source_read(void *out, sf_count_t n, void *user) {
    source *s = user;
    sf_count_t done = 0;
    while (done < n && s->at < s->size) {
        ssize_t here = read_part(s, (char *)out + done, (size_t)(n - done));
        if (here < 0 && errno == EINTR) continue;
        if (here < 0) s->error = errno;
        if (here <= 0) break;
        for (int64_t at = max_i64(s->unfinished, s->at); s->unfinished && at < min_i64(s->unfinished + 4, s->at + here);
             at++)
            ((uint8_t *)out)[done + at - s->at] = 0xFF;
        s->at += here;
        done += here;
    }
    return done;
}

static sf_count_t source_tell(void *user) {
    return ((source *)user)->at;
}

static uint32_t little_endian(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* An interrupted recorder leaves a WAV header whose data length is 0 although samples follow. Returns the offset of
 * that length, or 0 for other files. */
static int64_t find_unfinished(source *s) {
    enum { MOST_CHUNKS = 64 };
    uint8_t head[12], chunk[8];
    s->at = 0;
    if (source_read(head, 12, s) != 12 || memcmp(head, "RIFF", 4) != 0 || memcmp(head + 8, "WAVE", 4) != 0) return 0;
    for (int i = 0; i < MOST_CHUNKS && source_read(chunk, 8, s) == 8; i++) {
        uint32_t n_bytes = little_endian(chunk + 4);
        bool ends_here = (int64_t)little_endian(head + 4) + 8 <= s->at && s->at < s->size;
        if (memcmp(chunk, "data", 4) == 0) return n_bytes == 0 && ends_here ? s->at - 4 : 0;
        s->at += (int64_t)n_bytes + n_bytes % 2;
    }
    return 0;
}

static int64_t read_at(void *user, int64_t at, void *out, int64_t n) {
    source *s = user;
    s->at = at;
    return source_read(out, n, s);
}

/* NULL: no audio. (An open file that libsndfile is given is closed by it when it cannot read it, so it gets none.) */
static SNDFILE *open_sound(source *s, SF_INFO *info) {
    SF_VIRTUAL_IO io = {.get_filelen = source_size, .seek = source_seek, .read = source_read, .tell = source_tell};
    s->at = 0;
    *info = (SF_INFO){0};
    return sf_open_virtual(&io, SFM_READ, info, s);
}

static void stop(audio *a) {
    if (a->file) sf_close(a->file);
    mpeg_close(&a->mpeg);
    soxr_delete(a->resampler);
    a->file = NULL;
    a->resampler = NULL;
}

static mn_status check_source(const audio *a) {
    if (a->source.error) MN_FAIL(MN_E_IO, "cannot read '%s': %s", a->name, strerror(a->source.error));
    return MN_OK;
}

static mn_status check_info(const audio *a, const SF_INFO *info) {
    if (info->samplerate < LEAST_RATE || info->samplerate > MOST_RATE)
        MN_FAIL(MN_E_FORMAT, "'%s' has a rate of %d Hz, allowed: %d to %d", a->name, info->samplerate, LEAST_RATE,
                MOST_RATE);
    if (info->channels < 1 || info->channels > MOST_CHANNELS)
        MN_FAIL(MN_E_FORMAT, "'%s' has %d channels, allowed: 1 to %d", a->name, info->channels, MOST_CHANNELS);
    if (a->info.channels && (info->channels != a->info.channels || info->samplerate != a->info.samplerate))
        MN_FAIL(MN_E_IO, "'%s' was changed while it was read", a->name);
    return MN_OK;
}

static mn_status start_sound(audio *a, SF_INFO *info) {
    a->file = open_sound(&a->source, info);
    if (a->file) return MN_OK;
    a->is_unknown = sf_error(NULL) == SF_ERR_UNRECOGNISED_FORMAT;
    MN_TRY(check_source(a));
    if (!a->is_unknown)
        MN_FAIL(MN_E_FORMAT,
                "'%s' cannot be read as audio: its header is damaged, or the encoding of its samples is unknown",
                a->name);
    MN_FAIL(MN_E_FORMAT, "'%s' cannot be read as audio: its format is none of " FFMPEG_OTHERS "%s", a->name,
            a->source.is_cut ? "; what ffmpeg reads is taken from pipes of up to 16 MiB, and from files"
                             : "; convert it first, for example with ffmpeg");
}

static mn_status start_mpeg(audio *a, const mpeg_bytes *part, SF_INFO *info) {
    mn_status status = mpeg_open(&a->mpeg, part);
    if (status == MN_E_FORMAT) {
        MN_TRY(check_source(a));
        MN_FAIL(MN_E_FORMAT,
                "'%s' cannot be read as audio: it begins as MPEG audio (mp3) and has no frame that can be decoded",
                a->name);
    }
    MN_TRY(status);
    *info = (SF_INFO){
        .samplerate = mpeg_rate(a->mpeg), .channels = mpeg_channels(a->mpeg), .frames = mpeg_declared_length(a->mpeg)};
    return MN_OK;
}

/* At the beginning of the file, with nothing decoded. */
static mn_status start(audio *a) {
    SF_INFO info;
    mpeg_bytes part = {&a->source, read_at, 0, a->source.size};
    stop(a);
    MN_TRY(mpeg_find(&part) ? start_mpeg(a, &part, &info) : start_sound(a, &info));
    MN_TRY(check_info(a, &info));
    a->info = info;
    if (info.samplerate != AUDIO_RATE) {
        soxr_error_t problem = NULL;
        soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
        a->resampler = soxr_create(info.samplerate, AUDIO_RATE, 1, &problem, NULL, &quality, NULL);
        if (!a->resampler || problem)
            MN_FAIL(MN_E_NOMEM, "no resampler from %d to %d Hz: %s", info.samplerate, AUDIO_RATE,
                    soxr_strerror(problem));
    }
    a->n_input = a->n_used = a->n_kept = 0;
    a->n_frames = a->kept_begin = a->n_made = 0;
    a->part = 0;
    a->input_ended = a->ended = a->is_stale = false;
    return MN_OK;
}

/* ---- decoding ---- */

/* The next chunk of the file as mono samples at its own rate. */
static mn_status read_input(audio *a) {
    int channels = a->info.channels;
    int64_t n = a->mpeg ? mpeg_read(a->mpeg, a->input, CHUNK) : sf_readf_float(a->file, a->input, CHUNK);
    MN_TRY(check_source(a));
    a->n_input = n > 0 ? (size_t)n : 0;
    mem_written(a->input, a->n_input * (size_t)channels * sizeof *a->input);
    a->n_used = 0;
    a->input_ended = a->n_input == 0; /* at the end, or where nothing more can be decoded */
    for (size_t i = 0; i < a->n_input; i++) {
        const float *frame = a->input + i * (size_t)channels;
        float sample = frame[0];
        for (int c = 1; c < channels; c++) sample += frame[c];
        if (channels > 1) sample /= (float)channels;
        if (!(fabsf(sample) <= loudest))
            MN_FAIL(MN_E_FORMAT, "'%s': the sample at %.3f s is %g, allowed: finite numbers up to %g", a->name,
                    (double)(a->n_frames + (int64_t)i) / a->info.samplerate, (double)sample, (double)loudest);
        a->input[i] = sample;
    }
    a->n_frames += (int64_t)a->n_input;
    return MN_OK;
}

/* Moves what lies in parts of the next n samples to their front. Returns how many there are. */
static size_t keep_parts(audio *a, float *samples, size_t n) {
    int64_t first = a->n_made, end = first + (int64_t)n;
    size_t n_kept = 0;
    if (!a->parts) return n;
    for (; a->part < a->parts->n && a->parts->list[a->part].begin < end; a->part++) {
        const audio_part *part = &a->parts->list[a->part];
        int64_t from = max_i64(part->begin, first), to = min_i64(part->end, end);
        memmove(samples + n_kept, samples + (from - first), (size_t)(to - from) * sizeof *samples);
        n_kept += (size_t)(to - from);
        if (part->end > end) break;
    }
    return n_kept;
}

static mn_status convert_input(audio *a) {
    const float *input = a->input + a->n_used;
    size_t n = a->n_input - a->n_used, used = 0, made = 0;
    float *out = a->kept + a->n_kept;
    if (a->resampler) {
        soxr_error_t problem = soxr_process(a->resampler, a->input_ended ? NULL : input, n, &used, out, ROOM, &made);
        mem_written(out, made * sizeof *out);
        if (problem) MN_FAIL(MN_E_NOMEM, "'%s' cannot be resampled: %s", a->name, soxr_strerror(problem));
    } else {
        used = made = n < ROOM ? n : ROOM;
        memcpy(out, input, made * sizeof *out);
    }
    a->n_used += used;
    a->n_kept += keep_parts(a, out, made);
    a->n_made += (int64_t)made;
    a->ended = a->input_ended && made < ROOM;
    return MN_OK;
}

/* Some more samples, or the end. */
static mn_status decode(audio *a) {
    if (a->n_kept + ROOM > CAPACITY) {
        size_t n_old = a->n_kept - AUDIO_KEPT;
        memmove(a->kept, a->kept + n_old, AUDIO_KEPT * sizeof *a->kept);
        a->kept_begin += (int64_t)n_old;
        a->n_kept = AUDIO_KEPT;
    }
    if (a->n_used == a->n_input && !a->input_ended) MN_TRY(read_input(a));
    MN_TRY(convert_input(a));
    if (!a->ended) return MN_OK;
    if (a->length >= 0 && a->n_made != a->length)
        MN_FAIL(MN_E_IO, "'%s' was changed while it was read: %lld samples at 16 kHz, before %lld", a->name,
                (long long)a->n_made, (long long)a->length);
    a->length = a->n_made;
    return MN_OK;
}

mn_status audio_read(audio *a, int64_t begin, int64_t n, float *out, int64_t *n_read) {
    *n_read = 0;
    if (begin < 0 || n < 0)
        MN_FAIL(MN_E_ARG, "%lld samples from %lld of a recording, allowed: none negative", (long long)n,
                (long long)begin);
    if (begin < a->kept_begin || a->is_stale) MN_TRY(start(a));
    for (int64_t at = begin; n > 0;) {
        int64_t end = a->kept_begin + (int64_t)a->n_kept, here = min_i64(end - at, n);
        if (here > 0) {
            memcpy(out, a->kept + (at - a->kept_begin), (size_t)here * sizeof *out);
            out += here;
            at += here;
            n -= here;
            *n_read += here;
        } else if (a->ended) {
            break;
        } else {
            MN_TRY(decode(a));
        }
    }
    return MN_OK;
}

/* ---- opening ---- */

/* Whether the bytes read so far cannot be audio. */
static bool is_strange(const source *s) {
    source copy = *s;
    SF_INFO info;
    mpeg_bytes part = {&copy, read_at, 0, copy.size};
    if (mpeg_find(&part)) return false;
    SNDFILE *file = open_sound(&copy, &info);
    if (file) sf_close(file);
    return !file && sf_error(NULL) == SF_ERR_UNRECOGNISED_FORMAT;
}

/* Copies a pipe into an unnamed file; stops early when the data cannot be audio. */
static mn_status copy_pipe(source *to, int from, const char *name) {
    char block[1 << 16];
    bool sniffed = false;
    while (to->size <= most_pipe_bytes) {
        ssize_t n = read(from, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) MN_FAIL(MN_E_IO, "cannot read '%s': %s", name, strerror(errno));
        if (n == 0) return MN_OK;
        MN_TRY(file_write_all(to->fd, file_scratch_folder(), block, (size_t)n));
        to->size += n;
        if (!sniffed && to->size >= SNIFF) {
            to->is_cut = is_strange(to);
            if (to->is_cut) return MN_OK;
            sniffed = true;
        }
    }
    MN_FAIL(MN_E_IO, "'%s' gives more than the %lld bytes allowed from a pipe", name, (long long)most_pipe_bytes);
}

/* For the open file s->fd of any kind. */
static mn_status open_file(source *s, const char *name) {
    struct stat info;
    if (fstat(s->fd, &info) != 0) MN_FAIL(MN_E_IO, "cannot stat '%s': %s", name, strerror(errno));
    if (S_ISDIR(info.st_mode)) MN_FAIL(MN_E_IO, "'%s' is a folder, not an audio file", name);
    if (S_ISREG(info.st_mode) && lseek(s->fd, 0, SEEK_CUR) == 0) {
        s->size = info.st_size;
    } else {
        source copy = {0};
        MN_TRY(file_open_unnamed(&copy.fd, file_scratch_folder()));
        mn_status status = copy_pipe(&copy, s->fd, name);
        close(s->fd);
        *s = copy;
        MN_TRY(status);
    }
    return MN_OK;
}

static mn_status open_source(source *s, const char *name) {
    if (s->fd >= 0) MN_TRY(open_file(s, name));
    if (s->size == 0) MN_FAIL(MN_E_FORMAT, "'%s' is empty", name);
    s->unfinished = find_unfinished(s);
    return MN_OK;
}

size_t audio_bytes(int channels) {
    return ((size_t)CHUNK * (size_t)channels + CAPACITY) * sizeof(float);
}

/* What no library knows is replaced by what ffmpeg makes of it. wait: NULL when no program may be started. */
static mn_status start_first(audio *a, const ffmpeg_wait *wait) {
    mn_status status = start(a);
    int decoded;
    if (!a->is_unknown || a->source.error || a->source.is_cut || !wait) return status;
    MN_TRY(ffmpeg_decode(&decoded, a->source.fd, a->name, wait));
    close(a->source.fd);
    a->source = (source){.fd = decoded};
    a->is_unknown = false;
    MN_TRY(open_source(&a->source, a->name));
    return start(a);
}

static mn_status open_audio(audio *a, const char *name, const ffmpeg_wait *wait) {
    a->name = mem_copy_text(name, strlen(name));
    if (!a->name) return MN_E_NOMEM;
    MN_TRY(open_source(&a->source, name));
    MN_TRY(start_first(a, wait));
    a->input = mem_alloc_raw((size_t)CHUNK * (size_t)a->info.channels, sizeof *a->input);
    a->kept = a->input ? mem_alloc_raw(CAPACITY, sizeof *a->kept) : NULL;
    if (!a->kept) return MN_E_NOMEM;
    while (a->n_kept == 0 && !a->ended) MN_TRY(decode(a));
    if (a->n_kept > 0) return MN_OK;
    MN_FAIL(MN_E_FORMAT, "'%s' holds no samples; its header promises %lld", name, (long long)a->info.frames);
}

/* Takes the file of the source. */
static mn_status open_from(audio **out, source from, const char *name, const ffmpeg_wait *wait) {
    *out = NULL;
    audio *a = mem_alloc(1, sizeof *a);
    if (!a) {
        if (from.fd >= 0) close(from.fd);
        return MN_E_NOMEM;
    }
    a->source = from;
    a->length = -1;
    mn_status status = open_audio(a, name, wait);
    if (status != MN_OK) {
        audio_close(&a);
        return status;
    }
    *out = a;
    return MN_OK;
}

mn_status audio_open_fd(audio **out, int fd, const char *name) {
    return open_from(out, (source){.fd = fd}, name, NULL);
}

mn_status audio_open_memory(audio **out, const void *data, size_t n, const char *name) {
    return open_from(out, (source){.fd = -1, .data = data, .size = (int64_t)n}, name, NULL);
}

static bool goes_on(void *user) {
    (void)user;
    return true;
}

mn_status audio_open(audio **out, const char *path) {
    return audio_open_waiting(out, path, &(ffmpeg_wait){.goes_on = goes_on});
}

mn_status audio_open_waiting(audio **out, const char *path, const ffmpeg_wait *wait) {
    int fd;
    *out = NULL;
    if (strcmp(path, "-") != 0) {
        MN_TRY(file_open_input(&fd, path));
        return open_from(out, (source){.fd = fd}, path, wait);
    }
    fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0) MN_FAIL(MN_E_IO, "cannot read the standard input: %s", strerror(errno));
    return open_from(out, (source){.fd = fd}, "standard input", wait);
}

void audio_close(audio **out) {
    audio *a = *out;
    if (!a) return;
    stop(a);
    if (a->source.fd >= 0) close(a->source.fd);
    mem_free(a->name);
    mem_free(a->input);
    mem_free(a->kept);
    mem_free(a);
    *out = NULL;
}

void audio_keep(audio *a, const audio_parts *parts) {
    a->parts = parts;
    a->is_stale = true;
}

int64_t audio_length(const audio *a) {
    return a->parts && a->length >= 0 ? audio_parts_length(a->parts) : a->length;
}

int64_t audio_declared_length(const audio *a) {
    double n = (double)a->info.frames * AUDIO_RATE / a->info.samplerate;
    return n > 0 && n < 0x1p52 ? (int64_t)n : 0;
}

int audio_channels(const audio *a) {
    return a->info.channels;
}

int audio_file_rate(const audio *a) {
    return a->info.samplerate;
}
