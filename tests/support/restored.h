/* Saved caches whose checksums are right and whose contents are not: how to make them, and what must hold of each. The checks abort
 * the program when they fail, so that the fuzzer of tests/fuzz uses the same ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RESTORED_H
#define TESTS_RESTORED_H

#include "gen/session.h"
#include "kv/archive.h"

/* Writes the archive to `path` with one to three things changed: numbers, bytes, sizes, types and names of entries, entries left
 * out, exchanged or twice, numbers in members, members exchanged. Whatever that gives, its checksums are right. */
void restored_mutate(const archive *a, const char *path, uint64_t *seed);

/* Loads a file and, where that succeeds, does with the session what users do: steps, cuts, forks, saves and loads it, reads it,
 * gives it another strategy. Every invariant of its cache holds all the time; what it saves can be loaded; all pages go back.
 * scratch: a file for that. most: bytes of pages that may be held then. Gives the status of loading: MN_OK, MN_E_REFUSED or
 * MN_E_NOMEM. */
mn_status restored_use(mn_model *model, const char *path, const char *scratch, size_t most, uint64_t *seed);

#endif
