/* SPDX-License-Identifier: Apache-2.0 */
#include "support/scratch.h"

#include <dirent.h>
#include <unistd.h>

#include "support/support.h"

enum { N_PATHS = 4, PATH_BYTES = 4096 };

static char scratch_folder[PATH_BYTES / 2];

static void remove_folder(void) {
    DIR *dir = opendir(scratch_folder);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", scratch_folder, entry->d_name);
        unlink(path);
    }
    closedir(dir);
    rmdir(scratch_folder);
}

const char *scratch_path(const char *name) {
    static char paths[N_PATHS][PATH_BYTES];
    static int i_path;
    if (!scratch_folder[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(scratch_folder, sizeof scratch_folder, "%s/mneme-test-XXXXXX", parent ? parent : "/tmp");
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
