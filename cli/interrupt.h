/* Ctrl-C and SIGTERM: a running generation ends with what there is; otherwise the command ends at once with exit code
 * 5. A second signal always ends it. In a conversation signals are only recorded and end the wait for input. A mapped
 * file that another process shortens ends the command with a sentence and exit code 1; closed pipes and limits of file
 * sizes appear as failed writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_INTERRUPT_H
#define MNEME_CLI_INTERRUPT_H

#include <stdbool.h>

#include "mneme.h"

void interrupt_install(void);

/* From now on a signal cancels `session` (NULL: it is only recorded for interrupt_seen). */
void interrupt_watch(mn_session *session);
void interrupt_unwatch(void);
bool interrupt_seen(void);

/* From now on signals are only recorded, and interrupt_wait returns for them: those above, SIGHUP (unless ignored, as
 * with nohup), SIGWINCH and SIGCONT. MN_E_IO when no pipe can be opened. */
mn_status interrupt_listen(void);

/* Blocks until `fd` can be read (or has ended): true; or until a signal was recorded: false. */
bool interrupt_wait(int fd);

/* Signals marked since the last call. `leave` stays set: SIGTERM or SIGHUP came. */
typedef struct interrupt_events {
    bool stop, leave, resized, resumed;
} interrupt_events;

interrupt_events interrupt_take(void);

#endif
