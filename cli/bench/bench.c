/* `mneme bench`: prefill and decoding speed with llama-bench's options and JSON keys. Tokenizing and sampling are not
 * measured; the tokens are random.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/file.h"
#include "base/num.h"
#include "bench/bench_caches.h"
#include "bench/bench_serve.h"
#include "config.h"
#include "loaded_model.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "commands.h"

enum { MOST_VALUES = 64, MOST_TESTS = 1024, MOST_TOKENS = 1 << 24, MOST_ROWS = 1024 };

typedef struct list {
    int n, values[MOST_VALUES];
} list;

typedef struct bench_test {
    int prompt, gen, depth;
    int rows; /* sequences, each with its own prompt and depth, that are decoded together */
} bench_test;

typedef struct result {
    bench_test test;
    int threads, n;
    uint64_t samples_ns[10000]; /* as many as --repetitions allows */
    uint64_t cpu_ns;            /* processor time of all threads in all samples */
    double avg_ns, stddev_ns, avg_ts, stddev_ts;
    char time[32];
    mn_cache_info cache;
    long peak_rss; /* bytes, of the process so far */
} result;

typedef struct bench {
    const options *o;
    const char *form; /* md, csv, json, jsonl */
    list prompts, gens, depths, threads, parallel;
    list pg; /* pairs */
    bench_test tests[MOST_TESTS];
    int n_tests, n_printed, repetitions;
    char cpu_name[128];
    loaded_model e;
    mn_generation_config *config; /* has the texts of the cache */
    mn_cache_options cache;
    mn_cache_summary kind; /* of the cache */
    int32_t *ids;
    size_t n_ids;
    mn_session *sessions[MOST_ROWS];
    result result;
} bench;

/* ---- options ---- */

static mn_status list_add(list *l, long value, const char *text) {
    if (value < 0 || value > MOST_TOKENS)
        MN_FAIL(MN_E_ARG, "'%s' holds %ld; allowed: 0 to %d", text, value, (int)MOST_TOKENS);
    if (l->n == MOST_VALUES) MN_FAIL(MN_E_ARG, "'%s' has more than %d values", text, (int)MOST_VALUES);
    l->values[l->n++] = (int)value;
    return MN_OK;
}

/* "512", "128,256", and llama-bench's ranges first-last, first-last+step and first-last*factor. */
static mn_status list_read(list *l, const char *text) {
    for (const char *at = text; *at;) {
        char *end = NULL;
        long first = strtol(at, &end, 10), last = first, step = 1;
        char how = '+';
        bool ok = end != at && *at >= '0' && *at <= '9';
        if (ok && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            ok = end != at;
            if (ok && (*end == '+' || *end == '*')) {
                how = *end;
                at = end + 1;
                step = strtol(at, &end, 10);
                ok = end != at && step > (how == '*');
            }
        }
        if (!ok || (*end && *end != ',') || last < first || (how == '*' && first == 0 && last > 0)) {
            MN_FAIL(MN_E_ARG, "'%s' is no list of numbers; as in 512, 128,256 or 128-1024*2", text);
        }
        for (long value = first; value <= last; value = how == '*' ? value * step : value + step) {
            MN_TRY(list_add(l, value, text));
            if (value == 0 && how == '*') break;
        }
        at = end + (*end == ',');
    }
    if (l->n == 0) MN_FAIL(MN_E_ARG, "an empty list; as in 512 or 128,256");
    return MN_OK;
}

/* New tokens are measured for every number of rows; prompts alone for one row, as rows compute prompts one after the
 * other. */
static void add_test(bench *b, int prompt, int gen, int depth) {
    for (int i = 0; i < (gen ? b->parallel.n : 1); i++) {
        int rows = gen ? b->parallel.values[i] : 1;
        if (prompt + gen > 0 && b->n_tests < MOST_TESTS)
            b->tests[b->n_tests++] = (bench_test){prompt, gen, depth, rows};
    }
}

static mn_status check_values(const list *l, int lo, int hi, const char *name) {
    for (int i = 0; i < l->n; i++) {
        if (l->values[i] < lo || l->values[i] > hi)
            MN_FAIL(MN_E_ARG, "%s: %d is out of range; allowed: %d to %d", name, l->values[i], lo, hi);
    }
    return MN_OK;
}

static mn_status read_options(bench *b) {
    const options *o = b->o;
    MN_TRY(status_context(list_read(&b->prompts, option_text(o, OPT_N_PROMPT, option_is_set(o, OPT_PG) ? "0" : "512")),
                          "-p"));
    MN_TRY(
        status_context(list_read(&b->gens, option_text(o, OPT_N_GEN, option_is_set(o, OPT_PG) ? "0" : "128")), "-n"));
    MN_TRY(status_context(list_read(&b->depths, option_text(o, OPT_N_DEPTH, "0")), "-d"));
    MN_TRY(status_context(list_read(&b->threads, option_text(o, OPT_BENCH_THREADS, "0")), "-t"));
    if (option_is_set(o, OPT_PG)) MN_TRY(status_context(list_read(&b->pg, option_text(o, OPT_PG, "")), "-pg"));
    if (b->pg.n % 2) MN_FAIL(MN_E_ARG, "-pg takes pairs, as in 512,128");
    MN_TRY(status_context(list_read(&b->parallel, option_text(o, OPT_PARALLEL, "1")), "-npl"));
    if (option_is_set(o, OPT_BENCH_THREADS)) MN_TRY(check_values(&b->threads, 1, MN_MOST_THREADS, "-t"));
    MN_TRY(check_values(&b->parallel, 1, MOST_ROWS, "-npl"));
    for (int d = 0; d < b->depths.n; d++) {
        for (int i = 0; i < b->prompts.n; i++) add_test(b, b->prompts.values[i], 0, b->depths.values[d]);
        for (int i = 0; i < b->gens.n; i++) add_test(b, 0, b->gens.values[i], b->depths.values[d]);
        for (int i = 0; i + 1 < b->pg.n; i += 2) add_test(b, b->pg.values[i], b->pg.values[i + 1], b->depths.values[d]);
    }
    if (b->n_tests == 0) MN_FAIL(MN_E_ARG, "nothing to measure: -p and -n are both 0");
    b->repetitions = (int)option_number(o, OPT_REPETITIONS, 5);
    b->form = option_text(o, OPT_OUTPUT, option_on(o, OPT_JSON) ? "json" : "md");
    mn_cache_options_init(&b->cache, sizeof b->cache);
    MN_TRY(cache_options_read(o, &b->cache));
    return cache_check_named(&b->cache);
}

/* ---- measuring ---- */

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Row r takes the ids from the r-th on. */
static mn_status make_ids(bench *b, const bench_test *test) {
    size_t need = (size_t)test->depth + (size_t)test->prompt + (size_t)test->gen + (size_t)test->rows;
    if (need > b->n_ids) {
        mem_free(b->ids);
        b->n_ids = 0;
        b->ids = mem_alloc(need, sizeof *b->ids);
        if (!b->ids) return mem_no_memory();
        b->n_ids = need;
        for (size_t i = 0; i < need; i++) b->ids[i] = (int32_t)(random_bits(1, 0, i) % (uint64_t)b->e.info.vocab_size);
    }
    return MN_OK;
}

/* Tokens [begin, begin + n) of every row: a prompt in one call, new tokens one by one for all rows together. */
static mn_status feed_prompts(bench *b, int rows, int begin, int n) {
    for (int r = 0; n > 0 && r < rows; r++)
        MN_TRY(mn_session_step(b->sessions[r], b->ids + r + begin, (size_t)n, NULL));
    return MN_OK;
}

static mn_status feed_new(bench *b, int rows, int begin, int n) {
    for (int i = 0; i < n; i++) MN_TRY(mn_sessions_step(b->sessions, (size_t)rows, b->ids + begin + i));
    return MN_OK;
}

/* One sample: the sessions are at the test's depth before and after. */
static mn_status sample(bench *b, const bench_test *test, uint64_t *ns) {
    uint64_t start = clock_ns(CLOCK_MONOTONIC), cpu_start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    MN_TRY(feed_prompts(b, test->rows, test->depth, test->prompt));
    MN_TRY(feed_new(b, test->rows, test->depth + test->prompt, test->gen));
    *ns = clock_ns(CLOCK_MONOTONIC) - start;
    b->result.cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
    uint64_t held = 0;
    for (int r = 0; r < test->rows; r++) {
        b->result.cache.size = sizeof b->result.cache;
        MN_TRY(mn_session_cache(b->sessions[r], &b->result.cache));
        held += b->result.cache.bytes;
        MN_TRY(mn_session_truncate(b->sessions[r], test->depth));
    }
    b->result.cache.bytes = held;
    return MN_OK;
}

static mn_status open_sessions(bench *b, const bench_test *test) {
    mn_cache_options cache = b->cache;
    int64_t total = (int64_t)test->depth + test->prompt + test->gen;
    if (b->kind.preallocates && cache.max_cache_len <= 0) cache.max_cache_len = total;
    for (int r = 0; r < test->rows; r++) MN_TRY(mn_session_open(&b->sessions[r], b->e.model, &cache));
    return MN_OK;
}

static mn_status measure_open(bench *b, const bench_test *test) {
    bench_test warm = {test->prompt, test->gen > 1 ? 1 : test->gen, test->depth, test->rows};
    uint64_t ns = 0;
    for (int r = 0; test->depth > 0 && r < test->rows; r++) {
        progress_line("depth %d: row %d of %d", test->depth, r + 1, test->rows);
        MN_TRY(mn_session_step(b->sessions[r], b->ids + r, (size_t)test->depth, NULL));
    }
    if (!option_on(b->o, OPT_NO_WARMUP)) MN_TRY(sample(b, &warm, &ns));
    b->result.cpu_ns = 0;
    for (int i = 0; i < b->repetitions; i++) {
        progress_line("depth %d, prompt %d, new %d, rows %d: run %d of %d", test->depth, test->prompt, test->gen,
                      test->rows, i + 1, b->repetitions);
        MN_TRY(sample(b, test, &b->result.samples_ns[i]));
        if (interrupt_seen()) return status_fail(MN_E_CANCELLED, "cancelled");
    }
    return MN_OK;
}

static mn_status measure(bench *b, const bench_test *test) {
    MN_TRY(make_ids(b, test));
    mn_status status = open_sessions(b, test);
    if (status == MN_OK) {
        interrupt_watch(b->sessions[0]);
        status = measure_open(b, test);
        interrupt_unwatch();
        progress_clear();
    }
    for (int r = 0; r < test->rows; r++) mn_session_close(&b->sessions[r]);
    return status;
}

static double tokens_of(const bench_test *test) {
    return (double)test->rows * (test->prompt + test->gen);
}

static void summarise(bench *b, const bench_test *test) {
    result *r = &b->result;
    double n = b->repetitions, tokens = tokens_of(test), sums[4] = {0};
    for (int i = 0; i < b->repetitions; i++) {
        double ns = (double)r->samples_ns[i], ts = tokens * 1e9 / ns;
        sums[0] += ns;
        sums[1] += ns * ns;
        sums[2] += ts;
        sums[3] += ts * ts;
    }
    r->avg_ns = sums[0] / n;
    r->avg_ts = sums[2] / n;
    r->stddev_ns = n > 1 ? sqrt(fmax(0, (sums[1] - sums[0] * sums[0] / n) / (n - 1))) : 0;
    r->stddev_ts = n > 1 ? sqrt(fmax(0, (sums[3] - sums[2] * sums[2] / n) / (n - 1))) : 0;
    r->test = *test;
    r->n = b->repetitions;
    r->threads = b->e.info.threads;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    r->peak_rss = usage.ru_maxrss * 1024;
}

static void stamp(result *r) {
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(r->time, sizeof r->time, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void read_cpu_name(bench *b) {
    char text[4096];
    text[file_head(text, sizeof text - 1, "/proc/cpuinfo")] = 0;
    const char *name = strstr(text, "model name"), *colon = name ? strchr(name, ':') : NULL;
    if (!colon || strlen(colon) < 2) colon = ": unknown";
    snprintf(b->cpu_name, sizeof b->cpu_name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
}

/* ---- printing ---- */

void bench_put_csv(bytes *b, const char *text, size_t n) {
    bytes_append_text(b, "\"");
    for (size_t i = 0; i < n; i++) bytes_append(b, text[i] == '"' ? "\"\"" : text + i, text[i] == '"' ? 2 : 1);
    bytes_append_text(b, "\"");
}

static void put_member(bytes *b, bool as_json, const char *key, const char *text, bool is_text) {
    if (as_json) {
        bytes_printf(b, "%s\"%s\":", b->n ? "," : "", key);
        if (is_text) {
            json_put_string(b, text, strlen(text));
        } else {
            bytes_append_text(b, text);
        }
    } else {
        bytes_append_text(b, b->n ? "," : "");
        bench_put_csv(b, text, strlen(text));
    }
}

/* The members of llama-bench that apply here, or have the value of a machine without GPU. head: the names only. */
static void put_members(const bench *b, bytes *out, bool as_json, bool head) {
    const result *r = &b->result;
    const mn_model_info *info = &b->e.info;
    char type[64], n[11][40];
    snprintf(type, sizeof type, "%s %s", info->architecture, info->compute_type);
    const long long integers[] = {(long long)info->file_bytes,
                                  (long long)info->parameters,
                                  b->cache.prefill_chunk,
                                  r->threads,
                                  r->test.prompt,
                                  r->test.gen,
                                  r->test.depth,
                                  (long long)r->cache.bytes,
                                  r->peak_rss,
                                  (long long)(r->cpu_ns / (uint64_t)r->n),
                                  r->test.rows};
    for (int i = 0; i < 11; i++) snprintf(n[i], sizeof n[i], "%lld", integers[i]);
    char reals[4][40];
    const double values[] = {r->avg_ns, r->stddev_ns, r->avg_ts, r->stddev_ts};
    for (int i = 0; i < 4; i++) snprintf(reals[i], sizeof reals[i], i < 2 ? "%.0f" : "%.6f", values[i]);
    const struct {
        const char *key, *text;
        bool is_text;
    } members[] = {
        {"build_commit", mn_version(), true},
        {"build_number", "0", false},
        {"cpu_info", b->cpu_name, true},
        {"gpu_info", "", true},
        {"backends", "CPU", true},
        {"model_filename", b->e.path, true},
        {"model_type", type, true},
        {"model_size", n[0], false},
        {"model_n_params", n[1], false},
        {"n_batch", n[2], false},
        {"n_ubatch", n[2], false},
        {"n_threads", n[3], false},
        {"cpu_mask", "0x0", true},
        {"cpu_strict", "false", false},
        {"poll", "0", false},
        {"type_k", r->cache.dtype, true},
        {"type_v", r->cache.dtype, true},
        {"n_gpu_layers", "0", false},
        {"split_mode", "none", true},
        {"main_gpu", "0", false},
        {"no_kv_offload", "false", false},
        {"flash_attn", "true", false},
        {"tensor_split", "0.00", true},
        {"use_mmap", "true", false},
        {"embeddings", "false", false},
        {"n_prompt", n[4], false},
        {"n_gen", n[5], false},
        {"n_depth", n[6], false},
        {"test_time", r->time, true},
        {"avg_ns", reals[0], false},
        {"stddev_ns", reals[1], false},
        {"avg_ts", reals[2], false},
        {"stddev_ts", reals[3], false},
        {"cache_implementation", b->cache.implementation, true},
        {"cache_bytes", n[7], false},
        {"peak_rss", n[8], false},
        {"cpu_level", info->cpu, true},
        {"avg_cpu_ns", n[9], false},
        {"pl", n[10], false}, /* the name of llama-batched-bench for rows */
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const char *text = head ? members[i].key : members[i].text ? members[i].text : "";
        put_member(out, as_json, members[i].key, text, members[i].is_text);
    }
}

static void put_json(const bench *b, bytes *out) {
    const result *r = &b->result;
    double tokens = tokens_of(&r->test);
    bytes object = {0};
    put_members(b, &object, true, false);
    bytes_append_text(&object, ",\"samples_ns\":[");
    for (int i = 0; i < r->n; i++) bytes_printf(&object, "%s%llu", i ? "," : "", (unsigned long long)r->samples_ns[i]);
    bytes_append_text(&object, "],\"samples_ts\":[");
    for (int i = 0; i < r->n; i++)
        bytes_printf(&object, "%s%.6f", i ? "," : "", tokens * 1e9 / (double)r->samples_ns[i]);
    bytes_printf(out, "{%s]}", bytes_text(&object));
    out->failed = out->failed || object.failed;
    bytes_clear(&object);
}

static void put_table(const bench *b, bytes *out) {
    const result *r = &b->result;
    char test[64], part[48] = "", rate[64], model[64];
    if (b->n_printed == 0) {
        bytes_append_text(
            out,
            "| model                | size      | params    | threads | cache          |               test |                  t/s |\n"
            "| -------------------- | --------: | --------: | ------: | -------------- | -----------------: | -------------------: |\n");
    }
    if (r->test.depth) snprintf(part, sizeof part, " @ d%d", r->test.depth);
    if (r->test.rows > 1) snprintf(part + strlen(part), sizeof part - strlen(part), " x%d", r->test.rows);
    if (r->test.prompt && r->test.gen) {
        snprintf(test, sizeof test, "pp%d+tg%d%s", r->test.prompt, r->test.gen, part);
    } else {
        snprintf(test, sizeof test, "%s%d%s", r->test.prompt ? "pp" : "tg", r->test.prompt + r->test.gen, part);
    }
    snprintf(rate, sizeof rate, "%.2f \xC2\xB1 %.2f", r->avg_ts, r->stddev_ts);
    snprintf(model, sizeof model, "%.12s %.8s", b->e.info.architecture, b->e.info.compute_type);
    char cache[64];
    snprintf(cache, sizeof cache, "%s %s", b->cache.implementation, r->cache.dtype);
    bytes_printf(out, "| %-20s | %5.1f MiB | %7.2f M | %7d | %-14s | %18s | %21s |\n", model,
                 (double)b->e.info.file_bytes / (1 << 20), (double)b->e.info.parameters / 1e6, r->threads, cache, test,
                 rate);
}

static void print_result(bench *b) {
    bytes out = {0};
    if (strcmp(b->form, "md") == 0) {
        put_table(b, &out);
    } else if (strcmp(b->form, "csv") == 0) {
        bytes line = {0};
        if (b->n_printed == 0) put_members(b, &line, false, true);
        if (line.n) bytes_append_text(&line, "\n");
        put_bytes(&line);
        put_members(b, &out, false, false);
        bytes_append_text(&out, "\n");
    } else {
        bool lines = strcmp(b->form, "jsonl") == 0;
        if (!lines) bytes_append_text(&out, b->n_printed ? ",\n" : "[\n");
        put_json(b, &out);
        if (lines) bytes_append_text(&out, "\n");
    }
    b->n_printed++;
    put_bytes(&out);
    if (b->result.stddev_ts > 0.1 * b->result.avg_ts) {
        print_message("warning: the samples differ by %.0f %%; something else used the machine",
                      b->result.stddev_ts / b->result.avg_ts * 100);
    }
}

static int bench_all(bench *b) {
    const options *o = b->o;
    mn_status status = read_options(b);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    read_cpu_name(b);
    for (int t = 0; t < b->threads.n; t++) {
        int code = loaded_model_open(&b->e, o, o->n_positional ? o->positional[0] : NULL, b->threads.values[t]);
        if (code == EXIT_DONE && option_on(o, OPT_PRINT_CONFIG)) return options_print_config(o, &b->e);
        if (code != EXIT_DONE) return code;
        if (t == 0) status = options_cache(&b->config, &b->cache, &b->kind, o, &b->e);
        if (status != MN_OK) return report(o, exit_of(status), "cache");
        if (!b->cache.implementation) b->cache.implementation = "dynamic";
        for (int i = 0; i < b->n_tests; i++) {
            stamp(&b->result);
            status = measure(b, &b->tests[i]);
            if (status != MN_OK) return report(o, exit_of(status), NULL);
            summarise(b, &b->tests[i]);
            print_result(b);
        }
        loaded_model_close(&b->e);
    }
    if (strcmp(b->form, "json") == 0) put("\n]\n", 3);
    return EXIT_DONE;
}

int command_bench(options *o) {
    mn_status status = bench_serve_check(o);
    if (status != MN_OK) return report(o, exit_of(status), NULL);
    if (bench_serves(o)) return bench_serve(o);
    if (bench_compares(o)) return bench_caches(o);
    bench *b = mem_alloc(1, sizeof *b);
    if (!b) return report(o, EXIT_MEMORY, NULL);
    b->o = o;
    int code = bench_all(b);
    mem_free(b->ids);
    mn_generation_config_close(&b->config);
    loaded_model_close(&b->e);
    mem_free(b);
    return code;
}
