// Beam search without the model: which continuations of the beams go on, which are finished, when
// it is over, and which are the best. The scheduler keeps the beams' caches and asks for their
// likeliest next tokens; it is told what to fork.
//
// All beams have the same length. In each round their candidates are looked at in one order, by
// (sum of logprobs, parent, likelihood among the parent's candidates), so that equal sums are no
// matter of chance. Those that end are finished hypotheses; the others go on, until there are as
// many as beams.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "plan/beam_params.h"
#include "plan/step_result.h"

namespace kun {

struct Beam {
  std::vector<SampledToken> output;
  double logprob_sum = 0.0;
  std::unique_ptr<OutputWatch> watch;      // null: nothing watches
  bool answered = false;                   // its candidates are known
  std::vector<TokenLogprob> candidates{};  // likeliest first
  std::vector<TokenLogprob> shown{};       // what the client sees beside the next token
};

struct Hypothesis {
  enum class End : unsigned char { kEndToken, kWatch, kLength };

  std::vector<SampledToken> tokens;
  double score = 0.0;
  End end = End::kLength;
};

class BeamSearch {
 public:
  BeamSearch(const BeamParams& params, std::vector<Token> end_tokens, int output_count_max)
      : params_(params), end_tokens_(std::move(end_tokens)), output_count_max_(output_count_max) {}

  int width() const { return params_.width; }

  // Candidates that each beam should have: even if all end tokens are among them, as many go on as
  // there are beams.
  int candidate_count() const;

  struct Continuation {
    std::size_t parent = 0;
    Beam beam;
  };

  // One round. Requires: all beams are answered. Empty when the search is over.
  std::vector<Continuation> select(std::span<const Beam* const> beams);

  // The finished hypotheses, best first; of equal scores the one that was finished earlier.
  std::vector<Hypothesis> take_best() { return std::move(finished_); }

 private:
  bool is_over(const Beam& best) const;
  double score(double logprob_sum, std::size_t count) const;
  void finish(Beam beam, Hypothesis::End end);

  const BeamParams params_;
  const std::vector<Token> end_tokens_;
  const int output_count_max_;
  std::vector<Hypothesis> finished_;  // best first; at most as many as beams
};

}  // namespace kun
