// Quantized matrices, built by hand from codes that are easy to see: what they mean, and what is
// refused. The tiny models of tests/golden prove the same layouts on whole checkpoints.
#include "checkpoint/quantized_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

struct Part {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using Parts = std::map<std::string, Part>;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
Part part(const std::string& dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), raw(values)};
}
// F16 one, and powers of two around it.
constexpr std::uint16_t kOne = 0x3C00;
constexpr std::uint16_t kTwo = 0x4000;
constexpr std::uint16_t kHalf = 0x3800;

std::string file_of(const Parts& parts) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, part] : parts) {
    if (header.size() > 1) header += ",";
    header += "\"" + name + "\":{\"dtype\":\"" + part.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < part.shape.size(); ++i) {
      header += (i > 0 ? "," : "") + std::to_string(part.shape[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += part.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  std::string out = safetensors_bytes(header, 0);
  return out + data;
}

// A checkpoint folder with these tensors and this quantization_config.
class Folder {
 public:
  Folder(const std::string& quantization, const Parts& parts) {
    folder_.write("config.json", R"({"quantization_config":)" + quantization + "}");
    folder_.write("model.safetensors", file_of(parts));
  }
  Result<std::unique_ptr<Checkpoint>> open() const { return open_checkpoint(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

using Rows = std::vector<std::vector<float>>;

Rows values_of(const WeightView& view) {
  Rows out;
  for (std::int64_t row = 0; row < view.rows; ++row) {
    out.emplace_back(static_cast<std::size_t>(view.cols));
    dequantize_row(view, row, out.back().data());
  }
  return out;
}

// The matrix "x.weight", or what is wrong with it.
struct Outcome {
  Rows rows;
  std::string error = "no error";
  WeightFormat format = WeightFormat::kF32;
};
Outcome read(const std::string& quantization, const Parts& parts) {
  const Folder folder(quantization, parts);
  const auto checkpoint = folder.open();
  Outcome outcome;
  if (!checkpoint.has_value()) {
    outcome.error = checkpoint.error().message();
    return outcome;
  }
  const auto view = (*checkpoint)->matrix("x.weight");
  if (!view.has_value()) {
    outcome.error = view.error().message();
    return outcome;
  }
  EXPECT_TRUE((*checkpoint)->has("x.weight"));
  outcome.rows = values_of(*view);
  outcome.format = view->format;
  for (std::int64_t row = 1; row < view->rows; ++row) {  // the same through a part of the view
    EXPECT_EQ(values_of(view->slice_rows(row, 1)).front(),
              outcome.rows[static_cast<std::size_t>(row)]);
  }
  return outcome;
}

const std::string kGptq =
    R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":false,"desc_act":false})";

// 8 rows x 16 columns: code of (row, col) = (row + col) % 16, zero of (group, row) = row, scale of
// group 0 is 1, of group 1 is 2.
Parts gptq_parts() {
  std::vector<std::uint32_t> words(2 * 8);
  for (std::uint32_t col = 0; col < 16; ++col) {
    for (std::uint32_t row = 0; row < 8; ++row) {
      words[col / 8 * 8 + row] |= (row + col) % 16 << (col % 8 * 4);
    }
  }
  const std::uint32_t zeros = 0x6543210FU;  // row - 1 for row 0..7: v1 stores one less
  return {{"x.qweight", part("I32", {2, 8}, words)},
          {"x.qzeros", part("I32", {2, 1}, std::vector<std::uint32_t>{zeros, zeros})},
          {"x.scales", part("F16", {2, 8}, [] {
             std::vector<std::uint16_t> scales(16, kOne);
             std::fill(scales.begin() + 8, scales.end(), kTwo);
             return scales;
           }())}};
}

float gptq_value(int row, int col, int group) {
  return static_cast<float>((row + col) % 16 - row) * (group == 0 ? 1.0F : 2.0F);
}

TEST(QuantizedTensors, ReadsGptqWordsAlongTheColumns) {
  const Outcome outcome = read(kGptq, gptq_parts());
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.format, WeightFormat::kGptqInt4);
  for (int row = 0; row < 8; ++row) {
    for (int col = 0; col < 16; ++col) {
      EXPECT_EQ(outcome.rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)],
                gptq_value(row, col, col / 8))
          << row << " " << col;
    }
  }
}

TEST(QuantizedTensors, FollowsTheGroupIndexOfReorderedColumns) {
  Parts parts = gptq_parts();
  std::vector<std::int32_t> groups(16);
  for (std::size_t i = 0; i < 16; ++i) groups[i] = static_cast<std::int32_t>(i % 2);
  parts["x.g_idx"] = part("I32", {16}, groups);
  const Outcome outcome = read(kGptq, parts);
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.rows[3][4], gptq_value(3, 4, 0));
  EXPECT_EQ(outcome.rows[3][5], gptq_value(3, 5, 1));
}

TEST(QuantizedTensors, RefusesWhatDoesNotFitInGptq) {
  struct Case {
    std::function<void(Parts&)> change;
    const char* error;
  };
  const std::vector<Case> cases{
      {[](Parts& p) { p.erase("x.qzeros"); }, "tensor 'x.qzeros' is missing"},
      {[](Parts& p) { p.erase("x.scales"); }, "tensor 'x.scales' is missing"},
      {[](Parts& p) {
         p["x.scales"].shape = {1, 16};
       },
       "tensor 'x.scales' has the shape [1, 16], it must be [2, 8]"},
      {[](Parts& p) { p["x.scales"].bytes[1] = 0x7E; }, "tensor 'x.scales' has the scale nan at 0"},
      {[](Parts& p) {
         p["x.qzeros"].shape = {1, 2};
       },
       "tensor 'x.qzeros' has the shape [1, 2]"},
      {[](Parts& p) { p["x.qweight"].dtype = "F32"; },
       "tensor 'x.qweight' is stored as F32, it must be I32"},
      {[](Parts& p) { p["x.qweight"].shape = {16}; }, "must have 2 dimensions"},
      {[](Parts& p) {
         p["x.qweight"].shape = {16, 1};
       },
       "tensor 'x.scales' has the shape [2, 8]"},
      {[](Parts& p) { p["x.g_idx"] = part("I32", {16}, std::vector<std::int32_t>(16, 2)); },
       "tensor 'x.g_idx' puts column 0 into group 2 of 2"},
      {[](Parts& p) { p["x.g_idx"] = part("I32", {16}, std::vector<std::int32_t>(16, -1)); },
       "into group -1 of 2"},
      {[](Parts& p) { p["x.g_idx"] = part("I32", {8}, std::vector<std::int32_t>(8, 0)); },
       "tensor 'x.g_idx' has the shape [8], it must be [16]"},
  };
  for (const Case& c : cases) {
    Parts parts = gptq_parts();
    c.change(parts);
    EXPECT_THAT(read(kGptq, parts).error, HasSubstr(c.error));
  }
  const std::string reordered =
      R"({"quant_method":"gptq","bits":4,"group_size":8,"desc_act":true})";
  EXPECT_THAT(read(reordered, gptq_parts()).error, HasSubstr("tensor 'x.g_idx' is missing"));
}

TEST(QuantizedTensors, ReadsAwqInItsOwnOrder) {
  // 8 rows x 8 columns in one group: the codes of rows 0..7 lie in nibbles 0 4 1 5 2 6 3 7.
  constexpr int kNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<std::uint32_t> words(8);
  std::uint32_t zeros = 0;
  for (std::uint32_t row = 0; row < 8; ++row) {
    for (std::uint32_t col = 0; col < 8; ++col) {
      words[col] |= (2 * row + col) % 16 << (4 * kNibble[row]);
    }
    zeros |= row << (4 * kNibble[row]);
  }
  const Parts parts{{"x.qweight", part("I32", {8, 1}, words)},
                    {"x.qzeros", part("I32", {1, 1}, std::vector<std::uint32_t>{zeros})},
                    {"x.scales", part("F16", {1, 8}, std::vector<std::uint16_t>(8, kHalf))}};
  const Outcome outcome = read(R"({"quant_method":"awq","bits":4,"group_size":-1})", parts);
  ASSERT_EQ(outcome.error, "no error");
  for (int row = 0; row < 8; ++row) {
    for (int col = 0; col < 8; ++col) {
      EXPECT_EQ(outcome.rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)],
                0.5F * static_cast<float>((2 * row + col) % 16 - row));
    }
  }
}

// 3 x 5, two blocks each way, the last ones partial.
Parts fp8_parts() {
  std::vector<std::uint8_t> codes(15, 0x38);  // 1.0
  codes[1] = 0xC0;                            // -2.0
  codes[2] = 0x01;                            // 2^-9
  codes[14] = 0x7E;                           // 448
  return {{"x.weight", part("F8_E4M3", {3, 5}, codes)},
          {"x.weight_scale_inv", part("F32", {2, 2}, std::vector<float>{1.0F, 2.0F, 4.0F, 8.0F})}};
}
const std::string kFp8 = R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[2,4]})";

TEST(QuantizedTensors, MultipliesFp8ByTheScaleOfItsBlockAtTheEdgesToo) {
  const Outcome outcome = read(kFp8, fp8_parts());
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.rows, (Rows{{1.0F, -2.0F, 0x1p-9F, 1.0F, 2.0F},
                                {1.0F, 1.0F, 1.0F, 1.0F, 2.0F},
                                {4.0F, 4.0F, 4.0F, 4.0F, 8.0F * 448.0F}}));
}

TEST(QuantizedTensors, ReadsPowersOfTwoAsScales) {
  Parts parts = fp8_parts();
  parts.erase("x.weight_scale_inv");
  parts["x.scale"] = part("F8_E8M0", {2, 2}, std::vector<std::uint8_t>{127, 128, 129, 130});
  EXPECT_EQ(read(kFp8, parts).rows, read(kFp8, fp8_parts()).rows);
  parts["x.scale"].bytes[3] = '\xFF';
  EXPECT_THAT(read(kFp8, parts).error, HasSubstr("tensor 'x.scale' has the scale nan at 3"));
}

TEST(QuantizedTensors, ReadsFp8WithOneScaleOrOneForEachRow) {
  const std::string plain = R"({"quant_method":"fp8"})";
  Parts parts = fp8_parts();
  parts.erase("x.weight_scale_inv");
  EXPECT_THAT(read(plain, parts).error, HasSubstr("tensor 'x.weight' is stored as F8_E4M3 and has "
                                                  "no scales"));
  parts["x.weight_scale"] = part("F32", {}, std::vector<float>{2.0F});
  EXPECT_EQ(read(plain, parts).rows[2][4], 896.0F);
  parts["x.weight_scale"] =
      part("BF16", {3, 1}, std::vector<std::uint16_t>{0x3F80, 0x4000, 0x4080});
  EXPECT_EQ(read(plain, parts).rows[2][0], 4.0F);
  EXPECT_EQ(read(plain, parts).rows[1][0], 2.0F);
  parts["x.weight_scale"] = part("F32", {2}, std::vector<float>{1.0F, 2.0F});
  EXPECT_THAT(read(plain, parts).error,
              HasSubstr("tensor 'x.weight_scale' has the shape [2], which fits no setting of the "
                        "configuration for a 3 x 5 matrix"));
}

TEST(QuantizedTensors, ReadsFp4WithTheEvenColumnInTheLowNibble) {
  // One row of 32 columns: codes 0 1 2 ... 15 0 1 2 ..., times 2.
  std::vector<std::uint8_t> bytes(16);
  for (std::size_t i = 0; i < 16; ++i) {
    bytes[i] = static_cast<std::uint8_t>((2 * i) % 16 | (2 * i + 1) % 16 << 4);
  }
  Parts parts{{"x.weight", part("I8", {1, 16}, bytes)},
              {"x.scale", part("F8_E8M0", {1, 1}, std::vector<std::uint8_t>{128})}};
  const Outcome outcome = read(kFp8, parts);
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.format, WeightFormat::kE2M1);
  const std::vector<float> expected{0, 1, 2, 3, 4, 6, 8, 12, -0.0F, -1, -2, -3, -4, -6, -8, -12};
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(outcome.rows[0][i], expected[i % 16]) << i;
  parts["x.weight"] = part("F4", {2, 3}, std::vector<std::uint8_t>{1, 2, 3});
  parts["x.scale"] = part("F8_E8M0", {2, 1}, std::vector<std::uint8_t>{128, 128});
  EXPECT_THAT(read(kFp8, parts).error, HasSubstr("'x.weight' has rows that do not fill"));
  parts["x.weight"] = part("I8", {1, 16}, bytes);
  parts["x.scale"] = part("F8_E8M0", {1, 2}, std::vector<std::uint8_t>{128, 128});
  EXPECT_THAT(read(kFp8, parts).error,
              HasSubstr("tensor 'x.scale' has the shape [1, 2], it must be [1, 1]"));
}

std::string compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":)" + weights + "}}}";
}

// 2 rows x 8 columns, codes 0..7 and 8..15; zeros 1 and 15.
Parts packed_parts() {
  return {{"x.weight_packed",
           part("I32", {2, 1}, std::vector<std::uint32_t>{0x76543210U, 0xFEDCBA98U})},
          {"x.weight_scale", part("BF16", {2, 1}, std::vector<std::uint16_t>{0x3F80, 0x4000})},
          {"x.weight_shape", part("I64", {2}, std::vector<std::int64_t>{2, 8})},
          {"x.weight_zero_point", part("I32", {1, 1}, std::vector<std::uint32_t>{0xF1U})}};
}
const std::string kPacked = compressed(
    "pack-quantized",
    R"({"num_bits":4,"type":"int","symmetric":false,"strategy":"group","group_size":8})");

TEST(QuantizedTensors, ReadsPackedCodesWithAndWithoutZeroPoints) {
  const Outcome outcome = read(kPacked, packed_parts());
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.rows, (Rows{{-1, 0, 1, 2, 3, 4, 5, 6}, {-14, -12, -10, -8, -6, -4, -2, 0}}));
  Parts parts = packed_parts();
  parts.erase("x.weight_zero_point");
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("tensor 'x.weight_zero_point' is missing"));
  const std::string symmetric = compressed(
      "pack-quantized", R"({"num_bits":4,"type":"int","symmetric":true,"strategy":"channel"})");
  EXPECT_EQ(read(symmetric, parts).rows,
            (Rows{{-8, -7, -6, -5, -4, -3, -2, -1}, {0, 2, 4, 6, 8, 10, 12, 14}}));
}

TEST(QuantizedTensors, RefusesWhatDoesNotFitInCompressedTensors) {
  Parts parts = packed_parts();
  parts["x.weight_shape"] = part("I64", {2}, std::vector<std::int64_t>{2, 9});
  EXPECT_THAT(read(kPacked, parts).error,
              HasSubstr("tensor 'x.weight_packed' has the shape [2, 1], which holds no 2 x 9 "
                        "matrix of the configured bits"));
  parts["x.weight_shape"] = part("I64", {2}, std::vector<std::int64_t>{-2, 8});
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("stands for a matrix of -2 x 8"));
  parts["x.weight_shape"] = part("F32", {2}, std::vector<float>{2, 8});
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("must hold two whole numbers"));
  parts = packed_parts();
  parts["x.weight_scale"].shape = {1, 2};
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("'x.weight_scale' has the shape [1, 2]"));
  parts = packed_parts();
  parts["x.weight_zero_point"].shape = {1};
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("'x.weight_zero_point' has the shape [1]"));
  const std::string reordered = compressed(
      "pack-quantized",
      R"({"num_bits":4,"symmetric":false,"strategy":"group","group_size":8,"actorder":"group"})");
  EXPECT_THAT(read(reordered, packed_parts()).error,
              HasSubstr("tensor 'x.weight_g_idx' is missing"));
}

// compressed-tensors makes the index whatever the order, and fills it with -1 when it has none.
TEST(QuantizedTensors, TakesAnIndexThatWasNeverSetForColumnOrder) {
  Parts parts = packed_parts();
  parts["x.weight_g_idx"] = part("I32", {8}, std::vector<std::int32_t>(8, -1));
  EXPECT_EQ(read(kPacked, parts).rows, read(kPacked, packed_parts()).rows);
  const std::string reordered = compressed(
      "pack-quantized",
      R"({"num_bits":4,"symmetric":false,"strategy":"group","group_size":8,"actorder":"group"})");
  EXPECT_EQ(read(reordered, parts).rows, read(kPacked, packed_parts()).rows);
  std::vector<std::int32_t> half(8, -1);
  half[7] = 0;
  parts["x.weight_g_idx"] = part("I32", {8}, half);
  EXPECT_THAT(read(kPacked, parts).error, HasSubstr("puts column 0 into group -1 of 1"));
}

TEST(QuantizedTensors, ReadsSignedBytes) {
  const Parts parts{{"x.weight", part("I8", {2, 2}, std::vector<std::int8_t>{-128, 127, 1, 0})},
                    {"x.weight_scale", part("F32", {2, 1}, std::vector<float>{0.5F, 3.0F})}};
  const std::string bytes =
      compressed("int-quantized", R"({"num_bits":8,"type":"int","strategy":"channel"})");
  EXPECT_EQ(read(bytes, parts).rows, (Rows{{-64.0F, 63.5F}, {3.0F, 0.0F}}));
}

TEST(QuantizedTensors, ReadsNvfp4DividedByItsGlobalScale) {
  Parts parts{{"x.weight_packed", part("U8", {1, 8}, std::vector<std::uint8_t>(8, 0x42))},
              {"x.weight_scale", part("F8_E4M3", {1, 1}, std::vector<std::uint8_t>{0x40})},
              {"x.weight_global_scale", part("F32", {1}, std::vector<float>{4.0F})}};
  const std::string nvfp4 =
      compressed("nvfp4-pack-quantized",
                 R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16})");
  EXPECT_EQ(read(nvfp4, parts).rows[0][0], 0.5F);
  EXPECT_EQ(read(nvfp4, parts).rows[0][1], 1.0F);
  parts["x.weight_global_scale"] = part("F32", {1}, std::vector<float>{0.0F});
  EXPECT_THAT(read(nvfp4, parts).error, HasSubstr("'x.weight_global_scale' is 0"));
}

TEST(QuantizedTensors, ReadsMxfp4WithScalesThatArePowersOfTwo) {
  Parts parts{{"x.weight_packed", part("U8", {1, 16}, std::vector<std::uint8_t>(16, 0x42))},
              {"x.weight_scale", part("U8", {1, 1}, std::vector<std::uint8_t>{129})}};
  const std::string mxfp4 =
      compressed("mxfp4-pack-quantized",
                 R"({"num_bits":4,"type":"float","strategy":"group","group_size":32})");
  EXPECT_EQ(read(mxfp4, parts).rows[0][0], 4.0F);
  EXPECT_EQ(read(mxfp4, parts).rows[0][1], 8.0F);
  parts["x.weight_scale"].shape = {1};
  EXPECT_THAT(read(mxfp4, parts).error,
              HasSubstr("'x.weight_scale' has the shape [1], it must be [1, 1]"));
}

TEST(QuantizedTensors, RefusesPartsThatTheConfigurationDoesNotAnnounce) {
  EXPECT_THAT(read("null", gptq_parts()).error,
              HasSubstr("which the configuration does not announce"));
  EXPECT_THAT(read(kGptq, packed_parts()).error,
              HasSubstr("which the configuration does not announce"));
}

TEST(Quantization, RefusesSettingsByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"quant_method":"gguf"})", "quantized with 'gguf', which is not supported"},
      {R"({"quant_method":7})", "the key 'quantization_config.quant_method' must be a string"},
      {R"({"quant_method":"gptq","bits":3})", "is 3, only 4 and 8 are supported"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})",
       "group_size' is 0, it must be positive"},
      {R"({"quant_method":"gptq","bits":4,"group_size":-5})", "group_size' is -5"},
      {R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})",
       "checkpoint_format' is 'marlin', which is not supported; supported are: gptq, gptq_v2"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{"+:lm_head":{"bits":8}}})",
       "dynamic' overrides the settings of single layers"},
      {R"({"quant_method":"awq","bits":4,"version":"gemv"})", "version' is 'gemv'"},
      {R"({"quant_method":"awq","bits":8})", "AWQ has only 4"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt' is 'e5m2'"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "must be a pair of sizes"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})",
       "weight_block_size' has an element 0"},
      {compressed("marlin-24", R"({"num_bits":4})"), "format' is 'marlin-24'"},
      {compressed("pack-quantized", R"({"num_bits":5})"), "num_bits' is 5"},
      {compressed("pack-quantized", R"({"num_bits":4,"strategy":"token"})"),
       "strategy' is 'token'"},
      {compressed("pack-quantized", R"({"num_bits":4,"actorder":"odd"})"), "actorder' is 'odd'"},
      {R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
       "config_groups' names no quantized weights"},
      {R"({"quant_method":"compressed-tensors","format":"dense",)"
       R"("sparsity_config":{"format":"sparse-24"}})",
       "sparsity_config.format' is 'sparse-24'"},
  };
  for (const auto& [quantization, error] : cases) {
    EXPECT_THAT(read(quantization, gptq_parts()).error, HasSubstr(error)) << quantization;
  }
}

TEST(Quantization, ReadsTheFileThatAutoGptqWrites) {
  const TemporaryFolder folder;
  folder.write("config.json", "{}");
  folder.write("quantize_config.json", R"({"bits":4,"group_size":8,"desc_act":false,"sym":false})");
  folder.write("model.safetensors", file_of(gptq_parts()));
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto view = (*checkpoint)->matrix("x.weight", 8, 16);
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_EQ(values_of(*view)[3][4], gptq_value(3, 4, 0));
}

}  // namespace
}  // namespace kun
