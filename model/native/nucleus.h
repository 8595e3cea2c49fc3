// top_p on rows of weights: the most likely tokens that together have a share of the whole keep theirs.
#pragma once

#include <cstdint>

#include "pool.h"

namespace triolet {

// Rows of `scaled` (logits less their largest, so at most 0) and of `weights` (their exponentials, or 0 where another
// filter has been), `width` of each.
struct WeightRows {
  float* weights;
  int64_t weight_stride;
  const float* scaled;
  int64_t scaled_stride;
  int width;
};

// Rows rows[i] keep the share shares[i]: the weights of the others become 0. Equal logits stay or go together.
void keep_nucleus(Pool& pool, int threads, const WeightRows& all, const int64_t* rows, const double* shares, int count);

}  // namespace triolet
