/* Server-sent events out of a stream of bytes that arrives in pieces of any size.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_EVENTS_H
#define MNEME_CLI_BENCH_EVENTS_H

#include "base/mem.h"

enum { EVENTS_MOST_BYTES = 16 << 20 };

typedef struct event_reader {
    bytes line, data; /* of the unfinished line, of the unfinished event */
    bool has_data, after_return;
    size_t n_lines;
} event_reader;

/* The data of one event, its lines joined by '\n'. A failure ends the reading. */
typedef mn_status (*event_taker)(void *user, const char *data, size_t n);

/* Lines end with "\n", "\r\n" or "\r", events with an empty line. Fields other than "data", comments and a byte order
 * mark are skipped. MN_E_FORMAT for an event of more than EVENTS_MOST_BYTES; MN_E_NOMEM; what `take` returns. */
mn_status events_feed(event_reader *r, const char *text, size_t n, event_taker take, void *user);
void events_clear(event_reader *r);

#endif
