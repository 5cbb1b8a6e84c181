/* JSON: one reader for configurations, tokenizers and hostile headers, and small writing helpers.
 *
 * Our own, because the packaged readers cannot refuse duplicate keys (docs/decisions/json.md). A document owns all its
 * values; members keep their order; integers are exact to 64 bits and become reals beyond.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_JSON_H
#define MN_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

typedef enum json_kind { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_kind;

typedef struct json json;
typedef struct json_member json_member;

struct json {
    json_kind kind;
    union {
        size_t n;            /* JSON_STRING: bytes; JSON_ARRAY: items; JSON_OBJECT: members */
        const char *written; /* JSON_REAL: the number in the document, not terminated; NULL: NaN and infinities */
    };
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *string; /* UTF-8, zero-terminated; may hold zero bytes inside */
        const json *items;
        const json_member *members;
    };
};

struct json_member {
    const char *key; /* UTF-8, zero-terminated */
    size_t key_n;
    json value;
};

typedef struct json_doc json_doc;

typedef enum json_mode {
    JSON_STRICT, /* RFC 8259, duplicate keys and lone surrogates refused: safetensors headers, requests */
    JSON_PYTHON, /* what Python's json module reads: NaN and Infinity; the last of duplicate keys counts; a lone
                    surrogate becomes U+FFFD: configurations and tokenizers */
} json_mode;

/* Parses `n` bytes. `what` (copied) names the text in every later message, e.g. "config.json". Depth is limited to 256,
 * values to 8388608. MN_E_FORMAT with line and column (in bytes), MN_E_NOMEM. */
mn_status json_parse(json_doc **out, const char *text, size_t n, json_mode mode, const char *what);

/* Reads and parses a file of at most `limit` bytes; the message names the path. */
mn_status json_open(json_doc **out, const char *path, json_mode mode, size_t limit);
void json_close(json_doc **doc);
const json *json_root(const json_doc *doc);
const char *json_what(const json_doc *doc);

/* The member's value, the last one of that name; NULL when absent or when `object` is no object (or NULL). */
const json *json_get(const json *object, const char *key);
bool json_is_string(const json *value, const char *text);

/* Typed getters. Absent and null leave *out as it is and return MN_OK, so set the default before; a wrong kind or a
 * value out of lo..hi is MN_E_FORMAT, the message names `what`, the key, the value and what is allowed. */
mn_status json_int(const char *what, const json *object, const char *key, int64_t lo, int64_t hi, int64_t *out);
mn_status json_real(const char *what, const json *object, const char *key, double lo, double hi, double *out);
mn_status json_bool(const char *what, const json *object, const char *key, bool *out);
mn_status json_string(const char *what, const json *object, const char *key, const char **out);
/* "what: key is <value>, allowed: ...", the sentence of the getters, for checks of the caller's own; MN_E_FORMAT. */
mn_status json_wrong_value(const char *what, const char *key, const json *value, const char *allowed);
/* Present and not null, else MN_E_FORMAT "what: 'key' is missing". */
mn_status json_require(const char *what, const json *object, const char *key);

/* Writing. Strings are escaped as Python's json.dumps(ensure_ascii=False) does; invalid UTF-8 becomes U+FFFD. */
void json_put_string(bytes *out, const char *text, size_t n);
void json_put_bytes(bytes *out, const bytes *text); /* a string; what failed in `text` has failed in `out` */
void json_put_real(bytes *out, double value); /* shortest text that reads back equal; NaN and infinities as null */
/* A member of an object: a comma unless it is the first one, the key, the value. NULL: an element of a list, without a
 * key. */
void json_put_key(bytes *out, const char *key);
void json_put_text_member(bytes *out, const char *key, const char *text);
void json_put_int_member(bytes *out, const char *key, int64_t value);
void json_put_real_member(bytes *out, const char *key, double value);
void json_put_bool_member(bytes *out, const char *key, bool value);
/* Compact. A number that its double does not hold is written as it was read. */
void json_put(bytes *out, const json *value);
/* As json_put; JSON_PYTHON: NaN and infinities as json_parse reads them in that mode. */
void json_put_as(bytes *out, const json *value, json_mode mode);

#endif
