/* Cache plans from texts, and entries that they change.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PLANS_H
#define TESTS_PLANS_H

#include "support/support.h"

#include "kv/plan.h"

/* A plan from texts; on failure `plan` is unchanged. */
mn_status plans_make(kv_plan *plan, const char *implementation, const char *config);

/* Exact entries [n] of two heads of `dim` numbers. */
void plans_entries(kv_spec *specs, int n, int dim);

#endif
