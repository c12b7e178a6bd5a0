// Eight fp32 lanes as a value; the compiler maps it to one register.
#pragma once

#include <cstdint>
#include <cstring>

#include "sizes.h"

// Vectors are passed between inlined functions only, never across an object's boundary, so their ABI does not matter
// where the baseline has no 32-byte registers.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace moegen {

inline constexpr Index kLanes = 8;

typedef float Float8 __attribute__((vector_size(32)));
typedef std::uint32_t Uint8x32 __attribute__((vector_size(32)));

inline Float8 load8(const float* source) {
  Float8 value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

inline void store8(float* target, const Float8& value) { std::memcpy(target, &value, sizeof value); }

/// a·b + c, one rounding a lane.
inline Float8 fma8(const Float8& a, const Float8& b, const Float8& c) {
  Float8 result;
  for (Index lane = 0; lane < kLanes; ++lane) {
    result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  }
  return result;
}

inline float sum8(const Float8& v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

}  // namespace moegen
