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

INLINE f32x16 loadf(const float* from) { return load<f32x16>(from); }
INLINE f32x16 splat(float x) { return f32x16{} + x; }
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

INLINE float largest(f32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// The lanes [low, high) of x; zero elsewhere, whatever x holds there.
INLINE f32x16 only(f32x16 x, int low, int high) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (f32x16)((i32x16)x & ((lane >= low) & (lane < high)));
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
  uint32_t bits = (uint32_t)x << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

INLINE bf16 narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // rounding would turn some NaNs into infinities
  return (bf16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

INLINE void store_bf16(bf16* to, f32x16 x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  u32x16 bits = (u32x16)x;
  u32x16 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  rounded = (bits & 0x7fffffffu) > 0x7f800000u ? u32x16{} + 0x7fc0u : rounded;
  store(to, __builtin_convertvector(rounded, u16x16));
#endif
}

// ---- exponentials

// 2**x for x <= 126, to some 2e-7 of the value; below -126 it is 2**-126.
INLINE f32x16 exp2_of(f32x16 x) {
  const float round = 12582912.f;  // 1.5 * 2**23: adding it leaves the nearest whole number in the low bits
  x = maximum(x, splat(-126.f));
  f32x16 shifted = x + round;
  f32x16 f = x - (shifted - round);
  f32x16 p = splat(1.3333558e-3f);
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.f;
  return as_floats((u32x16)p + ((u32x16)shifted << 23));
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
    float value;
    std::memcpy(&value, &x, 4);
    return sum + as_floats(w) * value;
  }
  static INLINE void store_row(Element* to, f32x16 x) { store(to, x); }
  static INLINE Element of(float x) { return x; }
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
};

// sums[r][c] += the dot products of ROWS rows of x with COLUMNS * 16 columns of w, over `steps` cells.
//   w[c]  first cell of column vector c; the next step's lies `w_stride` cells on
//   x     first cell of row 0; rows lie `x_stride` cells apart
//   ahead memory that somebody will read soon: LINES cache lines of it are asked for in each step
template <class E, int ROWS, int COLUMNS, int LINES = 0>
INLINE void dot_tile(f32x16 (&sums)[ROWS][COLUMNS], const uint32_t* const (&w)[COLUMNS], int64_t w_stride, int steps,
                     const uint32_t* x, int64_t x_stride, const char* ahead = nullptr) {
  for (int k = 0; k < steps; k++) {
    u32x16 columns[COLUMNS];
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; c++) columns[c] = load_once(w[c] + k * w_stride);
#pragma GCC unroll 4
    for (int line = 0; line < LINES; line++) __builtin_prefetch(ahead + (k * LINES + line) * 64, 0, 2);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const uint32_t cell = x[r * x_stride + k];
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; c++) sums[r][c] = E::dot(sums[r][c], columns[c], cell);
    }
  }
}

// Rows that one tile holds in registers: 6 x 4 sums, 4 columns and a broadcast fill 32 registers of 64 bytes.
constexpr int TILE_ROWS = 6;

// Calls f(first row, rows as a compile-time constant) for [0, rows) in tiles of at most TILE_ROWS, evenly.
template <int N>
struct Constant {
  static constexpr int value = N;
};

template <class F>
INLINE void for_row_tiles(int rows, const F& f) {
  const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int t = 0; t < tiles; t++) {
    const int begin = rows * t / tiles;
    switch (rows * (t + 1) / tiles - begin) {
      case 1: f(begin, Constant<1>{}); break;
      case 2: f(begin, Constant<2>{}); break;
      case 3: f(begin, Constant<3>{}); break;
      case 4: f(begin, Constant<4>{}); break;
      case 5: f(begin, Constant<5>{}); break;
      case 6: f(begin, Constant<6>{}); break;
    }
  }
}

}  // namespace triolet
