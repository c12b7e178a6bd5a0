// Sums over a token's k rows.
#pragma once

#include <cstdint>

#include "grouping.h"
#include "sizes.h"
#include "token.h"

namespace moegen {

/// Columns summed at a time: an fp32 buffer that stays in the first-level cache.
inline constexpr Index kCombineColumns = 512;

/// Weight of a slot in the combine.
struct SlotWeights {
  const float* topk_weights;
  float operator()(float sum, float value, Index slot) const { return __builtin_fmaf(topk_weights[slot], value, sum); }
};

/// For rows that were weighted earlier.
struct NoWeights {
  float operator()(float sum, float value, Index) const { return sum + value; }
};

/// Checks that every slot's row is -1 or within the buffer.
inline void expect_rows(const std::int32_t* slot_row, Index slots, Index rows) {
  for (Index slot = 0; slot < slots; ++slot) {
    demand(slot_row[slot] >= -1 && slot_row[slot] < rows, "slot_row", slot, slot_row[slot],
           "-1 or a row of the buffers");
  }
}

/// Sums one token's rows in ascending slot order, in fp32, and rounds once. A token without rows becomes zero.
template <class Token, Index Columns, Index TopK, class AddRow>
void combine_token(const Token* out_rows, const std::int32_t* slot_row, Index token, const AddRow& add_row, Token* y) {
  for (Index first = 0; first < Columns; first += kCombineColumns) {
    const Index count = minimum(kCombineColumns, Columns - first);
    float sums[kCombineColumns] = {};
    for (Index slot = token * TopK; slot < (token + 1) * TopK; ++slot) {
      const Index row = slot_row[slot];
      if (row < 0) {
        continue;
      }
      const Token* source = out_rows + row * Columns + first;
      for (Index i = 0; i < count; ++i) {
        sums[i] = add_row(sums[i], Token::to_float(source[i]), slot);
      }
    }
    narrow(sums, count, y + token * Columns + first);
  }
}

/// target += values, each element atomically.
inline void atomic_add(float* target, const float* values, Index count) {
  for (Index i = 0; i < count; ++i) {
#pragma omp atomic
    target[i] += values[i];
  }
}

}  // namespace moegen
