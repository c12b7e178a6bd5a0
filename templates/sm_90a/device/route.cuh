// Groups the T·k slots by expert in one cluster of blocks: no host sync, no atomics on order, rows of an expert in
// ascending slot order.
//
// Every warp of the cluster takes a contiguous share of the slots and counts experts in its own row of shared memory.
// Sums over a block's warps, then over the blocks (through distributed shared memory), give each warp its first row of
// each expert; a second pass over the same slots writes the maps. All threads share the sums over warps: a chain of 32
// loads and stores by one thread an expert would be the longest part.
#pragma once

#include <cstdint>

#include "ptx.cuh"
#include "route_plan.h"
#include "work.cuh"

namespace moegen {

struct RouteOutputs {
  int32_t* expert_offsets;
  int32_t* expert_rows;
  int32_t* row_slot;
  int32_t* slot_row;
  int32_t* tile_expert;
  int32_t* totals;
};

// Expert of a slot's id on this rank, or -1.
template <int kExperts, class Id>
__device__ __forceinline__ int local_expert(Id id, int64_t first_expert) {
  return id >= first_expert && id < first_expert + kExperts ? int(id - first_expert) : -1;
}

// Lanes whose expert is the same, -1 being one too: a vote a bit. `match.any` takes 8 cycles for each distinct value.
template <int kExperts>
__device__ __forceinline__ uint32_t lanes_of_expert(int expert) {
  uint32_t same = ~0u;
#pragma unroll
  for (int bit = 0; (kExperts >> bit) > 0; bit++) {  // kExperts itself stands for -1
    const bool set = (expert < 0 ? kExperts : expert) >> bit & 1;
    const uint32_t votes = __ballot_sync(~0u, set);
    same &= set ? votes : ~votes;
  }
  return same;
}

// Calls `use(slot, expert)` in whole warps, 32 slots at a time in order; a batch's loads are in flight together.
template <int kExperts, class Id, class Use>
__device__ __forceinline__ void each_batch(const Id* __restrict__ ids, int64_t first_expert, int64_t begin, int64_t end,
                                           const Use& use) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % 32;
  for (int64_t base = begin; base < end; base += 32 * kBatch) {
    Id found[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int64_t slot = base + 32 * i + lane;
      found[i] = slot < end ? ids[slot] : Id(-1);
    }
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int64_t slot = base + 32 * i + lane;
      if (base + 32 * i >= end) break;
      use(slot, slot < end ? local_expert<kExperts>(found[i], first_expert) : -1);
    }
  }
}

// Turns each warp's count of an expert into the rows of that expert in earlier warps of the block; `block_rows` gets
// the block's sums. `parts` has room for route_parts counts an expert.
template <int kExperts, int kThreads>
__device__ __forceinline__ void scan_warps(int32_t* counts, int32_t* parts, int32_t* block_rows) {
  constexpr int kWarps = kThreads / 32, kParts = route_parts(kExperts, kThreads),
                kEach = (kWarps + kParts - 1) / kParts;
  for (int i = threadIdx.x; i < kExperts * kParts; i += kThreads) {
    int sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int warp = i / kExperts * kEach + j;
      sum += warp < kWarps ? counts[warp * kExperts + i % kExperts] : 0;
    }
    parts[i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kExperts * kParts; i += kThreads) {
    const int part = i / kExperts, expert = i % kExperts;
    int before = 0, all = 0;
#pragma unroll
    for (int p = 0; p < kParts; p++) {
      const int sum = parts[p * kExperts + expert];
      before += p < part ? sum : 0;
      all += sum;
    }
    if (part == 0) block_rows[expert] = all;
    int each[kEach];
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int warp = part * kEach + j;
      each[j] = warp < kWarps ? counts[warp * kExperts + expert] : 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int warp = part * kEach + j;
      if (warp < kWarps) counts[warp * kExperts + expert] = before;
      before += each[j];
    }
  }
}

// kThreads threads a block, kBlocks blocks in one cluster; shared memory (int32): [kThreads / 32][kExperts] counts,
// [route_parts][kExperts] parts of sums, then kExperts rows of this block, kExperts first rows, kExperts + 1 offsets,
// 34 sums.
template <int kExperts, int kRowTile, int kThreads, int kBlocks, class Id>
__device__ void route(const Id* __restrict__ ids, int64_t first_expert, int64_t slots, int64_t rows_capacity,
                      const RouteOutputs& out) {
  constexpr int kWarps = kThreads / 32;
  extern __shared__ int32_t counts[];
  int32_t* parts = counts + kWarps * kExperts;
  int32_t* block_rows = parts + route_parts(kExperts, kThreads) * kExperts;
  int32_t* first_rows = block_rows + kExperts;
  int32_t* offsets = first_rows + kExperts;
  int32_t* sums = offsets + kExperts + 1;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, block = blockIdx.x;
  const int64_t share = (slots + 32 * kWarps * kBlocks - 1) / (32 * kWarps * kBlocks) * 32;
  const int64_t begin = min(slots, (block * kWarps + warp) * share), end = min(slots, begin + share);
  int32_t* mine = counts + warp * kExperts;
  for (int e = lane; e < kExperts; e += 32) mine[e] = 0;
  if (thread < 2) sums[32 + thread] = 0;
  dependency_wait();
  dependency_launch();
  __syncwarp();
  each_batch<kExperts>(ids, first_expert, begin, end, [&](int64_t, int expert) {
    if (expert >= 0) atomicAdd(mine + expert, 1);
  });
  __syncthreads();
  scan_warps<kExperts, kThreads>(counts, parts, block_rows);
  cluster_sync<kBlocks>();
  const uint32_t local = smem_address(block_rows);
  int total = 0;  // padded rows of all experts that earlier rounds of the loop covered
  for (int base = 0; base < kExperts; base += kThreads) {
    const int e = base + thread;
    int rows = 0, before = 0;
    if (e < kExperts) {
      for (int b = 0; b < kBlocks; b++) {
        const int count = load_cluster<kBlocks>(local + 4 * e, b);
        before += b < block ? count : 0;
        rows += count;
      }
    }
    const int padded = (rows + kRowTile - 1) / kRowTile * kRowTile, sum = lane_sum(padded);
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    const int warp_sums = lane_sum(lane < kWarps ? sums[lane] : 0);
    const int first = total + (warp > 0 ? __shfl_sync(~0u, warp_sums, (warp + 31) % 32) : 0) + sum - padded;
    total += __shfl_sync(~0u, warp_sums, 31);
    if (e < kExperts) {
      offsets[e] = first;
      first_rows[e] = first + before;
      if (block == 0) {
        out.expert_offsets[e] = first;
        out.expert_rows[e] = rows;
        for (int row = rows; row < padded; row++) out.row_slot[first + row] = -1;
      }
    }
    const int valid = __reduce_add_sync(~0u, rows), active = __popc(__ballot_sync(~0u, rows > 0));
    if (lane == 0) {
      atomicAdd(&sums[32], valid);
      atomicAdd(&sums[33], active);
    }
    __syncthreads();
  }
  if (block == 0 && thread == 0) {
    out.expert_offsets[kExperts] = total;
    out.totals[0] = total / kRowTile;
    out.totals[1] = total;
    out.totals[2] = sums[32];
    out.totals[3] = sums[33];
  }
  each_batch<kExperts>(ids, first_expert, begin, end, [&](int64_t slot, int expert) {
    const uint32_t same = lanes_of_expert<kExperts>(expert);
    const int earlier = expert >= 0 ? mine[expert] : 0;
    __syncwarp();
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] = earlier + __popc(same);
    __syncwarp();
    if (slot < end) {
      const int row = expert >= 0 ? first_rows[expert] + earlier + __popc(same & ((1u << lane) - 1u)) : -1;
      out.slot_row[slot] = row;
      if (row >= 0) out.row_slot[row] = int32_t(slot);
    }
  });
  const int all = kThreads * kBlocks, index = block * kThreads + thread;
  for (int64_t row = total + index; row < rows_capacity; row += all) out.row_slot[row] = -1;
  for (int64_t tile = index; tile < rows_capacity / kRowTile; tile += all) {
    const int row = int(tile) * kRowTile;
    int low = 0, high = kExperts;  // the last expert whose offset is <= row
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (offsets[middle] <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    out.tile_expert[tile] = row < total ? low : -1;
  }
  cluster_sync<kBlocks>();  // a block's shared memory outlives its readers
}

}  // namespace moegen
