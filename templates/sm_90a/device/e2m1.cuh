// E2M1 codes: bit for bit moegen.numerics.e2m1. Branch-free. Codes are 32-bit here, so that loops over them fill
// vectors.
#pragma once

#include <cstdint>

namespace moegen {

// Nearest, ties to the even code, saturating at 6; NaN becomes 0x7 (its bits are above all others).
__device__ __forceinline__ uint32_t e2m1_from_f32(float x) {
  const auto bits = __float_as_uint(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // From 1 on, a code is the float's exponent and top mantissa bit.
  const uint32_t normal = ((magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u)) >> 22) - 252u;
  // The last place of 2^22 is 0.5, the step below 1.
  const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0x1p+22f) - 0x4A800000u;
  const uint32_t index = magnitude < 0x3F800000u ? subnormal : normal;
  const uint32_t sign = magnitude > 0x7F800000u ? 0u : (bits >> 28) & 8u;
  return (index > 7u ? 7u : index) | sign;
}

// Rounds to halves first (ties to even), then to a code.
__device__ __forceinline__ uint32_t e2m1_half_step(float x) {
  const auto bits = __float_as_uint(x);
  const float magnitude = __uint_as_float(bits & 0x7FFFFFFFu);
  const float capped = magnitude > 6.0f ? 6.0f : magnitude;
  const float halves = ((capped * 2.0f + 0x1.8p+23f) - 0x1.8p+23f) * 0.5f;
  return e2m1_from_f32(__uint_as_float(__float_as_uint(halves) | (bits & 0x80000000u)));
}

// Low four bits to fp32, by arithmetic: index 0…7 to 0 .5 1 1.5 2 3 4 6. Index i >= 1 is a float with exponent
// field (i >> 1) + 126 and top mantissa bit i & 1, save that index 1 is the subnormal 0.5.
__device__ __forceinline__ float f32_from_e2m1(uint32_t code) {
  const uint32_t index = code & 7u;
  const uint32_t normal = (index << 22) + (126u << 23);
  const uint32_t magnitude = index < 2u ? index * 0x3F000000u : normal;
  return __uint_as_float(magnitude | ((code & 8u) << 28));
}

}  // namespace moegen
