/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <string.h>

#include "base/json.h"

const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return "invalid_request_error";
    }
}

static const char *phrase(int status) {
    static const struct {
        int status;
        const char *text;
    } phrases[] = {{400, "Bad Request"},
                   {408, "Request Timeout"},
                   {414, "URI Too Long"},
                   {417, "Expectation Failed"},
                   {431, "Request Header Fields Too Large"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++) {
        if (phrases[i].status == status) return phrases[i].text;
    }
    return "Error";
}

static void put_member(bytes *out, const char *key, const char *text, const char *behind) {
    bytes_printf(out, "\"%s\":", key);
    if (text)
        json_put_string(out, text, strlen(text));
    else
        bytes_append_text(out, "null");
    bytes_append_text(out, behind);
}

void error_body(bytes *out, const char *type, const char *code, const char *param, const char *message) {
    bytes_append_text(out, "{\"error\":{");
    put_member(out, "message", message, ",");
    put_member(out, "type", type, ",");
    put_member(out, "param", param, ",");
    put_member(out, "code", code, "}}");
}

void openai_error(bytes *out, int status, const char *code, const char *param, const char *message) {
    error_body(out, error_type(status), code, param, message);
}

int refusal_body(bytes *out, write_error *write, mn_status status, const refusal *why) {
    int code = why->status ? why->status : status == MN_E_NOMEM ? 503 : 400;
    write(out, code, why->code ? why->code : "invalid_value", why->param, mn_last_error());
    return code;
}

void error_response(bytes *out, int status, const char *type, const char *code, const char *message) {
    bytes body = {0};
    error_body(&body, type, code, NULL, message);
    bytes_printf(out,
                 "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                 status, phrase(status), body.n);
    if (bytes_status(&body) == MN_OK) bytes_append(out, body.data, body.n);
    bytes_clear(&body);
}
