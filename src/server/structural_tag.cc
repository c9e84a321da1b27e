#include "server/structural_tag.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/lark_text.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kPartsMax = 256;

class TagReader {
 public:
  Result<GrammarSource> read(JsonView tag) {
    std::string start;
    if (const auto format = tag.find("format")) {
      ASSIGN_OR_RETURN(start, part(*format));
    } else {
      ASSIGN_OR_RETURN(start, structures(tag));
    }
    source_.kind = GrammarKind::kLark;
    source_.text = "start: " + start + "\nTAG_TEXT: /(.|\\n)*/\n" + rules_;
    return std::move(source_);
  }

 private:
  struct Tag {
    std::string begin;
    std::string rest;  // Lark, from behind `begin` to its end
  };

  static Result<std::string> string_of(JsonView object, std::string_view name) {
    const auto value = object.find(name);
    if (!value || !value->is(Kind::kString)) {
      return invalid_argument(fmt::format("\"{}\" must be a string", name));
    }
    return std::string(value->string());
  }

  static Result<JsonView> list_of(JsonView object, std::string_view name) {
    const auto value = object.find(name);
    if (!value || !value->is(Kind::kArray) || value->size() == 0 || value->size() > kPartsMax) {
      return invalid_argument(
          fmt::format("\"{}\" must be an array of 1 to {} elements", name, kPartsMax));
    }
    return *value;
  }

  std::string schema(JsonView value) {
    std::string text;
    value.print(text);
    source_.schemas.push_back(std::move(text));
    return fmt::format("@schema_{}", source_.schemas.size() - 1);
  }

  // {"begin": ..., "schema" or "content": ..., "end": ...}
  Result<Tag> tag(JsonView value) {
    if (!value.is(Kind::kObject)) return invalid_argument("a tag must be an object");
    Tag tag;
    ASSIGN_OR_RETURN(tag.begin, string_of(value, "begin"));
    ASSIGN_OR_RETURN(const std::string end, string_of(value, "end"));
    if (tag.begin.empty()) return invalid_argument("\"begin\" must not be empty");
    const auto content = value.find("content");
    const auto schema_value = value.find("schema");
    std::string body;
    if (content && content->is(Kind::kObject) && is_any_text(*content)) {
      if (end.empty()) return invalid_argument("a tag with any text needs an end");
      tag.rest = add_rule(fmt::format("[lazy]: TAG_TEXT {}", lark_string(end)));
      return tag;
    }
    if (content) {
      ASSIGN_OR_RETURN(body, part(*content));
    } else if (schema_value) {
      body = schema(*schema_value);
    } else {
      return invalid_argument("a tag needs \"schema\" or \"content\"");
    }
    tag.rest = fmt::format("({})", body);
    if (!end.empty()) tag.rest += ' ' + lark_string(end);
    return tag;
  }

  static bool is_any_text(JsonView value) {
    const auto type = value.find("type");
    return type && type->is(Kind::kString) && type->string() == "any_text";
  }

  std::string add_rule(std::string_view definition) {
    std::string name = fmt::format("part_{}", rule_count_++);
    rules_ += fmt::format("{}{}\n", name, definition);
    return name;
  }

  // Text in which each of the triggers leads into one of the tags that begin with it.
  Result<std::string> triggered(JsonView triggers, JsonView tags, bool at_least_one,
                                bool stop_after_first) {
    std::vector<Tag> all;
    for (std::size_t i = 0; i < tags.size(); ++i) {
      ASSIGN_OR_RETURN(Tag one, tag(tags.at(i)));
      all.push_back(std::move(one));
    }
    std::vector<bool> used(all.size(), false);
    std::string options;
    for (std::size_t i = 0; i < triggers.size(); ++i) {
      const JsonView trigger = triggers.at(i);
      if (!trigger.is(Kind::kString) || trigger.string().empty()) {
        return invalid_argument("a trigger must be a string that is not empty");
      }
      std::string rest;
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (used[k] || !all[k].begin.starts_with(trigger.string())) continue;
        used[k] = true;
        const std::string_view after =
            std::string_view(all[k].begin).substr(trigger.string().size());
        rest += rest.empty() ? "" : " | ";
        if (!after.empty()) rest += lark_string(after) + ' ';
        rest += all[k].rest;
      }
      if (rest.empty()) continue;
      const std::string found =
          add_rule(fmt::format("[lazy]: TAG_TEXT {}", lark_string(trigger.string())));
      options += options.empty() ? "" : " | ";
      options += fmt::format("{} ({})", found, rest);
    }
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!used[k]) return invalid_argument("a tag begins with none of the triggers");
    }
    if (stop_after_first) return fmt::format("({}){}", options, at_least_one ? "" : " | TAG_TEXT");
    return fmt::format("({}){} TAG_TEXT", options, at_least_one ? '+' : '*');
  }

  Result<std::string> structures(JsonView tag) {
    ASSIGN_OR_RETURN(const JsonView tags, list_of(tag, "structures"));
    ASSIGN_OR_RETURN(const JsonView triggers, list_of(tag, "triggers"));
    return triggered(triggers, tags, false, false);
  }

  static bool flag(JsonView value, std::string_view name) {
    const auto member = value.find(name);
    return member && member->is(Kind::kBool) && member->boolean();
  }

  Result<std::string> part(JsonView value) {
    if (!value.is(Kind::kObject)) return invalid_argument("a part of a format must be an object");
    if (++part_count_ > kPartsMax) return invalid_argument("the format has too many parts");
    ASSIGN_OR_RETURN(const std::string type, string_of(value, "type"));
    if (type == "const_string") {
      ASSIGN_OR_RETURN(const std::string text, string_of(value, "value"));
      return lark_string(text);
    }
    if (type == "json_schema") {
      const auto of = value.find("json_schema");
      if (!of) return invalid_argument("\"json_schema\" is missing");
      return schema(*of);
    }
    if (type == "regex") {
      ASSIGN_OR_RETURN(const std::string pattern, string_of(value, "pattern"));
      return lark_regex(pattern);
    }
    if (type == "any_text") return std::string("TAG_TEXT");
    if (type == "sequence" || type == "or") return list(value, type == "or" ? " | " : " ");
    if (type == "tag") {
      ASSIGN_OR_RETURN(const Tag one, tag(value));
      return fmt::format("({} {})", lark_string(one.begin), one.rest);
    }
    if (type == "triggered_tags") {
      ASSIGN_OR_RETURN(const JsonView tags, list_of(value, "tags"));
      ASSIGN_OR_RETURN(const JsonView triggers, list_of(value, "triggers"));
      ASSIGN_OR_RETURN(
          const std::string text,
          triggered(triggers, tags, flag(value, "at_least_one"), flag(value, "stop_after_first")));
      return fmt::format("({})", text);
    }
    return invalid_argument(fmt::format("the type {:.40} of a format is not supported", type));
  }

  Result<std::string> list(JsonView value, std::string_view separator) {
    ASSIGN_OR_RETURN(const JsonView elements, list_of(value, "elements"));
    std::string text = "(";
    for (std::size_t i = 0; i < elements.size(); ++i) {
      ASSIGN_OR_RETURN(const std::string one, part(elements.at(i)));
      if (i > 0) text += separator;
      text += one;
    }
    return text + ')';
  }

  GrammarSource source_;
  std::string rules_;
  int rule_count_ = 0;
  std::size_t part_count_ = 0;
};

}  // namespace

Result<GrammarSource> grammar_of_structural_tag(JsonView tag) {
  return TagReader().read(tag);
}

}  // namespace kun
