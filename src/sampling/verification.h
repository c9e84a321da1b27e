// The one place where drafts are judged: a row is sampled as if nobody had guessed, and the guess
// was right if it is what was sampled.
//
// That is exact rejection sampling for guesses that are certain of themselves. It accepts a draft x
// with probability p(x), where p is the row's distribution after penalties, bias, temperature and
// all filters, and what is sampled when it is wrong is distributed as p(y) / (1 - p(x)) over y !=
// x: p given that it is not x. No rule accepts such a draft more often and keeps the distribution.
// And since the random number of a row depends on seed, choice and position alone, the very text is
// the one that sampling without drafts gives, whatever was guessed.
#pragma once

#include <span>

#include "sampling/sampler.h"

namespace kun {

// Of one step. Rows come slice by slice, in order; after a wrong draft the rest of the slice's rows
// were computed behind a token that was not said, and are not looked at.
class Verification {
 public:
  explicit Verification(Sampler& sampler) : sampler_(sampler) {}

  // Appends the row's token to its slice, or marks the slice as corrupted or starved.
  void take(std::span<const float> logits, const SamplingRow& row, SliceResult& slice);

 private:
  Sampler& sampler_;
  const SliceResult* slice_ = nullptr;
  bool over_ = false;          // a draft of slice_ was wrong
  bool behind_draft_ = false;  // the row before, of slice_, had a draft
};

}  // namespace kun
