// Products of int8 and int4 matrices with int8 activations; included by gemm.cpp alone.
//
// A group of 32 inputs is summed in whole numbers and then scaled: one scale for each group of a row, because a row's
// outliers would take all the others' precision.
#pragma once

#include "linear.h"

namespace triolet {

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

constexpr int INT8_TILE_ROWS = 3;  // 12 whole-number sums and 12 float sums
// Above, unpacking costs more than the bytes it saves and the int8 weights are taken; so with int4, and only with it, a
// token's logits depend a little on how many others are computed with it.
constexpr int INT4_ROWS = 3;

// LINES of `ahead` are asked for in each step of four inputs.
template <int ROWS, int LINES>
INLINE void tile_int8(const Linear& linear, const Activations& input, int row, int panel, const char* ahead,
                      f32x16 (&sums)[ROWS][4]) {
  const int groups = linear.depth / GROUP;
  const uint32_t* w = linear.panel(panel);
#pragma GCC unroll 3
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sums[r][c] = f32x16{};
  const uint32_t* x = input.row(row);
  const int64_t x_stride = input.row_cells(), g_stride = input.groups();
  const float* scales = input.scales.get() + row * g_stride;
  const int32_t* totals = input.sums.get() + row * g_stride;
  for (int g = 0; g < groups; g++) {
    i32x16 whole[ROWS][4];
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++) {
      const i32x16 offset = i32x16{} - 128 * totals[r * g_stride + g];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) whole[r][c] = offset;
    }
#pragma GCC unroll 8
    for (int k = 0; k < GROUP / 4; k++) {
      u32x16 columns[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) columns[c] = load_once(w + c * LANES);
      w += PANEL;
#pragma GCC unroll 4
      for (int line = 0; line < LINES; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
      ahead += LINES * 64;
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; r++) {
        const u32x16 cell = u32x16{} + x[r * x_stride + g * (GROUP / 4) + k];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) dot_bytes(whole[r][c], columns[c], cell);
      }
    }
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++) {
      const f32x16 scale = splat(scales[r * g_stride + g]);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) sums[r][c] += __builtin_convertvector(whole[r][c], f32x16) * scale;
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    const f32x16 scale = loadf(linear.scales.get() + panel * PANEL + c * LANES);
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++) sums[r][c] *= scale;
  }
}

template <int ROWS>
INLINE void tile_int4(const Linear& linear, const Activations& input, int row, int panel, f32x16 (&sums)[ROWS][4]) {
  const int groups = linear.depth / GROUP;
  const uint32_t* w = linear.nibbles.get() + (int64_t)panel * groups * 4 * PANEL;
  const uint16_t* grid = linear.grid.get() + (int64_t)panel * groups * 2 * PANEL;
#pragma GCC unroll 3
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sums[r][c] = f32x16{};
  const uint32_t* x = input.row(row);
  const int64_t x_stride = input.row_cells(), g_stride = input.groups();
  const float* scales = input.scales.get() + row * g_stride;
  const int32_t* totals = input.sums.get() + row * g_stride;
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
        const uint32_t* cells = x + r * x_stride + g * (GROUP / 4) + pair * 2;
        const u32x16 first = u32x16{} + cells[0], second = u32x16{} + cells[1];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
          dot_bytes(whole[r][c], columns[c] & 0x0f0f0f0fu, first);
          dot_bytes(whole[r][c], columns[c] >> 4 & 0x0f0f0f0fu, second);
        }
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const f32x16 scale = widen_halves(grid + c * LANES), low = widen_halves(grid + PANEL + c * LANES);
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; r++) {
        const float of_x = scales[r * g_stride + g];
        sums[r][c] += __builtin_convertvector(whole[r][c], f32x16) * splat(of_x) * scale;
        sums[r][c] += low * splat(of_x * (float)totals[r * g_stride + g]);
      }
    }
    grid += 2 * PANEL;
  }
}

// One panel against rows [begin, end) of `rows`; then(first row, row count, sums) takes what comes out. `coming` as for
// the other formats.
template <class Then>
void unit_int8(const Linear& linear, const Activations& input, int rows, int begin, int end, int panel,
               const char* coming, const Then& then) {
  const int count = end - begin, tiles = (count + INT8_TILE_ROWS - 1) / INT8_TILE_ROWS;
  const bool int4 = linear.format == Format::INT4 && rows <= INT4_ROWS;
  const int64_t bytes = linear.panel_cells() * 4;
  const int share = tiles < 4 ? 2 : 4;
  for (int t = 0; t < tiles; t++) {
    const int first = begin + count * t / tiles, size = begin + count * (t + 1) / tiles - first;
    const auto run = [&](auto constant) {
      constexpr int ROWS = decltype(constant)::value;
      f32x16 sums[ROWS][4];
      if (int4) {
        tile_int4<ROWS>(linear, input, first, panel, sums);
      } else {
        if (tiles == 1) {
          tile_int8<ROWS, 4>(linear, input, first, panel, (const char*)linear.panel(panel) + 4096, sums);
        } else if (!coming || t >= share) {
          tile_int8<ROWS, 0>(linear, input, first, panel, nullptr, sums);
        } else if (share == 2) {
          tile_int8<ROWS, 2>(linear, input, first, panel, coming + bytes / 2 * t, sums);
        } else {
          tile_int8<ROWS, 1>(linear, input, first, panel, coming + bytes / 4 * t, sums);
        }
      }
      if (linear.bias)
        for (int r = 0; r < ROWS; r++)
          for (int c = 0; c < 4; c++) sums[r][c] += loadf(linear.bias.get() + panel * PANEL + c * LANES);
      then(first, constant, sums);
    };
    if (size == 1) run(Constant<1>{});
    if (size == 2) run(Constant<2>{});
    if (size == 3) run(Constant<3>{});
  }
}

}  // namespace triolet
