// The activated half of gemm1's interleaved output: columns 8…15 of every 16.
#pragma once

#include <cstring>

#include "row_ops.h"
#include "sizes.h"
#include "token.h"

namespace moegen {

/// Copies the activated columns of one row; `count` columns are written.
template <class Token>
void take_activated(const Token* pairs, Index count, Token* target) {
  for (Index group = 0; group < count; group += kHalf) {
    std::memcpy(target + group, pairs + 2 * group + kHalf, kHalf * sizeof(Token));
  }
}

/// The same, widened to fp32.
template <class Token>
void widen_activated(const Token* pairs, Index count, float* target) {
  for (Index group = 0; group < count; group += kHalf) {
    widen(pairs + 2 * group + kHalf, kHalf, target + group);
  }
}

}  // namespace moegen
