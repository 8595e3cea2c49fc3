// A matrix packed for the kernels, perhaps with a bias; and the activations that it is multiplied with.
//
// Outputs come in panels of 64 columns. Within a panel, cells of columns stand side by side and inputs follow one another,
// so that a kernel streams a panel from its start to its end; a panel of floats has two halves, one after the other, since
// a tile of many rows has registers for 32 columns only:
//
//   int8:   cells[panel][input / 4][column 0..63]                       a cell holds 4 neighbouring inputs of one output
//   floats: cells[panel][column / 32][input / PER_CELL][column % 32]    a cell holds PER_CELL of them
//
// Outputs are padded to whole panels and inputs to a multiple of 64 with zeros, as are all rows of activations: no
// kernel has a remainder. A paired matrix is gate above up: its panels hold 32 gate columns and the 32 up columns that
// belong to them, so that silu(gate) * up needs one tile alone.
//
// int8: symmetric, one scale for each output; stored with 128 added, as VNNI multiplies unsigned by signed bytes.
// int4: groups of 32 inputs on a grid, low + scale * (0..15); used beside int8, for a few rows at a time.
#pragma once

#include "memory.h"
#include "vec.h"

namespace triolet {

enum class Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

constexpr int PANEL = 64;
constexpr int HALF = PANEL / 2;
constexpr int GROUP = 32;  // inputs that share a scale: of int8 activations and of int4 weights

inline int padded(int width) { return (width + PANEL - 1) / PANEL * PANEL; }

struct Linear {
  Format format;
  bool paired;
  int outputs, inputs;  // as in the checkpoint; a paired matrix has outputs / 2 results
  int panels, depth;    // depth: inputs, padded
  Memory<uint32_t> cells;
  Memory<float> bias;    // in the order of the panels; empty for none
  Memory<float> scales;  // int8: in the order of the panels
  // int4: nibbles[panel][group][pair of cells][column]: four bytes, the low nibbles of one cell of int8 and the high
  // nibbles of the next; grid[panel][group][scale x 64, low x 64] as IEEE half
  Memory<uint32_t> nibbles;
  Memory<uint16_t> grid;

  // Of the cells of one panel.
  int64_t panel_cells() const {
    return (int64_t)PANEL * (format == Format::FLOAT32 ? depth : format == Format::BFLOAT16 ? depth / 2 : depth / 4);
  }
  const uint32_t* panel(int number) const { return cells.get() + number * panel_cells(); }
  // Of a float32 or bfloat16 matrix.
  const uint32_t* half(int number, int which) const { return panel(number) + which * panel_cells() / 2; }
  int results() const { return paired ? outputs / 2 : outputs; }
  int result_width() const { return padded(results()); }
  size_t bytes() const { return cells.bytes() + bias.bytes() + scales.bytes() + nibbles.bytes() + grid.bytes(); }
  // The row of the checkpoint's matrix in this column; outputs or more: padding.
  int output_of(int panel, int column) const {
    if (!paired) return panel * PANEL + column;
    const int half = outputs / 2, row = panel * 32 + column % 32;
    return row >= half ? outputs : column < 32 ? row : half + row;
  }
};

// The weight is [outputs][inputs] of floats, or of bfloat16. The caller owns the result.
Linear* pack_linear(Format format, bool paired, int outputs, int inputs, const float* floats, const bf16* halves,
                    const float* bias);

// The weights as the kernels see them, [outputs][inputs]; of an int4 matrix its nibbles.
void unpack_linear(const Linear& linear, float* to);

constexpr int GROUP_CELLS = GROUP / 4 + 2;  // of an int8 row: the bytes, their scale, their offset

// Rows for a matrix to multiply, in its own terms. An int8 row is a sequence of groups, so that a kernel needs one pointer
// for all it reads of a row:
//
//   32 bytes | scale (float) | offset: -128 times the sum of the bytes (int32)
//
// The offset undoes the 128 that weights have added, and carries the low end of an int4 grid.
struct Activations {
  Format format;
  int stride = 0;  // values in a row, padded
  int rows = 0;
  Memory<uint32_t> cells;

  void reserve(int rows);
  uint32_t* row(int r) const { return cells.get() + (int64_t)r * row_cells(); }
  int row_cells() const {
    return format == Format::FLOAT32 ? stride : format == Format::BFLOAT16 ? stride / 2 : stride / GROUP * GROUP_CELLS;
  }
  // Stores 32 values of a row from `column` on (a multiple of 32).
  INLINE void put(int r, int column, f32x16 low, f32x16 high) const {
    if (format == Format::BFLOAT16) {
      bf16* to = (bf16*)row(r) + column;
      store_bf16(to, low);
      store_bf16(to + LANES, high);
    } else if (format == Format::FLOAT32) {
      float* to = (float*)row(r) + column;
      store(to, low);
      store(to + LANES, high);
    } else {
      put_int8(r, column, low, high);
    }
  }
  void put_int8(int r, int column, f32x16 low, f32x16 high) const;
};

}  // namespace triolet
