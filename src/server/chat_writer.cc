#include "server/chat_writer.h"

#include <vector>

#include "server/sse.h"

namespace kun {
namespace {

// {"token","logprob","bytes"}, left open for more members.
void open_chat_token(JsonWriter& json, const AnswerInfo& info, Token token, float logprob) {
  json.begin_object();
  json.key("token").string(shown_token(info, token));
  json.key("logprob").number(wire_logprob(logprob));
  json.key("bytes").begin_array();
  for (const char c : info.tokenizer->bytes(token, false)) {
    json.integer(static_cast<unsigned char>(c));
  }
  json.end_array();
}

void write_text_or_null(JsonWriter& json, std::string_view text) {
  if (text.empty()) {
    json.null();
  } else {
    json.string(text);
  }
}

// Thoughts, words and each call apart. Clients look for one after the other in a delta and, where
// they find one, no further, nor behind the first call; DeepSeek's own examples do.
std::vector<AnswerPiece> one_kind_each(const AnswerPiece& text, bool with_reasoning) {
  std::vector<AnswerPiece> kinds;
  if (with_reasoning && !text.reasoning.empty()) kinds.push_back({text.reasoning, {}, {}});
  if (!text.content.empty()) kinds.push_back({{}, text.content, {}});
  for (const ToolCallPiece& call : text.calls) kinds.push_back({{}, {}, {call}});
  return kinds;
}

}  // namespace

std::string ChatWriter::open_stream(std::span<const ChoicePart> choices,
                                    const CompletionUsage& usage) {
  std::string events;
  for (const ChoicePart& choice : choices) {
    thinks_ = thinks_ || choice.thinks;
    events += chunk(choice, usage);
  }
  return events;
}

std::string ChatWriter::piece(const ChoicePart& part, const CompletionUsage& usage) {
  thinks_ = thinks_ || !part.text->reasoning.empty();
  std::vector<AnswerPiece> kinds = one_kind_each(*part.text, options_.include_reasoning);
  const bool tells = part.first || part.finish != nullptr || !part.tokens.empty();
  if (kinds.empty() && tells) kinds.emplace_back();
  std::string events;
  ChoicePart one = part;
  for (const AnswerPiece& kind : kinds) {
    const bool ends = &kind == &kinds.back();
    one.text = &kind;
    one.finish = ends ? part.finish : nullptr;
    one.last = ends && part.last;
    events += chunk(one, usage);
    one.first = false;
    one.tokens = {};
  }
  return events;
}

std::string ChatWriter::chunk(const ChoicePart& part, const CompletionUsage& usage) {
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array().begin_object().key("index").integer(part.index);
  json.key("delta");
  if (deepseek()) {
    write_deepseek_delta(json, part);
  } else {
    write_delta(json, part);
  }
  write_tail(json, part);
  json.end_array();
  if (info().token_ids && part.first) {
    json.key("prompt_token_ids");
    write_token_ids(json, part.prompt);
  }
  if (part.first && !part.prompt_scores.empty()) {
    json.key("prompt_logprobs");
    write_prompt_logprobs(json, info(), part.prompt_scores);
  }
  const bool with_usage = deepseek() ? part.last : info().continuous_usage;
  if (with_usage) {
    json.key("usage");
    write_usage(json, usage, !deepseek() || thinks_);
  } else if (deepseek() || info().include_usage) {
    json.key("usage").null();
  }
  json.end_object();
  return sse_event(json.text());
}

std::string ChatWriter::close_stream(const CompletionUsage& usage) {
  std::string events;
  if (info().include_usage && !deepseek()) {
    JsonWriter json;
    open_answer(json);
    json.key("choices").begin_array().end_array().key("usage");
    write_usage(json, usage, true);
    json.end_object();
    events = sse_event(json.text());
  }
  events += kSseDone;
  return events;
}

std::string ChatWriter::whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) {
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array();
  for (const ChoicePart& choice : choices) {
    thinks_ = thinks_ || choice.thinks || !choice.text->reasoning.empty();
    json.begin_object().key("index").integer(choice.index).key("message");
    write_message(json, choice);
    write_tail(json, choice);
  }
  json.end_array();
  if (info().token_ids && !choices.empty()) {
    json.key("prompt_token_ids");
    write_token_ids(json, choices.front().prompt);
  }
  if (!choices.empty() && !choices.front().prompt_scores.empty()) {
    json.key("prompt_logprobs");
    write_prompt_logprobs(json, info(), choices.front().prompt_scores);
  }
  json.key("usage");
  write_usage(json, usage, !deepseek() || thinks_);
  json.key("system_fingerprint").string(info().fingerprint).end_object();
  return json.take();
}

void ChatWriter::open_answer(JsonWriter& json) const {
  json.begin_object();
  json.key("id").string(info().id);
  json.key("object").string(info().stream ? "chat.completion.chunk" : "chat.completion");
  json.key("created").integer(info().created);
  json.key("model").string(info().model);
  if (info().stream) json.key("system_fingerprint").string(info().fingerprint);
}

void ChatWriter::write_message(JsonWriter& json, const ChoicePart& part) const {
  const AnswerPiece& text = *part.text;
  json.begin_object().key("role").string("assistant").key("content");
  if (text.content.empty() && !text.calls.empty() && !deepseek()) {
    json.null();
  } else {
    json.string(text.content);
  }
  const bool thinks = part.thinks || !text.reasoning.empty();
  if (thinks && options_.include_reasoning) {
    json.key("reasoning_content").string(text.reasoning);
    if (!deepseek()) json.key("reasoning").string(text.reasoning);
  }
  if (!text.calls.empty()) write_calls(json, part, true);
  if (!deepseek()) json.key("refusal").null();
  json.end_object();
}

void ChatWriter::write_calls(JsonWriter& json, const ChoicePart& part, bool whole) const {
  json.key("tool_calls").begin_array();
  for (const ToolCallPiece& call : part.text->calls) {
    json.begin_object();
    if (!whole || deepseek()) json.key("index").integer(call.index);
    if (!call.name.empty()) {
      json.key("id").string(call_id(part.index, call.index)).key("type").string("function");
    }
    json.key("function").begin_object();
    if (!call.name.empty()) json.key("name").string(call.name);
    json.key("arguments").string(call.arguments).end_object().end_object();
  }
  json.end_array();
}

void ChatWriter::write_delta(JsonWriter& json, const ChoicePart& part) const {
  const AnswerPiece& text = *part.text;
  json.begin_object();
  if (part.first) json.key("role").string("assistant");
  if (part.first || !text.content.empty()) json.key("content").string(text.content);
  if (part.first) json.key("refusal").null();
  const bool opens = part.first && part.thinks;
  if ((opens || !text.reasoning.empty()) && options_.include_reasoning) {
    json.key("reasoning_content").string(text.reasoning);
    json.key("reasoning").string(text.reasoning);
  }
  if (!text.calls.empty()) write_calls(json, part, false);
  json.end_object();
}

// Members come and go as in DeepSeek's own streams: while it thinks content is null, afterwards
// the thoughts are; a call stands alone.
void ChatWriter::write_deepseek_delta(JsonWriter& json, const ChoicePart& part) const {
  const AnswerPiece& text = *part.text;
  const bool reasoning = options_.include_reasoning && thinks_;
  json.begin_object();
  if (part.first) json.key("role").string("assistant");
  if (!text.calls.empty()) {
    write_calls(json, part, false);
  } else if (!reasoning) {
    json.key("content").string(text.content);
  } else if (part.finish != nullptr) {
    json.key("content").string(text.content).key("reasoning_content").null();
  } else if (part.first) {
    json.key("content").null().key("reasoning_content").string(text.reasoning);
  } else {
    json.key("content");
    write_text_or_null(json, text.content);
    json.key("reasoning_content");
    write_text_or_null(json, text.reasoning);
  }
  json.end_object();
}

void ChatWriter::write_logprobs(JsonWriter& json, std::span<const SampledToken> tokens) const {
  json.key("logprobs");
  if (!info().logprobs || tokens.empty()) {
    json.null();
    return;
  }
  json.begin_object().key("content").begin_array();
  for (const SampledToken& token : tokens) {
    open_chat_token(json, info(), token.token, token.logprob);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : token.top) {
      open_chat_token(json, info(), top.token, top.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
  if (!deepseek()) json.key("refusal").null();
  json.end_object();
}

void ChatWriter::write_tail(JsonWriter& json, const ChoicePart& part) const {
  write_logprobs(json, part.tokens);
  write_finish(json, part.finish, !deepseek());
  if (info().token_ids) {
    json.key("token_ids");
    write_token_ids(json, part.tokens);
  }
  json.end_object();
}

}  // namespace kun
