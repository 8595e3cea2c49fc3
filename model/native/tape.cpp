#include "tape.h"

#include <algorithm>
#include <chrono>

#include "rows.h"

namespace triolet {

Tape::Tape(const ModelShape& shape, std::vector<Op> ops, const std::vector<BufferShape>& buffers, KVCache* cache)
    : seconds(ops.size(), 0.0), shape_(shape), ops_(std::move(ops)), cache_(cache) {
  next_.assign(ops_.size(), nullptr);
  for (size_t i = ops_.size(); i-- > 1;)
    next_[i - 1] = ops_[i].code == (int)Code::GEMM ? ops_[i].linear : next_[i];
  frequencies_.assign(shape.frequencies, shape.frequencies + shape.rotary_dim / 2);
  for (const BufferShape& buffer : buffers) {
    buffers_.emplace_back();
    buffers_.back().shape = buffer;
    buffers_.back().activations.format = (Format)shape.format;
    buffers_.back().activations.stride = padded(buffer.width);
  }
}

// Memory for a step's rows; grows and never shrinks. Padding is zero from here on: nothing writes it.
void Tape::reserve(const Step& step) {
  // One for each worker that may come, by what the pool will be asked for: until the step has it, it may grow.
  while ((int)scratch_.size() < std::min(std::max(step.threads, 1), Pool::MOST_THREADS)) {
    scratch_.emplace_back();
    scratch_.back().allocate(shape_.head_dim);
  }
  if (step.num_tokens <= rows_) return;
  rows_ = step.num_tokens > 2 * rows_ ? step.num_tokens : 2 * rows_;
  cosines_.allocate((size_t)rows_ * shape_.rotary_dim / 2);
  sines_.allocate((size_t)rows_ * shape_.rotary_dim / 2);
  for (Buffer& buffer : buffers_) {
    if (buffer.shape.activations) {
      buffer.activations.reserve(rows_);
    } else {
      buffer.floats.allocate((size_t)rows_ * buffer.stride());
    }
  }
}

std::string Tape::run(const Step& step) {
  if (std::string wrong = check_step(step); !wrong.empty()) return wrong;
  reserve(step);
  const Layout layout{step.num_tokens,      step.num_sequences, step.query_lengths, step.context_lengths,
                      step.tables,          step.slots,         step.table_width};
  units_.plan({shape_.num_heads, shape_.num_kv_heads, shape_.head_dim, 0, 0, 0}, layout);
  Pool& pool = Pool::shared();
  pool.begin(step.threads);  // nothing throws from here to its end
  for (size_t i = 0; i < ops_.size(); i++) {
    if (ops_[i].sampled && !step.num_sampled) continue;
    if (ops_[i].code == (int)Code::STATES && !step.num_pooled) continue;
    if (!step.profile) {
      carry_out(pool, i, step, layout);
      continue;
    }
    const auto started = std::chrono::steady_clock::now();
    carry_out(pool, i, step, layout);
    seconds[i] += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }
  pool.run(step.num_sampled, [&](int i, int) {
    step.best[i] = argmax(step.logits + (int64_t)i * padded(shape_.vocab_size), shape_.vocab_size, step.best_logits + i);
  });
  pool.end();
  return "";
}

void Tape::carry_out(Pool& pool, size_t number, const Step& step, const Layout& layout) {
  const Op& op = ops_[number];
  const int half = shape_.rotary_dim / 2;
  switch ((Code)op.code) {
    case Code::EMBED:
      return pool.run_items(step.num_tokens,
                            [&](int i, int) { embed(*op.linear, step.token_ids[i], floats(op.target, i)); });
    case Code::ANGLES:
      return pool.run_items(step.num_tokens, [&](int i, int) {
        angles(step.positions[i], frequencies_.data(), half, shape_.rotary_scaling, cosines_.get() + (int64_t)i * half,
               sines_.get() + (int64_t)i * half);
      });
    case Code::NORM: return norm(pool, op, step);
    case Code::ROPE_KV: return rope_kv(pool, op, step);
    case Code::ATTENTION: {
      const AttentionShape shape{shape_.num_heads, shape_.num_kv_heads, shape_.head_dim, shape_.attention_scale,
                                 op.window, op.soft_cap};
      return attention(pool, shape, *cache_, op.tensor, op.group, layout, units_, scratch_.data(), floats(op.source, 0),
                       buffers_[op.source].stride(), floats(op.target, 0), buffers_[op.target].stride());
    }
    case Code::CONVERT:
      return pool.run_items(step.num_tokens, [&](int i, int) {
        convert(floats(op.source, i), buffers_[op.source].shape.width, buffers_[op.target].activations, i);
      });
    case Code::GEMM: return multiply(pool, op, step, next_[number]);
    case Code::STATES: return states(pool, op, step);
  }
}

void Tape::norm(Pool& pool, const Op& op, const Step& step) {
  const Activations& to = buffers_[op.target].activations;
  const int width = buffers_[op.source].shape.width;
  pool.run_items(op.sampled ? step.num_sampled : step.num_tokens, [&](int i, int) {
    rms_norm(floats(op.source, op.sampled ? step.sampled[i] : i), width, op.weight, op.eps, to, i);
  });
}

void Tape::states(Pool& pool, const Op& op, const Step& step) {
  const int width = buffers_[op.source].shape.width;
  pool.run_items(step.num_pooled, [&](int i, int) {
    rms_norm(floats(op.source, step.pooled[i]), width, op.weight, op.eps, step.states + (int64_t)i * padded(width));
  });
}

void Tape::rope_kv(Pool& pool, const Op& op, const Step& step) {
  const int heads = shape_.num_heads, kv_heads = shape_.num_kv_heads, dim = shape_.head_dim;
  const int half = shape_.rotary_dim / 2;
  const int64_t* slots = step.slots[op.group];
  const auto turn = [&](int i) {
    float* row = floats(op.source, i);
    for (int h = 0; h < heads + kv_heads; h++) {
      const float* weight = h < heads ? op.weight : op.weight2;
      if (weight) head_norm(row + h * dim, dim, weight, op.eps);
      rotate(row + h * dim, half, cosines_.get() + (int64_t)i * half, sines_.get() + (int64_t)i * half);
    }
  };
  // Neighbours together, since a tile's cells hold several tokens.
  const int each = step.num_tokens > 8 * pool.threads() ? TILE_TOKENS : 1;
  pool.run((step.num_tokens + each - 1) / each, [&](int chunk, int) {
    const int begin = chunk * each, end = std::min(begin + each, step.num_tokens);
    for (int i = begin; i < end; i++) turn(i);
    for (int i = begin, run; i < end; i += run) {
      run = run_of_slots(slots + i, end - i);
      const float* keys = floats(op.source, i) + heads * dim;
      for (int h = 0; h < kv_heads; h++)
        write_tokens(*cache_, op.tensor, slots[i], run, h, keys + h * dim, keys + (kv_heads + h) * dim,
                     buffers_[op.source].stride());
    }
  });
}

void Tape::multiply(Pool& pool, const Op& op, const Step& step, const Linear* next) {
  Target target{(Epilogue)op.epilogue, nullptr, 0, nullptr, op.soft_cap};
  if (target.epilogue == Epilogue::SILU_MUL) {
    target.activations = &buffers_[op.target].activations;
  } else {
    // Logits are the caller's.
    target.floats = op.sampled ? step.logits : floats(op.target, 0);
    target.stride = op.sampled ? padded(shape_.vocab_size) : buffers_[op.target].stride();
  }
  const int rows = op.sampled ? step.num_sampled : step.num_tokens;
  gemm(pool, *op.linear, buffers_[op.source].activations, rows, target, next);
}

}  // namespace triolet
