// How one choice of an answer is written as JSON. Chat and completions differ here and nowhere
// else in the life of an answer; another dialect is another AnswerFormat.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/step_result.h"
#include "server/json_writer.h"
#include "text/tokenizer.h"

namespace kun {

struct ChoiceFinish {
  std::string_view reason;                   // "stop", "length"
  const std::string* stop_string = nullptr;  // what stopped it, if a string of the request did
  std::optional<Token> stop_token;           // or a token of the request
};

// A choice, or the next piece of one.
struct ChoicePart {
  int index = 0;
  bool first = false;  // nothing has been written of this choice
  std::string_view text;
  std::span<const SampledToken> tokens;  // for logprobs and token ids
  const ChoiceFinish* finish = nullptr;  // set with the last piece
  std::size_t text_offset = 0;           // characters before `tokens` (completions' logprobs)
  std::span<const Token> prompt;         // of this choice
};

// Const once built.
class AnswerFormat {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;
    bool logprobs = false;
    bool token_ids = false;
  };

  explicit AnswerFormat(const Options& options) : options_(options) {}
  virtual ~AnswerFormat() = default;

  virtual std::string_view id_prefix() const = 0;
  virtual std::string_view object_name(bool stream) const = 0;
  // A stream opens every choice with a piece that has no text yet.
  virtual bool opens_choices() const = 0;
  virtual void write_choice(JsonWriter& json, const ChoicePart& part) const = 0;
  virtual void write_delta(JsonWriter& json, const ChoicePart& part) const = 0;
  // Members of the answer itself.
  virtual void write_extra(JsonWriter& json, std::span<const Token> prompt, bool first) const = 0;

 protected:
  Options options_;
};

class ChatFormat : public AnswerFormat {
 public:
  using AnswerFormat::AnswerFormat;
  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view object_name(bool stream) const override;
  bool opens_choices() const override { return true; }
  void write_choice(JsonWriter& json, const ChoicePart& part) const override;
  void write_delta(JsonWriter& json, const ChoicePart& part) const override;
  void write_extra(JsonWriter& json, std::span<const Token> prompt, bool first) const override;

 private:
  void write_logprobs(JsonWriter& json, std::span<const SampledToken> tokens) const;
  void write_tail(JsonWriter& json, const ChoicePart& part) const;
};

class CompletionFormat : public AnswerFormat {
 public:
  using AnswerFormat::AnswerFormat;
  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string_view object_name(bool) const override { return "text_completion"; }
  bool opens_choices() const override { return false; }
  void write_choice(JsonWriter& json, const ChoicePart& part) const override;
  void write_delta(JsonWriter& json, const ChoicePart& part) const override;
  void write_extra(JsonWriter&, std::span<const Token>, bool) const override {}

 private:
  void write_logprobs(JsonWriter& json, const ChoicePart& part) const;
};

// Characters of the text a single token shows in a logprobs object.
std::size_t shown_length(const Tokenizer& tokenizer, Token token);

}  // namespace kun
