// exp, tanh and the sigmoid forms: bit for bit moegen.numerics.elementary, which explains and tests each step.
// Compile with --fmad=false; nvcc's other defaults (correctly rounded division, no flush to zero) are what is needed.
#pragma once

#include <cstdint>

namespace moegen {

inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kRoundMagic = 0x1.8p+23f;
inline constexpr float kLn2Hi = 0x1.62e430p-1f;
inline constexpr float kLn2Lo = -0x1.05c610p-29f;
inline constexpr float kExpMax = 89.0f;
inline constexpr float kExpMin = -104.0f;
inline constexpr float kTanhSplit = 0x1.19999ap-1f;
inline constexpr uint32_t kMagicBits = 0x4B400000u;

__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ __forceinline__ float power_of_two(int32_t n) {
  return __uint_as_float((static_cast<uint32_t>(n) + 127u) << 23);
}

__device__ __forceinline__ float exp(float x) {
  const float capped = x > kExpMax ? kExpMax : x;
  const float clamped = capped < kExpMin ? kExpMin : capped;
  const float shifted = clamped * kLog2e + kRoundMagic;
  const auto n = static_cast<int32_t>(__float_as_uint(shifted) - kMagicBits);
  const float rounded = shifted - kRoundMagic;
  const float r = fma(rounded, -kLn2Lo, fma(rounded, -kLn2Hi, clamped));
  float p = 0x1.6a2434p-10f;
  p = fma(p, r, 0x1.1239e2p-7f);
  p = fma(p, r, 0x1.5558f2p-5f);
  p = fma(p, r, 0x1.555492p-3f);
  p = fma(p, r, 0x1.fffffcp-2f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  const int32_t half = n >> 1;
  return p * power_of_two(half) * power_of_two(n - half);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + exp(-x)); }

__device__ __forceinline__ float scaled_silu(float x, float alpha) { return x / (1.0f + exp(-(x * alpha))); }

__device__ __forceinline__ float tanh(float x) {
  const uint32_t bits = __float_as_uint(x);
  const float magnitude = __uint_as_float(bits & 0x7FFFFFFFu);
  const float square = magnitude * magnitude;
  float p = -0x1.9bba80p-8f;
  p = fma(p, square, 0x1.59568cp-6f);
  p = fma(p, square, -0x1.b92bbap-5f);
  p = fma(p, square, 0x1.110d3cp-3f);
  p = fma(p, square, -0x1.55554cp-2f);
  const float small = fma(magnitude * square, p, magnitude);
  const float decay = exp(magnitude * -2.0f);
  const float large = (1.0f - decay) / (1.0f + decay);
  const float result = magnitude < kTanhSplit ? small : large;
  return __uint_as_float(__float_as_uint(result) | (bits & 0x80000000u));
}

}  // namespace moegen
