/* Checkpoints of any size that take no time to write: all weights are zero, and their bytes a hole of the file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ZERO_CHECKPOINT_H
#define TESTS_ZERO_CHECKPOINT_H

#include "tensor/dtype.h"

/* A file of these bytes and n_hole zeros behind them. */
void write_with_hole(const char *path, const void *head, size_t n_head, size_t n_hole);

/* The folder of a model with this config.json, its tensors stored as `type`. Valid until the next call, which writes
 * another one in its place. */
const char *zero_checkpoint(const char *config_text, dtype type);

#endif
