/* Audio encoders: Whisper's, from log-mel features to the keys and values that its decoder's cross attention reads.
 *
 * Radford and others 2022. Two convolutions over time, the second of which halves the frames; then layers in which
 * every position sees every other. The encoder is a separate network with its own weights and buffers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ENCODER_H
#define MN_MODEL_ENCODER_H

#include "model/model.h"

typedef struct encoder {
    network net;      /* the decoder clears its configuration */
    kv_cache *layer;  /* keys and values of the layer in progress */
    float *unfolded;  /* [positions][3 * max(num_mel_bins, hidden_size)] inputs of a convolution's outputs */
    float *convolved; /* [2 * positions][hidden_size] */
} encoder;

/* Opens the encoder of a model whose configuration has one: binds and lays out its weights, as weights_plan. */
mn_status encoder_plan(model_core *model, bool is_auto);
/* Packs the weights and makes its buffers, after the model's compute and pool are set up. */
mn_status encoder_make(model_core *model, bool lazy);
void encoder_close(encoder **e);

/* Bytes of the buffers that a pass writes, and of the pages of the layer in progress. */
size_t encoder_pass_bytes(const encoder *e);
size_t encoder_layer_bytes(const encoder *e);

/* Fills the cross entries of a cache, which must be empty (MN_E_ARG), with the decoder layers' keys and values of the
 * encoder's output for features [num_mel_bins][n_frames], n_frames being twice the encoder's positions (MN_E_ARG).
 * states: NULL, or the output itself [positions][hidden_size], filled. On failure the cache is as before. */
mn_status model_encode(model_core *model, kv_cache *cache, const float *features, int64_t n_frames, float *states);

#endif
