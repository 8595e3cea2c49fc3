// Attention over the paged cache for decodes and prefill chunks alike: one unit of work, computed in one of two forms
// (attention_keys.h, attention_queries.h) that give the same bits.
#pragma once

#include "kv_cache.h"
#include "pool.h"

namespace triolet {

// Query rows of a unit: tokens times the heads that share a kv head. Its scores and sums stay in L1 and L2.
constexpr int UNIT_ROWS = 48;
// Keys that are scored before their values are added.
constexpr int CHUNK_TOKENS = 128;

struct AttentionShape {
  int num_heads, num_kv_heads, head_dim;
  float scale;
  int window;      // 0: every token sees all before it
  float soft_cap;  // 0: none
};

// Where a step's tokens are; see model/attention/interface.py.
struct Layout {
  int num_tokens, num_sequences;
  const int64_t* query_lengths;
  const int64_t* context_lengths;
  const int32_t* const* tables;  // one for each group: [num_sequences][table_width]
  const int64_t* const* slots;   // one for each group: [num_tokens]
  int table_width;
};

// Queries [first, first + count) of a sequence, heads [head, head + heads) of those that share a kv head.
struct Unit {
  int sequence, kv_head, first, count, head, heads;
  int64_t row;  // of the unit's first query in the flat batch
};

// One thread's memory.
struct Scratch {
  Memory<uint32_t> queries;      // UNIT_ROWS x head_dim, elements of the cache
  Memory<float> scores;          // UNIT_ROWS x CHUNK_TOKENS
  Memory<uint32_t> weights;      // the same, elements of the cache
  Memory<float> outputs;         // UNIT_ROWS x head_dim
  Memory<uint32_t> last_values;  // V of a tile that is not full, without what was never written
  Memory<uint32_t> widened;      // int8: K and V of a chunk as bfloat16
  void allocate(int head_dim);
};

struct Units {
  Memory<Unit> units;
  int count = 0;
  void plan(const AttentionShape& shape, const Layout& layout);
};

// Queries in and outputs out: floats, `query_stride` and `output_stride` apart from token to token.
void attention(Pool& pool, const AttentionShape& shape, const KVCache& cache, int tensor, int group,
               const Layout& layout, const Units& units, Scratch* scratch, const float* queries, int64_t query_stride,
               float* outputs, int64_t output_stride);

}  // namespace triolet
