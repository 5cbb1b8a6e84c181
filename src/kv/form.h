/* Stored forms: how one stream (keys or values) of an entry is stored. A row of a table, not a type.
 *
 *   exact       f32, bf16                    pages as kernels/attend/attend.h describes
 *   quantized   mneme, quanto, hqq           streams as kernels/attend/codes.h describes
 *
 * mneme is the format of this project. Keys of 1 to 6 bits are transformed by the calibration (calibration.h), with a
 * number of bits for each component and a scale and mean for each component and page; without a calibration they are
 * Hadamard-transformed, with a scale per token, after the page's mean is subtracted. Values are Hadamard-transformed,
 * with a scale per token and group. Lloyd-Max levels for few bits, uniform levels for many. quanto and hqq have the
 * arithmetic of those packages (quantizers.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_FORM_H
#define MN_KV_FORM_H

#include "base/status.h"
#include "kernels/attend/codes.h"

typedef enum kv_codec { KV_F32, KV_BF16, KV_MNEME, KV_QUANTO, KV_HQQ, N_KV_CODECS } kv_codec;

enum { KV_FORM_DIM = 1024 }; /* the longest row of a quantized form */

typedef struct kv_form {
    kv_codec codec;
    int bits;        /* per value, without scales */
    int group;       /* quantized: values that share a scale; 0: the codec's default for the size of the head */
    code_axis axis;  /* quanto and hqq; mneme has fixed axes */
    bool f32_scales; /* scales and shifts as f32, for computation in f32; else f16. mneme: unused */
} kv_form;

kv_form kv_form_exact(kv_codec codec);
const char *kv_codec_name(kv_codec codec); /* "f32", "bf16", "mneme", "quanto", "hqq" */
static inline bool kv_form_is_coded(kv_form form) {
    return form.codec >= KV_MNEME;
}
bool kv_form_equal(kv_form a, kv_form b);

/* MN_E_ARG for bits that the codec does not have (mneme 1 to 6, 8; quanto 2, 4; hqq 1, 2, 3, 4, 8), a group that does
 * not divide a row of `dim` (TOKEN) or a page (CHANNEL), and a dim (up to KV_FORM_DIM), page_tokens or group that is
 * not a multiple of 16. */
mn_status kv_form_check(kv_form form, int dim, int page_tokens);

/* What a form needs besides its codes. A calibration is used when there is one; without it the form rotates. */
static inline bool kv_form_takes_calibration(kv_form form, bool is_key) {
    return is_key && form.codec == KV_MNEME && form.bits < 8;
}
/* Rows are stored Hadamard-transformed: for keys the queries must be transformed too, for values the output. */
static inline bool kv_form_rotates(kv_form form, bool is_key, bool has_calibration) {
    return form.codec == KV_MNEME && form.bits < 8 && !(is_key && has_calibration);
}

/* Of a quantized form. lambda: keys of mneme, [dim] variances of the calibration's components in falling order, which
 * determine their bits; NULL: no calibration. The form must have been checked. The number of bytes does not depend on
 * lambda: kv_form_bytes. */
void kv_form_layout(code_layout *layout, kv_form form, bool is_key, int dim, int page_tokens, const float *lambda);

/* Bits of every component of a calibration, [dim], equal in groups of four, falling, `bits` on average, 8 at most: each
 * bit goes to the group of four whose error falls most. */
void kv_form_allocate(uint8_t *bits_of_dim, const float *lambda, int dim, int bits);

/* Bytes of P tokens of one head with rows of `dim` values. has_calibration: keys of mneme with any calibration. */
size_t kv_form_bytes(kv_form form, bool is_key, bool has_calibration, int dim, int page_tokens);

#endif
