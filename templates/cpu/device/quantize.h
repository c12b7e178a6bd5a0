// Rows of the token dtype to NVFP4. A source gives fp32 values of a row's columns: `load(row, first, count, values)`,
// count a multiple of 16.
#pragma once

#include <bit>
#include <cstdint>

#include "code_sink.h"
#include "deinterleave.h"
#include "row_ops.h"
#include "sizes.h"
#include "tasks.h"
#include "token.h"

namespace moegen {

/// Columns quantised at a time: an fp32 buffer that stays in the first-level cache.
inline constexpr Index kQuantizeColumns = 512;

/// Rows in expert order.
template <class Token, Index Columns>
struct RowSource {
  const Token* rows;

  void load(Index row, Index first, Index count, float* values) const {
    widen(rows + row * Columns + first, count, values);
  }
};

/// The activated half of interleaved rows; `Columns` counts activated columns.
template <class Token, Index Columns>
struct PairSource {
  const Token* pairs;

  void load(Index row, Index first, Index count, float* values) const {
    widen_activated(pairs + 2 * (row * Columns + first), count, values);
  }
};

/// Rows of `x` found through their slot.
template <class Token, Index Columns, Index TopK>
struct TokenSource {
  const Token* x;
  const std::int32_t* row_slot;

  void load(Index row, Index first, Index count, float* values) const {
    widen(x + row_slot[row] / TopK * Columns + first, count, values);
  }
};

/// Rows of `x` times their slot's router weight, in fp32.
template <class Token, Index Columns, Index TopK>
struct WeightedTokenSource {
  const Token* x;
  const std::int32_t* row_slot;
  const float* topk_weights;

  void load(Index row, Index first, Index count, float* values) const {
    const Index slot = row_slot[row];
    widen(x + slot / TopK * Columns + first, count, values);
    scale(values, count, topk_weights[slot]);
  }
};

/// Largest finite magnitude of all real rows; padding rows have slot -1.
template <Index Columns, class Source>
float largest_magnitude(const Source& source, const std::int32_t* row_slot, Index rows, Index threads) {
  const std::int32_t bits = parallel_maximum(rows, threads, [&](Index row) {
    std::int32_t largest = 0;
    for (Index first = 0; row_slot[row] >= 0 && first < Columns; first += kQuantizeColumns) {
      const Index count = minimum(kQuantizeColumns, Columns - first);
      float values[kQuantizeColumns];
      source.load(row, first, count, values);
      for (Index i = 0; i < count; ++i) {
        const std::int32_t candidate = finite_magnitude_bits(values[i]);
        largest = candidate > largest ? candidate : largest;
      }
    }
    return largest;
  });
  return std::bit_cast<float>(bits);
}

/// Quantises every real row and clears every padding row, scale padding included. `pair_of(row)` gives the second-level
/// scale (encode, decode) of a row.
template <class Contract, Index Columns, class Source, class Sink, class PairOf>
void quantize_rows(const Source& source, const std::int32_t* row_slot, Index rows, Index threads, const PairOf& pair_of,
                   const Sink& sink) {
  parallel_tasks(rows, threads, [&](Index row) {
    if (row_slot[row] < 0) {
      sink.clear(row, 0, Columns);
    } else {
      for (Index first = 0; first < Columns; first += kQuantizeColumns) {
        const Index count = minimum(kQuantizeColumns, Columns - first);
        float values[kQuantizeColumns];
        source.load(row, first, count, values);
        sink.template store<Contract>(row, first, values, count, pair_of(row));
      }
    }
    sink.finish(row);
  });
  sink.clear_scales_past(rows);
}

}  // namespace moegen
