// Attention of few queries, as decodes have: vectors of 16 keys, then of 16 dimensions of their values; a query's cells
// are broadcast.
//
//   queries  [row][cell]    scores and weights  [row][token of the chunk]    outputs  [row][dimension]
#pragma once

#include "attention_work.h"

namespace triolet {

template <class E>
struct KeysInLanes {
  typedef typename E::Element Element;
  Work<E>& work;
  const int dim = work.shape.head_dim;
  float most[UNIT_ROWS];   // the score, times the factor, that weighs 1
  float total[UNIT_ROWS];  // the sum of 2^(score - most) so far

  explicit KeysInLanes(Work<E>& work) : work(work) {}

  void begin(const float* const* queries) {
    for (int row = 0; row < work.rows; row++) {
      Element* to = (Element*)work.scratch.queries.get() + row * dim;
      for (int d = 0; d < dim; d += LANES) E::store_row(to + d, loadf(queries[row] + d));
      most[row] = -INFINITY, total[row] = 0;
    }
    std::memset(work.scratch.outputs.get(), 0, (size_t)work.rows * dim * 4);
  }

  void chunk(int64_t first_tile, int tiles) {
    score(tiles);
    const int64_t start = first_tile * TILE_TOKENS;
    const int width = tiles * TILE_TOKENS;
    for (int row = 0; row < work.rows; row++) {
      const int64_t at = work.position + work.order[row];
      const int low = (int)std::clamp<int64_t>(work.sees_from(at) - start, 0, width);
      const int high = (int)std::clamp<int64_t>(at + 1 - start, 0, width);
      weigh(row, low, high, width);
    }
    add_values(tiles);
  }

  void end(float* const* outputs) {
    for (int row = 0; row < work.rows; row++) {
      const float* sums = work.scratch.outputs.get() + row * dim;
      const float share = 1 / total[row];
      for (int d = 0; d < dim; d += LANES) store(outputs[row] + d, loadf(sums + d) * share);
    }
  }

 private:
  void score(int tiles);
  void weigh(int row, int low, int high, int width);
  void add_values(int tiles);
};

// scores[row][token of the chunk] = q . k, four tiles of keys at a time.
template <class E>
void KeysInLanes<E>::score(int tiles) {
  const int depth = work.depth();
  for (int t = 0; t < tiles; t += 4) {
    const int last = tiles - 1;  // beyond it a tile is scored again, and not looked at
    const uint32_t* const columns[4] = {work.keys[t], work.keys[std::min(t + 1, last)],
                                        work.keys[std::min(t + 2, last)], work.keys[std::min(t + 3, last)]};
    // The values are on their way while keys are multiplied, and the next chunk's keys while values are.
    if (!work.bytes())
      for (int c = t; c < std::min(t + 4, tiles); c++) work.ask_for(work.values[c], work.cache.half_bytes());
    for_row_tiles(work.rows, [&](int first, auto count) {
      constexpr int ROWS = decltype(count)::value;
      f32x16 sums[ROWS][4] = {};
      dot_tile<E, ROWS, 4>(sums, columns, TILE_TOKENS, depth, work.scratch.queries.get() + first * depth, depth);
      float* to = work.scratch.scores.get() + first * CHUNK_TOKENS + t * TILE_TOKENS;
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < 4; c++) store(to + r * CHUNK_TOKENS + c * LANES, sums[r][c]);
    });
  }
}

// Scores of a row into weights of the online softmax; tokens outside [low, high) weigh nothing.
template <class E>
void KeysInLanes<E>::weigh(int row, int low, int high, int width) {
  float* scores = work.scratch.scores.get() + row * CHUNK_TOKENS;
  Element* weights = (Element*)work.scratch.weights.get() + row * CHUNK_TOKENS;
  if (low >= high) {
    std::memset((void*)weights, 0, width * sizeof(Element));
    return;
  }
  f32x16 best = splat(-INFINITY);
  for (int i = low / LANES * LANES; i < high; i += LANES) {
    f32x16 s = loadf(scores + i);
    if (!work.plain()) s = work.scored(s, work.bytes() ? loadf(work.scales[i / LANES]) : f32x16{});
    if (i < low || i + LANES > high) s = only(i32x16{} - 1, low - i, high - i) ? s : splat(-INFINITY);
    store(scores + i, s);
    best = maximum(s, best);
  }
  const float top = largest(best) * work.factor;
  if (top > most[row] + SLACK) {
    const float shrink = exp2_of(splat(most[row] - top))[0];
    float* sums = work.scratch.outputs.get() + row * dim;
    if (total[row] > 0)
      for (int d = 0; d < dim; d += LANES) store(sums + d, loadf(sums + d) * shrink);
    total[row] *= shrink;
    most[row] = top;
  }
  f32x16 added = {};
  for (int i = 0; i < width; i += LANES) {
    f32x16 weight = {};
    if (i + LANES > low && i < high) {
      weight = exp2_of(loadf(scores + i) * work.factor - most[row]);
      added += weight;
      if (work.bytes()) {
        weight = weight * loadf(work.scales[i / LANES] + LANES);
        if (i < low || i + LANES > high) weight = only(weight, low - i, high - i);  // an unwritten scale may be a NaN
      }
    }
    E::store_row(weights + i, weight);
  }
  total[row] += sum_of_halves(added);
}

// outputs[row] += weights[row] . v, 64 dimensions at a time where there are so many.
template <class E>
void KeysInLanes<E>::add_values(int tiles) {
  const auto columns_of = [&](int d, auto vectors) {
    constexpr int COLUMNS = decltype(vectors)::value;
    for_row_tiles(work.rows, [&](int first, auto count) {
      constexpr int ROWS = decltype(count)::value;
      f32x16 sums[ROWS][COLUMNS];
      float* to = work.scratch.outputs.get() + first * dim + d;
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = loadf(to + r * dim + c * LANES);
      const int row_cells = CHUNK_TOKENS / E::PER_CELL, tile_cells = TILE_TOKENS / E::PER_CELL;
      const uint32_t* weights = work.scratch.weights.get() + first * row_cells;
      for (int t = 0; t < tiles; t++) {
        if (d == 0 && first == 0 && work.next_keys[t]) work.ask_for(work.next_keys[t], work.cache.half_bytes());
        const uint32_t* columns[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) columns[c] = work.values[t] + d + c * LANES;
        dot_tile<E, ROWS, COLUMNS>(sums, columns, dim, tile_cells, weights + t * tile_cells, row_cells);
      }
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) store(to + r * dim + c * LANES, sums[r][c]);
    });
  };
  int d = 0;
  for (; d + 64 <= dim; d += 64) columns_of(d, Constant<4>{});
  for (; d < dim; d += LANES) columns_of(d, Constant<1>{});
}

}  // namespace triolet
