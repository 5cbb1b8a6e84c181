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
#include <unistd.h>

mn_status file_open(int *fd, const char *path) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd >= 0) return MN_OK;
    int code = errno;
    mn_status status = code == ENOENT || code == ENOTDIR ? MN_E_NOT_FOUND : MN_E_IO;
    return status_fail(status, "cannot open '%s': %s", path, strerror(code));
}

mn_status file_map_open(file_map *out, const char *path) {
    *out = (file_map){0};
    int fd;
    MN_TRY(file_open(&fd, path));
    mn_status status = MN_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = status_fail(MN_E_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = status_fail(MN_E_IO, "'%s' is not a regular file", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = status_fail(MN_E_IO, "cannot map '%s' (%lld bytes): %s", path, (long long)info.st_size,
                                 strerror(errno));
        } else {
            *out = (file_map){data, (size_t)info.st_size};
        }
    }
    close(fd);
    return status;
}

void file_map_close(file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->n);
    *map = (file_map){0};
}

mn_status file_read(bytes *out, const char *path, size_t limit) {
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = STDIN_FILENO;
    if (!is_stdin) MN_TRY(file_open(&fd, path));
    mn_status status = MN_OK;
    char chunk[16384];
    out->n = 0;
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = status_fail(MN_E_IO, "cannot read '%s': %s", path, strerror(errno));
        if (n <= 0) break;
        if (out->n + (size_t)n > limit) {
            status = status_fail(MN_E_IO, "'%s' is larger than the %zu bytes allowed here", path, limit);
            break;
        }
        bytes_append(out, chunk, (size_t)n);
    }
    if (!is_stdin) close(fd);
    return status != MN_OK ? status : bytes_status(out);
}

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

static mn_status write_parts(int fd, const char *path, const file_part *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) MN_TRY(file_write_all(fd, path, parts[i].data, parts[i].n));
    if (fsync(fd) != 0) MN_FAIL(MN_E_IO, "cannot sync '%s': %s", path, strerror(errno));
    return MN_OK;
}

mn_status file_write_atomic(const char *path, const void *data, size_t n) {
    return file_write_parts(path, &(file_part){data, n}, 1);
}

/* Whether `path` still leads to the file that is open. */
static bool names_file(const char *path, int fd) {
    struct stat named, opened;
    return lstat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

static bool lock_file(int fd) {
    int result;
    do { result = flock(fd, LOCK_EX); } while (result != 0 && errno == EINTR);
    return result == 0;
}

/* Waits for whoever is writing the temporary file `part`, or removes it when nobody is. */
static mn_status clear_part(const char *part) {
    int fd = open(part, O_WRONLY | O_NOFOLLOW | O_NONBLOCK |
                            O_CLOEXEC); /* some file systems lock only what can be written */
    if (fd < 0 && errno == ENOENT) return MN_OK;
    if (fd < 0) MN_FAIL(MN_E_IO, "cannot take the place of '%s': %s", part, strerror(errno));
    mn_status status = MN_OK;
    if (!lock_file(fd)) {
        status = status_fail(MN_E_IO,
                             "cannot tell whether '%s' is still being written: %s; remove it when it is not",
                             part, strerror(errno));
    } else if (names_file(part, fd) && unlink(part) != 0) {
        status = status_fail(MN_E_IO, "cannot remove '%s', which a killed process left: %s", part,
                             strerror(errno));
    }
    close(fd);
    return status;
}

/* Creates and locks `part`. A temporary file is renamed and removed by the holder of its lock only, which
 * dies with the process: so what a killed process left can be told from what another one writes. */
static mn_status open_part(int *out, const char *part) {
    enum { MOST_TRIES = 1000 }; /* each lost to another process that writes the same file */
    for (int i = 0; i < MOST_TRIES; i++) {
        int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0) {
            lock_file(fd); /* where there are no locks, the name alone keeps others away */
            if (names_file(part, fd)) {
                *out = fd;
                return MN_OK;
            }
            close(fd);
        } else if (errno == EEXIST) {
            MN_TRY(clear_part(part));
        } else {
            MN_FAIL(MN_E_IO, "cannot create '%s': %s", part, strerror(errno));
        }
    }
    MN_FAIL(MN_E_IO, "cannot create '%s': too many processes write the same file", part);
}

static void put_folder_of(bytes *out, const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash) {
        bytes_append(out, path, slash == path ? 1 : (size_t)(slash - path));
    } else {
        bytes_append_text(out, ".");
    }
}

/* So that the new name outlives a failure of power. A folder that may not be read cannot be synced, nor one
 * of a file system that has no such thing; the rename itself has been ordered. */
static mn_status sync_folder(const char *folder, const char *path) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool failed = fd < 0 ? errno != EACCES : fsync(fd) != 0 && errno != EINVAL && errno != EOPNOTSUPP;
    int code = errno;
    if (fd >= 0) close(fd);
    if (!failed) return MN_OK;
    MN_FAIL(MN_E_IO, "'%s' is written, but its folder could not be synced: %s", path, strerror(code));
}

mn_status file_write_parts(const char *path, const file_part *parts, size_t n_parts) {
    bytes part = {0}, folder = {0};
    mn_status status;
    int fd = -1;
    bytes_printf(&part, "%s%s", path, FILE_PART_SUFFIX);
    put_folder_of(&folder, path);
    const char *temporary = bytes_text(&part), *parent = bytes_text(&folder);
    MN_GOTO(done, status, bytes_status(&part));
    MN_GOTO(done, status, bytes_status(&folder));
    MN_GOTO(done, status, open_part(&fd, temporary));
    status = write_parts(fd, path, parts, n_parts);
    if (status == MN_OK && rename(temporary, path) != 0) {
        status = status_fail(MN_E_IO, "cannot rename '%s' to '%s': %s", temporary, path, strerror(errno));
    }
    if (status != MN_OK) unlink(temporary);
    close(fd); /* gives up the lock; all has been synced, so there is nothing it could lose */
    if (status == MN_OK) status = sync_folder(parent, path);
done:
    bytes_clear(&part);
    bytes_clear(&folder);
    return status;
}

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
        *fd = mkostemp(path.data, O_CLOEXEC);
        if (*fd >= 0) {
            unlink(path.data);
        } else {
            status = status_fail(MN_E_IO, "cannot make a temporary file in '%s': %s", folder, strerror(errno));
        }
    }
    bytes_clear(&path);
    return status;
}

mn_status file_open_unnamed(int *fd, const char *folder, bool plain) {
    *fd = plain ? -1 : open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return MN_OK;
    /* Not known here: to the file system, or (EISDIR) to the kernel. */
    if (plain || errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) return open_named(fd, folder);
    MN_FAIL(MN_E_IO, "cannot make a temporary file in '%s': %s", folder, strerror(errno));
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

mn_status path_join(bytes *out, const char *folder, const char *name) {
    out->n = 0;
    bytes_printf(out, "%s/%s", folder, name);
    bytes_text(out);
    return bytes_status(out);
}
