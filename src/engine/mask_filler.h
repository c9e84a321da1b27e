// Computes the masks of a step's constraints while the device computes its logits. The engine
// thread, which would only wait, does its part; helpers make it shorter where cores are plenty.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "plan/sampling_batch.h"

namespace kun {

// fill() is the engine thread's.
class MaskFiller {
 public:
  // `thread_count` helpers; negative: one for each eight cores, at most four. A constraint whose
  // masks take longer than `ahead_time` has fewer of its drafts verified: others wait for the step.
  MaskFiller(int vocabulary_size, int thread_count,
             std::chrono::milliseconds ahead_time = std::chrono::milliseconds(5));
  ~MaskFiller();

  // Sets the mask of every row that has a constraint; it holds until the next fill(). End tokens
  // are possible where the constraint lets the text end, and nowhere else. A constraint that fails
  // leaves an empty mask, which ends its sequence. Rows behind a draft have the mask of the text
  // with the draft in it, and an empty one where the constraint does not take that.
  void fill(SamplingBatch& batch);

 private:
  struct Mask {
    std::vector<std::uint32_t> bits;
    Status status;
  };
  // One constraint's masks: before each of its drafts, and behind the last.
  struct Task {
    TokenConstraint* constraint = nullptr;
    std::span<const Token> end_tokens;
    std::vector<Token> drafts;
    std::vector<Mask> masks;  // as many as there are drafts, and one; others are of earlier rounds
  };

  void collect(const SamplingBatch& batch);
  void work();
  void help();
  void compute(Task& task) const;
  void compute(TokenConstraint& constraint, std::span<const Token> end_tokens, Mask& mask) const;
  static bool allows(const Mask& mask, Token token);

  const int vocabulary_size_;
  const std::chrono::milliseconds ahead_time_;
  std::vector<Task> tasks_;  // their bits are used again; the first task_count_ count
  std::size_t task_count_ = 0;
  std::atomic<std::size_t> next_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t round_ = 0;  // counts calls of fill() that helpers can help with
  int busy_count_ = 0;       // helpers that may touch tasks_
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace kun
