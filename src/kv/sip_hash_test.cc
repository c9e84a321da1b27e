// Test vectors: key 00 01 ... 0f, input 00 01 ... of the given length, as in the tables of the
// SipHash reference; printed with OpenSSL 3.0: `openssl mac -macopt size:16 ... SIPHASH`.
#include "kv/sip_hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kun {
namespace {

std::string hex(const Hash128& hash) {
  std::string text;
  for (const std::uint64_t half : {hash.low, hash.high}) {
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<std::size_t>(half >> 8 * i & 0xFFU);
      text += "0123456789ABCDEF"[byte >> 4U];
      text += "0123456789ABCDEF"[byte & 15U];
    }
  }
  return text;
}

TEST(SipHash128, AgreesWithTheReference) {
  const std::uint64_t key[2] = {0x0706050403020100U, 0x0F0E0D0C0B0A0908U};
  const std::pair<std::size_t, const char*> vectors[] = {
      {0, "A3817F04BA25A8E66DF67214C7550293"},  {1, "DA87C1D86B99AF44347659119B22FC45"},
      {2, "8177228DA4A45DC7FCA38BDEF60AFFE4"},  {7, "A1F1EBBED8DBC153C0B84AA61FF08239"},
      {8, "3B62A9BA6258F5610F83E264F31497B4"},  {9, "264499060AD9BAABC47F8B02BB6D71ED"},
      {15, "5493E99933B0A8117E08EC0F97CFC3D9"}, {16, "6EE2A4CA67B054BBFD3315BF85230577"},
      {63, "5150D1772F50834A503E069A973FBD7C"}};
  for (const auto& [length, expected] : vectors) {
    std::vector<std::byte> input;
    for (std::size_t i = 0; i < length; ++i) input.push_back(static_cast<std::byte>(i));
    EXPECT_EQ(hex(sip_hash_128(key, input)), expected) << length;
  }
}

}  // namespace
}  // namespace kun
