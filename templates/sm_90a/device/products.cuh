// Rows rounded to NVFP4 and decoded at once: what a gemm multiplies is code x block scale, which bf16 holds exactly, in
// the private row order (rows.cuh).
#pragma once

#include <cstdint>

#include "code_pairs.cuh"
#include "quantize.cuh"
#include "row_ops.cuh"

namespace moegen {

// Products of a block's codes, pair by pair. NaN has the bytes that bf16_from_f32 gives it.
__device__ __forceinline__ void decode_block(const uint2& codes, uint8_t scale, uint32_t (&pairs)[8]) {
  constexpr uint32_t kNan = 0x7FC07FC0u, kWhole = 0x43004300u;  // 2^7 twice
  const uint32_t scales = scale_pair(scale);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    pairs[i] = (scale & 0x7Fu) == 0x7Fu ? kNan : mul_bf16x2(product_pair(codes, i, scales), kWhole);
  }
}

// One thread a block of 16, columns up to the next multiple of 128 included. Four neighbours, the blocks of a chunk,
// exchange pairs so that each stores two whole 16-byte pieces. Arguments as in quantize_rows.
template <class Contract, int kColumns, int kRowTile, bool kPerExpert, class Blocks>
__device__ __forceinline__ void quantize_products(const Blocks& blocks, const int32_t* __restrict__ tile_expert,
                                                  const int32_t* __restrict__ totals, const float* __restrict__ pairs,
                                                  uint8_t* __restrict__ products) {
  constexpr int kChunks = row_chunks(kColumns);
  dependency_wait();
  dependency_launch();
  const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = index / (4 * kChunks);
  const int block = int(index % (4 * kChunks));
  const bool stores = row < totals[1];
  uint32_t words[8] = {};
  if (stores && block < kColumns / 16 && blocks.real(row)) {
    float values[16];
    blocks.read(row, block, values);
    const float* pair = pairs + (kPerExpert ? tile_expert[row / kRowTile] * 2 : 0);
    const Contract contract(ScalePair{pair[0], pair[1]});
    uint2 codes;
    const uint8_t scale = quantize_block(contract, values, codes);
    decode_block(codes, scale, words);
  }
  const uint4 low = transpose_words<1>(make_uint4(words[0], words[1], words[2], words[3]));
  const uint4 high = transpose_words<1>(make_uint4(words[4], words[5], words[6], words[7]));
  if (!stores) return;
  const int r = int(row % kGroupRows), q = block % 4;
  uint8_t* atom = products + atom_offset(row, block / 4, kChunks);
  *reinterpret_cast<uint4*>(atom + pair_offset(r, q, 0)) = low;
  *reinterpret_cast<uint4*>(atom + pair_offset(r, 4 + q, 0)) = high;
}

}  // namespace moegen
