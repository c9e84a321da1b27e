#include "nn/float_weights.h"

#include <cstring>

#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun::nn {

std::vector<float> load_floats(const Loader& load, const std::string& name, std::int64_t rows,
                               std::int64_t cols) {
  const WeightView view = load.weights().table(name, rows, cols);
  if (!load.weights().status().ok()) return {};
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    dequantize_row(view, row, values.data() + row * cols);
  }
  return values;
}

std::unique_ptr<PackedMatrix> pack_floats(const Loader& load, std::span<const float> values,
                                          std::int64_t rows, std::int64_t cols, DType dtype) {
  if (values.empty()) return nullptr;
  CHECK(std::ssize(values) == rows * cols);
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  std::vector<std::uint16_t> narrow;
  if (dtype == DType::kBF16) {
    narrow.reserve(values.size());
    for (const float value : values) narrow.push_back(f32_to_bf16(value));
  }
  WeightView view;
  view.format = dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBF16;
  view.rows = rows;
  view.cols = cols;
  view.role = WeightRole::kExact;
  view.data = dtype == DType::kF32 ? std::as_bytes(values) : std::as_bytes(std::span(narrow));
  auto packed = load.ops().pack({&view, 1});
  if (packed) return *std::move(packed);
  load.weights().fail(packed.error());
  return nullptr;
}

std::unique_ptr<PackedMatrix> pack_exact(const Loader& load, const std::string& name,
                                         std::int64_t rows, std::int64_t cols) {
  return pack_floats(load, load_floats(load, name, rows, cols), rows, cols, DType::kF32);
}

std::vector<std::unique_ptr<PackedMatrix>> pack_slices(const Loader& load, const std::string& name,
                                                       std::int64_t count, std::int64_t rows,
                                                       std::int64_t cols) {
  const WeightView all = load.weights().table(name, count * rows, cols);
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (std::int64_t i = 0; i < count && load.weights().status().ok(); ++i) {
    const WeightView view = all.slice_rows(i * rows, rows);
    auto matrix = load.ops().pack({&view, 1});
    if (!matrix) {
      load.weights().fail(matrix.error());
      return {};
    }
    packed.push_back(*std::move(matrix));
  }
  return packed;
}

DeviceVector device_vector(Ops& ops, std::span<const float> values) {
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  DeviceVector result;
  result.bytes = ops.allocate(bytes);
  CHECK(result.bytes != nullptr);
  std::memcpy(result.bytes.get(), values.data(), values.size_bytes());
  result.view = ConstTensorView(result.bytes.get(), DType::kF32, {std::ssize(values)});
  return result;
}

}  // namespace kun::nn
