// NVFP4 weights from the public pack to operand registers of m16n8k16, by token dtype.
//
// A 32-bit word holds eight consecutive codes of one weight row, element i at bits 4 i. Pair j (0...3) of a word is
// elements j and j + 4, one in each half of a register: their nibbles are 16 bits apart, so masks and one shift
// bring both into place at once. `tokens_*` put token elements into the same pairs. K is thereby permuted within
// each word, alike for both operands, which no sum notices.
#pragma once

#include <cstdint>

#include "../../sm_90a/device/rounding.cuh"
#include "warp_mma.cuh"

namespace moegen {

// Weights times the scale of their block, times 2^-7; the epilogue's alpha gives 2^7 back.
inline constexpr float kWeightScale = 128.0f;

// The low, or the high, halves of two registers.
__device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

struct Bf16Operands {
  // A code's e e m at bits 8...6 is its value x 2^-126, the subnormal 0.5 included; its sign goes to bit 15.
  static constexpr uint32_t kMagnitudes = 0x01C001C0u, kSigns = 0x80008000u;

  // Scales of two neighbouring blocks, each in both halves of a register, x 2^119. E4M3 is exact in bf16.
  static __device__ __forceinline__ void scales(uint32_t bytes, uint32_t (&out)[2]) {
    const uint32_t halves = f16x2_from_e4m3x2(bytes);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t bits = __float_as_uint(f32_from_f16x2(halves, i) * 0x1p119f);
      out[i] = high_halves(bits, bits);
    }
  }

  // The product has six significant bits: exact. One multiplication moves e e m and, again, the sign; pairs 2 and 3 are
  // those of the word's upper bytes.
  template <int kPair>
  static __device__ __forceinline__ uint32_t decode(uint32_t word, uint32_t scale) {
    constexpr int kPlace = 4 * (kPair % 2);
    const uint32_t nibbles = (kPair < 2 ? word : word >> 8) & (0x000F000Fu << kPlace);
    return mul_bf16x2((nibbles * (0x1040u >> kPlace)) & (kMagnitudes | kSigns), scale);
  }

  static __device__ __forceinline__ void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_bf16(acc, a, b0, b1);
  }

  // Two token values times a weight in fp32, each rounded once; as an operand, where the bits of a NaN do not matter.
  static __device__ __forceinline__ uint32_t weighted(uint32_t pair, float weight) {
    return pack(low(pair) * weight, high(pair) * weight);
  }
  static __device__ __forceinline__ uint32_t weighted_operand(uint32_t pair, float weight) {
    return bf16x2_from_f32(low(pair) * weight, high(pair) * weight);
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return bf16_from_f32(low) | uint32_t(bf16_from_f32(high)) << 16;
  }

 private:
  static __device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
};

struct Fp16Operands {
  // e e m at bits 11...9 is the value x 2^-14.
  static constexpr uint32_t kMagnitudes = 0x0E000E00u, kSigns = 0x80008000u;

  // Scales of two neighbouring blocks x 2^7, at most 57344.
  static __device__ __forceinline__ void scales(uint32_t bytes, uint32_t (&out)[2]) {
    constexpr uint32_t k128 = 0x58005800u;
    const uint32_t scaled = mul_f16x2(f16x2_from_e4m3x2(bytes), k128);
    out[0] = low_halves(scaled, scaled);
    out[1] = high_halves(scaled, scaled);
  }

  // Multiples of 2^-17 with six significant bits: exact.
  template <int kPair>
  static __device__ __forceinline__ uint32_t decode(uint32_t word, uint32_t scale) {
    constexpr int kLeft = 9 - 4 * kPair;
    const uint32_t moved = kLeft > 0 ? word << (kLeft & 31) : word >> (-kLeft & 31);
    return mul_f16x2((moved & kMagnitudes) | ((word << (12 - 4 * kPair)) & kSigns), scale);
  }

  static __device__ __forceinline__ void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_f16(acc, a, b0, b1);
  }

  static __device__ __forceinline__ uint32_t weighted(uint32_t pair, float weight) {
    return pack(f32_from_f16(uint16_t(pair)) * weight, f32_from_f16(uint16_t(pair >> 16)) * weight);
  }
  static __device__ __forceinline__ uint32_t weighted_operand(uint32_t pair, float weight) {
    return f16x2_from_f32(f32_from_f16x2(pair, 0) * weight, f32_from_f16x2(pair, 1) * weight);
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return f16_from_f32(low) | uint32_t(f16_from_f32(high)) << 16;
  }
};

}  // namespace moegen
