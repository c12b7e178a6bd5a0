// Byte offsets of E4M3 block scales, per layout. `Columns` counts scales of a row (K / 16).
#pragma once

#include "sizes.h"

namespace moegen {

/// Row-major, no padding.
template <Index Columns>
struct LinearScales {
  static constexpr Index columns = Columns;
  static constexpr Index padded_columns = Columns;

  static constexpr Index padded_rows(Index rows) { return rows; }
  static constexpr Index bytes(Index rows) { return rows * Columns; }
  static constexpr Index offset(Index row, Index column) { return row * Columns + column; }
};

/// Tiles of 128 rows by 4 columns, 512 bytes each; padding is zero and part of the matrix.
template <Index Columns>
struct SwizzledScales {
  static constexpr Index columns = Columns;
  static constexpr Index padded_columns = round_up(Columns, kSwizzleColumns);

  static constexpr Index padded_rows(Index rows) { return round_up(rows, kSwizzleRows); }
  static constexpr Index bytes(Index rows) { return padded_rows(rows) * padded_columns; }

  static constexpr Index offset(Index row, Index column) {
    const Index tile = row / kSwizzleRows * (padded_columns / kSwizzleColumns) + column / kSwizzleColumns;
    return tile * (kSwizzleRows * kSwizzleColumns) + row % 32 * 16 + row % kSwizzleRows / 32 * 4 +
           column % kSwizzleColumns;
  }
};

}  // namespace moegen
