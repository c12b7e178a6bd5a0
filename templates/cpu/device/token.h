// Token dtypes as typed 16-bit patterns, and rows of them converted to and from fp32.
#pragma once

#include <cstdint>

#include "rounding.h"
#include "sizes.h"

namespace moegen {

/// bfloat16.
struct Bf16 {
  std::uint16_t bits;

  static float to_float(Bf16 value) { return f32_from_bf16(value.bits); }
  static Bf16 from_float(float value) { return {bf16_from_f32(value)}; }
};

/// IEEE half precision.
struct Fp16 {
  std::uint16_t bits;

  static float to_float(Fp16 value) { return f32_from_f16(value.bits); }
  static Fp16 from_float(float value) { return {f16_from_f32(value)}; }
};

/// `value` rounded to the token dtype, as fp32.
template <class Token>
float round_to(float value) {
  return Token::to_float(Token::from_float(value));
}

template <class Token>
void widen(const Token* source, Index count, float* target) {
  for (Index i = 0; i < count; ++i) {
    target[i] = Token::to_float(source[i]);
  }
}

template <class Token>
void narrow(const float* source, Index count, Token* target) {
  for (Index i = 0; i < count; ++i) {
    target[i] = Token::from_float(source[i]);
  }
}

}  // namespace moegen
