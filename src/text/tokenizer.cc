// The one Tokenizer: it walks text through added tokens, normalizer, splits and model, and knows
// nothing of files. What encoding writes to is kept in a pool, so that any thread may call it and
// a thread that comes back finds its word cache warm.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace kun {
namespace {

using Segment = AddedTokenMatcher::Segment;

constexpr std::size_t kAddedTokenCountMax = 1U << 20U;
constexpr std::size_t kWorkspacesKeptMax = 64;
constexpr std::size_t kKeptTextBytesMax = 1U << 20U;  // a workspace grows with its longest text

struct Workspace {
  std::vector<Segment> raw_segments;
  std::vector<Segment> segments;
  std::string normalized;
  PreTokenizerScratch pre_tokenizer;
  BpeScratch bpe;
};

class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < kWorkspacesKeptMax) free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, std::unique_ptr<const Vocabulary> vocabulary, BpeModel model,
               Normalizer normalizer, PreTokenizer pre_tokenizer);

  std::vector<Token> encode(std::string_view text, bool add_special_tokens) const override;
  std::string_view bytes(Token id, bool skip_special_tokens) const override;
  std::string decode(std::span<const Token> ids, bool skip_special_tokens) const override;
  std::string_view piece(Token id) const override { return vocabulary_->piece(id); }
  std::optional<Token> find(std::string_view text) const override {
    return vocabulary_->find(text);
  }
  int vocabulary_size() const override { return vocabulary_->size(); }
  bool is_special(Token id) const override { return vocabulary_->is_special(id); }
  std::optional<Token> bos() const override { return bos_; }
  std::optional<Token> eos() const override { return eos_; }
  bool strips_first_space() const override { return strips_first_space_; }

 private:
  void index_added_tokens(const std::vector<AddedTokenSpec>& tokens);
  void encode_segment(std::string_view text, bool starts_input, Workspace& workspace,
                      std::vector<Token>& tokens) const;

  std::unique_ptr<const Vocabulary> vocabulary_;
  BpeModel model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenMatcher raw_tokens_;
  AddedTokenMatcher normalized_tokens_;
  std::optional<Token> bos_;
  std::optional<Token> eos_;
  std::vector<Token> prefix_;
  std::vector<Token> suffix_;
  bool strips_first_space_;
  mutable WorkspacePool workspaces_;
};

BpeTokenizer::BpeTokenizer(TokenizerSpec spec, std::unique_ptr<const Vocabulary> vocabulary,
                           BpeModel model, Normalizer normalizer, PreTokenizer pre_tokenizer)
    : vocabulary_(std::move(vocabulary)),
      model_(std::move(model)),
      normalizer_(std::move(normalizer)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      bos_(spec.bos),
      eos_(spec.eos),
      prefix_(std::move(spec.prefix)),
      suffix_(std::move(spec.suffix)),
      strips_first_space_(spec.decoder.strip_one_left) {
  index_added_tokens(spec.added_tokens);
}

void BpeTokenizer::index_added_tokens(const std::vector<AddedTokenSpec>& tokens) {
  std::vector<AddedTokenMatcher::Entry> raw;
  std::vector<AddedTokenMatcher::Entry> normalized;
  std::vector<std::string> contents(tokens.size());
  RegexScratch scratch;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const AddedTokenSpec& token = tokens[i];
    if (token.normalized) {
      std::string storage;
      contents[i] = normalizer_.normalize(token.content, storage, scratch);
      normalized.push_back({contents[i], token});
    } else {
      raw.push_back({token.content, token});
    }
  }
  raw_tokens_ = AddedTokenMatcher(raw);
  normalized_tokens_ = AddedTokenMatcher(normalized);
}

std::vector<Token> BpeTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  std::unique_ptr<Workspace> workspace = workspaces_.take();
  std::vector<Token> tokens;
  tokens.reserve(text.size() / 3 + prefix_.size() + suffix_.size() + 8);
  if (add_special_tokens) tokens = prefix_;
  raw_tokens_.split(text, workspace->raw_segments);
  for (const Segment& segment : workspace->raw_segments) {
    if (segment.id != AddedTokenMatcher::kText) {
      tokens.push_back(segment.id);
      continue;
    }
    encode_segment(text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0,
                   *workspace, tokens);
  }
  if (add_special_tokens) tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
  if (text.size() <= kKeptTextBytesMax) workspaces_.give_back(std::move(workspace));
  return tokens;
}

void BpeTokenizer::encode_segment(std::string_view text, bool starts_input, Workspace& workspace,
                                  std::vector<Token>& tokens) const {
  const std::string_view normalized =
      normalizer_.normalize(text, workspace.normalized, workspace.pre_tokenizer.regex);
  normalized_tokens_.split(normalized, workspace.segments);
  for (const Segment& segment : workspace.segments) {
    if (segment.id != AddedTokenMatcher::kText) {
      tokens.push_back(segment.id);
      continue;
    }
    pre_tokenizer_.cut(normalized.substr(segment.begin, segment.end - segment.begin),
                       starts_input && segment.begin == 0, workspace.pre_tokenizer);
    for (const std::string_view piece : workspace.pre_tokenizer.pieces) {
      model_.encode(piece, workspace.bpe, tokens);
    }
  }
}

std::string_view BpeTokenizer::bytes(Token id, bool skip_special_tokens) const {
  if (skip_special_tokens && vocabulary_->is_special(id)) return {};
  return vocabulary_->bytes(id);
}

std::string BpeTokenizer::decode(std::span<const Token> ids, bool skip_special_tokens) const {
  std::string text;
  Utf8Repair repair;
  for (const Token id : ids) repair.feed(bytes(id, skip_special_tokens), text);
  repair.finish(text);
  if (strips_first_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

Status check_ids(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  std::vector<Token> used = spec.prefix;
  used.insert(used.end(), spec.suffix.begin(), spec.suffix.end());
  if (spec.bos.has_value()) used.push_back(*spec.bos);
  if (spec.eos.has_value()) used.push_back(*spec.eos);
  for (const Token id : used) {
    if (vocabulary.contains(id)) continue;
    return invalid_argument(fmt::format(
        "the tokenizer's special token {} is outside its vocabulary of {}", id, vocabulary.size()));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> make_tokenizer(TokenizerSpec spec) {
  if (spec.added_tokens.size() > kAddedTokenCountMax) {
    return invalid_argument(fmt::format("the tokenizer has {} added tokens, more than {}",
                                        spec.added_tokens.size(), kAddedTokenCountMax));
  }
  ASSIGN_OR_RETURN(Vocabulary built, Vocabulary::create(spec));
  auto vocabulary = std::make_unique<const Vocabulary>(std::move(built));
  RETURN_IF_ERROR(check_ids(spec, *vocabulary));
  ASSIGN_OR_RETURN(BpeModel model, BpeModel::create(spec, *vocabulary));
  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::create(spec.normalizers));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::create(spec.splits));
  return std::unique_ptr<const Tokenizer>(
      std::make_unique<BpeTokenizer>(std::move(spec), std::move(vocabulary), std::move(model),
                                     std::move(normalizer), std::move(pre_tokenizer)));
}

}  // namespace kun
