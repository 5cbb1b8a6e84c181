/* SPDX-License-Identifier: Apache-2.0 */
#include "model/compute.h"

#include <string.h>

#include "base/mem.h"

enum {
    ROW_BLOCK = LINEAR_MOST_ROWS,     /* most rows of a linear task: kernels prepare weights once for them */
    LEAST_ROW_BLOCK = 48,             /* where many threads need more tasks; multiples of every kernel's tile */
    TASK_PANELS = 4,                  /* panels of a linear task when there are many rows */
    WIDE_PANELS = LINEAR_MOST_PANELS, /* where that leaves enough tasks: each reads the activations once, which no cache
                                         may hold */
    TASKS_PER_THREAD = 6,             /* for few rows: finer tasks even out the threads */
    FINE_TASKS = 12,                  /* the same for a single row and panels of FINE_BYTES or more */
    FINE_BYTES = 16 << 10,
    INLINE_VALUES = 8192, /* below this many values the caller does the work: starting a job costs more */
};

void compute_tasks(compute *c, int n_tasks, int64_t n_values, thread_task run, void *arg) {
    if (n_values > INLINE_VALUES) {
        thread_run(c->pool, n_tasks, run, arg);
    } else {
        for (int task = 0; task < n_tasks; task++) run(arg, task, 0);
    }
}

/* ---- rows ---- */

typedef struct row_job {
    compute *c;
    act_rows *rows;
    const float *x;
    const row_norm *norm;
    float *norm_out;
    form_set forms;
    int block; /* rows of a task */
} row_job;

static void convert_row(const row_job *job, int r) {
    const kernel_table *kernels = &job->c->kernels;
    act_rows *rows = job->rows;
    int k = rows->k;
    const float *x = job->x + (size_t)r * (size_t)k;
    if (job->norm) {
        float *y = job->norm_out + (size_t)r * (size_t)k;
        row_norm_run(kernels, job->norm, y, x, k);
        x = y;
    }
    if (job->forms & 1u << WEIGHT_BF16) {
        bf16 *y = rows->rounded + (size_t)r * act_bf16_stride(k);
        kernels->bf16_row(y, x, (size_t)k);
        if (k % 2) y[k] = 0;
    }
    if (job->forms & 1u << WEIGHT_INT) {
        for (int begin = 0; begin < k; begin += ACT_SPAN) {
            const size_t index = act_index(rows->m, r, begin), at = index * (rows->a8 ? 1 : sizeof(int16_t));
            kernels->quantize_row((char *)rows->codes + at, rows->spans + index / ACT_SPAN, x + begin,
                                  k - begin < ACT_SPAN ? k - begin : ACT_SPAN, rows->a8);
        }
    }
}

static void row_task(void *arg, int task, int thread) {
    (void)thread;
    const row_job *job = arg;
    int begin = task * job->block, end = begin + job->block;
    if (end > job->rows->m) end = job->rows->m;
    for (int r = begin; r < end; r++) convert_row(job, r);
}

void compute_rows(compute *c, act_rows *rows, const float *x, int m, int k, const row_norm *norm, float *norm_out,
                  form_set forms) {
    rows->m = m;
    rows->k = k;
    rows->f32 = norm ? norm_out : x;
    row_job job = {c, rows, x, norm, norm_out, forms, 8};
    if ((int64_t)m * k <= INLINE_VALUES) job.block = m;
    thread_run(c->pool, (int)ceil_div(m, job.block), row_task, &job);
}

/* An operation on runs of values in place; one run for each row, or for a part of a long one. */
typedef struct value_job {
    const kernel_table *kernels;
    float *x, *y;
    int k; /* values of a run; the last one may be shorter */
    size_t n;
    const row_norm *norm;
    float factor, cap;
    void (*run)(const struct value_job *job, float *x, float *y, size_t n);
    int block; /* runs of a task */
} value_job;

static void value_task(void *arg, int task, int thread) {
    (void)thread;
    const value_job *job = arg;
    size_t k = (size_t)job->k, begin = (size_t)task * (size_t)job->block * k, end = begin + (size_t)job->block * k;
    if (end > job->n) end = job->n;
    for (size_t at = begin; at < end; at += k) {
        size_t n = end - at < k ? end - at : k;
        job->run(job, job->x + at, job->y ? job->y + at : NULL, n);
    }
}

static void run_values(compute *c, value_job *job) {
    int runs = (int)((job->n + (size_t)job->k - 1) / (size_t)job->k);
    job->kernels = &c->kernels;
    job->block = job->n <= INLINE_VALUES ? runs : 8;
    thread_run(c->pool, (int)ceil_div(runs, job->block), value_task, job);
}

static void add_values(const value_job *job, float *x, float *y, size_t n) {
    if (job->norm) row_norm_run(job->kernels, job->norm, y, y, (int)n);
    job->kernels->add(x, y, n);
}

void compute_add(compute *c, float *x, float *y, int m, int k, const row_norm *norm) {
    value_job job = {.x = x, .y = y, .k = k, .n = (size_t)m * (size_t)k, .norm = norm, .run = add_values};
    run_values(c, &job);
}

static void cap_values(const value_job *job, float *x, float *y, size_t n) {
    (void)y;
    if (job->factor != 1) job->kernels->scale(x, job->factor, n);
    if (job->cap > 0) job->kernels->soft_cap(x, job->cap, n);
}

void compute_scale(compute *c, float *x, int m, int k, float factor) {
    value_job job = {.x = x, .k = k, .n = (size_t)m * (size_t)k, .factor = factor, .run = cap_values};
    run_values(c, &job);
}

void compute_cap(compute *c, float *y, size_t n, float factor, float cap) {
    value_job job = {.x = y, .k = 1024, .n = n, .factor = factor, .cap = cap, .run = cap_values};
    run_values(c, &job);
}

#define ACTIVATE(name)                                                                                                 \
    static void name##_values(const value_job *job, float *x, float *y, size_t n) {                                    \
        (void)y;                                                                                                       \
        job->kernels->activate_##name(x, n);                                                                           \
    }
ACTIVATE(silu)
ACTIVATE(gelu)
ACTIVATE(gelu_tanh)
ACTIVATE(relu)
#undef ACTIVATE

void compute_activate(compute *c, float *x, int m, int k, activation act) {
    static void (*const runs[])(const value_job *, float *, float *, size_t) = {
        [ACTIVATION_SILU] = silu_values,
        [ACTIVATION_GELU] = gelu_values,
        [ACTIVATION_GELU_TANH] = gelu_tanh_values,
        [ACTIVATION_RELU] = relu_values,
    };
    value_job job = {.x = x, .k = k, .n = (size_t)m * (size_t)k, .run = runs[act]};
    run_values(c, &job);
}

/* ---- linear layers ---- */

static activations act_view(const act_rows *rows, weight_form form) {
    activations view = {.form = form, .m = rows->m, .k = rows->k, .spans = rows->spans, .a8 = rows->a8};
    view.x = form == WEIGHT_F32    ? (const void *)rows->f32
             : form == WEIGHT_BF16 ? (const void *)rows->rounded
                                   : (const void *)rows->codes;
    return view;
}

/* The rows of a part. */
static int part_rows(const act_rows *rows, const linear_part *p) {
    return p->n_rows ? p->n_rows : rows->m;
}

/* Address of the outputs of row 0, as a part's rows have the numbers of all rows. A part with separate destinations has
 * no y. */
static float *part_origin(const linear_part *p) {
    return p->y ? p->y - (ptrdiff_t)p->first_row * p->stride : NULL;
}

typedef struct linear_plan {
    compute *c;
    const act_rows *rows;
    const linear_part *parts;
    int n_parts;
    activation act;   /* of parts with a second matrix */
    int row_block;    /* rows of a task */
    int n_row_blocks; /* of the part with the most rows */
    int task_panels;
    int first_chunk[MAX_LINEAR_PARTS + 1]; /* chunks of panels before each part */
} linear_plan;

static int row_of(const void *user, int output) {
    return (int)weight_source_row(user, output);
}

static stored_scales scales_of(const weight_source *source) {
    const tensor *t = source->scales;
    if (!t) return (stored_scales){0};
    const size_t columns = (size_t)source->scale_columns;
    return (stored_scales){.type = t->type,
                           .data = t->data,
                           .rows = (size_t)source->scale_rows,
                           .columns = columns,
                           .stride = ((size_t)source->columns + columns - 1) / columns};
}

stored_matrix weight_stored(const weight_source *source) {
    const tensor *t = source->tensor;
    const dtype_info *info = &dtype_table[t->type];
    const int64_t columns = source->is_transposed ? t->shape[1] : source->columns;
    return (stored_matrix){.type = t->type,
                           .data = t->data,
                           .row_bytes = (size_t)columns / (size_t)info->block * (size_t)info->bytes,
                           .is_transposed = source->is_transposed,
                           .row_of = row_of,
                           .user = source,
                           .scales = scales_of(source)};
}

static void run_form(const kernel_table *kernels, const linear_job *job) {
    if (job->layout->form == WEIGHT_F32) kernels->linear_f32(job);
    if (job->layout->form == WEIGHT_BF16) kernels->linear_bf16(job);
    if (job->layout->form == WEIGHT_INT) kernels->linear_int(job);
}

/* Runs the kernel of the weight's form over the rows and panels of `where`. scratch: the kernel's, then that of weights
 * that are packed here. */
static void run_kernel(const linear_plan *plan, const weight *w, const linear_job *where, char *scratch) {
    activations x = act_view(plan->rows, w->layout.form);
    linear_job job = *where;
    job.layout = &w->layout;
    job.weights = w->packed;
    job.bias = w->bias;
    job.x = &x;
    job.scratch = scratch;
    if (w->packed) {
        run_form(&plan->c->kernels, &job);
        return;
    }
    const stored_matrix stored = weight_stored(&w->source);
    for (int panel = where->panel_begin; panel < where->panel_end; panel++) {
        /* The kernel addresses panels relative to the first of the matrix; only the current one exists. */
        char *packing = scratch + LINEAR_SCRATCH_BYTES, *place = packing + pack_scratch_bytes(&w->layout);
        uintptr_t origin = (uintptr_t)place - (uintptr_t)panel * w->layout.panel_bytes;
        weight_pack((void *)origin, &w->layout, &stored, panel, panel + 1, packing);
        job.weights = (const void *)origin;
        job.panel_begin = panel;
        job.panel_end = panel + 1;
        run_form(&plan->c->kernels, &job);
    }
}

/* The address of a chunk. Matrices are stored in the order in which they are read, so chunks beyond the last are those
 * of the next. */
static const void *chunk_place(const linear_plan *plan, int chunk) {
    int part = 0, n_chunks = plan->first_chunk[plan->n_parts];
    while (part + 1 < plan->n_parts && chunk >= plan->first_chunk[part + 1]) part++;
    const linear_part *p = &plan->parts[part];
    const weight *w = p->up && chunk >= n_chunks ? p->up : p->w;
    size_t panels = (size_t)(chunk - plan->first_chunk[part]) * (size_t)plan->task_panels;
    return w->packed ? (const void *)((uintptr_t)w->packed + panels * w->layout.panel_bytes) : NULL;
}

enum { TASK_WIDTH = WIDE_PANELS * PANEL /* most outputs of a task */ };

/* The job with its outputs, from `column` on, in scratch: row r of them at r * TASK_WIDTH. */
static linear_job into_scratch(const linear_job *job, float *scratch, int column) {
    linear_job other = *job;
    other.y = scratch - (ptrdiff_t)job->row_begin * TASK_WIDTH - column;
    other.y_stride = TASK_WIDTH;
    return other;
}

static void activate_gate(const kernel_table *kernels, activation act, float *y, const float *up, size_t n) {
    switch (act) {
    case ACTIVATION_SILU: kernels->silu_mul(y, y, up, n); break;
    case ACTIVATION_GELU: kernels->gelu_mul(y, y, up, n); break;
    case ACTIVATION_GELU_TANH: kernels->gelu_tanh_mul(y, y, up, n); break;
    case ACTIVATION_RELU: kernels->relu_mul(y, y, up, n); break;
    }
}

/* The gate goes to the output, `up` to scratch, then the activation is applied while both are in the CPU's cache. */
static void run_gated(const linear_plan *plan, const linear_part *p, linear_job *job, int column, int width,
                      char *scratch) {
    float *up = (float *)(void *)scratch, *origin = part_origin(p);
    char *rest = scratch + (size_t)ROW_BLOCK * TASK_WIDTH * sizeof *up;
    linear_job second = into_scratch(job, up, column);
    if (p->up->packed) job->next = p->up->packed + (size_t)job->panel_begin * p->up->layout.panel_bytes;
    run_kernel(plan, p->w, job, rest);
    run_kernel(plan, p->up, &second, rest);
    for (int r = job->row_begin; r < job->row_end; r++) {
        const float *u = up + (r - job->row_begin) * TASK_WIDTH;
        activate_gate(&plan->c->kernels, plan->act, origin + r * p->stride + column, u, (size_t)width);
    }
}

/* Rows with separate destinations are copied from scratch while they are in the CPU's cache. */
static void run_scattered(const linear_plan *plan, const linear_part *p, const linear_job *job, int column, int width,
                          char *scratch) {
    float *y = (float *)(void *)scratch;
    linear_job here = into_scratch(job, y, column);
    run_kernel(plan, p->w, &here, scratch + (size_t)ROW_BLOCK * TASK_WIDTH * sizeof *y);
    for (int r = job->row_begin; r < job->row_end; r++) {
        memcpy(p->rows[r] + column, y + (r - job->row_begin) * TASK_WIDTH, (size_t)width * sizeof *y);
    }
}

static void run_chunk(const linear_plan *plan, int chunk, int block, int thread) {
    int part = 0;
    while (chunk >= plan->first_chunk[part + 1]) part++;
    const linear_part *p = &plan->parts[part];
    int begin = (chunk - plan->first_chunk[part]) * plan->task_panels, end = begin + plan->task_panels;
    if (end > p->w->layout.n_panels) end = p->w->layout.n_panels;
    int last_row = p->first_row + part_rows(plan->rows, p);
    linear_job job = {.row_begin = p->first_row + block * plan->row_block,
                      .row_end = p->first_row + (block + 1) * plan->row_block,
                      .panel_begin = begin,
                      .panel_end = end,
                      .y = part_origin(p),
                      .y_stride = p->stride,
                      .prefetch_bytes = plan->c->kernels.prefetch_bytes,
                      .add = p->add};
    if (job.row_end > last_row) job.row_end = last_row;
    if (job.row_begin >= last_row) return; /* other parts have more */
    job.next = chunk_place(plan, chunk + 1);
    int column = begin * PANEL, width = end * PANEL - column;
    if (column + width > p->w->layout.n) width = p->w->layout.n - column;
    char *scratch = plan->c->scratch[thread];
    if (p->up) {
        run_gated(plan, p, &job, column, width, scratch);
    } else if (p->rows) {
        run_scattered(plan, p, &job, column, width, scratch);
    } else {
        run_kernel(plan, p->w, &job, scratch);
    }
}

static void block_task(void *arg, int task, int thread) {
    const linear_plan *plan = arg;
    run_chunk(plan, task / plan->n_row_blocks, task % plan->n_row_blocks, thread);
}

/* Few rows: each task reads one range of the weights in order, then takes chunks from the others. */
static void range_task(void *arg, int task, int thread) {
    const linear_plan *plan = arg;
    int n = plan->c->n_threads;
    for (int i = 0; i < n; i++) {
        work_range *s = &plan->c->ranges[(task + i) % n];
        int chunk;
        while ((chunk = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->end)
            run_chunk(plan, chunk, 0, thread);
    }
}

static void run_ranges(linear_plan *plan) {
    int n = plan->c->n_threads, n_chunks = plan->first_chunk[plan->n_parts];
    for (int i = 0; i < n; i++) {
        work_range *s = &plan->c->ranges[i];
        atomic_store_explicit(&s->next, (int)((int64_t)n_chunks * i / n), memory_order_relaxed);
        s->end = (int)((int64_t)n_chunks * (i + 1) / n);
    }
    thread_run(plan->c->pool, n < n_chunks ? n : n_chunks, range_task, plan);
}

static void run_linear(linear_plan *plan) {
    int n_panels = 0, m = 0;
    for (int i = 0; i < plan->n_parts; i++) {
        int n = part_rows(plan->rows, &plan->parts[i]);
        if (n > m) m = n;
        n_panels += plan->parts[i].w->layout.n_panels;
    }
    if (m == 0) return;
    bool is_fine = m == 1 && plan->parts[0].w->layout.panel_bytes >= FINE_BYTES;
    int fine = n_panels / (plan->c->n_threads * (is_fine ? FINE_TASKS : TASKS_PER_THREAD));
    plan->task_panels = fine < 2 ? 1 : fine < TASK_PANELS ? 2 : TASK_PANELS; /* pairs fit the tiles */
    const int wanted = plan->c->n_threads * TASKS_PER_THREAD;
    if (m > 16)
        plan->task_panels = n_panels / WIDE_PANELS * ceil_div(m, ROW_BLOCK) < wanted ? TASK_PANELS : WIDE_PANELS;
    for (int i = 0; i < plan->n_parts; i++) {
        int chunks = (int)ceil_div(plan->parts[i].w->layout.n_panels, plan->task_panels);
        plan->first_chunk[i + 1] = plan->first_chunk[i] + chunks;
    }
    const int n_chunks = plan->first_chunk[plan->n_parts];
    plan->row_block = ROW_BLOCK;
    while (plan->row_block > LEAST_ROW_BLOCK && n_chunks * ceil_div(m, plan->row_block) < wanted) plan->row_block /= 2;
    plan->n_row_blocks = (int)ceil_div(m, plan->row_block);
    if (plan->n_row_blocks == 1) {
        run_ranges(plan);
    } else {
        thread_run(plan->c->pool, n_chunks * plan->n_row_blocks, block_task, plan);
    }
}

void compute_linear(compute *c, const act_rows *rows, const linear_part *parts, int n_parts) {
    linear_plan plan = {.c = c, .rows = rows, .parts = parts, .n_parts = n_parts};
    run_linear(&plan);
}

void compute_linear_piece(compute *c, const act_rows *rows, const linear_part *part, int begin, int end, int thread) {
    linear_plan plan = {.c = c, .rows = rows, .parts = part, .n_parts = 1};
    linear_job job = {.row_end = rows->m,
                      .panel_begin = begin / PANEL,
                      .panel_end = (int)ceil_div(end, PANEL),
                      .y = part->y,
                      .y_stride = part->stride,
                      .add = part->add};
    run_kernel(&plan, part->w, &job, c->scratch[thread]);
}

void compute_gated(compute *c, const act_rows *rows, const linear_part *parts, int n_parts, activation act) {
    linear_plan plan = {.c = c, .rows = rows, .parts = parts, .n_parts = n_parts, .act = act};
    run_linear(&plan);
}

size_t compute_scratch_bytes(int max_k, bool lazy) {
    size_t n = (size_t)ROW_BLOCK * TASK_WIDTH * sizeof(float) + LINEAR_SCRATCH_BYTES;
    if (!lazy) return n;
    weight_layout layout;
    weight_layout_make(&layout, WEIGHT_F32, DTYPE_F32, PANEL, max_k);
    return n + pack_scratch_bytes(&layout) + layout.panel_bytes;
}
