/* Quantizes a head's tokens of one page at a time: the transform, then scale and mean of every row of values that share
 * them, rounded to their stored types, and then the codes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/quantize.h"

#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "kv/quantizers.h"

/* Scales of a uniform grid must not clip their own maximum: x times this factor, rounded to the nearest stored scale,
 * is no smaller than x. */
static const float LOG8_UP = 0x1.0b5586p0f; /* 2^(1/16) */

/* ---- scratch ---- */

typedef struct quantize_space {
    float *transposed;    /* [dim][page_tokens] */
    float *scale, *shift; /* of every row or group; shift: means of components too */
    float *side[2];       /* scales and shifts of a page, in the order of a stream */
    uint8_t *codes;       /* of a page, rows as quantized; packages: of all heads, [heads][n][dim] */
    uint8_t *transposed_codes;
    size_t bytes;
} quantize_space;

/* The next n bytes of scratch; base NULL: only counts them. */
static void *take(quantize_space *space, char *base, size_t n) {
    char *part = base ? base + space->bytes : NULL;
    space->bytes += (n + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
    return part;
}

static quantize_space divide(void *scratch, const code_layout *layout, kv_form form, int n_heads, int n) {
    quantize_space space = {0};
    const bool own = form.codec == KV_MNEME;
    const size_t dim = (size_t)layout->dim, page = dim * (size_t)layout->page_tokens;
    const size_t all = own ? page : (size_t)n_heads * (size_t)n * dim;
    /* Of mneme, by tokens (with or without a calibration) or by components. */
    const size_t page_groups = own ? page / CODE_LANES + dim : page / (size_t)layout->group;
    const size_t groups = own ? page_groups : all / (size_t)layout->group;
    space.transposed = take(&space, scratch, own ? page * sizeof(float) : 0);
    space.scale = take(&space, scratch, groups * sizeof(float));
    space.shift = take(&space, scratch, groups * sizeof(float));
    space.side[0] = take(&space, scratch, page_groups * sizeof(float));
    space.side[1] = take(&space, scratch, page_groups * sizeof(float));
    space.codes = take(&space, scratch, all);
    space.transposed_codes = take(&space, scratch, own ? page : 0);
    return space;
}

size_t quantize_scratch_bytes(kv_form form, bool is_key, int dim, int page_tokens, int n_heads, int n) {
    code_layout layout;
    kv_form_layout(&layout, form, is_key, dim, page_tokens, NULL);
    return divide(NULL, &layout, form, n_heads, n).bytes;
}

static const code_layout *layout_of(const quantize_stream *job, int head) {
    return &job->layouts[job->is_key ? head : 0];
}

static quantize_space space_of(const quantize_stream *job) {
    const code_layout *layout = layout_of(job, job->head_begin);
    return divide(job->scratch, layout, job->form, job->head_end - job->head_begin, job->n);
}

/* ---- parts of a job: one head's tokens in one page ---- */

typedef struct quantize_part {
    const quantize_stream *job;
    const code_layout *layout;
    const kv_head_calibration *calibration; /* NULL: none */
    char *stream;
    int slot, n;
    size_t row; /* of the first token among all rows of the job */
    float *x;   /* [n][dim], rows of the job */
} quantize_part;

typedef void (*part_visit)(const quantize_part *part, const quantize_space *space);

static void each_part(const quantize_stream *job, part_visit visit, const quantize_space *space) {
    bool is_calibrated = job->calibration && kv_form_takes_calibration(job->form, job->is_key);
    for (int head = job->head_begin; head < job->head_end; head++) {
        for (int done = 0; done < job->n;) {
            int64_t token = job->first + done;
            quantize_part part = {.job = job,
                                  .layout = layout_of(job, head),
                                  .calibration = is_calibrated ? &job->calibration[head] : NULL,
                                  .stream = job->pages[token / job->page_tokens] + (size_t)head * job->head_bytes,
                                  .slot = (int)(token % job->page_tokens)};
            part.n = (int)min_i64(job->page_tokens - part.slot, job->n - done);
            part.row = (size_t)(head - job->head_begin) * (size_t)job->n + (size_t)done;
            part.x = job->rows + part.row * (size_t)job->dim;
            visit(&part, space);
            done += part.n;
        }
    }
}

/* Excludes tokens from what they share with the `unit`: they are replaced by copies of the next ones. */
static void replace_skipped(const quantize_stream *job, int unit) {
    size_t row_bytes = (size_t)job->dim * sizeof(float);
    for (int head = 0; head < job->head_end - job->head_begin; head++) {
        float *rows = job->rows + (size_t)head * (size_t)job->n * (size_t)job->dim;
        for (int begin = 0; begin < job->n_skip; begin += unit, rows += (size_t)unit * (size_t)job->dim) {
            int n = (int)min_i64(unit, job->n - begin), n_skip = (int)min_i64(n, job->n_skip - begin),
                n_kept = n - n_skip;
            for (int i = 0; i < n_skip; i++) {
                float *row = rows + (size_t)i * (size_t)job->dim;
                if (n_kept) {
                    memcpy(row, rows + (size_t)(n_skip + i % n_kept) * (size_t)job->dim, row_bytes);
                } else {
                    memset(row, 0, row_bytes);
                }
            }
        }
    }
}

/* ---- mneme ---- */

static void transpose_floats(float *to, const float *from, int n_rows, int n_columns) {
    enum { TILE = 16 }; /* both sizes are multiples */
    for (int row = 0; row < n_rows; row += TILE) {
        for (int column = 0; column < n_columns; column += TILE) {
            for (int i = column; i < column + TILE; i++) {
                for (int j = row; j < row + TILE; j++) to[i * n_rows + j] = from[j * n_columns + i];
            }
        }
    }
}

static void transpose_bytes(uint8_t *to, const uint8_t *from, int n_rows, int n_columns) {
    enum { TILE = 16 };
    for (int row = 0; row < n_rows; row += TILE) {
        for (int column = 0; column < n_columns; column += TILE) {
            for (int i = column; i < column + TILE; i++) {
                for (int j = row; j < row + TILE; j++) to[i * n_rows + j] = from[j * n_columns + i];
            }
        }
    }
}

/* Scale and mean of rows, rounded to their stored types, and the codes for these. */
static void fit(const quantize_part *part, fit_job rows, int bits) {
    const code_layout *layout = part->layout;
    fit_grid grid;
    fit_grid_make(&grid, code_levels(layout->grid, bits), bits);
    rows.grid = &grid;
    part->job->kernels->fit_rows(&rows);
    for (int i = 0; i < rows.n_rows; i++) {
        float wanted = grid.is_even && layout->scale == CODE_SIDE_LOG8 ? rows.scale[i] * LOG8_UP : rows.scale[i];
        rows.scale[i] = code_side_round(layout->scale, wanted);
        if (rows.mean) rows.mean[i] = code_side_round(layout->mean, rows.mean[i]);
    }
    part->job->kernels->code_rows(&rows);
}

/* A component without bits is its mean. */
static void keep_mean(const fit_job *rows, code_side side) {
    memset(rows->codes, 0, (size_t)rows->n_rows * (size_t)rows->n);
    for (int i = 0; i < rows->n_rows; i++) {
        double sum = 0;
        for (int j = 0; j < rows->n; j++) sum += (double)rows->x[i * rows->n + j];
        rows->scale[i] = 0;
        rows->mean[i] = code_side_round(side, (float)(sum / rows->n));
    }
}

/* Keys with a calibration: a row is a component over the tokens of the page. */
static void write_components(const quantize_part *part, const quantize_space *space) {
    const code_layout *layout = part->layout;
    const int dim = layout->dim, n = part->n;
    transpose_floats(space->transposed, part->x, n, dim);
    part->job->kernels->fit_product(part->x, part->calibration->key, space->transposed, dim, dim, n);
    for (int i = 0; i < layout->n_runs; i++) {
        const code_run *run = &layout->runs[i];
        const size_t first = (size_t)run->begin * (size_t)n;
        fit_job rows = {.n_rows = run->end - run->begin,
                        .n = n,
                        .x = part->x + first,
                        .scale = space->scale + run->begin,
                        .mean = space->shift + run->begin,
                        .codes = space->codes + first};
        if (run->bits) {
            fit(part, rows, run->bits);
        } else {
            keep_mean(&rows, layout->mean);
        }
    }
    transpose_bytes(space->transposed_codes, space->codes, dim, n);
    code_pack(layout, part->stream, space->transposed_codes, part->slot, n);
    code_put_side(layout, part->stream, space->scale, NULL, part->slot, n);
    code_put_mean(layout, part->stream, space->shift);
}

static void take_out_mean(const quantize_part *part, float *mean) {
    const size_t dim = (size_t)part->layout->dim;
    memset(mean, 0, dim * sizeof *mean);
    for (int t = 0; t < part->n; t++) {
        for (size_t d = 0; d < dim; d++) mean[d] += part->x[(size_t)t * dim + d];
    }
    for (size_t d = 0; d < dim; d++) mean[d] = code_side_round(part->layout->mean, mean[d] / (float)part->n);
    for (int t = 0; t < part->n; t++) {
        for (size_t d = 0; d < dim; d++) part->x[(size_t)t * dim + d] -= mean[d];
    }
}

/* Transposes [n][groups], as computed, to [groups][n], as stored. */
static void order_sides(const code_layout *layout, float *to, const float *from, int n) {
    const int n_groups = code_groups(layout);
    for (int group = 0; group < n_groups; group++) {
        for (int t = 0; t < n; t++) *to++ = from[t * n_groups + group];
    }
}

/* Values, and keys without a calibration: a row is a group of a token. */
static void write_tokens(const quantize_part *part, const quantize_space *space) {
    const code_layout *layout = part->layout;
    if (kv_form_rotates(part->job->form, part->job->is_key, false))
        part->job->kernels->hadamard(part->x, part->n, layout->dim);
    if (layout->mean != CODE_SIDE_NONE) {
        take_out_mean(part, space->shift);
        code_put_mean(layout, part->stream, space->shift);
    }
    fit_job rows = {.n_rows = part->n * code_groups(layout),
                    .n = layout->group,
                    .x = part->x,
                    .scale = space->scale,
                    .codes = space->codes};
    fit(part, rows, layout->runs[0].bits);
    order_sides(layout, space->side[0], space->scale, part->n);
    code_put_side(layout, part->stream, space->side[0], NULL, part->slot, part->n);
    code_pack(layout, part->stream, space->codes, part->slot, part->n);
}

static void write_mneme(const quantize_part *part, const quantize_space *space) {
    if (part->calibration) {
        write_components(part, space);
    } else {
        write_tokens(part, space);
    }
}

/* ---- quanto and hqq ---- */

static void write_package(const quantize_part *part, const quantize_space *space) {
    const code_layout *layout = part->layout;
    const size_t dim = (size_t)layout->dim, group = (size_t)layout->group;
    const size_t first = part->row * dim / group;
    const float *scale = space->scale + first, *shift = space->shift + first;
    if (layout->axis == CODE_TOKEN) {
        order_sides(layout, space->side[0], scale, part->n);
        order_sides(layout, space->side[1], shift, part->n);
        scale = space->side[0];
        shift = space->side[1];
    }
    code_put_side(layout, part->stream, scale, shift, part->slot, part->n);
    code_pack(layout, part->stream, space->codes + part->row * dim, part->slot, part->n);
}

static quantizer_view view_of(const quantize_stream *job, int group, int64_t n_rows) {
    if (layout_of(job, job->head_begin)->axis == CODE_TOKEN)
        return (quantizer_view){1, n_rows * job->dim / group, group, 0, group, 1};
    return (quantizer_view){n_rows / group, job->dim, group, (ptrdiff_t)group * job->dim, 1, job->dim};
}

/* y = scale * code - shift and y = (code - zero) * scale become y = scale * level + shift. */
static void run_package(const quantize_stream *job, const quantize_space *space) {
    const code_layout *layout = layout_of(job, job->head_begin);
    const bool is_hqq = job->form.codec == KV_HQQ, halved = !is_hqq && !job->form.f32_scales;
    const int64_t n_rows = (int64_t)(job->head_end - job->head_begin) * job->n;
    const quantizer_options options = {.kind = is_hqq ? QUANTIZER_HQQ : QUANTIZER_QUANTO,
                                       .nbits = job->form.bits,
                                       .dtype = halved ? QUANTIZER_F16 : QUANTIZER_F32,
                                       .optimize = true};
    quantizer_view view = view_of(job, layout->group, n_rows);
    quantizer_view_run(space->codes, space->scale, space->shift, &options, job->rows, &view);
    const float level_of_0 = job->form.bits == 8 ? -128.0f : 0.0f;
    for (int64_t i = 0; i < view.n_blocks * view.n_groups; i++) {
        space->scale[i] = code_side_round(layout->scale, space->scale[i]);
        space->shift[i] = is_hqq ? -(space->shift[i] + level_of_0) * space->scale[i] : -space->shift[i];
    }
}

/* ---- both ---- */

void quantize_write(const quantize_stream *job) {
    if (job->n == 0 || job->head_begin == job->head_end) return;
    const code_layout *layout = layout_of(job, job->head_begin);
    const quantize_space space = space_of(job);
    bool by_page = layout->mean != CODE_SIDE_NONE || job->form.codec == KV_MNEME;
    replace_skipped(job, by_page ? job->page_tokens : layout->axis == CODE_CHANNEL ? layout->group : job->n);
    if (job->form.codec == KV_MNEME) {
        each_part(job, write_mneme, &space);
    } else {
        run_package(job, &space);
        each_part(job, write_package, &space);
    }
}

static void read_part(const quantize_part *part, const quantize_space *space) {
    const code_layout *layout = part->layout;
    const kernel_table *kernels = part->job->kernels;
    if (part->calibration) {
        code_decode(layout, part->stream, space->transposed, part->slot, part->n);
        kernels->fit_product(part->x, space->transposed, part->calibration->query, part->n, layout->dim, layout->dim);
        return;
    }
    code_decode(layout, part->stream, part->x, part->slot, part->n);
    if (kv_form_rotates(part->job->form, part->job->is_key, false)) kernels->hadamard(part->x, part->n, layout->dim);
}

void quantize_read(const quantize_stream *job) {
    const quantize_space space = space_of(job);
    each_part(job, read_part, &space);
}
