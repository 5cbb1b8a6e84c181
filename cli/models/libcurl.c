/* SPDX-License-Identifier: Apache-2.0 */
#ifdef MNEME_HAVE_LIBCURL

#include "models/libcurl.h"

#include <dlfcn.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

mn_status libcurl_load(curl_functions *curl, const char *user) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static const char *const symbols[] = {
#define NAME(name) "curl_" #name,
        CURL_FUNCTIONS(NAME)};
    void *members[] = {
#define MEMBER(name) &curl->name,
        CURL_FUNCTIONS(MEMBER)};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) MN_FAIL(MN_E_UNSUPPORTED, "%s needs libcurl, which cannot be loaded: %s", user, dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i]);
        if (!found) MN_FAIL(MN_E_UNSUPPORTED, "%s needs libcurl 7.85 or newer: %s is missing", user, symbols[i]);
        memcpy(members[i], &found, sizeof found);
    }
    return curl->global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? MN_OK : mem_no_memory();
}

#else

typedef int without_libcurl; /* a file of C declares something */

#endif
