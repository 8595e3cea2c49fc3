// The paged KV cache, in the layout that attention multiplies from: one allocation for all layers.
//
//   cache[tensor][block][tile of 16 tokens][kv head] -> one piece: K of the tile, then V of the tile
//
//   K  [dimension / PER_CELL][16 tokens]   cells: PER_CELL neighbouring dimensions of one token
//   V  [16 tokens / PER_CELL][dimension]   cells: PER_CELL neighbouring tokens in one dimension
//
// so that Q times K and P times V are the same dot products as a matrix's, over vectors of 16 tokens or 16 dimensions.
// K and V of a head lie together because they are read together: one stream of pages instead of two.
//
// int8: K and V as bytes, [dimension / 2][16][2] and [16 / 2][dimension][2], then 16 scales of K and 16 of V, one for
// each token; widened to bfloat16 as they are read, which is exact.
//
// The content of a slot that was not written is anything, also NaN, and takes part in no sum, not even with weight zero.
#pragma once

#include "linear.h"

namespace triolet {

constexpr int TILE_TOKENS = 16;

struct KVCache {
  Format format;  // FLOAT32, BFLOAT16 or INT8
  int num_tensors, num_blocks, tiles_per_block, num_kv_heads, head_dim;
  Memory<char> data;

  int64_t half_bytes() const {  // K alone, or V alone
    return (int64_t)TILE_TOKENS * head_dim * (format == Format::FLOAT32 ? 4 : format == Format::BFLOAT16 ? 2 : 1);
  }
  int64_t piece_bytes() const { return 2 * half_bytes() + (format == Format::INT8 ? 2 * TILE_TOKENS * 4 : 0); }
  int64_t block_bytes() const { return piece_bytes() * num_kv_heads * tiles_per_block; }
  int64_t tensor_bytes() const { return block_bytes() * num_blocks; }
  int64_t num_slots() const { return (int64_t)num_blocks * tiles_per_block * TILE_TOKENS; }
  // `tile` counts through the blocks: block * tiles_per_block + tile in the block.
  char* piece(int tensor, int64_t tile, int head) const {
    return data.get() + tensor * tensor_bytes() + (tile * num_kv_heads + head) * piece_bytes();
  }
  static float* scales(char* piece, int64_t half_bytes) { return (float*)(piece + 2 * half_bytes); }
};

// Puts keys and values of one head, floats [head_dim] and `stride` apart, of `count` tokens into neighbouring slots of one
// tile. Nothing else of the tile is touched: another thread may write its other slots.
void write_tokens(const KVCache& cache, int tensor, int64_t slot, int count, int head, const float* keys,
                  const float* values, int64_t stride);

// How many of these slots, from the first on, are neighbours in one tile.
int run_of_slots(const int64_t* slots, int count);

// Copies whole blocks of all tensors; all sources are read before any target is written.
void copy_blocks(const KVCache& cache, const int64_t* sources, const int64_t* targets, int count);

}  // namespace triolet
