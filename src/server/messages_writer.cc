#include "server/messages_writer.h"

#include "server/sse.h"
#include "text/json_cursor.h"

namespace kun {
namespace {

// Anthropic counts what came from the cache apart.
void write_messages_usage(JsonWriter& json, const CompletionUsage& usage) {
  json.key("usage").begin_object();
  json.key("input_tokens").integer(usage.prompt_count - usage.cached_count);
  json.key("cache_creation_input_tokens").integer(0);
  json.key("cache_read_input_tokens").integer(usage.cached_count);
  json.key("output_tokens").integer(usage.output_count).end_object();
}

void write_stop(JsonWriter& json, const ChoiceFinish* finish) {
  json.key("stop_reason");
  if (finish == nullptr) {
    json.null().key("stop_sequence").null();
    return;
  }
  if (finish->stop_string != nullptr) {
    json.string("stop_sequence").key("stop_sequence").string(*finish->stop_string);
    return;
  }
  const bool calls = finish->reason == "tool_calls";
  json.string(finish->reason == "length" || finish->reason == "abort" ? "max_tokens"
              : calls                                                 ? "tool_use"
                                                                      : "end_turn");
  json.key("stop_sequence").null();
}

void open_message(JsonWriter& json, const AnswerInfo& info) {
  json.begin_object().key("id").string(info.id).key("type").string("message");
  json.key("role").string("assistant").key("model").string(info.model);
}

}  // namespace

std::string MessagesWriter::open_stream(std::span<const ChoicePart>, const CompletionUsage& usage) {
  JsonWriter json;
  json.begin_object().key("type").string("message_start").key("message");
  open_message(json, info());
  json.key("content").begin_array().end_array();
  write_stop(json, nullptr);
  write_messages_usage(json, usage);
  json.end_object().end_object();
  return sse_event("message_start", json.text());
}

std::string MessagesWriter::delta(std::string_view type, std::string_view name,
                                  std::string_view text) const {
  JsonWriter json;
  json.begin_object().key("type").string("content_block_delta").key("index").integer(block_index_);
  json.key("delta").begin_object().key("type").string(type).key(name).string(text);
  json.end_object().end_object();
  return sse_event("content_block_delta", json.text());
}

std::string MessagesWriter::close_block() {
  if (block_ == Block::kNone) return {};
  std::string events;
  if (block_ == Block::kThinking) events = delta("signature_delta", "signature", "");
  block_ = Block::kNone;
  JsonWriter json;
  json.begin_object().key("type").string("content_block_stop");
  json.key("index").integer(block_index_).end_object();
  return events + sse_event("content_block_stop", json.text());
}

std::string MessagesWriter::open_block(Block block, const ToolCallPiece* call) {
  std::string events = close_block();
  block_ = block;
  ++block_index_;
  JsonWriter json;
  json.begin_object().key("type").string("content_block_start").key("index").integer(block_index_);
  json.key("content_block").begin_object();
  if (block == Block::kThinking) {
    json.key("type").string("thinking").key("thinking").string("").key("signature").string("");
  } else if (block == Block::kText) {
    json.key("type").string("text").key("text").string("");
  } else {
    call_index_ = call->index;
    json.key("type").string("tool_use").key("id").string(call_id(0, call->index));
    json.key("name").string(call->name).key("input").begin_object().end_object();
  }
  json.end_object().end_object();
  return events + sse_event("content_block_start", json.text());
}

std::string MessagesWriter::piece(const ChoicePart& part, const CompletionUsage& usage) {
  const AnswerPiece& text = *part.text;
  std::string events;
  std::span<const ToolCallPiece> calls = text.calls;
  if (!calls.empty() && calls.front().name.empty()) {
    // The rest of the call under way comes before whatever follows it.
    const ToolCallPiece& rest = calls.front();
    const bool open = block_ == Block::kCall && call_index_ == rest.index;
    if (open && !rest.arguments.empty()) {
      events += delta("input_json_delta", "partial_json", rest.arguments);
    }
    calls = calls.subspan(1);
  }
  if (!text.reasoning.empty()) {
    if (block_ != Block::kThinking) events += open_block(Block::kThinking, nullptr);
    events += delta("thinking_delta", "thinking", text.reasoning);
  }
  if (!text.content.empty()) {
    if (block_ != Block::kText) events += open_block(Block::kText, nullptr);
    events += delta("text_delta", "text", text.content);
  }
  for (const ToolCallPiece& call : calls) {
    if (!call.name.empty()) events += open_block(Block::kCall, &call);
    if (call.arguments.empty() || block_ != Block::kCall || call_index_ != call.index) continue;
    events += delta("input_json_delta", "partial_json", call.arguments);
  }
  if (part.finish == nullptr) return events;
  events += close_block();
  JsonWriter json;
  json.begin_object().key("type").string("message_delta").key("delta").begin_object();
  write_stop(json, part.finish);
  json.end_object();
  write_messages_usage(json, usage);
  json.end_object();
  return events + sse_event("message_delta", json.text());
}

std::string MessagesWriter::close_stream(const CompletionUsage&) {
  return sse_event("message_stop", R"({"type":"message_stop"})");
}

std::string MessagesWriter::stream_error(const ApiError& error) {
  return sse_event("error", error_json(error, Dialect::kAnthropic));
}

std::string MessagesWriter::whole(std::span<const ChoicePart> choices,
                                  const CompletionUsage& usage) {
  const ChoicePart& choice = choices.front();
  const AnswerPiece& text = *choice.text;
  JsonWriter json;
  open_message(json, info());
  json.key("content").begin_array();
  if (!text.reasoning.empty()) {
    json.begin_object().key("type").string("thinking").key("thinking").string(text.reasoning);
    json.key("signature").string("").end_object();
  }
  if (!text.content.empty()) {
    json.begin_object().key("type").string("text").key("text").string(text.content).end_object();
  }
  for (const ToolCallPiece& call : text.calls) {
    json.begin_object().key("type").string("tool_use");
    json.key("id").string(call_id(0, call.index)).key("name").string(call.name);
    // Arguments that broke off are no JSON, and JSON is what `input` must be.
    json.key("input").raw(is_json_value(call.arguments) ? call.arguments : "{}").end_object();
  }
  json.end_array();
  write_stop(json, choice.finish);
  write_messages_usage(json, usage);
  json.end_object();
  return json.take();
}

}  // namespace kun
