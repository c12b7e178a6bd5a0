// fp32 to and from the token dtypes: bit for bit moegen.numerics.rounding. Branch-free.
#pragma once

#include <cstdint>

namespace moegen {

// Nearest even; overflow to infinity; every NaN becomes 0x7FC0.
__device__ __forceinline__ uint16_t bf16_from_f32(float x) {
  const auto bits = __float_as_uint(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

__device__ __forceinline__ float f32_from_bf16(uint16_t x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); }

__device__ __forceinline__ float round_bf16(float x) { return f32_from_bf16(bf16_from_f32(x)); }

// Nearest even, subnormals included; infinity from 65520; every NaN becomes 0x7E00.
__device__ __forceinline__ uint16_t f16_from_f32(float x) {
  const auto bits = __float_as_uint(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Below 2^-14 the sum's last place is 2^-24, fp16's smallest step.
  const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477FF000u ? 0x7C00u : half;
  half |= (bits >> 16) & 0x8000u;
  return static_cast<uint16_t>(magnitude > 0x7F800000u ? 0x7E00u : half);
}

__device__ __forceinline__ float f32_from_f16(uint16_t x) {
  const uint32_t magnitude = x & 0x7FFFu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t normal = (magnitude << 13) + 0x38000000u;
  const uint32_t special = (magnitude << 13) | 0x7F800000u;
  uint32_t bits = magnitude < 0x400u ? __float_as_uint(subnormal) : normal;
  bits = magnitude >= 0x7C00u ? special : bits;
  return __uint_as_float(bits | (static_cast<uint32_t>(x & 0x8000u) << 16));
}

__device__ __forceinline__ float round_f16(float x) { return f32_from_f16(f16_from_f32(x)); }

}  // namespace moegen
