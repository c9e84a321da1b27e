#include "executor/self_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kun {

Result<std::unique_ptr<SelfDrafter>> SelfDrafter::create(Worker& worker) {
  std::unique_ptr<SelfDrafter> drafter(new SelfDrafter(worker));
  const Model& model = worker.model();
  const auto floats = [&](std::int64_t cols) {
    return worker.ops().allocate(kRowsMax * cols * size_bytes(DType::kF32));
  };
  drafter->before_ = floats(model.hidden_size());
  drafter->hidden_ = floats(model.hidden_size());
  drafter->logits_ = floats(model.vocabulary_size());
  if (drafter->before_ == nullptr || drafter->hidden_ == nullptr || drafter->logits_ == nullptr) {
    return resource_exhausted("the device has no memory for the guesses of a step");
  }
  return drafter;
}

SelfDrafter::SelfDrafter(Worker& worker)
    : worker_(worker),
      group_(static_cast<std::size_t>(worker.model().guess_group())),
      block_length_(0),
      sampler_(worker.options().vocabulary_limit) {
  CHECK(worker.model().guess_group() >= 0 && worker.tails() != nullptr);
  CHECK(worker.options().guess_block_count >= kGuessBlockCount);
  block_length_ = worker.model().kv_layout().groups[group_].tokens_per_block;
}

Status SelfDrafter::propose(std::span<const DraftWish> wishes,
                            std::vector<std::vector<Token>>& drafts) {
  worker_.write_late_entries();
  for (std::size_t first = 0; first < wishes.size(); first += kRowsMax) {
    const std::size_t count = std::min<std::size_t>(kRowsMax, wishes.size() - first);
    RETURN_IF_ERROR(
        propose_some(wishes.subspan(first, count), std::span(drafts).subspan(first, count)));
  }
  return {};
}

Status SelfDrafter::propose_some(std::span<const DraftWish> wishes,
                                 std::span<std::vector<Token>> drafts) {
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    Turn turn{.wish = &wishes[i], .drafts = &drafts[i]};
    if (start(turn, static_cast<int>(turns.size()))) turns.push_back(std::move(turn));
  }
  while (!turns.empty()) {
    RETURN_IF_ERROR(guess(turns));
    std::size_t left = 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].over) continue;
      const std::int64_t width = worker_.model().hidden_size();
      std::copy_n(rows(hidden_, width).row<float>(static_cast<std::int64_t>(i)), width,
                  rows(before_, width).row<float>(static_cast<std::int64_t>(left)));
      if (left != i) turns[left] = std::move(turns[i]);
      ++left;
    }
    turns.erase(turns.begin() + static_cast<std::ptrdiff_t>(left), turns.end());
  }
  return {};
}

// False when the hidden state that a guess needs is not known.
bool SelfDrafter::start(Turn& turn, int row) {
  const DraftWish& wish = *turn.wish;
  const auto last = static_cast<std::int32_t>(wish.history.size()) - 1;
  if (last < 1) return false;
  const float* before = worker_.tails()->find(wish.sequence, wish.choice, last - 1);
  if (before == nullptr) return false;
  const std::int64_t width = worker_.model().hidden_size();
  std::copy_n(before, width, rows(before_, width).row<float>(row));
  turn.history.assign(wish.history.begin(), wish.history.end());
  if (wish.params->logprob_count >= 0) {
    turn.params = *wish.params;
    turn.params->logprob_count = -1;
  }

  CHECK(wish.count_max <= block_length_ && group_ < wish.blocks.size());
  const std::span<const BlockId> own = wish.blocks[group_];
  const auto whole = static_cast<std::size_t>(last / block_length_);
  CHECK(own.size() * static_cast<std::size_t>(block_length_) >= static_cast<std::size_t>(last));
  const BlockId spare =
      worker_.options().block_counts[group_] + static_cast<BlockId>(row) * kBlocksPerRow;
  turn.blocks.assign(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(whole));
  for (int i = 0; i < kBlocksPerRow; ++i) turn.blocks.push_back(spare + i);
  if (last % block_length_ != 0) worker_.copy_guess_block(own[whole], spare);
  return true;
}

void SelfDrafter::add_row(const Turn& turn) {
  const auto position = static_cast<std::int32_t>(turn.history.size()) - 1;
  const auto row = static_cast<std::int32_t>(batch_.tokens.size());
  batch_.tokens.push_back(turn.history.back());
  batch_.positions.push_back(position);
  const BlockId block = turn.blocks[static_cast<std::size_t>(position / block_length_)];
  batch_.group.slots.push_back(block * block_length_ + position % block_length_);
  batch_.group.slices.push_back({row, 1, position, turn.blocks});
}

// One more draft for each.
Status SelfDrafter::guess(std::span<Turn> turns) {
  const Model& model = worker_.model();
  const auto count = std::ssize(turns);
  batch_ = {};
  for (const Turn& turn : turns) add_row(turn);
  batch_.before = rows(before_, model.hidden_size()).slice_rows(0, count);
  const TensorView hidden = rows(hidden_, model.hidden_size()).slice_rows(0, count);
  const TensorView logits = rows(logits_, model.vocabulary_size()).slice_rows(0, count);
  RETURN_IF_ERROR(model.guess(batch_, worker_.cache(), hidden));
  RETURN_IF_ERROR(model.logits(hidden, logits));
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    const std::span<const float> row(logits.row<float>(static_cast<std::int64_t>(i)),
                                     static_cast<std::size_t>(model.vocabulary_size()));
    // With the random numbers that the model will draw with, see draft_model.h.
    const auto token =
        sampler_.sample(row, {.params = turn.params ? &*turn.params : turn.wish->params,
                              .history = turn.history,
                              .prompt_count = turn.wish->prompt_count,
                              .choice = turn.wish->choice});
    turn.over = !token || std::ssize(*turn.drafts) + 1 >= turn.wish->count_max;
    if (!token) continue;
    turn.drafts->push_back(token->token);
    turn.history.push_back(token->token);
  }
  return {};
}

TensorView SelfDrafter::rows(const std::shared_ptr<std::byte>& buffer, std::int64_t cols) const {
  return {buffer.get(), DType::kF32, {kRowsMax, cols}};
}

}  // namespace kun
