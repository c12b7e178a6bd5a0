// E2M1 codes times E4M3 block scales, as fp32: exact for every pair.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "e4m3.h"
#include "simd.h"

namespace moegen {

/// fp32 value of every E4M3 byte.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (Index byte = 0; byte < 256; ++byte) {
    values[byte] = f32_from_e4m3(static_cast<std::uint8_t>(byte));
  }
  return values;
}();

/// Eight codes of one 32-bit word, lowest nibble first, times `scale`.
inline Float8 decode8(std::uint32_t word, float scale) {
  const Float8 magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const Uint8x32 shifts = {0, 4, 8, 12, 16, 20, 24, 28};
  const Uint8x32 codes = (Uint8x32{} + word) >> shifts;
  // The shuffle reads the index's low three bits; bit 3 is the sign.
  const Float8 values = __builtin_shuffle(magnitudes, codes) * scale;
  return reinterpret_cast<Float8>(reinterpret_cast<Uint8x32>(values) ^ ((codes & 8u) << 28));
}

/// Decodes columns [first, first + depth) of one row into `target`. `codes` points at the row; `scale_at(block)`
/// returns the scale byte of a block of the row. `first` and `depth` are multiples of 16.
template <class ScaleAt>
void decode_row(const std::uint8_t* codes, const ScaleAt& scale_at, Index first, Index depth, float* target) {
  for (Index block = 0; block < depth / kBlock; ++block) {
    const float scale = kE4m3Values[scale_at(first / kBlock + block)];
    std::uint32_t words[2];
    std::memcpy(words, codes + first / 2 + block * (kBlock / 2), sizeof words);
    store8(target + block * kBlock, decode8(words[0], scale));
    store8(target + block * kBlock + kLanes, decode8(words[1], scale));
  }
}

}  // namespace moegen
