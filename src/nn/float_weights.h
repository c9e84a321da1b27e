// Weights that a part does something with before it packs them: it transposes them, cuts them into
// heads, or keeps them in F32 because a choice depends on them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/loader.h"

namespace kun::nn {

// Rows [first, first + count) of a checkpoint's matrix, or all of them, as floats.
std::vector<float> floats_of(const WeightView& view, std::int64_t first, std::int64_t count);
inline std::vector<float> floats_of(const WeightView& view) {
  return floats_of(view, 0, view.rows);
}

// The matrix under `name` in F32, whatever the checkpoint and the device make of others.
std::unique_ptr<PackedMatrix> pack_exact(const Loader& load, const std::string& name,
                                         std::int64_t rows, std::int64_t cols);

// The matrix under `name` as `count` matrices of `rows` rows, one below the other.
std::vector<std::unique_ptr<PackedMatrix>> pack_slices(const Loader& load, const std::string& name,
                                                       std::int64_t count, std::int64_t rows,
                                                       std::int64_t cols);

// Floats on the device.
DeviceVector device_vector(Ops& ops, std::span<const float> values);

}  // namespace kun::nn
