// WeightLoader brings tensors from a checkpoint onto a device, in the device's own layout.
//
// The first problem sticks and everything after it is skipped: the parts of a model load themselves
// in constructors, which cannot fail, and the model's factory asks for the status once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/ops.h"
#include "weights/packed_cache.h"

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

class WeightLoader {
 public:
  // `progress` hears the bytes read so far, after each tensor. `cache` is where packed matrices are
  // looked for and kept; nullptr: nowhere. All references must outlive this.
  WeightLoader(const Checkpoint& checkpoint, Ops& ops,
               std::function<void(std::int64_t)> progress = {}, PackedCache* cache = nullptr);

  // nullptr after a problem: a missing tensor, a shape that the configuration contradicts, ...
  std::unique_ptr<PackedMatrix> matrix(std::span<const MatrixPart> parts, std::int64_t cols);

  DeviceVector vector(const std::string& name, std::int64_t size);
  // Vectors end to end, as the biases of fused projections; empty when the first is absent.
  DeviceVector optional_vectors(std::span<const MatrixPart> parts);

  // The checkpoint's own bytes, for lookups of single rows.
  WeightView table(const std::string& name, std::int64_t rows, std::int64_t cols);

  // I64 or I32 numbers of a rank 2 tensor, row by row; empty after a problem.
  std::vector<std::int32_t> integers(const std::string& name, std::int64_t rows, std::int64_t cols);

  // Makes `error` the problem unless there is one already.
  void fail(const Status& error);

  bool has(const std::string& name) const { return checkpoint_.has(name); }
  Ops& ops() const { return ops_; }
  const Status& status() const { return status_; }

  // Bytes that one step reads when it uses every packed matrix once.
  std::int64_t packed_bytes() const { return packed_bytes_; }

 private:
  Result<std::unique_ptr<PackedMatrix>> cached_or_packed(const std::string& key,
                                                         std::span<const WeightView> views);

  const Checkpoint& checkpoint_;
  Ops& ops_;
  std::function<void(std::int64_t)> progress_;
  PackedCache* cache_;
  Status status_;
  std::int64_t read_bytes_ = 0;
  std::int64_t packed_bytes_ = 0;
};

}  // namespace kun
