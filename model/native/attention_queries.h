// Attention of many queries, as chunks of prompts have: vectors of 16 rows (query, head); cells of keys and values are
// broadcast. The largest score, the sum of the weights and the masks are then a lane's own affair: a softmax costs no
// reduction across lanes and a third of the instructions.
//
//   queries  [cell][row]    scores  [token of the chunk][row]    weights  [cell of tokens][row]    outputs  [dimension][row]
#pragma once

#include "attention_work.h"

namespace triolet {

// VECTORS * 16 rows. The last may be padding, which computes what the row before it does.
template <class E, int VECTORS>
struct QueriesInLanes {
  // Products at a time: 8 x 3 sums, 3 vectors of rows and a broadcast fill the registers.
  static constexpr int BROADCASTS = VECTORS == 1 ? 16 : 8;
  static constexpr int WIDTH = VECTORS * LANES;
  Work<E>& work;
  const int dim = work.shape.head_dim;
  f32x16 most[VECTORS];   // the score, times the factor, that weighs 1
  f32x16 total[VECTORS];  // the sum of 2^(score - most) so far
  f32x16 best[VECTORS];   // the largest score of this chunk
  i32x16 order[VECTORS];  // positions, counted from the unit's first query

  explicit QueriesInLanes(Work<E>& work) : work(work) {}

  void begin(const float* const* queries);
  void chunk(int64_t first_tile, int tiles) {
    for (f32x16& one : best) one = splat(-INFINITY);
    const int64_t newest = work.position + work.order[work.rows - 1];
    for (int t = 0; t < tiles; t++) {
      const int64_t first = (first_tile + t) * TILE_TOKENS;
      const bool all = first + TILE_TOKENS - 1 <= work.position && first >= work.sees_from(newest);
      for (int key = 0; key < TILE_TOKENS; key += BROADCASTS) {
        if (all && work.plain()) {
          score<true>(t, key, 0);
        } else {
          score<false>(t, key, first + key - work.position);
        }
      }
    }
    for (int v = 0; v < VECTORS; v++) weigh(v, first_tile, tiles);
    for (int d = 0; d < dim; d += BROADCASTS) add_values(d, tiles);
  }
  void end(float* const* outputs);

 private:
  float* scores() const { return work.scratch.scores.get(); }
  float* outputs_of(int d) const { return work.scratch.outputs.get() + d * WIDTH; }
  template <bool PLAIN>
  void score(int tile, int key, int64_t offset);
  void weigh(int v, int64_t first_tile, int tiles);
  void rescale(int v, f32x16 now);
  void add_values(int d, int tiles);
};

template <class E, int VECTORS>
void QueriesInLanes<E, VECTORS>::begin(const float* const* queries) {
  const int depth = work.depth();
  for (int v = 0; v < VECTORS; v++) {
    const float* from[LANES];
    for (int lane = 0; lane < LANES; lane++) {
      const int row = std::min(v * LANES + lane, work.rows - 1);
      from[lane] = queries[row];
      order[v][lane] = work.order[row];
    }
    for (int cell = 0; cell < depth; cell += LANES) {
      u32x16 block[LANES];
#pragma GCC unroll 16
      for (int lane = 0; lane < LANES; lane++) block[lane] = E::cells_of(from[lane], cell, depth);
      transpose(block);
      for (int i = 0; i < LANES && cell + i < depth; i++)
        store(work.scratch.queries.get() + (cell + i) * WIDTH + v * LANES, block[i]);
    }
    most[v] = splat(-INFINITY), total[v] = f32x16{};
  }
  std::memset(work.scratch.outputs.get(), 0, (size_t)dim * WIDTH * 4);
}

// Scores of the keys [key, key + BROADCASTS) of a tile. `offset`: the first one's position, counted as `order` is.
template <class E, int VECTORS>
template <bool PLAIN>
void QueriesInLanes<E, VECTORS>::score(int tile, int key, int64_t offset) {
  f32x16 sums[BROADCASTS][VECTORS] = {};
  dot_lanes<E>(sums, work.scratch.queries.get(), work.keys[tile] + key, TILE_TOKENS, work.depth());
  float* to = scores() + (tile * TILE_TOKENS + key) * WIDTH;
#pragma GCC unroll 3
  for (int v = 0; v < VECTORS; v++) {
    f32x16 top = best[v];
#pragma GCC unroll 16
    for (int i = 0; i < BROADCASTS; i++) {
      f32x16 s = sums[i][v];
      if (!PLAIN) {
        const int at = (int)(offset + i), window = work.shape.window;
        s = work.scored(s, work.bytes() ? work.scales[tile][key + i] : 0);
        const i32x16 seen = window ? (order[v] >= at) & (order[v] - window < at) : order[v] >= at;
        s = seen ? s : splat(-INFINITY);
      }
      top = maximum(s, top);
      store(to + i * WIDTH + v * LANES, s);
    }
    best[v] = top;
  }
}

// Scores into weights of the online softmax; what a row does not see has the score -infinity and weighs nothing.
template <class E, int VECTORS>
void QueriesInLanes<E, VECTORS>::weigh(int v, int64_t first_tile, int tiles) {
  const f32x16 top = best[v] * work.factor;
  const i32x16 above = top > most[v] + SLACK;
  if (any(above)) rescale(v, above ? top : most[v]);
  const f32x16 base = most[v] > -INFINITY ? most[v] : f32x16{};  // a row may have seen nothing yet
  const int64_t written = work.context - first_tile * TILE_TOKENS;
  const float* from = scores() + v * LANES;
  uint32_t* to = work.scratch.weights.get() + v * LANES;
  const bool bytes = work.bytes();
  const float factor = work.factor;
  f32x16 added[TILE_TOKENS] = {};
  for (int t = 0; t < tiles; t++) {
#pragma GCC unroll 16
    for (int key = 0; key < TILE_TOKENS; key += E::PER_CELL) {
      const int first = t * TILE_TOKENS + key;
      f32x16 weights[E::PER_CELL];
#pragma GCC unroll 2
      for (int i = 0; i < E::PER_CELL; i++) {
        weights[i] = exp2_of(loadf(from + (first + i) * WIDTH) * factor - base);
        added[key + i] += weights[i];
        if (bytes) weights[i] = first + i < written ? weights[i] * work.scales[t][LANES + key + i] : f32x16{};
      }
      store(to + first / E::PER_CELL * WIDTH, E::cells_across(weights));
    }
  }
  for (int half = TILE_TOKENS / 2; half; half /= 2)  // in sum_of_halves' order
    for (int i = 0; i < half; i++) added[i] += added[i + half];
  total[v] += added[0];
}

template <class E, int VECTORS>
void QueriesInLanes<E, VECTORS>::rescale(int v, f32x16 now) {
  const f32x16 shrink = now > -INFINITY ? exp2_of(most[v] - now) : f32x16{};
  for (int d = 0; d < dim; d++) {
    float* sums = outputs_of(d) + v * LANES;
    store(sums, loadf(sums) * shrink);
  }
  total[v] = total[v] * shrink;
  most[v] = now;
}

// outputs[d .. d + BROADCASTS) += v . weights
template <class E, int VECTORS>
void QueriesInLanes<E, VECTORS>::add_values(int d, int tiles) {
  constexpr int TILE_CELLS = TILE_TOKENS / E::PER_CELL;
  f32x16 sums[BROADCASTS][VECTORS];
  float* to = outputs_of(d);
#pragma GCC unroll 16
  for (int i = 0; i < BROADCASTS; i++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) sums[i][v] = loadf(to + i * WIDTH + v * LANES);
  for (int t = 0; t < tiles; t++)
    dot_lanes<E>(sums, work.scratch.weights.get() + t * TILE_CELLS * WIDTH, work.values[t] + d, dim, TILE_CELLS);
#pragma GCC unroll 16
  for (int i = 0; i < BROADCASTS; i++)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; v++) store(to + i * WIDTH + v * LANES, sums[i][v]);
}

template <class E, int VECTORS>
void QueriesInLanes<E, VECTORS>::end(float* const* outputs) {
  for (int v = 0; v < VECTORS; v++) {
    const f32x16 share = 1 / total[v];
    for (int d = 0; d < dim; d += LANES) {
      u32x16 block[LANES];
      for (int i = 0; i < LANES; i++) block[i] = (u32x16)(loadf(outputs_of(d + i) + v * LANES) * share);
      transpose(block);
      for (int lane = 0; lane < LANES && v * LANES + lane < work.rows; lane++)
        store(outputs[v * LANES + lane] + d, block[lane]);
    }
  }
}

}  // namespace triolet
