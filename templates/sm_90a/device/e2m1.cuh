// E2M1 codes: bit for bit moegen.numerics.e2m1. Branch-free; a loop over eight or sixteen values vectorises.
#pragma once

#include <cstdint>

namespace moegen {

// Nearest, ties to the even code, saturating at 6. NaN becomes 0x7: every comparison with it is false.
__device__ __forceinline__ uint8_t e2m1_from_f32(float x) {
  const auto bits = __float_as_uint(x);
  const float magnitude = __uint_as_float(bits & 0x7FFFFFFFu);
  const int below = int(magnitude <= 0.25f) + int(magnitude < 0.75f) + int(magnitude <= 1.25f) + int(magnitude < 1.75f) +
                    int(magnitude <= 2.5f) + int(magnitude < 3.5f) + int(magnitude <= 5.0f);
  const uint32_t sign = (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0u : (bits >> 28) & 8u;
  return static_cast<uint8_t>(static_cast<uint32_t>(7 - below) | sign);
}

// Rounds to halves first (ties to even), then to a code.
__device__ __forceinline__ uint8_t e2m1_half_step(float x) {
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

// Element 2i in the low nibble, 2i+1 in the high nibble.
__device__ __forceinline__ uint8_t pack_pair(uint8_t even, uint8_t odd) {
  return static_cast<uint8_t>(even | (odd << 4));
}

}  // namespace moegen
