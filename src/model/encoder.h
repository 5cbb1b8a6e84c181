/* Encoders of sound: Whisper's, from log-mel features to the keys and values that its decoder's cross attention reads.
 *
 * Radford and others 2022. Two convolutions over time, the second of which halves the frames; then layers in which every position sees
 * every other. The encoder is a model of its own beside the decoder, with weights and buffers of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ENCODER_H
#define MN_MODEL_ENCODER_H

#include "model/model.h"

typedef struct encoder {
    model_core core;   /* config (borrowed), weights, workspace; compute is the decoder's */
    kv_cache *layer;   /* keys and values of the layer in progress */
    float *unfolded;   /* [positions][3 * max(num_mel_bins, hidden_size)] inputs of a convolution's outputs */
    float *convolved;  /* [2 * positions][hidden_size] */
} encoder;

/* Opens the encoder of a model whose configuration has one: binds and lays out its weights, as weights_plan. */
mn_status encoder_plan(model_core *model, bool is_auto);
/* Packs the weights and makes its buffers, once the model's compute and pool are there. */
mn_status encoder_make(model_core *model, bool lazy);
void encoder_close(encoder **e);

/* Fills the cross entries of a cache, which must be empty (MN_E_ARG), with what the decoder's layers make of the encoder's output over
 * features [num_mel_bins][n_frames], n_frames being twice the encoder's positions (MN_E_ARG). states: NULL, or the output itself
 * [positions][hidden_size], filled. On failure the cache is as before. */
mn_status model_encode(model_core *model, kv_cache *cache, const float *features, int64_t n_frames, float *states);

#endif
