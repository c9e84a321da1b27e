// --speculative-config: vLLM's JSON, read into plain data, and the drafter that it asks for.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "device/device.h"
#include "executor/ngram_drafter.h"
#include "runtime/model_bundle.h"

namespace kun {

enum class DraftMethod : std::uint8_t { kNone, kNgram, kDraftModel, kMtp, kRandom };

struct SpeculativeConfig {
  DraftMethod method = DraftMethod::kNone;
  int draft_count_max = 0;      // num_speculative_tokens
  NgramOptions ngram;           // prompt_lookup_min, prompt_lookup_max
  std::string model;            // of kDraftModel
  int draft_sequences_max = 0;  // disable_by_batch_size; 0: none
  bool adaptive = true;         // Kun's own: false drafts always, whether it pays or not
};

// Empty text: no speculation. Unknown keys, absurd values and methods that this build does not have
// are kInvalidArgument with a sentence that names them.
Result<SpeculativeConfig> parse_speculative_config(std::string_view json);

// Whether the model must be loaded with its next-token module (BundleOptions). False for a text
// that parse_speculative_config() refuses.
bool needs_next_token_module(std::string_view json);

// What an engine needs for it.
struct Speculator {
  SpeculativeConfig config;
  std::shared_ptr<const ModelBundle> draft;  // of kDraftModel
};

// Loads the draft model, if there is one, and refuses it unless its vocabulary is that of `target`.
Result<Speculator> load_speculator(const std::string& json, const ModelBundle& target,
                                   Device& device);

// Ok when both tokenizers give every id the same piece.
Status check_same_vocabulary(const Tokenizer& target, const Tokenizer& draft);

}  // namespace kun
