#include "weights/weight_loader.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mapped_file.h"
#include "checkpoint/tensor_values.h"
#include "tensor/float_formats.h"
#include "weights/weight_role.h"

namespace kun {
namespace {

std::string part_key(const std::string& name, const WeightView& view) {
  return fmt::format("{} {} {} {}\n", name, view.rows, view.cols, kun::name(view.format));
}

// What values of one round may count.
constexpr std::int64_t kMadeValuesMax = std::int64_t{16} << 20;

WeightView view_of(const MadeMatrix& matrix) {
  CHECK(matrix.dtype == DType::kF32 || matrix.dtype == DType::kBF16);
  WeightView view;
  view.format = matrix.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBF16;
  view.rows = matrix.rows;
  view.cols = matrix.cols;
  view.role = WeightRole::kExact;
  return view;
}

std::string key_of(const MadeMatrix& matrix) {
  return "made " + part_key(matrix.key, view_of(matrix));
}

// In the type that the matrix has in memory.
class MadeValues {
 public:
  MadeValues() = default;
  MadeValues(const MadeMatrix& matrix, std::vector<float> values) {
    CHECK(std::ssize(values) == matrix.rows * matrix.cols);
    if (matrix.dtype == DType::kF32) {
      wide_ = std::move(values);
      return;
    }
    narrow_.reserve(values.size());
    for (const float value : values) narrow_.push_back(f32_to_bf16(value));
  }

  std::span<const std::byte> bytes() const {
    return wide_.empty() ? std::as_bytes(std::span(narrow_)) : std::as_bytes(std::span(wide_));
  }

 private:
  std::vector<float> wide_;
  std::vector<std::uint16_t> narrow_;
};

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Ops& ops,
                           std::function<void(std::int64_t)> progress, PackedCache* cache,
                           WeightPlan* plan)
    : checkpoint_(checkpoint),
      ops_(ops),
      progress_(std::move(progress)),
      cache_(cache),
      plan_(plan) {}

void WeightLoader::fail(const Status& error) {
  if (status_.ok()) status_ = error;
}

// Empty when no cache has it, or what it has is damaged.
std::optional<WeightLoader::Packed> WeightLoader::cached(const std::string& key, std::int64_t rows,
                                                         std::int64_t cols) {
  const auto image = cache_ == nullptr ? std::nullopt : cache_->find(key);
  if (!image) return std::nullopt;
  Packed unpacked = ops_.unpack(*image);
  release_pages(image->data);
  if (unpacked && ((*unpacked)->rows != rows || (*unpacked)->cols != cols)) {
    unpacked = data_loss("a packed matrix has another shape than its weights");
  }
  if (unpacked || unpacked.error().code() != StatusCode::kDataLoss) {
    return std::optional<Packed>(std::move(unpacked));
  }
  cache_->reject(key);
  return std::nullopt;
}

WeightLoader::Packed WeightLoader::packed(const std::string& key,
                                          std::span<const WeightView> views) {
  Packed result = ops_.pack(views);
  if (result && cache_ != nullptr) cache_->add(key, ops_.image(**result));
  return result;
}

// Stands for a matrix and has no data.
std::unique_ptr<PackedMatrix> WeightLoader::planned(std::span<const WeightView> views,
                                                    ReadShare share) {
  auto matrix = std::make_unique<PackedMatrix>();
  matrix->cols = views.front().cols;
  for (const WeightView& view : views) {
    matrix->rows += view.rows;
    matrix->bytes += ops_.packed_bytes(view);
  }
  plan_->packed_bytes += matrix->bytes;
  plan_->token_bytes += matrix->bytes * share.read / share.of;
  return matrix;
}

std::unique_ptr<PackedMatrix> WeightLoader::take(const std::string& name, Packed result) {
  if (result) {
    if (progress_) progress_(read_bytes_);
    return *std::move(result);
  }
  fail({result.error().code(), fmt::format("tensor {}: {}", name, result.error().message())});
  return nullptr;
}

std::unique_ptr<PackedMatrix> WeightLoader::load(const std::string& name, const std::string& key,
                                                 std::span<const WeightView> views,
                                                 ReadShare share) {
  if (plan_ != nullptr) return planned(views, share);
  std::int64_t rows = 0;
  for (const WeightView& view : views) {
    rows += view.rows;
    read_bytes_ += static_cast<std::int64_t>(view.data.size());
  }
  auto found = cached(key, rows, views.front().cols);
  if (found) return take(name, *std::move(found));
  for (const WeightView& view : views) checkpoint_.prefetch(view);
  Packed result = packed(key, views);
  for (const WeightView& view : views) checkpoint_.release(view);
  return take(name, std::move(result));
}

std::unique_ptr<PackedMatrix> WeightLoader::matrix(std::span<const MatrixPart> parts,
                                                   std::int64_t cols, ReadShare share) {
  if (!status_.ok()) return nullptr;
  std::vector<WeightView> views;
  std::string key;
  for (const MatrixPart& part : parts) {
    auto stored = checkpoint_.matrix(part.name, part.rows, cols);
    if (!stored) {
      fail(stored.error());
      return nullptr;
    }
    stored->role = role_of(part.name);
    views.push_back(*stored);
    key += part_key(part.name, *stored);
  }
  return load(parts.front().name, key, views, share);
}

std::unique_ptr<PackedMatrix> WeightLoader::matrix_rows(const MatrixPart& part, std::int64_t cols,
                                                        std::int64_t first, std::int64_t count) {
  const WeightView all = view(part.name, part.rows, cols);
  if (!status_.ok()) return nullptr;
  WeightView rows = all.slice_rows(first, count);
  rows.role = role_of(part.name);
  return load(part.name, fmt::format("{} from {}\n", part_key(part.name, rows), first), {&rows, 1},
              {});
}

std::vector<std::unique_ptr<PackedMatrix>> WeightLoader::made(std::span<const MadeMatrix> matrices,
                                                              const MakeValues& make) {
  std::vector<std::unique_ptr<PackedMatrix>> out(matrices.size());
  std::vector<std::size_t> wanted;  // that no cache has
  for (std::size_t i = 0; i < matrices.size() && status_.ok(); ++i) {
    const MadeMatrix& matrix = matrices[i];
    if (plan_ != nullptr) {
      const WeightView view = view_of(matrix);
      out[i] = planned({&view, 1}, matrix.share);
    } else if (auto found = cached(key_of(matrix), matrix.rows, matrix.cols)) {
      out[i] = take(matrix.key, *std::move(found));
    } else {
      wanted.push_back(i);
    }
  }
  for (std::size_t first = 0; first < wanted.size() && status_.ok();) {
    std::size_t end = first;
    std::int64_t count = 0;
    for (; end < wanted.size() && (end == first || count < kMadeValuesMax); ++end) {
      count += matrices[wanted[end]].rows * matrices[wanted[end]].cols;
    }
    make_some(matrices, std::span(wanted).subspan(first, end - first), make, out);
    first = end;
  }
  return out;
}

// The values by all threads, a matrix each; then each matrix is packed by all of them.
void WeightLoader::make_some(std::span<const MadeMatrix> matrices,
                             std::span<const std::size_t> wanted, const MakeValues& make,
                             std::span<std::unique_ptr<PackedMatrix>> out) {
  std::vector<MadeValues> values(wanted.size());
  std::atomic<bool> starved = false;
  ops_.prepare(std::ssize(wanted), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      values[at] = MadeValues(matrices[wanted[at]], make(wanted[at]));
    } catch (const std::bad_alloc&) {
      starved = true;
    }
  });
  if (starved) return fail(resource_exhausted("there is no memory to convert weights in"));
  for (std::size_t i = 0; i < wanted.size() && status_.ok(); ++i) {
    const MadeMatrix& matrix = matrices[wanted[i]];
    WeightView view = view_of(matrix);
    view.data = values[i].bytes();
    out[wanted[i]] = take(matrix.key, packed(key_of(matrix), {&view, 1}));
    values[i] = {};
  }
}

DeviceVector WeightLoader::vector(const std::string& name, std::int64_t size) {
  if (!status_.ok()) return {};
  if (!has(name)) {
    fail(missing_tensor(checkpoint_.path(), name));
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
  const WeightView stored = view(name, rows, cols);
  if (plan_ != nullptr) plan_->table_bytes += stored.rows * stored.row_bytes();
  return stored;
}

WeightView WeightLoader::view(const std::string& name, std::int64_t rows, std::int64_t cols) {
  if (!status_.ok()) return {};
  auto stored = checkpoint_.matrix(name, rows, cols);
  if (!stored) {
    fail(stored.error());
    return {};
  }
  return *stored;
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
