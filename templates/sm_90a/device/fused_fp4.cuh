// gemm1's quantising epilogue: activation, block amax, E4M3 scale, E2M1 codes, written as gemm2 reads them.
//
// A block's 16 channels are one pair in each of a chunk's eight pieces, spread over the warps of the chunk's m64 tiles.
// So amax goes through shared memory: [token][block] largest magnitudes, then the same words hold the block's factor,
// and a [token][32 bytes a chunk] staging area collects the code bytes for whole-sector stores.
#pragma once

#include <cstdint>

#include "contracts.cuh"
#include "epilogue.cuh"
#include "scales.cuh"

namespace moegen {

// A names, beside what Activated reads: Contract, Layout, kPitch (bytes of a code row), kScalePitch, kPreQuantRound.
template <class A>
struct FusedFp4Rows {
  static constexpr int kAlphas = A::kHalves;
  static constexpr int kBlockK = 16;

  // Chunks that a work item's m64 tiles make: two tiles a chunk when gated, one otherwise.
  template <class C>
  static constexpr int kChunks = Plan<C>::kTileRows64 / A::kHalves;

  template <class C>
  static __device__ __forceinline__ void store(const GemmArguments& p, const WorkItem& item,
                                               float (&acc)[C::kTiles][C::kWidth / 2], uint32_t shared) {
    using P = Plan<C>;
    static_assert(P::kTileRows64 % A::kHalves == 0, "a chunk's tiles must be in one work item");
    constexpr int kBlocks = 4 * kChunks<C>, kRowBytes = 32 * kChunks<C>;
    static_assert(C::kEpilogueBytes >= C::kWidth * (4 * kBlocks + kRowBytes));
    const uint32_t words = shared, bytes = shared + C::kWidth * kBlocks * 4;
    const int tokens = (item.rows + kGroupRows - 1) / kGroupRows * kGroupRows;
    for (int i = threadIdx.x; i < tokens * kBlocks; i += P::kConsumers) store_shared(words + 4 * i, 0);
    named_barrier(2, P::kConsumers);
    activate<C>(p, item, acc, words);
    named_barrier(2, P::kConsumers);
    scale_blocks<C>(p, item, tokens, words);
    named_barrier(2, P::kConsumers);
    encode<C>(item, acc, words, bytes);
    named_barrier(2, P::kConsumers);
    const int first_byte = item.row_tile * kRowBytes;
    constexpr int kPieces = kRowBytes / 16;
    for (int i = threadIdx.x; i < tokens * kPieces; i += P::kConsumers) {
      const int token = i / kPieces, at = i % kPieces * 16;
      if (first_byte + at < A::kPitch) {
        uint8_t* out = static_cast<uint8_t*>(p.out) + int64_t(item.row + token) * A::kPitch + first_byte + at;
        *reinterpret_cast<uint4*>(out) = load_shared_v4(bytes + token * kRowBytes + at);
      }
    }
  }

 private:
  // First piece of fragment m within its chunk, and that chunk's place in the item.
  template <class C>
  static __device__ void place(const Lane& lane, int m, int& chunk, int& piece) {
    const int tile = int(threadIdx.x / 128) * C::kTiles + m;
    chunk = tile / A::kHalves;
    piece = A::kHalves == 2 ? 4 * (tile % 2) + lane.warp : 2 * lane.warp;
  }

  static __device__ void keep_largest(uint32_t words, int token, int blocks, int block, float z) {
    const int pair =
        max(magnitude_bits(z), __shfl_xor_sync(~0u, magnitude_bits(z), 4));  // the other channel of the pair
    if (threadIdx.x / 4 % 2 == 0) {
      asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(words + (token * blocks + block) * 4), "r"(pair) : "memory");
    }
  }

  // Replaces accumulators by activated values (gated: two a fragment row; plain: four) and gathers amax.
  template <class C>
  static __device__ __forceinline__ void activate(const GemmArguments& p, const WorkItem& item,
                                                  float (&acc)[C::kTiles][C::kWidth / 2], uint32_t words) {
    constexpr int kBlocks = 4 * kChunks<C>;
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      int chunk, piece;
      place<C>(lane, m, chunk, piece);
      const int global_chunk = item.row_tile * kChunks<C> + chunk;
      const int first = piece_channel(global_chunk, piece, lane.g),
                second = piece_channel(global_chunk, piece + 1, lane.g);
      Activated<A> activated;
      activated.template prepare<C>(p, item.expert);
      if constexpr (A::kHalves == 2) {
        activated.prepare_gated(p, item.expert, first);
      } else {
        activated.prepare_plain(p, item.expert, first, second);
      }
#pragma unroll
      for (int i = 0; i < C::kWidth / 8; i++) {
        if (i * kGroupRows >= item.rows) break;
        const int token = i * kGroupRows + 2 * lane.q;
        const TokenFactor<A> factor(p, item, token);
#pragma unroll
        for (int b = 0; b < 2; b++) {
          float& low = acc[m][4 * i + b];
          float& high = acc[m][4 * i + 2 + b];
          if constexpr (A::kHalves == 2) {
            low = settle(factor.apply(activated.gated(activated.gate(low), high), b), first);
            keep_largest(words, token + b, kBlocks, 4 * chunk + lane.g / 2, low);
          } else {
            low = settle(factor.apply(activated.first(low), b), first);
            high = settle(factor.apply(activated.second(high), b), second);
            keep_largest(words, token + b, kBlocks, 4 * chunk + lane.g / 2, low);
            keep_largest(words, token + b, kBlocks, 4 * chunk + lane.g / 2, high);
          }
        }
      }
    }
  }

  static __device__ float settle(float z, int channel) {
    if (channel >= A::kIntermediate) return 0.0f;
    return A::kPreQuantRound ? round_bf16(z) : z;
  }

  // One thread a block: amax to scale byte, which is stored, and factor, which stays. Rows that fill the last 128-row
  // tile of swizzled scales, and columns past the last block, get zeros from whoever owns the neighbouring real ones.
  template <class C>
  static __device__ __forceinline__ void scale_blocks(const GemmArguments& p, const WorkItem& item, int tokens,
                                                      uint32_t words) {
    constexpr int kBlocks = 4 * kChunks<C>;
    const Contract contract = make_contract(p, item.expert);
    const int first = item.row_tile * kBlocks;
    for (int i = threadIdx.x; i < tokens * kBlocks; i += Plan<C>::kConsumers) {
      const int token = i / kBlocks, block = first + i % kBlocks;
      const float amax = __uint_as_float(load_shared(words + 4 * i));
      const uint8_t scale = contract.scale(amax);
      store_shared(words + 4 * i, __float_as_uint(contract.factor(scale)));
      const bool real = token < item.rows && block < A::kIntermediate / kBlockK;
      if (block < A::kScalePitch) {
        p.out_scales[A::Layout::offset(item.row + token, block, A::kScalePitch)] = real ? scale : uint8_t(0);
      }
    }
    const int64_t rows = p.totals[1];
    if (A::Layout::kTileRows > 1 && item.row + tokens == rows) {
      const int filler = int((rows + A::Layout::kTileRows - 1) / A::Layout::kTileRows * A::Layout::kTileRows - rows);
      for (int i = threadIdx.x; i < filler * kBlocks; i += Plan<C>::kConsumers) {
        const int block = first + i % kBlocks;
        if (block < A::kScalePitch) p.out_scales[A::Layout::offset(rows + i / kBlocks, block, A::kScalePitch)] = 0;
      }
    }
  }

  using Contract = typename A::Contract;
  static __device__ Contract make_contract(const GemmArguments& p, int expert) {
    return Contract(ScalePair{p.out_pair[2 * expert], p.out_pair[2 * expert + 1]});
  }

  // The byte of a channel pair: its even channel's lane stores both nibbles.
  static __device__ void store_codes(const WorkItem& item, uint32_t bytes, int row_bytes, int token, int at, float z,
                                     float factor) {
    const uint32_t code = token < item.rows ? Contract::code(Contract::value(z, factor)) : 0u;
    const uint32_t other = __shfl_xor_sync(~0u, code, 4);
    if (threadIdx.x / 4 % 2 == 0) {
      const uint32_t byte = code | other << 4;
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(bytes + token * row_bytes + at), "r"(byte) : "memory");
    }
  }

  template <class C>
  static __device__ __forceinline__ void encode(const WorkItem& item, float (&acc)[C::kTiles][C::kWidth / 2],
                                                uint32_t words, uint32_t bytes) {
    constexpr int kBlocks = 4 * kChunks<C>, kRowBytes = 32 * kChunks<C>;
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      int chunk, piece;
      place<C>(lane, m, chunk, piece);
      const int block = 4 * chunk + lane.g / 2;
#pragma unroll
      for (int i = 0; i < C::kWidth / 8; i++) {
        if (i * kGroupRows >= item.rows) break;
#pragma unroll
        for (int b = 0; b < 2; b++) {
          const int token = i * kGroupRows + 2 * lane.q + b;
          const float factor = __uint_as_float(load_shared(words + (token * kBlocks + block) * 4));
          store_codes(item, bytes, kRowBytes, token, 8 * block + piece, acc[m][4 * i + b], factor);
          if constexpr (A::kHalves == 1) {
            store_codes(item, bytes, kRowBytes, token, 8 * block + piece + 1, acc[m][4 * i + 2 + b], factor);
          }
        }
      }
    }
  }
};

}  // namespace moegen
