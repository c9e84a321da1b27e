#include "server/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "server/json_writer.h"
#include "server/template_variables.h"

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

// How a message is written for the template.
struct MessageForm {
  std::string_view cut;     // goes behind the content
  bool fills_null = false;  // a content that is null becomes ""
};

void write_null_content(JsonWriter& json, const MessageForm& form) {
  json.key("content");
  if (form.cut.empty() && !form.fills_null) {
    json.null();
  } else {
    json.string(form.cut);
  }
}

// Writes "content" of a message; false when it is not acceptable.
bool write_content(FieldReader& reader, JsonWriter& json, JsonView content, std::size_t message,
                   const MessageForm& form) {
  if (content.is(Kind::kNull)) {
    write_null_content(json, form);
    return true;
  }
  json.key("content");
  const std::string cut(form.cut);
  if (content.is(Kind::kString)) {
    json.string(std::string(content.string()) + cut);
  } else if (content.is(Kind::kArray)) {
    const auto text = join_parts(reader, content, message);
    if (!text) return false;
    json.string(*text + cut);
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

bool is_assistant(JsonView message) {
  const auto role = message.find("role");
  return role && role->is(Kind::kString) && role->string() == "assistant";
}

bool has_text(JsonView message, std::string_view name) {
  const auto value = message.find(name);
  return value && value->is(Kind::kString) && !value->string().empty();
}

bool write_message(FieldReader& reader, JsonWriter& json, JsonView message, std::size_t index,
                   const MessageForm& form) {
  if (!message.is(Kind::kObject)) {
    reader.fail("messages", fmt::format("messages[{}] must be an object", index));
    return false;
  }
  const auto role = read_role(reader, message, index);
  if (!role) return false;
  json.begin_object().key("role").string(*role);
  const auto content = message.find("content");
  if (content) {
    if (!write_content(reader, json, *content, index, form)) return false;
  } else if (*role != "assistant") {
    reader.fail("messages", fmt::format("messages[{}] has no content", index));
    return false;
  } else {
    write_null_content(json, form);
  }
  // Both names of one thing, so that the template finds the one it looks for.
  const bool old_name = has_text(message, "reasoning_content");
  if (has_text(message, "reasoning") && !old_name) {
    json.key("reasoning_content").string(message.find("reasoning")->string());
  } else if (old_name && !has_text(message, "reasoning")) {
    json.key("reasoning").string(message.find("reasoning_content")->string());
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
    if (key == "role" || key == "content" || key == "prefix" || message.at(i).is(Kind::kNull)) {
      continue;
    }
    std::string value;
    message.at(i).print(value);
    json.key(key).raw(value);
  }
  json.end_object();
  return true;
}

// The prompt ends where the last message ends. Where that is in the rendered text only the template
// knows, so the message gets a mark that nobody can have written.
std::string make_cut() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("[[end of message {:016x}{:016x}]]", random(), random());
}

// Whether the last message asks to be continued ("prefix": true).
bool read_prefix(FieldReader& reader, JsonView messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages.at(i).is(Kind::kObject)) continue;
    const auto prefix = messages.at(i).find("prefix");
    if (!prefix || prefix->is(Kind::kNull)) continue;
    if (!prefix->is(Kind::kBool)) {
      reader.fail("messages", fmt::format("messages[{}].prefix must be true or false", i));
    } else if (prefix->boolean()) {
      if (i + 1 == messages.size() && is_assistant(messages.at(i))) return true;
      reader.fail("messages", fmt::format("messages[{}].prefix may be set in the last message "
                                          "only, and that must be the assistant's",
                                          i));
    }
  }
  return false;
}

// DeepSeek's rule: while it thinks, a model must see what it thought when it called tools.
void check_thoughts(FieldReader& reader, JsonView messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const JsonView message = messages.at(i);
    const auto calls = message.find("tool_calls");
    if (!is_assistant(message) || !calls || !calls->is(Kind::kArray) || calls->size() == 0) {
      continue;
    }
    if (message.find("reasoning_content") || message.find("reasoning")) continue;
    return reader.fail(ApiError{
        400, "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "messages", true});
  }
}

// The end of a message that is to be continued: inside of a thought or not.
bool ends_in_thought(JsonView message) {
  const auto content = message.find("content");
  if (!content || !content->is(Kind::kString)) return false;
  const std::string_view text = content->string();
  const std::size_t open = text.rfind("<think>");
  const std::size_t close = text.rfind("</think>");
  return open != std::string_view::npos && (close == std::string_view::npos || close < open);
}

// Empty where something is not acceptable.
std::string write_messages(FieldReader& reader, JsonView messages, std::string_view cut,
                           bool fills_null) {
  JsonWriter json;
  json.begin_array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    if (!write_message(reader, json, messages.at(i), i, {last ? cut : "", fills_null})) return {};
  }
  json.end_array();
  return json.take();
}

// What the assistant has said last, where nobody has spoken since.
std::string last_answer(FieldReader& reader, JsonView messages) {
  const std::size_t index = messages.size() - 1;
  const JsonView last = messages.at(index);
  const auto content = last.find("content");
  if (!is_assistant(last) || !content) return {};
  if (content->is(Kind::kString)) return std::string(content->string());
  if (content->is(Kind::kArray)) return join_parts(reader, *content, index).value_or("");
  return {};
}

bool has_null_content(JsonView messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages.at(i).find("content");
    if (!content || content->is(Kind::kNull)) return true;
  }
  return false;
}

// continue_final_message, "prefix": true and add_generation_prompt, which are one question.
void read_continuation(FieldReader& reader, const std::optional<JsonView>& messages,
                       ChatPrompt& prompt) {
  const auto continues = reader.boolean("continue_final_message");
  const auto generation = reader.boolean("add_generation_prompt");
  if (!messages || messages->size() == 0) return;
  prompt.continues = read_prefix(reader, *messages) || continues.value_or(false);
  prompt.add_generation_prompt = generation.value_or(!prompt.continues);
  if (!prompt.continues) return;
  const JsonView last = messages->at(messages->size() - 1);
  if (generation.value_or(false)) {
    reader.fail("continue_final_message",
                "add_generation_prompt and continue_final_message exclude each other");
  } else if (!last.is(Kind::kObject) || !is_assistant(last)) {
    reader.fail("messages", "only a message of the assistant can be continued");
  } else {
    prompt.cut = make_cut();
    prompt.continues_thought = ends_in_thought(last);
  }
}

}  // namespace

ChatPrompt read_chat_prompt(FieldReader& reader, const ServerContext& context,
                            const ServedModel& model, Dialect dialect) {
  ChatPrompt prompt;
  const ServerLimits& limits = context.options.limits;
  const auto messages = reader.array("messages", static_cast<std::size_t>(limits.messages_max));
  if (!messages) reader.fail("messages", "messages is missing");
  if (messages && messages->size() == 0) reader.fail("messages", "messages must not be empty");
  prompt.tools = read_chat_tools(reader, limits);
  const TemplateVariables variables = read_template_variables(reader, dialect);
  prompt.extra = variables.json;
  prompt.thinking_budget = variables.thinking_budget;
  read_continuation(reader, messages, prompt);
  prompt.add_special_tokens = reader.boolean("add_special_tokens").value_or(false);
  if (const auto given = reader.string("chat_template", kTemplateBytesMax)) {
    if (!context.options.allow_request_chat_template) {
      reader.fail("chat_template", "this server does not accept templates from requests");
    }
    prompt.chat_template = *given;
  }
  if (reader.failed()) return prompt;
  prompt.messages = write_messages(reader, *messages, prompt.cut, false);
  if (!reader.failed() && has_null_content(*messages)) {
    prompt.filled_messages = write_messages(reader, *messages, prompt.cut, true);
  }
  if (!reader.failed()) prompt.echo = last_answer(reader, *messages);
  const bool thinks = model.syntax.reasoning != ReasoningSyntax::kNone &&
                      variables.thinking.value_or(false) && !prompt.continues;
  if (thinks && dialect == Dialect::kDeepSeek && !reader.failed()) {
    check_thoughts(reader, *messages);
  }
  return prompt;
}

// Templates that know of no tools add contents up, and fail at the null beside a call.
static Result<std::string> render_filled(const ChatTemplate& chat_template, ChatTemplateInput input,
                                         const std::string& filled_messages) {
  Result<std::string> rendered = chat_template.render(input);
  if (rendered || filled_messages.empty()) return rendered;
  input.messages = filled_messages;
  Result<std::string> again = chat_template.render(input);
  return again ? std::move(again) : std::move(rendered);
}

Result<RenderedChat> render_chat(const ServedModel& model, const ChatPrompt& prompt) {
  ChatTemplateInput input;
  input.messages = prompt.messages;
  input.tools = prompt.tools.json;
  input.extra = prompt.extra;
  input.add_generation_prompt = prompt.add_generation_prompt;
  RenderedChat rendered;
  if (!prompt.chat_template.empty()) {
    ASSIGN_OR_RETURN(const auto compiled,
                     ChatTemplate::compile(prompt.chat_template, model.bos_token, model.eos_token));
    ASSIGN_OR_RETURN(rendered.text, render_filled(*compiled, input, prompt.filled_messages));
  } else if (model.chat_template == nullptr) {
    return invalid_argument("this model has no chat template; use /v1/completions");
  } else {
    ASSIGN_OR_RETURN(rendered.text,
                     render_filled(*model.chat_template, input, prompt.filled_messages));
  }
  rendered.start = reasoning_start(rendered.text);
  if (!prompt.continues) return rendered;
  const std::size_t cut = rendered.text.rfind(prompt.cut);
  if (cut == std::string::npos) {
    return invalid_argument(
        "the chat template does not show the last message, which is therefore "
        "not to be continued");
  }
  rendered.text.resize(cut);
  rendered.start = prompt.continues_thought ? ReasoningStart::kOpen : ReasoningStart::kClosed;
  return rendered;
}

}  // namespace kun
