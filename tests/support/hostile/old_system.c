/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/old_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

#include "kv/uring.h"

static bool is_old;

int __real_open(const char *path, int flags, mode_t mode);
int __real_fallocate(int fd, int mode, off_t offset, off_t n);
bool __real_uring_open(uring *out, unsigned depth);
int __wrap_open(const char *path, int flags, ...);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n);
bool __wrap_uring_open(uring *out, unsigned depth);

void old_system(bool is_one) {
    is_old = is_one;
}

int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if (!is_old || (flags & O_TMPFILE) != O_TMPFILE) return __real_open(path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t n) {
    if (!is_old) return __real_fallocate(fd, mode, offset, n);
    errno = EOPNOTSUPP;
    return -1;
}

bool __wrap_uring_open(uring *out, unsigned depth) {
    return !is_old && __real_uring_open(out, depth);
}
