/* Which ranges of a file are taken: adjacent blocks from 0 to the end, each taken or free, no two free ones adjacent.
 *
 * Free blocks are in lists by the power of two of their size; a take searches the list of its own size, then splits the
 * first block of a larger one, so it is fast for any number of blocks. No file access, no lock.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_OFFLOAD_SPACE_H
#define MN_KV_OFFLOAD_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct offload_block {
    uint64_t offset, bytes; /* in the file */
    bool is_taken;
    size_t asked;           /* bytes of the owner, at most `bytes` */
    int64_t before, after;  /* neighbours in the file; 0: none */
    int64_t previous, next; /* in the list of free blocks, or of records without a block; 0: none */
} offload_block;

enum { FAR_SIZES = 64 };

/* A zeroed one is empty. */
typedef struct offload_space {
    offload_block *blocks; /* [0] is the ends of the chain: its `after` is the first block, its `before` the last */
    size_t n_blocks, capacity;
    int64_t spare;           /* records without a block */
    int64_t free[FAR_SIZES]; /* [i]: blocks of 2^i bytes to 2^(i+1) - 1 */
    uint64_t end;            /* of the last block */
} offload_space;

/* Makes sure that one take and one grow have the records they need. MN_E_NOMEM: nothing has changed. */
mn_status offload_space_reserve(offload_space *space);

/* A block of exactly `size` bytes (at least 1), taken, or 0: no free block is large enough. Needs a reserve before. */
int64_t offload_space_take(offload_space *space, uint64_t size);
void offload_space_return(offload_space *space, int64_t block); /* frees it and merges it with its free
                                                                 * neighbours */

/* By how much the space must grow for a take that failed. */
uint64_t offload_space_missing(const offload_space *space, uint64_t size);
void offload_space_grow(offload_space *space, uint64_t size); /* adds free bytes at the end. Call reserve
                                                               * first. */

void offload_space_empty(offload_space *space); /* no blocks, end 0; keeps the records' memory */
void offload_space_clear(offload_space *space); /* the same, and frees it */

#endif
