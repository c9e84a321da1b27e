#include "server/choice_text.h"

namespace kun {
namespace {

DetokenizerOptions detokenizer_options(const ChoiceText::Options& options) {
  DetokenizerOptions made;
  made.skip_special_tokens = options.skip_special_tokens;
  made.spaces_between_special_tokens = options.spaces_between_special_tokens;
  made.kept_special = options.kept_special.get();
  made.starts_text = false;  // it continues the prompt
  return made;
}

}  // namespace

ChoiceText::ChoiceText(const Options& options)
    : stops_(options.stops),
      kept_special_(options.kept_special),
      detokenizer_(*options.tokenizer, detokenizer_options(options)),
      matcher_(*stops_, options.include_stop) {}

bool ChoiceText::add(Token token, bool check_stops) {
  std::string text;
  detokenizer_.push(token, text);
  if (!check_stops) {
    ready_ += text;
    return false;
  }
  ready_ += matcher_.feed(text).emit;
  return matcher_.match().has_value();
}

void ChoiceText::finish() {
  if (matcher_.match()) return;
  std::string rest;
  detokenizer_.finish(rest);
  ready_ += matcher_.feed(rest).emit;
  ready_ += matcher_.finish();
}

const std::string* ChoiceText::stop_string() const {
  return matcher_.match() ? &stops_->at(matcher_.match()->index) : nullptr;
}

}  // namespace kun
