// tokenizer.json is a tree of components, each with a "type". One function per kind of component
// translates it or refuses it; the vocabulary and the merges are the bulk of the file, and simdjson
// reads them at a few hundred megabytes a second.
#include "runtime/tokenizer_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "base/mapped_file.h"
#include "checkpoint/show_name.h"

namespace kun {
namespace {

using Json = simdjson::dom::element;
using JsonArray = simdjson::dom::array;
using JsonObject = simdjson::dom::object;

constexpr std::size_t kFileBytesMax = 256U << 20U;
constexpr std::int64_t kIdMax = (8 << 20) - 1;
constexpr std::size_t kAddedTokenCountMax = 1U << 20U;
constexpr std::size_t kContentBytesMax = 4096;  // of an added token or a replacement
constexpr int kDepthMax = 8;                    // of sequences in sequences
constexpr std::size_t kStepCountMax = 64;

// GPT-2's words, which ByteLevel cuts into when it is asked to.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kPunctuationPattern = R"([\p{P}\$\+<=>\^`\|~])";

// Absent members and nulls are nullopt.
std::optional<Json> find(const Json& object, std::string_view key) {
  Json value;
  if (object[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

std::optional<std::string_view> find_text(const Json& object, std::string_view key) {
  const std::optional<Json> value = find(object, key);
  std::string_view text;
  if (!value || value->get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

std::optional<bool> find_bool(const Json& object, std::string_view key) {
  const std::optional<Json> value = find(object, key);
  bool flag = false;
  if (!value || value->get(flag) != simdjson::SUCCESS) return std::nullopt;
  return flag;
}

std::optional<JsonArray> find_array(const Json& object, std::string_view key) {
  const std::optional<Json> value = find(object, key);
  JsonArray array;
  if (!value || value->get(array) != simdjson::SUCCESS) return std::nullopt;
  return array;
}

std::string_view type_of(const Json& component) {
  return find_text(component, "type").value_or("(none)");
}

Status unsupported(std::string_view what, const Json& component) {
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

std::optional<Pattern> find_pattern(const Json& component) {
  const std::optional<Json> pattern = find(component, "pattern");
  if (!pattern) return std::nullopt;
  std::string_view plain;
  if (pattern->get(plain) == simdjson::SUCCESS) return Pattern{std::string(plain), false};
  if (const auto text = find_text(*pattern, "String")) return Pattern{std::string(*text), false};
  if (const auto text = find_text(*pattern, "Regex")) return Pattern{std::string(*text), true};
  return std::nullopt;
}

Status add_normalizer(const Json& component, int depth, std::vector<NormalizerSpec>& steps) {
  if (depth > kDepthMax || steps.size() >= kStepCountMax) {
    return invalid_argument("tokenizer.json has too many normalizers");
  }
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto parts = find_array(component, "normalizers");
    if (!parts) return malformed("a normalizer Sequence");
    for (const Json& part : *parts) RETURN_IF_ERROR(add_normalizer(part, depth + 1, steps));
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
    const auto content = find_text(component, "prepend");
    if (!content) return malformed("a Prepend normalizer");
    step.kind = NormalizerKind::kPrepend;
    step.content = *content;
  } else if (type == "Replace") {
    const auto content = find_text(component, "content");
    std::optional<Pattern> pattern = find_pattern(component);
    if (!content || !pattern) return malformed("a Replace normalizer");
    step.kind = pattern->is_regex ? NormalizerKind::kReplaceRegex : NormalizerKind::kReplaceText;
    step.pattern = std::move(pattern->text);
    step.content = *content;
  } else if (type == "Strip") {
    step.kind = NormalizerKind::kStrip;
    step.strip_left = find_bool(component, "strip_left").value_or(true);
    step.strip_right = find_bool(component, "strip_right").value_or(true);
  } else {
    return unsupported("a normalizer", component);
  }
  if (step.content.size() > kContentBytesMax) return malformed("a normalizer with a huge text");
  steps.push_back(std::move(step));
  return {};
}

Result<SplitBehavior> behavior_of(const Json& component, std::string_view fallback) {
  const std::string_view name = find_text(component, "behavior").value_or(fallback);
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unimplemented(fmt::format("the split behavior {} is not supported", show_name(name)));
}

Result<PrependScheme> prepend_scheme_of(const Json& component) {
  const auto name = find_text(component, "prepend_scheme");
  if (!name) {
    return find_bool(component, "add_prefix_space").value_or(true) ? PrependScheme::kAlways
                                                                   : PrependScheme::kNever;
  }
  if (*name == "always") return PrependScheme::kAlways;
  if (*name == "first") return PrependScheme::kFirst;
  if (*name == "never") return PrependScheme::kNever;
  return unimplemented(fmt::format("the prepend scheme {} is not supported", show_name(*name)));
}

Status add_metaspace(const Json& component, std::vector<SplitSpec>& steps) {
  SplitSpec step{.kind = SplitKind::kMetaspace,
                 .pattern = std::string(find_text(component, "replacement").value_or("▁"))};
  ASSIGN_OR_RETURN(step.prepend, prepend_scheme_of(component));
  if (step.pattern.empty() || step.pattern.size() > 4) return malformed("a Metaspace");
  SplitSpec split{.kind = SplitKind::kText,
                  .pattern = step.pattern,
                  .behavior = SplitBehavior::kMergedWithNext};
  steps.push_back(std::move(step));
  if (find_bool(component, "split").value_or(true)) steps.push_back(std::move(split));
  return {};
}

void add_byte_level(const Json& component, std::vector<SplitSpec>& steps) {
  if (find_bool(component, "add_prefix_space").value_or(true)) {
    steps.push_back({.kind = SplitKind::kPrefixSpace, .pattern = {}});
  }
  if (find_bool(component, "use_regex").value_or(true)) {
    steps.push_back({.kind = SplitKind::kRegex, .pattern = std::string(kByteLevelPattern)});
  }
}

// What pre-tokenizers are in our terms: splits, and whether bytes are spelled as characters.
struct PreTokenizers {
  std::vector<SplitSpec> steps;
  bool byte_level = false;
};

Status add_split(const Json& component, PreTokenizers& out) {
  std::optional<Pattern> pattern = find_pattern(component);
  if (!pattern) return malformed("a Split");
  SplitSpec step{.kind = pattern->is_regex ? SplitKind::kRegex : SplitKind::kText,
                 .pattern = std::move(pattern->text),
                 .invert = find_bool(component, "invert").value_or(false)};
  ASSIGN_OR_RETURN(step.behavior, behavior_of(component, "(none)"));
  out.steps.push_back(std::move(step));
  return {};
}

Status add_pre_tokenizer(const Json& component, int depth, PreTokenizers& out) {
  if (depth > kDepthMax || out.steps.size() >= kStepCountMax) {
    return invalid_argument("tokenizer.json has too many pre-tokenizers");
  }
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto parts = find_array(component, "pretokenizers");
    if (!parts) return malformed("a pre-tokenizer Sequence");
    for (const Json& part : *parts) RETURN_IF_ERROR(add_pre_tokenizer(part, depth + 1, out));
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
    const bool each = find_bool(component, "individual_digits").value_or(false);
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

Status add_decoder(const Json& component, int depth, DecoderSpec& decoder) {
  if (depth > kDepthMax) return invalid_argument("tokenizer.json has too many decoders");
  const std::string_view type = type_of(component);
  if (type == "Sequence") {
    const auto parts = find_array(component, "decoders");
    if (!parts) return malformed("a decoder Sequence");
    for (const Json& part : *parts) RETURN_IF_ERROR(add_decoder(part, depth + 1, decoder));
    return {};
  }
  if (type == "ByteLevel") {
    decoder.byte_level = true;
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Metaspace") {
    decoder.space = find_text(component, "replacement").value_or("▁");
    ASSIGN_OR_RETURN(const PrependScheme scheme, prepend_scheme_of(component));
    decoder.strip_one_left = scheme != PrependScheme::kNever;
  } else if (type == "Replace") {
    const auto content = find_text(component, "content");
    const std::optional<Pattern> pattern = find_pattern(component);
    if (!content || !pattern) return malformed("a Replace decoder");
    if (*content != " " || pattern->is_regex || pattern->text.empty()) {
      return unimplemented("a Replace decoder with anything but a space is not supported");
    }
    decoder.space = pattern->text;
  } else if (type == "Strip") {
    std::int64_t start = 0;
    std::int64_t stop = 0;
    const bool readable = component["start"].get(start) == simdjson::SUCCESS &&
                          component["stop"].get(stop) == simdjson::SUCCESS;
    if (!readable || find_text(component, "content").value_or("") != " " || start > 1 ||
        start < 0 || stop != 0) {
      return unimplemented("a Strip decoder of more than one leading space is not supported");
    }
    decoder.strip_one_left = start == 1;
  } else if (type != "Fuse") {
    return unsupported("a decoder", component);
  }
  return {};
}

// --- The vocabulary
// -------------------------------------------------------------------------------

Status read_vocabulary(const Json& model, TokenizerSpec& spec) {
  JsonObject vocabulary;
  if (model["vocab"].get(vocabulary) != simdjson::SUCCESS) return malformed("a vocabulary");
  for (const auto& [piece, value] : vocabulary) {
    std::int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > kIdMax) {
      return data_loss(
          fmt::format("piece {} of tokenizer.json has no usable id", show_name(piece)));
    }
    const auto index = static_cast<std::size_t>(id);
    if (index >= spec.pieces.size()) {
      const std::size_t wanted = std::max(index + 1, vocabulary.size());
      spec.pieces.resize(std::min<std::size_t>(wanted, kIdMax + 1));
    }
    if (spec.pieces[index].kind != PieceKind::kAbsent) {
      return data_loss(fmt::format("two pieces of tokenizer.json have the id {}", id));
    }
    spec.pieces[index] = {std::string(piece), PieceKind::kNormal};
  }
  while (!spec.pieces.empty() && spec.pieces.back().kind == PieceKind::kAbsent) {
    spec.pieces.pop_back();
  }
  return {};
}

// "left right" in older files, ["left", "right"] in newer ones.
Status read_merges(const Json& model, TokenizerSpec& spec) {
  const auto merges = find_array(model, "merges");
  if (!merges) return malformed("a merge list");
  for (const Json& merge : *merges) {
    std::string_view line;
    JsonArray pair;
    std::string_view left;
    std::string_view right;
    if (merge.get(line) == simdjson::SUCCESS) {
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos) return malformed("a merge");
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
               pair.at(0).get(left) != simdjson::SUCCESS ||
               pair.at(1).get(right) != simdjson::SUCCESS) {
      return malformed("a merge");
    }
    spec.merges.push_back({std::string(left), std::string(right)});
  }
  return {};
}

std::optional<Token> find_id(const TokenizerSpec& spec, std::string_view content) {
  for (const AddedTokenSpec& token : spec.added_tokens) {
    if (token.content == content) return token.id;
  }
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    if (spec.pieces[id].kind != PieceKind::kAbsent && spec.pieces[id].text == content) {
      return static_cast<Token>(id);
    }
  }
  return std::nullopt;
}

Status read_model(const Json& model, TokenizerSpec& spec) {
  if (find_text(model, "type").value_or("BPE") != "BPE") return unsupported("a model", model);
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!find_text(model, key).value_or("").empty()) {
      return unimplemented(fmt::format("a BPE model with {} is not supported", key));
    }
  }
  if (const auto dropout = find(model, "dropout")) {
    double share = 0;
    if (dropout->get(share) != simdjson::SUCCESS || share != 0) {
      return unimplemented("a BPE model with dropout is not supported");
    }
  }
  RETURN_IF_ERROR(read_vocabulary(model, spec));
  RETURN_IF_ERROR(read_merges(model, spec));
  spec.ignore_merges = find_bool(model, "ignore_merges").value_or(false);
  spec.byte_fallback = find_bool(model, "byte_fallback").value_or(false);
  spec.fuse_unknown = find_bool(model, "fuse_unk").value_or(false);
  if (const auto unknown = find_text(model, "unk_token")) {
    spec.unknown = find_id(spec, *unknown);
    if (!spec.unknown) {
      return data_loss(fmt::format(
          "the unknown token {} of tokenizer.json is not in its vocabulary", show_name(*unknown)));
    }
  }
  return {};
}

Status add_added_token(const Json& entry, std::int64_t id, TokenizerSpec& spec) {
  const auto content = find_text(entry, "content");
  if (!content || content->size() > kContentBytesMax || id < 0 || id > kIdMax ||
      spec.added_tokens.size() >= kAddedTokenCountMax) {
    return malformed("an added token");
  }
  const bool special = find_bool(entry, "special").value_or(false);
  spec.added_tokens.push_back({.id = static_cast<Token>(id),
                               .content = std::string(*content),
                               .special = special,
                               .single_word = find_bool(entry, "single_word").value_or(false),
                               .lstrip = find_bool(entry, "lstrip").value_or(false),
                               .rstrip = find_bool(entry, "rstrip").value_or(false),
                               .normalized = find_bool(entry, "normalized").value_or(!special)});
  return {};
}

Status read_added_tokens(const Json& root, TokenizerSpec& spec) {
  if (!find(root, "added_tokens")) return {};
  const auto tokens = find_array(root, "added_tokens");
  if (!tokens) return malformed("a list of added tokens");
  for (const Json& entry : *tokens) {
    std::int64_t id = -1;
    if (entry["id"].get(id) != simdjson::SUCCESS) return malformed("an added token");
    RETURN_IF_ERROR(add_added_token(entry, id, spec));
  }
  return {};
}

// --- What is put around a text
// --------------------------------------------------------------------

Status add_template_item(const Json& processor, const Json& item, TokenizerSpec& spec,
                         bool& text_seen) {
  if (find(item, "Sequence")) {
    if (text_seen) return malformed("a template with the text in it twice");
    text_seen = true;
    return {};
  }
  const auto special = find(item, "SpecialToken");
  const auto name = special ? find_text(*special, "id") : std::nullopt;
  const auto tokens = find(processor, "special_tokens");
  const auto entry = name && tokens ? find(*tokens, *name) : std::nullopt;
  const auto ids = entry ? find_array(*entry, "ids") : std::nullopt;
  if (!ids || ids->size() > 16) return malformed("a template");
  for (const Json& value : *ids) {
    std::int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > kIdMax) return malformed("a template");
    (text_seen ? spec.suffix : spec.prefix).push_back(static_cast<Token>(id));
  }
  return {};
}

Status read_post_processor(const Json& processor, int depth, TokenizerSpec& spec) {
  if (depth > kDepthMax) return invalid_argument("tokenizer.json has too many post-processors");
  const std::string_view type = type_of(processor);
  if (type == "ByteLevel") return {};  // offsets only
  if (type == "Sequence") {
    const auto parts = find_array(processor, "processors");
    if (!parts) return malformed("a post-processor Sequence");
    for (const Json& part : *parts) RETURN_IF_ERROR(read_post_processor(part, depth + 1, spec));
    return {};
  }
  if (type != "TemplateProcessing") return unsupported("a post-processor", processor);
  const auto items = find_array(processor, "single");
  if (!items || items->size() > 16) return malformed("a template");
  if (!spec.prefix.empty() || !spec.suffix.empty()) return malformed("a second template");
  bool text_seen = false;
  for (const Json& item : *items) {
    RETURN_IF_ERROR(add_template_item(processor, item, spec, text_seen));
  }
  return text_seen ? Status() : malformed("a template without the text");
}

// A special token's name is a string, or an object with "content".
std::optional<std::string_view> find_token_name(const Json& config, std::string_view key) {
  if (const auto name = find_text(config, key)) return name;
  const auto object = find(config, key);
  return object ? find_text(*object, "content") : std::nullopt;
}

void put_or_drop(std::vector<Token>& ids, Token id, bool put, bool in_front) {
  std::erase(ids, id);
  if (put) ids.insert(in_front ? ids.begin() : ids.end(), id);
}

// Tokens that tokenizer_config.json knows and tokenizer.json does not.
Status read_more_added_tokens(const Json& config, TokenizerSpec& spec) {
  const auto decoder = find(config, "added_tokens_decoder");
  JsonObject entries;
  if (!decoder || decoder->get(entries) != simdjson::SUCCESS) return {};
  std::map<std::int64_t, bool> known;
  for (const AddedTokenSpec& token : spec.added_tokens) known[token.id] = true;
  for (const auto& [key, entry] : entries) {
    const bool digits = !key.empty() && key.size() <= 9 &&
                        key.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits) return data_loss("tokenizer_config.json has an added token without an id");
    const std::int64_t id = std::stoll(std::string(key));
    if (!known.contains(id)) RETURN_IF_ERROR(add_added_token(entry, id, spec));
  }
  return {};
}

Status apply_config(const Json& config, TokenizerSpec& spec) {
  RETURN_IF_ERROR(read_more_added_tokens(config, spec));
  if (const auto name = find_token_name(config, "bos_token")) spec.bos = find_id(spec, *name);
  if (const auto name = find_token_name(config, "eos_token")) spec.eos = find_id(spec, *name);
  const auto add_bos = find_bool(config, "add_bos_token");
  const auto add_eos = find_bool(config, "add_eos_token");
  if (add_bos && spec.bos) put_or_drop(spec.prefix, *spec.bos, *add_bos, true);
  if (add_eos && spec.eos) put_or_drop(spec.suffix, *spec.eos, *add_eos, false);
  return {};
}

Status read_root(const Json& root, TokenizerSpec& spec) {
  const auto model = find(root, "model");
  if (!model) return malformed("no model, or one");
  RETURN_IF_ERROR(read_model(*model, spec));
  RETURN_IF_ERROR(read_added_tokens(root, spec));
  if (const auto part = find(root, "normalizer")) {
    RETURN_IF_ERROR(add_normalizer(*part, 0, spec.normalizers));
  }
  PreTokenizers cuts;
  if (const auto part = find(root, "pre_tokenizer")) {
    RETURN_IF_ERROR(add_pre_tokenizer(*part, 0, cuts));
  }
  spec.splits = std::move(cuts.steps);
  spec.model = cuts.byte_level ? TokenizerModel::kByteBpe : TokenizerModel::kCharBpe;
  const auto decoder = find(root, "decoder");
  if (!decoder) return unimplemented("a tokenizer.json without a decoder is not supported");
  RETURN_IF_ERROR(add_decoder(*decoder, 0, spec.decoder));
  if (const auto part = find(root, "post_processor")) {
    RETURN_IF_ERROR(read_post_processor(*part, 0, spec));
  }
  return {};
}

Result<Json> parse_json(simdjson::dom::parser& parser, std::string_view text,
                        std::string_view name) {
  if (text.size() > kFileBytesMax) {
    return invalid_argument(
        fmt::format("{} has {} bytes, more than {}", name, text.size(), kFileBytesMax));
  }
  Json root;
  const simdjson::error_code error = parser.parse(text.data(), text.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return data_loss(fmt::format("{} is not valid JSON: {}", name, simdjson::error_message(error)));
  }
  if (!root.is_object()) return data_loss(fmt::format("{} is not a JSON object", name));
  return root;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer(std::string_view json, std::string_view config) {
  TokenizerSpec spec;
  simdjson::dom::parser parser(kFileBytesMax + 1);
  ASSIGN_OR_RETURN(const Json root, parse_json(parser, json, "tokenizer.json"));
  RETURN_IF_ERROR(read_root(root, spec));
  if (!config.empty()) {
    simdjson::dom::parser config_parser(kFileBytesMax + 1);
    ASSIGN_OR_RETURN(const Json config_root,
                     parse_json(config_parser, config, "tokenizer_config.json"));
    RETURN_IF_ERROR(apply_config(config_root, spec));
  }
  return spec;
}

Result<TokenizerSpec> read_tokenizer_file(const std::filesystem::path& path,
                                          const std::filesystem::path& config_path) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  std::shared_ptr<const MappedFile> config;
  std::error_code ignored;
  if (!config_path.empty() && std::filesystem::exists(config_path, ignored)) {
    ASSIGN_OR_RETURN(config, MappedFile::open(config_path));
  }
  Result<TokenizerSpec> spec =
      parse_tokenizer(text_of(*file), config == nullptr ? "" : text_of(*config));
  if (spec.has_value()) return spec;
  return Status(spec.error().code(), fmt::format("{}: {}", path.string(), spec.error().message()));
}

}  // namespace kun
