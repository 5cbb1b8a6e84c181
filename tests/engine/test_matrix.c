/* Every operation on every cache strategy: it works, which is checked against a session that was fed only the same
 * tokens (or against the values of a `dynamic` one), or it is refused with a reason and leaves the session unchanged.
 * The result is a table of docs/support.md.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "session/session.h"
#include "support/scratch.h"
#include "support/strategies.h"
#include "support/table.h"

enum {
    N_PROMPT = 64,     /* in one call, */
    STATIC_ROOM = 512, /* of engine_cache_options */
    N_IDS = 90,        /* the others one by one */
    N_MORE = 5,
    N_FUTURE = 3,
    N_NEW = 6,
    PAGE = 16,
    N_LAYERS = 3,
};

#define WINDOW    "window_length=40"
#define SINKS     "window_length=44,num_sink_tokens=4"
#define FOUR_BITS "nbits=4,residual_length=16"

/* Sizes at which every strategy takes effect: windows have dropped tokens, tokens are quantized. */
typedef struct subject {
    const char *label; /* of the table's row */
    const char *implementation, *config;
    const char *model; /* NULL: the model without windows */
} subject;

/* clang-format off */
static const subject subjects[] = {
    {"none", "none", NULL, NULL},
    {"dynamic", "dynamic", NULL, NULL},
    {"static", "static", NULL, NULL},
    {"offloaded", "offloaded", NULL, NULL},
    {"offloaded_static", "offloaded_static", NULL, NULL},
    {"quantized", "quantized", FOUR_BITS, NULL},
    {"quantized, backend quanto", "quantized", "backend=quanto,nbits=4,q_group_size=16,residual_length=32", NULL},
    {"quantized, backend hqq", "quantized", "backend=hqq,nbits=4,q_group_size=16,residual_length=32,axis_key=1,axis_value=1", NULL},
    {"sliding_window", "sliding_window", WINDOW, NULL},
    {"sink", "sink", SINKS, NULL},
    {"hybrid (layers with windows)", "hybrid", NULL, "golden/mistral-window"},
    {"quantized+static", "quantized+static", FOUR_BITS, NULL},
    {"quantized+offloaded", "quantized+offloaded", FOUR_BITS, NULL},
    {"quantized+sliding_window", "quantized+sliding_window", FOUR_BITS "," WINDOW, NULL},
    {"quantized+sink", "quantized+sink", FOUR_BITS "," SINKS, NULL},
    {"sink+offloaded", "sink+offloaded", SINKS, NULL},
    {"sink+static", "sink+static", SINKS, NULL},
};
/* clang-format on */

enum { N_SUBJECTS = sizeof subjects / sizeof *subjects, DYNAMIC = 1 };

/* State of the test of one subject. */
typedef struct fixture {
    const subject *x;
    mn_model *model;
    size_t vocab;
    int32_t ids[3][N_IDS]; /* of three rows */
    int32_t more[N_MORE], future[N_FUTURE];
    char reason[TABLE_REASON]; /* of the refusal */
} fixture;

static bool has(const subject *x, unsigned traits) {
    return strategy_traits(x->implementation) & traits;
}

static bool is_lossy(const subject *x) {
    return has(x, KV_TRAIT_QUANTIZED);
}
static bool has_model_windows(const subject *x) {
    return x->model != NULL; /* golden/mistral-window */
}
static bool forgets(const subject *x) {
    return has(x, KV_TRAIT_WINDOW | KV_TRAIT_SINKS) || has_model_windows(x);
}
static bool keeps(const subject *x) {
    return !has(x, KV_TRAIT_EMPTIES);
}

/* Of its first layer, sinks included; 0: none. */
static int64_t window_of(const subject *x) {
    if (has_model_windows(x)) return 8;
    return has(x, KV_TRAIT_SINKS) ? 44 : has(x, KV_TRAIT_WINDOW) ? 40 : 0;
}

static mn_cache_options options_of(const subject *x) {
    return engine_cache_options(
        (engine_cache){.implementation = x->implementation, .config = x->config, .dtype = "f32", .page_tokens = PAGE});
}

static fixture open_fixture(const subject *x) {
    fixture w = {.x = x};
    uint64_t seed = 12;
    w.model = engine_model(x->model ? x->model : "golden/llama-untied-bias", "f32", "auto", engine_threads());
    w.vocab = (size_t)engine_vocab(w.model);
    for (int r = 0; r < 3; r++) engine_ids(&seed, w.ids[r], N_IDS, (int32_t)w.vocab);
    engine_ids(&seed, w.more, N_MORE, (int32_t)w.vocab);
    engine_ids(&seed, w.future, N_FUTURE, (int32_t)w.vocab);
    return w;
}

/* ---- sessions ---- */

static mn_session *empty(const fixture *w) {
    mn_cache_options options = options_of(w->x);
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, w->model, &options));
    return session;
}

static void step_one_by_one(mn_session *session, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) assert_ok(mn_session_step(session, &ids[i], 1, NULL));
}

/* n tokens of a row, as a prompt and its answer are. */
static void fill(const fixture *w, mn_session *session, int row, size_t n) {
    size_t prompt = n < N_PROMPT ? n : N_PROMPT;
    assert_ok(mn_session_step(session, w->ids[row], prompt, NULL));
    step_one_by_one(session, w->ids[row] + prompt, n - prompt);
}

static mn_session *filled(const fixture *w, int row, size_t n) {
    mn_session *session = empty(w);
    fill(w, session, row, n);
    return session;
}

/* Both sessions give the same next logits, bit for bit; closes them. */
static void same_future(const fixture *w, mn_session *session, mn_session *wanted, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "%s, %s", w->x->label, what);
    assert_int_equal(mn_session_length(session), mn_session_length(wanted));
    assert_memory_equal(mn_session_ids(session), mn_session_ids(wanted),
                        (size_t)mn_session_length(wanted) * sizeof(int32_t));
    for (int i = 0; i < N_FUTURE; i++) {
        assert_ok(mn_session_step(session, &w->future[i], 1, NULL));
        assert_ok(mn_session_step(wanted, &w->future[i], 1, NULL));
        engine_ends_with(session, mn_session_logits(wanted), text);
    }
    mn_session_close(&session);
    mn_session_close(&wanted);
}

static void check_finite(const fixture *w, const mn_session *session) {
    for (size_t i = 0; i < w->vocab; i++) assert_true(isfinite(mn_session_logits(session)[i]));
}

/* Records the reason, and checks that the session, which has w->ids[0], is unchanged. Always false. */
static bool refused(fixture *w, mn_session *session, mn_status status) {
    if (status != MN_E_UNSUPPORTED && status != MN_E_ARG)
        fail_msg("%s: status %d: %s", w->x->label, status, mn_last_error());
    const char *path = strstr(mn_last_error(), ".safetensors: "); /* the path of the test's files is removed */
    snprintf(w->reason, sizeof w->reason, "%s", path ? path + strlen(".safetensors: ") : mn_last_error());
    if (session) same_future(w, session, filled(w, 0, N_IDS), "after a refusal");
    return false;
}

/* Keys or values [heads][n][dim] of a layer; freed by the caller. */
static float *read_rows(const mn_session *session, int layer, bool is_key, int64_t begin, int64_t n, size_t *count) {
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(session, layer, &info));
    *count = (size_t)info.num_key_value_heads * (size_t)n * (size_t)(is_key ? info.k_head_dim : info.v_head_dim);
    float *rows = malloc(*count * sizeof *rows);
    assert_non_null(rows);
    assert_ok(mn_session_read(session, layer, is_key, begin, n, rows));
    return rows;
}

static double norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Fails unless both hold the same values for tokens [begin, end): the same bits, or, where those of `session` are
 * quantized, within a fifth. 4-bit quantization is off by a tenth at most on these models. */
static void same_rows(const fixture *w, const mn_session *session, const mn_session *wanted, int n_layers,
                      int64_t begin, int64_t end, bool exact, const char *what) {
    for (int i = 0; i < 2 * n_layers; i++) {
        size_t n = 0;
        float *got = read_rows(session, i / 2, i % 2, begin, end - begin, &n),
              *want = read_rows(wanted, i / 2, i % 2, begin, end - begin, &n);
        bool same = memcmp(got, want, n * sizeof *got) == 0;
        double size = norm(want, n);
        for (size_t j = 0; j < n; j++) want[j] -= got[j];
        if (exact ? !same : !(norm(want, n) < 0.2 * size))
            fail_msg("%s, %s: layer %d differs by %g of %g", w->x->label, what, i / 2, norm(want, n), size);
        free(got);
        free(want);
    }
}

static int64_t first_held(const mn_session *session, int layer) {
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(session, layer, &info));
    return info.first_held;
}

/* A session of the same model and tokens with an exact cache without windows. Only its first layer has the same inputs
 * as that of any session. */
static mn_session *plain(const fixture *w) {
    fixture other = *w;
    other.x = &subjects[DYNAMIC];
    return filled(&other, 0, N_IDS);
}

/* ---- operations ---- */

static bool length_and_positions(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS);
    mn_cache_info info = {.size = sizeof info};
    int64_t shape[4];
    assert_int_equal(mn_session_length(s), N_IDS);
    assert_memory_equal(mn_session_ids(s), w->ids[0], sizeof w->ids[0]);
    assert_ok(mn_session_cache(s, &info));
    bool is_whole = has(w->x, KV_TRAIT_PREALLOCATES); /* its full capacity, as in Transformers */
    int64_t window = window_of(w->x), limit = is_whole ? STATIC_ROOM : 0;
    assert_int_equal(info.tokens, !keeps(w->x) ? 0 : window ? window : N_IDS);
    assert_int_equal(info.seen, keeps(w->x) ? N_IDS : 0);
    assert_int_equal(info.max_cache_len, window ? window : limit);
    assert_int_equal(info.limit, limit);
    assert_int_equal(info.next_position, N_IDS);
    assert_ok(mn_session_kv_shape(s, 0, shape));
    assert_int_equal(shape[2], is_whole && !window ? STATIC_ROOM : info.tokens);
    mn_session_close(&s);
    s = filled(w, 0, 5); /* no token is dropped yet */
    assert_ok(mn_session_cache(s, &info));
    assert_ok(mn_session_kv_shape(s, 0, shape));
    assert_int_equal(info.tokens, keeps(w->x) ? 5 : 0);
    assert_int_equal(info.seen, info.tokens);
    assert_int_equal(shape[2], !is_whole ? info.tokens : window ? window : STATIC_ROOM);
    mn_session_close(&s);
    return true;
}

/* The planner's bytes for as many tokens in one call, resident and offloaded. */
static bool bytes_by_place(fixture *w) {
    mn_session *s = empty(w);
    mn_cache_info info = {.size = sizeof info};
    kv_spec *specs = NULL;
    int n = 0;
    assert_ok(mn_session_step(s, w->ids[0], N_IDS, NULL));
    assert_ok(mn_session_cache(s, &info));
    assert_ok(session_specs(&specs, &n, s));
    size_t planned = keeps(w->x) ? kv_plan_bytes(specs, n, &s->plan.options, N_IDS) : 0;
    if (info.bytes != planned)
        fail_msg("%s: %llu bytes, %zu were planned", w->x->label, (unsigned long long)info.bytes, planned);
    assert_true(info.peak_bytes >= info.bytes);
    assert_int_equal(info.bytes > 0, keeps(w->x));
    step_one_by_one(s, w->more, 1); /* full pages are offloaded when a step begins */
    assert_ok(mn_session_cache(s, &info));
    assert_int_equal(info.offloaded_bytes > 0, has(w->x, KV_TRAIT_OFFLOADED));
    assert_true(info.offloaded_bytes <= info.bytes);
    mem_free(specs);
    mn_session_close(&s);
    return true;
}

static bool crop_eight(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS);
    mn_status status = mn_session_truncate(s, -8);
    if (status != MN_OK) return refused(w, s, status);
    same_future(w, s, filled(w, 0, N_IDS - 8), "cropped by 8");
    return true;
}

/* Quantized tokens stay quantized, so a lossy cache differs from the one at that length. */
static bool crop_into_quantized_tokens(fixture *w) {
    enum { KEEP = 20 };
    mn_session *s = filled(w, 0, N_IDS);
    mn_status status = mn_session_truncate(s, KEEP);
    if (status != MN_OK) return refused(w, s, status);
    if (!is_lossy(w->x)) {
        same_future(w, s, filled(w, 0, KEEP), "cropped to 20");
        return true;
    }
    mn_session *before = filled(w, 0, N_IDS);
    same_rows(w, s, before, N_LAYERS, 0, KEEP, true, "cropped to 20");
    assert_int_equal(mn_session_length(s), KEEP);
    step_one_by_one(s, w->future, N_FUTURE);
    check_finite(w, s);
    mn_session_close(&before);
    mn_session_close(&s);
    return true;
}

static bool forks(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS), *f = NULL, *twin = filled(w, 0, N_IDS);
    assert_ok(mn_session_fork(&f, s));
    step_one_by_one(f, w->more, N_MORE);
    step_one_by_one(twin, w->more, N_MORE);
    same_future(w, f, twin, "a fork");
    same_future(w, s, filled(w, 0, N_IDS), "a forked one");
    return true;
}

static bool select_rows(fixture *w, const int32_t *index, size_t n, const char *what) {
    mn_session *rows[6] = {filled(w, 0, N_IDS), filled(w, 1, 70), filled(w, 2, 33)};
    static const size_t lengths[] = {N_IDS, 70, 33};
    assert_ok(mn_sessions_select(rows, 3, index, n));
    for (size_t i = 0; i < n; i++) same_future(w, rows[i], filled(w, index[i], lengths[index[i]]), what);
    for (size_t i = n; i < 3; i++) assert_null(rows[i]);
    return true;
}

static bool reorders(fixture *w) {
    return select_rows(w, (const int32_t[]){2, 0, 1}, 3, "reordered rows");
}
static bool selects(fixture *w) {
    return select_rows(w, (const int32_t[]){1}, 1, "a selected row");
}
static bool repeats(fixture *w) {
    return select_rows(w, (const int32_t[]){0, 0, 1, 1, 2, 2}, 6, "repeated rows");
}

static bool resets(fixture *w) {
    mn_session *s = filled(w, 1, N_IDS);
    mn_cache_info info = {.size = sizeof info};
    assert_ok(mn_session_truncate(s, 0));
    assert_int_equal(mn_session_length(s), 0);
    assert_ok(mn_session_cache(s, &info));
    if (!has(w->x, KV_TRAIT_PREALLOCATES)) assert_int_equal(info.bytes, 0);
    fill(w, s, 0, N_IDS);
    same_future(w, s, filled(w, 0, N_IDS), "after a reset");
    return true;
}

/* Several tokens in one call equal single ones. */
static bool appends(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS), *twin = filled(w, 0, N_IDS);
    float *logits = malloc(N_MORE * w->vocab * sizeof *logits);
    assert_ok(mn_session_step(s, w->more, N_MORE, logits));
    for (size_t i = 0; i < N_MORE; i++) {
        assert_ok(mn_session_step(twin, &w->more[i], 1, NULL));
        engine_same_bits(logits + i * w->vocab, mn_session_logits(twin), 1, w->vocab, "%s, appended", w->x->label);
    }
    free(logits);
    same_future(w, s, twin, "after appended tokens");
    return true;
}

static void generate(fixture *w, mn_session *session, const int32_t *ids, size_t n, int32_t *out) {
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    char text[16];
    snprintf(text, sizeof text, "%d", N_NEW);
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", text));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generate(session, ids, n, config, NULL, &generation));
    assert_int_equal(generation->sequences[0]->n_ids, N_NEW);
    memcpy(out, generation->sequences[0]->ids, N_NEW * sizeof *out);
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
}

/* The best token, again and again. The last one is not fed. */
static void argmax(const fixture *w, mn_session *session, int32_t *out) {
    for (int i = 0; i < N_NEW; i++) {
        const float *logits = mn_session_logits(session);
        out[i] = 0;
        for (size_t j = 1; j < w->vocab; j++) {
            if (logits[j] > logits[out[i]]) out[i] = (int32_t)j;
        }
        if (i + 1 < N_NEW) assert_ok(mn_session_step(session, &out[i], 1, NULL));
    }
}

/* A conversation: generate, append, generate. */
static bool goes_on_after_generation(fixture *w) {
    enum { SAID = 2, TOTAL = N_IDS + N_NEW + SAID };
    mn_session *s = filled(w, 0, N_IDS), *twin = filled(w, 0, N_IDS);
    int32_t conversation[TOTAL + N_NEW], wanted[N_NEW];
    memcpy(conversation, w->ids[0], sizeof w->ids[0]);
    generate(w, s, conversation, N_IDS, conversation + N_IDS);
    argmax(w, twin, wanted);
    assert_memory_equal(conversation + N_IDS, wanted, sizeof wanted);
    memcpy(conversation + N_IDS + N_NEW, w->more, SAID * sizeof *conversation);
    generate(w, s, conversation, TOTAL, conversation + TOTAL);
    assert_ok(mn_session_step(twin, conversation + N_IDS + N_NEW - 1, SAID + 1, NULL));
    argmax(w, twin, wanted);
    assert_memory_equal(conversation + TOTAL, wanted, sizeof wanted);
    same_future(w, s, twin, "after generation");
    return true;
}

static bool exports(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS);
    const char *path = scratch_path("export.safetensors");
    mn_status status = mn_sessions_export(&s, 1, path, "f32");
    if (status != MN_OK) return refused(w, s, status);
    /* Imported into an exact cache. */
    mn_cache_options options = options_of(&subjects[DYNAMIC]);
    mn_session *back = NULL;
    assert_ok(mn_session_import(&back, w->model, &options, path, 0, NULL, 0));
    same_rows(w, back, s, N_LAYERS, 0, N_IDS, true, "exported");
    mn_session_close(&back);
    same_future(w, s, filled(w, 0, N_IDS), "after an export");
    return true;
}

/* Imports the export of an exact cache: the held tokens equal it, and an exact cache continues as if it had computed
 * them. */
static bool imports(fixture *w) {
    fixture other = open_fixture(&subjects[DYNAMIC]);
    mn_session *source = filled(&other, 0, N_IDS), *s = NULL;
    const char *path = scratch_path("import.safetensors");
    mn_cache_options options = options_of(w->x);
    assert_ok(mn_sessions_export(&source, 1, path, "f32"));
    mn_status status = mn_session_import(&s, w->model, &options, path, 0, NULL, 0);
    bool works = status == MN_OK ? true : refused(w, NULL, status);
    if (works) {
        int64_t held = first_held(s, 0);
        assert_int_equal(mn_session_length(s), N_IDS);
        assert_int_equal(held > 0, forgets(w->x));
        same_rows(w, s, source, N_LAYERS, held, N_IDS, !is_lossy(w->x), "imported");
        if (!is_lossy(w->x) && !forgets(w->x)) {
            same_future(w, s, filled(w, 0, N_IDS), "after an import");
        } else {
            step_one_by_one(s, w->future, N_FUTURE);
            check_finite(w, s);
            mn_session_close(&s);
        }
    }
    mn_session_close(&source);
    mn_model_close(&other.model);
    return works;
}

/* The first layer's values equal those of any exact cache of these tokens. */
static bool views(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS), *wanted = plain(w);
    mn_layer_info info = {.size = sizeof info};
    float one[1024];
    assert_ok(mn_session_layer(s, 0, &info));
    assert_int_equal(info.tokens, keeps(w->x) ? N_IDS : 0);
    mn_status status = mn_session_read(s, 0, true, N_IDS - 1, 1, one);
    if (status != MN_OK) {
        mn_session_close(&wanted);
        return refused(w, s, status);
    }
    int64_t wanted_first = first_held(wanted, 0),
            held = info.first_held > wanted_first ? info.first_held : wanted_first;
    assert_int_equal(info.quantized_tokens > 0, is_lossy(w->x));
    assert_int_equal(info.first_held > 0, forgets(w->x));
    same_rows(w, s, wanted, 1, held, N_IDS, !is_lossy(w->x), "as seen");
    if (info.first_exact > 0 && wanted_first == 0)
        same_rows(w, s, wanted, 1, 0, info.first_exact, true, "the first tokens");
    mn_session_close(&s);
    mn_session_close(&wanted);
    return true;
}

static bool saves_and_loads(fixture *w) {
    mn_session *s = filled(w, 0, N_IDS), *back = NULL;
    mn_cache_options options = options_of(w->x);
    for (int compress = 0; compress < 2; compress++) {
        const char *path = scratch_path(compress ? "saved.zst.safetensors" : "saved.safetensors");
        mn_status status = mn_session_save(s, path, compress);
        if (status != MN_OK) return refused(w, s, status);
        assert_ok(mn_session_load(&back, w->model, path, &options));
        same_future(w, back, filled(w, 0, N_IDS), "loaded");
    }
    same_future(w, s, filled(w, 0, N_IDS), "after a save");
    return true;
}

/* The session's strategy combined with another one. */
static bool becomes(fixture *w, const char *target, const char *config, mn_session **out) {
    char name[96], both[192];
    const subject *x = w->x;
    if (has(x, strategy_traits(target))) {
        snprintf(w->reason, sizeof w->reason, "the session has this cache already");
        return false;
    }
    bool is_plain = has(x, KV_TRAIT_GROWS);
    snprintf(name, sizeof name, "%s%s%s", is_plain ? "" : x->implementation, is_plain ? "" : "+", target);
    snprintf(both, sizeof both, "%s%s%s", x->config ? x->config : "", x->config && *config ? "," : "", config);
    mn_session *s = filled(w, 0, N_IDS);
    mn_cache_options options = options_of(x);
    options.implementation = name;
    options.config = both;
    mn_status status = mn_session_set_cache(s, &options);
    if (status != MN_OK) return refused(w, s, status);
    mn_cache_info info = {.size = sizeof info};
    assert_ok(mn_session_cache(s, &info));
    assert_non_null(strstr(info.implementation, target));
    assert_int_equal(info.seen, N_IDS);
    *out = s;
    return true;
}

static bool becomes_offloaded(fixture *w) {
    mn_session *s = NULL;
    if (!becomes(w, "offloaded", "", &s)) return false;
    mn_session *twin = filled(w, 0, N_IDS);
    mn_cache_info info = {.size = sizeof info};
    step_one_by_one(s, w->more, 1);
    step_one_by_one(twin, w->more, 1);
    assert_ok(mn_session_cache(s, &info));
    if (!w->x->model) assert_true(info.offloaded_bytes > 0); /* a window of 8 tokens has no full page */
    same_future(w, s, twin, "after it became offloaded");
    return true;
}

static bool becomes_quantized(fixture *w) {
    mn_session *s = NULL;
    if (!becomes(w, "quantized", FOUR_BITS, &s)) return false;
    mn_session *before = filled(w, 0, N_IDS);
    step_one_by_one(s, w->future, N_FUTURE);
    step_one_by_one(before, w->future, N_FUTURE);
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(s, 0, &info));
    if (!w->x->model) assert_true(info.quantized_tokens > 0); /* a window of 8 tokens is within the exact tokens */
    same_rows(w, s, before, 1, info.first_held, N_IDS, false, "after it became quantized");
    same_rows(w, s, before, 1, N_IDS - 1, N_IDS, true, "after it became quantized");
    mn_session_close(&before);
    mn_session_close(&s);
    return true;
}

static bool becomes_sink(fixture *w) {
    mn_session *s = NULL;
    if (!becomes(w, "sink", SINKS, &s)) return false;
    mn_session *before = filled(w, 0, N_IDS);
    step_one_by_one(s, w->future, N_FUTURE);
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(s, 0, &info));
    assert_int_equal(info.window_length, 44);
    assert_true(info.first_held > 0 && info.first_exact >= 4);
    same_rows(w, s, before, N_LAYERS, info.first_held, N_IDS, true, "after it became a sink cache");
    same_rows(w, s, before, N_LAYERS, 0, 4, !is_lossy(w->x), "sinks");
    mn_session_close(&before);
    mn_session_close(&s);
    return true;
}

static const struct {
    const char *title;
    bool (*works)(fixture *w);
} operations[] = {
    {"length", length_and_positions},
    {"bytes", bytes_by_place},
    {"crop by 8", crop_eight},
    {"crop to 20", crop_into_quantized_tokens},
    {"fork", forks},
    {"reorder rows", reorders},
    {"select rows", selects},
    {"repeat rows", repeats},
    {"reset", resets},
    {"append", appends},
    {"continue", goes_on_after_generation},
    {"export", exports},
    {"import", imports},
    {"view", views},
    {"save, load", saves_and_loads},
    {"to offloaded", becomes_offloaded},
    {"to quantized", becomes_quantized},
    {"to sink", becomes_sink},
};

enum { N_OPERATIONS = sizeof operations / sizeof *operations };

/* ---- the table ---- */

static table matrix = {.name = "matrix", .n_rows = N_SUBJECTS, .n_columns = N_OPERATIONS};

static void every_operation(void **state) {
    int row = (int)((const subject *)*state - subjects);
    int64_t live = mem_count().live;
    for (int i = 0; i < N_OPERATIONS; i++) {
        fixture w = open_fixture(&subjects[row]);
        bool works = operations[i].works(&w);
        table_note(&matrix, row, i, works ? NULL : w.reason);
        mn_model_close(&w.model);
        if (mem_count().live != live) fail_msg("%s leaks memory", operations[i].title);
    }
}

static void docs_support_has_this_table(void **state) {
    (void)state;
    table_check(&matrix);
}

static void every_strategy_has_a_row(void **state) {
    (void)state;
    strategy_need_rows("subjects", &subjects[0].implementation, sizeof *subjects, N_SUBJECTS, "mamba");
}

int main(void) {
    struct CMUnitTest tests[N_SUBJECTS + 2];
    for (int i = 0; i < N_SUBJECTS; i++) {
        tests[i] = (struct CMUnitTest){
            .name = subjects[i].label, .test_func = every_operation, .initial_state = (void *)(uintptr_t)&subjects[i]};
        matrix.rows[i] = subjects[i].label;
    }
    for (int j = 0; j < N_OPERATIONS; j++) matrix.columns[j] = operations[j].title;
    tests[N_SUBJECTS] = (struct CMUnitTest)cmocka_unit_test(docs_support_has_this_table);
    tests[N_SUBJECTS + 1] = (struct CMUnitTest)cmocka_unit_test(every_strategy_has_a_row);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
