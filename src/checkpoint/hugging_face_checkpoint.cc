// Nothing to translate here: names and keys are already the ones that models know.
#include "checkpoint/hugging_face_checkpoint.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/quantization.h"
#include "checkpoint/quantized_tensors.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/safetensors_index.h"
#include "checkpoint/show_name.h"
#include "checkpoint/tensor_values.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

// What it was read from joins `sources`.
Result<Config> open_config(const fs::path& path, std::vector<FileStamp>& sources) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  sources.push_back(file->stamp());
  const auto bytes = file->bytes();
  return Config::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::optional<WeightFormat> format_of(std::string_view dtype) {
  if (dtype == "F32") return WeightFormat::kF32;
  if (dtype == "F16") return WeightFormat::kF16;
  if (dtype == "BF16") return WeightFormat::kBF16;
  return std::nullopt;
}

class HuggingFaceCheckpoint final : public Checkpoint {
 public:
  explicit HuggingFaceCheckpoint(fs::path folder) : path_(std::move(folder)) {}

  Status open();

  CheckpointKind kind() const override { return CheckpointKind::kHuggingFace; }
  const fs::path& path() const override { return path_; }
  const Config& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  // Only latent attention (DeepSeek V2 and later) rotates neighbours in these files.
  bool rope_interleaved() const override { return config_.has("kv_lora_rank"); }
  std::string_view quantization() const override { return quantization_.method_name; }
  const GgufFile* gguf() const override { return nullptr; }
  bool has(std::string_view name) const override {
    return tensors_.contains(name) || has_quantized_parts(tensors_, name);
  }
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
  Status read_quantization_config();
  Status open_single(const fs::path& file);
  Status open_shards(const fs::path& index);
  Result<WeightView> view(std::string_view name, std::size_t rank) const;

  fs::path path_;
  std::vector<FileStamp> sources_;  // of what is not weights
  Config config_{""};
  GenerationDefaults defaults_;
  Quantization quantization_;
  std::map<std::string, SafetensorsFile> files_;
  SafetensorsMap tensors_;
};

Status HuggingFaceCheckpoint::open() {
  ASSIGN_OR_RETURN(HuggingFaceConfig described, open_hugging_face_config(path_));
  config_ = std::move(described.config);
  defaults_ = std::move(described.defaults);
  sources_ = std::move(described.sources);
  RETURN_IF_ERROR(read_quantization_config());
  const fs::path index = path_ / "model.safetensors.index.json";
  const fs::path single = path_ / "model.safetensors";
  if (is_there(index)) {
    RETURN_IF_ERROR(open_shards(index));
  } else if (is_there(single)) {
    RETURN_IF_ERROR(open_single(single));
  } else {
    return not_found(fmt::format(
        "{}: the folder has no model.safetensors and no model.safetensors.index.json; files of "
        "other kinds (.bin, .pt) can run code when loaded and are not read",
        path_.string()));
  }
  // Files may leave this to the model class; what is stored says it for certain.
  if (!config_.has("tie_word_embeddings")) {
    config_.set("tie_word_embeddings", !has("lm_head.weight") && !has("head.weight"));
  }
  return {};
}

// compression_config is what compressed-tensors once called its own; AutoGPTQ wrote a file.
Status HuggingFaceCheckpoint::read_quantization_config() {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!config_.has(key)) continue;
    ASSIGN_OR_RETURN(quantization_, read_quantization(config_, key));
    return {};
  }
  const fs::path file = path_ / "quantize_config.json";
  if (!is_there(file)) return {};
  ASSIGN_OR_RETURN(const Config config, open_config(file, sources_));
  ASSIGN_OR_RETURN(quantization_, read_quantization(config, ""));
  return {};
}

Status HuggingFaceCheckpoint::open_single(const fs::path& file) {
  ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(file));
  const auto [place, is_new] = files_.emplace(file.filename().string(), std::move(opened));
  CHECK(is_new);
  for (const SafetensorsTensor& tensor : place->second.tensors()) {
    tensors_.emplace(tensor.name, &tensor);
  }
  return {};
}

Status HuggingFaceCheckpoint::open_shards(const fs::path& index) {
  ASSIGN_OR_RETURN(const auto mapped, MappedFile::open(index));
  sources_.push_back(mapped->stamp());
  const auto bytes = mapped->bytes();
  ASSIGN_OR_RETURN(
      const auto shard_of,
      parse_safetensors_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                              index.string()));
  for (const auto& [tensor, shard] : shard_of) {
    auto file = files_.find(shard);
    if (file == files_.end()) {
      ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(path_ / shard));
      file = files_.emplace(shard, std::move(opened)).first;
    }
    const SafetensorsTensor* found = file->second.find(tensor);
    if (found == nullptr) {
      return data_loss(fmt::format("{}: tensor {} should be in {} and is not", index.string(),
                                   show_name(tensor), shard));
    }
    tensors_.emplace(tensor, found);
  }
  return {};
}

Result<WeightView> HuggingFaceCheckpoint::view(std::string_view name, std::size_t rank) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return missing_tensor(path_, name);
  const SafetensorsTensor& tensor = *found->second;
  if (tensor.shape.size() != rank) {
    return wrong_rank(path_, name, static_cast<int>(rank), static_cast<int>(tensor.shape.size()));
  }
  const std::optional<WeightFormat> format = format_of(tensor.dtype);
  if (!format) return unsupported_format(path_, name, tensor.dtype);
  WeightView out;
  out.format = *format;
  out.rows = rank == 2 ? tensor.shape.front() : 1;
  out.cols = tensor.shape.back();
  out.data = tensor.data;
  return out;
}

Result<WeightView> HuggingFaceCheckpoint::matrix(std::string_view name) const {
  const auto found = tensors_.find(name);
  const bool in_parts = found == tensors_.end() && has_quantized_parts(tensors_, name);
  const bool codes =
      found != tensors_.end() && name.ends_with(".weight") && is_code_dtype(found->second->dtype);
  if (in_parts || codes) return quantized_matrix(tensors_, quantization_, path_, name);
  return view(name, 2);
}

Result<std::vector<float>> HuggingFaceCheckpoint::vector(std::string_view name) const {
  ASSIGN_OR_RETURN(const WeightView row, view(name, 1));
  return row_values(row);
}

Result<std::vector<std::int32_t>> HuggingFaceCheckpoint::integers(std::string_view name,
                                                                  std::int64_t rows,
                                                                  std::int64_t cols) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return missing_tensor(path_, name);
  const SafetensorsTensor& tensor = *found->second;
  if (tensor.shape != std::vector<std::int64_t>{rows, cols}) {
    return wrong_shape(path_, name, rows, cols);
  }
  if (tensor.dtype != "I32" && tensor.dtype != "I64") {
    return unsupported_format(path_, name, tensor.dtype);
  }
  return integer_values(path_, name, tensor.data, tensor.dtype == "I32" ? 4 : 8);
}

std::vector<FileStamp> HuggingFaceCheckpoint::files() const {
  std::vector<FileStamp> out = sources_;
  for (const auto& [name, file] : files_) out.push_back(*file.stamp());
  return out;
}

std::vector<StoredTensor> HuggingFaceCheckpoint::tensors() const {
  std::vector<StoredTensor> out;
  for (const auto& [file_name, file] : files_) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      out.push_back({tensor.name, std::string(tensor.dtype), tensor.shape, tensor.data.size(),
                     parameter_count(tensors_, quantization_, tensor)});
    }
  }
  return out;
}

}  // namespace

Result<HuggingFaceConfig> open_hugging_face_config(const fs::path& folder) {
  HuggingFaceConfig out;
  ASSIGN_OR_RETURN(out.config, open_config(folder / "config.json", out.sources));
  // transformers' classes of V3 know one gate and need not name it.
  const std::string architecture = out.config.architecture();
  if (architecture == "DeepseekV3ForCausalLM" || architecture == "DeepseekV32ForCausalLM") {
    if (!out.config.has("scoring_func")) out.config.set("scoring_func", std::string("sigmoid"));
    if (!out.config.has("topk_method")) out.config.set("topk_method", std::string("noaux_tc"));
    if (!out.config.has("norm_topk_prob")) out.config.set("norm_topk_prob", true);
  }
  std::optional<Config> generation;
  if (const fs::path file = folder / "generation_config.json"; is_there(file)) {
    std::vector<FileStamp> no_weights;
    ASSIGN_OR_RETURN(generation, open_config(file, no_weights));
  }
  ASSIGN_OR_RETURN(out.defaults,
                   read_generation_defaults(out.config, generation ? &*generation : nullptr));
  return out;
}

Result<std::unique_ptr<Checkpoint>> open_hugging_face_checkpoint(const fs::path& folder) {
  auto checkpoint = std::make_unique<HuggingFaceCheckpoint>(folder);
  RETURN_IF_ERROR(checkpoint->open());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace kun
