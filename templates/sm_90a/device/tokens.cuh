// Token sources of the grouped GEMM: what fills a stage's token half, and the weights beside it.
//
// RowTokens       rows already in the private order (rows.cuh): bulk copies by one warp.
// StagedTokens    a warpgroup or two read, decode and store: GatheredRows take rows of x through row_slot and multiply
//                 them by the router weight, CodeRows take E2M1 codes and E4M3 scales and store their exact
//                 bf16 product x 2^-7.
// GatheredTokens  (gathered.cuh) rows of x through row_slot by asynchronous copies.
#pragma once

#include <cstdint>

#include "code_pairs.cuh"
#include "grouped_gemm.cuh"
#include "scales.cuh"

namespace moegen {

// Stages of an item whose weights are fetched before the dependency wait.
template <class C>
struct Prefetch {
  static constexpr int kStages =
      C::kFirst && C::kRouted ? (Plan<C>::kStages < Plan<C>::kUnits ? Plan<C>::kStages : Plan<C>::kUnits) : 0;
};

// The work list, made by warp 0 of the producer threads for all of them.
struct Listed {
  int tiles, active;

  template <class C>
  static __device__ __forceinline__ Listed make(const GemmArguments& p, uint32_t base) {
    using P = Plan<C>;
    const uint32_t counts = base + P::kItemOffset;  // not yet in use
    if (threadIdx.x / 32 == P::kConsumers / 32) {
      int active;
      const int tiles =
          list_work<C::kExperts, C::kAbove, C::kWidth, C::kWidest>(p.expert_rows, base + P::kListOffset, active);
      if (threadIdx.x % 32 == 0) {
        store_shared(counts, tiles);
        store_shared(counts + 4, active);
      }
    }
    named_barrier(1, C::kProducerThreads);
    const Listed made{int(load_shared(counts)), int(load_shared(counts + 4))};
    named_barrier(1, C::kProducerThreads);  // counts are read before an item may replace them
    return made;
  }
};

struct RowTokens {
  static constexpr float kScale = 1.0f;

  // Bytes of one K unit of an item's rows, whole groups.
  static __device__ __forceinline__ int token_bytes(const WorkItem& item) {
    return (item.rows + kGroupRows - 1) / kGroupRows * (2 * kAtomBytes);
  }

  template <class C>
  static __device__ __forceinline__ void produce(const GemmArguments& p, uint32_t base) {
    using P = Plan<C>;
    const bool working = threadIdx.x / 32 == P::kConsumers / 32;  // the group's other warps only give registers back
    const int lane = threadIdx.x % 32;
    int active = 0, tiles = 0;
    if (working) {
      if constexpr (!C::kFirst) dependency_launch();
      if constexpr (C::kFirst && !C::kRouted) dependency_wait();
      tiles = list_work<C::kExperts, C::kAbove, C::kWidth, C::kWidest>(p.expert_rows, base + P::kListOffset, active);
      __syncwarp();
    }
    if constexpr (C::kProducerRegisters > 0) registers_lower<C::kProducerRegisters>();
    if (!working) return;
    Cursor<C::kWidest, P::kRowTiles, C::kGroups, C::kParts> cursor(base + P::kListOffset, active, tiles);
    constexpr int kChunks = row_chunks(C::kK);
    Order<C::kClaimed> order;
    WorkItem item = cursor.at(order.index);
    WeightStream<C> weights;
    Ring<C> ring(base, 1);
    int ahead = 0;
    if constexpr (Prefetch<C>::kStages > 0) {
      if (item.expert >= 0) {
        if (lane == 0) item.store(item_address<C>(base, 0));
        weights.begin(p.packed, item);
        Ring<C> early = ring;
#pragma unroll 1
        for (; ahead < Prefetch<C>::kStages; ahead++, early.advance()) {
          if (lane == 0) weights.copy(early, ahead, token_bytes(item));
        }
      }
    }
    if constexpr (C::kFirst) {
      if constexpr (C::kRouted) dependency_wait();
      dependency_launch();
    }
    int count = 0;
    while (item.expert >= 0) {
      if (count > 0 || Prefetch<C>::kStages == 0) {
        if (lane == 0) item.store(item_address<C>(base, count));
        weights.begin(p.packed, item);
      }
      if (lane == 0) order.claim(p.claims);
      const uint8_t* rows = static_cast<const uint8_t*>(p.rows) + atom_offset(item.row + lane * kGroupRows, 0, kChunks);
      const int bytes = token_bytes(item);
#pragma unroll 1
      for (int unit = 0; unit < P::kUnits; unit++, ring.advance(), rows += 2 * kAtomBytes) {
        barrier_wait(ring.empty(), ring.phase);
        if (ahead > 0) {
          ahead--;
        } else if (lane == 0) {
          weights.copy(ring, unit, bytes);
        }
        if (lane * (2 * kAtomBytes) < bytes) {
          bulk_copy(ring.tokens() + lane * (2 * kAtomBytes), rows, 2 * kAtomBytes, ring.full(), kEvictNormal);
        }
      }
      count++;
      order.advance(__shfl_sync(~0u, order.ticket, 0));
      item = cursor.at(order.index);
    }
    barrier_wait(ring.empty(), ring.phase);
    if (lane == 0) {
      item.store(item_address<C>(base, count));
      barrier_arrive(ring.full());
      order.finish(p.claims);
    }
    if constexpr (!C::kFirst) dependency_wait();
  }
};

// Sixteen elements of a row of x, times the slot's router weight, each product rounded once.
template <class Element, int kTopK>
struct GatheredRows {
  static constexpr float kScale = 1.0f;
  static constexpr int kRegisters = 8;
  struct Fragment {
    uint4 low, high;
    float weight;
  };

  template <class C>
  static __device__ __forceinline__ void load(Fragment& f, const GemmArguments& p, int row, int block) {
    const int slot = __ldcg(p.row_slot + row);  // from L2: routing ends while this kernel runs
    f.low = f.high = make_uint4(0, 0, 0, 0);
    if (slot < 0 || block >= C::kK / 16) return;
    const int64_t token = slot / kTopK;
    const uint4* source =
        reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p.rows) + (token * C::kK + block * 16) * 2);
    f.low = __ldg(source);
    f.high = __ldg(source + 1);
    f.weight = p.topk_weights[slot];
  }

  static __device__ __forceinline__ uint32_t pair(const Fragment& f, int i) {
    const uint32_t words[8] = {f.low.x, f.low.y, f.low.z, f.low.w, f.high.x, f.high.y, f.high.z, f.high.w};
    return Element::pack(__fmul_rn(Element::low(words[i]), f.weight), __fmul_rn(Element::high(words[i]), f.weight));
  }
};

// Sixteen E2M1 codes and their E4M3 scale. kPitch: bytes of a row of codes; kScalePitch: columns of a row of scales.
template <class Layout, int kPitch, int kScalePitch>
struct CodeRows {
  static constexpr float kScale = kCodeScale;
  static constexpr int kRegisters = 3;
  struct Fragment {
    uint2 codes;
    uint32_t scale;
  };

  template <class C>
  static __device__ __forceinline__ void load(Fragment& f, const GemmArguments& p, int row, int block) {
    f.codes = make_uint2(0, 0);
    f.scale = 0;
    if (block >= C::kK / 16) return;
    f.codes = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(p.rows) + int64_t(row) * kPitch + block * 8);
    f.scale = p.row_scales[Layout::offset(row, block, kScalePitch)];
  }

  static __device__ __forceinline__ uint32_t pair(const Fragment& f, int i) {
    return product_pair(f.codes, i, scale_pair(f.scale));
  }
};

template <class Source>
struct StagedTokens {
  static constexpr float kScale = Source::kScale;

  // Item and unit of consecutive stages.
  template <class C>
  struct Walk {
    static_assert(!C::kClaimed, "every producer thread walks by itself");
    Cursor<C::kWidest, Plan<C>::kRowTiles, C::kGroups, C::kParts> cursor;
    Order<false> order;
    WorkItem item;
    int unit = 0, count = 0;
    __device__ Walk(uint32_t list, int active, int tiles) : cursor(list, active, tiles), item(cursor.at(order.index)) {}
    __device__ bool done() const { return item.expert < 0; }
    __device__ void advance() {
      if (++unit < Plan<C>::kUnits) return;
      unit = 0;
      count++;
      order.advance(0);
      item = cursor.at(order.index);
    }
  };

  template <class C>
  static __device__ __forceinline__ void produce(const GemmArguments& p, uint32_t base) {
    using P = Plan<C>;
    constexpr int kPairs = C::kProducerThreads / 64;  // a pair of warps serves both chunks of every kPairs-th group
    constexpr int kGroupsPerWarp = (C::kWidth / kGroupRows + kPairs - 1) / kPairs;
    constexpr int kBudget = 32 / (Source::kRegisters * kGroupsPerWarp);
    constexpr int kDepth = C::kProducerRegisters > 0 || kBudget < 1 ? 1 : kBudget > 4 ? 4 : kBudget;
    const int lane = threadIdx.x % 32, warp = (threadIdx.x - P::kConsumers) / 32;
    const int chunk = warp % 2, first_group = warp / 2, r = lane / 4, q = lane % 4;
    const bool leader = warp == 0 && lane == 0;
    if constexpr (!C::kFirst) dependency_launch();
    if constexpr (C::kFirst && !C::kRouted) dependency_wait();
    const Listed listed = Listed::make<C>(p, base);
    if constexpr (C::kProducerRegisters > 0) registers_lower<C::kProducerRegisters>();
    Walk<C> fill(base + P::kListOffset, listed.active, listed.tiles);
    WeightStream<C> weights;
    auto begin = [&](const Ring<C>& ring, int unit) {
      if (unit == 0) {
        fill.item.store(item_address<C>(base, fill.count));
        weights.begin(p.packed, fill.item);
      }
      weights.copy(ring, unit, 0);
    };
    Ring<C> ring(base, 1);
    int ahead = 0;
    if constexpr (Prefetch<C>::kStages > 0) {
      if (!fill.done()) {
        Ring<C> early = ring;
#pragma unroll 1
        for (; ahead < Prefetch<C>::kStages; ahead++, early.advance()) {
          if (leader) begin(early, ahead);
        }
      }
    }
    if constexpr (C::kFirst) {
      if constexpr (C::kRouted) dependency_wait();
      dependency_launch();
    }
    typename Source::Fragment fragments[kDepth][kGroupsPerWarp];
    auto load = [&](typename Source::Fragment(&f)[kGroupsPerWarp], const Walk<C>& at) {
      if (at.done()) return;
#pragma unroll
      for (int i = 0; i < kGroupsPerWarp; i++) {
        const int group = first_group + kPairs * i;
        if (group * kGroupRows < at.item.rows) {
          Source::template load<C>(f[i], p, at.item.row + group * kGroupRows + r, at.unit * 8 + chunk * 4 + q);
        }
      }
    };
    auto store = [&](const typename Source::Fragment(&f)[kGroupsPerWarp]) {
      barrier_wait(ring.empty(), ring.phase);
      if (ahead > 0) {
        ahead--;
      } else if (leader) {
        begin(ring, fill.unit);
      }
#pragma unroll
      for (int i = 0; i < kGroupsPerWarp; i++) {
        const int group = first_group + kPairs * i;
        if (group * kGroupRows < fill.item.rows) {
          const uint32_t atom = ring.tokens() + (2 * group + chunk) * kAtomBytes;
#pragma unroll
          for (int piece = 0; piece < 8; piece++)
            store_shared(atom + pair_offset(r, piece, q), Source::pair(f[i], piece));
        }
      }
      __syncwarp();
      if (lane == 0)
        barrier_arrive(ring.full());  // the consumer fences: here a fence would wait for the loads in flight
      ring.advance();
    };
    if constexpr (kDepth == 1) {
      load(fragments[0], fill);
      while (!fill.done()) {
        store(fragments[0]);
        fill.advance();
        load(fragments[0], fill);
      }
    } else {
      Walk<C> fetch = fill;
#pragma unroll
      for (int d = 0; d < kDepth; d++) {
        load(fragments[d], fetch);
        if (!fetch.done()) fetch.advance();
      }
      while (!fill.done()) {
#pragma unroll
        for (int d = 0; d < kDepth; d++) {
          if (fill.done()) break;
          store(fragments[d]);
          fill.advance();
          load(fragments[d], fetch);
          if (!fetch.done()) fetch.advance();
        }
      }
    }
    barrier_wait(ring.empty(), ring.phase);
    if (leader) {
      fill.item.store(item_address<C>(base, fill.count));
      barrier_arrive(ring.full());
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.full());
    if constexpr (!C::kFirst) dependency_wait();
  }
};

}  // namespace moegen
