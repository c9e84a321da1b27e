// What lies beside the codes of a weight matrix: scales, zero points and the order of groups, each
// a plane of the checkpoint's own bytes. A weight is w = (code - zero) * scale * tensor_scale.
//
// Columns form groups that share a scale and a zero; rows may share them too (FP8 blocks). The
// planes are checked once, when the checkpoint makes a view: reading them needs no checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kun {

enum class ScaleType : std::uint8_t { kF32, kF16, kBF16, kE4M3, kE8M0 };

constexpr int size_bytes(ScaleType type) {
  switch (type) {
    case ScaleType::kF32: return 4;
    case ScaleType::kF16:
    case ScaleType::kBF16: return 2;
    case ScaleType::kE4M3:
    case ScaleType::kE8M0: return 1;
  }
  return 0;
}

// The scale of row r in group g is element r / row_block * row_stride + g * group_stride.
struct ScalePlane {
  std::span<const std::byte> data;
  ScaleType type = ScaleType::kF32;
  std::int64_t row_block = 1;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
};

// Where the zero of row r in group g is stored, in words of 32 / bits codes, low bits first.
enum class ZeroLayout : std::uint8_t {
  kConstant,  // nowhere: `constant` for all
  kGptq,      // word [g][r / per word]
  kAwq,       // word [g][r / 8], in the order 0 2 4 6 1 3 5 7
  kColumns,   // word [r / per word][g] (compressed-tensors)
};

struct ZeroPlane {
  ZeroLayout layout = ZeroLayout::kConstant;
  std::span<const std::byte> data;
  int constant = 0;  // added to what is stored and wrapped to the codes' bits; or the zero itself
};

struct WeightPlanes {
  ScalePlane scales{};
  ZeroPlane zeros{};
  std::int64_t group_columns = 1;  // columns of a group, unless group_index says it
  std::int64_t group_count = 1;
  std::span<const std::byte> group_index;  // I32 [col]: its group; empty: col / group_columns
  std::int64_t stored_rows = 0;            // of the stored matrix, which the view may be a part of
  std::int64_t first_row = 0;              // the view's first row in it
};

}  // namespace kun
