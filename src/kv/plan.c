/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "base/mem.h"
#include "mneme.h"

/* ---- strategies ---- */

const kv_strategy kv_strategies[] = {
    {"none", KV_TRAIT_EMPTIES, "recomputes every token at every step"},
    {"dynamic", KV_TRAIT_NATURAL | KV_TRAIT_GROWS, "the default: exact, grows page by page"},
    {"static", KV_TRAIT_PREALLOCATES, "allocates max_cache_len tokens once"},
    {"offloaded", KV_TRAIT_OFFLOADED, "full pages are kept in a file and read ahead of use"},
    {"offloaded_static", KV_TRAIT_OFFLOADED | KV_TRAIT_PREALLOCATES, "offloaded, with max_cache_len tokens at most"},
    {"quantized", KV_TRAIT_QUANTIZED, "all but the newest tokens in few bits"},
    {"sliding_window", KV_TRAIT_WINDOW, "keeps the newest tokens"},
    {"sink", KV_TRAIT_SINKS, "keeps the first and the newest tokens, with positions inside the window"},
    {"hybrid", KV_TRAIT_NATURAL, "dynamic, for models with mixed layers"},
    {"mamba", KV_TRAIT_NATURAL, "dynamic, for models with recurrent layers"},
    {0},
};

enum {
    N_NAMES = sizeof kv_strategies / sizeof kv_strategies[0] - 1,
    PLAIN = KV_TRAIT_NATURAL | KV_TRAIT_GROWS, /* the defaults of every cache */
};

/* Combinations that are refused, and why. The first matching row gives the reason. */
static const struct {
    unsigned a, b;
    const char *why;
} conflicts[] = {
    {KV_TRAIT_EMPTIES, ~0u, "'none' keeps no keys and values"},
    {KV_TRAIT_GROWS, KV_TRAIT_PREALLOCATES, "one grows page by page, the other allocates everything at once"},
    {KV_TRAIT_NATURAL, KV_TRAIT_WINDOWS, "one keeps the windows of the model's layers, the other replaces them"},
    {KV_TRAIT_WINDOW, KV_TRAIT_SINKS, "each sets a window of its own"},
};

/* Transformers' classes of caches and its longer names: the strategies that they select, and the backend that some
 * imply. */
static const struct {
    const char *name, *is, *backend;
} classes[] = {
    {"DynamicCache", "dynamic", NULL},
    {"StaticCache", "static", NULL},
    {"OffloadedCache", "offloaded", NULL},
    {"OffloadedStaticCache", "offloaded_static", NULL},
    {"QuantizedCache", "quantized", NULL},
    {"QuantoQuantizedCache", "quantized", "quanto"},
    {"HQQQuantizedCache", "quantized", "hqq"},
    {"SlidingWindowCache", "sliding_window", NULL},
    {"SinkCache", "sink", NULL},
    {"HybridCache", "hybrid", NULL},
    {"HybridChunkedCache", "hybrid", NULL},
    {"OffloadedHybridCache", "hybrid+offloaded", NULL},
    {"MambaCache", "mamba", NULL},
    {"EncoderDecoderCache", "dynamic", NULL},
    {"dynamic_full", "dynamic", NULL},
    {"hybrid_chunked", "hybrid", NULL},
    {"offloaded_hybrid", "hybrid+offloaded", NULL},
    {"offloaded_hybrid_chunked", "hybrid+offloaded", NULL},
};

static const kv_strategy *find_strategy(const char *name, size_t n) {
    for (const kv_strategy *s = kv_strategies; s->name; s++) {
        if (strlen(s->name) == n && memcmp(s->name, name, n) == 0) return s;
    }
    return NULL;
}

static mn_status unknown_strategy(const char *name, size_t n) {
    const char *names[N_NAMES + 1] = {NULL};
    for (int i = 0; i < N_NAMES; i++) names[i] = kv_strategies[i].name;
    return text_unknown("cache implementation is", name, n, names, ", several joined by +");
}

/* Whether two strategies can be combined; the message says why not. */
static mn_status check_pair(const kv_strategy *a, const kv_strategy *b) {
    if (a->traits & b->traits) {
        MN_FAIL(MN_E_ARG, "cache implementations '%s' and '%s' cannot be combined: %s", a->name, b->name,
                a == b ? "once is enough" : "one includes the other");
    }
    for (size_t i = 0; i < sizeof conflicts / sizeof conflicts[0]; i++) {
        unsigned x = conflicts[i].a, y = conflicts[i].b;
        if ((a->traits & x && b->traits & y) || (b->traits & x && a->traits & y)) {
            MN_FAIL(MN_E_ARG, "cache implementations '%s' and '%s' cannot be combined: %s", a->name, b->name,
                    conflicts[i].why);
        }
    }
    return MN_OK;
}

static void take_traits(kv_plan_part *part) {
    part->keeps = !(part->traits & KV_TRAIT_EMPTIES);
    part->preallocates = part->traits & KV_TRAIT_PREALLOCATES;
    part->is_quantized = part->traits & KV_TRAIT_QUANTIZED;
    part->is_offloaded = part->traits & KV_TRAIT_OFFLOADED;
    part->windows = part->traits & KV_TRAIT_WINDOWS;
}

typedef struct name_list {
    const kv_strategy *found[N_NAMES];
    int n;
    const char *backend; /* that a class implies; NULL: none */
} name_list;

/* Few strategies can be combined, so that they fit. */
static mn_status add_strategy(name_list *list, const kv_strategy *s) {
    for (int i = 0; i < list->n; i++) MN_TRY(check_pair(list->found[i], s));
    list->found[list->n++] = s;
    return MN_OK;
}

/* The names joined in text[n]; has_classes: names of classes are allowed, as they are not in the definition of a class.
 */
static mn_status read_list(name_list *list, const char *text, size_t n, bool has_classes) {
    for (size_t at = 0, length; at <= n; at += length + 1) {
        const char *name = text + at;
        for (length = 0; at + length < n && name[length] != '+';) length++;
        const kv_strategy *s = find_strategy(name, length);
        if (s) {
            MN_TRY(add_strategy(list, s));
            continue;
        }
        size_t i = 0, n_classes = has_classes ? sizeof classes / sizeof *classes : 0;
        while (i < n_classes && (strlen(classes[i].name) != length || memcmp(classes[i].name, name, length) != 0)) i++;
        if (i == n_classes) return unknown_strategy(name, length);
        MN_TRY(read_list(list, classes[i].is, strlen(classes[i].is), false));
        if (classes[i].backend) list->backend = classes[i].backend;
    }
    return MN_OK;
}

/* text[n]: NAME+NAME... */
static mn_status read_part(kv_plan *plan, kv_plan_part *part, const char *text, size_t n) {
    name_list list = {0};
    MN_TRY(read_list(&list, text, n, true));
    for (int i = 0, used = 0; i < list.n; i++) {
        part->traits |= list.found[i]->traits;
        used += snprintf(part->name + used, sizeof part->name - (size_t)used, i ? "+%s" : "%s", list.found[i]->name);
    }
    if (list.backend && plan->backend && strcmp(list.backend, plan->backend) != 0)
        MN_FAIL(MN_E_ARG, "cache implementation names both backends, %s and %s; allowed: one of them", plan->backend,
                list.backend);
    if (list.backend) plan->backend = list.backend;
    take_traits(part);
    return MN_OK;
}

/* The default plan of cross attention, which is filled once and attended to as a whole. */
static void default_cross(kv_plan *plan) {
    plan->cross.traits = plan->self.traits & ~(unsigned)KV_TRAIT_WINDOWS;
    memcpy(plan->cross.name, plan->self.name, sizeof plan->cross.name);
    take_traits(&plan->cross);
}

/* Builds the name from the parts. */
static void name_plan(kv_plan *plan) {
    if (!plan->names_cross) {
        default_cross(plan);
        snprintf(plan->name, sizeof plan->name, "%s", plan->self.name);
    } else {
        snprintf(plan->name, sizeof plan->name, "self=%s,cross=%s", plan->self.name, plan->cross.name);
    }
}

static mn_status read_cross(kv_plan *plan, const char *text, size_t n) {
    MN_TRY(read_part(plan, &plan->cross, text, n));
    if (plan->cross.windows || !plan->cross.keeps) {
        MN_FAIL(MN_E_ARG, "cache implementation is cross=%s: cross attention sees all of its tokens always",
                plan->cross.name);
    }
    plan->names_cross = true;
    return MN_OK;
}

static mn_status read_names(kv_plan *plan, const char *text) {
    bool names_self = false;
    if (!strchr(text, '=')) { MN_TRY(read_part(plan, &plan->self, text, strlen(text))); }
    for (const char *at = text; strchr(text, '=') && *at;) {
        size_t n = strcspn(at, ",");
        bool is_self = strncmp(at, "self=", 5) == 0, is_cross = strncmp(at, "cross=", 6) == 0;
        if (!is_self && !is_cross) {
            MN_FAIL(MN_E_ARG, "cache implementation is '%.80s', allowed: NAME or self=NAME,cross=NAME", text);
        }
        if (is_self ? names_self : plan->names_cross) {
            MN_FAIL(MN_E_ARG, "cache implementation '%.80s' names %s twice", text, is_self ? "self" : "cross");
        }
        if (is_self) {
            MN_TRY(read_part(plan, &plan->self, at + 5, n - 5));
            names_self = true;
        } else {
            MN_TRY(read_cross(plan, at + 6, n - 6));
        }
        at += n + (at[n] == ',');
    }
    if (plan->self.traits == 0) MN_TRY(read_part(plan, &plan->self, "dynamic", 7));
    name_plan(plan);
    return MN_OK;
}

/* ---- options besides the name ---- */

/* A class that implies a backend acts like the key. */
static mn_status take_backend(const kv_plan *plan, kv_config *config) {
    static const char *const backends[] = {"mneme", "quanto", "hqq"};
    if (!plan->backend) return MN_OK;
    int64_t own = strcmp(plan->backend, "hqq") == 0 ? 2 : 1;
    if (config->is_set[CONFIG_BACKEND] && config->numbers[CONFIG_BACKEND] != own)
        MN_FAIL(MN_E_ARG, "cache option backend is '%s', but the cache implementation is the class of %s",
                backends[config->numbers[CONFIG_BACKEND]], plan->backend);
    config->is_set[CONFIG_BACKEND] = true;
    config->numbers[CONFIG_BACKEND] = own;
    return MN_OK;
}

/* Transformers' cache_config may name its cache; strategies added to that one are no contradiction. */
static mn_status check_owner(const kv_plan *plan, const kv_config *config) {
    kv_plan owner = {0};
    if (!config->is_set[CONFIG_IMPLEMENTATION]) return MN_OK;
    MN_TRY(read_names(&owner, kv_config_text(config, CONFIG_IMPLEMENTATION)));
    if (!(owner.self.traits & ~(plan->self.traits | (unsigned)PLAIN))) return MN_OK;
    MN_FAIL(MN_E_ARG, "cache option cache_implementation is '%s', but the cache implementation is '%s'", owner.name,
            plan->name);
}

/* Keys that no strategy of the plan reads are refused. */
static mn_status check_keys(const kv_plan *plan, const kv_config *config) {
    unsigned traits = plan->self.traits | plan->cross.traits;
    for (int i = 0; i < N_CONFIG_KEYS; i++) {
        const config_row *row = &config_rows[i];
        if (!config->is_set[i] || row->traits == 0 || row->traits & traits) continue;
        bytes names = {0};
        for (const kv_strategy *s = kv_strategies; s->name; s++) {
            if (s->traits & row->traits) bytes_printf(&names, names.n ? ", %s" : "%s", s->name);
        }
        mn_status status = status_fail(MN_E_ARG, "cache option %s belongs to %s; the cache implementation is '%s'",
                                       row->name, bytes_text(&names), plan->name);
        bytes_clear(&names);
        return status;
    }
    return MN_OK;
}

static int64_t given_or(const kv_config *config, config_key key, int64_t standard) {
    return config->is_set[key] ? config->numbers[key] : standard;
}

static mn_status take_dtype(kv_plan *plan, const char *name) {
    if (!name || strcmp(name, "auto") == 0) return MN_OK;
    for (int codec = 0; codec < KV_MNEME; codec++) {
        plan->exact = (kv_codec)codec;
        if (strcmp(kv_codec_name(plan->exact), name) == 0) return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "cache dtype is '%.60s', allowed: auto, f32, bf16", name);
}

static mn_status take_sizes(kv_plan *plan, const mn_cache_options *options, const kv_config *config) {
    int64_t length = options->max_cache_len, page = options->page_tokens, chunk = options->prefill_chunk;
    const config_row *chunks = &config_rows[CONFIG_PREFILL_CHUNK];
    bool is_quantized = plan->self.is_quantized || plan->cross.is_quantized;
    if (length == 0) length = given_or(config, CONFIG_MAX_CACHE_LEN, 0);
    if (page == 0) page = given_or(config, CONFIG_PAGE_TOKENS, PAGE_TOKENS);
    if (chunk == 0) chunk = given_or(config, CONFIG_PREFILL_CHUNK, 0);
    if (length < 0 || length > (int64_t)1 << 40)
        MN_FAIL(MN_E_ARG, "max_cache_len is %lld, allowed: 1 to 2^40, or 0 for none", (long long)length);
    int step = is_quantized ? CODE_LANES : 2;
    if (page < step || page > PAGE_TOKENS || page % step) {
        MN_FAIL(MN_E_ARG, "page_tokens is %lld, allowed: multiples of %d from %d to %d%s", (long long)page, step, step,
                PAGE_TOKENS, is_quantized ? " for quantized" : "");
    }
    if (chunk < 0 || chunk > chunks->hi) {
        MN_FAIL(MN_E_ARG, "prefill_chunk is %lld, allowed: %s, or 0 for %s", (long long)chunk, chunks->allowed,
                chunks->standard);
    }
    plan->prefill_chunk = (int)chunk;
    plan->options =
        (kv_options){.page_tokens = (int)page, .limit = length, .reserve = plan->self.preallocates ? length : 0};
    return MN_OK;
}

/* ---- quantized forms ---- */

/* The forms of keys and values in both packages' arithmetic; bits and axes are set later. */
static kv_form base_form(const kv_plan *plan, const kv_config *config) {
    static const kv_codec backends[] = {KV_MNEME, KV_QUANTO, KV_HQQ};
    return (kv_form){.codec = backends[given_or(config, CONFIG_BACKEND, 0)],
                     .group = (int)given_or(config, CONFIG_Q_GROUP_SIZE, 0),
                     .f32_scales = plan->exact == KV_F32};
}

/* Bits that the codec supports, tested with sizes that fit every form. */
static mn_status check_bits(kv_form form, const char *key) {
    form.group = 0;
    return status_context(kv_form_check(form, CODE_LANES, CODE_LANES), "cache option %s", key);
}

static mn_status take_axis(kv_form *form, const kv_config *config, config_key key) {
    int64_t axis = given_or(config, key, 0), other = form->codec == KV_HQQ ? 1 : -1;
    if (form->codec == KV_MNEME) {
        if (!config->is_set[key]) return MN_OK;
        MN_FAIL(MN_E_ARG, "cache option %s is %lld: backend mneme chooses its own axes; quanto and hqq have it",
                config_rows[key].name, (long long)axis);
    }
    if (axis != 0 && axis != other) {
        MN_FAIL(MN_E_ARG, "cache option %s is %lld, allowed for %s: 0, %lld", config_rows[key].name, (long long)axis,
                kv_codec_name(form->codec), (long long)other);
    }
    /* Groups within a token are axis 0 in quanto and axis 1 in hqq. */
    bool inside = form->codec == KV_HQQ ? axis == 1 : axis == 0;
    form->axis = inside ? CODE_TOKEN : CODE_CHANNEL;
    return MN_OK;
}

/* The rest of a text that is being parsed. */
typedef struct piece {
    const char *at;
    size_t n;
} piece;

static piece trimmed(const char *text, size_t n) {
    while (n && isspace((unsigned char)*text)) text++, n--;
    while (n && isspace((unsigned char)text[n - 1])) n--;
    return (piece){text, n};
}

static bool take_word(piece *p, const char *word) {
    size_t n = strlen(word);
    if (p->n < n || memcmp(p->at, word, n) != 0) return false;
    *p = (piece){p->at + n, p->n - n};
    return true;
}

static bool take_number(piece *p, int *out) {
    enum { MOST_DIGITS = 6 };
    int value = 0, digits = 0;
    for (; p->n && isdigit((unsigned char)*p->at) && digits <= MOST_DIGITS; p->at++, p->n--, digits++)
        value = value * 10 + (*p->at - '0');
    *out = value;
    return digits > 0 && digits <= MOST_DIGITS;
}

/* "4bit", "k4v2bit", "f32", "bf16": fills the forms, which hold all but their bits. */
static mn_status read_form(kv_form *key, kv_form *value, piece text) {
    for (int codec = 0; codec < KV_MNEME; codec++) {
        piece exact = text;
        if (!take_word(&exact, kv_codec_name((kv_codec)codec)) || exact.n) continue;
        *key = *value = kv_form_exact((kv_codec)codec);
        return MN_OK;
    }
    piece even = text, split = text;
    if (take_number(&even, &key->bits) && take_word(&even, "bit") && !even.n) {
        value->bits = key->bits;
    } else if (!(take_word(&split, "k") && take_number(&split, &key->bits) && take_word(&split, "v") &&
                 take_number(&split, &value->bits) && take_word(&split, "bit") && !split.n)) {
        MN_FAIL(MN_E_ARG, "cache option layers has the form '%.*s', allowed: f32, bf16, 4bit, k4v2bit", (int)text.n,
                text.at);
    }
    MN_TRY(check_bits(*key, "layers"));
    return check_bits(*value, "layers");
}

/* "3", "0-1" or "rest". */
static mn_status read_range(kv_layer_rule *rule, piece text) {
    piece p = text;
    *rule = (kv_layer_rule){.last = INT_MAX, .is_rest = take_word(&p, "rest")};
    if (rule->is_rest && !p.n) return MN_OK;
    p = text;
    bool good = take_number(&p, &rule->first);
    rule->last = rule->first;
    if (good && take_word(&p, "-")) good = take_number(&p, &rule->last);
    if (good && !p.n && rule->first <= rule->last) return MN_OK;
    MN_FAIL(MN_E_ARG, "cache option layers names '%.*s', allowed: a layer as 5, layers as 0-1, rest", (int)text.n,
            text.at);
}

static mn_status add_rule(kv_plan *plan, const kv_layer_rule *rule) {
    for (int i = 0; i < plan->n_rules; i++) {
        const kv_layer_rule *other = &plan->rules[i];
        if (other->is_rest != rule->is_rest || other->last < rule->first || rule->last < other->first) continue;
        if (rule->is_rest) MN_FAIL(MN_E_ARG, "cache option layers names the rest twice");
        MN_FAIL(MN_E_ARG, "cache option layers names layer %d twice",
                rule->first > other->first ? rule->first : other->first);
    }
    if (plan->n_rules == KV_MAX_RULES) MN_FAIL(MN_E_ARG, "cache option layers has more than %d rules", KV_MAX_RULES);
    plan->rules[plan->n_rules++] = *rule;
    return MN_OK;
}

static mn_status read_layers(kv_plan *plan, kv_form key, kv_form value, const char *text) {
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ","), n_range = strcspn(at, ":,");
        kv_layer_rule rule;
        if (n_range == n) {
            MN_FAIL(MN_E_ARG, "cache option layers has '%.*s', allowed: %s", (int)n, at,
                    config_rows[CONFIG_LAYERS].allowed);
        }
        MN_TRY(read_range(&rule, trimmed(at, n_range)));
        rule.key = key;
        rule.value = value;
        MN_TRY(read_form(&rule.key, &rule.value, trimmed(at + n_range + 1, n - n_range - 1)));
        MN_TRY(add_rule(plan, &rule));
        at += n + (at[n] == ',');
    }
    return MN_OK;
}

static mn_status take_quantized(kv_plan *plan, const kv_config *config) {
    if (!plan->self.is_quantized && !plan->cross.is_quantized) return MN_OK;
    kv_form key = base_form(plan, config), value = key;
    bool own = key.codec == KV_MNEME;
    int64_t bits = given_or(config, CONFIG_NBITS, 4);
    key.bits = (int)given_or(config, CONFIG_KEY_NBITS, bits);
    value.bits = (int)given_or(config, CONFIG_VALUE_NBITS, bits);
    MN_TRY(check_bits(key, config->is_set[CONFIG_KEY_NBITS] ? "key_nbits" : "nbits"));
    MN_TRY(check_bits(value, config->is_set[CONFIG_VALUE_NBITS] ? "value_nbits" : "nbits"));
    MN_TRY(take_axis(&key, config, CONFIG_AXIS_KEY));
    MN_TRY(take_axis(&value, config, CONFIG_AXIS_VALUE));
    plan->group = key.group;
    kv_plan_part *parts[] = {&plan->self, &plan->cross};
    for (int i = 0; i < 2; i++) {
        if (!parts[i]->is_quantized) continue;
        parts[i]->key = key;
        parts[i]->value = value;
        parts[i]->residual = (int)given_or(config, CONFIG_RESIDUAL_LENGTH, own ? 64 : 128);
        parts[i]->exact_first = (int)given_or(config, CONFIG_FIRST_EXACT, own ? 4 : 0);
        parts[i]->flush = !own;
    }
    return config->is_set[CONFIG_LAYERS] ? read_layers(plan, key, value, kv_config_text(config, CONFIG_LAYERS)) : MN_OK;
}

static mn_status take_window(kv_plan *plan, const kv_config *config) {
    kv_plan_part *part = &plan->self;
    if (!part->windows) return MN_OK;
    bool sinks = part->traits & KV_TRAIT_SINKS;
    part->window_length = (int)given_or(config, CONFIG_WINDOW_LENGTH, sinks ? 1024 : 0);
    part->num_sink_tokens = sinks ? (int)given_or(config, CONFIG_NUM_SINK_TOKENS, 4) : 0;
    if (sinks && part->num_sink_tokens >= part->window_length) {
        MN_FAIL(MN_E_ARG, "cache option num_sink_tokens is %d, allowed: 0 to %d, fewer than window_length",
                part->num_sink_tokens, part->window_length - 1);
    }
    return MN_OK;
}

/* Offloaded pages are kept in a file unless memory is requested, where resident pages are already. */
static mn_status take_offload_path(kv_plan *plan, const kv_config *config) {
    bool in_memory = config->is_set[CONFIG_HOME] && config->numbers[CONFIG_HOME] == 0;
    if (in_memory && config->is_set[CONFIG_PATH])
        MN_FAIL(MN_E_ARG, "cache option path is '%.80s', but home=memory has no folder",
                kv_config_text(config, CONFIG_PATH));
    if (in_memory) plan->self.is_offloaded = plan->cross.is_offloaded = false;
    memcpy(plan->path, kv_config_text(config, CONFIG_PATH), sizeof plan->path);
    return MN_OK;
}

/* Sets what follows from the names and keys of a plan; options: for its sizes. */
static mn_status take_keys(kv_plan *plan, const mn_cache_options *options) {
    const kv_config *config = &plan->config;
    MN_TRY(check_owner(plan, config));
    MN_TRY(check_keys(plan, config));
    MN_TRY(take_dtype(plan, options->dtype));
    MN_TRY(take_sizes(plan, options, config));
    MN_TRY(take_quantized(plan, config));
    MN_TRY(take_window(plan, config));
    return take_offload_path(plan, config);
}

mn_status kv_plan_make(kv_plan *out, const mn_cache_options *options, kv_codec automatic) {
    kv_plan plan = {.exact = automatic};
    MN_TRY(read_names(&plan, options->implementation ? options->implementation : "dynamic"));
    MN_TRY(kv_config_read(&plan.config, options->config));
    MN_TRY(take_backend(&plan, &plan.config));
    MN_TRY(take_keys(&plan, options));
    *out = plan;
    return MN_OK;
}

/* `made` with the names of `part` and one more, which replaces plain names. */
static mn_status add_to_part(kv_plan_part *made, const kv_plan_part *part, const kv_strategy *s) {
    const kv_strategy own = {.name = part->name, .traits = part->traits};
    if (!(part->traits & ~(unsigned)PLAIN)) {
        made->traits = s->traits;
        snprintf(made->name, sizeof made->name, "%s", s->name);
    } else {
        MN_TRY(check_pair(&own, s));
        made->traits = part->traits | s->traits;
        size_t n = strlen(part->name);
        memcpy(made->name, part->name, n);
        snprintf(made->name + n, sizeof made->name - n, "+%s", s->name);
    }
    take_traits(made);
    return MN_OK;
}

mn_status kv_plan_add(kv_plan *out, const kv_plan *plan, kv_trait trait, int64_t window_length) {
    kv_plan made = {
        .exact = plan->exact, .names_cross = plan->names_cross, .backend = plan->backend, .config = plan->config};
    mn_cache_options options = {.max_cache_len = plan->options.limit, .page_tokens = plan->options.page_tokens};
    const kv_strategy *s = kv_strategies;
    while (s->name && s->traits != (unsigned)trait) s++;
    assert(s->name);
    MN_TRY(add_to_part(&made.self, &plan->self, s));
    if (plan->names_cross && (made.self.windows || plan->cross.traits & s->traits)) {
        made.cross = (kv_plan_part){.traits = plan->cross.traits};
        memcpy(made.cross.name, plan->cross.name, sizeof made.cross.name);
        take_traits(&made.cross);
    } else if (plan->names_cross) {
        MN_TRY(add_to_part(&made.cross, &plan->cross, s));
    }
    name_plan(&made);
    if (s->traits & KV_TRAIT_WINDOWS) {
        made.config.is_set[CONFIG_WINDOW_LENGTH] = true;
        made.config.numbers[CONFIG_WINDOW_LENGTH] = window_length;
    }
    MN_TRY(take_keys(&made, &options));
    *out = made;
    return MN_OK;
}

/* ---- the entries of a model ---- */

static const kv_layer_rule *rule_of(const kv_plan *plan, int layer) {
    const kv_layer_rule *rest = NULL;
    for (int i = 0; i < plan->n_rules; i++) {
        const kv_layer_rule *rule = &plan->rules[i];
        if (rule->is_rest) {
            rest = rule;
        } else if (layer >= rule->first && layer <= rule->last) {
            return rule;
        }
    }
    return rest;
}

static mn_status check_model(const kv_plan *plan, const kv_spec *specs, int n_specs, int n_layers) {
    enum { OF_PAGES = KV_TRAIT_QUANTIZED | KV_TRAIT_OFFLOADED | KV_TRAIT_WINDOWS };
    bool has_cross = false, has_pages = false;
    for (int i = 0; i < n_specs; i++) {
        has_cross = has_cross || specs[i].write_once;
        has_pages = has_pages || specs[i].kind == KV_PAGES;
    }
    if (!has_pages && plan->self.traits & OF_PAGES) {
        MN_FAIL(
            MN_E_ARG,
            "cache implementation '%s' applies to keys and values; every layer of the model holds a recurrent state instead, "
            "allowed: dynamic, static, hybrid, mamba, none",
            plan->self.name);
    }
    if (plan->names_cross && !has_cross)
        MN_FAIL(MN_E_ARG, "cache implementation is '%s', but the model has no cross attention", plan->name);
    if (plan->self.preallocates && !plan->options.limit)
        MN_FAIL(MN_E_ARG, "cache implementation '%s' needs max_cache_len", plan->name);
    for (int i = 0; i < plan->n_rules; i++) {
        const kv_layer_rule *rule = &plan->rules[i];
        if (rule->is_rest || rule->last < n_layers) continue;
        MN_FAIL(MN_E_ARG, "cache option layers names layer %d, allowed: 0 to %d", rule->last, n_layers - 1);
    }
    return MN_OK;
}

/* Checks the sizes of keys or values against their form; messages name the options. */
static mn_status check_form(const kv_plan *plan, kv_form form, int dim, bool is_key) {
    if (!kv_form_is_coded(form)) return MN_OK;
    int page = plan->options.page_tokens, step = form.codec == KV_MNEME ? CODE_LANES : 1;
    if (dim < CODE_LANES || dim > KV_FORM_DIM || dim % CODE_LANES) {
        MN_FAIL(MN_E_ARG, "a quantized cache takes heads of 16, 32, 48, ... %d numbers; the model's %s have %d",
                KV_FORM_DIM, is_key ? "keys" : "values", dim);
    }
    bool across = form.codec != KV_MNEME && form.axis == CODE_CHANNEL;
    int whole = across ? page : dim;
    if (form.group == 0 || (whole % form.group == 0 && form.group % step == 0)) return kv_form_check(form, dim, page);
    bytes sizes = {0};
    for (int size = step; size <= whole; size += step) {
        if (whole % size == 0) bytes_printf(&sizes, sizes.n ? ", %d" : "%d", size);
    }
    mn_status status = status_fail(MN_E_ARG, "cache option q_group_size is %d, allowed for %s of %d: %s", form.group,
                                   across ? "pages" : "heads", whole, bytes_text(&sizes));
    bytes_clear(&sizes);
    return status;
}

static mn_status set_forms(const kv_plan *plan, const kv_plan_part *part, kv_spec *s, int layer) {
    s->exact = plan->exact;
    s->key = s->value = kv_form_exact(plan->exact);
    if (!part->is_quantized) return MN_OK;
    const kv_layer_rule *rule = rule_of(plan, layer);
    kv_form key = rule ? rule->key : part->key, value = rule ? rule->value : part->value;
    if (!kv_form_is_coded(key)) s->exact = key.codec;
    s->key = key;
    s->value = value;
    if (!kv_form_is_coded(key)) return MN_OK;
    MN_TRY(check_form(plan, key, s->k_dim, true));
    MN_TRY(check_form(plan, value, s->v_dim, false));
    s->residual = part->residual;
    s->flush = part->flush;
    s->exact_first = part->exact_first;
    return MN_OK;
}

/* The plan's window, unless the layer's own is shorter. */
static mn_status set_window(const kv_plan_part *part, kv_spec *s, int widest) {
    if (!part->windows || s->write_once) return MN_OK;
    int length = part->window_length ? part->window_length : widest;
    if (!length) {
        MN_FAIL(MN_E_ARG, "cache implementation '%s' needs window_length: the model has no window of its own",
                part->name);
    }
    if (s->window && s->window <= length) return MN_OK;
    if (s->is_fixed && part->num_sink_tokens) {
        MN_FAIL(
            MN_E_ARG,
            "cache implementation '%s' moves keys to positions inside its window, and the model's learned positions are part of "
            "its keys; num_sink_tokens=0 and sliding_window keep their positions",
            part->name);
    }
    s->sinks = part->num_sink_tokens;
    s->window = length - s->sinks;
    return MN_OK;
}

mn_status kv_plan_specs(const kv_plan *plan, kv_spec *specs, int n_specs, int n_layers,
                        const kv_calibration *calibration) {
    int widest = 0;
    MN_TRY(check_model(plan, specs, n_specs, n_layers));
    for (int i = 0; i < n_specs; i++) widest = specs[i].window > widest ? specs[i].window : widest;
    for (int i = 0; i < n_specs; i++) {
        kv_spec *s = &specs[i];
        const kv_plan_part *part = s->write_once ? &plan->cross : &plan->self;
        if (s->kind == KV_STATE) continue;
        MN_TRY(set_forms(plan, part, s, i % n_layers));
        MN_TRY(set_window(part, s, widest));
        s->is_offloaded = part->is_offloaded;
        if (calibration && !s->write_once && kv_form_takes_calibration(s->key, true))
            s->calibration = kv_calibration_of(calibration, i % n_layers, 0);
    }
    return MN_OK;
}
