// Row-wise copies between ops in the plain order: a thread moves 16 bytes, eight elements.
#pragma once

#include <cstdint>

#include "../../sm_90a/device/ptx.cuh"
#include "operands.cuh"

namespace moegen {

// This thread's piece of a matrix whose rows have Pieces pieces.
template <int Pieces>
struct Piece {
  int64_t row;
  int index;
  __device__ Piece() {
    const int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    row = item / Pieces;
    index = int(item % Pieces);
  }
};

// Rows of x through row_slot; padding rows become 0. With Weighted, times the slot's router weight, one rounding.
template <class Operands, int Columns, int TopK, bool Weighted>
__device__ __forceinline__ void gather_rows(const uint16_t* __restrict__ x, const int32_t* __restrict__ row_slot,
                                            const int32_t* __restrict__ totals, const float* __restrict__ weights,
                                            uint16_t* __restrict__ out) {
  const Piece<Columns / 8> piece;
  dependency_wait();
  dependency_launch();
  if (piece.row >= totals[1]) return;
  const int slot = row_slot[piece.row];
  uint4 words = make_uint4(0, 0, 0, 0);
  if (slot >= 0) {
    words = *reinterpret_cast<const uint4*>(x + int64_t(slot / TopK) * Columns + piece.index * 8);
    if constexpr (Weighted) {
      const float weight = weights[slot];
      words.x = Operands::weighted(words.x, weight);
      words.y = Operands::weighted(words.y, weight);
      words.z = Operands::weighted(words.z, weight);
      words.w = Operands::weighted(words.w, weight);
    }
  }
  *reinterpret_cast<uint4*>(out + piece.row * Columns + piece.index * 8) = words;
}

// The products of an interleaved buffer [R, 2 x Columns]: elements 8...15 of each 16.
template <int Columns>
__device__ __forceinline__ void deinterleave_rows(const uint16_t* __restrict__ pairs,
                                                  const int32_t* __restrict__ totals, uint16_t* __restrict__ out) {
  const Piece<Columns / 8> piece;
  dependency_wait();
  dependency_launch();
  if (piece.row >= totals[1]) return;
  const uint16_t* source = pairs + piece.row * (2 * Columns) + piece.index * 16 + 8;
  *reinterpret_cast<uint4*>(out + piece.row * Columns + piece.index * 8) = *reinterpret_cast<const uint4*>(source);
}

}  // namespace moegen
