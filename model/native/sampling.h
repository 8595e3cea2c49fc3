// Tokens chosen from rows of logits, by the law of sampling.py: temperature, min_p, top_k, top_p, then the draw; and what
// else is done to such rows beside it.
//
// Filters are thresholds on the logit less the largest, over the temperature ("scaled": at most 0), so equal logits stay
// or go together. A row is one thread's, and what is chosen for it depends on nothing but the row.
#pragma once

#include <cstdint>

#include "pool.h"

namespace triolet {

// The same fields as `Sampling` of library.py, in the same order. Columns have one entry for each row.
struct Sampling {
  int32_t num_rows, width, stride, threads;
  const float* logits;        // [num_rows][stride], of which `width` count; only read
  const double* temperature;  // 0: greedy
  const int64_t* top_k;       // below 1: all
  const double* top_p;
  const double* min_p;
  const double* uniform;       // in [0, 1): where in the cumulated weights the draw falls
  const int64_t* best;         // the first of the largest logits, and that logit, NaN where there is one; null: unknown
  const float* best_logits;
  int64_t* tokens;
  uint8_t* usable;  // 0: a NaN, +inf, or nothing above -inf; the row's token means nothing
};

void sample(Pool& pool, const Sampling& rows);

struct Penalties {
  float repetition, frequency, presence;
};

// On those tokens of a row, of which the answer has `counts`.
void penalise(float* logits, int64_t count, const int64_t* ids, const float* counts, const Penalties& penalties);

struct Values {
  const float* values;
  int64_t stride;
  int num_rows, width;
};

// The k largest of each row [num_rows][k] and where they stand: falling, equal ones by their places. A NaN is in
// nobody's list; where too few others are, NaNs at place 0 fill it up.
void largest(Pool& pool, int threads, const Values& rows, int k, float* found, int64_t* places);

}  // namespace triolet
