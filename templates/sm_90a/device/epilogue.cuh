// What a gemm does with its accumulators: common parts, and the epilogues that write rows.
//
// A wgmma fragment gives a thread, for tokens 2q and 2q+1 of each group of 8 (q = lane % 4), weight rows g and g + 8 (g
// = lane / 4) of its warp's 16. The packer permutes weight rows so that those are
//   gated W1:  gate and up of one channel; a warp's 8 channels are one 16-byte piece of the private row order
//   (rows.cuh) plain W1:  one channel of each of two neighbouring pieces W2:        channels 4 (g / 2) + g % 2 and two
//   more of 16 neighbours, so that two transposed pairs make 8 bytes
#pragma once

#include <cstdint>

#include "activated.cuh"
#include "elements.cuh"
#include "grouped_gemm.cuh"
#include "rounding.cuh"
#include "tokens.cuh"

namespace moegen {

// A thread's coordinates within a warpgroup's fragment.
struct Lane {
  int warp, g, q;
  __device__ Lane() {
    uint32_t thread = threadIdx.x;
    asm volatile("mov.b32 %0, %0;"
                 : "+r"(thread));  // opaque: else addresses of all items live, and spill, in the main loop
    warp = thread / 32 % 4;
    g = thread % 32 / 4;
    q = thread % 4;
  }
};

// m64 tile of an expert's weights that fragment m of this warpgroup belongs to.
template <class C>
__device__ __forceinline__ int m64_tile(const WorkItem& item, int m) {
  return item.row_tile * Plan<C>::kTileRows64 + (item.first_group() + int(threadIdx.x / 128)) * C::kTiles + m;
}

// Channel of element (g, piece) of a 64-channel chunk.
__device__ __forceinline__ int piece_channel(int chunk, int piece, int g) {
  return chunk * kChunkK + 16 * (g / 2) + 2 * piece + g % 2;
}

// Slot of a row: read past L1, since routing may end while a gemm runs; a kernel that routes by itself (A::kRoutes)
// keeps the map in shared memory.
template <class A>
__device__ __forceinline__ int routed_slot(const int32_t* row_slot) {
  if constexpr (requires { A::kRoutes; }) {
    return *row_slot;
  } else {
    return __ldcg(row_slot);
  }
}

// Router weights of tokens 2q and 2q+1, or 1 where they are applied elsewhere; 0 for padding rows.
template <class A>
struct TokenFactor {
  float value[2];
  bool real[2];
  __device__ TokenFactor(const GemmArguments& p, const WorkItem& item, int token) {
#pragma unroll
    for (int b = 0; b < 2; b++) {
      real[b] = token + b < item.rows;
      value[b] = 1.0f;
      if constexpr (A::kWeighted) {
        if (real[b]) value[b] = p.topk_weights[routed_slot<A>(p.row_slot + item.row + token + b)];
      }
    }
  }
  __device__ float weigh(float z, int b) const { return A::kWeighted ? __fmul_rn(z, value[b]) : z; }
  __device__ float apply(float z, int b) const { return real[b] ? weigh(z, b) : 0.0f; }
};

// Calls `compute` for each group of 8 tokens that holds rows, and `use` with what it made. Groups of a batch are
// computed together, so that the arithmetic of one hides another's latency; a branch a group would keep them apart.
template <class C, int kBatch = 2, class Compute, class Use>
__device__ __forceinline__ void each_group(int rows, const Compute& compute, const Use& use) {
  constexpr int kGroups = C::kWidth / kGroupRows;
#pragma unroll
  for (int start = 0; start < kGroups; start += kBatch) {
    if (start * kGroupRows >= rows) break;
    decltype(compute(0)) made[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch && start + i < kGroups; i++) made[i] = compute(start + i);
#pragma unroll
    for (int i = 0; i < kBatch && start + i < kGroups; i++) {
      if ((start + i) * kGroupRows < rows) use(start + i, made[i]);
    }
  }
}

// gemm1 compact: activated rows in the private order.
template <class A>
struct CompactRows {
  static constexpr int kAlphas = A::kHalves;
  static constexpr int kChunks = row_chunks(A::kIntermediate);
  static constexpr int kUsedChunks = (A::kIntermediate + kChunkK - 1) / kChunkK;

  // Where a lane's four bytes of the item's first group go: block q's pair of `piece`, row r.
  static __device__ __forceinline__ uint8_t* place(const GemmArguments& p, const WorkItem& item, int chunk, int piece,
                                                   const Lane& lane) {
    return static_cast<uint8_t*>(p.out) + atom_offset(item.row, chunk, kChunks) + pair_offset(lane.g, piece, lane.q);
  }

  static __device__ __forceinline__ void store_pair(uint8_t* first, int group, int chunk, uint32_t pair) {
    uint8_t* out = first + group * (kChunks * kAtomBytes);
    *reinterpret_cast<uint32_t*>(out) = pair;
    if (kChunks > kUsedChunks && chunk == kUsedChunks - 1) {  // the filler chunk of the last K unit
      *reinterpret_cast<uint32_t*>(out + kAtomBytes) = 0;
    }
  }

  // Products of a gated fragment, one batch of groups after the other: the arithmetic of one group hides another's
  // latency, where a branch a group would keep them apart. Approximations come first; half a batch is computed again
  // where they leave a doubt.
  template <class C, class Use>
  static __device__ __forceinline__ void store_gated(const GemmArguments& p, const WorkItem& item,
                                                     const float (&acc)[C::kWidth / 2], const Activated<A>& activated,
                                                     bool inside, const Lane& lane, const Use& use) {
    using Near = typename Activated<A>::NearGate;
    using Exact = typename Activated<A>::ExactGate;
    // A larger batch spills beside more than two tiles, where four warpgroups share the registers, and with biases.
    constexpr bool kShared = C::kConsumerRegisters > 0 && C::kConsumerRegisters <= 104;
    constexpr bool kRoomy = C::kTiles <= 2 && !kShared && !A::kBias;
    constexpr bool kNear = Activated<A>::kNear && C::kNearGates;
    constexpr int kGroups = C::kWidth / kGroupRows, kBatch = kNear && kRoomy ? 4 : 2;
    auto values = [&](int i, auto& gate) {
      const TokenFactor<A> factor(p, item, i * kGroupRows + 2 * lane.q);
      float z[2];
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const float product = activated.gated(gate(acc[4 * i + b]), acc[4 * i + 2 + b]);
        z[b] = !inside ? 0.0f : kNear ? factor.weigh(product, b) : factor.apply(product, b);
        gate.stored(z[b]);
      }
      return A::Element::pack(z[0], z[1]);
    };
#pragma unroll
    for (int start = 0; start < kGroups; start += kBatch) {
      if (start * kGroupRows >= item.rows) break;
      uint32_t pairs[kBatch];
      auto compute = [&](int i, auto& gate) {
        if (start + i < kGroups) pairs[i] = values(start + i, gate);
      };
      if constexpr (kNear) {
        Near near[2] = {{activated}, {activated}};  // of either half of the batch
#pragma unroll
        for (int i = 0; i < kBatch; i++) compute(i, near[i / (kBatch / 2)]);
        if (__any_sync(~0u, near[0].doubt.any() || near[1].doubt.any())) {
          Exact exact{activated};
#pragma unroll
          for (int half = 0; half < 2; half++) {
            if (!__any_sync(~0u, near[half].doubt.any())) continue;
#pragma unroll
            for (int i = 0; i < kBatch / 2; i++) compute(half * (kBatch / 2) + i, exact);
          }
        }
      } else {
        Exact exact{activated};
#pragma unroll
        for (int i = 0; i < kBatch; i++) compute(i, exact);
      }
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        if (start + i >= kGroups) continue;
        const uint32_t row = transpose_8x8(pairs[i]);  // of token lane.g
        const int first = (start + i) * kGroupRows;
        if (first < item.rows) use(start + i, !kNear || first + lane.g < item.rows ? row : 0);
      }
    }
  }

  template <class C>
  static __device__ __forceinline__ void store(const GemmArguments& p, const WorkItem& item,
                                               float (&acc)[C::kTiles][C::kWidth / 2], uint32_t) {
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      const int tile = m64_tile<C>(item, m);
      if (tile >= C::kM64) return;
      Activated<A> activated;
      activated.template prepare<C>(p, item.expert);
      if constexpr (A::kHalves == 2) {
        const int chunk = tile / 2, piece = 4 * (tile % 2) + lane.warp, channel = piece_channel(chunk, piece, lane.g);
        activated.prepare_gated(p, item.expert, channel);
        const bool inside = A::kIntermediate % kChunkK == 0 || channel < A::kIntermediate;
        uint8_t* first = place(p, item, chunk, piece, lane);
        store_gated<C>(p, item, acc[m], activated, inside, lane,
                       [&](int i, uint32_t pair) { store_pair(first, i, chunk, pair); });
      } else {
        const int piece = 2 * lane.warp;
        const int low = piece_channel(tile, piece, lane.g), high = piece_channel(tile, piece + 1, lane.g);
        activated.prepare_plain(p, item.expert, low, high);
        uint8_t* first = place(p, item, tile, piece, lane);
        uint8_t* second = place(p, item, tile, piece + 1, lane);
        each_group<C>(
            item.rows,
            [&](int i) {
              const TokenFactor<A> factor(p, item, i * kGroupRows + 2 * lane.q);
              float z[2], y[2];
#pragma unroll
              for (int b = 0; b < 2; b++) {
                z[b] = low < A::kIntermediate ? factor.apply(activated.first(acc[m][4 * i + b]), b) : 0.0f;
                y[b] = high < A::kIntermediate ? factor.apply(activated.second(acc[m][4 * i + 2 + b]), b) : 0.0f;
              }
              return make_uint2(transpose_8x8(A::Element::pack(z[0], z[1])),
                                transpose_8x8(A::Element::pack(y[0], y[1])));
            },
            [&](int i, uint2 pairs) {
              store_pair(first, i, tile, pairs.x);
              store_pair(second, i, tile, pairs.y);
            });
      }
    }
  }
};

// gemm1 interleaved: row-major [R, 2I], G(gate) x8 then the product x8.
template <class A>
struct InterleavedRows {
  static constexpr int kAlphas = A::kHalves;
  template <class C>
  static __device__ __forceinline__ void store(const GemmArguments& p, const WorkItem& item,
                                               float (&acc)[C::kTiles][C::kWidth / 2], uint32_t) {
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      const int tile = m64_tile<C>(item, m);
      if (tile >= C::kM64) return;
      Activated<A> activated;
      activated.template prepare<C>(p, item.expert);
      const int chunk = tile / 2, piece = 4 * (tile % 2) + lane.warp;
      activated.prepare_gated(p, item.expert, piece_channel(chunk, piece, lane.g));
      const int stored =
          piece_channel(chunk, piece, 2 * lane.q);  // after the transposition a thread holds two channels
#pragma unroll
      for (int i = 0; i < C::kWidth / 8; i++) {
        if (i * kGroupRows >= item.rows) break;
        const TokenFactor<A> factor(p, item, i * kGroupRows + 2 * lane.q);
        float gate[2], z[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
          gate[b] = activated.whole_gate(acc[m][4 * i + b]);
          z[b] = factor.apply(activated.gated(activated.rounded(gate[b]), acc[m][4 * i + 2 + b]), b);
          gate[b] = factor.real[b] ? gate[b] : 0.0f;
        }
        const uint32_t gates = transpose_8x8(A::Element::pack(gate[0], gate[1])),
                       products = transpose_8x8(A::Element::pack(z[0], z[1]));
        if (stored < A::kIntermediate) {
          const int64_t row = item.row + i * kGroupRows + lane.g;
          uint16_t* out = static_cast<uint16_t*>(p.out) + row * (2 * A::kIntermediate) + stored / 8 * 16 + stored % 8;
          *reinterpret_cast<uint32_t*>(out) = gates;
          *reinterpret_cast<uint32_t*>(out + 8) = products;
        }
      }
    }
  }
};

// Values of a W2 fragment: alpha, then bias.
template <class O>
struct Projected {
  float alpha, bias[2] = {0.0f, 0.0f};
  int channel;  // of row g; row g + 8 is two further on

  template <class C>
  __device__ void prepare(const GemmArguments& p, int expert, int tile, const Lane& lane) {
    alpha = scaled_alpha<C, 1, O::kPair>(p, expert, 0);
    channel = tile * 64 + lane.warp * 16 + lane.g / 2 * 4 + lane.g % 2;
    if constexpr (O::kBias) {
      if (channel < O::kHidden) {
        bias[0] = p.bias[int64_t(expert) * O::kHidden + channel];
        bias[1] = p.bias[int64_t(expert) * O::kHidden + channel + 2];
      }
    }
  }
  __device__ float value(float acc, int half) const {
    const float v = __fmul_rn(acc, alpha);
    return O::kBias ? __fadd_rn(v, bias[half]) : v;
  }
};

// gemm2: rows [R, H], row-major; padding rows stay unwritten. O names Element, kHidden, kPair, kBias.
template <class O>
struct OutputRows {
  static constexpr int kAlphas = 1;
  template <class C>
  static __device__ __forceinline__ void store(const GemmArguments& p, const WorkItem& item,
                                               float (&acc)[C::kTiles][C::kWidth / 2], uint32_t) {
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      const int tile = m64_tile<C>(item, m);
      if (tile >= C::kM64) return;
      Projected<O> projected;
      projected.template prepare<C>(p, item.expert, tile, lane);
      const int stored = tile * 64 + lane.warp * 16 + lane.q * 4;
      uint16_t* out = static_cast<uint16_t*>(p.out) + int64_t(item.row + lane.g) * O::kHidden + stored;
      constexpr bool kRoomy = C::kConsumerRegisters >= 200;  // two warpgroups have the registers for larger batches
      if constexpr (kRoomy) asm volatile("" : "+l"(out));    // opaque: else every store makes its address anew
      each_group<C, kRoomy ? 6 : 2>(
          item.rows,
          [&](int i) {
            const float* v = acc[m] + 4 * i;
            return make_uint2(transpose_8x8(O::Element::pack(projected.value(v[0], 0), projected.value(v[1], 0))),
                              transpose_8x8(O::Element::pack(projected.value(v[2], 1), projected.value(v[3], 1))));
          },
          [&](int i, uint2 pairs) {
            if (i * kGroupRows + lane.g < item.rows && stored < O::kHidden) {
              uint16_t* const row = out + i * (kGroupRows * O::kHidden);
              if constexpr (kRoomy) {
                store_global_kept(row, pairs);
              } else {
                *reinterpret_cast<uint2*>(row) = pairs;
              }
            }
          });
    }
  }
};

// gemm2 with the weighted sum fused: fp32 atomic adds into [T, H]. O also names kWeighted, kTopK.
template <class O>
struct AtomicRows {
  static constexpr int kAlphas = 1;
  template <class C>
  static __device__ __forceinline__ void store(const GemmArguments& p, const WorkItem& item,
                                               float (&acc)[C::kTiles][C::kWidth / 2], uint32_t) {
    const Lane lane;
#pragma unroll
    for (int m = 0; m < C::kTiles; m++) {
      const int tile = m64_tile<C>(item, m);
      if (tile >= C::kM64) return;
      Projected<O> projected;
      projected.template prepare<C>(p, item.expert, tile, lane);
      if (projected.channel >= O::kHidden) continue;
#pragma unroll
      for (int i = 0; i < C::kWidth / 8; i++) {
        if (i * kGroupRows >= item.rows) break;
#pragma unroll
        for (int b = 0; b < 2; b++) {
          const int token = i * kGroupRows + 2 * lane.q + b;
          if (token >= item.rows) continue;
          const int slot = p.row_slot[item.row + token];
          const float weight = O::kWeighted ? p.topk_weights[slot] : 1.0f;
          float* out = static_cast<float*>(p.out) + int64_t(slot / O::kTopK) * O::kHidden + projected.channel;
          atomicAdd(out, __fmul_rn(weight, projected.value(acc[m][4 * i + b], 0)));
          atomicAdd(out + 2, __fmul_rn(weight, projected.value(acc[m][4 * i + 2 + b], 1)));
        }
      }
    }
  }
};

}  // namespace moegen
