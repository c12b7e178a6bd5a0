// E4M3 bytes: bit for bit moegen.numerics.e4m3. Branch-free.
#pragma once

#include <bit>
#include <cstdint>

namespace moegen {

// Nearest even, saturating at 448, NaN to 0x7F.
inline std::uint8_t e4m3_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t capped = magnitude > 0x43E00000u ? 0x43E00000u : magnitude;
  const std::uint32_t normal = ((capped + 0x7FFFFu + ((capped >> 20) & 1u)) >> 20) - (120u << 3);
  // The last place of 16384 is 2^-9, the step of the subnormals.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(capped) + 16384.0f) - 0x46800000u;
  const std::uint32_t code = (capped < 0x3C800000u ? subnormal : normal) | ((bits >> 24) & 0x80u);
  return static_cast<std::uint8_t>(magnitude > 0x7F800000u ? 0x7Fu : code);
}

constexpr float f32_from_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9f;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  std::uint32_t bits = magnitude < 8u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  bits = magnitude == 0x7Fu ? 0x7FC00000u : bits;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(code & 0x80u) << 24));
}

}  // namespace moegen
