#include "server/responses_writer.h"

#include <fmt/format.h>

#include "server/json_writer.h"
#include "server/sse.h"

namespace kun {
namespace {

// Inside of an object: what `members` holds as an object of its own.
std::string_view inner(const std::string& object) {
  return std::string_view(object).substr(1, object.size() - 2);
}

void write_responses_usage(JsonWriter& json, const CompletionUsage* usage) {
  json.key("usage");
  if (usage == nullptr) {
    json.null();
    return;
  }
  json.begin_object().key("input_tokens").integer(usage->prompt_count);
  json.key("input_tokens_details").begin_object();
  json.key("cached_tokens").integer(usage->cached_count);
  json.key("cache_write_tokens").integer(0).end_object();  // clients insist; nobody is charged
  json.key("output_tokens").integer(usage->output_count);
  json.key("output_tokens_details").begin_object();
  json.key("reasoning_tokens").integer(usage->reasoning_count).end_object();
  json.key("total_tokens").integer(usage->prompt_count + usage->output_count).end_object();
}

}  // namespace

// Not the request's id: whoever chooses that could choose another answer's.
std::string ResponsesWriter::id() const {
  return fmt::format("resp_{:016x}{}", info().salt, call_id(0, -1).substr(8));
}

std::string ResponsesWriter::item_id(Item item, int index) const {
  const std::string_view prefix = item == Item::kReasoning ? "rs"
                                  : item == Item::kMessage ? "msg"
                                                           : "fc";
  return fmt::format("{}_{:016x}{:04x}", prefix, info().salt, index);
}

std::string ResponsesWriter::event(std::string_view type, const JsonWriter& members) {
  JsonWriter json;
  json.begin_object().key("type").string(type).key("sequence_number").integer(sequence_++);
  std::string text = json.take();
  if (members.text().size() > 2) {
    text += ',';
    text += inner(members.text());
  }
  return sse_event(type, text + "}");
}

std::string ResponsesWriter::response(std::string_view status, const CompletionUsage* usage) const {
  JsonWriter json;
  json.begin_object().key("id").string(id()).key("object").string("response");
  json.key("created_at").integer(info().created).key("status").string(status);
  json.key("background").boolean(false).key("error").null();
  json.key("incomplete_details");
  if (status == "incomplete") {
    json.begin_object().key("reason").string("max_output_tokens").end_object();
  } else {
    json.null();
  }
  json.key("model").string(info().model);
  json.key("output").raw("[" + output_ + "]");
  write_responses_usage(json, usage);
  json.end_object();
  std::string text = json.take();
  text.pop_back();
  return text + "," + options_.echoed + "}";
}

std::string ResponsesWriter::response_event(std::string_view type, std::string_view status,
                                            const CompletionUsage* usage) {
  JsonWriter json;
  json.begin_object().key("response").raw(response(status, usage)).end_object();
  return event(type, json);
}

std::string ResponsesWriter::open_stream(std::span<const ChoicePart>, const CompletionUsage&) {
  // One after the other: events are numbered.
  const std::string created = response_event("response.created", "in_progress", nullptr);
  return created + response_event("response.in_progress", "in_progress", nullptr);
}

void ResponsesWriter::write_part(JsonWriter& json, std::string_view text) const {
  json.begin_object();
  if (item_ == Item::kReasoning) {
    json.key("type").string("reasoning_text").key("text").string(text).end_object();
    return;
  }
  json.key("type").string("output_text").key("text").string(text);
  json.key("annotations").begin_array().end_array();
  json.key("logprobs").begin_array().end_array().end_object();
}

void ResponsesWriter::write_item(JsonWriter& json, bool ended, bool complete) const {
  json.begin_object().key("id").string(item_id(item_, item_index_));
  const std::string_view status = !ended ? "in_progress" : complete ? "completed" : "incomplete";
  if (item_ == Item::kCall) {
    json.key("type").string("function_call").key("status").string(status);
    json.key("arguments").string(text_).key("call_id").string(call_id(0, call_.index));
    json.key("name").string(call_.name).end_object();
    return;
  }
  const bool message = item_ == Item::kMessage;
  json.key("type").string(message ? "message" : "reasoning").key("status").string(status);
  if (message) json.key("role").string("assistant");
  if (!message) json.key("summary").begin_array().end_array();
  json.key("content").begin_array();
  if (ended) write_part(json, text_);
  json.end_array().end_object();
}

std::string ResponsesWriter::open_item(Item item, const ToolCallPiece* call) {
  std::string events = close_item(true);
  item_ = item;
  ++item_index_;
  text_.clear();
  if (call != nullptr) call_ = {call->index, call->name, {}};
  JsonWriter added;
  added.begin_object().key("output_index").integer(item_index_).key("item");
  write_item(added, false, false);
  added.end_object();
  events += event("response.output_item.added", added);
  if (item == Item::kCall) return events;
  JsonWriter part;
  part.begin_object().key("item_id").string(item_id(item, item_index_));
  part.key("output_index").integer(item_index_).key("content_index").integer(0).key("part");
  write_part(part, "");
  part.end_object();
  return events + event("response.content_part.added", part);
}

std::string ResponsesWriter::add_text(std::string_view text) {
  text_ += text;
  JsonWriter json;
  json.begin_object().key("item_id").string(item_id(item_, item_index_));
  json.key("output_index").integer(item_index_);
  if (item_ != Item::kCall) json.key("content_index").integer(0);
  json.key("delta").string(text);
  if (item_ == Item::kMessage) json.key("logprobs").begin_array().end_array();
  json.end_object();
  if (item_ == Item::kCall) return event("response.function_call_arguments.delta", json);
  return event(
      item_ == Item::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta",
      json);
}

std::string ResponsesWriter::close_item(bool complete) {
  if (item_ == Item::kNone) return {};
  std::string events;
  JsonWriter done;
  done.begin_object().key("item_id").string(item_id(item_, item_index_));
  done.key("output_index").integer(item_index_);
  if (item_ == Item::kCall) {
    done.key("name").string(call_.name).key("arguments").string(text_).end_object();
    events += event("response.function_call_arguments.done", done);
  } else {
    done.key("content_index").integer(0).key("text").string(text_);
    if (item_ == Item::kMessage) done.key("logprobs").begin_array().end_array();
    done.end_object();
    events += event(
        item_ == Item::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
        done);
    JsonWriter part;
    part.begin_object().key("item_id").string(item_id(item_, item_index_));
    part.key("output_index").integer(item_index_).key("content_index").integer(0).key("part");
    write_part(part, text_);
    part.end_object();
    events += event("response.content_part.done", part);
  }
  JsonWriter item;
  write_item(item, true, complete);
  if (!output_.empty()) output_ += ',';
  output_ += item.text();
  JsonWriter ended;
  ended.begin_object().key("output_index").integer(item_index_).key("item").raw(item.text());
  ended.end_object();
  events += event("response.output_item.done", ended);
  if (item_ == Item::kMessage) said_ += text_;
  if (item_ == Item::kReasoning) thought_ += text_;
  if (item_ == Item::kCall) {
    JsonWriter call;
    call.begin_object().key("id").string(call_id(0, call_.index)).key("type").string("function");
    call.key("function").begin_object().key("name").string(call_.name);
    call.key("arguments").string(text_).end_object().end_object();
    if (!calls_.empty()) calls_ += ',';
    calls_ += call.text();
  }
  item_ = Item::kNone;
  return events;
}

std::string ResponsesWriter::piece(const ChoicePart& part, const CompletionUsage&) {
  const AnswerPiece& text = *part.text;
  std::string events;
  std::span<const ToolCallPiece> calls = text.calls;
  if (!calls.empty() && calls.front().name.empty()) {
    // The rest of the call under way comes before whatever follows it.
    const ToolCallPiece& rest = calls.front();
    const bool open = item_ == Item::kCall && call_.index == rest.index;
    if (open && !rest.arguments.empty()) events += add_text(rest.arguments);
    calls = calls.subspan(1);
  }
  if (!text.reasoning.empty()) {
    if (item_ != Item::kReasoning) events += open_item(Item::kReasoning, nullptr);
    events += add_text(text.reasoning);
  }
  if (!text.content.empty()) {
    if (item_ != Item::kMessage) events += open_item(Item::kMessage, nullptr);
    events += add_text(text.content);
  }
  for (const ToolCallPiece& call : calls) {
    if (!call.name.empty()) events += open_item(Item::kCall, &call);
    if (item_ != Item::kCall || call_.index != call.index || call.arguments.empty()) continue;
    events += add_text(call.arguments);
  }
  if (part.finish == nullptr) return events;
  cut_ = part.finish->reason == "length" || part.finish->reason == "abort";
  if (item_index_ < 0) events += open_item(Item::kMessage, nullptr);  // it said nothing
  return events + close_item(!cut_);
}

std::string ResponsesWriter::close_stream(const CompletionUsage& usage) {
  const std::string_view status = cut_ ? "incomplete" : "completed";
  keep(response(status, &usage));
  return response_event(cut_ ? "response.incomplete" : "response.completed", status, &usage);
}

std::string ResponsesWriter::stream_error(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("code").string(std::to_string(error.status));
  json.key("message").string(error.message).key("param").null().end_object();
  return event("error", json);
}

std::string ResponsesWriter::whole(std::span<const ChoicePart> choices,
                                   const CompletionUsage& usage) {
  piece(choices.front(), usage);  // fills in the output; its events are nobody's
  std::string answer = response(cut_ ? "incomplete" : "completed", &usage);
  keep(answer);
  return answer;
}

void ResponsesWriter::keep(const std::string& response) const {
  if (options_.store == nullptr) return;
  JsonWriter message;
  message.begin_object().key("role").string("assistant").key("content").string(said_);
  if (!thought_.empty()) message.key("reasoning_content").string(thought_);
  if (!calls_.empty()) message.key("tool_calls").raw("[" + calls_ + "]");
  message.end_object();
  std::string messages = options_.messages;
  messages.pop_back();
  messages += (messages.size() > 1 ? "," : "") + message.text() + "]";
  options_.store->add({id(), options_.owner, response, std::move(messages)});
}

}  // namespace kun
