// Where quantised rows go: E2M1 codes with a zero-filled pitch, E4M3 scales with zero padding.
#pragma once

#include <cstdint>
#include <cstring>

#include "contracts.h"
#include "scales.h"
#include "sizes.h"

namespace moegen {

/// Codes [R, pitch] and scales of `Scales::columns` blocks a row. Columns and counts are multiples of 16.
template <class Scales>
struct CodeSink {
  static constexpr Index kPitch = code_pitch(Scales::columns * kBlock);
  static constexpr Index kBytes = Scales::columns * kBlock / 2;
  std::uint8_t* codes;
  std::uint8_t* scales;

  /// Quantises `count` values into columns [first, first + count) under the second-level scale (encode, decode).
  template <class Contract>
  void store(Index row, Index first, const float* values, Index count, const float* pair) const {
    const Contract contract(ScalePair{pair[0], pair[1]});
    for (Index column = first; column < first + count; column += kBlock) {
      scales[Scales::offset(row, column / kBlock)] =
          quantize_block(contract, values + (column - first), codes + row * kPitch + column / 2);
    }
  }

  /// Writes zero codes and zero scales.
  void clear(Index row, Index first, Index count) const {
    std::memset(codes + row * kPitch + first / 2, 0, count / 2);
    for (Index block = first / kBlock; block < (first + count) / kBlock; ++block) {
      scales[Scales::offset(row, block)] = 0;
    }
  }

  /// Zeroes what lies past a row's last column: the rest of the pitch and the padded scale columns.
  void finish(Index row) const {
    std::memset(codes + row * kPitch + kBytes, 0, kPitch - kBytes);
    for (Index block = Scales::columns; block < Scales::padded_columns; ++block) {
      scales[Scales::offset(row, block)] = 0;
    }
  }

  /// Zeroes the scales of the rows that fill the last tile of the layout after `rows` rows.
  void clear_scales_past(Index rows) const {
    for (Index row = rows; row < Scales::padded_rows(rows); ++row) {
      for (Index block = 0; block < Scales::padded_columns; ++block) {
        scales[Scales::offset(row, block)] = 0;
      }
    }
  }
};

}  // namespace moegen
