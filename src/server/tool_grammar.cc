// The syntaxes are those of the models' chat templates: what a template renders for a call in the
// conversation is what the model was trained to say. White space between marks is fixed, white
// space inside of JSON is free.
#include "server/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "server/json_view.h"
#include "text/lark_text.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kToolsMax = 128;
constexpr std::size_t kNameBytesMax = 256;
constexpr std::size_t kSchemaBytesMax = std::size_t{512} << 10U;
constexpr std::size_t kAllBytesMax = std::size_t{512} << 10U;  // what the compiler takes at most

constexpr std::string_view kDsml = "｜DSML｜";

class ToolGrammar {
 public:
  explicit ToolGrammar(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<GrammarSource> make(std::span<const ToolSchema> tools, const ToolChoice& choice,
                             ToolCallFormat format) {
    std::string calls;
    std::size_t count = 0;
    for (const ToolSchema& tool : tools) {
      if (!choice.name.empty() && tool.name != choice.name) continue;
      if (++count > kToolsMax) {
        return invalid_argument(fmt::format("there are more than {} tools", kToolsMax));
      }
      RETURN_IF_ERROR(check(tool));
      ASSIGN_OR_RETURN(const std::string one, call(tool, format));
      calls += fmt::format("{}{}", calls.empty() ? "" : " | ", one);
    }
    if (calls.empty()) {
      return invalid_argument(choice.name.empty()
                                  ? std::string("there is no tool to call")
                                  : fmt::format("there is no tool named {:.64}", choice.name));
    }
    source_.kind = GrammarKind::kLark;
    source_.text =
        fmt::format("start: {}\ncall: {}\n{}", frame(format, choice.parallel), calls, rules_);
    return std::move(source_);
  }

 private:
  static Status check(const ToolSchema& tool) {
    if (tool.name.empty() || tool.name.size() > kNameBytesMax ||
        std::ranges::any_of(tool.name, [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '<' || c == '\\';
        })) {
      return invalid_argument(
          fmt::format("the name of a tool must have 1 to {} characters, none "
                      "of them a quote, '<', '\\' or a control character",
                      kNameBytesMax));
    }
    if (tool.parameters.size() > kSchemaBytesMax) {
      return invalid_argument(fmt::format("the parameters of the tool {} are longer than {} bytes",
                                          tool.name, kSchemaBytesMax));
    }
    return {};
  }

  // A mark as the tokenizer holds it: special tokens are no text.
  std::string mark(std::string_view text) const {
    const auto token = tokenizer_.find(text);
    if (token && tokenizer_.is_special(*token)) return fmt::format("<[{}]>", *token);
    return lark_string(text);
  }

  // Text around kDsml, which may be a token of its own.
  std::string dsml(std::string_view before, std::string_view after) const {
    const auto token = tokenizer_.find(kDsml);
    if (token && tokenizer_.is_special(*token)) {
      return fmt::format("{} <[{}]> {}", lark_string(before), *token, lark_string(after));
    }
    return lark_string(fmt::format("{}{}{}", before, kDsml, after));
  }

  std::string frame(ToolCallFormat format, bool parallel) const {
    const auto repeat = [parallel](std::string_view separator) {
      return parallel ? fmt::format("call ({} call)*", separator) : std::string("call");
    };
    switch (format) {
      case ToolCallFormat::kDeepSeekV3:
      case ToolCallFormat::kDeepSeekV31: {
        const bool v3 = format == ToolCallFormat::kDeepSeekV3;
        const std::string calls = parallel ? (v3 ? "call (\"\\n\" call)*" : "call+") : "call";
        return fmt::format("{} {} {}", mark("<｜tool▁calls▁begin｜>"), calls,
                           mark("<｜tool▁calls▁end｜>"));
      }
      case ToolCallFormat::kDeepSeekV32:
      case ToolCallFormat::kDeepSeekV4: {
        const std::string_view name =
            format == ToolCallFormat::kDeepSeekV4 ? "tool_calls" : "function_calls";
        return fmt::format("{} {} {}", dsml("<", fmt::format("{}>\n", name)),
                           parallel ? "call+" : "call", dsml("</", fmt::format("{}>", name)));
      }
      case ToolCallFormat::kHermes: return repeat("\"\\n\"");
      case ToolCallFormat::kLlama3Json: return repeat("\"; \"");
    }
    return {};
  }

  Result<std::string> call(const ToolSchema& tool, ToolCallFormat format) {
    switch (format) {
      case ToolCallFormat::kDeepSeekV3:
        return fmt::format("{} \"function\" {} {} {} {} {}", mark("<｜tool▁call▁begin｜>"),
                           mark("<｜tool▁sep｜>"), lark_string(tool.name + "\n```json\n"),
                           arguments(tool), lark_string("\n```"), mark("<｜tool▁call▁end｜>"));
      case ToolCallFormat::kDeepSeekV31:
        return fmt::format("{} {} {} {} {}", mark("<｜tool▁call▁begin｜>"), lark_string(tool.name),
                           mark("<｜tool▁sep｜>"), arguments(tool), mark("<｜tool▁call▁end｜>"));
      case ToolCallFormat::kHermes:
        return fmt::format(
            "{} {} {} {} {}", mark("<tool_call>"),
            lark_string(fmt::format("\n{{\"name\": \"{}\", \"arguments\": ", tool.name)),
            arguments(tool), lark_string("}\n"), mark("</tool_call>"));
      case ToolCallFormat::kLlama3Json:
        return fmt::format(
            "{} {} \"}}\"",
            lark_string(fmt::format("{{\"name\": \"{}\", \"parameters\": ", tool.name)),
            arguments(tool));
      case ToolCallFormat::kDeepSeekV32:
      case ToolCallFormat::kDeepSeekV4: return dsml_call(tool);
    }
    return invalid_argument("there is no such format");
  }

  std::string add_schema(std::string text) {
    source_.schemas.push_back(std::move(text));
    return fmt::format("@schema_{}", source_.schemas.size() - 1);
  }

  // An object, even where the schema does not say so; if it says something else, that comes later
  // in the text and counts.
  std::string arguments(const ToolSchema& tool) {
    if (tool.parameters.empty()) return add_schema(R"({"type":"object"})");
    return add_schema(R"({"type":"object")" + tail(tool.parameters));
  }

  // The members of an object and its closing brace, with a comma before them if there are any.
  static std::string tail(std::string_view object) {
    const std::size_t open = object.find('{');
    if (open == std::string_view::npos) return "}";
    const std::string_view rest = object.substr(open + 1);
    const std::size_t first = rest.find_first_not_of(" \t\r\n");
    const bool empty = first == std::string_view::npos || rest[first] == '}';
    return fmt::format("{}{}", empty ? "" : ",", rest);
  }

  // --- V3.2 and V4: one element for each parameter, in the order of the schema -------------------

  Result<std::string> dsml_call(const ToolSchema& tool) {
    std::string body;
    if (!tool.parameters.empty()) {
      ASSIGN_OR_RETURN(const JsonDocument schema, JsonDocument::parse(tool.parameters, {}));
      ASSIGN_OR_RETURN(body, dsml_parameters(tool.name, schema.root()));
    }
    return fmt::format("{} {} {}", dsml("<", fmt::format("invoke name=\"{}\">\n", tool.name)), body,
                       dsml("</", "invoke>\n"));
  }

  // What a parameter's own schema cannot be taken out of.
  static bool is_plain_object(JsonView schema) {
    constexpr std::string_view kKnown[] = {
        "type",  "properties", "required",    "$defs",  "definitions",
        "title", "$schema",    "description", "strict", "additionalProperties"};
    if (!schema.is(Kind::kObject)) return false;
    for (std::size_t i = 0; i < schema.size(); ++i) {
      if (std::ranges::find(kKnown, schema.key(i)) == std::end(kKnown)) return false;
    }
    const auto type = schema.find("type");
    return !type || (type->is(Kind::kString) && type->string() == "object");
  }

  Result<std::string> dsml_parameters(std::string_view tool, JsonView schema) {
    if (!is_plain_object(schema)) {
      return invalid_argument(
          fmt::format("the parameters of the tool {} must be an object with "
                      "properties, and no other keywords, in this model's "
                      "syntax of calls",
                      tool));
    }
    const auto properties = schema.find("properties");
    const auto required = schema.find("required");
    std::string body;
    std::vector<std::string_view> missing = names_of(required);
    for (std::size_t i = 0; properties && properties->is(Kind::kObject) && i < properties->size();
         ++i) {
      const std::string_view key = properties->key(i);
      const bool demanded = std::erase(missing, key) > 0;
      ASSIGN_OR_RETURN(const std::string one, dsml_parameter(key, properties->at(i), schema));
      body += fmt::format(" ({}){}", one, demanded ? "" : "?");
    }
    if (!missing.empty()) {
      return invalid_argument(
          fmt::format("the tool {} requires the parameter {:.64}, which it does "
                      "not describe",
                      tool, missing.front()));
    }
    return body;
  }

  static std::vector<std::string_view> names_of(std::optional<JsonView> list) {
    std::vector<std::string_view> names;
    for (std::size_t i = 0; list && list->is(Kind::kArray) && i < list->size(); ++i) {
      if (list->at(i).is(Kind::kString)) names.push_back(list->at(i).string());
    }
    return names;
  }

  Result<std::string> dsml_parameter(std::string_view key, JsonView schema, JsonView root) {
    if (key.empty() || key.find_first_of("\"<>\n\r") != std::string_view::npos) {
      return invalid_argument(
          fmt::format("the parameter {:.64} has a name that this model's syntax "
                      "of calls cannot hold",
                      key));
    }
    const bool raw = is_free_string(schema);
    const std::string open =
        dsml("<", fmt::format("parameter name=\"{}\" string=\"{}\">", key, raw ? "true" : "false"));
    if (raw) return fmt::format("{} {}", open, dsml_text());
    std::string text;
    schema.print(text);
    if (text.find("\"$ref\"") != std::string::npos) {
      for (const std::string_view name : {"$defs", "definitions"}) {
        const auto definitions = root.find(name);
        if (!definitions || schema.find(name)) continue;
        std::string copy = fmt::format("{{\"{}\":", name);
        definitions->print(copy);
        text = copy + tail(text);
        if (text.size() > kAllBytesMax) break;
      }
    }
    schema_bytes_ += text.size();
    if (schema_bytes_ > kAllBytesMax) {
      return invalid_argument("the parameters of the tools are too long together");
    }
    return fmt::format("{} {} {}", open, add_schema(std::move(text)), dsml("</", "parameter>\n"));
  }

  // A string of which nothing more is demanded stands as it is; all else is JSON.
  static bool is_free_string(JsonView schema) {
    constexpr std::string_view kFree[] = {"type",    "description", "title",   "default",
                                          "example", "examples",    "$comment"};
    if (!schema.is(Kind::kObject)) return false;
    const auto type = schema.find("type");
    if (!type || !type->is(Kind::kString) || type->string() != "string") return false;
    for (std::size_t i = 0; i < schema.size(); ++i) {
      if (std::ranges::find(kFree, schema.key(i)) == std::end(kFree)) return false;
    }
    return true;
  }

  // Any text up to the mark that closes a parameter, and the mark.
  std::string dsml_text() {
    const auto token = tokenizer_.find(kDsml);
    const bool special = token && tokenizer_.is_special(*token);
    if (!has_text_rule_) {
      rules_ += special ? fmt::format("text: /(?s:.*)<\\// <[{}]> \"parameter>\\n\"\n", *token)
                        : fmt::format("text[lazy]: /(?s:.*)/ {}\n", dsml("</", "parameter>\n"));
      has_text_rule_ = true;
    }
    return "text";
  }

  const Tokenizer& tokenizer_;
  GrammarSource source_;
  std::string rules_;
  bool has_text_rule_ = false;
  std::size_t schema_bytes_ = 0;  // of all parameters, each with its definitions
};

}  // namespace

Result<GrammarSource> grammar_for_tools(std::span<const ToolSchema> tools, const ToolChoice& choice,
                                        ToolCallFormat format, const Tokenizer& tokenizer) {
  return ToolGrammar(tokenizer).make(tools, choice, format);
}

}  // namespace kun
