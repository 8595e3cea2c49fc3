#include "kv_cache.h"

#include <vector>

namespace triolet {

namespace {

template <class E>
void write_cells(char* piece, int64_t half_bytes, int at, int head_dim, const float* key, const float* value) {
  typedef typename E::Element Element;
  const int n = E::PER_CELL;
  Element* keys = (Element*)piece;
  Element* values = (Element*)(piece + half_bytes) + at / n * head_dim * n + at % n;
  for (int d = 0; d < head_dim; d += n)
    for (int i = 0; i < n; i++) keys[(d / n * TILE_TOKENS + at) * n + i] = E::of(key[d + i]);
  for (int d = 0; d < head_dim; d++) values[d * n] = E::of(value[d]);
}

float write_scale(float* scale, const float* row, int head_dim) {
  float most = 1e-12f;
  for (int d = 0; d < head_dim; d++) most = std::fabs(row[d]) > most ? std::fabs(row[d]) : most;
  *scale = most / 127;
  return 127 / most;
}

int8_t byte_of(float x) { return (int8_t)std::lrintf(x); }

void write_bytes(char* piece, int64_t half_bytes, int at, int head_dim, const float* key, const float* value) {
  float* scales = KVCache::scales(piece, half_bytes);
  int8_t* keys = (int8_t*)piece;
  int8_t* values = (int8_t*)piece + half_bytes + at / 2 * head_dim * 2 + at % 2;
  const float k = write_scale(scales + at, key, head_dim);
  const float v = write_scale(scales + TILE_TOKENS + at, value, head_dim);
  for (int d = 0; d < head_dim; d += 2) {
    keys[(d / 2 * TILE_TOKENS + at) * 2] = byte_of(key[d] * k);
    keys[(d / 2 * TILE_TOKENS + at) * 2 + 1] = byte_of(key[d + 1] * k);
  }
  for (int d = 0; d < head_dim; d++) values[d * 2] = byte_of(value[d] * v);
}

}  // namespace

void write_token(const KVCache& cache, int tensor, int64_t slot, int head, const float* key, const float* value) {
  char* piece = cache.piece(tensor, slot / TILE_TOKENS, head);
  const int at = (int)(slot % TILE_TOKENS);
  switch (cache.format) {
    case Format::FLOAT32: return write_cells<Float>(piece, cache.half_bytes(), at, cache.head_dim, key, value);
    case Format::BFLOAT16: return write_cells<BFloat>(piece, cache.half_bytes(), at, cache.head_dim, key, value);
    default: return write_bytes(piece, cache.half_bytes(), at, cache.head_dim, key, value);
  }
}

void copy_blocks(const KVCache& cache, const int64_t* sources, const int64_t* targets, int count) {
  const int64_t bytes = cache.block_bytes();
  std::vector<char> read(bytes * count);
  for (int tensor = 0; tensor < cache.num_tensors; tensor++) {
    char* blocks = cache.data.get() + tensor * cache.tensor_bytes();
    for (int i = 0; i < count; i++) std::memcpy(read.data() + i * bytes, blocks + sources[i] * bytes, bytes);
    for (int i = 0; i < count; i++) std::memcpy(blocks + targets[i] * bytes, read.data() + i * bytes, bytes);
  }
}

}  // namespace triolet
