/* Three locks, none held while another one's holder waits for it: `growth` by whoever changes the file's
 * length, also while the disk works; `space` for a few instructions at the records of regions; `queue` for a
 * few at the chain of requests. So a request, and the thread that looks up where a region lies, never wait
 * for the disk behind a growing file. Order: growth, space.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/far.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "kv/far_space.h"
#include "kv/uring.h"

enum { UNIT = 4096, DEPTH = 128, MAX_READ = 1 << 30, ZEROS = 1 << 16 };
/* Reasons of a failed read besides errno. */
enum { CUT_SHORT = -1, OUTSIDE = -2 };

struct kv_far {
    char *folder;
    int fd; /* -1: none yet */
    uint64_t budget;
    uring ring; /* of the thread */
    atomic_bool has_ring;

    pthread_mutex_t growth;
    bool writes_zeros; /* the file system cannot allocate */

    pthread_mutex_t space_lock;
    far_space space;
    uint64_t used;    /* bytes asked for by regions with a reference */
    size_t n_regions; /* with a reference */

    pthread_mutex_t queue;
    pthread_cond_t requested, served;
    kv_far_ticket *first, *last;
    uint64_t n_requested, n_served;
    bool closing, has_thread;
    pthread_t thread;
};

/* ---- the file
 * ---------------------------------------------------------------------------------------------------- */

/* 0 or errno; *done counts the bytes. */
static int write_fully(int fd, const char *data, size_t n, uint64_t offset, size_t *done) {
    for (*done = 0; *done < n;) {
        ssize_t m = pwrite(fd, data + *done, n - *done, (off_t)(offset + *done));
        if (m < 0 && errno == EINTR) continue;
        if (m < 0) return errno;
        if (m == 0) return EIO;
        *done += (size_t)m;
    }
    return 0;
}

/* Reads on from *done; 0, errno or CUT_SHORT. */
static int read_fully(int fd, char *data, size_t n, uint64_t offset, size_t *done) {
    while (*done < n) {
        ssize_t m = pread(fd, data + *done, n - *done, (off_t)(offset + *done));
        if (m < 0 && errno == EINTR) continue;
        if (m < 0) return errno;
        if (m == 0) return CUT_SHORT;
        *done += (size_t)m;
    }
    return 0;
}

static int write_zeros(int fd, uint64_t offset, uint64_t size) {
    static const char zeros[ZEROS];
    while (size > 0) {
        size_t n = size < ZEROS ? (size_t)size : ZEROS, done;
        int error = write_fully(fd, zeros, n, offset, &done);
        if (error) return error;
        offset += n;
        size -= n;
    }
    return 0;
}

/* Allocates `size` bytes behind `end`, or leaves the file as long as it was. Under `growth`. */
static mn_status grow_file(kv_far *far, uint64_t end, uint64_t size) {
    int error = EOPNOTSUPP;
    while (!far->writes_zeros) {
        error = fallocate(far->fd, 0, (off_t)end, (off_t)size) == 0 ? 0 : errno;
        if (error != EINTR) break;
    }
    if (error == EOPNOTSUPP || error == ENOSYS) {
        far->writes_zeros = true;
        error = write_zeros(far->fd, end, size);
    }
    if (!error) return MN_OK;
    if (ftruncate(far->fd, (off_t)end) != 0) error = errno;
    MN_FAIL(MN_E_IO, "cannot make the cache file in '%s' longer, from %llu to %llu bytes: %s", far->folder,
            (unsigned long long)end, (unsigned long long)(end + size), strerror(error));
}

/* ---- regions
 * ----------------------------------------------------------------------------------------------------- */

/* A region from free room. *region is 0 when there is none: then *missing bytes behind *end would do. Both
 * are told from the same moment as the refusal, lest a region returned a little later be missed and the
 * budget seem exceeded. */
static mn_status take_free(int64_t *region, uint64_t *end, uint64_t *missing, kv_far *far, size_t n_bytes) {
    uint64_t size = (n_bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&far->space_lock);
    mn_status status = far_space_reserve(&far->space);
    *region = status == MN_OK ? far_space_take(&far->space, size) : 0;
    *end = far->space.end;
    *missing = far_space_missing(&far->space, size);
    if (*region) {
        far->space.blocks[*region].asked = n_bytes;
        far->used += n_bytes;
        far->n_regions++;
    }
    pthread_mutex_unlock(&far->space_lock);
    return status;
}

/* Adds free room at the end. Under `growth`, so that nobody else moves the end meanwhile. */
static mn_status grow(kv_far *far, uint64_t end, uint64_t size) {
    if (far->budget && (end > far->budget || size > far->budget - end)) {
        MN_FAIL(MN_E_FULL,
                "the cache file in '%s' would have to grow from %llu to %llu bytes; %llu are allowed",
                far->folder, (unsigned long long)end, (unsigned long long)(end + size),
                (unsigned long long)far->budget);
    }
    MN_TRY(grow_file(far, end, size));
    pthread_mutex_lock(&far->space_lock);
    mn_status status = far_space_reserve(&far->space);
    if (status == MN_OK) far_space_grow(&far->space, size);
    pthread_mutex_unlock(&far->space_lock);
    return status;
}

mn_status kv_far_take(int64_t *region, kv_far *far, size_t n_bytes) {
    uint64_t end, missing;
    *region = 0;
    if (n_bytes == 0 || n_bytes > INT64_MAX / 4) {
        MN_FAIL(MN_E_ARG, "a region of %zu bytes was asked for, allowed: 1 to %lld", n_bytes,
                (long long)(INT64_MAX / 4));
    }
    MN_TRY(take_free(region, &end, &missing, far, n_bytes));
    if (*region) return MN_OK;
    pthread_mutex_lock(&far->growth);
    /* Again and again, as the end may have moved, and as another thread may take what has just been added. */
    mn_status status = take_free(region, &end, &missing, far, n_bytes);
    while (status == MN_OK && !*region) {
        status = grow(far, end, missing);
        if (status == MN_OK) status = take_free(region, &end, &missing, far, n_bytes);
    }
    pthread_mutex_unlock(&far->growth);
    return status;
}

void kv_far_share(kv_far *far, int64_t region) {
    pthread_mutex_lock(&far->space_lock);
    far->space.blocks[region].references++;
    pthread_mutex_unlock(&far->space_lock);
}

/* With no region left the file gives everything back to the disk. */
static void release_file(kv_far *far) {
    pthread_mutex_lock(&far->growth);
    pthread_mutex_lock(&far->space_lock);
    bool is_empty = far->n_regions == 0;
    if (is_empty) far_space_empty(&far->space);
    pthread_mutex_unlock(&far->space_lock);
    if (is_empty) (void)!ftruncate(far->fd, 0); /* if it fails, the next growth finds the room allocated */
    pthread_mutex_unlock(&far->growth);
}

void kv_far_return(kv_far *far, int64_t region) {
    pthread_mutex_lock(&far->space_lock);
    far_block *block = &far->space.blocks[region];
    bool is_last = false;
    if (--block->references == 0) {
        far->used -= block->asked;
        far_space_return(&far->space, region);
        is_last = --far->n_regions == 0;
    }
    pthread_mutex_unlock(&far->space_lock);
    if (is_last) release_file(far);
}

/* Where those bytes of a region lie in the file; OUTSIDE when the region has none such, *region_bytes being
 * its size. */
static int locate(uint64_t *place, size_t *region_bytes, kv_far *far, int64_t region, size_t offset,
                  size_t n_bytes) {
    far_block block = {0};
    pthread_mutex_lock(&far->space_lock);
    if (region > 0 && (uint64_t)region < far->space.n_blocks) block = far->space.blocks[region];
    pthread_mutex_unlock(&far->space_lock);
    *place = block.offset + offset;
    *region_bytes = block.references > 0 ? block.asked : 0;
    return offset <= *region_bytes && n_bytes <= *region_bytes - offset ? 0 : OUTSIDE;
}

static mn_status outside(const kv_far *far, size_t offset, size_t n_bytes, size_t region_bytes) {
    return status_fail(MN_E_ARG,
                       "%zu bytes at %zu of a region of the cache file in '%s' were asked for, which has %zu",
                       n_bytes, offset, far->folder, region_bytes);
}

mn_status kv_far_write(kv_far *far, int64_t region, size_t offset, const void *data, size_t n_bytes) {
    uint64_t place;
    size_t region_bytes, done;
    if (locate(&place, &region_bytes, far, region, offset, n_bytes) != 0)
        return outside(far, offset, n_bytes, region_bytes);
    int error = write_fully(far->fd, data, n_bytes, place, &done);
    if (!error) return MN_OK;
    MN_FAIL(MN_E_IO, "cannot write %zu bytes at %llu of the cache file in '%s', %zu were written: %s",
            n_bytes, (unsigned long long)place, far->folder, done, strerror(error));
}

/* ---- reading
 * ----------------------------------------------------------------------------------------------------- */

/* Reads the rest of a slice of which *got bytes are there; 0 or why not. */
static int read_slice(kv_far *far, const kv_far_slice *slice, size_t *got) {
    uint64_t place;
    size_t region_bytes;
    if (locate(&place, &region_bytes, far, slice->region, slice->offset, slice->n_bytes) != 0) return OUTSIDE;
    return read_fully(far->fd, slice->data, slice->n_bytes, place, got);
}

static mn_status read_failure(kv_far *far, const kv_far_slice *slice, int error, size_t got) {
    uint64_t place;
    size_t region_bytes;
    int is_outside = locate(&place, &region_bytes, far, slice->region, slice->offset, slice->n_bytes);
    if (is_outside) return outside(far, slice->offset, slice->n_bytes, region_bytes);
    MN_FAIL(MN_E_IO, "cannot read %zu bytes at %llu of the cache file in '%s', %zu were there: %s",
            slice->n_bytes, (unsigned long long)place, far->folder, got,
            error == CUT_SHORT ? "the file has been cut short" : strerror(error));
}

mn_status kv_far_read(kv_far *far, int64_t region, size_t offset, void *data, size_t n_bytes) {
    kv_far_slice slice = {region, offset, n_bytes, data};
    size_t got = 0;
    int error = read_slice(far, &slice, &got);
    return error ? read_failure(far, &slice, error, got) : MN_OK;
}

/* Finishes a slice and notes in the ticket the first one that fails. */
static void finish_slice(kv_far *far, kv_far_ticket *ticket, size_t i, size_t got) {
    const kv_far_slice *slice = &ticket->slices[i];
    if (got == slice->n_bytes) return;
    int error = read_slice(far, slice, &got);
    if (!error || ticket->failed) return;
    ticket->failed = slice;
    ticket->error = error;
    ticket->got = got;
}

/* Takes the answers that are there; gives their number. A read that brought less, for whatever reason, is
 * finished as a plain one: that brings the rest, or tells the end of the file from an error. */
static size_t take_answers(kv_far *far, kv_far_ticket *ticket) {
    size_t n = 0;
    uint64_t i;
    for (int32_t result; uring_take(&far->ring, &i, &result); n++) {
        finish_slice(far, ticket, (size_t)i, result > 0 ? (size_t)result : 0);
    }
    return n;
}

/* Serves slices through the ring, the first ones at least: gives the number of those dealt with. */
static size_t serve_ring(kv_far *far, kv_far_ticket *ticket) {
    size_t next = 0, in_flight = 0, end = ticket->n_slices;
    while (next < end || in_flight > 0) {
        if (ticket->failed) end = next;
        for (; next < end && in_flight < DEPTH; next++) {
            const kv_far_slice *slice = &ticket->slices[next];
            uint64_t place;
            size_t region_bytes;
            int error = locate(&place, &region_bytes, far, slice->region, slice->offset, slice->n_bytes);
            if (error) break;
            size_t n = slice->n_bytes < MAX_READ ? slice->n_bytes : MAX_READ;
            uring_ask(&far->ring, far->fd, slice->data, (uint32_t)n, place, next);
            in_flight++;
        }
        if (next < end && in_flight < DEPTH)
            end = next; /* an impossible slice: what follows it goes the plain way */
        if (in_flight > 0 && uring_wait(&far->ring) != 0) {
            atomic_store(&far->has_ring, false);
            next -= far->ring.unsent;
            in_flight -= far->ring.unsent;
            while (in_flight > 0) {
                in_flight -= take_answers(far, ticket);
                sched_yield(); /* any call into the kernel lets it deliver answers */
            }
            return next;
        }
        in_flight -= take_answers(far, ticket);
    }
    return next;
}

static void serve(kv_far *far, kv_far_ticket *ticket) {
    size_t i = atomic_load(&far->has_ring) ? serve_ring(far, ticket) : 0;
    for (; i < ticket->n_slices && !ticket->failed; i++) finish_slice(far, ticket, i, 0);
}

static void *thread_main(void *arg) {
    kv_far *far = arg;
    pthread_mutex_lock(&far->queue);
    for (;;) {
        while (!far->first && !far->closing) pthread_cond_wait(&far->requested, &far->queue);
        if (far->closing) break;
        kv_far_ticket *ticket = far->first;
        far->first = ticket->next;
        uint64_t number = ticket->number;
        pthread_mutex_unlock(&far->queue);
        serve(far, ticket);
        pthread_mutex_lock(&far->queue);
        far->n_served = number;
        pthread_cond_broadcast(&far->served);
    }
    pthread_mutex_unlock(&far->queue);
    return NULL;
}

void kv_far_request(kv_far *far, kv_far_ticket *ticket) {
    ticket->next = NULL;
    ticket->failed = NULL;
    pthread_mutex_lock(&far->queue);
    ticket->number = ++far->n_requested;
    *(far->first ? &far->last->next : &far->first) = ticket;
    far->last = ticket;
    pthread_cond_signal(&far->requested);
    pthread_mutex_unlock(&far->queue);
}

mn_status kv_far_wait(kv_far *far, kv_far_ticket *ticket) {
    pthread_mutex_lock(&far->queue);
    while (far->n_served < ticket->number) pthread_cond_wait(&far->served, &far->queue);
    pthread_mutex_unlock(&far->queue);
    return ticket->failed ? read_failure(far, ticket->failed, ticket->error, ticket->got) : MN_OK;
}

/* ---- open and close
 * ------------------------------------------------------------------------------------------------ */

/* Signals of the program are for its own threads. */
static mn_status start_thread(kv_far *far) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&far->thread, NULL, thread_main, far);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    far->has_thread = error == 0;
    if (error) MN_FAIL(MN_E_NOMEM, "cannot start the thread that reads the cache file: %s", strerror(error));
    return MN_OK;
}

/* Files of tmpfs lie in memory, but the kernel hands every ring read of them to a thread of its own: plain
 * ones are twice as fast. */
static bool lies_in_memory(int fd) {
    struct statfs info;
    return fstatfs(fd, &info) == 0 && info.f_type == TMPFS_MAGIC;
}

mn_status kv_far_open(kv_far **out, const kv_far_options *options) {
    const char *folder = options->folder ? options->folder : file_scratch_folder();
    *out = NULL;
    kv_far *far = mem_alloc(1, sizeof *far);
    if (!far) return MN_E_NOMEM;
    far->fd = far->ring.fd = -1;
    far->budget = options->budget;
    far->writes_zeros = options->plain;
    pthread_mutex_init(&far->growth, NULL);
    pthread_mutex_init(&far->space_lock, NULL);
    pthread_mutex_init(&far->queue, NULL);
    pthread_cond_init(&far->requested, NULL);
    pthread_cond_init(&far->served, NULL);
    far->folder = mem_copy_text(folder, strlen(folder));
    mn_status status = far->folder ? file_open_unnamed(&far->fd, folder, options->plain) : MN_E_NOMEM;
    if (status == MN_OK && !options->plain && !lies_in_memory(far->fd)) {
        atomic_store(&far->has_ring, uring_open(&far->ring, DEPTH));
    }
    if (status == MN_OK) status = start_thread(far);
    if (status == MN_OK) {
        *out = far;
    } else {
        kv_far_close(&far);
    }
    return status;
}

void kv_far_close(kv_far **out) {
    kv_far *far = *out;
    if (!far) return;
    if (far->has_thread) {
        pthread_mutex_lock(&far->queue);
        far->closing = true;
        pthread_cond_signal(&far->requested);
        pthread_mutex_unlock(&far->queue);
        pthread_join(far->thread, NULL);
    }
    uring_close(&far->ring);
    if (far->fd >= 0) close(far->fd);
    far_space_clear(&far->space);
    mem_free(far->folder);
    pthread_cond_destroy(&far->served);
    pthread_cond_destroy(&far->requested);
    pthread_mutex_destroy(&far->queue);
    pthread_mutex_destroy(&far->space_lock);
    pthread_mutex_destroy(&far->growth);
    mem_free(far);
    *out = NULL;
}

static uint64_t read_locked(kv_far *far, const uint64_t *value) {
    pthread_mutex_lock(&far->space_lock);
    uint64_t copy = *value;
    pthread_mutex_unlock(&far->space_lock);
    return copy;
}

uint64_t kv_far_bytes(kv_far *far) {
    return read_locked(far, &far->used);
}

uint64_t kv_far_file_bytes(kv_far *far) {
    return read_locked(far, &far->space.end);
}

const char *kv_far_engine(kv_far *far) {
    return atomic_load(&far->has_ring) ? "io_uring" : "read";
}
