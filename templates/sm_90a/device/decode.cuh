// NVFP4 weights from their packed unit to 16-bit operand registers of wgmma.
//
// A unit holds 64 weight rows x 128 of K: 512 bytes of scales ([128 threads] x 4), then for each 64-chunk of K 2048
// bytes of codes ([128 threads] x 16). One 32-bit code word gives a thread its four A registers of one k16 step. The
// last unit of a K that ends within its first chunk has no second chunk.
//
// A decoded weight is its value x 2^-7, exactly, in either dtype; kWeightScale in the epilogue gives the 2^7 back.
// Where the bits of a code word and of its scales lie depends on the dtype: see Decoder. Scales are E5M3 bytes with
// bias 22, so that every E4M3 is normal; a second chunk's scale lies where a swap of its half word's bytes brings it to
// the first one's place.
#pragma once

#include <cstdint>

#include "code_pairs.cuh"
#include "elements.cuh"
#include "gemm_plan.h"

namespace moegen {

inline constexpr float kWeightScale = 128.0f;

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// Written as unpack and pack, which folds into the multiply's operand selectors; with prmt it would not.
__device__ __forceinline__ uint32_t broadcast_low(uint32_t x) {
  uint32_t r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(r) : "r"(x));
  return r;
}

__device__ __forceinline__ uint32_t broadcast_high(uint32_t x) {
  uint32_t r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(r) : "r"(x));
  return r;
}

// Brings the second chunk's scales to where Decoder::scales reads them.
__device__ __forceinline__ uint32_t swap_scale_chunks(uint32_t word) { return __byte_perm(word, word, 0x2301); }

// Decoder<Element>::scales(word): scales of one chunk for the thread's two rows (g in the low half, g + 8 in the high
// half). ::word(...): one code word to the four A registers of a k16 step; `low`, `high` are the broadcast scales.
template <class Element>
struct Decoder;

// Four masked rotations put every E2M1 at bf16 bits 15 (sign) and 8...6 (e, e, m), that is, at value x 2^-126 (the
// subnormal 0.5 included). Bits in each 16-bit half:
//   pair 0: sign 15, e e m at 8 7 6            pair 1: e e m at 11 10 9, sign at bit 2 of the other half
//   pair 3: e e at 1 0, m at 4, sign at 3      pair 2: e e m at 14 13 12, sign at bit 5 of the other half
// A scale byte lies at bits 11...4, so that (bits | 0x7000) is bf16 of scale x 2^119.
template <>
struct Decoder<Bf16> {
  // One LOP3 with one of its masks in a register; written in C++ both would be immediates, of two instructions.
  static __device__ __forceinline__ uint32_t scales(uint32_t word) {
    uint32_t found;
    asm("lop3.b32 %0, %1, 0x0FF00FF0, %2, 0xEA;" : "=r"(found) : "r"(word), "r"(0x70007000u));
    return found;
  }

  // Seven ALU operations, one integer multiply and four HMUL2 for eight weights.
  static __device__ __forceinline__ void word(uint32_t word, uint32_t low, uint32_t high, uint32_t* a) {
    constexpr uint32_t kMask = 0x81C081C0u;
    a[0] = mul_bf16x2(word & kMask, low);
    a[1] = mul_bf16x2(__funnelshift_r(word, word, 3) & kMask, high);
    a[2] = mul_bf16x2(__funnelshift_r(word, word, 6) & kMask, low);
    a[3] = mul_bf16x2(((word & 0x001B001Bu) * 4228u) & kMask, high);
  }
};

// The same at fp16 bits 15 and 11...9, value x 2^-14. No third rotation of that pattern is disjoint from two others, so
// two pairs are multiplied to their places, sign and magnitude by different powers of two. Bits in each half:
//   pair 0: sign 15, e e m at 11 10 9          pair 1: e e m at 14 13 12, sign at bit 2 of the other half
//   pair 2: e e m at 8 7 6, sign at 0          pair 3: e e m at 5 4 3, sign at 1
// A scale byte lies at bits 14...7: fp16 of scale x 2^7.
template <>
struct Decoder<Fp16> {
  static __device__ __forceinline__ uint32_t scales(uint32_t word) { return word & 0x7F807F80u; }

  // One integer multiply more than for bf16.
  static __device__ __forceinline__ void word(uint32_t word, uint32_t low, uint32_t high, uint32_t* a) {
    constexpr uint32_t kMask = 0x8E008E00u;
    a[0] = mul_f16x2(word & kMask, low);
    a[1] = mul_f16x2(__funnelshift_r(word, word, 3) & kMask, high);
    a[2] = mul_f16x2(((word & 0x01C101C1u) * 0x8008u) & kMask, low);
    a[3] = mul_f16x2(((word & 0x003A003Au) * 0x4040u) & kMask, high);
  }
};

// Sixteen weights of K (four k16 steps) per row.
template <class Element>
__device__ __forceinline__ void decode_words(const uint4& words, uint32_t low, uint32_t high, uint32_t (&a)[16]) {
  Decoder<Element>::word(words.x, low, high, a);
  Decoder<Element>::word(words.y, low, high, a + 4);
  Decoder<Element>::word(words.z, low, high, a + 8);
  Decoder<Element>::word(words.w, low, high, a + 12);
}

}  // namespace moegen
