/* Ctrl-C and SIGTERM: a running generation ends with what there is; otherwise the command ends at once with
 * exit code 5. A second signal always ends it. A mapped file that another process shortens ends it with a
 * sentence and exit code 1; closed pipes and limits of file sizes are seen as failed writes. SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_INTERRUPT_H
#define MNEME_CLI_INTERRUPT_H

#include <stdbool.h>

#include "mneme.h"

void interrupt_install(void);

/* From now on a signal cancels `session` (NULL: only sets the mark that interrupt_seen tells). */
void interrupt_watch(mn_session *session);
void interrupt_unwatch(void);
bool interrupt_seen(void);

#endif
