/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static mn_status open_failure(const char *path) {
    int code = errno;
    mn_status status = code == ENOENT || code == ENOTDIR ? MN_E_NOT_FOUND : MN_E_IO;
    return status_fail(status, "cannot open '%s': %s", path, strerror(code));
}

mn_status file_map_open(file_map *out, const char *path) {
    *out = (file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return open_failure(path);
    mn_status status = MN_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = status_fail(MN_E_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = status_fail(MN_E_IO, "'%s' is not a regular file", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = status_fail(MN_E_IO, "cannot map '%s' (%lld bytes): %s", path, (long long)info.st_size, strerror(errno));
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
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return open_failure(path);
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

static mn_status sync_folder_of(const char *path) {
    bytes folder = {0};
    const char *slash = strrchr(path, '/');
    if (slash) {
        bytes_append(&folder, path, slash == path ? 1 : (size_t)(slash - path));
    } else {
        bytes_append_text(&folder, ".");
    }
    int fd = open(bytes_text(&folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* some file systems cannot sync a folder; the rename itself has been ordered */
        close(fd);
    }
    bytes_clear(&folder);
    return MN_OK;
}

static mn_status write_all(int fd, const char *path, const char *data, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) MN_FAIL(MN_E_IO, "cannot write '%s': %s", path, strerror(errno));
        data += done;
        n -= (size_t)done;
    }
    return MN_OK;
}

static mn_status write_parts(int fd, const char *path, const file_part *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) MN_TRY(write_all(fd, path, parts[i].data, parts[i].n));
    if (fsync(fd) != 0) MN_FAIL(MN_E_IO, "cannot sync '%s': %s", path, strerror(errno));
    return MN_OK;
}

mn_status file_write_atomic(const char *path, const void *data, size_t n) {
    return file_write_parts(path, &(file_part){data, n}, 1);
}

mn_status file_write_parts(const char *path, const file_part *parts, size_t n_parts) {
    bytes name = {0};
    bytes_printf(&name, "%s.tmp.%ld", path, (long)getpid());
    const char *temporary = bytes_text(&name);
    mn_status status = bytes_status(&name);
    if (status != MN_OK) goto done;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = status_fail(MN_E_IO, "cannot create '%s': %s", temporary, strerror(errno));
        goto done;
    }
    status = write_parts(fd, path, parts, n_parts);
    if (close(fd) != 0 && status == MN_OK) status = status_fail(MN_E_IO, "cannot write '%s': %s", path, strerror(errno));
    if (status == MN_OK && rename(temporary, path) != 0) {
        status = status_fail(MN_E_IO, "cannot rename '%s' to '%s': %s", temporary, path, strerror(errno));
    }
    if (status == MN_OK) {
        status = sync_folder_of(path);
    } else {
        unlink(temporary);
    }
done:
    bytes_clear(&name);
    return status;
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
