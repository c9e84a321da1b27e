// The reference dequantizers against numbers that ggml computed (tests/data/ggml-dequant).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tensor/weight_view.h"

namespace kun {
namespace {

struct Case {
  std::string type;
  int n = 0;
  std::vector<std::byte> data;
  std::vector<std::byte> floats;
};

// The file has one case a line, with plain fields: no JSON parser is needed to find them.
std::string field(const std::string& line, const std::string& name) {
  const std::string start = "\"" + name + "\":";
  std::size_t from = line.find(start);
  if (from == std::string::npos) return "";
  from += start.size();
  if (line[from] == '"') ++from;
  return line.substr(from, line.find_first_of("\",}", from) - from);
}

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::vector<Case> read_cases() {
  std::ifstream file(KUN_TEST_DATA "/ggml-dequant/vectors.json");
  std::vector<Case> cases;
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("{\"type\"", 0) != 0) continue;
    cases.push_back({field(line, "type"), std::stoi(field(line, "n")), unhex(field(line, "data")),
                     unhex(field(line, "f32"))});
  }
  return cases;
}

const std::map<std::string, WeightFormat> kFormats{
    {"f16", WeightFormat::kF16},       {"bf16", WeightFormat::kBF16},
    {"q4_0", WeightFormat::kQ4_0},     {"q4_1", WeightFormat::kQ4_1},
    {"q5_0", WeightFormat::kQ5_0},     {"q5_1", WeightFormat::kQ5_1},
    {"q8_0", WeightFormat::kQ8_0},     {"q2_K", WeightFormat::kQ2_K},
    {"q3_K", WeightFormat::kQ3_K},     {"q4_K", WeightFormat::kQ4_K},
    {"q5_K", WeightFormat::kQ5_K},     {"q6_K", WeightFormat::kQ6_K},
    {"iq4_nl", WeightFormat::kIQ4_NL}, {"iq4_xs", WeightFormat::kIQ4_XS},
    {"mxfp4", WeightFormat::kMXFP4},   {"nvfp4", WeightFormat::kNVFP4},
};

TEST(Dequantize, ReproducesGgmlBitForBitInAllSixteenFormats) {
  const std::vector<Case> cases = read_cases();
  std::map<std::string, int> seen;
  for (const Case& c : cases) {
    ASSERT_TRUE(kFormats.contains(c.type)) << c.type;
    const WeightView view{kFormats.at(c.type), 1, c.n, c.data};
    ASSERT_EQ(view.row_bytes(), static_cast<std::int64_t>(c.data.size())) << c.type;
    std::vector<float> out(static_cast<std::size_t>(c.n));
    dequantize_row(view, 0, out.data());
    ASSERT_EQ(c.floats.size(), out.size() * sizeof(float));
    int different = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      different += std::memcmp(&out[i], c.floats.data() + 4 * i, sizeof(float)) != 0;
    }
    EXPECT_EQ(different, 0) << "of " << c.n << " values in a case of " << c.type;
    ++seen[c.type];
  }
  EXPECT_EQ(seen.size(), kFormats.size());
  EXPECT_EQ(cases.size(), 46U);
}

TEST(Dequantize, FindsTheBlocksOfLaterRows) {
  // Two rows of two Q8_0 blocks: d = 1 (0x3C00), and codes that count up.
  std::vector<std::byte> data;
  int code = 0;
  for (int block = 0; block < 4; ++block) {
    data.push_back(std::byte{0x00});
    data.push_back(std::byte{0x3C});
    for (int i = 0; i < 32; ++i) data.push_back(static_cast<std::byte>(code++));
  }
  const WeightView view{WeightFormat::kQ8_0, 2, 64, data};
  std::vector<float> out(64);
  dequantize_row(view, 1, out.data());
  EXPECT_EQ(out[0], 64.0F);
  EXPECT_EQ(out[63], 127.0F);
}

TEST(Dequantize, MultipliesByTheTensorScale) {
  const std::vector<float> stored{1.5F, -2.0F};
  WeightView view{WeightFormat::kF32, 1, 2, std::as_bytes(std::span(stored))};
  view.tensor_scale = 4.0F;
  std::vector<float> out(2);
  dequantize_row(view, 0, out.data());
  EXPECT_EQ(out, (std::vector<float>{6.0F, -8.0F}));
}

TEST(Dequantize, ReadsUnalignedFloats) {
  const float value = 3.25F;
  std::vector<std::byte> data(5);
  std::memcpy(data.data() + 1, &value, sizeof(value));
  const WeightView view{WeightFormat::kF32, 1, 1, std::span(data).subspan(1)};
  float out = 0;
  dequantize_row(view, 0, &out);
  EXPECT_EQ(out, value);
}

TEST(WeightFormatTable, NamesEveryFormatAndItsBlock) {
  for (int i = 0; i <= static_cast<int>(WeightFormat::kNVFP4); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    EXPECT_FALSE(name(format).empty());
    EXPECT_GT(block_shape(format).columns, 0);
    EXPECT_GT(block_shape(format).bytes, 0);
  }
  EXPECT_EQ(name(WeightFormat::kQ4_K), "Q4_K");
  EXPECT_EQ(block_shape(WeightFormat::kQ4_K).columns, 256);
  EXPECT_EQ(block_shape(WeightFormat::kQ4_K).bytes, 144);
}

}  // namespace
}  // namespace kun
