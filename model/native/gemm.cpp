#include "gemm.h"

#include <algorithm>

#include "gemm_int8.h"

namespace triolet {

namespace {

// Rows that a unit of work handles against one panel: the panel (some 74 to 200 KB) and these rows stay in L2.
constexpr int ROWS_PER_UNIT = 128;

// Rows of a tile, which has half a panel's columns: 12 x 2 sums, 2 columns and the broadcasts fill 32 registers of 64 bytes.
// So many rows need a panel only once, in one pass from memory, and the products hide in the time that takes.
#if defined(__AVX512F__)
constexpr int HALF_ROWS = 12;
#else
constexpr int HALF_ROWS = 6;
#endif

// How far in front of a single pass its panel is asked for, in bytes.
constexpr int AHEAD = 8192;

// Results of so many panels do not stay in a cache.
constexpr int MANY_PANELS = 128;

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

// made[r][v] += the dot products of ROWS rows of x with the 32 columns of half a panel, w. LINES of `ahead` are asked for
// in each step, evenly, since a core has few requests under way at a time.
template <class E, int ROWS, int LINES>
INLINE void dot_half(f32x16 (&made)[ROWS][2], const uint32_t* w, int steps, const uint32_t* x, int64_t stride,
                     const char* ahead) {
  // Four rows to a pointer: an address can have a stride once, twice or, as another number, thrice.
  constexpr int POINTERS = (ROWS + 3) / 4;
  const uint32_t* rows[POINTERS];
#pragma GCC unroll 3
  for (int p = 0; p < POINTERS; p++) rows[p] = opaque(x + 4 * p * stride);
  const int64_t once = opaque(stride), thrice = opaque(3 * stride);
  for (int k = 0; k < steps; k++) {
    const u32x16 low = load_once(w), high = load_once(w + LANES);
    w += HALF;
#pragma GCC unroll 2
    for (int line = 0; line < LINES; line++) __builtin_prefetch(ahead + line * 64, 0, LINES == 2 ? 3 : 2);
    ahead += LINES * 64;
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
      const uint32_t cell = rows[r / 4][r % 4 == 3 ? thrice : once * (r % 4)];
      made[r][0] = E::dot(made[r][0], low, cell);
      made[r][1] = E::dot(made[r][1], high, cell);
    }
#pragma GCC unroll 3
    for (int p = 0; p < POINTERS; p++) rows[p]++;
  }
}

template <class E, int ROWS, int LINES>
INLINE void tile(const Linear& linear, const Activations& input, int row, int panel, int half, const char* ahead,
                 f32x16 (&sums)[HALF_ROWS][4]) {
  const float* bias = linear.bias ? linear.bias.get() + panel * PANEL + half * HALF : nullptr;
  f32x16 made[ROWS][2];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) made[r][v] = bias ? loadf(bias + v * LANES) : f32x16{};
  dot_half<E, ROWS, LINES>(made, linear.half(panel, half), linear.depth / E::PER_CELL, input.row(row), input.row_cells(),
                           ahead);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) sums[r][2 * half + v] = made[r][v];
}

// Where the results of some rows will be stored, unless they are few enough to be in a cache.
INLINE void expect(const Linear& linear, const Target& target, int row, int rows, int panel) {
  if (target.epilogue != Epilogue::STORE || linear.panels < MANY_PANELS) return;
  for (int r = row; r < row + rows; r++)
    for (int c = 0; c < 4; c++) __builtin_prefetch(target.floats + r * target.stride + panel * PANEL + c * LANES, 1, 3);
}

// `coming`: the panel that this thread will probably read next, or null.
//
// A panel comes from memory, which takes as long as multiplying some 12 rows with it; both should happen at once. A single
// pass asks for its own lines; of several the first four ask for the next panel's.
template <class E>
void unit(const Linear& linear, const Activations& input, const Target& target, int begin, int end, int panel,
          const char* coming) {
  const int64_t quarter = linear.panel_cells();  // in bytes
  const int count = end - begin, tiles = (count + HALF_ROWS - 1) / HALF_ROWS;
  f32x16 sums[HALF_ROWS][4];
  for (int t = 0; t < tiles; t++) {
    const int first = begin + count * t / tiles, size = begin + count * (t + 1) / tiles - first;
    with_constant<HALF_ROWS>(size, [&](auto constant) {
      constexpr int ROWS = decltype(constant)::value;
      for (int half = 0, pass = 2 * t; half < 2; half++, pass++) {
        if (tiles == 1) {
          const char* own = (const char*)linear.half(panel, half);
          tile<E, ROWS, 2>(linear, input, first, panel, half, own + AHEAD, sums);
          continue;
        }
        if (half == 1) expect(linear, target, first, ROWS, panel);
        if (coming && pass < 4) {
          tile<E, ROWS, 1>(linear, input, first, panel, half, coming + quarter * pass, sums);
        } else {
          tile<E, ROWS, 0>(linear, input, first, panel, half, nullptr, sums);
        }
      }
    });
    for (int r = 0; r < size; r++) finish(target, first + r, panel, sums[r]);
  }
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

// What the thread that has this unit will probably take next, if that is another panel: threads take units in turns, as
// far as they are equally fast.
const uint32_t* coming_panel(const Cut& cut, int unit, const Linear& linear, int rows, int threads, const Linear* next) {
  int then = unit + threads;
  if (then < cut.units) return cut.panel(then) == cut.panel(unit) ? nullptr : linear.panel(cut.panel(then));
  if (!next) return nullptr;
  const Cut next_cut(next->panels, rows, threads);
  then -= cut.units;
  return then < next_cut.units ? next->panel(next_cut.panel(then)) : nullptr;
}

}  // namespace

void gemm(Pool& pool, const Linear& linear, const Activations& input, int rows, const Target& target,
          const Linear* next) {
  const int threads = pool.threads();
  const Cut cut(linear.panels, rows, threads);
  pool.run(cut.units, [&](int number, int) {
    const int panel = cut.panel(number), begin = cut.begin(number, rows), end = cut.end(number, rows);
    const char* coming = (const char*)coming_panel(cut, number, linear, rows, threads, next);
    if (linear.format == Format::FLOAT32) unit<Float>(linear, input, target, begin, end, panel, coming);
    if (linear.format == Format::BFLOAT16) unit<BFloat>(linear, input, target, begin, end, panel, coming);
    if (linear.format == Format::INT8 || linear.format == Format::INT4)
      unit_int8(linear, input, rows, begin, end, panel, coming,
                [&](int row, const auto& sums) { finish(target, row, panel, sums); });
  });
}

}  // namespace triolet
