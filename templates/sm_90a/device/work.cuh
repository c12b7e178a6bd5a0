// Which (expert, rows, weight rows) tiles a block computes: read from the routing result on the device, never on the
// host.
//
// A gemm runs one kernel per token-tile width of its ladder, because two wgmma widths in one kernel serialise (ptxas
// C7512). An expert's rows, in groups of 8, are split evenly over the fewest tiles of the ladder's widest kernel; the
// kernel with the least width that holds such a tile takes all of them. Row tiles of one token tile are neighbours in
// the order of work.
#pragma once

#include <cstdint>

#include "ptx.cuh"
#include "rows.cuh"

namespace moegen {

// One token tile's work on one row tile of the weights; kept in shared memory as an int4.
struct WorkItem {
  int expert;    // < 0 ends the work
  int row;       // first padded row, a multiple of 8
  int rows;      // real rows, 1...width
  int row_tile;  // of the weights
  int part = 0;  // 0: all warpgroups' shares of the row tile; else the first of them, and 256 times how many

  __device__ int first_group() const { return part & 255; }
  __device__ int groups() const { return part >> 8; }

  static constexpr int kBytes = 16;
  static __device__ WorkItem load(uint32_t address) {
    const int4 v = load_shared_int4(address);
    return WorkItem{v.x, v.y, v.z & 0xffff, v.w, v.z >> 16};
  }
  __device__ void store(uint32_t address) const {
    store_shared_int4(address, make_int4(expert, row, rows | part << 16, row_tile));
  }
};

// An expert that this kernel serves, likewise.
struct WorkEntry {
  int expert;
  int first_tile;   // token tiles of all earlier entries
  int first_group;  // groups of 8 padded rows of all earlier experts, served here or not
  int rows;

  static constexpr int kBytes = 16;
  static __device__ WorkEntry load(uint32_t address) {
    const int4 v = load_shared_int4(address);
    return WorkEntry{v.x, v.y, v.z, v.w};
  }
  __device__ void store(uint32_t address) const {
    store_shared_int4(address, make_int4(expert, first_tile, first_group, rows));
  }
};

// Token tiles and groups per tile of an expert with `rows` rows, for a ladder whose widest tile is kWidest.
template <int kWidest>
struct Split {
  int groups, tiles, tile_groups;
  __device__ explicit Split(int rows) {
    constexpr unsigned kMost = kWidest / kGroupRows;
    const unsigned all = (unsigned(rows) + kGroupRows - 1) / kGroupRows, parts = (all + kMost - 1) / kMost;
    groups = int(all);
    tiles = int(parts);
    tile_groups = parts > 1 ? int((all + parts - 1) / parts) : groups;
  }
  // True for the kernel whose tiles are the narrowest that hold an even share.
  __device__ bool serves(int above, int width) const {
    return tile_groups * kGroupRows > above && tile_groups * kGroupRows <= width;
  }
};

// Inclusive sum over the lanes of a warp.
__device__ __forceinline__ int lane_sum(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int part = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += part;
  }
  return value;
}

// Writes this kernel's experts to the list at `list` (room for kExperts) and returns the number of token tiles; called
// by one full warp, each lane serving neighbouring experts. kAbove < rows of a tile <= kWidth.
template <int kExperts, int kAbove, int kWidth, int kWidest>
__device__ int list_work(const int32_t* __restrict__ expert_rows, uint32_t list, int& active) {
  constexpr int kEach = (kExperts + 31) / 32;
  const int first = threadIdx.x % 32 * kEach;
  int rows[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) rows[i] = first + i < kExperts ? __ldcg(expert_rows + first + i) : 0;
  int tiles = 0, groups = 0, count = 0;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const Split<kWidest> split(rows[i]);
    const bool mine = split.serves(kAbove, kWidth);
    tiles += mine ? split.tiles : 0;
    groups += split.groups;
    count += mine;
  }
  const int tile_end = lane_sum(tiles), group_end = lane_sum(groups), count_end = lane_sum(count);
  int tile = tile_end - tiles, group = group_end - groups;
  uint32_t place = list + (count_end - count) * WorkEntry::kBytes;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const Split<kWidest> split(rows[i]);
    if (split.serves(kAbove, kWidth)) {
      WorkEntry{first + i, tile, group, rows[i]}.store(place);
      place += WorkEntry::kBytes;
      tile += split.tiles;
    }
    group += split.groups;
  }
  active = __shfl_sync(~0u, count_end, 31);
  return __shfl_sync(~0u, tile_end, 31);
}

// Which items a block computes, in rising order: blockIdx.x, then every gridDim.x-th, or whatever it claims from a
// counter in global memory. A claim is an atomic add by one lane, made an item before its result is needed.
template <bool kClaimed>
struct Order {
  int index = int(blockIdx.x);
  int ticket = 0;

  // Called by the lane that will be asked for the ticket.
  __device__ void claim(int32_t* claims) {
    if constexpr (kClaimed) ticket = atomicAdd(claims, 1);
  }
  // Moves on; `ticket` is the claiming lane's.
  __device__ void advance(int claimed) { index = int(gridDim.x) + (kClaimed ? claimed : index); }

  // The last block to come here clears the counters for the next launch; called by one thread, after its last claim.
  static __device__ void finish(int32_t* claims) {
    if constexpr (kClaimed) {
      if (atomicAdd(claims + 1, 1) == int(gridDim.x) - 1) {
        atomicExch(claims, 0);  // a plain store would not be ordered after other blocks' claims
        atomicExch(claims + 1, 0);
      }
    }
  }
};

// Finds items by index, which must rise. kParts > 1: what is left after every block has had equally many items is cut
// into parts, at most kParts of a row tile's kGroups shares and no more than there are blocks, so that all blocks end
// at about the same time.
template <int kWidest, int kRowTiles, int kGroups, int kParts>
struct Cursor {
  uint32_t entry, last;  // addresses of the current and of the last entry
  int items;
  int whole = 0, each = kGroups;  // items before the cut, and shares of a part after it

  __device__ Cursor(uint32_t list, int active, int tiles)
      : entry(list), last(list + (active - 1) * WorkEntry::kBytes), items(tiles * kRowTiles) {
    if constexpr (kParts > 1) {
      const int blocks = int(gridDim.x), left = unsigned(items) % unsigned(blocks);
      each = (kGroups + kParts - 1) / kParts;
      while (each < kGroups && left * parts() > blocks) each++;
      whole = items - left;
      items = whole + left * parts();
    }
  }

  // Parts of a row tile.
  __device__ int parts() const { return unsigned(kGroups + each - 1) / unsigned(each); }

  // Item `index`, or one with expert < 0 past the last.
  __device__ WorkItem at(int index) {
    if (index >= items) return WorkItem{-1, 0, 0, 0};
    int part = 0;
    if constexpr (kParts > 1) {
      if (each < kGroups && index >= whole) {
        const int first = unsigned(index - whole) % unsigned(parts()) * each;
        part = first + 256 * min(each, kGroups - first);
        index = whole + unsigned(index - whole) / unsigned(parts());
      }
    }
    const int tile = unsigned(index) / kRowTiles, row_tile = unsigned(index) % kRowTiles;
    WorkEntry e = WorkEntry::load(entry);
    while (entry != last) {
      const WorkEntry later = WorkEntry::load(entry + WorkEntry::kBytes);
      if (later.first_tile > tile) break;
      e = later;
      entry += WorkEntry::kBytes;
    }
    const Split<kWidest> split(e.rows);
    const int first = (tile - e.first_tile) * split.tile_groups * kGroupRows;
    const int rows = min(split.tile_groups * kGroupRows, e.rows - first);
    return WorkItem{e.expert, e.first_group * kGroupRows + first, rows, row_tile, part};
  }
};

}  // namespace moegen
