/* Rows of a batch: each gives the result of a single run, long prompts are computed in chunks between the tokens of
 * other rows, rows that end release their pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include "session/session.h"
#include "support/strategies.h"

enum { N_ROWS = 5, MOST_PROMPT = 400, N_NEW = 24, CHUNK = 64 };

static const size_t lengths[N_ROWS] = {3, 390, 40, 1, 171};

typedef struct batch {
    mn_model *model;
    mn_generation_config *config;
    int32_t ids[N_ROWS][MOST_PROMPT];
    size_t vocab;
    mn_batch_row rows[N_ROWS];
} batch;

static void set(mn_generation_config *config, const char *name, const char *value) {
    assert_ok(mn_generation_config_set(config, name, value));
}

static void open_batch(batch *b, const char *model, const char *form, int threads) {
    uint64_t seed = 5;
    *b = (batch){.model = engine_model(model, form, "auto", threads)};
    b->vocab = (size_t)engine_vocab(b->model);
    assert_ok(mn_generation_config_open(&b->config, b->model));
    set(b->config, "max_new_tokens", "24");
    set(b->config, "ignore_eos", "true");
    for (size_t r = 0; r < N_ROWS; r++) {
        engine_ids(&seed, b->ids[r], lengths[r], (int32_t)b->vocab);
        b->rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = b->ids[r], .n_prompt = lengths[r]};
    }
}

static void close_batch(batch *b) {
    mn_generation_config_close(&b->config);
    mn_model_close(&b->model);
}

/* Compares each row with a single run, logits included. */
static void check_rows(const batch *b, engine_cache cache, const mn_generation *got) {
    mn_cache_options options = engine_cache_options(cache);
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.keep_logits = true;
    assert_int_equal(got->n_sequences, N_ROWS);
    for (size_t r = 0; r < N_ROWS; r++) {
        mn_session *session = NULL;
        mn_generation *alone = NULL;
        assert_ok(mn_session_open(&session, b->model, &options));
        assert_ok(mn_generate(session, b->ids[r], lengths[r], b->config, &how, &alone));
        const mn_sequence *a = alone->sequences[0], *s = got->sequences[r];
        assert_int_equal(s->row, r);
        assert_int_equal(s->n_ids, a->n_ids);
        assert_memory_equal(s->ids, a->ids, a->n_ids * sizeof *a->ids);
        engine_same_bits(s->logits, a->logits, a->n_ids, b->vocab, "row %zu of a batch, %s", r, cache.implementation);
        mn_generation_close(&alone);
        mn_session_close(&session);
    }
}

static const engine_cache caches[] = {
    {.implementation = "dynamic", .page_tokens = 16, .prefill_chunk = CHUNK},
    {.implementation = "static", .page_tokens = 16, .prefill_chunk = CHUNK},
    {.implementation = "none", .page_tokens = 16, .prefill_chunk = CHUNK},
    {.implementation = "quantized", .page_tokens = 16, .prefill_chunk = CHUNK},
    {.implementation = "quantized",
     .page_tokens = 16,
     .prefill_chunk = CHUNK,
     .config = "backend=quanto,residual_length=8"},
    {.implementation = "sink",
     .page_tokens = 16,
     .prefill_chunk = CHUNK,
     .config = "window_length=48,num_sink_tokens=4"},
    {.implementation = "offloaded", .page_tokens = 16, .prefill_chunk = CHUNK},
};

enum {
    N_CACHES = sizeof caches / sizeof caches[0],
    ANY_FAMILY = 3 /* the first caches, which models with states support too */
};

static void rows_equal_single_runs(void **state) {
    (void)state;
    static const struct {
        const char *model, *compute;
        size_t n_caches;
    } cases[] = {
        {"golden/llama-untied-bias", "f32", N_CACHES}, {"golden/llama-untied-bias", "int8", N_CACHES},
        {"golden/mistral-window", "f32", N_CACHES},    {"golden/mistral-window", "int8", N_CACHES},
        {"golden/mixtral", "f32", ANY_FAMILY},         {"golden/mixtral", "bf16", ANY_FAMILY},
        {"golden/jamba", "f32", ANY_FAMILY},           {"golden/mamba", "f32", ANY_FAMILY},
        {"golden/mamba", "bf16", ANY_FAMILY},
    };
    for (size_t m = 0; m < sizeof cases / sizeof cases[0]; m++) {
        if (!test_samples((int)m, 2)) continue;
        batch b;
        open_batch(&b, cases[m].model, cases[m].compute, engine_threads());
        for (size_t c = 0; c < cases[m].n_caches; c++) {
            if (strategy_is_brief() && (m + c) % 5) continue;
            mn_cache_options options = engine_cache_options(caches[c]);
            mn_generate_options how;
            mn_generate_options_init(&how, sizeof how);
            mn_generation *generation = NULL;
            how.keep_logits = true;
            assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, &how, &generation));
            check_rows(&b, caches[c], generation);
            mn_generation_close(&generation);
        }
        close_batch(&b);
    }
}

/* ---- scheduling ---- */

typedef struct order {
    size_t n_of_row[N_ROWS];
    size_t before_end; /* tokens of the shortest row when the last prompt was done */
    size_t total, done;
} order;

static bool note_token(void *user, const mn_token_event *event) {
    order *o = user;
    o->n_of_row[event->row] += event->id >= 0;
    return true;
}

static void note_prefill(void *user, size_t done, size_t total) {
    order *o = user;
    assert_true(done > o->done && done <= total);
    o->done = done;
    o->total = total;
    if (done == total) o->before_end = o->n_of_row[0];
}

/* The short row generates while the long prompts are computed in chunks of 64 a pass: six of the prompt of 390, its
 * last 6 tokens together with the prompt of 40, three of the prompt of 171. The row of 3 tokens chooses a token after
 * each of the first nine passes. */
static void long_prompts_do_not_block_other_rows(void **state) {
    (void)state;
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    mn_cache_options options = engine_cache_options(caches[0]);
    order o = {.total = 0};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    mn_generation *generation = NULL;
    how.on_token = note_token;
    how.on_prefill = note_prefill;
    how.user = &o;
    assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, &how, &generation));
    assert_int_equal(o.total, 3 + 390 + 40 + 1 + 171);
    assert_int_equal(o.done, o.total);
    assert_int_equal(o.before_end, 9);
    for (int r = 0; r < N_ROWS; r++) assert_int_equal(o.n_of_row[r], N_NEW);
    mn_generation_close(&generation);
    close_batch(&b);
}

/* ---- rows that end ---- */

typedef struct held {
    const mn_model *model;
    size_t least; /* bytes of all caches after the long row has ended */
    size_t most;
    size_t n_short;
} held;

static bool note_bytes(void *user, const mn_token_event *event) {
    held *h = user;
    size_t used = kv_pool_used(h->model->core->pool);
    if (used > h->most) h->most = used;
    if (event->row == 0 && event->id >= 0 && ++h->n_short == N_NEW) h->least = used;
    return true;
}

/* A row of 390 tokens that ends after two new ones releases its pages while a short row continues. */
static void rows_that_end_release_their_pages(void **state) {
    (void)state;
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    mn_generation_config *brief = NULL;
    assert_ok(mn_generation_config_open(&brief, b.model));
    set(brief, "max_new_tokens", "2");
    mn_batch_row rows[2] = {b.rows[0], b.rows[1]};
    rows[1].config = brief;
    mn_cache_options options = engine_cache_options(caches[0]);
    held h = {.model = b.model};
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    mn_generation *generation = NULL;
    how.on_token = note_bytes;
    how.user = &h;
    assert_ok(mn_generate_batch(b.model, &options, rows, 2, b.config, &how, &generation));
    assert_true(generation->sequences[1]->n_ids <= 2);
    if (!(h.least * 5 < h.most)) fail_msg("%zu bytes at the end, %zu at most", h.least, h.most);
    mn_generation_close(&generation);
    assert_int_equal(kv_pool_used(b.model->core->pool), 0);
    mn_generation_config_close(&brief);
    close_batch(&b);
}

/* ---- batches that are cancelled ---- */

typedef struct ender {
    int row, n; /* the event of this row at which the batch ends */
} ender;

static bool end_batch(void *user, const mn_token_event *event) {
    ender *e = user;
    return event->row != e->row || --e->n > 0;
}

/* What a callback returns for any row ends all of them, with the tokens until then. */
static void any_row_may_cancel_the_batch(void **state) {
    (void)state;
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    mn_cache_options options = engine_cache_options(caches[0]);
    mn_generation *whole = NULL;
    assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, NULL, &whole));
    for (int row = 0; row < N_ROWS; row++) {
        for (int n = 1; n < 6; n += 2) {
            ender e = {.row = row, .n = n};
            mn_generation *got = NULL;
            mn_generate_options how;
            mn_generate_options_init(&how, sizeof how);
            how.on_token = end_batch;
            how.user = &e;
            assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, &how, &got));
            assert_int_equal(got->n_sequences, N_ROWS);
            assert_int_equal(got->sequences[row]->n_ids, n);
            for (int r = 0; r < N_ROWS; r++) {
                const mn_sequence *s = got->sequences[r];
                assert_string_equal(s->finish_reason, s->n_ids == N_NEW ? "length" : "cancelled");
                assert_memory_equal(s->ids, whole->sequences[r]->ids, s->n_ids * sizeof *s->ids);
            }
            mn_generation_close(&got);
        }
    }
    mn_generation_close(&whole);
    close_batch(&b);
}

typedef struct aborter {
    int n_calls, at; /* the call that ends the generation */
    size_t done, total;
} aborter;

static bool abort_at(void *user) {
    aborter *a = user;
    return ++a->n_calls >= a->at;
}

static void note_done(void *user, size_t done, size_t total) {
    aborter *a = user;
    a->done = done;
    a->total = total;
}

/* Ends the batch while its prompts are computed too. */
static void a_batch_is_aborted_before_any_pass(void **state) {
    (void)state;
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    mn_cache_options options = engine_cache_options(caches[0]);
    mn_generation *whole = NULL;
    assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, NULL, &whole));
    size_t before = 0;
    for (int pass = 1; pass < 16; pass++) {
        /* Every row that is left is asked before a pass; in these passes all are. */
        aborter a = {.at = (pass - 1) * N_ROWS + 1};
        mn_generation *got = NULL;
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.abort_callback = abort_at;
        how.on_prefill = note_done;
        how.user = &a;
        assert_ok(mn_generate_batch(b.model, &options, b.rows, N_ROWS, b.config, &how, &got));
        assert_true(a.n_calls >= a.at && a.n_calls < a.at + N_ROWS);
        assert_true(pass == 1 ? a.done == 0 : a.done > before || before == a.total);
        before = a.done;
        for (int r = 0; r < N_ROWS; r++) {
            const mn_sequence *s = got->sequences[r];
            assert_string_equal(s->finish_reason, "cancelled");
            assert_true(s->n_ids < (size_t)pass);
            assert_memory_equal(s->ids, whole->sequences[r]->ids, s->n_ids * sizeof *s->ids);
        }
        mn_generation_close(&got);
    }
    mn_generation_close(&whole);
    assert_int_equal(kv_pool_used(b.model->core->pool), 0);
    close_batch(&b);
}

/* ---- many sequences of one prompt ---- */

static size_t prefilled;
static void count_prefill(void *user, size_t done, size_t total) {
    (void)user;
    (void)done;
    prefilled = total;
}

/* The prompt is computed once; its sequences differ from each other and do not depend on other rows or the number of
 * threads. */
static void sequences_of_a_row_share_the_prompt(void **state) {
    (void)state;
    int32_t wanted[4][N_NEW];
    for (int threads = 1; threads <= 2; threads++) {
        for (int with_others = 0; with_others < 2; with_others++) {
            batch b;
            open_batch(&b, "golden/llama", "f32", threads);
            set(b.config, "do_sample", "true");
            set(b.config, "num_return_sequences", "4");
            set(b.config, "seed", "11");
            mn_cache_options options = engine_cache_options(caches[0]);
            mn_generate_options how;
            mn_generate_options_init(&how, sizeof how);
            mn_generation *generation = NULL;
            how.on_prefill = count_prefill;
            mn_batch_row rows[N_ROWS] = {b.rows[1]};
            for (int r = 1; r < N_ROWS; r++) rows[r] = b.rows[r == 1 ? 0 : r];
            assert_ok(
                mn_generate_batch(b.model, &options, rows, with_others ? N_ROWS : 1, b.config, &how, &generation));
            assert_int_equal(generation->n_sequences, with_others ? 4 * N_ROWS : 4);
            if (!with_others) assert_int_equal(prefilled, lengths[1]);
            for (int k = 0; k < 4; k++) {
                const mn_sequence *s = generation->sequences[k];
                assert_int_equal(s->row, 0);
                assert_int_equal(s->index, k);
                assert_int_equal(s->n_ids, N_NEW);
                if (threads == 1 && !with_others) memcpy(wanted[k], s->ids, sizeof wanted[k]);
                assert_memory_equal(wanted[k], s->ids, sizeof wanted[k]);
                for (int other = 0; other < k; other++)
                    assert_memory_not_equal(wanted[other], wanted[k], sizeof wanted[k]);
            }
            mn_generation_close(&generation);
            close_batch(&b);
        }
    }
}

/* ---- one prefix, many prompts ---- */

typedef struct most_bytes {
    const mn_model *model;
    size_t bytes;
} most_bytes;

static bool note_most(void *user, const mn_token_event *event) {
    most_bytes *m = user;
    size_t used = kv_pool_used(m->model->core->pool);
    (void)event;
    if (used > m->bytes) m->bytes = used;
    return true;
}

/* Rows that begin with the same 160 tokens: results equal single runs, and memory is one prefix plus the rows' own
 * tokens. */
static void a_prefix_is_computed_once(void **state) {
    (void)state;
    enum { PREFIX = 160, PAGE = 16 };
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    for (int r = 2; r < N_ROWS; r++) memcpy(b.ids[r], b.ids[1], PREFIX * sizeof **b.ids);
    for (size_t c = 0; c < sizeof caches / sizeof caches[0]; c++) {
        if (!test_samples((int)c, 3)) continue;
        mn_cache_options options = engine_cache_options(caches[c]);
        bool is_none = strcmp(caches[c].implementation, "none") == 0;
        bool is_flush = caches[c].config && strstr(caches[c].config, "quanto");
        mn_session *prefix = NULL;
        mn_generation *generation = NULL;
        assert_ok(mn_session_open(&prefix, b.model, &options));
        assert_ok(mn_session_step(prefix, b.ids[1], PREFIX, NULL));
        mn_batch_row rows[N_ROWS];
        for (int r = 0; r < N_ROWS; r++) rows[r] = (mn_batch_row){sizeof(mn_batch_row), b.ids[1], 0, NULL, prefix};
        for (int r = 0; r < N_ROWS; r++) {
            rows[r].prompt = b.ids[r == 0 ? 1 : r];
            rows[r].n_prompt = PREFIX + 1 + (size_t)r;
        }
        most_bytes most = {.model = b.model};
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        how.on_token = note_most;
        how.user = &most;
        assert_ok(mn_generate_batch(b.model, &options, rows, N_ROWS, b.config, &how, &generation));
        for (int r = 0; r < N_ROWS; r++) {
            mn_session *session = NULL;
            mn_generation *alone = NULL;
            const mn_sequence *s = generation->sequences[r];
            assert_ok(mn_session_open(&session, b.model, &options));
            assert_ok(mn_generate(session, rows[r].prompt, rows[r].n_prompt, b.config, NULL, &alone));
            assert_int_equal(s->n_ids, N_NEW);
            assert_memory_equal(s->ids, alone->sequences[0]->ids, sizeof *s->ids * N_NEW);
            if (!is_none && !is_flush && s->cached_tokens < PREFIX - 1)
                fail_msg("%s: %zu tokens were there", caches[c].implementation, s->cached_tokens);
            mn_generation_close(&alone);
            mn_session_close(&session);
        }
        if (c == 0) { /* pages of the prefix, and for each row the two or three that hold its own tokens */
            size_t page = PAGE * (size_t)kv_cache_token_bytes(prefix->cache);
            if (most.bytes > page * (PREFIX / PAGE + N_ROWS * 3))
                fail_msg("%zu bytes for pages of %zu", most.bytes, page);
        }
        assert_int_equal(mn_session_length(prefix), PREFIX);
        mn_generation_close(&generation);
        mn_session_close(&prefix);
    }
    close_batch(&b);
}

/* ---- mn_sessions_step ---- */

static void sessions_step_together_as_alone(void **state) {
    (void)state;
    batch b;
    open_batch(&b, "golden/llama", "f32", engine_threads());
    mn_cache_options options = engine_cache_options(caches[0]);
    mn_session *rows[N_ROWS] = {NULL}, *alone[N_ROWS] = {NULL};
    int32_t next[N_ROWS];
    for (int r = 0; r < N_ROWS; r++) {
        assert_ok(mn_session_open(&rows[r], b.model, &options));
        assert_ok(mn_session_step(rows[r], b.ids[r], lengths[r], NULL));
        assert_ok(mn_session_fork(&alone[r], rows[r]));
        next[r] = 7 + r;
    }
    assert_ok(mn_sessions_step(rows, N_ROWS, next));
    for (int r = 0; r < N_ROWS; r++) {
        assert_ok(mn_session_step(alone[r], &next[r], 1, NULL));
        engine_same_bits(mn_session_logits(rows[r]), mn_session_logits(alone[r]), 1, b.vocab, "row %d", r);
    }
    mn_session *twice[] = {rows[0], rows[1], rows[0]};
    assert_fails(MN_E_ARG, "row 0 is the session of another row", mn_sessions_step(twice, 3, next));
    assert_non_null(mn_session_logits(rows[0]));
    next[3] = -1;
    assert_fails(MN_E_ARG, "token 0 is -1", mn_sessions_step(rows, N_ROWS, next));
    for (int r = 0; r < N_ROWS; r++) {
        assert_int_equal(mn_session_length(rows[r]), lengths[r] + 1);
        assert_ok(kv_check(rows[r]->cache));
        mn_session_close(&rows[r]);
        mn_session_close(&alone[r]);
    }
    assert_ok(mn_sessions_step(rows, 0, NULL));
    close_batch(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_single_runs),
        cmocka_unit_test(long_prompts_do_not_block_other_rows),
        cmocka_unit_test(rows_that_end_release_their_pages),
        cmocka_unit_test(any_row_may_cancel_the_batch),
        cmocka_unit_test(a_batch_is_aborted_before_any_pass),
        cmocka_unit_test(sequences_of_a_row_share_the_prompt),
        cmocka_unit_test(a_prefix_is_computed_once),
        cmocka_unit_test(sessions_step_together_as_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
