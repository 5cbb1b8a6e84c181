/* Strategies and their configuration: what names and keys mean, which of them are refused and with what words, and how
 * a plan changes the entries of a model.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/plans.h"

#include <limits.h>

/* ---- names ---- */

static void plain_names(void **state) {
    (void)state;
    static const struct {
        const char *implementation;
        bool keeps, preallocates, codes, is_offloaded, windows;
        int window, sinks;
    } cases[] = {
        {"none", false, false, false, false, false, 0, 0},
        {"dynamic", true, false, false, false, false, 0, 0},
        {"hybrid", true, false, false, false, false, 0, 0},
        {"mamba", true, false, false, false, false, 0, 0},
        {"static", true, true, false, false, false, 0, 0},
        {"offloaded", true, false, false, true, false, 0, 0},
        {"offloaded_static", true, true, false, true, false, 0, 0},
        {"static+offloaded", true, true, false, true, false, 0, 0},
        {"quantized", true, false, true, false, false, 0, 0},
        {"sliding_window", true, false, false, false, true, 0, 0},
        {"sink", true, false, false, false, true, 1024, 4},
        {"quantized+sink", true, false, true, false, true, 1024, 4},
        {"sink+quantized", true, false, true, false, true, 1024, 4},
        {"quantized+sliding_window", true, false, true, false, true, 0, 0},
        {"quantized+offloaded", true, false, true, true, false, 0, 0},
        {"static+quantized", true, true, true, false, false, 0, 0},
        {"sink+offloaded", true, false, false, true, true, 1024, 4},
        {"hybrid+quantized", true, false, true, false, false, 0, 0},
        {"dynamic+offloaded", true, false, false, true, false, 0, 0},
        {"hybrid+static", true, true, false, false, false, 0, 0},
        {"mamba+offloaded", true, false, false, true, false, 0, 0},
        {"static+sink", true, true, false, false, true, 1024, 4},
        {"offloaded_static+quantized+sink", true, true, true, true, true, 1024, 4},
        {"static+offloaded+quantized+sliding_window", true, true, true, true, true, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kv_plan plan;
        assert_ok(plans_make(&plan, cases[i].implementation, "max_cache_len=50"));
        const kv_plan_part *self = &plan.self;
        if (self->keeps != cases[i].keeps || self->preallocates != cases[i].preallocates ||
            self->is_quantized != cases[i].codes || self->is_offloaded != cases[i].is_offloaded ||
            self->windows != cases[i].windows || self->window_length != cases[i].window ||
            self->num_sink_tokens != cases[i].sinks) {
            fail_msg("%s: keeps %d, preallocates %d, quantized %d, offloaded %d, windows %d, window %d, sinks %d",
                     cases[i].implementation, self->keeps, self->preallocates, self->is_quantized, self->is_offloaded,
                     self->windows, self->window_length, self->num_sink_tokens);
        }
        assert_string_equal(plan.name, cases[i].implementation);
        assert_string_equal(self->name, cases[i].implementation);
        assert_false(plan.names_cross);
        assert_int_equal(plan.options.limit, 50);
        assert_int_equal(plan.options.reserve, cases[i].preallocates ? 50 : 0);
        /* Cross attention that was not named has no window and is otherwise alike. */
        assert_false(plan.cross.windows);
        assert_int_equal(plan.cross.is_quantized, cases[i].codes);
        assert_int_equal(plan.cross.is_offloaded, cases[i].is_offloaded);
    }
}

static void names_of_two_kinds(void **state) {
    (void)state;
    kv_plan plan;
    assert_ok(plans_make(&plan, "self=quantized+sink,cross=offloaded", "nbits=3,window_length=9"));
    assert_string_equal(plan.name, "self=quantized+sink,cross=offloaded");
    assert_string_equal(plan.cross.name, "offloaded");
    assert_true(plan.self.is_quantized && plan.self.windows && !plan.self.is_offloaded);
    assert_true(!plan.cross.is_quantized && !plan.cross.windows && plan.cross.is_offloaded && plan.names_cross);
    assert_int_equal(plan.self.key.bits, 3);
    assert_ok(plans_make(&plan, "cross=quantized", "backend=hqq"));
    assert_string_equal(plan.name, "self=dynamic,cross=quantized");
    assert_true(plan.cross.is_quantized && !plan.self.is_quantized && plan.self.keeps);
    assert_int_equal(plan.cross.key.codec, KV_HQQ);
    assert_int_equal(plan.self.residual, 0);
    assert_ok(plans_make(&plan, "self=none", NULL));
    assert_string_equal(plan.name, "none");
    assert_false(plan.names_cross);
}

/* Names of Transformers' classes and longer names are accepted; some imply a backend. */
static void names_of_classes(void **state) {
    (void)state;
    static const struct {
        const char *implementation, *name;
        kv_codec codec; /* of keys; KV_BF16: none are quantized */
    } cases[] = {
        {"DynamicCache", "dynamic", KV_BF16},
        {"StaticCache", "static", KV_BF16},
        {"OffloadedCache", "offloaded", KV_BF16},
        {"OffloadedStaticCache", "offloaded_static", KV_BF16},
        {"QuantizedCache", "quantized", KV_MNEME},
        {"QuantoQuantizedCache", "quantized", KV_QUANTO},
        {"HQQQuantizedCache", "quantized", KV_HQQ},
        {"SlidingWindowCache", "sliding_window", KV_BF16},
        {"SinkCache", "sink", KV_BF16},
        {"HybridCache", "hybrid", KV_BF16},
        {"HybridChunkedCache", "hybrid", KV_BF16},
        {"OffloadedHybridCache", "hybrid+offloaded", KV_BF16},
        {"MambaCache", "mamba", KV_BF16},
        {"EncoderDecoderCache", "dynamic", KV_BF16},
        {"offloaded_hybrid", "hybrid+offloaded", KV_BF16},
        {"hybrid_chunked", "hybrid", KV_BF16},
        {"HQQQuantizedCache+SinkCache", "quantized+sink", KV_HQQ},
        {"sink+QuantoQuantizedCache", "sink+quantized", KV_QUANTO},
        {"self=HQQQuantizedCache,cross=StaticCache", "self=quantized,cross=static", KV_HQQ},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_plan plan, again;
        assert_ok(plans_make(&plan, cases[i].implementation, "max_cache_len=50"));
        assert_string_equal(plan.name, cases[i].name);
        kv_codec codec = plan.self.is_quantized ? plan.self.key.codec : KV_BF16;
        if (codec != cases[i].codec) fail_msg("%s has codec %d", cases[i].implementation, (int)codec);
        /* The name and config that a session is saved with mean the same. */
        bytes config = {0};
        kv_config_put(&config, &plan.config);
        assert_ok(plans_make(&again, plan.name, bytes_text(&config)));
        assert_true(again.self.key.codec == plan.self.key.codec && again.options.limit == 50);
        assert_true(kv_config_equal(&again.config, &plan.config));
        bytes_clear(&config);
    }
    kv_plan plan;
    assert_ok(plans_make(&plan, "HQQQuantizedCache", "backend=hqq,nbits=1"));
    assert_fails(MN_E_ARG, "'quanto'", plans_make(&plan, "HQQQuantizedCache", "backend=quanto"));
    assert_fails(MN_E_ARG, "both backends",
                 plans_make(&plan, "self=HQQQuantizedCache,cross=QuantoQuantizedCache", NULL));
    assert_fails(MN_E_ARG, "cannot be combined", plans_make(&plan, "SinkCache+SlidingWindowCache", NULL));
    assert_fails(MN_E_ARG, "'SinkCash'", plans_make(&plan, "SinkCash", NULL));
}

/* Keys as Transformers' configurations spell them, and those that are taken and change nothing. */
static void keys_of_transformers(void **state) {
    (void)state;
    static const char object[] = "{\"cache_implementation\": \"quantized\", \"axis-key\": 1, \"axis-value\": 1, "
                                 "\"q-group-size\": 16, \"compute_dtype\": \"torch.float16\", \"device\": \"cuda:0\"}";
    kv_plan plan;
    kv_config config;
    bytes lines = {0};
    assert_ok(plans_make(&plan, "HQQQuantizedCache", object));
    assert_int_equal(plan.self.key.axis, CODE_TOKEN);
    assert_int_equal(plan.self.key.group, 16);
    assert_ok(kv_config_read(&config, object));
    assert_ok(kv_config_warn(&config, &lines));
    assert_non_null(strstr(bytes_text(&lines), "compute_dtype has no effect"));
    assert_non_null(strstr(bytes_text(&lines), "device is 'cuda:0' but has no effect"));
    bytes_clear(&lines);
    assert_ok(kv_config_read(&config, "compute-dtype=float32,device=cpu,nbits=4"));
    assert_ok(kv_config_warn(&config, &lines));
    assert_int_equal(lines.n, 0);
    assert_ok(plans_make(&plan, "sliding_window", "sliding_window=32,page-tokens=16"));
    assert_int_equal(plan.self.window_length, 32);
    assert_int_equal(plan.options.page_tokens, 16);
    assert_fails(MN_E_ARG, "given twice", plans_make(&plan, "sink", "sliding_window=32,window_length=32"));
    assert_fails(MN_E_ARG, "compute_dtype is 'int8'", plans_make(&plan, "quantized", "compute_dtype=int8"));
    assert_fails(MN_E_ARG, "cache_implementation is 'static'",
                 plans_make(&plan, "quantized", "cache_implementation=static"));
    assert_ok(plans_make(&plan, "quantized+offloaded", "cache_implementation=QuantizedCache"));
}

/* ---- refusals ---- */

typedef struct refusal {
    const char *implementation, *config;
    const char *parts[3]; /* of the message */
} refusal;

static const refusal refusals[] = {
    /* names */
    {"", NULL, {"''", "dynamic, static"}},
    {"dinamic", NULL, {"'dinamic'", "did you mean dynamic?", "allowed: none, dynamic, static"}},
    {"quantised", NULL, {"did you mean quantized?"}},
    {"offload", NULL, {"did you mean offloaded"}},
    {"Static", NULL, {"'Static'", "did you mean static?"}},
    {"paper", NULL, {"'paper'", "none, dynamic"}},
    {"dynamic+", NULL, {"''"}},
    {"offloaded+dinamic", NULL, {"'dinamic'", "did you mean dynamic?"}},
    {"+dynamic", NULL, {"''"}},
    {"sink++quantized", NULL, {"''"}},
    {"sink quantized", NULL, {"'sink quantized'"}},
    {"sink,quantized", NULL, {"'sink,quantized'"}},
    {"none+quantized", NULL, {"'none'", "'quantized'", "keeps no keys and values"}},
    {"sink+none", NULL, {"'none'", "'sink'", "keeps no keys and values"}},
    {"none+dynamic", NULL, {"keeps no keys and values"}},
    {"sink+sliding_window", NULL, {"'sink'", "'sliding_window'", "a window of its own"}},
    {"sliding_window+quantized+sink", NULL, {"'sliding_window' and 'sink'"}},
    {"quantized+quantized", NULL, {"'quantized' and 'quantized'", "once"}},
    {"sink+quantized+sink", NULL, {"'sink' and 'sink'"}},
    {"static+offloaded_static", NULL, {"'static' and 'offloaded_static'", "one includes the other"}},
    {"offloaded_static+offloaded", NULL, {"'offloaded_static' and 'offloaded'"}},
    {"dynamic+static", NULL, {"'dynamic' and 'static'", "page by page"}},
    {"offloaded_static+dynamic", NULL, {"page by page"}},
    {"dynamic+hybrid", NULL, {"'dynamic' and 'hybrid'"}},
    {"hybrid+sink", NULL, {"windows of the model's layers"}},
    {"sliding_window+dynamic", NULL, {"windows of the model's layers"}},
    {"cross=sink", NULL, {"cross=sink", "all of its tokens"}},
    {"self=sink,cross=none", NULL, {"cross=none"}},
    {"self=sink,self=sink", NULL, {"self twice"}},
    {"cross=static,cross=static", NULL, {"cross twice"}},
    {"self=", NULL, {"''"}},
    {"self=sink,dynamic", NULL, {"self=NAME,cross=NAME"}},
    {"both=sink", NULL, {"'both=sink'", "self=NAME,cross=NAME"}},
    {"self=sink;cross=static", NULL, {"'sink;cross=static'"}},
    /* keys and values of any cache */
    {"dynamic", "max_cache_ln=4", {"'max_cache_ln'", "did you mean max_cache_len?", "window_length"}},
    {"dynamic", "xyz=4", {"'xyz'", "allowed: max_cache_len"}},
    {"dynamic", "=4", {"''"}},
    {"dynamic", "4", {"'4'", "key=value"}},
    {"dynamic", "max_cache_len", {"'max_cache_len'", "key=value"}},
    {"dynamic", "max_cache_len=0", {"max_cache_len is '0'", "1 to 2^40"}},
    {"dynamic", "max_cache_len=1099511627777", {"max_cache_len", "1 to 2^40"}},
    {"dynamic", "max_cache_len=99999999999999999999999", {"max_cache_len", "1 to 2^40"}},
    {"dynamic", "max_cache_len=-1", {"'-1'"}},
    {"dynamic", "max_cache_len=7x", {"'7x'"}},
    {"dynamic", "max_cache_len=", {"''"}},
    {"dynamic", "max_cache_len=1.5", {"'1.5'"}},
    {"dynamic", "max_cache_len=1e3", {"'1e3'"}},
    {"dynamic", "max_cache_len=5,max_cache_len=5", {"max_cache_len is given twice"}},
    {"dynamic", "page_tokens=3", {"page_tokens is 3", "multiples of 2"}},
    {"dynamic", "page_tokens=130", {"130", "128"}},
    {"dynamic", "prefill_chunk=0", {"prefill_chunk is '0'", "1 to 4096"}},
    {"dynamic", "prefill_chunk=4097", {"4097"}},
    {"dynamic", "nbits=4", {"nbits belongs to quantized", "'dynamic'"}},
    {"static", "max_cache_len=4,window_length=4", {"window_length belongs to sliding_window, sink"}},
    {"sliding_window", "num_sink_tokens=4", {"num_sink_tokens belongs to sink", "'sliding_window'"}},
    {"quantized", "home=memory", {"home belongs to offloaded, offloaded_static"}},
    /* JSON */
    {"dynamic", "{", {"cache options"}},
    {"dynamic", "{\"max_cache_len\": 4", {"cache options"}},
    {"dynamic", "[]", {"JSON object"}},
    {"dynamic", "{\"max_cache_len\": 4, \"max_cache_len\": 4}", {"max_cache_len"}},
    {"dynamic", "{\"max_cache_len\": true}", {"'true'"}},
    {"dynamic", "{\"max_cache_len\": [4]}", {"'[4]'"}},
    {"dynamic", "{\"max_cache_len\": 4.5}", {"'4.5'"}},
    {"dynamic", "{\"max_cache_len\": \"4\\u0000\"}", {"zero byte"}},
    {"dynamic", "{\"max_cache_le\\u0000n\": 4}", {"'max_cache_le'"}},
    {"dynamic", "{\"lenght\": 4}", {"'lenght'"}},
    /* quantized */
    {"quantized", "nbits=0", {"nbits is '0'"}},
    {"quantized", "nbits=7", {"nbits", "7", "1, 2, 3, 4, 5, 6, 8"}},
    {"quantized", "nbits=9", {"9", "1, 2, 3, 4, 5, 6, 8"}},
    {"quantized", "nbits=four", {"nbits is 'four'"}},
    {"quantized", "key_nbits=7", {"key_nbits", "7", "1, 2, 3, 4, 5, 6, 8"}},
    {"quantized", "value_nbits=16", {"value_nbits", "16"}},
    {"quantized", "backend=quanto,nbits=3", {"nbits", "3", "2, 4"}},
    {"quantized", "backend=quanto,nbits=8", {"8", "2, 4"}},
    {"quantized", "backend=quanto,nbits=4,value_nbits=1", {"value_nbits", "1", "2, 4"}},
    {"quantized", "backend=hqq,nbits=5", {"5", "1, 2, 3, 4, 8"}},
    {"quantized", "backend=kivi", {"'kivi'", "mneme, quanto, hqq"}},
    {"quantized", "backend=", {"''"}},
    {"quantized", "axis_key=0", {"axis_key", "quanto and hqq"}},
    {"quantized", "backend=mneme,axis_value=1", {"axis_value is 1", "quanto and hqq"}},
    {"quantized", "backend=quanto,axis_key=1", {"axis_key is 1", "quanto: 0, -1"}},
    {"quantized", "backend=quanto,axis_value=1", {"axis_value is 1", "0, -1"}},
    {"quantized", "backend=hqq,axis_key=-1", {"axis_key is -1", "hqq: 0, 1"}},
    {"quantized", "backend=hqq,axis_value=-1", {"axis_value is -1", "0, 1"}},
    {"quantized", "backend=hqq,axis_key=2", {"axis_key is '2'"}},
    {"quantized", "q_group_size=0", {"q_group_size is '0'"}},
    {"quantized", "q_group_size=-64", {"'-64'"}},
    {"quantized", "residual_length=-1", {"residual_length is '-1'", "0 to 2^30"}},
    {"quantized", "residual_length=1073741825", {"1073741825", "0 to 2^30"}},
    {"quantized", "first_exact=129", {"first_exact", "0 to 128"}},
    {"quantized", "first_exact=-1", {"'-1'"}},
    {"quantized", "page_tokens=8", {"page_tokens is 8", "multiples of 16", "quantized"}},
    {"quantized", "page_tokens=100", {"100", "multiples of 16"}},
    {"quantized", "layers=", {"layers is ''"}},
    {"quantized", "layers=4bit", {"'4bit'", "0-1:bf16"}},
    {"quantized", "layers=0:", {"''", "4bit"}},
    {"quantized", "layers=:4bit", {"''", "rest"}},
    {"quantized", "layers=0:7bit", {"layers", "7", "1, 2, 3, 4, 5, 6, 8"}},
    {"quantized", "layers=0:0bit", {"layers"}},
    {"quantized", "layers=0:k4v7bit", {"7"}},
    {"quantized", "layers=0:4bits", {"'4bits'"}},
    {"quantized", "layers=0:4", {"'4'", "k4v2bit"}},
    {"quantized", "layers=0:fp16", {"'fp16'", "f32, bf16"}},
    {"quantized", "layers=0:k4bit", {"'k4bit'"}},
    {"quantized", "layers=0:k-4v4bit", {"k-4v4bit"}},
    {"quantized", "layers=a:4bit", {"names 'a'", "0-1"}},
    {"quantized", "layers=-1:4bit", {"'-1'"}},
    {"quantized", "layers=1-0:4bit", {"'1-0'"}},
    {"quantized", "layers=0--1:4bit", {"'0--1'"}},
    {"quantized", "layers=0-:4bit", {"'0-'"}},
    {"quantized", "layers=0-1-2:4bit", {"'0-1-2'"}},
    {"quantized", "layers=12345678:4bit", {"'12345678'"}},
    {"quantized", "layers=0-3:4bit,2:bf16", {"layer 2 twice"}},
    {"quantized", "layers=5:4bit,2-9:bf16", {"layer 5 twice"}},
    {"quantized", "layers=rest:4bit,rest:4bit", {"rest twice"}},
    {"quantized", "backend=quanto,layers=0:3bit", {"3", "2, 4"}},
    /* windows */
    {"sink", "window_length=0", {"window_length is '0'"}},
    {"sink", "window_length=4", {"num_sink_tokens is 4", "0 to 3"}},
    {"sink", "window_length=8,num_sink_tokens=8", {"num_sink_tokens is 8", "0 to 7"}},
    {"sink", "num_sink_tokens=-1", {"'-1'", "0 to window_length - 1"}},
    {"sliding_window", "window_length=-5", {"'-5'"}},
    /* home */
    {"offloaded", "home=disk", {"'disk'", "memory, file"}},
    {"offloaded", "home=memory,path=/tmp", {"/tmp", "home=memory"}},
    {"offloaded", "path=", {"path is ''"}},
};

static void refusals_name_what_is_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        kv_plan plan;
        memset(&plan, 0x5A, sizeof plan);
        int64_t live = mem_count().live;
        mn_status status = plans_make(&plan, r->implementation, r->config);
        const char *message = mn_last_error();
        if (status != MN_E_ARG) fail_msg("%s, %s: status %d", r->implementation, r->config ? r->config : "", status);
        for (int k = 0; k < 3 && r->parts[k]; k++) {
            if (!strstr(message, r->parts[k]))
                fail_msg("%s, %s: '%s' lacks '%s'", r->implementation, r->config ? r->config : "", message,
                         r->parts[k]);
        }
        for (size_t k = 0; k < sizeof plan; k++) assert_int_equal(((const unsigned char *)&plan)[k], 0x5A);
        assert_int_equal(mem_count().live, live);
    }
}

/* A number in the text of allowed values: 12, 2^30. */
static bool allowed_number(const char **at, long long *out) {
    char *end;
    *out = strtoll(*at, &end, 10);
    if (end == *at) return false;
    if (*end == '^') {
        const char *exponent = end + 1;
        *out = 1LL << strtoll(exponent, &end, 10);
    }
    *at = end;
    return true;
}

/* The texts "LO to HI" of the rows are the ranges that are checked. */
static void ranges_agree_with_their_text(void **state) {
    (void)state;
    int n_seen = 0;
    for (int key = 0; key < N_CONFIG_KEYS; key++) {
        const config_row *row = &config_rows[key];
        const char *at = row->allowed;
        long long lo, hi;
        if (row->lo == row->hi || !allowed_number(&at, &lo) || strncmp(at, " to ", 4) != 0) continue;
        at += 4;
        if (!allowed_number(&at, &hi) || *at) continue;
        n_seen++;
        const long long values[] = {lo, hi, lo - 1, hi + 1, LLONG_MIN, LLONG_MAX};
        for (int i = 0; i < 6; i++) {
            char text[80];
            kv_config config;
            snprintf(text, sizeof text, "%s=%lld", row->name, values[i]);
            mn_status status = kv_config_read(&config, text);
            if (status != (i < 2 ? MN_OK : MN_E_ARG)) fail_msg("%s gave %d", text, (int)status);
            if (i < 2) assert_int_equal(config.numbers[key], values[i]);
        }
    }
    assert_int_equal(n_seen, 5);
}

/* Empty texts reach no call that needs a pointer; the sanitizer of undefined behaviour checks it. */
static void empty_values_are_texts(void **state) {
    (void)state;
    kv_config config;
    assert_fails(MN_E_ARG, "'', allowed:", kv_config_read(&config, "{\"nbits\": \"\"}"));
    assert_fails(MN_E_ARG, "no cache option '<", kv_config_read(&config, "{\"<0x00>\": \"\"}"));
    assert_fails(MN_E_ARG, "no cache option ''", kv_config_read(&config, "{\"\": \"\"}"));
    assert_fails(MN_E_ARG, "'', allowed:", kv_config_read(&config, "nbits="));
}

static void numbers_of_the_options(void **state) {
    (void)state;
    const mn_cache_options standard = {.size = sizeof standard, .implementation = "dynamic", .dtype = "auto"};
    mn_cache_options o = standard;
    kv_plan plan;
    assert_ok(kv_plan_make(&plan, &o, KV_F32));
    assert_int_equal(plan.exact, KV_F32);
    assert_int_equal(plan.options.page_tokens, PAGE_TOKENS);
    assert_int_equal(plan.options.limit, 0);
    assert_int_equal(plan.prefill_chunk, 0);
    o.implementation = NULL;
    o.dtype = NULL;
    assert_ok(kv_plan_make(&plan, &o, KV_BF16));
    assert_string_equal(plan.name, "dynamic");
    assert_int_equal(plan.exact, KV_BF16);
    o.dtype = "f32";
    o.config = "max_cache_len=7,page_tokens=6,prefill_chunk=5";
    assert_ok(kv_plan_make(&plan, &o, KV_BF16));
    assert_int_equal(plan.exact, KV_F32);
    assert_int_equal(plan.options.limit, 7);
    assert_int_equal(plan.options.page_tokens, 6);
    assert_int_equal(plan.prefill_chunk, 5);
    o.max_cache_len = 11; /* the options' own numbers override those of their config */
    o.page_tokens = 4;
    o.prefill_chunk = 3;
    assert_ok(kv_plan_make(&plan, &o, KV_BF16));
    assert_int_equal(plan.options.limit, 11);
    assert_int_equal(plan.options.page_tokens, 4);
    assert_int_equal(plan.prefill_chunk, 3);
    const struct {
        const char *dtype, *part;
        int64_t length;
        int page, chunk;
    } wrong[] = {
        {"f16", "auto, f32, bf16", 0, 0, 0},      {"", "auto, f32, bf16", 0, 0, 0},
        {"mneme", "auto, f32, bf16", 0, 0, 0},    {"f32", "max_cache_len is -1", -1, 0, 0},
        {"f32", "2^40", INT64_MAX, 0, 0},         {"f32", "page_tokens is 3", 0, 3, 0},
        {"f32", "page_tokens is -2", 0, -2, 0},   {"f32", "page_tokens is 130", 0, 130, 0},
        {"f32", "prefill_chunk is -1", 0, 0, -1}, {"f32", "prefill_chunk is 4097", 0, 0, 4097},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        o = standard;
        o.dtype = wrong[i].dtype;
        o.max_cache_len = wrong[i].length;
        o.page_tokens = wrong[i].page;
        o.prefill_chunk = wrong[i].chunk;
        assert_fails(MN_E_ARG, wrong[i].part, kv_plan_make(&plan, &o, KV_F32));
    }
}

/* ---- quantized forms ---- */

static void forms_of_backends(void **state) {
    (void)state;
    static const struct {
        const char *config;
        kv_codec codec;
        int key_bits, value_bits, group, residual, first;
        code_axis key_axis, value_axis;
        bool flush;
    } cases[] = {
        {NULL, KV_MNEME, 4, 4, 0, 64, 4, 0, 0, false},
        {"", KV_MNEME, 4, 4, 0, 64, 4, 0, 0, false},
        {"backend=mneme,nbits=2", KV_MNEME, 2, 2, 0, 64, 4, 0, 0, false},
        {"nbits=1", KV_MNEME, 1, 1, 0, 64, 4, 0, 0, false},
        {"nbits=8", KV_MNEME, 8, 8, 0, 64, 4, 0, 0, false},
        {"key_nbits=3", KV_MNEME, 3, 4, 0, 64, 4, 0, 0, false},
        {"nbits=6,value_nbits=5", KV_MNEME, 6, 5, 0, 64, 4, 0, 0, false},
        {"residual_length=0,first_exact=0,q_group_size=32", KV_MNEME, 4, 4, 32, 0, 0, 0, 0, false},
        {" nbits = 3 , residual_length = 7 ", KV_MNEME, 3, 3, 0, 7, 4, 0, 0, false},
        {"backend=quanto", KV_QUANTO, 4, 4, 0, 128, 0, CODE_TOKEN, CODE_TOKEN, true},
        {"backend=Quanto,nbits=2,axis_key=-1", KV_QUANTO, 2, 2, 0, 128, 0, CODE_CHANNEL, CODE_TOKEN, true},
        {"backend=quanto,axis_value=-1,q_group_size=16,residual_length=3,first_exact=2", KV_QUANTO, 4, 4, 16, 3, 2,
         CODE_TOKEN, CODE_CHANNEL, true},
        {"backend=HQQ", KV_HQQ, 4, 4, 0, 128, 0, CODE_CHANNEL, CODE_CHANNEL, true},
        {"backend=hqq,axis_key=0,axis_value=1,nbits=3", KV_HQQ, 3, 3, 0, 128, 0, CODE_CHANNEL, CODE_TOKEN, true},
        {"{\"backend\": \"HQQ\", \"nbits\": 8, \"axis_key\": 1, \"axis_value\": \"1\", \"q_group_size\": null}", KV_HQQ,
         8, 8, 0, 128, 0, CODE_TOKEN, CODE_TOKEN, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int wide = 0; wide < 2; wide++) {
            mn_cache_options options = {.size = sizeof options,
                                        .implementation = "quantized",
                                        .config = cases[i].config,
                                        .dtype = wide ? "f32" : "bf16"};
            kv_plan plan;
            assert_ok(kv_plan_make(&plan, &options, KV_BF16));
            kv_form key = {cases[i].codec, cases[i].key_bits, cases[i].group, cases[i].key_axis, wide};
            kv_form value = {cases[i].codec, cases[i].value_bits, cases[i].group, cases[i].value_axis, wide};
            const kv_plan_part *parts[] = {&plan.self, &plan.cross};
            for (int k = 0; k < 2; k++) {
                if (!kv_form_equal(parts[k]->key, key) || !kv_form_equal(parts[k]->value, value) ||
                    parts[k]->residual != cases[i].residual || parts[k]->exact_first != cases[i].first ||
                    parts[k]->flush != cases[i].flush)
                    fail_msg("'%s' is read otherwise", cases[i].config ? cases[i].config : "");
            }
        }
    }
}

/* Every backend's edges of a group, against heads of 64 numbers and pages of 128. */
static void groups_divide_heads_or_pages(void **state) {
    (void)state;
    static const struct {
        const char *config;
        int dim;
        const char *part; /* NULL: accepted */
    } cases[] = {
        {"q_group_size=64", 64, NULL},
        {"q_group_size=16", 64, NULL},
        {"q_group_size=48", 64, "q_group_size is 48, allowed for heads of 64: 16, 32, 64"},
        {"q_group_size=8", 64, "16, 32, 64"},
        {"q_group_size=128", 64, "16, 32, 64"},
        {"q_group_size=40", 80, "16, 80"},
        {"backend=quanto,q_group_size=1", 64, NULL},
        {"backend=quanto,q_group_size=128", 64, "q_group_size is 128, allowed for heads of 64: 1, 2, 4, 8, 16"},
        {"backend=quanto,q_group_size=64", 32, "allowed for heads of 32: 1, 2, 4, 8, 16, 32"},
        {"backend=quanto", 32, NULL},
        {"backend=quanto", 80, NULL},
        {"backend=hqq", 16, NULL},
        {"backend=quanto,axis_key=-1,axis_value=-1,q_group_size=128", 64, NULL},
        {"backend=quanto,axis_key=-1,axis_value=-1,q_group_size=256", 64, "allowed for pages of 128"},
        {"backend=hqq,q_group_size=32", 64, NULL},
        {"backend=hqq,q_group_size=24", 64, "allowed for pages of 128: 1, 2, 4, 8, 16, 32, 64, 128"},
        {"backend=hqq,q_group_size=32,page_tokens=16", 64, "allowed for pages of 16"},
        {"backend=hqq,axis_value=1,q_group_size=128", 64, "allowed for heads of 64"},
        {"", 8, "heads of 16, 32, 48, ... 1024 numbers; the model's keys have 8"},
        {"", 24, "have 24"},
        {"", 1040, "have 1040"},
        {"", 1024, NULL},
        {"backend=quanto,nbits=2", 8, "have 8"},
        {"layers=0-2:f32", 8, NULL},
        {"layers=0-1:f32", 8, "have 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kv_plan plan;
        kv_spec specs[3];
        plans_entries(specs, 3, cases[i].dim);
        assert_ok(plans_make(&plan, "quantized", cases[i].config));
        mn_status status = kv_plan_specs(&plan, specs, 3, 3, NULL);
        if (!cases[i].part) {
            if (status != MN_OK) fail_msg("%s: %s", cases[i].config, mn_last_error());
            kv_pool *pool = NULL;
            kv_cache *cache = NULL;
            assert_ok(kv_pool_open(&pool, 0));
            assert_ok(kv_open(&cache, pool, specs, 3, &plan.options));
            kv_close(&cache);
            kv_pool_close(&pool);
        } else if (status != MN_E_ARG || !strstr(mn_last_error(), cases[i].part)) {
            fail_msg("%s: status %d, '%s' lacks '%s'", cases[i].config, status, mn_last_error(), cases[i].part);
        }
    }
}

static void forms_of_single_layers(void **state) {
    (void)state;
    kv_plan plan;
    kv_spec specs[8];
    plans_entries(specs, 8, 32);
    assert_ok(plans_make(&plan, "quantized", "layers=0-1:bf16,5:k4v2bit, 3:f32 ,rest:3bit,nbits=8,backend=hqq"));
    assert_ok(kv_plan_specs(&plan, specs, 8, 8, NULL));
    static const struct {
        kv_codec codec, exact;
        int k, v;
    } wanted[8] = {{KV_BF16, KV_BF16, 16, 16}, {KV_BF16, KV_BF16, 16, 16}, {KV_HQQ, KV_BF16, 3, 3},
                   {KV_F32, KV_F32, 32, 32},   {KV_HQQ, KV_BF16, 3, 3},    {KV_HQQ, KV_BF16, 4, 2},
                   {KV_HQQ, KV_BF16, 3, 3},    {KV_HQQ, KV_BF16, 3, 3}};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(specs[i].key.codec, wanted[i].codec);
        assert_int_equal(specs[i].value.codec, wanted[i].codec);
        assert_int_equal(specs[i].exact, wanted[i].exact);
        assert_int_equal(specs[i].key.bits, wanted[i].k);
        assert_int_equal(specs[i].value.bits, wanted[i].v);
        bool coded = wanted[i].codec == KV_HQQ;
        assert_int_equal(specs[i].residual, coded ? 128 : 0);
        assert_int_equal(specs[i].flush, coded);
    }
    /* Without `rest` the others have the plan's own bits. */
    plans_entries(specs, 8, 32);
    assert_ok(plans_make(&plan, "quantized", "layers=7:1bit,key_nbits=6"));
    assert_ok(kv_plan_specs(&plan, specs, 8, 8, NULL));
    assert_int_equal(specs[6].key.bits, 6);
    assert_int_equal(specs[6].value.bits, 4);
    assert_int_equal(specs[7].key.bits, 1);
    plans_entries(specs, 8, 32);
    assert_ok(plans_make(&plan, "quantized", "layers=2-8:1bit"));
    assert_fails(MN_E_ARG, "layers names layer 8, allowed: 0 to 7", kv_plan_specs(&plan, specs, 8, 8, NULL));
    /* As many rules as fit, and one more. */
    bytes text = {0};
    bytes_append_text(&text, "layers=0:2bit");
    for (int i = 1; i < KV_MAX_RULES; i++) bytes_printf(&text, ",%d:2bit", i);
    assert_ok(plans_make(&plan, "quantized", bytes_text(&text)));
    assert_int_equal(plan.n_rules, KV_MAX_RULES);
    bytes_append_text(&text, ",99:2bit");
    assert_fails(MN_E_ARG, "more than 32", plans_make(&plan, "quantized", bytes_text(&text)));
    while (text.n < 700) bytes_append_text(&text, ",99:2bit");
    assert_fails(MN_E_ARG, "allowed: up to 511", plans_make(&plan, "quantized", bytes_text(&text)));
    bytes_clear(&text);
}

/* ---- windows ---- */

static void windows_are_combined_with_the_models(void **state) {
    (void)state;
    static const struct {
        const char *implementation, *config;
        int own[2]; /* of the two layers */
        int window[2], sinks[2];
        const char *part; /* of the refusal */
    } cases[] = {
        {"dynamic", "", {0, 8}, {0, 8}, {0, 0}, NULL},
        {"hybrid", "", {0, 8}, {0, 8}, {0, 0}, NULL},
        {"sliding_window", "", {0, 0}, {0, 0}, {0, 0}, "needs window_length"},
        {"quantized+sliding_window", "", {0, 0}, {0, 0}, {0, 0}, "'quantized+sliding_window' needs window_length"},
        {"sliding_window", "", {8, 8}, {8, 8}, {0, 0}, NULL},
        {"sliding_window", "", {0, 8}, {8, 8}, {0, 0}, NULL},
        {"sliding_window", "window_length=1", {0, 0}, {1, 1}, {0, 0}, NULL},
        {"sliding_window", "window_length=20", {0, 8}, {20, 8}, {0, 0}, NULL},
        {"sliding_window", "window_length=5", {0, 8}, {5, 5}, {0, 0}, NULL},
        {"sink", "", {0, 0}, {1020, 1020}, {4, 4}, NULL},
        {"sink", "window_length=20", {0, 8}, {16, 8}, {4, 0}, NULL},
        {"sink", "window_length=6,num_sink_tokens=5", {0, 8}, {1, 1}, {5, 5}, NULL},
        {"sink", "window_length=6,num_sink_tokens=0", {0, 0}, {6, 6}, {0, 0}, NULL},
        {"quantized+sink", "window_length=20", {0, 0}, {16, 16}, {4, 4}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kv_plan plan;
        kv_spec specs[3];
        plans_entries(specs, 3, 16);
        for (int k = 0; k < 2; k++) specs[k].window = cases[i].own[k];
        specs[2].write_once = true;
        assert_ok(plans_make(&plan, cases[i].implementation, cases[i].config));
        mn_status status = kv_plan_specs(&plan, specs, 3, 2, NULL);
        if (cases[i].part) {
            if (status != MN_E_ARG || !strstr(mn_last_error(), cases[i].part))
                fail_msg("case %zu: status %d, %s", i, status, mn_last_error());
            continue;
        }
        assert_int_equal(status, MN_OK);
        for (int k = 0; k < 2; k++) {
            if (specs[k].window != cases[i].window[k] || specs[k].sinks != cases[i].sinks[k])
                fail_msg("case %zu: layer %d has window %d and %d sinks", i, k, specs[k].window, specs[k].sinks);
        }
        assert_int_equal(specs[2].window, 0);
        assert_int_equal(specs[2].sinks, 0);
    }
}

static void plans_and_models(void **state) {
    (void)state;
    kv_plan plan;
    kv_spec specs[4];
    plans_entries(specs, 4, 16);
    assert_ok(plans_make(&plan, "static", NULL));
    assert_true(plan.self.preallocates);
    assert_fails(MN_E_ARG, "'static' needs max_cache_len", kv_plan_specs(&plan, specs, 4, 4, NULL));
    assert_ok(plans_make(&plan, "self=dynamic,cross=quantized", NULL));
    assert_fails(MN_E_ARG, "no cross attention", kv_plan_specs(&plan, specs, 4, 4, NULL));
    for (int i = 0; i < 4; i++) { /* any one is enough */
        specs[i].write_once = true;
        assert_ok(kv_plan_specs(&plan, specs, 4, 4, NULL));
        plans_entries(specs, 4, 16);
    }
    specs[2].write_once = specs[3].write_once = true;
    assert_ok(plans_make(&plan, "self=offloaded,cross=quantized", "layers=1:2bit,path=/tmp/a"));
    assert_string_equal(plan.path, "/tmp/a");
    assert_ok(kv_plan_specs(&plan, specs, 4, 2, NULL));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(specs[i].is_offloaded, i < 2);
        assert_int_equal(specs[i].key.codec, i < 2 ? KV_BF16 : KV_MNEME);
    }
    assert_int_equal(specs[2].key.bits, 4);
    assert_int_equal(specs[3].key.bits, 2);
}

static void homes(void **state) {
    (void)state;
    kv_plan plan;
    kv_spec specs[2];
    assert_ok(plans_make(&plan, "offloaded", NULL));
    assert_true(plan.self.is_offloaded);
    assert_string_equal(plan.path, "");
    assert_ok(plans_make(&plan, "offloaded", "path=/var/tmp/a, b,home=FILE"));
    assert_true(plan.self.is_offloaded);
    assert_string_equal(plan.path, "/var/tmp/a, b");
    plans_entries(specs, 2, 6);
    specs[1] = (kv_spec){.kind = KV_STATE, .state_bytes = 64, .checkpoints = 1};
    assert_ok(kv_plan_specs(&plan, specs, 2, 2, NULL));
    assert_true(specs[0].is_offloaded);
    assert_false(specs[1].is_offloaded); /* a state has nothing else, and is written at every step */
    assert_ok(plans_make(&plan, "offloaded_static", "home=memory,max_cache_len=9"));
    assert_false(plan.self.is_offloaded);
    assert_int_equal(plan.options.reserve, 9);
}

/* Strategies of pages need a layer with pages; sinks need keys that can be moved. */
static void states_and_fixed_keys(void **state) {
    (void)state;
    static const char *const of_pages[] = {"offloaded", "offloaded_static", "quantized", "sliding_window",
                                           "sink",      "quantized+static"};
    static const char *const others[] = {"dynamic", "static", "none", "hybrid", "mamba"};
    kv_plan plan;
    kv_spec specs[2];
    for (size_t i = 0; i < sizeof of_pages / sizeof *of_pages; i++) {
        bool preallocates = strstr(of_pages[i], "static"), windows = of_pages[i][0] == 's';
        assert_ok(plans_make(&plan, of_pages[i],
                             preallocates ? "max_cache_len=32"
                             : windows    ? "window_length=9"
                                          : NULL));
        for (int n_states = 0; n_states <= 2; n_states++) {
            plans_entries(specs, 2, 16);
            for (int k = 0; k < n_states; k++)
                specs[k] = (kv_spec){.kind = KV_STATE, .state_bytes = 64, .checkpoints = 1};
            if (n_states < 2) {
                assert_ok(kv_plan_specs(&plan, specs, 2, 2, NULL));
            } else {
                assert_fails(MN_E_ARG, "applies to keys and values; every layer of the model holds a recurrent state",
                             kv_plan_specs(&plan, specs, 2, 2, NULL));
            }
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_ok(plans_make(&plan, others[i], strcmp(others[i], "static") ? NULL : "max_cache_len=32"));
        specs[0] = specs[1] = (kv_spec){.kind = KV_STATE, .state_bytes = 64, .checkpoints = 1};
        assert_ok(kv_plan_specs(&plan, specs, 2, 2, NULL));
    }
    plans_entries(specs, 2, 16);
    specs[0].is_fixed = specs[1].is_fixed = true;
    assert_ok(plans_make(&plan, "sink", "window_length=9,num_sink_tokens=2"));
    assert_fails(MN_E_ARG, "'sink' moves keys", kv_plan_specs(&plan, specs, 2, 2, NULL));
    assert_ok(plans_make(&plan, "sink", "window_length=9,num_sink_tokens=0"));
    assert_ok(kv_plan_specs(&plan, specs, 2, 2, NULL));
    assert_int_equal(specs[1].window, 9);
}

static void calibration_belongs_to_quantized_keys(void **state) {
    (void)state;
    kv_head_calibration calibration[4] = {{.dim = 16}, {.dim = 16}, {.dim = 16}, {.dim = 16}};
    kv_calibration set = {.n_layers = 2, .n_heads = 2, .dim = 16, .calibration = calibration};
    kv_spec specs[4];
    kv_plan plan;
    plans_entries(specs, 4, 16);
    specs[2].write_once = specs[3].write_once = true;
    assert_ok(plans_make(&plan, "quantized", "layers=0:bf16"));
    assert_ok(kv_plan_specs(&plan, specs, 4, 2, &set));
    assert_null(specs[0].calibration);
    assert_ptr_equal(specs[1].calibration, &calibration[2]);
    assert_null(specs[3].calibration);
    assert_int_equal(specs[2].key.codec, KV_BF16); /* rules hold for a layer's cross attention too */
    assert_int_equal(specs[3].key.codec, KV_MNEME);
    plans_entries(specs, 4, 16);
    assert_ok(plans_make(&plan, "quantized", "backend=quanto"));
    assert_ok(kv_plan_specs(&plan, specs, 4, 4, &set));
    for (int i = 0; i < 4; i++) assert_null(specs[i].calibration);
}

/* ---- robustness ---- */

static void failing_allocations(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"dinamic", NULL},
        {"dynamic", "nbits=4"},
        {"dynamic", "lenght=4"},
        {"quantized", "{\"nbits\": 3, \"backend\": \"hqq\", \"layers\": \"0:2bit\"}"},
        {"quantized", "{\"nbitss\": 3}"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        kv_plan plan;
        int64_t before = mem_count().allocations, live = mem_count().live;
        mn_status wanted = plans_make(&plan, texts[i][0], texts[i][1]);
        int64_t n = mem_count().allocations - before;
        assert_true(n > 0);
        for (int64_t k = 1; k <= n; k++) {
            mem_fail_after(k);
            mn_status status = plans_make(&plan, texts[i][0], texts[i][1]);
            mem_fail_after(0);
            /* A sentence may lose its list of names, but stays a refusal. */
            assert_true(status == MN_E_NOMEM || (status == MN_E_ARG && wanted == MN_E_ARG));
            assert_int_equal(mem_count().live, live);
        }
    }
}

/* Texts put together at random from pieces of the grammar: a plan or a sentence, nothing else. */
static void random_texts(void **state) {
    (void)state;
    static const char *const pieces[] = {"none",
                                         "dynamic",
                                         "static",
                                         "offloaded",
                                         "quantized",
                                         "sink",
                                         "sliding_window",
                                         "+",
                                         ",",
                                         "=",
                                         "self=",
                                         "cross=",
                                         "nbits",
                                         "layers=",
                                         "0-1",
                                         "rest",
                                         ":",
                                         "bf16",
                                         "4bit",
                                         "k4v2bit",
                                         "backend=",
                                         "hqq",
                                         "quanto",
                                         "-",
                                         "1",
                                         "99999999999",
                                         "{\"",
                                         "\":",
                                         "}",
                                         " ",
                                         "window_length=",
                                         "\xff",
                                         "max_cache_len=8",
                                         "q_group_size=16",
                                         "axis_key=-1"};
    uint64_t seed = 11;
    int n_made = 0;
    for (int round = 0; round < 40000; round++) {
        char texts[2][512] = {"", ""};
        for (int which = 0; which < 2; which++) {
            for (uint64_t n = test_random(&seed) % 8; n > 0; n--)
                strcat(texts[which], pieces[test_random(&seed) % (sizeof pieces / sizeof pieces[0])]);
        }
        static const char *const names[] = {"quantized", "sink+quantized", "offloaded"};
        const char *implementation = round % 2 ? names[round % 3] : texts[0];
        kv_plan plan;
        int64_t live = mem_count().live;
        mn_status status = plans_make(&plan, implementation, texts[1]);
        if (status == MN_OK) {
            kv_spec specs[4];
            plans_entries(specs, 4, 16);
            n_made++;
            status = kv_plan_specs(&plan, specs, 4, 4, NULL);
        }
        if (status != MN_OK && (status != MN_E_ARG || strlen(mn_last_error()) < 10))
            fail_msg("'%s', '%s': status %d, %s", implementation, texts[1], status, mn_last_error());
        assert_int_equal(mem_count().live, live);
    }
    assert_true(n_made > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_names),
        cmocka_unit_test(names_of_two_kinds),
        cmocka_unit_test(names_of_classes),
        cmocka_unit_test(keys_of_transformers),
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(ranges_agree_with_their_text),
        cmocka_unit_test(empty_values_are_texts),
        cmocka_unit_test(numbers_of_the_options),
        cmocka_unit_test(forms_of_backends),
        cmocka_unit_test(groups_divide_heads_or_pages),
        cmocka_unit_test(forms_of_single_layers),
        cmocka_unit_test(windows_are_combined_with_the_models),
        cmocka_unit_test(plans_and_models),
        cmocka_unit_test(homes),
        cmocka_unit_test(states_and_fixed_keys),
        cmocka_unit_test(calibration_belongs_to_quantized_keys),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(random_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
