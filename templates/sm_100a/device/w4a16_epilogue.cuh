// What a W4A16 gemm does with its accumulators: the exact chain, then rows in the token dtype or sums in fp32.
//
// Lane 4 g + q holds, for tokens 2 q and 2 q + 1 of each group of 8, weight rows g and g + 8 of a fragment: gate and up
// of one channel where W1 is gated (its rows alternate by 8), else two channels. A transposition in the warp turns
// eight channels of eight tokens around, so that four lanes store 16 bytes of a token.
#pragma once

#include <cstdint>

#include "w4a16_gemm.cuh"

namespace moegen {

// A lane's place in a tile.
template <class S>
struct Place {
  int g, q, first;  // `first`: the warp's first fragment
  __device__ Place()
      : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4), first(int(threadIdx.x / 32) * S::kFragments) {}
  __device__ int weight_row(const Tile& tile, int f) const { return S::fragment_row(tile.row_tile, first + f); }
};

// alpha of a half, with the power of two that decoded weights owe; exact.
__device__ __forceinline__ float owed(float alpha) { return alpha * kWeightScale; }

__device__ __forceinline__ float scaled(float acc, float alpha) { return __fmul_rn(acc, alpha); }

// Biases of rows g and g + 8 of a warp's fragments.
template <class S, bool Bias>
struct FragmentBias {
  float value[Bias ? S::kFragments : 1][2];
  __device__ FragmentBias(const W4A16Arguments& p, const Tile& tile, const Place<S>& place) {
    if constexpr (Bias) {
#pragma unroll
      for (int f = 0; f < S::kFragments; f++) {
        const int row = place.weight_row(tile, f);
        const float* source = p.bias + int64_t(tile.expert) * S::kN + row + place.g;
        value[f][0] = row < S::kN ? source[0] : 0.0f;
        value[f][1] = row < S::kN ? source[8] : 0.0f;
      }
    }
  }
  __device__ float add(float v, int f, int half) const { return Bias ? __fadd_rn(v, value[f][half]) : v; }
};

// Router weights of tokens 2 q and 2 q + 1 of a group; padding rows give 0.
template <bool Weighted>
struct TokenFactor {
  bool real[2];
  float value[2] = {1.0f, 1.0f};
  __device__ TokenFactor(const W4A16Arguments& p, const Tile& tile, int token) {
#pragma unroll
    for (int b = 0; b < 2; b++) {
      real[b] = token + b < tile.real_rows;
      if constexpr (Weighted) {
        if (real[b]) value[b] = p.topk_weights[p.row_slot[tile.first_row + token + b]];
      }
    }
  }
  __device__ float apply(float z, int b) const {
    if (!real[b]) return 0.0f;
    return Weighted ? __fmul_rn(z, value[b]) : z;
  }
};

// gemm1: activated rows. A names activation(), kHalves, kColumns (of a stored row), kInterleaved, kRoundGate, kBias,
// kWeighted.
template <class A>
struct ActivatedRows {
  template <class G>
  static __device__ __forceinline__ void store(const W4A16Arguments& p, const Tile& tile,
                                               const Accumulators<typename G::Shape>& acc) {
    using S = typename G::Shape;
    const Place<S> place;
    const float* alphas = p.alpha + tile.expert * A::kHalves;
    const float alpha = owed(alphas[0]), up_alpha = owed(alphas[A::kHalves - 1]);
    const FragmentBias<S, A::kBias> bias(p, tile, place);
#pragma unroll
    for (int n = 0; n < S::kTokenGroups; n++) {
      const TokenFactor<A::kWeighted> factor(p, tile, n * 8 + 2 * place.q);
      uint16_t* out = static_cast<uint16_t*>(p.out) + int64_t(tile.first_row + n * 8 + place.g) * A::kColumns;
#pragma unroll
      for (int f = 0; f < S::kFragments; f++) {
        const int row = place.weight_row(tile, f);
        if (row >= S::kN) continue;
        float first[2], second[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
          first[b] = bias.add(scaled(acc[f][n][b], alpha), f, 0);
          second[b] = bias.add(scaled(acc[f][n][2 + b], up_alpha), f, 1);
          activate(first[b], second[b], factor, b);
        }
        const uint32_t low = transpose_8x8(G::Operands::pack(first[0], first[1]));
        const uint32_t high = transpose_8x8(G::Operands::pack(second[0], second[1]));
        if constexpr (A::kHalves == 1 || A::kInterleaved) {
          store_pair(out + row + 2 * place.q, low);
          store_pair(out + row + 8 + 2 * place.q, high);
        } else {
          store_pair(out + row / 2 + 2 * place.q, high);
        }
      }
    }
  }

 private:
  // (gate, up) to (G(gate), the product); ungated, two values to their activations.
  static __device__ __forceinline__ void activate(float& first, float& second, const TokenFactor<A::kWeighted>& factor,
                                                  int b) {
    if constexpr (A::kHalves == 2) {
      const float gate = A::activation().gate(first), rounded = A::kRoundGate ? round_bf16(gate) : gate;
      first = factor.real[b] ? gate : 0.0f;
      second = factor.apply(__fmul_rn(rounded, A::activation().up(second)), b);
    } else {
      first = factor.apply(A::activation().value(first), b);
      second = factor.apply(A::activation().value(second), b);
    }
  }

  static __device__ __forceinline__ void store_pair(uint16_t* out, uint32_t pair) {
    *reinterpret_cast<uint32_t*>(out) = pair;
  }
};

// Values of gemm2's accumulators: alpha, then bias.
template <class S, bool Bias>
struct Projected {
  float alpha;
  FragmentBias<S, Bias> bias;
  __device__ Projected(const W4A16Arguments& p, const Tile& tile, const Place<S>& place)
      : alpha(owed(p.alpha[tile.expert])), bias(p, tile, place) {}
  __device__ float value(float acc, int f, int half) const { return bias.add(scaled(acc, alpha), f, half); }
};

// gemm2: rows [R, N]; padding rows stay unwritten. O names kBias.
template <class O>
struct OutputRows {
  template <class G>
  static __device__ __forceinline__ void store(const W4A16Arguments& p, const Tile& tile,
                                               const Accumulators<typename G::Shape>& acc) {
    using S = typename G::Shape;
    const Place<S> place;
    const Projected<S, O::kBias> projected(p, tile, place);
#pragma unroll
    for (int n = 0; n < S::kTokenGroups; n++) {
      const int token = n * 8 + place.g;
      uint16_t* out = static_cast<uint16_t*>(p.out) + int64_t(tile.first_row + token) * S::kN;
#pragma unroll
      for (int f = 0; f < S::kFragments; f++) {
        const int row = place.weight_row(tile, f);
        if (row >= S::kN) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float* v = acc[f][n] + 2 * half;
          const uint32_t pair = transpose_8x8(
              G::Operands::pack(projected.value(v[0], f, half), projected.value(v[1], f, half)));
          if (token < tile.real_rows) *reinterpret_cast<uint32_t*>(out + row + 8 * half + 2 * place.q) = pair;
        }
      }
    }
  }
};

// gemm2 with the weighted sum fused: fp32 atomic adds into [T, N]. O also names kWeighted.
template <class O>
struct AddedRows {
  template <class G>
  static __device__ __forceinline__ void store(const W4A16Arguments& p, const Tile& tile,
                                               const Accumulators<typename G::Shape>& acc) {
    using S = typename G::Shape;
    const Place<S> place;
    const Projected<S, O::kBias> projected(p, tile, place);
#pragma unroll
    for (int n = 0; n < S::kTokenGroups; n++) {
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const int token = n * 8 + 2 * place.q + b;
        if (token >= tile.real_rows) continue;
        const int slot = p.row_slot[tile.first_row + token];
        const float weight = O::kWeighted ? p.topk_weights[slot] : 1.0f;
        float* out = static_cast<float*>(p.out) + int64_t(slot / G::kTopK) * S::kN + place.g;
#pragma unroll
        for (int f = 0; f < S::kFragments; f++) {
          const int row = place.weight_row(tile, f);
          if (row >= S::kN) continue;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const float v = projected.value(acc[f][n][2 * half + b], f, half);
            atomicAdd(out + row + 8 * half, __fmul_rn(weight, v));
          }
        }
      }
    }
  }
};

}  // namespace moegen
