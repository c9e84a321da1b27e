// Translates names and configuration once, while opening; afterwards it is a map lookup.
#include "checkpoint/gguf_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/gguf_types.h"
#include "checkpoint/show_name.h"
#include "checkpoint/tensor_values.h"

namespace kun {
namespace {

constexpr std::uint64_t kPartCountMax = 10000;

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(std::filesystem::path path, std::vector<GgufFile> parts)
      : path_(std::move(path)), parts_(std::move(parts)) {}

  Status index();

  CheckpointKind kind() const override { return CheckpointKind::kGguf; }
  const std::filesystem::path& path() const override { return path_; }
  const Config& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  // The converter permutes q and k of llama and deepseek models for this layout; latent attention
  // has it by nature.
  bool rope_interleaved() const override {
    const std::string name = config_.architecture();
    return name == "LlamaForCausalLM" || name.starts_with("Deepseek");
  }
  std::string_view quantization() const override { return "gguf"; }
  const GgufFile* gguf() const override { return &parts_.front(); }
  bool has(std::string_view name) const override { return locate(name).has_value(); }
  using Checkpoint::matrix;
  using Checkpoint::vector;
  Result<WeightView> matrix(std::string_view name) const override;
  Result<std::vector<float>> vector(std::string_view name) const override;
  Result<std::vector<std::int32_t>> integers(std::string_view name, std::int64_t rows,
                                             std::int64_t cols) const override;
  std::vector<FileStamp> files() const override;
  void prefetch(const WeightView& view) const override { prefetch_pages(view.data); }
  void release(const WeightView& view) const override { release_pages(view.data); }
  std::vector<StoredTensor> tensors() const override;

 private:
  // Where a weight is: a whole tensor, or rows of one slice of a tensor of rank 3.
  struct Place {
    const GgufTensor* tensor = nullptr;
    int rank = 0;
    std::int64_t rows = 0;
    std::int64_t first_row = 0;  // over all slices
    std::int64_t slice = 0;
    std::string stored_name;
  };

  std::optional<Place> locate(std::string_view name) const;
  std::optional<Place> locate_slice(std::string_view name) const;
  Result<WeightView> view(std::string_view name, int rank) const;
  Result<float> tensor_scale(const Place& place) const;

  std::filesystem::path path_;
  std::vector<GgufFile> parts_;
  GgufTensorMap tensors_;
  Config config_{""};
  GenerationDefaults defaults_;
};

Status GgufCheckpoint::index() {
  const std::string_view architecture =
      parts_.front().find_string("general.architecture").value_or("");
  for (const GgufFile& part : parts_) {
    for (const GgufTensor& tensor : part.tensors()) {
      const auto [place, is_new] =
          tensors_.emplace(hugging_face_name(tensor.name, architecture), &tensor);
      if (is_new) continue;
      return data_loss(fmt::format("{}: tensors {} and {} stand for the same weight", part.name(),
                                   show_name(place->second->name), show_name(tensor.name)));
    }
  }
  ASSIGN_OR_RETURN(config_, config_of_gguf(parts_.front(), tensors_));
  ASSIGN_OR_RETURN(const Config generation, generation_config_of_gguf(parts_.front()));
  ASSIGN_OR_RETURN(defaults_, read_generation_defaults(config_, &generation));
  return {};
}

std::optional<GgufCheckpoint::Place> GgufCheckpoint::locate(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return locate_slice(name);
  const GgufTensor& tensor = *found->second;
  return Place{&tensor, tensor.rank, tensor.dims[1], 0, 0, found->first};
}

// "a.experts.7.up_proj.weight" is slice 7 of "a.experts.up_proj.weight"; gate and up may be one
// tensor there, "a.experts.gate_up_proj.weight", gates first.
std::optional<GgufCheckpoint::Place> GgufCheckpoint::locate_slice(std::string_view name) const {
  const std::optional<SliceName> slice = split_slice_name(name);
  if (!slice) return std::nullopt;
  auto found = tensors_.find(slice->stacked);
  const bool fused = found == tensors_.end();
  if (fused) found = tensors_.find(slice->fused);
  if (found == tensors_.end()) return std::nullopt;
  const GgufTensor& tensor = *found->second;
  if (tensor.rank != 3 || slice->index >= tensor.dims[2]) return std::nullopt;
  if (fused && tensor.dims[1] % 2 != 0) return std::nullopt;
  Place place{&tensor,      2,           tensor.dims[1], slice->index * tensor.dims[1],
              slice->index, found->first};
  if (!fused) return place;
  place.rows /= 2;
  if (slice->second_half) place.first_row += place.rows;
  return place;
}

Result<WeightView> GgufCheckpoint::view(std::string_view name, int rank) const {
  const std::optional<Place> place = locate(name);
  if (!place) return missing_tensor(path_, name);
  const GgufTensor& tensor = *place->tensor;
  if (place->rank != rank) return wrong_rank(path_, name, rank, place->rank);
  const GgufTensorType* type = find_gguf_tensor_type(tensor.type);
  if (type == nullptr || !type->format) {
    return unsupported_format(path_, name, gguf_tensor_type_name(tensor.type));
  }
  WeightView out;
  out.format = *type->format;
  out.rows = place->rows;
  out.cols = tensor.dims[0];
  const auto row_bytes = static_cast<std::size_t>(out.row_bytes());
  out.data = tensor.data.subspan(static_cast<std::size_t>(place->first_row) * row_bytes,
                                 static_cast<std::size_t>(place->rows) * row_bytes);
  ASSIGN_OR_RETURN(out.tensor_scale, tensor_scale(*place));
  return out;
}

// NVFP4 weights have a second scale in a tensor of their own: "x.scale" beside "x.weight", with one
// number, or one for each slice of a tensor of rank 3.
Result<float> GgufCheckpoint::tensor_scale(const Place& place) const {
  constexpr std::string_view kSuffix = ".weight";
  const std::string_view name = place.stored_name;
  if (!name.ends_with(kSuffix)) return 1.0F;
  const std::string scale_name =
      fmt::format("{}.scale", name.substr(0, name.size() - kSuffix.size()));
  const auto found = tensors_.find(scale_name);
  if (found == tensors_.end()) return 1.0F;
  const GgufTensor& tensor = *found->second;
  const auto count = static_cast<std::int64_t>(tensor.data.size() / sizeof(float));
  const std::int64_t slices = place.tensor->rank == 3 ? place.tensor->dims[2] : 1;
  if (tensor.type != 0 || (count != 1 && count != slices)) {
    return data_loss(fmt::format("{}: tensor {} must hold {} F32, one for each matrix",
                                 path_.string(), show_name(scale_name), slices));
  }
  float scale = 0;
  const std::int64_t index = count == 1 ? 0 : place.slice;
  std::memcpy(&scale, tensor.data.data() + index * std::int64_t{sizeof(scale)}, sizeof(scale));
  if (std::isfinite(scale)) return scale;
  return data_loss(fmt::format("{}: tensor {} has the scale {} at {}", path_.string(),
                               show_name(scale_name), scale, index));
}

Result<WeightView> GgufCheckpoint::matrix(std::string_view name) const {
  return view(name, 2);
}

Result<std::vector<float>> GgufCheckpoint::vector(std::string_view name) const {
  ASSIGN_OR_RETURN(const WeightView row, view(name, 1));
  return row_values(row);
}

Result<std::vector<std::int32_t>> GgufCheckpoint::integers(std::string_view name, std::int64_t rows,
                                                           std::int64_t cols) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return missing_tensor(path_, name);
  const GgufTensor& tensor = *found->second;
  if (tensor.rank != 2 || tensor.dims[1] != rows || tensor.dims[0] != cols) {
    return wrong_shape(path_, name, rows, cols);
  }
  const std::string type = gguf_tensor_type_name(tensor.type);
  if (type != "I32" && type != "I64") return unsupported_format(path_, name, type);
  return integer_values(path_, name, tensor.data, type == "I32" ? 4 : 8);
}

std::vector<StoredTensor> GgufCheckpoint::tensors() const {
  std::vector<StoredTensor> out;
  const std::string_view architecture =
      parts_.front().find_string("general.architecture").value_or("");
  for (const GgufFile& part : parts_) {
    for (const GgufTensor& tensor : part.tensors()) {
      StoredTensor stored;
      stored.name = hugging_face_name(tensor.name, architecture);
      stored.format = gguf_tensor_type_name(tensor.type);
      for (int i = tensor.rank; i-- > 0;) {
        stored.shape.push_back(tensor.dims[static_cast<std::size_t>(i)]);
      }
      stored.bytes = tensor.data.size();
      stored.parameters = 1;
      for (const std::int64_t dim : stored.shape) stored.parameters *= dim;
      out.push_back(std::move(stored));
    }
  }
  return out;
}

std::vector<FileStamp> GgufCheckpoint::files() const {
  std::vector<FileStamp> out;
  for (const GgufFile& part : parts_) out.push_back(*part.stamp());
  return out;
}

std::string part_suffix(std::uint64_t number, std::uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// Opens the other parts of a split model, whose first part is `parts.front()`.
Status open_parts(const std::filesystem::path& file, std::vector<GgufFile>& parts) {
  const std::uint64_t count = parts.front().find_uint("split.count").value_or(1);
  if (count <= 1) return {};
  if (count > kPartCountMax) {
    return data_loss(fmt::format("{}: the model claims {} parts", file.string(), count));
  }
  const std::string name = file.string();
  const std::string suffix = part_suffix(0, count);
  if (!name.ends_with(suffix)) {
    return invalid_argument(fmt::format(
        "{}: this is one of {} parts of a model, give the first, whose name ends with {}", name,
        count, suffix));
  }
  const std::string stem = name.substr(0, name.size() - suffix.size());
  for (std::uint64_t number = 1; number < count; ++number) {
    ASSIGN_OR_RETURN(GgufFile part, GgufFile::open(stem + part_suffix(number, count)));
    if (part.find_uint("split.no") != number || part.find_uint("split.count") != count) {
      return data_loss(fmt::format("{}: the file is not part {} of {} of this model", part.name(),
                                   number + 1, count));
    }
    parts.push_back(std::move(part));
  }
  std::uint64_t tensor_count = 0;
  for (const GgufFile& part : parts) tensor_count += part.tensors().size();
  const auto expected = parts.front().find_uint("split.tensors.count");
  if (!expected || *expected == tensor_count) return {};
  return data_loss(fmt::format("{}: the parts hold {} tensors, {} are announced", name,
                               tensor_count, *expected));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& path,
                                                         const std::filesystem::path& file) {
  std::vector<GgufFile> parts;
  ASSIGN_OR_RETURN(GgufFile first, GgufFile::open(file));
  parts.push_back(std::move(first));
  RETURN_IF_ERROR(open_parts(file, parts));
  auto checkpoint = std::make_unique<GgufCheckpoint>(path, std::move(parts));
  RETURN_IF_ERROR(checkpoint->index());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace kun
