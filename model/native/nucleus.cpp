#include "nucleus.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace triolet {

namespace {

constexpr int BINS = 2048;
constexpr float BINS_PER_UNIT = 64;  // the last bin begins at -32, where a weight is nothing beside the largest

constexpr int LAST_BINS = 256;       // and has so many places, as it may hold most of a vocabulary
constexpr int PLACES = BINS - 1 + LAST_BINS;

struct Token {
  float scaled, weight;
};

struct Bins {
  std::vector<double> sums;  // two of each bin, for neighbours in turn: one would wait for the other's addition
  std::vector<int32_t> places;
  std::vector<Token> tokens;
};

inline int bin_of(float scaled) {
  return (int)std::min(std::max(scaled * -BINS_PER_UNIT, 0.f), (float)(BINS - 1));  // no branch: none could be foreseen
}

inline int place_of(float scaled, int i) {
  const int bin = bin_of(scaled);
  return bin + (-(int)(bin == BINS - 1) & i & (LAST_BINS - 1));
}

// The scaled logit of the last token that is needed: its bin by the bins' sums, its place in there by sorting.
float threshold(const float* scaled, const float* weights, int width, double share, Bins& bins) {
  std::fill(bins.sums.begin(), bins.sums.end(), 0.0);
  double* even = bins.sums.data();
  double* odd = even + PLACES;
  int32_t* places = bins.places.data();
  for (int i = 0; i < width; i++) places[i] = place_of(scaled[i], i);  // by itself, in lanes
  for (int i = 0; i + 1 < width; i += 2) {
    even[places[i]] += weights[i];
    odd[places[i + 1]] += weights[i + 1];
  }
  if (width % 2) even[places[width - 1]] += weights[width - 1];
  double total = 0;
  for (int i = 0; i < PLACES; i++) total += even[i] += odd[i];
  const double wanted = total * share;
  double above = 0;
  int bin = 0;
  while (bin < BINS - 1 && above + bins.sums[bin] < wanted) above += bins.sums[bin++];
  size_t count = 0;
  for (int i = 0; i < width; i++)
    if ((places[i] < BINS ? places[i] : BINS - 1) == bin && weights[i] > 0) bins.tokens[count++] = {scaled[i], weights[i]};
  if (!count) return -INFINITY;  // nothing has a weight
  std::sort(bins.tokens.begin(), bins.tokens.begin() + count,
            [](const Token& a, const Token& b) { return a.scaled > b.scaled; });
  size_t last = 0;
  while (last + 1 < count && above + bins.tokens[last].weight < wanted) above += bins.tokens[last++].weight;
  return bins.tokens[last].scaled;
}

}  // namespace

void keep_nucleus(Pool& pool, int threads, const WeightRows& all, const int64_t* rows, const double* shares, int count) {
  thread_local std::vector<Bins> kept;  // the caller's; a worker has its own of them
  kept.resize(std::max(kept.size(), (size_t)pool.size()));
  for (Bins& bins : kept) {
    bins.sums.resize(2 * PLACES);
    bins.places.resize(std::max(bins.places.size(), (size_t)all.width));
    bins.tokens.resize(std::max(bins.tokens.size(), (size_t)all.width));
  }
  std::vector<Bins>& by_worker = kept;
  pool.begin(threads);  // nothing throws from here to its end
  pool.run(count, [&](int i, int worker) {
    const float* scaled = all.scaled + rows[i] * all.scaled_stride;
    float* weights = all.weights + rows[i] * all.weight_stride;
    const float least = threshold(scaled, weights, all.width, shares[i], by_worker[worker]);
    for (int j = 0; j < all.width; j++) weights[j] = scaled[j] >= least ? weights[j] : 0.f;
  });
  pool.end();
}

}  // namespace triolet
