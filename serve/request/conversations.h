/* Conversations that clients may continue by the id of their last response: in memory, a bounded number of bytes; the
 * least recently used are dropped first. From any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_CONVERSATIONS_H
#define MNEME_SERVE_CONVERSATIONS_H

#include "base/mem.h"

enum { MOST_CONVERSATIONS = 1024, MOST_CONVERSATION_BYTES = 64 << 20 };

typedef struct conversations conversations;

conversations *conversations_open(void); /* NULL: no memory */
void conversations_close(conversations **c);

/* Keeps messages, JSON without brackets, the last one the answer. owner: as keys_find names it, NULL: none. What does
 * not fit is not kept. */
void conversations_keep(conversations *c, const char *id, const char *owner, const bytes *messages);

/* Appends its messages; false: there is none of that id and owner. */
bool conversations_find(conversations *c, const char *id, const char *owner, bytes *messages);

#endif
