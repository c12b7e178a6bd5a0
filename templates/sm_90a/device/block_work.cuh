// Work of the whole-layer kernel: routing inside a block, items claimed from one counter, and who waits for whom.
//
// Every block routes the few slots for itself, alike, so that no block waits for another's routing. Items
// are (token tile, row tile of the weights): all of the first product, then all of the second. Blocks claim them one by
// one from a counter and work on them in that order. A second-product item waits for first-product items alone; those
// have lower numbers, so running blocks have claimed them, and they wait for nothing. Hence no deadlock, however few of
// the blocks are resident.
#pragma once

#include <cstdint>

#include "block_plan.h"
#include "ptx.cuh"
#include "route.cuh"
#include "work.cuh"

namespace moegen {

// Addresses of the barriers and records in shared memory.
template <class L>
struct BlockShared {
  using P = BlockPlan<L>;
  uint32_t base;

  __device__ uint32_t barrier(int index) const { return base + P::kBarrierOffset + 8 * index; }
  // Weights and tokens of a stage have arrived; its warpgroup has read them.
  __device__ uint32_t full(int stage) const { return barrier(stage); }
  __device__ uint32_t empty(int stage) const { return barrier(P::kMostStages + stage); }
  // An item's record is written; its rows are stored; its record may be replaced.
  __device__ uint32_t item_full(int count) const { return barrier(2 * P::kMostStages + count % P::kItems); }
  __device__ uint32_t item_stored(int count) const {
    return barrier(2 * P::kMostStages + P::kItems + count % P::kItems);
  }
  __device__ uint32_t item_free(int count) const {
    return barrier(2 * P::kMostStages + 2 * P::kItems + count % P::kItems);
  }
  // Partial sums of an item are written by all warpgroups; they have been read.
  __device__ uint32_t sums_written(int count) const {
    return barrier(2 * P::kMostStages + 3 * P::kItems + 2 + count % 2);
  }
  __device__ uint32_t sums_read(int count) const {
    return barrier(2 * P::kMostStages + 3 * P::kItems + 4 + count % 2);
  }
  // Tiles are listed; the first ticket is drawn.
  __device__ uint32_t listed() const { return barrier(2 * P::kMostStages + 3 * P::kItems); }
  __device__ uint32_t drawn() const { return barrier(2 * P::kMostStages + 3 * P::kItems + 1); }

  __device__ uint32_t tokens(int stage) const { return base + stage * P::kTokenBytes; }
  __device__ uint32_t weights(int stage) const { return base + P::kWeightOffset + stage * P::kWeightBytes; }
  __device__ uint32_t item(int count) const { return base + P::kItemOffset + count % P::kItems * P::kItemBytes; }
  __device__ uint32_t tile(int index) const { return base + P::kTileOffset + index * WorkItem::kBytes; }
  __device__ uint32_t tile_total() const { return base + P::kTotalOffset; }
  __device__ uint32_t first_ticket() const { return base + P::kTotalOffset + 4; }
  __device__ uint32_t partial(int count, int part) const {
    return base + P::kPartialOffset + (count % 2 * L::kGroups + part) * P::kPartialBytes;
  }

  // By one warp.
  __device__ void init_barriers() const {
    const int lane = threadIdx.x % 32;
    if (lane < P::kStages) {
      barrier_init(full(lane), 1 + 32);  // a weight warp's lane and all lanes of a token warp
      barrier_init(empty(lane), 128);
    }
    if (lane < P::kItems) {
      barrier_init(item_full(lane), 1);
      barrier_init(item_stored(lane), 128);
      barrier_init(item_free(lane), 1 + 32 * P::kTokenWarps + 32);  // a weight warp's lane, token warps, a publisher
    }
    if (lane < 2) {
      barrier_init(sums_written(lane), P::kConsumers);
      barrier_init(sums_read(lane), 128);
    }
    if (lane == 0) {
      barrier_init(listed(), 32);
      barrier_init(drawn(), 1);
    }
    barrier_init_fence();
  }
};

// An item as it passes through a block. Stages are numbered through a block's whole work.
struct BlockItem {
  WorkItem work;
  bool second;
  int tile;   // token tile
  int begin;  // its first stage's number
  int end;

  __device__ bool last() const { return work.expert < 0; }
  static __device__ BlockItem load(uint32_t address) {
    const int4 v = load_shared_int4(address + WorkItem::kBytes);
    return BlockItem{WorkItem::load(address), v.x != 0, v.y, v.z, v.w};
  }
  __device__ void store(uint32_t address) const {
    work.store(address);
    store_shared_int4(address + WorkItem::kBytes, make_int4(second, tile, begin, end));
  }
};

// A stage of the ring and its phase parity, advanced with the stage numbers. Roles of several warps or warpgroups take
// stages in turn.
template <class L>
struct BlockStage {
  int slot;
  uint32_t phase;
  __device__ void advance(int by) {
    slot += by;
    if (slot >= BlockPlan<L>::kStages) {
      slot -= BlockPlan<L>::kStages;
      phase ^= 1;
    }
  }
};

// Lists the token tiles of the experts' `counts`, which become each expert's first padded row; by one full warp.
// Returns the number of tiles.
template <class L>
__device__ int list_tiles(const BlockShared<L>& shared, int* counts) {
  constexpr int kEach = (L::kExperts + 31) / 32;
  const int lane = threadIdx.x % 32;
  int rows[kEach], tiles = 0, groups = 0;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int e = lane * kEach + i;
    rows[i] = e < L::kExperts ? counts[e] : 0;
    tiles += (rows[i] + L::kWidth - 1) / L::kWidth;
    groups += (rows[i] + kGroupRows - 1) / kGroupRows;
  }
  const int tile_end = lane_sum(tiles), group_end = lane_sum(groups);
  int tile = tile_end - tiles, first = (group_end - groups) * kGroupRows;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int e = lane * kEach + i;
    if (rows[i] == 0) continue;
    counts[e] = first;
    for (int row = 0; row < rows[i]; row += L::kWidth) {
      WorkItem{e, first + row, min(L::kWidth, rows[i] - row), 0}.store(shared.tile(tile++));
    }
    first += (rows[i] + kGroupRows - 1) / kGroupRows * kGroupRows;
  }
  return __shfl_sync(~0u, tile_end, 31);
}

// A consumer thread's slots: experts are counted, and rows given in ascending slot order within an expert.
template <class L>
struct BlockSlots {
  static constexpr int kEach = (L::kSlots + BlockPlan<L>::kConsumers - 1) / BlockPlan<L>::kConsumers;
  int slots;
  int expert[kEach];

  static __device__ int slot(int i) { return int(threadIdx.x) + i * BlockPlan<L>::kConsumers; }

  template <class Id>
  __device__ BlockSlots(const Id* ids, int64_t first_expert, int slots_) : slots(slots_) {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      expert[i] = slot(i) < slots ? local_expert<L::kExperts>(ids[slot(i)], first_expert) : -1;
    }
  }

  // `experts` is shared memory for all slots.
  __device__ void count(int* counts, int* experts) const {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      if (slot(i) < slots) experts[slot(i)] = expert[i];
      if (expert[i] >= 0) atomicAdd(&counts[expert[i]], 1);
    }
  }

  // Waits for the first rows, which take the place of counts.
  __device__ void map(const int* experts, const int* first_rows, uint32_t listed, int* row_slot, int* slot_row) const {
    int earlier[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      earlier[i] = 0;
      for (int s = 0; s < min(slot(i), slots); s++) earlier[i] += experts[s] == expert[i];
    }
    barrier_wait(listed, 0);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      if (slot(i) >= slots) continue;
      const int row = expert[i] >= 0 ? first_rows[expert[i]] + earlier[i] : -1;
      slot_row[slot(i)] = row;
      if (row >= 0) row_slot[row] = slot(i);
    }
  }
};

// The item of a ticket; past the last one, an item that ends the work.
template <class L>
__device__ __forceinline__ BlockItem claimed_item(const BlockShared<L>& shared, int ticket, int tiles, int begin) {
  using P = BlockPlan<L>;
  using First = Plan<typename P::First>;
  using Second = Plan<typename P::Second>;
  const int first_items = tiles * First::kRowTiles, items = first_items + tiles * Second::kRowTiles;
  if (ticket >= items) return BlockItem{{-1, 0, 0, 0}, false, 0, begin, begin};
  const bool second = ticket >= first_items;
  const unsigned index = second ? ticket - first_items : ticket;
  const unsigned row_tiles = second ? Second::kRowTiles : First::kRowTiles;
  const int tile = index / row_tiles, units = second ? Second::kUnits : First::kUnits;
  WorkItem work = WorkItem::load(shared.tile(tile));
  work.row_tile = index % row_tiles;
  return BlockItem{work, second, tile, begin, begin + units};
}

// ---- counters in global memory --------------------------------------------------------------------------------------

// Draws a number. Spelt out: the compiler's atomicAdd has the warp wait for the result at once.
__device__ __forceinline__ int draw_ticket(int* counter) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Adds one and returns the value before, ordering what this thread saw before and will see after.
__device__ __forceinline__ int count_acq_rel(int* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Adds one after everything that this thread has written or seen.
__device__ __forceinline__ void count_release(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace moegen
