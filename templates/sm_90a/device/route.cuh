// Groups the T·k slots by expert in one block: no host sync, no atomics on order, rows of an expert in ascending slot order.
//
// Every warp takes a contiguous share of the slots and counts experts in its own row of shared memory; the counts, summed
// over warps, then give each warp its first row of each expert, and a second pass over the same slots writes the maps.
#pragma once

#include <cstdint>

#include "ptx.cuh"

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

// kThreads threads in one block; shared memory: kWarps x kExperts counts, kExperts + 1 offsets.
template <int kExperts, int kRowTile, int kThreads, class Id>
__device__ void route(const Id* __restrict__ ids, int64_t first_expert, int64_t slots, int64_t rows_capacity,
                      const RouteOutputs& out) {
  constexpr int kWarps = kThreads / 32;
  extern __shared__ int32_t counts[];  // [kWarps][kExperts]
  int32_t* offsets = counts + kWarps * kExperts;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int64_t share = (slots + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int64_t begin = min(slots, warp * share), end = min(slots, begin + share);
  const int used_warps = share > 0 ? int((slots + share - 1) / share) : 0;
  int32_t* mine = counts + warp * kExperts;
  for (int e = lane; e < kExperts; e += 32) mine[e] = 0;
  dependency_wait();
  dependency_launch();
  __syncwarp();
  for (int64_t base = begin; base < end; base += 32) {
    const int64_t slot = base + lane;
    const int expert = slot < end ? local_expert<kExperts>(ids[slot], first_expert) : -1;
    const uint32_t same = __match_any_sync(~0u, expert);
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  for (int e = thread; e < kExperts; e += kThreads) {  // counts become each warp's first row within the expert
    int rows = 0;
    for (int w = 0; w < used_warps; w++) {
      const int count = counts[w * kExperts + e];
      counts[w * kExperts + e] = rows;
      rows += count;
    }
    offsets[e] = rows;
    out.expert_rows[e] = rows;
  }
  __syncthreads();
  if (warp == 0) {  // exclusive sum of padded rows
    int total = 0, valid = 0, active = 0;
    for (int base = 0; base < kExperts; base += 32) {
      const int e = base + lane;
      const int rows = e < kExperts ? offsets[e] : 0;
      const int padded = (rows + kRowTile - 1) / kRowTile * kRowTile;
      int sum = padded;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int part = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += part;
      }
      if (e < kExperts) {
        offsets[e] = total + sum - padded;
        out.expert_offsets[e] = total + sum - padded;
        for (int row = rows; row < padded; row++) out.row_slot[total + sum - padded + row] = -1;
      }
      total += __shfl_sync(~0u, sum, 31);
      valid += __reduce_add_sync(~0u, rows);
      active += __popc(__ballot_sync(~0u, rows > 0));
    }
    if (lane == 0) {
      offsets[kExperts] = total;
      out.expert_offsets[kExperts] = total;
      out.totals[0] = total / kRowTile;
      out.totals[1] = total;
      out.totals[2] = valid;
      out.totals[3] = active;
    }
  }
  __syncthreads();
  for (int64_t base = begin; base < end; base += 32) {
    const int64_t slot = base + lane;
    const int expert = slot < end ? local_expert<kExperts>(ids[slot], first_expert) : -1;
    const uint32_t same = __match_any_sync(~0u, expert);
    const int first = expert >= 0 ? mine[expert] : 0;
    __syncwarp();
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] = first + __popc(same);
    __syncwarp();
    if (slot < end) {
      const int row = expert >= 0 ? offsets[expert] + first + __popc(same & ((1u << lane) - 1u)) : -1;
      out.slot_row[slot] = row;
      if (row >= 0) out.row_slot[row] = int32_t(slot);
    }
  }
  const int total = offsets[kExperts];
  for (int64_t row = total + thread; row < rows_capacity; row += kThreads) out.row_slot[row] = -1;
  for (int64_t tile = thread; tile < rows_capacity / kRowTile; tile += kThreads) {
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
}

}  // namespace moegen
