#include "kv_cache.h"

#include <vector>

namespace triolet {

namespace {

// A run of tokens on its way into a tile: slots [at, at + count).
struct Run {
  char* piece;
  int64_t half_bytes;
  int at, count, head_dim;
  const float* keys;
  const float* values;
  int64_t stride;
  const float* key(int slot) const { return keys + (slot - at) * stride; }
  const float* value(int slot) const { return values + (slot - at) * stride; }
  bool has(int slot) const { return slot >= at && slot < at + count; }
};

// Stores those lanes of `cells` that are the run's, as Narrow.
template <class Narrow>
INLINE void store_lanes(Narrow* to, u32x16 cells, const Run& run) {
#if defined(__AVX512F__)
  const __mmask16 lanes = (__mmask16)(((1u << run.count) - 1) << run.at);
  if (sizeof(Narrow) == 4) {
    _mm512_mask_storeu_epi32(to, lanes, (__m512i)cells);
  } else {
    _mm512_mask_cvtepi32_storeu_epi16(to, lanes, (__m512i)cells);
  }
#else
  for (int lane = run.at; lane < run.at + run.count; lane++) to[lane] = (Narrow)cells[lane];
#endif
}

// K: 16 cells of each token at a time, turned so that the tokens stand side by side. `cells_of(slot, cell)` gives them.
template <class Narrow, class F>
INLINE void write_keys(const Run& run, int depth, const F& cells_of) {
  Narrow* to = (Narrow*)run.piece;
  if (run.count == 1) {
    for (int cell = 0; cell < depth; cell += LANES) {
      const u32x16 cells = cells_of(run.at, cell);
      for (int i = 0; i < LANES && cell + i < depth; i++) to[(cell + i) * TILE_TOKENS + run.at] = (Narrow)cells[i];
    }
    return;
  }
  for (int cell = 0; cell < depth; cell += LANES) {
    u32x16 block[LANES];
    for (int slot = 0; slot < TILE_TOKENS; slot++) block[slot] = run.has(slot) ? cells_of(slot, cell) : u32x16{};
    transpose(block);
    for (int i = 0; i < LANES && cell + i < depth; i++) store_lanes(to + (cell + i) * TILE_TOKENS, block[i], run);
  }
}

void write_floats(const Run& run) {
  write_keys<uint32_t>(run, run.head_dim, [&](int slot, int cell) { return load<u32x16>(run.key(slot) + cell); });
  float* values = (float*)(run.piece + run.half_bytes);
  for (int slot = run.at; slot < run.at + run.count; slot++)
    std::memcpy(values + slot * run.head_dim, run.value(slot), (size_t)run.head_dim * 4);
}

// V of one token, into its half of the cells that it shares with a neighbour.
INLINE void write_half(bf16* cells, int half, f32x16 x) {
#if defined(__AVX512BW__)
  alignas(64) bf16 narrow[LANES];
  store_bf16(narrow, x);
  const __m512i placed = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i*)narrow)), 16 * half);
  _mm512_mask_storeu_epi16(cells, half ? 0xaaaaaaaau : 0x55555555u, placed);
#else
  for (int i = 0; i < LANES; i++) cells[2 * i + half] = narrow(x[i]);
#endif
}

void write_halves(const Run& run) {
  const int dim = run.head_dim;
  write_keys<uint32_t>(run, dim / 2, [&](int slot, int cell) { return BFloat::cells_of(run.key(slot), cell, dim / 2); });
  uint32_t* values = (uint32_t*)(run.piece + run.half_bytes);
  for (int pair = run.at / 2; 2 * pair < run.at + run.count; pair++)
    for (int d = 0; d < dim; d += LANES) {
      uint32_t* cells = values + pair * dim + d;
      if (run.has(2 * pair) && run.has(2 * pair + 1)) {
        const f32x16 both[2] = {loadf(run.value(2 * pair) + d), loadf(run.value(2 * pair + 1) + d)};
        store(cells, BFloat::cells_across(both));
      } else {
        const int slot = run.has(2 * pair) ? 2 * pair : 2 * pair + 1;
        write_half((bf16*)cells, slot % 2, loadf(run.value(slot) + d));
      }
    }
}

// The scale by which the largest of a row becomes 127; its inverse goes to the cache.
float scale_of(const float* row, int head_dim, float* inverse) {
  f32x16 most = splat(1e-12f);
  for (int d = 0; d < head_dim; d += LANES) most = maximum(magnitude(loadf(row + d)), most);
  const float top = largest(most);
  *inverse = top / 127;
  return 127 / top;
}

INLINE u32x16 bytes_of(const float* row, float scale) {  // in the low byte of each lane
  const float round = 12582912.f;
  return ((u32x16)(loadf(row) * scale + round) - (u32x16)splat(round)) & 0xffu;
}

void write_bytes(const Run& run) {
  const int dim = run.head_dim;
  float* inverses = KVCache::scales(run.piece, run.half_bytes);
  float keys[TILE_TOKENS], values[TILE_TOKENS];
  for (int slot = run.at; slot < run.at + run.count; slot++) {
    keys[slot] = scale_of(run.key(slot), dim, inverses + slot);
    values[slot] = scale_of(run.value(slot), dim, inverses + TILE_TOKENS + slot);
  }
  write_keys<uint16_t>(run, dim / 2, [&](int slot, int cell) {
    i8x16 halves[2] = {};
    for (int half = 0; half < 2 && cell + half * 8 < dim / 2; half++)
      halves[half] = __builtin_convertvector(bytes_of(run.key(slot) + 2 * cell + half * LANES, keys[slot]), i8x16);
    return __builtin_convertvector(load<u16x16>(halves), u32x16);
  });
  uint16_t* pairs = (uint16_t*)(run.piece + run.half_bytes);
  for (int pair = run.at / 2; 2 * pair < run.at + run.count; pair++)
    for (int d = 0; d < dim; d += LANES) {
      uint16_t* cells = pairs + pair * dim + d;
      if (run.has(2 * pair) && run.has(2 * pair + 1)) {
        const u32x16 low = bytes_of(run.value(2 * pair) + d, values[2 * pair]);
        const u32x16 high = bytes_of(run.value(2 * pair + 1) + d, values[2 * pair + 1]);
        store(cells, __builtin_convertvector(low | high << 8, u16x16));
      } else {
        const int slot = run.has(2 * pair) ? 2 * pair : 2 * pair + 1;
        const i8x16 one = __builtin_convertvector(bytes_of(run.value(slot) + d, values[slot]), i8x16);
        for (int i = 0; i < LANES; i++) ((int8_t*)cells)[2 * i + slot % 2] = one[i];
      }
    }
}

}  // namespace

void write_tokens(const KVCache& cache, int tensor, int64_t slot, int count, int head, const float* keys,
                  const float* values, int64_t stride) {
  const Run run{cache.piece(tensor, slot / TILE_TOKENS, head),
                cache.half_bytes(),
                (int)(slot % TILE_TOKENS),
                count,
                cache.head_dim,
                keys,
                values,
                stride};
  switch (cache.format) {
    case Format::FLOAT32: return write_floats(run);
    case Format::BFLOAT16: return write_halves(run);
    default: return write_bytes(run);
  }
}

int run_of_slots(const int64_t* slots, int count) {
  const int room = TILE_TOKENS - (int)(slots[0] % TILE_TOKENS);
  int run = 1;
  while (run < count && run < room && slots[run] == slots[0] + run) run++;
  return run;
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
