/* Storage of offloaded pages: a file and an I/O thread that reads ahead. Knows nothing about caches.
 *
 * A region is a range of the file that holds one page. Regions are written completely, read in slices and returned; the
 * space of a returned one is reused. Reads are requested ahead and awaited; the thread serves them in order of request,
 * the slices of one request concurrently through io_uring where the kernel supports it and the folder is on a disk,
 * else with plain reads. All of it goes through the kernel's page cache. The open file has no name, so a killed process
 * leaves nothing behind. Every function except open and close may be called from any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_OFFLOAD_H
#define MN_KV_OFFLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kv_offload kv_offload;

/* folder: of the file; NULL: $TMPDIR, else /var/tmp. MN_E_IO names folder and reason. A process with a limit on the
 * size of its files should ignore SIGXFSZ: then exceeding it is an ordinary error of kv_offload_take. */
mn_status kv_offload_open(kv_offload **out, const char *folder);
/* Every region must have been returned and no thread may be waiting. Pending requests are dropped; afterwards the
 * memory of their slices is not accessed. */
void kv_offload_close(kv_offload **offload);

/* A region of n_bytes; never 0, which means none. In the file its size is rounded up to 4096. MN_E_IO when the disk is
 * full: space is allocated here, so that a later write cannot fail for lack of it. Its contents are undefined until it
 * is written. */
mn_status kv_offload_take(int64_t *region, kv_offload *offload, size_t n_bytes);
/* When the last region is returned the file is truncated to nothing. */
void kv_offload_return(kv_offload *offload, int64_t region);

/* Both are synchronous. MN_E_ARG outside the region, MN_E_IO. */
mn_status kv_offload_write(kv_offload *offload, int64_t region, size_t offset, const void *data, size_t n_bytes);
mn_status kv_offload_read(kv_offload *offload, int64_t region, size_t offset, void *data, size_t n_bytes);

/* Slices to be read into the caller's memory. The caller keeps the slices, their memory, the ticket and the regions
 * until the wait. One request at a time per ticket; requests of several tickets are served in order. */
typedef struct kv_offload_slice {
    int64_t region;
    size_t offset, n_bytes;
    void *data;
} kv_offload_slice;

typedef struct kv_offload_ticket {
    const kv_offload_slice *slices;
    size_t n_slices;
    /* The following members are private to kv_offload. */
    struct kv_offload_ticket *next; /* tickets form a list, so any number of them may be pending */
    uint64_t number;
    const kv_offload_slice *failed; /* the slice that could not be read, or NULL */
    int error;                      /* reason */
    size_t got;                     /* bytes of that slice that were read */
} kv_offload_ticket;

/* Does not allocate and does not block on the disk. */
void kv_offload_request(kv_offload *offload, kv_offload_ticket *ticket);
/* MN_OK when all slices have been read (or nothing was requested). A failed read is reported here: MN_E_ARG outside a
 * region, MN_E_IO, also for a file that was truncated. The contents of the slices are then undefined. */
mn_status kv_offload_wait(kv_offload *offload, kv_offload_ticket *ticket);

uint64_t kv_offload_bytes(kv_offload *offload);      /* of regions that are taken, as requested */
uint64_t kv_offload_file_bytes(kv_offload *offload); /* of the file, including free space */
const char *kv_offload_engine(kv_offload *offload);  /* "io_uring" or "read" */

#endif
