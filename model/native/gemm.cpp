#include "gemm.h"

#include "gemm_int8.h"

namespace triolet {

namespace {

// Rows that a unit of work handles against one panel: the panel (some 74 to 200 KB) and these rows stay in L2.
constexpr int ROWS_PER_UNIT = 128;

template <int ROWS>
INLINE void finish(const Target& target, int row, int panel, f32x16 (&sums)[ROWS][4]) {
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    if (target.epilogue == Epilogue::SILU_MUL) {
      target.activations->put(row + r, panel * 32, silu(sums[r][0]) * sums[r][2], silu(sums[r][1]) * sums[r][3]);
      continue;
    }
    float* to = target.floats + (row + r) * target.stride + panel * PANEL;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      f32x16 value = sums[r][c];
      if (target.epilogue == Epilogue::ADD) value += loadf(to + c * LANES);
      if (target.soft_cap > 0) value = soft_capped(value, target.soft_cap);
      store(to + c * LANES, value);
    }
  }
}

template <int ROWS>
INLINE void start(const Linear& linear, int panel, f32x16 (&sums)[ROWS][4]) {
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
      sums[r][c] = linear.bias ? loadf(linear.bias.get() + panel * PANEL + c * LANES) : f32x16{};
}

template <class E, int ROWS, bool PREFETCH>
INLINE void tile(const Linear& linear, const Activations& input, const Target& target, int row, int panel) {
  const int steps = linear.depth / E::PER_CELL;
  const uint32_t* w = linear.cells.get() + (int64_t)panel * steps * PANEL;
  const uint32_t* const columns[4] = {w, w + LANES, w + 2 * LANES, w + 3 * LANES};
  f32x16 sums[ROWS][4];
  start<ROWS>(linear, panel, sums);
  // A panel that is read once comes from memory: ask for it a page ahead.
  dot_tile<E, ROWS, 4, PREFETCH>(sums, columns, PANEL, steps, input.row(row), input.row_cells(), (const char*)w + 4096);
  finish<ROWS>(target, row, panel, sums);
}

template <class E>
void unit(const Linear& linear, const Activations& input, const Target& target, int begin, int end, int panel) {
  if (end - begin <= TILE_ROWS) {
    for_row_tiles(end - begin, [&](int r, auto rows) {
      tile<E, decltype(rows)::value, true>(linear, input, target, begin + r, panel);
    });
  } else {
    for_row_tiles(end - begin, [&](int r, auto rows) {
      tile<E, decltype(rows)::value, false>(linear, input, target, begin + r, panel);
    });
  }
}

}  // namespace

void gemm(Pool& pool, const Linear& linear, const Activations& input, int rows, const Target& target) {
  // Few panels leave threads idle at the end: halve the rows too.
  const int splits = rows >= 2 * ROWS_PER_UNIT ? (rows + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT
                     : rows >= 12 && linear.panels < 64 ? 2
                                                         : 1;
  pool.run(linear.panels * splits, [&](int number, int) {
    const int panel = number / splits, split = number % splits;
    const int begin = (int)((int64_t)rows * split / splits), end = (int)((int64_t)rows * (split + 1) / splits);
    if (linear.format == Format::FLOAT32) unit<Float>(linear, input, target, begin, end, panel);
    if (linear.format == Format::BFLOAT16) unit<BFloat>(linear, input, target, begin, end, panel);
    if (linear.format == Format::INT8 || linear.format == Format::INT4)
      unit_int8(linear, input, rows, begin, end, panel,
                [&](int row, auto count, auto& sums) { finish<decltype(count)::value>(target, row, panel, sums); });
  });
}

}  // namespace triolet
