// The best number of drafts maximizes (outputs + expected accepted) / (step + drafts * price), a
// ratio of sums. Dinkelbach's iteration finds it: take every draft whose chance exceeds price times
// the best rate so far, compute the rate again, and stop when it stands.
#include "scheduler/speculation.h"

#include <algorithm>
#include <cmath>

namespace kun {

namespace {

// A sequence forgets half of its acceptance in 14 steps with drafts, all together in 70.
constexpr double kDecay = 0.95;
constexpr double kDecayOfAll = 0.99;

// Before anything is known a draft is right every other time, and that is forgotten soon.
constexpr double kFirstChance = 0.5;
constexpr double kFirstWeight = 2.0;

// How many drafts of its own outweigh what is known of other sequences.
constexpr double kPriorWeight = 2.0;

// Costs are noisy: a draft must promise more than its price, and never less than this.
constexpr double kMargin = 1.15;
constexpr double kChanceMin = 0.1;

// What probing may cost, as a share of all time.
constexpr double kProbeShare = 0.01;
constexpr int kProbeIntervalMin = 16;
constexpr int kProbeIntervalMax = 512;

// Nothing is known without the first ones, so these come soon, whatever they cost.
constexpr int kFirstTries = 6;
constexpr int kFirstInterval = 4;

constexpr int kIterations = 4;

// Expected number of right drafts among `count` with this chance each, the first wrong one ending
// the row: p + p^2 + ...
double expected(double chance, int count) {
  double sum = 0.0;
  double all_right = 1.0;
  for (int i = 0; i < count; ++i) sum += all_right *= chance;
  return sum;
}

int count_above(double chance, double needed, int count_max) {
  int count = 0;
  for (double all_right = chance; count < count_max && all_right >= needed; all_right *= chance) {
    ++count;
  }
  return count;
}

void decay(Acceptance& acceptance, double factor) {
  acceptance.accepted *= factor;
  acceptance.tried *= factor;
}

}  // namespace

// The median, for the first drafting of a server allocates and a few are disturbed: they would be
// remembered for long, since who does not draft does not learn.
void Speculation::observe_drafting(int draft_count, std::int64_t elapsed_us) {
  if (draft_count <= 0 || elapsed_us < 0) return;
  draftings_us_[drafting_count_++ % kDraftingsKept] = static_cast<double>(elapsed_us) / draft_count;
  auto known = draftings_us_;
  const std::size_t count = std::min(drafting_count_, kDraftingsKept);
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((count - 1) / 2);
  std::nth_element(known.begin(), middle, known.begin() + static_cast<std::ptrdiff_t>(count));
  drafting_us_ = *middle;
}

void Speculation::observe_drafts(Acceptance& sequence, int drafted, int accepted) {
  const double tried = accepted + (accepted < drafted ? 1 : 0);
  sequence.idle_steps = 0;
  idle_steps_ = 0;
  if (try_count_ < kFirstTries) ++try_count_;
  decay(sequence, kDecay);
  decay(all_, kDecayOfAll);
  for (Acceptance* each : {&sequence, &all_}) {
    each->accepted += accepted;
    each->tried += tried;
  }
}

double Speculation::chance(const Acceptance& sequence) const {
  const double of_all = (all_.accepted + kFirstChance * kFirstWeight) / (all_.tried + kFirstWeight);
  return (sequence.accepted + of_all * kPriorWeight) / (sequence.tried + kPriorWeight);
}

// The chance above which a draft makes the step better, by the iteration in the head of this file.
double Speculation::chance_needed(const std::vector<double>& chances) const {
  const auto outputs = static_cast<double>(chances.size());
  const double step_us = cost_.step_us(static_cast<int>(chances.size()));
  const double price = price_us();
  if (!cost_.known() || step_us <= 0.0) return kChanceMin;
  double rate = outputs / step_us;
  for (int i = 0; i < kIterations; ++i) {
    double yield = outputs;
    double time = step_us;
    for (const double chance : chances) {
      const int count = count_above(chance, kMargin * price * rate, draft_count_max_);
      yield += expected(chance, count);
      time += count * price;
    }
    rate = std::max(rate, yield / time);
  }
  return std::max(kMargin * price * rate, kChanceMin);
}

int Speculation::probe_interval(std::size_t sequence_count) const {
  const double step_us = cost_.step_us(static_cast<int>(sequence_count));
  if (!cost_.known() || step_us <= 0.0) return kProbeIntervalMin;
  if (try_count_ < kFirstTries) return kFirstInterval;
  const double share = static_cast<double>(sequence_count) * price_us() / step_us;
  return std::clamp(static_cast<int>(std::ceil(share / kProbeShare)), kProbeIntervalMin,
                    kProbeIntervalMax);
}

void Speculation::choose(std::span<Acceptance* const> sequences, std::vector<int>& counts) {
  counts.assign(sequences.size(), draft_count_max_);
  if (!adaptive_ || sequences.empty()) return;
  chances_.clear();
  for (const Acceptance* sequence : sequences) chances_.push_back(chance(*sequence));
  const double needed = chance_needed(chances_);
  const int interval = probe_interval(sequences.size());
  ++idle_steps_;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    counts[i] = count_above(chances_[i], needed, draft_count_max_);
    int& idle = sequences[i]->idle_steps;
    // Or texts that are short would never have their turn.
    if (idle < 0) idle = idle_steps_ - 1;
    idle = counts[i] > 0 ? 0 : idle + 1;
    if (counts[i] > 0) continue;
    // A draft that is right sometimes loses less, so it may be tried more often.
    if (idle >= interval * (1.0 - chances_[i] / needed)) counts[i] = 1;
  }
}

}  // namespace kun
