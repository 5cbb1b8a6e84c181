/* Runs code on a thread with a stack of a given size and measures how much of it was used.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SMALL_STACK_H
#define TESTS_SMALL_STACK_H

#include <stdbool.h>
#include <stddef.h>

/* Calls work(data) on a new thread whose stack has `size` bytes, above an unmapped page. Slow builds
 * (support/budget.h) have frames several times as large, so there the stack is eight times as large as requested. *used
 * (NULL: not needed) is the number of bytes that were touched. cmocka's assertions must not be called in there. False
 * when no such thread can be made. */
bool run_on_stack(size_t size, void (*work)(void *), void *data, size_t *used);

#endif
