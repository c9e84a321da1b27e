// Quantized matrices, built by hand from codes that are easy to see: what they mean, and what is
// refused. The tiny models of tests/golden prove the same layouts on whole checkpoints.
#include "checkpoint/quantized_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/test_quantized.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

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

TEST(QuantizedTensors, ReadsAGroupThatEndsWithTheMatrix) {
  const Outcome outcome =
      read(R"({"quant_method":"gptq","bits":4,"group_size":12,"sym":false})", gptq_parts());
  ASSERT_EQ(outcome.error, "no error");
  for (int col = 0; col < 16; ++col) {
    EXPECT_EQ(outcome.rows[3][static_cast<std::size_t>(col)], gptq_value(3, col, col / 12)) << col;
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

TEST(QuantizedTensors, ReadsPackedBytesWithZeroPointsInReorderedGroups) {
  // 4 rows x 4 columns: code of (row, col) = 16 row + col; zeros 0..3 of group 0, 4..7 of group 1;
  // columns 0 and 2 are in group 1, whose scale is 2.
  std::vector<std::uint32_t> words;
  for (std::uint32_t row = 0; row < 4; ++row) words.push_back(0x03020100U + row * 0x10101010U);
  std::vector<std::uint16_t> scales;
  for (int row = 0; row < 4; ++row) scales.insert(scales.end(), {kOne, kTwo});
  const Parts parts{{"x.weight_packed", part("I32", {4, 1}, words)},
                    {"x.weight_scale", part("F16", {4, 2}, scales)},
                    {"x.weight_shape", part("I64", {2}, std::vector<std::int64_t>{4, 4})},
                    {"x.weight_g_idx", part("I32", {4}, std::vector<std::int32_t>{1, 0, 1, 0})},
                    {"x.weight_zero_point",
                     part("I32", {1, 2}, std::vector<std::uint32_t>{0x03020100U, 0x07060504U})}};
  const std::string settings = compressed(
      "pack-quantized",
      R"({"num_bits":8,"symmetric":false,"strategy":"group","group_size":2,"actorder":"group"})");
  const Outcome outcome = read(settings, parts);
  ASSERT_EQ(outcome.error, "no error");
  EXPECT_EQ(outcome.format, WeightFormat::kRowInt8);
  for (int row = 0; row < 4; ++row) {
    for (int col = 0; col < 4; ++col) {
      const bool second = col % 2 == 0;
      const int zero = row + (second ? 4 : 0);
      EXPECT_EQ(outcome.rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)],
                (second ? 2.0F : 1.0F) * static_cast<float>(16 * row + col - zero))
          << row << " " << col;
    }
  }
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

// What `kun inspect` adds up.
TEST(QuantizedTensors, CountTheWeightsBehindTheirWords) {
  const auto count = [](const std::string& quantization, Parts parts) {
    parts["x.bias"] = part("F32", {3}, std::vector<float>(3));
    parts["norm.weight"] = part("F32", {5}, std::vector<float>(5));
    const Folder folder(quantization, parts);
    const auto checkpoint = folder.open();
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    std::int64_t sum = -8;  // bias and norm
    if (!checkpoint.has_value()) return sum;
    for (const StoredTensor& tensor : (*checkpoint)->tensors()) sum += tensor.parameters;
    return sum;
  };
  EXPECT_EQ(count(kGptq, gptq_parts()), 8 * 16);
  EXPECT_EQ(count(kFp8, fp8_parts()), 3 * 5);
  EXPECT_EQ(count(kPacked, packed_parts()), 2 * 8);
  const Part four_bytes = part("U8", {2, 2}, std::vector<std::uint8_t>(4));
  const Part two_scales = part("F8_E8M0", {2, 1}, std::vector<std::uint8_t>(2, 127));
  EXPECT_EQ(count(kFp8, {{"x.weight", four_bytes}, {"x.scale", two_scales}}), 8);
  EXPECT_EQ(count(kPacked, {{"x.weight_packed", four_bytes}, {"x.weight_scale", two_scales}}), 8);
  EXPECT_EQ(count("null", {{"x.weight", part("F32", {2, 2}, std::vector<float>(4))}}), 4);
}

TEST(QuantizedTensors, RefusesPartsThatTheConfigurationDoesNotAnnounce) {
  EXPECT_THAT(read("null", gptq_parts()).error,
              HasSubstr("which the configuration does not announce"));
  EXPECT_THAT(read(kGptq, packed_parts()).error,
              HasSubstr("which the configuration does not announce"));
}

}  // namespace
}  // namespace kun
