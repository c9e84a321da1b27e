// The answers of /v1/chat/completions, and in DeepSeek's exact shape those of /chat/completions.
#pragma once

#include "server/answer_writer.h"

namespace kun {

class ChatWriter : public AnswerWriter {
 public:
  struct Options {
    bool include_reasoning = true;  // false: thoughts are left out
  };

  explicit ChatWriter(const Options& options) : options_(options) {}

  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string open_stream(std::span<const ChoicePart> choices,
                          const CompletionUsage& usage) override;
  std::string piece(const ChoicePart& part, const CompletionUsage& usage) override;
  std::string close_stream(const CompletionUsage& usage) override;
  std::string whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) override;

 private:
  bool deepseek() const { return info().dialect == Dialect::kDeepSeek; }
  void open_answer(JsonWriter& json) const;
  void write_message(JsonWriter& json, const ChoicePart& part) const;
  void write_calls(JsonWriter& json, const ChoicePart& part, bool whole) const;
  void write_delta(JsonWriter& json, const ChoicePart& part) const;
  void write_deepseek_delta(JsonWriter& json, const ChoicePart& part) const;
  void write_logprobs(JsonWriter& json, std::span<const SampledToken> tokens) const;
  void write_tail(JsonWriter& json, const ChoicePart& part) const;
  std::string chunk(const ChoicePart& part, const CompletionUsage& usage);

  const Options options_;
  bool thinks_ = false;  // some choice did
};

}  // namespace kun
