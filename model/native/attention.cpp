#include "attention.h"

#include "attention_keys.h"
#include "attention_queries.h"

namespace triolet {

namespace {

// Rows that will be written some time from now.
void ask_for(float* const* rows, int count, int dim) {
  for (int row = 0; row < count; row++)
    for (int d = 0; d < dim; d += LANES) __builtin_prefetch(rows[row] + d, 1, 2);
}

// All chunks of keys that a unit sees, in one of the two forms.
template <class E, class Form>
void attend_as(Work<E>& work, const Unit& unit, const float* const* queries, float* const* outputs) {
  Form form(work);
  form.begin(queries);
  ask_for(outputs, work.rows, work.shape.head_dim);
  const int64_t last = (work.position + unit.count + TILE_TOKENS - 1) / TILE_TOKENS;
  // Chunks end at multiples of their size, so that a token's sums do not depend on which others are computed with it.
  for (int64_t tile = work.sees_from(work.position) / TILE_TOKENS, next; tile < last; tile = next) {
    next = (tile / CHUNK_TILES + 1) * CHUNK_TILES;
    const int tiles = (int)(std::min(next, last) - tile);
    work.find_tiles(tile, tiles, unit.kv_head);
    form.chunk(tile, tiles);
  }
  form.end(outputs);
}

// Where a unit's rows are in the flat batch.
template <class Float>
void find_rows(const AttentionShape& shape, const Unit& unit, Float* batch, int64_t stride, Float** rows) {
  const int first = unit.kv_head * (shape.num_heads / shape.num_kv_heads) + unit.head;
  for (int query = 0; query < unit.count; query++)
    for (int head = first; head < first + unit.heads; head++)
      *rows++ = batch + (unit.row + query) * stride + (int64_t)head * shape.head_dim;
}

template <class E>
void attend(const AttentionShape& shape, const KVCache& cache, int tensor, int group, const Layout& layout,
            const Unit& unit, Scratch& scratch, const float* queries, int64_t query_stride, float* outputs,
            int64_t output_stride) {
  const int rows = unit.count * unit.heads;
  const int64_t context = layout.context_lengths[unit.sequence];
  Work<E> work{shape,
               cache,
               scratch,
               tensor,
               layout.tables[group] + (int64_t)unit.sequence * layout.table_width,
               rows,
               {},
               context - layout.query_lengths[unit.sequence] + unit.first,
               context,
               shape.soft_cap > 0 ? 1 : shape.scale * LOG2E,
               {}, {}, {}, {}};
  for (int row = 0; row < rows; row++) work.order[row] = row / unit.heads;
  const float* from[UNIT_ROWS];
  float* to[UNIT_ROWS];
  find_rows(shape, unit, queries, query_stride, from);
  find_rows(shape, unit, outputs, output_stride, to);
  // Lanes without a query cost as much as the others: where fewer than three quarters have one, keys fill them better.
  const int vectors = (rows + LANES - 1) / LANES;
  if (rows * 4 < vectors * LANES * 3) return attend_as<E, KeysInLanes<E>>(work, unit, from, to);
  if (vectors == 1) return attend_as<E, QueriesInLanes<E, 1>>(work, unit, from, to);
  if (vectors == 2) return attend_as<E, QueriesInLanes<E, 2>>(work, unit, from, to);
  static_assert(UNIT_ROWS == 3 * LANES, "the forms above");
  attend_as<E, QueriesInLanes<E, 3>>(work, unit, from, to);
}

}  // namespace

void Scratch::allocate(int head_dim) {
  queries.allocate((size_t)UNIT_ROWS * head_dim);
  scores.allocate((size_t)UNIT_ROWS * CHUNK_TOKENS);
  weights.allocate((size_t)UNIT_ROWS * CHUNK_TOKENS);
  outputs.allocate((size_t)UNIT_ROWS * head_dim);
  last_values.allocate((size_t)TILE_TOKENS * head_dim);
  widened.allocate((size_t)CHUNK_TOKENS * head_dim);
}

// The longest contexts first would be best; the last queries of a chunk first is nearly that.
void Units::plan(const AttentionShape& shape, const Layout& layout) {
  const int sharing = shape.num_heads / shape.num_kv_heads;
  const int heads = std::min(sharing, UNIT_ROWS), tokens = std::max(1, UNIT_ROWS / heads);
  int64_t needed = 0;
  for (int s = 0; s < layout.num_sequences; s++)
    needed += (layout.query_lengths[s] + tokens - 1) / tokens * shape.num_kv_heads * ((sharing + heads - 1) / heads);
  if ((int64_t)units.size() < needed) units.allocate((size_t)needed);
  count = 0;
  int64_t row = 0;
  for (int s = 0; s < layout.num_sequences; s++) {
    const int length = (int)layout.query_lengths[s];
    for (int first = (length + tokens - 1) / tokens * tokens - tokens; first >= 0; first -= tokens)
      for (int kv_head = 0; kv_head < shape.num_kv_heads; kv_head++)
        for (int head = 0; head < sharing; head += heads)
          units[count++] = {s, kv_head, first, std::min(tokens, length - first), head,
                            std::min(heads, sharing - head), row + first};
    row += length;
  }
}

void attention(Pool& pool, const AttentionShape& shape, const KVCache& cache, int tensor, int group,
               const Layout& layout, const Units& units, Scratch* scratch, const float* queries, int64_t query_stride,
               float* outputs, int64_t output_stride) {
  pool.run(units.count, [&](int number, int worker) {
    const auto kernel = cache.format == Format::FLOAT32 ? attend<Float> : attend<BFloat>;
    kernel(shape, cache, tensor, group, layout, units.units[number], scratch[worker], queries, query_stride, outputs,
           output_stride);
  });
}

}  // namespace triolet
