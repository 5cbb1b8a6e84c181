/* Rows of a batch: reordering, dropping and repeating sessions, and feeding them together.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "session/pass.h"

static mn_status check_index(const int32_t *index, size_t n_index, size_t n_rows) {
    for (size_t i = 0; i < n_index; i++) {
        if (index[i] < 0 || (size_t)index[i] >= n_rows) {
            MN_FAIL(MN_E_ARG, "index %zu is %d, allowed: 0 to %lld", i, index[i], (long long)n_rows - 1);
        }
    }
    return MN_OK;
}

mn_status mn_sessions_select(mn_session **rows, size_t n_rows, const int32_t *index, size_t n_index) {
    MN_TRY(check_index(index, n_index, n_rows));
    mn_session **next = mem_alloc(n_index + n_rows, sizeof *next);
    if (!next) return MN_E_NOMEM;
    mn_session **used = next + n_index; /* [n_rows]: those already assigned */
    mn_status status = MN_OK;
    for (size_t i = 0; status == MN_OK && i < n_index; i++) {
        mn_session **row = &used[index[i]];
        if (*row) {
            status = mn_session_fork(&next[i], *row);
        } else {
            next[i] = *row = rows[index[i]];
        }
    }
    if (status != MN_OK) { /* close the forks, keep the rows */
        for (size_t i = 0; i < n_index; i++) {
            if (next[i] && next[i] != rows[index[i]]) mn_session_close(&next[i]);
        }
    } else {
        for (size_t r = 0; r < n_rows; r++) {
            if (!used[r]) mn_session_close(&rows[r]);
            rows[r] = NULL;
        }
        if (n_index) memcpy(rows, next, n_index * sizeof *next);
    }
    mem_free(next);
    return status;
}

/* Each session once: one that is in two rows has got two tokens. */
static mn_status check_rows(const feed *feeds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const mn_session *row = feeds[i].session;
        if (row->model != feeds[0].session->model)
            MN_FAIL(MN_E_ARG, "row %zu is a session of another model than row 0", i);
        if (row->n_ids != feeds[i].before + 1)
            MN_FAIL(MN_E_ARG, "row %zu is the session of another row too; fork it", i);
    }
    return MN_OK;
}

/* When one row fails, the rows already fed are restored too. */
static void take_back(feed *f) {
    if (!f->is_done) {
        feed_undo(f);
        return;
    }
    f->session->n_ids = f->before;
    f->session->has_logits = false;
    session_go_back(f->session, (int64_t)f->before);
}

mn_status mn_sessions_step(mn_session *const *rows, size_t n_rows, const int32_t *ids) {
    feed *feeds = mem_alloc(n_rows, sizeof *feeds);
    feed **list = mem_alloc(n_rows, sizeof *list);
    mn_status status = feeds && list ? MN_OK : MN_E_NOMEM;
    size_t n = 0, n_done = 0;
    for (; status == MN_OK && n < n_rows; n += status == MN_OK) {
        feeds[n] = (feed){.session = rows[n], .ids = &ids[n], .n = 1};
        list[n] = &feeds[n];
        status = feed_begin(&feeds[n]);
    }
    if (status == MN_OK) status = check_rows(feeds, n);
    while (status == MN_OK && n_done < n) {
        status = feeds_pass(list, n, NULL);
        for (n_done = 0; n_done < n && feeds[n_done].is_done;) n_done++;
    }
    for (size_t i = n; status != MN_OK && i > 0; i--)
        take_back(&feeds[i - 1]); /* from the last on: a session may appear twice */
    mem_free(list);
    mem_free(feeds);
    return status;
}
