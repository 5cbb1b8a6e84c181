/* What a pass computes, as its blocks see it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_BATCH_H
#define MN_MODEL_BATCH_H

#include "model/network.h"

/* A pass: the new tokens of n_rows sequences, m in all, one after the other. */
typedef struct batch {
    network *net;
    const forward_row *rows;
    int n_rows, m;
} batch;

#endif
