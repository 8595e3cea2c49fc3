// What a tape and a step must fulfil; looked at before anything is read or written.
#include "tape.h"

namespace triolet {

namespace {

std::string said(const char* what, int64_t number, const char* than, int64_t limit) {
  return std::string(what) + " " + std::to_string(number) + " " + than + " " + std::to_string(limit);
}

bool outside(int64_t number, int64_t end) { return number < 0 || number >= end; }

}  // namespace

std::string Tape::check() const {
  if (shape_.head_dim % LANES || shape_.head_dim < LANES) return said("head size", shape_.head_dim, "is no multiple of", 16);
  if (shape_.num_kv_heads < 1 || shape_.num_heads % shape_.num_kv_heads) return "heads do not share kv heads evenly";
  if (shape_.rotary_dim % 2 || outside(shape_.rotary_dim, shape_.head_dim + 1))
    return said("rotary size", shape_.rotary_dim, "does not fit head size", shape_.head_dim);
  if (shape_.format < 0 || shape_.format > (int)Format::INT8) return said("activations of format", shape_.format, "past", 2);
  if (cache_->head_dim != shape_.head_dim || cache_->num_kv_heads != shape_.num_kv_heads)
    return "the cache has other heads than the model";
  if ((cache_->format == Format::FLOAT32) != (shape_.format == (int)Format::FLOAT32))
    return "cache and activations must both be float32, or neither";
  if (ops_.empty() || !ops_.back().sampled) return "the last operation gives no logits";
  for (size_t i = 0; i < ops_.size(); i++)
    if (std::string wrong = check_op(ops_[i]); !wrong.empty()) return "operation " + std::to_string(i) + ": " + wrong;
  return "";
}

std::string Tape::check_buffer(int number, int width, bool activations) const {
  if (outside(number, buffers_.size())) return said("buffer", number, "of", buffers_.size());
  const BufferShape& shape = buffers_[number].shape;
  if ((shape.activations != 0) != activations) return said("buffer", number, "is of the other kind; wanted width", width);
  if (shape.width != width) return said("a buffer has width", shape.width, "not", width);
  return "";
}

std::string Tape::check_op(const Op& op) const {
  const int qkv = (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
  const int mixed = shape_.num_heads * shape_.head_dim;
  std::string wrong;
  const auto need = [&](int buffer, int width, bool activations) {
    if (wrong.empty()) wrong = check_buffer(buffer, width, activations);
  };
  const bool cached = op.code == (int)Code::ROPE_KV || op.code == (int)Code::ATTENTION;
  if (cached && (outside(op.tensor, cache_->num_tensors) || outside(op.group, shape_.num_groups) || op.window < 0))
    return "no such tensor, group or window";
  switch ((Code)op.code) {
    case Code::EMBED:
      if (!op.linear || op.linear->format > Format::BFLOAT16) return "an embedding must be float32 or bfloat16";
      if (op.linear->paired || op.linear->outputs != shape_.vocab_size || op.linear->inputs != shape_.hidden_size)
        return "the embedding has another shape than the model";
      need(op.target, shape_.hidden_size, false);
      return wrong;
    case Code::ANGLES: return "";
    case Code::NORM:
      if (!op.weight) return "a norm needs a weight";
      need(op.source, shape_.hidden_size, false);
      need(op.target, shape_.hidden_size, true);
      return wrong;
    case Code::STATES:
      if (!op.weight) return "a norm needs a weight";
      need(op.source, shape_.hidden_size, false);
      return wrong;
    case Code::ROPE_KV:
      need(op.source, qkv, false);
      return wrong;
    case Code::ATTENTION:
      need(op.source, qkv, false);
      need(op.target, mixed, false);
      return wrong;
    case Code::CONVERT:
      if (outside(op.source, buffers_.size())) return said("buffer", op.source, "of", buffers_.size());
      need(op.source, buffers_[op.source].shape.width, false);
      need(op.target, buffers_[op.source].shape.width, true);
      return wrong;
    case Code::GEMM: {
      if (!op.linear) return "a product needs a matrix";
      const Linear& linear = *op.linear;
      const Format wanted = linear.format == Format::INT4 ? Format::INT8 : linear.format;
      if ((int)wanted != shape_.format) return "matrix and activations have different formats";
      if (linear.paired != (op.epilogue == (int)Epilogue::SILU_MUL)) return "a paired matrix goes with silu_mul, no other";
      if (outside(op.epilogue, 3)) return said("epilogue", op.epilogue, "of", 3);
      need(op.source, linear.inputs, true);
      if (op.sampled) {
        if (op.epilogue != (int)Epilogue::STORE || linear.outputs != shape_.vocab_size) return "logits have another shape";
      } else {
        need(op.target, linear.results(), linear.paired);
      }
      return wrong;
    }
  }
  return said("code", op.code, "of", 8);
}

std::string Tape::check_step(const Step& step) const {
  if (step.num_tokens < 1 || step.num_sequences < 1) return "a step without tokens";
  if (step.num_sampled < 0 || step.num_sampled > step.num_tokens)
    return said("sampled rows", step.num_sampled, "of", step.num_tokens);
  for (int i = 0; i < step.num_tokens; i++) {
    if (outside(step.token_ids[i], shape_.vocab_size)) return said("token", step.token_ids[i], "of", shape_.vocab_size);
    if (step.positions[i] < 0) return said("position", step.positions[i], "is below", 0);
    for (int group = 0; group < shape_.num_groups; group++)
      if (outside(step.slots[group][i], cache_->num_slots()))
        return said("slot", step.slots[group][i], "of", cache_->num_slots());
  }
  if (step.num_pooled < 0 || step.num_pooled > step.num_tokens)
    return said("pooled rows", step.num_pooled, "of", step.num_tokens);
  for (int i = 0; i < step.num_pooled; i++)
    if (outside(step.pooled[i], step.num_tokens)) return said("pooled row", step.pooled[i], "of", step.num_tokens);
  for (int i = 0; i < step.num_sampled; i++)
    if (outside(step.sampled[i], step.num_tokens)) return said("sampled row", step.sampled[i], "of", step.num_tokens);
  return check_tables(step);
}

int Tape::window_of(int group) const {
  for (const Op& op : ops_)
    if (op.code == (int)Code::ATTENTION && op.group == group) return op.window;
  return 0;
}

std::string Tape::check_tables(const Step& step) const {
  const int block = cache_->tiles_per_block * TILE_TOKENS;
  int64_t tokens = 0;
  for (int s = 0; s < step.num_sequences; s++) {
    const int64_t queries = step.query_lengths[s], context = step.context_lengths[s];
    if (queries < 1 || queries > context) return said("queries", queries, "of a context of", context);
    tokens += queries;
    if ((context + block - 1) / block > step.table_width) return said("a table of", step.table_width, "blocks for", context);
    for (int group = 0; group < shape_.num_groups; group++) {
      const int window = window_of(group);
      const int64_t seen = window ? context - queries + 1 - window : 0;
      const int32_t* table = step.tables[group] + (int64_t)s * step.table_width;
      for (int64_t i = seen > 0 ? seen / block : 0; i < (context + block - 1) / block; i++)
        if (outside(table[i], cache_->num_blocks)) return said("block", table[i], "of", cache_->num_blocks);
    }
  }
  return tokens == step.num_tokens ? "" : said("queries in all", tokens, "but tokens", step.num_tokens);
}

}  // namespace triolet
