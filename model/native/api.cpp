// What Python calls through ctypes: plain C functions, structs of plain numbers and pointers.
//
// A function that can refuse answers a sentence, or null; it is valid until the thread's next call. Nothing here throws.
#include <exception>

#include "prefault.h"
#include "sampling.h"
#include "tape.h"

using namespace triolet;

namespace {

thread_local std::string message;

// What is to be said of `wrong`, or null.
const char* answer(std::string wrong) {
  message = std::move(wrong);
  return message.empty() ? nullptr : message.c_str();
}

template <class F>
const char* guarded(const F& f) {
  try {
    return answer(f());
  } catch (const std::exception& error) {
    return answer(error.what());
  }
}

}  // namespace

extern "C" {

// Sizes of the structs that are mirrored in Python, and what the kernels were built for.
int triolet_size_of(int which) {
  const int sizes[] = {(int)sizeof(Op), (int)sizeof(BufferShape), (int)sizeof(ModelShape), (int)sizeof(Step),
                       (int)sizeof(Sampling)};
  return which >= 0 && which < 5 ? sizes[which] : -1;
}

const char* triolet_kernels() {
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
  return "AVX-512 BF16 and VNNI";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "portable";
#endif
}

// Whether products of this format use the machine's own instructions, as many lanes wide as the tiles are made for.
int triolet_is_fast(int format) {
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
  return format >= 0;
#elif defined(__AVX512F__)
  return format == (int)Format::FLOAT32;
#else
  return format < 0;
#endif
}

void triolet_resize_pool(int threads) { Pool::shared().resize(threads); }

const char* triolet_pack(Linear** linear, int format, int paired, int outputs, int inputs, const float* floats,
                         const bf16* halves, const float* bias) {
  return guarded([&]() -> std::string {
    if (format < 0 || format > (int)Format::INT4) return "no such format";
    if (outputs < 1 || inputs < 1 || (paired && outputs % 2)) return "no matrix has such a shape";
    if (!floats == !halves) return "a matrix is of floats or of bfloat16";
    *linear = pack_linear((Format)format, paired != 0, outputs, inputs, floats, halves, bias);
    return "";
  });
}

int64_t triolet_linear_bytes(const Linear* linear) { return (int64_t)linear->bytes(); }
void triolet_unpack(const Linear* linear, float* to) { unpack_linear(*linear, to); }
void triolet_free_linear(Linear* linear) { delete linear; }

const char* triolet_new_cache(KVCache** cache, int format, int num_tensors, int num_blocks, int block_size,
                              int num_kv_heads, int head_dim) {
  return guarded([&]() -> std::string {
    if (format < 0 || format > (int)Format::INT8) return "no such format";
    if (block_size < TILE_TOKENS || block_size % TILE_TOKENS) return "a block holds a multiple of 16 tokens";
    if (num_tensors < 1 || num_blocks < 1 || num_kv_heads < 1 || head_dim < LANES || head_dim % LANES)
      return "no cache has such a shape";
    KVCache* made = new KVCache{(Format)format, num_tensors, num_blocks, block_size / TILE_TOKENS, num_kv_heads, head_dim, {}};
    *cache = made;
    made->data.allocate((size_t)(made->tensor_bytes() * num_tensors));
    return "";
  });
}

int64_t triolet_cache_bytes(const KVCache* cache) { return (int64_t)cache->data.bytes(); }
char* triolet_cache_data(const KVCache* cache) { return cache->data.get(); }
int64_t triolet_block_bytes(const KVCache* cache) { return cache->block_bytes(); }
void triolet_free_cache(KVCache* cache) { delete cache; }

const char* triolet_start_prefault(Prefault** prefault, const KVCache* cache, int64_t bytes) {
  return guarded([&]() -> std::string {
    if (bytes < 1) return "nothing is to be taken";
    *prefault = new Prefault(*cache, bytes);
    return "";
  });
}

int64_t triolet_wait_prefault(Prefault* prefault) {
  prefault->wait();
  return prefault->bytes_taken();
}

void triolet_end_prefault(Prefault* prefault) { delete prefault; }

const char* triolet_copy_blocks(KVCache* cache, const int64_t* sources, const int64_t* targets, int count) {
  return guarded([&]() -> std::string {
    for (int i = 0; i < count; i++)
      if (sources[i] < 0 || sources[i] >= cache->num_blocks || targets[i] < 0 || targets[i] >= cache->num_blocks)
        return "no such block";
    copy_blocks(*cache, sources, targets, count);
    return "";
  });
}

// Attention by itself, as the tests look at it: keys and values [num_tokens][num_kv_heads][head_dim] go into their slots,
// then queries [num_tokens][num_heads][head_dim] are answered. One table, one tensor.
const char* triolet_attend(KVCache* cache, int num_heads, int window, float soft_cap, int num_tokens, int num_sequences,
                           const int64_t* query_lengths, const int64_t* context_lengths, const int32_t* table,
                           int table_width, const int64_t* slots, const float* keys, const float* values,
                           const float* queries, float* outputs, int threads) {
  return guarded([&]() -> std::string {
    const int kv_heads = cache->num_kv_heads, dim = cache->head_dim;
    for (int i = 0, run; i < num_tokens; i += run) {
      run = run_of_slots(slots + i, num_tokens - i);
      for (int h = 0; h < kv_heads; h++) {
        const int64_t at = ((int64_t)i * kv_heads + h) * dim;
        write_tokens(*cache, 0, slots[i], run, h, keys + at, values + at, (int64_t)kv_heads * dim);
      }
    }
    const AttentionShape shape{num_heads, kv_heads, dim, 1 / std::sqrt((float)dim), window, soft_cap};
    const Layout layout{num_tokens, num_sequences, query_lengths, context_lengths, &table, &slots, table_width};
    Units units;
    units.plan(shape, layout);
    Pool& pool = Pool::shared();
    std::vector<Scratch> scratch(std::max(threads, 1));
    for (Scratch& one : scratch) one.allocate(dim);
    pool.begin(threads);
    attention(pool, shape, *cache, 0, 0, layout, units, scratch.data(), queries, (int64_t)num_heads * dim, outputs,
              (int64_t)num_heads * dim);
    pool.end();
    return "";
  });
}

// The tape borrows matrices, norms and the cache: the caller keeps them alive.
const char* triolet_new_tape(Tape** tape, const ModelShape* shape, const Op* ops, int num_ops, const BufferShape* buffers,
                             int num_buffers, KVCache* cache) {
  return guarded([&]() -> std::string {
    Tape* made = new Tape(*shape, std::vector<Op>(ops, ops + num_ops),
                          std::vector<BufferShape>(buffers, buffers + num_buffers), cache);
    std::string wrong = made->check();
    if (wrong.empty()) {
      *tape = made;
    } else {
      delete made;
    }
    return wrong;
  });
}

void triolet_free_tape(Tape* tape) { delete tape; }

const char* triolet_run(Tape* tape, const Step* step) {
  return guarded([&] { return tape->run(*step); });
}

// See sampling.h.
const char* triolet_sample(const Sampling* rows) {
  return guarded([&]() -> std::string {
    if (rows->num_rows < 1 || rows->width < 1) return "no logits have such a shape";
    sample(Pool::shared(), *rows);
    return "";
  });
}

// `lengths` of `ids` and of `counts` for each of `count` rows.
const char* triolet_penalise(float* logits, int64_t stride, int num_rows, int width, int count, const int64_t* rows,
                             const int64_t* lengths, const int64_t* ids, const float* counts, const float* penalties) {
  return guarded([&]() -> std::string {
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
      if (rows[i] < 0 || rows[i] >= num_rows || lengths[i] < 0) return "no such row";
      end += lengths[i];
    }
    for (int64_t i = 0; i < end; i++)
      if (ids[i] < 0 || ids[i] >= width) return "no such token";
    for (int i = 0; i < count; i++, penalties += 3) {
      penalise(logits + rows[i] * stride, lengths[i], ids, counts, {penalties[0], penalties[1], penalties[2]});
      ids += lengths[i], counts += lengths[i];
    }
    return "";
  });
}

// The k largest of each row, falling, ties by id.
const char* triolet_largest(const float* values, int64_t stride, int num_rows, int width, int k, float* found,
                            int64_t* ids, int threads) {
  return guarded([&]() -> std::string {
    if (width < 1 || k < 1 || k > width) return "rows have no so many values";
    largest(Pool::shared(), threads, {values, stride, num_rows, width}, k, found, ids);
    return "";
  });
}

// Seconds of each op since the last call, of the steps run with `profile`.
void triolet_take_seconds(Tape* tape, double* seconds) {
  for (size_t i = 0; i < tape->seconds.size(); i++) seconds[i] = tape->seconds[i], tape->seconds[i] = 0;
}

}  // extern "C"
