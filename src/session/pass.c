/* SPDX-License-Identifier: Apache-2.0 */
#include "session/pass.h"

#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "model/rope.h"

enum {
    MOST_ROWS = 64,    /* of a pass */
    SHORT_TOKENS = 32, /* pieces up to this size do not delay the others */
    SHORT_PROMPT = 2   /* nor do prompts, or ends of prompts, up to this size */
};

static mn_status check_ids(const mn_session *s, const int32_t *ids, size_t n) {
    if (n == 0) MN_FAIL(MN_E_ARG, "no token was given, at least one is needed");
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->model->net.config.vocab_size) {
            MN_FAIL(MN_E_ARG, "token %zu is %d, allowed: 0 to %lld", i, ids[i],
                    (long long)s->model->net.config.vocab_size - 1);
        }
    }
    return MN_OK;
}

int64_t session_angle_length(const mn_session *s, int64_t total) {
    int64_t window = kv_plan_window(&s->plan);
    return window > 0 ? min_i64(total, window) : total;
}

/* Drops cached keys that a text of `total` tokens cannot use: those of a cache-less session, and those rotated by
 * angles of another length. */
static void drop_unusable(mn_session *s, int64_t total) {
    int64_t regime = rope_regime(&s->model->net.config, session_angle_length(s, total));
    if (!s->plan.self.keeps || regime != s->regime) kv_truncate(s->cache, 0);
    s->regime = regime;
}

mn_status feed_begin(feed *f) {
    mn_session *s = f->session;
    int64_t limit = session_limit(s);
    MN_TRY(check_ids(s, f->ids, f->n));
    if (limit && (int64_t)(s->n_ids + f->n) > limit) {
        MN_FAIL(
            MN_E_FULL,
            s->plan.options.limit
                ? "the cache holds %zu tokens of at most %lld: no room for %zu more"
                : "the text has %zu tokens of the %lld that the model has learned positions for: no room for %zu more",
            s->n_ids, (long long)limit, f->n);
    }
    MN_TRY(session_make_room(s, s->n_ids + f->n));
    memcpy(s->ids + s->n_ids, f->ids, f->n * sizeof *f->ids);
    f->before = s->n_ids;
    f->had_logits = s->has_logits;
    f->is_done = f->has_failed = false;
    s->n_ids += f->n;
    s->has_logits = false;
    f->most = (int64_t)s->n_ids;
    drop_unusable(s, (int64_t)s->n_ids);
    kv_call_begin(s->cache);
    return MN_OK;
}

void feed_undo(feed *f) {
    if (f->is_done) return;
    f->session->n_ids = f->before;
    f->session->has_logits = f->had_logits;
    session_go_back(f->session, (int64_t)f->before);
}

static int64_t tokens_left(const feed *f) {
    return (int64_t)f->session->n_ids - kv_length(f->session->cache);
}

int64_t feed_length(const feed *f) {
    return max_i64((int64_t)f->n, tokens_left(f));
}

bool feed_is_long(const feed *f) {
    return tokens_left(f) > (f->is_prompt ? SHORT_PROMPT : SHORT_TOKENS);
}

/* End of the piece of at most `most` tokens that begins at `position`: pieces end at multiples of the chunk size, so a
 * prompt is cut at page edges wherever it begins, and where tokens are to be quantized before the next one is computed.
 */
static int64_t piece_end(const feed *f, int64_t position, int64_t most) {
    const mn_session *s = f->session;
    int64_t next = (position / s->prefill_chunk + 1) * s->prefill_chunk, before = (int64_t)f->before;
    int64_t end = min_i64(min_i64(next, kv_step_limit(s->cache, position)), (int64_t)s->n_ids);
    end = min_i64(end, position + min_i64(f->most, most));
    if (position < f->pause) end = min_i64(end, f->pause);
    /* Tokens that are recomputed need no logits. */
    bool wants_all = f->logits || f->states;
    return wants_all && position < before && end > before ? before : end;
}

static forward_row row_of(const feed *f, int64_t most) {
    mn_session *s = f->session;
    int64_t position = kv_length(s->cache), end = piece_end(f, position, most), total = (int64_t)s->n_ids;
    forward_row row = {.cache = s->cache,
                       .ids = s->ids + position,
                       .n = (int)(end - position),
                       .total_length = session_angle_length(s, total),
                       .calibrator = s->calibrator};
    if (position >= (int64_t)f->before) {
        size_t done = (size_t)position - f->before;
        if (f->logits) {
            row.want = WANT_ALL;
            row.logits = f->logits + done * (size_t)s->model->net.config.vocab_size;
        }
        if (f->states) row.states = f->states + done * (size_t)s->model->net.config.hidden_size;
    }
    if (end == total && !f->logits && !f->skips_logits) {
        row.want = WANT_LAST;
        row.logits = s->logits;
    }
    if (end == total && f->n_exits) {
        row.exits = f->exits;
        row.n_exits = f->n_exits;
        row.exit_logits = f->exit_logits;
    }
    kv_call_ends(s->cache, end == total);
    return row;
}

/* The model's feeds of the next pass, at most `most` from *at on, and their rows. */
static int gather(const model_core *model, feed *const *feeds, size_t n, size_t *at, int most, pass_limit *limit,
                  int64_t *n_long, feed **chosen, forward_row *rows) {
    int count = 0;
    for (; *at < n && count < most; ++*at) {
        feed *f = feeds[*at];
        if (f->is_done || f->session->model != model) continue;
        bool is_limited = limit && feed_is_long(f);
        if (is_limited && limit->n_long >= limit->most_long) continue;
        rows[count] = row_of(f, is_limited ? limit->most_long - limit->n_long : INT64_MAX / 2);
        bool is_long = is_limited || rows[count].n > SHORT_TOKENS;
        if (is_long && *n_long > 0 && *n_long + rows[count].n > f->session->prefill_chunk) continue;
        if (is_long) *n_long += rows[count].n;
        if (is_limited) limit->n_long += rows[count].n;
        chosen[count++] = f;
    }
    return count;
}

/* The model's sessions among the feeds', then those that are not fed but have pages of theirs: up to 2 * n; how
 * many. */
static size_t list_sessions(const model_core *model, feed *const *feeds, size_t n, mn_session **sessions) {
    size_t n_sessions = 0;
    for (size_t i = 0; i < n; i++) {
        if (feeds[i]->session->model == model) sessions[n_sessions++] = feeds[i]->session;
    }
    size_t n_fed = n_sessions;
    for (size_t i = 0; i < n; i++) {
        mn_session *sharer = feeds[i]->shares_pages_with;
        bool is_new = sharer && sharer->model == model;
        for (size_t k = n_fed; is_new && k < n_sessions; k++) is_new = sessions[k] != sharer;
        if (is_new) sessions[n_sessions++] = sharer;
    }
    return n_sessions;
}

/* Out of memory: shortens a long piece; if none is long, makes the caches of one session and of those that share pages
 * with it smaller. MN_OK: try again. */
static mn_status apply_on_oom(feed *const *feeds, size_t n, feed *const *chosen, const forward_row *rows, int n_rows) {
    for (int i = 0; i < n_rows; i++) {
        if (rows[i].n <= chosen[i]->session->plan.options.page_tokens) continue;
        chosen[i]->most = rows[i].n / 2;
        return MN_OK;
    }
    mn_session **sessions = mem_alloc(2 * n, sizeof *sessions);
    size_t n_sessions = sessions ? list_sessions(chosen[0]->session->model, feeds, n, sessions) : 0;
    mn_status status = MN_E_NOMEM;
    bool has_policy = n_sessions == 0;
    for (size_t i = 0; i < n_sessions && status != MN_OK; i++) {
        has_policy = has_policy || sessions[i]->on_oom != OOM_FAIL;
        status = session_apply_on_oom(sessions + i, n_sessions - i);
    }
    if (status != MN_OK && !has_policy) status = session_name_on_oom(sessions[0]);
    for (int i = 0; status == MN_OK && i < n_rows; i++) chosen[i]->most = (int64_t)chosen[i]->session->n_ids;
    mem_free(sessions);
    return status;
}

static void unstage(feed *const *feeds, size_t n) {
    for (size_t i = 0; i < n; i++) kv_unstage(feeds[i]->session->cache);
}

static void finish(feed *f) {
    mn_session *s = f->session;
    size_t vocab = (size_t)s->model->net.config.vocab_size;
    if (f->logits) memcpy(s->logits, f->logits + (f->n - 1) * vocab, vocab * sizeof *s->logits);
    s->has_logits = !f->skips_logits;
    f->is_done = true;
    if (!s->plan.self.keeps) session_drop_pages(s);
}

/* Whether drafts are computed, other than long texts that they continue. */
static bool has_short_drafts(feed *const *feeds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (feeds[i]->is_draft && !feeds[i]->is_done && tokens_left(feeds[i]) <= SHORT_TOKENS) return true;
    }
    return false;
}

static bool waits_for_drafts(const model_core *model, feed *const *feeds, size_t n) {
    size_t i = 0;
    while (i < n && (feeds[i]->is_done || feeds[i]->session->model != model || feeds[i]->waits_for_drafts)) i++;
    return i == n;
}

/* The pass of one model over its feeds. */
static mn_status pass_of(model_core *model, feed *const *feeds, size_t n, pass_limit *limit) {
    feed *chosen[MOST_ROWS];
    forward_row rows[MOST_ROWS];
    int64_t n_long = 0;
    int most = MOST_ROWS;
    for (size_t at = 0; at < n;) {
        size_t begin = at;
        int64_t long_before = n_long, limited_before = limit ? limit->n_long : 0;
        int count = gather(model, feeds, n, &at, most, limit, &n_long, chosen, rows);
        if (count == 0) continue;
        for (int i = 0; i < count; i++) {
            if (!atomic_exchange(&chosen[i]->session->cancelled, false)) continue;
            chosen[i]->has_failed = true;
            MN_FAIL(MN_E_CANCELLED, "cancelled");
        }
        mn_status status = model_forward(model, rows, count);
        if (status == MN_E_NOMEM) {
            status = apply_on_oom(feeds, n, chosen, rows, count);
            if (status != MN_OK && most > 1) {
                most = count > 1 ? count / 2 : 1;
                unstage(feeds, n);
                status = MN_OK;
            }
            at = begin; /* the pass is planned again */
            n_long = long_before;
            if (limit) limit->n_long = limited_before;
            if (status == MN_OK) continue;
        }
        if (status != MN_OK) {
            for (int i = 0; i < count; i++) chosen[i]->has_failed = true;
            return status;
        }
        if (most < MOST_ROWS) unstage(chosen, (size_t)count);
        for (int i = 0; i < count; i++) {
            if (kv_length(chosen[i]->session->cache) == (int64_t)chosen[i]->session->n_ids) finish(chosen[i]);
        }
    }
    return MN_OK;
}

mn_status feeds_pass(feed *const *feeds, size_t n, pass_limit *limit) {
    if (limit) limit->n_long = 0;
    bool drafts = has_short_drafts(feeds, n);
    for (size_t i = 0; i < n; i++) {
        model_core *model = feeds[i]->session->model;
        size_t first = 0; /* feed of this model */
        while (feeds[first]->session->model != model) first++;
        if (first < i || (drafts && waits_for_drafts(model, feeds, n))) continue;
        MN_TRY(pass_of(model, feeds, n, limit));
    }
    return MN_OK;
}

mn_status feed_run(feed *f) {
    MN_TRY(feed_begin(f));
    mn_status status = MN_OK;
    while (status == MN_OK && !f->is_done) status = feeds_pass(&f, 1, NULL);
    feed_undo(f);
    return status;
}

mn_status feed_sync(feed *f, mn_session *s, const int32_t *ids, size_t n, size_t keep, size_t *n_reused) {
    MN_TRY(check_ids(s, ids, n));
    size_t common = 0;
    *f = (feed){.session = s};
    while (common < n && common < s->n_ids && s->ids[common] == ids[common]) common++;
    if (common == n && s->n_ids == n && s->has_logits && keep >= n) {
        f->is_done = true;
        if (n_reused) *n_reused = n;
        return MN_OK;
    }
    if (common == n) common = n - 1; /* the last token's logits are needed */
    if (common > keep) common = keep;
    if (common < s->n_ids) s->has_logits = false;
    s->n_ids = common;
    session_go_back(s, (int64_t)common);
    drop_unusable(s, (int64_t)n);
    f->ids = ids + common;
    f->n = n - common;
    if (n_reused) *n_reused = (size_t)kv_length(s->cache);
    return MN_OK;
}

mn_status mn_session_step(mn_session *s, const int32_t *ids, size_t n, float *all_logits) {
    feed f = {.session = s, .ids = ids, .n = n, .logits = all_logits};
    return feed_run(&f);
}

mn_status mn_session_sync(mn_session *s, const int32_t *ids, size_t n, size_t *n_reused) {
    feed f;
    size_t reused = 0;
    MN_TRY(feed_sync(&f, s, ids, n, n, &reused));
    if (!f.is_done) MN_TRY(feed_run(&f));
    if (n_reused) *n_reused = reused;
    return MN_OK;
}

/* ---- planning ---- */

int64_t pass_texts(const mn_session *s, int64_t n_tokens, int64_t n) {
    const int64_t piece = min_i64(n_tokens, s->prefill_chunk);
    return min_i64(n, piece <= SHORT_TOKENS ? MOST_ROWS : s->prefill_chunk / piece);
}

static mn_status plan_text(size_t *n_bytes, const kv_spec *specs, int n, const kv_options *options, kv_run run,
                           int64_t n_tokens) {
    kv_run_bytes pages;
    run.prompt = n_tokens;
    run.own = 0;
    MN_TRY(kv_plan_run(&pages, specs, n, options, &run));
    *n_bytes = pages.prompt;
    return MN_OK;
}

/* Without a cache each row computes its whole text in each step, of `first` to `last` tokens, and holds no pages
 * afterwards. A short end of a long text is computed beside the first piece of the next one. */
static mn_status plan_texts(size_t *most, const mn_session *s, const kv_spec *specs, int n, kv_run run, int64_t first,
                            int64_t last) {
    const int64_t chunk = run.chunk, rows = run.rows, short_end = last / chunk * chunk + SHORT_TOKENS;
    const int64_t lengths[] = {first, last, SHORT_TOKENS, min_i64(short_end, last)};
    run.rows = 1;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t text = 0, next = 0;
        if (lengths[i] < first || lengths[i] > last) continue;
        MN_TRY(plan_text(&text, specs, n, &s->plan.options, run, lengths[i]));
        const bool ends_short = lengths[i] > chunk && lengths[i] % chunk > 0 && lengths[i] % chunk <= SHORT_TOKENS;
        if (ends_short) MN_TRY(plan_text(&next, specs, n, &s->plan.options, run, chunk));
        if (!size_mul(text, (size_t)pass_texts(s, lengths[i], rows), &text) || !size_add(text, next, &text))
            text = SIZE_MAX;
        if (text > *most) *most = text;
    }
    return MN_OK;
}

mn_status session_plan_run(kv_run_bytes *out, const mn_session *s, const kv_spec *specs, int n, int64_t prompt,
                           int64_t own, int64_t rows) {
    const model_config *encoder = s->model->net.config.encoder;
    const kv_run run = {.prompt = prompt,
                        .own = own,
                        .cross = encoder ? encoder->max_position_embeddings : 0,
                        .rows = rows,
                        .chunk = s->prefill_chunk};
    kv_run alone = run;
    if (s->plan.self.keeps || rows == 1) return kv_plan_run(out, specs, n, &s->plan.options, &run);
    alone.rows = 1;
    alone.own = 0;
    MN_TRY(kv_plan_run(out, specs, n, &s->plan.options, &alone));
    return own > 0 ? plan_texts(&out->rows, s, specs, n, run, prompt + 1, prompt + own) : MN_OK;
}
