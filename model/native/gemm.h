// Activations times a packed matrix, for one row (decode) and thousands (prefill) alike.
#pragma once

#include "linear.h"
#include "pool.h"

namespace triolet {

// What becomes of a product.
enum class Epilogue : int32_t {
  STORE = 0,     // floats
  ADD = 1,       // added to floats: the residual stream
  SILU_MUL = 2,  // silu(gate) * up of a paired matrix, as activations
};

struct Target {
  Epilogue epilogue;
  float* floats;  // STORE, ADD
  int64_t stride;
  const Activations* activations;  // SILU_MUL
  float soft_cap;                  // STORE: 0 for none
};

// `next`: what will be multiplied with after this, null for nothing; its first panels are asked for at the end.
void gemm(Pool& pool, const Linear& linear, const Activations& input, int rows, const Target& target,
          const Linear* next);

}  // namespace triolet
