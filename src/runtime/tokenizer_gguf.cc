// Keys and defaults: gguf-py's constants and llama.cpp's llama-vocab. The split patterns are those
// of the models' own tokenizer.json files where these are published, and else the ones that
// reproduce llama.cpp's check hashes.
#include "runtime/tokenizer_gguf.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

constexpr std::size_t kPieceCountMax = 8U << 20U;
constexpr std::size_t kMergeCountMax = 32U << 20U;

// --- Splits by name ------------------------------------------------------------------------------

// DeepSeek-LLM's letters: an optional space and a run of the scripts that have upper and lower
// case.
constexpr std::string_view kCasedWord =
    R"(\s?[)"
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-)"
    R"(\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-)"
    R"(\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-)"
    R"(\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18})"
    R"(-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d})"
    R"(\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6})"
    R"(-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4})"
    R"(\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124})"
    R"(\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-)"
    R"(\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee})"
    R"(\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787})"
    R"(\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-)"
    R"(\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
    R"(]+)";

constexpr std::array<std::string_view, 6> kDeepseekLlm = {
    R"([\r\n])",
    kCasedWord,
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)",
    R"(\s+$)",
    R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)",
    R"(\p{N}+)"};

constexpr std::array<std::string_view, 5> kDeepseekCoder = {
    R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
    R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)", R"(\p{N})"};

constexpr std::array<std::string_view, 3> kDeepseekV3 = {
    R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::array<std::string_view, 1> kQwen2 = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::array<std::string_view, 1> kLlama3 = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kGpt2Word =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::array<std::string_view, 1> kGpt2 = {kGpt2Word};
constexpr std::array<std::string_view, 2> kSmollm = {R"(\p{N})", kGpt2Word};

struct PreTokenizerName {
  std::string_view name;
  std::span<const std::string_view> patterns;
  bool nfc = false;  // the model's own tokenizer normalizes; GGUF does not say so
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr std::array<PreTokenizerName, 16> kNames = {{
    {"deepseek-llm", kDeepseekLlm},
    {"deepseek-coder", kDeepseekCoder},
    {"deepseek-v3", kDeepseekV3},
    {"joyai-llm", kDeepseekV3},  // the hash of V3's splits without BOS
    {"deepseek-r1-qwen", kQwen2, true},
    {"qwen2", kQwen2, true},
    {"llama3", kLlama3, false, true, true},
    {"llama-v3", kLlama3, false, true, true},
    {"llama-bpe", kLlama3, false, true, true},
    {"smollm", kSmollm},
    {"default", kGpt2},
    {"gpt-2", kGpt2},
    {"gpt2", kGpt2},
    {"phi-2", kGpt2},
    {"roberta-bpe", kGpt2},
    {"", kGpt2},
}};

const PreTokenizerName* find_name(std::string_view name) {
  for (const PreTokenizerName& known : kNames) {
    if (known.name == name) return &known;
  }
  // Files made from later members of the family carry its name with a suffix.
  return name.starts_with("llama-v3") ? find_name("llama-v3") : nullptr;
}

// --- Keys ----------------------------------------------------------------------------------------

PieceKind kind_of(std::int64_t type) {
  switch (type) {
    case 2: return PieceKind::kUnknown;
    case 3: return PieceKind::kControl;
    case 4: return PieceKind::kUserDefined;
    case 5: return PieceKind::kUnused;
    case 6: return PieceKind::kByte;
    default: return PieceKind::kNormal;
  }
}

Status read_pieces(const GgufFile& file, TokenizerSpec& spec) {
  const auto tokens = file.find_strings("tokenizer.ggml.tokens");
  if (!tokens || tokens->empty() || tokens->size() > kPieceCountMax) {
    return data_loss("the GGUF file has no usable tokenizer.ggml.tokens");
  }
  const GgufValue* types = file.find_array("tokenizer.ggml.token_type");
  if (types != nullptr && types->count != tokens->size()) {
    return data_loss(fmt::format("the GGUF file has {} token types for {} tokens", types->count,
                                 tokens->size()));
  }
  spec.pieces.reserve(tokens->size());
  for (std::size_t id = 0; id < tokens->size(); ++id) {
    const auto type = types == nullptr ? 1 : types->int_at(id).value_or(1);
    const std::string_view text = (*tokens)[id];
    const PieceKind kind = kind_of(type);
    spec.pieces.push_back({std::string(text), kind});
    const bool control = kind == PieceKind::kControl || kind == PieceKind::kUnknown;
    if (!text.empty() && (control || kind == PieceKind::kUserDefined)) {
      spec.added_tokens.push_back(
          {.id = static_cast<Token>(id), .content = std::string(text), .special = control});
    }
  }
  return {};
}

Status read_token(const GgufFile& file, const char* key, const TokenizerSpec& spec,
                  std::optional<Token>& token) {
  const auto id = file.find_int(key);
  if (!id) return {};
  if (*id == -1 || *id == 0xFFFFFFFF) return {};  // written for "none"
  if (*id < 0 || *id >= static_cast<std::int64_t>(spec.pieces.size())) {
    return data_loss(fmt::format("{} of the GGUF file is {}, outside its vocabulary of {}", key,
                                 *id, spec.pieces.size()));
  }
  token = static_cast<Token>(*id);
  return {};
}

Status read_special_tokens(const GgufFile& file, bool add_bos, TokenizerSpec& spec) {
  RETURN_IF_ERROR(read_token(file, "tokenizer.ggml.bos_token_id", spec, spec.bos));
  RETURN_IF_ERROR(read_token(file, "tokenizer.ggml.eos_token_id", spec, spec.eos));
  RETURN_IF_ERROR(read_token(file, "tokenizer.ggml.unknown_token_id", spec, spec.unknown));
  add_bos = file.find_bool("tokenizer.ggml.add_bos_token").value_or(add_bos);
  if (add_bos && spec.bos) spec.prefix.push_back(*spec.bos);
  const bool add_eos = file.find_bool("tokenizer.ggml.add_eos_token").value_or(false);
  if (add_eos && spec.eos) spec.suffix.push_back(*spec.eos);
  return {};
}

// --- The two models ------------------------------------------------------------------------------

Status read_byte_bpe(const GgufFile& file, TokenizerSpec& spec) {
  const std::string_view name = file.find_string("tokenizer.ggml.pre").value_or("");
  const PreTokenizerName* known = find_name(name);
  if (known == nullptr) {
    return unimplemented(
        fmt::format("the pre-tokenizer {} of the GGUF file is not supported", show_name(name)));
  }
  spec.model = TokenizerModel::kByteBpe;
  spec.decoder.byte_level = true;
  spec.ignore_merges = known->ignore_merges;
  for (const std::string_view pattern : known->patterns) {
    spec.splits.push_back({.kind = SplitKind::kRegex, .pattern = std::string(pattern)});
  }
  if (known->nfc) spec.normalizers.push_back({.kind = NormalizerKind::kNfc});
  const auto merges = file.find_strings("tokenizer.ggml.merges");
  if (!merges || merges->size() > kMergeCountMax) {
    return data_loss("the GGUF file has no usable tokenizer.ggml.merges");
  }
  spec.merges.reserve(merges->size());
  for (const std::string_view merge : *merges) {
    const std::size_t space = merge.find(' ', 1);  // a piece may be a space itself
    if (space == std::string_view::npos) {
      return data_loss(
          fmt::format("merge {} of the GGUF file is not two pieces", show_name(merge)));
    }
    spec.merges.push_back(
        {std::string(merge.substr(0, space)), std::string(merge.substr(space + 1))});
  }
  return read_special_tokens(file, known->add_bos, spec);
}

Status read_score_bpe(const GgufFile& file, TokenizerSpec& spec) {
  spec.model = TokenizerModel::kScoreBpe;
  spec.byte_fallback = true;
  spec.decoder.byte_fallback = true;
  spec.decoder.space = "▁";
  const GgufValue* scores = file.find_array("tokenizer.ggml.scores");
  if (scores == nullptr || scores->count != spec.pieces.size()) {
    return data_loss(
        fmt::format("the GGUF file has no scores for its {} tokens", spec.pieces.size()));
  }
  for (std::uint64_t id = 0; id < scores->count; ++id) {
    const auto score = scores->float_at(id);
    if (!score || std::isnan(*score)) {
      return data_loss(fmt::format("token {} of the GGUF file has no usable score", id));
    }
    spec.scores.push_back(static_cast<float>(*score));
  }
  if (file.find_bool("tokenizer.ggml.add_space_prefix").value_or(true)) {
    spec.normalizers.push_back({.kind = NormalizerKind::kPrepend, .pattern = {}, .content = "▁"});
    spec.decoder.strip_one_left = true;
  }
  spec.normalizers.push_back(
      {.kind = NormalizerKind::kReplaceText, .pattern = " ", .content = "▁"});
  spec.unknown = 0;  // SentencePiece's own ids, unless the file has others
  if (spec.pieces.size() > 1) spec.bos = 1;
  if (spec.pieces.size() > 2) spec.eos = 2;
  return read_special_tokens(file, true, spec);
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_gguf(const GgufFile& file) {
  const auto model = file.find_string("tokenizer.ggml.model");
  if (!model) return not_found("the GGUF file has no tokenizer");
  TokenizerSpec spec;
  if (*model != "gpt2" && *model != "llama") {
    return unimplemented(
        fmt::format("the tokenizer model {} of the GGUF file is not supported", show_name(*model)));
  }
  RETURN_IF_ERROR(read_pieces(file, spec));
  if (*model == "gpt2") {
    RETURN_IF_ERROR(read_byte_bpe(file, spec));
  } else {
    RETURN_IF_ERROR(read_score_bpe(file, spec));
  }
  return spec;
}

}  // namespace kun
