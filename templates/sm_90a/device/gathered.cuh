// Rows of x gathered into gemm1's ring: what a gather op would write to memory goes straight to shared memory.
//
// A warp copies 128 bytes of one row, a chunk of 64 elements, with one instruction: lane l brings elements 2l and 2l+1,
// block q = l / 8's pair of piece l % 8, to its place in the private order (rows.cuh). Reads are whole lines, and the
// 32 words of a row cover the 32 banks. Warp w of the four serves rows 2w and 2w + 1 of every group of 8; lane g holds
// the tokens of group g.
#pragma once

#include <cstdint>

#include "grouped_gemm.cuh"
#include "tokens.cuh"

namespace moegen {

template <int kTopK>
struct GatheredTokens {
  static constexpr float kScale = 1.0f;

  // Tokens of this lane's group; groups without rows repeat the item's first token, and nobody reads what they bring.
  struct Tokens {
    uint32_t token[2];

    __device__ void load(const GemmArguments& p, const WorkItem& item, int warp, int lane) {
      if (item.expert < 0) return;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = lane * kGroupRows + 2 * warp + i;
        // From L2: routing ends while this kernel runs, and L1 may hold what was there before.
        token[i] = unsigned(__ldcg(p.row_slot + item.row + (row < item.rows ? row : 0))) / unsigned(kTopK);
      }
    }
  };

  // One K unit of an item's rows. kTail: columns past K are filled with zeros.
  template <class C, bool kTail>
  static __device__ __forceinline__ void copy_unit(const Tokens& tokens, int rows, const uint8_t* source,
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
          from[g][i] = source + uint64_t(__shfl_sync(~0u, tokens.token[i], group + g)) * kRowBytes;
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
    Cursor<C::kWidest, P::kRowTiles> cursor(base + P::kListOffset, listed.active, listed.tiles);
    Order<C::kClaimed> order;
    const uint32_t shared_index = base + P::kIndexOffset;
    if (leader) order.claim(p.claims);
    WorkItem item = cursor.at(order.index);
    advance(order, shared_index, leader);
    Tokens tokens{};
    tokens.load(p, item, warp, lane);
    WeightStream<C> weights;
    Ring<C> ring(base, 1);
    int count = 0;
    while (item.expert >= 0) {
      if (leader) order.claim(p.claims);
      const WorkItem following = cursor.at(order.index);
      Tokens later{};
      later.load(p, following, warp, lane);  // a whole item before they are needed
      if (leader) {
        item.store(item_address<C>(base, count));
        weights.begin(p.packed, item);
      }
      const uint8_t* source = static_cast<const uint8_t*>(p.rows) + 4 * lane;
#pragma unroll 1
      for (int unit = 0; unit < P::kUnits; unit++, ring.advance(), source += 2 * kUnitK) {
        barrier_wait(ring.empty(), ring.phase);
        if (leader) weights.copy(ring, unit, 0);
        __syncwarp();
        if (C::kK % kUnitK != 0 && unit == P::kUnits - 1) {
          copy_unit<C, true>(tokens, item.rows, source, ring.tokens());
        } else {
          copy_unit<C, false>(tokens, item.rows, source, ring.tokens());
        }
        barrier_arrive_after_copies(ring.full());
      }
      count++;
      advance(order, shared_index, leader);
      item = following;
      tokens = later;
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
