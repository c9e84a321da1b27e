// How an answer is written. The life of an answer is the same for every route (GenerationJob);
// what its bytes look like, whole or as server-sent events, is the business of an AnswerWriter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/step_result.h"
#include "server/api_error.h"
#include "server/completion_usage.h"
#include "server/dialect.h"
#include "text/answer_piece.h"
#include "text/tokenizer.h"

namespace kun {

// What does not change from the first byte to the last.
struct AnswerInfo {
  std::string id;  // without prefix
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint;
  std::uint64_t salt = 0;  // random: for ids inside of the answer
  Dialect dialect = Dialect::kOpenAi;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  bool token_ids = false;
  bool tokens_as_ids = false;  // "token_id:7" where the text of a token would stand
  const Tokenizer* tokenizer = nullptr;
};

struct ChoiceFinish {
  std::string_view reason;                   // "stop", "length", "tool_calls"
  const std::string* stop_string = nullptr;  // what stopped it, if a string of the request did
  std::optional<Token> stop_token;           // or a token of the request
};

// A choice, or the next piece of one.
struct ChoicePart {
  int index = 0;
  bool first = false;   // nothing has been written of this choice
  bool last = false;    // nothing follows this piece, of any choice
  bool thinks = false;  // the choice began with thoughts
  const AnswerPiece* text = nullptr;
  std::span<const SampledToken> tokens;  // for logprobs and token ids
  const ChoiceFinish* finish = nullptr;  // set with the last piece
  std::size_t text_offset = 0;           // characters before `tokens` (completions' logprobs)
  std::span<const Token> prompt;         // of this choice
  std::span<const SampledToken> prompt_scores;  // [position], empty unless asked for
};

// One per answer; may keep state from piece to piece.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string_view id_prefix() const = 0;

  // Called once, before anything else.
  void begin(AnswerInfo info) { info_ = std::move(info); }
  const AnswerInfo& info() const { return info_; }

  // A stream: what comes before the first piece, pieces, and what comes after the last.
  virtual std::string open_stream(std::span<const ChoicePart> choices,
                                  const CompletionUsage& usage) = 0;
  virtual std::string piece(const ChoicePart& part, const CompletionUsage& usage) = 0;
  virtual std::string close_stream(const CompletionUsage& usage) = 0;
  // Instead of the rest of a stream.
  virtual std::string stream_error(const ApiError& error);

  // The whole answer as one JSON object.
  virtual std::string whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) = 0;

 protected:
  // "call_" and what no other call of any answer is called.
  std::string call_id(int choice, int call) const;

 private:
  AnswerInfo info_;
};

// What the writers of OpenAI's shapes share.
std::string shown_token(const AnswerInfo& info, Token token);
// Characters of the text that a token shows in a logprobs object.
std::size_t shown_length(const Tokenizer& tokenizer, Token token);
// JSON has no infinity; clients expect vLLM's stand-in for it.
float wire_logprob(float logprob);
void write_finish(JsonWriter& json, const ChoiceFinish* finish, bool with_stop_reason);
void write_token_ids(JsonWriter& json, std::span<const SampledToken> tokens);
void write_token_ids(JsonWriter& json, std::span<const Token> tokens);
// vLLM's: [null, {"ID": {"logprob", "rank", "decoded_token"}, ...}, ...]
void write_prompt_logprobs(JsonWriter& json, const AnswerInfo& info,
                           std::span<const SampledToken> scores);

}  // namespace kun
