/* The page at /: serve/page/index.html, which is linked into the program.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_PAGE_H
#define MNEME_SERVE_PAGE_H

#include "base/mem.h"

#define PAGE_TYPE "text/html; charset=utf-8"

/* Its Content-Security-Policy: the style and the script that are in it, by their SHA-256, and requests to this server;
 * nothing else is loaded or run. MN_E_NOMEM. */
mn_status page_policy(bytes *out);

#endif
