// Remembers how short words were tokenized: natural text repeats its words, and a hit costs less
// than a tenth of merging them again. Direct-mapped and of fixed size, so it needs no policy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace kun {

// Not thread-safe; allocated at first use.
class WordCache {
 public:
  static constexpr std::size_t kWordBytesMax = 30;
  static constexpr std::size_t kTokenCountMax = 8;

  // The tokens of `word`; empty when it is not known.
  std::span<const Token> find(std::string_view word) const {
    if (entries_.empty()) return {};
    const Entry& entry = entries_[slot_of(word)];
    if (entry.size != word.size() ||
        std::memcmp(entry.word.data(), word.data(), word.size()) != 0) {
      return {};
    }
    return {entry.tokens.data(), entry.count};
  }

  // Requires: 0 < word.size() <= kWordBytesMax. Remembers nothing when there are too many tokens.
  void insert(std::string_view word, std::span<const Token> tokens) {
    if (tokens.empty() || tokens.size() > kTokenCountMax) return;
    if (entries_.empty()) entries_.resize(kEntryCount);
    Entry& entry = entries_[slot_of(word)];
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::memcpy(entry.tokens.data(), tokens.data(), tokens.size() * sizeof(Token));
    entry.size = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(tokens.size());
  }

 private:
  static constexpr std::size_t kEntryCount = 1U << 13U;  // 512 KiB, about the size of an L2 cache

  struct Entry {  // one cache line
    std::array<char, kWordBytesMax> word;
    std::uint8_t size = 0;  // 0: empty
    std::uint8_t count = 0;
    std::array<Token, kTokenCountMax> tokens;
  };

  static std::size_t slot_of(std::string_view word) {
    std::uint64_t hash = word.size();
    std::size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) {
      std::uint64_t part = 0;
      std::memcpy(&part, word.data() + at, 8);
      hash = (hash ^ part) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32U;
    }
    std::uint64_t rest = 0;
    for (; at < word.size(); ++at) rest = (rest << 8U) | static_cast<unsigned char>(word[at]);
    hash = (hash ^ rest) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(hash >> 40U) & (kEntryCount - 1);
  }

  std::vector<Entry> entries_;
};

}  // namespace kun
