/* Which ranges of a file are taken: blocks side by side from 0 to the end, each taken or free, no two free
 * ones adjacent.
 *
 * Free blocks stand in lists by the power of two of their size; a take looks through the list of its own
 * size, then cuts the first block of a larger one, so it is short work with any number of blocks. Memory
 * alone: no file, no lock.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_FAR_SPACE_H
#define MN_KV_FAR_SPACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct far_block {
    uint64_t offset, bytes; /* in the file */
    int64_t references;     /* 0: free */
    size_t asked;           /* bytes of the owner, at most `bytes` */
    int64_t before, after;  /* neighbours in the file; 0: none */
    int64_t previous, next; /* in the list of free blocks, or of records without a block; 0: none */
} far_block;

enum { FAR_SIZES = 64 };

/* A zeroed one is empty. */
typedef struct far_space {
    far_block
        *blocks; /* [0] is the ends of the chain: its `after` is the first block, its `before` the last */
    size_t n_blocks, capacity;
    int64_t spare;           /* records without a block */
    int64_t free[FAR_SIZES]; /* [i]: blocks of 2^i bytes to 2^(i+1) - 1 */
    uint64_t end;            /* of the last block */
} far_space;

/* Makes sure that one take and one grow find the records they need. MN_E_NOMEM: nothing has changed. */
mn_status far_space_reserve(far_space *space);

/* A block of exactly `size` bytes (at least 1) with one reference, or 0: no free block is large enough. Needs
 * a reserve before. */
int64_t far_space_take(far_space *space, uint64_t size);
void far_space_return(far_space *space, int64_t block); /* makes it free, joined with its free neighbours */

/* By how much the space has to grow for a take that found nothing. */
uint64_t far_space_missing(const far_space *space, uint64_t size);
void far_space_grow(far_space *space, uint64_t size); /* free bytes at the end. Needs a reserve before. */

void far_space_empty(far_space *space); /* no blocks, end 0; keeps the records' memory */
void far_space_clear(far_space *space); /* the same, and frees it */

#endif
