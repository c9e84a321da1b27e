// Hashing, and the walk along units. See the header for the idea.
#include "kv/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kun {

PrefixCache::PrefixCache(std::deque<KvBlockPool>& pools, const KvLayout& layout,
                         const std::uint64_t (&key)[2])
    : pools_(pools), groups_(layout.groups), key_{key[0], key[1]} {
  CHECK(groups_.size() == pools.size());
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
  Found found(pools_.size());
  int matched = match_whole(tokens, chain, found);
  // What one group with a window lacks shortens the run, and then the others have to look again.
  for (bool settled = false; !settled;) {
    settled = true;
    for (std::size_t g = 0; g < pools_.size() && settled; ++g) {
      if (groups_[g].window == 0) continue;
      settled = match_window(tokens, chain, g, matched, found[g]);
    }
  }
  chain.published_count = matched;
  if (matched == 0) return 0;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int first = groups_[g].first_block_read(matched);
    const auto count = static_cast<std::size_t>(matched / pools_[g].tokens_per_block() - first);
    while (found[g].size() > count) found[g].pop_back();
    tables[g].skip(first);
    for (BlockRef& block : found[g]) tables[g].append(std::move(block));
  }
  return matched;
}

// The longest run whose blocks are all there in the groups without a window.
int PrefixCache::match_whole(std::span<const Token> tokens, PrefixChain& chain, Found& found) {
  int matched = 0;
  for (; std::ssize(tokens) >= matched + unit_; matched += unit_) {
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      if (groups_[g].window == 0 && !find_unit(tokens, chain, g, matched, found[g])) return matched;
    }
  }
  return matched;
}

// Fills `found` with what tokens behind the first `count` read of the group. False when a block is
// missing: then the run must end before it, and `count` becomes the most that it can be.
bool PrefixCache::match_window(std::span<const Token> tokens, PrefixChain& chain, std::size_t group,
                               int& count, std::vector<BlockRef>& found) {
  const int length = pools_[group].tokens_per_block();
  const int first = groups_[group].first_block_read(count);
  found.clear();
  for (int block = static_cast<int>(chain.labels[group].size()); block < count / length; ++block) {
    content(tokens, chain, group, block);
  }
  for (int block = count / length - 1; block >= first; --block) {
    std::optional<BlockRef> hit = pools_[group].find(content(tokens, chain, group, block));
    if (!hit) {
      count = block * length / unit_ * unit_;
      return false;
    }
    found.push_back(*std::move(hit));
  }
  std::ranges::reverse(found);
  return true;
}

// Appends the group's blocks of the unit that begins at token `first`.
bool PrefixCache::find_unit(std::span<const Token> tokens, PrefixChain& chain, std::size_t group,
                            int first, std::vector<BlockRef>& found) {
  const int length = pools_[group].tokens_per_block();
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
      const BlockContent made = content(tokens, chain, g, block);
      const BlockId id = tables[g].id(block);
      if (id != kNoBlock) pools_[g].set_label(id, made);
    }
  }
  chain.published_count = end;
}

void PrefixCache::forget(const PrefixChain& chain, const std::vector<BlockTable>& tables) {
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    for (int block = 0; block < tables[g].size(); ++block) {
      const BlockId id = tables[g].id(block);
      const auto index = static_cast<std::size_t>(block);
      if (id != kNoBlock) {
        pools_[g].forget(id);
      } else if (index < chain.labels[g].size()) {
        pools_[g].forget(chain.labels[g][index]);
      }
    }
  }
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
