// The one table of weight formats: names, and blocks as ggml-common.h of ggml-org/ggml defines
// them.
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
    {WeightFormat::kF32, "F32", {1, 4}},           {WeightFormat::kF16, "F16", {1, 2}},
    {WeightFormat::kBF16, "BF16", {1, 2}},         {WeightFormat::kQ8_0, "Q8_0", {32, 34}},
    {WeightFormat::kQ4_0, "Q4_0", {32, 18}},       {WeightFormat::kQ4_1, "Q4_1", {32, 20}},
    {WeightFormat::kQ5_0, "Q5_0", {32, 22}},       {WeightFormat::kQ5_1, "Q5_1", {32, 24}},
    {WeightFormat::kQ2_K, "Q2_K", {256, 84}},      {WeightFormat::kQ3_K, "Q3_K", {256, 110}},
    {WeightFormat::kQ4_K, "Q4_K", {256, 144}},     {WeightFormat::kQ5_K, "Q5_K", {256, 176}},
    {WeightFormat::kQ6_K, "Q6_K", {256, 210}},     {WeightFormat::kIQ4_NL, "IQ4_NL", {32, 18}},
    {WeightFormat::kIQ4_XS, "IQ4_XS", {256, 136}}, {WeightFormat::kMXFP4, "MXFP4", {32, 17}},
    {WeightFormat::kNVFP4, "NVFP4", {64, 36}},
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

std::string_view name(WeightFormat format) {
  return row_of(format).name;
}

}  // namespace kun
