// Small tensors are there, as zeros: models look into some while they are built. A large one has a
// shape and no data, so that packing it fails.
#include "checkpoint/promised_checkpoint.h"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/hugging_face_checkpoint.h"
#include "checkpoint/show_name.h"

namespace kun {
namespace {

constexpr std::int64_t kSideMax = std::int64_t{1} << 28;
constexpr std::int64_t kZerosMax = std::int64_t{1} << 20;
constexpr std::int64_t kIntegersMax = std::int64_t{1} << 26;

class PromisedCheckpoint final : public Checkpoint {
 public:
  PromisedCheckpoint(std::filesystem::path folder, HuggingFaceConfig config)
      : path_(std::move(folder)),
        config_(std::move(config)),
        zeros_(static_cast<std::size_t>(kZerosMax)) {
    Config& values = config_.config;
    if (!values.has("tie_word_embeddings")) values.set("tie_word_embeddings", false);
  }

  CheckpointKind kind() const override { return CheckpointKind::kHuggingFace; }
  const std::filesystem::path& path() const override { return path_; }
  const Config& config() const override { return config_.config; }
  const GenerationDefaults& generation_defaults() const override { return config_.defaults; }
  bool rope_interleaved() const override { return config_.config.has("kv_lora_rank"); }
  const GgufFile* gguf() const override { return nullptr; }
  bool has(std::string_view name) const override { return name != "rope_freqs.weight"; }
  Result<WeightView> matrix(std::string_view name) const override { return unknown(name); }
  Result<std::vector<float>> vector(std::string_view name) const override { return unknown(name); }
  Result<WeightView> matrix(std::string_view name, std::int64_t rows,
                            std::int64_t cols) const override;
  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) const override;
  Result<std::vector<std::int32_t>> integers(std::string_view name, std::int64_t rows,
                                             std::int64_t cols) const override;
  std::vector<FileStamp> files() const override { return config_.sources; }
  std::vector<StoredTensor> tensors() const override { return {}; }

 private:
  Status unknown(std::string_view name) const {
    return not_found(fmt::format("{}: there is no tensor {}, only a configuration", path_.string(),
                                 show_name(name)));
  }

  std::filesystem::path path_;
  HuggingFaceConfig config_;
  std::vector<std::byte> zeros_;
};

Result<WeightView> PromisedCheckpoint::matrix(std::string_view name, std::int64_t rows,
                                              std::int64_t cols) const {
  if (rows < 1 || cols < 1 || rows > kSideMax || cols > kSideMax) return unknown(name);
  WeightView view;
  view.format = WeightFormat::kBF16;
  view.rows = rows;
  view.cols = cols;
  const std::int64_t bytes = rows * view.row_bytes();
  if (bytes <= kZerosMax) view.data = std::span(zeros_).first(static_cast<std::size_t>(bytes));
  return view;
}

Result<std::vector<float>> PromisedCheckpoint::vector(std::string_view name,
                                                      std::int64_t size) const {
  if (size < 1 || size > kSideMax) return unknown(name);
  return std::vector<float>(static_cast<std::size_t>(size));
}

Result<std::vector<std::int32_t>> PromisedCheckpoint::integers(std::string_view name,
                                                               std::int64_t rows,
                                                               std::int64_t cols) const {
  if (rows < 1 || cols < 1 || rows > kIntegersMax / cols) return unknown(name);
  return std::vector<std::int32_t>(static_cast<std::size_t>(rows * cols));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_promised_checkpoint(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(HuggingFaceConfig config, open_hugging_face_config(folder));
  return std::unique_ptr<Checkpoint>(
      std::make_unique<PromisedCheckpoint>(folder, std::move(config)));
}

}  // namespace kun
