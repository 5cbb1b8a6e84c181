/* Reads of a file through io_uring (Linux 5.6 and later), several in flight, by one thread.
 *
 * The kernel's interface is two rings in shared memory, of submissions and completions (io_uring(7)). Only reads, and
 * only what offloading needs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_URING_H
#define MN_KV_URING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct io_uring_sqe;
struct io_uring_cqe;

typedef struct uring {
    int fd;
    char *rings; /* the mapping that both rings share */
    size_t rings_bytes;
    struct io_uring_sqe *asks;
    size_t asks_bytes;
    const struct io_uring_cqe *answers;
    unsigned *ask_tail, *ask_order, *answer_head, *answer_tail; /* in `rings` */
    unsigned ask_mask, answer_mask;
    unsigned unsent; /* queued and not yet submitted */
} uring;

/* For up to `depth` concurrent reads (a power of two). False: the kernel does not support it, or a system call filter
 * forbids it; tested by one round trip. */
bool uring_open(uring *out, unsigned depth);
void uring_close(uring *ring); /* accepts one whose open failed; no read may be in flight */

/* At most `depth` reads may be pending. */
void uring_ask(uring *ring, int file, void *data, uint32_t n_bytes, uint64_t offset, uint64_t tag);
/* Submits all queued reads and waits for at least one completion. 0 or an errno; then `unsent`, the latest of the
 * reads, will never be done, and only completions may still be taken. */
int uring_wait(uring *ring);
/* Takes a completion: result is the number of bytes read or a negative errno. False: none is available. */
bool uring_take(uring *ring, uint64_t *tag, int32_t *result);

#endif
