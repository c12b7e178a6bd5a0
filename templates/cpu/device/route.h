// Grouping of slots by expert: one pass to count, one to place.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "grouping.h"
#include "sizes.h"

namespace moegen {

/// The index buffers of one call; names and meanings as in moegen.core.abi.
struct RouteBuffers {
  std::int32_t* expert_offsets;
  std::int32_t* expert_rows;
  std::int32_t* row_slot;
  std::int32_t* slot_row;
  std::int32_t* tile_expert;
  std::int32_t* totals;
};

inline constexpr Index kNoExpert = -1;

inline void fill(std::int32_t* target, Index count, Index value) {
  for (Index i = 0; i < count; ++i) {
    target[i] = static_cast<std::int32_t>(value);
  }
}

/// Expert of this rank that `id` names, or kNoExpert. Unsigned, so that no id overflows.
template <class Id>
Index local_expert(Id id, Index first_expert, Index experts) {
  const std::uint64_t local = static_cast<std::uint64_t>(Index{id}) - static_cast<std::uint64_t>(first_expert);
  return local < static_cast<std::uint64_t>(experts) ? static_cast<Index>(local) : kNoExpert;
}

/// Refuses buffers that some routing of these slots could overrun, and counts that int32 cannot hold.
template <class Dimensions>
void expect_capacity(const Dimensions& dims, Index row_tile) {
  const Index needed = row_capacity(dims.T, dims.k, dims.E, row_tile);
  constexpr Index most = INT32_MAX;
  if (dims.R < needed || dims.R > most || dims.TK > most) {
    throw Refusal() << "row_slot: found " << dims.R << " rows for " << dims.TK << " slots, expected " << needed
                    << " to " << most;
  }
}

/// Fills every buffer whole. Rows of an expert keep ascending slot order and start at a multiple of `RowTile`.
template <Index Experts, Index RowTile, class Id>
void route_slots(const Id* topk_ids, Index slots, Index first_expert, Index row_capacity, const RouteBuffers& out) {
  fill(out.expert_rows, Experts, 0);
  fill(out.row_slot, row_capacity, -1);
  fill(out.tile_expert, row_capacity / RowTile, -1);
  for (Index slot = 0; slot < slots; ++slot) {
    const Index expert = local_expert(topk_ids[slot], first_expert, Experts);
    if (expert != kNoExpert) {
      ++out.expert_rows[expert];
    }
  }
  Index next_row[Experts];
  Index row = 0;
  Index valid = 0;
  Index active = 0;
  for (Index expert = 0; expert < Experts; ++expert) {
    const Index size = round_up(out.expert_rows[expert], RowTile);
    out.expert_offsets[expert] = static_cast<std::int32_t>(row);
    fill(out.tile_expert + row / RowTile, size / RowTile, expert);
    next_row[expert] = row;
    row += size;
    valid += out.expert_rows[expert];
    active += out.expert_rows[expert] > 0;
  }
  out.expert_offsets[Experts] = static_cast<std::int32_t>(row);
  for (Index slot = 0; slot < slots; ++slot) {
    const Index expert = local_expert(topk_ids[slot], first_expert, Experts);
    out.slot_row[slot] = static_cast<std::int32_t>(expert == kNoExpert ? -1 : next_row[expert]);
    if (expert != kNoExpert) {
      out.row_slot[next_row[expert]++] = static_cast<std::int32_t>(slot);
    }
  }
  out.totals[kTiles] = static_cast<std::int32_t>(row / RowTile);
  out.totals[kPaddedRows] = static_cast<std::int32_t>(row);
  out.totals[kValidSlots] = static_cast<std::int32_t>(valid);
  out.totals[kActiveExperts] = static_cast<std::int32_t>(active);
}

}  // namespace moegen
