#include "executor/late_entries.h"

#include <algorithm>

#include "base/check.h"

namespace kun {

LateEntries::LateEntries(const Model& model) : model_(model) {
  CHECK(model.guess_group() >= 0);
  before_.resize(static_cast<std::size_t>(kRowsMax * model.hidden_size()));
}

bool LateEntries::may_wait(const ForwardBatch& batch) {
  const auto known = [](bool one) { return one; };
  return batch.kept_rows.size() == batch.tokens.size() && std::ssize(batch.tokens) <= kRowsMax &&
         std::ranges::all_of(batch.before_known, known);
}

void LateEntries::add(const ForwardBatch& batch, ConstTensorView kept) {
  CHECK(may_wait(batch) && has_room(kept.rows()));
  const GroupBatch& group = batch.groups[static_cast<std::size_t>(model_.guess_group())];
  for (std::size_t s = 0; s < group.slices.size(); ++s) {
    const AttentionSlice& slice = group.slices[s];
    for (std::int32_t r = slice.first_row; r < slice.first_row + slice.row_count; ++r) {
      const bool first = r == slice.first_row;
      const float* before =
          first ? batch.before.row<float>(static_cast<std::int64_t>(s)) : kept.row<float>(r - 1);
      const auto row = static_cast<std::size_t>(r);
      // In the place of a wrong draft, or of what somebody had there who is gone.
      const auto found = std::ranges::find(rows_.group.slots, group.slots[row]);
      const auto at = static_cast<std::size_t>(found - rows_.group.slots.begin());
      if (found == rows_.group.slots.end()) {
        rows_.group.slots.push_back(group.slots[row]);
        rows_.tokens.push_back({});
        rows_.positions.push_back({});
      }
      rows_.tokens[at] = batch.tokens[row];
      rows_.positions[at] = batch.positions[row];
      std::copy_n(before, model_.hidden_size(),
                  before_.data() + static_cast<std::ptrdiff_t>(at) * model_.hidden_size());
    }
  }
}

void LateEntries::write(const KvStorage& cache) {
  if (empty()) return;
  rows_.before = ConstTensorView(reinterpret_cast<const std::byte*>(before_.data()), DType::kF32,
                                 {std::ssize(rows_.tokens), model_.hidden_size()});
  model_.make_guess_entries(rows_, cache);
  rows_.tokens.clear();
  rows_.positions.clear();
  rows_.group.slots.clear();
}

}  // namespace kun
