#include "server/completion_writer.h"

#include <vector>

#include "server/sse.h"

namespace kun {

std::string CompletionWriter::piece(const ChoicePart& part, const CompletionUsage& usage) {
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array();
  write_choice(json, part);
  json.end_array();
  const bool with_usage = deepseek() ? part.last : info().continuous_usage;
  if (with_usage) {
    json.key("usage");
    write_usage(json, usage, false);
  } else if (deepseek() || info().include_usage) {
    json.key("usage").null();
  }
  json.end_object();
  return sse_event(json.text());
}

std::string CompletionWriter::close_stream(const CompletionUsage& usage) {
  std::string events;
  if (info().include_usage && !deepseek()) {
    JsonWriter json;
    open_answer(json);
    json.key("choices").begin_array().end_array().key("usage");
    write_usage(json, usage, false);
    json.end_object();
    events = sse_event(json.text());
  }
  events += kSseDone;
  return events;
}

std::string CompletionWriter::whole(std::span<const ChoicePart> choices,
                                    const CompletionUsage& usage) {
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array();
  for (const ChoicePart& choice : choices) write_choice(json, choice);
  json.end_array().key("usage");
  write_usage(json, usage, false);
  json.end_object();
  return json.take();
}

void CompletionWriter::open_answer(JsonWriter& json) const {
  json.begin_object();
  json.key("id").string(info().id).key("object").string("text_completion");
  json.key("created").integer(info().created).key("model").string(info().model);
  json.key("system_fingerprint").string(info().fingerprint);
}

void CompletionWriter::write_choice(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().key("text").string(part.text->content);
  json.key("index").integer(part.index);
  write_logprobs(json, part);
  write_finish(json, part.finish, !deepseek());
  if (info().token_ids) {
    json.key("token_ids");
    write_token_ids(json, part.tokens);
    if (part.first) {
      json.key("prompt_token_ids");
      write_token_ids(json, part.prompt);
    }
  }
  if (options_.prompt_logprobs && part.first) {
    json.key("prompt_logprobs");
    write_prompt_logprobs(json, info(), part.prompt_scores);
  }
  json.end_object();
}

void CompletionWriter::write_logprobs(JsonWriter& json, const ChoicePart& part) const {
  std::vector<const SampledToken*> tokens;
  const bool with_prompt = options_.echo && part.first;
  if (with_prompt) {
    for (const SampledToken& token : part.prompt_scores) tokens.push_back(&token);
  }
  const std::size_t prompt_count = tokens.size();
  for (const SampledToken& token : part.tokens) tokens.push_back(&token);
  json.key("logprobs");
  if (!info().logprobs || tokens.empty()) {
    json.null();
    return;
  }
  const Tokenizer& tokenizer = *info().tokenizer;
  json.begin_object().key("text_offset").begin_array();
  std::size_t offset = with_prompt ? 0 : part.text_offset;
  for (const SampledToken* token : tokens) {
    json.integer(static_cast<std::int64_t>(offset));
    offset += shown_length(tokenizer, token->token);
  }
  json.end_array().key("token_logprobs").begin_array();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0 && prompt_count > 0) {
      json.null();  // nothing predicts the first token
    } else {
      json.number(wire_logprob(tokens[i]->logprob));
    }
  }
  json.end_array().key("tokens").begin_array();
  for (const SampledToken* token : tokens) json.string(shown_token(info(), token->token));
  json.end_array().key("top_logprobs").begin_array();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0 && prompt_count > 0) {
      json.null();
      continue;
    }
    const SampledToken& token = *tokens[i];
    json.begin_object();
    // The chosen token is always there, once.
    json.key(shown_token(info(), token.token)).number(wire_logprob(token.logprob));
    for (const TokenLogprob& top : token.top) {
      if (top.token == token.token) continue;
      json.key(shown_token(info(), top.token)).number(wire_logprob(top.logprob));
    }
    json.end_object();
  }
  json.end_array().end_object();
}

}  // namespace kun
