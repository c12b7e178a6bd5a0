// What racecheck says of a ring of stages, by how consumers give a stage back: one lane fills by bulk copies, four warps
// read with ordinary loads. Forms up to `group` are ordered, the last two are not.
//
//     nvcc -std=c++20 -O3 -arch=sm_90a -I templates benchmarks/hopper/racecheck_ring.cu -o ring
//     for form in 0 1 2 3 4 5 6; do compute-sanitizer --tool racecheck ./ring $form; done; ./ring
//
// Without an argument it prints what an arrival costs.
#include <cstdio>
#include <cstdlib>

#include "sm_90a/device/ptx.cuh"

using namespace moegen;

constexpr int kStages = 2, kWarps = 4, kReaders = kWarps * 32, kUnits = 12, kBytes = kReaders * 16;

enum Form {
  kEvery,      // every lane arrives
  kLane,       // lane 0 of each warp arrives
  kSyncLane,   // the same after __syncwarp
  kReduced,    // the same after a reduction over what all lanes have read
  kGroup,      // thread 0 arrives after a barrier of all readers
  kEarly,      // wrong: every lane arrives before it reads
  kUnguarded,  // wrong: the filling lane does not wait
};

__device__ int arrivals(int form) {
  return form == kGroup ? 1 : form == kLane || form == kSyncLane || form == kReduced ? kWarps : kReaders;
}

template <int kForm>
__global__ void ring(const uint8_t* in, uint32_t* out) {
  __shared__ __align__(1024) uint8_t stages[kStages][kBytes];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  const auto full = [&](int stage) { return smem_address(&barriers[stage]); };
  const auto empty = [&](int stage) { return smem_address(&barriers[kStages + stage]); };
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; stage++) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), arrivals(kForm));
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kReaders) {
#pragma unroll 1
    for (int unit = 0; unit < kUnits; unit++) {
      const int stage = unit % kStages;
      if (kForm != kUnguarded) barrier_wait(empty(stage), (unit / kStages & 1) ^ 1);
      if (lane == 0) {
        barrier_expect_bytes(full(stage), kBytes);
        bulk_copy(smem_address(stages[stage]), in + unit * kBytes, kBytes, full(stage), kEvictFirst);
      }
      __syncwarp();
    }
    return;
  }
  uint32_t sum = 0;
#pragma unroll 1
  for (int unit = 0; unit < kUnits; unit++) {
    const int stage = unit % kStages;
    barrier_wait(full(stage), unit / kStages & 1);
    if (kForm == kEarly) barrier_arrive(empty(stage));
    const uint4 v = load_shared_v4(smem_address(stages[stage]) + threadIdx.x * 16);
    sum = sum * 31 + (v.x ^ v.y ^ v.z ^ v.w);
    if (kForm == kSyncLane) __syncwarp();
    if (kForm == kReduced) sum += __reduce_xor_sync(~0u, sum);
    if (kForm == kGroup) named_barrier(1, kReaders);
    const bool arrives = kForm == kGroup ? threadIdx.x == 0 : kForm == kEvery || kForm == kUnguarded || lane == 0;
    if (kForm != kEarly && arrives) barrier_arrive(empty(stage));
  }
  out[threadIdx.x] = sum;
}

// Cycles that `kTimes` arrivals take, by every lane or by lane 0 of each warp, all warps at once.
constexpr int kTimes = 256;
__global__ void cost(long long* cycles, bool every) {
  __shared__ __align__(8) uint64_t barrier;
  const uint32_t address = smem_address(&barrier);
  if (threadIdx.x == 0) barrier_init(address, every ? blockDim.x : blockDim.x / 32);
  __syncthreads();
  const bool arrives = every || threadIdx.x % 32 == 0;
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < kTimes; i++) barrier_arrive_if(address, arrives);
  barrier_wait(address, 1);  // of the phase before: returns at once
  if (threadIdx.x == 0) *cycles = clock64() - start;
}

template <int kForm = 0>
void run(int form, const uint8_t* in, uint32_t* out) {
  if (form == kForm) {
    ring<kForm><<<1, kReaders + 32>>>(in, out);
  } else if constexpr (kForm < kUnguarded) {
    run<kForm + 1>(form, in, out);
  }
}

int main(int count, char** words) {
  uint8_t* in;
  uint32_t* out;
  long long* cycles;
  cudaMalloc(&in, kUnits * kBytes);
  cudaMalloc(&out, kReaders * sizeof(uint32_t));
  cudaMalloc(&cycles, sizeof(long long));
  cudaMemset(in, 0x35, kUnits * kBytes);
  if (count > 1) {
    run(std::atoi(words[1]), in, out);
  } else {
    for (int warps : {4, 8, 16}) {
      for (bool every : {false, true}) {
        long long found = 0;
        for (int i = 0; i < 2; i++) cost<<<1, warps * 32>>>(cycles, every);
        cudaMemcpy(&found, cycles, sizeof found, cudaMemcpyDeviceToHost);
        std::printf("%d warps, %s: %.1f cycles\n", warps, every ? "every lane" : "lane 0", double(found) / kTimes);
      }
    }
  }
  const cudaError_t status = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorString(status));
  return status == cudaSuccess ? 0 : 1;
}
