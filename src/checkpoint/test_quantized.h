// Checkpoints with one quantized matrix, "x.weight", built by hand from codes that are easy to see.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"

namespace kun {

struct Part {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using Parts = std::map<std::string, Part>;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
Part part(const std::string& dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), raw(values)};
}
// F16 one, and powers of two around it.
inline constexpr std::uint16_t kOne = 0x3C00;
inline constexpr std::uint16_t kTwo = 0x4000;
inline constexpr std::uint16_t kHalf = 0x3800;

inline std::string file_of(const Parts& parts) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, part] : parts) {
    if (header.size() > 1) header += ",";
    header += "\"" + name + "\":{\"dtype\":\"" + part.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < part.shape.size(); ++i) {
      header += (i > 0 ? "," : "") + std::to_string(part.shape[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += part.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  std::string out = safetensors_bytes(header, 0);
  return out + data;
}

// A checkpoint folder with these tensors and this quantization_config.
class Folder {
 public:
  Folder(const std::string& quantization, const Parts& parts) {
    folder_.write("config.json", R"({"quantization_config":)" + quantization + "}");
    folder_.write("model.safetensors", file_of(parts));
  }
  Result<std::unique_ptr<Checkpoint>> open() const { return open_checkpoint(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

using Rows = std::vector<std::vector<float>>;

inline Rows values_of(const WeightView& view) {
  Rows out;
  for (std::int64_t row = 0; row < view.rows; ++row) {
    out.emplace_back(static_cast<std::size_t>(view.cols));
    dequantize_row(view, row, out.back().data());
  }
  return out;
}

// The matrix "x.weight", or what is wrong with it.
struct Outcome {
  Rows rows;
  std::string error = "no error";
  WeightFormat format = WeightFormat::kF32;
};
inline Outcome read(const std::string& quantization, const Parts& parts) {
  const Folder folder(quantization, parts);
  const auto checkpoint = folder.open();
  Outcome outcome;
  if (!checkpoint.has_value()) {
    outcome.error = checkpoint.error().message();
    return outcome;
  }
  const auto view = (*checkpoint)->matrix("x.weight");
  if (!view.has_value()) {
    outcome.error = view.error().message();
    return outcome;
  }
  EXPECT_TRUE((*checkpoint)->has("x.weight"));
  outcome.rows = values_of(*view);
  outcome.format = view->format;
  for (std::int64_t row = 1; row < view->rows; ++row) {  // the same through a part of the view
    EXPECT_EQ(values_of(view->slice_rows(row, 1)).front(),
              outcome.rows[static_cast<std::size_t>(row)]);
  }
  return outcome;
}

inline const std::string kGptq =
    R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":false,"desc_act":false})";

// 8 rows x 16 columns: code of (row, col) = (row + col) % 16, zero of (group, row) = row, scale of
// group 0 is 1, of group 1 is 2.
inline Parts gptq_parts() {
  std::vector<std::uint32_t> words(2 * 8);
  for (std::uint32_t col = 0; col < 16; ++col) {
    for (std::uint32_t row = 0; row < 8; ++row) {
      words[col / 8 * 8 + row] |= (row + col) % 16 << (col % 8 * 4);
    }
  }
  const std::uint32_t zeros = 0x6543210FU;  // row - 1 for row 0..7: v1 stores one less
  return {{"x.qweight", part("I32", {2, 8}, words)},
          {"x.qzeros", part("I32", {2, 1}, std::vector<std::uint32_t>{zeros, zeros})},
          {"x.scales", part("F16", {2, 8}, [] {
             std::vector<std::uint16_t> scales(16, kOne);
             std::fill(scales.begin() + 8, scales.end(), kTwo);
             return scales;
           }())}};
}

inline float gptq_value(int row, int col, int group) {
  return static_cast<float>((row + col) % 16 - row) * (group == 0 ? 1.0F : 2.0F);
}

inline std::string compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":)" + weights + "}}}";
}

}  // namespace kun
