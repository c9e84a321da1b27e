// How the entries of a cache block are arranged. Keys lie 16 positions side by side, so that one
// vector holds the same element of 16 keys; values lie in pairs of positions, so that one vector
// holds the same pair for many elements. Each matches a broadcast of the other operand, and in both
// a head's part of 16 positions is one piece: a stream to prefetch. With INT8 the 16 scales of a
// piece end it.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels.h"
#include "device/attention.h"

namespace kun {

enum class CacheArrangement : std::uint8_t {
  kPlain,        // [position][width]: odd block lengths; INT8 [position], then codes, then scales
  kKeyGroups,    // BF16 [group][width/2][16][2], F32 [group][width][16]; INT8: pieces, below
  kValuePairs,   // BF16 [group][head][8][head_width][2]; INT8 as well, then scales; F32 is kPlain
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
  const bool whole = plane.dtype == DType::kI8 ? head_width(plane) % 4 == 0 : plane.width % 2 == 0;
  if (plane.tokens_per_block % kGroupPositions != 0 || !whole) return CacheArrangement::kPlain;
  if (plane.role == CacheRole::kKeys) return CacheArrangement::kKeyGroups;
  return plane.dtype == DType::kF32 ? CacheArrangement::kPlain : CacheArrangement::kValuePairs;
}

// Where element `col` of the entry at `position` of an F32 or BF16 block lies, in elements from its
// start. `head` is the head width.
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

// Bytes of a head's part of 16 positions: keys [head/4][16][4] or values [8][head][2], then F32
// scales [16].
constexpr std::int64_t int8_piece_bytes(std::int64_t head) {
  return kGroupPositions * (head + static_cast<std::int64_t>(sizeof(float)));
}

// Where element `col` of a piece lies, for position `lane` of it.
inline std::int64_t int8_piece_code(CacheArrangement arrangement, std::int64_t head,
                                    std::int64_t lane, std::int64_t col) {
  if (arrangement == CacheArrangement::kKeyGroups) {
    return (col / 4 * kGroupPositions + lane) * 4 + col % 4;
  }
  return (lane / 2 * head + col) * 2 + lane % 2;
}

inline std::int64_t int8_piece_scale(std::int64_t head, std::int64_t lane) {
  return kGroupPositions * head + lane * static_cast<std::int64_t>(sizeof(float));
}

// The same in a block of an INT8 plane, in bytes from its start, for the entry at `position`.
struct Int8Place {
  Int8Place(const CachePlane& plane, std::int64_t position)
      : layout(arrangement(plane)),
        head(head_width(plane)),
        lane(position % kGroupPositions),
        start(layout == CacheArrangement::kPlain ? position * plane.entry_bytes()
                                                 : (position - lane) * plane.entry_bytes()),
        width(plane.width) {}

  std::int64_t code(std::int64_t head_index, std::int64_t col) const {
    if (layout == CacheArrangement::kPlain) return start + head_index * head + col;
    return start + head_index * int8_piece_bytes(head) + int8_piece_code(layout, head, lane, col);
  }
  std::int64_t scale(std::int64_t head_index) const {
    if (layout == CacheArrangement::kPlain) {
      return start + width + head_index * static_cast<std::int64_t>(sizeof(float));
    }
    return start + head_index * int8_piece_bytes(head) + int8_piece_scale(head, lane);
  }

  CacheArrangement layout;
  std::int64_t head;
  std::int64_t lane;
  std::int64_t start;
  std::int64_t width;
};

}  // namespace kun
