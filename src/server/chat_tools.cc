#include "server/chat_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/tool_call_parser.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kNameBytesMax = 64;  // OpenAI's

// {"type":"function","function":{"name","description","parameters","strict"}}
void read_tool(FieldReader& reader, JsonView tool, std::size_t index, ChatTools& tools) {
  const auto fail = [&](std::string_view what) {
    reader.fail("tools", fmt::format("tools[{}]{}", index, what));
  };
  if (!tool.is(Kind::kObject)) return fail(" must be an object");
  const auto type = tool.find("type");
  if (type && !(type->is(Kind::kString) && type->string() == "function")) {
    return fail(".type must be \"function\"");
  }
  const auto function = tool.find("function");
  if (!function || !function->is(Kind::kObject)) return fail(" must be an object with a function");
  const auto name = function->find("name");
  if (!name || !name->is(Kind::kString) || name->string().empty() ||
      name->string().size() > kNameBytesMax ||
      !std::ranges::all_of(name->string(), is_tool_name_byte)) {
    return fail(".function.name must be 1 to 64 letters, digits or any of _ - . : /");
  }
  const auto description = function->find("description");
  if (description && !description->is(Kind::kString) && !description->is(Kind::kNull)) {
    return fail(".function.description must be a string");
  }
  const auto strict = function->find("strict");
  if (strict && !strict->is(Kind::kBool) && !strict->is(Kind::kNull)) {
    return fail(".function.strict must be true or false");
  }
  ChatTool read;
  read.name = name->string();
  read.strict = strict && strict->is(Kind::kBool) && strict->boolean();
  if (const auto parameters = function->find("parameters")) {
    if (!parameters->is(Kind::kObject) && !parameters->is(Kind::kNull)) {
      return fail(".function.parameters must be a JSON Schema, which is an object");
    }
    if (parameters->is(Kind::kObject)) parameters->print(read.parameters);
  }
  tools.all.push_back(std::move(read));
}

void read_choice(FieldReader& reader, JsonView choice, ChatTools& tools) {
  if (choice.is(Kind::kString)) {
    if (choice.string() == "none") {
      tools.choice = ToolUse::kNone;
    } else if (choice.string() == "required") {
      tools.choice = ToolUse::kRequired;
    } else if (choice.string() != "auto") {
      reader.fail("tool_choice",
                  "tool_choice must be \"none\", \"auto\", \"required\" or name a function");
    }
    return;
  }
  const auto function =
      choice.is(Kind::kObject) ? choice.find("function") : std::optional<JsonView>();
  const auto name =
      function && function->is(Kind::kObject) ? function->find("name") : std::optional<JsonView>();
  if (!name || !name->is(Kind::kString)) {
    return reader.fail("tool_choice",
                       "tool_choice must be \"none\", \"auto\", \"required\" or "
                       "{\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  tools.choice = ToolUse::kNamed;
  tools.chosen = name->string();
  if (std::ranges::none_of(tools.all,
                           [&](const ChatTool& tool) { return tool.name == tools.chosen; })) {
    reader.fail("tool_choice", fmt::format("tool_choice names {:?}, which is not among the tools",
                                           tools.chosen.substr(0, kNameBytesMax)));
  }
}

}  // namespace

ChatTools read_chat_tools(FieldReader& reader, const ServerLimits& limits) {
  ChatTools tools;
  const auto given = reader.array("tools", static_cast<std::size_t>(limits.tools_max));
  const auto choice = reader.any("tool_choice");
  tools.parallel = reader.boolean("parallel_tool_calls").value_or(true);
  for (std::size_t i = 0; given && i < given->size() && !reader.failed(); ++i) {
    read_tool(reader, given->at(i), i, tools);
  }
  if (choice && !reader.failed()) read_choice(reader, *choice, tools);
  if (tools.forced() && tools.all.empty()) {
    reader.fail("tool_choice", "tool_choice asks for a call, and there are no tools");
  }
  // A model that is told of no tools calls none.
  if (tools.wanted()) given->print(tools.json);
  return tools;
}

}  // namespace kun
