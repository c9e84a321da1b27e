// One sentence per problem, the same for every kind of file.
#include "checkpoint/tensor_values.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "base/check.h"
#include "checkpoint/show_name.h"

namespace kun {

Status missing_tensor(const std::filesystem::path& path, std::string_view name) {
  return data_loss(fmt::format("{}: tensor {} is missing", path.string(), show_name(name)));
}

Status wrong_rank(const std::filesystem::path& path, std::string_view name, int expected,
                  int found) {
  return data_loss(fmt::format("{}: tensor {} has {} dimensions, {} expected", path.string(),
                               show_name(name), found, expected));
}

Status wrong_shape(const std::filesystem::path& path, std::string_view name, std::int64_t rows,
                   std::int64_t cols) {
  return data_loss(fmt::format("{}: tensor {} has another shape than the [{}, {}] expected",
                               path.string(), show_name(name), rows, cols));
}

Status unsupported_format(const std::filesystem::path& path, std::string_view name,
                          std::string_view format) {
  return unimplemented(fmt::format("{}: tensor {} is stored as {}, which is not supported",
                                   path.string(), show_name(name), format));
}

Result<std::vector<std::int32_t>> integer_values(const std::filesystem::path& path,
                                                 std::string_view name,
                                                 std::span<const std::byte> data, int width) {
  CHECK(width == 4 || width == 8);
  const auto step = static_cast<std::size_t>(width);
  std::vector<std::int32_t> out;
  out.reserve(data.size() / step);
  for (std::size_t at = 0; at + step <= data.size(); at += step) {
    std::int32_t narrow = 0;
    std::int64_t wide = 0;
    std::memcpy(width == 4 ? static_cast<void*>(&narrow) : &wide, data.data() + at, step);
    if (width == 4) wide = narrow;
    if (wide < std::numeric_limits<std::int32_t>::min() ||
        wide > std::numeric_limits<std::int32_t>::max()) {
      return data_loss(fmt::format("{}: tensor {} holds a number beyond 32 bits", path.string(),
                                   show_name(name)));
    }
    out.push_back(static_cast<std::int32_t>(wide));
  }
  return out;
}

std::vector<float> row_values(const WeightView& row) {
  CHECK(row.rows == 1);
  std::vector<float> out(static_cast<std::size_t>(row.cols));
  dequantize_row(row, 0, out.data());
  return out;
}

}  // namespace kun
