/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/power_log.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/num.h"
#include "support/hostile/hostile.h"

enum {
    MOST_CALLS = 200,
    MOST_FILES = 16,
    MOST_NAME = 80,
    MOST_BYTES = 1 << 18,
    BLOCK = 4096,
    SECTOR = 512,
    MOST_FD = 1024
};

typedef enum call_kind { CALL_CREATE, CALL_WRITE, CALL_SYNC, CALL_RENAME, CALL_UNLINK, CALL_SYNC_FOLDER } call_kind;

typedef struct call {
    call_kind kind;
    int file, returned;
    char name[MOST_NAME], to[MOST_NAME];
    size_t offset, n;
    uint8_t *data; /* owned */
} call;

typedef struct disk_file {
    uint8_t now[MOST_BYTES], synced[MOST_BYTES];
    bool is_new[MOST_BYTES / BLOCK]; /* written since the last sync */
    size_t n, n_synced;
} disk_file;

typedef struct directory {
    char names[MOST_FILES][MOST_NAME];
    int files[MOST_FILES];
    int n;
} directory;

static struct {
    bool records;
    char folder[512];
    call calls[MOST_CALLS];
    size_t n_calls;
    int n_files, n_returned;
    int file_of[MOST_FD]; /* -1: not a recorded file */
    bool is_folder[MOST_FD];
    size_t at[MOST_FD];
    directory first; /* names when recording began */
    uint8_t *contents[MOST_FILES];
    size_t sizes[MOST_FILES];
} power;

int __real_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *data, size_t n);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);

int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);

/* The name of a file in the folder, or NULL. */
static const char *own_name(const char *path) {
    size_t n = strlen(power.folder);
    return power.records && strncmp(path, power.folder, n) == 0 && path[n] == '/' && path[n + 1] ? path + n + 1 : NULL;
}

static call *add_call(call_kind kind, int file) {
    MUST_HOLD(power.n_calls < MOST_CALLS);
    call *c = &power.calls[power.n_calls++];
    *c = (call){.kind = kind, .file = file, .returned = power.n_returned};
    return c;
}

static void name_call(char out[MOST_NAME], const char *name) {
    MUST_HOLD(strlen(name) < MOST_NAME);
    memcpy(out, name, strlen(name) + 1);
}

int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    va_list args;
    va_start(args, flags);
    if (flags & O_CREAT) mode = va_arg(args, mode_t);
    va_end(args);
    int fd = __real_open(path, flags, mode);
    if (!power.records || fd < 0 || fd >= MOST_FD) return fd;
    const char *name = own_name(path);
    power.file_of[fd] = -1;
    power.at[fd] = 0;
    power.is_folder[fd] = (flags & O_DIRECTORY) && strncmp(path, power.folder, strlen(power.folder)) == 0;
    if (name && flags & O_CREAT) {
        MUST_HOLD(flags & O_EXCL && power.n_files < MOST_FILES);
        power.file_of[fd] = power.n_files++;
        name_call(add_call(CALL_CREATE, power.file_of[fd])->name, name);
    }
    return fd;
}

ssize_t __wrap_write(int fd, const void *data, size_t n) {
    ssize_t done = __real_write(fd, data, n);
    if (!power.records || fd >= MOST_FD || power.file_of[fd] < 0 || done <= 0) return done;
    call *c = add_call(CALL_WRITE, power.file_of[fd]);
    c->offset = power.at[fd];
    c->n = (size_t)done;
    c->data = malloc(c->n);
    MUST_HOLD(c->data);
    memcpy(c->data, data, c->n);
    power.at[fd] += c->n;
    return done;
}

int __wrap_fsync(int fd) {
    if (power.records && fd < MOST_FD && power.is_folder[fd]) add_call(CALL_SYNC_FOLDER, -1);
    if (power.records && fd < MOST_FD && power.file_of[fd] >= 0) add_call(CALL_SYNC, power.file_of[fd]);
    return 0;
}

int __wrap_rename(const char *from, const char *to) {
    int result = __real_rename(from, to);
    const char *a = own_name(from), *b = own_name(to);
    if (result != 0 || !a || !b) return result;
    call *c = add_call(CALL_RENAME, -1);
    name_call(c->name, a);
    name_call(c->to, b);
    return result;
}

int __wrap_unlink(const char *path) {
    int result = __real_unlink(path);
    const char *name = own_name(path);
    if (result == 0 && name) name_call(add_call(CALL_UNLINK, -1)->name, name);
    return result;
}

/* ---- recording ---- */

static void add_first(const char *name, const char *path) {
    int file = power.n_files++, fd = __real_open(path, O_RDONLY | O_CLOEXEC, 0);
    uint8_t *data = malloc(MOST_BYTES);
    MUST_HOLD(fd >= 0 && data && file < MOST_FILES);
    ssize_t n = read(fd, data, MOST_BYTES);
    MUST_HOLD(n >= 0 && n < MOST_BYTES);
    close(fd);
    power.contents[file] = data;
    power.sizes[file] = (size_t)n;
    name_call(power.first.names[power.first.n], name);
    power.first.files[power.first.n++] = file;
}

void power_log_begin(const char *folder) {
    power_log_clear();
    snprintf(power.folder, sizeof power.folder, "%s", folder);
    for (int fd = 0; fd < MOST_FD; fd++) power.file_of[fd] = -1;
    DIR *dir = opendir(folder);
    MUST_HOLD(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) add_first(entry->d_name, path);
    }
    closedir(dir);
    power.records = true;
}

void power_log_mark(void) {
    power.n_returned++;
}

void power_log_end(void) {
    power.records = false;
}

void power_log_clear(void) {
    for (size_t i = 0; i < power.n_calls; i++) free(power.calls[i].data);
    for (int i = 0; i < MOST_FILES; i++) free(power.contents[i]);
    memset(&power, 0, sizeof power);
}

size_t power_log_calls(void) {
    return power.n_calls;
}

int power_log_returned(size_t calls) {
    return calls < power.n_calls ? power.calls[calls].returned : power.n_returned;
}

/* ---- possible states of the disk ---- */

static int find_name(const directory *d, const char *name) {
    for (int i = 0; i < d->n; i++) {
        if (strcmp(d->names[i], name) == 0) return i;
    }
    return -1;
}

static void remove_name(directory *d, const char *name) {
    int i = find_name(d, name);
    if (i < 0) return;
    d->n--;
    memmove(d->names[i], d->names[d->n], MOST_NAME);
    d->files[i] = d->files[d->n];
}

static void put_name(directory *d, const char *name, int file) {
    remove_name(d, name);
    name_call(d->names[d->n], name);
    d->files[d->n++] = file;
}

static bool is_naming(const call *c) {
    return c->kind == CALL_CREATE || c->kind == CALL_RENAME || c->kind == CALL_UNLINK;
}

static void apply_name(directory *d, const call *c) {
    int at = find_name(d, c->name);
    if (c->kind == CALL_CREATE) {
        put_name(d, c->name, c->file);
    } else if (c->kind == CALL_UNLINK) {
        remove_name(d, c->name);
    } else if (at >= 0) {
        int file = d->files[at];
        remove_name(d, c->name);
        put_name(d, c->to, file);
    }
}

/* The call up to which names are durable. */
static size_t durable_calls(size_t calls, power_trust trust) {
    size_t durable = 0;
    for (size_t i = 0; i < calls; i++) {
        if (power.calls[i].kind == CALL_SYNC_FOLDER && !(trust & POWER_NO_FOLDER_SYNC)) durable = i + 1;
    }
    return durable;
}

size_t power_log_names(size_t calls, power_trust trust) {
    size_t n = 1;
    for (size_t i = durable_calls(calls, trust); i < calls; i++) n += is_naming(&power.calls[i]);
    return n;
}

/* The first `names` changes of names after the durable ones are on the disk. */
static directory names_after(size_t calls, size_t names, power_trust trust) {
    directory d = power.first;
    size_t durable = durable_calls(calls, trust);
    for (size_t i = 0; i < calls; i++) {
        if (!is_naming(&power.calls[i])) continue;
        if (i >= durable && names-- == 0) break;
        apply_name(&d, &power.calls[i]);
    }
    return d;
}

static void play_file(disk_file *f, int file, size_t calls, power_trust trust) {
    memset(f, 0, sizeof *f);
    if (power.contents[file]) {
        f->n = f->n_synced = power.sizes[file];
        memcpy(f->now, power.contents[file], f->n);
        memcpy(f->synced, power.contents[file], f->n);
    }
    for (size_t i = 0; i < calls; i++) {
        const call *c = &power.calls[i];
        if (c->file != file) continue;
        if (c->kind == CALL_WRITE) {
            MUST_HOLD(c->offset + c->n <= MOST_BYTES);
            memcpy(f->now + c->offset, c->data, c->n);
            if (c->offset + c->n > f->n) f->n = c->offset + c->n;
            for (size_t b = c->offset / BLOCK; b * BLOCK < c->offset + c->n; b++) f->is_new[b] = true;
        } else if (c->kind == CALL_SYNC && !(trust & POWER_NO_FILE_SYNC)) {
            memcpy(f->synced, f->now, sizeof f->now);
            memset(f->is_new, 0, sizeof f->is_new);
            f->n_synced = f->n;
        }
    }
}

bool power_log_uncertain(size_t calls, size_t names, power_trust trust) {
    static disk_file f;
    directory d = names_after(calls, names, trust);
    for (int i = 0; i < d.n; i++) {
        play_file(&f, d.files[i], calls, trust);
        for (size_t b = 0; b < MOST_BYTES / BLOCK; b++) {
            if (f.is_new[b]) return true;
        }
    }
    return false;
}

/* The number of bytes of uncertain block b of n that are present. */
static size_t block_bytes(size_t variant, size_t b, size_t n, uint64_t seed) {
    if (variant == 0) return BLOCK;
    if (variant <= 2) return 0;
    variant -= 3;
    if (variant < n) return b <= variant ? BLOCK : 0; /* a prefix */
    variant -= n;
    if (variant < n) return b == variant ? 0 : BLOCK; /* all but one */
    variant -= n;
    if (variant < 7) return b + 1 == n ? (variant + 1) * SECTOR : BLOCK; /* the last one torn */
    return random_bits(seed, variant, b) & 1 ? BLOCK : 0;
}

static size_t resolve(disk_file *f, uint8_t *out, size_t variant, uint64_t seed) {
    size_t n_blocks = (f->n + BLOCK - 1) / BLOCK, n = variant == 1 ? f->n_synced : f->n;
    memset(out, 0, MOST_BYTES);
    for (size_t b = 0; b < n_blocks; b++) {
        size_t there = f->is_new[b] ? block_bytes(variant, b, n_blocks, seed) : BLOCK;
        memcpy(out + b * BLOCK, f->synced + b * BLOCK, BLOCK);
        memcpy(out + b * BLOCK, f->now + b * BLOCK, there);
    }
    return n;
}

void power_log_build(const char *folder, size_t calls, size_t names, size_t variant, power_trust trust) {
    static disk_file f;
    static uint8_t out[MOST_BYTES];
    directory d = names_after(calls, names, trust);
    for (int i = 0; i < d.n; i++) {
        char path[1024];
        play_file(&f, d.files[i], calls, trust);
        size_t n = resolve(&f, out, variant, calls * 131 + names);
        snprintf(path, sizeof path, "%s/%s", folder, d.names[i]);
        int fd = __real_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        MUST_HOLD(fd >= 0 && __real_write(fd, out, n) == (ssize_t)n);
        close(fd);
    }
}
