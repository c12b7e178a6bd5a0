// What `route` wrote, read back: which rows belong to which expert. Checked once a call, before any index is used.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "sizes.h"

namespace moegen {

/// One tile of rows of one expert. Rows past `rows`, up to the row tile, are padding.
struct Tile {
  Index expert;
  Index first_row;
  Index rows;
};

/// Positions in `totals`.
enum Total : Index { kTiles = 0, kPaddedRows = 1, kValidSlots = 2, kActiveExperts = 3 };

/// Refuses index buffers that `route` did not write for this call.
inline void demand(bool holds, const char* name, Index position, Index found, const char* expected) {
  if (!holds) {
    throw Refusal() << name << "[" << position << "]: found " << found << ", expected " << expected
                    << "; run `route` on this call's ids first";
  }
}

/// Padded rows in use, checked against the capacity of the row buffers.
inline Index padded_rows(const std::int32_t* totals, Index capacity) {
  const Index rows = totals[kPaddedRows];
  demand(rows >= 0 && rows <= capacity, "totals", kPaddedRows, rows, "at most the rows of the buffers");
  return rows;
}

/// Checks that every used row's slot is -1 (padding) or below `slots`.
inline void expect_slots(const std::int32_t* row_slot, Index rows, Index slots) {
  for (Index row = 0; row < rows; ++row) {
    demand(row_slot[row] >= -1 && row_slot[row] < slots, "row_slot", row, row_slot[row], "-1 or a slot of this call");
  }
}

/// Checks that every used tile's expert exists.
inline void expect_experts(const std::int32_t* tile_expert, Index tiles, Index experts) {
  for (Index tile = 0; tile < tiles; ++tile) {
    demand(tile_expert[tile] >= 0 && tile_expert[tile] < experts, "tile_expert", tile, tile_expert[tile],
           "an expert of this rank");
  }
}

/// Checks that every real row of every tile has a slot below `slots`.
template <class Groups>
void expect_real_slots(const Groups& grouping, const std::int32_t* row_slot, Index slots) {
  for (Index index = 0; index < grouping.tiles(); ++index) {
    const Tile tile = grouping.tile(index);
    for (Index row = tile.first_row; row < tile.first_row + tile.rows; ++row) {
      demand(row_slot[row] >= 0 && row_slot[row] < slots, "row_slot", row, row_slot[row], "a slot of this call");
    }
  }
}

/// Tiles and their experts. `RowTile` rows a tile, `Experts` experts.
template <Index Experts, Index RowTile>
class Grouping {
 public:
  Grouping(const std::int32_t* expert_offsets, const std::int32_t* expert_rows, const std::int32_t* tile_expert,
           const std::int32_t* totals, Index capacity)
      : offsets_(expert_offsets), rows_(expert_rows), tile_expert_(tile_expert), tiles_(totals[kTiles]) {
    const Index padded = padded_rows(totals, capacity);
    demand(tiles_ * RowTile == padded, "totals", kTiles, tiles_, "the padded rows over the row tile");
    demand(offsets_[0] == 0, "expert_offsets", 0, offsets_[0], "0");
    for (Index expert = 0; expert < Experts; ++expert) {
      const Index size = Index{offsets_[expert + 1]} - offsets_[expert];
      demand(size >= 0 && size % RowTile == 0, "expert_offsets", expert + 1, offsets_[expert + 1], "whole tiles");
      demand(rows_[expert] >= 0 && rows_[expert] <= size, "expert_rows", expert, rows_[expert],
             "no more than its tiles hold");
    }
    demand(offsets_[Experts] == padded, "expert_offsets", Experts, offsets_[Experts], "the padded rows");
    for (Index index = 0; index < tiles_; ++index) {
      const Index expert = tile_expert_[index];
      demand(expert >= 0 && expert < Experts && offsets_[expert] <= index * RowTile &&
                 index * RowTile < offsets_[expert + 1],
             "tile_expert", index, expert, "the expert whose rows the tile holds");
    }
  }

  Index tiles() const { return tiles_; }
  Index rows() const { return tiles_ * RowTile; }

  Tile tile(Index index) const {
    const Index expert = tile_expert_[index];
    const Index first_row = index * RowTile;
    const Index left = offsets_[expert] + Index{rows_[expert]} - first_row;
    return {expert, first_row, left < 0 ? 0 : minimum(left, RowTile)};
  }

 private:
  const std::int32_t* offsets_;
  const std::int32_t* rows_;
  const std::int32_t* tile_expert_;
  Index tiles_;
};

}  // namespace moegen
