/* Values of tokens and calibrations of keys, computed from their indices.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_model.h"

uint64_t model_mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

float model_value(uint32_t token, int entry, int head, bool is_key, int d, kv_codec exact) {
    uint64_t place = ((uint64_t)entry << 12) + ((uint64_t)head << 10) + ((uint64_t)is_key << 9) + (uint64_t)d;
    float x = (float)(model_mixed(token * 0x9E3779B97F4A7C15u + place) >> 40) * 0x1p-21f - 4;
    return exact == KV_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

/* Rows 1, -1 of a Sylvester matrix over sqrt(dim), with different signs for each entry and head. */
const kv_head_calibration *model_calibration(int entry, int dim) {
    static float matrices[2][MODEL_ENTRIES][2][32 * 32], lambdas[2][MODEL_ENTRIES][2][32];
    static kv_head_calibration calibration[2][MODEL_ENTRIES][2];
    int size = dim == 32;
    for (int e = 0; e < MODEL_ENTRIES && !calibration[size][entry][0].dim; e++) {
        for (int head = 0; head < 2; head++) {
            float *a = matrices[size][e][head], *lambda = lambdas[size][e][head];
            for (int i = 0; i < dim; i++) {
                lambda[i] = 40.0f / (float)(1 + i * (1 + head + e % 3));
                for (int j = 0; j < dim; j++) {
                    bool minus = __builtin_parity((unsigned)(i & j)) ^
                                 (int)(model_mixed((uint64_t)(e * 64 + head * 32 + j)) & 1);
                    a[i * dim + j] = (minus ? -1.0f : 1.0f) * (dim == 32 ? 0x1.6a09e6p-3f : 0.25f);
                }
            }
            calibration[size][e][head] = (kv_head_calibration){.dim = dim, .key = a, .query = a, .lambda = lambda};
        }
    }
    return calibration[size][entry];
}
