// PTX wrappers for sm_90a: barriers in shared memory, bulk copies, wgmma ordering, register budgets, dependent
// launches.
//
// Shared-memory addresses are 32-bit (`smem_address`); mbarriers are 8 bytes each and wait on phase parity.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace moegen {

__device__ __forceinline__ uint32_t smem_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// ---- mbarrier -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives only where `active`: a predicate inside the asm, because a branch between wgmmas ends their pipeline (ptxas
// C7513).
__device__ __forceinline__ void barrier_arrive_if(uint32_t barrier, bool active) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(barrier),
               "r"(uint32_t(active))
               : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Barrier `id` (1...15) among `threads` threads of the block.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- copies ---------------------------------------------------------------------------------------------------------

// L2 policies (createpolicy.fractional at 1.0, as constants): weights are read once, and so are gemm2's rows, but these
// should stay until then. Tokens' row tiles are neighbours in the order of work and find them without help.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000ull;
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull;

// Bulk copy global -> shared; addresses and bytes are multiples of 16; completes on `barrier`.
__device__ __forceinline__ void bulk_copy(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Sixteen bytes global -> shared by this thread, past L1.
__device__ __forceinline__ void copy_async_16(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Four bytes global -> shared by this thread; kFilled: only `bytes` (4 or 0) are read, the rest becomes zero.
template <bool kFilled>
__device__ __forceinline__ void copy_async_4(uint32_t target, const void* source, uint32_t bytes) {
  if constexpr (kFilled) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
  }
}

// Arrives once all of this thread's earlier asynchronous copies have landed; one of the barrier's expected arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Orders ordinary stores to shared memory that this thread has made or observed before reads by the tensor cores.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ uint4 load_shared_v4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ int4 load_shared_int4(uint32_t address) {
  int4 v;
  asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_shared_int4(uint32_t address, int4 v) {
  asm volatile("st.shared.v4.s32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// A load that stays where it is written: before a wait, say, to which it owes nothing.
__device__ __forceinline__ uint32_t load_global(const void* p) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ uint4 load_global_v4(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// Reads what nobody will read again.
__device__ __forceinline__ uint4 load_global_last(const void* p) {
  uint4 v;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(kEvictFirst));
  return v;
}

// Writes what a later kernel should find in L2.
__device__ __forceinline__ void store_global_kept(void* p, uint2 v) {
  asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1,%2}, %3;" ::"l"(p), "r"(v.x), "r"(v.y), "l"(kEvictLast)
               : "memory");
}

// Brings a word's line to L1: a load whose result nobody waits for.
__device__ __forceinline__ void load_to_l1(const void* p) { load_global(p); }

// ---- wgmma ordering -------------------------------------------------------------------------------------------------

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements held by a warp, one row a quad.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t v;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(pair));
  return v;
}

// ---- registers ------------------------------------------------------------------------------------------------------

template <int Registers>
__device__ __forceinline__ void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- clusters -------------------------------------------------------------------------------------------------------

// Barrier over the blocks of a cluster, shared memory included; over the block when it is alone.
template <int kBlocks>
__device__ __forceinline__ void cluster_sync() {
  if constexpr (kBlocks > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
}

// Word at `address` of block `rank`'s shared memory.
template <int kBlocks>
__device__ __forceinline__ int load_cluster(uint32_t address, int rank) {
  int value;
  if constexpr (kBlocks > 1) {
    asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.s32 %0, [a]; }"
                 : "=r"(value)
                 : "r"(address), "r"(rank)
                 : "memory");
  } else {
    value = int(load_shared(address));
  }
  return value;
}

// ---- dependent launches ---------------------------------------------------------------------------------------------
//
// Every kernel of a chain launches dependents only after its own wait (or needs no wait: see grouped_gemm.cuh). So when
// a kernel starts, all kernels but its direct predecessor are complete, and `dependency_wait` completes that one too.

__device__ __forceinline__ void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace moegen
