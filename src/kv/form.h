/* Stored forms: how one stream (keys or values) of an entry is kept. A row of a table, not a type.
 *
 *   exact   f32, bf16                        pages as kernels/attend.h describes
 *   coded   mneme, quanto, hqq               streams as kernels/codes.h describes
 *
 * mneme is the form of this project. Keys of 1 to 6 bits stand in a calibrated basis (basis.h) with bits
 * unequal over its components and one scale and mean for each component and page, or, without a basis, behind
 * a Hadamard rotation with one scale per token and the page's mean taken out; values stand behind a Hadamard
 * rotation with one scale per token and group. Lloyd-Max levels for few bits, even levels for many. quanto
 * and hqq have the arithmetic of those packages (quantizers.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_FORM_H
#define MN_KV_FORM_H

#include "base/status.h"
#include "kernels/codes.h"

typedef enum kv_codec { KV_F32, KV_BF16, KV_MNEME, KV_QUANTO, KV_HQQ, N_KV_CODECS } kv_codec;

enum { KV_FORM_DIM = 1024 }; /* the longest row of a coded form */

typedef struct kv_form {
    kv_codec codec;
    int bits;  /* of one value, side data apart */
    int group; /* coded: values that share side data; 0: the codec's own choice for the size of the head */
    code_axis axis; /* quanto and hqq; a group of mneme lies where its codec wants it */
    bool wide_side; /* scales and shifts as f32, for computation in f32; else f16. mneme: no effect */
} kv_form;

kv_form kv_form_exact(kv_codec codec);
const char *kv_codec_name(kv_codec codec); /* "f32", "bf16", "mneme", "quanto", "hqq" */
static inline bool kv_form_is_coded(kv_form form) {
    return form.codec >= KV_MNEME;
}
bool kv_form_equal(kv_form a, kv_form b);

/* MN_E_ARG names what is not allowed: bits of the codec (mneme 1 to 6, 8; quanto 2, 4; hqq 1, 2, 3, 4, 8), a
 * group that does not divide a row of `dim` (TOKEN) or a page (CHANNEL), a dim (up to KV_FORM_DIM) or
 * page_tokens that is no multiple of 16, a group that is none. */
mn_status kv_form_check(kv_form form, int dim, int page_tokens);

/* What a form asks for beside its codes. A basis is used where it is given; without one the row below
 * "rotates" holds. */
static inline bool kv_form_takes_basis(kv_form form, bool is_key) {
    return is_key && form.codec == KV_MNEME && form.bits < 8;
}
/* Rows are stored behind a Hadamard transform: of keys, so that queries want it too; of values, so that the
 * output wants it. */
static inline bool kv_form_rotates(kv_form form, bool is_key, bool has_basis) {
    return form.codec == KV_MNEME && form.bits < 8 && !(is_key && has_basis);
}

/* Of a coded form. lambda: keys of mneme, [dim] falling variances of the basis' components, which decide
 * their bits; NULL: no basis. The form has been checked. All layouts of equal arguments but lambda have
 * equally many bytes: kv_form_bytes. */
void kv_form_layout(code_layout *layout, kv_form form, bool is_key, int dim, int page_tokens,
                    const float *lambda);

/* Bits of every component of a basis, [dim], equal in fours, falling, `bits` on average, 8 at most: one bit
 * after the other goes to the four whose error falls most. */
void kv_form_allocate(uint8_t *bits_of_dim, const float *lambda, int dim, int bits);

/* Bytes of P tokens of one head with rows of `dim` values. has_basis: keys of mneme stand in a basis, any
 * one. */
size_t kv_form_bytes(kv_form form, bool is_key, bool has_basis, int dim, int page_tokens);

#endif
