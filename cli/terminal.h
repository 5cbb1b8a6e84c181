/* Escaping of text for a terminal. Terminals execute control characters: they move the cursor, write the clipboard,
 * change the title. None from a file, a token or an error may reach the terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_TERMINAL_H
#define MNEME_CLI_TERMINAL_H

#include <stddef.h>

/* Copies text into out (at most `room` bytes, 8 or more) as a terminal may get it, and returns how many bytes that
 * gave. Control characters but newlines and tabs, U+007F and U+0080 to U+009F become \u001b, as JSON writes them, so
 * that JSON stays JSON; bytes that are no UTF-8 become U+FFFD. *used: bytes of text taken: not all where `room` ends,
 * or where the last character is not whole yet. */
size_t terminal_clean(char *out, size_t room, const char *text, size_t n, size_t *used);

#endif
