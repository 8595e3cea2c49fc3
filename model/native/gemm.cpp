#include "gemm.h"

#include <algorithm>

#include "gemm_int8.h"

namespace triolet {

namespace {

// Rows that a unit of work handles against one panel: the panel (some 74 to 200 KB) and these rows stay in L2.
constexpr int ROWS_PER_UNIT = 128;

INLINE void finish(const Target& target, int row, int panel, const f32x16 (&sums)[4]) {
  if (target.epilogue == Epilogue::SILU_MUL) {
    target.activations->put(row, panel * 32, silu(sums[0]) * sums[2], silu(sums[1]) * sums[3]);
    return;
  }
  float* to = target.floats + row * target.stride + panel * PANEL;
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    f32x16 value = sums[c];
    if (target.epilogue == Epilogue::ADD) value += loadf(to + c * LANES);
    if (target.soft_cap > 0) value = soft_capped(value, target.soft_cap);
    store(to + c * LANES, value);
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

// LINES of `ahead` are asked for in each step.
template <class E, int ROWS, int LINES>
INLINE void tile(const Linear& linear, const Activations& input, const Target& target, int row, int panel,
                 const char* ahead) {
  const int steps = linear.depth / E::PER_CELL;
  const uint32_t* w = linear.panel(panel);
  const uint32_t* const columns[4] = {w, w + LANES, w + 2 * LANES, w + 3 * LANES};
  f32x16 sums[ROWS][4];
  start<ROWS>(linear, panel, sums);
  dot_tile<E, ROWS, 4, LINES>(sums, columns, PANEL, steps, input.row(row), input.row_cells(), ahead);
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) finish(target, row + r, panel, sums[r]);
}

// `coming`: the panel that this thread will probably read next, or null.
//
// A panel comes from memory, which takes as long as multiplying some 30 rows with it: unless both happen at once, a
// batch of that size takes twice its time. One pass over a panel asks for its own lines a page ahead; of several the
// first ones ask for the next panel's, evenly, since a core has few requests under way at a time.
template <class E>
void unit(const Linear& linear, const Activations& input, const Target& target, int begin, int end, int panel,
          const char* coming) {
  const int64_t bytes = linear.panel_cells() * 4;
  const int tiles = (end - begin + TILE_ROWS - 1) / TILE_ROWS, share = tiles < 4 ? 2 : 4;
  int number = 0;
  for_row_tiles(end - begin, [&](int r, auto rows) {
    constexpr int ROWS = decltype(rows)::value;
    const int pass = number++, row = begin + r;
    if (tiles == 1) {
      tile<E, ROWS, 4>(linear, input, target, row, panel, (const char*)linear.panel(panel) + 4096);
    } else if (!coming || pass >= share) {
      tile<E, ROWS, 0>(linear, input, target, row, panel, nullptr);
    } else if (share == 2) {
      tile<E, ROWS, 2>(linear, input, target, row, panel, coming + bytes / 2 * pass);
    } else {
      tile<E, ROWS, 1>(linear, input, target, row, panel, coming + bytes / 4 * pass);
    }
  });
}

}  // namespace

namespace {

// Up to here a panel's way from memory takes longer than its products.
constexpr int FEW_ROWS = 48;

// How a product is cut into units. With few rows a panel is read from memory by one thread alone, for all of them, as
// far as there are panels for everybody; those left over are cut by rows, and so are all panels where the rows are many.
struct Cut {
  int whole;  // panels that are one unit each
  int parts;  // of the rows, for each of the other panels
  int units;

  Cut(int panels, int rows, int threads) {
    if (rows <= FEW_ROWS) {
      whole = panels - panels % threads;
      parts = std::min(threads, (rows + TILE_ROWS - 1) / TILE_ROWS);
    } else {
      whole = 0;
      parts = std::max((rows + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT, panels < 64 ? 2 : 1);
    }
    units = whole + (panels - whole) * parts;
  }
  int panel(int unit) const { return unit < whole ? unit : whole + (unit - whole) / parts; }
  int begin(int unit, int rows) const {
    return unit < whole ? 0 : (int)((int64_t)rows * ((unit - whole) % parts) / parts);
  }
  int end(int unit, int rows) const {
    return unit < whole ? rows : (int)((int64_t)rows * ((unit - whole) % parts + 1) / parts);
  }
};

}  // namespace

void gemm(Pool& pool, const Linear& linear, const Activations& input, int rows, const Target& target,
          const Linear* next) {
  const int threads = pool.threads();
  const Cut cut(linear.panels, rows, threads);
  pool.run(cut.units, [&](int number, int) {
    const int panel = cut.panel(number), begin = cut.begin(number, rows), end = cut.end(number, rows);
    // Threads take units in turns, as far as they are equally fast.
    const int then = number + threads;
    const char* coming = nullptr;
    if (then < cut.units) {
      coming = (const char*)linear.panel(cut.panel(then));
    } else if (next && then - cut.units < next->panels) {
      coming = (const char*)next->panel(then - cut.units);
    }
    if (linear.format == Format::FLOAT32) unit<Float>(linear, input, target, begin, end, panel, coming);
    if (linear.format == Format::BFLOAT16) unit<BFloat>(linear, input, target, begin, end, panel, coming);
    if (linear.format == Format::INT8 || linear.format == Format::INT4)
      unit_int8(linear, input, rows, begin, end, panel, coming,
                [&](int row, const auto& sums) { finish(target, row, panel, sums); });
  });
}

}  // namespace triolet
