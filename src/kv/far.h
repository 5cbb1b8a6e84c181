/* The far home of pages: a file, an I/O thread that reads ahead, and nothing about caches.
 *
 * A region is a range of the file that holds one page. Regions are written whole, read in slices, shared by
 * count and returned; the room of a returned one is used again. Reads are requested ahead and awaited; the
 * thread serves them in order of request, the slices of one request side by side through io_uring where the
 * kernel offers it and the folder is on a disk, else with plain reads. All of it goes through the kernel's
 * page cache. The file has no name once it is open, so a killed process leaves nothing behind. Every function
 * but open and close may be called from any thread. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_FAR_H
#define MN_KV_FAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kv_far kv_far;

typedef struct kv_far_options {
    const char *folder; /* where the file is made; NULL: $TMPDIR, else /var/tmp */
    uint64_t budget;    /* bytes the file may grow to; 0: what the disk has */
    bool plain; /* only what every system has: a named file that is unlinked, room made by writing, plain
                   reads */
} kv_far_options;

/* MN_E_IO names folder and reason. A process with a limit on the size of its files should ignore SIGXFSZ:
 * then the limit is an error of kv_far_take like any other. */
mn_status kv_far_open(kv_far **out, const kv_far_options *options);
/* Every region must have been returned and nobody may be waiting. Requests not yet served are dropped;
 * afterwards nothing touches the memory of their slices. */
void kv_far_close(kv_far **far);

/* A region of n_bytes with one reference; never 0, so that 0 may stand for none. In the file its size is
 * rounded up to 4096. MN_E_FULL over budget; MN_E_IO when the disk has no room (the space is allocated here,
 * so that a later write does not fail for want of it). What it holds before it is written is not defined. */
mn_status kv_far_take(int64_t *region, kv_far *far, size_t n_bytes);
void kv_far_share(kv_far *far, int64_t region);
/* Drops one reference. With the last one of all regions the file shrinks to nothing. */
void kv_far_return(kv_far *far, int64_t region);

/* Both are done when they return. MN_E_ARG outside the region, MN_E_IO. */
mn_status kv_far_write(kv_far *far, int64_t region, size_t offset, const void *data, size_t n_bytes);
mn_status kv_far_read(kv_far *far, int64_t region, size_t offset, void *data, size_t n_bytes);

/* Slices to be read into memory of the caller, who keeps both, the ticket, and a reference to each region
 * until the wait. One request at a time per ticket; requests of several tickets are served in order. */
typedef struct kv_far_slice {
    int64_t region;
    size_t offset, n_bytes;
    void *data;
} kv_far_slice;

typedef struct kv_far_ticket {
    const kv_far_slice *slices;
    size_t n_slices;
    /* What follows is kv_far's own. */
    struct kv_far_ticket *next; /* tickets wait in a chain, so any number of them may be outstanding */
    uint64_t number;
    const kv_far_slice *failed; /* the slice that could not be read, or NULL */
    int error;                  /* why */
    size_t got;                 /* bytes of that slice that were there */
} kv_far_ticket;

/* Does not allocate and does not block on the disk. */
void kv_far_request(kv_far *far, kv_far_ticket *ticket);
/* MN_OK when all slices are there (or nothing was ever requested); a failed read is an error here, with its
 * message: MN_E_ARG outside a region, MN_E_IO, also for a file cut short by someone else. What the slices
 * hold then is not defined. */
mn_status kv_far_wait(kv_far *far, kv_far_ticket *ticket);

uint64_t kv_far_bytes(kv_far *far);      /* of regions with a reference, as asked for */
uint64_t kv_far_file_bytes(kv_far *far); /* of the file, free room included */
const char *kv_far_engine(kv_far *far);  /* "io_uring" or "read" */

#endif
