#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kun {
namespace {

std::uint64_t of(std::string_view text, std::uint64_t seed = 0) {
  return checksum(std::as_bytes(std::span(text.data(), text.size())), seed);
}

TEST(Checksum, IsXxh64) {
  // Values of the reference implementation.
  EXPECT_EQ(of(""), 0xEF46DB3751D8E999U);
  EXPECT_EQ(of("a"), 0xD24EC4F1A98C6E5BU);
  EXPECT_EQ(of("abc"), 0x44BC2CF5AD770999U);
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1U);
}

TEST(Checksum, ChangesWithEveryBitAndWithTheLength) {
  std::string text(100, 'x');
  const std::uint64_t whole = of(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
      EXPECT_NE(of(text), whole) << i;
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
    }
    EXPECT_NE(of(std::string_view(text).substr(0, i)), whole);
  }
  EXPECT_NE(of(text, 1), whole);
}

}  // namespace
}  // namespace kun
