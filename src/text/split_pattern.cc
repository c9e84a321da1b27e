// One pass over the pattern, copying what both dialects read alike. The start of the last atom in
// the output is remembered, since x{n,m}+ has to be put in parentheses after the fact.
#include "text/split_pattern.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "text/utf8.h"

namespace kun {

// PCRE2's own \s has U+180E in addition.
const std::string_view kWhiteSpaceRanges =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f})"
    R"(\x{3000})";

namespace {

constexpr std::string_view kWordRanges = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr int kDepthMax = 32;
constexpr std::size_t kPatternBytesMax = 64U << 10U;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run();

 private:
  bool done() const { return at_ >= in_.size(); }
  bool looking_at(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  Status refuse(std::string_view what) const {
    return unimplemented(
        fmt::format("the split pattern has {} at byte {}, which is not supported", what, at_));
  }

  Status translate_atom();
  Status translate_escape();
  Status open_group();
  Status close_group();
  Status translate_quantifier();
  Status translate_interval();
  Result<std::string> translate_class(int depth);
  Status class_item(std::string& items, int depth);
  Status nested_class(std::string& items, int depth);
  Result<std::string> shared_escape();
  Result<std::string> hex_escape();

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::optional<std::size_t> atom_;  // where the last atom starts in out_
  std::vector<std::size_t> groups_;
};

Result<std::string> Translator::run() {
  if (in_.size() > kPatternBytesMax) return invalid_argument("the split pattern is too long");
  while (!done()) RETURN_IF_ERROR(translate_atom());
  if (!groups_.empty()) return invalid_argument("the split pattern leaves a parenthesis open");
  return std::move(out_);
}

Status Translator::translate_atom() {
  const char c = in_[at_];
  switch (c) {
    case '\\': return translate_escape();
    case '(': return open_group();
    case ')': return close_group();
    case '*':
    case '+':
    case '?': return translate_quantifier();
    case '[': {
      const std::size_t start = out_.size();
      ASSIGN_OR_RETURN(std::string set, translate_class(0));
      out_ += set;
      atom_ = start;
      return {};
    }
    case '|':
    case '^':
    case '$':
      out_ += c;
      ++at_;
      atom_.reset();
      return {};
    default: break;
  }
  if (c == '{' && atom_.has_value()) return translate_interval();
  const std::size_t length = utf8_length(c);
  atom_ = out_.size();
  if (c == '{' || c == '}') out_ += '\\';
  out_ += in_.substr(at_, length);
  at_ += length;
  return {};
}

Result<std::string> Translator::hex_escape() {  // at "\xHH", "\x{H...}" or "\uHHHH"
  const bool braces = looking_at("\\x{");
  const std::size_t start = at_ + (braces ? 3 : 2);
  const std::size_t digits_max = braces ? 8 : in_[at_ + 1] == 'u' ? 4 : 2;
  std::size_t end = start;
  while (end < in_.size() && end - start < digits_max &&
         std::string_view("0123456789abcdefABCDEF").find(in_[end]) != std::string_view::npos) {
    ++end;
  }
  if (end == start || (braces && (end >= in_.size() || in_[end] != '}'))) {
    return refuse("an unreadable character code");
  }
  std::string code = fmt::format("\\x{{{}}}", in_.substr(start, end - start));
  at_ = end + (braces ? 1 : 0);
  return code;
}

// Escapes that mean the same inside and outside of a class.
Result<std::string> Translator::shared_escape() {
  if (at_ + 1 >= in_.size()) return refuse("a backslash at its end");
  const char c = in_[at_ + 1];
  if (c == 'x' || c == 'u') return hex_escape();
  if (c == 'p' || c == 'P') {
    const std::size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == std::string_view::npos) {
      return refuse("an unreadable \\p");
    }
    std::string property(in_.substr(at_, end + 1 - at_));
    at_ = end + 1;
    return property;
  }
  if (!is_letter_or_digit(c)) {
    std::string literal(in_.substr(at_, 1 + utf8_length(c)));
    at_ += literal.size();
    return literal;
  }
  at_ += 2;
  switch (c) {
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e': return std::string{'\\', c};
    case 'v': return std::string("\\x{b}");
    case '0': return std::string("\\x{0}");
    case 'd': return std::string("\\p{Nd}");
    case 'D': return std::string("\\P{Nd}");
    default: break;
  }
  at_ -= 2;
  return refuse(fmt::format("\\{}", c));
}

Status Translator::translate_escape() {
  const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
  const std::size_t start = out_.size();
  if (c == 'b' || c == 'B' || c == 'A' || c == 'z' || c == 'Z') {
    out_ += in_.substr(at_, 2);
    at_ += 2;
    atom_.reset();
    return {};
  }
  if (c == 's' || c == 'S') {
    out_ += fmt::format("[{}{}]", c == 'S' ? "^" : "", kWhiteSpaceRanges);
    at_ += 2;
  } else if (c == 'w' || c == 'W') {
    out_ += fmt::format("[{}{}]", c == 'W' ? "^" : "", kWordRanges);
    at_ += 2;
  } else {
    ASSIGN_OR_RETURN(std::string escape, shared_escape());
    out_ += escape;
  }
  atom_ = start;
  return {};
}

Status Translator::open_group() {
  if (groups_.size() >= kDepthMax) return refuse("too many nested parentheses");
  std::string_view opening = "(";
  for (const std::string_view known :
       {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
    if (looking_at(known)) opening = known;
  }
  if (opening == "(" && looking_at("(?")) return refuse("an unknown kind of group");
  groups_.push_back(out_.size());
  out_ += opening == "(" ? "(?:" : opening;  // nobody reads captures
  at_ += opening.size();
  atom_.reset();
  return {};
}

Status Translator::close_group() {
  if (groups_.empty()) return refuse("a parenthesis that was never opened");
  out_ += ')';
  ++at_;
  atom_ = groups_.back();
  groups_.pop_back();
  return {};
}

Status Translator::translate_quantifier() {
  if (!atom_.has_value()) return refuse("a repetition of nothing");
  out_ += in_[at_++];
  if (!done() && (in_[at_] == '?' || in_[at_] == '+')) out_ += in_[at_++];
  if (!done() && (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?')) {
    out_.insert(*atom_, "(?:");
    out_ += ')';
    return {};  // the next quantifier repeats this one
  }
  return {};
}

// {n}, {n,}, {,m}, {n,m}: never possessive in Ruby's syntax, and {n}? is optional, not lazy.
Status Translator::translate_interval() {
  const std::size_t close = in_.find('}', at_);
  if (close == std::string_view::npos) return refuse("an open brace");
  const std::string_view bounds = in_.substr(at_ + 1, close - at_ - 1);
  const std::size_t comma = bounds.find(',');
  const std::string_view low = bounds.substr(0, comma);
  const std::string_view high =
      comma == std::string_view::npos ? std::string_view{} : bounds.substr(comma + 1);
  bool digits_only = low.size() <= 4 && high.size() <= 4 && !(low.empty() && high.empty());
  for (const char c : low) digits_only = digits_only && is_digit(c);
  for (const char c : high) digits_only = digits_only && is_digit(c);
  if (!digits_only) return refuse("an unreadable {n,m}");
  out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low,
                      comma == std::string_view::npos ? "" : ",", high);
  at_ = close + 1;
  if (done()) return {};
  const bool lazy = in_[at_] == '?' && comma != std::string_view::npos;
  if (lazy) {
    out_ += in_[at_++];
  } else if (in_[at_] == '+' || in_[at_] == '*' || in_[at_] == '?' || in_[at_] == '{') {
    out_.insert(*atom_, "(?:");
    out_ += ')';
  }
  return {};
}

// A class as one PCRE2 atom. [x&&y] becomes (?:(?=[y])[x]).
Result<std::string> Translator::translate_class(int depth) {
  if (depth > kDepthMax) return refuse("too many nested classes");
  ++at_;
  const bool negated = !done() && in_[at_] == '^';
  if (negated) ++at_;
  std::string items;
  std::string conditions;
  const auto close_operand = [&items, &conditions] {
    conditions += fmt::format("(?=[{}])", items);
    items.clear();
  };
  if (!done() && in_[at_] == ']') return refuse("an empty class");
  while (!done() && in_[at_] != ']') {
    if (looking_at("&&")) {
      if (items.empty()) return refuse("a class starting with &&");
      close_operand();
      at_ += 2;
    } else {
      RETURN_IF_ERROR(class_item(items, depth));
    }
  }
  if (done()) return refuse("an open class");
  ++at_;
  if (items.empty()) return refuse("an empty class");
  if (conditions.empty()) return fmt::format("[{}{}]", negated ? "^" : "", items);
  std::string both = fmt::format("(?:{}[{}])", conditions, items);
  return negated ? fmt::format("(?:(?!{})(?s:.))", both) : both;
}

Status Translator::class_item(std::string& items, int depth) {
  if (!items.empty() && items.front() == '^' && items.size() > 1) {
    return refuse("a union with a negated class");
  }
  const char c = in_[at_];
  if (looking_at("[:")) {
    const std::size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) return refuse("an open class");
    items += in_.substr(at_, close + 2 - at_);
    at_ = close + 2;
    return {};
  }
  if (c == '[') return nested_class(items, depth);
  if (c != '\\') {
    const std::size_t length = utf8_length(c);
    if (c == '^') items += '\\';  // never first in what is written, but operands are moved
    items += in_.substr(at_, length);
    at_ += length;
    return {};
  }
  const char escaped = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
  if (escaped == 's' || escaped == 'S' || escaped == 'w') {
    items += escaped == 'w' ? kWordRanges : escaped == 's' ? kWhiteSpaceRanges : R"(\S\x{180e})";
    at_ += 2;
    return {};
  }
  if (escaped == 'b') {
    items += "\\x{8}";
    at_ += 2;
    return {};
  }
  ASSIGN_OR_RETURN(std::string escape, shared_escape());
  items += escape;
  return {};
}

// A class inside a class is a union; a negated one is only written as a whole operand of &&.
Status Translator::nested_class(std::string& items, int depth) {
  ASSIGN_OR_RETURN(const std::string set, translate_class(depth + 1));
  if (set.front() != '[') return refuse("a nested intersection");
  const std::string_view inner = std::string_view(set).substr(1, set.size() - 2);
  if (inner.front() == '^' && !items.empty()) return refuse("a union with a negated class");
  if (inner.front() == '^' && !done() && in_[at_] != ']' && !looking_at("&&")) {
    return refuse("a union with a negated class");
  }
  items += inner;
  return {};
}

}  // namespace

Result<std::string> translate_split_pattern(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) return invalid_argument("the split pattern is not valid UTF-8");
  return Translator(pattern).run();
}

}  // namespace kun
