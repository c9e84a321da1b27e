// The one table of weight formats: names, and blocks as ggml-common.h of ggml-org/ggml defines
// them; for words of codes, one word.
#include "tensor/weight_view.h"

#include "base/check.h"

namespace kun {
namespace {

struct FormatRow {
  WeightFormat format;
  std::string_view name;
  BlockShape block;
};

constexpr FormatRow kFormats[] = {
    {WeightFormat::kF32, "F32", {1, 4}},
    {WeightFormat::kF16, "F16", {1, 2}},
    {WeightFormat::kBF16, "BF16", {1, 2}},
    {WeightFormat::kQ8_0, "Q8_0", {32, 34}},
    {WeightFormat::kQ4_0, "Q4_0", {32, 18}},
    {WeightFormat::kQ4_1, "Q4_1", {32, 20}},
    {WeightFormat::kQ5_0, "Q5_0", {32, 22}},
    {WeightFormat::kQ5_1, "Q5_1", {32, 24}},
    {WeightFormat::kQ2_K, "Q2_K", {256, 84}},
    {WeightFormat::kQ3_K, "Q3_K", {256, 110}},
    {WeightFormat::kQ4_K, "Q4_K", {256, 144}},
    {WeightFormat::kQ5_K, "Q5_K", {256, 176}},
    {WeightFormat::kQ6_K, "Q6_K", {256, 210}},
    {WeightFormat::kIQ4_NL, "IQ4_NL", {32, 18}},
    {WeightFormat::kIQ4_XS, "IQ4_XS", {256, 136}},
    {WeightFormat::kMXFP4, "MXFP4", {32, 17}},
    {WeightFormat::kNVFP4, "NVFP4", {64, 36}},
    {WeightFormat::kF8E4M3, "F8_E4M3", {1, 1}},
    {WeightFormat::kF8E5M2, "F8_E5M2", {1, 1}},
    {WeightFormat::kE2M1, "FP4", {2, 1}},
    {WeightFormat::kInt8, "INT8", {1, 1}},
    {WeightFormat::kRowInt4, "packed INT4", {8, 4}},
    {WeightFormat::kRowInt8, "packed INT8", {4, 4}},
    {WeightFormat::kGptqInt4, "GPTQ INT4", {8, 4}},
    {WeightFormat::kGptqInt8, "GPTQ INT8", {4, 4}},
    {WeightFormat::kAwqInt4, "AWQ INT4", {8, 4}},
};

const FormatRow& row_of(WeightFormat format) {
  for (const FormatRow& row : kFormats) {
    if (row.format == format) return row;
  }
  CHECK(false);  // a weight format without a row in the table
  return kFormats[0];
}

}  // namespace

BlockShape block_shape(WeightFormat format) {
  return row_of(format).block;
}

WeightView WeightView::slice_rows(std::int64_t first, std::int64_t count) const {
  CHECK(first >= 0 && count >= 0 && first + count <= rows);
  WeightView view = *this;
  view.rows = count;
  if (has_planes(format)) {
    view.planes.first_row += first;
  } else {
    view.data = data.subspan(static_cast<std::size_t>(first * row_bytes()),
                             static_cast<std::size_t>(count * row_bytes()));
  }
  return view;
}

std::string_view name(WeightFormat format) {
  return row_of(format).name;
}

}  // namespace kun
