/* Scripts of cache operations and their expected results (tests/data/caches/README.md): a batch is an array of caches,
 * its row operations are forks. Where Transformers keeps fewer tokens than our pages do, those are compared that it
 * keeps.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "base/num.h"
#include "kernels/kernels.h"
#include "kv/kv.h"

enum { MOST_ROWS = 8, MOST_LAYERS = 4, MOST = 32, HEADS = 2, DIM = 16 };

typedef struct batch {
    kernel_table kernels;
    kv_pool *pool;
    kv_spec specs[MOST_LAYERS];
    int n_layers, dim;
    kv_options options;
    kv_cache *rows[MOST_ROWS];
    int n;
} batch;

static void open_rows(batch *b, int n) {
    for (b->n = 0; b->n < n; b->n++) assert_ok(kv_open(&b->rows[b->n], b->pool, b->specs, b->n_layers, &b->options));
}

static void close_rows(batch *b) {
    while (b->n > 0) kv_close(&b->rows[--b->n]);
}

static void batch_open(batch *b, int n_rows) {
    kernel_table_fill(&b->kernels, cpu_best());
    assert_ok(kv_pool_open(&b->pool, 0));
    open_rows(b, n_rows);
}

static void batch_close(batch *b) {
    close_rows(b);
    assert_int_equal(kv_pool_used(b->pool), 0);
    kv_pool_close(&b->pool);
}

/* rows[i] becomes what rows[order[i]] was. */
static void take_rows(batch *b, const int *order, int n) {
    kv_cache *next[MOST_ROWS];
    for (int i = 0; i < n; i++) assert_ok(kv_fork(&next[i], b->rows[order[i]]));
    close_rows(b);
    memcpy(b->rows, next, sizeof next);
    b->n = n;
}

static void repeat_rows(batch *b, int times) {
    int order[MOST_ROWS], n = b->n * times;
    for (int i = 0; i < n; i++) order[i] = i / times;
    take_rows(b, order, n);
}

static int read_order(const json *arg, int *order) {
    for (size_t i = 0; i < arg->n; i++) order[i] = (int)arg->items[i].integer;
    return (int)arg->n;
}

static float value_of(int64_t number, int head, int d, bool is_key) {
    float x = (float)number + (float)head / 4 + (float)d / 8;
    return is_key ? x : -x;
}

static void append(const batch *b, kv_cache *cache, int layer, const int64_t *numbers, int n) {
    float k[MOST][DIM], v[MOST][DIM];
    for (int head = 0; head < HEADS; head++) {
        for (int t = 0; t < n; t++) {
            for (int d = 0; d < b->dim; d++) {
                k[t][d] = value_of(numbers[t], head, d, true);
                v[t][d] = value_of(numbers[t], head, d, false);
            }
        }
        kv_append(cache, &b->kernels, layer, head, 0, n, &k[0][0], &v[0][0], DIM, DIM);
    }
}

static void finish(const batch *b, kv_cache *cache, int n_tasks) {
    void *scratch = mem_alloc(kv_quantize_scratch(cache), 1);
    for (int i = 0; i < n_tasks; i++) kv_quantize(cache, &b->kernels, i, scratch);
    mem_free(scratch);
    kv_finish_step(cache);
}

/* Of n tokens before the next query: how many of the first it does not see. Transformers' static layers keep one. */
static int n_unseen(const batch *b, int layer, int n) {
    int window = b->specs[layer].window;
    return window && n >= window ? n - (window - 1) : 0;
}

/* The tokens that a step of `n_new` reads: the last ones of the view, its own included. */
static void check_returned(const batch *b, const kv_cache *cache, int layer, const json *numbers, int n_new) {
    kv_view view = kv_attention_view(cache, layer);
    for (size_t i = (size_t)n_unseen(b, layer, (int)numbers->n - n_new); i < numbers->n; i++) {
        int64_t position = view.n_tokens - (int64_t)(numbers->n - i),
                page = position / view.page_tokens - view.first_page;
        assert_in_range(page, 0, view.n_pages - 1);
        for (int head = 0; head < HEADS; head++) {
            const float *keys = (const float *)(const void *)(view.exact[page] + view.exact_place.k_offset +
                                                              (size_t)head * view.exact_place.k_head_bytes);
            for (int d = 0; d < b->dim; d++)
                assert_float_equal(keys[d * view.page_tokens + position % view.page_tokens],
                                   value_of(numbers->items[i].integer, head, d, true), 0);
        }
    }
}

static void update_row(const batch *b, int row, const json *tokens, const json *returned) {
    kv_cache *cache = b->rows[row];
    int64_t numbers[MOST];
    int n = (int)tokens->n;
    for (int t = 0; t < n; t++) numbers[t] = tokens->items[t].integer;
    kv_call_begin(cache);
    kv_call_ends(cache, true);
    if (returned && returned->items[0].kind == JSON_STRING) {
        assert_fails(MN_E_FULL, NULL, kv_reserve(cache, n));
        return;
    }
    assert_ok(kv_reserve(cache, n));
    for (int layer = 0; layer < b->n_layers; layer++) {
        if (!b->specs[layer].write_once) append(b, cache, layer, numbers, n);
        if (returned) check_returned(b, cache, layer, &returned->items[layer].items[row], n);
    }
    finish(b, cache, kv_commit(cache));
}

/* Tokens that must be held: the last ones of the cache. */
static void check_held(const batch *b, int row, int layer, const json *numbers, int64_t length) {
    float rows[HEADS * MOST * DIM];
    int first = n_unseen(b, layer, (int)numbers->n), n = (int)numbers->n - first;
    for (int is_key = 0; is_key < 2; is_key++) {
        assert_ok(kv_read(b->rows[row], &b->kernels, layer, is_key, length - n, n, rows));
        for (int i = 0; i < HEADS * n * b->dim; i++) {
            int d = i % b->dim, t = i / b->dim % n, head = i / b->dim / n;
            assert_float_equal(rows[i], value_of(numbers->items[first + t].integer, head, d, is_key), 0);
        }
    }
}

/* A negative length counts from the end; more than there is changes nothing. */
static void crop(batch *b, int64_t arg, bool is_refused) {
    for (int i = 0; i < b->n; i++) {
        int64_t n = kv_length(b->rows[i]), keep = arg < 0 ? max_i64(n + arg, 0) : min_i64(arg, n);
        if (!is_refused) {
            assert_ok(kv_truncate(b->rows[i], keep));
        } else if (kv_reachable(b->rows[i], keep) != keep) { /* pages may hold more than Transformers' slots */
            assert_fails(MN_E_UNSUPPORTED, "cannot go back", kv_truncate(b->rows[i], keep));
        }
    }
}

static void do_step(batch *b, const json *step) {
    const json *op = json_get(step, "op"), *arg = json_get(step, "arg"), *returned = json_get(step, "right_returned");
    int order[MOST_ROWS];
    if (json_is_string(op, "update")) {
        const json *tokens = json_get(step, "tokens");
        for (int i = 0; i < b->n; i++) {
            json counted = {.kind = JSON_ARRAY, .n = 0};
            json numbers[MOST];
            if (!tokens) { /* only how many */
                int64_t n = 0;
                assert_ok(json_int("step", step, "n", 1, MOST, &n));
                for (int t = 0; t < n; t++) numbers[t] = (json){.kind = JSON_INT, .integer = kv_length(b->rows[i]) + t};
                counted.n = (size_t)n;
                counted.items = numbers;
            }
            update_row(b, i, tokens ? &tokens->items[i] : &counted, returned);
        }
    } else if (json_is_string(op, "crop")) {
        crop(b, arg->integer, json_get(step, "right_error") != NULL);
    } else if (json_is_string(op, "reorder_cache") || json_is_string(op, "batch_select_indices")) {
        int n = read_order(arg, order);
        take_rows(b, order, n);
    } else if (json_is_string(op, "batch_repeat_interleave")) {
        repeat_rows(b, (int)arg->integer);
    } else if (json_is_string(op, "reset")) {
        crop(b, 0, false);
    } else {
        fail_msg("no such operation");
    }
}

static void check_step(const batch *b, const json *step) {
    const json *right = json_get(step, "right");
    for (size_t layer = 0; right && layer < right->n; layer++) {
        const json *tokens = json_get(&right->items[layer], "tokens");
        int64_t length = -1;
        assert_ok(json_int("right", &right->items[layer], "seq_length", 0, MOST, &length));
        assert_int_equal(tokens->n, b->n);
        for (int row = 0; row < b->n; row++) {
            assert_int_equal(kv_length(b->rows[row]), length);
            check_held(b, row, (int)layer, &tokens->items[row], length);
        }
    }
    int64_t length = -1, n_rows = b->n, quantized = -1, residual = 0;
    assert_ok(json_int("step", step, "right_seq_length", 0, MOST, &length));
    assert_ok(json_int("step", step, "right_batch", 1, MOST_ROWS, &n_rows));
    assert_ok(json_int("step", step, "quantized", 0, MOST, &quantized));
    assert_ok(json_int("step", step, "residual", 0, MOST, &residual));
    assert_int_equal(b->n, n_rows);
    for (int row = 0; row < b->n; row++) {
        if (length >= 0) assert_int_equal(kv_length(b->rows[row]), length);
        for (int layer = 0; quantized >= 0 && layer < b->n_layers; layer++) {
            kv_view view = kv_attention_view(b->rows[row], layer);
            int n = 0;
            for (int i = 0; i < view.n_pages; i++) n += view.n_quantized[i];
            assert_int_equal(n, quantized);
            assert_int_equal(view.n_tokens - n, residual);
        }
        assert_ok(kv_check(b->rows[row]));
    }
}

static void run_steps(batch *b, const json *test) {
    const json *steps = json_get(test, "steps");
    int64_t n_rows = 1;
    assert_ok(json_int("case", test, "batch", 1, MOST_ROWS, &n_rows));
    batch_open(b, (int)n_rows);
    for (size_t i = 0; i < steps->n; i++) {
        do_step(b, &steps->items[i]);
        check_step(b, &steps->items[i]);
    }
    batch_close(b);
}

/* ---- dynamic, static, sliding ---- */

static int64_t longest(const json *steps) {
    int64_t most = 0;
    for (size_t i = 0; i < steps->n; i++) {
        const json *right = json_get(&steps->items[i], "right");
        most = max_i64(most, json_get(&right->items[0], "seq_length")->integer);
    }
    return most;
}

static void run_exact(const json *test, bool is_static, int page_tokens) {
    const json *layers = json_get(test, "layers");
    batch b = {.n_layers = (int)layers->n, .dim = 2, .options = {.page_tokens = page_tokens}};
    kv_form exact = kv_form_exact(KV_F32);
    for (int i = 0; i < b.n_layers; i++) {
        int64_t window = 0;
        assert_ok(json_int("layer", &layers->items[i], "window", 1, MOST, &window));
        b.specs[i] =
            (kv_spec){.n_heads = HEADS, .k_dim = 2, .v_dim = 2, .key = exact, .value = exact, .window = (int)window};
    }
    if (is_static) b.options.reserve = b.options.limit = longest(json_get(test, "steps"));
    run_steps(&b, test);
}

/* ---- quantized ---- */

static void run_quantized(const json *test, const char *name) {
    kv_form form = {.codec = strstr(name, "hqq") ? KV_HQQ : KV_QUANTO, .bits = 4};
    const char *residual = strstr(name, "residual_length=");
    assert_non_null(residual);
    form.axis = CODE_TOKEN; /* groups along the tokens would quantize whole pages only */
    batch b = {.n_layers = 2, .dim = DIM, .options = {.page_tokens = 16}};
    for (int i = 0; i < b.n_layers; i++) {
        b.specs[i] = (kv_spec){.n_heads = HEADS,
                               .k_dim = DIM,
                               .v_dim = DIM,
                               .key = form,
                               .value = form,
                               .flush = true,
                               .residual = atoi(residual + strlen("residual_length="))};
    }
    run_steps(&b, test);
}

/* ---- encoder and decoder ---- */

static void check_numbers(const batch *b, const json *step, const char *key, int layer) {
    const json *tokens = json_get(step, key);
    assert_int_equal(tokens->n, b->n);
    for (int row = 0; row < b->n; row++) {
        const json *numbers = &tokens->items[row];
        check_held(b, row, layer, numbers, layer ? kv_filled(b->rows[row], layer) : kv_length(b->rows[row]));
        assert_int_equal(layer ? kv_filled(b->rows[row], layer) : kv_length(b->rows[row]), numbers->n);
    }
}

static int numbers_in(const char *text, int *out) {
    int n = 0;
    for (const char *p = text; *p; p++) {
        if (*p >= '0' && *p <= '9' && n < MOST_ROWS) out[n++] = (int)strtol(p, (char **)(uintptr_t)&p, 10);
        if (!*p) break;
    }
    return n;
}

static void fill_cross(batch *b, int row, int n) {
    int64_t numbers[MOST];
    for (int t = 0; t < n; t++) numbers[t] = 500 + 100 * row + t + 1;
    assert_ok(kv_fill(b->rows[row], n));
    append(b, b->rows[row], 1, numbers, n);
    finish(b, b->rows[row], kv_fill_commit(b->rows[row]));
    assert_fails(MN_E_ARG, "filled once", kv_fill(b->rows[row], n));
}

static void run_encoder_decoder(const json *test) {
    kv_form exact = kv_form_exact(KV_F32);
    batch b = {.n_layers = 2, .dim = 2, .options = {.page_tokens = 2}};
    for (int i = 0; i < 2; i++)
        b.specs[i] = (kv_spec){.n_heads = HEADS, .k_dim = 2, .v_dim = 2, .key = exact, .value = exact, .write_once = i};
    batch_open(&b, 2);
    const json *steps = json_get(test, "steps");
    for (size_t i = 0; i < steps->n; i++) {
        const json *step = &steps->items[i];
        const char *op = json_get(step, "op")->string;
        int args[MOST_ROWS], n = numbers_in(op, args);
        if (strncmp(op, "self update", 11) == 0) {
            for (int row = 0; row < b.n; row++) {
                json items[MOST], tokens = {.kind = JSON_ARRAY, .n = (size_t)args[0], .items = items};
                for (int t = 0; t < args[0]; t++)
                    items[t] = (json){.kind = JSON_INT, .integer = 100 * row + kv_length(b.rows[row]) + t + 1};
                if (n == 2) fill_cross(&b, row, args[1]);
                update_row(&b, row, &tokens, NULL);
            }
        } else if (strncmp(op, "crop", 4) == 0) {
            crop(&b, args[0], false);
        } else if (strncmp(op, "batch_repeat", 12) == 0) {
            repeat_rows(&b, args[0]);
        } else if (strncmp(op, "reset", 5) == 0) {
            /* The next input has other cross tokens: that is another cache here. An emptied one keeps those it has. */
            crop(&b, 0, false);
            assert_int_equal(kv_filled(b.rows[0], 1), 3);
            close_rows(&b);
            open_rows(&b, 2);
            fill_cross(&b, 0, 3);
            continue;
        } else {
            take_rows(&b, args, n);
        }
        check_numbers(&b, step, "self_tokens", 0);
        check_numbers(&b, step, "cross_tokens", 1);
    }
    batch_close(&b);
}

/* ---- recurrent states ---- */

typedef struct mamba_state {
    float conv[4], ssm[2];
} mamba_state;

static mamba_state state_of(kv_cache *cache) {
    mamba_state s = {0};
    assert_ok(kv_reserve(cache, 1));
    const char *now = kv_states(cache, 0).now;
    if (now) memcpy(&s, now, sizeof s);
    kv_abandon(cache);
    return s;
}

/* Shifts n tokens from number `first` on into the state of a row, one step. */
static void shift_in(kv_cache *cache, int row, int first, int n, float ssm) {
    mamba_state s = state_of(cache);
    assert_ok(kv_reserve(cache, n > 0 ? n : 1));
    for (int t = 0; t < n; t++) {
        memmove(s.conv, s.conv + 1, 3 * sizeof *s.conv);
        s.conv[3] = (float)(100 * row + first + t);
    }
    s.ssm[0] = s.ssm[1] = ssm;
    memcpy(kv_states(cache, 0).next, &s, sizeof s);
    assert_int_equal(kv_commit(cache), 0);
    kv_finish_step(cache);
}

static void run_mamba(const json *test) {
    batch b = {.n_layers = 1, .options = {.page_tokens = 2}};
    b.specs[0] = (kv_spec){.kind = KV_STATE, .state_bytes = sizeof(mamba_state), .checkpoints = 4};
    batch_open(&b, 2);
    const json *steps = json_get(test, "steps");
    const struct {
        int first, n;
        float ssm;
    } done[] = {{1, 3, 0}, {4, 1, 0}, {5, 1, 0}, {0, 0, .5f}, {0, 0, 0}};
    assert_int_equal(steps->n, sizeof done / sizeof done[0]);
    for (size_t i = 0; i < steps->n; i++) {
        for (int row = 0; row < 2; row++) {
            if (i + 1 < steps->n) {
                shift_in(b.rows[row], row, done[i].first, done[i].n, done[i].ssm);
            } else {
                assert_ok(kv_truncate(b.rows[row], 0));
            }
            mamba_state s = state_of(b.rows[row]);
            const json *conv = &json_get(&steps->items[i], "conv")->items[row],
                       *ssm = &json_get(&steps->items[i], "ssm")->items[row];
            for (int j = 0; j < 4; j++) assert_float_equal(s.conv[j], conv->items[j].real, 0);
            for (int j = 0; j < 2; j++) assert_float_equal(s.ssm[j], ssm->items[j].real, 0);
        }
    }
    batch_close(&b);
}

/* What Transformers' state caches lack: back to a checkpoint, and rows in another order. */
static void states_go_back_and_change_rows(void **state) {
    (void)state;
    batch b = {.n_layers = 1, .options = {.page_tokens = 2}};
    b.specs[0] = (kv_spec){.kind = KV_STATE, .state_bytes = sizeof(mamba_state), .checkpoints = 2};
    batch_open(&b, 2);
    for (int t = 1; t <= 6; t++) {
        for (int row = 0; row < 2; row++) shift_in(b.rows[row], row, t, 1, (float)t);
    }
    assert_int_equal(kv_bytes(b.rows[0]), 3 * 64);
    take_rows(&b, (const int[]){1, 0}, 2);
    assert_float_equal(state_of(b.rows[0]).conv[3], 106, 0);
    assert_int_equal(kv_reachable(b.rows[0], 3), 0);
    assert_fails(MN_E_UNSUPPORTED, "0 tokens", kv_truncate(b.rows[0], 3));
    assert_ok(kv_truncate(b.rows[0], 4));
    assert_float_equal(state_of(b.rows[0]).conv[3], 104, 0);
    assert_float_equal(state_of(b.rows[0]).ssm[1], 4, 0);
    assert_float_equal(state_of(b.rows[1]).conv[3], 6, 0);
    shift_in(b.rows[0], 1, 50, 1, 0);
    assert_float_equal(state_of(b.rows[0]).conv[3], 150, 0);
    assert_float_equal(state_of(b.rows[0]).conv[2], 104, 0);
    batch_close(&b);
}

static void all_scripts(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("caches/operations.json"));
    const json *cases = json_get(json_root(doc), "cases");
    int n_exact = 0, n_quantized = 0;
    for (size_t i = 0; i < cases->n; i++) {
        const json *test = &cases->items[i];
        const char *name = json_get(test, "name")->string;
        if (strcmp(name, "encoder-decoder") == 0) {
            run_encoder_decoder(test);
        } else if (strcmp(name, "mamba") == 0) {
            run_mamba(test);
        } else if (strncmp(name, "quantized", 9) == 0) {
            run_quantized(test, name);
            n_quantized++;
        } else {
            for (int page = 2; page <= 6; page += 2) run_exact(test, strncmp(name, "static", 6) == 0, page);
            n_exact++;
        }
    }
    assert_int_equal(n_exact, 14);
    assert_int_equal(n_quantized, 24);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_scripts),
        cmocka_unit_test(states_go_back_and_change_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
