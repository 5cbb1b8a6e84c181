/* UTF-8: encoding, decoding, validation (Unicode 15, table 3-7: no overlong forms, no surrogates, up to U+10FFFF).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_UTF8_H
#define MN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Writes `code` (a scalar value) as 1..4 bytes; returns how many. */
static inline size_t utf8_encode(char *out, uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* Bytes that a sequence starting with `lead` has when it is whole: 1..4; 0 when no sequence starts so. */
static inline size_t utf8_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead < 0xE0) return 2;
    if (lead >= 0xE0 && lead < 0xF0) return 3;
    if (lead >= 0xF0 && lead < 0xF5) return 4;
    return 0;
}

/* How many of the first bytes (at most n) begin a well-formed sequence: its whole length when it is all there and
 * valid, fewer when it breaks off or ends early. At least 1 unless no sequence can start here (0). */
static inline size_t utf8_prefix(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t length = n ? utf8_length(s[0]) : 0;
    if (length <= 1) return length;
    if (n < 2) return 1;
    unsigned char lo = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char hi = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < lo || s[1] > hi) return 1;
    for (size_t i = 2; i < length; i++) {
        if (i >= n || (s[i] & 0xC0) != 0x80) return i;
    }
    return length;
}

/* Length of the valid sequence at the start, or 0 when there is none. */
static inline size_t utf8_sequence(const char *text, size_t n) {
    size_t length = utf8_prefix(text, n);
    return length && length == utf8_length((unsigned char)text[0]) ? length : 0;
}

/* Decodes the valid sequence at the start; its length must come from utf8_sequence. */
static inline uint32_t utf8_decode(const char *text, size_t length) {
    const unsigned char *s = (const unsigned char *)text;
    switch (length) {
    case 1: return s[0];
    case 2: return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    case 3: return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    default:
        return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 |
               (s[3] & 0x3F);
    }
}

/* Bytes at the start that are valid UTF-8; n when all are. */
static inline size_t utf8_valid_prefix(const char *text, size_t n) {
    size_t i = 0;
    while (i < n) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        size_t length = utf8_sequence(text + i, n - i);
        if (length == 0) break;
        i += length;
    }
    return i;
}

#endif
