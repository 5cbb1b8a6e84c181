/* Matrix products in plain C, the reference of the other levels.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"
#include "kernels/linear/linear_int.h"
#include "kernels/linear/linear_rows.h"

static void finish(const linear_job *job, int row, int panel, const float *acc) {
    int first = panel * PANEL, n = job->layout->n - first < PANEL ? job->layout->n - first : PANEL;
    float *y = job->y + row * job->y_stride + first;
    for (int lane = 0; lane < n; lane++) {
        float value = acc[lane];
        if (job->bias) value += job->bias[first + lane];
        y[lane] = job->add ? y[lane] + value : value;
    }
}

static const char *panel_at(const linear_job *job, int panel) {
    return (const char *)job->weights + (size_t)panel * job->layout->panel_bytes;
}

static void panel_f32(const linear_job *job, int row, int panel) {
    const float *w = (const float *)panel_at(job, panel);
    const float *x = (const float *)job->x->x + (size_t)row * (size_t)job->layout->k;
    float acc[PANEL] = {0};
    for (int i = 0; i < job->layout->k; i++, w += PANEL) {
        for (int lane = 0; lane < PANEL; lane++) acc[lane] += w[lane] * x[i];
    }
    finish(job, row, panel, acc);
}

static void panel_bf16(const linear_job *job, int row, int panel) {
    int k = job->layout->k + job->layout->k % 2;
    const bf16 *w = (const bf16 *)panel_at(job, panel);
    const bf16 *x = (const bf16 *)job->x->x + (size_t)row * act_bf16_stride(job->layout->k);
    float acc[PANEL] = {0};
    for (int i = 0; i < k; i += 2, w += 2 * PANEL) {
        float x0 = f32_from_bf16(x[i]), x1 = f32_from_bf16(x[i + 1]);
        for (int lane = 0; lane < PANEL; lane++) {
            acc[lane] += f32_from_bf16(w[2 * lane]) * x0;
            acc[lane] += f32_from_bf16(w[2 * lane + 1]) * x1;
        }
    }
    finish(job, row, panel, acc);
}

/* What the bits of input i of a run of 32 are. */
static int bits_at(const uint8_t *codes, int bits, int lane, int i) {
    const int quad = i / 4, place = lane * 4 + i % 4;
    if (bits == 8) return codes[quad * 4 * PANEL + place];
    if (bits == 4) return codes[quad / 2 * 4 * PANEL + place] >> (quad % 2 * 4) & 15;
    const uint16_t *words = (const uint16_t *)(const void *)codes + lane * 2 + i % 4 / 2;
    const int next = 2 * PANEL;
    if (bits == 6) {
        const uint16_t *of = words + i / 16 * 3 * next;
        const int pair = quad % 4 * 2 + i % 2;
        if (pair < 6) return of[pair / 2 * next] >> (pair % 2 * 6) & 63;
        return of[(pair - 6) * next] >> 12 | (of[2 * next] >> (12 + (pair - 6) * 2) & 3) << 4;
    }
    const int pair = quad * 2 + i % 2;
    if (pair < 15) return words[pair / 3 * next] >> (pair % 3 * 5) & 31;
    int code = 0;
    for (int j = 0; j < 5; j++) code |= (words[j * next] >> 15) << j;
    return code;
}

/* The code of input i of a run of 32. */
static int code_at(const uint8_t *codes, const weight_layout *layout, int lane, int i) {
    const int bits = bits_at(codes, layout->bits, lane, i);
    return layout->levels ? layout->levels[bits] : bits;
}

/* The code of activation i of a row. */
static int32_t act_code(const activations *x, int row, int i) {
    const size_t first = act_index(x->m, row, i - i % ACT_GROUP);
    if (x->a8) {
        const act_span *span = act_span_at(x, row, i);
        const int run = i % ACT_SPAN / ACT_GROUP, upper = i % ACT_GROUP == span->place[run] ? span->upper[run] : 0;
        return ((const int8_t *)x->x)[first + (size_t)(i % ACT_GROUP)] + upper * ACT_UPPER;
    }
    return ((const int16_t *)x->x)[first + (size_t)act_place(i % ACT_GROUP)];
}

/* The scale or min of a group of a span. */
static float scale_at(const weight_layout *layout, const char *span, bool is_min, int group, int lane) {
    const int_shape shape = int_shape_of(layout);
    const char *at = span + (is_min ? shape.mins : shape.scales) + (size_t)group * shape.group;
    if (!layout->byte_scales) return f32_from_f16(((const f16 *)at)[lane]);
    return f32_from_f16(((const f16 *)span)[(is_min ? PANEL : 0) + lane]) * (float)((const int8_t *)at)[lane];
}

/* Adds the group that begins at an input to the chains. */
static void add_group(const linear_job *job, const char *packed, int row, int begin, float *acc) {
    const weight_layout *layout = job->layout;
    const int_shape shape = int_shape_of(layout);
    const char *span = packed + INT_FACTOR_BYTES + (size_t)(begin / shape.inputs) * shape.span;
    const int in_span = begin % shape.inputs, group = in_span / layout->group;
    const uint8_t *codes = (const uint8_t *)span + shape.codes + (size_t)(in_span / ACT_GROUP) * shape.block;
    const act_span *act = act_span_at(job->x, row, begin);
    const int number = begin % ACT_SPAN / layout->group; /* in the span of activations */
    for (int lane = 0; lane < PANEL; lane++) {
        int32_t dot = -layout->zero * act_sums(act, layout->group)[number];
        for (int i = 0; i < layout->group; i++)
            dot += code_at(codes, layout, lane, begin % ACT_GROUP + i) * act_code(job->x, row, begin + i);
        const float value = scale_at(layout, span, false, group, lane) * (float)dot;
        acc[lane] += job->x->a8 ? value * act->scale[begin % ACT_SPAN / ACT_GROUP] : value;
        if (layout->has_min)
            acc[lane] += scale_at(layout, span, true, group, lane) * act_min_factors(act, layout->group)[number];
    }
}

static void panel_int(const linear_job *job, int row, int panel) {
    const int k = job->layout->k;
    const char *packed = panel_at(job, panel);
    float total[PANEL] = {0};
    for (int begin = 0, end = 0; begin < k; begin = end) {
        float acc[PANEL] = {0}, *chains = job->x->a8 ? total : acc;
        const float scale = act_span_at(job->x, row, begin)->scale[0];
        end = k - begin < ACT_SPAN ? k : begin + ACT_SPAN;
        for (int at = begin; at < end; at += job->layout->group) add_group(job, packed, row, at, chains);
        for (int lane = 0; lane < PANEL && !job->x->a8; lane++) total[lane] += acc[lane] * scale;
    }
    for (int lane = 0; lane < PANEL; lane++) total[lane] *= ((const float *)packed)[lane];
    finish(job, row, panel, total);
}

static void each_panel(const linear_job *job, void (*do_panel)(const linear_job *job, int row, int panel)) {
    for (int panel = job->panel_begin; panel < job->panel_end; panel++) {
        for (int row = job->row_begin; row < job->row_end; row++) do_panel(job, row, panel);
    }
}

static void linear_f32(const linear_job *job) {
    each_panel(job, panel_f32);
}
static void linear_bf16(const linear_job *job) {
    each_panel(job, panel_bf16);
}
static void linear_int(const linear_job *job) {
    each_panel(job, panel_int);
}

void linear_ref_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = rows_quantize;
    table->bf16_row = rows_bf16;
}
