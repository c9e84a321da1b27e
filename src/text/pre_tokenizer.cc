// Implements the split behaviours of Hugging Face's tokenizers. Isolated, which nearly every step
// of every model is, writes pieces as it finds matches; the others first collect what matched and
// what did not.
#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/utf8.h"

namespace kun {
namespace {

using Span = PreTokenizerScratch::Span;

constexpr std::size_t kStepCountMax = 64;

// Calls visit(begin, end) for every match in order. An empty match where the last one ended is
// none, as in Oniguruma's iteration.
template <class Find, class Visit>
void for_each_match(std::string_view text, const Find& find, const Visit& visit) {
  std::size_t from = 0;
  std::size_t last_end = text.size() + 1;
  while (from <= text.size()) {
    const std::optional<TextRange> match = find(from);
    if (!match.has_value()) return;
    if (match->end > match->begin) {
      visit(match->begin, match->end);
      from = last_end = match->end;
      continue;
    }
    if (match->begin != last_end) visit(match->begin, match->end);
    last_end = match->end;
    if (match->end >= text.size()) return;
    from = match->end + utf8_length(text[match->end]);
  }
}

// The last span of `spans` is extended to the new one when `join` says so.
void join_or_push(std::vector<Span>& spans, const Span& span, bool join) {
  if (join && !spans.empty()) {
    spans.back().end = span.end;
  } else {
    spans.push_back(span);
  }
}

void merge_spans(SplitBehavior behavior, std::vector<Span>& spans) {
  std::vector<Span> merged;
  merged.reserve(spans.size());
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious:
      for (const Span& span : spans) {
        join_or_push(merged, span, span.is_match && !previous);
        previous = span.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      // From the end: a match takes the piece behind it along, unless that is a match as well.
      for (std::size_t i = spans.size(); i-- > 0;) {
        if (spans[i].is_match && !previous && !merged.empty()) {
          merged.back().begin = spans[i].begin;
        } else {
          merged.push_back(spans[i]);
        }
        previous = spans[i].is_match;
      }
      std::reverse(merged.begin(), merged.end());
      break;
    case SplitBehavior::kContiguous:
      for (const Span& span : spans) {
        join_or_push(merged, span, span.is_match == previous);
        previous = span.is_match;
      }
      break;
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved: return;
  }
  spans = std::move(merged);
}

void add_prefix_space(std::string_view piece, PreTokenizerScratch& scratch) {
  if (piece.starts_with(' ')) {
    scratch.next.push_back(piece);
    return;
  }
  scratch.next.push_back(scratch.rewritten.emplace_back(" ").append(piece));
}

void replace_spaces(const SplitSpec& spec, std::string_view piece, bool starts_input,
                    PreTokenizerScratch& scratch) {
  const bool prepend = spec.prepend == PrependScheme::kAlways ||
                       (spec.prepend == PrependScheme::kFirst && starts_input);
  std::string& text = scratch.rewritten.emplace_back();
  text.reserve(piece.size() + piece.size() / 2 + spec.pattern.size());
  if (prepend && !piece.starts_with(' ') && !piece.starts_with(spec.pattern)) text += spec.pattern;
  for (const char c : piece) {
    if (c == ' ') {
      text += spec.pattern;
    } else {
      text += c;
    }
  }
  scratch.next.push_back(text);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(const std::vector<SplitSpec>& specs) {
  if (specs.size() > kStepCountMax) {
    return invalid_argument(
        fmt::format("the tokenizer has {} split steps, more than {}", specs.size(), kStepCountMax));
  }
  PreTokenizer cutter;
  for (const SplitSpec& spec : specs) {
    if (spec.kind != SplitKind::kPrefixSpace && spec.pattern.empty()) {
      return invalid_argument("a split step of the tokenizer has an empty pattern");
    }
    Step step{.spec = spec, .regex = {}};
    if (spec.kind == SplitKind::kRegex) {
      ASSIGN_OR_RETURN(Regex regex, Regex::compile(spec.pattern));
      step.regex.push_back(std::move(regex));
    }
    cutter.steps_.push_back(std::move(step));
  }
  return cutter;
}

void PreTokenizer::split(const Step& step, std::string_view piece, PreTokenizerScratch& scratch) {
  const auto find = [&](std::size_t from) -> std::optional<TextRange> {
    if (step.spec.kind == SplitKind::kRegex) {
      return step.regex.front().find(piece, from, scratch.regex);
    }
    const std::size_t at = piece.find(step.spec.pattern, from);
    if (at == std::string_view::npos) return std::nullopt;
    return TextRange{at, at + step.spec.pattern.size()};
  };
  std::size_t done = 0;
  if (step.spec.behavior == SplitBehavior::kIsolated) {
    const auto emit = [&](std::size_t begin, std::size_t end) {
      if (end > begin) scratch.next.push_back(piece.substr(begin, end - begin));
    };
    for_each_match(piece, find, [&](std::size_t begin, std::size_t end) {
      emit(done, begin);
      emit(begin, end);
      done = end;
    });
    emit(done, piece.size());
    return;
  }
  scratch.spans.clear();
  const bool match = !step.spec.invert;
  for_each_match(piece, find, [&](std::size_t begin, std::size_t end) {
    if (begin > done) scratch.spans.push_back({done, begin, !match});
    scratch.spans.push_back({begin, end, match});
    done = end;
  });
  if (done < piece.size()) scratch.spans.push_back({done, piece.size(), !match});
  merge_spans(step.spec.behavior, scratch.spans);
  const bool removed = step.spec.behavior == SplitBehavior::kRemoved;
  for (const Span& span : scratch.spans) {
    if (span.end == span.begin || (removed && span.is_match)) continue;
    scratch.next.push_back(piece.substr(span.begin, span.end - span.begin));
  }
}

void PreTokenizer::cut(std::string_view text, bool starts_input,
                       PreTokenizerScratch& scratch) const {
  scratch.pieces.clear();
  scratch.rewritten.clear();
  if (!text.empty()) scratch.pieces.push_back(text);
  for (const Step& step : steps_) {
    scratch.next.clear();
    bool first = starts_input;
    for (const std::string_view piece : scratch.pieces) {
      switch (step.spec.kind) {
        case SplitKind::kPrefixSpace: add_prefix_space(piece, scratch); break;
        case SplitKind::kMetaspace: replace_spaces(step.spec, piece, first, scratch); break;
        case SplitKind::kRegex:
        case SplitKind::kText: split(step, piece, scratch); break;
      }
      first = false;
    }
    std::swap(scratch.pieces, scratch.next);
  }
}

}  // namespace kun
