// The vocabulary and the merges are the bulk of a tokenizer.json, and go from simdjson's document
// straight into the spec; everything else is small, becomes a JsonTree and is read by name.
#include "runtime/tokenizer_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/mapped_file.h"
#include "checkpoint/show_name.h"
#include "runtime/json_tree.h"
#include "runtime/tokenizer_components.h"

namespace kun {
namespace {

using JsonElement = simdjson::dom::element;
using JsonArray = simdjson::dom::array;
using JsonObject = simdjson::dom::object;

constexpr std::size_t kFileBytesMax = 256U << 20U;
constexpr std::int64_t kIdMax = (8 << 20) - 1;
constexpr std::size_t kAddedTokenCountMax = 1U << 20U;
constexpr std::size_t kContentBytesMax = 4096;  // of an added token

Status malformed(std::string_view what) {
  return data_loss(fmt::format("tokenizer.json has {} that cannot be read", what));
}

// --- The vocabulary ------------------------------------------------------------------------------

Status read_vocabulary(const JsonObject& vocabulary, TokenizerSpec& spec) {
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
Status read_merges(const JsonArray& merges, TokenizerSpec& spec) {
  for (const JsonElement& merge : merges) {
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

// A document whose big parts are in `spec` already.
Result<JsonTree> read_bulk(const JsonObject& root, TokenizerSpec& spec) {
  JsonTree rest = JsonTree::object();
  for (const auto& [name, value] : root) {
    JsonObject model;
    if (name != "model" || value.get(model) != simdjson::SUCCESS) {
      ASSIGN_OR_RETURN(JsonTree part, JsonTree::parse(simdjson::minify(value)));
      rest.add(std::string(name), std::move(part));
      continue;
    }
    JsonTree small = JsonTree::object();
    for (const auto& [key, part] : model) {
      JsonObject vocabulary;
      JsonArray merges;
      if (key == "vocab" && part.get(vocabulary) == simdjson::SUCCESS) {
        RETURN_IF_ERROR(read_vocabulary(vocabulary, spec));
      } else if (key == "merges" && part.get(merges) == simdjson::SUCCESS) {
        RETURN_IF_ERROR(read_merges(merges, spec));
      } else {
        ASSIGN_OR_RETURN(JsonTree tree, JsonTree::parse(simdjson::minify(part)));
        small.add(std::string(key), std::move(tree));
        continue;
      }
      small.add(std::string(key), JsonTree::object());
    }
    rest.add("model", std::move(small));
  }
  return rest;
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

Status read_model(const JsonTree& model, TokenizerSpec& spec) {
  const std::string_view type = model.find_text("type").value_or("BPE");
  if (type != "BPE") {
    return unimplemented(fmt::format("a model of type {} is not supported", show_name(type)));
  }
  for (const std::string_view key : {"vocab", "merges"}) {
    const JsonTree* part = model.find(key);
    if (part == nullptr || !part->is_object() || !part->names().empty()) {
      return malformed(key == "vocab" ? "a vocabulary" : "a merge list");
    }
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.find_text(key).value_or("").empty()) {
      return unimplemented(fmt::format("a BPE model with {} is not supported", key));
    }
  }
  if (const JsonTree* dropout = model.find("dropout")) {
    if (dropout->number() != 0.0) {
      return unimplemented("a BPE model with dropout is not supported");
    }
  }
  spec.ignore_merges = model.find_bool("ignore_merges").value_or(false);
  spec.byte_fallback = model.find_bool("byte_fallback").value_or(false);
  spec.fuse_unknown = model.find_bool("fuse_unk").value_or(false);
  if (const auto unknown = model.find_text("unk_token")) {
    spec.unknown = find_id(spec, *unknown);
    if (!spec.unknown) {
      return data_loss(
          fmt::format("the unknown token {} of tokenizer.json is not in its "
                      "vocabulary",
                      show_name(*unknown)));
    }
  }
  return {};
}

// --- Added tokens and configuration --------------------------------------------------------------

Status add_added_token(const JsonTree& entry, std::int64_t id, TokenizerSpec& spec) {
  const auto content = entry.find_text("content");
  if (!content || content->size() > kContentBytesMax || id < 0 || id > kIdMax ||
      spec.added_tokens.size() >= kAddedTokenCountMax) {
    return malformed("an added token");
  }
  const bool special = entry.find_bool("special").value_or(false);
  spec.added_tokens.push_back({.id = static_cast<Token>(id),
                               .content = std::string(*content),
                               .special = special,
                               .single_word = entry.find_bool("single_word").value_or(false),
                               .lstrip = entry.find_bool("lstrip").value_or(false),
                               .rstrip = entry.find_bool("rstrip").value_or(false),
                               .normalized = entry.find_bool("normalized").value_or(!special)});
  return {};
}

Status read_added_tokens(const JsonTree& root, TokenizerSpec& spec) {
  if (root.find("added_tokens") == nullptr) return {};
  const auto* tokens = root.find_array("added_tokens");
  if (tokens == nullptr) return malformed("a list of added tokens");
  for (const JsonTree& entry : *tokens) {
    RETURN_IF_ERROR(add_added_token(entry, entry.find_int("id").value_or(-1), spec));
  }
  return {};
}

// Tokens that tokenizer_config.json knows and tokenizer.json does not.
Status read_more_added_tokens(const JsonTree& config, TokenizerSpec& spec) {
  const JsonTree* entries = config.find("added_tokens_decoder");
  if (entries == nullptr) return {};
  std::unordered_set<Token> known;
  for (const AddedTokenSpec& token : spec.added_tokens) known.insert(token.id);
  for (std::size_t i = 0; i < entries->names().size(); ++i) {
    const std::string& key = entries->names()[i];
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) return data_loss("tokenizer_config.json has an added token without an id");
    std::int64_t id = 0;
    for (const char c : key) id = id * 10 + (c - '0');
    if (known.contains(static_cast<Token>(id))) continue;
    RETURN_IF_ERROR(add_added_token(entries->values()[i], id, spec));
  }
  return {};
}

// A special token's name is a string, or an object with "content".
std::optional<std::string_view> find_token_name(const JsonTree& config, std::string_view key) {
  const JsonTree* value = config.find(key);
  if (value == nullptr) return std::nullopt;
  return value->is_object() ? value->find_text("content") : value->text();
}

void put_or_drop(std::vector<Token>& ids, Token id, bool put, bool in_front) {
  std::erase(ids, id);
  if (put) ids.insert(in_front ? ids.begin() : ids.end(), id);
}

Status apply_config(const JsonTree& config, TokenizerSpec& spec) {
  RETURN_IF_ERROR(read_more_added_tokens(config, spec));
  if (const auto name = find_token_name(config, "bos_token")) spec.bos = find_id(spec, *name);
  if (const auto name = find_token_name(config, "eos_token")) spec.eos = find_id(spec, *name);
  const auto add_bos = config.find_bool("add_bos_token");
  const auto add_eos = config.find_bool("add_eos_token");
  if (add_bos && spec.bos) put_or_drop(spec.prefix, *spec.bos, *add_bos, true);
  if (add_eos && spec.eos) put_or_drop(spec.suffix, *spec.eos, *add_eos, false);
  return {};
}

Status read_root(const JsonObject& document, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const JsonTree root, read_bulk(document, spec));
  const JsonTree* model = root.find("model");
  if (model == nullptr || !model->is_object()) return data_loss("tokenizer.json has no model");
  RETURN_IF_ERROR(read_model(*model, spec));
  RETURN_IF_ERROR(read_added_tokens(root, spec));
  return read_tokenizer_components(root, spec);
}

Status check_size(std::string_view text, std::string_view name) {
  if (text.size() <= kFileBytesMax) return {};
  return invalid_argument(
      fmt::format("{} has {} bytes, more than {}", name, text.size(), kFileBytesMax));
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer(std::string_view json, std::string_view config) {
  RETURN_IF_ERROR(check_size(json, "tokenizer.json"));
  RETURN_IF_ERROR(check_size(config, "tokenizer_config.json"));
  TokenizerSpec spec;
  simdjson::dom::parser parser;
  JsonElement root;
  JsonObject document;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return data_loss(
        fmt::format("tokenizer.json is not valid JSON: {}", simdjson::error_message(error)));
  }
  if (root.get(document) != simdjson::SUCCESS) return data_loss("tokenizer.json is no JSON object");
  RETURN_IF_ERROR(read_root(document, spec));
  if (config.empty()) return spec;
  const Result<JsonTree> settings = JsonTree::parse(config);
  if (!settings) {
    return data_loss(fmt::format("tokenizer_config.json is {}", settings.error().message()));
  }
  RETURN_IF_ERROR(apply_config(*settings, spec));
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
