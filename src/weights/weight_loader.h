// WeightLoader brings tensors from a checkpoint onto a device, in the device's own layout.
//
// The first problem sticks and everything after it is skipped: the parts of a model load themselves
// in constructors, which cannot fail, and the model's factory asks for the status once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/ops.h"
#include "weights/packed_cache.h"
#include "weights/weight_plan.h"

namespace kun {

// A vector of F32 in device memory, shared by its copies. Empty when the checkpoint has none.
struct DeviceVector {
  std::shared_ptr<std::byte> bytes;
  ConstTensorView view;  // [size]
};

// One matrix among those that a call stacks along their rows.
struct MatrixPart {
  std::string name;       // Hugging Face name, ".weight" included
  std::int64_t rows = 0;  // what the configuration promises
};

// A matrix that a part makes of what is stored: a piece of it, transposed, or kept exact.
struct MadeMatrix {
  std::string key;  // what no other matrix of the model is called
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType dtype = DType::kF32;  // F32 or BF16: what it becomes in memory, whatever the files hold
  ReadShare share{};
};

class WeightLoader {
 public:
  // `progress` hears the bytes read so far, after each tensor. `cache` is where packed matrices are
  // looked for and kept; nullptr: nowhere. With a `plan` no matrix is read or packed: each is added
  // to the plan and stands for itself without data. All references must outlive this.
  WeightLoader(const Checkpoint& checkpoint, Ops& ops,
               std::function<void(std::int64_t)> progress = {}, PackedCache* cache = nullptr,
               WeightPlan* plan = nullptr);

  // nullptr after a problem: a missing tensor, a shape that the configuration contradicts, ...
  std::unique_ptr<PackedMatrix> matrix(std::span<const MatrixPart> parts, std::int64_t cols,
                                       ReadShare share = {});

  // Rows [first, first + count) of the tensor `name`, which has `rows` of them.
  std::unique_ptr<PackedMatrix> matrix_rows(const MatrixPart& part, std::int64_t cols,
                                            std::int64_t first, std::int64_t count);

  // `make(i)` gives the rows * cols values of matrix i row by row; it is asked only when no cache
  // has them, on several threads at once. The result has as many, in their order.
  using MakeValues = std::function<std::vector<float>(std::size_t)>;
  std::vector<std::unique_ptr<PackedMatrix>> made(std::span<const MadeMatrix> matrices,
                                                  const MakeValues& make);

  DeviceVector vector(const std::string& name, std::int64_t size);
  // Vectors end to end, as the biases of fused projections; empty when the first is absent.
  DeviceVector optional_vectors(std::span<const MatrixPart> parts);

  // The checkpoint's own bytes: of an embedding, for lookups of single rows, or of what a part
  // makes something else of.
  WeightView table(const std::string& name, std::int64_t rows, std::int64_t cols);
  WeightView view(const std::string& name, std::int64_t rows, std::int64_t cols);

  // I64 or I32 numbers of a rank 2 tensor, row by row; empty after a problem.
  std::vector<std::int32_t> integers(const std::string& name, std::int64_t rows, std::int64_t cols);

  // Makes `error` the problem unless there is one already.
  void fail(const Status& error);

  bool has(const std::string& name) const { return checkpoint_.has(name); }
  Ops& ops() const { return ops_; }
  const Status& status() const { return status_; }

 private:
  using Packed = Result<std::unique_ptr<PackedMatrix>>;

  std::unique_ptr<PackedMatrix> load(const std::string& name, const std::string& key,
                                     std::span<const WeightView> views, ReadShare share);
  void make_some(std::span<const MadeMatrix> matrices, std::span<const std::size_t> wanted,
                 const MakeValues& make, std::span<std::unique_ptr<PackedMatrix>> out);
  std::optional<Packed> cached(const std::string& key, std::int64_t rows, std::int64_t cols);
  Packed packed(const std::string& key, std::span<const WeightView> views);
  std::unique_ptr<PackedMatrix> planned(std::span<const WeightView> views, ReadShare share);
  std::unique_ptr<PackedMatrix> take(const std::string& name, Packed result);

  const Checkpoint& checkpoint_;
  Ops& ops_;
  std::function<void(std::int64_t)> progress_;
  PackedCache* cache_;
  WeightPlan* plan_;
  Status status_;
  std::int64_t read_bytes_ = 0;
};

}  // namespace kun
