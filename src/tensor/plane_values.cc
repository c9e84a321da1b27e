// Layouts: AutoAWQ (awq/modules/linear/gemm.py), AutoGPTQ (nn_modules/qlinear), compressed-tensors
// (compressors/pack_quantized), DeepSeek-V3 (README_WEIGHTS.md) and the OCP microscaling formats.
#include "tensor/plane_values.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

using Byte = std::uint8_t;

constexpr std::array<std::int8_t, 16> kE2M1Doubled{0, 1,  2,  3,  4,  6,  8,  12,
                                                   0, -1, -2, -3, -4, -6, -8, -12};

// The nibble of an AWQ word that holds row r of its eight.
constexpr std::array<int, 8> kAwqNibble{0, 4, 1, 5, 2, 6, 3, 7};

const Byte* bytes_of(std::span<const std::byte> data) {
  return reinterpret_cast<const Byte*>(data.data());
}

template <class T>
T load(const Byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Code `index` of the words of `bits`-bit codes that begin at `words`.
int code_at(const Byte* words, std::int64_t index, int bits) {
  if (bits == 8) return words[index];
  return (words[index / 2] >> (index % 2 * 4)) & 15;
}

template <int bits>
void read_gptq(const WeightView& view, std::int64_t row, std::int64_t first, std::int64_t count,
               std::int16_t* out) {
  constexpr std::int64_t kPerWord = 32 / bits;
  const Byte* column = bytes_of(view.data) + row * 4;
  const std::int64_t step = view.planes.stored_rows * 4;
  std::uint32_t word = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t col = first + i;
    if (i == 0 || col % kPerWord == 0) word = load<std::uint32_t>(column + col / kPerWord * step);
    out[i] = static_cast<std::int16_t>((word >> (col % kPerWord * bits)) & ((1U << bits) - 1));
  }
}

void read_awq(const WeightView& view, std::int64_t row, std::int64_t first, std::int64_t count,
              std::int16_t* out) {
  const int nibble = kAwqNibble[static_cast<std::size_t>(row % 8)];
  const std::int64_t step = view.planes.stored_rows / 2;
  const Byte* byte = bytes_of(view.data) + first * step + row / 8 * 4 + nibble / 2;
  const int shift = nibble % 2 * 4;
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::int16_t>((byte[i * step] >> shift) & 15);
  }
}

float scale_value(ScaleType type, const Byte* bytes) {
  switch (type) {
    case ScaleType::kF32: return load<float>(bytes);
    case ScaleType::kF16: return f16_to_f32(load<std::uint16_t>(bytes));
    case ScaleType::kBF16: return bf16_to_f32(load<std::uint16_t>(bytes));
    case ScaleType::kE4M3: return e4m3_to_f32(*bytes);
    case ScaleType::kE8M0: return e8m0_to_f32(*bytes);
  }
  return 0.0F;
}

// The codes of a row as floats.
void read_values(const WeightView& view, std::int64_t row, float* out) {
  const Byte* line = bytes_of(view.data) + (view.planes.first_row + row) * view.row_bytes();
  if (view.format == WeightFormat::kF8E4M3) {
    for (std::int64_t c = 0; c < view.cols; ++c) out[c] = e4m3_to_f32(line[c]);
    return;
  }
  if (view.format == WeightFormat::kF8E5M2) {
    for (std::int64_t c = 0; c < view.cols; ++c) out[c] = e5m2_to_f32(line[c]);
    return;
  }
  constexpr std::int64_t kPiece = 256;
  std::int16_t codes[kPiece];
  std::int8_t doubled[kPiece];
  for (std::int64_t first = 0; first < view.cols; first += kPiece) {
    const std::int64_t count = std::min(kPiece, view.cols - first);
    if (view.format == WeightFormat::kE2M1) {
      read_e2m1_doubled(view, row, first, count, doubled);
      for (std::int64_t i = 0; i < count; ++i) out[first + i] = 0.5F * doubled[i];
    } else {
      read_codes(view, row, first, count, codes);
      for (std::int64_t i = 0; i < count; ++i) out[first + i] = codes[i];
    }
  }
}

}  // namespace

int code_bits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kE2M1:
    case WeightFormat::kRowInt4:
    case WeightFormat::kGptqInt4:
    case WeightFormat::kAwqInt4: return 4;
    default: return 8;
  }
}

void read_codes(const WeightView& view, std::int64_t row, std::int64_t first, std::int64_t count,
                std::int16_t* out) {
  const std::int64_t stored_row = view.planes.first_row + row;
  const Byte* line = bytes_of(view.data) + stored_row * view.row_bytes();
  switch (view.format) {
    case WeightFormat::kInt8:
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int8_t>(line[first + i]);
      return;
    case WeightFormat::kRowInt4:
    case WeightFormat::kRowInt8: {
      const int bits = code_bits(view.format);
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = static_cast<std::int16_t>(code_at(line, first + i, bits));
      }
      return;
    }
    case WeightFormat::kGptqInt4: read_gptq<4>(view, stored_row, first, count, out); return;
    case WeightFormat::kGptqInt8: read_gptq<8>(view, stored_row, first, count, out); return;
    case WeightFormat::kAwqInt4: read_awq(view, stored_row, first, count, out); return;
    default: CHECK(false);  // no integers
  }
}

void read_e2m1_doubled(const WeightView& view, std::int64_t row, std::int64_t first,
                       std::int64_t count, std::int8_t* out) {
  const Byte* line = bytes_of(view.data) + (view.planes.first_row + row) * view.row_bytes();
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = kE2M1Doubled[static_cast<std::size_t>(code_at(line, first + i, 4))];
  }
}

std::int64_t group_of(const WeightView& view, std::int64_t col) {
  const WeightPlanes& planes = view.planes;
  if (planes.group_index.empty()) return col / planes.group_columns;
  return load<std::int32_t>(bytes_of(planes.group_index) + col * 4);
}

float scale_of(const WeightView& view, std::int64_t row, std::int64_t group) {
  const ScalePlane& scales = view.planes.scales;
  const std::int64_t index = (view.planes.first_row + row) / scales.row_block * scales.row_stride +
                             group * scales.group_stride;
  return scale_value(scales.type, bytes_of(scales.data) + index * size_bytes(scales.type));
}

int zero_of(const WeightView& view, std::int64_t row, std::int64_t group) {
  const ZeroPlane& zeros = view.planes.zeros;
  if (zeros.layout == ZeroLayout::kConstant) return zeros.constant;
  const int bits = code_bits(view.format);
  const std::int64_t per_word = 32 / bits;
  const std::int64_t stored_row = view.planes.first_row + row;
  const std::int64_t rows = view.planes.stored_rows;
  const Byte* data = bytes_of(zeros.data);
  int stored = 0;
  if (zeros.layout == ZeroLayout::kColumns) {
    const Byte* word = data + (stored_row / per_word * view.planes.group_count + group) * 4;
    stored = code_at(word, stored_row % per_word, bits);
  } else if (zeros.layout == ZeroLayout::kAwq) {
    const Byte* word = data + (group * (rows / 8) + stored_row / 8) * 4;
    stored = code_at(word, kAwqNibble[static_cast<std::size_t>(stored_row % 8)], 4);
  } else {
    stored = code_at(data + group * (rows / per_word) * 4, stored_row, bits);
  }
  return (stored + zeros.constant) & ((1 << bits) - 1);
}

void dequantize_planes(const WeightView& view, std::int64_t row, float* out) {
  CHECK(row >= 0 && row < view.rows);
  read_values(view, row, out);
  const bool integers = has_integer_codes(view.format);
  std::int64_t end = 0;
  for (std::int64_t first = 0; first < view.cols; first = end) {
    const std::int64_t group = group_of(view, first);
    end = view.planes.group_index.empty()
              ? std::min(view.cols, (group + 1) * view.planes.group_columns)
              : first + 1;
    const auto zero = static_cast<float>(integers ? zero_of(view, row, group) : 0);
    const float scale = scale_of(view, row, group) * view.tensor_scale;
    for (std::int64_t c = first; c < end; ++c) out[c] = (out[c] - zero) * scale;
  }
}

}  // namespace kun
