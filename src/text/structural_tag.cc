#include "text/structural_tag.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/lark_text.h"

namespace kun {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::array;
using simdjson::dom::element;

constexpr std::size_t kPartsMax = 256;
constexpr std::size_t kDepthMax = 64;

class TagReader {
 public:
  Result<GrammarSource> read(element tag) {
    std::string start;
    element format;
    if (tag["format"].get(format) == SUCCESS) {
      ASSIGN_OR_RETURN(start, part(format));
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

  static Result<std::string> string_of(element object, const char* name) {
    std::string_view text;
    if (object[name].get(text) != SUCCESS) {
      return invalid_argument(fmt::format("\"{}\" must be a string", name));
    }
    return std::string(text);
  }

  static Result<array> list_of(element object, const char* name) {
    array list;
    if (object[name].get(list) != SUCCESS || list.size() == 0 || list.size() > kPartsMax) {
      return invalid_argument(
          fmt::format("\"{}\" must be an array of 1 to {} elements", name, kPartsMax));
    }
    return list;
  }

  std::string schema(element value) {
    source_.schemas.emplace_back(simdjson::minify(value));
    return fmt::format("@schema_{}", source_.schemas.size() - 1);
  }

  // {"begin": ..., "schema" or "content": ..., "end": ...}
  Result<Tag> tag(element value) {
    if (!value.is_object()) return invalid_argument("a tag must be an object");
    Tag tag;
    ASSIGN_OR_RETURN(tag.begin, string_of(value, "begin"));
    ASSIGN_OR_RETURN(const std::string end, string_of(value, "end"));
    if (tag.begin.empty()) return invalid_argument("\"begin\" must not be empty");
    element content;
    element schema_value;
    const bool has_content = value["content"].get(content) == SUCCESS;
    std::string body;
    if (has_content && is_any_text(content)) {
      if (end.empty()) return invalid_argument("a tag with any text needs an end");
      tag.rest = add_rule(fmt::format("[lazy]: TAG_TEXT {}", lark_string(end)));
      return tag;
    }
    if (has_content) {
      ASSIGN_OR_RETURN(body, part(content));
    } else if (value["schema"].get(schema_value) == SUCCESS) {
      body = schema(schema_value);
    } else {
      return invalid_argument("a tag needs \"schema\" or \"content\"");
    }
    tag.rest = fmt::format("({})", body);
    if (!end.empty()) tag.rest += ' ' + lark_string(end);
    return tag;
  }

  static bool is_any_text(element value) {
    std::string_view type;
    return value["type"].get(type) == SUCCESS && type == "any_text";
  }

  std::string add_rule(std::string_view definition) {
    std::string name = fmt::format("part_{}", rule_count_++);
    rules_ += fmt::format("{}{}\n", name, definition);
    return name;
  }

  // Text in which each of the triggers leads into one of the tags that begin with it.
  Result<std::string> triggered(array triggers, array tags, bool at_least_one,
                                bool stop_after_first) {
    std::vector<Tag> all;
    for (const element given : tags) {
      ASSIGN_OR_RETURN(Tag one, tag(given));
      all.push_back(std::move(one));
    }
    std::vector<bool> used(all.size(), false);
    std::string options;
    for (const element given : triggers) {
      std::string_view trigger;
      if (given.get(trigger) != SUCCESS || trigger.empty()) {
        return invalid_argument("a trigger must be a string that is not empty");
      }
      std::string rest;
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (used[k] || !all[k].begin.starts_with(trigger)) continue;
        used[k] = true;
        const std::string_view after = std::string_view(all[k].begin).substr(trigger.size());
        rest += rest.empty() ? "" : " | ";
        if (!after.empty()) rest += lark_string(after) + ' ';
        rest += all[k].rest;
      }
      if (rest.empty()) continue;
      const std::string found = add_rule(fmt::format("[lazy]: TAG_TEXT {}", lark_string(trigger)));
      options += options.empty() ? "" : " | ";
      options += fmt::format("{} ({})", found, rest);
    }
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!used[k]) return invalid_argument("a tag begins with none of the triggers");
    }
    if (stop_after_first) return fmt::format("({}){}", options, at_least_one ? "" : " | TAG_TEXT");
    return fmt::format("({}){} TAG_TEXT", options, at_least_one ? '+' : '*');
  }

  Result<std::string> structures(element tag) {
    ASSIGN_OR_RETURN(const array tags, list_of(tag, "structures"));
    ASSIGN_OR_RETURN(const array triggers, list_of(tag, "triggers"));
    return triggered(triggers, tags, false, false);
  }

  static bool flag(element value, const char* name) {
    bool is_set = false;
    return value[name].get(is_set) == SUCCESS && is_set;
  }

  Result<std::string> part(element value) {
    if (!value.is_object()) return invalid_argument("a part of a format must be an object");
    if (++part_count_ > kPartsMax) return invalid_argument("the format has too many parts");
    ASSIGN_OR_RETURN(const std::string type, string_of(value, "type"));
    if (type == "const_string") {
      ASSIGN_OR_RETURN(const std::string text, string_of(value, "value"));
      return lark_string(text);
    }
    if (type == "json_schema") {
      element of;
      if (value["json_schema"].get(of) != SUCCESS) {
        return invalid_argument("\"json_schema\" is missing");
      }
      return schema(of);
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
      ASSIGN_OR_RETURN(const array tags, list_of(value, "tags"));
      ASSIGN_OR_RETURN(const array triggers, list_of(value, "triggers"));
      ASSIGN_OR_RETURN(
          const std::string text,
          triggered(triggers, tags, flag(value, "at_least_one"), flag(value, "stop_after_first")));
      return fmt::format("({})", text);
    }
    return invalid_argument(fmt::format("the type {:.40} of a format is not supported", type));
  }

  Result<std::string> list(element value, std::string_view separator) {
    ASSIGN_OR_RETURN(const array elements, list_of(value, "elements"));
    std::string text;
    for (const element given : elements) {
      ASSIGN_OR_RETURN(const std::string one, part(given));
      text += text.empty() ? "(" : separator;
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

Result<GrammarSource> grammar_of_structural_tag(std::string_view tag) {
  simdjson::dom::parser parser;
  element root;
  if (parser.allocate(tag.size(), kDepthMax) != SUCCESS ||
      parser.parse(tag.data(), tag.size()).get(root) != SUCCESS || !root.is_object()) {
    return invalid_argument("a structural tag must be a JSON object");
  }
  return TagReader().read(root);
}

}  // namespace kun
