// Producers of the whole-layer kernel: weight warps claim items and stream their weights, token warps bring the tokens.
//
// Weight warps never wait for tokens, so the second product's weights are on their way while the first one's last
// rows are being computed. Tokens come by cp.async, whose completion each lane posts on the stage's barrier; consumers
// fence before wgmma reads them (tokens.cuh has the same order of things).
#pragma once

#include <cstdint>

#include "block_work.cuh"
#include "row_ops.cuh"

namespace moegen {

// Copies 16 bytes past L1, whose lines may be older than what another multiprocessor has written.
__device__ __forceinline__ void copy_async_piece(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Where a side's weights of an item begin, and how many m64 tiles it has: the last of an expert may have fewer.
template <class S>
struct BlockWeights {
  const uint8_t* first;
  int row_tile, tiles;
  __device__ BlockWeights(const uint8_t* packed, const WorkItem& item)
      : first(packed + int64_t(item.expert) * Plan<S>::kExpertBytes + item.row_tile * (S::kTiles * kUnitBytes)),
        row_tile(item.row_tile),
        tiles(min(S::kTiles, S::kM64 - item.row_tile * S::kTiles)) {}

  // Starts the copy of a K unit; half units keep the full ones' pitch in shared memory.
  __device__ __forceinline__ void copy(uint32_t target, uint32_t barrier, int unit) const {
    const uint8_t* unit_bytes = first + uint32_t(unit) * uint32_t(S::kM64 * kUnitBytes);
    if (Plan<S>::kHalfTail && unit == Plan<S>::kUnits - 1) {
      const uint8_t* source = unit_bytes - row_tile * (S::kTiles * (kUnitBytes - kHalfUnitBytes));
      barrier_expect_bytes(barrier, tiles * kHalfUnitBytes);
#pragma unroll 1
      for (int i = 0; i < tiles; i++) {
        bulk_copy(target + i * kUnitBytes, source + i * kHalfUnitBytes, kHalfUnitBytes, barrier, kEvictFirst);
      }
    } else {
      barrier_expect_bytes(barrier, tiles * kUnitBytes);
      bulk_copy(target, unit_bytes, tiles * kUnitBytes, barrier, kEvictFirst);
    }
  }
};

// Draws tickets ahead of need, for the weight warp that claims items.
struct Tickets {
  int* counter;  // null in other warps
  int drawn = 0;
  bool settled = false;  // the first product was done for an item of the second
};

// Streams this warp's share of an item's weights. The next ticket is drawn while the last units are on their way; after
// a block's first second-product item, not before the first product is `done` that it waits for: a block that waits
// must not take items that others will be free for.
template <class L, class S>
__device__ __forceinline__ void stream_weights(const BlockShared<L>& shared, BlockStage<L>& stage, int& next,
                                               const BlockItem& item, const uint8_t* packed, const int* done,
                                               int needed, Tickets& tickets) {
  constexpr int kUnits = Plan<S>::kUnits, kStep = BlockPlan<L>::kWeightWarps;
  constexpr int kDraw = kUnits > 3 * kStep ? kUnits - 3 * kStep : 0;
  const BlockWeights<S> weights(packed, item.work);
  bool draws = tickets.counter != nullptr;
  int seen = draws && item.second && !tickets.settled ? load_acquire(done) : needed;
  const auto draw = [&] {
    while (seen < needed) seen = load_acquire(done);
    tickets.drawn = draw_ticket(tickets.counter);
    tickets.settled = item.second;
    draws = false;
  };
#pragma unroll 1
  for (; next < item.end; next += kStep, stage.advance(kStep)) {
    const int unit = next - item.begin;
    if (draws && unit >= kDraw && seen >= needed) draw();
    barrier_wait(shared.empty(stage.slot), stage.phase);
    weights.copy(shared.weights(stage.slot), shared.full(stage.slot), unit);
  }
  if (draws) draw();
}

// One lane of each weight warp; the first warp's claims the items. Every publisher finds an item that ends the work.
template <class L>
__device__ void produce_weights(const BlockArguments& p, const BlockShared<L>& shared, int warp) {
  using P = BlockPlan<L>;
  BlockStage<L> stage{warp, 1};
  const bool claims = warp == 0;
  Tickets tickets{claims ? p.scratch + P::kTicketWord : nullptr};
  int next = warp, begin = 0, tiles = 0;
  if (claims) {
    tiles = int(load_shared(shared.tile_total()));
    barrier_wait(shared.drawn(), 0);
    tickets.drawn = int(load_shared(shared.first_ticket()));
  }
#pragma unroll 1
  for (int count = 0, ends = 0; ends < (claims ? P::kPublishers : 1); count++) {
    BlockItem item;
    if (claims) {
      barrier_wait(shared.item_free(count), (count / P::kItems & 1) ^ 1);
      item = claimed_item<L>(shared, tickets.drawn, tiles, begin);
      item.store(shared.item(count));
      barrier_arrive(shared.item_full(count));
    } else {
      barrier_wait(shared.item_full(count), count / P::kItems & 1);
      item = BlockItem::load(shared.item(count));
    }
    begin = item.end;
    const int* done = p.scratch + P::kDoneWord + item.tile;
    constexpr int kNeeded = Plan<typename P::First>::kRowTiles;
    if (item.last()) {
      ends++;
    } else if (item.second) {
      stream_weights<L, typename P::Second>(shared, stage, next, item, p.w2_packed, done, kNeeded, tickets);
    } else {
      stream_weights<L, typename P::First>(shared, stage, next, item, p.w1_packed, done, kNeeded, tickets);
    }
    if (!claims && !item.last()) barrier_arrive(shared.item_free(count));
  }
}

// Gathers rows of x into the private order: word 8 q + p of a chunk is block q's pair of piece p.
template <class L, bool kWeighted>
__device__ __forceinline__ void gather_item(const BlockArguments& p, const BlockShared<L>& shared,
                                            BlockStage<L>& stage, int& next, const BlockItem& item,
                                            const int* row_slot) {
  constexpr int kStep = BlockPlan<L>::kTokenWarps;
  const WorkItem& work = item.work;
  const int lane = threadIdx.x % 32, q = lane / 8, piece = lane % 8;
  int offset[L::kWidth];  // of a row's words, in elements of x; slots are few
  float weight[L::kWidth];
#pragma unroll
  for (int r = 0; r < L::kWidth; r++) {
    const int slot = r < work.rows ? row_slot[work.row + r] : 0;
    offset[r] = slot / L::kTopK * L::kHidden + 2 * lane;
    weight[r] = kWeighted ? p.topk_weights[slot] : 1.0f;
  }
#pragma unroll 1
  for (; next < item.end; next += kStep, stage.advance(kStep)) {
    const int unit = next - item.begin;
    barrier_wait(shared.empty(stage.slot), stage.phase);
    const uint32_t target = shared.tokens(stage.slot);
#pragma unroll
    for (int r = 0; r < L::kWidth; r++) {
      if (r >= work.rows) break;
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int column = unit * kUnitK + c * kChunkK;
        const bool inside = (unit + 1) * kUnitK <= L::kHidden || column + 2 * lane < L::kHidden;
        const uint16_t* source = p.x + (inside ? offset[r] + column : 0);
        const uint32_t place = target + (r / kGroupRows * 2 + c) * kAtomBytes + pair_offset(r % kGroupRows, piece, q);
        if constexpr (kWeighted) {
          const uint32_t pair = inside ? *reinterpret_cast<const uint32_t*>(source) : 0u;
          store_shared(place, weighted_pair<typename L::Element>(pair, weight[r]));
        } else {
          copy_async_4<true>(place, source, inside ? 4 : 0);
        }
      }
    }
    if constexpr (kWeighted) {
      barrier_arrive(shared.full(stage.slot));
    } else {
      barrier_arrive_after_copies(shared.full(stage.slot));
    }
  }
}

// Copies rows of h, which lie in the private order already: half a warp a row.
template <class L>
__device__ __forceinline__ void load_item(const BlockArguments& p, const BlockShared<L>& shared, BlockStage<L>& stage,
                                          int& next, const BlockItem& item) {
  constexpr int kStep = BlockPlan<L>::kTokenWarps, kChunks = row_chunks(L::kIntermediate);
  const WorkItem& work = item.work;
  const int lane = threadIdx.x % 32, first = lane / 16;
  const int place = lane % 16 / 8 * kAtomBytes + first * 128 + lane % 8 * 16;
  const uint8_t* source = p.h_rows + atom_offset(work.row, 0, kChunks) + place;
#pragma unroll 1
  for (; next < item.end; next += kStep, stage.advance(kStep)) {
    const uint8_t* unit = source + (next - item.begin) * (2 * kAtomBytes);
    barrier_wait(shared.empty(stage.slot), stage.phase);
    const uint32_t target = shared.tokens(stage.slot) + place;
#pragma unroll
    for (int pair = 0; pair < L::kWidth / 2; pair++) {
      if (2 * pair >= work.rows) break;
      const int group = pair / 4, inside = pair % 4 * 256;
      if (2 * pair + first < work.rows) {
        copy_async_piece(target + group * (2 * kAtomBytes) + inside, unit + group * (kChunks * kAtomBytes) + inside);
      }
    }
    barrier_arrive_after_copies(shared.full(stage.slot));
  }
}

// A token warp: waits for each second-product item's rows, then fills the token half of its stages.
template <class L, bool kWeighted>
__device__ void produce_tokens(const BlockArguments& p, const BlockShared<L>& shared, const int* row_slot, int warp) {
  using P = BlockPlan<L>;
  BlockStage<L> stage{warp, 1};
  int next = warp;
#pragma unroll 1
  for (int count = 0;; count++) {
    barrier_wait(shared.item_full(count), count / P::kItems & 1);
    const BlockItem item = BlockItem::load(shared.item(count));
    if (item.last()) return;
    if (item.second) {
      const int* done = p.scratch + P::kDoneWord + item.tile;
      while (threadIdx.x % 32 == 0 && load_acquire(done) < Plan<typename P::First>::kRowTiles) {
      }
      __syncwarp();
      load_item<L>(p, shared, stage, next, item);
    } else {
      gather_item<L, kWeighted>(p, shared, stage, next, item, row_slot);
    }
    barrier_arrive(shared.item_free(count));  // a short item may have had no stage for this warp
  }
}

// By a token warp, when its block has drawn its last ticket and it will wait for no row again: the last of all blocks'
// token warps to say so clears the counters for the next launch.
template <class L>
__device__ void leave(const BlockArguments& p, int tiles) {
  using P = BlockPlan<L>;
  const int lane = threadIdx.x % 32;
  int before = 0;
  if (lane == 0) before = count_acq_rel(p.scratch + P::kLeaverWord);
  if (__shfl_sync(~0u, before, 0) != int(gridDim.x) * P::kTokenWarps - 1) return;
  for (int i = lane; i < tiles; i += 32) p.scratch[P::kDoneWord + i] = 0;
  if (lane == 0) p.scratch[P::kTicketWord] = p.scratch[P::kLeaverWord] = 0;
}

}  // namespace moegen
