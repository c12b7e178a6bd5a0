// Dimension names of a layer, as moegen.core.abi.Dims spells them.
#pragma once

#include <cstdint>

namespace moegen {

/// Every index, count and byte offset: products of rows, experts and strides pass 2^31.
using Index = std::int64_t;

constexpr Index ceil_div(Index value, Index divisor) { return (value + divisor - 1) / divisor; }
constexpr Index round_up(Index value, Index multiple) { return ceil_div(value, multiple) * multiple; }
constexpr Index minimum(Index a, Index b) { return a < b ? a : b; }

/// Elements per E4M3 block scale.
inline constexpr Index kBlock = 16;
/// Rows of packed codes start at multiples of this many bytes.
inline constexpr Index kCodePitch = 16;
/// Rows and columns of one tile of the 128x4 scale layout.
inline constexpr Index kSwizzleRows = 128;
inline constexpr Index kSwizzleColumns = 4;

/// Bytes from one row of E2M1 codes to the next.
constexpr Index code_pitch(Index columns) { return round_up(columns / 2, kCodePitch); }

/// Most padded rows that any routing can need; see moegen.core.abi.row_capacity.
constexpr Index row_capacity(Index tokens, Index top_k, Index experts, Index row_tile) {
  const Index slots = tokens * top_k;
  return (slots + minimum(experts, slots) * (row_tile - 1)) / row_tile * row_tile;
}

/// Sizes of one call, by the names of the ABI. `Layer` holds the literals E, k, H, I and row_tile; tokens and rows come
/// from the arguments (0 where an op has none).
template <class Layer>
struct Dims {
  static constexpr Index E = Layer::E;
  static constexpr Index E1 = E + 1;
  static constexpr Index k = Layer::k;
  static constexpr Index H = Layer::H;
  static constexpr Index I = Layer::I;
  static constexpr Index I2 = 2 * I;
  static constexpr Index HP = code_pitch(H);
  static constexpr Index IP = code_pitch(I);
  static constexpr Index HS = H / kBlock;
  static constexpr Index IS = I / kBlock;
  static constexpr Index HS4 = round_up(HS, kSwizzleColumns);
  static constexpr Index IS4 = round_up(IS, kSwizzleColumns);
  static constexpr Index H128 = round_up(H, kSwizzleRows);
  static constexpr Index I128 = round_up(I, kSwizzleRows);
  static constexpr Index I2_128 = round_up(I2, kSwizzleRows);

  Index T;
  Index TK;
  Index R;
  Index R128;
  Index TILES;

  Dims(Index tokens, Index rows)
      : T(tokens), TK(tokens * k), R(rows), R128(round_up(rows, kSwizzleRows)), TILES(rows / Layer::row_tile) {}
};

}  // namespace moegen
