// Numbers of the kernel that computes a whole layer at few tokens, for both halves of its source.
#pragma once

#include <cstdint>

#include "gemm_plan.h"

namespace moegen {

// Everything the kernel may read or write. `h_rows` and `out_rows` pass rows between its phases; `scratch` holds its
// counters, zero before a launch and after it.
struct BlockArguments {
  const void* ids;
  std::int64_t first_expert;
  const std::uint16_t* x;
  const float* topk_weights;
  const std::uint8_t* w1_packed;
  const float* w1_alpha;
  const float* w1_bias;
  const std::uint8_t* w2_packed;
  const float* w2_alpha;
  const float* w2_bias;
  std::uint8_t* h_rows;
  std::uint16_t* out_rows;
  std::uint16_t* y;
  std::int32_t* scratch;
  std::int32_t tokens;
};

// One of the two products in terms of gemm_plan.h.
template <int kTokenWidth, int kDepth, int kTiles64, int kOfExperts, int kOfItem>
struct BlockSide {
  static constexpr int kWidth = kTokenWidth, kK = kDepth, kExperts = kOfExperts, kM64 = kTiles64;
  static constexpr int kGroups = 1, kTiles = kOfItem, kBlocks = 1, kProducerThreads = 32;
  static constexpr int kConsumerRegisters = 80;  // as launched, with four warpgroups
  static constexpr bool kNearGates = false;      // few rows: doubts would cost registers and save little
  static constexpr int kEpilogueBytes = 0;
};

// L names kWidth (rows of a token tile), kGroups (consumer warpgroups, which share an item's K), kTiles (m64 weight
// tiles of an item: two need half the copies, barriers and tokens, one spreads little work evenly), kSlots (most slots
// of a call), kTopK, kExperts, kHidden, kIntermediate, kHalves.
template <class L>
struct BlockPlan {
  using First = BlockSide<L::kWidth, L::kHidden, L::kHalves*((L::kIntermediate + 63) / 64), L::kExperts, L::kTiles>;
  using Second = BlockSide<L::kWidth, L::kIntermediate, (L::kHidden + 63) / 64, L::kExperts, L::kTiles>;
  static constexpr int kConsumers = 128 * L::kGroups;
  // Helper warps: single warps would fall behind, sharing their scheduler with four consumers.
  static constexpr int kWeightWarps = 2, kTokenWarps = 4, kPublishers = 2;
  static constexpr int kThreads = kConsumers + 32 * (kWeightWarps + kTokenWarps + kPublishers);

  // Most experts with rows, padded rows, token tiles and tokens of a call.
  static constexpr int kHit = L::kExperts < L::kSlots ? L::kExperts : L::kSlots;
  static constexpr int kRows = L::kSlots + 7 * kHit;
  static constexpr int kEvenTiles = kHit + L::kSlots / L::kWidth;
  static constexpr int kTokenTiles = kEvenTiles < L::kSlots ? kEvenTiles : L::kSlots;
  static constexpr int kTokens = L::kSlots / L::kTopK;

  // Counters in global memory, in words; those that all blocks hammer have 128 bytes to themselves.
  static constexpr int kTicketWord = 0, kLeaverWord = 32, kDoneWord = 64;
  static constexpr int kArrivalWord = kDoneWord + (kTokenTiles + 31) / 32 * 32;
  static constexpr int kScratchBytes = 4 * (kArrivalWord + kTokens * Plan<Second>::kRowTiles);

  // Shared memory: token stages, weight stages, partial sums of an item by warpgroup, records, maps, barriers.
  static constexpr int kTokenBytes = L::kWidth * kUnitK * 2;
  static constexpr int kWeightBytes = L::kTiles * kUnitBytes;
  static constexpr int kStageBytes = kTokenBytes + kWeightBytes;
  static constexpr int kPartialSlots = 2;
  static constexpr int kPartialBytes = L::kTiles * L::kWidth / 8 * 2048;  // of one warpgroup, fp32
  static constexpr int kItems = 16;
  static constexpr int kItemBytes = 32;
  static constexpr int kMostStages = 32;
  static constexpr int kBarriers = 2 * kMostStages + 3 * kItems + 6;
  static constexpr int kFixedBytes = kPartialSlots * L::kGroups * kPartialBytes + kItems * kItemBytes +
                                     16 * kTokenTiles + 4 * (kRows + L::kSlots + L::kExperts + 4) + 8 * kBarriers;
  static constexpr int kFitting = (kSharedLimit - kFixedBytes) / kStageBytes;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static_assert(kStages >= 2 * L::kGroups, "fewer than two stages for each warpgroup fit into shared memory");
  static constexpr int kWeightOffset = kStages * kTokenBytes;
  static constexpr int kPartialOffset = kStages * kStageBytes;
  static constexpr int kItemOffset = kPartialOffset + kPartialSlots * L::kGroups * kPartialBytes;
  static constexpr int kTileOffset = kItemOffset + kItems * kItemBytes;
  static constexpr int kBarrierOffset = kTileOffset + 16 * kTokenTiles;
  static constexpr int kRowSlotOffset = kBarrierOffset + 8 * kBarriers;
  static constexpr int kSlotRowOffset = kRowSlotOffset + 4 * kRows;
  static constexpr int kCountOffset = kSlotRowOffset + 4 * L::kSlots;
  static constexpr int kTotalOffset = kCountOffset + 4 * L::kExperts;
  static constexpr int kSharedBytes = kTotalOffset + 16;
  static_assert(4 * L::kSlots <= kPartialSlots * L::kGroups * kPartialBytes, "slots' experts lie where sums will");
};

}  // namespace moegen
