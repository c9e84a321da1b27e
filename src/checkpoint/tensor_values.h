// What both kinds of checkpoint say and do about a single tensor.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/weight_view.h"

namespace kun {

Status missing_tensor(const std::filesystem::path& path, std::string_view name);
Status wrong_rank(const std::filesystem::path& path, std::string_view name, int expected,
                  int found);
Status wrong_shape(const std::filesystem::path& path, std::string_view name, std::int64_t rows,
                   std::int64_t cols);
Status unsupported_format(const std::filesystem::path& path, std::string_view name,
                          std::string_view format);

// `count` little-endian integers of `width` bytes (4 or 8) each; fails when one does not fit.
Result<std::vector<std::int32_t>> integer_values(const std::filesystem::path& path,
                                                 std::string_view name,
                                                 std::span<const std::byte> data, int width);

// The floats of a view with a single row.
std::vector<float> row_values(const WeightView& row);

}  // namespace kun
