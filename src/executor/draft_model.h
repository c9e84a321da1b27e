// Guesses by a second, smaller model of the same vocabulary. It has a worker and a cache of its own
// and follows the sequences it is asked about: it computes what it has not seen of them, then says
// the wanted number of tokens, all sequences together, one pass of its weights for each.
//
// It draws with the sequence's own sampling parameters and the very random numbers that the large
// model will draw with. Where the two distributions agree so do the draws, at any temperature.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "executor/draft_memory.h"
#include "executor/drafter.h"
#include "executor/worker.h"
#include "kv/prefix_cache.h"

namespace kun {

struct DraftModelOptions {
  WorkerOptions worker;
  int context_length_max = 4096;
  // Tokens of history that are computed before one step: a long prompt must not make readers wait.
  int catch_up_max = 256;
  std::uint64_t label_key[2] = {0, 0};  // keys the prefix labels; random in production
};

class DraftModel final : public Drafter {
 public:
  // `ops` must outlive it, and nobody else may use them during propose().
  static Result<std::unique_ptr<DraftModel>> create(std::shared_ptr<const Model> model, Ops& ops,
                                                    const DraftModelOptions& options);

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override;

 private:
  // What it has of a sequence. `tokens` may end with drafts that turned out wrong; the cache
  // entries of the first `computed_count` are there.
  struct State {
    std::vector<BlockTable> tables;  // [KV group]; none before the first use
    PrefixChain chain;
    std::vector<Token> tokens;
    int computed_count = 0;
    SamplingParams params;
  };
  // One wish while it is being fulfilled.
  struct Turn {
    State* state;
    const DraftWish* wish;
    std::vector<Token>* drafts;
    int count = 0;    // drafts that will be made
    int planned = 0;  // tokens in the pass that runs now
  };

  DraftModel(std::unique_ptr<Worker> worker, const KvLayout& layout,
             const DraftModelOptions& options);

  bool prepare(Turn& turn);
  void open(State& state, const DraftWish& wish);
  bool reserve(State& state, int token_count);
  Status run_pass(std::vector<Turn*>& turns);
  void add_slice(Turn& turn, bool wanted);
  void publish(const Turn& turn);

  std::unique_ptr<Worker> worker_;
  DraftModelOptions options_;
  std::deque<KvBlockPool> pools_;  // [KV group]
  PrefixCache prefixes_;
  DraftMemory<State> memory_;
  BatchPlan plan_;
  SamplingBatch sampling_;
};

}  // namespace kun
