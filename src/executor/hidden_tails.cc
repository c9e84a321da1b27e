#include "executor/hidden_tails.h"

#include <algorithm>

#include "base/check.h"

namespace kun {

void HiddenTails::prepare(const BatchPlan& plan, ForwardBatch& batch) {
  const auto width = static_cast<std::size_t>(width_);
  before_.resize(plan.slices.size() * width);
  batch.before_known.assign(plan.slices.size(), false);
  batch.kept_rows.clear();
  std::int32_t end = 0;
  for (std::size_t s = 0; s < plan.slices.size(); ++s) {
    const PlanSlice& slice = plan.slices[s];
    end += static_cast<std::int32_t>(slice.tokens.size());
    for (int left = kept_count(slice); left > 0; --left) batch.kept_rows.push_back(end - left);
    if (slice.first_position == 0) continue;
    const float* row = find(slice.sequence, slice.choice, slice.first_position - 1);
    if (row == nullptr) continue;
    std::copy_n(row, width, before_.data() + s * width);
    batch.before_known[s] = true;
  }
  batch.before = ConstTensorView(reinterpret_cast<const std::byte*>(before_.data()), DType::kF32,
                                 {std::ssize(plan.slices), width_});
}

void HiddenTails::keep(const BatchPlan& plan, ConstTensorView hidden) {
  memory_.begin_round();
  std::int64_t row = 0;
  for (const PlanSlice& slice : plan.slices) {
    const int count = kept_count(slice);
    Tail& tail = memory_.at(slice.sequence, slice.choice);
    tail.first_position =
        slice.first_position + static_cast<std::int32_t>(slice.tokens.size()) - count;
    tail.rows.resize(static_cast<std::size_t>(count * width_));
    for (int i = 0; i < count; ++i) {
      std::copy_n(hidden.row<float>(row++), width_, tail.rows.data() + i * width_);
    }
    // The choices of a request part behind the last row of the prompt, which is wanted for each.
    const std::vector<std::int32_t>& wanted = slice.wanted;
    const bool parts = wanted.size() > 1 && wanted.back() == wanted[wanted.size() - 2];
    if (parts) memory_.at(slice.sequence, kEveryChoice) = tail;
  }
}

const float* HiddenTails::find(SequenceId sequence, std::uint32_t choice,
                               std::int32_t position) const {
  const float* own = find_in(memory_.find(sequence, choice), position);
  return own != nullptr ? own : find_in(memory_.find(sequence, kEveryChoice), position);
}

const float* HiddenTails::find_in(const Tail* tail, std::int32_t position) const {
  if (tail == nullptr || position < tail->first_position) return nullptr;
  const auto start = static_cast<std::size_t>((position - tail->first_position) * width_);
  return start < tail->rows.size() ? tail->rows.data() + start : nullptr;
}

}  // namespace kun
