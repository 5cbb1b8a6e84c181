/* The far home of pages: a file, an I/O thread that reads ahead, and nothing about caches.
 *
 * A region is a range of the file that holds one page. Regions are written whole, read in slices, shared by
 * count and returned. Reads are requested ahead and awaited; the thread serves them in order of request,
 * through io_uring where the kernel offers it, else with plain reads. The file has no name once it is open
 * (unlinked), so a killed process leaves nothing behind. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_FAR_H
#define MN_KV_FAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kv_far kv_far;

/* folder: where the file is made; NULL: $TMPDIR, else /var/tmp. MN_E_IO names folder and reason. budget:
 * bytes the file may grow to, 0: what the disk has. */
mn_status kv_far_open(kv_far **out, const char *folder, uint64_t budget);
void kv_far_close(kv_far **far); /* every region must have been returned */

/* A region of n_bytes with one reference. MN_E_FULL over budget; MN_E_IO when the disk has no room (the space
 * is allocated here, so that a later write does not fail for want of it). */
mn_status kv_far_take(int64_t *region, kv_far *far, size_t n_bytes);
void kv_far_share(kv_far *far, int64_t region);
void kv_far_return(kv_far *far, int64_t region);
mn_status kv_far_write(kv_far *far, int64_t region, size_t offset, const void *data, size_t n_bytes);
mn_status kv_far_read(kv_far *far, int64_t region, size_t offset, void *data, size_t n_bytes);

/* Slices to be read one after the other into memory of the caller, who keeps both until the wait. One request
 * at a time per ticket; requests of several tickets are served in order. */
typedef struct kv_far_slice {
    int64_t region;
    size_t offset, n_bytes;
    void *data;
} kv_far_slice;

typedef struct kv_far_ticket {
    const kv_far_slice *slices;
    size_t n_slices;
    uint64_t number; /* set by kv_far_request */
    mn_status status;
    char message[200];
} kv_far_ticket;

/* Does not allocate and does not block on the disk. */
void kv_far_request(kv_far *far, kv_far_ticket *ticket);
/* MN_OK when all slices are there; a failed read is an error here, with its message. A file cut short by
 * someone else: MN_E_IO. */
mn_status kv_far_wait(kv_far *far, kv_far_ticket *ticket);

uint64_t kv_far_bytes(kv_far *far);     /* of regions with a reference */
const char *kv_far_engine(kv_far *far); /* "io_uring" or "read" */

#endif
