/* SPDX-License-Identifier: Apache-2.0 */
#include "support/restored.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/num.h"
#include "support/hostile/hostile.h"

enum { MOST_ENTRIES = 256, MOST_MEMBERS = 32, N_ACTIONS = 8, MOST_TOKENS = 400 };
enum { MOST_CHANGES = 3, GROWTH = 64, SPARE = MOST_CHANGES * GROWTH }; /* maximum number of bytes added to an entry */

/* ---- files ---- */

typedef struct forged {
    archive_entry entries[MOST_ENTRIES];
    void *data[MOST_ENTRIES]; /* owned, of the entries' */
    size_t n_entries;
    archive_member members[MOST_MEMBERS];
    char *values[MOST_MEMBERS]; /* owned, of changed members */
    size_t n_members;
    char names[4][64]; /* of renamed entries */
} forged;

static size_t below(uint64_t *seed, size_t n) {
    return n ? (size_t)(random_bits(77, 0, (*seed)++) % n) : 0;
}

static int64_t odd_number(uint64_t *seed, int64_t old) {
    static const int64_t odd[] = {0,
                                  1,
                                  -1,
                                  2,
                                  15,
                                  16,
                                  17,
                                  127,
                                  128,
                                  129,
                                  INT32_MAX,
                                  INT32_MIN,
                                  INT64_MAX,
                                  INT64_MIN,
                                  (int64_t)1 << 32,
                                  (int64_t)1 << 40,
                                  64,
                                  1000000};
    enum { N_ODD = sizeof odd / sizeof *odd };
    size_t i = below(seed, N_ODD + 8);
    int64_t step = (int64_t)below(seed, 40) - 20;
    return i < N_ODD ? odd[i] : (int64_t)((uint64_t)old + (uint64_t)step);
}

static void open_forged(forged *f, const archive *a) {
    *f = (forged){.n_entries = archive_entries(a), .n_members = archive_members(a)};
    MUST_HOLD(f->n_entries < MOST_ENTRIES - 4 && f->n_members < MOST_MEMBERS);
    for (size_t i = 0; i < f->n_entries; i++) {
        const archive_view *view = archive_entry_at(a, i);
        const uint8_t *data = NULL;
        void *copy = malloc(view->n_bytes + SPARE);
        void *buffer = view->compressed ? malloc(view->n_bytes + 1) : NULL;
        MUST_HOLD(copy && archive_bytes(a, view, buffer, &data) == MN_OK);
        memset(copy, 0, view->n_bytes + SPARE);
        memcpy(copy, data, view->n_bytes);
        free(buffer);
        f->data[i] = copy;
        f->entries[i] = (archive_entry){.name = view->name,
                                        .type = view->type,
                                        .n_dims = view->n_dims,
                                        .data = copy,
                                        .n_bytes = view->n_bytes,
                                        .compress = view->compressed};
        memcpy(f->entries[i].shape, view->shape, sizeof view->shape);
    }
    for (size_t i = 0; i < f->n_members; i++) f->members[i] = archive_member_at(a, i);
}

static void close_forged(forged *f) {
    for (size_t i = 0; i < MOST_ENTRIES; i++) free(f->data[i]);
    for (size_t i = 0; i < MOST_MEMBERS; i++) free(f->values[i]);
}

/* Changes one number of a list, or some bytes. */
static void change_data(forged *f, size_t i, uint64_t *seed) {
    archive_entry *e = &f->entries[i];
    uint8_t *data = f->data[i];
    if (e->n_bytes == 0) return;
    if (e->type == DTYPE_I32) {
        int32_t old, number;
        size_t at = below(seed, e->n_bytes / sizeof old) * sizeof old;
        memcpy(&old, data + at, sizeof old);
        number = (int32_t)odd_number(seed, old);
        memcpy(data + at, &number, sizeof number);
    } else if (e->type == DTYPE_I64) {
        int64_t old;
        size_t at = below(seed, e->n_bytes / sizeof old) * sizeof old;
        memcpy(&old, data + at, sizeof old);
        old = odd_number(seed, old);
        memcpy(data + at, &old, sizeof old);
    } else { /* NaN, infinity, the largest numbers, random bits */
        static const uint8_t fills[] = {0x00, 0xff, 0x7f, 0x80, 0xaa};
        size_t at = below(seed, e->n_bytes), n = 1 + below(seed, e->n_bytes - at);
        size_t fill = below(seed, 8);
        for (size_t k = at; k < at + n; k++) data[k] = fill < 5 ? fills[fill] : (uint8_t)below(seed, 256);
    }
}

static void change_size(forged *f, size_t i, uint64_t *seed) {
    archive_entry *e = &f->entries[i];
    size_t unit = e->type == DTYPE_I64 ? 8 : e->type == DTYPE_U8 ? 1 : e->type == DTYPE_BF16 ? 2 : 4;
    size_t n = e->n_bytes / unit, step = below(seed, 3) ? 1 : 8;
    n = below(seed, 2) && n >= step ? n - step : n + GROWTH / unit / (step == 1 ? 8 : 1);
    e->n_dims = 1;
    e->shape[0] = (int64_t)n;
    e->n_bytes = n * unit;
}

static void change_type(archive_entry *e, uint64_t *seed) {
    static const dtype types[] = {DTYPE_U8, DTYPE_I32, DTYPE_F32, DTYPE_BF16, DTYPE_I64};
    static const size_t sizes[] = {1, 4, 4, 2, 8};
    size_t k = below(seed, 5);
    e->type = types[k];
    e->n_dims = 1;
    e->shape[0] = (int64_t)(e->n_bytes / sizes[k]);
    e->n_bytes = (size_t)e->shape[0] * sizes[k];
}

static bool is_named(const forged *f, const char *name) {
    for (size_t i = 0; i < f->n_entries; i++) {
        if (strcmp(f->entries[i].name, name) == 0) return true;
    }
    return false;
}

static void rename_entry(forged *f, size_t i, uint64_t *seed) {
    static const char *const kinds[] = {"exact", "coded"};
    char *name = f->names[below(seed, 4)];
    char fresh[64];
    if (below(seed, 4) == 0) {
        snprintf(fresh, sizeof fresh, "group.%zu.head", below(seed, 4));
    } else {
        snprintf(fresh, sizeof fresh, "group.%zu.%s.%zu", below(seed, 3), kinds[below(seed, 2)], below(seed, 40));
    }
    if (is_named(f, name) || is_named(f, fresh)) return;
    memcpy(name, fresh, sizeof fresh);
    f->entries[i].name = name;
}

static void change_entry(forged *f, uint64_t *seed) {
    if (f->n_entries == 0) return;
    /* Lists of numbers are preferred, because they control the rest and pages are many. */
    size_t i = below(seed, f->n_entries), other = below(seed, f->n_entries);
    for (int k = 0; k < 12 && below(seed, 3) && f->entries[i].type == DTYPE_U8; k++) i = below(seed, f->n_entries);
    archive_entry *e = &f->entries[i], swapped;
    switch (below(seed, 12)) {
    case 0: change_size(f, i, seed); break;
    case 1: change_type(e, seed); break;
    case 2: rename_entry(f, i, seed); break;
    case 3: /* left out */
        free(f->data[i]);
        memmove(&f->entries[i], &f->entries[i + 1], (f->n_entries - i - 1) * sizeof *f->entries);
        memmove(&f->data[i], &f->data[i + 1], (f->n_entries - i - 1) * sizeof *f->data);
        f->data[--f->n_entries] = NULL;
        break;
    case 4: /* one with the content of another entry */
        swapped = *e;
        e->name = f->entries[other].name;
        f->entries[other].name = swapped.name;
        break;
    default: change_data(f, i, seed);
    }
}

/* Changes a number inside a text, or exchanges the texts of two members. */
static void change_member(forged *f, uint64_t *seed) {
    if (f->n_members == 0) return;
    size_t i = below(seed, f->n_members), other = below(seed, f->n_members);
    const char *value = f->members[i].value;
    if (below(seed, 10) == 0) {
        char *owned = f->values[i];
        f->members[i].value = f->members[other].value;
        f->members[other].value = value;
        f->values[i] = f->values[other];
        f->values[other] = owned;
        return;
    }
    size_t n = strlen(value), at = below(seed, n);
    while (at < n && (value[at] < '0' || value[at] > '9')) at++;
    size_t digits = strspn(value + at, "0123456789");
    char *changed = malloc(n + 64);
    MUST_HOLD(changed);
    snprintf(changed, n + 64, "%.*s%lld%s", (int)at, value,
             (long long)odd_number(seed, digits ? strtoll(value + at, NULL, 10) : 0), value + at + digits);
    free(f->values[i]);
    f->values[i] = changed;
    f->members[i].value = changed;
}

void restored_mutate(const archive *a, const char *path, uint64_t *seed) {
    forged f;
    open_forged(&f, a);
    for (size_t n = 1 + below(seed, MOST_CHANGES); n > 0; n--) {
        if (below(seed, 4) == 0) {
            change_member(&f, seed);
        } else {
            change_entry(&f, seed);
        }
    }
    MUST_HOLD(archive_write(path, f.entries, f.n_entries, f.members, f.n_members) == MN_OK);
    close_forged(&f);
}

/* ---- use ---- */

static void make_ids(uint64_t *seed, int32_t *ids, size_t n, int64_t vocab) {
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)below(seed, (size_t)vocab);
}

static void save_and_load(mn_model *model, const mn_session *s, const char *scratch) {
    mn_session *loaded = NULL;
    mn_cache_options own;
    mn_cache_options_init(&own, sizeof own);
    own.implementation = NULL;
    own.max_cache_len = s->plan.options.limit;
    MUST_HOLD(mn_session_save(s, scratch, false) == MN_OK);
    mn_status status = mn_session_load(&loaded, model, scratch, &own);
    if (status != MN_OK) fprintf(stderr, "%s\n", mn_last_error());
    MUST_HOLD(status == MN_OK && mn_session_length(loaded) == mn_session_length(s));
    mn_session_close(&loaded);
}

static void read_rows(const mn_session *s, uint64_t *seed) {
    const model_config *c = &s->model->net.config;
    int64_t n = 1 + (int64_t)below(seed, 50), begin = (int64_t)below(seed, 100);
    float *rows = malloc((size_t)(n * (c->num_key_value_heads + 1) * (c->head_dim + 1)) * sizeof *rows);
    MUST_HOLD(rows);
    (void)mn_session_read(s, (int)below(seed, (size_t)c->num_hidden_layers), below(seed, 2), begin, n, rows);
    free(rows);
}

static void give_strategy(mn_session *s, uint64_t *seed) {
    static const char *const names[] = {"offloaded", "quantized", "dynamic", "static", "sink", "sliding_window"};
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = names[below(seed, sizeof names / sizeof *names)];
    options.max_cache_len = strcmp(options.implementation, "static") == 0 ? 512 : 0;
    options.dtype = kv_codec_name(s->plan.exact);
    options.page_tokens = s->plan.options.page_tokens;
    if (strcmp(options.implementation, "sink") == 0) options.config = "window_length=30";
    if (strcmp(options.implementation, "sliding_window") == 0) options.config = "window_length=30";
    (void)mn_session_set_cache(s, &options);
}

static void act(mn_model *model, mn_session *s, const char *scratch, uint64_t *seed) {
    int32_t ids[MOST_TOKENS];
    int64_t vocab = s->model->net.config.vocab_size, held = mn_session_length(s);
    size_t n = 1 + below(seed, 24);
    mn_session *fork = NULL;
    make_ids(seed, ids, MOST_TOKENS, vocab);
    switch (below(seed, 8)) {
    case 0: (void)mn_session_truncate(s, (int64_t)below(seed, (size_t)held + 1)); break;
    case 1:
        if (mn_session_fork(&fork, s) != MN_OK) break;
        (void)mn_session_step(fork, ids, n, NULL);
        MUST_HOLD(kv_check(fork->cache) == MN_OK);
        mn_session_close(&fork);
        break;
    case 2: save_and_load(model, s, scratch); break;
    case 3: read_rows(s, seed); break;
    case 4: give_strategy(s, seed); break;
    case 5:
        held = held < MOST_TOKENS - 24 ? held : MOST_TOKENS - 24;
        if (held > 0) memcpy(ids, mn_session_ids(s), (size_t)held * sizeof *ids);
        (void)mn_session_sync(s, ids, below(seed, (size_t)held + 1) + n, NULL);
        break;
    default: (void)mn_session_step(s, ids, n, NULL);
    }
}

mn_status restored_use(mn_model *model, const char *path, const char *scratch, size_t most, uint64_t *seed) {
    int64_t live = mem_count().live;
    size_t used = kv_pool_used(model->core->pool);
    mn_session *s = NULL;
    mn_status status = mn_session_load(&s, model, path, NULL);
    MUST_HOLD((status == MN_OK) == (s != NULL));
    MUST_HOLD(status == MN_OK || status == MN_E_REFUSED || status == MN_E_NOMEM);
    if (s) {
        MUST_HOLD(kv_check(s->cache) == MN_OK);
        MUST_HOLD(kv_pool_used(model->core->pool) - used <= most);
        for (int i = 0; i < N_ACTIONS && mn_session_length(s) < MOST_TOKENS; i++) {
            act(model, s, scratch, seed);
            mn_status check = kv_check(s->cache);
            if (check != MN_OK) fprintf(stderr, "%s: %s\n", s->plan.name, mn_last_error());
            MUST_HOLD(check == MN_OK);
        }
        mn_session_close(&s);
    }
    MUST_HOLD(kv_pool_used(model->core->pool) == used);
    (void)live; /* the pool keeps records of pages for reuse */
    unlink(scratch);
    return status;
}
