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
#include "weights/weight_plan.h"

namespace kun {

struct ModelOptions {
  DType cache_dtype = DType::kBF16;
  bool latent_by_shape = false;                  // see nn/latent_attention.h
  std::function<void(std::int64_t)> progress{};  // hears the bytes of weights read so far
  PackedCache* cache = nullptr;                  // of packed weights
  WeightPlan* plan = nullptr;      // given: nothing is loaded, and here is what would be
  bool next_token_module = false;  // load it, too; fails where there is none
};

// Requires: the checkpoint and the ops outlive the model.
using ModelFactory = Result<std::unique_ptr<const Model>> (*)(const Checkpoint& checkpoint,
                                                              Ops& ops,
                                                              const ModelOptions& options);

using LayoutPlanner = Result<KvLayout> (*)(const Checkpoint& checkpoint, DType cache_dtype);

struct Architecture {
  std::string_view name;               // config.json's architectures[0]
  ModelFactory load;                   // nullptr: known, and not supported yet
  LayoutPlanner layout;                // as the model will have it, from the configuration alone
  bool has_next_token_module = false;  // its files may hold one that we can load
};

std::span<const Architecture> architectures();

// Finds the checkpoint's architecture and loads it; one sentence says what cannot be done and why.
Result<std::unique_ptr<const Model>> load_model(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options);

// What the cache of a model would hold, before its weights are loaded.
Result<KvLayout> plan_kv_layout(const Checkpoint& checkpoint, DType cache_dtype);

// What its weights will need, before they are loaded. For the device behind `ops`, whose caches
// hold `cache_dtype`. Fails where load_model would, unless that is for the values of weights.
Result<WeightPlan> plan_weights(const Checkpoint& checkpoint, Ops& ops, DType cache_dtype);

}  // namespace kun
