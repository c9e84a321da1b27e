#include "server/answer_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/sse.h"
#include "text/utf8.h"

namespace kun {

std::string AnswerWriter::stream_error(const ApiError& error) {
  return sse_event(error_json(error, info_.dialect)) + std::string(kSseDone);
}

std::string AnswerWriter::call_id(int choice, int call) const {
  // splitmix64: the bits of the salt and of the place, well mixed.
  const auto mix = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  };
  const auto place = (static_cast<std::uint64_t>(choice) << 32U) | static_cast<std::uint32_t>(call);
  const std::uint64_t high = mix(info_.salt ^ mix(place));
  return fmt::format("call_{:02}_{:016x}{:04x}", call, high, mix(high) & 0xffffU);
}

std::string shown_token(const AnswerInfo& info, Token token) {
  if (info.tokens_as_ids) return fmt::format("token_id:{}", token);
  return to_valid_utf8(info.tokenizer->bytes(token, false));
}

std::size_t shown_length(const Tokenizer& tokenizer, Token token) {
  const std::string text = to_valid_utf8(tokenizer.bytes(token, false));
  // Every character has one byte that is not a continuation byte.
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

float wire_logprob(float logprob) {
  return std::max(logprob, -9999.0F);
}

void write_finish(JsonWriter& json, const ChoiceFinish* finish, bool with_stop_reason) {
  json.key("finish_reason");
  if (finish == nullptr) {
    json.null();
    return;
  }
  json.string(finish->reason);
  if (!with_stop_reason) return;
  json.key("stop_reason");
  if (finish->stop_string != nullptr) {
    json.string(*finish->stop_string);
  } else if (finish->stop_token) {
    json.integer(*finish->stop_token);
  } else {
    json.null();
  }
}

void write_token_ids(JsonWriter& json, std::span<const SampledToken> tokens) {
  json.begin_array();
  for (const SampledToken& token : tokens) json.integer(token.token);
  json.end_array();
}

void write_token_ids(JsonWriter& json, std::span<const Token> tokens) {
  json.begin_array();
  for (const Token token : tokens) json.integer(token);
  json.end_array();
}

void write_prompt_logprobs(JsonWriter& json, const AnswerInfo& info,
                           std::span<const SampledToken> scores) {
  const auto write = [&](Token token, float logprob, int rank) {
    json.key(std::to_string(token)).begin_object();
    json.key("logprob").number(wire_logprob(logprob)).key("rank").integer(rank);
    json.key("decoded_token").string(shown_token(info, token)).end_object();
  };
  json.begin_array().null();  // nothing predicts the first token
  for (std::size_t i = 1; i < scores.size(); ++i) {
    const SampledToken& score = scores[i];
    json.begin_object();
    int rank = 1;
    bool listed = false;
    for (const TokenLogprob& top : score.top) {
      write(top.token, top.logprob, rank++);
      listed = listed || top.token == score.token;
    }
    if (!listed) write(score.token, score.logprob, rank);
    json.end_object();
  }
  json.end_array();
}

}  // namespace kun
