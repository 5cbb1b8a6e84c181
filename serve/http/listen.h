/* The socket on which a server listens.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_LISTEN_H
#define MNEME_SERVE_LISTEN_H

#include "mneme.h"

/* On a host (NULL: 127.0.0.1) and a port (0: any free one), or at the path of a Unix socket (NULL: none), which only
 * this user may open. The socket, also after a failure (-1: none), is the caller's. MN_E_ARG: the message says why. */
mn_status listen_open(int *out, const char *host, int port, const char *unix_path);
int listen_port(int fd); /* 0: a Unix socket */

#endif
