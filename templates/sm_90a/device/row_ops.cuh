// Memory-bound ops on rows: gather into the private order, deinterleave, combine.
#pragma once

#include <cstdint>

#include "blocks.cuh"
#include "elements.cuh"
#include "ptx.cuh"
#include "rows.cuh"

namespace moegen {

// Two values times a weight, each rounded once.
template <class Element>
__device__ __forceinline__ uint32_t weighted_pair(uint32_t pair, float weight) {
  return Element::round(__fmul_rn(Element::low(pair), weight), __fmul_rn(Element::high(pair), weight));
}

template <class Element>
__device__ __forceinline__ uint4 weighted_words(const uint4& w, float weight) {
  return make_uint4(weighted_pair<Element>(w.x, weight), weighted_pair<Element>(w.y, weight),
                    weighted_pair<Element>(w.z, weight), weighted_pair<Element>(w.w, weight));
}

// Zeroes those of 32 rows from `first` that pad an expert's last group; a warp looks after four of them.
template <int kChunks>
__device__ __forceinline__ void clear_padding(const int32_t* __restrict__ row_slot, const int32_t* __restrict__ totals,
                                              uint8_t* __restrict__ out, int64_t first) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = first + threadIdx.x / 32 * 4; row < min(first + threadIdx.x / 32 * 4 + 4, int64_t(totals[1]));
       row++) {
    if (row_slot[row] >= 0) continue;
    uint8_t* target = out + atom_offset(row, 0, kChunks) + row % kGroupRows * 128 + lane % 8 * 16;
    for (int chunk = lane / 8 + 4 * blockIdx.y; chunk < kChunks; chunk += 4 * gridDim.y) {
      *reinterpret_cast<uint4*>(target + chunk * kAtomBytes) = make_uint4(0, 0, 0, 0);
    }
  }
}

// Transposes 4 x 4 words over four lanes whose numbers differ in bits `kLow` and 2 kLow: lane i gets word i of each.
template <int kLow>
__device__ __forceinline__ uint4 transpose_words(uint4 w) {
  const bool odd = threadIdx.x & kLow, upper = threadIdx.x & (2 * kLow);
  uint32_t give = odd ? w.x : w.y, other = odd ? w.z : w.w;
  give = __shfl_xor_sync(~0u, give, kLow);
  other = __shfl_xor_sync(~0u, other, kLow);
  (odd ? w.x : w.y) = give;
  (odd ? w.z : w.w) = other;
  uint32_t first = upper ? w.x : w.z, second = upper ? w.y : w.w;
  first = __shfl_xor_sync(~0u, first, 2 * kLow);
  second = __shfl_xor_sync(~0u, second, 2 * kLow);
  (upper ? w.x : w.z) = first;
  (upper ? w.y : w.w) = second;
  return w;
}

// Copies each token's row to the rows of its k slots, so that x is read once; 256 threads a block. grid: x tokens, then
// blocks that clear padding rows (32 rows each); y shares of the chunks. A chunk of a row is 128 bytes: lane bits 1 and
// 2 are block q, bit 0 the block's half; 16 bytes hold one pair of each of four pieces, and a transposition over q
// makes whole pieces.
template <class Element, int kColumns, int kTopK, bool kWeighted>
__device__ __forceinline__ void gather_rows(const uint16_t* __restrict__ x, const int32_t* __restrict__ row_slot,
                                            const int32_t* __restrict__ slot_row, const int32_t* __restrict__ totals,
                                            const float* __restrict__ weights, uint8_t* __restrict__ out,
                                            int64_t tokens) {
  constexpr int kChunks = row_chunks(kColumns);
  const int half = threadIdx.x % 2, q = threadIdx.x / 2 % 4, step = gridDim.y * 32;
  const int first_chunk = blockIdx.y * 32 + threadIdx.x / 8;
  const uint16_t* source = x + int64_t(blockIdx.x) * kColumns + 16 * q + 8 * half;
  auto inside = [&](int chunk) { return chunk * kChunkK + 16 * q < kColumns; };
  uint4 words = make_uint4(0, 0, 0, 0);  // of the first chunk, before routing is waited for: x is complete
  if (blockIdx.x < tokens && inside(first_chunk)) words = load_global_v4(source + first_chunk * kChunkK);
  dependency_wait();
  dependency_launch();
  if (blockIdx.x >= tokens) {
    clear_padding<kChunks>(row_slot, totals, out, (blockIdx.x - tokens) * 32);
    return;
  }
  const int64_t first_slot = int64_t(blockIdx.x) * kTopK;
  int64_t targets[kTopK];
  float weight[kTopK];
  uint32_t present = 0;
#pragma unroll
  for (int j = 0; j < kTopK; j++) {
    const int row = slot_row[first_slot + j];
    targets[j] = atom_offset(row, 0, kChunks) + pair_offset(row % kGroupRows, 4 * half + q, 0);
    present |= uint32_t(row >= 0) << j;
    weight[j] = kWeighted ? weights[first_slot + j] : 1.0f;
  }
#pragma unroll 1
  for (int chunk = first_chunk; chunk - int(threadIdx.x / 8) < kChunks; chunk += step) {
    if (chunk != first_chunk) {
      words = inside(chunk) ? __ldg(reinterpret_cast<const uint4*>(source + chunk * kChunkK)) : make_uint4(0, 0, 0, 0);
    }
    const uint4 plain = kWeighted ? words : transpose_words<2>(words);
#pragma unroll
    for (int j = 0; j < kTopK; j++) {
      const uint4 piece = kWeighted ? transpose_words<2>(weighted_words<Element>(words, weight[j])) : plain;
      if ((present >> j & 1u) && chunk < kChunks)
        *reinterpret_cast<uint4*>(out + targets[j] + chunk * kAtomBytes) = piece;
    }
  }
}

// The products of the interleaved buffer, in the private order; same grid as gather_rows.
template <int kColumns>
__device__ __forceinline__ void deinterleave_rows(const uint16_t* __restrict__ pairs,
                                                  const int32_t* __restrict__ totals, uint8_t* __restrict__ out) {
  constexpr int kChunks = row_chunks(kColumns);
  const int r = threadIdx.x / 8 % 8, piece = threadIdx.x % 8;
  dependency_wait();
  dependency_launch();
  const int64_t row = int64_t(blockIdx.x) * kGroupRows + r;
  if (row >= totals[1]) return;  // whole groups: padded rows come in multiples of 8
  uint8_t* atoms = out + atom_offset(row, 0, kChunks) + pair_offset(r, piece, 0);
  for (int chunk = blockIdx.y * 4 + threadIdx.x / 64; chunk < kChunks; chunk += gridDim.y * 4) {
    uint32_t words[4];
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int k = chunk * kChunkK + 16 * q + 2 * piece;
      const uint16_t* source = pairs + row * (2 * kColumns) + k / 8 * 16 + 8 + k % 8;
      words[q] = k < kColumns ? *reinterpret_cast<const uint32_t*>(source) : 0u;
    }
    *reinterpret_cast<uint4*>(atoms + chunk * kAtomBytes) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// y[t] = sum over ascending j of w_j * row_j, fp32, one rounding; grid: x tokens, y shares of 256 x 8 columns. Routing
// and weights are complete when the kernel starts (gemm2 ran between), so only the rows are waited for.
template <class Element, int kColumns, int kTopK, bool kWeighted>
__device__ __forceinline__ void combine_rows(const uint16_t* __restrict__ rows, const int32_t* __restrict__ slot_row,
                                             const float* __restrict__ weights, uint16_t* __restrict__ y) {
  const int64_t token = blockIdx.x;
  const int column = (blockIdx.y * 256 + threadIdx.x) * 8;
  int row[kTopK];
  float weight[kTopK];
#pragma unroll
  for (int j = 0; j < kTopK; j++) {
    row[j] = int(load_global(slot_row + token * kTopK + j));
    weight[j] = kWeighted ? __uint_as_float(load_global(weights + token * kTopK + j)) : 1.0f;
  }
  dependency_wait();
  dependency_launch();
  if (column >= kColumns) return;
  uint4 values[kTopK];
#pragma unroll
  for (int j = 0; j < kTopK; j++) {
    if (row[j] >= 0) values[j] = load_global_last(rows + int64_t(row[j]) * kColumns + column);
  }
  float sum[8] = {};
#pragma unroll
  for (int j = 0; j < kTopK; j++) {
    if (row[j] < 0) continue;
    float wide[8];
    widen_16_bytes<Element>(values[j], wide);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = kWeighted ? __fmaf_rn(weight[j], wide[i], sum[i]) : __fadd_rn(sum[i], wide[i]);
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = Element::round(sum[2 * i], sum[2 * i + 1]);
  *reinterpret_cast<uint4*>(y + token * kColumns + column) = make_uint4(words[0], words[1], words[2], words[3]);
}

// One rounding of sums that gemm2 accumulated; grid as combine_rows.
template <class Element, int kColumns>
__device__ __forceinline__ void round_sums(const float* __restrict__ sums, uint16_t* __restrict__ y) {
  const int64_t token = blockIdx.x;
  const int column = (blockIdx.y * 256 + threadIdx.x) * 8;
  dependency_wait();
  dependency_launch();
  if (column >= kColumns) return;
  const float4* source = reinterpret_cast<const float4*>(sums + token * kColumns + column);
  const float4 low = source[0], high = source[1];
  const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = Element::round(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<uint4*>(y + token * kColumns + column) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace moegen
