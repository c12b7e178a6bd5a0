// Approximations that stand for exact values until these are rounded to bf16.
//
// A rounding to bf16 drops 16 bits of an fp32 value. An approximation that is a few units in the last place off rounds
// alike unless its dropped bits are that near to one half: one value in some thousand, for which a warp computes the
// exact form. So results are the exact form's, bit for bit, at the price of the approximation.
#pragma once

#include <cstdint>

namespace moegen {

// Whether any of a warp's approximations may round otherwise than what they stand for.
struct Doubt {
  // Units in the last place. A gate of ex2.approx and rcp.approx is at most 10 off for arguments of exp up to kLargest
  // (tests/hopper/test_lean.py holds all arguments against 11); a factor may double that, and both products round.
  static constexpr uint32_t kMargin = 24;
  static constexpr float kLargest = 11.0f;

  uint32_t nearest = ~0u;  // smallest distance from the margin's lower end, in units of 2^-16
  float largest = 0.0f;

  // t: an argument of exp; the larger, the less is its power of two known. NaN remains NaN in either form.
  __device__ __forceinline__ void argument(float t) { largest = fmaxf(largest, t); }

  // z: an approximation that bf16 will round.
  __device__ __forceinline__ void rounding(float z) {
    nearest = min(nearest, __float_as_uint(z) * 65536u - ((0x8000u - kMargin) << 16));
  }

  __device__ __forceinline__ bool of_argument() const { return largest > kLargest; }
  __device__ __forceinline__ bool of_rounding() const { return nearest <= (2 * kMargin) << 16; }

  __device__ __forceinline__ bool any() const { return of_rounding() || of_argument(); }
};

// x / (1 + exp(t)), approximately.
__device__ __forceinline__ float near_over_one_plus_exp(float x, float t, Doubt& doubt) {
  float power, inverse;
  doubt.argument(t);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t * 0x1.715476p+0f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

}  // namespace moegen
