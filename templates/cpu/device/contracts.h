// Quantiser contracts: bit for bit moegen.numerics.contracts, which holds the table of formulas and the NaN policy.
//
// Each struct is made once per second-level scale (g, p) and gives: scale(amax) -> byte, factor(byte) -> fp32,
// value(x, factor) -> fp32, code(value) -> E2M1. Compile as elementary.h says. quantize_block puts them together.
#pragma once

#include <bit>
#include <cstdint>

#include "e2m1.h"
#include "e4m3.h"
#include "rounding.h"

namespace moegen {

inline constexpr float kFltMax = 0x1.fffffep+127f;
inline constexpr float kSixth = 0x1.555556p-3f;
inline constexpr float kRange = 2688.0f;
inline constexpr float kFltMin = 0x1p-126f;

inline float finite(float x) { return x > kFltMax ? kFltMax : x; }

inline float bounded(float x, float low) {
  const float raised = x < low ? low : x;
  return raised > 448.0f ? 448.0f : raised;
}

struct ScalePair {
  float encode;
  float decode;
};

struct MultiplyByFactor {
  static float value(float x, float factor) { return x * factor; }
  static std::uint32_t code(float v) { return e2m1_from_f32(v); }
};

struct DivideByFactor {
  static float value(float x, float factor) { return x / factor; }
  static std::uint32_t code(float v) { return e2m1_from_f32(v); }
};

inline ScalePair pair_from_encode(float g) { return {g, 1.0f / g}; }
inline ScalePair pair_from_decode(float p) { return {1.0f / p, p}; }

inline ScalePair encode_first_pair(float amax) {
  return pair_from_encode(amax == 0.0f ? 1.0f : finite(kRange / amax));
}

inline ScalePair decode_first_pair(float amax) {
  const float scaled = amax / kRange;
  return pair_from_decode(amax == 0.0f ? 1.0f : (scaled < kFltMin ? kFltMin : scaled));
}

struct Te : MultiplyByFactor {
  float per_amax;
  float inverse;
  explicit Te(ScalePair pair) : per_amax(pair.encode * kSixth), inverse(1.0f / pair.encode) {}
  std::uint8_t scale(float amax) const { return e4m3_from_f32(amax * per_amax); }
  float factor(std::uint8_t byte) const { return finite(1.0f / (f32_from_e4m3(byte) * inverse)); }
  static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct VllmRn : MultiplyByFactor {
  float encode;
  float inverse;
  explicit VllmRn(ScalePair pair) : encode(pair.encode), inverse(1.0f / pair.encode) {}
  std::uint8_t scale(float amax) const { return e4m3_from_f32(encode * (amax * kSixth)); }
  float factor(std::uint8_t byte) const {
    const float s = f32_from_e4m3(byte);
    return s == 0.0f ? 0.0f : finite(1.0f / (s * inverse));
  }
  static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct CutlassRn : MultiplyByFactor {
  float encode;
  float per_amax;
  explicit CutlassRn(ScalePair pair) : encode(pair.encode), per_amax(pair.encode * kSixth) {}
  std::uint8_t scale(float amax) const { return e4m3_from_f32(amax * per_amax); }
  float factor(std::uint8_t byte) const { return finite(encode * (1.0f / f32_from_e4m3(byte))); }
  static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct Torchao : MultiplyByFactor {
  float decode;
  float inverse;
  explicit Torchao(ScalePair pair) : decode(pair.decode), inverse(1.0f / pair.decode) {}
  std::uint8_t scale(float amax) const { return e4m3_from_f32(bounded((amax / 6.0f) / decode, 0x1p-6f)); }
  float factor(std::uint8_t byte) const { return finite(inverse / f32_from_e4m3(byte)); }
  static ScalePair pair(float amax) { return decode_first_pair(amax); }
};

struct Modelopt : DivideByFactor {
  float decode;
  float six_decode;
  explicit Modelopt(ScalePair pair) : decode(pair.decode), six_decode(pair.decode * 6.0f) {}
  std::uint8_t scale(float amax) const {
    const float ratio = amax / six_decode;
    return e4m3_from_f32(bounded(ratio == 0.0f ? 1.0f : ratio, 0x1p-9f));
  }
  float factor(std::uint8_t byte) const { return f32_from_e4m3(byte) * decode; }
  static ScalePair pair(float amax) { return decode_first_pair(amax); }
};

struct CompressedTensors : DivideByFactor {
  float encode;
  explicit CompressedTensors(ScalePair pair) : encode(pair.encode) {}
  std::uint8_t scale(float amax) const { return nonzero(e4m3_from_f32(encode * (amax / 6.0f))); }
  float factor(std::uint8_t byte) const { return f32_from_e4m3(byte) / encode; }
  static std::uint8_t nonzero(std::uint8_t byte) { return byte == 0 ? std::uint8_t{0x20} : byte; }
  static ScalePair pair(float amax) {
    const float g = (1.0f / (amax < kFltMin ? kFltMin : amax)) * kRange;
    return pair_from_encode(g > kFltMax ? 1.0f : g);
  }
};

struct CompressedTensorsBf16 : CompressedTensors {
  using CompressedTensors::CompressedTensors;
  std::uint8_t scale(float amax) const {
    return nonzero(e4m3_from_f32(encode * round_bf16(round_bf16(amax) / 6.0f)));
  }
  static ScalePair pair(float amax) {
    const float a = round_bf16(amax);
    const float g = round_bf16(round_bf16(1.0f / (a < kFltMin ? kFltMin : a)) * kRange);
    return pair_from_encode(g > kFltMax ? 1.0f : g);
  }
};

struct HalfStep : Te {
  using Te::Te;
  static std::uint32_t code(float v) { return e2m1_half_step(v); }
};

// Bits of |x|: ordered as the values are, infinity and then NaN last, so that an integer maximum keeps a NaN.
inline std::int32_t magnitude_bits(float x) { return std::bit_cast<std::int32_t>(x) & 0x7FFFFFFF; }

// The same for a tensor's dynamic amax, which reads finite values only.
inline std::int32_t finite_magnitude_bits(float x) {
  const std::int32_t bits = magnitude_bits(x);
  return bits < 0x7F800000 ? bits : 0;
}

// Eight codes to four bytes: element 2i in the low nibble, 2i+1 in the high nibble.
inline void pack_eight(const std::uint32_t* codes, std::uint8_t* packed) {
  std::uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= codes[i] << (4 * i);
  for (int i = 0; i < 4; ++i) packed[i] = static_cast<std::uint8_t>(word >> (8 * i));
}

// Quantises 16 values to 8 bytes of codes; returns the scale byte.
template <class Contract>
inline std::uint8_t quantize_block(const Contract& contract, const float* values, std::uint8_t* codes) {
  std::int32_t largest = 0;
  for (int i = 0; i < 16; ++i) {
    const std::int32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  const std::uint8_t scale = contract.scale(std::bit_cast<float>(largest));
  const float factor = contract.factor(scale);
  std::uint32_t unpacked[16];
  for (int i = 0; i < 16; ++i) unpacked[i] = Contract::code(Contract::value(values[i], factor));
  pack_eight(unpacked, codes);
  pack_eight(unpacked + 8, codes + 4);
  return scale;
}

}  // namespace moegen
