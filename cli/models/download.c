/* SPDX-License-Identifier: Apache-2.0 */
#include "models/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "progress.h"

static const char *from_path(bytes *out, const char *path) {
    bytes_printf(out, "%s.from", path);
    return bytes_text(out);
}

void download_forget(const char *path) {
    bytes from = {0};
    unlink(from_path(&from, path));
    bytes_clear(&from);
}

#ifdef MNEME_HAVE_LIBCURL

#include "models/libcurl.h"

enum {
    FROM_BYTES = 1 << 16,
    VERSION_BYTES = 512,
    CONNECT_S = 30,
    STALLED_S = 60, /* without a byte */
};

typedef struct transfer {
    const download *d;
    curl_functions curl;
    CURL *handle;
    struct curl_slist *headers;
    int fd;
    int64_t held;                /* bytes that were there before */
    char version[VERSION_BYTES]; /* what the server calls the bytes that are held, then those that come: ETag or date */
    int64_t range_begin, size;   /* of the answer's Content-Range; -1 */
    bool is_begun;
    bool has_failed; /* with the message set */
} transfer;

/* ---- what is held ---- */

/* The first line of PATH.from is the URL, the second what the server called this version, if anything. */
static bool is_of_url(transfer *t, bytes *from) {
    const char *text = bytes_text(from), *end = strchr(text, '\n'), *url = t->d->url;
    if (!end || strlen(url) != (size_t)(end - text) || strncmp(text, url, strlen(url)) != 0) return false;
    snprintf(t->version, sizeof t->version, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
    return *t->version || t->d->is_checked;
}

static mn_status open_held(transfer *t) {
    bytes path = {0}, from = {0};
    struct stat info;
    t->fd = file_descriptor(t->d->path, O_RDWR | O_CREAT | O_APPEND, 0666);
    if (t->fd < 0) MN_FAIL(MN_E_IO, "cannot write '%s': %s", t->d->path, strerror(errno));
    if (flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        MN_FAIL(MN_E_IO, "another process is writing %s", t->d->path);
    bool is_remote = strncmp(t->d->url, "file:", 5) != 0; /* a local file has no version, and is copied soon */
    bool is_known =
        is_remote && file_read(&from, from_path(&path, t->d->path), FROM_BYTES) == MN_OK && is_of_url(t, &from);
    if (is_known && fstat(t->fd, &info) == 0) t->held = info.st_size;
    bytes_clear(&path);
    bytes_clear(&from);
    return MN_OK;
}

static mn_status begin_anew(transfer *t) {
    bytes path = {0}, text = {0};
    if (ftruncate(t->fd, 0) != 0) MN_FAIL(MN_E_IO, "cannot write '%s': %s", t->d->path, strerror(errno));
    t->held = 0;
    bytes_printf(&text, "%s\n%s\n", t->d->url, t->version);
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = file_write_atomic(from_path(&path, t->d->path), text.data, text.n);
    bytes_clear(&path);
    bytes_clear(&text);
    return status;
}

/* ---- an answer ---- */

/* The value of a header when the line is that one, else NULL. */
static const char *header_value(char *out, size_t size, const char *line, size_t n, const char *name) {
    size_t length = strlen(name);
    if (n <= length || strncasecmp(line, name, length) != 0) return NULL;
    while (length < n && (line[length] == ' ' || line[length] == '\t')) length++;
    while (n > length && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' ')) n--;
    snprintf(out, size, "%.*s", (int)(n - length), line + length);
    return out;
}

static size_t on_header(char *line, size_t size, size_t count, void *user) {
    transfer *t = user;
    size_t n = size * count;
    char value[VERSION_BYTES];
    long long begin, whole;
    mem_written(line, n);
    if (n >= 5 && strncmp(line, "HTTP/", 5) == 0) { /* of another answer, behind a redirection */
        t->range_begin = t->size = -1;
        if (!t->is_begun) *t->version = 0;
    }
    /* Only strong tags say that the bytes are the same. */
    if (header_value(value, sizeof value, line, n, "ETag:") && *value == '"')
        snprintf(t->version, sizeof t->version, "%s", value);
    if (header_value(value, sizeof value, line, n, "Last-Modified:") && *t->version != '"')
        snprintf(t->version, sizeof t->version, "%s", value);
    if (header_value(value, sizeof value, line, n, "Content-Range:")) {
        if (sscanf(value, "bytes %lld-%*d/%lld", &begin, &whole) >= 1) t->range_begin = begin;
        if (sscanf(value, "bytes */%lld", &whole) == 1) t->size = whole;
    }
    return n;
}

static long answer_status(const transfer *t) {
    long status = 0;
    t->curl.easy_getinfo(t->handle, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

/* Before the first byte of the file: it continues what is held, or is the whole. */
static mn_status begin_body(transfer *t) {
    if (t->is_begun) return MN_OK;
    t->is_begun = true;
    if (answer_status(t) != 206) return begin_anew(t);
    if (t->range_begin != t->held)
        MN_FAIL(MN_E_IO, "%s: the server was asked for the bytes from %lld and sent those from %lld", t->d->url,
                (long long)t->held, (long long)t->range_begin);
    return MN_OK;
}

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    transfer *t = user;
    size_t n = size * count;
    mem_written(data, n);
    if (answer_status(t) >= 300) return n; /* a page about an error */
    mn_status status = begin_body(t);
    if (status == MN_OK) status = file_write_all(t->fd, t->d->path, data, n);
    t->has_failed = status != MN_OK;
    return status == MN_OK ? n : 0;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up) {
    transfer *t = user;
    (void)up_total, (void)up;
    if (t->d->stop()) return 1;
    double done = (double)(t->held + now) * 1e-6, all = (double)(t->held + total) * 1e-6;
    if (total > 0 && t->is_begun) {
        progress_line("fetching %s: %.0f of %.0f MB", t->d->name, done, all);
    } else {
        progress_line("fetching %s: %.0f MB", t->d->name, done);
    }
    return 0;
}

/* ---- a request ---- */

static mn_status set_options(transfer *t) {
    CURL *h = t->handle;
    char text[VERSION_BYTES + 16];
    unsigned failed = 0;
#define SET(option, value) failed |= t->curl.easy_setopt(h, CURLOPT_##option, value)
    SET(URL, t->d->url);
    SET(PROTOCOLS_STR, "http,https,file");
    SET(REDIR_PROTOCOLS_STR, strncmp(t->d->url, "https:", 6) == 0 ? "https" : "http,https");
    SET(FOLLOWLOCATION, 1L);
    SET(MAXREDIRS, 10L);
    SET(NOSIGNAL, 1L);
    SET(CONNECTTIMEOUT, (long)CONNECT_S);
    SET(LOW_SPEED_LIMIT, 1L);
    SET(LOW_SPEED_TIME, (long)STALLED_S);
    SET(HEADERFUNCTION, on_header);
    SET(HEADERDATA, t);
    SET(WRITEFUNCTION, on_body);
    SET(WRITEDATA, t);
    SET(NOPROGRESS, 0L);
    SET(XFERINFOFUNCTION, on_progress);
    SET(XFERINFODATA, t);
    if (t->held > 0) {
        snprintf(text, sizeof text, "%lld-", (long long)t->held);
        SET(RANGE, text);
        snprintf(text, sizeof text, "If-Range: %s", t->version);
        if (*t->version) t->headers = t->curl.slist_append(NULL, text);
        if (*t->version && !t->headers) return mem_no_memory();
        SET(HTTPHEADER, t->headers);
    }
#undef SET
    if (failed) MN_FAIL(MN_E_UNSUPPORTED, "mneme pull needs libcurl 7.85 or newer, with HTTP and files");
    return MN_OK;
}

/* What is wrong, when something is; and how much is kept. */
static mn_status judge(transfer *t, CURLcode code, const char *detail) {
    struct stat info;
    long status = answer_status(t);
    if (t->has_failed) return MN_E_IO;
    if (code == CURLE_OK && status < 300) return begin_body(t); /* an empty file had no byte */
    if (code == CURLE_FILE_COULDNT_READ_FILE || status == 404 || status == 410)
        MN_FAIL(MN_E_NOT_FOUND, "there is no file at %s", t->d->url);
    if (code == CURLE_OK) MN_FAIL(MN_E_IO, "%s: the server answers with status %ld", t->d->url, status);
    bool is_stopped = code == CURLE_ABORTED_BY_CALLBACK;
    const char *why = is_stopped ? "cancelled" : *detail ? detail : t->curl.easy_strerror(code);
    mn_status failure = is_stopped ? MN_E_CANCELLED : MN_E_IO;
    if (fstat(t->fd, &info) != 0 || info.st_size == 0) return status_fail(failure, "%s: %s", t->d->url, why);
    return status_fail(failure, "%s: %s; %lld bytes are in %s, and the same command continues after them", t->d->url,
                       why, (long long)info.st_size, t->d->path);
}

/* Asks once; *again: what was held is of no use, and another request begins anew. */
static mn_status ask(transfer *t, bool *again) {
    char detail[CURL_ERROR_SIZE] = "";
    t->range_begin = t->size = -1;
    t->handle = t->curl.easy_init();
    mn_status status = t->handle ? set_options(t) : mem_no_memory();
    if (status == MN_OK) {
        t->curl.easy_setopt(t->handle, CURLOPT_ERRORBUFFER, detail);
        CURLcode code = t->curl.easy_perform(t->handle);
        mem_written(detail, sizeof detail);
        bool is_refused = code == CURLE_OK && answer_status(t) == 416 && t->held > 0; /* no bytes behind those */
        *again = is_refused && t->size != t->held;
        if (!is_refused) status = judge(t, code, detail);
    }
    if (t->handle) t->curl.easy_cleanup(t->handle);
    if (t->headers) t->curl.slist_free_all(t->headers);
    t->handle = NULL;
    t->headers = NULL;
    return status;
}

mn_status download_file(const download *d) {
    transfer t = {.d = d, .fd = -1};
    struct stat info;
    bool again = false;
    mn_status status = libcurl_load(&t.curl, "mneme pull");
    if (status == MN_OK) status = open_held(&t);
    if (status == MN_OK) status = ask(&t, &again);
    if (status == MN_OK && again) {
        *t.version = 0;
        status = begin_anew(&t);
        if (status == MN_OK) status = ask(&t, &again);
        if (status == MN_OK && again) status = status_fail(MN_E_IO, "%s: the server answers with status 416", d->url);
    }
    progress_clear();
    if (status == MN_OK && fsync(t.fd) != 0)
        status = status_fail(MN_E_IO, "cannot write '%s': %s", d->path, strerror(errno));
    if (status != MN_OK && t.fd >= 0 && fstat(t.fd, &info) == 0 && info.st_size == 0) {
        unlink(d->path); /* nothing came */
        download_forget(d->path);
    }
    if (t.fd >= 0) close(t.fd);
    return status;
}

#else

mn_status download_file(const download *d) {
    (void)d;
    MN_FAIL(
        MN_E_UNSUPPORTED,
        "this program was built without libcurl, which mneme pull needs for a URL; `scripts/deps build` installs it");
}

#endif
