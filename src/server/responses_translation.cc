// A Responses request as a chat request: input items become messages, function tools lose a level,
// and the names of settings change.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "server/request_deadlines.h"
#include "server/responses_api.h"
#include "server/translated_request.h"

namespace kun {
namespace {

// Of what an answer repeats of its request; it is stored, too.
constexpr std::size_t kEchoBytesMax = std::size_t{1} << 20U;

using Kind = JsonView::Kind;

std::optional<std::string_view> text_of(JsonView object, std::string_view name) {
  const auto value = object.find(name);
  if (!value || !value->is(Kind::kString)) return std::nullopt;
  return value->string();
}

// Input items in order. What a model did in one turn, its thoughts, words and calls, are items of
// their own there and one message here.
class InputTranslation {
 public:
  InputTranslation(FieldReader& reader, JsonWriter& json) : reader_(reader), json_(json) {}

  void translate(JsonView items) {
    for (std::size_t i = 0; i < items.size() && !reader_.failed(); ++i) {
      index_ = i;
      if (!items.at(i).is(Kind::kObject)) return fail(" must be an object");
      item(items.at(i));
    }
    end_turn();
  }

 private:
  void fail(std::string_view what) {
    reader_.fail("input", fmt::format("input[{}]{}", index_, what));
  }

  void item(JsonView item) {
    const auto type = text_of(item, "type").value_or("message");
    if (type == "message") return message(item);
    if (type == "function_call") return call(item);
    if (type == "function_call_output") return output(item);
    if (type == "reasoning") return reasoning(item);
    fail(".type must be message, function_call, function_call_output or reasoning");
  }

  void message(JsonView item) {
    const auto role = text_of(item, "role");
    const auto content = item.find("content");
    if (!role || !content) return fail(" must have a role and a content");
    std::string text;
    content->print(text);
    if (*role != "assistant") {
      end_turn();
      json_.begin_object().key("role").string(*role).key("content").raw(text).end_object();
      return;
    }
    if (!content_.empty()) end_turn();
    content_ = text;
  }

  void call(JsonView item) {
    const auto id = text_of(item, "call_id");
    const auto name = text_of(item, "name");
    const auto arguments = text_of(item, "arguments");
    if (!id || !name || !arguments) return fail(" must have a call_id, a name and arguments");
    calls_.begin_object().key("id").string(*id).key("type").string("function");
    calls_.key("function").begin_object().key("name").string(*name);
    calls_.key("arguments").string(*arguments).end_object().end_object();
  }

  void output(JsonView item) {
    const auto id = text_of(item, "call_id");
    const auto content = item.find("output");
    if (!id || !content) return fail(" must have a call_id and an output");
    end_turn();
    std::string text;
    content->print(text);
    json_.begin_object().key("role").string("tool").key("tool_call_id").string(*id);
    json_.key("content").raw(text).end_object();
  }

  void reasoning(JsonView item) {
    const auto content = item.find("content");
    if (!content || !content->is(Kind::kArray)) return;  // a summary is no thought
    for (std::size_t i = 0; i < content->size(); ++i) {
      const JsonView part = content->at(i);
      if (part.is(Kind::kObject)) thought_ += text_of(part, "text").value_or("");
    }
  }

  void end_turn() {
    if (content_.empty() && calls_.text().empty() && thought_.empty()) return;
    json_.begin_object().key("role").string("assistant").key("content");
    json_.raw(content_.empty() ? "\"\"" : content_);
    if (!thought_.empty()) json_.key("reasoning_content").string(thought_);
    if (!calls_.text().empty()) json_.key("tool_calls").raw("[" + calls_.text() + "]");
    json_.end_object();
    content_.clear();
    thought_.clear();
    calls_ = JsonWriter();
  }

  FieldReader& reader_;
  JsonWriter& json_;
  std::size_t index_ = 0;
  std::string content_;  // JSON
  std::string thought_;
  JsonWriter calls_;
};

std::string translate_input(FieldReader& reader, const std::string& earlier) {
  const auto input = reader.any("input");
  JsonWriter json;
  json.begin_array();
  if (!earlier.empty()) json.raw(earlier);
  if (!input) {
    reader.fail("input", "input is missing");
  } else if (input->is(Kind::kString)) {
    json.begin_object().key("role").string("user").key("content").string(input->string());
    json.end_object();
  } else if (!input->is(Kind::kArray)) {
    reader.fail("input", "input must be a string or an array of items");
  } else {
    InputTranslation(reader, json).translate(*input);
  }
  json.end_array();
  return json.take();
}

void translate_tools(FieldReader& reader, const ServerLimits& limits, JsonWriter& json) {
  const auto tools = reader.array("tools", static_cast<std::size_t>(limits.tools_max));
  if (tools && tools->size() > 0) {
    json.key("tools").begin_array();
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const JsonView tool = tools->at(i);
      if (!tool.is(Kind::kObject) || text_of(tool, "type") != "function") {
        reader.fail("tools", fmt::format("tools[{}].type must be function", i));
        return;
      }
      json.begin_object().key("type").string("function").key("function").begin_object();
      for (const std::string_view name : {"name", "description", "parameters", "strict"}) {
        copy_member(json, tool, name);
      }
      json.end_object().end_object();
    }
    json.end_array();
  }
  const auto choice = reader.any("tool_choice");
  if (!choice) return;
  json.key("tool_choice");
  if (choice->is(Kind::kObject) && text_of(*choice, "type") == "function") {
    json.begin_object().key("type").string("function").key("function").begin_object();
    json.key("name").string(text_of(*choice, "name").value_or("")).end_object().end_object();
    return;
  }
  std::string text;
  choice->print(text);
  json.raw(text);
}

void translate_text(FieldReader& reader, JsonWriter& json) {
  const auto text = reader.object("text");
  if (!text) return;
  // How wordy to be is a habit of OpenAI's own models, which no other has learnt.
  FieldReader inner(*text, "text.");
  static_cast<void>(inner.word("verbosity", {"low", "medium", "high"}));
  if (inner.error()) return reader.fail("text", inner.error()->message);
  const auto format = text->find("format");
  if (!format || format->is(Kind::kNull)) return;
  if (!format->is(Kind::kObject)) return reader.fail("text", "text.format must be an object");
  const auto type = text_of(*format, "type");
  if (type == "text") return;
  json.key("response_format").begin_object();
  copy_member(json, *format, "type");
  if (type == "json_schema") {
    json.key("json_schema").begin_object();
    for (const std::string_view name : {"name", "description", "schema", "strict"}) {
      copy_member(json, *format, name);
    }
    json.end_object();
  }
  json.end_object();
}

// What the answer shall hold beside: of tools that a request cannot have here nothing could be
// shown, and thoughts are not encrypted, so that they need not be carried in another form.
void read_include(FieldReader& reader) {
  constexpr std::array<std::string_view, 8> kNothingToShow = {
      "reasoning.encrypted_content",   "file_search_call.results",
      "web_search_call.results",       "web_search_call.action.sources",
      "code_interpreter_call.outputs", "computer_call_output.output.image_url",
      "message.input_image.image_url", "mcp_call.output"};
  const auto include = reader.array("include", 32);
  for (std::size_t i = 0; include && i < include->size(); ++i) {
    const JsonView name = include->at(i);
    const std::string_view word = name.is(Kind::kString) ? name.string() : std::string_view();
    if (std::ranges::find(kNothingToShow, word) != kNothingToShow.end()) continue;
    reader.fail("include", word == "message.output_text.logprobs"
                               ? "include: logprobs are to be had at /v1/chat/completions"
                               : fmt::format("include[{}] is not known", i));
  }
}

void copy_settings(FieldReader& reader, JsonView request, JsonWriter& json) {
  constexpr std::array<std::string_view, 8> kSame = {
      "model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "seed", "top_k"};
  for (const std::string_view name : kSame) copy_member(json, request, name);
  copy_deadlines(reader, request, json);
  reader.ignore({"model", "user"});
  static_cast<void>(reader.boolean("stream"));
  static_cast<void>(reader.boolean("parallel_tool_calls"));
  static_cast<void>(reader.number("temperature", 0.0, 2.0));
  static_cast<void>(reader.number_above("top_p", 0.0, 1.0));
  static_cast<void>(reader.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()));
  static_cast<void>(reader.integer("top_k", -1, std::numeric_limits<int>::max()));
  if (const auto count = reader.integer("max_output_tokens", 1, std::numeric_limits<int>::max())) {
    json.key("max_completion_tokens").integer(*count);
  }
  if (const auto reasoning = reader.object("reasoning")) {
    copy_member(json, *reasoning, "effort", "reasoning_effort");
    // Thoughts are shown as they are, so that there is nothing to sum up.
    FieldReader inner(*reasoning, "reasoning.");
    for (const std::string_view name : {"summary", "generate_summary"}) {
      static_cast<void>(inner.word(name, {"auto", "concise", "detailed", "none"}));
    }
    if (inner.error()) reader.fail("reasoning", inner.error()->message);
  }
  read_include(reader);
  if (reader.word("truncation", {"auto", "disabled"}) == "auto") {
    json.key("truncate_prompt_tokens").integer(-1);
  }
  reader.refuse({"background", "conversation", "prompt", "max_tool_calls", "top_logprobs",
                 "context_management", "moderation"});
  reader.ignore({"metadata", "service_tier", "prompt_cache_key", "safety_identifier",
                 "stream_options", "prompt_cache_retention", "prompt_cache_options"});
}

// What the answer repeats, with the values that hold where the request has none.
std::string echo(JsonView request, bool store) {
  JsonWriter json;
  json.begin_object();
  const auto repeat = [&](std::string_view name, std::string_view otherwise) {
    const auto value = request.find(name);
    std::string text(otherwise);
    if (value && !value->is(Kind::kNull)) {
      text.clear();
      value->print(text);
    }
    json.key(name).raw(text);
  };
  repeat("instructions", "null");
  repeat("max_output_tokens", "null");
  repeat("parallel_tool_calls", "true");
  repeat("previous_response_id", "null");
  repeat("reasoning", R"({"effort":null,"summary":null})");
  repeat("temperature", "null");
  repeat("text", R"({"format":{"type":"text"}})");
  repeat("tool_choice", "\"auto\"");
  repeat("tools", "[]");
  repeat("top_p", "null");
  repeat("truncation", "\"disabled\"");
  repeat("user", "null");
  repeat("metadata", "{}");
  json.key("store").boolean(store).end_object();
  const std::string text = json.take();
  return text.substr(1, text.size() - 2);
}

}  // namespace

TranslatedResponses translate_responses(FieldReader& reader, JsonView request,
                                        const ServerLimits& limits, const std::string& earlier) {
  TranslatedResponses translated;
  translated.store = reader.boolean("store").value_or(true);
  JsonWriter json;
  json.begin_object();
  copy_settings(reader, request, json);
  translate_tools(reader, limits, json);
  translate_text(reader, json);
  translated.messages = translate_input(reader, earlier);
  // Instructions are of one answer only: they are not part of the conversation that is kept.
  json.key("messages").begin_array();
  if (const auto instructions = reader.string("instructions", limits.body_bytes_max)) {
    json.begin_object().key("role").string("system").key("content").string(*instructions);
    json.end_object();
  }
  if (translated.messages.size() > 2) {
    json.raw(std::string_view(translated.messages).substr(1, translated.messages.size() - 2));
  }
  json.end_array().end_object();
  translated.chat = json.take();
  if (!reader.failed()) translated.echoed = echo(request, translated.store);
  if (translated.echoed.size() > kEchoBytesMax) {
    reader.fail("metadata", "instructions, tools, metadata and the like are too long together");
  }
  return translated;
}

}  // namespace kun
