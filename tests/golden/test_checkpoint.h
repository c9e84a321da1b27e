// A checkpoint of random weights in memory, for parts that load themselves by name.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace kun {

class TestCheckpoint final : public Checkpoint {
 public:
  explicit TestCheckpoint(unsigned seed) : random_(seed) {}

  // Normal values of variance 1 / cols, so that products keep the size of their input.
  void add_matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(cols)));
    add(name, rows, cols, [&] { return normal(random_); });
  }
  void add_vector(const std::string& name, std::int64_t size) {
    std::normal_distribution<float> normal(1.0F, 0.2F);
    add(name, 1, size, [&] { return normal(random_); });
  }

  CheckpointKind kind() const override { return CheckpointKind::kHuggingFace; }
  const std::filesystem::path& path() const override { return path_; }
  const Config& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  bool rope_interleaved() const override { return false; }
  const GgufFile* gguf() const override { return nullptr; }
  bool has(std::string_view name) const override { return tensors_.contains(std::string(name)); }
  using Checkpoint::matrix;
  using Checkpoint::vector;
  Result<WeightView> matrix(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) return data_loss("no tensor " + std::string(name));
    WeightView view;
    view.rows = found->second.rows;
    view.cols = std::ssize(found->second.values) / view.rows;
    view.data = std::as_bytes(std::span(found->second.values));
    return view;
  }
  Result<std::vector<float>> vector(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) return data_loss("no tensor " + std::string(name));
    return found->second.values;
  }
  Result<std::vector<std::int32_t>> integers(std::string_view name, std::int64_t,
                                             std::int64_t) const override {
    return data_loss("no tensor " + std::string(name));
  }
  std::vector<FileStamp> files() const override { return {}; }
  std::vector<StoredTensor> tensors() const override { return {}; }

 private:
  struct Tensor {
    std::int64_t rows;
    std::vector<float> values;
  };

  template <class Draw>
  void add(const std::string& name, std::int64_t rows, std::int64_t cols, const Draw& draw) {
    Tensor& tensor = tensors_[name];
    tensor.rows = rows;
    for (std::int64_t i = 0; i < rows * cols; ++i) tensor.values.push_back(draw());
  }

  std::mt19937 random_;
  std::filesystem::path path_ = "test";
  Config config_{"test"};
  GenerationDefaults defaults_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace kun
