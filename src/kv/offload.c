/* Three locks: `growth` is held while the file's length changes, including disk time; `space` for a few instructions on
 * the records of regions; `queue` for a few on the list of requests. So a request, and the thread that looks up the
 * offset of a region, never wait for the disk while the file grows. Order: growth, space.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/offload.h"

#include <assert.h>
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
#include "kv/offload_space.h"
#include "kv/uring.h"

enum { UNIT = 4096, DEPTH = 128, MAX_READ = 1 << 30, ZEROS = 1 << 16 };
/* Reasons of a failed read besides errno. */
enum { CUT_SHORT = -1, OUTSIDE = -2 };

struct kv_offload {
    char *folder;
    int fd;     /* -1: none yet */
    uring ring; /* of the thread */
    atomic_bool has_ring;

    pthread_mutex_t growth;
    bool writes_zeros; /* the file system cannot allocate */

    pthread_mutex_t space_lock;
    offload_space space;
    uint64_t used;    /* requested bytes of regions with a reference */
    size_t n_regions; /* with a reference */

    pthread_mutex_t queue;
    pthread_cond_t requested, served;
    kv_offload_ticket *first, *last;
    uint64_t n_requested, n_served;
    bool closing, has_thread;
    pthread_t thread;
};

/* ---- the file ---- */

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

/* Allocates `size` bytes after `end`, or leaves the length of the file unchanged. Holding `growth`. */
static mn_status grow_file(kv_offload *offload, uint64_t end, uint64_t size) {
    int error = EOPNOTSUPP;
    while (!offload->writes_zeros) {
        error = fallocate(offload->fd, 0, (off_t)end, (off_t)size) == 0 ? 0 : errno;
        if (error != EINTR) break;
    }
    if (error == EOPNOTSUPP || error == ENOSYS) {
        offload->writes_zeros = true;
        error = write_zeros(offload->fd, end, size);
    }
    if (!error) return MN_OK;
    if (ftruncate(offload->fd, (off_t)end) != 0) error = errno;
    MN_FAIL(MN_E_IO, "cannot make the cache file in '%s' longer, from %llu to %llu bytes: %s", offload->folder,
            (unsigned long long)end, (unsigned long long)(end + size), strerror(error));
}

/* ---- regions ---- */

/* A region of free space. *region is 0 when there is none: then *missing bytes after *end would suffice. Both are read
 * under the same lock as the refusal: otherwise the file could grow although a region was just returned. */
static mn_status take_free(int64_t *region, uint64_t *end, uint64_t *missing, kv_offload *offload, size_t n_bytes) {
    uint64_t size = (n_bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&offload->space_lock);
    mn_status status = offload_space_reserve(&offload->space);
    *region = status == MN_OK ? offload_space_take(&offload->space, size) : 0;
    *end = offload->space.end;
    *missing = offload_space_missing(&offload->space, size);
    if (*region) {
        offload->space.blocks[*region].asked = n_bytes;
        offload->used += n_bytes;
        offload->n_regions++;
    }
    pthread_mutex_unlock(&offload->space_lock);
    return status;
}

/* Adds free space at the end. Holding `growth`, so that no other thread moves the end. */
static mn_status grow(kv_offload *offload, uint64_t end, uint64_t size) {
    MN_TRY(grow_file(offload, end, size));
    pthread_mutex_lock(&offload->space_lock);
    mn_status status = offload_space_reserve(&offload->space);
    if (status == MN_OK) offload_space_grow(&offload->space, size);
    pthread_mutex_unlock(&offload->space_lock);
    return status;
}

mn_status kv_offload_take(int64_t *region, kv_offload *offload, size_t n_bytes) {
    uint64_t end, missing;
    *region = 0;
    if (n_bytes == 0 || n_bytes > INT64_MAX / 4) {
        MN_FAIL(MN_E_ARG, "requested a region of %zu bytes, allowed: 1 to %lld", n_bytes, (long long)(INT64_MAX / 4));
    }
    MN_TRY(take_free(region, &end, &missing, offload, n_bytes));
    if (*region) return MN_OK;
    pthread_mutex_lock(&offload->growth);
    /* Repeats, as the end may have moved and another thread may take what was just added. */
    mn_status status = take_free(region, &end, &missing, offload, n_bytes);
    while (status == MN_OK && !*region) {
        status = grow(offload, end, missing);
        if (status == MN_OK) status = take_free(region, &end, &missing, offload, n_bytes);
    }
    pthread_mutex_unlock(&offload->growth);
    return status;
}

/* When no region is left, the file is truncated to nothing. */
static void release_file(kv_offload *offload) {
    pthread_mutex_lock(&offload->growth);
    pthread_mutex_lock(&offload->space_lock);
    bool is_empty = offload->n_regions == 0;
    if (is_empty) offload_space_empty(&offload->space);
    pthread_mutex_unlock(&offload->space_lock);
    if (is_empty)
        (void)!ftruncate(offload->fd, 0); /* if it fails, the space stays allocated for the next
                                           * growth */
    pthread_mutex_unlock(&offload->growth);
}

void kv_offload_return(kv_offload *offload, int64_t region) {
    pthread_mutex_lock(&offload->space_lock);
    assert(offload->space.blocks[region].is_taken);
    offload->used -= offload->space.blocks[region].asked;
    offload_space_return(&offload->space, region);
    bool is_last = --offload->n_regions == 0;
    pthread_mutex_unlock(&offload->space_lock);
    if (is_last) release_file(offload);
}

/* The file offset of those bytes of a region; OUTSIDE when they are not inside it, *region_bytes being its size. */
static int locate(uint64_t *place, size_t *region_bytes, kv_offload *offload, int64_t region, size_t offset,
                  size_t n_bytes) {
    offload_block block = {0};
    pthread_mutex_lock(&offload->space_lock);
    if (region > 0 && (uint64_t)region < offload->space.n_blocks) block = offload->space.blocks[region];
    pthread_mutex_unlock(&offload->space_lock);
    *place = block.offset + offset;
    *region_bytes = block.is_taken ? block.asked : 0;
    return offset <= *region_bytes && n_bytes <= *region_bytes - offset ? 0 : OUTSIDE;
}

static mn_status outside(const kv_offload *offload, size_t offset, size_t n_bytes, size_t region_bytes) {
    return status_fail(MN_E_ARG,
                       "requested %zu bytes at offset %zu of a region of the cache file in '%s', which has %zu bytes",
                       n_bytes, offset, offload->folder, region_bytes);
}

mn_status kv_offload_write(kv_offload *offload, int64_t region, size_t offset, const void *data, size_t n_bytes) {
    uint64_t place;
    size_t region_bytes, done;
    if (locate(&place, &region_bytes, offload, region, offset, n_bytes) != 0)
        return outside(offload, offset, n_bytes, region_bytes);
    int error = write_fully(offload->fd, data, n_bytes, place, &done);
    if (!error) return MN_OK;
    MN_FAIL(MN_E_IO, "cannot write %zu bytes at %llu of the cache file in '%s', %zu were written: %s", n_bytes,
            (unsigned long long)place, offload->folder, done, strerror(error));
}

/* ---- reading ---- */

/* Reads the rest of a slice of which *got bytes were read; 0 or the reason of the failure. */
static int read_slice(kv_offload *offload, const kv_offload_slice *slice, size_t *got) {
    uint64_t place;
    size_t region_bytes;
    if (locate(&place, &region_bytes, offload, slice->region, slice->offset, slice->n_bytes) != 0) return OUTSIDE;
    return read_fully(offload->fd, slice->data, slice->n_bytes, place, got);
}

static mn_status read_failure(kv_offload *offload, const kv_offload_slice *slice, int error, size_t got) {
    uint64_t place;
    size_t region_bytes;
    int is_outside = locate(&place, &region_bytes, offload, slice->region, slice->offset, slice->n_bytes);
    if (is_outside) return outside(offload, slice->offset, slice->n_bytes, region_bytes);
    MN_FAIL(MN_E_IO, "cannot read %zu bytes at %llu of the cache file in '%s', %zu were read: %s", slice->n_bytes,
            (unsigned long long)place, offload->folder, got,
            error == CUT_SHORT ? "the file was truncated" : strerror(error));
}

mn_status kv_offload_read(kv_offload *offload, int64_t region, size_t offset, void *data, size_t n_bytes) {
    kv_offload_slice slice = {region, offset, n_bytes, data};
    size_t got = 0;
    int error = read_slice(offload, &slice, &got);
    return error ? read_failure(offload, &slice, error, got) : MN_OK;
}

/* Finishes a slice and notes in the ticket the first one that fails. */
static void finish_slice(kv_offload *offload, kv_offload_ticket *ticket, size_t i, size_t got) {
    const kv_offload_slice *slice = &ticket->slices[i];
    if (got == slice->n_bytes) return;
    int error = read_slice(offload, slice, &got);
    if (!error || ticket->failed) return;
    ticket->failed = slice;
    ticket->error = error;
    ticket->got = got;
}

/* Takes the available completions and returns their number. A short read is finished by a plain one, which reads the
 * rest or distinguishes the end of the file from an error. */
static size_t take_answers(kv_offload *offload, kv_offload_ticket *ticket) {
    size_t n = 0;
    uint64_t i;
    for (int32_t result; uring_take(&offload->ring, &i, &result); n++) {
        finish_slice(offload, ticket, (size_t)i, result > 0 ? (size_t)result : 0);
    }
    return n;
}

/* Reads slices through the ring and returns how many were processed, from the first on. */
static size_t serve_ring(kv_offload *offload, kv_offload_ticket *ticket) {
    size_t next = 0, in_flight = 0, end = ticket->n_slices;
    while (next < end || in_flight > 0) {
        if (ticket->failed) end = next;
        for (; next < end && in_flight < DEPTH; next++) {
            const kv_offload_slice *slice = &ticket->slices[next];
            uint64_t place;
            size_t region_bytes;
            int error = locate(&place, &region_bytes, offload, slice->region, slice->offset, slice->n_bytes);
            if (error) break;
            size_t n = slice->n_bytes < MAX_READ ? slice->n_bytes : MAX_READ;
            uring_ask(&offload->ring, offload->fd, slice->data, (uint32_t)n, place, next);
            in_flight++;
        }
        if (next < end && in_flight < DEPTH) end = next; /* an invalid slice: those after it are read by plain reads */
        if (in_flight > 0 && uring_wait(&offload->ring) != 0) {
            atomic_store(&offload->has_ring, false);
            next -= offload->ring.unsent;
            in_flight -= offload->ring.unsent;
            while (in_flight > 0) {
                in_flight -= take_answers(offload, ticket);
                sched_yield(); /* any system call lets the kernel deliver completions */
            }
            return next;
        }
        in_flight -= take_answers(offload, ticket);
    }
    return next;
}

static void serve(kv_offload *offload, kv_offload_ticket *ticket) {
    size_t i = atomic_load(&offload->has_ring) ? serve_ring(offload, ticket) : 0;
    for (; i < ticket->n_slices && !ticket->failed; i++) finish_slice(offload, ticket, i, 0);
}

static void *thread_main(void *arg) {
    kv_offload *offload = arg;
    pthread_mutex_lock(&offload->queue);
    for (;;) {
        while (!offload->first && !offload->closing) pthread_cond_wait(&offload->requested, &offload->queue);
        if (offload->closing) break;
        kv_offload_ticket *ticket = offload->first;
        offload->first = ticket->next;
        uint64_t number = ticket->number;
        pthread_mutex_unlock(&offload->queue);
        serve(offload, ticket);
        pthread_mutex_lock(&offload->queue);
        offload->n_served = number;
        pthread_cond_broadcast(&offload->served);
    }
    pthread_mutex_unlock(&offload->queue);
    return NULL;
}

void kv_offload_request(kv_offload *offload, kv_offload_ticket *ticket) {
    ticket->next = NULL;
    ticket->failed = NULL;
    pthread_mutex_lock(&offload->queue);
    ticket->number = ++offload->n_requested;
    *(offload->first ? &offload->last->next : &offload->first) = ticket;
    offload->last = ticket;
    pthread_cond_signal(&offload->requested);
    pthread_mutex_unlock(&offload->queue);
}

mn_status kv_offload_wait(kv_offload *offload, kv_offload_ticket *ticket) {
    pthread_mutex_lock(&offload->queue);
    while (offload->n_served < ticket->number) pthread_cond_wait(&offload->served, &offload->queue);
    pthread_mutex_unlock(&offload->queue);
    return ticket->failed ? read_failure(offload, ticket->failed, ticket->error, ticket->got) : MN_OK;
}

/* ---- open and close ---- */

/* Signals are delivered to the program's own threads. */
static mn_status start_thread(kv_offload *offload) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&offload->thread, NULL, thread_main, offload);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    offload->has_thread = error == 0;
    if (error) MN_FAIL(MN_E_NOMEM, "cannot start the thread that reads the cache file: %s", strerror(error));
    return MN_OK;
}

/* On tmpfs the kernel passes every ring read to a kernel thread: plain reads are twice as fast. */
static bool lies_in_memory(int fd) {
    struct statfs info;
    return fstatfs(fd, &info) == 0 && info.f_type == TMPFS_MAGIC;
}

mn_status kv_offload_open(kv_offload **out, const char *folder) {
    if (!folder) folder = file_scratch_folder();
    *out = NULL;
    kv_offload *offload = mem_alloc(1, sizeof *offload);
    if (!offload) return MN_E_NOMEM;
    offload->fd = offload->ring.fd = -1;
    pthread_mutex_init(&offload->growth, NULL);
    pthread_mutex_init(&offload->space_lock, NULL);
    pthread_mutex_init(&offload->queue, NULL);
    pthread_cond_init(&offload->requested, NULL);
    pthread_cond_init(&offload->served, NULL);
    offload->folder = mem_copy_text(folder, strlen(folder));
    mn_status status = offload->folder ? file_open_unnamed(&offload->fd, folder) : MN_E_NOMEM;
    if (status == MN_OK && !lies_in_memory(offload->fd)) {
        atomic_store(&offload->has_ring, uring_open(&offload->ring, DEPTH));
    }
    if (status == MN_OK) status = start_thread(offload);
    if (status == MN_OK) {
        *out = offload;
    } else {
        kv_offload_close(&offload);
    }
    return status;
}

void kv_offload_close(kv_offload **out) {
    kv_offload *offload = *out;
    if (!offload) return;
    if (offload->has_thread) {
        pthread_mutex_lock(&offload->queue);
        offload->closing = true;
        pthread_cond_signal(&offload->requested);
        pthread_mutex_unlock(&offload->queue);
        pthread_join(offload->thread, NULL);
    }
    uring_close(&offload->ring);
    if (offload->fd >= 0) close(offload->fd);
    offload_space_clear(&offload->space);
    mem_free(offload->folder);
    pthread_cond_destroy(&offload->served);
    pthread_cond_destroy(&offload->requested);
    pthread_mutex_destroy(&offload->queue);
    pthread_mutex_destroy(&offload->space_lock);
    pthread_mutex_destroy(&offload->growth);
    mem_free(offload);
    *out = NULL;
}

static uint64_t read_locked(kv_offload *offload, const uint64_t *value) {
    pthread_mutex_lock(&offload->space_lock);
    uint64_t copy = *value;
    pthread_mutex_unlock(&offload->space_lock);
    return copy;
}

uint64_t kv_offload_bytes(kv_offload *offload) {
    return read_locked(offload, &offload->used);
}

uint64_t kv_offload_file_bytes(kv_offload *offload) {
    return read_locked(offload, &offload->space.end);
}

const char *kv_offload_engine(kv_offload *offload) {
    return atomic_load(&offload->has_ring) ? "io_uring" : "read";
}
