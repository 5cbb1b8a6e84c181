/* SPDX-License-Identifier: Apache-2.0 */
#include "http/body.h"

/* What has to come next. */
enum {
    PLAIN, /* data, without chunks */
    SIZE,
    EXTENSION,
    SIZE_END,
    DATA,
    DATA_RETURN,
    DATA_END,
    LINE, /* of the trailer */
    NAME,
    VALUE,
    VALUE_END,
    LAST_END
};

body body_begin(const http_head *h) {
    body b = {.state = h->is_chunked ? SIZE : PLAIN, .left = h->is_chunked ? 0 : h->length};
    b.is_over = !h->is_chunked && b.left == 0;
    return b;
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static bool is_text(char c) {
    return c == '\t' || ((unsigned char)c >= ' ' && c != 127);
}

/* Moves to another state, or has the problem. */
static void expect(body *b, bool is_right, int state, const char *problem) {
    b->state = state;
    if (!is_right) b->problem = problem;
}

static void take_size(body *b, char c) {
    const int digit = digit_of(c);
    if (digit >= 0) {
        b->left = b->left << 4 | (uint64_t)digit;
        if (++b->n_line > BODY_MOST_DIGITS) b->problem = "the size of a chunk has more than 8 digits";
        return;
    }
    expect(b, b->n_line > 0 && (c == '\r' || c == ';'), c == ';' ? EXTENSION : SIZE_END,
           "the size of a chunk is not a hexadecimal number");
    b->n_line = 0;
}

static void take_extension(body *b, char c) {
    if (c == '\r')
        b->state = SIZE_END;
    else if (!is_text(c) || ++b->n_line > BODY_MOST_EXTENSION)
        b->problem = "the extension of a chunk is longer than 256 bytes, or has a control character";
}

/* Fields behind the last chunk. */
static void take_trailer(body *b, char c) {
    if (++b->n_line > BODY_MOST_TRAILER) b->problem = "the fields behind the last chunk are longer than 1024 bytes";
    if (b->state == LINE && c == '\r')
        b->state = LAST_END;
    else if (b->state == LINE || (b->state == NAME && c != ':'))
        expect(b, head_is_token_byte(c), NAME, "the name of a field behind the last chunk is not a token");
    else if (b->state == NAME)
        b->state = VALUE;
    else if (c == '\r')
        b->state = VALUE_END;
    else if (!is_text(c))
        b->problem = "the value of a field behind the last chunk has a control character";
}

static void take_byte(body *b, char c) {
    static const char no_end[] = "a line between chunks does not end in CRLF";
    switch (b->state) {
    case SIZE: take_size(b, c); break;
    case EXTENSION: take_extension(b, c); break;
    case SIZE_END:
        expect(b, c == '\n', b->left ? DATA : LINE, no_end);
        b->n_line = 0;
        break;
    case DATA_RETURN: expect(b, c == '\r', DATA_END, "a chunk does not end where its size says"); break;
    case DATA_END: expect(b, c == '\n', SIZE, no_end); break;
    case VALUE_END: expect(b, c == '\n', LINE, no_end); break;
    case LAST_END:
        expect(b, c == '\n', LAST_END, no_end);
        b->is_over = true;
        break;
    default: take_trailer(b, c);
    }
}

size_t body_take(body *b, const char *text, size_t n) {
    size_t at = 0;
    while (at < n && !b->is_over && !b->problem) {
        if (b->state != PLAIN && b->state != DATA) {
            take_byte(b, text[at++]);
            continue;
        }
        const size_t some = b->left < n - at ? (size_t)b->left : n - at;
        b->left -= some;
        at += some;
        if (b->left > 0) continue;
        b->is_over = b->state == PLAIN;
        b->state = b->state == PLAIN ? PLAIN : DATA_RETURN;
    }
    return at;
}
