// The JSON Test Suite: what must be accepted is, what must be refused is, and nothing breaks.
#include "server/json_view.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace kun {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

TEST(JsonDocument, ReadsTheTestSuiteAsItShould) {
  std::ifstream file(std::string(KUN_TEST_DATA) + "/json-tests/parsing.tsv");
  ASSERT_TRUE(file);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const std::size_t tab = line.find('\t');
    const std::string name = line.substr(0, tab);
    const bool accepted =
        JsonDocument::parse(from_hex(std::string_view(line).substr(tab + 1)), {}).has_value();
    if (name.starts_with("i_")) continue;
    EXPECT_EQ(accepted, name.starts_with("y_")) << name;
  }
  EXPECT_GT(count, 300);
}

// The copy leaves out two large files; here is every one.
TEST(JsonDocument, ReadsEveryFileOfTheTestSuite) {
  const std::filesystem::path folder =
      std::filesystem::path(KUN_SHARED_DATA) / "json-tests/JSONTestSuite/test_parsing";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const bool accepted = JsonDocument::parse(text, {}).has_value();
    ++count;
    if (name.starts_with("i_")) continue;
    EXPECT_EQ(accepted, name.starts_with("y_")) << name;
  }
  EXPECT_GE(count, 318);
}

TEST(JsonDocument, RefusesNestingOfAnyDepth) {
  for (const std::size_t depth : {33U, 1000U, 100'000U, 1'000'000U}) {
    const std::string open(depth, '[');
    EXPECT_FALSE(JsonDocument::parse(open, {}));
    EXPECT_FALSE(JsonDocument::parse(open + std::string(depth, ']'), {}));
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    EXPECT_FALSE(JsonDocument::parse(objects, {}));
  }
}

TEST(JsonDocument, TheLastOfEqualKeysCounts) {
  const auto json = JsonDocument::parse(R"({"a":1,"a":2})", {});
  ASSERT_TRUE(json);
  EXPECT_EQ(json->root().find("a")->integer(), 2);
}

// A value takes 24 bytes, twice over while its array is read.
TEST(JsonDocument, CountsWhatTheParserHoldsMeanwhile) {
  std::string text = "[0";
  for (int i = 1; i < 30'000; ++i) text += ",0";
  text += "]";
  EXPECT_FALSE(JsonDocument::parse(text, {.memory_bytes_max = 3U << 19U}).has_value());
  EXPECT_TRUE(JsonDocument::parse(text, {.memory_bytes_max = 4U << 20U}).has_value());
}

}  // namespace
}  // namespace kun
