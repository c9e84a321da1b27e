// A scheduler in miniature: no queue and no priorities, for whoever finds no room gets no drafts.
#include "executor/draft_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kun {

namespace {

constexpr std::size_t kSequencesMax = 4096;

std::deque<KvBlockPool> make_pools(const KvLayout& layout, const std::vector<int>& block_counts) {
  std::deque<KvBlockPool> pools;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    pools.emplace_back(block_counts[g], layout.groups[g].tokens_per_block);
  }
  return pools;
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::create(std::shared_ptr<const Model> model, Ops& ops,
                                                       const DraftModelOptions& options) {
  const KvLayout layout = model->kv_layout();
  ASSIGN_OR_RETURN(auto worker, Worker::create(std::move(model), ops, options.worker));
  return std::unique_ptr<DraftModel>(new DraftModel(std::move(worker), layout, options));
}

DraftModel::DraftModel(std::unique_ptr<Worker> worker, const KvLayout& layout,
                       const DraftModelOptions& options)
    : worker_(std::move(worker)),
      options_(options),
      pools_(make_pools(layout, options.worker.block_counts)),
      prefixes_(pools_, layout, options.label_key),
      memory_(kSequencesMax) {}

Status DraftModel::propose(std::span<const DraftWish> wishes,
                           std::vector<std::vector<Token>>& drafts) {
  memory_.begin_round();
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    turns.push_back({&memory_.at(wishes[i]), &wishes[i], &drafts[i], 0, 0});
  }
  // Whoever has caught up drafts; the rest comes closer.
  std::vector<Turn*> drafting;
  plan_ = {.step = plan_.step + 1, .block_copies = {}, .slices = {}};
  sampling_.rows.clear();
  int left = options_.catch_up_max;
  std::vector<Turn*> planned;
  for (Turn& turn : turns) {
    if (!prepare(turn)) continue;
    const int pending = static_cast<int>(turn.state->tokens.size()) - turn.state->computed_count;
    turn.planned = std::min(pending, std::max(left, 1));
    left -= turn.planned;
    add_slice(turn, turn.planned == pending);
    planned.push_back(&turn);
  }
  while (!planned.empty()) {
    RETURN_IF_ERROR(run_pass(planned));
    plan_.slices.clear();
    sampling_.rows.clear();
    std::erase_if(planned, [](const Turn* turn) {
      return turn->drafts->empty() || std::ssize(*turn->drafts) >= turn->count;
    });
    for (Turn* turn : planned) {
      turn->planned = 1;
      add_slice(*turn, true);
    }
    ++plan_.step;
  }
  for (const Turn& turn : turns) {
    if (turn.count > 0) publish(turn);
  }
  return {};
}

// Goes back to what is true of the state's tokens and takes over the rest of the history. False
// when there is no room for drafts, or the history has tokens that this model does not know.
bool DraftModel::prepare(Turn& turn) {
  State& state = *turn.state;
  const std::span<const Token> history = turn.wish->history;
  const auto history_count = static_cast<int>(history.size());
  // The last draft is never computed.
  turn.count = std::min(turn.wish->count_max, options_.context_length_max - history_count + 1);
  if (turn.count <= 0) return false;
  if (state.tables.empty()) open(state, *turn.wish);
  const auto common =
      static_cast<int>(std::ranges::mismatch(state.tokens, history).in2 - history.begin());
  const auto known = [&](Token token) {
    return token >= 0 && token < worker_->model().vocabulary_size();
  };
  // The last token of the history is computed in any case, for its logits.
  state.computed_count = std::min({state.computed_count, common, history_count - 1});
  CHECK(state.computed_count >= state.chain.published_count);
  if (!std::all_of(history.begin() + state.computed_count, history.end(), known) ||
      !reserve(state, history_count + turn.count - 1)) {
    turn.count = 0;
    return false;
  }
  state.tokens.assign(history.begin(), history.end());
  return true;
}

void DraftModel::open(State& state, const DraftWish& wish) {
  for (KvBlockPool& pool : pools_) state.tables.emplace_back(pool);
  state.chain = prefixes_.chain(wish.cache_salt);
  state.params = *wish.params;
  state.params.logprob_count = -1;
  const auto reusable = wish.history.first(wish.history.size() - 1);
  state.computed_count = prefixes_.match(reusable, state.chain, state.tables);
  state.tokens.assign(reusable.begin(), reusable.begin() + state.computed_count);
}

// Blocks for the first `token_count` tokens, at the cost of sequences that are not in this round.
bool DraftModel::reserve(State& state, int token_count) {
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int length = pools_[g].tokens_per_block();
    const int needed = (token_count + length - 1) / length;
    while (state.tables[g].size() < needed) {
      std::optional<BlockRef> block = pools_[g].allocate();
      if (block.has_value()) {
        state.tables[g].append(*std::move(block));
      } else if (!memory_.forget_oldest()) {
        return false;
      }
    }
  }
  return true;
}

void DraftModel::add_slice(Turn& turn, bool wanted) {
  const State& state = *turn.state;
  PlanSlice& slice = plan_.slices.emplace_back();
  const int end = state.computed_count + turn.planned;
  slice.sequence = turn.wish->sequence;
  slice.choice = turn.wish->choice;
  slice.first_position = state.computed_count;
  slice.tokens.assign(state.tokens.begin() + state.computed_count, state.tokens.begin() + end);
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int length = pools_[g].tokens_per_block();
    const auto used = static_cast<std::size_t>((end + length - 1) / length);
    const std::span<const BlockId> ids = state.tables[g].ids().first(used);
    slice.blocks.emplace_back(ids.begin(), ids.end());
  }
  if (!wanted) return;
  slice.wanted.push_back(turn.planned - 1);
  sampling_.rows.push_back({.params = &state.params,
                            .history = state.tokens,
                            .prompt_count = turn.wish->prompt_count,
                            .choice = turn.wish->choice});
}

// Computes plan_, whose slices are those of `turns`, and appends what it says to their drafts.
// Takes out the turns whose values are not numbers.
Status DraftModel::run_pass(std::vector<Turn*>& turns) {
  RETURN_IF_ERROR(worker_->forward(plan_));
  StepResult result = worker_->sample(plan_, sampling_);
  RETURN_IF_ERROR(std::move(result.status));
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = *turns[i];
    turn.state->computed_count += std::exchange(turn.planned, 0);
    if (result.slices[i].corrupted) turn.count = 0;
    if (result.slices[i].tokens.empty()) continue;
    const Token token = result.slices[i].tokens.front().token;
    turn.drafts->push_back(token);
    turn.state->tokens.push_back(token);
  }
  return {};
}

// Its last token is left out: it will be computed again if it is asked for again.
void DraftModel::publish(const Turn& turn) {
  State& state = *turn.state;
  const std::size_t settled =
      std::min(static_cast<std::size_t>(state.computed_count), turn.wish->history.size() - 1);
  prefixes_.publish(turn.wish->history.first(settled), state.chain, state.tables);
}

}  // namespace kun
