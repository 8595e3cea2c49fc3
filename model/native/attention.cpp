#include "attention.h"

#include <algorithm>

namespace triolet {

namespace {

constexpr int CHUNK_TILES = CHUNK_TOKENS / TILE_TOKENS;

// A unit at work. Rows are (query, head) with the head running faster.
template <class E>
struct Work {
  typedef typename E::Element Element;
  const AttentionShape& shape;
  const KVCache& cache;
  Scratch& scratch;
  const int tensor;
  const int32_t* table;
  const int rows, heads;      // rows = queries * heads
  const int64_t position;     // of the first query
  const int64_t context;      // tokens that the sequence has in the cache
  float most[UNIT_ROWS];      // the largest score so far, times scale * log2(e)
  float total[UNIT_ROWS];     // the sum of 2^(score - most) so far
  const uint32_t* keys[CHUNK_TILES];
  const uint32_t* values[CHUNK_TILES];
  const float* scales[CHUNK_TILES];  // int8: 16 of K, 16 of V

  int depth() const { return shape.head_dim / E::PER_CELL; }
  int64_t tile_of(int64_t index) const {
    return (int64_t)table[index / cache.tiles_per_block] * cache.tiles_per_block + index % cache.tiles_per_block;
  }
  int64_t sees_from(int64_t at) const { return shape.window ? std::max<int64_t>(0, at + 1 - shape.window) : 0; }

  void find_tiles(int64_t first_tile, int tiles, int kv_head);
  void score(int tiles);
  void weigh(int64_t first_tile, int tiles);
  void weigh_row(int row, int low, int high, int width);
  void add_values(int tiles);
  const uint32_t* without_unwritten(const uint32_t* tile, int written);
};

// int8 pairs to bfloat16 pairs, in place of order: exact, since 8 bits fit its significand.
void widen_bytes(const int8_t* from, bf16* to, int count) {
#if defined(__AVX512BF16__)
  for (int i = 0; i < count; i += 2 * LANES) {
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + i))));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + i + LANES))));
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
#else
  for (int i = 0; i < count; i += LANES)
    store_bf16(to + i, __builtin_convertvector(load<i8x16>(from + i), f32x16));
#endif
}

template <class E>
void Work<E>::find_tiles(int64_t first_tile, int tiles, int kv_head) {
  const int64_t half = cache.half_bytes();
  const int half_cells = TILE_TOKENS * depth();
  for (int t = 0; t < tiles; t++) {
    char* piece = cache.piece(tensor, tile_of(first_tile + t), kv_head);
    if (cache.format == Format::INT8) {
      uint32_t* to = scratch.widened.get() + (int64_t)t * 2 * half_cells;
      widen_bytes((const int8_t*)piece, (bf16*)to, 2 * (int)half);
      keys[t] = to, values[t] = to + half_cells;
      scales[t] = KVCache::scales(piece, half);
    } else {
      keys[t] = (const uint32_t*)piece;
      values[t] = (const uint32_t*)(piece + half);
    }
    const int64_t written = context - (first_tile + t) * TILE_TOKENS;
    if (written < TILE_TOKENS) values[t] = without_unwritten(values[t], (int)written);
  }
}

// A weight of zero does not keep a NaN out of a sum: a copy with zeros where nothing was written.
template <class E>
const uint32_t* Work<E>::without_unwritten(const uint32_t* tile, int written) {
  const int dim = shape.head_dim, full = written / E::PER_CELL;
  uint32_t* to = scratch.last_values.get();
  std::memcpy(to, tile, (size_t)full * dim * 4);
  std::memset(to + full * dim, 0, ((size_t)TILE_TOKENS / E::PER_CELL - full) * dim * 4);
  if (written % E::PER_CELL)  // of a cell with two tokens the first
    for (int d = 0; d < dim; d++) to[full * dim + d] = tile[full * dim + d] & 0xffffu;
  return to;
}

// scores[row][token of the chunk] = q . k, four tiles of keys at a time.
template <class E>
void Work<E>::score(int tiles) {
  for (int t = 0; t < tiles; t += 4) {
    const int last = tiles - 1;  // beyond it a tile is scored again, and not looked at
    const uint32_t* const columns[4] = {keys[t], keys[std::min(t + 1, last)], keys[std::min(t + 2, last)],
                                        keys[std::min(t + 3, last)]};
    for_row_tiles(rows, [&](int first, auto count) {
      constexpr int ROWS = decltype(count)::value;
      f32x16 sums[ROWS][4] = {};
      dot_tile<E, ROWS, 4>(sums, columns, TILE_TOKENS, depth(), scratch.queries.get() + first * depth(), depth());
      float* to = scratch.scores.get() + first * CHUNK_TOKENS + t * TILE_TOKENS;
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < 4; c++) store(to + r * CHUNK_TOKENS + c * LANES, sums[r][c]);
    });
  }
}

// Scores into weights of the online softmax; tokens that a row does not see weigh nothing.
template <class E>
void Work<E>::weigh(int64_t first_tile, int tiles) {
  const int64_t start = first_tile * TILE_TOKENS;
  const int width = tiles * TILE_TOKENS;
  for (int row = 0; row < rows; row++) {
    const int64_t at = position + row / heads;
    const int low = (int)std::clamp<int64_t>(sees_from(at) - start, 0, width);
    const int high = (int)std::clamp<int64_t>(at + 1 - start, 0, width);
    weigh_row(row, low, high, width);
  }
}

template <class E>
void Work<E>::weigh_row(int row, int low, int high, int width) {
  float* scores = scratch.scores.get() + row * CHUNK_TOKENS;
  Element* weights = (Element*)scratch.probabilities.get() + row * CHUNK_TOKENS;
  if (low >= high) {
    std::memset((void*)weights, 0, width * sizeof(Element));
    return;
  }
  const bool bytes = cache.format == Format::INT8;
  const float scale = shape.scale * LOG2E;
  f32x16 best = splat(-INFINITY);
  for (int i = low / LANES * LANES; i < high; i += LANES) {
    f32x16 s = loadf(scores + i);
    if (bytes) s = s * loadf(scales[i / LANES]);
    s = shape.soft_cap > 0 ? soft_capped(s * shape.scale, shape.soft_cap) * LOG2E : s * scale;
    if (i < low || i + LANES > high) {
      const i32x16 seen = (i32x16)only((f32x16)(i32x16{} - 1), low - i, high - i);
      s = seen ? s : splat(-INFINITY);
    }
    store(scores + i, s);
    best = maximum(s, best);
  }
  const float top = largest(best);
  if (top > most[row]) {
    const float shrink = exp2_of(splat(most[row] - top))[0];
    float* sums = scratch.outputs.get() + row * shape.head_dim;
    if (total[row] > 0)
      for (int d = 0; d < shape.head_dim; d += LANES) store(sums + d, loadf(sums + d) * shrink);
    total[row] *= shrink;
    most[row] = top;
  }
  f32x16 added = {};
  for (int i = 0; i < width; i += LANES) {
    f32x16 weight = {};
    if (i + LANES > low && i < high) {
      weight = exp2_of(loadf(scores + i) - most[row]);
      if (i < low || i + LANES > high) weight = only(weight, low - i, high - i);
      added += weight;
      if (bytes) weight = only(weight * loadf(scales[i / LANES] + LANES), low - i, high - i);
    }
    E::store_row(weights + i, weight);
  }
  total[row] += sum(added);
}

// outputs[row] += weights[row] . v, 64 dimensions at a time where there are so many.
template <class E>
void Work<E>::add_values(int tiles) {
  const int dim = shape.head_dim;
  const auto columns_of = [&](int d, auto vectors) {
    constexpr int COLUMNS = decltype(vectors)::value;
    for_row_tiles(rows, [&](int first, auto count) {
      constexpr int ROWS = decltype(count)::value;
      f32x16 sums[ROWS][COLUMNS];
      float* to = scratch.outputs.get() + first * dim + d;
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = loadf(to + r * dim + c * LANES);
      const int row_cells = CHUNK_TOKENS / E::PER_CELL, tile_cells = TILE_TOKENS / E::PER_CELL;
      const uint32_t* weights = scratch.probabilities.get() + first * row_cells;
      for (int t = 0; t < tiles; t++) {
        const uint32_t* columns[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) columns[c] = values[t] + d + c * LANES;
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

template <class E>
void attend(const AttentionShape& shape, const KVCache& cache, int tensor, int group, const Layout& layout,
            const Unit& unit, Scratch& scratch, const float* queries, int64_t query_stride, float* outputs,
            int64_t output_stride) {
  const int sharing = shape.num_heads / shape.num_kv_heads, dim = shape.head_dim;
  const int64_t context = layout.context_lengths[unit.sequence];
  const int64_t position = context - layout.query_lengths[unit.sequence] + unit.first;
  Work<E> work{shape,
               cache,
               scratch,
               tensor,
               layout.tables[group] + (int64_t)unit.sequence * layout.table_width,
               unit.count * unit.heads,
               unit.heads,
               position,
               context,
               {}, {}, {}, {}, {}};
  const int64_t at = (int64_t)(unit.kv_head * sharing + unit.head) * dim;
  for (int row = 0; row < work.rows; row++) {
    const float* from = queries + (unit.row + row / unit.heads) * query_stride + at + row % unit.heads * dim;
    typename E::Element* to = (typename E::Element*)scratch.queries.get() + row * dim;
    for (int d = 0; d < dim; d += LANES) E::store_row(to + d, loadf(from + d));
    work.most[row] = -INFINITY;
  }
  std::memset(scratch.outputs.get(), 0, (size_t)work.rows * dim * 4);
  const int64_t last = (position + unit.count + TILE_TOKENS - 1) / TILE_TOKENS;
  // Chunks end at multiples of their size, so that a token's sums do not depend on which others are computed with it.
  for (int64_t tile = work.sees_from(position) / TILE_TOKENS, next; tile < last; tile = next) {
    next = (tile / CHUNK_TILES + 1) * CHUNK_TILES;
    const int tiles = (int)(std::min(next, last) - tile);
    work.find_tiles(tile, tiles, unit.kv_head);
    work.score(tiles);
    work.weigh(tile, tiles);
    work.add_values(tiles);
  }
  for (int row = 0; row < work.rows; row++) {
    float* to = outputs + (unit.row + row / unit.heads) * output_stride + at + row % unit.heads * dim;
    const float* sums = scratch.outputs.get() + row * dim;
    for (int d = 0; d < dim; d += LANES) store(to + d, loadf(sums + d) / work.total[row]);
  }
}

}  // namespace

void Scratch::allocate(int head_dim) {
  queries.allocate((size_t)UNIT_ROWS * head_dim);
  scores.allocate((size_t)UNIT_ROWS * CHUNK_TOKENS);
  probabilities.allocate((size_t)UNIT_ROWS * CHUNK_TOKENS);
  outputs.allocate((size_t)UNIT_ROWS * head_dim);
  last_values.allocate((size_t)TILE_TOKENS * head_dim);
  widened.allocate((size_t)CHUNK_TOKENS * head_dim);
}

// The longest contexts first would be best; the last queries of a chunk first is nearly that.
void Units::plan(const AttentionShape& shape, const Layout& layout) {
  const int sharing = shape.num_heads / shape.num_kv_heads;
  const int heads = std::min(sharing, UNIT_ROWS), tokens = std::max(1, UNIT_ROWS / heads);
  int64_t needed = 0;
  for (int s = 0; s < layout.num_sequences; s++)
    needed += (layout.query_lengths[s] + tokens - 1) / tokens * shape.num_kv_heads * ((sharing + heads - 1) / heads);
  if ((int64_t)units.size() < needed) units.allocate((size_t)needed);
  count = 0;
  int64_t row = 0;
  for (int s = 0; s < layout.num_sequences; s++) {
    const int length = (int)layout.query_lengths[s];
    for (int first = (length + tokens - 1) / tokens * tokens - tokens; first >= 0; first -= tokens)
      for (int kv_head = 0; kv_head < shape.num_kv_heads; kv_head++)
        for (int head = 0; head < sharing; head += heads)
          units[count++] = {s, kv_head, first, std::min(tokens, length - first), head,
                            std::min(heads, sharing - head), row + first};
    row += length;
  }
}

void attention(Pool& pool, const AttentionShape& shape, const KVCache& cache, int tensor, int group,
               const Layout& layout, const Units& units, Scratch* scratch, const float* queries, int64_t query_stride,
               float* outputs, int64_t output_stride) {
  pool.run(units.count, [&](int number, int worker) {
    const auto kernel = cache.format == Format::FLOAT32 ? attend<Float> : attend<BFloat>;
    kernel(shape, cache, tensor, group, layout, units.units[number], scratch[worker], queries, query_stride, outputs,
           output_stride);
  });
}

}  // namespace triolet
