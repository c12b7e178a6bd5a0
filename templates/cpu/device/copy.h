// Whole rows of the token dtype, moved or cleared.
#pragma once

#include <cstring>

#include "sizes.h"
#include "token.h"

namespace moegen {

template <class Token>
void fill_zero(Token* target, Index count) {
  std::memset(target, 0, count * sizeof(Token));
}

template <class Token>
void copy(const Token* source, Index count, Token* target) {
  std::memcpy(target, source, count * sizeof(Token));
}

/// source · weight in fp32, rounded once to the token dtype.
template <class Token>
void copy_weighted(const Token* source, Index count, float weight, Token* target) {
  for (Index i = 0; i < count; ++i) {
    target[i] = Token::from_float(Token::to_float(source[i]) * weight);
  }
}

}  // namespace moegen
