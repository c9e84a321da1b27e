// Weights that a part does something with before it packs them: it transposes them, cuts them into
// heads, or keeps them in F32 because a choice depends on them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/loader.h"

namespace kun::nn {

// A matrix as floats, row by row; empty after a problem.
std::vector<float> load_floats(const Loader& load, const std::string& name, std::int64_t rows,
                               std::int64_t cols);

// rows x cols floats as weights of type `dtype`, F32 or BF16. nullptr after a problem, or when
// `values` is empty because there was one.
std::unique_ptr<PackedMatrix> pack_floats(const Loader& load, std::span<const float> values,
                                          std::int64_t rows, std::int64_t cols, DType dtype);

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
