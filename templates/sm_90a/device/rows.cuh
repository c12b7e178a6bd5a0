// The private order of token rows, "sm90_k64r8": what wgmma reads from shared memory is what lies in global memory.
//
// Rows come in groups of 8, K in chunks of 64 (an even number of them, zero-filled). [group][chunk][8 rows][128 bytes],
// the 16-byte pieces of a row XORed with the row's index in its group: wgmma's 128-byte swizzle, so plain bulk copies
// of 1024-byte atoms fill shared memory. Inside a chunk K is permuted to the order in which decoded weights meet it
// (decode.cuh): slot 16 j + 8 h + 2 q + b holds k = 16 q + 4 j + 2 h + b. A 16-byte piece p = 2 j + h thus holds one
// pair (b = 0, 1) of each of the chunk's four 16-element blocks q.
#pragma once

#include <cstdint>

namespace moegen {

inline constexpr int kGroupRows = 8;
inline constexpr int kChunkK = 64;
inline constexpr int kAtomBytes = 1024;

// Chunks in a row: K rounded up to whole 128-units.
__host__ __device__ constexpr int row_chunks(int k) { return (k + 127) / 128 * 2; }

// Byte offset of a chunk's atom; `row` is the global padded row.
__device__ __forceinline__ int64_t atom_offset(int64_t row, int chunk, int chunks) {
  return ((row / kGroupRows) * chunks + chunk) * kAtomBytes;
}

// Byte offset, inside an atom, of block q's pair in piece p, for row r of the group.
__host__ __device__ constexpr int pair_offset(int r, int piece, int q) { return r * 128 + ((piece ^ r) * 16) + 4 * q; }

}  // namespace moegen
