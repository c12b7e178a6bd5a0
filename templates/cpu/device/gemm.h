// The grouped matrix product: every tile of every expert's rows times that expert's weights.
#pragma once

#include "grouping.h"
#include "microkernel.h"
#include "sizes.h"
#include "tasks.h"

namespace moegen {

/// How a gemm is cut up; every value changes the generated loops, none changes a result on data whose sums are exact.
///
/// `Rows`: rows of a tile; `Columns`: weight rows of a task; `Depth`: elements of K decoded at a time; `Unroll`: weight
/// rows that the inner loop multiplies at once.
template <Index Rows, Index Columns, Index Depth, Index Unroll>
struct Schedule {
  static constexpr Index kRows = Rows;
  static constexpr Index kColumns = Columns;
  static constexpr Index kDepth = Depth;
  static constexpr Index kUnroll = Unroll;
  /// Rows that the inner loop multiplies at once.
  static constexpr Index kRowGroup = minimum(Rows, 4);
};

/// fp32 sums of one task: `acc[row][column]`.
template <class S>
struct Accumulators {
  alignas(64) float acc[S::kRows][S::kColumns];
};

/// One task's place in the output: a tile and a range of weight rows; `last` marks the final range.
struct Block {
  Tile tile;
  Index first_column;
  Index columns;
  bool last;
};

template <class S, class Rows>
void load_rows(const Rows& rows, const Tile& tile, Index first, Index depth, float* panel) {
  for (Index row = 0; row < tile.rows; ++row) {
    rows.load(tile.first_row + row, first, depth, panel + row * S::kDepth);
  }
  // The inner loop takes whole groups: rows that fill the last one are zero, and their results are not read.
  for (Index row = tile.rows; row < round_up(tile.rows, S::kRowGroup); ++row) {
    for (Index i = 0; i < depth; ++i) {
      panel[row * S::kDepth + i] = 0.0f;
    }
  }
}

/// Sums of one task over the whole depth.
template <class S, class Rows, class Weights>
void accumulate(const Rows& rows, const Weights& weights, const Block& block, Accumulators<S>& sums) {
  alignas(64) float row_panel[S::kRows * S::kDepth];
  alignas(64) float weight_panel[S::kUnroll * S::kDepth];
  sums = {};
  for (Index first = 0; first < Weights::kDepth; first += S::kDepth) {
    const Index depth = minimum(S::kDepth, Weights::kDepth - first);
    load_rows<S>(rows, block.tile, first, depth, row_panel);
    for (Index column = 0; column < block.columns; column += S::kUnroll) {
      for (Index i = 0; i < S::kUnroll; ++i) {
        weights.load(block.tile.expert, block.first_column + column + i, first, depth, weight_panel + i * S::kDepth);
      }
      for (Index row = 0; row < block.tile.rows; row += S::kRowGroup) {
        multiply_accumulate<S::kRowGroup, S::kUnroll, S::kDepth, S::kColumns>(row_panel + row * S::kDepth, weight_panel,
                                                                              depth, &sums.acc[row][column]);
      }
    }
  }
}

/// Runs `epilogue(block, sums)` once for each tile and column range.
template <class S, class Groups, class Rows, class Weights, class Epilogue>
void grouped_gemm(const Groups& grouping, Index threads, const Rows& rows, const Weights& weights,
                  const Epilogue& epilogue) {
  constexpr Index ranges = ceil_div(Weights::kColumns, S::kColumns);
  parallel_tasks(grouping.tiles() * ranges, threads, [&](Index task) {
    const Index range = task % ranges;
    const Index first_column = range * S::kColumns;
    const Block block{grouping.tile(task / ranges), first_column,
                      minimum(S::kColumns, Weights::kColumns - first_column), range + 1 == ranges};
    Accumulators<S> sums;
    accumulate<S>(rows, weights, block, sums);
    epilogue(block, sums);
  });
}

}  // namespace moegen
