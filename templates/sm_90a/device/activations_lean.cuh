// The sigmoid forms of activations.cuh in fewer instructions and without branches: the same bits.
//
// elementary.cuh writes x / (1 + exp(t)) with IEEE division, which nvcc makes a sequence with a check and a call for
// rare operands: about 45 instructions, of which no two values overlap. Here
//   2^n is made by one shift: the rounding constant brings n + 124 into the low bits (124 is even: ties round alike);
//   the sum is a quarter of 1 + exp(t) by one fma: a scaling by powers of two, exact as long as it is below 2^126,
//   which is where 1 + exp(t) overflows and the quotient is 0: there rcp.ftz returns 0;
//   the quotient needs no check: the divisor is normal, remainders are exact, and two corrections with a refined
//   reciprocal round correctly (nvcc's own sequence); a remainder of zero is rounded down to -0, which leaves -0 / d
//   -0; where 1 + exp(t) is 1, x itself is the result, infinite or not.
#pragma once

#include "activations.cuh"
#include "doubt.cuh"

namespace moegen {

// x / (1 + exp(t)) for finite or infinite x, t = -x times a constant; NaN where either is.
__device__ __forceinline__ float over_one_plus_exp(float x, float t) {
  constexpr float kShiftMagic = kRoundMagic + 124.0f;
  constexpr float kOneBelow = -32.0f;  // 1 + exp(t) is 1 from -16.7 down
  const float capped = fminf(t, kExpMax);
  const float shifted = capped * kLog2e + kShiftMagic;
  const float scale = __uint_as_float(__float_as_uint(shifted) << 23);  // 2^(n - 3)
  const float rounded = shifted - kShiftMagic;
  const float r = fma(rounded, -kLn2Lo, fma(rounded, -kLn2Hi, capped));
  float p = 0x1.6a2434p-9f;  // coefficients of elementary.cuh, doubled
  p = fma(p, r, 0x1.1239e2p-6f);
  p = fma(p, r, 0x1.5558f2p-4f);
  p = fma(p, r, 0x1.555492p-2f);
  p = fma(p, r, 0x1.fffffcp-1f);
  p = fma(p, r, 2.0f);
  p = fma(p, r, 2.0f);
  const float divisor = fma(p, scale, 0.25f);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  inverse = fma(inverse, fma(-divisor, inverse, 1.0f), inverse);
  float quotient = x * inverse;
  quotient = fma(inverse, __fmaf_rd(-divisor, quotient, x), quotient);
  quotient = fma(inverse, __fmaf_rd(-divisor, quotient, x), quotient);
  return t < kOneBelow ? x : 0.25f * quotient;
}

// near_gate: the gate, approximately.
struct SwigluLean : Swiglu {
  __device__ float gate(float g) const { return over_one_plus_exp(g, -g); }
  __device__ float near_gate(float g, Doubt& doubt) const { return near_over_one_plus_exp(g, -g, doubt); }
};

struct SwigluClampLean : SwigluClamp {
  __device__ float gate(float g) const {
    const float c = cap(g, limit);
    return over_one_plus_exp(c, -c);
  }
  __device__ float near_gate(float g, Doubt& doubt) const {
    const float c = cap(g, limit);
    return near_over_one_plus_exp(c, -c, doubt);
  }
};

struct SwiglustepLean : Swiglustep {
  __device__ float gate(float g) const { return cap(over_one_plus_exp(g, -g), limit); }
  __device__ float near_gate(float g, Doubt& doubt) const { return cap(near_over_one_plus_exp(g, -g, doubt), limit); }
};

struct SwigluOaiLean : SwigluOai {
  __device__ float gate(float g) const {
    const float c = cap(g, limit);
    return over_one_plus_exp(c, -(c * alpha));
  }
  __device__ float near_gate(float g, Doubt& doubt) const {
    const float c = cap(g, limit);
    return near_over_one_plus_exp(c, -(c * alpha), doubt);
  }
};

struct SituLean : Situ {};

struct SituBoundedLean : SituBounded {};

struct GegluTanhLean : GegluTanh {};

struct Relu2Lean : Relu2 {};

struct SiluLean : Silu {
  __device__ float value(float x) const { return over_one_plus_exp(x, -x); }
};

}  // namespace moegen
