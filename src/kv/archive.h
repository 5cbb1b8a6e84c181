/* Saved caches as files: named byte entries in one safetensors file, each with a checksum, written completely or not at
 * all.
 *
 * Layout: a safetensors file. The data of every entry begin at a multiple of 64 bytes of the file, so that pages can be
 * used where they are mapped; since the format allows no gaps, a tensor "mneme.fill.N" of zeros, U8 [1..63], follows an
 * entry whose size is no multiple of 64. The metadata, all text, hold in this order
 *   "mneme.sum"      XXH3 64 of the file's first bytes up to the data (header length, header, spaces) with these 16 hex
 * digits taken as zeros "mneme.version"  "1" "mneme.mac"      where a key was given: HMAC-SHA256 of the whole file,
 * with these 64 hex digits and those of "mneme.sum" taken as zeros the caller's members "sum.NAME"       of every
 * entry: XXH3 64 of its bytes as they stand in the file, 16 hex digits "raw.NAME"       of every compressed entry: type
 * and shape before compression, "BF16 [12,64]"; such an entry is one zstd frame that tells its size, stored as U8
 * [bytes of the frame] So an accidental change of any byte is detected, and with a key a deliberate one. Any reader of
 * safetensors can read the uncompressed entries.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_ARCHIVE_H
#define MN_KV_ARCHIVE_H

#include "base/file.h"
#include "base/hash.h"
#include "base/mac.h"
#include "tensor/tensor.h"

enum {
    ARCHIVE_VERSION = 1,
    ARCHIVE_DIMS = 4,
    ARCHIVE_ALIGN = 64,
    /* An entry that would shrink more than this is stored uncompressed, and a file that claims a higher ratio is
     * refused: this bounds a reader's allocations by the size of the file. */
    ARCHIVE_MOST_RATIO = 256
};

/* The members of a saved cache, and the entry of its token ids. */
#define ARCHIVE_KIND                  "mneme.kind" /* ARCHIVE_KIND_CACHE */
#define ARCHIVE_KIND_CACHE            "cache"
#define ARCHIVE_MODEL                 "model"                 /* its name, for people */
#define ARCHIVE_MODEL_FINGERPRINT     "model_fingerprint"     /* weights and configuration, 32 hex digits */
#define ARCHIVE_TOKENIZER_FINGERPRINT "tokenizer_fingerprint" /* 32 hex digits, or "" without a tokenizer */
#define ARCHIVE_STRATEGY              "strategy"              /* JSON object; "implementation" is the strategy's name */
#define ARCHIVE_ROPE                                                                                                   \
    "rope"                        /* JSON object: parameters of the rotary                                             \
                                   * embedding applied to the keys */
#define ARCHIVE_TOKENS  "tokens"  /* how many, decimal */
#define ARCHIVE_COMPUTE "compute" /* compute type and CPU level that made the numbers, "int8 avx2" */
#define ARCHIVE_CREATED "created" /* RFC 3339, UTC */
#define ARCHIVE_IDS     "ids"     /* entry I32 [tokens] */

typedef struct archive_entry {
    const char *name; /* UTF-8 without control characters, not "mneme.fill..." */
    dtype type;       /* a type that safetensors has; DTYPE_U8 for opaque bytes */
    int n_dims;
    int64_t shape[ARCHIVE_DIMS];
    const void *data;
    size_t n_bytes; /* of type and shape */
    bool compress;  /* try zstd; stored uncompressed when that saves less than a tenth */
} archive_entry;

typedef struct archive_member {
    const char *key, *value; /* UTF-8; "mneme.sum", "mneme.version", "mneme.mac", "sum..." and "raw..." are
                              * reserved */
} archive_member;

/* Written by file_write_parts, which documents failures and the temporary files of killed processes. Data are copied
 * only to compress them. MN_E_ARG for names, sizes and keys that a reader would refuse. */
mn_status archive_write(const char *path, const archive_entry *entries, size_t n_entries, const archive_member *members,
                        size_t n_members);

/* The same with a keyed checksum; key NULL or empty: without. */
mn_status archive_write_keyed(const char *path, const archive_entry *entries, size_t n_entries,
                              const archive_member *members, size_t n_members, const mac_key *key);

/* Whether a regular file begins like an archive. */
bool archive_recognise(const char *path);

typedef struct archive archive;

/* Maps and parses. Version, checksum of the header, names, sizes, alignment and the format of every member are checked,
 * checksums of the data are not. MN_E_REFUSED with the reason; MN_E_NOT_FOUND, MN_E_IO, MN_E_NOMEM. */
mn_status archive_open(archive **out, const char *path);
/* The same for a file of n bytes in memory, which must outlive the archive; `what` names it. */
mn_status archive_open_memory(archive **out, const void *data, size_t n, const char *what);
void archive_close(archive **a);

/* Verifies the keyed checksum of the whole file: MN_E_REFUSED when it is missing or wrong. */
mn_status archive_authenticate(const archive *a, const mac_key *key);

size_t archive_file_bytes(const archive *a);

/* The caller's members, in their order. */
size_t archive_members(const archive *a);
archive_member archive_member_at(const archive *a, size_t i);
const char *archive_member_of(const archive *a, const char *key); /* NULL: none */

typedef struct archive_view {
    const char *name;
    dtype type; /* type, shape and n_bytes: uncompressed */
    int n_dims;
    int64_t shape[ARCHIVE_DIMS];
    size_t n_bytes;
    size_t stored_bytes; /* in the file */
    bool compressed;
    uint64_t sum;          /* as in the file */
    const uint8_t *stored; /* in the mapping; 64-byte aligned when archive_open mapped it */
} archive_view;

size_t archive_entries(const archive *a);
const archive_view *archive_entry_at(const archive *a, size_t i);     /* in file order */
const archive_view *archive_find(const archive *a, const char *name); /* NULL: none */

/* Verifies the checksum and returns the bytes: *data points into the mapping, or, for a compressed entry, is `buffer`
 * (at least n_bytes). MN_E_REFUSED names the damaged entry. */
mn_status archive_bytes(const archive *a, const archive_view *view, void *buffer, const uint8_t **data);

/* Verifies the bytes between entries, for readers that verify every entry themselves. */
mn_status archive_verify_gaps(const archive *a);

/* Verifies every byte of the file: all checksums, and that compressed entries expand to their type and shape. Needs a
 * few MiB at most. */
mn_status archive_verify(const archive *a);

#endif
