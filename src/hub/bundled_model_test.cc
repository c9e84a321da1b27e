// Models that travel inside the program are pulled without a hub, and repaired where damaged.
#include "hub/bundled_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace kun {
namespace {

namespace fs = std::filesystem;

TEST(BundledModel, IsUnpackedWithoutAskingTheHub) {
  HubOptions options;
  options.home = fs::path(testing::TempDir()) / fmt::format("kun_bundled_{}", ::getpid());
  options.endpoint = "http://127.0.0.1:1";
  auto pulled = pull_model("kun-tiny-v3", options, {});
  ASSERT_TRUE(pulled) << pulled.error().message();
  EXPECT_EQ(pulled->files.size(), 5U);
  const fs::path weights = pulled->path / "model.safetensors";
  const auto bytes = fs::file_size(weights);
  EXPECT_GT(bytes, 1'000'000U);
  fs::resize_file(weights, bytes / 2);
  ASSERT_TRUE(pull_model("kun-tiny-v3", options, {}));
  EXPECT_EQ(fs::file_size(weights), bytes);
  fs::remove_all(options.home);
}

TEST(BundledModel, IsFoundByItsWholeNameOnly) {
  EXPECT_NE(find_bundled_model("kun-tiny-v3"), nullptr);
  EXPECT_EQ(find_bundled_model("kun-tiny-v"), nullptr);
  EXPECT_EQ(find_bundled_model(""), nullptr);
}

}  // namespace
}  // namespace kun
