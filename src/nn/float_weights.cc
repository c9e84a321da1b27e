#include "nn/float_weights.h"

#include <cstring>

#include "base/check.h"

namespace kun::nn {

std::vector<float> floats_of(const WeightView& view, std::int64_t first, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count * view.cols));
  for (std::int64_t row = 0; row < count; ++row) {
    dequantize_row(view, first + row, values.data() + row * view.cols);
  }
  return values;
}

std::unique_ptr<PackedMatrix> pack_exact(const Loader& load, const std::string& name,
                                         std::int64_t rows, std::int64_t cols) {
  const WeightView view = load.weights().view(name, rows, cols);
  const MadeMatrix matrix{.key = name, .rows = rows, .cols = cols, .dtype = DType::kF32};
  return std::move(
      load.weights().made({&matrix, 1}, [&](std::size_t) { return floats_of(view); }).front());
}

std::vector<std::unique_ptr<PackedMatrix>> pack_slices(const Loader& load, const std::string& name,
                                                       std::int64_t count, std::int64_t rows,
                                                       std::int64_t cols) {
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (std::int64_t i = 0; i < count; ++i) {
    packed.push_back(load.weights().matrix_rows({name, count * rows}, cols, i * rows, rows));
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
