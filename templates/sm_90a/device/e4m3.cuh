// E4M3 bytes: bit for bit moegen.numerics.e4m3. Branch-free.
#pragma once

#include <cstdint>

namespace moegen {

// Nearest even, saturating at 448, NaN to 0x7F.
__device__ __forceinline__ uint8_t e4m3_from_f32(float x) {
  const auto bits = __float_as_uint(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t capped = magnitude > 0x43E00000u ? 0x43E00000u : magnitude;
  const uint32_t normal = ((capped + 0x7FFFFu + ((capped >> 20) & 1u)) >> 20) - (120u << 3);
  // The last place of 16384 is 2^-9, the step of the subnormals.
  const uint32_t subnormal = __float_as_uint(__uint_as_float(capped) + 16384.0f) - 0x46800000u;
  const uint32_t code = (capped < 0x3C800000u ? subnormal : normal) | ((bits >> 24) & 0x80u);
  return static_cast<uint8_t>(magnitude > 0x7F800000u ? 0x7Fu : code);
}

__device__ __forceinline__ float f32_from_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  uint32_t bits = magnitude < 8u ? __float_as_uint(subnormal) : normal;
  bits = magnitude == 0x7Fu ? 0x7FC00000u : bits;
  return __uint_as_float(bits | (static_cast<uint32_t>(code & 0x80u) << 24));
}

}  // namespace moegen
