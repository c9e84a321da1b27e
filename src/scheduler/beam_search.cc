#include "scheduler/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kun {
namespace {

struct Candidate {
  double logprob_sum = 0.0;
  std::size_t parent = 0;
  std::size_t rank = 0;  // among the parent's candidates
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.logprob_sum != b.logprob_sum) return a.logprob_sum > b.logprob_sum;
  return a.parent != b.parent ? a.parent < b.parent : a.rank < b.rank;
}

std::vector<Candidate> all_candidates(std::span<const Beam* const> beams) {
  std::vector<Candidate> all;
  for (std::size_t parent = 0; parent < beams.size(); ++parent) {
    const Beam& beam = *beams[parent];
    CHECK(beam.answered);
    for (std::size_t rank = 0; rank < beam.candidates.size(); ++rank) {
      const double logprob{beam.candidates[rank].logprob};
      all.push_back({beam.logprob_sum + logprob, parent, rank});
    }
  }
  std::ranges::sort(all, better);
  return all;
}

Beam extend(const Beam& parent, const TokenLogprob& token) {
  Beam beam;
  beam.output = parent.output;
  beam.output.push_back({token.token, token.logprob, parent.shown});
  beam.logprob_sum = parent.logprob_sum + double{token.logprob};
  if (parent.watch != nullptr) beam.watch = parent.watch->clone();
  return beam;
}

}  // namespace

int BeamSearch::candidate_count() const {
  return params_.width + std::max(params_.width, static_cast<int>(end_tokens_.size()));
}

std::vector<BeamSearch::Continuation> BeamSearch::select(std::span<const Beam* const> beams) {
  std::vector<Continuation> live;
  int found = 0;  // that do not end by themselves
  for (const Candidate& candidate : all_candidates(beams)) {
    if (found == params_.width) break;
    const Beam& parent = *beams[candidate.parent];
    const TokenLogprob& token = parent.candidates[candidate.rank];
    Beam beam = extend(parent, token);
    if (std::ranges::find(end_tokens_, token.token) != end_tokens_.end()) {
      finish(std::move(beam), Hypothesis::End::kEndToken);
    } else if (beam.watch != nullptr && beam.watch->take(token.token)) {
      finish(std::move(beam), Hypothesis::End::kWatch);
    } else if (++found; std::ssize(beam.output) >= output_count_max_) {
      finish(std::move(beam), Hypothesis::End::kLength);
    } else {
      live.push_back({candidate.parent, std::move(beam)});
    }
  }
  if (!live.empty() && is_over(live.front().beam)) live.clear();
  return live;
}

// Whether nothing that `best` may become counts any more.
bool BeamSearch::is_over(const Beam& best) const {
  if (std::ssize(finished_) < params_.width) return false;
  if (params_.early_stopping == EarlyStopping::kWhenEnough) return true;
  // Sums only fall; what a length makes of them rises with it where the penalty is positive.
  const bool any_length =
      params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0.0;
  const std::size_t count =
      any_length ? static_cast<std::size_t>(output_count_max_) : best.output.size();
  return finished_.back().score >= score(best.logprob_sum, count);
}

double BeamSearch::score(double logprob_sum, std::size_t count) const {
  return logprob_sum / std::pow(static_cast<double>(count), params_.length_penalty);
}

void BeamSearch::finish(Beam beam, Hypothesis::End end) {
  Hypothesis hypothesis;
  hypothesis.score = score(beam.logprob_sum, beam.output.size());
  hypothesis.tokens = std::move(beam.output);
  hypothesis.end = end;
  const auto place =
      std::ranges::upper_bound(finished_, hypothesis.score, std::greater<>(), &Hypothesis::score);
  if (place - finished_.begin() == params_.width) return;
  finished_.insert(place, std::move(hypothesis));
  if (std::ssize(finished_) > params_.width) finished_.pop_back();
}

}  // namespace kun
