// What a tokenizer is, as plain data: the meeting point of the readers (tokenizer.json, GGUF) and
// the one Tokenizer that runs them all. Readers translate and refuse; make_tokenizer checks that
// the parts fit together. The terms are those of Hugging Face's tokenizer.json, whose steps it
// follows: added tokens, normalizer, pre-tokenizer (here: splits), model, post-processor, decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/token.h"

namespace kun {

enum class TokenizerModel : std::uint8_t {
  kByteBpe,   // symbols are bytes, spelled in GPT-2's byte alphabet; pairs merge by rank
  kCharBpe,   // symbols are characters, unknown ones fall back to bytes; pairs merge by rank
  kScoreBpe,  // SentencePiece: symbols are characters; the pair whose union scores best merges
};

enum class PieceKind : std::uint8_t {
  kAbsent,  // an id without a piece
  kNormal,
  kUnknown,
  kControl,
  kUserDefined,
  kUnused,
  kByte,  // "<0x0A>"
};

struct PieceSpec {
  std::string text;
  PieceKind kind = PieceKind::kAbsent;
};

struct MergeSpec {
  std::string left;
  std::string right;
};

struct AddedTokenSpec {
  Token id = 0;
  std::string content;
  bool special = false;      // dropped by skip_special_tokens
  bool single_word = false;  // only between characters that belong to no word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and the white space behind
  bool normalized = false;   // looked for in the normalized text rather than in the raw text
};

enum class NormalizerKind : std::uint8_t {
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
  kLowercase,
  kPrepend,       // `content` before any text that is not empty
  kReplaceText,   // every `pattern` becomes `content`
  kReplaceRegex,  // the same with a regular expression
  kStrip,         // white space at the ends
};

struct NormalizerSpec {
  NormalizerKind kind = NormalizerKind::kNfc;
  std::string pattern{};
  std::string content{};
  bool strip_left = true;
  bool strip_right = true;
};

enum class SplitKind : std::uint8_t {
  kRegex,        // `pattern` in Oniguruma's dialect
  kText,         // `pattern` as it is
  kPrefixSpace,  // no split: a space before every piece that has none (ByteLevel)
  kMetaspace,    // no split: spaces become `pattern`, which is also put in front as `prepend` says
};

enum class SplitBehavior : std::uint8_t {
  kIsolated,
  kRemoved,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

enum class PrependScheme : std::uint8_t { kNever, kFirst, kAlways };

struct SplitSpec {
  SplitKind kind = SplitKind::kRegex;
  std::string pattern{};
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  PrependScheme prepend = PrependScheme::kNever;
};

struct DecoderSpec {
  bool byte_level = false;      // pieces are spelled in the byte alphabet
  std::string space;            // what stands for ' ' in pieces ("▁"), or empty
  bool byte_fallback = false;   // "<0x0A>" is a byte
  bool strip_one_left = false;  // the text loses one leading space
};

struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::kByteBpe;
  std::vector<PieceSpec> pieces;  // by id: the model's own vocabulary
  std::vector<float> scores;      // by id; kScoreBpe only
  std::vector<MergeSpec> merges;  // by rank; not for kScoreBpe
  std::vector<AddedTokenSpec> added_tokens;
  std::vector<NormalizerSpec> normalizers;
  std::vector<SplitSpec> splits;
  DecoderSpec decoder;

  bool ignore_merges = false;  // a piece that is in the vocabulary is taken whole
  bool byte_fallback = false;
  bool fuse_unknown = false;  // neighbouring unknown characters are one unknown token
  std::optional<Token> unknown;

  std::optional<Token> bos;
  std::optional<Token> eos;
  std::vector<Token> prefix;  // what add_special_tokens puts before the text
  std::vector<Token> suffix;  // and behind it
};

}  // namespace kun
