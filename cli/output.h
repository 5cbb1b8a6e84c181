/* Output of the command: the answer on stdout, sentences on stderr, exit codes, JSON. Nothing else in cli/ prints, so
 * that text for a terminal goes through terminal_clean() here and nowhere else; pipes and files get every byte as it
 * is.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_OUTPUT_H
#define MNEME_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "options.h"

enum { EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_MODEL, EXIT_MEMORY, EXIT_CANCELLED, EXIT_CACHE };

/* The exit code of a failed call. */
int exit_of(mn_status status);
/* The same while a model is opened: a damaged, unreadable or unknown one is EXIT_MODEL. */
int exit_of_model(mn_status status);

/* Prints mn_last_error() as `mneme: ...` on stderr and, with --json, as an error object on stdout; returns `code`.
 * `param`: the flag, variable or field it is about, or NULL. */
int report(const options *o, int code, const char *param);
int report_json(bool json_wanted, int code, const char *param);

/* A sentence on stderr: a warning, or a message of -v. */
void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Text on stderr, without the command's name before it or a newline after it. */
void print_error_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes the last line on stderr replaceable by the next message; whether it is still there; removes it. */
void make_replaceable(void);
bool has_replaceable(void);
void remove_replaceable(void);

/* Control sequences of the command's own making, for a stream that is a terminal. */
void put_control(FILE *screen, const char *sequence);

/* The stream that is a terminal: stderr, else stdout, else NULL. */
FILE *terminal_stream(void);

/* Writes to stdout at once; false when that failed (once is enough: later calls do nothing). */
bool put(const char *text, size_t n);
bool put_faint(const char *text, size_t n); /* the same; faint on a terminal that has colours */
bool put_bytes(bytes *b);                   /* and clears b; a b that ran out of memory counts as failed */

/* Flushes stdout. Returns `code`, or EXIT_FAILED when the output did not all leave: with a sentence, but for a closed
 * pipe. A terminal that has gone is what a cancelled command ended for. */
int finish(int code);

bool stdout_is_terminal(void);

#endif
