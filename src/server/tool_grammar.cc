// The syntaxes are those of the models' chat templates: what a template renders for a call in the
// conversation is what the model was trained to say. White space between marks is fixed, white
// space inside of JSON is free.
#include "server/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
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
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kSpace = "[ \\n\\r\\t]{0,64}";  // what JSON allows between its parts

class ToolGrammar {
 public:
  explicit ToolGrammar(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<GrammarSource> make(std::span<const ToolSchema> tools, const ToolChoice& choice,
                             ToolCallFormat format) {
    other_ = choice.other;
    std::size_t count = 0;
    for (const ToolSchema& tool : tools) {
      if (!choice.name.empty() && tool.name != choice.name) continue;
      if (++count > kToolsMax) {
        return invalid_argument(fmt::format("there are more than {} tools", kToolsMax));
      }
      RETURN_IF_ERROR(check(tool));
      ASSIGN_OR_RETURN(std::string one, call(tool, format));
      calls_.push_back(std::move(one));
      names_.push_back(regex_literal(tool.name));
    }
    if (calls_.empty()) {
      return invalid_argument(choice.name.empty()
                                  ? std::string("there is no tool to call")
                                  : fmt::format("there is no tool named {:.64}", choice.name));
    }
    if (choice.format != nullptr && ends_in_escape(choice.format->text)) {
      return invalid_argument("a regular expression ends in a backslash that escapes nothing");
    }
    source_.kind = GrammarKind::kLark;
    ASSIGN_OR_RETURN(const std::string start, answer(format, choice));
    source_.text = fmt::format("start: {}\ncall: {}\n{}", start, fmt::join(calls_, " | "), rules_);
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

  // --- Calls, and what may be instead -----------------------------------------------------------

  Result<std::string> answer(ToolCallFormat format, const ToolChoice& choice) {
    const std::string calls = frame(format, choice.parallel);
    switch (choice.other) {
      case OtherAnswer::kNone: return calls;
      case OtherAnswer::kFormat: return fmt::format("({}) | ({})", calls, other_format(choice));
      case OtherAnswer::kText: return text_or_calls(format, calls, choice.parallel);
    }
    return calls;
  }

  std::string other_format(const ToolChoice& choice) {
    CHECK(choice.format != nullptr && choice.format->kind != GrammarKind::kLark);
    source_.whitespace = choice.format->whitespace;
    source_.compact = choice.format->compact;
    source_.no_additional_properties = choice.format->no_additional_properties;
    if (choice.format->kind == GrammarKind::kRegex) return lark_regex(choice.format->text);
    return add_schema(choice.format->schemas.front());
  }

  // Text in which the first mark of a call leads into calls. Where the mark is a special token,
  // text cannot hold it; elsewhere text ends where it first appears.
  Result<std::string> text_or_calls(ToolCallFormat format, const std::string& calls,
                                    bool parallel) {
    if (format == ToolCallFormat::kLlama3Json) return text_or_bare_calls(calls);
    rules_ += "TEXT: /(?s:.+)/\n";
    switch (format) {
      case ToolCallFormat::kDeepSeekV3:
      case ToolCallFormat::kDeepSeekV31: return behind_text("<｜tool▁calls▁begin｜>", calls);
      case ToolCallFormat::kHermes: {
        if (is_special("<tool_call>")) return fmt::format("TEXT? ({})?", calls);
        std::vector<std::string> rest;
        for (const std::string& call : calls_) {
          rest.push_back(call.substr(mark("<tool_call>").size()));
        }
        rules_ += lazy_lead(mark("<tool_call>"));
        return fmt::format("TEXT? | lead ({}){}", fmt::join(rest, " | "),
                           parallel ? " (\"\\n\" call)*" : "");
      }
      case ToolCallFormat::kDeepSeekV32: return behind_dsml("function_calls", calls);
      case ToolCallFormat::kDeepSeekV4: return behind_dsml("tool_calls", calls);
      case ToolCallFormat::kLlama3Json: break;
    }
    return invalid_argument("there is no such format");
  }

  // Llama 3's calls need no mark, only a brace, and come first. So text is what cannot be taken
  // for a call: it begins with neither brace nor mark, or is JSON that names no tool.
  std::string text_or_bare_calls(const std::string& calls) {
    const std::string mark_regex = regex_literal(kPythonTag);
    rules_ += fmt::format(
        "TEXT: /(?s:.+)/ & ~{}\nJSON_TEXT: {} & ~{}\n",
        lark_regex(fmt::format("[ \\n\\r\\t]*(\\x7B|{})(?s:.*)", mark_regex)),
        lark_regex("[ \\n\\r\\t]*\\x7B(?s:.*)"),
        lark_regex(fmt::format("(?s:.*)\"name\"[ \\n\\r\\t]*:[ \\n\\r\\t]*\"({})\"(?s:.*)",
                               fmt::join(names_, "|"))));
    const std::string lead = is_special(kPythonTag)
                                 ? mark(kPythonTag)
                                 : lark_regex(fmt::format("{}{}", kSpace, mark_regex));
    return fmt::format("({})? (TEXT | JSON_TEXT | {})?", lead, calls);
  }

  std::string behind_text(std::string_view first, const std::string& calls) {
    if (is_special(first)) return fmt::format("TEXT? ({})?", calls);
    rules_ += lazy_lead(mark(first));
    return fmt::format("TEXT? | lead{}", calls.substr(mark(first).size()));
  }

  std::string behind_dsml(std::string_view name, const std::string& calls) {
    const std::string first = dsml("<", fmt::format("{}>\n", name));
    if (is_special(kDsml)) {
      // The bracket before the token is text.
      rules_ += fmt::format("lead: /(?s:.*)</{}\n", first.substr(lark_string("<").size()));
    } else {
      rules_ += lazy_lead(first);
    }
    return fmt::format("TEXT? | lead{}", calls.substr(first.size()));
  }

  // Text up to the first place of a literal, and that.
  static std::string lazy_lead(std::string_view literal) {
    return fmt::format("lead[lazy]: /(?s:.*)/ {}\n", literal);
  }

  bool is_special(std::string_view text) const {
    const auto token = tokenizer_.find(text);
    return token && tokenizer_.is_special(*token);
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
      case ToolCallFormat::kLlama3Json:
        return repeat(other_ == OtherAnswer::kText ? lark_regex(fmt::format("{};", kSpace))
                                                   : "\"; \"");
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
      case ToolCallFormat::kLlama3Json: return llama3_call(tool);
      case ToolCallFormat::kDeepSeekV32:
      case ToolCallFormat::kDeepSeekV4: return dsml_call(tool);
    }
    return invalid_argument("there is no such format");
  }

  // Beside other answers that may begin with a brace the call is spelled as those are: beside text
  // in every way that counts as a call, beside JSON in pieces that end where JSON's do.
  std::string llama3_call(const ToolSchema& tool) {
    const std::string schema = arguments(tool);
    if (other_ == OtherAnswer::kText) {
      const auto pair = [](std::string_view key, std::string_view value) {
        return fmt::format("\"{}\"{}:{}{}", key, kSpace, kSpace, value);
      };
      const std::string comma = fmt::format("{},{}", kSpace, kSpace);
      const std::string head =
          fmt::format("{}\\x7B{}({}{})?{}{}{}", kSpace, kSpace, pair("type", "\"function\""), comma,
                      pair("name", fmt::format("\"{}\"", regex_literal(tool.name))), comma,
                      pair("(parameters|arguments)", ""));
      return fmt::format("{} {} {}", lark_regex(head), schema,
                         lark_regex(fmt::format("{}\\x7D", kSpace)));
    }
    if (other_ == OtherAnswer::kFormat) {
      const std::string space = "/[ \\n\\r\\t]{1,64}/?";
      return fmt::format(
          "\"{{\" {0} \"\\\"name\\\"\" {0} \":\" {0} {1} {0} \",\" {0} \"\\\"parameters\\\"\" {0} "
          "\":\" {0} {2} {0} \"}}\"",
          space, lark_string(fmt::format("\"{}\"", tool.name)), schema);
    }
    return fmt::format("{} {} \"}}\"",
                       lark_string(fmt::format("{{\"name\": \"{}\", \"parameters\": ", tool.name)),
                       schema);
  }

  // A regular expression that matches this text only.
  static std::string regex_literal(std::string_view text) {
    constexpr std::string_view kMeaning = ".+*?()|[]{}^$";
    std::string regex;
    for (const char c : text) {
      if (kMeaning.find(c) != std::string_view::npos) regex += '\\';
      regex += c;
    }
    return regex;
  }

  std::string add_schema(std::string text) {
    source_.schemas.push_back(std::move(text));
    return fmt::format("@schema_{}", source_.schemas.size() - 1);
  }

  // An object, even where the schema does not say so; if it says something else, that comes later
  // in the text and counts.
  std::string arguments(const ToolSchema& tool) {
    if (tool.parameters.empty() || tool.any_arguments) return add_schema(R"({"type":"object"})");
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
    if (tool.any_arguments) {
      body = any_dsml_parameters();
    } else if (!tool.parameters.empty()) {
      ASSIGN_OR_RETURN(const JsonDocument schema, JsonDocument::parse(tool.parameters, {}));
      ASSIGN_OR_RETURN(body, dsml_parameters(tool.name, schema.root()));
    }
    return fmt::format("{} {} {}", dsml("<", fmt::format("invoke name=\"{}\">\n", tool.name)), body,
                       dsml("</", "invoke>\n"));
  }

  std::string any_dsml_parameters() {
    if (has_any_rule_) return "any_parameter*";
    has_any_rule_ = true;
    const auto open = [&](std::string_view is_string) {
      const std::string rest =
          fmt::format("parameter name=\"[^\"<>\\r\\n]{{1,256}}\" string=\"{}\">", is_string);
      if (!is_special(kDsml)) return lark_regex(fmt::format("<{}{}", kDsml, rest));
      return fmt::format("{} <[{}]> {}", lark_string("<"), *tokenizer_.find(kDsml),
                         lark_regex(rest));
    };
    const std::string text = dsml_text();
    rules_ += fmt::format("any_parameter: {} {} | {} {} {}\n", open("true"), text, open("false"),
                          add_schema("{}"), dsml("</", "parameter>\n"));
    return "any_parameter*";
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
  OtherAnswer other_ = OtherAnswer::kNone;
  std::vector<std::string> calls_;  // Lark, of each tool
  std::vector<std::string> names_;  // regular expressions, likewise
  bool has_text_rule_ = false;
  bool has_any_rule_ = false;
  std::size_t schema_bytes_ = 0;  // of all parameters, each with its definitions
};

}  // namespace

Result<GrammarSource> grammar_for_tools(std::span<const ToolSchema> tools, const ToolChoice& choice,
                                        ToolCallFormat format, const Tokenizer& tokenizer) {
  return ToolGrammar(tokenizer).make(tools, choice, format);
}

}  // namespace kun
