// How the entries of a cache block are arranged. Keys lie 16 positions side by side, so that one
// vector holds the same element of 16 keys; values lie in pairs of positions, so that one vector
// holds the same pair for many elements. Each matches a broadcast of the other operand, and in both
// a head's part of 16 positions is one piece: a stream to prefetch.
#pragma once

#include "backends/cpu/kernels.h"
#include "device/attention.h"

namespace kun {

enum class CacheArrangement : std::uint8_t {
  kPlain,        // [position][width]: odd block lengths
  kKeyGroups,    // BF16 [group][width/2][16][2], F32 [group][width][16]
  kValuePairs,   // BF16 [group][head][8][head_width][2]; F32 is kPlain
  kIndexPanels,  // BF16 [panel][width/2][32][2], F32 [panel][width][32]: as weights, see kernels.h
};

inline int head_width(const CachePlane& plane) {
  return plane.head_width > 0 ? plane.head_width : plane.width;
}

inline CacheArrangement arrangement(const CachePlane& plane) {
  if (plane.role == CacheRole::kRows) return CacheArrangement::kPlain;
  if (plane.role == CacheRole::kIndexKeys) {
    const bool panels = plane.tokens_per_block % kPanelRows == 0 && plane.width % 2 == 0;
    return panels ? CacheArrangement::kIndexPanels : CacheArrangement::kPlain;
  }
  if (plane.tokens_per_block % kGroupPositions != 0 || plane.width % 2 != 0) {
    return CacheArrangement::kPlain;
  }
  if (plane.role == CacheRole::kKeys) return CacheArrangement::kKeyGroups;
  return plane.dtype == DType::kF32 ? CacheArrangement::kPlain : CacheArrangement::kValuePairs;
}

// Where element `col` of the entry at `position` of a block lies, in elements from its start.
// `head` is the head width.
inline std::int64_t cache_element(CacheArrangement arrangement, DType dtype, std::int64_t width,
                                  std::int64_t head, std::int64_t position, std::int64_t col) {
  const std::int64_t group_start = position / kGroupPositions * kGroupPositions * width;
  const std::int64_t lane = position % kGroupPositions;
  const std::int64_t panel_lane = position % kPanelRows;
  switch (arrangement) {
    case CacheArrangement::kPlain: return position * width + col;
    case CacheArrangement::kKeyGroups:
      if (dtype == DType::kF32) return group_start + col * kGroupPositions + lane;
      return group_start + (col / 2 * kGroupPositions + lane) * 2 + col % 2;
    case CacheArrangement::kValuePairs:
      return group_start + col / head * head * kGroupPositions +
             (lane / 2 * head + col % head) * 2 + lane % 2;
    case CacheArrangement::kIndexPanels:
      if (dtype == DType::kF32) {
        return (position - panel_lane) * width + col * kPanelRows + panel_lane;
      }
      return (position - panel_lane) * width + (col / 2 * kPanelRows + panel_lane) * 2 + col % 2;
  }
  return 0;
}

}  // namespace kun
