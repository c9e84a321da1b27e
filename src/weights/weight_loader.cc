#include "weights/weight_loader.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

namespace kun {

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Ops& ops,
                           std::function<void(std::int64_t)> progress)
    : checkpoint_(checkpoint), ops_(ops), progress_(std::move(progress)) {}

void WeightLoader::fail(const Status& error) {
  if (status_.ok()) status_ = error;
}

std::unique_ptr<PackedMatrix> WeightLoader::matrix(std::span<const MatrixPart> parts,
                                                   std::int64_t cols) {
  if (!status_.ok()) return nullptr;
  std::vector<WeightView> views;
  for (const MatrixPart& part : parts) {
    auto view = checkpoint_.matrix(part.name, part.rows, cols);
    if (!view) {
      fail(view.error());
      return nullptr;
    }
    views.push_back(*view);
    read_bytes_ += static_cast<std::int64_t>(view->data.size());
  }
  auto packed = ops_.pack(views);
  if (!packed) {
    const std::string name = parts.front().name;
    fail({packed.error().code(), fmt::format("tensor {}: {}", name, packed.error().message())});
    return nullptr;
  }
  packed_bytes_ += (*packed)->bytes;
  if (progress_) progress_(read_bytes_);
  return *std::move(packed);
}

DeviceVector WeightLoader::vector(const std::string& name, std::int64_t size) {
  if (!status_.ok()) return {};
  if (!has(name)) {
    fail(data_loss(fmt::format("tensor {} is missing", name)));
    return {};
  }
  const MatrixPart part{name, size};
  return optional_vectors({&part, 1});
}

DeviceVector WeightLoader::optional_vectors(std::span<const MatrixPart> parts) {
  if (!status_.ok() || !has(parts.front().name)) return {};
  std::vector<float> values;
  for (const MatrixPart& part : parts) {
    auto piece = checkpoint_.vector(part.name, part.rows);
    if (!piece) {
      fail(piece.error());
      return {};
    }
    values.insert(values.end(), piece->begin(), piece->end());
  }
  const auto bytes = std::ssize(values) * size_bytes(DType::kF32);
  DeviceVector result;
  result.bytes = ops_.allocate(bytes);
  std::memcpy(result.bytes.get(), values.data(), static_cast<std::size_t>(bytes));
  result.view = ConstTensorView(result.bytes.get(), DType::kF32, {std::ssize(values)});
  return result;
}

WeightView WeightLoader::table(const std::string& name, std::int64_t rows, std::int64_t cols) {
  if (!status_.ok()) return {};
  auto view = checkpoint_.matrix(name, rows, cols);
  if (!view) {
    fail(view.error());
    return {};
  }
  return *view;
}

std::vector<std::int32_t> WeightLoader::integers(const std::string& name, std::int64_t rows,
                                                 std::int64_t cols) {
  if (!status_.ok()) return {};
  auto values = checkpoint_.integers(name, rows, cols);
  if (!values) {
    fail(values.error());
    return {};
  }
  return *std::move(values);
}

}  // namespace kun
