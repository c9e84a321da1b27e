#include "weights/weight_loader.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "weights/weight_role.h"

namespace kun {

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Ops& ops,
                           std::function<void(std::int64_t)> progress, PackedCache* cache)
    : checkpoint_(checkpoint), ops_(ops), progress_(std::move(progress)), cache_(cache) {}

void WeightLoader::fail(const Status& error) {
  if (status_.ok()) status_ = error;
}

Result<std::unique_ptr<PackedMatrix>> WeightLoader::cached_or_packed(
    const std::string& key, std::span<const WeightView> views) {
  const auto image = cache_ == nullptr ? std::nullopt : cache_->find(key);
  if (image) {
    auto unpacked = ops_.unpack(*image);
    release_pages(image->data);
    std::int64_t rows = 0;
    for (const WeightView& view : views) rows += view.rows;
    if (unpacked && ((*unpacked)->rows != rows || (*unpacked)->cols != views.front().cols)) {
      unpacked = data_loss("a packed matrix has another shape than its weights");
    }
    if (unpacked || unpacked.error().code() != StatusCode::kDataLoss) return unpacked;
    cache_->reject(key);
  }
  for (const WeightView& view : views) checkpoint_.prefetch(view);
  auto packed = ops_.pack(views);
  for (const WeightView& view : views) checkpoint_.release(view);
  if (packed && cache_ != nullptr) cache_->add(key, ops_.image(**packed));
  return packed;
}

std::unique_ptr<PackedMatrix> WeightLoader::matrix(std::span<const MatrixPart> parts,
                                                   std::int64_t cols) {
  if (!status_.ok()) return nullptr;
  std::vector<WeightView> views;
  std::string key;
  for (const MatrixPart& part : parts) {
    auto view = checkpoint_.matrix(part.name, part.rows, cols);
    if (!view) {
      fail(view.error());
      return nullptr;
    }
    view->role = role_of(part.name);
    views.push_back(*view);
    key += fmt::format("{} {} {} {}\n", part.name, view->rows, view->cols, name(view->format));
    read_bytes_ += static_cast<std::int64_t>(view->data.size());
  }
  auto packed = cached_or_packed(key, views);
  if (!packed) {
    fail({packed.error().code(),
          fmt::format("tensor {}: {}", parts.front().name, packed.error().message())});
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
