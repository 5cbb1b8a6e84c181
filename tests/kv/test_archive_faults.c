/* Atomic writes under failing file operations and killed processes: always the old file or the new one, and nothing
 * beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kv/archive.h"
#include "support/hostile/fault_io.h"
#include "support/scratch.h"

/* An archive whose entries contain its version. */
enum { N_BYTES = 100000 };

static mn_status save(const char *path, int version) {
    static uint8_t data[N_BYTES];
    char text[16];
    memset(data, version, sizeof data);
    for (size_t i = 0; i < sizeof data; i += 7) data[i] = (uint8_t)i;
    snprintf(text, sizeof text, "%d", version);
    const archive_entry entries[] = {{"a", DTYPE_U8, 1, {1000}, data, 1000, false},
                                     {"b", DTYPE_U8, 1, {N_BYTES}, data, N_BYTES, version % 2 == 0},
                                     {"c", DTYPE_U8, 1, {7}, data, 7, false}};
    const archive_member members[] = {{"version", text}};
    return archive_write(path, entries, 3, members, 1);
}

/* The version of the file, every byte of which is verified. */
static int version_of(const char *path) {
    archive *a = NULL;
    static uint8_t buffer[N_BYTES];
    const uint8_t *data = NULL;
    assert_ok(archive_open(&a, path));
    assert_ok(archive_verify(a));
    int version = atoi(archive_member_of(a, "version"));
    assert_ok(archive_bytes(a, archive_find(a, "b"), buffer, &data));
    assert_int_equal(data[1], (uint8_t)version);
    assert_int_equal(data[N_BYTES - 2], (uint8_t)version);
    archive_close(&a);
    return version;
}

static int count_descriptors(void) {
    return scratch_count("/proc/self/fd");
}

/* Which calls may fail without the save failing: a short or interrupted write is continued, a lock is not
 * required for a new name, and at the last close everything has been synced. */
static bool may_be_survived(const char *call, fault_kind kind) {
    if (strcmp(call, "write") == 0) return kind == FAULT_SHORT || kind == FAULT_EINTR;
    if (strcmp(call, "open") == 0 || strcmp(call, "fsync") == 0) return kind == FAULT_EINTR;
    if (strcmp(call, "fstat") == 0) return true; /* whether the name is still that of the file: repeated */
    return strcmp(call, "flock") == 0 || strcmp(call, "close") == 0;
}

static void check_fault(const char *folder, const char *path, bool had_old, fault_kind kind, const char *call,
                        mn_status status) {
    const char *what = fault_names[kind];
    int version = file_exists(path) ? version_of(path) : 0;
    if (status == MN_OK) {
        if (!may_be_survived(call, kind)) fail_msg("%s of %s was not noticed", what, call);
        assert_int_equal(version, 2);
    } else {
        if (status != MN_E_IO || !strstr(mn_last_error(), path)) fail_msg("%s of %s: %s", what, call, mn_last_error());
        if (may_be_survived(call, kind)) fail_msg("%s of %s is no failure: %s", what, call, mn_last_error());
        /* Only the folder's sync comes after the new name. */
        bool is_new = strstr(mn_last_error(), "is written, but its folder could not be synced") != NULL;
        assert_int_equal(version, is_new ? 2 : had_old ? 1 : 0);
    }
    if (scratch_count(folder) != (version != 0)) fail_msg("%s of %s left a temporary file", what, call);
}

static void every_call_may_fail(void **state) {
    (void)state;
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s", scratch_empty("saves"));
    snprintf(path, sizeof path, "%s/cache", folder);
    int descriptors = count_descriptors(), n_failed = 0;
    for (int had_old = 0; had_old < 2; had_old++) {
        for (fault_kind kind = 0; kind < N_FAULTS; kind = (fault_kind)(kind + 1)) {
            bytes calls = {0};
            for (int k = 1;; k++) {
                unlink(path);
                if (had_old) assert_ok(save(path, 1));
                fault_io_arm(k, kind);
                mn_status status = save(path, 2);
                const char *call = fault_io_disarm();
                if (!call) {
                    assert_ok(status);
                    assert_int_equal(version_of(path), 2);
                    break;
                }
                n_failed += status != MN_OK;
                size_t n = strlen(call) + 1;
                if (calls.n < n || memcmp(calls.data + calls.n - n, call, n - 1) != 0)
                    bytes_printf(&calls, "%s ", call);
                check_fault(folder, path, had_old, kind, call, status);
            }
            assert_string_equal(bytes_text(&calls), "open flock fstat fchmod write fsync rename open fsync close ");
            bytes_clear(&calls);
        }
    }
    assert_true(n_failed > 50);
    assert_int_equal(count_descriptors(), descriptors);
}

/* ---- files after a killed process ---- */

static void left_overs_are_removed(void **state) {
    (void)state;
    char folder[512], path[600], part[700];
    snprintf(folder, sizeof folder, "%s", scratch_empty("saves"));
    snprintf(path, sizeof path, "%s/cache", folder);
    snprintf(part, sizeof part, "%s%s", path, FILE_PART_SUFFIX);
    assert_ok(save(path, 1));
    assert_ok(file_write_atomic(part, "half a save", 11));
    assert_int_equal(scratch_count(folder), 2);
    assert_ok(save(path, 2));
    assert_int_equal(scratch_count(folder), 1);
    assert_int_equal(version_of(path), 2);
    /* The calls of that removal may fail, too. */
    for (int k = 1;; k++) {
        assert_ok(file_write_atomic(part, "half a save", 11));
        fault_io_arm(k, FAULT_EIO);
        mn_status status = save(path, 3);
        const char *call = fault_io_disarm();
        if (!call) break;
        if (status != MN_OK) assert_int_equal(status, MN_E_IO);
        if (k == 3) { /* without a lock nobody knows whether it is still being written */
            assert_string_equal(call, "flock");
            assert_true(status != MN_OK && strstr(mn_last_error(), "cannot check whether"));
            assert_true(file_exists(part));
        }
        int version = version_of(path);
        assert_true(version == 2 || version == 3);
    }
    assert_int_equal(version_of(path), 3);
    assert_int_equal(scratch_count(folder), 1);
    /* Files that are not temporary files of a save are kept. */
    assert_int_equal(symlink("cache", part), 0);
    assert_fails(MN_E_IO, part, save(path, 4));
    assert_int_equal(version_of(path), 3);
    unlink(part);
    assert_int_equal(mkdir(part, 0777), 0);
    assert_fails(MN_E_IO, part, save(path, 4));
    rmdir(part);
    assert_ok(save(path, 4));
}

static void pause_ms(double ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};
    nanosleep(&time, NULL);
}

/* Saves over and over: version n, n + 1, ... (a byte). Never returns. */
static void save_forever(const char *path, int version) {
    for (;; version = version % 200 + 1) {
        if (save(path, version) != MN_OK) _exit(1);
    }
}

static void killed_saves_leave_the_old_or_the_new(void **state) {
    (void)state;
    bool is_long = test_is_long();
    int n = is_long ? 10000 : 150 / test_stride(3), n_left = 0;
    uint64_t seed = 1;
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s", scratch_empty("saves"));
    snprintf(path, sizeof path, "%s/cache", folder);
    assert_ok(save(path, 1));
    for (int i = 0; i < n || (n_left == 0 && i < 50 * n); i++) { /* a busy machine may not get to the save in time */
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_forever(path, version_of(path));
        pause_ms(test_uniform(&seed, 0, 30));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status)) fail_msg("a save failed by itself");
        assert_true(version_of(path) > 0);
        n_left += scratch_count(folder) > 1;
        assert_true(scratch_count(folder) <= 2);
        if (i % 3 == 0) {
            assert_ok(save(path, 1));
            assert_int_equal(scratch_count(folder), 1);
        }
    }
    assert_ok(save(path, 7));
    assert_int_equal(version_of(path), 7);
    assert_int_equal(scratch_count(folder), 1);
    print_message("%d of %d or more kills came in the middle of a save\n", n_left, n);
    assert_true(n_left > 0);
}

/* Several processes save to one path: they take turns, each save is complete, and none removes the file of another. */
static void writers_take_turns(void **state) {
    (void)state;
    enum { N_WRITERS = 4, N_SAVES = 25 };
    char folder[512], path[600];
    pid_t children[N_WRITERS];
    snprintf(folder, sizeof folder, "%s", scratch_empty("saves"));
    snprintf(path, sizeof path, "%s/cache", folder);
    assert_ok(save(path, 1));
    for (int i = 0; i < N_WRITERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            for (int k = 0; k < N_SAVES; k++) {
                if (save(path, 10 * (i + 1) + k % 10) != MN_OK) _exit(1);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 50; i++) {
        assert_true(version_of(path) > 0);
        pause_ms(1);
    }
    for (int i = 0; i < N_WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(scratch_count(folder), 1);
    assert_true(version_of(path) >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(left_overs_are_removed),
        cmocka_unit_test(killed_saves_leave_the_old_or_the_new),
        cmocka_unit_test(writers_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
