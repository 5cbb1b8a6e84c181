/* The options of `mneme bench --serve`.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "bench/bench_serve.h"

/* Flags that mean the same with and without --serve. */
static bool is_common(option_id id) {
    static const option_id common[] = {OPT_MODEL,   OPT_OUTPUT, OPT_NO_WARMUP, OPT_JSON,
                                       OPT_VERBOSE, OPT_HELP,   OPT_HELP_ALL};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (common[i] == id) return true;
    }
    return false;
}

static bool is_of_serve(option_id id) {
    return id >= OPT_SERVE && id <= OPT_BENCH_API_KEY_FILE;
}

bool bench_serves(const options *o) {
    return option_is_set(o, OPT_SERVE);
}

mn_status bench_serve_check(const options *o) {
    for (int i = 0; i < N_OPTIONS; i++) {
        char flag[64];
        if (!option_is_set(o, (option_id)i) || o->set[i].origin != ORIGIN_FLAG || is_common((option_id)i)) continue;
        flag_spelling(flag, sizeof flag, option_table[i].name);
        if (bench_serves(o) && !is_of_serve((option_id)i))
            MN_FAIL(MN_E_ARG, "--%s has no meaning with --serve, which measures another process", flag);
        if (!bench_serves(o) && is_of_serve((option_id)i))
            MN_FAIL(MN_E_ARG, "--%s has a meaning only with --serve URL", flag);
    }
    if (bench_serves(o) && o->n_positional)
        MN_FAIL(MN_E_ARG, "'%.200s' has no meaning with --serve; --model names a model of the server",
                o->positional[0]);
    return MN_OK;
}

static mn_status read_rate(double *rate, const char *text) {
    char *end = NULL;
    *rate = strcmp(text, "inf") == 0 ? INFINITY : strtod(text, &end);
    if (end && (end == text || *end || !(*rate >= 1e-6 && *rate <= 1e6)))
        MN_FAIL(MN_E_ARG, "--request-rate: '%.80s' is no rate; allowed: 0.000001 to 1000000 requests a second, or inf",
                text);
    return MN_OK;
}

static mn_status read_percentiles(serve_plan *plan, const char *text) {
    for (const char *at = text; *at;) {
        char *end = NULL;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value >= 0 && value <= 100) ||
            plan->n_percentiles == LATENCY_MOST_PERCENTILES)
            break;
        plan->percentiles[plan->n_percentiles++] = value;
        at = end + (*end == ',');
        if (!*at) return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "--metric-percentiles: '%.80s'; allowed: up to %d numbers from 0 to 100, as in 50,90,99.9", text,
            (int)LATENCY_MOST_PERCENTILES);
}

mn_status serve_plan_read(serve_plan *plan, const options *o) {
    const char *form = option_text(o, OPT_OUTPUT, "md");
    *plan = (serve_plan){.address = option_text(o, OPT_SERVE, ""),
                         .is_chat = strcmp(option_text(o, OPT_ENDPOINT, "completions"), "chat") == 0,
                         .ignore_eos = option_number(o, OPT_SERVE_IGNORE_EOS, 1) != 0,
                         .warms_up = !option_on(o, OPT_NO_WARMUP),
                         .num_prompts = (size_t)option_number(o, OPT_NUM_PROMPTS, 100),
                         .max_concurrency = (size_t)option_number(o, OPT_MAX_CONCURRENCY, 0),
                         .input_len = (size_t)option_number(o, OPT_RANDOM_INPUT_LEN, 256),
                         .output_len = (size_t)option_number(o, OPT_RANDOM_OUTPUT_LEN, 64),
                         .prefix_len = (size_t)option_number(o, OPT_RANDOM_PREFIX_LEN, 0),
                         .seed = (uint64_t)option_number(o, OPT_BENCH_SEED, 0)};
    const char *model = o->set[OPT_MODEL].origin == ORIGIN_FLAG ? option_text(o, OPT_MODEL, "") : "";
    if (strlen(model) >= sizeof plan->model)
        MN_FAIL(MN_E_ARG, "--model has %zu bytes; allowed with --serve: up to %zu", strlen(model),
                sizeof plan->model - 1);
    memcpy(plan->model, model, strlen(model) + 1);
    if (strcmp(form, "csv") == 0) MN_FAIL(MN_E_ARG, "--output is csv; allowed with --serve: md, json, jsonl");
    MN_TRY(read_rate(&plan->request_rate, option_text(o, OPT_REQUEST_RATE, "inf")));
    return read_percentiles(plan, option_text(o, OPT_METRIC_PERCENTILES, "99"));
}

double serve_arrival_gap(const serve_plan *plan, size_t i) {
    const uint64_t stream = UINT64_MAX; /* of random numbers; words have those from 0 on */
    if (!isfinite(plan->request_rate)) return 0;
    return -log1p(-random_uniform(plan->seed, stream, i)) / plan->request_rate * 1e3;
}
