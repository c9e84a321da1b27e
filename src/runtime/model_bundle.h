// ModelBundle is everything that a model path gives: weights on a device, tokenizer, chat template,
// and what the files say about generation. Const once loaded.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/packed_cache.h"

namespace kun {

struct ModelBundle {
  std::string name;                              // what the API calls it unless told otherwise
  std::unique_ptr<const Checkpoint> checkpoint;  // nullptr for script models
  std::unique_ptr<PackedCache> packed_cache;     // nullptr when none is kept
  std::shared_ptr<const Model> model;
  std::unique_ptr<const Tokenizer> tokenizer;         // nullptr when the files have none
  std::unique_ptr<const ChatTemplate> chat_template;  // nullptr when the files have none
  GenerationDefaults generation;
  std::vector<Token> end_tokens;  // of config, generation config and tokenizer together
  int vocabulary_limit = 0;       // ids from here on are padding of the embedding: never sampled
};

// Bytes of weights read so far, and in all.
using LoadProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct BundleOptions {
  std::string tokenizer_path;       // empty: beside the weights
  std::string chat_template_path;   // empty: the files' own
  std::string packed_cache_folder;  // where packed weights are kept; empty: nowhere
  bool next_token_module = false;   // load the model's own drafter (MTP) too, or fail
  LoadProgress progress;
  bool latent_by_shape = false;  // see ModelOptions
};

// `model`: a GGUF file, a Hugging Face folder, "script:FILE", or a name that `kun pull` or run.sh
// has put under $KUN_HOME/models ("smollm2", "org/name").
Result<std::unique_ptr<ModelBundle>> load_bundle(const std::string& model, Device& device,
                                                 const BundleOptions& options);

// Tokenizer and template alone: nothing is loaded onto a device and `model` stays nullptr.
Result<std::unique_ptr<ModelBundle>> load_text_bundle(const std::string& model,
                                                      const BundleOptions& options);

// The path that a model name stands for; kNotFound lists where it was looked for.
Result<std::string> resolve_model(const std::string& model);

}  // namespace kun
