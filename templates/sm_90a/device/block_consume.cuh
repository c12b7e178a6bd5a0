// Consumers of the whole-layer kernel: warpgroups that share the K units of an item.
//
// Unit u of an item goes to the next warpgroup in turn, across items, so all of them keep busy however short an item
// is. Their accumulators are added in the order of the units' remainders, whichever warpgroup held which, so sums do
// not depend on which block worked on what before. Warpgroups take turns with the sum and the epilogue of an item while
// the others go on.
#pragma once

#include <cstdint>

#include "block_work.cuh"
#include "epilogue.cuh"

namespace moegen {

template <class L>
using BlockSums = float[L::kTiles][L::kWidth / 2];

inline constexpr int kRouted = 1;  // named barrier of all who need the maps of rows and slots

// Where a thread's four values of token group i of an m64 tile go among an item's partial sums.
template <class L>
__device__ __forceinline__ uint32_t partial_place(const BlockShared<L>& shared, int count, int part, int m, int i) {
  return shared.partial(count, part) + (m * (L::kWidth / 8) + i) * 2048 + threadIdx.x % 128 * 16;
}

// Leaves a warpgroup's sums of an item for the one that adds them, once those of two items ago have been read.
template <class L>
__device__ __forceinline__ void store_share(const BlockSums<L>& acc, const BlockShared<L>& shared, int count,
                                            int part) {
  barrier_wait(shared.sums_read(count), (count / 2 & 1) ^ 1);
#pragma unroll
  for (int m = 0; m < L::kTiles; m++) {
#pragma unroll
    for (int i = 0; i < L::kWidth / 8; i++) {
      const float* v = acc[m] + 4 * i;
      store_shared_int4(
          partial_place(shared, count, part, m, i),
          make_int4(__float_as_int(v[0]), __float_as_int(v[1]), __float_as_int(v[2]), __float_as_int(v[3])));
    }
  }
  barrier_arrive(shared.sums_written(count));
}

// Multiplies one K unit. Two steps have an operand buffer each, and the stage before, at barrier `release`, is free
// once its last products are done (grouped_gemm.cuh says more).
template <class L>
__device__ __forceinline__ void multiply_unit(BlockSums<L>& acc, uint32_t (&a)[2][16], uint32_t tokens,
                                              uint32_t weights, uint32_t release) {
  using Element = typename L::Element;
  const int thread = threadIdx.x % 128;
  const bool releases = release != 0;
  uint64_t descriptor = token_descriptor(tokens);
  uint32_t codes = weights + kScaleBytes + thread * 16;
  if constexpr (L::kTiles == 1) {
    const uint4 first = load_shared_v4(codes), second = load_shared_v4(codes + kChunkBytes);
    const uint32_t word = load_shared(weights + thread * 4);
    wgmma_wait<1>();
    multiply_chunk<L::kWidth, Element>(acc[0], a[0], first, Decoder<Element>::scales(word), descriptor);
    wgmma_wait<1>();
    barrier_arrive_if(release, releases);
    multiply_chunk<L::kWidth, Element>(acc[0], a[1], second, Decoder<Element>::scales(swap_scale_chunks(word)),
                                       descriptor + kDescriptorChunk);
  } else {
    uint32_t words[2] = {load_shared(weights + thread * 4), load_shared(weights + kUnitBytes + thread * 4)};
#pragma unroll 1
    for (int chunk = 0; chunk < 2; chunk++) {
      const uint4 first = load_shared_v4(codes), second = load_shared_v4(codes + kUnitBytes);
      wgmma_wait<1>();
      multiply_chunk<L::kWidth, Element>(acc[0], a[0], first, Decoder<Element>::scales(words[0]), descriptor);
      wgmma_wait<1>();
      barrier_arrive_if(release, releases && chunk == 0);
      multiply_chunk<L::kWidth, Element>(acc[1], a[1], second, Decoder<Element>::scales(words[1]), descriptor);
      words[0] = swap_scale_chunks(words[0]);
      words[1] = swap_scale_chunks(words[1]);
      codes += kChunkBytes;
      descriptor += kDescriptorChunk;
    }
  }
}

// Multiplies a warpgroup's units of an item, at least one: those from stage number `next`, which becomes its first one
// of a later item.
template <class L>
__device__ __forceinline__ void multiply_share(BlockSums<L>& acc, const BlockShared<L>& shared, BlockStage<L>& stage,
                                               int& next, int end) {
#pragma unroll
  for (int m = 0; m < L::kTiles; m++) {
#pragma unroll
    for (int i = 0; i < L::kWidth / 2; i++) acc[m][i] = 0.0f;
  }
  uint32_t a[2][16];
  uint32_t release = 0;
#pragma unroll 1
  do {
    barrier_wait(shared.full(stage.slot), stage.phase);
    fence_async_shared();  // tokens came by cp.async, wgmma reads them by another proxy
    multiply_unit<L>(acc, a, shared.tokens(stage.slot), shared.weights(stage.slot), release);
    release = shared.empty(stage.slot);
    stage.advance(L::kGroups);
    next += L::kGroups;
  } while (next < end);
  wgmma_wait<0>();
  barrier_arrive(release);
}

// A warpgroup's part in an item; short items may have no unit for it. Accumulators stay within their branch: where two
// meet, ptxas serialises the wgmmas (C7514).
template <class L>
__device__ __forceinline__ void sum_share(const BlockShared<L>& shared, BlockStage<L>& stage, int& next,
                                          const BlockItem& item, int count) {
  const int part = next - item.begin;
  if (next < item.end) {
    BlockSums<L> acc;
    multiply_share<L>(acc, shared, stage, next, item.end);
    store_share<L>(acc, shared, count, part);
  } else {
    const BlockSums<L> none = {};
    store_share<L>(none, shared, count, part);
  }
}

// Adds the warpgroups' sums of an item.
template <class L>
__device__ __forceinline__ void add_shares(BlockSums<L>& sums, const BlockShared<L>& shared, int count) {
  barrier_wait(shared.sums_written(count), count / 2 & 1);
#pragma unroll
  for (int m = 0; m < L::kTiles; m++) {
#pragma unroll
    for (int i = 0; i < L::kWidth / 8; i++) {
      float* v = sums[m] + 4 * i;
#pragma unroll
      for (int part = 0; part < L::kGroups; part++) {
        const uint4 w = load_shared_v4(partial_place(shared, count, part, m, i));
        const float more[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
#pragma unroll
        for (int b = 0; b < 4; b++) v[b] = part > 0 ? __fadd_rn(v[b], more[b]) : more[b];
      }
    }
  }
  barrier_arrive(shared.sums_read(count));
}

// A is the activation and O the output as epilogue.cuh describes them.
template <class L, class A, class O>
__device__ void consume_items(const BlockArguments& p, const BlockShared<L>& shared, const int* row_slot) {
  using P = BlockPlan<L>;
  struct FirstTile : P::First {
    using Tokens = RowTokens;
  };
  struct SecondTile : P::Second {
    using Tokens = RowTokens;
  };
  const int group = threadIdx.x / 128;
  BlockStage<L> stage{group, 0};
  int next = group;
#pragma unroll 1
  for (int count = 0;; count++) {
    barrier_wait(shared.item_full(count), count / P::kItems & 1);
    BlockItem item = BlockItem::load(shared.item(count));
    if (item.last()) break;
    load_to_l1(item.second ? p.w2_alpha + item.work.expert : p.w1_alpha + item.work.expert * L::kHalves);
    sum_share<L>(shared, stage, next, item, count);
    if (count % L::kGroups != group) continue;
    BlockSums<L> acc;
    add_shares<L>(acc, shared, count);
    item = BlockItem::load(shared.item(count));  // read again: nothing of it lives in the loop
    item.work.row_tile -= group;  // epilogues number row tiles from the warpgroup's
    item.work.part = 0;           // known to the compiler: items are whole here
    GemmArguments arguments{};
    arguments.row_slot = row_slot;
    arguments.topk_weights = p.topk_weights;
    if (item.second) {
      arguments.alpha = p.w2_alpha, arguments.bias = p.w2_bias, arguments.out = p.out_rows;
      OutputRows<O>::template store<SecondTile>(arguments, item.work, acc, 0);
    } else {
      arguments.alpha = p.w1_alpha, arguments.bias = p.w1_bias, arguments.out = p.h_rows;
      CompactRows<A>::template store<FirstTile>(arguments, item.work, acc, 0);
    }
    barrier_arrive(shared.item_stored(count));
  }
}

}  // namespace moegen
