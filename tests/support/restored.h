/* Saved caches with correct checksums and wrong contents: how to make them, and the checks that each must pass. A
 * failed check aborts the program, so that the fuzzer of tests/fuzz can use the same ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RESTORED_H
#define TESTS_RESTORED_H

#include "session/session.h"
#include "kv/archive.h"

/* Writes the archive to `path` with one to three things changed: numbers, bytes, sizes, types and names of entries,
 * entries left out, exchanged or twice, numbers in members, members exchanged. The checksums of the result are correct.
 */
void restored_mutate(const archive *a, const char *path, uint64_t *seed);

/* Loads a file and, if that succeeds, uses the session: steps, truncations, forks, saves and loads, reads, other
 * strategies. Every invariant of its cache must hold throughout, what it saves can be loaded, and all pages are
 * returned. scratch: a file for saving. most: bytes of pages that may be held. Returns the status of loading: MN_OK,
 * MN_E_REFUSED or MN_E_NOMEM. */
mn_status restored_use(mn_model *model, const char *path, const char *scratch, size_t most, uint64_t *seed);

#endif
