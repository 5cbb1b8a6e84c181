/* SPDX-License-Identifier: Apache-2.0 */
#include "support/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/support.h"

enum { N_PATHS = 4, PATH_BYTES = 4096 };

static char scratch_folder[PATH_BYTES / 2];

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(void) {
    nftw(scratch_folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_path(const char *name) {
    static char paths[N_PATHS][PATH_BYTES];
    static int i_path;
    if (!scratch_folder[0]) {
        const char *parent = getenv("TMPDIR");
        if (!parent || !*parent) parent = "/tmp";
        snprintf(scratch_folder, sizeof scratch_folder, "%s/mneme-test-XXXXXX", parent);
        if (!mkdtemp(scratch_folder)) fail_msg("cannot make the folder %s", scratch_folder);
        atexit(remove_folder);
    }
    i_path = (i_path + 1) % N_PATHS;
    snprintf(paths[i_path], PATH_BYTES, "%s/%s", scratch_folder, name);
    return paths[i_path];
}

const char *scratch_file(const char *name, const void *data, size_t n) {
    const char *path = scratch_path(name);
    assert_ok(file_write_atomic(path, data, n));
    return path;
}

const char *scratch_empty(const char *name) {
    const char *path = scratch_path(name);
    mkdir(path, 0700);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] != '.') unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
    return path;
}

bool scratch_give_away(const char *path) {
    if (chown(path, 12345, 12345) == 0) return true;
    if (errno != EPERM && errno != EINVAL) fail_msg("chown of %s: %s", path, strerror(errno));
    return false;
}

int scratch_count(const char *folder) {
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

int scratch_unnamed_file(void) {
    int found = -1, n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct stat info;
        if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0) continue;
        found = fd;
        n++;
    }
    return n == 1 ? found : -1;
}
