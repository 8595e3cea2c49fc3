// Products of int8 and int4 matrices with int8 activations; included by gemm.cpp alone.
//
// A group of 32 inputs is summed in whole numbers and then scaled: one scale for each group of a row, because a row's
// outliers would take all the others' precision.
#pragma once

#include "linear.h"

namespace triolet {

// Rows of a tile that has two vectors of columns: with VNNI, 12 whole-number sums and 12 float sums. Elsewhere a product is
// many instructions, and more of them in one loop would only take the compiler's time.
#if defined(__AVX512VNNI__)
constexpr int INT8_TILE_ROWS = 6;
#else
constexpr int INT8_TILE_ROWS = 3;
#endif

// Unsigned bytes of w times signed bytes of x, four to a lane. As inline assembly, because gcc 12 copies every sum
// around its intrinsic, which costs half the speed.
INLINE void dot_bytes(i32x16& sum, u32x16 w, u32x16 x) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2,%1,%0" : "+v"(sum) : "v"(w), "v"(x));
#else
  for (int byte = 0; byte < 32; byte += 8)
    sum += (i32x16)(w >> byte & 255u) * ((i32x16)(x << (24 - byte)) >> 24);
#endif
}

INLINE f32x16 widen_halves(const uint16_t* from) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
  f32x16 value;
  for (int i = 0; i < LANES; i++) {
    _Float16 half;
    std::memcpy(&half, from + i, 2);
    value[i] = (float)half;
  }
  return value;
#endif
}

// Above, unpacking costs more than the bytes it saves and the int8 weights are taken; so with int4, and only with it, a
// token's logits depend a little on how many others are computed with it.
constexpr int INT4_ROWS = 3;
// Up to here a tile has all four vectors of columns: whole-number sums, float sums, four columns and a broadcast fill the
// registers.
constexpr int WIDE_ROWS = 3;

// sums[r][first .. first + COLUMNS) of a tile. LINES of `ahead` are asked for in each group.
//
// The more rows, the fewer bytes of the panel for each product: 32 of them in a cycle are what the second cache gives, and
// a panel of many inputs does not fit the first. Hence 6 rows by 2 vectors of columns rather than 3 by 4.
template <int ROWS, int COLUMNS, int LINES>
INLINE void tile_int8(const Linear& linear, const Activations& input, int row, int panel, int first, const char* ahead,
                      f32x16 (&sums)[INT8_TILE_ROWS][4]) {
  const int groups = linear.depth / GROUP;
  const uint32_t* w = linear.panel(panel) + first * LANES;
  const uint32_t* x[ROWS];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) x[r] = opaque(input.row(row + r));
  f32x16 scaled[ROWS][COLUMNS];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; c++) scaled[r][c] = f32x16{};
  for (int g = 0; g < groups; g++) {
    i32x16 whole[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; c++) whole[r][c] = i32x16{} + (int32_t)x[r][GROUP / 4 + 1];
#pragma GCC unroll 8
    for (int k = 0; k < GROUP / 4; k++) {
      u32x16 columns[COLUMNS];
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; c++) columns[c] = load_once(w + c * LANES);
      w += PANEL;
#pragma GCC unroll 4
      for (int line = LINES * k / 8; line < LINES * (k + 1) / 8; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; r++) {
        const u32x16 cell = u32x16{} + x[r][k];
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) dot_bytes(whole[r][c], columns[c], cell);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const f32x16 scale = splat(float_of_bits(x[r][GROUP / 4]));
      x[r] += GROUP_CELLS;
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; c++) scaled[r][c] += __builtin_convertvector(whole[r][c], f32x16) * scale;
    }
    ahead += LINES * 64;
  }
#pragma GCC unroll 4
  for (int c = 0; c < COLUMNS; c++) {
    const f32x16 scale = loadf(linear.scales.get() + panel * PANEL + (first + c) * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) sums[r][first + c] = scaled[r][c] * scale;
  }
}

template <int ROWS>
INLINE void tile_int4(const Linear& linear, const Activations& input, int row, int panel,
                      f32x16 (&sums)[INT8_TILE_ROWS][4]) {
  const int groups = linear.depth / GROUP;
  const uint32_t* w = linear.nibbles.get() + (int64_t)panel * groups * 4 * PANEL;
  const uint16_t* grid = linear.grid.get() + (int64_t)panel * groups * 2 * PANEL;
  f32x16 scaled[ROWS][4];
#pragma GCC unroll 3
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) scaled[r][c] = f32x16{};
  const uint32_t* x = input.row(row);
  const int64_t x_stride = input.row_cells();
  for (int g = 0; g < groups; g++) {
    i32x16 whole[ROWS][4];
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) whole[r][c] = i32x16{};
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
      u32x16 columns[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) columns[c] = load_once(w + c * LANES);
      for (int c = 0; c < 4; c++) __builtin_prefetch(w + 768 + c * LANES, 0, 3);
      w += PANEL;
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; r++) {
        const uint32_t* cells = x + r * x_stride + pair * 2;
        const u32x16 first = u32x16{} + cells[0], second = u32x16{} + cells[1];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
          dot_bytes(whole[r][c], columns[c] & 0x0f0f0f0fu, first);
          dot_bytes(whole[r][c], columns[c] >> 4 & 0x0f0f0f0fu, second);
        }
      }
    }
    float of_x[ROWS], of_low[ROWS];
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++) {
      const uint32_t* after = x + r * x_stride + GROUP / 4;
      of_x[r] = float_of_bits(after[0]);
      of_low[r] = of_x[r] * (float)(int32_t)after[1] * (-1.f / 128);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const f32x16 scale = widen_halves(grid + c * LANES), low = widen_halves(grid + PANEL + c * LANES);
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; r++) {
        scaled[r][c] += __builtin_convertvector(whole[r][c], f32x16) * splat(of_x[r]) * scale;
        scaled[r][c] += low * splat(of_low[r]);
      }
    }
    grid += 2 * PANEL;
    x += GROUP_CELLS;
  }
#pragma GCC unroll 3
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sums[r][c] = scaled[r][c];
}

// One panel against rows [begin, end) of `rows`; then(row, sums) takes what comes out. `coming` as for the other formats:
// the first passes over the panel ask for it, as evenly as can be: the whole of it in 2, 4 or 8 equal parts, by how many
// passes there are, which is 16, 8 or 4 lines in each group of inputs.
template <class Then>
void unit_int8(const Linear& linear, const Activations& input, int rows, int begin, int end, int panel,
               const char* coming, const Then& then) {
  const int count = end - begin;
  const bool int4 = linear.format == Format::INT4 && rows <= INT4_ROWS, wide = count <= 2 * WIDE_ROWS;
  const int height = wide ? WIDE_ROWS : INT8_TILE_ROWS;
  const int tiles = (count + height - 1) / height, passes = wide ? tiles : 2 * tiles;
  const int64_t bytes = linear.panel_cells() * 4;
  const char* const own = (const char*)linear.panel(panel);
  f32x16 sums[INT8_TILE_ROWS][4];
  for (int t = 0; t < tiles; t++) {
    const int first = begin + count * t / tiles, size = begin + count * (t + 1) / tiles - first;
    if (wide) {
      with_constant<WIDE_ROWS>(size, [&](auto constant) {
        constexpr int ROWS = decltype(constant)::value;
        if (int4) {
          tile_int4<ROWS>(linear, input, first, panel, sums);
        } else if (passes == 1) {
          tile_int8<ROWS, 4, 32>(linear, input, first, panel, 0, own + 4096, sums);
        } else {
          tile_int8<ROWS, 4, 16>(linear, input, first, panel, 0, (coming ? coming : own) + bytes / 2 * t, sums);
        }
      });
    } else {
      with_constant<INT8_TILE_ROWS>(size, [&](auto constant) {
        constexpr int ROWS = decltype(constant)::value;
        for (int column = 0, pass = 2 * t; column < 4; column += 2, pass++) {
          if (coming && passes < 8 && pass < 4) {
            tile_int8<ROWS, 2, 8>(linear, input, first, panel, column, coming + bytes / 4 * pass, sums);
          } else if (coming && passes >= 8 && pass < 8) {
            tile_int8<ROWS, 2, 4>(linear, input, first, panel, column, coming + bytes / 8 * pass, sums);
          } else {
            tile_int8<ROWS, 2, 0>(linear, input, first, panel, column, nullptr, sums);
          }
        }
      });
    }
    for (int r = 0; r < size; r++) {
      if (linear.bias)
        for (int c = 0; c < 4; c++) sums[r][c] += loadf(linear.bias.get() + panel * PANEL + c * LANES);
      then(first + r, sums[r]);
    }
  }
}

}  // namespace triolet
