// Shared memory of the routing kernel, for both halves of its source: plain constexpr C++, no device code.
#pragma once

namespace moegen {

// Threads that share the sum over a block's warps for one expert.
constexpr int route_parts(int experts, int threads) {
  const int parts = threads / experts, warps = threads / 32;
  return parts < 1 ? 1 : parts > warps ? warps : parts;
}

// int32 words: counts of every warp, parts of their sums, rows and first rows of a block, offsets, 34 sums.
constexpr int route_words(int experts, int threads) {
  return (threads / 32 + route_parts(experts, threads) + 3) * experts + 1 + 34;
}

}  // namespace moegen
