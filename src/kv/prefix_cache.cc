// Hashing, and the walk along units. See the header for the idea.
#include "kv/prefix_cache.h"

#include <cstring>
#include <numeric>

namespace kun {

PrefixCache::PrefixCache(std::deque<KvBlockPool>& pools, const std::uint64_t (&key)[2])
    : pools_(pools), key_{key[0], key[1]} {
  for (const KvBlockPool& pool : pools) unit_ = std::lcm(unit_, pool.tokens_per_block());
}

PrefixChain PrefixCache::chain(std::string_view salt) {
  PrefixChain chain;
  chain.root = sip_hash_128(key_, std::as_bytes(std::span(salt)));
  chain.labels.resize(pools_.size());
  return chain;
}

int PrefixCache::match(std::span<const Token> tokens, PrefixChain& chain,
                       std::vector<BlockTable>& tables) {
  int matched = 0;
  std::vector<std::vector<BlockRef>> found(pools_.size());
  while (std::ssize(tokens) >= matched + unit_) {
    bool all_found = true;
    for (std::size_t g = 0; g < pools_.size() && all_found; ++g) {
      all_found = find_unit(tokens, chain, g, matched, found[g]);
    }
    if (!all_found) break;
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      for (BlockRef& block : found[g]) tables[g].append(std::move(block));
    }
    matched += unit_;
  }
  chain.published_count = matched;
  return matched;
}

// Fills `found` with the group's blocks of the unit that begins at token `first`.
bool PrefixCache::find_unit(std::span<const Token> tokens, PrefixChain& chain, std::size_t group,
                            int first, std::vector<BlockRef>& found) {
  const int length = pools_[group].tokens_per_block();
  found.clear();
  for (int block = first / length; block < (first + unit_) / length; ++block) {
    std::optional<BlockRef> hit = pools_[group].find(content(tokens, chain, group, block));
    if (!hit) return false;
    found.push_back(*std::move(hit));
  }
  return true;
}

void PrefixCache::publish(std::span<const Token> tokens, PrefixChain& chain,
                          const std::vector<BlockTable>& tables) {
  const int end = static_cast<int>(tokens.size()) / unit_ * unit_;
  if (end <= chain.published_count) return;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int first = chain.published_count / pools_[g].tokens_per_block();
    const int last = end / pools_[g].tokens_per_block();
    for (int block = first; block < last; ++block) {
      pools_[g].set_label(tables[g].id(block), content(tokens, chain, g, block));
    }
  }
  chain.published_count = end;
}

// label = SipHash(key, label of the block before or of the salt, tokens), and the number of the
// group in front, though pools are separate already.
BlockContent PrefixCache::content(std::span<const Token> tokens, PrefixChain& chain,
                                  std::size_t group, int block) {
  const auto count = static_cast<std::size_t>(pools_[group].tokens_per_block());
  std::vector<BlockLabel>& labels = chain.labels[group];
  const auto index = static_cast<std::size_t>(block);
  CHECK(labels.size() >= index);
  const BlockLabel parent = index == 0 ? chain.root : labels[index - 1];
  const std::span<const Token> mine = tokens.subspan(index * count, count);
  if (labels.size() == index) {
    const std::uint64_t head[3] = {group, parent.low, parent.high};
    scratch_.resize(sizeof(head) + mine.size_bytes());
    std::memcpy(scratch_.data(), head, sizeof(head));
    std::memcpy(scratch_.data() + sizeof(head), mine.data(), mine.size_bytes());
    labels.push_back(sip_hash_128(key_, scratch_));
  }
  return {.label = labels[index], .parent = parent, .tokens = mine};
}

}  // namespace kun
