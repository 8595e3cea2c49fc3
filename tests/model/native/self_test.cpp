// The kernels by themselves, to be run under the sanitizers: matrices of every format with every number of rows, a cache
// of every format under mixed steps, one thread and several; what several answer must be what one answers, bit for bit,
// and so must be what is computed in other pieces.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "prefault.h"
#include "sampling.h"
#include "tape.h"

using namespace triolet;

namespace {

constexpr int HIDDEN = 48, INNER = 40, HEADS = 6, KV_HEADS = 2, DIM = 16, VOCAB = 70, BLOCKS = 24, LAYERS = 2;

uint32_t state = 1;
float random_float() {
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / (1 << 23) - 1;
}

std::vector<float> random_floats(size_t count) {
  std::vector<float> floats(count);
  for (float& x : floats) x = random_float();
  return floats;
}

void expect(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "self test: %s\n", what);
  std::exit(1);
}

struct Matrices {
  std::vector<Linear*> all;
  Linear* make(Format format, bool paired, int outputs, int inputs) {
    const std::vector<float> weights = random_floats((size_t)outputs * inputs), bias = random_floats(outputs);
    all.push_back(pack_linear(format, paired, outputs, inputs, weights.data(), nullptr, bias.data()));
    return all.back();
  }
  ~Matrices() {
    for (Linear* linear : all) delete linear;
  }
};

// Tokens of two sequences by step: chunks, decodes, both.
typedef std::vector<std::vector<int>> Pieces;
constexpr int LENGTHS[2] = {38, 39};
const Pieces MIXED = {{21, 0}, {1, 30}, {1, 1}, {14, 1}, {1, 7}}, WHOLE = {{38, 39}}, SINGLE = {{20, 36}, {2, 1}, {16, 2}};

// The logits and states of two sequences, by sequence and position.
std::vector<float> run(Format weights, Format cached, int threads, const Pieces& pieces = MIXED) {
  state = 1;
  Matrices matrices;
  const Format activations = weights == Format::INT4 ? Format::INT8 : weights;
  const Format table = weights == Format::FLOAT32 ? Format::FLOAT32 : Format::BFLOAT16;
  const std::vector<float> norm(padded(HIDDEN), 1.f), head_norm(DIM, 1.f), frequencies = random_floats(DIM / 2);
  KVCache cache{cached, LAYERS, BLOCKS, 1, KV_HEADS, DIM, {}};
  cache.data.allocate(cache.tensor_bytes() * LAYERS);
  std::memset(cache.data.get(), 0xff, cache.data.bytes());
  Prefault ahead(cache, (int64_t)cache.data.bytes());  // beside the steps
  std::vector<Op> ops = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, matrices.make(table, false, VOCAB, HIDDEN), nullptr, nullptr},
                         {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, nullptr, nullptr, nullptr}};
  for (int layer = 0; layer < LAYERS; layer++) {
    const int window = layer ? 9 : 0;
    const auto linear = [&](int outputs, int inputs, bool paired = false) {
      return matrices.make(weights, paired, outputs, inputs);
    };
    ops.push_back({2, 0, 1, 0, 0, 0, 0, 0, 1e-5f, 0, nullptr, norm.data(), nullptr});
    ops.push_back({6, 1, 2, 0, 0, 0, 0, 0, 0, 0, linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), nullptr, nullptr});
    ops.push_back({3, 2, 0, 0, 0, layer, layer, 0, 1e-5f, 0, nullptr, head_norm.data(), head_norm.data()});
    ops.push_back({4, 2, 3, 0, 0, layer, layer, window, 0, 5.f, nullptr, nullptr, nullptr});
    ops.push_back({5, 3, 4, 0, 0, 0, 0, 0, 0, 0, nullptr, nullptr, nullptr});
    ops.push_back({6, 4, 0, 0, 1, 0, 0, 0, 0, 0, linear(HIDDEN, HEADS * DIM), nullptr, nullptr});
    ops.push_back({2, 0, 1, 0, 0, 0, 0, 0, 1e-5f, 0, nullptr, norm.data(), nullptr});
    ops.push_back({6, 1, 5, 0, 2, 0, 0, 0, 0, 0, linear(2 * INNER, HIDDEN, true), nullptr, nullptr});
    ops.push_back({6, 5, 0, 0, 1, 0, 0, 0, 0, 0, linear(HIDDEN, INNER), nullptr, nullptr});
  }
  const Format head = weights == Format::INT4 ? Format::INT8 : weights;
  ops.push_back({7, 0, 0, 0, 0, 0, 0, 0, 1e-5f, 0, nullptr, norm.data(), nullptr});
  ops.push_back({2, 0, 1, 1, 0, 0, 0, 0, 1e-5f, 0, nullptr, norm.data(), nullptr});
  ops.push_back({6, 1, 0, 1, 0, 0, 0, 0, 0, 20.f, matrices.make(head, false, VOCAB, HIDDEN), nullptr, nullptr});
  const std::vector<BufferShape> buffers = {
      {HIDDEN, 0}, {HIDDEN, 1}, {(HEADS + 2 * KV_HEADS) * DIM, 0}, {HEADS * DIM, 0}, {HEADS * DIM, 1}, {INNER, 1}};
  const ModelShape shape{HEADS, KV_HEADS, DIM, DIM, HIDDEN, VOCAB, (int)activations, 2, 0.25f, 1, frequencies.data()};
  Tape tape(shape, ops, buffers, &cache);
  expect(tape.check().empty(), tape.check().c_str());

  const int width = padded(VOCAB) + padded(HIDDEN);
  std::vector<float> logits((LENGTHS[0] + LENGTHS[1]) * width);
  const int32_t tables[2][4] = {{3, 17, 5, 20}, {9, 1, 22, 14}};
  int64_t computed[2] = {0, 0};
  for (const auto& piece : pieces) {
    std::vector<int64_t> tokens, positions, slots, queries, contexts, sampled;
    std::vector<int32_t> table_rows;
    std::vector<float*> places;
    for (int s = 0; s < 2; s++) {
      for (int i = 0; i < piece[s]; i++, computed[s]++) {
        places.push_back(logits.data() + (s * LENGTHS[0] + computed[s]) * width);
        tokens.push_back((computed[s] * 7 + s) % VOCAB);
        positions.push_back(computed[s]);
        slots.push_back(tables[s][computed[s] / 16] * 16 + computed[s] % 16);
        sampled.push_back((int64_t)sampled.size());
      }
      if (!piece[s]) continue;
      queries.push_back(piece[s]), contexts.push_back(computed[s]);
      table_rows.insert(table_rows.end(), tables[s], tables[s] + 4);
    }
    const size_t count = tokens.size();
    std::vector<float> out(count * padded(VOCAB)), best_logits(count);
    std::vector<int64_t> best(count);
    const int32_t* both_tables[2] = {table_rows.data(), table_rows.data()};
    const int64_t* both_slots[2] = {slots.data(), slots.data()};
    std::vector<float> states(count * padded(HIDDEN));
    const Step step{(int)count,      (int)queries.size(), (int)count,     (int)count,      4,              threads,
                    1,               tokens.data(),       positions.data(), queries.data(), contexts.data(), sampled.data(),
                    sampled.data(),  both_tables,         both_slots,     out.data(),      best.data(),
                    best_logits.data(), states.data()};
    const std::string wrong = tape.run(step);
    expect(wrong.empty(), wrong.c_str());
    for (float x : out) expect(std::isfinite(x), "a logit is not finite: unwritten memory was read");
    for (float x : states) expect(std::isfinite(x), "a state is not finite: unwritten memory was read");
    for (size_t i = 0; i < count; i++) {
      std::memcpy(places[i], out.data() + i * padded(VOCAB), VOCAB * 4);
      std::memcpy(places[i] + padded(VOCAB), states.data() + i * padded(HIDDEN), HIDDEN * 4);
    }
  }
  const int64_t sources[] = {3, 9}, targets[] = {9, 0};
  copy_blocks(cache, sources, targets, 2);
  return logits;
}

// Tokens of rows with every kind of filter, of widths that end anywhere.
std::vector<int64_t> chosen(int width, int threads) {
  state = 7;
  const int rows = 60, stride = width + 3;
  std::vector<float> logits = random_floats(rows * stride);
  for (int i = 0; i < rows * stride; i++) logits[i] = i % 11 ? logits[i] * (float)(i / stride % 4 * 5 + 1) : -INFINITY;
  logits[5 * stride + width / 2] = NAN;
  for (int i = 0; i < width; i++) logits[6 * stride + i] = i % 3 ? -INFINITY : -3.4e38f, logits[7 * stride + i] = 1;
  std::vector<double> temperature, top_p, min_p, uniform;
  std::vector<int64_t> top_k, tokens(rows, -1);
  std::vector<uint8_t> usable(rows, 7);
  for (int row = 0; row < rows; row++) {
    temperature.push_back(row % 7 ? row % 5 ? 0.3 * (row % 5) : 1e-30 : 0);
    top_k.push_back(row % 3 ? 0 : row / 3 % 2 ? 5 : width * 2 / 3);
    top_p.push_back(row % 2 ? 1 : 0.05 * (row % 20) + 0.02);
    min_p.push_back(row % 4 ? 0 : 1e-6 * row);
    uniform.push_back((double)row / rows);
  }
  sample(Pool::shared(), {rows, width, stride, threads, logits.data(), temperature.data(), top_k.data(), top_p.data(),
                          min_p.data(), uniform.data(), nullptr, nullptr, tokens.data(), usable.data()});
  for (int row = 0; row < rows; row++) {
    expect(usable[row] == (row != 5), "a row is usable if it has no NaN");
    expect(tokens[row] >= 0 && tokens[row] < width, "a token is no token");
    expect(row == 5 || std::isfinite(logits[row * stride + tokens[row]]), "a masked token was chosen");
  }
  logits[5 * stride + width / 2] = 1;
  std::vector<float> found(rows * width);
  std::vector<int64_t> places(rows * width);
  for (int k : {1, width / 2 + 1, width}) {
    largest(Pool::shared(), threads, {logits.data(), stride, rows, width}, k, found.data(), places.data());
    tokens.insert(tokens.end(), places.begin(), places.begin() + rows * k);
  }
  const int64_t seen[] = {width - 1, 0};
  const float counts[] = {0, 2};
  penalise(logits.data(), 2, seen, counts, {1.5f, 1, 1});
  return tokens;
}

}  // namespace

int main() {
  Pool::shared().resize(1);
  for (int width : {3, 16, 301, 4000}) {
    Pool::shared().resize(1);
    const std::vector<int64_t> alone = chosen(width, 1);
    Pool::shared().resize(4);
    for (int threads : {4, 2}) expect(chosen(width, threads) == alone, "threads change what is chosen");
  }
  const Format formats[][2] = {{Format::FLOAT32, Format::FLOAT32}, {Format::BFLOAT16, Format::BFLOAT16},
                               {Format::INT8, Format::BFLOAT16},   {Format::INT4, Format::INT8}};
  for (const auto& format : formats) {
    Pool::shared().resize(1);
    const std::vector<float> alone = run(format[0], format[1], 1);
    Pool::shared().resize(4);
    for (int threads : {4, 2, 4}) expect(run(format[0], format[1], threads) == alone, "threads change the result");
    if (format[0] == Format::INT4) continue;  // few rows are multiplied in another way than many
    for (const Pieces& pieces : {WHOLE, SINGLE})
      expect(run(format[0], format[1], 2, pieces) == alone, "pieces change the result");
  }
  Pool::shared().resize(1);
  std::puts("fine");
}
