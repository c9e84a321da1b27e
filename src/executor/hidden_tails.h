// The hidden states of the last tokens of each sequence, which a model's next-token module needs
// when the sequence goes on: of as many tokens as a step may have drafts, for any of them may turn
// out to be the last right one. What was forgotten costs a guess, or makes one worse.
#pragma once

#include <span>
#include <vector>

#include "executor/draft_memory.h"
#include "nn/forward_batch.h"

namespace kun {

class HiddenTails {
 public:
  explicit HiddenTails(std::int64_t width) : width_(width), memory_(kSequencesMax) {}

  // Before a step: asks for the hidden states to be kept, and gives those of the tokens before its
  // slices. They hold until the next call.
  void prepare(const BatchPlan& plan, ForwardBatch& batch);

  // After it: takes them in. hidden: [kept row, width] F32.
  void keep(const BatchPlan& plan, ConstTensorView hidden);

  // Of the token at `position`; nullptr when it is not known.
  const float* find(SequenceId sequence, std::uint32_t choice, std::int32_t position) const;

 private:
  static constexpr std::size_t kSequencesMax = 1024;
  // In the place of a choice: what all choices of a sequence have in common.
  static constexpr std::uint32_t kEveryChoice = 0xFFFFFFFF;

  struct Tail {
    std::int32_t first_position = 0;
    std::vector<float> rows;  // [token][width]
  };

  static int kept_count(const PlanSlice& slice) { return 1 + slice.draft_count; }
  const float* find_in(const Tail* tail, std::int32_t position) const;

  std::int64_t width_;
  DraftMemory<Tail> memory_;
  std::vector<float> before_;  // [slice][width]
};

}  // namespace kun
