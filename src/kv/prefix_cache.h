// PrefixCache turns runs of tokens into block labels, so that two prompts which begin alike share
// their first blocks. It holds no blocks itself; the pools remember. With several KV groups a run
// of tokens is shared in units that are whole blocks in every group, or not at all. Of a group with
// a window only the blocks are needed that tokens behind the run read.
#pragma once

#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "kv/block_table.h"
#include "kv/kv_layout.h"

namespace kun {

// The labels of one sequence's blocks, so that each token is hashed once however often the
// sequence is admitted, preempted and published. Copy it with the tokens it names.
struct PrefixChain {
  BlockLabel root;                              // of the salt
  std::vector<std::vector<BlockLabel>> labels;  // [group][block], as far as they were needed
  int published_count = 0;                      // tokens whose blocks have their labels
};

class PrefixCache {
 public:
  // `key` is secret: who knows it could build two prompts with one label. `pools` ([KV group], as
  // in `layout`) must outlive the cache.
  PrefixCache(std::deque<KvBlockPool>& pools, const KvLayout& layout,
              const std::uint64_t (&key)[2]);

  // `salt` separates tenants: equal prompts under different salts never meet.
  PrefixChain chain(std::string_view salt);

  // Appends to the empty `tables` ([group]) the longest run of cached blocks that `tokens` begins
  // with; returns how many tokens that is.
  int match(std::span<const Token> tokens, PrefixChain& chain, std::vector<BlockTable>& tables);

  // Makes the whole units of `tokens` discoverable, as far as their blocks were not given back.
  // Requires: `tables` cover `tokens`, and their bytes are computed.
  void publish(std::span<const Token> tokens, PrefixChain& chain,
               const std::vector<BlockTable>& tables);

  // Takes the labels away from all blocks of `tables`, those that were given back included.
  void forget(const PrefixChain& chain, const std::vector<BlockTable>& tables);

  // Tokens in the smallest run that is whole blocks in every group.
  int unit() const { return unit_; }

 private:
  using Found = std::vector<std::vector<BlockRef>>;  // [group]: blocks one after the other

  int match_whole(std::span<const Token> tokens, PrefixChain& chain, Found& found);
  bool match_window(std::span<const Token> tokens, PrefixChain& chain, std::size_t group,
                    int& count, std::vector<BlockRef>& found);
  bool find_unit(std::span<const Token> tokens, PrefixChain& chain, std::size_t group, int first,
                 std::vector<BlockRef>& found);
  BlockContent content(std::span<const Token> tokens, PrefixChain& chain, std::size_t group,
                       int block);

  std::deque<KvBlockPool>& pools_;
  std::vector<KvGroup> groups_;
  std::uint64_t key_[2];
  int unit_ = 1;
  std::vector<std::byte> scratch_;
};

}  // namespace kun
