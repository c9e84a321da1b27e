#include "models/script_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/mapped_file.h"

namespace kun {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{16} << 20;
constexpr std::size_t kTokensMax = std::size_t{4} << 20;  // of all replies and patterns
constexpr std::size_t kRulesMax = 4096;
constexpr int kVocabularyMax = 1 << 20;

// One line, read from left to right.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) { skip_blanks(); }

  // At the end of the line, or at a comment.
  bool done() const { return rest_.empty() || rest_.front() == '#'; }

  std::string_view word() {
    const std::string_view word = rest_.substr(0, rest_.find_first_of(" \t\r\"#"));
    rest_.remove_prefix(word.size());
    skip_blanks();
    return word;
  }

  bool quoted() const { return !rest_.empty() && rest_.front() == '"'; }

  // The bytes of a quoted string; nullopt when it does not end or has an unknown escape.
  std::optional<std::string> string() {
    std::string bytes;
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_.front() != '"') {
      const std::optional<char> byte = rest_.front() == '\\' ? escaped() : plain();
      if (!byte.has_value()) return std::nullopt;
      bytes.push_back(*byte);
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    skip_blanks();
    return bytes;
  }

  std::optional<int> number() {
    const std::string_view digits = word();
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  }

 private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
  }

  std::optional<char> plain() {
    const char byte = rest_.front();
    rest_.remove_prefix(1);
    return byte;
  }

  std::optional<char> escaped() {
    if (rest_.size() < 2) return std::nullopt;
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    switch (kind) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case '"':
      case '\\': return kind;
      case 'x': break;
      default: return std::nullopt;
    }
    unsigned value = 0;
    if (rest_.size() < 2) return std::nullopt;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + 2, value, 16);
    if (error != std::errc() || end != rest_.data() + 2) return std::nullopt;
    rest_.remove_prefix(2);
    return static_cast<char>(static_cast<unsigned char>(value));
  }

  std::string_view rest_;
};

// Border lengths: borders[n] is the longest proper prefix of reply[0, n) that is also its suffix.
std::vector<std::size_t> find_borders(const std::vector<Token>& reply) {
  std::vector<std::size_t> borders(reply.size() + 1, 0);
  std::size_t border = 0;
  for (std::size_t n = 1; n < reply.size(); ++n) {
    while (border > 0 && reply[n] != reply[border]) border = borders[border];
    if (reply[n] == reply[border]) ++border;
    borders[n + 1] = border;
  }
  return borders;
}

class Parser {
 public:
  Result<Script> parse(std::string_view text) {
    while (!text.empty()) {
      ++line_number_;
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      Line rest(line);
      if (rest.done()) continue;
      RETURN_IF_ERROR(directive(rest));
      if (!rest.done()) return wrong("has more than its directive takes");
    }
    if (script_.rules.empty()) return invalid_argument("the script has no rule; add `prompt *`");
    close_rule();
    return std::move(script_);
  }

 private:
  Status wrong(std::string_view what) const {
    return invalid_argument(fmt::format("line {} of the script {}", line_number_, what));
  }

  Status directive(Line& line) {
    const std::string_view name = line.word();
    if (name == "prompt") return prompt(line);
    struct Setting {
      std::string_view name;
      int* value;
      int min;
      int max;
    };
    const Setting settings[] = {
        {"vocab", &script_.vocabulary_size, 2, kVocabularyMax},
        {"end_token", &script_.end_token, 0, kVocabularyMax - 1},
        {"context", &script_.context_length, 2, 1 << 24},
        {"block", &script_.tokens_per_block, 1, 4096},
        {"step_us", &script_.step_us, 0, 60'000'000},
        {"token_us", &script_.token_us, 0, 60'000'000},
    };
    for (const Setting& setting : settings) {
      if (name != setting.name) continue;
      if (!script_.rules.empty()) return wrong("sets something after the first rule");
      return number(line, setting.min, setting.max, *setting.value);
    }
    if (name == "after") {
      if (!script_.rules.empty()) return wrong("sets something after the first rule");
      return tokens(line, script_.after);
    }
    if (script_.rules.empty()) return wrong("has a directive that belongs behind a `prompt`");
    return reply(name, line);
  }

  Status prompt(Line& line) {
    if (script_.end_token >= script_.vocabulary_size) {
      return wrong("opens a rule, and end_token is not below vocab");
    }
    if (script_.rules.size() >= kRulesMax) return wrong("has one rule too many");
    close_rule();
    ScriptRule& rule = script_.rules.emplace_back();
    const std::string_view kind = line.word();
    if (kind == "*") return {};
    if (kind == "contains") {
      rule.match = PromptMatch::kContains;
    } else if (kind == "ends") {
      rule.match = PromptMatch::kEnds;
    } else if (kind == "is") {
      rule.match = PromptMatch::kIs;
    } else {
      return wrong("has a `prompt` that is none of *, contains, ends, is");
    }
    return tokens(line, rule.pattern);
  }

  Status reply(std::string_view name, Line& line) {
    ScriptRule& rule = script_.rules.back();
    if (name == "emit") return tokens(line, rule.reply);
    if (name == "repeat") return repeat(line, rule.reply);
    if (name == "end") {
      rule.reply.push_back(script_.end_token);
      return count_tokens(1);
    }
    ScriptEvent event;
    if (const auto known = rule.events.find(rule.reply.size()); known != rule.events.end()) {
      event = known->second;
    }
    if (name == "stall_ms") {
      RETURN_IF_ERROR(number(line, 0, 3'600'000, event.stall_ms));
    } else if (name == "nan") {
      event.nan = true;
    } else if (name == "error") {
      auto text = line.quoted() ? line.string() : std::nullopt;
      if (!text.has_value()) return wrong("has an `error` without a quoted text");
      event.fails = true;
      event.error = *std::move(text);
    } else {
      return wrong(fmt::format("has an unknown directive `{}`", name.substr(0, 40)));
    }
    rule.events[rule.reply.size()] = std::move(event);
    return {};
  }

  Status repeat(Line& line, std::vector<Token>& out) {
    int count = 0;
    RETURN_IF_ERROR(number(line, 1, static_cast<int>(kTokensMax), count));
    std::vector<Token> once;
    RETURN_IF_ERROR(tokens(line, once));
    RETURN_IF_ERROR(count_tokens(once.size() * static_cast<std::size_t>(count)));
    for (int i = 0; i < count; ++i) out.insert(out.end(), once.begin(), once.end());
    return {};
  }

  Status number(Line& line, int min, int max, int& value) {
    const std::optional<int> number = line.number();
    if (!number.has_value() || *number < min || *number > max) {
      return wrong(fmt::format("needs a number from {} to {}", min, max));
    }
    value = *number;
    return {};
  }

  Status tokens(Line& line, std::vector<Token>& out) {
    const std::size_t before = out.size();
    while (!line.done()) {
      if (!line.quoted()) {
        int token = 0;
        RETURN_IF_ERROR(number(line, 0, script_.vocabulary_size - 1, token));
        out.push_back(token);
        continue;
      }
      const auto bytes = line.string();
      if (!bytes.has_value()) return wrong("has a string that is not closed, or a bad escape");
      for (const char byte : *bytes) {
        const Token token = static_cast<unsigned char>(byte);
        if (token >= script_.vocabulary_size) return wrong("has a string with bytes above vocab");
        out.push_back(token);
      }
    }
    if (out.size() == before) return wrong("needs tokens");
    return count_tokens(out.size() - before);
  }

  Status count_tokens(std::size_t count) {
    token_count_ += count;
    return token_count_ <= kTokensMax ? Status() : wrong("makes the script too long");
  }

  void close_rule() {
    if (script_.rules.empty()) return;
    ScriptRule& rule = script_.rules.back();
    if (rule.reply.empty() || rule.reply.back() != script_.end_token ||
        rule.events.contains(rule.reply.size())) {
      rule.reply.push_back(script_.end_token);
    }
    rule.borders = find_borders(rule.reply);
  }

  Script script_;
  int line_number_ = 0;
  std::size_t token_count_ = 0;
};

}  // namespace

bool ScriptRule::fits(std::span<const Token> prompt) const {
  switch (match) {
    case PromptMatch::kAny: return true;
    // clang 14 cannot compile the ranges' search and find_end of libstdc++ 12.
    case PromptMatch::kContains:
      return std::search(prompt.begin(), prompt.end(), pattern.begin(), pattern.end()) !=
             prompt.end();
    case PromptMatch::kEnds:
      return prompt.size() >= pattern.size() &&
             std::ranges::equal(prompt.last(pattern.size()), pattern);
    case PromptMatch::kIs: return std::ranges::equal(prompt, pattern);
  }
  return false;
}

Script::Place Script::locate(std::span<const Token> text) const {
  if (!after.empty()) {
    const auto last = std::find_end(text.begin(), text.end(), after.begin(), after.end());
    const std::size_t prompt_size =
        last == text.end() ? text.size()
                           : static_cast<std::size_t>(last - text.begin()) + after.size();
    for (const ScriptRule& rule : rules) {
      if (!rule.fits(text.first(prompt_size))) continue;
      return {&rule, (text.size() - prompt_size) % rule.reply.size()};
    }
    return {};
  }
  Place place;
  std::size_t longest = 0;
  for (const ScriptRule& rule : rules) {
    // The longest tail of the text that is a start of the reply.
    std::size_t given = 0;
    const std::size_t tail = std::min(text.size(), rule.reply.size());
    for (const Token token : text.last(tail)) {
      while (given > 0 && (given == rule.reply.size() || rule.reply[given] != token)) {
        given = rule.borders[given];
      }
      if (rule.reply[given] == token) ++given;
    }
    // At least one token is prompt, and it must be one the rule is for.
    while (given > 0 && (given == text.size() || !rule.fits(text.first(text.size() - given)))) {
      given = rule.borders[given];
    }
    const bool first_fit = place.rule == nullptr && (given > 0 || rule.fits(text));
    if (!first_fit && given <= longest) continue;
    place = {&rule, given % rule.reply.size()};
    longest = given;
  }
  return place;
}

Result<Script> parse_script(std::string_view text) {
  if (text.size() > kFileBytesMax) {
    return invalid_argument(
        fmt::format("the script has {} bytes, and {} is the limit", text.size(), kFileBytesMax));
  }
  return Parser().parse(text);
}

Result<Script> read_script(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  auto script =
      parse_script({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (script.has_value()) return script;
  return Status(script.error().code(),
                fmt::format("{}: {}", path.string(), script.error().message()));
}

}  // namespace kun
