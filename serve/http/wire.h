/* The bytes of a connection, in TLS or not. TLS is that of GnuTLS, as libmicrohttpd's own, 1.2 and 1.3.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_WIRE_H
#define MNEME_SERVE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "mneme.h"

/* A certificate and its key, which all connections share. */
typedef struct wire_identity wire_identity;

/* Reads both files, PEM: the server's certificate first, those that signed it behind it. MN_E_NOT_FOUND, MN_E_IO,
 * MN_E_ARG: the message says which file and why. */
mn_status wire_identity_open(wire_identity **out, const char *certificate_file, const char *key_file);
void wire_identity_close(wire_identity **identity);

/* A socket that does not wait. */
typedef struct wire {
    int fd;
    struct gnutls_session_int *tls; /* NULL: no TLS */
    bool has_begun;                 /* what came is TLS */
    bool is_ready;                  /* the handshake is done */
    bool has_waiting;               /* GnuTLS holds a record that did not fit into the socket */
} wire;

enum {
    WIRE_LATER = -1,  /* nothing has come, or no more fits: when the socket is ready */
    WIRE_FAILED = -2, /* the connection is of no use any more */
    WIRE_PLAIN = -3   /* what came is no TLS: the client speaks HTTP without it, and from here on so does this side */
};

/* Takes over the socket. identity NULL: no TLS. False: there is no memory, and the socket is still the caller's. */
bool wire_open(wire *w, int fd, const wire_identity *identity);
/* The handshake is part of the first calls. Bytes received, 0: the client sends no more; or one of those above. */
ssize_t wire_receive(wire *w, char *to, size_t most);
/* Bytes taken (>= 1), WIRE_LATER or WIRE_FAILED. After WIRE_LATER the same bytes have to be offered again. */
ssize_t wire_send(wire *w, const char *from, size_t n);
/* Nothing more is sent; the client may still send. */
void wire_finish(wire *w);
void wire_close(wire *w);

#endif
