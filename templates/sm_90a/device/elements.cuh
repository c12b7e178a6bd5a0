// The two 16-bit token dtypes: pairs of values in a word, the first in the low half.
#pragma once

#include <cstdint>

#include "rounding.cuh"

namespace moegen {

struct Bf16 {
  static constexpr bool kFp16 = false;
  __device__ static float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

  // Nearest even, with the dtype's own NaN.
  __device__ static uint32_t round(float low, float high) {
    return uint32_t(bf16_from_f32(low)) | uint32_t(bf16_from_f32(high)) << 16;
  }

  // The same in one instruction, save that NaN becomes 0x7FFF.
  __device__ static uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
};

struct Fp16 {
  static constexpr bool kFp16 = true;
  __device__ static float low(uint32_t pair) {
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(pair));
    return value;
  }
  __device__ static float high(uint32_t pair) {
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(pair));
    return value;
  }

  // Nearest even, infinity from 65520, with the dtype's own NaN.
  __device__ static uint32_t round(float low, float high) {
    return uint32_t(f16_from_f32(low)) | uint32_t(f16_from_f32(high)) << 16;
  }

  // The same in one instruction, save that NaN becomes 0x7FFF.
  __device__ static uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
};

}  // namespace moegen
