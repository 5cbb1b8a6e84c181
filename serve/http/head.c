/* SPDX-License-Identifier: Apache-2.0 */
#include "http/head.h"

#include <string.h>
#include <strings.h>

static http_head refuse(int status, const char *problem) {
    return (http_head){.status = status, .problem = problem};
}

bool head_is_token_byte(char c) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    bool is_alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return is_alphanumeric || (c != 0 && strchr(others, c));
}

static bool is_token(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!head_is_token_byte(s[i])) return false;
    }
    return n > 0;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static bool is_one_of(const char *s, size_t n, const char *const *list) {
    for (; *list; list++) {
        if (strlen(*list) == n && memcmp(*list, s, n) == 0) return true;
    }
    return false;
}

/* "POST /v1/chat/completions HTTP/1.1" */
static http_head check_request_line(const char *s, size_t n, bool *is_1_1) {
    static const char *const methods[] = {"GET",     "HEAD",   "POST",    "PUT",   "PATCH", "TRACE",
                                          "OPTIONS", "DELETE", "CONNECT", "QUERY", NULL};
    const char *space = memchr(s, ' ', n), *target = space ? space + 1 : NULL;
    const char *end = target ? memchr(target, ' ', n - (size_t)(target - s)) : NULL;
    if (!end) return refuse(400, "the request line is not 'METHOD TARGET HTTP/1.1'");
    if (!is_token(s, (size_t)(space - s))) return refuse(400, "the method is not a token");
    if (!is_one_of(s, (size_t)(space - s), methods)) return refuse(501, "the method is not known");
    if (target == end || *target != '/') return refuse(400, "the target of the request does not begin with '/'");
    for (const char *c = target; c < end; c++) {
        if (*c <= ' ' || *c >= 127) return refuse(400, "the target of the request has a byte that is not allowed");
        if (*c == '#') return refuse(400, "the target of the request has a fragment");
        if (*c == '%' && (!is_hex(c[1]) || !is_hex(c[2]) || (c[1] == '0' && c[2] == '0')))
            return refuse(400, "the target of the request has a '%' without two hexadecimal digits, or a zero byte");
    }
    const char *version = end + 1;
    size_t n_version = n - (size_t)(version - s);
    *is_1_1 = n_version == 8 && memcmp(version, "HTTP/1.1", 8) == 0;
    if (*is_1_1 || (n_version == 8 && memcmp(version, "HTTP/1.0", 8) == 0)) return (http_head){.status = 200};
    bool is_http = n_version == 8 && memcmp(version, "HTTP/", 5) == 0 && version[6] == '.';
    return is_http ? refuse(505, "the version is not HTTP/1.1") : refuse(400, "the version is not 'HTTP/1.1'");
}

static bool is_named(const char *s, size_t n, const char *name) {
    return strlen(name) == n && strncasecmp(s, name, n) == 0;
}

/* Whether a list, as "keep-alive, close", has this element. */
static bool list_has(const char *s, size_t n, const char *name) {
    for (const char *end = s + n; s < end;) {
        const char *comma = memchr(s, ',', (size_t)(end - s)), *next = comma ? comma + 1 : end;
        const char *last = comma ? comma : end;
        while (s < last && (*s == ' ' || *s == '\t')) s++;
        while (last > s && (last[-1] == ' ' || last[-1] == '\t')) last--;
        if (is_named(s, (size_t)(last - s), name)) return true;
        s = next;
    }
    return false;
}

static http_head check_length(http_head h, const char *s, size_t n) {
    if (h.has_length) return refuse(400, "Content-Length is given twice");
    if (n == 0 || n > 18) return refuse(400, "Content-Length is not a number");
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return refuse(400, "Content-Length is not a number");
        h.length = h.length * 10 + (uint64_t)(s[i] - '0');
    }
    h.has_length = true;
    return h;
}

/* A name or an address, and a port. */
static bool is_host(const char *s, size_t n) {
    static const char others[] = "-._~[]:%";
    for (size_t i = 0; i < n; i++) {
        bool is_alphanumeric = (s[i] >= '0' && s[i] <= '9') || ((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z');
        if (!is_alphanumeric && !strchr(others, s[i])) return false;
    }
    return n > 0;
}

/* "Name: value", without its line end. */
static http_head check_field(http_head h, const char *s, size_t n, bool *has_host) {
    const char *colon = memchr(s, ':', n);
    if (!colon) return refuse(400, "a header field has no ':'");
    size_t n_name = (size_t)(colon - s);
    if (!is_token(s, n_name)) return refuse(400, "the name of a header field is not a token");
    const char *value = colon + 1, *end = s + n;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    for (const char *c = value; c < end; c++) {
        unsigned char byte = (unsigned char)*c;
        if ((byte < ' ' && byte != '\t') || byte == 127)
            return refuse(400, "the value of a header field has a control character");
    }
    size_t n_value = (size_t)(end - value);
    if (is_named(s, n_name, "Content-Length")) return check_length(h, value, n_value);
    if (is_named(s, n_name, "Transfer-Encoding")) {
        if (h.is_chunked || !is_named(value, n_value, "chunked"))
            return refuse(400, "Transfer-Encoding is not 'chunked'");
        h.is_chunked = true;
    }
    if (is_named(s, n_name, "Host")) {
        if (*has_host || !is_host(value, n_value)) return refuse(400, "Host is given twice, or is not a name");
        *has_host = true;
    }
    if (is_named(s, n_name, "Connection") && list_has(value, n_value, "close")) h.closes = true;
    if (is_named(s, n_name, "Expect") && !is_named(value, n_value, "100-continue"))
        return refuse(417, "Expect is not '100-continue'");
    return h;
}

/* The line that begins at `at`: its length without CRLF; SIZE_MAX: not whole yet; SIZE_MAX - 1: it holds a bare CR or
 * LF, or a zero byte. */
static size_t line_length(const char *text, size_t n, size_t at) {
    for (size_t i = at; i < n; i++) {
        if (text[i] == 0 || text[i] == '\n') return SIZE_MAX - 1;
        if (text[i] != '\r') continue;
        if (i + 1 == n) return SIZE_MAX;
        return text[i + 1] == '\n' ? i - at : SIZE_MAX - 1;
    }
    return SIZE_MAX;
}

http_head head_check(const char *text, size_t n) {
    http_head h = {.status = 200};
    bool is_1_1 = false, has_host = false;
    size_t at = 0;
    for (int line = 0;; line++) {
        size_t length = line_length(text, n, at);
        if (length == SIZE_MAX - 1) return refuse(400, "a line of the head does not end in CRLF, or has a zero byte");
        bool is_whole = length < SIZE_MAX;
        if (line == 0 && (is_whole ? length : n) > HEAD_MOST_LINE)
            return refuse(414, "the request line is longer than 8192 bytes");
        if ((is_whole ? at + length + 2 : n) > HEAD_MOST_BYTES)
            return refuse(431, "the header is longer than 32768 bytes");
        if (!is_whole) return (http_head){0};
        if (length == 0 && line > 0) {
            h.n = at + 2;
            break;
        }
        if (line > HEAD_MOST_FIELDS) return refuse(431, "the header has more than 100 fields");
        h = line == 0 ? check_request_line(text + at, length, &is_1_1) : check_field(h, text + at, length, &has_host);
        if (h.status != 200) return h;
        at += length + 2;
    }
    if (is_1_1 && !has_host) return refuse(400, "Host is missing");
    if (h.is_chunked && h.has_length) return refuse(400, "Content-Length and Transfer-Encoding are both given");
    h.closes = h.closes || !is_1_1;
    if (h.is_chunked && !is_1_1) return refuse(400, "Transfer-Encoding is not for HTTP/1.0");
    return h;
}

size_t head_shorten(char *text, size_t n) {
    size_t kept = 0;
    for (size_t at = 0; at < n;) {
        const size_t length = line_length(text, n, at) + 2;
        const char *line = text + at, *query = kept ? NULL : memchr(line, '?', length);
        const char *rest = query ? memchr(query, ' ', length - (size_t)(query - line)) : line;
        const char *colon = memchr(line, ':', length);
        at += length;
        if (kept && colon && is_named(line, (size_t)(colon - line), "Cookie")) continue;
        if (query) kept = (size_t)(query - line);
        const size_t n_rest = length - (size_t)(rest - line);
        memmove(text + kept, rest, n_rest);
        kept += n_rest;
    }
    return kept;
}
