// Where a gemm's fp32 panels come from. `load` fills `Pitch`-spaced panel rows with columns [first, first + depth).
#pragma once

#include <cstdint>

#include "decode.h"
#include "grouping.h"
#include "scales.h"
#include "token.h"

namespace moegen {

/// Rows of E2M1 codes with block scales; one scale matrix for all rows.
template <class Scales>
struct CodeRows {
  static constexpr Index kPitch = code_pitch(Scales::columns * kBlock);
  const std::uint8_t* codes;
  const std::uint8_t* scales;

  void load(Index row, Index first, Index depth, float* target) const {
    const auto scale_at = [&](Index block) { return scales[Scales::offset(row, block)]; };
    decode_row(codes + row * kPitch, scale_at, first, depth, target);
  }
};

/// Rows of the token dtype, already in expert order.
template <class Token, Index Columns>
struct TokenRows {
  const Token* rows;

  void load(Index row, Index first, Index depth, float* target) const {
    widen(rows + row * Columns + first, depth, target);
  }
};

/// Rows of `x` found through their slot.
template <class Token, Index Columns, Index TopK>
struct GatheredRows {
  const Token* x;
  const std::int32_t* row_slot;

  void load(Index row, Index first, Index depth, float* target) const {
    widen(x + row_slot[row] / TopK * Columns + first, depth, target);
  }
};

/// Rows of `x` times their slot's router weight, rounded once to the token dtype.
template <class Token, Index Columns, Index TopK>
struct WeightedRows {
  const Token* x;
  const std::int32_t* row_slot;
  const float* topk_weights;

  void load(Index row, Index first, Index depth, float* target) const {
    const Index slot = row_slot[row];
    const Token* source = x + slot / TopK * Columns + first;
    for (Index i = 0; i < depth; ++i) {
      target[i] = round_to<Token>(Token::to_float(source[i]) * topk_weights[slot]);
    }
  }
};

/// The public weight pack of one layer: codes [E, N, pitch] and scales [E, padded N, padded K / 16].
template <class Scales, Index N>
struct WeightBank {
  static constexpr Index kPitch = code_pitch(Scales::columns * kBlock);
  static constexpr Index kColumns = N;
  static constexpr Index kDepth = Scales::columns * kBlock;
  const std::uint8_t* codes;
  const std::uint8_t* scales;

  void load(Index expert, Index column, Index first, Index depth, float* target) const {
    const std::uint8_t* expert_scales = scales + expert * Scales::bytes(N);
    const auto scale_at = [&](Index block) { return expert_scales[Scales::offset(column, block)]; };
    decode_row(codes + (expert * N + column) * kPitch, scale_at, first, depth, target);
  }
};

}  // namespace moegen
