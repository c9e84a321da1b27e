// Every key is either understood or refused: a misspelt one that is ignored costs somebody a day.
#include "runtime/speculative_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/json_tree.h"

namespace kun {
namespace {

// Latent attention of the released shapes computes slices of up to 17 tokens as it computes single
// ones.
constexpr int kDraftCountMax = 16;
constexpr int kLookupMax = 64;
constexpr int kLookupDefault = 5;  // as in vLLM
constexpr int kBatchMax = 1 << 20;

Status refuse(const std::string& what) {
  return invalid_argument("--speculative-config: " + what);
}

// The whole number under `key` between `low` and `high`; empty when it is absent or null.
Result<std::optional<int>> read_count(const JsonTree& json, std::string_view key, int low,
                                      int high) {
  const JsonTree* value = json.find(key);
  if (value == nullptr) return std::optional<int>();
  const std::optional<std::int64_t> number = value->integer();
  if (!number || *number < low || *number > high) {
    return refuse(fmt::format("{} is no whole number from {} to {}", key, low, high));
  }
  return std::optional<int>(static_cast<int>(*number));
}

Result<std::string> read_name(const JsonTree& json, std::string_view key) {
  const JsonTree* value = json.find(key);
  if (value == nullptr) return std::string();
  const std::optional<std::string_view> text = value->text();
  if (!text || text->empty()) return refuse(fmt::format("{} is no name", key));
  return std::string(*text);
}

Result<DraftMethod> read_method(const JsonTree& json) {
  ASSIGN_OR_RETURN(const std::string name, read_name(json, "method"));
  if (name == "ngram") return DraftMethod::kNgram;
  if (name == "random") return DraftMethod::kRandom;
  if (name == "draft_model") return DraftMethod::kDraftModel;
  if (name == "mtp" || name == "deepseek_mtp") return DraftMethod::kMtp;
  if (name.empty()) {
    if (json.find("model") != nullptr) return DraftMethod::kDraftModel;
    return refuse("method is missing: ngram, mtp or draft_model");
  }
  if (name == "dspark") {
    return refuse(
        "method dspark needs DSpark's drafting module, which is not supported; use ngram, mtp or "
        "draft_model");
  }
  return refuse(fmt::format("method {} is not known; use ngram, mtp or draft_model", name));
}

Status check_keys(const JsonTree& json) {
  static constexpr std::string_view kKeys[] = {"method",
                                               "model",
                                               "adaptive",
                                               "num_speculative_tokens",
                                               "prompt_lookup_max",
                                               "prompt_lookup_min",
                                               "disable_by_batch_size"};
  for (const std::string& name : json.names()) {
    if (std::ranges::find(kKeys, name) != std::end(kKeys)) continue;
    return refuse(
        fmt::format("the key {} is not known; known are {}", name, fmt::join(kKeys, ", ")));
  }
  return {};
}

// Where only one bound is given it is both, as in vLLM.
Status read_lookup(const JsonTree& json, NgramOptions& ngram) {
  ASSIGN_OR_RETURN(const auto longest, read_count(json, "prompt_lookup_max", 1, kLookupMax));
  ASSIGN_OR_RETURN(const auto shortest, read_count(json, "prompt_lookup_min", 1, kLookupMax));
  ngram.longest = longest.value_or(shortest.value_or(kLookupDefault));
  ngram.shortest = shortest.value_or(ngram.longest);
  if (ngram.shortest <= ngram.longest) return {};
  return refuse(fmt::format("prompt_lookup_min {} is above prompt_lookup_max {}", ngram.shortest,
                            ngram.longest));
}

Status check_method(const JsonTree& json, const SpeculativeConfig& config) {
  if (config.draft_count_max == 0) return refuse("num_speculative_tokens is missing");
  const bool has_lookup =
      json.find("prompt_lookup_max") != nullptr || json.find("prompt_lookup_min") != nullptr;
  if (has_lookup && config.method != DraftMethod::kNgram) {
    return refuse("prompt_lookup_min and prompt_lookup_max belong to method ngram");
  }
  if (config.method == DraftMethod::kDraftModel && config.model.empty()) {
    return refuse("method draft_model needs the path or name of a model under model");
  }
  if (config.method != DraftMethod::kDraftModel && !config.model.empty()) {
    return refuse("model belongs to method draft_model");
  }
  return {};
}

}  // namespace

Result<SpeculativeConfig> parse_speculative_config(std::string_view json) {
  SpeculativeConfig config;
  if (json.empty()) return config;
  const Result<JsonTree> tree = JsonTree::parse(json);
  if (!tree) return refuse(tree.error().message());
  if (!tree->is_object()) return refuse("this is no JSON object");
  RETURN_IF_ERROR(check_keys(*tree));
  ASSIGN_OR_RETURN(config.method, read_method(*tree));
  ASSIGN_OR_RETURN(config.model, read_name(*tree, "model"));
  ASSIGN_OR_RETURN(const auto drafts,
                   read_count(*tree, "num_speculative_tokens", 1, kDraftCountMax));
  // DeepSeek's module is one layer, made for the token after the next.
  config.draft_count_max = drafts.value_or(config.method == DraftMethod::kMtp ? 1 : 0);
  ASSIGN_OR_RETURN(const auto batch, read_count(*tree, "disable_by_batch_size", 1, kBatchMax));
  config.draft_sequences_max = batch.value_or(0);
  RETURN_IF_ERROR(read_lookup(*tree, config.ngram));
  if (const JsonTree* adaptive = tree->find("adaptive"); adaptive != nullptr) {
    if (!tree->find_bool("adaptive")) return refuse("adaptive is neither true nor false");
    config.adaptive = *tree->find_bool("adaptive");
  }
  RETURN_IF_ERROR(check_method(*tree, config));
  return config;
}

bool needs_next_token_module(std::string_view json) {
  const auto config = parse_speculative_config(json);
  return config && config->method == DraftMethod::kMtp;
}

Status check_same_vocabulary(const Tokenizer& target, const Tokenizer& draft) {
  const int count = std::max(target.vocabulary_size(), draft.vocabulary_size());
  for (Token id = 0; id < count; ++id) {
    if (target.piece(id) == draft.piece(id)) continue;
    return refuse(fmt::format(
        "the draft model has another vocabulary: token {} is \"{}\" there and \"{}\" in the model",
        id, draft.piece(id), target.piece(id)));
  }
  return {};
}

Result<Speculator> load_speculator(const std::string& json, const ModelBundle& target,
                                   Device& device) {
  Speculator speculator;
  ASSIGN_OR_RETURN(speculator.config, parse_speculative_config(json));
  if (speculator.config.method != DraftMethod::kDraftModel) return speculator;
  ASSIGN_OR_RETURN(speculator.draft, load_bundle(speculator.config.model, device, {}));
  if (target.tokenizer == nullptr || speculator.draft->tokenizer == nullptr) {
    return refuse("a draft model needs tokenizers on both sides, to compare the vocabularies");
  }
  RETURN_IF_ERROR(check_same_vocabulary(*target.tokenizer, *speculator.draft->tokenizer));
  return speculator;
}

}  // namespace kun
