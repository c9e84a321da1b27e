// The Unicode forms come from utf8proc. Most text is in NFC already, and a look at its code points
// shows it: they lie in ranges where no character combines or decomposes.
#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <optional>

#include "text/utf8.h"

namespace kun {
namespace {

constexpr std::size_t kStepCountMax = 64;

// Characters with NFC_Quick_Check=Yes and combining class 0: text of them alone is in NFC. The
// list holds the common ranges, not all such characters.
bool is_nfc_inert(char32_t c) {
  return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) ||
         (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3096) ||
         (c >= 0x30A0 && c <= 0x30FF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFF60);
}

bool is_plainly_nfc(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    if (static_cast<unsigned char>(text[at]) < 0xCC) continue;  // below U+0300
    if (!is_nfc_inert(first_code_point(text.substr(at)))) return false;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

// `text` in a normalization form; unchanged when utf8proc finds no memory for it.
std::string to_form(std::string_view text, unsigned options) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  if (size < 0 || result == nullptr) return std::string(text);
  std::string form(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
  std::free(result);
  return form;
}

std::string to_lower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = first_code_point(text.substr(at));
    if (c == 0x130) {
      lower += "i\xCC\x87";  // the one letter whose lower case is two code points
    } else {
      append_utf8(lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

bool is_space_at(std::string_view text, std::size_t at) {
  const char32_t c = first_code_point(text.substr(at));
  if (c == 0x85 || (c >= 0x9 && c <= 0xD)) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_space_at(text, 0)) text.remove_prefix(utf8_length(text[0]));
  while (right && !text.empty()) {
    const std::size_t last = previous_character(text, text.size());
    if (!is_space_at(text, last)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string replace_text(std::string_view text, std::string_view pattern,
                         std::string_view content) {
  std::string replaced;
  replaced.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  for (std::size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, done)) {
    replaced += text.substr(done, at - done);
    replaced += content;
    done = at + pattern.size();
  }
  replaced += text.substr(done);
  return replaced;
}

std::string replace_regex(std::string_view text, const Regex& regex, std::string_view content,
                          RegexScratch& scratch) {
  std::string replaced;
  std::size_t done = 0;
  std::size_t from = 0;
  while (const std::optional<TextRange> match = regex.find(text, from, scratch)) {
    replaced += text.substr(done, match->begin - done);
    replaced += content;
    done = from = match->end;
    if (match->end > match->begin) continue;
    if (from == text.size()) break;
    from += utf8_length(text[from]);
  }
  replaced += text.substr(done);
  return replaced;
}

std::string apply(const NormalizerSpec& spec, std::string_view text) {
  switch (spec.kind) {
    case NormalizerKind::kNfc: return to_form(text, UTF8PROC_COMPOSE);
    case NormalizerKind::kNfd: return to_form(text, UTF8PROC_DECOMPOSE);
    case NormalizerKind::kNfkc: return to_form(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case NormalizerKind::kNfkd: return to_form(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case NormalizerKind::kLowercase: return to_lower(text);
    case NormalizerKind::kPrepend: return spec.content + std::string(text);
    case NormalizerKind::kReplaceText: return replace_text(text, spec.pattern, spec.content);
    case NormalizerKind::kReplaceRegex:
    case NormalizerKind::kStrip: break;
  }
  return std::string(text);
}

// Whether a step leaves `text` as it is, where that is quickly seen.
bool changes_nothing(const NormalizerSpec& spec, std::string_view text) {
  switch (spec.kind) {
    case NormalizerKind::kNfc: return is_plainly_nfc(text);
    case NormalizerKind::kNfd:
    case NormalizerKind::kNfkc:
    case NormalizerKind::kNfkd: return is_ascii(text);
    case NormalizerKind::kReplaceText: return text.find(spec.pattern) == std::string_view::npos;
    case NormalizerKind::kLowercase:
    case NormalizerKind::kPrepend:
    case NormalizerKind::kReplaceRegex:
    case NormalizerKind::kStrip: break;
  }
  return false;
}

}  // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizerSpec>& specs) {
  if (specs.size() > kStepCountMax) {
    return invalid_argument(
        fmt::format("the tokenizer has {} normalizers, more than {}", specs.size(), kStepCountMax));
  }
  Normalizer normalizer;
  for (const NormalizerSpec& spec : specs) {
    Step step{.spec = spec, .regex = {}};
    if (spec.kind == NormalizerKind::kReplaceText && spec.pattern.empty()) {
      return invalid_argument("a Replace normalizer of the tokenizer has an empty pattern");
    }
    if (spec.kind == NormalizerKind::kReplaceRegex) {
      ASSIGN_OR_RETURN(Regex regex, Regex::compile(spec.pattern));
      step.regex.push_back(std::move(regex));
    }
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage,
                                       RegexScratch& scratch) const {
  for (const Step& step : steps_) {
    if (text.empty() || changes_nothing(step.spec, text)) continue;
    if (step.spec.kind == NormalizerKind::kStrip) {
      text = strip(text, step.spec.strip_left, step.spec.strip_right);
      continue;
    }
    // Made aside, since `text` may lie in `storage`.
    std::string changed = step.regex.empty()
                              ? apply(step.spec, text)
                              : replace_regex(text, step.regex.front(), step.spec.content, scratch);
    storage = std::move(changed);
    text = storage;
  }
  return text;
}

}  // namespace kun
