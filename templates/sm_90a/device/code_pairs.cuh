// E2M1 codes and their E4M3 scale to bf16 products, exactly, without a table.
#pragma once

#include <cstdint>

#include "ptx.cuh"

namespace moegen {

// Products come as value x 2^-7.
inline constexpr float kCodeScale = 128.0f;

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// Scale x 2^119 in both halves: E4M3 is exact in fp16, and the product has few enough bits for bf16.
__device__ __forceinline__ uint32_t scale_pair(uint32_t byte) {
  uint32_t halves;
  asm("{ .reg .b16 b; cvt.u16.u32 b, %1; cvt.rn.f16x2.e4m3x2 %0, b; }" : "=r"(halves) : "r"(byte));
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(halves));
  const uint32_t bits = __float_as_uint(__fmul_rn(value, 0x1p119f));
  return __byte_perm(bits, bits, 0x3232);
}

// Pair i of a block's eight.
__device__ __forceinline__ uint32_t product_pair(const uint2& codes, int i, uint32_t scales) {
  const uint32_t byte = __byte_perm(i < 4 ? codes.x : codes.y, 0, 0x4440 + i % 4);
  const uint32_t magnitudes = (byte * 0x00040040u) & 0x01C001C0u;  // both nibbles' e e m to bits 8...6 of their half
  const uint32_t signs = (byte * 0x01001000u) & 0x80008000u;
  return mul_bf16x2(magnitudes | signs, scales);
}

}  // namespace moegen
