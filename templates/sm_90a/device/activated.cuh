// From accumulators to activated values: alpha, bias, gate and product, exactly or as near as bf16 needs them.
#pragma once

#include <cstdint>

#include "decode.cuh"
#include "doubt.cuh"
#include "gemm_plan.h"
#include "rounding.cuh"

namespace moegen {

// alpha of one half, with the powers of two that decoded operands still owe; exact, as is their product with it.
// kPair: 0 no activation scale (W4A16), 1 one for all rows, 2 one per expert.
template <class C, int kHalves, int kPair>
__device__ __forceinline__ float scaled_alpha(const GemmArguments& p, int expert, int half) {
  float alpha = p.alpha[expert * kHalves + half];
  if constexpr (kPair > 0) alpha = __fmul_rn(alpha, p.row_pair[(kPair == 2 ? expert : 0) * 2 + 1]);
  return alpha * (kWeightScale * C::Tokens::kScale);
}

// Activated values of one channel for tokens 2q, 2q+1 of a group. A names how:
//   Element (of the rows it stores), activation(), kRoundGate, kHalves, kPair, kBias, kIntermediate, kWeighted, kTopK
template <class A>
struct Activated {
  float gate_alpha, up_alpha, gate_bias = 0.0f, up_bias = 0.0f;

  template <class C>
  __device__ void prepare(const GemmArguments& p, int expert) {
    gate_alpha = scaled_alpha<C, A::kHalves, A::kPair>(p, expert, 0);
    up_alpha = A::kHalves == 2 ? scaled_alpha<C, A::kHalves, A::kPair>(p, expert, 1) : gate_alpha;
  }

  // Bias rows of a gated W1 are interleaved by 8.
  __device__ void prepare_gated(const GemmArguments& p, int expert, int channel) {
    if constexpr (A::kBias) {
      const bool inside = channel < A::kIntermediate;
      const float* bias = p.bias + int64_t(expert) * (2 * A::kIntermediate) + channel / 8 * 16 + channel % 8;
      gate_bias = inside ? bias[0] : 0.0f;
      up_bias = inside ? bias[8] : 0.0f;
    }
  }

  __device__ void prepare_plain(const GemmArguments& p, int expert, int first, int second) {
    if constexpr (A::kBias) {
      const float* bias = p.bias + int64_t(expert) * A::kIntermediate;
      gate_bias = first < A::kIntermediate ? bias[first] : 0.0f;
      up_bias = second < A::kIntermediate ? bias[second] : 0.0f;
    }
  }

  static __device__ float biased(float acc, float alpha, float bias) {
    const float v = __fmul_rn(acc, alpha);
    return A::kBias ? __fadd_rn(v, bias) : v;
  }

  // G(gate), and what the product takes of it: rounded where the numerics say so.
  __device__ float whole_gate(float acc) const { return A::activation().gate(biased(acc, gate_alpha, gate_bias)); }
  static __device__ float rounded(float gate_value) { return A::kRoundGate ? round_bf16(gate_value) : gate_value; }
  __device__ float gate(float acc) const { return rounded(whole_gate(acc)); }
  __device__ float gated(float gate_value, float up_acc) const {
    return __fmul_rn(gate_value, A::activation().up(biased(up_acc, up_alpha, up_bias)));
  }

  // Whether gates may be approximated where bf16 rounds them, or their products, away.
  static constexpr bool kNear =
      !A::Element::kFp16 && requires(Doubt& doubt) { A::activation().near_gate(0.0f, doubt); };

  // How gates are computed, and what is to be known of the products that are stored.
  struct ExactGate {
    const Activated& activated;
    __device__ float operator()(float acc) { return activated.gate(acc); }
    __device__ void stored(float) {}
  };
  struct NearGate {
    const Activated& activated;
    Doubt doubt{};
    __device__ float operator()(float acc) {
      const float value = A::activation().near_gate(biased(acc, activated.gate_alpha, activated.gate_bias), doubt);
      if constexpr (A::kRoundGate) doubt.rounding(value);
      return rounded(value);
    }
    __device__ void stored(float z) {
      if constexpr (!A::kRoundGate) doubt.rounding(z);
    }
  };

  __device__ float first(float acc) const { return A::activation().value(biased(acc, gate_alpha, gate_bias)); }
  __device__ float second(float acc) const { return A::activation().value(biased(acc, up_alpha, up_bias)); }
};

}  // namespace moegen
