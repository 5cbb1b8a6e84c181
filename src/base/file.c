/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    PRIVATE_FILE = 0600,
    PRIVATE_FOLDER = 0700,
    MOST_WAIT_S = 10 /* for who writes the same file */
};

/* ---- descriptors ---- */

/* Numbers 0 to 2 are the program's: if it had closed them, its output would go into our file. */
int file_above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), code = errno;
    close(fd);
    errno = code;
    return moved;
}

int file_descriptor(const char *path, int flags, mode_t mode) {
    int fd;
    do { fd = open(path, flags | O_CLOEXEC | O_NOCTTY, mode); } while (fd < 0 && errno == EINTR);
    return file_above_standard(fd);
}

void file_hold_standard(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (fd == STDIN_FILENO || open("/dev/null", O_WRONLY) < 0) (void)!open("/", O_PATH);
    }
}

DIR *file_open_folder(const char *path) {
    int fd = file_descriptor(path, O_RDONLY | O_DIRECTORY, 0);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !folder) close(fd);
    return folder;
}

/* ---- reading ---- */

static const char *kind_name(mode_t mode) {
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/* Opening or reading a file that is no regular one may block for ever, so the type of the file is checked first. */
static mn_status check_kind(const char *path, mode_t mode, bool takes_pipes) {
    if (S_ISREG(mode) || (takes_pipes && S_ISFIFO(mode))) return MN_OK;
    MN_FAIL(MN_E_IO, "'%s' is %s, not a regular file%s", path, kind_name(mode), takes_pipes ? " or a pipe" : "");
}

static mn_status open_failure(const char *path, int code, bool takes_pipes) {
    struct stat info;
    if (code == ENXIO && stat(path, &info) == 0) MN_TRY(check_kind(path, info.st_mode, takes_pipes));
    mn_status status = code == ENOENT || code == ENOTDIR ? MN_E_NOT_FOUND : MN_E_IO;
    return status_fail(status, "cannot open '%s': %s", path, strerror(code));
}

static mn_status open_kind(int *out, const char *path, bool takes_pipes) {
    struct stat info;
    mn_status status = MN_OK;
    int fd = file_descriptor(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0) return open_failure(path, errno, takes_pipes);
    if (fstat(fd, &info) != 0) {
        status = status_fail(MN_E_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else {
        status = check_kind(path, info.st_mode, takes_pipes);
    }
    /* Reads of a pipe wait for its writers; where there is none, they give its end. */
    if (status == MN_OK && S_ISFIFO(info.st_mode) && fcntl(fd, F_SETFL, 0) != 0)
        status = status_fail(MN_E_IO, "cannot read '%s': %s", path, strerror(errno));
    if (status != MN_OK) {
        close(fd);
        return status;
    }
    *out = fd;
    return MN_OK;
}

mn_status file_open(int *fd, const char *path) {
    return open_kind(fd, path, false);
}

mn_status file_open_input(int *fd, const char *path) {
    return open_kind(fd, path, true);
}

mn_status file_map_open(file_map *out, const char *path) {
    *out = (file_map){0};
    int fd;
    MN_TRY(file_open(&fd, path));
    mn_status status = MN_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = status_fail(MN_E_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            int code = errno;
            status = status_fail(code == ENOMEM ? MN_E_NOMEM : MN_E_IO, "cannot map '%s' (%lld bytes): %s", path,
                                 (long long)info.st_size, strerror(code));
        } else {
            *out = (file_map){data, (size_t)info.st_size,
                              (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec};
        }
    }
    close(fd);
    return status;
}

void file_map_close(file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->n);
    *map = (file_map){0};
}

static mn_status too_large(const char *path, size_t limit) {
    MN_FAIL(MN_E_IO, "'%s' is larger than the %zu bytes allowed here", path, limit);
}

mn_status file_read_rest(bytes *out, int fd, const char *path, size_t limit) {
    char chunk[16384];
    out->n = 0;
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) MN_FAIL(MN_E_IO, "cannot read '%s': %s", path, strerror(errno));
        if (n == 0) return bytes_status(out);
        if (out->n + (size_t)n > limit) return too_large(path, limit);
        bytes_append(out, chunk, (size_t)n);
    }
}

mn_status file_read(bytes *out, const char *path, size_t limit) {
    struct stat info;
    int fd;
    MN_TRY(file_open(&fd, path));
    bool is_large = fstat(fd, &info) == 0 && info.st_size > 0 && (size_t)info.st_size > limit;
    mn_status status = is_large ? too_large(path, limit) : file_read_rest(out, fd, path, limit);
    close(fd);
    return status;
}

mn_status file_read_input(bytes *out, const char *path, size_t limit) {
    int fd;
    if (strcmp(path, "-") == 0) return file_read_rest(out, STDIN_FILENO, "the standard input", limit);
    MN_TRY(file_open_input(&fd, path));
    mn_status status = file_read_rest(out, fd, path, limit);
    close(fd);
    return status;
}

mn_status file_read_some(void *out, size_t n, size_t *n_read, int fd, const char *path) {
    *n_read = 0;
    while (*n_read < n) {
        ssize_t got = read(fd, (char *)out + *n_read, n - *n_read);
        if (got == 0) break;
        if (got < 0 && errno != EINTR) MN_FAIL(MN_E_IO, "cannot read '%s': %s", path, strerror(errno));
        if (got > 0) *n_read += (size_t)got;
    }
    return MN_OK;
}

size_t file_head(void *out, size_t n, const char *path) {
    size_t done = 0;
    int fd;
    if (file_open(&fd, path) != MN_OK) return 0;
    bool whole = file_read_some(out, n, &done, fd, path) == MN_OK;
    close(fd);
    return whole ? done : 0;
}

/* ---- writing ---- */

mn_status file_write_all(int fd, const char *path, const void *data, size_t n) {
    const char *rest = data;
    while (n > 0) {
        ssize_t done = write(fd, rest, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) MN_FAIL(MN_E_IO, "cannot write '%s': %s", path, strerror(errno));
        if (done == 0) MN_FAIL(MN_E_IO, "cannot write '%s': the system takes no more bytes", path);
        rest += done;
        n -= (size_t)done;
    }
    return MN_OK;
}

/* False with errno. */
static bool sync_file(int fd) {
    int result;
    do { result = fsync(fd); } while (result != 0 && errno == EINTR);
    return result == 0;
}

static mn_status write_parts(int fd, const char *path, const file_part *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) MN_TRY(file_write_all(fd, path, parts[i].data, parts[i].n));
    if (!sync_file(fd)) MN_FAIL(MN_E_IO, "cannot sync '%s': %s", path, strerror(errno));
    return MN_OK;
}

mn_status file_write_atomic(const char *path, const void *data, size_t n) {
    return file_write_parts(path, &(file_part){data, n}, 1, FILE_PRIVATE);
}

/* Whether `path` still leads to the file that is open. */
static bool names_file(const char *path, int fd) {
    struct stat named, opened;
    return lstat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

/* False with errno; EWOULDBLOCK: another process held it until the deadline. */
static bool lock_file(int fd, double deadline) {
    const struct timespec pause = {.tv_nsec = 5000000};
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int code = errno;
        if (code == EINTR) continue;
        if (code != EWOULDBLOCK || clock_ms() >= deadline) {
            errno = code;
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Waits for the process that writes the temporary file `part`, or removes the file when there is none. */
static mn_status clear_part(const char *part, double deadline) {
    /* For writing: some file systems lock only what can be written. */
    int fd = file_descriptor(part, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0 && errno == ENOENT) return MN_OK;
    if (fd < 0) MN_FAIL(MN_E_IO, "cannot take the place of '%s': %s", part, strerror(errno));
    mn_status status = MN_OK;
    if (!lock_file(fd, deadline)) {
        status =
            errno == EWOULDBLOCK
                ? status_fail(MN_E_IO, "another process has been writing '%s' for %d s; try again when it is done",
                              part, MOST_WAIT_S)
                : status_fail(MN_E_IO, "cannot check whether '%s' is still being written: %s; remove it if it is not",
                              part, strerror(errno));
    } else if (names_file(part, fd) && unlink(part) != 0) {
        status = status_fail(MN_E_IO, "cannot remove '%s', which a killed process left: %s", part, strerror(errno));
    }
    close(fd);
    return status;
}

/* Creates and locks `part`. A temporary file is renamed and removed by the holder of its lock only, and the lock ends
 * with the process: so a file that a killed process left can be distinguished from one being written. */
static mn_status open_part(int *out, const char *part, file_access access) {
    double deadline = clock_ms() + 1e3 * MOST_WAIT_S;
    do { /* again each time another process that writes the same file was faster */
        int fd = file_descriptor(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                                 access == FILE_PRIVATE ? PRIVATE_FILE : 0666);
        if (fd >= 0) {
            lock_file(fd, deadline); /* where there are no locks, the name alone keeps others away */
            if (names_file(part, fd)) {
                *out = fd;
                return MN_OK;
            }
            close(fd);
        } else if (errno == EEXIST) {
            MN_TRY(clear_part(part, deadline));
        } else {
            MN_FAIL(MN_E_IO, "cannot create '%s': %s", part, strerror(errno));
        }
    } while (clock_ms() < deadline);
    MN_FAIL(MN_E_IO, "cannot create '%s': other processes have been writing the same file for %d s", part, MOST_WAIT_S);
}

/* How much of a path is its folder with the slash. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* The file that a path leads to through symbolic links, which need not be there yet. */
static mn_status follow_links(bytes *out, const char *path) {
    enum { MOST_LINKS = 40 };
    char target[4096];
    out->n = 0;
    bytes_append_text(out, path);
    for (int i = 0; i < MOST_LINKS; i++) {
        ssize_t n = readlink(bytes_text(out), target, sizeof target);
        if (n < 0 || n == sizeof target) return bytes_status(out); /* no link, or none that can be followed */
        out->n = *target == '/' ? 0 : folder_length(bytes_text(out));
        bytes_append(out, target, (size_t)n);
    }
    MN_FAIL(MN_E_IO, "cannot write '%s': %s", path, strerror(ELOOP));
}

/* A file being written under the name `part`, which then replaces `target`. */
typedef struct replacement {
    bytes target, part;
    int fd;
} replacement;

static void replacement_close(replacement *r) {
    if (r->fd >= 0) close(r->fd); /* gives up the lock */
    bytes_clear(&r->target);
    bytes_clear(&r->part);
}

/* The mode is that of the file which is replaced, that of private files, or what the process's umask leaves. */
static mn_status replacement_open(replacement *r, const char *path, file_access access) {
    struct stat info;
    *r = (replacement){.fd = -1};
    MN_TRY(follow_links(&r->target, path));
    const char *target = bytes_text(&r->target);
    bytes_printf(&r->part, "%s%s", target, FILE_PART_SUFFIX);
    bytes_text(&r->part);
    MN_TRY(bytes_status(&r->part));
    bool exists = stat(target, &info) == 0;
    if (exists) MN_TRY(status_context(check_kind(path, info.st_mode, false), "cannot be written"));
    MN_TRY(open_part(&r->fd, r->part.data, access));
    mode_t mode = exists ? info.st_mode & 0777 : PRIVATE_FILE;
    if ((exists || access == FILE_PRIVATE) && fchmod(r->fd, mode) != 0) {
        mn_status status = status_fail(MN_E_IO, "cannot set the mode of '%s': %s", r->part.data, strerror(errno));
        unlink(r->part.data);
        return status;
    }
    return MN_OK;
}

/* So that the new name survives a power failure. A folder that may not be read cannot be synced, nor one of a file
 * system that has no such thing; the rename itself has been ordered. */
static mn_status sync_folder(bytes *target, const char *path) {
    size_t n = folder_length(bytes_text(target));
    if (n > 0) target->data[n] = 0;
    int fd = file_descriptor(n > 0 ? target->data : ".", O_RDONLY | O_DIRECTORY, 0);
    bool failed = fd < 0 ? errno != EACCES : !sync_file(fd) && errno != EINVAL && errno != EOPNOTSUPP;
    int code = errno;
    if (fd >= 0) close(fd);
    if (!failed) return MN_OK;
    MN_FAIL(MN_E_IO, "'%s' is written, but its folder could not be synced: %s", path, strerror(code));
}

mn_status file_write_parts(const char *path, const file_part *parts, size_t n_parts, file_access access) {
    replacement r;
    mn_status status = replacement_open(&r, path, access);
    if (status == MN_OK) {
        status = write_parts(r.fd, path, parts, n_parts);
        if (status == MN_OK && rename(r.part.data, r.target.data) != 0)
            status = status_fail(MN_E_IO, "cannot rename '%s': %s", r.part.data, strerror(errno));
        if (status != MN_OK) unlink(r.part.data);
        if (status == MN_OK) status = sync_folder(&r.target, path);
    }
    replacement_close(&r);
    return status;
}

mn_status file_check_target(const char *path) {
    replacement r;
    mn_status status = replacement_open(&r, path, FILE_PRIVATE);
    if (status == MN_OK) unlink(r.part.data);
    replacement_close(&r);
    return status;
}

mn_status file_append(const char *path, const void *data, size_t n) {
    struct stat info;
    int fd = file_descriptor(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, PRIVATE_FILE);
    if (fd < 0) MN_FAIL(MN_E_IO, "cannot write '%s': %s", path, strerror(errno));
    mn_status status = MN_OK;
    if (fstat(fd, &info) != 0) {
        status = status_fail(MN_E_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else {
        status = check_kind(path, info.st_mode, false);
    }
    if (status == MN_OK) status = file_write_all(fd, path, data, n);
    close(fd);
    return status;
}

mn_status file_make_folders(const char *path, file_access access) {
    bytes name = {0};
    bytes_append_text(&name, path);
    bytes_text(&name);
    mn_status status = bytes_status(&name);
    for (size_t i = 1; status == MN_OK && i <= name.n; i++) {
        if (i < name.n && name.data[i] != '/') continue;
        char end = name.data[i];
        name.data[i] = 0;
        bool made = mkdir(name.data, access == FILE_PRIVATE ? PRIVATE_FOLDER : 0777) == 0;
        int code = errno;
        if (made && access == FILE_PRIVATE) made = chmod(name.data, PRIVATE_FOLDER) == 0; /* whatever the umask */
        if (!made && i == name.n && (code != EEXIST || !file_is_directory(name.data)))
            status = status_fail(MN_E_IO, "cannot make the folder '%s': %s", path, strerror(code));
        name.data[i] = end;
    }
    bytes_clear(&name);
    return status;
}

/* ---- temporary files ---- */

const char *file_scratch_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/var/tmp";
}

static mn_status open_named(int *fd, const char *folder) {
    bytes path = {0};
    bytes_printf(&path, "%s/mneme-XXXXXX", folder);
    bytes_text(&path);
    mn_status status = bytes_status(&path);
    if (status == MN_OK) {
        *fd = file_above_standard(mkostemp(path.data, O_CLOEXEC));
        if (*fd >= 0) {
            unlink(path.data);
        } else {
            status = status_fail(MN_E_IO, "cannot make a temporary file in '%s': %s", folder, strerror(errno));
        }
    }
    bytes_clear(&path);
    return status;
}

mn_status file_open_unnamed(int *fd, const char *folder) {
    *fd = file_descriptor(folder, O_TMPFILE | O_RDWR, PRIVATE_FILE);
    if (*fd >= 0) return MN_OK;
    /* Not known here: to the file system, or (EISDIR) to the kernel. */
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) return open_named(fd, folder);
    MN_FAIL(MN_E_IO, "cannot make a temporary file in '%s': %s", folder, strerror(errno));
}

/* ---- paths ---- */

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool file_is_there(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

bool file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool file_is_own(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) && info.st_uid == geteuid() &&
           !(info.st_mode & (S_IWGRP | S_IWOTH));
}

mn_status path_join(bytes *out, const char *folder, const char *name) {
    out->n = 0;
    bytes_printf(out, "%s/%s", folder, name);
    bytes_text(out);
    return bytes_status(out);
}
