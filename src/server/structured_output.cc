#include "server/structured_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "text/gbnf.h"
#include "text/lark_text.h"
#include "text/structural_tag.h"
#include "text/utf8.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kTextBytesMax = std::size_t{512} << 10U;

constexpr std::string_view kAnyObject = R"({"type":"object"})";

class StructuredOutputReader {
 public:
  explicit StructuredOutputReader(FieldReader& reader) : reader_(reader) {}

  StructuredOutput read() {
    read_response_format();
    read_structured_outputs();
    read_guided();
    if (whitespace_ && source_) source_->whitespace = *whitespace_;
    return {std::move(source_), std::move(name_)};
  }

 private:
  void demand(std::string_view name, GrammarSource source) {
    if (source_) {
      return reader_.fail(name, fmt::format("{} and {} cannot both be given", name_, name));
    }
    name_ = name;
    source_ = std::move(source);
  }

  void demand(std::string_view name, Result<GrammarSource> source) {
    if (!source) return reader_.fail(name, fmt::format("{}: {}", name, source.error().message()));
    demand(name, *std::move(source));
  }

  // A schema as an object, as JSON text, or true.
  void demand_schema(std::string_view name, JsonView value, bool text_allowed) {
    GrammarSource source;
    source.kind = GrammarKind::kJson;
    std::string text;
    if (value.is(Kind::kObject) || value.is(Kind::kBool)) {
      value.print(text);
    } else if (value.is(Kind::kString) && text_allowed) {
      text = value.string();
    } else {
      return reader_.fail(name, fmt::format("{} must be a JSON schema", name));
    }
    if (text.size() > kTextBytesMax) {
      return reader_.fail(name, fmt::format("{} is longer than {} bytes", name, kTextBytesMax));
    }
    source.schemas.push_back(std::move(text));
    demand(name, std::move(source));
  }

  void demand_text(std::string_view name, GrammarKind kind, std::string_view text) {
    if (text.empty()) return reader_.fail(name, fmt::format("{} must not be empty", name));
    if (kind == GrammarKind::kLark) {
      return demand(name, is_gbnf(text) ? gbnf_to_lark(text) : lark(text));
    }
    GrammarSource source;
    source.kind = kind;
    source.text = text;
    demand(name, std::move(source));
  }

  static Result<GrammarSource> lark(std::string_view text) {
    GrammarSource source;
    source.kind = GrammarKind::kLark;
    source.text = text;
    return source;
  }

  void demand_choice(std::string_view name, JsonView value) {
    std::vector<std::string> choices;
    for (std::size_t i = 0; i < value.size() && choices.size() <= kGrammarChoicesMax; ++i) {
      const JsonView choice = value.at(i);
      if (!choice.is(Kind::kString)) {
        return reader_.fail(name, fmt::format("{} must be an array of strings", name));
      }
      choices.emplace_back(choice.string());
    }
    demand(name, grammar_of_choices(choices));
  }

  void demand_object(std::string_view name) {
    GrammarSource source;
    source.schemas.emplace_back(kAnyObject);
    demand(name, std::move(source));
  }

  void read_response_format() {
    constexpr std::string_view kName = "response_format";
    const auto format = reader_.object(kName);
    if (!format) return;
    const auto type = format->find("type");
    const std::string_view kind =
        type && type->is(Kind::kString) ? type->string() : std::string_view();
    if (kind == "text") return;
    if (kind == "json_object") return demand_object(kName);
    if (kind == "json_schema") return read_json_schema(*format);
    if (kind == "structural_tag") return demand_tag(kName, *format);
    if (kind == "regex" || kind == "grammar") {
      const auto text = format->find(kind == "regex" ? "pattern" : "grammar");
      if (text && text->is(Kind::kString)) {
        const auto of = kind == "regex" ? GrammarKind::kRegex : GrammarKind::kLark;
        return demand_text(kName, of, text->string());
      }
    }
    reader_.fail(kName,
                 "response_format.type must be text, json_object, json_schema or structural_tag");
  }

  void read_json_schema(JsonView format) {
    constexpr std::string_view kName = "response_format";
    const auto wrapper = format.find("json_schema");
    if (!wrapper || !wrapper->is(Kind::kObject)) {
      return reader_.fail(kName, "response_format.json_schema is missing");
    }
    const auto strict = wrapper->find("strict");
    if (strict && !strict->is(Kind::kBool) && !strict->is(Kind::kNull)) {
      return reader_.fail(kName, "response_format.json_schema.strict must be true or false");
    }
    // Enforced whether or not `strict` asks for it. vLLM's old clients write
    // json_schema.json_schema.
    auto schema = wrapper->find("schema");
    if (!schema) schema = wrapper->find("json_schema");
    if (!schema) return reader_.fail(kName, "response_format.json_schema.schema is missing");
    demand_schema(kName, *schema, false);
  }

  void read_structured_outputs() {
    const auto object = reader_.object("structured_outputs");
    if (!object) return;
    FieldReader inner(*object, "structured_outputs.");
    const auto json = inner.any("json");
    const auto regex = inner.string("regex", kTextBytesMax);
    const auto choice = inner.array("choice", kGrammarChoicesMax);
    const auto grammar = inner.string("grammar", kTextBytesMax);
    const auto any_object = inner.boolean("json_object");
    const auto tag = inner.any("structural_tag");
    const auto whitespace = inner.string("whitespace_pattern", 256);
    const bool compact = inner.boolean("disable_any_whitespace").value_or(false);
    const bool closed = inner.boolean("disable_additional_properties").value_or(false);
    inner.ignore({"disable_fallback", "_backend", "_backend_was_auto"});
    if (inner.error()) return reader_.fail("structured_outputs", inner.error()->message);
    if (!inner.unknown().empty()) {
      return reader_.fail("structured_outputs",
                          fmt::format("structured_outputs.{} is not known",
                                      to_valid_utf8(inner.unknown().front())));
    }
    const std::string_view name = "structured_outputs";
    if (json) demand_schema(name, *json, true);
    if (regex) demand_text(name, GrammarKind::kRegex, *regex);
    if (choice) demand_choice(name, *choice);
    if (grammar) demand_text(name, GrammarKind::kLark, *grammar);
    if (any_object.value_or(false)) demand_object(name);
    if (tag) demand_tag(name, *tag);
    if (!source_ && !reader_.failed()) {
      return reader_.fail(name,
                          "structured_outputs needs one of json, regex, choice, grammar, "
                          "json_object and structural_tag");
    }
    if (!source_) return;
    source_->compact = compact;
    source_->no_additional_properties = closed;
    if (whitespace) source_->whitespace = *whitespace;
  }

  // An object, or one as JSON text, as vLLM takes it.
  void demand_tag(std::string_view name, JsonView tag) {
    if (tag.is(Kind::kString)) return demand(name, grammar_of_structural_tag(tag.string()));
    std::string text;
    tag.print(text);
    demand(name, grammar_of_structural_tag(text));
  }

  void read_guided() {
    const auto json = reader_.any("guided_json");
    if (json) demand_schema("guided_json", *json, true);
    const auto regex = reader_.string("guided_regex", kTextBytesMax);
    if (regex) demand_text("guided_regex", GrammarKind::kRegex, *regex);
    const auto choice = reader_.array("guided_choice", kGrammarChoicesMax);
    if (choice) demand_choice("guided_choice", *choice);
    const auto grammar = reader_.string("guided_grammar", kTextBytesMax);
    if (grammar) demand_text("guided_grammar", GrammarKind::kLark, *grammar);
    if (reader_.boolean("guided_json_object").value_or(false)) demand_object("guided_json_object");
    whitespace_ = reader_.string("guided_whitespace_pattern", 256);
    read_other_dialects();
    reader_.ignore({"guided_decoding_backend"});
  }

  // SGLang's and llama.cpp's names.
  void read_other_dialects() {
    const auto regex = reader_.string("regex", kTextBytesMax);
    if (regex) demand_text("regex", GrammarKind::kRegex, *regex);
    const auto ebnf = reader_.string("ebnf", kTextBytesMax);
    if (ebnf) demand_text("ebnf", GrammarKind::kLark, *ebnf);
    const auto grammar = reader_.string("grammar", kTextBytesMax);
    if (grammar) demand_text("grammar", GrammarKind::kLark, *grammar);
    const auto schema = reader_.any("json_schema");
    if (schema) demand_schema("json_schema", *schema, true);
  }

  FieldReader& reader_;
  std::optional<GrammarSource> source_;
  std::string name_;  // of the field that demanded it
  std::optional<std::string_view> whitespace_;
};

}  // namespace

StructuredOutput read_structured_output(FieldReader& reader) {
  return StructuredOutputReader(reader).read();
}

std::string_view thoughts_end(std::string_view prompt) {
  const std::size_t last = prompt.find_last_not_of(" \t\r\n");
  prompt = prompt.substr(0, last == std::string_view::npos ? 0 : last + 1);
  return prompt.ends_with("<think>") ? "</think>" : "";
}

}  // namespace kun
