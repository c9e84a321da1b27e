// Entries of a model's next-token module that are still to be made. Nobody reads them but whoever
// guesses or copies blocks, so those of decoding tokens are written behind: many together cost
// little more than one, and where nobody drafts for long, that is nearly nothing.
//
// What waits is bound to its place in the cache, not to a sequence: written before anything else
// happens to that place, it is as if it had been written at once.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"

namespace kun {

class LateEntries {
 public:
  static constexpr std::int64_t kRowsMax = 64;

  explicit LateEntries(const Model& model);

  // Whether the entries of a step's tokens may come later: each slice is of tokens whose hidden
  // states are kept, behind one that is known. For the batch as HiddenTails prepared it.
  static bool may_wait(const ForwardBatch& batch);

  bool empty() const { return rows_.tokens.empty(); }
  bool has_room(std::int64_t count) const { return std::ssize(rows_.tokens) + count <= kRowsMax; }

  // After such a step. kept: [token, hidden] F32. Requires: has_room(tokens).
  void add(const ForwardBatch& batch, ConstTensorView kept);

  // Writes all that waits.
  void write(const KvStorage& cache);

 private:
  const Model& model_;
  GuessBatch rows_;
  std::vector<float> before_;  // [row][hidden]
};

}  // namespace kun
