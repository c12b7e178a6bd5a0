// The steps of the exact chain over one row segment of fp32 values; counts are multiples of 8.
//
// Every step is one IEEE operation a value (no contraction: -ffp-contract=off).
#pragma once

#include "sizes.h"
#include "token.h"

namespace moegen {

/// Columns of a gated W1 come in groups of 16: eight of the gate half, then eight of the up half.
inline constexpr Index kHalf = 8;
inline constexpr Index kPair = 2 * kHalf;

/// v = v · factor.
inline void scale(float* values, Index count, float factor) {
  for (Index i = 0; i < count; ++i) {
    values[i] *= factor;
  }
}

/// v = v · (gate factor or up factor), on interleaved columns.
inline void scale_halves(float* values, Index count, float gate_factor, float up_factor) {
  for (Index group = 0; group < count; group += kPair) {
    scale(values + group, kHalf, gate_factor);
    scale(values + group + kHalf, kHalf, up_factor);
  }
}

/// v = v + addend.
inline void add(float* values, Index count, const float* addend) {
  for (Index i = 0; i < count; ++i) {
    values[i] += addend[i];
  }
}

/// v = v · factor_i.
inline void multiply(float* values, Index count, const float* factors) {
  for (Index i = 0; i < count; ++i) {
    values[i] *= factors[i];
  }
}

/// v = f(v).
template <class Function>
void apply(float* values, Index count, const Function& function) {
  for (Index i = 0; i < count; ++i) {
    values[i] = function(values[i]);
  }
}

/// v rounded to `Token` and widened again.
template <class Token>
void round_values(float* values, Index count) {
  for (Index i = 0; i < count; ++i) {
    values[i] = round_to<Token>(values[i]);
  }
}

/// Splits `count` interleaved columns into count / 2 gate and count / 2 up values.
inline void split_halves(const float* values, Index count, float* gate, float* up) {
  for (Index group = 0; group < count; group += kPair) {
    for (Index lane = 0; lane < kHalf; ++lane) {
      gate[group / 2 + lane] = values[group + lane];
      up[group / 2 + lane] = values[group + kHalf + lane];
    }
  }
}

/// Writes `count` gate values to the first eight of every sixteen columns, rounded to the token dtype.
template <class Token>
void store_gates(const float* gate, Index count, Token* pairs) {
  for (Index group = 0; group < count; group += kHalf) {
    narrow(gate + group, kHalf, pairs + 2 * group);
  }
}

/// Writes `count` activated values to the last eight of every sixteen columns, rounded to the token dtype.
template <class Token>
void store_products(const float* product, Index count, Token* pairs) {
  for (Index group = 0; group < count; group += kHalf) {
    narrow(product + group, kHalf, pairs + 2 * group + kHalf);
  }
}

}  // namespace moegen
