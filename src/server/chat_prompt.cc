#include "server/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/json_writer.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kTemplateBytesMax = 256U << 10U;

// Templates join strings: parts of text become one, as vLLM does for such templates.
std::optional<std::string> join_parts(FieldReader& reader, JsonView parts, std::size_t message) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const JsonView part = parts.at(i);
    const std::string where = fmt::format("messages[{}].content[{}]", message, i);
    std::optional<JsonView> piece;
    if (part.is(Kind::kString)) {
      piece = part;
    } else if (part.is(Kind::kObject)) {
      const auto type = part.find("type");
      if (!type || !type->is(Kind::kString)) {
        reader.fail("messages", where + " has no type");
        return std::nullopt;
      }
      const std::string_view name = type->string();
      if (name == "refusal") {
        piece = part.find("refusal");
      } else if (name == "text" || name == "input_text" || name == "output_text") {
        piece = part.find("text");
      } else {
        reader.fail("messages", fmt::format("{} is of type {:?}; this model takes text only", where,
                                            std::string(name.substr(0, 32))));
        return std::nullopt;
      }
    }
    if (!piece || !piece->is(Kind::kString)) {
      reader.fail("messages", where + " must be a part with text");
      return std::nullopt;
    }
    if (i > 0) text += '\n';
    text += piece->string();
  }
  return text;
}

// Writes "content" of a message; false when it is not acceptable.
bool write_content(FieldReader& reader, JsonWriter& json, JsonView content, std::size_t message) {
  json.key("content");
  if (content.is(Kind::kNull)) {
    json.null();
  } else if (content.is(Kind::kString)) {
    json.string(content.string());
  } else if (content.is(Kind::kArray)) {
    const auto text = join_parts(reader, content, message);
    if (!text) return false;
    json.string(*text);
  } else {
    reader.fail("messages", fmt::format("messages[{}].content must be a string, an array of parts "
                                        "or null",
                                        message));
    return false;
  }
  return true;
}

// Returns the message's role as the template shall see it; nothing when it is not acceptable.
std::optional<std::string_view> read_role(FieldReader& reader, JsonView message,
                                          std::size_t index) {
  constexpr std::array<std::string_view, 6> kRoles = {"system", "user",     "assistant",
                                                      "tool",   "function", "developer"};
  const auto role = message.find("role");
  if (!role || !role->is(Kind::kString) || std::ranges::count(kRoles, role->string()) == 0) {
    reader.fail("messages",
                fmt::format("messages[{}].role must be one of system, developer, user, assistant, "
                            "tool",
                            index));
    return std::nullopt;
  }
  // Templates do not know OpenAI's new name for it, and would drop the message silently.
  if (role->string() == "developer") return "system";
  return role->string();
}

bool write_message(FieldReader& reader, JsonWriter& json, JsonView message, std::size_t index) {
  if (!message.is(Kind::kObject)) {
    reader.fail("messages", fmt::format("messages[{}] must be an object", index));
    return false;
  }
  const auto role = read_role(reader, message, index);
  if (!role) return false;
  json.begin_object().key("role").string(*role);
  const auto content = message.find("content");
  if (content) {
    if (!write_content(reader, json, *content, index)) return false;
  } else if (*role != "assistant") {
    reader.fail("messages", fmt::format("messages[{}] has no content", index));
    return false;
  } else {
    json.key("content").null();
  }
  if (const auto calls = message.find("tool_calls");
      calls && !calls->is(Kind::kArray) && !calls->is(Kind::kNull)) {
    reader.fail("messages", fmt::format("messages[{}].tool_calls must be an array", index));
    return false;
  }
  // Whatever else the client said is the template's business: name, tool_calls, tool_call_id,
  // reasoning_content, prefix.
  for (std::size_t i = 0; i < message.size(); ++i) {
    const std::string_view key = message.key(i);
    if (key == "role" || key == "content" || message.at(i).is(Kind::kNull)) continue;
    std::string value;
    message.at(i).print(value);
    json.key(key).raw(value);
  }
  json.end_object();
  return true;
}

void read_tools(FieldReader& reader, const ServerLimits& limits, ChatPrompt& prompt) {
  const auto tools = reader.array("tools", static_cast<std::size_t>(limits.tools_max));
  for (std::size_t i = 0; tools && i < tools->size(); ++i) {
    const auto function =
        tools->at(i).is(Kind::kObject) ? tools->at(i).find("function") : std::optional<JsonView>();
    if (!function || !function->is(Kind::kObject)) {
      reader.fail("tools", fmt::format("tools[{}] must be an object with a function", i));
      return;
    }
  }
  bool wanted = true;
  if (const auto choice = reader.any("tool_choice")) {
    const bool named = choice->is(Kind::kString);
    wanted = !(named && choice->string() == "none");
    if (!named || (choice->string() != "none" && choice->string() != "auto")) {
      reader.fail("tool_choice",
                  "tool_choice can be \"auto\" or \"none\"; forcing a call is not supported by "
                  "this server");
    }
  }
  // A model that is told of no tools calls none.
  if (tools && tools->size() > 0 && wanted) tools->print(prompt.tools);
}

// DeepSeek's and OpenAI's switches for thinking become the variables that templates look at.
std::string read_template_variables(FieldReader& reader) {
  JsonWriter json;
  json.begin_object();
  bool any = false;
  if (const auto thinking = reader.object("thinking")) {
    const auto type = thinking->find("type");
    const bool named = type && type->is(Kind::kString);
    if (!named || (type->string() != "enabled" && type->string() != "disabled")) {
      reader.fail("thinking", "thinking.type must be \"enabled\" or \"disabled\"");
    } else {
      const bool enabled = type->string() == "enabled";
      json.key("thinking").boolean(enabled).key("enable_thinking").boolean(enabled);
      any = true;
    }
  }
  if (const auto effort = reader.string("reasoning_effort", 32)) {
    constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                          "high", "xhigh",   "max"};
    if (std::ranges::count(kEfforts, *effort) == 0) {
      reader.fail("reasoning_effort",
                  "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, max");
    }
    json.key("reasoning_effort").string(*effort);
    any = true;
  }
  if (const auto given = reader.object("chat_template_kwargs")) {
    for (std::size_t i = 0; i < given->size(); ++i) {
      std::string value;
      given->at(i).print(value);
      json.key(given->key(i)).raw(value);
      any = true;
    }
  }
  json.end_object();
  return any ? json.take() : std::string();
}

}  // namespace

ChatPrompt read_chat_prompt(FieldReader& reader, const ServerContext& context) {
  ChatPrompt prompt;
  const ServerLimits& limits = context.options.limits;
  const auto messages = reader.array("messages", static_cast<std::size_t>(limits.messages_max));
  if (!messages) {
    reader.fail("messages", "messages is missing");
    return prompt;
  }
  if (messages->size() == 0) reader.fail("messages", "messages must not be empty");
  JsonWriter json;
  json.begin_array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    if (!write_message(reader, json, messages->at(i), i)) return prompt;
  }
  json.end_array();
  prompt.messages = json.take();
  read_tools(reader, limits, prompt);
  prompt.extra = read_template_variables(reader);
  prompt.add_generation_prompt = reader.boolean("add_generation_prompt").value_or(true);
  prompt.add_special_tokens = reader.boolean("add_special_tokens").value_or(false);
  reader.refuse({"continue_final_message", "documents"});
  if (const auto given = reader.string("chat_template", kTemplateBytesMax)) {
    if (!context.options.allow_request_chat_template) {
      reader.fail("chat_template", "this server does not accept templates from requests");
    }
    prompt.chat_template = *given;
  }
  return prompt;
}

Result<std::string> render_chat(const ServedModel& model, const ChatPrompt& prompt) {
  ChatTemplateInput input;
  input.messages = prompt.messages;
  input.tools = prompt.tools;
  input.extra = prompt.extra;
  input.add_generation_prompt = prompt.add_generation_prompt;
  if (!prompt.chat_template.empty()) {
    ASSIGN_OR_RETURN(const auto compiled,
                     ChatTemplate::compile(prompt.chat_template, model.bos_token, model.eos_token));
    return compiled->render(input);
  }
  if (model.chat_template == nullptr) {
    return invalid_argument("this model has no chat template; use /v1/completions");
  }
  return model.chat_template->render(input);
}

}  // namespace kun
