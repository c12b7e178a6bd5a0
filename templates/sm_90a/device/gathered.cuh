// Rows gathered into gemm1's ring: what a gather op would write to memory goes straight to shared memory.
//
// GatheredTokens walks the items; a Rows policy says which rows a thread looks after and copies one K unit of them.
//
// XRows         rows of x: a warp copies 128 bytes of one row, a chunk of 64 elements, with one instruction; lane l
//               brings elements 2l and 2l + 1, block q = l / 8's pair of piece l % 8, to its place in the private order
//               (rows.cuh). Reads are whole lines, and the 32 words of a row cover the 32 banks.
// ArrangedRows  tokens whose columns an arrange op has put into the order of pieces: a lane brings a whole piece, and
//               an instruction four rows, a quarter of the instructions.
#pragma once

#include <cstdint>

#include "grouped_gemm.cuh"
#include "tokens.cuh"

namespace moegen {

// Token of an item's row. From L2: routing ends while this kernel runs, and L1 may hold what was there before.
template <int kTopK>
__device__ __forceinline__ uint32_t token_of(const GemmArguments& p, const WorkItem& item, int row) {
  return unsigned(__ldcg(p.row_slot + item.row + row)) / unsigned(kTopK);
}

template <int kTopK>
struct XRows {
  // Tokens of rows 2w and 2w + 1 (w: the warp) of this lane's group of 8; groups without rows repeat the item's first
  // token, and nobody reads what they bring.
  template <class C>
  struct Held {
    uint32_t token[2];

    __device__ void load(const GemmArguments& p, const WorkItem& item, int warp, int lane) {
      if (item.expert < 0) return;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = lane * kGroupRows + 2 * warp + i;
        token[i] = token_of<kTopK>(p, item, row < item.rows ? row : 0);
      }
    }
  };

  static __device__ __forceinline__ const uint8_t* source(const GemmArguments& p) {
    return static_cast<const uint8_t*>(p.rows) + 4 * (threadIdx.x % 32);
  }

  template <class C>
  static __device__ __forceinline__ void copy(const Held<C>& held, int rows, int unit, const uint8_t* source,
                                              uint32_t target) {
    if (C::kK % kUnitK != 0 && unit == Plan<C>::kUnits - 1) {
      copy_unit<C, true>(held, rows, source, target);
    } else {
      copy_unit<C, false>(held, rows, source, target);
    }
  }

 private:
  // kTail: columns past K are filled with zeros.
  template <class C, bool kTail>
  static __device__ __forceinline__ void copy_unit(const Held<C>& held, int rows, const uint8_t* source,
                                                   uint32_t target) {
    constexpr int kRowBytes = C::kK * 2;
    constexpr int kLastBytes = kRowBytes % (2 * kUnitK);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t even = target + (pair_offset(2 * warp, lane % 8, lane / 8));
    const uint32_t odd = target + (pair_offset(2 * warp + 1, lane % 8, lane / 8));
    const uint32_t near = !kTail || 4 * lane < kLastBytes ? 4 : 0, far = !kTail || 128 + 4 * lane < kLastBytes ? 4 : 0;
    constexpr int kGroups = C::kWidth / kGroupRows, kBatch = kGroups >= 16 ? 4 : 2;
#pragma unroll
    for (int group = 0; group < kGroups; group += kBatch) {
      if (group * kGroupRows >= rows) break;
      const uint8_t* from[kBatch][2];  // addresses of a batch first: a copy holds its registers until it has left
#pragma unroll
      for (int g = 0; g < kBatch && group + g < kGroups; g++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
          from[g][i] = source + uint64_t(__shfl_sync(~0u, held.token[i], group + g)) * kRowBytes;
      }
#pragma unroll
      for (int g = 0; g < kBatch && group + g < kGroups; g++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const uint32_t to = (i == 0 ? even : odd) + (group + g) * (2 * kAtomBytes);
          copy_async_4<kTail>(to, from[g][i], near);
          copy_async_4<kTail>(to + kAtomBytes, from[g][i] + 128, far);
        }
      }
    }
  }
};

template <int kTopK>
struct ArrangedRows {
  static constexpr int kStep = 16;  // rows that the four warps copy at once

  // Tokens of the rows that this lane's eighth of a warp copies; rows past the item's repeat its first token.
  template <class C>
  struct Held {
    uint32_t token[(C::kWidth + kStep - 1) / kStep];

    __device__ void load(const GemmArguments& p, const WorkItem& item, int warp, int lane) {
      if (item.expert < 0) return;
#pragma unroll
      for (int i = 0; i < (C::kWidth + kStep - 1) / kStep; i++) {
        const int row = i * kStep + 4 * warp + lane / 8;
        token[i] = token_of<kTopK>(p, item, row < item.rows ? row : 0);
      }
    }
  };

  static __device__ __forceinline__ const uint8_t* source(const GemmArguments& p) {
    return static_cast<const uint8_t*>(p.rows) + 16 * (threadIdx.x % 8);
  }

  // Columns past K are zeros in memory.
  template <class C>
  static __device__ __forceinline__ void copy(const Held<C>& held, int rows, int, const uint8_t* source,
                                              uint32_t target) {
    constexpr uint64_t kPitch = row_chunks(C::kK) * (2 * kChunkK);
    const int first = threadIdx.x / 8 % kStep, r = first % kGroupRows, piece = threadIdx.x % 8;
    const uint32_t place = target + first / kGroupRows * (2 * kAtomBytes) + pair_offset(r, piece, 0);
#pragma unroll
    for (int i = 0; i < (C::kWidth + kStep - 1) / kStep; i++) {
      if (i * kStep >= rows) break;
      if (C::kWidth % kStep != 0 && i == C::kWidth / kStep && first >= kGroupRows) break;  // past the tile
      const uint8_t* const from = source + held.token[i] * kPitch;
      const uint32_t to = place + i * (kStep / kGroupRows * 2 * kAtomBytes);
      copy_async_16(to, from);
      copy_async_16(to + kAtomBytes, from + 2 * kChunkK);
    }
  }
};

template <class Rows>
struct GatheredTokens {
  static constexpr float kScale = 1.0f;

  // All producer threads move on to what the leader has claimed.
  template <bool kClaimed>
  static __device__ __forceinline__ void advance(Order<kClaimed>& order, uint32_t shared_index, bool leader) {
    int claimed = 0;
    if constexpr (kClaimed) {
      if (leader) store_shared(shared_index, order.ticket);
      named_barrier(1, 128);
      claimed = int(load_shared(shared_index));
      named_barrier(1, 128);  // read before the leader may replace it
    }
    order.advance(claimed);
  }

  template <class C>
  static __device__ __forceinline__ void produce(const GemmArguments& p, uint32_t base) {
    using P = Plan<C>;
    using Held = typename Rows::template Held<C>;
    // Tokens are known an item before they are needed, except where an item is claimed late, so that nobody waits for
    // it at the end, or where their registers would spill.
    constexpr bool kAhead = !C::kClaimed && C::kTiles < 4 && sizeof(Held) <= 8 * sizeof(uint32_t);
    static_assert(C::kProducerThreads == 128 && !C::kRouted);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool leader = warp == 0 && lane == 0;
    if constexpr (C::kFirst) {
      dependency_wait();
      dependency_launch();
    } else {
      dependency_launch();
    }
    const Listed listed = Listed::make<C>(p, base);
    if constexpr (C::kProducerRegisters > 0) registers_lower<C::kProducerRegisters>();
    Cursor<C::kWidest, P::kRowTiles, C::kGroups, C::kParts> cursor(base + P::kListOffset, listed.active, listed.tiles);
    Order<C::kClaimed> order;
    WorkItem item = cursor.at(order.index);
    Held held{};
    held.load(p, item, warp, lane);
    WeightStream<C> weights;
    Ring<C> ring(base, 1);
    int count = 0;
    while (item.expert >= 0) {
      WorkItem following{};
      Held later{};
      if constexpr (kAhead) {
        order.advance(0);
        following = cursor.at(order.index);
        later.load(p, following, warp, lane);
      }
      if (leader) {
        order.claim(p.claims);
        item.store(item_address<C>(base, count));
        weights.begin(p.packed, item);
      }
      const uint8_t* source = Rows::source(p);
#pragma unroll 1
      for (int unit = 0; unit < P::kUnits; unit++, ring.advance(), source += 2 * kUnitK) {
        barrier_wait(ring.empty(), ring.phase);
        if (leader) weights.copy(ring, unit, 0);
        __syncwarp();
        Rows::template copy<C>(held, item.rows, unit, source, ring.tokens());
        barrier_arrive_after_copies(ring.full());
      }
      count++;
      if constexpr (kAhead) {
        item = following;
        held = later;
      } else {
        advance(order, base + P::kIndexOffset, leader);
        item = cursor.at(order.index);
        held.load(p, item, warp, lane);
      }
    }
    barrier_wait(ring.empty(), ring.phase);
    if (leader) {
      item.store(item_address<C>(base, count));
      barrier_arrive(ring.full());
      order.finish(p.claims);
    }
    barrier_arrive(ring.full());
    if constexpr (!C::kFirst) dependency_wait();
  }
};

}  // namespace moegen
