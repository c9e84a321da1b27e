#include "server/beam_fields.h"

#include <string_view>

namespace kun {
namespace {

using Kind = JsonView::Kind;

EarlyStopping read_early_stopping(FieldReader& reader) {
  const auto value = reader.any("early_stopping");
  if (!value) return EarlyStopping::kWhenSettled;
  if (value->is(Kind::kString) && value->string() == "never") return EarlyStopping::kNever;
  if (!value->is(Kind::kBool)) {
    reader.fail("early_stopping", "early_stopping must be true, false or \"never\"");
    return EarlyStopping::kWhenSettled;
  }
  return value->boolean() ? EarlyStopping::kWhenEnough : EarlyStopping::kWhenSettled;
}

// What shapes a distribution that is sampled from: a beam search samples nothing.
void refuse_sampling(FieldReader& reader) {
  struct Setting {
    std::string_view name;
    double neutral;
    double other;  // which means the same
  };
  constexpr Setting kSettings[] = {{"temperature", 0.0, 1.0},
                                   {"top_p", 1.0, 1.0},
                                   {"top_k", 0.0, -1.0},
                                   {"min_p", 0.0, 0.0},
                                   {"repetition_penalty", 1.0, 1.0},
                                   {"frequency_penalty", 0.0, 0.0},
                                   {"presence_penalty", 0.0, 0.0}};
  for (const Setting& setting : kSettings) {
    const auto value = reader.number(setting.name, -1e18, 1e18);
    if (!value || *value == setting.neutral || *value == setting.other) continue;
    reader.fail(setting.name, std::string(setting.name) +
                                  " has no meaning in a beam search, which samples nothing");
  }
  if (const auto bias = reader.object("logit_bias"); bias && bias->size() > 0) {
    reader.fail("logit_bias", "logit_bias cannot be had in a beam search");
  }
}

class StopWatch final : public OutputWatch {
 public:
  StopWatch(const ChoiceText::Options& options, int output_count_min)
      : text_(options), output_count_min_(output_count_min) {}

  bool take(Token token) override {
    const bool over = text_.add(token, ++output_count_ > output_count_min_);
    text_.take();
    return over;
  }

  std::unique_ptr<OutputWatch> clone() const override { return std::make_unique<StopWatch>(*this); }

 private:
  ChoiceText text_;
  const int output_count_min_;
  int output_count_ = 0;
};

}  // namespace

void read_beam_search(FieldReader& reader, GenerationFields& fields) {
  const bool wanted = reader.boolean("use_beam_search").value_or(false);
  const double penalty = reader.number("length_penalty", -100.0, 100.0).value_or(1.0);
  const EarlyStopping stopping = read_early_stopping(reader);
  if (!wanted) return;
  fields.beams = {fields.sample_count, penalty, stopping};
  fields.sample_count = fields.choice_count;
  if (fields.stream) {
    reader.fail("use_beam_search",
                "a beam search cannot be streamed: the best text is known when it is over");
  }
  if (fields.grammar) {
    reader.fail("use_beam_search",
                "a beam search cannot be constrained: leave out response_format, "
                "structured_outputs and the like");
  }
  if (fields.repetition) {
    reader.fail("repetition_detection", "repetition_detection cannot be had in a beam search");
  }
  refuse_sampling(reader);
  // The sums of a search are of the model's own distribution.
  fields.sampling.temperature = 0.0F;
}

std::shared_ptr<const OutputWatch> make_stop_watch(const ChoiceText::Options& options,
                                                   int output_count_min) {
  return std::make_shared<const StopWatch>(options, output_count_min);
}

}  // namespace kun
