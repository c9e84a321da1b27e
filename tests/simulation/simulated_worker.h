// A worker whose model is arithmetic. Its "cache" holds one number per token and KV group, written
// and read only through the plan's block tables, and each number depends on all before it. A wrong
// block, a missed copy, stale prefix data or a wrong position therefore shows as a wrong token; and
// so does a block of a group with a window (of 2 or more) that somebody else was given too early.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "kv/kv_layout.h"
#include "plan/batch_plan.h"
#include "plan/sampling_batch.h"
#include "plan/step_result.h"

namespace kun {

using Cell = std::uint64_t;

// Plays the part of a NaN: whatever reads it becomes it.
constexpr Cell kBadCell = ~Cell{0};
constexpr int kVocabulary = 24;

inline Cell mixed(Cell a, Cell b) {
  Cell x = (a ^ (b + 0x9E3779B97F4A7C15U + (a << 6U) + (a >> 2U))) * 0xBF58476D1CE4E5B9U;
  x ^= x >> 31U;
  return x == kBadCell ? 1 : x;
}

// The cell of a token. `origin` stands for what must not be shared between salts.
inline Cell next_cell(Cell before, Token token, int position, std::size_t group, Cell origin) {
  if (before == kBadCell) return kBadCell;
  const Cell place = mixed(static_cast<Cell>(position), group * 977 + origin);
  return mixed(before, mixed(static_cast<Cell>(token), place));
}

inline Token token_from(Cell state, std::uint32_t choice) {
  return static_cast<Token>(mixed(state, choice + 1) % kVocabulary);
}

// The first of `count` cells that what is said after them depends on.
inline int first_read(const KvGroup& group, int count) {
  return group.window == 0 ? 0 : std::max(0, count - group.window);
}

// What the model says after `history`, computed without any cache; the oracle.
inline Token reference_token(std::span<const Token> history, const KvLayout& layout, Cell origin,
                             std::uint32_t choice) {
  Cell state = 0;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const int first = first_read(layout.groups[g], static_cast<int>(std::ssize(history)));
    Cell cell = 0;
    int position = 0;
    for (const Token token : history) {
      cell = next_cell(cell, token, position++, g, origin);
      if (position > first) state = mixed(state, cell);
    }
  }
  return token_from(state, choice);
}

class SimulatedWorker {
 public:
  SimulatedWorker(const KvLayout& layout, const std::vector<int>& block_counts) {
    layout_ = layout;
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      lengths_.push_back(layout.groups[g].tokens_per_block);
      cells_.emplace_back(static_cast<std::size_t>(block_counts[g] * lengths_[g]), 12345);
    }
  }

  void set_origin(SequenceId id, Cell origin) { origins_[id] = origin; }

  // From now on whatever `id` writes is bad.
  void poison(SequenceId id) { poisoned_[id] = true; }

  StepResult run(const BatchPlan& plan, const SamplingBatch& sampling) {
    copy_blocks(plan);
    StepResult result{.step = plan.step, .status = {}, .slices = {}};
    std::size_t row = 0;
    for (const PlanSlice& slice : plan.slices) {
      write(slice);
      SliceResult& mine = result.slices.emplace_back();
      mine.sequence = slice.sequence;
      bool over = false;
      for (const std::int32_t offset : slice.wanted) {
        const SamplingRow& sampled = sampling.rows.at(row++);
        if (over) continue;
        const std::optional<Cell> state = read(slice, slice.first_position + offset + 1);
        over = mine.corrupted = !state;
        if (over) continue;
        mine.tokens.push_back({.token = token_from(*state, sampled.choice), .top = {}});
        over = sampled.draft != kNoDraft && sampled.draft != mine.tokens.back().token;
      }
      if (mine.corrupted) mine.tokens.clear();
    }
    return result;
  }

  // Breaks off in the middle: some of what the plan writes is rubbish.
  StepResult fail(const BatchPlan& plan, std::mt19937_64& random) {
    copy_blocks(plan);
    for (const PlanSlice& slice : plan.slices) {
      if (random() % 2 == 0) continue;
      for (std::size_t g = 0; g < lengths_.size(); ++g) {
        const auto end = slice.first_position + static_cast<int>(slice.tokens.size());
        for (int p = slice.first_position; p < end; ++p) at(slice, g, p) = random();
      }
    }
    return {.step = plan.step, .status = internal_error("simulated"), .slices = {}};
  }

 private:
  Cell& at(const PlanSlice& slice, std::size_t group, int position) {
    const int length = lengths_[group];
    const BlockId block = slice.blocks.at(group).at(static_cast<std::size_t>(position / length));
    return cells_[group].at(static_cast<std::size_t>(block * length + position % length));
  }

  void copy_blocks(const BatchPlan& plan) {
    for (const BlockCopy& copy : plan.block_copies) {
      const auto g = static_cast<std::size_t>(copy.group);
      for (int i = 0; i < lengths_.at(g); ++i) {
        const auto from = static_cast<std::size_t>(copy.from * lengths_[g] + i);
        cells_[g].at(static_cast<std::size_t>(copy.to * lengths_[g] + i)) = cells_[g].at(from);
      }
    }
  }

  void write(const PlanSlice& slice) {
    const bool bad = poisoned_.contains(slice.sequence);
    for (std::size_t g = 0; g < lengths_.size(); ++g) {
      int position = slice.first_position;
      for (const Token token : slice.tokens) {
        const Cell before = position == 0 ? 0 : at(slice, g, position - 1);
        const Cell cell = next_cell(before, token, position, g, origins_[slice.sequence]);
        at(slice, g, position++) = bad ? kBadCell : cell;
      }
    }
  }

  // What the row before `end` reads of each group, folded together; none when a cell is bad.
  std::optional<Cell> read(const PlanSlice& slice, int end) {
    Cell state = 0;
    for (std::size_t g = 0; g < lengths_.size(); ++g) {
      for (int p = first_read(layout_.groups[g], end); p < end; ++p) {
        if (at(slice, g, p) == kBadCell) return std::nullopt;
        state = mixed(state, at(slice, g, p));
      }
    }
    return state;
  }

  KvLayout layout_;
  std::vector<int> lengths_;              // [group]: tokens per block
  std::vector<std::vector<Cell>> cells_;  // [group][block * tokens_per_block + offset]
  std::unordered_map<SequenceId, Cell> origins_;
  std::unordered_map<SequenceId, bool> poisoned_;
};

}  // namespace kun
