/* Damaged files for the readers: how to damage them, and what must hold for every input, however damaged. The
 * checks abort the program when they fail, so that the fuzzers of tests/fuzz use the same ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

#define MUST_HOLD(condition)                                                                                 \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Damages the n bytes in place: one to four times a flipped bit, a set byte, a cut, a piece copied elsewhere
 * or inserted or removed, a number overwritten, a decimal digit changed. Returns the new length, at most
 * capacity. */
size_t hostile_mutate(uint8_t *data, size_t n, size_t capacity, uint64_t *seed);

/* Reads the bytes from a block of exactly their size. When they are accepted, walks through everything the
 * reader hands out: tensors lie inside the file and have the bytes that their shapes ask for, names find
 * their tensors, getters answer. Nothing may leak. Returns the reader's status: MN_OK or MN_E_FORMAT. */
mn_status hostile_safetensors(const uint8_t *data, size_t n);
mn_status hostile_gguf(const uint8_t *data, size_t n);

/* The same for saved caches, every byte of them: what a caller would allocate is bounded by the file's size, and what
 * archive_verify accepts can be had. Returns the status of opening and verifying: MN_OK or MN_E_REFUSED. */
mn_status hostile_archive(const uint8_t *data, size_t n);
/* Makes the checksums of a damaged archive right again where that is possible, so that a reader looks at the rest. */
void hostile_archive_reseal(uint8_t *data, size_t n);

/* Any bytes as a recording: levels are finite, wherever they are. MN_OK or MN_E_FORMAT. */
mn_status hostile_audio(const uint8_t *data, size_t n);

/* A whole checkpoint: the folder `base` with `file` replaced by these bytes, or, where base is NULL, a GGUF file of these bytes. What
 * opens takes a text through its tokenizer and template and some tokens through a session. Returns the status of opening. */
mn_status hostile_checkpoint(const char *base, const char *file, const uint8_t *data, size_t n);
/* The names that such a folder may hold; ends with NULL. */
extern const char *const checkpoint_files[];
/* A GGUF file of a tiny Llama with a vocabulary, as the bytes above: owned by the caller (mem_free). */
uint8_t *checkpoint_gguf(size_t *n);

/* Both modes. What the strict mode accepts the other accepts too, and what is accepted is the same after
 * writing and reading it again. Returns the strict mode's status. */
mn_status hostile_json(const uint8_t *data, size_t n);

#endif
