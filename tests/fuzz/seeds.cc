// Runs a fuzz target over its committed seeds as an ordinary test, with any compiler: what a fuzzer
// once found stays found.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::string> read_seeds() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(KUN_SEEDS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return out;
}

// In memory of exactly its size, so that a sanitizer sees a step beyond it.
void run(const std::string& seed, std::size_t size) {
  const auto bytes = std::make_unique<std::uint8_t[]>(size + (size == 0 ? 1 : 0));
  if (size > 0) std::memcpy(bytes.get(), seed.data(), size);
  EXPECT_EQ(LLVMFuzzerTestOneInput(bytes.get(), size), 0);
}

// KUN_FUZZER is the target's name: gguf_fuzz.
TEST(KUN_FUZZER, SurvivesItsSeedsWholeAndTruncated) {
  const std::vector<std::string> seeds = read_seeds();
  ASSERT_FALSE(seeds.empty()) << "no seeds in " << KUN_SEEDS;
  for (const std::string& seed : seeds) {
    const std::size_t step = seed.size() / 512 + 1;
    for (std::size_t size = 0; size < seed.size(); size += step) run(seed, size);
    run(seed, seed.size());
  }
}

}  // namespace
