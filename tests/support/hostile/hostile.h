/* Damaged files for the readers: how to make them, and the checks that every input must pass. A failed check aborts the
 * program, so that the fuzzers of tests/fuzz can use the same ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

#define MUST_HOLD(condition)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Damages the n bytes in place: one to four times a flipped bit, a set byte, a cut, a piece copied elsewhere or
 * inserted or removed, a number overwritten, a decimal digit changed. Returns the new length, at most capacity. */
size_t hostile_mutate(uint8_t *data, size_t n, size_t capacity, uint64_t *seed);

/* Reads the bytes from a block of exactly their size. If they are accepted, visits everything the reader returns:
 * tensors are inside the file and have the bytes of their shapes, names find their tensors, getters succeed. Nothing
 * may leak. Returns the reader's status: MN_OK or MN_E_FORMAT. */
mn_status hostile_safetensors(const uint8_t *data, size_t n);
mn_status hostile_gguf(const uint8_t *data, size_t n);

/* The same for saved caches, with every byte read: a caller's allocations are bounded by the file's size, and every
 * entry that archive_verify accepts can be read. Returns the status of opening and verifying: MN_OK or MN_E_REFUSED. */
mn_status hostile_archive(const uint8_t *data, size_t n);
/* Corrects the checksums of a damaged archive where possible, so that a reader parses the rest. */
void hostile_archive_fix_checksums(uint8_t *data, size_t n);

/* Random bytes as a recording: its features are finite. MN_OK or MN_E_FORMAT. */
mn_status hostile_audio(const uint8_t *data, size_t n);

/* A whole checkpoint: the folder `base` with `file` replaced by these bytes, or, where base is NULL, a GGUF file of
 * these bytes. If it opens, encodes a text, renders the template and runs some tokens through a session. Returns
 * the status of opening. */
mn_status hostile_checkpoint(const char *base, const char *file, const uint8_t *data, size_t n);
/* The names that such a folder may hold; ends with NULL. */
extern const char *const checkpoint_files[];
/* A GGUF file of a tiny Llama with a vocabulary, as the bytes above: owned by the caller (mem_free). */
uint8_t *checkpoint_gguf(size_t *n);

/* Both modes. The lenient mode accepts what the strict mode accepts, and accepted values are equal after writing and
 * reading them again. Returns the strict mode's status. */
mn_status hostile_json(const uint8_t *data, size_t n);

#endif
