#include "rows.h"

namespace triolet {

void embed(const Linear& table, int64_t token, float* to) {
  const int per_cell = table.format == Format::BFLOAT16 ? 2 : 1, steps = table.depth / per_cell;
  const uint32_t* cell = table.half(token / PANEL, token % PANEL / HALF) + token % HALF;
  for (int k = 0; k < steps; k++, cell += HALF) {
    if (per_cell == 2) {
      to[2 * k] = widen((bf16)*cell);
      to[2 * k + 1] = widen((bf16)(*cell >> 16));
    } else {
      std::memcpy(to + k, cell, 4);
    }
  }
}

static float root_mean_square(const float* row, int padded_width, int width, float eps) {
  f32x16 squares[4] = {};  // several, since one sum waits for itself
  int i = 0;
  for (; i + 4 * LANES <= padded_width; i += 4 * LANES)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) squares[j] += loadf(row + i + j * LANES) * loadf(row + i + j * LANES);
  for (; i < padded_width; i += LANES) squares[0] += loadf(row + i) * loadf(row + i);
  return std::sqrt(sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / (float)width + eps);
}

void rms_norm(const float* from, int width, const float* weight, float eps, const Activations& to, int row) {
  const float scale = 1 / root_mean_square(from, padded(width), width, eps);
  for (int i = 0; i < padded(width); i += GROUP) {
    const f32x16 low = loadf(from + i) * scale * loadf(weight + i);
    const f32x16 high = loadf(from + i + LANES) * scale * loadf(weight + i + LANES);
    to.put(row, i, low, high);
  }
}

void rms_norm(const float* from, int width, const float* weight, float eps, float* to) {
  const float scale = 1 / root_mean_square(from, padded(width), width, eps);
  for (int i = 0; i < padded(width); i += LANES) store(to + i, loadf(from + i) * scale * loadf(weight + i));
}

void head_norm(float* head, int head_dim, const float* weight, float eps) {
  const float scale = 1 / root_mean_square(head, head_dim, head_dim, eps);
  for (int i = 0; i < head_dim; i += LANES) store(head + i, loadf(head + i) * scale * loadf(weight + i));
}

void convert(const float* from, int width, const Activations& to, int row) {
  for (int i = 0; i < padded(width); i += GROUP) to.put(row, i, loadf(from + i), loadf(from + i + LANES));
}

void angles(int64_t position, const float* frequencies, int half, float scaling, float* cosines, float* sines) {
  for (int i = 0; i < half; i++) {
    const float angle = (float)position * frequencies[i];
    cosines[i] = std::cos(angle) * scaling;
    sines[i] = std::sin(angle) * scaling;
  }
}

void rotate(float* head, int half, const float* cosines, const float* sines) {
  float* __restrict first = head;
  float* __restrict second = head + half;
  int i = 0;
  for (; i + LANES <= half; i += LANES) {
    const f32x16 a = loadf(first + i), b = loadf(second + i), c = loadf(cosines + i), s = loadf(sines + i);
    store(first + i, a * c - b * s);
    store(second + i, b * c + a * s);
  }
  for (; i < half; i++) {
    const float a = first[i], b = second[i];
    first[i] = a * cosines[i] - b * sines[i];
    second[i] = b * cosines[i] + a * sines[i];
  }
}

int64_t argmax(const float* row, int count, float* top) {
  const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  f32x16 best = splat(-INFINITY);
  i32x16 where = lanes, at = lanes, odd = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const f32x16 x = loadf(row + i);
    odd |= x != x;
    const i32x16 more = x > best;
    best = more ? x : best;
    where = more ? at : where;
    at += LANES;
  }
  float most = -INFINITY;
  int64_t index = 0;
  bool found = false;
  for (int lane = 0; lane < LANES && i; lane++) {
    if (!found || best[lane] > most || (best[lane] == most && where[lane] < index)) {
      most = best[lane], index = where[lane], found = true;
    }
  }
  bool nan = false;
  for (int lane = 0; lane < LANES; lane++) nan |= odd[lane] != 0;
  for (; i < count; i++) {
    nan |= std::isnan(row[i]);
    if (row[i] > most) most = row[i], index = i;
  }
  *top = nan ? NAN : most;
  return index;
}

}  // namespace triolet
