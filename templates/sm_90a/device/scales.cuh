// Where the E4M3 scale of (row, block of 16 columns) lies. `pitch` is the matrix's column pitch as the layout stores
// it.
#pragma once

#include <cstdint>

namespace moegen {

struct LinearScales {
  static constexpr int kTileRows = 1;
  __device__ static int64_t offset(int64_t row, int column, int pitch) { return row * pitch + column; }
};

// 128 rows x 4 columns make one 512-byte tile: row m at (m % 32) * 16 + (m % 128) / 32 * 4; `pitch` is a multiple of 4.
struct SwizzledScales {
  static constexpr int kTileRows = 128;
  __device__ static int64_t offset(int64_t row, int column, int pitch) {
    const int64_t tile = (row / 128) * (pitch / 4) + column / 4;
    return tile * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + column % 4;
  }
};

}  // namespace moegen
