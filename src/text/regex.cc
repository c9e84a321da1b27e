// The only file that knows PCRE2. Subjects are checked for UTF-8 once by the tokenizer, so every
// search runs with the check off. `\s+$` is searched by hand: with an engine that backtracks it
// takes time quadratic in a run of spaces that does not end its line, and a DeepSeek tokenizer has
// this pattern.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <string>

#include "text/split_pattern.h"
#include "text/utf8.h"

namespace kun {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;  // backtracking steps from one starting point
constexpr std::uint32_t kHeapLimitKib = 64U << 10U;
constexpr std::size_t kJitStackMin = 32U << 10U;
constexpr std::size_t kJitStackMax = 16U << 20U;
constexpr std::string_view kTrailingSpace = "\\s+$";

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// `\s+$` from `from`: the white space up to the last place in its run where a line ends.
std::optional<TextRange> find_trailing_space(std::string_view subject, std::size_t from) {
  std::size_t at = from;
  while (at < subject.size()) {
    const std::size_t begin = at;
    std::size_t line_end = begin;
    while (at < subject.size() && is_white_space(first_code_point(subject.substr(at)))) {
      if (subject[at] == '\n') line_end = at;
      at += utf8_length(subject[at]);
    }
    if (at == subject.size()) line_end = at;
    if (line_end > begin) return TextRange{begin, line_end};
    if (at < subject.size()) at += utf8_length(subject[at]);
  }
  return std::nullopt;
}

}  // namespace

struct RegexScratch::Parts {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr);

  Parts() {
    CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexScratch::RegexScratch() : parts_(std::make_unique<Parts>()) {}
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  bool trailing_space = false;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  auto compiled = std::make_unique<Code>();
  if (pattern == kTrailingSpace) {
    compiled->trailing_space = true;
    return Regex(std::move(compiled));
  }
  ASSIGN_OR_RETURN(const std::string translated, translate_split_pattern(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, nullptr);
  if (compiled->code == nullptr) {
    std::array<char, 256> message{};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
    return invalid_argument(
        fmt::format("the split pattern does not compile: {} (at byte {} of its translation)",
                    message.data(), offset));
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(compiled));
}

std::optional<TextRange> Regex::find(std::string_view subject, std::size_t from,
                                     RegexScratch& scratch) const {
  if (subject.empty() || from > subject.size()) return std::nullopt;
  if (code_->trailing_space) return find_trailing_space(subject, from);
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const RegexScratch::Parts& parts = *scratch.parts_;
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit) {
    found = pcre2_jit_match(code_->code, text, subject.size(), from, 0, parts.data, parts.context);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
    found = pcre2_match(code_->code, text, subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        parts.data, parts.context);
  }
  if (found < 0) return std::nullopt;
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(parts.data);
  if (offsets[1] < offsets[0]) return std::nullopt;  // \K in a look-ahead can do this
  return TextRange{offsets[0], offsets[1]};
}

}  // namespace kun
