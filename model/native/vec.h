// Sixteen lanes of float, in the vector extensions that gcc and clang share: the same source becomes AVX-512, AVX2, NEON
// or plain code. Intrinsics stand only where the compilers do not find the instruction by themselves.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace triolet {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint16_t bf16;

template <class Vector, class Element>
INLINE Vector load(const Element* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector, class Element>
INLINE void store(Element* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}

// Loads into a register and keeps it there: gcc would rather read memory again for each row that uses the value, and the
// loads, not the products, would then set the speed.
template <class Element>
INLINE u32x16 load_once(const Element* from) {
  u32x16 value = load<u32x16>(from);
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#endif
  return value;
}

// A pointer or number that the compiler knows nothing of. It would else count all rows from the first one, with an offset
// for each row and input, and there are not registers for so many.
template <class T>
INLINE T opaque(T value) {
  asm("" : "+r"(value));
  return value;
}

INLINE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

INLINE f32x16 loadf(const float* from) { return load<f32x16>(from); }
INLINE f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE f32x16 as_floats(u32x16 bits) { return (f32x16)bits; }
INLINE f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }
INLINE f32x16 magnitude(f32x16 x) { return (f32x16)((u32x16)x & 0x7fffffffu); }

INLINE float sum(f32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float total = 0;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
#endif
}

INLINE int32_t sum(i32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)x);
#else
  int32_t total = 0;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
#endif
}

INLINE float largest(f32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// The same in an order that is the same everywhere: halves are added to each other until one lane is left.
INLINE float sum_of_halves(f32x16 x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
#endif
}

INLINE bool any(i32x16 lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= lanes[i];
  return found != 0;
#endif
}

// The lanes [low, high) of x; zero elsewhere, whatever x holds there.
template <class Vector>
INLINE Vector only(Vector x, int low, int high) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (Vector)((i32x16)x & ((lane >= low) & (lane < high)));
}

// rows[i][j] becomes rows[j][i].
INLINE void transpose(u32x16 (&rows)[LANES]) {
#if defined(__AVX512F__)
  __m512i(&r)[LANES] = (__m512i(&)[LANES])rows;
  __m512i t[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < LANES; i += 2) {  // pairs of rows: cells of 2 columns
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < LANES; i += 4) {  // four rows: column c of each quarter of a register in r[i + c]
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {  // quarters of four registers to their places: columns c, c + 4, c + 8, c + 12
    const __m512i a = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88), b = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd), e = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[c + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[c + 4] = _mm512_shuffle_i32x4(d, e, 0x88);
    t[c + 12] = _mm512_shuffle_i32x4(d, e, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) r[i] = t[i];
#else
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) {
      const uint32_t other = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = other;
    }
#endif
}

// Stores those lanes of `a` and of `b` whose mask is set, one behind the other; how many. Writes all sixteen places.
template <class B, class ToB>
INLINE int keep_lanes(float* to_a, ToB* to_b, f32x16 a, B b, i32x16 mask) {
#if defined(__AVX512F__)
  const __mmask16 kept = _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
  _mm512_storeu_ps(to_a, _mm512_maskz_compress_ps(kept, (__m512)a));
  _mm512_storeu_si512(to_b, _mm512_maskz_compress_epi32(kept, (__m512i)b));
  return __builtin_popcount(kept);
#else
  int count = 0;
  for (int i = 0; i < LANES; i++) {
    to_a[count] = a[i], to_b[count] = b[i];
    count -= mask[i];  // no branch: none could be foreseen
  }
  return count;
#endif
}

// ---- bfloat16: the upper half of a float, rounded to nearest even.

INLINE float widen(bf16 x) {
  return float_of_bits((uint32_t)x << 16);
}

INLINE bf16 narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // rounding would turn some NaNs into infinities
  return (bf16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// `narrow` of each lane, in its low half.
INLINE u32x16 rounded_to_bf16(f32x16 x) {
  const u32x16 bits = (u32x16)x;
  const u32x16 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? u32x16{} + 0x7fc0u : rounded;
}

INLINE void store_bf16(bf16* to, f32x16 x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  store(to, __builtin_convertvector(rounded_to_bf16(x), u16x16));
#endif
}

// ---- exponentials

// 2**x for x <= 126, to some 2e-7 of the value; below -126 it is next to zero or zero, of -infinity it is zero.
INLINE f32x16 exp2_of(f32x16 x) {
#if defined(__AVX512DQ__)
  const f32x16 f = (f32x16)_mm512_reduce_ps((__m512)x, 0);  // what is above or below the nearest whole number
#else
  const float round = 12582912.f;  // 1.5 * 2**23: adding it leaves the nearest whole number in the low bits
  const f32x16 limited = x > -126.f ? x : splat(-126.f);
  const f32x16 shifted = limited + round;
  const f32x16 f = limited - (shifted - round);
#endif
  f32x16 p = splat(1.3333558e-3f);
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.f;
#if defined(__AVX512DQ__)
  return (f32x16)_mm512_scalef_ps((__m512)p, _mm512_roundscale_ps((__m512)x, 0));
#else
  const f32x16 scaled = as_floats((u32x16)p + ((u32x16)shifted << 23));
  return x < -126.f ? f32x16{} : scaled;
#endif
}

constexpr float LOG2E = 1.44269504f;

// e**x for x <= 0; 0 where that is below 2**-126.
INLINE f32x16 exp_of(f32x16 x) {
  const f32x16 y = x * LOG2E;
  return y > -126.f ? exp2_of(y) : f32x16{};
}

INLINE f32x16 silu(f32x16 x) {
  // exp2_of's range ends at 126; beyond it silu is x or 0 to all digits.
  f32x16 y = x * -LOG2E;
  y = y > 126.f ? splat(126.f) : y;
  return x / (exp2_of(y) + 1.f);
}

// cap * tanh(x / cap)
INLINE f32x16 soft_capped(f32x16 x, float cap) {
  f32x16 y = x * (2 * LOG2E / cap);
  y = y > 126.f ? splat(126.f) : y;
  return cap - 2 * cap / (exp2_of(y) + 1.f);
}

// ---- element types of matrices and caches. A cell is four bytes: one float, or two neighbouring bfloat16. All products
// run over cells, so one kernel serves both.

struct Float {
  typedef float Element;
  static constexpr int PER_CELL = 1;
  static INLINE f32x16 dot(f32x16 sum, u32x16 w, uint32_t x) {
    return sum + as_floats(w) * float_of_bits(x);
  }
  static INLINE void store_row(Element* to, f32x16 x) { store(to, x); }
  static INLINE Element of(float x) { return x; }
  // The cells [cell, cell + 16) of a row of floats that has `cells` of them; zero behind its end.
  static INLINE u32x16 cells_of(const float* row, int cell, int cells) { return load<u32x16>(row + cell); }
  // The neighbours of each cell come from one vector each.
  static INLINE u32x16 cells_across(const f32x16 (&x)[1]) { return (u32x16)x[0]; }
};

struct BFloat {
  typedef bf16 Element;
  static constexpr int PER_CELL = 2;
  static INLINE f32x16 dot(f32x16 sum, u32x16 w, uint32_t x) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)w, (__m512bh)_mm512_set1_epi32((int)x));
#else
    return sum + as_floats(w << 16) * widen((bf16)x) + as_floats(w & 0xffff0000u) * widen((bf16)(x >> 16));
#endif
  }
  static INLINE void store_row(Element* to, f32x16 x) { store_bf16(to, x); }
  static INLINE Element of(float x) { return narrow(x); }
  static INLINE u32x16 cells_of(const float* row, int cell, int cells) {
    const f32x16 low = loadf(row + 2 * cell);
    const f32x16 high = cell + LANES / 2 < cells ? loadf(row + 2 * cell + LANES) : f32x16{};
#if defined(__AVX512BF16__)
    return (u32x16)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    u32x16 made;
    store_bf16((bf16*)&made, low);
    store_bf16((bf16*)&made + LANES, high);
    return made;
#endif
  }
  static INLINE u32x16 cells_across(const f32x16 (&x)[2]) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
    alignas(64) static const uint16_t PAIRS[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (u32x16)_mm512_permutexvar_epi16(_mm512_load_si512(PAIRS), halves);
#else
    return rounded_to_bf16(x[0]) | rounded_to_bf16(x[1]) << 16;
#endif
  }
};

// sums[r][c] += the dot products of ROWS rows of x with COLUMNS * 16 columns of w, over `steps` cells.
//   w[c]  first cell of column vector c; the next step's lies `w_stride` cells on
//   x     first cell of row 0; rows lie `x_stride` cells apart
template <class E, int ROWS, int COLUMNS>
INLINE void dot_tile(f32x16 (&sums)[ROWS][COLUMNS], const uint32_t* const (&w)[COLUMNS], int64_t w_stride, int steps,
                     const uint32_t* x, int64_t x_stride) {
  for (int k = 0; k < steps; k++) {
    u32x16 columns[COLUMNS];
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; c++) columns[c] = load_once(w[c] + k * w_stride);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const uint32_t cell = x[r * x_stride + k];
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; c++) sums[r][c] = E::dot(sums[r][c], columns[c], cell);
    }
  }
}

// The same with rows in the lanes: sums[b][v] += x[v] . w[b], of COUNT broadcast cells that lie side by side.
//   x     [step][VECTORS * 16 rows]
//   w     the first cell; the next step's lies `w_stride` cells on
template <class E, int COUNT, int VECTORS>
INLINE void dot_lanes(f32x16 (&sums)[COUNT][VECTORS], const uint32_t* x, const uint32_t* w, int64_t w_stride, int steps) {
  for (int k = 0; k < steps; k++) {
    u32x16 rows[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) rows[v] = load_once(x + (k * VECTORS + v) * LANES);
#pragma GCC unroll 16
    for (int b = 0; b < COUNT; b++) {
      const uint32_t cell = w[k * w_stride + b];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) sums[b][v] = E::dot(sums[b][v], rows[v], cell);
    }
  }
}

// Rows that one tile holds in registers: 6 x 4 sums, 4 columns and a broadcast fill 32 registers of 64 bytes.
constexpr int TILE_ROWS = 6;

template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls f(n as a compile-time constant), n of 1 to MOST.
template <int MOST, class F>
INLINE void with_constant(int n, const F& f) {
  if constexpr (MOST > 1) {
    if (n < MOST) return with_constant<MOST - 1>(n, f);
  }
  f(Constant<MOST>{});
}

// Calls f(first row, rows as a compile-time constant) for [0, rows) in tiles of at most TILE_ROWS, evenly.
template <class F>
INLINE void for_row_tiles(int rows, const F& f) {
  const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int t = 0; t < tiles; t++) {
    const int begin = rows * t / tiles;
    with_constant<TILE_ROWS>(rows * (t + 1) / tiles - begin, [&](auto count) { f(begin, count); });
  }
}

}  // namespace triolet
