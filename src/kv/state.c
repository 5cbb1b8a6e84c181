/* Groups of recurrent states. A step reads the newest state and writes the next one; commit makes that the newest and
 * keeps the last few as checkpoints, so that steps can be undone and forks share states.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "kv/group.h"

static int most_states(const kv_group *group) {
    return group->spec.checkpoints + 1;
}

mn_status state_open(kv_group *group, const kv_spec *spec) {
    *group = (kv_group){.spec = *spec, .page_tokens = 1};
    if (spec->state_bytes == 0 || spec->checkpoints < 0) {
        MN_FAIL(MN_E_UNSUPPORTED,
                "a state of %zu bytes with %d checkpoints, allowed: at least 1 byte and 0 checkpoints",
                spec->state_bytes, spec->checkpoints);
    }
    group->entry_bytes[PAGE_EXACT] = (spec->state_bytes + 63) / 64 * 64;
    group->states = mem_alloc((size_t)most_states(group), sizeof *group->states);
    return group->states ? MN_OK : MN_E_NOMEM;
}

static void drop_newest(kv_group *group, kv_pool *pool) {
    kv_pool_return(pool, group->states[--group->n_states].page);
}

void state_close(kv_group *group, kv_pool *pool) {
    while (group->n_states > 0) drop_newest(group, pool);
    mem_free(group->states);
    group->states = NULL;
}

void state_commit(kv_group *group, kv_pool *pool, int64_t n_tokens) {
    page_pile *next = &group->taken[PAGE_EXACT];
    if (next->n == 0) return;
    if (group->n_states == most_states(group)) {
        kv_pool_return(pool, group->states[0].page);
        group->n_states--;
        memmove(group->states, group->states + 1, (size_t)group->n_states * sizeof *group->states);
    }
    group->states[group->n_states].position = n_tokens;
    group->states[group->n_states++].page = next->pages[--next->n];
}

void state_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens) {
    group_return(group, pool);
    while (group->n_states > 0 && group->states[group->n_states - 1].position > n_tokens) drop_newest(group, pool);
}

int64_t state_reachable(const kv_group *group, int64_t n_keep) {
    for (int i = group->n_states; i-- > 0;) {
        if (group->states[i].position <= n_keep) return group->states[i].position;
    }
    return 0;
}

mn_status state_fork(kv_group *fork, const kv_group *group) {
    fork->states = mem_alloc((size_t)most_states(group), sizeof *fork->states);
    if (!fork->states) return MN_E_NOMEM;
    for (; fork->n_states < group->n_states; fork->n_states++) {
        fork->states[fork->n_states] = group->states[fork->n_states];
        kv_page_share(fork->states[fork->n_states].page);
    }
    return MN_OK;
}
