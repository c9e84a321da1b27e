// One function per kind of component, and a table of what has no parameters. Steps that Hugging
// Face builds in (Digits, Punctuation, Whitespace) become the split patterns they amount to.
#include "runtime/tokenizer_components.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

constexpr int kDepthMax = 8;  // of sequences in sequences
constexpr std::size_t kStepCountMax = 64;
constexpr std::size_t kContentBytesMax = 4096;  // of a replacement
constexpr std::size_t kTemplateItemsMax = 16;

// GPT-2's words, which ByteLevel cuts into when it is asked to.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kPunctuationPattern = R"([\p{P}\$\+<=>\^`\|~])";

std::string_view type_of(const JsonTree& component) {
  return component.find_text("type").value_or("(none)");
}

Status unsupported(std::string_view what, const JsonTree& component) {
  return unimplemented(
      fmt::format("{} of type {} is not supported", what, show_name(type_of(component))));
}

Status malformed(std::string_view what) {
  return data_loss(fmt::format("tokenizer.json has {} that cannot be read", what));
}

// {"String": "x"}, {"Regex": "x"}, or a plain string in old files.
struct Pattern {
  std::string text;
  bool is_regex = false;
};

std::optional<Pattern> find_pattern(const JsonTree& component) {
  const JsonTree* pattern = component.find("pattern");
  if (pattern == nullptr) return std::nullopt;
  if (const auto text = pattern->text()) return Pattern{std::string(*text), false};
  if (const auto text = pattern->find_text("String")) return Pattern{std::string(*text), false};
  if (const auto text = pattern->find_text("Regex")) return Pattern{std::string(*text), true};
  return std::nullopt;
}

Status add_normalizer(const JsonTree& component, int depth, std::vector<NormalizerSpec>& steps) {
  if (depth > kDepthMax || steps.size() >= kStepCountMax) {
    return invalid_argument("tokenizer.json has too many normalizers");
  }
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto* parts = component.find_array("normalizers");
    if (!parts) return malformed("a normalizer Sequence");
    for (const JsonTree& part : *parts) RETURN_IF_ERROR(add_normalizer(part, depth + 1, steps));
    return {};
  }
  NormalizerSpec step;
  static const std::map<std::string_view, NormalizerKind> kForms = {
      {"NFC", NormalizerKind::kNfc},
      {"NFD", NormalizerKind::kNfd},
      {"NFKC", NormalizerKind::kNfkc},
      {"NFKD", NormalizerKind::kNfkd},
      {"Lowercase", NormalizerKind::kLowercase}};
  if (const auto form = kForms.find(type); form != kForms.end()) {
    step.kind = form->second;
  } else if (type == "Prepend") {
    const auto content = component.find_text("prepend");
    if (!content) return malformed("a Prepend normalizer");
    step.kind = NormalizerKind::kPrepend;
    step.content = *content;
  } else if (type == "Replace") {
    const auto content = component.find_text("content");
    std::optional<Pattern> pattern = find_pattern(component);
    if (!content || !pattern) return malformed("a Replace normalizer");
    step.kind = pattern->is_regex ? NormalizerKind::kReplaceRegex : NormalizerKind::kReplaceText;
    step.pattern = std::move(pattern->text);
    step.content = *content;
  } else if (type == "Strip") {
    step.kind = NormalizerKind::kStrip;
    step.strip_left = component.find_bool("strip_left").value_or(true);
    step.strip_right = component.find_bool("strip_right").value_or(true);
  } else {
    return unsupported("a normalizer", component);
  }
  if (step.content.size() > kContentBytesMax) return malformed("a normalizer with a huge text");
  steps.push_back(std::move(step));
  return {};
}

Result<SplitBehavior> behavior_of(const JsonTree& component, std::string_view fallback) {
  const std::string_view name = component.find_text("behavior").value_or(fallback);
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unimplemented(fmt::format("the split behavior {} is not supported", show_name(name)));
}

Result<PrependScheme> prepend_scheme_of(const JsonTree& component) {
  const auto name = component.find_text("prepend_scheme");
  if (!name) {
    return component.find_bool("add_prefix_space").value_or(true) ? PrependScheme::kAlways
                                                                  : PrependScheme::kNever;
  }
  if (*name == "always") return PrependScheme::kAlways;
  if (*name == "first") return PrependScheme::kFirst;
  if (*name == "never") return PrependScheme::kNever;
  return unimplemented(fmt::format("the prepend scheme {} is not supported", show_name(*name)));
}

Status add_metaspace(const JsonTree& component, std::vector<SplitSpec>& steps) {
  SplitSpec step{.kind = SplitKind::kMetaspace,
                 .pattern = std::string(component.find_text("replacement").value_or("▁"))};
  ASSIGN_OR_RETURN(step.prepend, prepend_scheme_of(component));
  if (step.pattern.empty() || step.pattern.size() > 4) return malformed("a Metaspace");
  SplitSpec split{.kind = SplitKind::kText,
                  .pattern = step.pattern,
                  .behavior = SplitBehavior::kMergedWithNext};
  steps.push_back(std::move(step));
  if (component.find_bool("split").value_or(true)) steps.push_back(std::move(split));
  return {};
}

void add_byte_level(const JsonTree& component, std::vector<SplitSpec>& steps) {
  if (component.find_bool("add_prefix_space").value_or(true)) {
    steps.push_back({.kind = SplitKind::kPrefixSpace, .pattern = {}});
  }
  if (component.find_bool("use_regex").value_or(true)) {
    steps.push_back({.kind = SplitKind::kRegex, .pattern = std::string(kByteLevelPattern)});
  }
}

// What pre-tokenizers are in our terms: splits, and whether bytes are spelled as characters.
struct PreTokenizers {
  std::vector<SplitSpec> steps;
  bool byte_level = false;
};

Status add_split(const JsonTree& component, PreTokenizers& out) {
  std::optional<Pattern> pattern = find_pattern(component);
  if (!pattern) return malformed("a Split");
  SplitSpec step{.kind = pattern->is_regex ? SplitKind::kRegex : SplitKind::kText,
                 .pattern = std::move(pattern->text),
                 .invert = component.find_bool("invert").value_or(false)};
  ASSIGN_OR_RETURN(step.behavior, behavior_of(component, "(none)"));
  out.steps.push_back(std::move(step));
  return {};
}

Status add_pre_tokenizer(const JsonTree& component, int depth, PreTokenizers& out) {
  if (depth > kDepthMax || out.steps.size() >= kStepCountMax) {
    return invalid_argument("tokenizer.json has too many pre-tokenizers");
  }
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto* parts = component.find_array("pretokenizers");
    if (!parts) return malformed("a pre-tokenizer Sequence");
    for (const JsonTree& part : *parts) RETURN_IF_ERROR(add_pre_tokenizer(part, depth + 1, out));
    return {};
  }
  if (out.byte_level) {
    return unimplemented("a pre-tokenizer behind ByteLevel is not supported");
  }
  if (type == "Split") return add_split(component, out);
  if (type == "Metaspace") return add_metaspace(component, out.steps);
  if (type == "ByteLevel") {
    add_byte_level(component, out.steps);
    out.byte_level = true;
  } else if (type == "Digits") {
    const bool each = component.find_bool("individual_digits").value_or(false);
    out.steps.push_back({.pattern = "\\p{N}",
                         .behavior = each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    SplitSpec step{.pattern = std::string(kPunctuationPattern)};
    ASSIGN_OR_RETURN(step.behavior, behavior_of(component, "Isolated"));
    out.steps.push_back(std::move(step));
  } else if (type == "Whitespace") {
    out.steps.push_back(
        {.pattern = "\\w+|[^\\w\\s]+", .behavior = SplitBehavior::kRemoved, .invert = true});
  } else if (type == "WhitespaceSplit") {
    out.steps.push_back({.pattern = "\\s", .behavior = SplitBehavior::kRemoved});
  } else {
    return unsupported("a pre-tokenizer", component);
  }
  return {};
}

Status add_decoder(const JsonTree& component, int depth, DecoderSpec& decoder) {
  if (depth > kDepthMax) return invalid_argument("tokenizer.json has too many decoders");
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto* parts = component.find_array("decoders");
    if (!parts) return malformed("a decoder Sequence");
    for (const JsonTree& part : *parts) RETURN_IF_ERROR(add_decoder(part, depth + 1, decoder));
    return {};
  }
  if (type == "ByteLevel") {
    decoder.byte_level = true;
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Metaspace") {
    decoder.space = component.find_text("replacement").value_or("▁");
    ASSIGN_OR_RETURN(const PrependScheme scheme, prepend_scheme_of(component));
    decoder.strip_one_left = scheme != PrependScheme::kNever;
  } else if (type == "Replace") {
    const auto content = component.find_text("content");
    const std::optional<Pattern> pattern = find_pattern(component);
    if (!content || !pattern) return malformed("a Replace decoder");
    if (*content != " " || pattern->is_regex || pattern->text.empty()) {
      return unimplemented("a Replace decoder with anything but a space is not supported");
    }
    decoder.space = pattern->text;
  } else if (type == "Strip") {
    const std::int64_t start = component.find_int("start").value_or(-1);
    const std::int64_t stop = component.find_int("stop").value_or(-1);
    if (component.find_text("content") != " " || start < 0 || start > 1 || stop != 0) {
      return unimplemented("a Strip decoder of more than one leading space is not supported");
    }
    decoder.strip_one_left = start == 1;
  } else if (type != "Fuse") {
    return unsupported("a decoder", component);
  }
  return {};
}

// --- What is put around a text -------------------------------------------------------------------

Status add_template_item(const JsonTree& processor, const JsonTree& item, TokenizerSpec& spec,
                         bool& text_seen) {
  if (item.find("Sequence") != nullptr) {
    if (text_seen) return malformed("a template with the text in it twice");
    text_seen = true;
    return {};
  }
  const JsonTree* special = item.find("SpecialToken");
  const auto name = special == nullptr ? std::nullopt : special->find_text("id");
  const JsonTree* tokens = processor.find("special_tokens");
  const JsonTree* entry = !name || tokens == nullptr ? nullptr : tokens->find(*name);
  const auto* ids = entry == nullptr ? nullptr : entry->find_array("ids");
  if (ids == nullptr || ids->size() > kTemplateItemsMax) return malformed("a template");
  for (const JsonTree& value : *ids) {
    const std::int64_t id = value.integer().value_or(-1);
    if (id < 0 || id > INT32_MAX) return malformed("a template");
    (text_seen ? spec.suffix : spec.prefix).push_back(static_cast<Token>(id));
  }
  return {};
}

Status read_post_processor(const JsonTree& processor, int depth, TokenizerSpec& spec) {
  if (depth > kDepthMax) return invalid_argument("tokenizer.json has too many post-processors");
  const std::string_view type = type_of(processor);
  if (type == "ByteLevel") return {};  // offsets only
  if (type == "Sequence") {
    const auto* parts = processor.find_array("processors");
    if (!parts) return malformed("a post-processor Sequence");
    for (const JsonTree& part : *parts) RETURN_IF_ERROR(read_post_processor(part, depth + 1, spec));
    return {};
  }
  if (type != "TemplateProcessing") return unsupported("a post-processor", processor);
  const auto* items = processor.find_array("single");
  if (!items || items->size() > kTemplateItemsMax) return malformed("a template");
  if (!spec.prefix.empty() || !spec.suffix.empty()) return malformed("a second template");
  bool text_seen = false;
  for (const JsonTree& item : *items) {
    RETURN_IF_ERROR(add_template_item(processor, item, spec, text_seen));
  }
  return text_seen ? Status() : malformed("a template without the text");
}

}  // namespace

Status read_tokenizer_components(const JsonTree& root, TokenizerSpec& spec) {
  if (const JsonTree* part = root.find("normalizer")) {
    RETURN_IF_ERROR(add_normalizer(*part, 0, spec.normalizers));
  }
  PreTokenizers cuts;
  if (const JsonTree* part = root.find("pre_tokenizer")) {
    RETURN_IF_ERROR(add_pre_tokenizer(*part, 0, cuts));
  }
  spec.splits = std::move(cuts.steps);
  spec.model = cuts.byte_level ? TokenizerModel::kByteBpe : TokenizerModel::kCharBpe;
  const JsonTree* decoder = root.find("decoder");
  if (decoder == nullptr) {
    return unimplemented("a tokenizer.json without a decoder is not supported");
  }
  RETURN_IF_ERROR(add_decoder(*decoder, 0, spec.decoder));
  if (const JsonTree* part = root.find("post_processor")) {
    RETURN_IF_ERROR(read_post_processor(*part, 0, spec));
  }
  return {};
}

}  // namespace kun
