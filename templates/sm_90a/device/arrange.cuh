// Tokens in the column order of the private rows (rows.cuh), once each: what a gemm1 that gathers pieces reads.
#pragma once

#include <cstdint>

#include "ptx.cuh"
#include "row_ops.cuh"
#include "rows.cuh"

namespace moegen {

inline constexpr int kArrangeChunks = 4;  // chunks of 64 columns that eight threads move

// Eight threads to a chunk: thread bits 1 and 2 are block q, bit 0 the block's half, as in gather_rows; but pieces stay
// in place, and columns past K become zeros up to a whole K unit. 256 threads a block, each kArrangeChunks pieces.
//
// Waits for nothing that routing makes, and lets the gemm start beside both: x was complete when routing began. The
// first block ends after routing, so that whoever waits for this kernel has waited for both.
template <int kColumns>
__device__ __forceinline__ void arrange_rows(const uint16_t* __restrict__ x, uint8_t* __restrict__ out,
                                             int64_t tokens) {
  constexpr int kChunks = row_chunks(kColumns);
  dependency_launch();
  const int half = threadIdx.x % 2, q = threadIdx.x / 2 % 4;
  const int64_t first = int64_t(blockIdx.x) * (32 * kArrangeChunks) + threadIdx.x / 8, all = tokens * kChunks;
  uint4 words[kArrangeChunks];
#pragma unroll
  for (int i = 0; i < kArrangeChunks; i++) {
    const int64_t index = first + 32 * i, token = index / kChunks;
    const int column = int(index % kChunks) * kChunkK + 16 * q + 8 * half;
    words[i] = make_uint4(0, 0, 0, 0);
    if (index < all && column < kColumns) words[i] = load_global_v4(x + token * kColumns + column);
  }
#pragma unroll
  for (int i = 0; i < kArrangeChunks; i++) {
    const uint4 piece = transpose_words<2>(words[i]);
    const int64_t index = first + 32 * i;
    if (index < all) *reinterpret_cast<uint4*>(out + index * (2 * kChunkK) + 16 * (4 * half + q)) = piece;
  }
  if (blockIdx.x == 0) dependency_wait();
}

}  // namespace moegen
