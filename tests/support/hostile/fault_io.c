/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/fault_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

const char *const fault_names[N_FAULTS] = {"ENOSPC",        "EIO",         "EINTR",
                                           "a short write", "a full disk", "a write of nothing"};

static struct {
    atomic_int left; /* calls until the fault; 0: none. calls of all threads count */
    fault_kind kind;
    const char *failed;
    bool full;
} plan;

void fault_io_arm(int k, fault_kind kind) {
    plan.left = k;
    plan.kind = kind;
    plan.failed = NULL;
    plan.full = false;
}

const char *fault_io_disarm(void) {
    plan.left = 0;
    plan.full = false;
    return plan.failed;
}

const char *fault_io_failed(void) {
    return plan.failed;
}

/* Whether this call must fail. */
static bool is_due(const char *call) {
    if (atomic_load(&plan.left) <= 0 || atomic_fetch_sub(&plan.left, 1) != 1) return false;
    plan.failed = call;
    return true;
}

static int error_of_plan(void) {
    return plan.kind == FAULT_ENOSPC ? ENOSPC : plan.kind == FAULT_EINTR ? EINTR : EIO;
}

/* For calls that write: how many of n bytes are written; -1 with errno. */
static ssize_t allowed(const char *call, size_t n) {
    bool is_write = strcmp(call, "write") == 0 || strcmp(call, "pwrite") == 0 || strcmp(call, "writev") == 0;
    if (is_write && plan.full) {
        errno = ENOSPC;
        return -1;
    }
    if (!is_due(call)) return (ssize_t)n;
    bool is_read = strcmp(call, "read") == 0 || strcmp(call, "pread") == 0;
    if (is_read && plan.kind == FAULT_SHORT && n > 1) return (ssize_t)(n / 2);
    if (is_write && plan.kind == FAULT_NOTHING) return 0;
    if (is_write && (plan.kind == FAULT_SHORT || plan.kind == FAULT_FULL)) {
        plan.full = plan.kind == FAULT_FULL;
        return (ssize_t)(n / 2);
    }
    errno = error_of_plan();
    return -1;
}

static bool fails(const char *call) { /* never done partly */
    return allowed(call, 1) < 0;
}

int __real_open(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *data, size_t n);
ssize_t __real_pread(int fd, void *data, size_t n, off_t at);
int __real_ftruncate(int fd, off_t n);
void *__real_mmap(void *place, size_t n, int protection, int flags, int fd, off_t at);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __real_writev(int fd, const struct iovec *parts, int n);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_rename(const char *from, const char *to);
int __real_flock(int fd, int operation);
int __real_close(int fd);
int __real_fstat(int fd, struct stat *out);
int __real_fchmod(int fd, mode_t mode);

int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_read(int fd, void *data, size_t n);
ssize_t __wrap_pread(int fd, void *data, size_t n, off_t at);
int __wrap_ftruncate(int fd, off_t n);
void *__wrap_mmap(void *place, size_t n, int protection, int flags, int fd, off_t at);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int n);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_flock(int fd, int operation);
int __wrap_close(int fd);
int __wrap_fstat(int fd, struct stat *out);
int __wrap_fchmod(int fd, mode_t mode);

int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    va_list args;
    va_start(args, flags);
    if (flags & (O_CREAT | __O_TMPFILE)) mode = va_arg(args, mode_t);
    va_end(args);
    return fails("open") ? -1 : __real_open(path, flags, mode);
}

ssize_t __wrap_write(int fd, const void *data, size_t n) {
    ssize_t take = allowed("write", n);
    return take <= 0 ? take : __real_write(fd, data, (size_t)take);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at) {
    ssize_t take = allowed("pwrite", n);
    return take <= 0 ? take : __real_pwrite(fd, data, (size_t)take, at);
}

ssize_t __wrap_writev(int fd, const struct iovec *parts, int n) {
    size_t first = n > 0 ? parts[0].iov_len : 0;
    ssize_t take = allowed("writev", first);
    if (take <= 0 && first > 0) return take;
    return (size_t)take == first ? __real_writev(fd, parts, n) : __real_write(fd, parts[0].iov_base, (size_t)take);
}

ssize_t __wrap_read(int fd, void *data, size_t n) {
    ssize_t give = allowed("read", n);
    return give < 0 ? give : __real_read(fd, data, (size_t)give);
}

ssize_t __wrap_pread(int fd, void *data, size_t n, off_t at) {
    ssize_t give = allowed("pread", n);
    return give < 0 ? give : __real_pread(fd, data, (size_t)give, at);
}

int __wrap_ftruncate(int fd, off_t n) {
    return fails("ftruncate") ? -1 : __real_ftruncate(fd, n);
}

void *__wrap_mmap(void *place, size_t n, int protection, int flags, int fd, off_t at) {
    if (!fails("mmap")) return __real_mmap(place, n, protection, flags, fd, at);
    if (plan.kind == FAULT_ENOSPC) errno = ENOMEM; /* its error without address space */
    return MAP_FAILED;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg) {
    return fails("pthread_create") ? EAGAIN : __real_pthread_create(thread, how, run, arg);
}

int __wrap_fsync(int fd) {
    return fails("fsync") ? -1 : __real_fsync(fd);
}

int __wrap_fdatasync(int fd) {
    return fails("fdatasync") ? -1 : __real_fdatasync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    return fails("rename") ? -1 : __real_rename(from, to);
}

int __wrap_flock(int fd, int operation) {
    return fails("flock") ? -1 : __real_flock(fd, operation);
}

int __wrap_fstat(int fd, struct stat *out) {
    return fails("fstat") ? -1 : __real_fstat(fd, out);
}

int __wrap_fchmod(int fd, mode_t mode) {
    return fails("fchmod") ? -1 : __real_fchmod(fd, mode);
}

/* The descriptor is closed whatever close returns. */
int __wrap_close(int fd) {
    bool failed = fails("close");
    int code = errno, result = __real_close(fd);
    errno = failed ? code : errno;
    return failed ? -1 : result;
}
