#include "sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "rows.h"
#include "threshold.h"

namespace triolet {

namespace {

constexpr int CHUNK = 256;  // weights are summed in float32 in chunks of so many, the chunks in float64
constexpr int VECTORS = CHUNK / LANES;

inline int chunks_of(int width) { return (width + CHUNK - 1) / CHUNK; }

// Scaled logits from which on the weight is summed, to find a bound of a row's nucleus in the pass that sums all of it.
constexpr float LEVELS[] = {-1, -2, -3, -4, -6, -8, -11, -15};
constexpr int NUM_LEVELS = sizeof LEVELS / sizeof *LEVELS;

// What a thread needs for a row. Grows and never shrinks.
struct Work {
  float tail[CHUNK];
  std::vector<float> tops, some_tops;  // the largest of each chunk
  std::vector<double> sums;            // of each chunk
  std::vector<float> scaled, weights;  // of candidates, in order of their ids
  std::vector<int32_t> ids, order;
  Selection selection;

  void reserve(int width) {
    const size_t chunks = (size_t)chunks_of(width);
    if (tops.size() >= chunks) return;
    tops.resize(chunks), some_tops.resize(chunks), sums.resize(chunks);
    // A vector's lanes that are kept are stored with those that are not, behind them.
    scaled.resize((chunks + 1) * CHUNK), weights.resize((chunks + 1) * CHUNK), ids.resize((chunks + 1) * CHUNK);
    order.resize((chunks + 1) * CHUNK);
    selection.reserve((int)chunks * CHUNK);
  }
};

// A row in chunks; the last is filled up with -inf, so that no loop has a remainder.
class Row {
 public:
  Row(const float* logits, int width, float* tail)
      : chunks(chunks_of(width)), width(width), logits_(logits), tail_(tail), whole_(width / CHUNK) {
    if (whole_ == chunks) return;
    std::fill(tail, tail + CHUNK, -INFINITY);
    std::copy(logits + whole_ * CHUNK, logits + width, tail);
  }
  const float* chunk(int number) const { return number == whole_ ? tail_ : logits_ + number * CHUNK; }

  const int chunks, width;

 private:
  const float* logits_;
  const float* tail_;
  const int whole_;
};

// Rounded as the torch path rounds.
struct Scale {
  float largest, temperature;
  f32x16 operator()(f32x16 x) const { return (x - largest) / temperature; }
  float operator()(float x) const { return (x - largest) / temperature; }
};

// The largest of the row, NaN where there is one; the largest of each chunk.
float look_through(const Row& row, float* tops) {
  i32x16 odd = {};
  float most = -INFINITY;
  for (int c = 0; c < row.chunks; c++) {
    const float* chunk = row.chunk(c);
    f32x16 even_top = splat(-INFINITY), odd_top = even_top;
    for (int i = 0; i < CHUNK; i += 2 * LANES) {
      const f32x16 x = loadf(chunk + i), y = loadf(chunk + i + LANES);
      odd |= (x != x) | (y != y);
      even_top = maximum(x, even_top), odd_top = maximum(y, odd_top);
    }
    tops[c] = largest(maximum(even_top, odd_top));
    most = tops[c] > most ? tops[c] : most;
  }
  int32_t any = 0;
  for (int lane = 0; lane < LANES; lane++) any |= odd[lane];
  return any ? NAN : most;
}

// The place where the cumulated weight passes `uniform` of the whole; `weights(chunk, i)` gives sixteen of them.
template <class F>
int draw(int chunks, double* sums, double uniform, const F& weights) {
  double total = 0;
  for (int c = 0; c < chunks; c++) {
    f32x16 sum_of = {};
    for (int i = 0; i < VECTORS; i++) sum_of += weights(c, i);
    total += sums[c] = sum(sum_of);
  }
  // Just below the whole at most, so that rounding never leads past the last token that has a weight.
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  double before = 0;
  int c = 0;
  while (c + 1 < chunks && before + sums[c] <= target) before += sums[c++];
  float inside[CHUNK];
  for (int i = 0; i < VECTORS; i++) store(inside + i * LANES, weights(c, i));
  int last = 0;
  for (int i = 0; i < CHUNK; i++) {
    if (inside[i] <= 0) continue;
    last = i, before += inside[i];
    if (before > target) break;
  }
  return c * CHUNK + last;
}

// Candidates: tokens whose scaled logit is at least that; how many. Behind them stands -inf up to a whole chunk.
int collect(const Row& row, const Scale& scale, float least, Work& work) {
  const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int count = 0;
  for (int c = 0; c < row.chunks; c++) {
    if (scale(work.tops[c]) < least) continue;
    const float* chunk = row.chunk(c);
    for (int i = 0; i < VECTORS; i++) {
      const f32x16 x = scale(loadf(chunk + i * LANES));
      count += keep_lanes(&work.scaled[count], &work.ids[count], x, lanes + (c * CHUNK + i * LANES), x >= least);
    }
  }
  std::fill(&work.scaled[count], work.scaled.data() + chunks_of(count) * CHUNK, -INFINITY);
  return count;
}

// Weights of candidates, 0 below the floor and behind the last; their sum.
double weigh(int count, float floor, Work& work) {
  const int chunks = chunks_of(count);
  double total = 0;
  for (int c = 0; c < chunks; c++) {
    f32x16 sum_of = {};
    for (int i = c * CHUNK; i < (c + 1) * CHUNK; i += LANES) {
      const f32x16 x = loadf(&work.scaled[i]);
      const f32x16 weight = x >= floor ? exp_of(x) : f32x16{};
      store(&work.weights[i], weight);
      sum_of += weight;
    }
    total += sum(sum_of);
  }
  return total;
}

// A bound for the candidates of top_k: there are as many chunks whose largest reaches it, if there are so many chunks.
float bound_of_top_k(const Row& row, int64_t top_k, Work& work) {
  if (top_k > row.chunks) return -INFINITY;
  std::copy_n(work.tops.data(), row.chunks, work.some_tops.data());
  std::nth_element(work.some_tops.data(), &work.some_tops[top_k - 1], work.some_tops.data() + row.chunks,
                   [](float a, float b) { return a > b; });
  return work.some_tops[top_k - 1];
}

// The highest level with that share of the whole weight at or above it, or the lowest scaled logit there may be; the
// whole weight. Lanes are summed in float32: the level is a guess, and who uses it sums again.
float bound_of_top_p(const Row& row, const Scale& scale, double top_p, double& total) {
  f32x16 above[NUM_LEVELS] = {};
  total = 0;
  for (int c = 0; c < row.chunks; c++) {
    const float* chunk = row.chunk(c);
    f32x16 sum_of = {};
    for (int i = 0; i < VECTORS; i++) {
      const f32x16 x = scale(loadf(chunk + i * LANES)), weight = exp_of(x);
      sum_of += weight;
#pragma GCC unroll 8
      for (int level = 0; level < NUM_LEVELS; level++) above[level] += x >= LEVELS[level] ? weight : f32x16{};
    }
    total += sum(sum_of);
  }
  for (int level = 0; level < NUM_LEVELS; level++)
    if (sum(above[level]) >= total * top_p) return LEVELS[level];
  return -FLT_MAX;
}

int64_t draw_row(const Row& row, const Scale& scale, const Sampling& rows, int number, Work& work) {
  const int64_t top_k = rows.top_k[number];
  const double top_p = rows.top_p[number], min_p = rows.min_p[number], uniform = rows.uniform[number];
  const bool limited = top_k > 0 && top_k < row.width;
  if (!limited && min_p <= 0 && top_p >= 1)
    return draw(row.chunks, work.sums.data(), uniform,
                [&](int c, int i) { return exp_of(scale(loadf(row.chunk(c) + i * LANES))); });
  // Nothing at -inf is a candidate: it has no weight whatever the filters are.
  float least = min_p > 0 ? std::min((float)std::log(min_p), 0.f) : -FLT_MAX;
  if (limited) least = std::max(least, scale(bound_of_top_k(row, top_k, work)));
  double total = -1;
  if (!limited && min_p <= 0) least = bound_of_top_p(row, scale, top_p, total);
  int count = collect(row, scale, least, work);
  float floor = -INFINITY;
  if (limited && count > top_k) {
    std::fill_n(work.weights.data(), count, 1.f);
    floor = work.selection.threshold(work.scaled.data(), work.weights.data(), count, (double)top_k);
  }
  double sum_of = weigh(count, floor, work);
  float cut = -INFINITY;
  if (top_p < 1) {
    const double wanted = top_p * (total < 0 ? sum_of : total);
    if (sum_of < wanted) {  // the bound was too high by rounding
      count = collect(row, scale, -FLT_MAX, work);
      weigh(count, floor, work);
    }
    cut = work.selection.threshold(work.scaled.data(), work.weights.data(), count, wanted);
  }
  const float* weights = work.weights.data();
  const int place = draw(chunks_of(count), work.sums.data(), uniform, [&](int c, int i) {
    const int at = c * CHUNK + i * LANES;
    return loadf(&work.scaled[at]) >= cut ? loadf(weights + at) : f32x16{};
  });
  return work.ids[place];
}

void sample_row(const Sampling& rows, int number, Work& work) {
  const float* logits = rows.logits + (int64_t)number * rows.stride;
  const bool greedy = rows.temperature[number] == 0;
  const bool plain = rows.top_k[number] < 1 && rows.min_p[number] <= 0 && rows.top_p[number] >= 1;
  float most = rows.best ? rows.best_logits[number] : 0;
  int64_t token = rows.best ? rows.best[number] : 0;
  if (greedy && !rows.best) token = argmax(logits, rows.width, &most);
  const Row row(logits, rows.width, work.tail);
  if (!greedy && !(plain && rows.best)) most = look_through(row, work.tops.data());
  rows.usable[number] = std::isfinite(most);
  if (!greedy && rows.usable[number])
    token = draw_row(row, {most, std::max((float)rows.temperature[number], 1e-30f)}, rows, number, work);
  rows.tokens[number] = token;
}

void largest_of(const float* values, int width, int k, float* found, int64_t* places, Work& work) {
  const Row row(values, width, work.tail);
  look_through(row, work.tops.data());
  int count = collect(row, {0, 1}, bound_of_top_k(row, k, work), work);
  while (count && work.ids[count - 1] >= width) count--;  // where -inf is among the largest, so is the last chunk's rest
  std::vector<int32_t>& order = work.order;
  for (int i = 0; i < count; i++) order[i] = i;
  const int sorted = std::min(k, count);  // fewer than k only beside NaNs
  std::partial_sort(order.data(), order.data() + sorted, order.data() + count, [&](int32_t a, int32_t b) {
    return work.scaled[a] > work.scaled[b] || (work.scaled[a] == work.scaled[b] && a < b);
  });
  for (int i = 0; i < sorted; i++) found[i] = work.scaled[order[i]], places[i] = work.ids[order[i]];
  for (int i = sorted; i < k; i++) found[i] = NAN, places[i] = 0;
}

// The caller's, one for each worker that may come: counted by what the pool will be asked for, since the pool itself may
// grow until the caller has it.
std::vector<Work>& works(int threads, int width) {
  thread_local std::vector<Work> kept;
  kept.resize(std::max(kept.size(), (size_t)std::max(threads, 1)));
  for (Work& work : kept) work.reserve(width);
  return kept;
}

}  // namespace

void sample(Pool& pool, const Sampling& rows) {
  const int threads = std::min(rows.threads, rows.num_rows);
  std::vector<Work>& by_worker = works(threads, rows.width);
  pool.begin(threads);  // nothing throws from here to its end
  pool.run(rows.num_rows, [&](int i, int worker) { sample_row(rows, i, by_worker[worker]); });
  pool.end();
}

void largest(Pool& pool, int threads, const Values& rows, int k, float* found, int64_t* places) {
  threads = std::min(threads, rows.num_rows);
  std::vector<Work>& by_worker = works(threads, rows.width);
  pool.begin(threads);  // nothing throws from here to its end
  pool.run(rows.num_rows, [&](int i, int worker) {
    largest_of(rows.values + i * rows.stride, rows.width, k, found + (int64_t)i * k, places + (int64_t)i * k,
               by_worker[worker]);
  });
  pool.end();
}

void penalise(float* logits, int64_t count, const int64_t* ids, const float* counts, const Penalties& penalties) {
  for (int64_t i = 0; i < count; i++) {
    float& logit = logits[ids[i]];
    const volatile float frequency = penalties.frequency * counts[i];  // rounded before it is taken off, as torch does
    logit = logit > 0 ? logit / penalties.repetition : logit * penalties.repetition;
    logit -= frequency;
    if (counts[i] > 0) logit -= penalties.presence;
  }
}

}  // namespace triolet
