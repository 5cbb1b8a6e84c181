/* SPDX-License-Identifier: Apache-2.0 */
#include "http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"

enum { BACKLOG = 1024 };

/* Whether a server listens at that address; the socket of one that has ended may be replaced. */
static bool is_in_use(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool is = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN;
    close(fd);
    return is;
}

static mn_status listen_at_path(int *out, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat was;
    if (strlen(path) >= sizeof address.sun_path)
        MN_FAIL(MN_E_ARG, "the path of the socket has %zu bytes, allowed: up to %zu", strlen(path),
                sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (lstat(path, &was) == 0) {
        if (!S_ISSOCK(was.st_mode)) MN_FAIL(MN_E_ARG, "'%s' exists and is no socket", path);
        if (is_in_use(&address))
            MN_FAIL(MN_E_ARG, "cannot listen at '%s': another program does, choose another with --unix", path);
        unlink(path);
    }
    *out = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*out < 0 || bind(*out, (struct sockaddr *)&address, sizeof address) != 0 || chmod(path, 0600) != 0 ||
        listen(*out, BACKLOG) != 0)
        MN_FAIL(MN_E_ARG, "cannot listen at '%s': %s", path, strerror(errno));
    return MN_OK;
}

static mn_status listen_at_port(int *out, const char *host, int number) {
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[16];
    int one = 1, error = 0;
    snprintf(port, sizeof port, "%d", number);
    int failure = getaddrinfo(host, port, &wanted, &found);
    if (failure) MN_FAIL(MN_E_ARG, "cannot listen on host '%s': %s", host, gai_strerror(failure));
    for (struct addrinfo *a = found; a && *out < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
            *out = fd;
        } else {
            error = errno;
            close(fd);
        }
    }
    freeaddrinfo(found);
    if (*out >= 0) return MN_OK;
    MN_FAIL(MN_E_ARG, "cannot listen on %s port %d: %s%s", host, number, strerror(error),
            error == EADDRINUSE ? "; another program does, choose another with --port" : "");
}

mn_status listen_open(int *out, const char *host, int port, const char *unix_path) {
    *out = -1;
    return unix_path ? listen_at_path(out, unix_path) : listen_at_port(out, host ? host : "127.0.0.1", port);
}

int listen_port(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0 || address.ss_family == AF_UNIX) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}
