// fp32 to and from the token dtypes: bit for bit moegen.numerics.rounding. Branch-free.
#pragma once

#include <bit>
#include <cstdint>

namespace moegen {

// Nearest even; overflow to infinity; every NaN becomes 0x7FC0.
inline std::uint16_t bf16_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

inline float f32_from_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

inline float round_bf16(float x) { return f32_from_bf16(bf16_from_f32(x)); }

// Nearest even, subnormals included; infinity from 65520; every NaN becomes 0x7E00.
inline std::uint16_t f16_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Below 2^-14 the sum's last place is 2^-24, fp16's smallest step.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477FF000u ? 0x7C00u : half;
  half |= (bits >> 16) & 0x8000u;
  return static_cast<std::uint16_t>(magnitude > 0x7F800000u ? 0x7E00u : half);
}

inline float f32_from_f16(std::uint16_t x) {
  const std::uint32_t magnitude = x & 0x7FFFu;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const std::uint32_t normal = (magnitude << 13) + 0x38000000u;
  const std::uint32_t special = (magnitude << 13) | 0x7F800000u;
  std::uint32_t bits = magnitude < 0x400u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  bits = magnitude >= 0x7C00u ? special : bits;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(x & 0x8000u) << 16));
}

inline float round_f16(float x) { return f32_from_f16(f16_from_f32(x)); }

}  // namespace moegen
