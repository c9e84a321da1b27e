// Reads the JSON of a conversation into what the encoders work on.
#include "text/encoder_messages.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "text/python_json.h"

namespace kun {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::element;

std::string text_of(element object, const char* key) {
  std::string_view text;
  if (object[key].get(text) != SUCCESS) return {};
  return std::string(text);
}

std::string json_of(element value) {
  return python_json(simdjson::minify(value));
}

void add_members(simdjson::dom::object object, EncoderCall& call) {
  for (const simdjson::dom::key_value_pair member : object) {
    EncoderParameter parameter;
    parameter.name = member.key;
    std::string_view text;
    parameter.is_string = member.value.get(text) == SUCCESS;
    parameter.value = parameter.is_string ? std::string(text) : json_of(member.value);
    call.parameters.push_back(std::move(parameter));
  }
}

// OpenAI writes arguments as a string of JSON; what is no object becomes one with a single member.
void read_arguments(element arguments, EncoderCall& call) {
  simdjson::dom::object object;
  if (arguments.get(object) == SUCCESS) return add_members(object, call);
  std::string_view text;
  if (arguments.get(text) != SUCCESS) return;
  simdjson::dom::parser parser;
  element inner;
  if (parser.parse(text.data(), text.size()).get(inner) == SUCCESS &&
      inner.get(object) == SUCCESS) {
    return add_members(object, call);
  }
  call.parameters.push_back({"arguments", std::string(text), true});
}

void read_calls(element message, EncoderMessage& read) {
  simdjson::dom::array calls;
  if (message["tool_calls"].get(calls) != SUCCESS) return;
  for (const element given : calls) {
    EncoderCall call;
    element function;
    if (given["function"].get(function) != SUCCESS) continue;
    call.id = text_of(given, "id");
    call.name = text_of(function, "name");
    element arguments;
    if (function["arguments"].get(arguments) == SUCCESS) read_arguments(arguments, call);
    read.calls.push_back(std::move(call));
  }
}

void read_tools(element list, std::vector<std::string>& tools) {
  simdjson::dom::array array;
  if (list.get(array) != SUCCESS) return;
  for (const element tool : array) {
    element function;
    if (tool["function"].get(function) == SUCCESS) tools.push_back(json_of(function));
  }
}

EncoderMessage read_message(element message) {
  EncoderMessage read;
  read.role = text_of(message, "role");
  read.content = text_of(message, "content");
  read.reasoning = text_of(message, "reasoning_content");
  if (read.reasoning.empty()) read.reasoning = text_of(message, "reasoning");
  read.tool_call_id = text_of(message, "tool_call_id");
  read.task = text_of(message, "task");
  read_calls(message, read);
  element value;
  if (message["tools"].get(value) == SUCCESS) read_tools(value, read.tools);
  if (message["response_format"].get(value) == SUCCESS && !value.is_null()) {
    read.response_format = json_of(value);
  }
  return read;
}

Status read_variables(std::string_view json, EncoderInput& input) {
  if (json.empty()) return {};
  simdjson::dom::parser parser;
  element root;
  if (parser.parse(json.data(), json.size()).get(root) != SUCCESS) {
    return invalid_argument("the template's variables are not JSON");
  }
  bool flag = false;
  if (root["enable_thinking"].get(flag) == SUCCESS) input.thinking = flag;
  if (root["thinking"].get(flag) == SUCCESS) input.thinking = flag;
  if (root["drop_thinking"].get(flag) == SUCCESS) input.drop_thinking = flag;
  input.reasoning_effort = text_of(root, "reasoning_effort");
  return {};
}

}  // namespace

bool EncoderInput::has_tools() const {
  return std::ranges::any_of(messages, [](const auto& message) { return !message.tools.empty(); });
}

int EncoderInput::last_user() const {
  return last_user_of(messages,
                      [](const EncoderMessage& m) -> const std::string& { return m.role; });
}

Result<EncoderInput> read_encoder_input(const ChatTemplateInput& input) {
  EncoderInput read;
  RETURN_IF_ERROR(read_variables(input.extra, read));
  simdjson::dom::parser parser;
  simdjson::dom::array messages;
  if (parser.parse(input.messages.data(), input.messages.size()).get(messages) != SUCCESS) {
    return invalid_argument("the messages are not a JSON array");
  }
  if (!input.tools.empty()) {
    simdjson::dom::parser tools_parser;
    element tools;
    if (tools_parser.parse(input.tools.data(), input.tools.size()).get(tools) != SUCCESS) {
      return invalid_argument("the tools are not JSON");
    }
    EncoderMessage first;
    first.role = "system";
    read_tools(tools, first.tools);
    read.messages.push_back(std::move(first));
  }
  for (const element message : messages) read.messages.push_back(read_message(message));
  return read;
}

std::string dsml_calls(const EncoderMessage& message, std::string_view block) {
  std::string text = fmt::format("<｜DSML｜{}>\n", block);
  for (const EncoderCall& call : message.calls) {
    text += fmt::format("<｜DSML｜invoke name=\"{}\">\n", call.name);
    bool first = true;
    for (const EncoderParameter& parameter : call.parameters) {
      if (!std::exchange(first, false)) text += '\n';
      text += fmt::format("<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>",
                          parameter.name, parameter.is_string, parameter.value);
    }
    text += "\n</｜DSML｜invoke>\n";
  }
  text += fmt::format("</｜DSML｜{}>", block);
  return text;
}

std::string encoder_appendix(const EncoderMessage& message, std::string_view tools_text) {
  std::string text;
  if (!message.tools.empty()) {
    const std::size_t hole = tools_text.find("{}");
    text += "\n\n";
    text += tools_text.substr(0, hole);
    text += fmt::format("{}", fmt::join(message.tools, "\n"));
    text += tools_text.substr(hole + 2);
  }
  if (!message.response_format.empty()) {
    text +=
        "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
        "reply:\n" +
        message.response_format;
  }
  return text;
}

Status unknown_role(std::string_view role) {
  return invalid_argument(fmt::format("this model knows no role {:?}", role));
}

}  // namespace kun
