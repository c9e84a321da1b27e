// The table of architectures. Adding a model is a file beside this one and a row in the table.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/model.h"
#include "weights/packed_cache.h"

namespace kun {

struct ModelOptions {
  DType cache_dtype = DType::kBF16;
  std::function<void(std::int64_t)> progress{};  // hears the bytes of weights read so far
  PackedCache* cache = nullptr;                  // of packed weights
};

// Requires: the checkpoint and the ops outlive the model.
using ModelFactory = Result<std::unique_ptr<const Model>> (*)(const Checkpoint& checkpoint,
                                                              Ops& ops,
                                                              const ModelOptions& options);

struct Architecture {
  std::string_view name;  // config.json's architectures[0]
  ModelFactory load;      // nullptr: known, and not supported yet
};

std::span<const Architecture> architectures();

// Finds the checkpoint's architecture and loads it; one sentence says what cannot be done and why.
Result<std::unique_ptr<const Model>> load_model(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options);

}  // namespace kun
