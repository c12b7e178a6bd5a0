// A whole W4A16 layer in one kernel, for few tokens: route, first product with activation, second product, ordered
// combine. One block a multiprocessor; block_work.cuh says how blocks share the work.
#pragma once

#include <cstdint>

#include "block_consume.cuh"
#include "block_produce.cuh"
#include "block_publish.cuh"

namespace moegen {

// K names, beside what block_plan.h lists: Element (the dtype of tokens), Activation, Output (epilogue.cuh), Id, and
// kWeightedInput, kWeightedCombine: where the router weight is multiplied in.
template <class K>
__device__ __forceinline__ void layer_block(const BlockArguments& p) {
  using P = BlockPlan<K>;
  extern __shared__ __align__(1024) uint8_t memory[];
  uint32_t base = smem_address(memory);
  asm volatile("mov.b32 %0, %0;" : "+r"(base));  // opaque: else it is recomputed every stage
  const BlockShared<K> shared{base};
  int* const row_slot = reinterpret_cast<int*>(memory + P::kRowSlotOffset);
  int* const slot_row = reinterpret_cast<int*>(memory + P::kSlotRowOffset);
  int* const counts = reinterpret_cast<int*>(memory + P::kCountOffset);
  int* const experts = reinterpret_cast<int*>(memory + P::kPartialOffset);  // before sums lie there
  const int role = int(threadIdx.x / 32) - P::kConsumers / 32;
  if (role == 0) shared.init_barriers();
  for (int e = threadIdx.x; e < K::kExperts; e += P::kThreads) counts[e] = 0;
  dependency_wait();
  dependency_launch();
  const auto* ids = static_cast<const typename K::Id*>(p.ids);
  const BlockSlots<K> slots(ids, p.first_expert, role < 0 ? p.tokens * K::kTopK : 0);
  __syncthreads();
  if (role < 0) slots.count(counts, experts);
  __syncthreads();
  if (role >= 0 && role < P::kWeightWarps) {
    const bool leader = threadIdx.x % 32 == 0;
    if (role == 0) {
      const int tiles = list_tiles<K>(shared, counts);
      if (leader) store_shared(shared.tile_total(), tiles);
      __syncwarp();
      barrier_arrive(shared.listed());
    } else if (role == 1 && leader) {
      store_shared(shared.first_ticket(), draw_ticket(p.scratch + P::kTicketWord));
      barrier_arrive(shared.drawn());
    }
    if (leader) produce_weights<K>(p, shared, role);
    return;
  }
  if (role < 0) slots.map(experts, counts, shared.listed(), row_slot, slot_row);
  named_barrier(kRouted, P::kThreads - 32 * P::kWeightWarps);
  if (role < 0) {
    consume_items<K, typename K::Activation, typename K::Output>(p, shared, row_slot);
  } else if (role < P::kWeightWarps + P::kTokenWarps) {
    produce_tokens<K, K::kWeightedInput>(p, shared, row_slot, role - P::kWeightWarps);
    leave<K>(p, int(load_shared(shared.tile_total())));
  } else {
    publish_items<K, K::kWeightedCombine>(p, shared, row_slot, slot_row, role - P::kWeightWarps - P::kTokenWarps);
  }
}

}  // namespace moegen
