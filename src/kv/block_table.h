// The blocks of one sequence in one KV group, in the order of its tokens. It owns a share of each
// block, and keeps plain ids so that a plan takes them with one copy.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"

namespace kun {

// Releases its last block first. The pool reuses what was released longest ago, so the head of a
// prompt, which other prompts are likelier to share, outlives the tail.
class BlockTable {
 public:
  // `pool` must outlive the table.
  explicit BlockTable(KvBlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept
      : pool_(other.pool_), ids_(std::exchange(other.ids_, {})) {}
  BlockTable& operator=(BlockTable&&) = delete;
  ~BlockTable() { clear(); }

  // Another table of the same blocks.
  BlockTable share() const {
    BlockTable table(*pool_);
    table.ids_ = ids_;
    for (BlockId id : ids_) pool_->hold(id);
    return table;
  }

  // Requires: `block` is of this table's pool.
  void append(BlockRef block) { ids_.push_back(take(block)); }

  // Puts `block` in the place of another and returns that one.
  BlockRef replace(int index, BlockRef block) {
    const BlockId old = std::exchange(ids_[static_cast<std::size_t>(index)], take(block));
    return {pool_, old};
  }

  void clear() { truncate(0); }

  // Keeps the first `count` blocks, or all if there are fewer.
  void truncate(int count) {
    for (; size() > count; ids_.pop_back()) pool_->release(ids_.back());
  }

  int size() const { return static_cast<int>(ids_.size()); }
  BlockId id(int index) const { return ids_[static_cast<std::size_t>(index)]; }
  std::span<const BlockId> ids() const { return ids_; }
  KvBlockPool& pool() const { return *pool_; }

 private:
  BlockId take(BlockRef& block) const {
    CHECK(block.pool_ == pool_);
    block.pool_ = nullptr;
    return block.id_;
  }

  KvBlockPool* pool_;
  std::vector<BlockId> ids_;
};

}  // namespace kun
