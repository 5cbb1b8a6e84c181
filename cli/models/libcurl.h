/* The functions of libcurl that are called. It is loaded when the first of them is needed: linked, it and the thirty
 * libraries that it needs would delay every start of the command by several milliseconds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_PULL_LIBCURL_H
#define MNEME_CLI_PULL_LIBCURL_H

#define CURL_DISABLE_TYPECHECK /* its checks are for calls by name */
#include <curl/curl.h>

#include "mneme.h"

/* clang-format off */
#define CURL_FUNCTIONS(ROW) \
    ROW(global_init) ROW(easy_init) ROW(easy_cleanup) ROW(easy_perform) \
    ROW(easy_setopt) ROW(easy_getinfo) ROW(easy_strerror) \
    ROW(multi_init) ROW(multi_cleanup) ROW(multi_add_handle) \
    ROW(multi_remove_handle) ROW(multi_perform) ROW(multi_poll) \
    ROW(multi_info_read) ROW(slist_append) ROW(slist_free_all)
/* clang-format on */

#define POINTER_MEMBER(name) __typeof__(curl_##name) *name;

typedef struct curl_functions {
    CURL_FUNCTIONS(POINTER_MEMBER)
} curl_functions;

/* Loads the library for the rest of the process. MN_E_UNSUPPORTED names `user`, which needs it: "--serve". */
mn_status libcurl_load(curl_functions *curl, const char *user);

#endif
