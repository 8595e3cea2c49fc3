// What is done to each row of the batch by itself: embedding, RMSNorm, rotary positions, conversion, the largest logit.
// Widths are padded to 64 and padding is zero, so that no loop has a remainder.
#pragma once

#include "linear.h"

namespace triolet {

// The row `token` of an embedding matrix, packed as any other (float32 or bfloat16), as floats.
void embed(const Linear& table, int64_t token, float* to);

// RMSNorm over `width` values, the rest being padding; weight [padded(width)].
void rms_norm(const float* from, int width, const float* weight, float eps, const Activations& to, int row);

// The same to floats [padded(width)].
void rms_norm(const float* from, int width, const float* weight, float eps, float* to);

// RMSNorm of one head, in place.
void head_norm(float* head, int head_dim, const float* weight, float eps);

void convert(const float* from, int width, const Activations& to, int row);

// Cosines and sines [half] of one position: angles in float32, as the torch path has them.
void angles(int64_t position, const float* frequencies, int half, float scaling, float* cosines, float* sines);

// Turns the pairs (i, i + half) of a head.
void rotate(float* head, int half, const float* cosines, const float* sines);

// The first of the largest of [0, count); `top` is a NaN where there is one.
int64_t argmax(const float* row, int count, float* top);

}  // namespace triolet
