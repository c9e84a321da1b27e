// Random matrices in every stored format, for tests and benchmarks: any bytes are legal blocks as
// long as their floating-point scales are sane.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "backends/cpu/unpack.h"
#include "tensor/float_formats.h"
#include "tensor/weight_view.h"

namespace kun {

inline constexpr WeightFormat kAllWeightFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,    WeightFormat::kBF16,   WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1,   WeightFormat::kQ5_0,   WeightFormat::kQ5_1,
    WeightFormat::kQ2_K, WeightFormat::kQ3_K,   WeightFormat::kQ4_K,   WeightFormat::kQ5_K,
    WeightFormat::kQ6_K, WeightFormat::kIQ4_NL, WeightFormat::kIQ4_XS, WeightFormat::kMXFP4,
    WeightFormat::kNVFP4};

// Byte offsets of a block's F16 fields.
inline std::vector<int> f16_fields(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS: return {0};
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K: return {0, 2};
    case WeightFormat::kQ2_K: return {80, 82};
    case WeightFormat::kQ3_K: return {108};
    case WeightFormat::kQ6_K: return {208};
    default: return {};
  }
}

struct RandomWeights {
  RandomWeights(WeightFormat format, std::int64_t rows, std::int64_t cols, unsigned seed = 1) {
    view.format = format;
    view.rows = rows;
    view.cols = cols;
    if (format == WeightFormat::kNVFP4) view.tensor_scale = 0.75F;
    const BlockShape shape = block_shape(format);
    bytes.resize(static_cast<std::size_t>(rows * view.row_bytes()));
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
    }
    const auto step = static_cast<std::size_t>(shape.bytes);
    for (std::size_t at = 0; at < bytes.size(); at += step) make_sane(format, random, at);
    view.data = bytes;
  }

  WeightView view;
  std::vector<std::byte> bytes;

 private:
  void make_sane(WeightFormat format, std::mt19937_64& random, std::size_t at) {
    std::normal_distribution<float> normal(0.0F, 0.05F);
    const float value = normal(random);
    if (format == WeightFormat::kF32) std::memcpy(&bytes[at], &value, 4);
    if (format == WeightFormat::kBF16) put_u16(at, f32_to_bf16(value));
    if (format == WeightFormat::kF16) put_u16(at, f32_to_f16(value));
    if (format == WeightFormat::kMXFP4) bytes[at] = static_cast<std::byte>(118 + random() % 8);
    for (const int field : f16_fields(format)) {
      put_u16(at + static_cast<std::size_t>(field), f32_to_f16(normal(random) * 0.1F));
    }
  }
  void put_u16(std::size_t at, std::uint16_t bits) { std::memcpy(&bytes[at], &bits, 2); }
};

// w = scale * code + min.
struct Affine {
  float scale;
  float min;
};

inline Affine affine(const UnpackedBlock& block, PanelTraits traits, int group) {
  const auto g = static_cast<std::size_t>(group);
  switch (traits.scale) {
    case ScaleKind::kF32: return {block.scale_f32[g], 0.0F};
    case ScaleKind::kF16:
      return {f16_to_f32(block.scale_f16), traits.has_min ? f16_to_f32(block.min_f16) : 0.0F};
    case ScaleKind::kSuper: break;
  }
  return {f16_to_f32(block.super_scale_f16) * block.scale_steps[g],
          traits.has_min ? f16_to_f32(block.super_min_f16) * block.min_steps[g] : 0.0F};
}

// N(0, 1).
inline std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace kun
