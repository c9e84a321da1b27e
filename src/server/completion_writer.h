// The answers of /v1/completions, and in DeepSeek's exact shape those of /completions and
// /beta/completions.
#pragma once

#include "server/answer_writer.h"

namespace kun {

class CompletionWriter : public AnswerWriter {
 public:
  struct Options {
    bool echo = false;             // the prompt's tokens stand before the answer's in logprobs
    bool prompt_logprobs = false;  // vLLM's own field
  };

  explicit CompletionWriter(const Options& options) : options_(options) {}

  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string open_stream(std::span<const ChoicePart>, const CompletionUsage&) override {
    return {};
  }
  std::string piece(const ChoicePart& part, const CompletionUsage& usage) override;
  std::string close_stream(const CompletionUsage& usage) override;
  std::string whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) override;

 private:
  bool deepseek() const { return info().dialect == Dialect::kDeepSeek; }
  void open_answer(JsonWriter& json) const;
  void write_choice(JsonWriter& json, const ChoicePart& part) const;
  void write_logprobs(JsonWriter& json, const ChoicePart& part) const;

  const Options options_;
};

}  // namespace kun
