/* Power fails while a file is saved: in every state that the disk may be left in, the name is that of the complete old
 * file or of the complete new one; a save that has returned is there; the next save leaves nothing beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "kv/archive.h"
#include "support/hostile/power_log.h"
#include "support/scratch.h"

enum { N_BYTES = 61000 }; /* 64 KiB and a little with all of the file */

static mn_status save(const char *path, int version) {
    static uint8_t data[N_BYTES];
    char text[16];
    memset(data, version, sizeof data);
    for (size_t i = 0; i < sizeof data; i += 7) data[i] = (uint8_t)(i / 7);
    snprintf(text, sizeof text, "%d", version);
    const archive_entry entries[] = {{"a", DTYPE_U8, 1, {5000}, data, 5000, false},
                                     {"b", DTYPE_U8, 1, {N_BYTES}, data, N_BYTES, false}};
    const archive_member members[] = {{"version", text}};
    return archive_write(path, entries, 2, members, 1);
}

/* 0: there is no file; -1: it is not one of these. */
static int version_of(const char *path) {
    archive *a = NULL;
    struct stat info;
    int version = -1;
    if (stat(path, &info) != 0) return 0;
    if (archive_open(&a, path) == MN_OK && archive_verify(a) == MN_OK) version = atoi(archive_member_of(a, "version"));
    archive_close(&a);
    return version;
}

typedef struct tally {
    size_t n_states, n_damaged, n_lost, n_left;
} tally;

/* One state: which version it holds, and what the next save makes of it. */
static void check_state(const char *folder, int oldest, int newest, int least, tally *t) {
    char path[700];
    snprintf(path, sizeof path, "%s/cache", folder);
    int version = version_of(path);
    t->n_states++;
    t->n_damaged +=
        version < 0 || (version != 0 && (version < oldest || version > newest)) || (version == 0 && oldest > 0);
    t->n_lost += version >= 0 && version < least;
    t->n_left += save(path, 9) != MN_OK || version_of(path) != 9 || scratch_count(folder) != 1;
}

/* Every state of what was recorded. versions before: `old` (0: none); save number i wrote old + i. */
static tally replay(int old, int n_saves, size_t n_variants, power_trust trust) {
    tally t = {0};
    char folder[600];
    snprintf(folder, sizeof folder, "%s", scratch_path("after"));
    for (size_t calls = 0; calls <= power_log_calls(); calls++) {
        int returned = power_log_returned(calls);
        for (size_t names = 0; names < power_log_names(calls, trust); names++) {
            size_t n = power_log_uncertain(calls, names, trust) ? n_variants : 1;
            for (size_t variant = 0; variant < n; variant++) {
                scratch_empty("after");
                power_log_build(folder, calls, names, variant, trust);
                check_state(folder, old, old + n_saves, old + returned, &t);
            }
        }
    }
    return t;
}

/* had_part: a killed process has left its temporary file. Several saves, one after the other. */
static tally record_and_replay(int old, bool had_part, int n_saves, size_t n_variants, power_trust trust) {
    char folder[600], path[700], part[800];
    snprintf(folder, sizeof folder, "%s", scratch_empty("before"));
    snprintf(path, sizeof path, "%s/cache", folder);
    snprintf(part, sizeof part, "%s%s", path, FILE_PART_SUFFIX);
    if (old) assert_ok(save(path, old));
    if (had_part) assert_ok(file_write_atomic(part, "half a save", 11));
    power_log_begin(folder);
    for (int i = 1; i <= n_saves; i++) {
        assert_ok(save(path, old + i));
        power_log_mark();
    }
    power_log_end();
    tally t = replay(old, n_saves, n_variants, trust);
    power_log_clear();
    return t;
}

static void power_may_fail_at_any_moment(void **state) {
    (void)state;
    size_t n_variants = test_is_long() ? 150 : 20, n_states = 0;
    for (int old = 0; old < 2; old++) {
        for (int had_part = 0; had_part < 2; had_part++) {
            for (int n_saves = 1; n_saves <= 2; n_saves++) {
                tally t = record_and_replay(old, had_part, n_saves, n_variants, POWER_SYNCS);
                if (t.n_damaged || t.n_lost || t.n_left)
                    fail_msg(
                        "old %d, part %d, %d saves: of %zu states %zu are damaged, %zu lost a save, %zu left files",
                        old, had_part, n_saves, t.n_states, t.n_damaged, t.n_lost, t.n_left);
                n_states += t.n_states;
            }
        }
    }
    print_message("%zu states\n", n_states);
    assert_true(n_states >= (test_is_long() ? 5000 : 800));
}

/* The syncs are needed: on a disk that ignores them the same calls leave damaged files, or lose saves. */
static void without_syncs_states_are_bad(void **state) {
    (void)state;
    tally files = record_and_replay(1, false, 1, 50, POWER_NO_FILE_SYNC);
    assert_true(files.n_damaged > 10);
    tally folders = record_and_replay(1, false, 1, 20, POWER_NO_FOLDER_SYNC);
    assert_true(folders.n_lost > 0);
    assert_int_equal(folders.n_damaged, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power_may_fail_at_any_moment),
        cmocka_unit_test(without_syncs_states_are_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
