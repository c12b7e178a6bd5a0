// Arguments and sizes of a W4A16 gemm for both halves of a source: the kernel's loops, and the launch's grid and shared
// memory. moegen/codegen/catalogs/sm100_w4a16.py has the same numbers for planning.
#pragma once

#include <cstdint>

namespace moegen {

inline constexpr int kFragmentRows = 16;  // weight rows of one m16n8k16
inline constexpr int kChunkK = 128;       // K that 16 bytes of codes in each of four lanes cover
inline constexpr int kUnitRows = 128;     // rows of one tile of the 128x4 scale layout

// Arguments of both gemms; unused ones are null. Weights are the public pack's codes and 128x4 scales.
struct W4A16Arguments {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const float* alpha;
  const float* bias;
  const std::uint16_t* rows;  // [R, K], or x [T, K] where the kernel gathers
  const std::int32_t* row_slot;
  const std::int32_t* expert_offsets;
  const std::int32_t* expert_rows;
  const std::int32_t* tile_expert;
  const std::int32_t* totals;
  const float* topk_weights;
  void* out;
};

// Tokens x Rows is one block's tile, Depth the K of a stage, N x K one expert's weights.
template <int Tokens, int Rows, int Depth, int Stages, int Warps, int N, int K>
struct W4A16Shape {
  static constexpr int kTokens = Tokens, kRows = Rows, kDepth = Depth, kStages = Stages, kN = N, kK = K;
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kFragments = Rows / kFragmentRows / Warps;  // of a warp
  static constexpr int kTokenGroups = Tokens / 8;
  static constexpr int kSteps = (K + Depth - 1) / Depth;

  // One stage of shared memory: codes, scales, tokens.
  static constexpr int kScaleOffset = Rows * Depth / 2;
  static constexpr int kTokenOffset = kScaleOffset + Rows * Depth / 16;
  static constexpr int kStageBytes = kTokenOffset + Tokens * Depth * 2;
  static constexpr int kSharedBytes = Stages * kStageBytes;

  // A tile of 64 rows takes 16 of each 32 rows of a unit, so that its scales come in whole 16-byte pieces.
  static constexpr int kUnitTiles = kUnitRows / Rows;
  static constexpr int kTail = N % kUnitRows;
  static constexpr int kTailTiles = kTail == 0 ? 0 : kTail <= kFragmentRows ? 1 : kUnitTiles;
  static constexpr int kRowTiles = N / kUnitRows * kUnitTiles + kTailTiles;

  static_assert(Rows == 64 || Rows == 128);
  static_assert(kFragments * Warps * kFragmentRows == Rows);
  static_assert(Tokens % 8 == 0 && Depth % kChunkK == 0 && Stages >= 2);

  // First weight row of a tile's fragment.
  static constexpr int fragment_row(int tile, int fragment) {
    if (Rows == kUnitRows) return tile * kUnitRows + fragment * kFragmentRows;
    return tile / 2 * kUnitRows + fragment * 32 + tile % 2 * kFragmentRows;
  }
};

}  // namespace moegen
