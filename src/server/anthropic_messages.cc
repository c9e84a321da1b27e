// /v1/messages: translates a request into a chat, whose answer MessagesWriter writes in blocks.
#include <fmt/format.h>

#include <limits>

#include "server/anthropic_api.h"
#include "server/chat_generation.h"
#include "server/messages_writer.h"
#include "server/request_deadlines.h"
#include "server/translated_request.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

std::optional<std::string_view> text_of(JsonView object, std::string_view name) {
  const auto value = object.find(name);
  if (!value || !value->is(Kind::kString)) return std::nullopt;
  return value->string();
}

// A string, or an array of text blocks; their texts in one. Nothing when it is neither.
std::optional<std::string> plain_text(JsonView content) {
  if (content.is(Kind::kString)) return std::string(content.string());
  if (!content.is(Kind::kArray)) return std::nullopt;
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const JsonView block = content.at(i);
    if (!block.is(Kind::kObject) || text_of(block, "type") != "text") return std::nullopt;
    const auto piece = text_of(block, "text");
    if (!piece) return std::nullopt;
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

// One message of Anthropic's becomes one of OpenAI's, or several: results of tools are messages of
// their own there.
class MessageTranslation {
 public:
  MessageTranslation(FieldReader& reader, JsonWriter& json, std::size_t index)
      : reader_(reader), json_(json), index_(index) {}

  void translate(JsonView message) {
    if (!message.is(Kind::kObject)) return fail(" must be an object");
    const auto role = text_of(message, "role");
    if (role != "user" && role != "assistant") return fail(".role must be user or assistant");
    const auto content = message.find("content");
    if (!content) return fail(".content is missing");
    if (content->is(Kind::kString)) {
      text_ = content->string();
      has_text_ = true;
    } else if (!content->is(Kind::kArray)) {
      return fail(".content must be a string or an array of blocks");
    }
    for (std::size_t i = 0; content->is(Kind::kArray) && i < content->size(); ++i) {
      if (!block(content->at(i), i, *role == "user")) return;
    }
    finish(*role);
  }

 private:
  void fail(std::string_view what) {
    reader_.fail("messages", fmt::format("messages[{}]{}", index_, what));
  }

  bool block(JsonView block, std::size_t i, bool user) {
    const auto type = block.is(Kind::kObject) ? text_of(block, "type") : std::nullopt;
    const auto refuse = [&](std::string_view what) {
      fail(fmt::format(".content[{}]{}", i, what));
      return false;
    };
    if (type == "text") {
      const auto text = text_of(block, "text");
      if (!text) return refuse(" has no text");
      if (has_text_) text_ += '\n';
      text_ += *text;
      has_text_ = true;
      return true;
    }
    if (type == "tool_result" && user) return result(block) || refuse(" is no result of a tool");
    if (type == "tool_use" && !user) return call(block) || refuse(" is no call of a tool");
    if (type == "thinking" && !user) {
      thinking_ += text_of(block, "thinking").value_or("");
      return true;
    }
    if (type == "redacted_thinking" && !user) return true;  // nothing in it that could be read
    return refuse(
        " is of a type that this model does not take; it takes text, tool_use, "
        "tool_result and thinking");
  }

  bool result(JsonView block) {
    const auto id = text_of(block, "tool_use_id");
    const auto content = block.find("content");
    const std::optional<std::string> text =
        content ? plain_text(*content) : std::optional<std::string>("");
    const auto is_error = block.find("is_error");
    if (is_error && !is_error->is(Kind::kBool) && !is_error->is(Kind::kNull)) return false;
    if (!id || !text) return false;
    json_.begin_object().key("role").string("tool").key("tool_call_id").string(*id);
    // Templates have no word for a tool that failed; the model reads one.
    const bool failed = is_error && is_error->is(Kind::kBool) && is_error->boolean();
    json_.key("content").string((failed ? "Error: " : "") + *text).end_object();
    has_result_ = true;
    return true;
  }

  bool call(JsonView block) {
    const auto id = text_of(block, "id");
    const auto name = text_of(block, "name");
    const auto input = block.find("input");
    if (!id || !name || !input || !input->is(Kind::kObject)) return false;
    std::string arguments;
    input->print(arguments);
    calls_.begin_object().key("id").string(*id).key("type").string("function");
    calls_.key("function").begin_object().key("name").string(*name);
    calls_.key("arguments").string(arguments).end_object().end_object();
    has_calls_ = true;
    return true;
  }

  void finish(std::string_view role) {
    if (role == "user" && has_result_ && !has_text_) return;
    json_.begin_object().key("role").string(role).key("content").string(text_);
    if (!thinking_.empty()) json_.key("reasoning_content").string(thinking_);
    if (has_calls_) json_.key("tool_calls").raw("[" + calls_.take() + "]");
    json_.end_object();
  }

  FieldReader& reader_;
  JsonWriter& json_;
  const std::size_t index_;
  std::string text_;
  std::string thinking_;
  JsonWriter calls_;
  bool has_text_ = false;
  bool has_result_ = false;
  bool has_calls_ = false;
};

void translate_conversation(FieldReader& reader, const ServerLimits& limits, JsonWriter& json) {
  const auto system = reader.any("system");
  const auto messages = reader.array("messages", static_cast<std::size_t>(limits.messages_max));
  if (!messages) return reader.fail("messages", "messages is missing");
  json.key("messages").begin_array();
  if (system) {
    const auto text = plain_text(*system);
    if (!text) return reader.fail("system", "system must be a string or an array of text blocks");
    json.begin_object().key("role").string("system").key("content").string(*text).end_object();
  }
  for (std::size_t i = 0; i < messages->size() && !reader.failed(); ++i) {
    MessageTranslation(reader, json, i).translate(messages->at(i));
  }
  json.end_array();
}

void translate_tools(FieldReader& reader, const ServerLimits& limits, JsonWriter& json) {
  const auto tools = reader.array("tools", static_cast<std::size_t>(limits.tools_max));
  if (!tools || tools->size() == 0) return;
  json.key("tools").begin_array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const JsonView tool = tools->at(i);
    const auto type = tool.is(Kind::kObject) ? text_of(tool, "type") : std::nullopt;
    if (!tool.is(Kind::kObject) || (type && *type != "custom")) {
      return reader.fail("tools", fmt::format("tools[{}] must be a tool of the client's own", i));
    }
    json.begin_object().key("type").string("function").key("function").begin_object();
    copy_member(json, tool, "name");
    copy_member(json, tool, "description");
    copy_member(json, tool, "input_schema", "parameters");
    copy_member(json, tool, "strict");
    json.end_object().end_object();
  }
  json.end_array();
}

void translate_tool_choice(FieldReader& reader, JsonWriter& json) {
  const auto choice = reader.object("tool_choice");
  if (!choice) return;
  const auto type = text_of(*choice, "type");
  json.key("tool_choice");
  if (type == "auto" || type == "none") {
    json.string(*type);
  } else if (type == "any") {
    json.string("required");
  } else if (type == "tool") {
    json.begin_object().key("type").string("function").key("function").begin_object();
    json.key("name").string(text_of(*choice, "name").value_or("")).end_object().end_object();
  } else {
    reader.fail("tool_choice", "tool_choice.type must be auto, any, tool or none");
    json.null();
  }
  const auto alone = choice->find("disable_parallel_tool_use");
  if (alone && alone->is(Kind::kBool)) {
    json.key("parallel_tool_calls").boolean(!alone->boolean());
  }
}

// How hard to think, and the schema of the answer; `output_format` is the schema's older place.
void translate_output(FieldReader& reader, JsonWriter& json) {
  std::string_view name = "output_format";
  std::optional<JsonView> format = reader.object(name);
  if (const auto config = reader.object("output_config")) {
    FieldReader inner(*config, "output_config.");
    const auto effort = inner.word("effort", {"low", "medium", "high", "xhigh", "max"});
    if (effort) json.key("reasoning_effort").string(*effort);
    if (const auto given = inner.object("format")) {
      name = "output_config.format";
      format = given;
    }
    if (inner.error()) return reader.fail("output_config", inner.error()->message);
  }
  if (!format) return;
  const auto schema = format->find("schema");
  if (text_of(*format, "type") != "json_schema" || !schema || !schema->is(Kind::kObject)) {
    return reader.fail(
        name.substr(0, name.find('.')),
        fmt::format("{} must be {{\"type\": \"json_schema\", \"schema\": {{...}}}}", name));
  }
  json.key("response_format").begin_object().key("type").string("json_schema");
  json.key("json_schema").begin_object().key("name").string("output");
  copy_member(json, *format, "schema");
  json.end_object().end_object();
}

void copy_settings(FieldReader& reader, JsonView request, JsonWriter& json) {
  static_cast<void>(reader.boolean("stream"));
  static_cast<void>(reader.number("temperature", 0.0, 1.0));
  static_cast<void>(reader.number_above("top_p", 0.0, 1.0));
  static_cast<void>(reader.integer("top_k", 0, std::numeric_limits<int>::max()));
  static_cast<void>(reader.array("stop_sequences", 16));
  static_cast<void>(reader.object("thinking"));
  for (const std::string_view name : {"model", "stream", "temperature", "top_p", "top_k"}) {
    copy_member(json, request, name);
  }
  copy_member(json, request, "stop_sequences", "stop");
  copy_member(json, request, "thinking");
  copy_deadlines(reader, request, json);
  translate_output(reader, json);
  reader.ignore({"model", "metadata", "service_tier", "cache_control", "inference_geo", "speed"});
  reader.refuse({"container", "mcp_servers", "context_management"});
}

}  // namespace

std::string translate_messages(FieldReader& reader, JsonView request, const ServerLimits& limits,
                               bool needs_max_tokens) {
  JsonWriter json;
  json.begin_object();
  const auto max_tokens = reader.integer("max_tokens", 1, std::numeric_limits<int>::max());
  if (!max_tokens && needs_max_tokens) reader.fail("max_tokens", "max_tokens is missing");
  if (max_tokens) json.key("max_tokens").integer(*max_tokens);
  copy_settings(reader, request, json);
  translate_tools(reader, limits, json);
  translate_tool_choice(reader, json);
  translate_conversation(reader, limits, json);
  json.end_object();
  return json.take();
}

void handle_messages(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  FieldReader reader(opened->json.root());
  const std::string chat =
      translate_messages(reader, opened->json.root(), context.options.limits, true);
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  auto translated = read_translated_chat(context, exchange, *opened->model, chat);
  if (!translated) return;
  ChatGeneration generation;
  generation.model = opened->model;
  generation.writer = std::make_unique<MessagesWriter>();
  generation.fields = std::move(translated->request.fields);
  generation.chat = std::move(translated->request.chat);
  start_chat(context, exchange, std::move(generation));
}

void handle_count_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  FieldReader reader(opened->json.root());
  const std::string chat =
      translate_messages(reader, opened->json.root(), context.options.limits, false);
  if (reader.error()) return respond_error(exchange, *reader.error());
  auto translated = read_translated_chat(context, exchange, *opened->model, chat);
  if (!translated) return;
  ReasoningStart start = ReasoningStart::kUndecided;
  const Result<std::vector<Token>> tokens =
      chat_tokens(*opened->model, translated->request.chat, start);
  if (!tokens) return respond_error(exchange, error_from(tokens.error()));
  JsonWriter json;
  json.begin_object().key("input_tokens").integer(static_cast<std::int64_t>(tokens->size()));
  json.end_object();
  HttpResponse response;
  response.body = json.take();
  exchange->respond(std::move(response));
}

}  // namespace kun
