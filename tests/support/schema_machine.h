/* The automaton of a schema, without tokens, for tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCHEMA_MACHINE_H
#define TESTS_SCHEMA_MACHINE_H

#include "constraint/run.h"

enum { MACHINE_TEXT = 4000 }; /* bytes of the longest text */

typedef struct machine {
    json_doc *doc;
    net g;
    run r;
} machine;

/* The message of a schema that cannot be met begins as that of a constraint does. *m must be closed in any case. */
mn_status machine_open(machine *m, const char *schema);
void machine_close(machine *m);

bool machine_takes(machine *m, const char *text, size_t n);
/* Appends a shortest path to an accepting state without the bytes of `avoid`; 0 when none is found. out:
 * [MACHINE_TEXT]. */
size_t machine_complete(machine *m, uint32_t state, const char *avoid, char *out, size_t n);
/* Random accepted bytes, then a shortest path to an accepting state. */
size_t machine_walk(machine *m, uint64_t *seed, char *out);

#endif
