// Grouped GEMM: packed NVFP4 weights x 16-bit token rows, one expert a group, fp32 accumulators handed to an epilogue.
//
// Weights are wgmma's A operand, decoded into registers; tokens are B, in shared memory. kGroups consumer warpgroups
// own kTiles m64 weight tiles each; a producer fills a ring of stages of K = 128: tokens, then weights.
//
// Order among kernels (see ptx.cuh): weights never change within a chain, so the first ring of them is fetched before
// the wait. The first kernel of a ladder waits for its tokens, then launches the next; the later ones find tokens
// complete when they start and wait only at their end, so that a successor's wait covers the whole ladder.
#pragma once

#include <cstdint>

#include "decode.cuh"
#include "gemm_plan.h"
#include "ptx.cuh"
#include "rows.cuh"
#include "wgmma.cuh"
#include "work.cuh"

namespace moegen {

// C is the configuration that gemm_plan.h describes, with `Operand` (the dtype of both operands: Bf16, Fp16), `Tokens`
// (tokens.cuh) and `Epilogue` (epilogue.cuh).

// Where one stage's barriers and bytes lie.
template <class C>
struct Ring {
  using P = Plan<C>;
  uint32_t base;
  int slot = 0;
  uint32_t phase;

  __device__ Ring(uint32_t base_, uint32_t first_phase) : base(base_), phase(first_phase) {}
  __device__ uint32_t full() const { return base + P::kBarrierOffset + 8 * slot; }
  __device__ uint32_t empty() const { return base + P::kBarrierOffset + 8 * (P::kStages + slot); }
  __device__ uint32_t tokens() const { return base + slot * P::kStageBytes; }
  __device__ uint32_t weights() const { return tokens() + P::kTokenBytes; }
  __device__ void advance(int stages = 1) {  // which never pass the last one
    slot += stages;
    if (slot == P::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// An item's weights, one K unit after another: one contiguous piece a unit.
template <class C>
struct WeightStream {
  using P = Plan<C>;
  const uint8_t* next;
  int tiles;  // m64 tiles of the item; the last row tile of an expert may hold fewer
  int first;  // m64 tile of the expert

  __device__ __forceinline__ void begin(const uint8_t* packed, const WorkItem& item) {
    first = item.row_tile * P::kTileRows64 + item.first_group() * C::kTiles;
    next = packed + int64_t(item.expert) * P::kExpertBytes + int64_t(first) * kUnitBytes;
    tiles = min(item.part == 0 ? P::kTileRows64 : item.groups() * C::kTiles, C::kM64 - first);
  }

  // Starts the copies of `unit` and posts their bytes and `more` on the stage's barrier; called by one thread.
  __device__ __forceinline__ void copy(const Ring<C>& ring, int unit, int more) {
    if (P::kHalfTail && unit == P::kUnits - 1) {  // half units keep the full units' pitch in shared memory
      const uint8_t* source = next - int64_t(first) * (kUnitBytes - kHalfUnitBytes);
      barrier_expect_bytes(ring.full(), tiles * kHalfUnitBytes + more);
#pragma unroll 1
      for (int i = 0; i < tiles; i++) {
        bulk_copy(ring.weights() + i * kUnitBytes, source + i * kHalfUnitBytes, kHalfUnitBytes, ring.full(),
                  kEvictFirst);
      }
    } else {
      barrier_expect_bytes(ring.full(), tiles * kUnitBytes + more);
      bulk_copy(ring.weights(), next, tiles * kUnitBytes, ring.full(), kEvictFirst);
    }
    next += int64_t(C::kM64) * kUnitBytes;
  }
};

// K-major operand with 128-byte swizzle: groups of 8 rows 2048 bytes apart (two chunks of a stage), 1024-byte aligned
// atoms.
__device__ __forceinline__ uint64_t token_descriptor(uint32_t address) {
  const uint32_t start = __shfl_sync(~0u, (address & 0x3FFFFu) >> 4, 0);  // uniform: else ptxas moves it per lane
  return uint64_t(start) | (uint64_t(1) << 16) | (uint64_t(2048 >> 4) << 32) | (uint64_t(1) << 62);
}
inline constexpr int kDescriptorStep = 32 >> 4;
inline constexpr int kDescriptorChunk = kAtomBytes >> 4;

// Four k16 steps: 64 rows x 64 of K against the token tile.
template <int N, class Operand>
__device__ __forceinline__ void multiply_chunk(float (&acc)[N / 2], uint32_t (&a)[16], const uint4& words,
                                               uint32_t scales, uint64_t descriptor) {
  decode_words<Operand>(words, broadcast_low(scales), broadcast_high(scales), a);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; j++) Wgmma<N>::template multiply<Operand>(acc, a + 4 * j, descriptor + j * kDescriptorStep);
  wgmma_commit();
}

// Offsets in a stage of what a consumer thread reads. Opaque, so that they stay in registers: ptxas would make them
// anew from the thread's index every stage.
template <class C>
struct Share {
  uint32_t codes, scales;
  __device__ Share() {
    const uint32_t thread = threadIdx.x % 128;
    const uint32_t weights = Plan<C>::kTokenBytes + threadIdx.x / 128 * C::kTiles * kUnitBytes;
    codes = weights + kScaleBytes + thread * 16;
    scales = weights + thread * 4;
    asm volatile("" : "+r"(codes), "+r"(scales));
  }
};

// Operand buffers: one a tile, at least two, so that a warp decodes one while another multiplies.
template <class C>
inline constexpr int kBuffers = C::kTiles == 1 ? 2 : C::kTiles;

// Units of K that one turn of the loop multiplies: addresses of the second are constants away from the first's.
template <class C>
inline constexpr int kUnitsATurn = C::kTiles == 1 && Plan<C>::kUnits % 2 == 0 && Plan<C>::kStages % 2 == 0 ? 2 : 1;

// The stage read last, if any. Every lane gives it back, for its own loads: an arrival orders what its thread has done,
// and one by 32 lanes takes no longer than one by the first.
struct Held {
  uint32_t barrier;
  bool any;
  __device__ __forceinline__ void release() const { barrier_arrive_if(barrier, any); }
};

// Multiplies one unit of a stage at `tokens`, whose barrier is `full`, and releases the stage before as soon as its
// last products are done.
//
// A wait for a barrier, complete or not, ends a basic block. ptxas gives each step between two of them registers of its
// own, so no more steps than buffers lie between; past that it serialises the wgmmas (C7512).
template <class C>
__device__ __forceinline__ void multiply_unit(float (&acc)[C::kTiles][C::kWidth / 2],
                                              uint32_t (&a)[kBuffers<C>][16], uint32_t full, uint32_t phase,
                                              uint32_t tokens, uint64_t descriptor, const Share<C>& share,
                                              const Held& before) {
  using Operand = typename C::Operand;
  constexpr int kSteps = 2 * C::kTiles;
  barrier_wait(full, phase);
  if constexpr (C::kArrivals > 1) fence_async_shared();  // tokens were stored by threads, wgmma reads by another proxy
  uint32_t words[C::kTiles];
#pragma unroll
  for (int m = 0; m < C::kTiles; m++) words[m] = load_shared(tokens + share.scales + m * kUnitBytes);
  const uint32_t codes = tokens + share.codes;
  uint4 next = load_shared_v4(codes);
#pragma unroll
  for (int step = 0; step < kSteps; step++) {
    const int chunk = step / C::kTiles, m = step % C::kTiles, then = step + 1;
    if (step == kBuffers<C> && then < kSteps) barrier_wait(full, phase);
    const uint4 now = next;
    if (then < kSteps) next = load_shared_v4(codes + then % C::kTiles * kUnitBytes + then / C::kTiles * kChunkBytes);
    wgmma_wait<kBuffers<C> - 1>();  // the buffer's last products
    if (step == kBuffers<C> - 1) before.release();
    const uint32_t scales = Decoder<Operand>::scales(chunk == 0 ? words[m] : swap_scale_chunks(words[m]));
    multiply_chunk<C::kWidth, Operand>(acc[m], a[step % kBuffers<C>], now, scales,
                                       descriptor + chunk * kDescriptorChunk);
  }
}

// Accumulates one item over K.
template <class C>
__device__ __forceinline__ void accumulate(float (&acc)[C::kTiles][C::kWidth / 2], Ring<C>& ring,
                                           const Share<C>& share) {
  using P = Plan<C>;
  constexpr int kTurn = kUnitsATurn<C>;
#pragma unroll
  for (int m = 0; m < C::kTiles; m++) {
#pragma unroll
    for (int i = 0; i < C::kWidth / 2; i++) acc[m][i] = 0.0f;
  }
  uint32_t a[kBuffers<C>][16];
  Held before{ring.empty(), false};
#pragma unroll 1
  for (int unit = 0; unit < P::kUnits; unit += kTurn) {
    const uint64_t descriptor = token_descriptor(ring.tokens());
#pragma unroll
    for (int i = 0; i < kTurn; i++) {
      multiply_unit<C>(acc, a, ring.full() + 8 * i, ring.phase, ring.tokens() + i * P::kStageBytes,
                       descriptor + i * (P::kStageBytes >> 4), share, before);
      before = Held{ring.empty() + 8 * i, true};
    }
    ring.advance(kTurn);
  }
  wgmma_wait<0>();
  barrier_arrive(before.barrier);
}

// Where item `count` of this block is passed from producer to consumers; the ring is longer than the stages can run
// ahead.
template <class C>
__device__ __forceinline__ uint32_t item_address(uint32_t base, int count) {
  static_assert(Plan<C>::kStages + 2 <= Plan<C>::kItemRing);
  return base + Plan<C>::kItemOffset + count % Plan<C>::kItemRing * WorkItem::kBytes;
}

// Delays the later warpgroups once, by about a stage each. The lag lasts, so that one warpgroup's epilogue runs while
// another multiplies; in step, all of them would leave the tensor cores idle. Only where tiles are wide enough to gain
// from it.
template <class C>
__device__ __forceinline__ void stagger(const Ring<C>& ring) {
  constexpr int kCycles = C::kWidth >= 96 ? 2600 : 700;
  if constexpr (C::kWidth >= 48) {
    barrier_wait(ring.full(), ring.phase);
    const int64_t start = clock64();
    while (clock64() - start < kCycles * int64_t(threadIdx.x / 128)) {
    }
  }
}

// Gives an item's stages back unread: this warpgroup has no share of it.
template <class C>
__device__ __forceinline__ void pass(Ring<C>& ring) {
#pragma unroll 1
  for (int unit = 0; unit < Plan<C>::kUnits; unit++, ring.advance()) {
    barrier_wait(ring.full(), ring.phase);
    barrier_arrive(ring.empty());
  }
}

// Consumer warps: wait for an item, accumulate it, hand it to the epilogue.
template <class C>
__device__ __forceinline__ void consume(const GemmArguments& p, uint32_t base) {
  using P = Plan<C>;
  if constexpr (C::kConsumerRegisters > 0) registers_raise<C::kConsumerRegisters>();
  Ring<C> ring(base, 0);
  const Share<C> share;
  stagger<C>(ring);
#pragma unroll 1
  for (int count = 0;; count++) {
    barrier_wait(ring.full(), ring.phase);
    const WorkItem coming = WorkItem::load(item_address<C>(base, count));
    const int expert = __shfl_sync(~0u, coming.expert, 0);
    if (expert < 0) break;
    if constexpr (C::kParts > 1) {
      const int groups = __shfl_sync(~0u, coming.groups(), 0);
      if (groups > 0 && int(threadIdx.x / 128) >= groups) {
        pass<C>(ring);
        continue;
      }
    }
    load_to_l1(p.alpha + expert * C::Epilogue::kAlphas);  // the epilogue would wait for it
    float acc[C::kTiles][C::kWidth / 2];
    accumulate<C>(acc, ring, share);
    const WorkItem item = WorkItem::load(item_address<C>(base, count));  // read again: nothing of it lives in the loop
    C::Epilogue::template store<C>(p, item, acc, base + P::kEpilogueOffset);
  }
}

template <class C>
__device__ __forceinline__ void grouped_gemm(const GemmArguments& p) {
  using P = Plan<C>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint32_t base = smem_address(shared);
  asm volatile("mov.b32 %0, %0;" : "+r"(base));  // opaque: else it is recomputed every stage
  if (threadIdx.x == 0) {
    Ring<C> ring(base, 0);
    for (int s = 0; s < P::kStages; s++) {
      barrier_init(ring.full(), C::kArrivals);
      barrier_init(ring.empty(), P::kConsumers);
      ring.advance();
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < P::kConsumers) {
    consume<C>(p, base);
  } else {
    C::Tokens::template produce<C>(p, base);
  }
}

}  // namespace moegen
