/* States of files after a power failure. While recording, writes, syncs, renames and removals in one folder are logged;
 * then every state in which the disk may be after any of them can be built. Programs are linked with --wrap for open,
 * write, fsync, rename and unlink (tests/CMakeLists.txt); no fsync of theirs reaches the disk.
 *
 * The model: bytes that are not synced are present or missing in blocks of 4 KiB, of which the last may be torn at a
 * sector; created, changed and removed names are durable in their order once the folder is synced, before that any
 * prefix of them is.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_POWER_LOG_H
#define TESTS_POWER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void power_log_begin(const char *folder); /* a folder without subfolders; its files are durable */
void power_log_mark(void);                /* a save has returned */
void power_log_end(void);
void power_log_clear(void);

size_t power_log_calls(void);
/* How many saves had returned before the first `calls` calls were done. */
int power_log_returned(size_t calls);

/* Which syncs count, so that a test can show that it finds errors without them. */
typedef enum power_trust { POWER_SYNCS = 0, POWER_NO_FILE_SYNC = 1, POWER_NO_FOLDER_SYNC = 2 } power_trust;

/* The number of possible states of names after that many calls, and whether bytes of a named file are then uncertain.
 */
size_t power_log_names(size_t calls, power_trust trust);
bool power_log_uncertain(size_t calls, size_t names, power_trust trust);

/* Builds the state in an empty folder. variant 0: every uncertain block is present; 1: none, and the files are shorter;
 * 2: none, and they keep their length; then prefixes, all but one, torn blocks, and random subsets. */
void power_log_build(const char *folder, size_t calls, size_t names, size_t variant, power_trust trust);

#endif
