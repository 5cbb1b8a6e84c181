/* What a run needs of memory, before it runs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "model/encoder.h"
#include "session/pass.h"
#include "speech/features.h"

/* The last one as in session/pass.c. */
enum { MOST_NUMBER = 1 << 24, MOST_BATCH = 1 << 16, MOST_PASS_ROWS = 64 };

/* batch_size prompts at once, and `rows` behind each of them. */
typedef struct planned_run {
    int64_t prompt, max_new_tokens, rows, batch_size;
} planned_run;

/* What differs from run to run and from machine to machine: code of shared libraries that the kernel maps in clusters
 * of pages, what the allocator has freed and not returned, a thread's stack and arena. Measured: 0.3 to 0.9 MiB with
 * two threads. */
enum { PROCESS_BYTES = 1 << 20, THREAD_BYTES = 128 << 10 };

static mn_status check_number(const char *name, int64_t n, int64_t least, int64_t most) {
    if (n >= least && n <= most) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s is %lld, allowed: %lld to %lld", name, (long long)n, (long long)least, (long long)most);
}

/* A line of /proc/self/status, in bytes; 0: it is not there. "VmRSS:": what lies in memory now; "VmHWM:": the most that
 * ever did, where getrusage would begin with what the process that started this one had. */
static size_t status_bytes(const char *name) {
    char text[4096];
    text[file_head(text, sizeof text - 1, "/proc/self/status")] = 0;
    const char *line = strstr(text, name);
    return line ? strtoull(line + strlen(name), NULL, 10) * 1024 : 0;
}

/* Bytes of the file with this code, a program or a library, that are not in memory now: the kernel maps pages around
 * each that is used, more of them or fewer, and a run may use all. 0 where the system does not say. MN_E_NOMEM. */
static mn_status unread_code_bytes(size_t *out) {
    enum { MOST_TEXT = 16 << 20 };
    const uintptr_t here = (uintptr_t)&unread_code_bytes;
    bytes text = {0};
    size_t size = 0, resident = 0;
    unsigned long of_file = 0; /* by inode; the mappings of a file follow one another */
    bool is_ours = false;
    *out = 0;
    const mn_status status = file_read(&text, "/proc/self/smaps", MOST_TEXT);
    const char *line = status == MN_OK ? bytes_text(&text) : "";
    for (const char *end; (end = strchr(line, '\n')); line = end + 1) {
        uintptr_t first, behind;
        unsigned long inode;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &first, &behind, &inode) == 3) {
            if (inode != of_file && is_ours) break;
            if (inode != of_file) size = resident = 0;
            is_ours = is_ours || (first <= here && here < behind);
            of_file = inode;
        }
        if (strncmp(line, "Size:", 5) == 0) size += strtoull(line + 5, NULL, 10) * 1024;
        if (strncmp(line, "Rss:", 4) == 0) resident += strtoull(line + 4, NULL, 10) * 1024;
    }
    bytes_clear(&text);
    if (is_ours && size > resident) *out = size - resident;
    return status == MN_E_NOMEM ? status : MN_OK;
}

/* Prompts of which one pass computes tokens. */
static int64_t prompts_of_pass(const mn_session *s, const planned_run *run) {
    return pass_texts(s, run->prompt, run->batch_size);
}

/* Tokens of the widest pass: pieces of prompts, beside the newest tokens of other rows. */
static int64_t pass_tokens(const mn_session *s, const planned_run *run, int64_t together) {
    const int64_t pieces = prompts_of_pass(s, run) * min_i64(run->prompt, s->prefill_chunk);
    return run->batch_size > 1 ? pieces + together : max_i64(pieces, together);
}

/* Buffers of the widest pass, and what each row keeps beside its cache: logits, their copies while tokens are chosen.
 * Every prompt of a batch has a configuration of its own, and its ids are read from text. */
static size_t work_bytes(const mn_session *s, const planned_run *run, size_t quantize_bytes) {
    enum {
        ROW_COPIES = 3,
        ROW_BYTES = 16 << 10 /* tables, ids, a sequence */,
        PROMPT_BYTES = 32 << 10,
        ID_BYTES = 128
    };
    const model_core *core = s->model;
    const size_t logits = (size_t)core->net.config.vocab_size * sizeof(float);
    const size_t read_ids = ID_BYTES * (size_t)min_i64(run->prompt, MOST_NUMBER);
    const int64_t rows = run->rows * run->batch_size, together = min_i64(rows, MOST_PASS_ROWS);
    return network_token_bytes(&core->net) * (size_t)pass_tokens(s, run, together) + logits * (size_t)together +
           (ROW_COPIES * logits + ROW_BYTES) * (size_t)rows +
           (PROMPT_BYTES + read_ids) * (size_t)(run->batch_size - 1) + quantize_bytes * (size_t)core->compute.n_threads;
}

/* What hearing needs: the encoder's buffers, a window of the recording before and after it is transposed, and what is
 * kept of each recording. */
static size_t speech_bytes(const model_core *core, int64_t batch_size) {
    const model_config *c = core->net.config.encoder;
    if (!c) return 0;
    size_t window = (size_t)c->num_mel_bins * 2 * (size_t)c->max_position_embeddings * sizeof(float);
    return encoder_pass_bytes(core->encoder) + 2 * window +
           (size_t)batch_size * features_recording_bytes((int)c->num_mel_bins);
}

/* Scratch of quantizing a page of the largest entry: rows as f32, twice. */
static size_t quantize_bytes(const kv_spec *specs, int n, int page_tokens) {
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        if (specs[i].kind == KV_STATE || !kv_form_is_coded(specs[i].key)) continue;
        size_t need = 2 * (size_t)specs[i].n_heads * (size_t)specs[i].k_dim * (size_t)page_tokens * sizeof(float);
        if (need > most) most = need;
    }
    return most;
}

/* a * m + b * n; false: it does not fit. */
static bool add_products(size_t *out, size_t a, size_t m, size_t b, size_t n) {
    return size_mul(a, m, &a) && size_mul(b, n, &b) && size_add(a, b, out);
}

/* The pages of all caches together: while the last prompts are computed, the others' rows grow. The encoder's are there
 * while a recording's are filled. */
static bool count_caches(mn_memory_plan *plan, const mn_session *s, const planned_run *run, const kv_run_bytes *pages) {
    const encoder *speech = s->model->encoder;
    const size_t n = (size_t)run->batch_size, n_last = (size_t)prompts_of_pass(s, run);
    const size_t layer = speech ? encoder_layer_bytes(speech) : 0, beside = n > 1 ? layer : 0;
    const size_t other = pages->rows ? pages->rows : pages->prompt;
    size_t prompt, rows;
    if (!add_products(&prompt, pages->prompt, n_last, other, n - n_last) || !size_add(prompt, layer, &prompt) ||
        !add_products(&rows, pages->rows, n, pages->rows ? beside : 0, 1))
        return false;
    plan->prompt_bytes = prompt;
    plan->rows_bytes = rows;
    plan->cache_bytes = prompt > rows ? prompt : rows;
    return true;
}

static mn_status plan_session(mn_memory_plan *plan, mn_session *s, const planned_run *run) {
    kv_spec *specs = NULL;
    kv_run_bytes pages = {0};
    int n = 0;
    size_t unread = 0;
    planned_run held = *run; /* by whose caches pages are held; without a cache, rows of all prompts are texts alike */
    if (!s->plan.self.keeps) held.rows = run->rows * run->batch_size;
    if (!s->plan.self.keeps) held.batch_size = 1;
    mn_status status = unread_code_bytes(&unread);
    if (status == MN_OK) status = session_specs(&specs, &n, s);
    /* The last new token is not computed. */
    if (status == MN_OK)
        status = session_plan_run(&pages, s, specs, n, held.prompt, held.max_new_tokens - 1, held.rows);
    if (status == MN_OK && s->plan.self.keeps)
        plan->session_bytes = session_plan_bytes(s->model, &s->plan.options, specs, n, run->prompt);
    if (status == MN_OK) {
        size_t work = work_bytes(s, run, quantize_bytes(specs, n, s->plan.options.page_tokens)), total = 0,
               outgrown = 0;
        const size_t peak = status_bytes("VmHWM:");
        work += speech_bytes(s->model, run->batch_size) + unread + PROCESS_BYTES +
                THREAD_BYTES * (size_t)s->model->compute.n_threads;
        bool fits = count_caches(plan, s, &held, &pages) &&
                    size_mul(pages.outgrown, (size_t)held.batch_size, &outgrown) &&
                    size_add(status_bytes("VmRSS:"), plan->cache_bytes, &total) && size_add(total, outgrown, &total) &&
                    size_add(total, work, &total);
        if (!fits) total = SIZE_MAX;
        plan->resident_bytes = total > peak ? total : peak;
    }
    mem_free(specs);
    return status;
}

mn_status mn_memory_plan_make(mn_memory_plan *plan, mn_model *model, const mn_cache_options *options,
                              int64_t prompt_tokens, int64_t max_new_tokens, int64_t rows, int64_t batch_size) {
    mn_memory_plan full = {0};
    mn_session *s = NULL;
    MN_TRY(check_number("prompt_tokens", prompt_tokens, 1, (int64_t)1 << 40));
    MN_TRY(check_number("max_new_tokens", max_new_tokens, 1, MOST_NUMBER));
    MN_TRY(check_number("rows", rows, 1, MOST_NUMBER));
    MN_TRY(check_number("batch_size", batch_size, 1, MOST_BATCH));
    const planned_run run = {prompt_tokens, max_new_tokens, rows, batch_size};
    mn_status status = session_open_plan(&s, model, options);
    if (status == MN_OK && s->plan.self.preallocates && !s->plan.options.limit)
        s->plan.options.limit = s->plan.options.reserve = prompt_tokens + max_new_tokens;
    if (status == MN_OK) status = plan_session(&full, s, &run);
    mn_session_close(&s);
    return status == MN_OK ? options_give(plan, &full, sizeof full, "mn_memory_plan") : status;
}
