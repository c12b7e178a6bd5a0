// Numbers of one grouped-GEMM kernel, for both halves of its source: plain constexpr C++, no device code.
#pragma once

#include <cstdint>

namespace moegen {

inline constexpr int kUnitRows = 64;
inline constexpr int kUnitK = 128;
inline constexpr int kScaleBytes = 512;
inline constexpr int kChunkBytes = 2048;
inline constexpr int kUnitBytes = kScaleBytes + 2 * kChunkBytes;
inline constexpr int kHalfUnitBytes = kScaleBytes + kChunkBytes;
inline constexpr int kMaxStages = 12;
inline constexpr int kSharedLimit = 232448;  // what one block of sm_90 may opt in to
inline constexpr int kSharedOfSm = 233472;   // of one multiprocessor, 1 KB of which each resident block loses

// Everything a gemm kernel may read or write; a kernel touches only what its configuration names.
struct GemmArguments {
  const std::uint8_t* packed;
  const float* alpha;
  const float* bias;
  const void* rows;
  const std::uint8_t* row_scales;
  const float* row_pair;
  const std::int32_t* row_slot;
  const std::int32_t* expert_rows;
  const std::int32_t* totals;
  const float* topk_weights;
  const float* out_pair;
  void* out;
  std::uint8_t* out_scales;
  std::int32_t* claims;  // {items claimed beyond the first of each block, blocks done}, zero between launches
};

// How many registers an epilogue adds to the accumulators it still holds.
enum class EpilogueKind { kRows, kInterleaved, kFused };

// Warpgroups, m64 tiles of each and register budgets for a token-tile width.
//
// Accumulators (width / 2 a tile), an operand buffer a tile (16, at least two), about 25 others and what the epilogue
// needs must fit: four warpgroups hold one tile up to width 64 as launched and up to 80 after setmaxnreg, two
// warpgroups the rest. More weight rows a block mean fewer token bytes for each product, which is what bounds wide
// tiles: so two warpgroups take two tiles each up to width 152, and with kAskedTiles == 2 four up to 64 and three up
// to 88. `kStaged` producers decode token rows: one warpgroup of them, two beside wide tiles. `kGathered`: one
// warpgroup copies rows. kAskedBlocks: plain kernels may share a multiprocessor, for more and smaller tiles when there
// are few.
template <int kWidth, int kAskedGroups, int kAskedTiles, int kAskedBlocks, bool kStaged, EpilogueKind kEpilogue,
          bool kGathered = false>
struct GemmShape {
  static constexpr int kPlainWidth = kEpilogue == EpilogueKind::kFused ? 16 : kStaged ? 32 : 64;
  static constexpr bool kPlain = kWidth <= kPlainWidth && kAskedTiles == 1;
  static constexpr int kFourWidth = kEpilogue == EpilogueKind::kFused         ? 16
                                    : kAskedTiles == 2                        ? 32
                                    : kEpilogue == EpilogueKind::kInterleaved ? 64
                                                                              : 80;
  static constexpr bool kFour = !kPlain && !kStaged && kWidth <= kFourWidth;
  static constexpr int kGroups = kPlain ? kAskedGroups : kFour ? 4 : 2;
  static constexpr int kMostTiles = kAskedTiles == 1 ? 2 : kWidth <= 64 ? 4 : 3;
  static constexpr int kTiles = kPlain          ? 1
                                : kFour         ? (kWidth <= 32 ? 2 : 1)
                                : kWidth <= 88  ? kMostTiles
                                : kWidth <= 152 ? 2
                                                : 1;
  static constexpr int kConsumerRegisters = kPlain ? 0 : kFour ? 104 : kStaged ? 200 : kTiles == 4 ? 232 : 224;
  static constexpr int kProducerRegisters = kPlain ? 0 : kFour ? 64 : kTiles == 4 ? 40 : 56;
  static constexpr int kBlocks = kPlain ? kAskedBlocks : 1;
  // Gates approximated where no doubt is left (doubt.cuh); beside two decoding warpgroups biases would spill.
  static constexpr bool kNearGates = kPlain || !kStaged;
  static constexpr int kProducerThreads = kStaged && !kPlain ? 256 : kStaged || kGathered || !kPlain ? 128 : 32;
  static constexpr int kArrivals = kStaged     ? 1 + kProducerThreads / 32
                                   : kGathered ? 1 + kProducerThreads
                                               : 1;  // on a stage's full barrier
};

// What C names, beside GemmShape's numbers:
//   kWidth, kAbove, kWidest   token-tile width, the next narrower one (0: none) and the widest of the ladder
//   kK, kExperts, kM64        depth in elements, experts, m64 tiles of an expert's weights
//   kFirst                    first kernel of the ladder
//   kRouted                   routing is complete when the kernel starts (another kernel ran between)
//   kClaimed                  blocks claim their items from a counter, instead of taking every gridDim.x-th
//   kParts                    most parts into which the last items are cut, so that all blocks end together
//   kEpilogueBytes            shared memory of the epilogue
template <class C>
struct Plan {
  static constexpr int kUnits = (C::kK + kUnitK - 1) / kUnitK;
  static constexpr bool kHalfTail = C::kK % kUnitK != 0 && C::kK % kUnitK <= kUnitK / 2;
  static constexpr int kTileRows64 = C::kGroups * C::kTiles;
  static constexpr int kRowTiles = (C::kM64 + kTileRows64 - 1) / kTileRows64;
  static constexpr std::int64_t kExpertBytes =
      std::int64_t(C::kM64) * (std::int64_t(kUnits - kHalfTail) * kUnitBytes + (kHalfTail ? kHalfUnitBytes : 0));
  static constexpr int kTokenBytes = C::kWidth * kUnitK * 2;
  static constexpr int kStageBytes = (kTokenBytes + kTileRows64 * kUnitBytes + 1023) / 1024 * 1024;
  static constexpr int kConsumers = C::kGroups * 128;
  static constexpr int kThreads = kConsumers + C::kProducerThreads;
  // Shared memory: stages, barriers, items passed to the consumers, work list, the epilogue's own.
  static constexpr int kItemRing = 16;
  static constexpr int kEntryBytes = 16;
  static constexpr int kFixedBytes = 16 * kMaxStages + (kItemRing + C::kExperts + 1) * kEntryBytes + C::kEpilogueBytes;
  static constexpr int kLimit = C::kBlocks == 1 ? kSharedLimit : kSharedOfSm / C::kBlocks - 1024;
  static constexpr int kFitting = (kLimit - kFixedBytes) / kStageBytes;
  static constexpr int kMost = kFitting < kMaxStages ? kFitting : kMaxStages;
  // A turn of the main loop takes two neighbouring stages where units come in pairs; a block that has few of them, beside
  // others on its multiprocessor, rather keeps the odd one.
  static constexpr int kStages = C::kTiles == 1 && C::kBlocks == 1 && kUnits % 2 == 0 ? kMost / 2 * 2 : kMost;
  static constexpr int kBarrierOffset = kStages * kStageBytes;
  static constexpr int kItemOffset = kBarrierOffset + 16 * kMaxStages;
  static constexpr int kListOffset = kItemOffset + kItemRing * kEntryBytes;
  static constexpr int kIndexOffset = kListOffset + C::kExperts * kEntryBytes;  // one word, in an entry of its own
  static constexpr int kEpilogueOffset = kIndexOffset + kEntryBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixedBytes;
  static_assert(kStages >= 2, "fewer than two stages fit into shared memory");
};

}  // namespace moegen
