// One tile of a W4A16 gemm: NVFP4 weights decoded in registers, warp-level MMAs, fp32 accumulators.
//
// Weights are the A operand (M), tokens the B operand (N), so that few tokens fill a tile. All threads copy codes,
// scales and tokens to a ring of stages in shared memory with cp.async; each warp then decodes its own weight rows once
// and multiplies them by every token of the tile.
//
// Codes and scales are those of the public pack, [E, N, pitch] and 128x4 tiles. Lane 4 g + q holds rows g and g + 8 of
// a fragment; of each 128 of K it takes 32 neighbours (q) with one 16-byte load: eight k16 steps, two scales a row.
#pragma once

#include <cstdint>

#include "../../sm_90a/device/ptx.cuh"
#include "operands.cuh"
#include "w4a16_shape.h"

namespace moegen {

// What a block computes.
struct Tile {
  int expert, first_row, real_rows, row_tile;

  template <class S>
  static __device__ Tile of_block(const W4A16Arguments& p) {
    const int token_tile = int(blockIdx.x / S::kRowTiles);
    Tile tile{-1, token_tile * S::kTokens, 0, int(blockIdx.x % S::kRowTiles)};
    if (token_tile < p.totals[0]) {
      tile.expert = p.tile_expert[token_tile];
      tile.real_rows = p.expert_offsets[tile.expert] + p.expert_rows[tile.expert] - tile.first_row;
    }
    return tile;
  }
};

// Steps in which a thread's piece, `start` into a stage's share of a row, lies within the row's `total`; Share: of a
// stage, in the same unit.
template <int Share>
__device__ __forceinline__ int steps_of(int total, int start) {
  return (total - start + Share - 1) / Share;
}

// Copies of a thread's share of one tile's weights. Pitch: bytes of a row of codes; ScalePitch: scale columns.
template <class S, int Pitch, int ScalePitch>
struct WeightCopies {
  static constexpr int kPieces = S::kDepth / 32, kRowsAtOnce = S::kThreads / kPieces;
  static constexpr int kRounds = S::kRows / kRowsAtOnce;
  static constexpr int kTileBytes = S::kRows * 4;  // of the scales of 64 of K
  static constexpr int kTiles = S::kDepth / 64;

  const uint8_t* codes[kRounds];
  const uint8_t* scales;
  uint32_t code_target, scale_target;
  int code_steps, scale_steps;

  __device__ WeightCopies(const W4A16Arguments& p, const Tile& tile, uint32_t base) {
    const int thread = threadIdx.x, row = thread / kPieces, piece = thread % kPieces;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      const int local = row + i * kRowsAtOnce;
      const int global = S::fragment_row(tile.row_tile, local / kFragmentRows) + local % kFragmentRows;
      // Fragments past N read the last row: nothing of them is stored.
      codes[i] = p.codes + (int64_t(tile.expert) * S::kN + min(global, S::kN - 1)) * Pitch + piece * 16;
    }
    code_target = base + row * (kPieces * 16) + code_slot(row, piece) * 16;
    code_steps = steps_of<S::kDepth / 2>(Pitch, piece * 16);
    constexpr int kScaleRows = (S::kN + kUnitRows - 1) / kUnitRows * kUnitRows, kScalePieces = kTileBytes / 16;
    const int unit = tile.row_tile / S::kUnitTiles, part = tile.row_tile % S::kUnitTiles;
    const int scale_tile = thread / kScalePieces;
    scales = p.scales + (int64_t(tile.expert) * kScaleRows + unit * kUnitRows) * ScalePitch + scale_tile * 512 +
             part * kTileBytes + thread % kScalePieces * 16;
    scale_target = base + S::kScaleOffset + thread * 16;
    scale_steps = steps_of<kTiles>(ScalePitch / 4, scale_tile);
  }

  // Rows of 128 bytes: odd rows swap their halves, so that eight lanes of a load meet eight bank groups.
  static __device__ __forceinline__ int code_slot(int row, int piece) {
    return kPieces == 8 ? piece ^ (row & 1) * 4 : piece;
  }

  __device__ __forceinline__ void start(int step, int stage) const {
    const uint32_t offset = stage * S::kStageBytes;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      const uint32_t target = code_target + offset + i * (kRowsAtOnce * kPieces * 16);
      copy_async(target, codes[i] + step * (S::kDepth / 2), step < code_steps);
    }
    if (threadIdx.x < kTiles * kTileBytes / 16) {
      copy_async(scale_target + offset, scales + step * (kTiles * 512), step < scale_steps);
    }
  }
};

// Copies of token rows. Gathering reads x through row_slot; TopK slots a token.
template <class S, bool Gathered, int TopK>
struct TokenCopies {
  static constexpr int kPieces = S::kDepth / 8, kRowsAtOnce = S::kThreads / kPieces;
  static constexpr int kRounds = (S::kTokens + kRowsAtOnce - 1) / kRowsAtOnce;

  const uint16_t* source;  // this thread's piece of row 0, or of the tile's first row
  uint32_t target;
  int steps;
  int32_t token[Gathered ? kRounds : 1];  // -1: zeros

  __device__ TokenCopies(const W4A16Arguments& p, const Tile& tile, uint32_t base) {
    const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
    source = p.rows + piece * 8 + (Gathered ? 0 : int64_t(tile.first_row + row) * S::kK);
    target = base + S::kTokenOffset + row * (S::kDepth * 2) + slot(row, piece) * 16;
    steps = row < S::kTokens ? steps_of<S::kDepth>(S::kK, piece * 8) : 0;
    if constexpr (Gathered) {
#pragma unroll
      for (int i = 0; i < kRounds; i++) {
        const int local = row + i * kRowsAtOnce;
        const int found = local < S::kTokens ? p.row_slot[tile.first_row + local] : -1;
        token[i] = found < 0 ? -1 : found / TopK;
      }
    }
  }

  // A lane loads pieces 4 q + i of rows g: these slots spread eight of its neighbours over all bank groups.
  static __device__ __forceinline__ int slot(int row, int piece) { return piece ^ ((piece >> 3 & 1) | (row & 1) << 1); }

  __device__ __forceinline__ void start(int step, int stage) const {
    if (S::kTokens < kRowsAtOnce && threadIdx.x / kPieces >= S::kTokens) return;
    const uint16_t* column = source + step * S::kDepth;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      const int64_t row = Gathered ? int64_t(token[i]) : i * kRowsAtOnce;
      const bool present = step < steps && row >= 0;
      copy_async(target + stage * S::kStageBytes + i * (kRowsAtOnce * S::kDepth * 2), column + row * S::kK, present);
    }
  }
};

// Router weights of the tokens that a lane multiplies, 1 where they are applied elsewhere.
template <class S, bool Weighted>
struct InputWeights {
  float value[Weighted ? S::kTokenGroups : 1];
  __device__ InputWeights(const W4A16Arguments& p, const Tile& tile) {
    if constexpr (Weighted) {
#pragma unroll
      for (int n = 0; n < S::kTokenGroups; n++) {
        const int slot = p.row_slot[tile.first_row + n * 8 + threadIdx.x % 32 / 4];
        value[n] = slot < 0 ? 0.0f : p.topk_weights[slot];
      }
    }
  }
  template <class Operands>
  __device__ __forceinline__ uint4 apply(uint4 words, int n) const {
    if constexpr (Weighted) {
      words.x = Operands::weighted_operand(words.x, value[n]);
      words.y = Operands::weighted_operand(words.y, value[n]);
      words.z = Operands::weighted_operand(words.z, value[n]);
      words.w = Operands::weighted_operand(words.w, value[n]);
    }
    return words;
  }
};

template <class S>
using Accumulators = float[S::kFragments][S::kTokenGroups][4];

// Adds 128 of K of a stage. `stage`: its first byte.
template <class G>
__device__ __forceinline__ void multiply_chunk(const uint8_t* stage, int chunk, const typename G::Weights& weights,
                                               Accumulators<typename G::Shape>& acc) {
  using S = typename G::Shape;
  using Operands = typename G::Operands;
  using Copies = typename G::WeightCopies;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, first = int(threadIdx.x / 32) * S::kFragments;
  uint4 codes[S::kFragments][2];
  uint32_t scales[S::kFragments][2][2];
#pragma unroll
  for (int f = 0; f < S::kFragments; f++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = g + 8 * half, local = (first + f) * kFragmentRows + row;
      const int slot = Copies::code_slot(row, chunk * 4 + q);
      codes[f][half] = *reinterpret_cast<const uint4*>(stage + local * (S::kDepth / 2) + slot * 16);
      const int group = S::kRows == kUnitRows ? (first + f) / 2 : first + f;
      const int place = S::kRows == kUnitRows ? (first + f) % 2 * kFragmentRows + row : row;
      const uint8_t* tile = stage + S::kScaleOffset + (chunk * 2 + q / 2) * Copies::kTileBytes;
      Operands::scales(*reinterpret_cast<const uint16_t*>(tile + place * 16 + group * 4 + q % 2 * 2), scales[f][half]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t a[S::kFragments][2][4];
#pragma unroll
    for (int f = 0; f < S::kFragments; f++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint4& words = codes[f][half];
        const uint32_t word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
        const uint32_t scale = scales[f][half][i / 2];
        a[f][0][half] = Operands::template decode<0>(word, scale);
        a[f][0][2 + half] = Operands::template decode<1>(word, scale);
        a[f][1][half] = Operands::template decode<2>(word, scale);
        a[f][1][2 + half] = Operands::template decode<3>(word, scale);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kTokenGroups; n++) {
      const int row = n * 8 + g, slot = G::TokenCopies::slot(row, chunk * 16 + 4 * q + i);
      const uint4* source = reinterpret_cast<const uint4*>(stage + S::kTokenOffset + row * (S::kDepth * 2));
      const uint4 b = weights.template apply<Operands>(source[slot], n);
#pragma unroll
      for (int f = 0; f < S::kFragments; f++) {
        Operands::mma(acc[f][n], a[f][0], low_halves(b.x, b.z), high_halves(b.x, b.z));
        Operands::mma(acc[f][n], a[f][1], low_halves(b.y, b.w), high_halves(b.y, b.w));
      }
    }
  }
}

// The kernel. G names Shape, Operands, Epilogue, kPitch, kScalePitch, kTopK, kGathered, kWeighted.
//
// A kernel that gathers follows route directly. Any other follows an op that has waited for route: its tile is known,
// and its first weights are on their way, before its predecessor ends.
template <class G>
__device__ __forceinline__ void w4a16_gemm(const W4A16Arguments& p) {
  using S = typename G::Shape;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = smem_address(shared);
  if constexpr (G::kGathered) dependency_wait();
  const Tile tile = Tile::of_block<S>(p);
  const bool active = tile.expert >= 0;
  const typename G::WeightCopies weights(p, tile, base);
  if (active) {
#pragma unroll
    for (int stage = 0; stage < S::kStages - 1; stage++) {
      if (stage < S::kSteps) weights.start(stage, stage);
    }
  }
  if constexpr (!G::kGathered) dependency_wait();
  dependency_launch();
  if (!active) return;
  const typename G::TokenCopies tokens(p, tile, base);
  const typename G::Weights input_weights(p, tile);
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; stage++) {
    if (stage < S::kSteps) tokens.start(stage, stage);
    commit_copies();
  }
  Accumulators<S> acc = {};
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < S::kSteps; step++) {
    wait_copies<S::kStages - 2>();
    __syncthreads();  // this stage has arrived for all, and the one before it is free
    const int next = step + S::kStages - 1, free = stage == 0 ? S::kStages - 1 : stage - 1;
    if (next < S::kSteps) {
      weights.start(next, free);
      tokens.start(next, free);
    }
    commit_copies();
#pragma unroll 1
    for (int chunk = 0; chunk < S::kDepth / kChunkK; chunk++) {
      if (step * S::kDepth + chunk * kChunkK < S::kK) {
        multiply_chunk<G>(shared + stage * S::kStageBytes, chunk, input_weights, acc);
      }
    }
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  G::Epilogue::template store<G>(p, tile, acc);
}

}  // namespace moegen
