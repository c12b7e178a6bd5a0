// Rows to E2M1 codes and E4M3 block scales, padding included; and the second-level scale of a whole tensor.
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "contracts.cuh"
#include "ptx.cuh"
#include "scales.cuh"

namespace moegen {

// Rows whose scales must exist: with the 128x4 layout its last tile is filled with zeros.
template <class Layout>
__device__ __forceinline__ int64_t scale_rows(int64_t rows) {
  return Layout::kTileRows > 1 ? (rows + Layout::kTileRows - 1) / Layout::kTileRows * Layout::kTileRows : rows;
}

// One thread a block of 16. kPitch: bytes of a code row; kScalePitch: columns of a scale row, >= blocks. `pairs` holds
// the second-level scale (encode, decode), one for all rows or one per expert.
template <class Contract, class Layout, int kColumns, int kPitch, int kScalePitch, int kRowTile, bool kPerExpert,
          class Blocks>
__device__ __forceinline__ void quantize_rows(const Blocks& blocks, const int32_t* __restrict__ tile_expert,
                                              const int32_t* __restrict__ totals, const float* __restrict__ pairs,
                                              uint8_t* __restrict__ codes, uint8_t* __restrict__ scales) {
  dependency_wait();
  dependency_launch();
  const int64_t rows = totals[1];
  const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = index / kScalePitch;
  const int block = int(index % kScalePitch);
  if (row >= scale_rows<Layout>(rows)) return;
  const bool inside = block < kColumns / 16;
  uint8_t scale = 0;
  if (row < rows && inside) {
    uint2 packed = make_uint2(0, 0);
    if (blocks.real(row)) {
      float values[16];
      blocks.read(row, block, values);
      const float* pair = pairs + (kPerExpert ? tile_expert[row / kRowTile] * 2 : 0);
      const Contract contract(ScalePair{pair[0], pair[1]});
      scale = quantize_block(contract, values, packed);
    }
    uint8_t* out = codes + row * kPitch + block * 8;
    *reinterpret_cast<uint2*>(out) = packed;
    if (kPitch > kColumns / 2 && block == kColumns / 16 - 1) *reinterpret_cast<uint2*>(out + 8) = make_uint2(0, 0);
  }
  scales[Layout::offset(row, block, kScalePitch)] = scale;
}

// Largest finite magnitude of all real rows; the last block to finish turns it into the pair and clears the scratch:
// {largest bits, blocks done}.
template <class Contract, int kColumns, class Blocks>
__device__ __forceinline__ void tensor_scale(const Blocks& blocks, const int32_t* __restrict__ totals, int32_t* scratch,
                                             float* __restrict__ pair) {
  dependency_wait();
  dependency_launch();
  constexpr int kBlocks = kColumns / 16;
  const int64_t count = int64_t(totals[1]) * kBlocks;
  int32_t largest = 0;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    if (!blocks.real(i / kBlocks)) continue;
    float values[16];
    blocks.read(i / kBlocks, int(i % kBlocks), values);
#pragma unroll
    for (int j = 0; j < 16; j++) largest = max(largest, finite_magnitude_bits(values[j]));
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) atomicMax(scratch, largest);
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(scratch + 1, 1) != int(gridDim.x) - 1) return;
  __threadfence();
  const ScalePair made = Contract::pair(__int_as_float(atomicExch(scratch, 0)));
  pair[0] = made.encode;
  pair[1] = made.decode;
  scratch[1] = 0;
}

}  // namespace moegen
