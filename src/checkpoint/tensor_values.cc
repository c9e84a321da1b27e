// One sentence per problem, the same for every kind of file.
#include "checkpoint/tensor_values.h"

#include <fmt/format.h>

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

Status unsupported_format(const std::filesystem::path& path, std::string_view name,
                          std::string_view format) {
  return unimplemented(fmt::format("{}: tensor {} is stored as {}, which is not supported",
                                   path.string(), show_name(name), format));
}

std::vector<float> row_values(const WeightView& row) {
  CHECK(row.rows == 1);
  std::vector<float> out(static_cast<std::size_t>(row.cols));
  dequantize_row(row, 0, out.data());
  return out;
}

}  // namespace kun
