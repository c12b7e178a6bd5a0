// Lets g++ compile the CUDA numerics headers, whose intrinsics are IEEE operations or bit casts.
#pragma once

#include <bit>
#include <cstdint>

#define __device__
#define __forceinline__ inline

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::int32_t __float_as_int(float x) { return std::bit_cast<std::int32_t>(x); }
inline float __int_as_float(std::int32_t x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }

struct uint2 {
  std::uint32_t x;
  std::uint32_t y;
};
inline uint2 make_uint2(std::uint32_t x, std::uint32_t y) { return {x, y}; }
inline std::int32_t max(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
