// Publishers of the whole-layer kernel: warps that tell other blocks which rows are stored, and combine a token's rows
// when the last of them has come. Their round trips through L2 hold no consumer up.
#pragma once

#include <cstdint>

#include "block_work.cuh"
#include "row_ops.cuh"

namespace moegen {

// y of one token over a pair of columns a lane: the formula of combine_rows; `rows` is lane j's row of slot j, or -1.
template <class L, bool kWeighted>
__device__ __forceinline__ void combine_columns(const BlockArguments& p, int token, int column, int rows) {
  using Element = typename L::Element;
  const int lane = threadIdx.x % 32;
  const float lane_weight = kWeighted && lane < L::kTopK ? p.topk_weights[token * L::kTopK + lane] : 1.0f;
  const bool inside = column < L::kHidden;
  uint32_t pairs[L::kTopK];
#pragma unroll
  for (int j = 0; j < L::kTopK; j++) {
    const int row = __shfl_sync(~0u, rows, j);
    const uint16_t* source = p.out_rows + int64_t(row) * L::kHidden + column;
    if (row >= 0 && inside) pairs[j] = __ldcg(reinterpret_cast<const unsigned int*>(source));
  }
  float low = 0.0f, high = 0.0f;
#pragma unroll
  for (int j = 0; j < L::kTopK; j++) {
    const float weight = __shfl_sync(~0u, lane_weight, j);
    if (__shfl_sync(~0u, rows, j) < 0) continue;
    low = kWeighted ? __fmaf_rn(weight, Element::low(pairs[j]), low) : __fadd_rn(low, Element::low(pairs[j]));
    high = kWeighted ? __fmaf_rn(weight, Element::high(pairs[j]), high) : __fadd_rn(high, Element::high(pairs[j]));
  }
  if (inside) {
    uint16_t* out = p.y + int64_t(token) * L::kHidden + column;
    *reinterpret_cast<uint32_t*>(out) = Element::round(low, high);
  }
}

// y = 0 of tokens without a valid slot, shared by all blocks' publishers; the others' rows all arrive.
template <class L>
__device__ void clear_tokens(const BlockArguments& p, const int* slot_row, int publisher) {
  constexpr int kPublishers = BlockPlan<L>::kPublishers;
  const int lane = threadIdx.x % 32;
  for (int token = blockIdx.x * kPublishers + publisher; token < p.tokens; token += gridDim.x * kPublishers) {
    const bool valid = lane < L::kTopK && slot_row[token * L::kTopK + lane] >= 0;
    if (__any_sync(~0u, valid)) continue;
    uint4* out = reinterpret_cast<uint4*>(p.y + int64_t(token) * L::kHidden);
    for (int i = lane; i < L::kHidden / 8; i += 32) out[i] = make_uint4(0, 0, 0, 0);
  }
}

// Counts the rows of a stored item's tokens, and combines those tokens whose last row this was.
template <class L, bool kWeighted>
__device__ __forceinline__ void arrive_rows(const BlockArguments& p, const WorkItem& work, const int* row_slot,
                                            const int* slot_row) {
  using P = BlockPlan<L>;
  const int lane = threadIdx.x % 32;
  int token = 0;
  bool completes = false;
  if (lane < work.rows) {
    token = row_slot[work.row + lane] / L::kTopK;
    int valid = 0;
#pragma unroll
    for (int j = 0; j < L::kTopK; j++) valid += slot_row[token * L::kTopK + j] >= 0;
    int* counter = p.scratch + P::kArrivalWord + token * Plan<typename P::Second>::kRowTiles + work.row_tile;
    completes = count_acq_rel(counter) == valid - 1;
    if (completes) *counter = 0;  // as the next launch expects it
  }
  __syncwarp();
  for (uint32_t left = __ballot_sync(~0u, completes); left != 0; left &= left - 1) {
    const int complete = __shfl_sync(~0u, token, __ffs(left) - 1);
    const int rows = lane < L::kTopK ? slot_row[complete * L::kTopK + lane] : -1;
#pragma unroll
    for (int m = 0; m < L::kTiles; m++) {
      combine_columns<L, kWeighted>(p, complete, (work.row_tile * L::kTiles + m) * 64 + 2 * lane, rows);
    }
  }
}

// Publisher warps take items in turn.
template <class L, bool kWeighted>
__device__ void publish_items(const BlockArguments& p, const BlockShared<L>& shared, const int* row_slot,
                              const int* slot_row, int publisher) {
  using P = BlockPlan<L>;
  const int lane = threadIdx.x % 32;
  clear_tokens<L>(p, slot_row, publisher);
#pragma unroll 1
  for (int count = publisher;; count += P::kPublishers) {
    barrier_wait(shared.item_full(count), count / P::kItems & 1);
    const BlockItem item = BlockItem::load(shared.item(count));
    if (item.last()) return;
    barrier_wait(shared.item_stored(count), count / P::kItems & 1);
    if (item.second) {
      arrive_rows<L, kWeighted>(p, item.work, row_slot, slot_row);
    } else if (lane == 0) {
      count_release(p.scratch + P::kDoneWord + item.tile);
    }
    barrier_arrive(shared.item_free(count));
  }
}

}  // namespace moegen
