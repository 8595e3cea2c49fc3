// What this machine can do at most: bytes read from memory and products summed in registers, each by some threads.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "../model/native/vec.h"

using namespace triolet;

namespace {

double seconds_of(int threads, void (*work)(int, int)) {
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; i++) others.emplace_back(work, i, threads);
  work(0, threads);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

constexpr int64_t CELLS = 64 << 20;  // 256 MiB: no cache holds them
uint32_t* cells = nullptr;
volatile uint32_t sink;

void read_share(int i, int threads) {
  u32x16 sum{};
  for (int64_t at = CELLS / threads * i; at < CELLS / threads * (i + 1); at += 64)
    for (int c = 0; c < 4; c++) sum += load_once(cells + at + c * LANES);
  sink = sum[0];
}

constexpr int ROUNDS = 2'000'000;

template <class E>
void multiply(int, int) {
  f32x16 sums[6][4];
  for (int r = 0; r < 6; r++)
    for (int c = 0; c < 4; c++) sums[r][c] = splat((float)(sink + r * 4 + c));  // equal ones would be computed once
  u32x16 columns[4] = {};
  const uint32_t cell = sink;
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) asm volatile("" : "+v"(columns[c]));  // not known to be zero
  for (int k = 0; k < ROUNDS; k++) {
#pragma GCC unroll 6
    for (int r = 0; r < 6; r++)
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) sums[r][c] = E::dot(sums[r][c], columns[c], cell);
  }
  float total = 0;
  for (auto& row : sums)
    for (auto& sum : row) total += sum[0];
  sink = (uint32_t)total;
}

}  // namespace

// Bytes a second.
extern "C" double probe_bandwidth(int threads) {
  if (!cells) {
    cells = new uint32_t[CELLS];
    for (int64_t i = 0; i < CELLS; i++) cells[i] = (uint32_t)i;
  }
  double best = 1e9;
  for (int i = 0; i < 7; i++) {
    const double s = seconds_of(threads, read_share);
    if (s < best) best = s;
  }
  return CELLS * 4 / best;
}

// Multiplications and additions of bfloat16 a second.
extern "C" double probe_operations(int threads) {
  double best = 1e9;
  for (int i = 0; i < 5; i++) {
    const double s = seconds_of(threads, multiply<BFloat>);
    if (s < best) best = s;
  }
  return 2.0 * BFloat::PER_CELL * LANES * 24 * ROUNDS * threads / best;
}
