// Plain words and rotations, straight from the specification; labels are no bottleneck.
#include "kv/sip_hash.h"

#include <bit>

namespace kun {

namespace {

std::uint64_t load_little_endian(const std::byte* bytes, std::size_t count) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) word |= std::to_integer<std::uint64_t>(bytes[i]) << 8 * i;
  return word;
}

struct State {
  std::uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }

  void absorb(std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }

  std::uint64_t folded() const { return v0 ^ v1 ^ v2 ^ v3; }
};

}  // namespace

Hash128 sip_hash_128(const std::uint64_t (&key)[2], std::span<const std::byte> input) {
  // The constants spell "somepseudorandomlygeneratedbytes"; 0xee and 0xdd mark the 128-bit form.
  State state{.v0 = key[0] ^ 0x736F6D6570736575U,
              .v1 = key[1] ^ 0x646F72616E646F6DU ^ 0xEEU,
              .v2 = key[0] ^ 0x6C7967656E657261U,
              .v3 = key[1] ^ 0x7465646279746573U};
  const std::size_t whole = input.size() / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) state.absorb(load_little_endian(&input[i], 8));
  const std::byte* rest = input.data() + whole;
  state.absorb(load_little_endian(rest, input.size() - whole) |
               static_cast<std::uint64_t>(input.size() & 0xFFU) << 56U);
  state.v2 ^= 0xEEU;
  state.rounds(4);
  Hash128 hash;
  hash.low = state.folded();
  state.v1 ^= 0xDDU;
  state.rounds(4);
  hash.high = state.folded();
  return hash;
}

}  // namespace kun
