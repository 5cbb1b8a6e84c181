/* The offload file: random operations against copies in memory with both engines, threads, reuse of room, and
 * failures of folders, disks, limits and truncated files.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kv/offload.h"
#include "support/hostile/old_system.h"
#include "support/scratch.h"

enum { KIB = 1024, SKIPPED = 77 };

/* plain: by portable operations alone: a named file that is unlinked, space allocated by writing, plain reads. */
static mn_status open_in(kv_offload **out, const char *folder, bool plain) {
    old_system(plain);
    return kv_offload_open(out, folder);
}

static kv_offload *open_offload(bool plain) {
    kv_offload *offload = NULL;
    assert_ok(open_in(&offload, scratch_path(""), plain));
    return offload;
}

static off_t file_length(void) {
    struct stat info;
    return fstat(scratch_unnamed_file(), &info) == 0 ? info.st_size : -1;
}

static void fill(unsigned char *data, size_t n, uint64_t *random) {
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)test_random(random);
}

/* ---- random operations ---- */

enum { MOST_REGIONS = 24, MOST_BYTES = 40 * KIB, MOST_TICKETS = 5, MOST_SLICES = 70, SLICE_BYTES = 3000, STEPS = 4000 };

typedef struct copy {
    int64_t region; /* 0: none */
    size_t n;
    int readers; /* outstanding slices */
    unsigned char data[MOST_BYTES];
} copy;

typedef struct reader {
    bool is_out;
    kv_offload_ticket ticket;
    kv_offload_slice slices[MOST_SLICES];
    copy *owners[MOST_SLICES];
    unsigned char data[MOST_SLICES][SLICE_BYTES];
} reader;

/* Failures are counted, not asserted: several threads run this, and a failed assertion belongs to the main one. */
typedef struct fixture {
    kv_offload *offload;
    uint64_t random;
    copy copies[MOST_REGIONS];
    reader readers[MOST_TICKETS];
    size_t used;
    int n_errors;
} fixture;

static size_t below(fixture *w, size_t n) {
    return (size_t)(test_random(&w->random) % n);
}

static void expect(fixture *w, bool holds, const char *what) {
    if (holds) return;
    if (w->n_errors++ == 0) print_message("%s: %s\n", what, mn_last_error());
}

static void return_copy(fixture *w, copy *c) {
    kv_offload_return(w->offload, c->region);
    w->used -= c->n;
    c->region = 0;
}

static void finish_reader(fixture *w, reader *r) {
    if (!r->is_out) return;
    expect(w, kv_offload_wait(w->offload, &r->ticket) == MN_OK, "wait");
    for (size_t i = 0; i < r->ticket.n_slices; i++) {
        const kv_offload_slice *s = &r->slices[i];
        expect(w, memcmp(r->data[i], r->owners[i]->data + s->offset, s->n_bytes) == 0, "a slice differs");
        r->owners[i]->readers--;
    }
    r->is_out = false;
}

static void start_reader(fixture *w, reader *r) {
    size_t n = 0, wanted = below(w, MOST_SLICES + 1);
    for (size_t tries = 0; n < wanted && tries < 4 * MOST_SLICES; tries++) {
        copy *c = &w->copies[below(w, MOST_REGIONS)];
        if (!c->region) continue;
        size_t offset = below(w, c->n), most = c->n - offset < SLICE_BYTES ? c->n - offset : SLICE_BYTES;
        r->slices[n] = (kv_offload_slice){c->region, offset, below(w, most + 1), r->data[n]};
        r->owners[n++] = c;
        c->readers++;
    }
    memset(r->data, 0, sizeof r->data);
    r->ticket.slices = r->slices;
    r->ticket.n_slices = n;
    r->is_out = true;
    kv_offload_request(w->offload, &r->ticket);
}

static void take_copy(fixture *w, copy *c) {
    c->n = 1 + below(w, below(w, 2) ? MOST_BYTES : 2 * 4096);
    expect(w, kv_offload_take(&c->region, w->offload, c->n) == MN_OK && c->region != 0, "take");
    fill(c->data, c->n, &w->random);
    expect(w, kv_offload_write(w->offload, c->region, 0, c->data, c->n) == MN_OK, "write");
    w->used += c->n;
}

static void write_part(fixture *w, copy *c) {
    size_t offset = below(w, c->n), n = below(w, c->n - offset + 1);
    fill(c->data + offset, n, &w->random);
    expect(w, kv_offload_write(w->offload, c->region, offset, c->data + offset, n) == MN_OK, "write a part");
}

static void read_part(fixture *w, const copy *c) {
    static _Thread_local unsigned char data[MOST_BYTES];
    size_t offset = below(w, c->n), n = below(w, c->n - offset + 1);
    expect(w, kv_offload_read(w->offload, c->region, offset, data, n) == MN_OK, "read");
    expect(w, memcmp(data, c->data + offset, n) == 0, "what was read differs");
}

static void step(fixture *w) {
    copy *c = &w->copies[below(w, MOST_REGIONS)];
    reader *r = &w->readers[below(w, MOST_TICKETS)];
    size_t what = below(w, 10);
    if (what < 3) {
        if (r->is_out) {
            finish_reader(w, r);
        } else {
            start_reader(w, r);
        }
    } else if (!c->region) {
        take_copy(w, c);
    } else if (what < 5) {
        if (c->readers == 0) write_part(w, c);
    } else if (what < 8) {
        read_part(w, c);
    } else if (c->readers == 0) {
        return_copy(w, c);
    }
}

static void finish_fixture(fixture *w) {
    for (int i = 0; i < MOST_TICKETS; i++) finish_reader(w, &w->readers[i]);
    for (int i = 0; i < MOST_REGIONS; i++) {
        if (!w->copies[i].region) continue;
        read_part(w, &w->copies[i]);
        return_copy(w, &w->copies[i]);
    }
}

static fixture *new_fixture(kv_offload *offload, uint64_t seed) {
    fixture *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->offload = offload;
    w->random = seed;
    return w;
}

static void random_operations_match(bool plain) {
    kv_offload *offload = open_offload(plain);
    fixture *w = new_fixture(offload, 11);
    for (int i = 0; i < STEPS; i++) {
        step(w);
        assert_int_equal(w->n_errors, 0);
        assert_int_equal(kv_offload_bytes(offload), w->used);
        assert_true(kv_offload_file_bytes(offload) >= w->used);
        assert_int_equal(kv_offload_file_bytes(offload) % 4096, 0);
        if (i % 16 == 0) assert_int_equal(file_length(), kv_offload_file_bytes(offload));
    }
    finish_fixture(w);
    assert_int_equal(w->n_errors, 0);
    free(w);
    assert_int_equal(kv_offload_bytes(offload), 0);
    assert_int_equal(file_length(), 0);
    kv_offload_close(&offload);
    assert_null(offload);
}

static void random_operations_match_by_plain_reads(void **state) {
    (void)state;
    random_operations_match(true);
}

static void random_operations_match_by_default(void **state) {
    (void)state;
    random_operations_match(false);
}

static void *run_fixture(void *arg) {
    for (int i = 0; i < STEPS / 4; i++) step(arg);
    finish_fixture(arg);
    return NULL;
}

static void threads_share_a_file(void **state) {
    (void)state;
    enum { N = 4 };
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        fixture *fixtures[N];
        pthread_t threads[N];
        for (int i = 0; i < N; i++) {
            fixtures[i] = new_fixture(offload, 100 + (uint64_t)i);
            assert_int_equal(pthread_create(&threads[i], NULL, run_fixture, fixtures[i]), 0);
        }
        for (int i = 0; i < N; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(fixtures[i]->n_errors, 0);
            free(fixtures[i]);
        }
        assert_int_equal(kv_offload_bytes(offload), 0);
        assert_int_equal(file_length(), 0);
        kv_offload_close(&offload);
    }
}

/* All regions come and go at once, so that taking meets the shrinking of the file, which never grows beyond what they
 * need. */
enum { N_TAKERS = 3 };

static void *take_and_return(void *arg) {
    kv_offload *offload = arg;
    for (int i = 0; i < 300; i++) {
        int64_t region;
        char out[100], in[100];
        memset(out, i, sizeof out);
        if (kv_offload_take(&region, offload, 5000) != MN_OK) return arg;
        bool works = kv_offload_file_bytes(offload) <= N_TAKERS * 8192 &&
                     kv_offload_write(offload, region, 4900, out, sizeof out) == MN_OK &&
                     kv_offload_read(offload, region, 4900, in, sizeof in) == MN_OK && memcmp(in, out, sizeof in) == 0;
        kv_offload_return(offload, region);
        if (!works) return arg;
    }
    return NULL;
}

static void taking_meets_shrinking(void **state) {
    (void)state;
    kv_offload *offload = open_offload(false);
    pthread_t threads[N_TAKERS];
    for (int i = 0; i < N_TAKERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_and_return, offload), 0);
    for (int i = 0; i < N_TAKERS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(file_length(), 0);
    kv_offload_close(&offload);
}

/* ---- room ---- */

static void returned_room_is_used_again(void **state) {
    (void)state;
    enum { N = 120 };
    kv_offload *offload = open_offload(false);
    int64_t regions[N], guard, big;
    uint64_t random = 3;
    for (int i = 0; i < N; i++) assert_ok(kv_offload_take(&regions[i], offload, (size_t)(1 + i % 3) * 4096));
    assert_ok(kv_offload_take(&guard, offload, 1));
    uint64_t length = kv_offload_file_bytes(offload);
    assert_int_equal(length, N * 2 * 4096 + 4096);
    for (int i = N - 1; i >= 0; i--) {
        int j = (int)(test_random(&random) % (uint64_t)(i + 1));
        kv_offload_return(offload, regions[j]);
        regions[j] = regions[i];
    }
    assert_int_equal(kv_offload_bytes(offload), 1);
    assert_ok(kv_offload_take(&big, offload, N * 2 * 4096)); /* neighbours were joined */
    assert_int_equal(kv_offload_file_bytes(offload), length);
    kv_offload_return(offload, big);
    for (int i = 0; i < N; i++) assert_ok(kv_offload_take(&regions[i], offload, (size_t)(1 + i * 7 % 3) * 4096));
    assert_int_equal(kv_offload_file_bytes(offload), length);
    for (int i = 0; i < N; i++) kv_offload_return(offload, regions[i]);
    kv_offload_return(offload, guard);
    assert_int_equal(kv_offload_file_bytes(offload), 0);
    assert_int_equal(file_length(), 0);
    kv_offload_close(&offload);
}

/* Regions of five sizes are taken and returned many times, at about the same load. */
static void the_file_stays_bounded(void **state) {
    (void)state;
    enum { N = 200, ROUNDS = 20000 };
    kv_offload *offload = open_offload(false);
    int64_t regions[N] = {0};
    size_t pages[N], load = 0, most = 0;
    uint64_t random = 5;
    for (int i = 0; i < ROUNDS; i++) {
        size_t j = (size_t)(test_random(&random) % N);
        if (regions[j]) {
            kv_offload_return(offload, regions[j]);
            load -= pages[j];
        }
        pages[j] = (size_t)1 << test_random(&random) % 5;
        assert_ok(kv_offload_take(&regions[j], offload, pages[j] * 4096));
        load += pages[j];
        if (load > most) most = load;
    }
    if (kv_offload_file_bytes(offload) > most * 4096 * 3 / 2) {
        fail_msg("%llu bytes for at most %zu", (unsigned long long)kv_offload_file_bytes(offload), most * 4096);
    }
    for (int i = 0; i < N; i++) {
        if (regions[i]) kv_offload_return(offload, regions[i]);
    }
    kv_offload_close(&offload);
}

static void room_is_allocated_when_taken(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        int64_t region;
        assert_ok(kv_offload_take(&region, offload, 1 << 20));
        struct stat info;
        assert_int_equal(fstat(scratch_unnamed_file(), &info), 0);
        assert_true(info.st_blocks * 512 >= 1 << 20);
        kv_offload_return(offload, region);
        kv_offload_close(&offload);
    }
}

static void room_of_several_regions(void **state) {
    (void)state;
    kv_offload *offload = open_offload(false);
    int64_t a, b, c = 99;
    assert_ok(kv_offload_take(&a, offload, 6 * 4096));
    assert_ok(kv_offload_take(&b, offload, 4 * 4096 - 5));
    kv_offload_return(offload, a);
    assert_ok(kv_offload_take(&a, offload, 2 * 4096));
    assert_ok(kv_offload_take(&c, offload, 4 * 4096));
    assert_int_equal(kv_offload_file_bytes(offload), 10 * 4096);
    assert_int_equal(kv_offload_bytes(offload), 10 * 4096 - 5);
    kv_offload_return(offload, a);
    kv_offload_return(offload, b);
    kv_offload_return(offload, c);
    assert_fails(MN_E_ARG, "0 bytes", kv_offload_take(&c, offload, 0));
    assert_int_equal(c, 0);
    assert_fails(MN_E_ARG, "18446744073709551615 bytes", kv_offload_take(&c, offload, SIZE_MAX));
    kv_offload_close(&offload);
}

/* ---- reading ---- */

static void requests_are_served_in_order_and_without_bound(void **state) {
    (void)state;
    enum { N = 300, SIZE = 512 };
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        static unsigned char out[N * SIZE], in[N * SIZE];
        static kv_offload_slice slices[N];
        static kv_offload_ticket tickets[N];
        uint64_t random = 17;
        int64_t region;
        fill(out, sizeof out, &random);
        memset(in, 0, sizeof in);
        assert_ok(kv_offload_take(&region, offload, sizeof out));
        assert_ok(kv_offload_write(offload, region, 0, out, sizeof out));
        int64_t before = mem_count().allocations;
        for (size_t i = 0; i < N; i++) {
            slices[i] = (kv_offload_slice){region, i * SIZE, SIZE, in + i * SIZE};
            tickets[i] = (kv_offload_ticket){.slices = &slices[i], .n_slices = 1};
            kv_offload_request(offload, &tickets[i]);
        }
        assert_ok(kv_offload_wait(offload, &tickets[N - 1])); /* then all before it are done */
        assert_int_equal(mem_count().allocations, before);
        assert_memory_equal(in, out, sizeof in);
        for (size_t i = 0; i < N; i++) assert_ok(kv_offload_wait(offload, &tickets[i]));
        assert_ok(kv_offload_wait(offload, &(kv_offload_ticket){0})); /* never requested */
        kv_offload_return(offload, region);
        kv_offload_close(&offload);
    }
}

static void only_regions_can_be_reached(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        char data[64] = {0};
        int64_t region, gone;
        assert_fails(MN_E_ARG, "which has 0", kv_offload_read(offload, 1, 0, data, 1));
        assert_ok(kv_offload_take(&region, offload, 50));
        assert_ok(kv_offload_take(&gone, offload, 50));
        kv_offload_return(offload, gone);
        assert_ok(kv_offload_write(offload, region, 0, data, 50));
        assert_fails(MN_E_ARG, "2 bytes at offset 49 of a region", kv_offload_write(offload, region, 49, data, 2));
        assert_fails(MN_E_ARG, "which has 50", kv_offload_read(offload, region, SIZE_MAX, data, 2));
        const int64_t bad[] = {-1, 0, gone, 1000, INT64_MAX, INT64_MIN};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            const kv_offload_slice slices[3] = {{region, 0, 50, data}, {bad[i], 0, 1, data}, {region, 0, 50, data}};
            kv_offload_ticket ticket = {.slices = slices, .n_slices = 3};
            assert_fails(MN_E_ARG, "which has 0", kv_offload_read(offload, bad[i], 0, data, 1));
            assert_fails(MN_E_ARG, "which has 0", kv_offload_write(offload, bad[i], 0, data, 1));
            kv_offload_request(offload, &ticket);
            assert_fails(MN_E_ARG, "which has 0", kv_offload_wait(offload, &ticket));
        }
        kv_offload_return(offload, region);
        kv_offload_close(&offload);
    }
}

static void a_truncated_file_is_an_error(void **state) {
    (void)state;
    enum { N = 300, SIZE = 4096 };
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        static unsigned char out[N * SIZE], in[N * SIZE];
        kv_offload_slice slices[N];
        uint64_t random = 23;
        int64_t region;
        fill(out, sizeof out, &random);
        assert_ok(kv_offload_take(&region, offload, sizeof out));
        assert_ok(kv_offload_write(offload, region, 0, out, sizeof out));
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", scratch_unnamed_file());
        assert_int_equal(truncate(path, 50 * SIZE + 100), 0);
        for (size_t i = 0; i < N; i++) slices[i] = (kv_offload_slice){region, i * SIZE, SIZE, in + i * SIZE};
        kv_offload_ticket cut = {.slices = slices, .n_slices = N}, whole = {.slices = slices, .n_slices = 50};
        kv_offload_request(offload, &cut);
        assert_fails(MN_E_IO, "truncated", kv_offload_wait(offload, &cut));
        assert_fails(MN_E_IO, "cannot read 4096 bytes at", kv_offload_wait(offload, &cut));
        assert_fails(MN_E_IO, "204800 of the cache file in", kv_offload_read(offload, region, 50 * SIZE, in, SIZE));
        assert_fails(MN_E_IO, "100 were read: the file was truncated",
                     kv_offload_read(offload, region, 50 * SIZE, in, SIZE));
        memset(in, 0, sizeof in);
        kv_offload_request(offload, &whole);
        assert_ok(kv_offload_wait(offload, &whole));
        assert_memory_equal(in, out, 50 * SIZE);
        assert_ok(kv_offload_write(offload, region, 0, out, sizeof out));
        kv_offload_request(offload, &cut); /* a ticket that failed can be used again */
        assert_ok(kv_offload_wait(offload, &cut));
        assert_memory_equal(in, out, sizeof in);
        kv_offload_return(offload, region);
        kv_offload_close(&offload);
    }
}

static void closing_drops_what_is_outstanding(void **state) {
    (void)state;
    enum { N_TICKETS = 64, N_SLICES = 100, SIZE = 4096 };
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        unsigned char *data = malloc(N_SLICES * SIZE);
        kv_offload_slice *slices = malloc(N_SLICES * sizeof *slices);
        kv_offload_ticket *tickets = calloc(N_TICKETS, sizeof *tickets);
        assert_true(data && slices && tickets);
        int64_t region;
        assert_ok(kv_offload_take(&region, offload, N_SLICES * SIZE));
        memset(data, 1, N_SLICES * SIZE);
        assert_ok(kv_offload_write(offload, region, 0, data, N_SLICES * SIZE));
        for (size_t i = 0; i < N_SLICES; i++) slices[i] = (kv_offload_slice){region, i * SIZE, SIZE, data + i * SIZE};
        for (size_t i = 0; i < N_TICKETS; i++) {
            tickets[i] = (kv_offload_ticket){.slices = slices, .n_slices = N_SLICES};
            kv_offload_request(offload, &tickets[i]);
        }
        kv_offload_close(&offload); /* even with a region that nobody returned */
        memset(data, 2, N_SLICES * SIZE);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        for (size_t i = 0; i < N_SLICES * SIZE; i++) assert_int_equal(data[i], 2);
        free(tickets);
        free(slices);
        free(data);
    }
}

/* ---- folders, disks, limits ---- */

/* Checks in a child process: 0, 1 after a failed check, SKIPPED. */
typedef int (*child_task)(bool plain);

static void run_child(child_task task, bool plain) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(task(plain));
    int status;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) skip();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with status %d", status);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, mn_last_error());                       \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static void bad_folders_are_named(void **state) {
    (void)state;
    const char *file = scratch_file("a-file", "x", 1), *absent = scratch_path("absent");
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = NULL;
        assert_fails(MN_E_IO, absent, open_in(&offload, absent, plain));
        assert_fails(MN_E_IO, "No such file", open_in(&offload, absent, plain));
        assert_fails(MN_E_IO, "Not a directory", open_in(&offload, file, plain));
        assert_null(offload);
    }
}

static void the_default_folder_is_that_of_the_system(void **state) {
    (void)state;
    kv_offload *offload = NULL;
    char before[4096] = "";
    const char *old = getenv("TMPDIR");
    if (old) snprintf(before, sizeof before, "%s", old);
    setenv("TMPDIR", scratch_path("absent"), 1);
    mn_status status = open_in(&offload, NULL, false);
    setenv("TMPDIR", "", 1);
    mn_status of_none = open_in(&offload, NULL, false);
    if (old) {
        setenv("TMPDIR", before, 1);
    } else {
        unsetenv("TMPDIR");
    }
    assert_int_equal(status, MN_E_IO);
    assert_int_equal(of_none, MN_OK);
    char path[64], target[4096] = "", *folder = realpath("/var/tmp", NULL); /* which may be a link */
    assert_non_null(folder);
    snprintf(path, sizeof path, "/proc/self/fd/%d", scratch_unnamed_file());
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    size_t n = strlen(folder);
    if (strncmp(target, folder, n) != 0 || target[n] != '/') fail_msg("'%s' is not in '%s'", target, folder);
    free(folder);
    kv_offload_close(&offload);
}

static int open_without_permission(bool plain) {
    const char *folder = scratch_path("closed");
    kv_offload *offload;
    if (geteuid() == 0 && setuid(65534) != 0) return SKIPPED;
    CHECK(open_in(&offload, folder, plain) == MN_E_IO);
    CHECK(strstr(mn_last_error(), folder) && strstr(mn_last_error(), "Permission denied"));
    return 0;
}

static void a_closed_folder_is_refused(void **state) {
    (void)state;
    const char *folder = scratch_path("closed");
    assert_int_equal(mkdir(folder, 0555), 0);
    chmod(scratch_path(""), 0755);
    run_child(open_without_permission, false);
    run_child(open_without_permission, true);
    rmdir(folder);
}

static bool put_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool works = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return works;
}

/* A name space of mounts for this process; who is not root becomes that of one. */
static bool own_mounts(void) {
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    if (geteuid() == 0) return unshare(CLONE_NEWNS) == 0;
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && put_text("/proc/self/uid_map", users) &&
           put_text("/proc/self/setgroups", "deny") && put_text("/proc/self/gid_map", groups);
}

/* A file system of 1 MiB, seen by this process alone. */
static int fill_disk(bool plain) {
    const char *folder = scratch_path("disk");
    kv_offload *offload;
    int64_t regions[40];
    int n = 0;
    static char data[64 * KIB];
    if (!own_mounts()) return SKIPPED;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return SKIPPED;
    if (mount("none", folder, "tmpfs", 0, "size=1m") != 0) return SKIPPED;
    CHECK(open_in(&offload, folder, plain) == MN_OK);
    mn_status status;
    while ((status = kv_offload_take(&regions[n], offload, sizeof data)) == MN_OK && n < 39) n++;
    CHECK(status == MN_E_IO && n >= 14 && n <= 16);
    CHECK(strstr(mn_last_error(), folder) && strstr(mn_last_error(), "No space left on device"));
    CHECK(kv_offload_bytes(offload) == (uint64_t)n * sizeof data);
    for (int i = 0; i < n; i++) CHECK(kv_offload_write(offload, regions[i], 0, data, sizeof data) == MN_OK);
    kv_offload_return(offload, regions[0]);
    CHECK(kv_offload_take(&regions[0], offload, sizeof data) == MN_OK);
    for (int i = 0; i < n; i++) kv_offload_return(offload, regions[i]);
    CHECK(kv_offload_take(&regions[0], offload, 800 * KIB) == MN_OK);
    kv_offload_return(offload, regions[0]);
    kv_offload_close(&offload);
    return 0;
}

static void a_full_disk_is_an_error(void **state) {
    (void)state;
    mkdir(scratch_path("disk"), 0755);
    run_child(fill_disk, false);
    run_child(fill_disk, true);
    rmdir(scratch_path("disk"));
}

static int meet_size_limit(bool plain) {
    kv_offload *offload;
    int64_t small, large;
    struct rlimit limit;
    static char data[8 * KIB];
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    CHECK(open_in(&offload, scratch_path(""), plain) == MN_OK);
    CHECK(kv_offload_take(&small, offload, sizeof data) == MN_OK);
    limit.rlim_cur = 6 * KIB;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(kv_offload_write(offload, small, 0, data, sizeof data) == MN_E_IO);
    CHECK(strstr(mn_last_error(), "cannot write 8192 bytes at 0") &&
          strstr(mn_last_error(), "6144 were written: File too large"));
    limit.rlim_cur = 20 * KIB;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(kv_offload_take(&large, offload, 64 * KIB) == MN_E_IO && large == 0);
    CHECK(strstr(mn_last_error(), "from 8192 to 73728 bytes: File too large"));
    CHECK(kv_offload_file_bytes(offload) == 8 * KIB && kv_offload_bytes(offload) == 8 * KIB &&
          file_length() == 8 * KIB);
    limit.rlim_cur = before;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(kv_offload_take(&large, offload, 64 * KIB) == MN_OK);
    CHECK(kv_offload_write(offload, small, 0, data, sizeof data) == MN_OK);
    kv_offload_return(offload, small);
    kv_offload_return(offload, large);
    kv_offload_close(&offload);
    return 0;
}

static void a_limit_on_file_size_is_an_error(void **state) {
    (void)state;
    run_child(meet_size_limit, false);
    run_child(meet_size_limit, true);
}

/* From now on the system call fails in all threads as if it were forbidden. */
static bool forbid(unsigned call) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Reads a region through requests of more slices than are ever in flight at once. */
static int read_many(kv_offload *offload) {
    enum { N = 1000, SIZE = 100 };
    static unsigned char out[N * SIZE], in[N * SIZE];
    kv_offload_slice slices[N];
    int64_t region;
    uint64_t random = 31;
    fill(out, sizeof out, &random);
    CHECK(kv_offload_take(&region, offload, sizeof out) == MN_OK);
    CHECK(kv_offload_write(offload, region, 0, out, sizeof out) == MN_OK);
    for (size_t i = 0; i < N; i++) slices[i] = (kv_offload_slice){region, i * SIZE, SIZE, in + i * SIZE};
    kv_offload_ticket ticket = {.slices = slices, .n_slices = N};
    for (int i = 0; i < 3; i++) {
        memset(in, 0, sizeof in);
        kv_offload_request(offload, &ticket);
        CHECK(kv_offload_wait(offload, &ticket) == MN_OK);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    kv_offload_return(offload, region);
    return 0;
}

static int read_under_filter(unsigned forbidden, bool after_open) {
    kv_offload *offload;
    if (!after_open && !forbid(forbidden)) return SKIPPED;
    CHECK(open_in(&offload, scratch_path(""), false) == MN_OK);
    if (after_open) {
        if (strcmp(kv_offload_engine(offload), "io_uring") != 0) return SKIPPED;
        if (!forbid(forbidden)) return SKIPPED;
    } else {
        CHECK(strcmp(kv_offload_engine(offload), "read") == 0);
    }
    if (read_many(offload) != 0) return 1;
    CHECK(strcmp(kv_offload_engine(offload), "read") == 0);
    kv_offload_close(&offload);
    return 0;
}

static int read_without_setup(bool plain) {
    (void)plain;
    return read_under_filter(__NR_io_uring_setup, false);
}

static int read_without_enter(bool plain) {
    (void)plain;
    return read_under_filter(__NR_io_uring_enter, false);
}

static int read_with_a_ring_that_breaks(bool plain) {
    (void)plain;
    return read_under_filter(__NR_io_uring_enter, true);
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void closing_closes_every_file(void **state) {
    (void)state;
    int before = open_files();
    for (int plain = 0; plain < 2; plain++) {
        kv_offload *offload = open_offload(plain);
        assert_true(open_files() > before);
        kv_offload_close(&offload);
        assert_int_equal(open_files(), before);
    }
    kv_offload_close(&(kv_offload *){NULL});
}

static void without_io_uring_reads_are_plain(void **state) {
    (void)state;
    kv_offload *offload = open_offload(true);
    assert_string_equal(kv_offload_engine(offload), "read");
    assert_int_equal(read_many(offload), 0);
    kv_offload_close(&offload);
    offload = open_offload(false);
    print_message("the default engine here is %s\n", kv_offload_engine(offload));
    assert_int_equal(read_many(offload), 0);
    kv_offload_close(&offload);
    if (open_in(&offload, "/dev/shm", false) == MN_OK) { /* where it is, it is a tmpfs */
        assert_string_equal(kv_offload_engine(offload), "read");
        assert_int_equal(read_many(offload), 0);
        kv_offload_close(&offload);
    }
    run_child(read_without_setup, false);
    run_child(read_without_enter, false);
    run_child(read_with_a_ring_that_breaks, false);
}

/* ---- memory
 * ---------------------------------------------------------------------------------------------------------
 */

/* Opens, takes enough to let the records grow several times, and returns all. */
static mn_status use_offload(bool plain) {
    enum { N = 100 };
    kv_offload *offload;
    MN_TRY(open_in(&offload, scratch_path(""), plain));
    int64_t regions[N];
    mn_status status = MN_OK;
    int n = 0;
    while (n < N && status == MN_OK) {
        status = kv_offload_take(&regions[n], offload, 5000);
        n += status == MN_OK;
    }
    assert_int_equal(kv_offload_bytes(offload), n * 5000);
    if (status != MN_OK) { /* the next one finds memory again */
        mem_fail_after(0);
        int64_t extra;
        assert_int_equal(kv_offload_take(&extra, offload, 5000), MN_OK);
        kv_offload_return(offload, extra);
    }
    while (n > 0) kv_offload_return(offload, regions[--n]);
    kv_offload_close(&offload);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        int64_t live = mem_count().live, k = 1;
        for (;; k++) {
            mem_fail_after(k);
            mn_status status = use_offload(plain);
            mem_fail_after(0);
            assert_int_equal(mem_count().live, live);
            if (status == MN_OK) break;
            assert_int_equal(status, MN_E_NOMEM);
        }
        assert_true(k > 5 + plain);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_match_by_plain_reads),
        cmocka_unit_test(random_operations_match_by_default),
        cmocka_unit_test(threads_share_a_file),
        cmocka_unit_test(taking_meets_shrinking),
        cmocka_unit_test(returned_room_is_used_again),
        cmocka_unit_test(the_file_stays_bounded),
        cmocka_unit_test(room_is_allocated_when_taken),
        cmocka_unit_test(room_of_several_regions),
        cmocka_unit_test(requests_are_served_in_order_and_without_bound),
        cmocka_unit_test(only_regions_can_be_reached),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(closing_drops_what_is_outstanding),
        cmocka_unit_test(closing_closes_every_file),
        cmocka_unit_test(bad_folders_are_named),
        cmocka_unit_test(the_default_folder_is_that_of_the_system),
        cmocka_unit_test(a_closed_folder_is_refused),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(a_limit_on_file_size_is_an_error),
        cmocka_unit_test(without_io_uring_reads_are_plain),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
