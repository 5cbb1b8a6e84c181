/* Planned bytes: equal to those of caches with as many tokens, and compared with Transformers'
 * caches.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "kv/plan.h"

enum { MOST_ENTRIES = 4, MOST_HEAD = 64, CHUNK = 160 };

typedef struct store {
    kv_plan plan;
    kv_spec specs[MOST_ENTRIES];
    int n;
    kv_pool *pool;
    kv_cache *cache;
} store;

static kv_spec natural(int dim, int window) {
    return (kv_spec){.n_heads = 2, .k_dim = dim, .v_dim = dim, .window = window};
}

static void open_store(store *s, const mn_cache_options *options, const kv_spec *specs, int n) {
    *s = (store){.n = n};
    memcpy(s->specs, specs, (size_t)n * sizeof *specs);
    assert_ok(kv_plan_make(&s->plan, options, KV_BF16));
    assert_ok(kv_plan_specs(&s->plan, s->specs, n, n, NULL));
    assert_ok(kv_pool_open(&s->pool, 0));
    assert_ok(kv_open(&s->cache, s->pool, s->specs, n, &s->plan.options));
}

static void close_store(store *s) {
    kv_close(&s->cache);
    kv_pool_close(&s->pool);
}

/* A step of n tokens, with numbers that differ. */
static void step(store *s, int n) {
    static float rows[CHUNK * MOST_HEAD];
    kernel_table kernels;
    kernel_table_fill(&kernels, CPU_SCALAR);
    assert_ok(kv_reserve(s->cache, n));
    for (int entry = 0; entry < s->n; entry++) {
        if (s->specs[entry].kind == KV_STATE || s->specs[entry].write_once) continue;
        int dim = s->specs[entry].k_dim;
        for (int i = 0; i < n * dim; i++) rows[i] = (float)((i * 37 + entry) % 101) / 50 - 1;
        for (int head = 0; head < 2; head++) kv_append(s->cache, &kernels, entry, head, 0, n, rows, rows, dim, dim);
    }
    int n_tasks = kv_commit(s->cache);
    char *scratch = mem_alloc(kv_quantize_scratch(s->cache) + 1, 1);
    assert_non_null(scratch);
    for (int task = 0; task < n_tasks; task++) kv_quantize(s->cache, &kernels, task, scratch);
    mem_free(scratch);
    kv_finish_step(s->cache);
    assert_ok(kv_check(s->cache));
}

/* One call of n tokens. */
static void call(store *s, int64_t n) {
    int64_t end = kv_length(s->cache) + n;
    kv_call_begin(s->cache);
    for (int64_t at; (at = kv_length(s->cache)) < end;) {
        int64_t stop = kv_step_limit(s->cache, at);
        if (stop > at + CHUNK) stop = at + CHUNK;
        if (stop >= end) {
            stop = end;
            kv_call_ends(s->cache, true);
        }
        step(s, (int)(stop - at));
    }
}

/* ---- plans and caches ---- */

static void plans_equal_caches(void **state) {
    (void)state;
    static const struct {
        const char *implementation, *config;
    } kinds[] = {
        {"dynamic", ""},
        {"dynamic", "page_tokens=2"},
        {"dynamic", "page_tokens=6"},
        {"static", ""},
        {"static", "page_tokens=8"},
        {"hybrid+static", "page_tokens=2"},
        {"sliding_window", "window_length=1"},
        {"sliding_window", "window_length=64"},
        {"sliding_window", "window_length=50,page_tokens=8"},
        {"sink", "window_length=100"},
        {"sink", "window_length=7,num_sink_tokens=5,page_tokens=4"},
        {"static+sink", "window_length=33,page_tokens=16"},
        {"static+sliding_window", "window_length=200"},
        {"quantized", ""},
        {"quantized", "nbits=8,residual_length=0"},
        {"quantized", "nbits=3,page_tokens=16,residual_length=32"},
        {"quantized", "nbits=1,first_exact=0"},
        {"quantized", "key_nbits=5,value_nbits=2,page_tokens=64,residual_length=17"},
        {"quantized", "layers=0:f32,2:k4v2bit,rest:8bit"},
        {"static+quantized", "nbits=2"},
        {"static+quantized", "nbits=2,page_tokens=32,residual_length=8"},
        {"quantized+sink", "window_length=150,page_tokens=32"},
        {"quantized+sliding_window", "window_length=150,page_tokens=16,residual_length=32"},
        {"static+quantized+sink", "window_length=90,page_tokens=16,residual_length=16"},
        {"quantized", "backend=quanto"},
        {"quantized", "backend=quanto,nbits=2,axis_key=-1,page_tokens=32"},
        {"quantized", "backend=hqq,axis_key=1,axis_value=1,residual_length=8"},
        {"quantized", "backend=hqq,nbits=3,page_tokens=16"},
        {"quantized+static", "backend=quanto,page_tokens=16"},
    };
    static const int lengths[] = {0,   1,   2,   3,   15,  16,  17,  63,  64,  65,  127,
                                  128, 129, 191, 192, 193, 255, 256, 257, 320, 400, 511};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            for (int which = 0; which < 2; which++) {
                mn_cache_options options = {.size = sizeof options,
                                            .implementation = kinds[k].implementation,
                                            .config = kinds[k].config,
                                            .dtype = which ? "f32" : "bf16",
                                            .max_cache_len = 511};
                store s;
                kv_spec specs[4] = {natural(16, 0), natural(16, which ? 24 : 0), natural(16, 0)};
                specs[3] = (kv_spec){.kind = KV_STATE, .state_bytes = 192};
                open_store(&s, &options, specs, 4);
                if (lengths[i]) call(&s, lengths[i]);
                size_t planned = kv_plan_bytes(s.specs, s.n, &s.plan.options, lengths[i]);
                if (planned != kv_bytes(s.cache)) {
                    fail_msg("%s, '%s', %s, %d tokens: planned %zu bytes, held are %zu", kinds[k].implementation,
                             kinds[k].config, options.dtype, lengths[i], planned, kv_bytes(s.cache));
                }
                assert_int_equal(kv_cache_token_bytes(s.cache), kv_token_bytes(s.specs, s.n));
                close_store(&s);
            }
        }
    }
}

/* Plans of lengths that no machine holds are found as fast, and grow as they should. */
static void plans_of_long_caches(void **state) {
    (void)state;
    static const struct {
        const char *implementation, *config;
        size_t token; /* bytes of two entries; 0: bounded */
    } kinds[] = {
        {"dynamic", "", 2 * 2 * 2 * 16 * 2},
        {"static", "max_cache_len=1099511627776", 2 * 2 * 2 * 16 * 2},
        {"sliding_window", "window_length=1024", 0},
        {"quantized+sink", "", 0},
        {"quantized", "backend=quanto,nbits=4,axis_key=-1,axis_value=-1", 2 * 2 * 2 * 16 * 9 / 16},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        mn_cache_options options = {.size = sizeof options,
                                    .implementation = kinds[k].implementation,
                                    .config = kinds[k].config,
                                    .dtype = "bf16"};
        store s = {.n = 2};
        assert_ok(kv_plan_make(&s.plan, &options, KV_BF16));
        for (int i = 0; i < 2; i++) s.specs[i] = natural(16, 0);
        assert_ok(kv_plan_specs(&s.plan, s.specs, 2, 2, NULL));
        const int64_t most = (int64_t)1 << 40;
        size_t planned = kv_plan_bytes(s.specs, 2, &s.plan.options, most);
        if (!kinds[k].token) assert_true(planned < 1 << 20);
        /* Lengths of whole pages, where nothing but the pages of the residual is more. */
        size_t wanted = kinds[k].token * ((size_t)1 << 40);
        if (kinds[k].token && planned != wanted)
            fail_msg("%s: %zu bytes, expected %zu", kinds[k].implementation, planned, wanted);
    }
}

/* ---- Transformers ---- */

typedef struct transformers_kind {
    const char *name, *implementation, *config;
    int windows[2];
    int page_tokens;
    size_t state_numbers; /* recurrent layers instead */
    int cross;            /* tokens of two entries of cross attention besides */
} transformers_kind;

#define CODED "q_group_size=16,residual_length=8,backend="

static const transformers_kind transformers_kinds[] = {
    {"dynamic", "dynamic", "", {0, 0}, 2, 0, 0},
    {"dynamic-sliding", "dynamic", "", {8, 8}, 2, 0, 0},
    {"dynamic-mixed", "dynamic", "", {8, 0}, 2, 0, 0},
    {"static", "static", "", {0, 0}, 2, 0, 0},
    {"static-sliding", "static", "", {8, 8}, 2, 0, 0},
    {"static-mixed", "static", "", {8, 0}, 2, 0, 0},
    {"quanto-2", "quantized", CODED "quanto,nbits=2", {0, 0}, 16, 0, 0},
    {"quanto-4", "quantized", CODED "quanto,nbits=4", {0, 0}, 16, 0, 0},
    {"hqq-1", "quantized", CODED "hqq,axis_key=1,axis_value=1,nbits=1", {0, 0}, 16, 0, 0},
    {"hqq-2", "quantized", CODED "hqq,axis_key=1,axis_value=1,nbits=2", {0, 0}, 16, 0, 0},
    {"hqq-3", "quantized", CODED "hqq,nbits=3", {0, 0}, 16, 0, 0},
    {"hqq-4", "quantized", CODED "hqq,axis_key=1,axis_value=1,nbits=4", {0, 0}, 16, 0, 0},
    {"mamba", "mamba", "", {0, 0}, 2, 256 * (4 + 16), 0},
    {"encoder-decoder", "dynamic", "", {0, 0}, 2, 0, 10},
    {"hqq-8", "quantized", CODED "hqq,axis_key=1,axis_value=1,nbits=8", {0, 0}, 16, 0, 0},
};

static const transformers_kind *find_kind(const char *name) {
    for (size_t i = 0; i < sizeof transformers_kinds / sizeof transformers_kinds[0]; i++) {
        if (strcmp(transformers_kinds[i].name, name) == 0) return &transformers_kinds[i];
    }
    fail_msg("there is no case %s", name);
    return NULL;
}

/* A page of every entry in the form that its tokens end up in, and an exact one where tokens are quantized by and by:
 * where they came one by one, or where a group lies across tokens. */
static size_t slack_of(const store *s, int page_tokens, bool at_once) {
    size_t slack = 0;
    for (int i = 0; i < s->n; i++) {
        kv_spec spec = s->specs[i];
        bool mixes = kv_form_is_coded(spec.key) && (!at_once || spec.key.axis == CODE_CHANNEL);
        spec.write_once = false; /* else no token would count */
        kv_spec exact = spec;
        exact.key = exact.value = kv_form_exact(spec.exact);
        slack += (kv_token_bytes(&spec, 1) + (mixes ? kv_token_bytes(&exact, 1) : 0)) * (size_t)page_tokens;
    }
    return slack;
}

/* At most 5 % above its bytes, and that. */
static void check_against(const json *test, const transformers_kind *kind, int page_tokens) {
    bool wide = json_is_string(json_get(test, "dtype"), "float32");
    bool at_once = json_is_string(json_get(test, "filled"), "at once");
    if (kind->state_numbers) at_once = true;
    mn_cache_options options = {.size = sizeof options,
                                .implementation = kind->implementation,
                                .config = kind->config,
                                .dtype = wide ? "f32" : "bf16",
                                .max_cache_len = 64,
                                .page_tokens = page_tokens};
    const json *sizes = json_get(test, "bytes");
    for (size_t i = 0; i < sizes->n; i++) {
        int64_t n = strtoll(sizes->members[i].key, NULL, 10), theirs = sizes->members[i].value.integer;
        store s;
        kv_spec specs[4];
        size_t number = wide ? 4 : 2;
        for (int k = 0; k < 2; k++) {
            specs[k] = natural(64, kind->windows[k]);
            specs[2 + k] = natural(64, 0);
            specs[2 + k].write_once = true;
            if (kind->state_numbers)
                specs[k] = (kv_spec){.kind = KV_STATE, .state_bytes = kind->state_numbers * number};
        }
        int n_entries = kind->cross ? 4 : 2;
        open_store(&s, &options, specs, n_entries);
        if (n && kind->cross) assert_ok(kv_fill(s.cache, kind->cross));
        if (n && kind->cross) kv_fill_commit(s.cache);
        if (n && kind->cross) kv_finish_step(s.cache);
        if (n && at_once) call(&s, n);
        for (int64_t k = 0; k < n && !at_once; k++) call(&s, 1);
        size_t slack = slack_of(&s, page_tokens, at_once), ours = kv_bytes(s.cache);
        if (at_once && !kind->cross) assert_int_equal(ours, kv_plan_bytes(s.specs, 2, &s.plan.options, n));
        /* Its static caches are allocated with the first token, ours before. */
        bool is_late = n == 0 && s.plan.self.preallocates;
        if (!is_late && (double)ours > 1.05 * (double)theirs + (double)slack) {
            fail_msg("%s %s, %lld tokens %s, pages of %d: %zu bytes, Transformers has %lld", kind->name, options.dtype,
                     (long long)n, at_once ? "at once" : "one by one", page_tokens, ours, (long long)theirs);
        }
        close_store(&s);
    }
}

static void no_larger_than_transformers(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("caches/bytes.json"));
    const json *cases = json_get(json_root(doc), "cases");
    assert_int_equal(cases->n, 55);
    for (size_t i = 0; i < cases->n; i++) {
        const transformers_kind *kind = find_kind(json_get(&cases->items[i], "name")->string);
        check_against(&cases->items[i], kind, kind->page_tokens);
        check_against(&cases->items[i], kind, PAGE_TOKENS);
    }
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_equal_caches),
        cmocka_unit_test(plans_of_long_caches),
        cmocka_unit_test(no_larger_than_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
