/* Ctrl-C and SIGTERM: a running generation ends with what there is; otherwise the command ends at once with
 * exit code 5. A second signal always ends it. A conversation listens instead: signals are marked, and wake who waits for
 * input. A mapped file that another process shortens ends the command with a sentence and exit code 1; closed pipes and limits
 * of file sizes are seen as failed writes. SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_INTERRUPT_H
#define MNEME_CLI_INTERRUPT_H

#include <stdbool.h>

#include "mneme.h"

void interrupt_install(void);

/* From now on a signal cancels `session` (NULL: only sets the mark that interrupt_seen tells). */
void interrupt_watch(mn_session *session);
void interrupt_unwatch(void);
bool interrupt_seen(void);

/* From now on signals are only marked, however many come, and interrupt_wait returns for them: those above, SIGHUP (unless it is
 * ignored: nohup), a terminal's new size, and going on after a stop. MN_E_IO when the system gives no pipe. */
mn_status interrupt_listen(void);

/* Blocks until `fd` can be read (or has ended): true; or until a signal was marked: false. */
bool interrupt_wait(int fd);

/* What was marked and not taken yet. `leave` stays marked: SIGTERM or SIGHUP came. */
typedef struct interrupt_signs {
    bool stop, leave, resized, resumed;
} interrupt_signs;

interrupt_signs interrupt_take(void);

#endif
