/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/form.h"

#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

typedef struct codec_row {
    const char *name;
    unsigned bits; /* bit b: b bits are allowed */
    int exact_bits;
} codec_row;

#define BITS(b) (1u << (b))

static const codec_row codecs[N_KV_CODECS] = {
    [KV_F32] = {"f32", 0, 32},
    [KV_BF16] = {"bf16", 0, 16},
    [KV_MNEME] = {"mneme", BITS(1) | BITS(2) | BITS(3) | BITS(4) | BITS(5) | BITS(6) | BITS(8), 0},
    [KV_QUANTO] = {"quanto", BITS(2) | BITS(4), 0},
    [KV_HQQ] = {"hqq", BITS(1) | BITS(2) | BITS(3) | BITS(4) | BITS(8), 0},
};

enum {
    ABSMAX_GROUP = 32,  /* of mneme at 8 bits */
    PACKAGE_GROUP = 64, /* the default of both packages */
    MOST_PLANES = 12,   /* of runs of 1 to 7 bits together; a run of 8 bits has no remainder */
};

kv_form kv_form_exact(kv_codec codec) {
    return (kv_form){.codec = codec, .bits = codecs[codec].exact_bits};
}

const char *kv_codec_name(kv_codec codec) {
    return codecs[codec].name;
}

bool kv_form_equal(kv_form a, kv_form b) {
    return a.codec == b.codec && a.bits == b.bits && a.group == b.group && a.axis == b.axis &&
           a.f32_scales == b.f32_scales;
}

/* ---- groups ---- */

/* How values that share a scale are arranged. Keys of mneme with a calibration share a scale per component and page. */
static code_axis axis_of(kv_form form, bool is_key, bool has_calibration) {
    if (form.codec != KV_MNEME) return form.axis;
    return has_calibration && kv_form_takes_calibration(form, is_key) ? CODE_CHANNEL : CODE_TOKEN;
}

/* The largest power of two times 16 that divides n and is at most `most`. */
static int even_part(int n, int most) {
    int part = most;
    while (part > CODE_LANES && n % part) part /= 2;
    return part;
}

static int group_of(kv_form form, bool is_key, bool has_calibration, int dim, int page_tokens) {
    bool channel = axis_of(form, is_key, has_calibration) == CODE_CHANNEL;
    if (form.codec == KV_MNEME && channel) return page_tokens;
    if (form.group) return form.group;
    if (form.codec == KV_MNEME) return form.bits == 8 ? even_part(dim, ABSMAX_GROUP) : dim;
    return even_part(channel ? page_tokens : dim, PACKAGE_GROUP);
}

static mn_status bits_refused(kv_form form) {
    char allowed[64];
    size_t n = 0;
    for (int b = 1; b <= CODE_MAX_BITS; b++) {
        if (codecs[form.codec].bits & BITS(b)) {
            n += (size_t)snprintf(allowed + n, sizeof allowed - n, "%s%d", n ? ", " : "", b);
        }
    }
    MN_FAIL(MN_E_ARG, "%s: bits is %d, allowed: %s", codecs[form.codec].name, form.bits, allowed);
}

mn_status kv_form_check(kv_form form, int dim, int page_tokens) {
    if (!kv_form_is_coded(form)) return MN_OK;
    const codec_row *row = &codecs[form.codec];
    if (form.bits < 1 || form.bits > CODE_MAX_BITS || !(row->bits & BITS(form.bits))) return bits_refused(form);
    if (dim < CODE_LANES || dim > KV_FORM_DIM || dim % CODE_LANES) {
        MN_FAIL(MN_E_ARG, "%s: rows of %d values, allowed: multiples of %d up to %d", row->name, dim, CODE_LANES,
                KV_FORM_DIM);
    }
    if (page_tokens < CODE_LANES || page_tokens % CODE_LANES) {
        MN_FAIL(MN_E_ARG, "%s: page_tokens is %d, allowed: multiples of %d", row->name, page_tokens, CODE_LANES);
    }
    bool channel = form.codec != KV_MNEME && form.axis == CODE_CHANNEL;
    int whole = channel ? page_tokens : dim, step = form.codec == KV_MNEME ? CODE_LANES : 1;
    if (form.group < 0 || (form.group && (form.group % step || whole % form.group))) {
        MN_FAIL(MN_E_ARG, "%s: group is %d, allowed: multiples of %d that divide the %d %s", row->name, form.group,
                step, whole, channel ? "tokens of a page" : "values of a row");
    }
    return MN_OK;
}

/* ---- bits of components ---- */

/* Mean squared error of the Lloyd-Max quantizer of a unit normal distribution with 0 to 8 bits (Max 1960). */
static const double normal_error[CODE_MAX_BITS + 1] = {1,       .3634,   .1175,   .03454,  .009497,
                                                       .002499, .000642, .000163, .0000412};

void kv_form_allocate(uint8_t *bits_of_dim, const float *lambda, int dim, int bits) {
    memset(bits_of_dim, 0, (size_t)dim);
    for (int n_left = bits * (dim / CODE_STEPS); n_left > 0; n_left--) {
        int best = -1;
        double most = -1;
        for (int i = 0; i < dim; i += CODE_STEPS) {
            int b = bits_of_dim[i];
            if (b == CODE_MAX_BITS) continue;
            double variance = 0;
            for (int j = 0; j < CODE_STEPS; j++) variance += (double)lambda[i + j];
            double gain = variance * (normal_error[b] - normal_error[b + 1]);
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        memset(bits_of_dim + best, bits_of_dim[best] + 1, CODE_STEPS);
    }
}

/* ---- layouts ---- */

static void make_layout(code_layout *layout, kv_form form, bool is_key, bool has_calibration, int dim, int page_tokens,
                        const uint8_t *bits_of_dim) {
    bool own = form.codec == KV_MNEME, full = form.bits == 8;
    bool is_calibrated = has_calibration && kv_form_takes_calibration(form, is_key);
    code_side package_side = form.f32_scales ? CODE_SIDE_F32 : CODE_SIDE_F16;
    code_shape shape = {
        .is_key = is_key,
        .dim = dim,
        .page_tokens = page_tokens,
        .group = group_of(form, is_key, has_calibration, dim, page_tokens),
        .bits = form.bits,
        .axis = axis_of(form, is_key, has_calibration),
        .grid = !own   ? CODE_UNSIGNED
                : full ? CODE_SIGNED
                       : CODE_NORMAL,
        .scale = !own            ? package_side
                 : is_calibrated ? CODE_SIDE_LOG8
                                 : CODE_SIDE_F16,
        .shift = own ? CODE_SIDE_NONE : package_side,
        .mean = own && is_key && !full ? CODE_SIDE_F16 : CODE_SIDE_NONE,
        .bits_of_dim = bits_of_dim,
    };
    code_layout_make(layout, &shape);
}

void kv_form_layout(code_layout *layout, kv_form form, bool is_key, int dim, int page_tokens, const float *lambda) {
    uint8_t bits_of_dim[KV_FORM_DIM];
    bool is_calibrated = lambda && kv_form_takes_calibration(form, is_key);
    if (is_calibrated) kv_form_allocate(bits_of_dim, lambda, dim, form.bits);
    make_layout(layout, form, is_key, is_calibrated, dim, page_tokens, is_calibrated ? bits_of_dim : NULL);
    layout->bytes = kv_form_bytes(form, is_key, is_calibrated, dim, page_tokens);
}

/* Runs of unequal bits fill the blocks of a page of 128 tokens as one run does; in other pages each of their planes may
 * end in a part of a block. */
size_t kv_form_bytes(kv_form form, bool is_key, bool has_calibration, int dim, int page_tokens) {
    if (!kv_form_is_coded(form)) return (size_t)dim * (size_t)page_tokens * (size_t)form.bits / 8;
    code_layout even;
    make_layout(&even, form, is_key, has_calibration, dim, page_tokens, NULL);
    bool fills = page_tokens % (8 * CODE_LANES) == 0 || !(has_calibration && kv_form_takes_calibration(form, is_key));
    return even.bytes + (fills ? 0 : (size_t)MOST_PLANES * CODE_BLOCK);
}
