// A Model is weights plus the order in which to use them. It is const once built: everything that
// changes from step to step is in the arguments of forward().
#pragma once

#include <memory>

#include "base/status.h"
#include "kv/kv_layout.h"
#include "nn/forward_batch.h"
#include "tensor/tensor_view.h"

namespace kun {

class Model {
 public:
  virtual ~Model() = default;

  virtual int vocabulary_size() const = 0;  // rows of the output head
  virtual int hidden_size() const = 0;
  virtual int context_length_max() const = 0;
  virtual const KvLayout& kv_layout() const = 0;

  // Computes every token of the batch and writes its cache entries. hidden: [wanted row, hidden]
  // F32, the final hidden states (after the last norm) of batch.wanted_rows, then of kept_rows.
  // One call at a time. A failure concerns the whole step.
  virtual Status forward(const ForwardBatch& batch, const KvStorage& cache,
                         TensorView hidden) const = 0;

  // out: [row, vocabulary] F32 logits of hidden: [row, hidden].
  virtual Status logits(ConstTensorView hidden, TensorView out) const = 0;

  // --- Models that guess further ahead themselves (DeepSeek's multi-token prediction) -----------

  // The KV group of the next-token module's cache; -1: there is no such module. Where there is one,
  // forward() keeps its entries, too, unless they are to come later.
  virtual int guess_group() const { return -1; }

  // Writes the module's entries of the rows, which must have different slots, and nothing else.
  virtual void make_guess_entries(const GuessBatch&, const KvStorage&) const {}

  // hidden: [row, hidden] F32, from which logits() tells what may follow the row's token, and which
  // stands for that token's own hidden state in guessing further. Writes the rows' entries.
  virtual Status guess(const GuessBatch&, const KvStorage&, TensorView) const {
    return unimplemented("this model has no next-token module");
  }
};

}  // namespace kun
