// Sixteen consecutive values of a row as fp32, from each place where rows lie.
#pragma once

#include <cstdint>

#include "elements.cuh"
#include "ptx.cuh"
#include "rows.cuh"

namespace moegen {

template <class Element>
__device__ __forceinline__ void widen_16_bytes(const uint4& v, float* out) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    out[2 * i] = Element::low(words[i]);
    out[2 * i + 1] = Element::high(words[i]);
  }
}

// Rows of x through row_slot; with kWeighted times the slot's router weight, one fp32 product.
template <class Element, int kColumns, int kTopK, bool kWeighted>
struct GatheredBlocks {
  const uint16_t* x;
  const int32_t* row_slot;
  const float* weights;

  __device__ bool real(int64_t row) const { return row_slot[row] >= 0; }
  __device__ void read(int64_t row, int block, float (&values)[16]) const {
    const int slot = row_slot[row];
    const uint4* source = reinterpret_cast<const uint4*>(x + int64_t(slot / kTopK) * kColumns + block * 16);
    widen_16_bytes<Element>(source[0], values);
    widen_16_bytes<Element>(source[1], values + 8);
    if constexpr (kWeighted) {
      const float weight = weights[slot];
#pragma unroll
      for (int i = 0; i < 16; i++) values[i] = __fmul_rn(values[i], weight);
    }
  }
};

// Rows in the private order: block q of a chunk is one pair of each piece.
template <class Element, int kColumns>
struct PrivateBlocks {
  const uint8_t* rows;
  const int32_t* row_slot;

  __device__ bool real(int64_t row) const { return row_slot[row] >= 0; }
  __device__ void read(int64_t row, int block, float (&values)[16]) const {
    const uint8_t* atom = rows + atom_offset(row, block / 4, row_chunks(kColumns));
#pragma unroll
    for (int piece = 0; piece < 8; piece++) {
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(atom + pair_offset(int(row % kGroupRows), piece, block % 4));
      values[2 * piece] = Element::low(pair);
      values[2 * piece + 1] = Element::high(pair);
    }
  }
};

// The products of an interleaved [R, 2 x kColumns] buffer: columns 8...15 of each 16.
template <class Element, int kColumns>
struct PairedBlocks {
  const uint16_t* pairs;
  const int32_t* row_slot;

  __device__ bool real(int64_t row) const { return row_slot[row] >= 0; }
  __device__ void read(int64_t row, int block, float (&values)[16]) const {
    const uint4* source = reinterpret_cast<const uint4*>(pairs + row * (2 * kColumns) + block * 32);
    widen_16_bytes<Element>(source[1], values);
    widen_16_bytes<Element>(source[3], values + 8);
  }
};

}  // namespace moegen
