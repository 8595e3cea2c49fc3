// A model as a short list of operations, written down once by Python and carried out once a step.
//
// Operations read and write numbered buffers: rows of floats (the residual stream, q|k|v, logits) or of activations (what
// a matrix multiplies), one row for each token of the step, or for each sampled token. Ops, shapes and every index of a
// step are checked before anything is touched; what does not fit is answered with a sentence.
#pragma once

#include <string>
#include <vector>

#include "attention.h"
#include "gemm.h"

namespace triolet {

enum class Code : int32_t {
  EMBED = 0,      // linear: the table; target: floats
  ANGLES = 1,     // positions to cosines and sines, kept beside the buffers
  NORM = 2,       // source: floats; target: activations; weight: the norm's
  ROPE_KV = 3,    // source: q|k|v as floats, turned in place (after weight, weight2: norms of q and k); K, V to the cache
  ATTENTION = 4,  // source: q|k|v; target: floats
  CONVERT = 5,    // source: floats; target: activations
  GEMM = 6,       // linear; source: activations; target and epilogue: see gemm.h
  STATES = 7,     // source: floats; weight: the last norm's; the pooled tokens' rows, normed, to the caller
};

// The same fields as `Op` of library.py, in the same order.
struct Op {
  int32_t code;
  int32_t source, target;
  int32_t sampled;  // 1: rows are the sampled tokens; NORM then gathers them
  int32_t epilogue;
  int32_t tensor, group, window;  // ROPE_KV, ATTENTION
  float eps, soft_cap;
  const Linear* linear;
  const float* weight;
  const float* weight2;
};

struct BufferShape {
  int32_t width;
  int32_t activations;  // 0: floats
};

struct ModelShape {
  int32_t num_heads, num_kv_heads, head_dim, rotary_dim, hidden_size, vocab_size;
  int32_t format;  // of activations
  int32_t num_groups;
  float attention_scale, rotary_scaling;
  const float* frequencies;  // [rotary_dim / 2]
};

// The same fields as `Step` of library.py, in the same order.
struct Step {
  int32_t num_tokens, num_sequences, num_sampled, num_pooled, table_width, threads, profile;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* query_lengths;
  const int64_t* context_lengths;
  const int64_t* sampled;
  const int64_t* pooled;
  const int32_t* const* tables;
  const int64_t* const* slots;
  float* logits;       // [num_sampled][padded(vocab_size)]
  int64_t* best;       // [num_sampled]: the first of the largest logits
  float* best_logits;  // [num_sampled]
  float* states;       // [num_pooled][padded(hidden_size)]
};

class Tape {
 public:
  Tape(const ModelShape& shape, std::vector<Op> ops, const std::vector<BufferShape>& buffers, KVCache* cache);

  // What is wrong with the ops; empty if nothing.
  std::string check() const;
  // Carries out a step; what is wrong with it, in which case nothing was touched.
  std::string run(const Step& step);
  // Seconds spent in each op since the last reset, of the profiled steps.
  std::vector<double> seconds;

 private:
  struct Buffer {
    BufferShape shape;
    Memory<float> floats;
    Activations activations;
    int64_t stride() const { return padded(shape.width); }
  };

  std::string check_op(const Op& op) const;
  std::string check_buffer(int number, int width, bool activations) const;
  std::string check_step(const Step& step) const;
  std::string check_tables(const Step& step) const;
  int window_of(int group) const;
  void reserve(const Step& step);
  void carry_out(Pool& pool, size_t number, const Step& step, const Layout& layout);
  void norm(Pool& pool, const Op& op, const Step& step);
  void rope_kv(Pool& pool, const Op& op, const Step& step);
  void states(Pool& pool, const Op& op, const Step& step);
  void multiply(Pool& pool, const Op& op, const Step& step, const Linear* next);
  float* floats(int number, int64_t row) { return buffers_[number].floats.get() + row * buffers_[number].stride(); }

  ModelShape shape_;
  std::vector<float> frequencies_;
  std::vector<Op> ops_;
  std::vector<const Linear*> next_;  // for each op the matrix of the GEMM that follows
  std::vector<Buffer> buffers_;
  KVCache* cache_;
  Memory<float> cosines_, sines_;
  int rows_ = 0;
  Units units_;
  std::vector<Scratch> scratch_;
};

}  // namespace triolet
