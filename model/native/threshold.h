// The value from which on the weights of some tokens, the largest values first, reach what is wanted of them: where
// top_k cuts (each weight is 1) and where top_p does. Nothing is sorted but the few tokens around the cut.
#pragma once

#include <cstdint>
#include <vector>

namespace triolet {

// The memory that it takes; one of each thread.
class Selection {
 public:
  void reserve(int count);

  // `values` and `weights` go on to the next multiple of 16, with -inf and with anything; the values of the `count` tokens
  // are finite. The least value where not even all of them reach `wanted`, the largest where nothing is wanted.
  float threshold(const float* values, const float* weights, int count, double wanted);

 private:
  static constexpr int FEW = 48;         // so many are sorted,
  static constexpr int SOME = 512;       // so many go through bins,
  static constexpr int MOST_PASSES = 6;  // and before, so often, in lanes through a few parts of their range
  static constexpr int PARTS = 8;
  static constexpr int BINS = 512;

  struct Token {
    float value, weight;
  };

  int to_a_part(const float* values, const float* weights, int count, double wanted, double& above);
  int to_a_bin(int count, double wanted, double& above);

  std::vector<float> values_, weights_;
  std::vector<Token> tokens_;
  double sums_[2][BINS];  // two of each bin, for neighbours in turn: one would wait for the other's addition
};

}  // namespace triolet
