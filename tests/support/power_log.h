/* What a failure of power may leave of files that were being written. While it records, writes, syncs, renames and removals in one
 * folder are noted as they are done; then any state that the disk may have been left in after any of them can be built. Programs are
 * linked with --wrap for open, write, fsync, rename and unlink (tests/CMakeLists.txt); no fsync of theirs reaches the disk.
 *
 * The model: bytes that are not synced are there or not in blocks of 4 KiB, the last of them perhaps torn at a sector; names that
 * are made, changed and removed are durable in their order when the folder is synced, and before that any first few of them are.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_POWER_LOG_H
#define TESTS_POWER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void power_log_begin(const char *folder); /* a flat one; what lies in it is durable */
void power_log_mark(void);                /* a save has returned */
void power_log_end(void);
void power_log_clear(void);

size_t power_log_calls(void);
/* How many saves had returned before the first `calls` calls were done. */
int power_log_returned(size_t calls);

/* What to believe of the disk, so that a test can show what it would find without syncs. */
typedef enum power_trust { POWER_SYNCS = 0, POWER_NO_FILE_SYNC = 1, POWER_NO_FOLDER_SYNC = 2 } power_trust;

/* In how many ways names may stand after that many calls, and whether bytes of a named file are then uncertain. */
size_t power_log_names(size_t calls, power_trust trust);
bool power_log_uncertain(size_t calls, size_t names, power_trust trust);

/* Builds the state in an empty folder. variant 0: every uncertain block is there, 1: none and the files are shorter, 2: none and
 * they are as long, then the first ones alone, all but one, torn ones, and others by chance. */
void power_log_build(const char *folder, size_t calls, size_t names, size_t variant, power_trust trust);

#endif
