/* SPDX-License-Identifier: Apache-2.0 */
#include "http/page.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/status.h"
#include "server.h"

extern const char serve_page_begin[], serve_page_end[];

mn_status page_answer(bytes *out, server *s, const json *body, refusal *why) {
    (void)s;
    (void)body;
    (void)why;
    bytes_append(out, serve_page_begin, (size_t)(serve_page_end - serve_page_begin));
    return bytes_status(out);
}

/* Appends 'sha256-...' of what is between the tags, which the page has once. */
static mn_status put_hash(bytes *out, const char *opening, const char *closing) {
    unsigned char hash[EVP_MAX_MD_SIZE], base64[2 * EVP_MAX_MD_SIZE];
    unsigned n = 0;
    const char *begin = strstr(serve_page_begin, opening) + strlen(opening), *end = strstr(begin, closing);
    if (!EVP_Digest(begin, (size_t)(end - begin), hash, &n, EVP_sha256(), NULL)) return MN_E_NOMEM;
    EVP_EncodeBlock(base64, hash, (int)n);
    bytes_printf(out, "'sha256-%s'", (const char *)base64);
    return bytes_status(out);
}

mn_status page_policy(bytes *out) {
    bytes_append_text(out, "default-src 'none'; style-src ");
    MN_TRY(put_hash(out, "<style>", "</style>"));
    bytes_append_text(out, "; script-src ");
    MN_TRY(put_hash(out, "<script>", "</script>"));
    bytes_append_text(out, "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                           "frame-ancestors 'none'");
    return bytes_status(out);
}
