// Guesses with the model's own next-token module (DeepSeek's multi-token prediction). The module's
// entries for the tokens of a sequence lie in the worker's cache, kept by the model's own steps;
// here a sequence's last token is computed with the model's hidden state before it, and each guess
// with the module's own hidden state in that place. Entries of these go to blocks that no plan
// names: the sequence's own may be shared, and its next step writes true ones.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/drafter.h"
#include "executor/worker.h"
#include "sampling/sampler.h"

namespace kun {

class SelfDrafter final : public Drafter {
 public:
  // What WorkerOptions::guess_block_count must be.
  static constexpr int kBlocksPerRow = 2;
  static constexpr int kRowsMax = 32;  // sequences that are computed together
  static constexpr int kGuessBlockCount = kBlocksPerRow * kRowsMax;

  // `worker` must outlive it; its model must have such a module.
  static Result<std::unique_ptr<SelfDrafter>> create(Worker& worker);

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override;

 private:
  // One wish while it is being fulfilled.
  struct Turn {
    const DraftWish* wish;
    std::vector<Token>* drafts;
    std::vector<Token> history{};            // with the drafts
    std::optional<SamplingParams> params{};  // where the wish's ask for log probabilities, too
    std::vector<BlockId> blocks{};           // of the guess group
    bool over = false;
  };

  explicit SelfDrafter(Worker& worker);

  Status propose_some(std::span<const DraftWish> wishes, std::span<std::vector<Token>> drafts);
  bool start(Turn& turn, int row);
  void add_row(const Turn& turn);
  Status guess(std::span<Turn> turns);
  TensorView rows(const std::shared_ptr<std::byte>& buffer, std::int64_t cols) const;

  Worker& worker_;
  std::size_t group_;
  int block_length_;
  Sampler sampler_;
  GuessBatch batch_;
  std::shared_ptr<std::byte> before_;  // [row, hidden]
  std::shared_ptr<std::byte> hidden_;  // [row, hidden]
  std::shared_ptr<std::byte> logits_;  // [row, vocabulary]
};

}  // namespace kun
