// What a step costs, learnt from the steps that ran: a fixed part (weights are read once whatever
// the batch) and a part per token. It sets how many prompt tokens may join running readers.
#pragma once

#include <cstdint>

namespace kun {

// What is left of a step while it is composed.
struct StepBudget {
  int total = 0;         // tokens of any kind
  int prompt = 0;        // tokens of prompts, resumed sequences included
  int decode_count = 0;  // one token each is set aside for decoding sequences still to come
  int kept = 0;          // tokens that drafts leave to prompts
  int slots = 0;         // choices that may still start to run
};

// A least-squares line through (tokens, microseconds) in which older steps weigh less.
class StepCost {
 public:
  void observe(int token_count, std::int64_t elapsed_us);

  // False until the first step was seen.
  bool known() const { return weight_ > 0.0; }

  // How many tokens beside `token_count` others keep a step within `target_us`; may be negative.
  double tokens_within(double target_us, int token_count) const;

  // What a step of `token_count` tokens takes.
  double step_us(int token_count) const { return fixed_us_ + per_token_us_ * token_count; }

  double fixed_us() const { return fixed_us_; }
  double per_token_us() const { return per_token_us_; }

 private:
  double weight_ = 0.0;
  double tokens_ = 0.0;  // weighted sums
  double time_ = 0.0;
  double tokens_tokens_ = 0.0;
  double tokens_time_ = 0.0;
  double fixed_us_ = 0.0;
  double per_token_us_ = 0.0;
};

}  // namespace kun
