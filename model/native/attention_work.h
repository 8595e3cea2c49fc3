// What both forms of the attention kernel share: where a unit's keys and values are, and who sees what.
//
// Scores are stored as the kernel multiplied them, times what only the key knows; `factor` turns them into exponents of 2
// on the way to weights. Both forms add in the same order and round at the same places, so that a token's output has the
// same bits whichever of them computes it.
#pragma once

#include <algorithm>

#include "attention.h"

namespace triolet {

constexpr int CHUNK_TILES = CHUNK_TOKENS / TILE_TOKENS;
// Weights are relative to a score that was once the largest; as long as none is 2^SLACK times as heavy, it stays, and the
// sums need not be rescaled.
constexpr float SLACK = 8;
// int8: how many tiles ahead of the widening are asked for. Blocks lie anywhere: what reads them cannot guess the next.
constexpr int TILES_AHEAD = 2;

// A unit at work. Rows are (query, head) with the head running faster.
template <class E>
struct Work {
  typedef typename E::Element Element;
  const AttentionShape& shape;
  const KVCache& cache;
  Scratch& scratch;
  const int tensor;
  const int32_t* table;
  const int rows;
  int order[UNIT_ROWS];    // each row's position, counted from the first query's
  const int64_t position;  // of the first query
  const int64_t context;   // tokens that the sequence has in the cache
  const float factor;      // of stored scores
  const uint32_t* keys[CHUNK_TILES];
  const uint32_t* values[CHUNK_TILES];
  const float* scales[CHUNK_TILES];    // int8: 16 of K, 16 of V
  const uint32_t* next_keys[CHUNK_TILES];  // of the chunk that follows, null behind the end; int8: null

  bool bytes() const { return cache.format == Format::INT8; }
  int depth() const { return shape.head_dim / E::PER_CELL; }
  int64_t tile_of(int64_t index) const {
    return (int64_t)table[index / cache.tiles_per_block] * cache.tiles_per_block + index % cache.tiles_per_block;
  }
  int64_t sees_from(int64_t at) const { return shape.window ? std::max<int64_t>(0, at + 1 - shape.window) : 0; }

  // A score as it is stored; `scale` is the key's.
  template <class Scale>
  INLINE f32x16 scored(f32x16 product, Scale scale) const {
    if (bytes()) product = product * scale;
    if (shape.soft_cap > 0) product = soft_capped(product * shape.scale, shape.soft_cap) * LOG2E;
    return product;
  }
  bool plain() const { return !bytes() && shape.soft_cap <= 0; }

  bool has(int64_t tile) const { return tile * TILE_TOKENS < context; }
  // Asks for memory that will be read soon.
  void ask_for(const void* from, int64_t bytes) const {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)from + at);
  }
  void find_tiles(int64_t first_tile, int tiles, int kv_head);
  const uint32_t* without_unwritten(const uint32_t* tile, int written);
};

// int8 pairs to bfloat16 pairs, in place of order: exact, since 8 bits fit its significand.
inline void widen_bytes(const int8_t* from, bf16* to, int count) {
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
    const auto piece_of = [&](int64_t tile) { return cache.piece(tensor, tile_of(tile), kv_head); };
    char* piece = piece_of(first_tile + t);
    next_keys[t] = nullptr;
    if (bytes()) {
      const int64_t coming = first_tile + t + TILES_AHEAD;
      if (has(coming)) ask_for(piece_of(coming), cache.piece_bytes());
      uint32_t* to = scratch.widened.get() + (int64_t)t * 2 * half_cells;
      widen_bytes((const int8_t*)piece, (bf16*)to, 2 * (int)half);
      keys[t] = to, values[t] = to + half_cells;
      scales[t] = KVCache::scales(piece, half);
    } else {
      keys[t] = (const uint32_t*)piece;
      values[t] = (const uint32_t*)(piece + half);
      const int64_t coming = first_tile + t + CHUNK_TILES;
      if (has(coming)) next_keys[t] = (const uint32_t*)piece_of(coming);
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

}  // namespace triolet
