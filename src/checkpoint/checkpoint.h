// A checkpoint: a configuration and named weights, in whatever files they lie.
//
// Names and keys are always Hugging Face's ("model.layers.0.self_attn.q_proj.weight"); GGUF is
// translated while opening, so models know one vocabulary. Thread-safe: const once opened.
//
// Two things a GGUF file has its own way of saying:
// * rope_interleaved(): the rows of q_proj and k_proj in llama files are permuted.
// * "rope_freqs.weight" [head_dim / 2]: if has(), divide each inverse RoPE frequency by its entry.
//   It stands for rope_scaling of type llama3, which such a file does not set.
//
// One thing it has in another shape: the weights of all experts (or heads) of a layer in one tensor
// of rank 3. Its slices go by the names of single ones: "mlp.experts.7.up_proj.weight".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/generation_defaults.h"
#include "tensor/weight_view.h"

namespace kun {

class GgufFile;

enum class CheckpointKind { kGguf, kHuggingFace };

// One stored tensor, for people and for tools.
struct StoredTensor {
  std::string name;                 // Hugging Face's, or the file's own where we know none
  std::string format;               // "Q4_K", "BF16"
  std::vector<std::int64_t> shape;  // the contiguous axis last
  std::uint64_t bytes = 0;
  std::int64_t parameters = 0;  // weights of the model in it: none in scales of quantized ones
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual CheckpointKind kind() const = 0;
  virtual const std::filesystem::path& path() const = 0;  // as it was given to open_checkpoint
  virtual const Config& config() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;

  // The RoPE layout that q_proj and k_proj of this file are stored for: pairs (2i, 2i + 1) if true,
  // (i, i + head_dim / 2) if false.
  virtual bool rope_interleaved() const = 0;

  // What the weights were quantized with, by the name that files and vLLM use: "gptq", "fp8",
  // "gguf" for all of that kind; empty: with nothing.
  virtual std::string_view quantization() const { return {}; }

  // The GGUF file whose metadata holds tokenizer and template; nullptr for other kinds.
  virtual const GgufFile* gguf() const = 0;

  virtual bool has(std::string_view name) const = 0;

  // A tensor of rank 2. Fails when absent, of another rank or of a type we cannot compute with.
  // The view lives as long as the checkpoint.
  virtual Result<WeightView> matrix(std::string_view name) const = 0;

  // A tensor of rank 1, as floats.
  virtual Result<std::vector<float>> vector(std::string_view name) const = 0;

  // A tensor of rank 2 whose elements are integers that fit 32 bits (V4's expert tables), row by
  // row.
  virtual Result<std::vector<std::int32_t>> integers(std::string_view name, std::int64_t rows,
                                                     std::int64_t cols) const = 0;

  // The files it consists of, as they were when they were opened: where they are the same, so is
  // everything else here.
  virtual std::vector<FileStamp> files() const = 0;

  // A hint that a view's bytes will be read soon, or not again.
  virtual void prefetch(const WeightView&) const {}
  virtual void release(const WeightView&) const {}

  // Everything stored, in the order of the files.
  virtual std::vector<StoredTensor> tensors() const = 0;

  // As above, and fails when the shape is another than the model expects.
  virtual Result<WeightView> matrix(std::string_view name, std::int64_t rows,
                                    std::int64_t cols) const;
  virtual Result<std::vector<float>> vector(std::string_view name, std::int64_t size) const;
};

// Opens a GGUF file (of a split one: its first part), a folder with config.json and safetensors, or
// a folder with exactly one GGUF model. Maps the files and checks them; reads no weights.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace kun
