// Random numbers without state: a function of key and counter, so that a token depends on its
// seed, choice and position alone and not on what else was sampled before it.
//
// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), the
// generator PyTorch and cuRAND use; random_test.cc holds it to the authors' known answers.
#pragma once

#include <array>
#include <cstdint>

namespace kun {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 random bits.
constexpr double uniform(std::uint64_t seed, std::uint32_t choice, std::uint64_t position) {
  const PhiloxBlock block = philox(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), choice, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{block[0]} << 32 | block[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace kun
