// Quantiser contracts: bit for bit moegen.numerics.contracts, which holds the table of formulas and the NaN policy.
//
// Each struct is made once per second-level scale (g, p) and gives: scale(amax) -> byte, factor(byte) -> fp32,
// value(x, factor) -> fp32, code(value) -> E2M1. Compile as elementary.cuh says. quantize_block puts them together.
#pragma once

#include <cstdint>

#include "e2m1.cuh"
#include "e4m3.cuh"
#include "rounding.cuh"

namespace moegen {

inline constexpr float kFltMax = 0x1.fffffep+127f;
inline constexpr float kSixth = 0x1.555556p-3f;
inline constexpr float kRange = 2688.0f;
inline constexpr float kFltMin = 0x1p-126f;

__device__ __forceinline__ float finite(float x) { return x > kFltMax ? kFltMax : x; }

__device__ __forceinline__ float bounded(float x, float low) {
  const float raised = x < low ? low : x;
  return raised > 448.0f ? 448.0f : raised;
}

struct ScalePair {
  float encode;
  float decode;
};

struct MultiplyByFactor {
  __device__ static float value(float x, float factor) { return x * factor; }
  __device__ static uint32_t code(float v) { return e2m1_from_f32(v); }
};

struct DivideByFactor {
  __device__ static float value(float x, float factor) { return x / factor; }
  __device__ static uint32_t code(float v) { return e2m1_from_f32(v); }
};

__device__ __forceinline__ ScalePair pair_from_encode(float g) { return {g, 1.0f / g}; }
__device__ __forceinline__ ScalePair pair_from_decode(float p) { return {1.0f / p, p}; }

__device__ __forceinline__ ScalePair encode_first_pair(float amax) {
  return pair_from_encode(amax == 0.0f ? 1.0f : finite(kRange / amax));
}

__device__ __forceinline__ ScalePair decode_first_pair(float amax) {
  const float scaled = amax / kRange;
  return pair_from_decode(amax == 0.0f ? 1.0f : (scaled < kFltMin ? kFltMin : scaled));
}

struct Te : MultiplyByFactor {
  float per_amax;
  float inverse;
  __device__ explicit Te(ScalePair pair) : per_amax(pair.encode * kSixth), inverse(1.0f / pair.encode) {}
  __device__ uint8_t scale(float amax) const { return e4m3_from_f32(amax * per_amax); }
  __device__ float factor(uint8_t byte) const { return finite(1.0f / (f32_from_e4m3(byte) * inverse)); }
  __device__ static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct VllmRn : MultiplyByFactor {
  float encode;
  float inverse;
  __device__ explicit VllmRn(ScalePair pair) : encode(pair.encode), inverse(1.0f / pair.encode) {}
  __device__ uint8_t scale(float amax) const { return e4m3_from_f32(encode * (amax * kSixth)); }
  __device__ float factor(uint8_t byte) const {
    const float s = f32_from_e4m3(byte);
    return s == 0.0f ? 0.0f : finite(1.0f / (s * inverse));
  }
  __device__ static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct CutlassRn : MultiplyByFactor {
  float encode;
  float per_amax;
  __device__ explicit CutlassRn(ScalePair pair) : encode(pair.encode), per_amax(pair.encode * kSixth) {}
  __device__ uint8_t scale(float amax) const { return e4m3_from_f32(amax * per_amax); }
  __device__ float factor(uint8_t byte) const { return finite(encode * (1.0f / f32_from_e4m3(byte))); }
  __device__ static ScalePair pair(float amax) { return encode_first_pair(amax); }
};

struct Torchao : MultiplyByFactor {
  float decode;
  float inverse;
  __device__ explicit Torchao(ScalePair pair) : decode(pair.decode), inverse(1.0f / pair.decode) {}
  __device__ uint8_t scale(float amax) const { return e4m3_from_f32(bounded((amax / 6.0f) / decode, 0x1p-6f)); }
  __device__ float factor(uint8_t byte) const { return finite(inverse / f32_from_e4m3(byte)); }
  __device__ static ScalePair pair(float amax) { return decode_first_pair(amax); }
};

struct Modelopt : DivideByFactor {
  float decode;
  float six_decode;
  __device__ explicit Modelopt(ScalePair pair) : decode(pair.decode), six_decode(pair.decode * 6.0f) {}
  __device__ uint8_t scale(float amax) const {
    const float ratio = amax / six_decode;
    return e4m3_from_f32(bounded(ratio == 0.0f ? 1.0f : ratio, 0x1p-9f));
  }
  __device__ float factor(uint8_t byte) const { return f32_from_e4m3(byte) * decode; }
  __device__ static ScalePair pair(float amax) { return decode_first_pair(amax); }
};

struct CompressedTensors : DivideByFactor {
  float encode;
  __device__ explicit CompressedTensors(ScalePair pair) : encode(pair.encode) {}
  __device__ uint8_t scale(float amax) const { return nonzero(e4m3_from_f32(encode * (amax / 6.0f))); }
  __device__ float factor(uint8_t byte) const { return f32_from_e4m3(byte) / encode; }
  __device__ static uint8_t nonzero(uint8_t byte) { return byte == 0 ? uint8_t{0x20} : byte; }
  __device__ static ScalePair pair(float amax) {
    const float g = (1.0f / (amax < kFltMin ? kFltMin : amax)) * kRange;
    return pair_from_encode(g > kFltMax ? 1.0f : g);
  }
};

struct CompressedTensorsBf16 : CompressedTensors {
  __device__ explicit CompressedTensorsBf16(ScalePair pair) : CompressedTensors(pair) {}
  __device__ uint8_t scale(float amax) const {
    return nonzero(e4m3_from_f32(encode * round_bf16(round_bf16(amax) / 6.0f)));
  }
  __device__ static ScalePair pair(float amax) {
    const float a = round_bf16(amax);
    const float g = round_bf16(round_bf16(1.0f / (a < kFltMin ? kFltMin : a)) * kRange);
    return pair_from_encode(g > kFltMax ? 1.0f : g);
  }
};

struct HalfStep : Te {
  __device__ explicit HalfStep(ScalePair pair) : Te(pair) {}
  __device__ static uint32_t code(float v) { return e2m1_half_step(v); }
};

// Bits of |x|: ordered as the values are, infinity and then NaN last, so that an integer maximum keeps a NaN.
__device__ __forceinline__ int32_t magnitude_bits(float x) { return __float_as_int(x) & 0x7FFFFFFF; }

// The same for a tensor's dynamic amax, which reads finite values only.
__device__ __forceinline__ int32_t finite_magnitude_bits(float x) {
  const int32_t bits = magnitude_bits(x);
  return bits < 0x7F800000 ? bits : 0;
}

// Quantises 16 values to 8 bytes of codes, element 2i in a low nibble; returns the scale byte.
template <class Contract>
__device__ __forceinline__ uint8_t quantize_block(const Contract& contract, const float (&values)[16], uint2& codes) {
  int32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) largest = max(largest, magnitude_bits(values[i]));
  const uint8_t scale = contract.scale(__int_as_float(largest));
  const float factor = contract.factor(scale);
  codes = make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    codes.x |= Contract::code(Contract::value(values[i], factor)) << (4 * i);
    codes.y |= Contract::code(Contract::value(values[8 + i], factor)) << (4 * i);
  }
  return scale;
}

}  // namespace moegen
