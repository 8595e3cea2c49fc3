#include "linear.h"

#include <algorithm>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "pool.h"

namespace triolet {

namespace {

struct Source {
  const float* floats;
  const bf16* halves;
  int inputs;
  float at(int64_t row, int column) const {
    return floats ? floats[row * inputs + column] : widen(halves[row * inputs + column]);
  }
};

template <class E>
void fill_cells(const Linear& linear, const Source& source, int panel) {
  typedef typename E::Element Element;
  const int per_cell = E::PER_CELL;
  for (int column = 0; column < PANEL; column++) {
    const int row = linear.output_of(panel, column);
    if (row >= linear.outputs) continue;
    Element* to = (Element*)linear.half(panel, column / HALF);
    for (int k = 0; k < linear.inputs; k++) {
      Element* cell = to + ((int64_t)(k / per_cell) * HALF + column % HALF) * per_cell;
      cell[k % per_cell] = E::of(source.at(row, k));
    }
  }
}

void fill_int8(const Linear& linear, const Source& source, int panel) {
  uint8_t* to = (uint8_t*)(linear.cells.get() + (int64_t)panel * linear.depth / 4 * PANEL);
  std::memset(to, 128, (size_t)linear.depth * PANEL);
  for (int column = 0; column < PANEL; column++) {
    const int row = linear.output_of(panel, column);
    if (row >= linear.outputs) continue;
    float most = 1e-12f;
    for (int k = 0; k < linear.inputs; k++) most = std::max(most, std::fabs(source.at(row, k)));
    linear.scales[panel * PANEL + column] = most / 127;
    const float inverse = 127 / most;
    for (int k = 0; k < linear.inputs; k++)
      to[((int64_t)(k / 4) * PANEL + column) * 4 + k % 4] = (uint8_t)(128 + std::lrintf(source.at(row, k) * inverse));
  }
}

// The scale of the grid low + scale * (0..15) that these values stand on, if they stand on one (weights of a 4-bit file
// do, and are then kept as they are); else the finest that spans them.
float grid_scale(const float* values, int count, float low, float high) {
  for (int spanned = 1; spanned < 15; spanned++) {
    const float scale = (high - low) / spanned;
    bool fits = true;
    for (int i = 0; i < count && fits; i++) {
      const float place = (values[i] - low) / scale;
      fits = std::fabs(place - std::nearbyint(place)) < 0.02f;
    }
    if (fits) return scale;
  }
  return (high - low) / 15;
}

uint16_t half_of(float x) {
#if defined(__F16C__)
  return _cvtss_sh(x, 0);
#else
  _Float16 half = (_Float16)x;
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
#endif
}

float float_of(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  _Float16 value;
  std::memcpy(&value, &half, 2);
  return (float)value;
#endif
}

float weight_at(const Linear& linear, int panel, int column, int k) {
  const auto cell = [&](int per_cell) {
    return linear.half(panel, column / HALF) + (int64_t)(k / per_cell) * HALF + column % HALF;
  };
  switch (linear.format) {
    case Format::FLOAT32: return *(const float*)cell(1);
    case Format::BFLOAT16: return widen(((const bf16*)cell(2))[k % 2]);
    case Format::INT8: {
      const uint8_t* bytes = (const uint8_t*)(linear.panel(panel) + k / 4 * PANEL + column);
      return (bytes[k % 4] - 128) * linear.scales[panel * PANEL + column];
    }
    default: break;
  }
  const int64_t group = (int64_t)panel * (linear.depth / GROUP) + k / GROUP;
  const int i = k % GROUP;
  const uint16_t* grid = linear.grid.get() + group * 2 * PANEL;
  const uint8_t byte = ((const uint8_t*)(linear.nibbles.get() + group * 4 * PANEL))[(i / 8 * PANEL + column) * 4 + i % 4];
  return float_of(grid[PANEL + column]) + float_of(grid[column]) * (i / 4 % 2 ? byte >> 4 : byte & 15);
}

void fill_int4(const Linear& linear, const Source& source, int panel) {
  const int groups = linear.depth / GROUP;
  float values[GROUP];
  for (int column = 0; column < PANEL; column++) {
    const int row = linear.output_of(panel, column);
    if (row >= linear.outputs) continue;
    for (int group = 0; group < groups; group++) {
      const int count = std::min(GROUP, linear.inputs - group * GROUP);
      if (count <= 0) break;
      for (int i = 0; i < count; i++) values[i] = source.at(row, group * GROUP + i);
      const float low = *std::min_element(values, values + count), high = *std::max_element(values, values + count);
      const float scale = high > low ? grid_scale(values, count, low, high) : 0, inverse = scale > 0 ? 1 / scale : 0;
      uint16_t* grid = linear.grid.get() + ((int64_t)panel * groups + group) * 2 * PANEL;
      grid[column] = half_of(scale), grid[PANEL + column] = half_of(low);
      uint8_t* nibbles = (uint8_t*)(linear.nibbles.get() + ((int64_t)panel * groups + group) * 4 * PANEL);
      for (int i = 0; i < count; i++) {
        const int q = std::min(15, std::max(0, (int)std::lrintf((values[i] - low) * inverse)));
        nibbles[(i / 8 * PANEL + column) * 4 + i % 4] |= (uint8_t)(i / 4 % 2 ? q << 4 : q);
      }
    }
  }
}

}  // namespace

Linear* pack_linear(Format format, bool paired, int outputs, int inputs, const float* floats, const bf16* halves,
                    const float* bias) {
  Linear* linear = new Linear;
  linear->format = format, linear->paired = paired;
  linear->outputs = outputs, linear->inputs = inputs;
  linear->panels = paired ? (outputs / 2 + 31) / 32 : (outputs + PANEL - 1) / PANEL;
  linear->depth = padded(inputs);
  const int64_t values = (int64_t)linear->panels * PANEL * linear->depth;
  const bool bytes = format == Format::INT8 || format == Format::INT4;
  linear->cells.allocate(bytes ? values / 4 : format == Format::BFLOAT16 ? values / 2 : values);
  if (bytes) linear->scales.allocate((size_t)linear->panels * PANEL);
  if (format == Format::INT4) {
    linear->nibbles.allocate(values / 8);
    linear->grid.allocate(values / GROUP * 2);
  }
  if (bias) {
    linear->bias.allocate((size_t)linear->panels * PANEL);
    for (int i = 0; i < linear->panels * PANEL; i++) {
      const int row = linear->output_of(i / PANEL, i % PANEL);
      if (row < outputs) linear->bias[i] = bias[row];
    }
  }
  const Source source{floats, halves, inputs};
  Pool& pool = Pool::shared();
  pool.begin(pool.size());
  pool.run(linear->panels, [&](int panel, int) {
    if (format == Format::FLOAT32) fill_cells<Float>(*linear, source, panel);
    if (format == Format::BFLOAT16) fill_cells<BFloat>(*linear, source, panel);
    if (bytes) fill_int8(*linear, source, panel);
    if (format == Format::INT4) fill_int4(*linear, source, panel);
  });
  pool.end();
  return linear;
}

void unpack_linear(const Linear& linear, float* to) {
  for (int panel = 0; panel < linear.panels; panel++)
    for (int column = 0; column < PANEL; column++) {
      const int row = linear.output_of(panel, column);
      for (int k = 0; k < linear.inputs && row < linear.outputs; k++)
        to[(int64_t)row * linear.inputs + k] = weight_at(linear, panel, column, k);
    }
}

void Activations::reserve(int wanted) {
  if (wanted <= rows) return;
  rows = wanted;
  cells.allocate((size_t)rows * row_cells());
}

void Activations::put_int8(int r, int column, f32x16 low, f32x16 high) const {
  const float most = std::max(largest(maximum(magnitude(low), magnitude(high))), 1e-12f);
  const float inverse = 127 / most, round = 12582912.f;
  const i32x16 a = (i32x16)(low * inverse + round) - (i32x16)splat(round);
  const i32x16 b = (i32x16)(high * inverse + round) - (i32x16)splat(round);
  uint32_t* to = row(r) + column / GROUP * GROUP_CELLS;
  store(to, __builtin_convertvector(a, i8x16));
  store(to + LANES / 4, __builtin_convertvector(b, i8x16));
  const float scale = most / 127;
  std::memcpy(to + GROUP / 4, &scale, 4);
  to[GROUP / 4 + 1] = (uint32_t)(-128 * sum(a + b));
}

}  // namespace triolet
