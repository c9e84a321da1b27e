#include "server/template_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "server/json_writer.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kDocumentsMax = 256;
constexpr std::size_t kNamesMax = 64;

// What templates get from elsewhere; a request that could set them could pretend to be another.
constexpr std::array<std::string_view, 10> kReserved = {"messages",
                                                        "tools",
                                                        "add_generation_prompt",
                                                        "continue_final_message",
                                                        "tokenize",
                                                        "chat_template",
                                                        "bos_token",
                                                        "eos_token",
                                                        "documents",
                                                        "conversation"};

std::optional<bool> read_thinking(FieldReader& reader, TemplateVariables& read) {
  const auto thinking = reader.object("thinking");
  if (!thinking) return std::nullopt;
  FieldReader inner(*thinking, "thinking.");
  if (const auto budget = inner.integer("budget_tokens", 0, std::numeric_limits<int>::max())) {
    read.thinking_budget = static_cast<int>(*budget);
  }
  if (inner.error()) reader.fail("thinking", inner.error()->message);
  const auto type = thinking->find("type");
  if (type && type->is(Kind::kString)) {
    if (type->string() == "enabled" || type->string() == "adaptive") return true;
    if (type->string() == "disabled") return false;
  }
  reader.fail("thinking", "thinking.type must be \"enabled\" or \"disabled\"");
  return std::nullopt;
}

void write_named(FieldReader& reader, JsonWriter& json, JsonView given, TemplateVariables& read) {
  if (given.size() > kNamesMax) {
    return reader.fail("chat_template_kwargs",
                       fmt::format("chat_template_kwargs has more than {} names", kNamesMax));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string_view name = given.key(i);
    if (std::ranges::count(kReserved, name) > 0) {
      return reader.fail("chat_template_kwargs",
                         fmt::format("chat_template_kwargs must not set {}", name));
    }
    const JsonView value = given.at(i);
    if ((name == "thinking" || name == "enable_thinking") && value.is(Kind::kBool)) {
      read.thinking = value.boolean();
    }
    std::string text;
    value.print(text);
    json.key(name).raw(text);
  }
}

}  // namespace

TemplateVariables read_template_variables(FieldReader& reader, Dialect dialect) {
  TemplateVariables read;
  read.thinking = read_thinking(reader, read);
  const auto effort =
      reader.word("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (effort == "none") read.thinking = false;
  const auto documents = reader.array("documents", kDocumentsMax);
  const auto named = reader.object("chat_template_kwargs");
  // DeepSeek thinks unless told not to; elsewhere the template decides.
  if (!read.thinking && dialect == Dialect::kDeepSeek) read.thinking = true;
  JsonWriter json;
  json.begin_object();
  const auto names = [&](std::string_view name) { return named && named->find(name); };
  if (read.thinking && !names("thinking") && !names("enable_thinking")) {
    const bool thinking = *read.thinking;
    json.key("thinking").boolean(thinking).key("enable_thinking").boolean(thinking);
  }
  if (effort && !names("reasoning_effort")) json.key("reasoning_effort").string(*effort);
  if (named) write_named(reader, json, *named, read);
  if (documents) {
    std::string text;
    documents->print(text);
    json.key("documents").raw(text);
  }
  json.end_object();
  if (json.text() != "{}") read.json = json.take();
  return read;
}

}  // namespace kun
