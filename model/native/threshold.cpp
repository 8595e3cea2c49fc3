#include "threshold.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "vec.h"

namespace triolet {

namespace {

constexpr int BLOCK = 16 * LANES;  // lanes are summed over so many tokens in float32, then in float64 or with fewer terms

struct Range {
  float low, high;
};

// Of the finite values; there is one.
Range range_of(const float* values, int count) {
  f32x16 low = splat(FLT_MAX), high = splat(-FLT_MAX);
  for (int i = 0; i < count; i += LANES) {
    const f32x16 x = loadf(values + i), y = x >= -FLT_MAX ? x : splat(FLT_MAX);
    low = low < y ? low : y;
    high = maximum(x, high);
  }
  return {-largest(-low), largest(high)};
}

// Weights of the values from each bound on, as floats.
template <int BOUNDS>
void sums_from(const float* values, const float* weights, int count, const float (&bounds)[BOUNDS], float (&sums)[BOUNDS]) {
  f32x16 all[BOUNDS] = {};
  for (int begin = 0; begin < count; begin += BLOCK) {
    f32x16 block[BOUNDS] = {};
    const int end = std::min(begin + BLOCK, count);
    for (int i = begin; i < end; i += LANES) {
      const f32x16 x = loadf(values + i), weight = loadf(weights + i);
#pragma GCC unroll 8
      for (int k = 0; k < BOUNDS; k++) block[k] += x >= bounds[k] ? weight : f32x16{};
    }
    for (int k = 0; k < BOUNDS; k++) all[k] += block[k];
  }
  for (int k = 0; k < BOUNDS; k++) sums[k] = sum(all[k]);
}

}  // namespace

void Selection::reserve(int count) {
  values_.resize(count + 2 * LANES), weights_.resize(count + 2 * LANES);
  tokens_.resize(count);
}

float Selection::threshold(const float* values, const float* weights, int count, double wanted) {
  double above = 0;
  for (int pass = 0; pass < MOST_PASSES && count > SOME; pass++) {
    count = to_a_part(values, weights, count, wanted, above);
    values = values_.data(), weights = weights_.data();
  }
  for (int i = 0; i < count; i++) tokens_[i] = {values[i], weights[i]};
  while (count > FEW) {
    const int inside = to_a_bin(count, wanted, above);
    if (inside == count) return tokens_[0].value;  // all equal
    count = inside;
  }
  std::sort(tokens_.data(), tokens_.data() + count, [](const Token& a, const Token& b) { return a.value > b.value; });
  int last = 0;
  while (last + 1 < count && above + tokens_[last].weight < wanted) above += tokens_[last++].weight;
  return tokens_[last].value;
}

// Tokens of that part of the values' range where the threshold is go to `values_` and `weights_`: how many they are, at
// least one.
// Adds the weight of what is above them to `above`.
int Selection::to_a_part(const float* values, const float* weights, int count, double wanted, double& above) {
  const Range range = range_of(values, count);
  float bounds[PARTS - 1], sums[PARTS - 1];
  for (int part = 1; part < PARTS; part++)
    bounds[part - 1] = range.high + (range.low / PARTS - range.high / PARTS) * (float)part;
  sums_from(values, weights, count, bounds, sums);
  int part = 0;  // not below the least value, where sums that are rounded do not reach what is wanted
  while (part < PARTS - 1 && above + sums[part] < wanted && bounds[part] > range.low) part++;
  const float low = part < PARTS - 1 ? bounds[part] : range.low, high = part ? bounds[part - 1] : INFINITY;
  int inside = 0;
  for (int begin = 0; begin < count; begin += BLOCK) {
    f32x16 passed = {};
    const int end = std::min(begin + BLOCK, count);
    for (int i = begin; i < end; i += LANES) {
      const f32x16 x = loadf(values + i), weight = loadf(weights + i);
      passed += x >= high ? weight : f32x16{};
      inside += keep_lanes(&values_[inside], &weights_[inside], x, weight, (x >= low) & (x < high));
    }
    above += sum(passed);
  }
  std::fill_n(&values_[inside], LANES, -INFINITY);
  return inside;
}

// Of the first `count` tokens, those of the bin where the threshold is go to the front: how many they are. Adds the
// weight of the bins above it to `above`. All are left only if all are equal: else the first bin has the largest, the
// last the least.
int Selection::to_a_bin(int count, double wanted, double& above) {
  float low = tokens_[0].value, high = low;
  for (int i = 1; i < count; i++) {
    low = std::min(low, tokens_[i].value);
    high = std::max(high, tokens_[i].value);
  }
  if (low == high) return count;
  // Float64: the difference may be as small as a float's least.
  const double top = high, per_unit = BINS / (top - low);
  const auto bin_of = [&](float value) { return std::min((int)((top - value) * per_unit), BINS - 1); };
  std::fill(&sums_[0][0], &sums_[0][0] + 2 * BINS, 0.0);
  for (int i = 0; i < count; i++) sums_[i & 1][bin_of(tokens_[i].value)] += tokens_[i].weight;
  int bin = 0;
  for (; bin < BINS - 1; bin++) {
    const double sum = sums_[0][bin] + sums_[1][bin];
    if (above + sum >= wanted && sum > 0) break;
    above += sum;
  }
  int inside = 0;
  for (int i = 0; i < count; i++) {
    const Token token = tokens_[i];
    tokens_[inside] = token;
    inside += bin_of(token.value) == bin;
  }
  return inside;
}

}  // namespace triolet
