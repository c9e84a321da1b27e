#include "server/answer_format.h"

#include <algorithm>

#include "text/utf8.h"

namespace kun {
namespace {

// JSON has no infinity; clients expect vLLM's stand-in for it.
float wire_logprob(float logprob) {
  return std::max(logprob, -9999.0F);
}

std::string shown(const Tokenizer& tokenizer, Token token) {
  return to_valid_utf8(tokenizer.bytes(token, false));
}

void write_finish(JsonWriter& json, const ChoiceFinish* finish) {
  json.key("finish_reason");
  if (finish == nullptr) {
    json.null();
    return;
  }
  json.string(finish->reason);
  json.key("stop_reason");
  if (finish->stop_string != nullptr) {
    json.string(*finish->stop_string);
  } else if (finish->stop_token) {
    json.integer(*finish->stop_token);
  } else {
    json.null();
  }
}

void write_ids(JsonWriter& json, std::span<const SampledToken> tokens) {
  json.begin_array();
  for (const SampledToken& token : tokens) json.integer(token.token);
  json.end_array();
}

void write_ids(JsonWriter& json, std::span<const Token> tokens) {
  json.begin_array();
  for (const Token token : tokens) json.integer(token);
  json.end_array();
}

// {"token","logprob","bytes"}, left open for more members.
void open_chat_token(JsonWriter& json, const Tokenizer& tokenizer, Token token, float logprob) {
  json.begin_object();
  json.key("token").string(shown(tokenizer, token));
  json.key("logprob").number(wire_logprob(logprob));
  json.key("bytes").begin_array();
  for (const char c : tokenizer.bytes(token, false)) {
    json.integer(static_cast<unsigned char>(c));
  }
  json.end_array();
}

}  // namespace

std::size_t shown_length(const Tokenizer& tokenizer, Token token) {
  const std::string text = shown(tokenizer, token);
  // Every character has one byte that is not a continuation byte.
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string_view ChatFormat::object_name(bool stream) const {
  return stream ? "chat.completion.chunk" : "chat.completion";
}

void ChatFormat::write_logprobs(JsonWriter& json, std::span<const SampledToken> tokens) const {
  json.key("logprobs");
  if (!options_.logprobs || tokens.empty()) {
    json.null();
    return;
  }
  json.begin_object().key("content").begin_array();
  for (const SampledToken& token : tokens) {
    open_chat_token(json, *options_.tokenizer, token.token, token.logprob);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : token.top) {
      open_chat_token(json, *options_.tokenizer, top.token, top.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

void ChatFormat::write_tail(JsonWriter& json, const ChoicePart& part) const {
  write_logprobs(json, part.tokens);
  write_finish(json, part.finish);
  if (options_.token_ids) {
    json.key("token_ids");
    write_ids(json, part.tokens);
  }
  json.end_object();
}

void ChatFormat::write_choice(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().key("index").integer(part.index);
  json.key("message").begin_object();
  json.key("role").string("assistant").key("content").string(part.text).end_object();
  write_tail(json, part);
}

void ChatFormat::write_delta(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().key("index").integer(part.index);
  json.key("delta").begin_object();
  if (part.first) json.key("role").string("assistant");
  if (part.first || !part.text.empty() || !part.tokens.empty()) {
    json.key("content").string(part.text);
  }
  json.end_object();
  write_tail(json, part);
}

void ChatFormat::write_extra(JsonWriter& json, std::span<const Token> prompt, bool first) const {
  if (!options_.token_ids || !first) return;
  json.key("prompt_token_ids");
  write_ids(json, prompt);
}

void CompletionFormat::write_logprobs(JsonWriter& json, const ChoicePart& part) const {
  json.key("logprobs");
  if (!options_.logprobs || part.tokens.empty()) {
    json.null();
    return;
  }
  const Tokenizer& tokenizer = *options_.tokenizer;
  json.begin_object().key("text_offset").begin_array();
  std::size_t offset = part.text_offset;
  for (const SampledToken& token : part.tokens) {
    json.integer(static_cast<std::int64_t>(offset));
    offset += shown_length(tokenizer, token.token);
  }
  json.end_array().key("token_logprobs").begin_array();
  for (const SampledToken& token : part.tokens) json.number(wire_logprob(token.logprob));
  json.end_array().key("tokens").begin_array();
  for (const SampledToken& token : part.tokens) json.string(shown(tokenizer, token.token));
  json.end_array().key("top_logprobs").begin_array();
  for (const SampledToken& token : part.tokens) {
    json.begin_object();
    // The chosen token is always there, once.
    json.key(shown(tokenizer, token.token)).number(wire_logprob(token.logprob));
    for (const TokenLogprob& top : token.top) {
      if (top.token == token.token) continue;
      json.key(shown(tokenizer, top.token)).number(wire_logprob(top.logprob));
    }
    json.end_object();
  }
  json.end_array().end_object();
}

void CompletionFormat::write_choice(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().key("index").integer(part.index);
  json.key("text").string(part.text);
  write_logprobs(json, part);
  write_finish(json, part.finish);
  if (options_.token_ids) {
    json.key("token_ids");
    write_ids(json, part.tokens);
    if (part.first) {
      json.key("prompt_token_ids");
      write_ids(json, part.prompt);
    }
  }
  json.end_object();
}

void CompletionFormat::write_delta(JsonWriter& json, const ChoicePart& part) const {
  write_choice(json, part);
}

}  // namespace kun
