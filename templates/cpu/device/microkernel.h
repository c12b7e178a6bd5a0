// The inner product loop: a few rows by a few weight rows, fp32, eight lanes along K.
#pragma once

#include "simd.h"

namespace moegen {

/// acc[r][c] += Σ over depth of rows[r] · weights[c], for `Rows` by `Columns` results.
///
/// `Pitch` is the distance between panel rows, `AccPitch` that between accumulator rows; `depth` is a multiple of 8.
template <Index Rows, Index Columns, Index Pitch, Index AccPitch>
void multiply_accumulate(const float* rows, const float* weights, Index depth, float* acc) {
  Float8 sums[Rows][Columns] = {};
  for (Index k = 0; k < depth; k += kLanes) {
#pragma GCC unroll 8
    for (Index c = 0; c < Columns; ++c) {
      const Float8 weight = load8(weights + c * Pitch + k);
#pragma GCC unroll 8
      for (Index r = 0; r < Rows; ++r) {
        sums[r][c] = fma8(load8(rows + r * Pitch + k), weight, sums[r][c]);
      }
    }
  }
  for (Index r = 0; r < Rows; ++r) {
    for (Index c = 0; c < Columns; ++c) {
      acc[r * AccPitch + c] += sum8(sums[r][c]);
    }
  }
}

}  // namespace moegen
