/* Files: descriptors, paths that are not regular files, permissions, links, locks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv/offload.h"
#include "mneme.h"
#include "support/hostile/moved_clock.h"
#include "support/hostile/old_system.h"
#include "support/scratch.h"

static char folder[512], path[600];

/* Naps of the library pass at once: they move the clock. */
static struct { int n, last, fd; } naps; /* last: the nap during which fd is closed; 0: none */

int __wrap_nanosleep(const struct timespec *pause, struct timespec *left);

int __wrap_nanosleep(const struct timespec *pause, struct timespec *left) {
    (void)left;
    clock_move((double)pause->tv_sec * 1e3 + (double)pause->tv_nsec * 1e-6);
    if (++naps.n == naps.last) close(naps.fd);
    return 0;
}

static void empty_folder(void) {
    static int n;
    char name[32];
    snprintf(name, sizeof name, "files-%d", n++);
    snprintf(folder, sizeof folder, "%s", scratch_path(name));
    assert_int_equal(mkdir(folder, 0755), 0);
    snprintf(path, sizeof path, "%s/file", folder);
}

static mode_t mode_of(const char *name) {
    struct stat info;
    assert_int_equal(stat(name, &info), 0);
    return info.st_mode & 07777;
}

static void holds(const char *name, const char *wanted) {
    bytes text = {0};
    assert_ok(file_read(&text, name, 1000));
    assert_string_equal(bytes_text(&text), wanted);
    bytes_clear(&text);
}

/* ---- descriptors ---- */

/* Runs in a child process with the standard streams of `closed` (a bit set) closed; returns 0 on success. */
static int with_closed(unsigned closed) {
    enum { N_OPENED = 5 };
    int fds[N_OPENED] = {-1, -1, -1, -1, -1};
    mn_model *model = NULL;
    mn_session *session = NULL, *loaded = NULL;
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    char answer[4096];
    memset(answer, 'x', sizeof answer);
    for (int fd = 0; fd < 3; fd++) {
        if (closed & 1u << fd) close(fd);
    }
    if (file_open(&fds[0], path) != MN_OK || file_open_input(&fds[1], path) != MN_OK) return 10;
    for (int i = 2; i < 4; i++) {
        old_system(i == 3);
        if (file_open_unnamed(&fds[i], folder) != MN_OK) return 11;
    }
    old_system(false);
    DIR *dir = file_open_folder(folder);
    fds[4] = dir ? dirfd(dir) : -1;
    for (int i = 0; i < N_OPENED; i++) {
        if (fds[i] < 3 || !(fcntl(fds[i], F_GETFD) & FD_CLOEXEC)) return 20 + i;
    }
    closedir(dir);
    /* Output to a closed standard stream must not reach a page of the offload file. */
    options.implementation = "offloaded";
    int32_t ids[300];
    for (int i = 0; i < 300; i++) ids[i] = 1 + i % 500;
    bytes saved = {0};
    bytes_printf(&saved, "%s/saved-%u", folder, closed);
    const char *name = bytes_text(&saved);
    if (mn_model_open(&model, "embedded", NULL) != MN_OK || mn_session_open(&session, model, &options) != MN_OK)
        return 30;
    if (mn_session_step(session, ids, 300, NULL) != MN_OK) return 31;
    for (int fd = 0; fd < 3; fd++) {
        if (closed & 1u << fd && (write(fd, answer, sizeof answer) >= 0 || errno != EBADF)) return 32 + fd;
    }
    if (mn_session_save(session, name, false) != MN_OK) return 36;
    if (mn_session_load(&loaded, model, name, NULL) != MN_OK) return 37;
    for (int fd = 0; fd < 3; fd++) {
        if (closed & 1u << fd && fcntl(fd, F_GETFD) >= 0) return 40 + fd;
    }
    mn_session_close(&loaded);
    mn_session_close(&session);
    mn_model_close(&model);
    bytes_clear(&saved);
    return 0;
}

static void closed_streams_are_never_files(void **state) {
    (void)state;
    bytes all[8] = {{0}};
    empty_folder();
    assert_ok(file_write_atomic(path, "text", 4));
    for (unsigned closed = 0; closed < 8; closed++) {
        int status;
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(with_closed(closed));
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("streams %u: status 0x%x", closed, (unsigned)status);
        char name[700];
        snprintf(name, sizeof name, "%s/saved-%u", folder, closed);
        assert_ok(file_read(&all[closed], name, 1 << 24));
        char *created = memmem(all[closed].data, all[closed].n, "\"created\":\"", 11);
        size_t sum = 8 + strlen("{\"__metadata__\":{\"mneme.sum\":\"");
        assert_non_null(created); /* the time differs, and with it the checksum of the header */
        memset(created + 11, '0', 20);
        memset(all[closed].data + sum, '0', 16);
        assert_int_equal(all[closed].n, all[0].n);
        assert_memory_equal(all[closed].data, all[0].data, all[0].n);
    }
    for (int i = 0; i < 8; i++) bytes_clear(&all[i]);
}

static int with_held(void) {
    char byte = 0;
    for (int fd = 0; fd < 3; fd++) close(fd);
    file_hold_standard();
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) return 1;
        errno = 0;
        if ((write(fd, &byte, 1) == 1) != (fd > 0) || errno != (fd > 0 ? 0 : EBADF)) return 2;
        if (read(fd, &byte, 1) >= 0 || errno != EBADF) return 3;
    }
    return open(path, O_RDONLY) > STDERR_FILENO ? 0 : 4;
}

static void file_hold_standard_reserves_the_standard_descriptors(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(with_held());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- paths that are not regular files ---- */

typedef struct {
    int fd;
    const char *text;
    bool wrote_all;
} writer;

/* Waits until a reader has taken what is in the pipe, writes the text and closes the pipe. */
static void *write_when_drained(void *argument) {
    writer *w = argument;
    int held = 1;
    while (ioctl(w->fd, FIONREAD, &held) == 0 && held > 0) usleep(1000);
    w->wrote_all = write(w->fd, w->text, strlen(w->text)) == (ssize_t)strlen(w->text);
    close(w->fd);
    return NULL;
}

static void special_files_are_refused_without_waiting(void **state) {
    (void)state;
    naps.n = 0;
    char pipe_path[700], socket_path[700];
    bytes text = {0};
    file_map map;
    int fd;
    empty_folder();
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(socket_path) >= sizeof address.sun_path) skip();
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    assert_int_equal(bind(s, (const struct sockaddr *)&address, sizeof address), 0);
    const struct {
        const char *name, *part;
    } cases[] = {{folder, "is a folder, not a regular file"},
                 {pipe_path, "is a pipe, not a regular file"},
                 {socket_path, "is a socket, not a regular file"},
                 {"/dev/zero", "'/dev/zero' is a device, not a regular file"},
                 {"/dev/null", "'/dev/null' is a device, not a regular file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(MN_E_IO, cases[i].part, file_open(&fd, cases[i].name));
        assert_fails(MN_E_IO, cases[i].part, file_read(&text, cases[i].name, 100));
        assert_fails(MN_E_IO, cases[i].part, file_map_open(&map, cases[i].name));
        assert_fails(MN_E_IO, cases[i].part, file_write_atomic(cases[i].name, "x", 1));
        assert_fails(MN_E_IO, cases[i].part, file_check_target(cases[i].name));
        assert_int_equal(file_head(&fd, sizeof fd, cases[i].name), 0);
        if (i != 1) assert_fails(MN_E_IO, "not a regular file or a pipe", file_read_input(&text, cases[i].name, 100));
    }
    assert_int_equal(naps.n, 0);
    assert_fails(MN_E_NOT_FOUND, "absent", file_open(&fd, scratch_path("absent")));
    /* A pipe is read as text; it is empty while it has no writer. */
    assert_ok(file_read_input(&text, pipe_path, 100));
    assert_int_equal(text.n, 0);
    /* The writer is there before the reader, and leaves when the reader has begun. */
    writer w = {.text = "a pipe"};
    assert_true((w.fd = open(pipe_path, O_RDWR | O_CLOEXEC)) >= 0); /* O_WRONLY would wait for a reader */
    assert_int_equal(write(w.fd, "through ", 8), 8);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_when_drained, &w), 0);
    assert_ok(file_read_input(&text, pipe_path, 100));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(w.wrote_all);
    assert_string_equal(bytes_text(&text), "through a pipe");
    close(s);
    bytes_clear(&text);
}

static void a_mapping_without_address_space_is_out_of_memory(void **state) {
    (void)state;
    int status;
    empty_folder();
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        file_map map;
        if (ftruncate(fd, (off_t)1 << 31) != 0 || setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
        _exit(file_map_open(&map, path) == MN_E_NOMEM && strstr(mn_last_error(), path) ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) skip(); /* a sanitizer's own memory is larger */
    assert_int_equal(status, 0);
}

/* ---- permissions ---- */

static void written_files_are_private(void **state) {
    (void)state;
    static const mode_t masks[] = {0, 022, 077, 0777};
    char deep[700], above[700];
    mode_t before = umask(0);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        empty_folder();
        umask(masks[i]);
        assert_ok(file_write_atomic(path, "new", 3));
        assert_int_equal(mode_of(path), 0600);
        chmod(path, 0644);
        assert_ok(file_write_atomic(path, "newer", 5));
        assert_int_equal(mode_of(path), 0644);
        chmod(path, 0640);
        assert_ok(file_write_parts(path, &(file_part){"again", 5}, 1, FILE_BY_UMASK));
        assert_int_equal(mode_of(path), 0640);
        assert_int_equal(scratch_count(folder), 1);
        unlink(path);
        assert_ok(file_append(path, "line\n", 5));
        assert_int_equal(mode_of(path), 0600 & ~masks[i]);
        unlink(path);
        snprintf(above, sizeof above, "%s/a", folder);
        snprintf(deep, sizeof deep, "%s/a/b", folder);
        assert_ok(file_make_folders(deep, FILE_PRIVATE));
        assert_int_equal(mode_of(deep), 0700);
        assert_int_equal(mode_of(above), 0700);
        chmod(deep, 0755);
        assert_ok(file_make_folders(deep, FILE_PRIVATE));
        assert_int_equal(mode_of(deep), 0755);
    }
    umask(027); /* first: no file can be made in a folder of umask 0777 */
    empty_folder();
    assert_ok(file_write_parts(path, &(file_part){"open", 4}, 1, FILE_BY_UMASK));
    assert_int_equal(mode_of(path), 0640);
    snprintf(deep, sizeof deep, "%s/open/folder", folder);
    assert_ok(file_make_folders(deep, FILE_BY_UMASK));
    assert_int_equal(mode_of(deep), 0750);
    umask(before);
    bytes nested = {0};
    bytes_printf(&nested, "%s/below", path);
    assert_fails(MN_E_IO, "cannot make the folder", file_make_folders(bytes_text(&nested), FILE_PRIVATE));
    assert_fails(MN_E_IO, "cannot make the folder", file_make_folders(path, FILE_PRIVATE));
    bytes_clear(&nested);
}

/* ---- links ---- */

static void writing_through_a_link_replaces_its_target(void **state) {
    (void)state;
    char link[700], chain[700], sub[700], target[800];
    struct stat info;
    empty_folder();
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(chain, sizeof chain, "%s/chain", folder);
    snprintf(sub, sizeof sub, "%s/sub", folder);
    snprintf(target, sizeof target, "%s/sub/target", folder);
    assert_int_equal(mkdir(sub, 0755), 0);
    assert_int_equal(symlink("sub/target", link), 0); /* relative to its own folder; the target does not exist yet */
    assert_int_equal(symlink(link, chain), 0);
    assert_ok(file_write_atomic(link, "one", 3));
    holds(target, "one");
    chmod(target, 0604);
    assert_ok(file_write_atomic(chain, "two", 3));
    holds(target, "two");
    assert_int_equal(mode_of(target), 0604);
    assert_ok(file_check_target(chain));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lstat(i ? link : chain, &info), 0);
        assert_true(S_ISLNK(info.st_mode));
    }
    assert_int_equal(scratch_count(folder), 3); /* the links and the folder; no temporary file */
    unlink(link);
    assert_int_equal(symlink("link", link), 0);
    assert_fails(MN_E_IO, "link", file_write_atomic(link, "round", 5));
    unlink(link);
    assert_int_equal(symlink("sub", link), 0);
    assert_fails(MN_E_IO, "is a folder", file_write_atomic(link, "x", 1));
    holds(target, "two");
}

/* ---- locks ---- */

static void a_held_lock_is_waited_for_then_reported(void **state) {
    (void)state;
    enum { WAIT_MS = 10000, NAP_MS = 5 };
    char part[700];
    empty_folder();
    assert_ok(file_write_atomic(path, "old", 3));
    snprintf(part, sizeof part, "%s%s", path, FILE_PART_SUFFIX);
    int fd = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    naps.n = 0;
    clock_hold();
    assert_fails(MN_E_IO, "another process has been writing", file_write_atomic(path, "new", 3));
    assert_non_null(strstr(mn_last_error(), part));
    assert_int_equal(naps.n, WAIT_MS / NAP_MS);
    holds(path, "old");
    assert_true(file_exists(part)); /* it belongs to the other process */
    /* A lock that is released during the wait is taken. */
    naps.n = 0;
    naps.last = WAIT_MS / NAP_MS / 2;
    naps.fd = fd;
    assert_ok(file_write_atomic(path, "new", 3));
    assert_int_equal(naps.n, naps.last);
    clock_run();
    holds(path, "new");
    assert_int_equal(scratch_count(folder), 1);
}

/* Files and pipes larger than the limit are refused; those of exactly the limit are read. */
static void inputs_larger_than_the_limit_are_refused(void **state) {
    (void)state;
    bytes out = {0};
    empty_folder();
    assert_ok(file_write_atomic(path, "0123456789", 10));
    for (size_t limit = 0; limit < 14; limit++) {
        mn_status status = file_read(&out, path, limit);
        assert_int_equal(status, limit < 10 ? MN_E_IO : MN_OK);
        if (limit < 10) {
            assert_non_null(strstr(mn_last_error(), "is larger than the"));
            assert_non_null(strstr(mn_last_error(), path));
        } else {
            assert_int_equal(out.n, 10);
            assert_memory_equal(out.data, "0123456789", 10);
        }
        /* The length of a pipe is known only after reading it. */
        int ends[2], input = dup(STDIN_FILENO);
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], "0123456789", 10), 10);
        close(ends[1]);
        assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
        close(ends[0]);
        assert_int_equal(file_read_input(&out, "-", limit), status);
        if (limit < 10) {
            assert_non_null(strstr(mn_last_error(), "'the standard input' is larger"));
        } else {
            assert_memory_equal(out.data, "0123456789", 10);
        }
        dup2(input, STDIN_FILENO);
        close(input);
        assert_int_equal(file_read_input(&out, path, limit), status);
    }
    bytes_clear(&out);
    char head[16];
    assert_int_equal(file_head(head, 4, path), 4);
    assert_memory_equal(head, "0123", 4);
    assert_int_equal(file_head(head, sizeof head, path), 10);
    assert_int_equal(file_head(head, sizeof head, folder), 0);
    assert_int_equal(file_head(head, sizeof head, "/nonexistent/file"), 0);
}

/* A target without a folder is in the working directory. A folder with the name of the temporary file is not removed.
 */
static void file_names_without_a_folder_and_occupied_names_are_handled(void **state) {
    (void)state;
    char before[4096], part[700];
    empty_folder();
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    assert_ok(file_write_atomic("file", "here", 4));
    assert_ok(file_append("file", ", too", 5));
    assert_ok(file_check_target("other"));
    assert_int_equal(chdir(before), 0);
    holds(path, "here, too");
    assert_int_equal(scratch_count(folder), 1);

    snprintf(part, sizeof part, "%s%s", path, FILE_PART_SUFFIX);
    assert_int_equal(mkdir(part, 0700), 0);
    assert_fails(MN_E_IO, "cannot take the place of", file_write_atomic(path, "new", 3));
    assert_fails(MN_E_IO, "cannot take the place of", file_check_target(path));
    holds(path, "here, too");
    assert_int_equal(rmdir(part), 0);
    assert_fails(MN_E_IO, "cannot create", file_write_atomic("/nonexistent/folder/file", "new", 3));
    assert_fails(MN_E_IO, "cannot write", file_append("/nonexistent/folder/file", "new", 3));
    assert_fails(MN_E_IO, "cannot write", file_append(folder, "new", 3));
    assert_fails(MN_E_IO, "is a device, not a regular file", file_append("/dev/null", "new", 3));
    assert_fails(MN_E_IO, "cannot make the folder", file_make_folders(path, FILE_PRIVATE));
    assert_fails(MN_E_IO, "cannot make the folder", file_make_folders("/proc/none/at/all", FILE_PRIVATE));
}

/* Opened without a name (O_TMPFILE) or unlinked at once: no name is visible, and closing the descriptor frees the file.
 */
static void unnamed_files_have_no_visible_name(void **state) {
    (void)state;
    empty_folder();
    for (int plain = 0; plain < 2; plain++) {
        int fd = -1;
        char text[5] = "";
        struct stat info;
        old_system(plain);
        assert_ok(file_open_unnamed(&fd, folder));
        assert_true(fd > STDERR_FILENO);
        assert_int_equal(scratch_count(folder), 0);
        assert_int_equal(fstat(fd, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
        assert_ok(file_write_all(fd, "unnamed", "text", 4));
        assert_int_equal(pread(fd, text, 4, 0), 4);
        assert_string_equal(text, "text");
        close(fd);
        assert_fails(MN_E_IO, "cannot make a temporary file in '/nonexistent'", file_open_unnamed(&fd, "/nonexistent"));
        mem_fail_after(plain);
        assert_int_equal(file_open_unnamed(&fd, folder), plain ? MN_E_NOMEM : MN_OK);
        mem_fail_after(0);
        if (!plain) close(fd);
        assert_int_equal(scratch_count(folder), 0);
    }
    old_system(false);
    const char *was = getenv("TMPDIR");
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", was ? was : "");
    assert_int_equal(setenv("TMPDIR", folder, 1), 0);
    assert_string_equal(file_scratch_folder(), folder);
    assert_int_equal(setenv("TMPDIR", "", 1), 0);
    assert_string_equal(file_scratch_folder(), "/var/tmp");
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_string_equal(file_scratch_folder(), "/var/tmp");
    if (was) setenv("TMPDIR", kept, 1);
}

/* Own files: of this user, not writable by others. */
static void own_files_are_distinguished_from_others(void **state) {
    (void)state;
    char link[700];
    empty_folder();
    assert_false(file_is_own(path));
    assert_ok(file_write_atomic(path, "x", 1));
    for (mode_t mode = 0; mode < 01000; mode++) {
        assert_int_equal(chmod(path, mode), 0);
        assert_int_equal(file_is_own(path), !(mode & 022));
    }
    assert_true(file_is_own(folder));
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink(path, link), 0);
    assert_false(file_is_own(link));
    assert_false(file_is_own("/dev/null"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_true(file_is_own(path));
    if (scratch_give_away(path)) assert_false(file_is_own(path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_streams_are_never_files),
        cmocka_unit_test(file_hold_standard_reserves_the_standard_descriptors),
        cmocka_unit_test(special_files_are_refused_without_waiting),
        cmocka_unit_test(a_mapping_without_address_space_is_out_of_memory),
        cmocka_unit_test(written_files_are_private),
        cmocka_unit_test(writing_through_a_link_replaces_its_target),
        cmocka_unit_test(inputs_larger_than_the_limit_are_refused),
        cmocka_unit_test(file_names_without_a_folder_and_occupied_names_are_handled),
        cmocka_unit_test(unnamed_files_have_no_visible_name),
        cmocka_unit_test(own_files_are_distinguished_from_others),
        cmocka_unit_test(a_held_lock_is_waited_for_then_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
