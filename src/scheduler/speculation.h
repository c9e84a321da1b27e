// How many drafts pay. A draft costs a token's share of the step, right or wrong, and is worth one
// output if it is right; so it pays while its chance to be right is above the price of a draft in
// units of what the step would yield without. Both are learnt from the steps that ran.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/step_cost.h"

namespace kun {

// How drafts fared, older ones weighing less: `tried` counts those that were put to the test, which
// are the right ones and the first wrong one of a step.
struct Acceptance {
  double accepted = 0.0;
  double tried = 0.0;
  int idle_steps = -1;  // since the last draft, while they do not pay; < 0: a new sequence
};

// The scheduler owns it; no clock, no randomness.
class Speculation {
 public:
  Speculation(int draft_count_max, bool adaptive)
      : draft_count_max_(draft_count_max), adaptive_(adaptive) {}

  bool enabled() const { return draft_count_max_ > 0; }

  // A step of decoding sequences only, and the drafting before it.
  void observe_step(int token_count, std::int64_t elapsed_us) {
    cost_.observe(token_count, elapsed_us);
  }
  void observe_drafting(int draft_count, std::int64_t elapsed_us);

  // `accepted` of the `drafted` tokens of one sequence were right.
  void observe_drafts(Acceptance& sequence, int drafted, int accepted);

  // How many drafts each of the sequences that decode in the next step shall have. Sequences whose
  // drafts do not pay have one now and then, rarely enough to cost under kProbeShare of all time.
  void choose(std::span<Acceptance* const> sequences, std::vector<int>& counts);

  // The chance of the sequence's next draft to be right, as far as is known.
  double chance(const Acceptance& sequence) const;

 private:
  double chance_needed(const std::vector<double>& chances) const;
  double price_us() const { return cost_.per_token_us() + drafting_us_; }
  int probe_interval(std::size_t sequence_count) const;

  static constexpr std::size_t kDraftingsKept = 7;

  int draft_count_max_;
  bool adaptive_;
  StepCost cost_;                                      // of steps of decoding sequences
  std::array<double, kDraftingsKept> draftings_us_{};  // the last ones, per draft, in a ring
  std::size_t drafting_count_ = 0;
  double drafting_us_ = 0.0;  // their median
  Acceptance all_;            // of all sequences: what to expect of a new one
  int idle_steps_ = 0;        // since the last draft of anybody
  int try_count_ = 0;         // times that drafts were put to the test; the first ones only
  std::vector<double> chances_;
};

}  // namespace kun
