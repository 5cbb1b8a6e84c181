/* What this process may no longer do once the server has its model, its keys and its sockets.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_SANDBOX_H
#define MNEME_SERVE_SANDBOX_H

#include "serve.h"

/* From now on no thread of this process starts a program, looks into another process, makes a socket, or opens a file,
 * except: files below cache_dir and below the folder of offloaded pages, the file of the cache's key, those of the
 * speech model, libraries below /usr, and the removal of the Unix socket. What is open stays open. What the kernel
 * cannot do is left out (serve_sandbox_lacks). Threads that block every signal must not be running. MN_E_IO, MN_E_ARG.
 */
mn_status sandbox_enter(const serve_options *options);

#endif
